/* Single kernels, called directly as slots of the device (device.h), with random values. bench/run.py and bench/gpu.py
 * know the bytes and FLOPs of each kernel. They compare its time with PyTorch's, and its rate with the rate of a copy
 * or of a product. Choose sizes that no cache holds. */
#include "kernel.h"

#include "kernels/scalar.h"

/* ---- A copy of [rows, columns], and kernels that move as many bytes ---- */

static kernel *sweep_new(tg_ctx *ctx, const bench_options *o, tg_status (*once)(kernel *k)) {
    kernel *k = kernel_new(ctx, o, once);
    if (!k) return NULL;
    k->from = normal(k, TG_SHAPE(o->rows, o->columns));
    k->to = zeros(k, TG_DTYPE_DEFAULT, TG_SHAPE(o->rows, o->columns));
    return k;
}

static tg_status copy_once(kernel *k) {
    size_t bytes = (size_t)k->from.numel * (size_t)(tg_dtype_bits((tg_dtype)k->from.dtype) / 8);
    return k->ops->copy(k->ctx, k->to.data, k->from.data, bytes, TG_COPY_DEVICE);
}

static tg_status gelu_once(kernel *k) {
    return k->ops->apply(k->ctx, TG_FN_gelu, k->to, &k->from, 1, NULL, false);
}

static tg_status softmax_once(kernel *k) { return k->ops->softmax(k->ctx, k->to, k->from, false); }

static void *copy_open(tg_ctx *ctx, const bench_options *o) { return sweep_new(ctx, o, copy_once); }
static void *gelu_open(tg_ctx *ctx, const bench_options *o) { return sweep_new(ctx, o, gelu_once); }
static void *softmax_open(tg_ctx *ctx, const bench_options *o) { return sweep_new(ctx, o, softmax_once); }

/* ---- Layer norm ---- */

static tg_status norm_once(kernel *k) { return k->ops->norm(k->ctx, &k->norm); }
static tg_status norm_grad_once(kernel *k) { return k->ops->norm_grad(k->ctx, &k->norm); }

static kernel *norm_new(tg_ctx *ctx, const bench_options *o, tg_status (*once)(kernel *k)) {
    kernel *k = kernel_new(ctx, o, once);
    if (!k) return NULL;
    tg_shape s = TG_SHAPE(o->rows, o->columns), row = TG_SHAPE(o->columns), column = TG_SHAPE(o->rows);
    k->norm = (tg_norm_args){.x = normal(k, s), .w = normal(k, row), .b = normal(k, row),
                             .y = zeros(k, TG_DTYPE_DEFAULT, s), .mean = zeros(k, TG_F32, column),
                             .rstd = zeros(k, TG_F32, column), .eps = 1e-5};
    return k;
}

static void *norm_open(tg_ctx *ctx, const bench_options *o) { return norm_new(ctx, o, norm_once); }

static void *norm_grad_open(tg_ctx *ctx, const bench_options *o) {
    kernel *k = norm_new(ctx, o, norm_grad_once);
    if (!k) return NULL;
    if (tg_ctx_status(ctx) == TG_OK) k->ops->norm(ctx, &k->norm); /* fills mean and rstd */
    k->norm.gy = normal(k, TG_SHAPE(o->rows, o->columns));
    k->norm.gx = k->norm.y;
    k->norm.y = (tg_array){0};
    k->norm.gw = zeros(k, TG_F32, TG_SHAPE(o->columns));
    k->norm.gb = zeros(k, TG_F32, TG_SHAPE(o->columns));
    return k;
}

/* ---- The loss: logits [rows, vocab] ---- */

static tg_status loss_once(kernel *k) { return k->ops->cross_entropy(k->ctx, &k->loss); }
static tg_status loss_grad_once(kernel *k) { return k->ops->cross_entropy_grad(k->ctx, &k->loss); }

static kernel *loss_new(tg_ctx *ctx, const bench_options *o, tg_status (*once)(kernel *k)) {
    kernel *k = kernel_new(ctx, o, once);
    int64_t *targets = calloc((size_t)o->rows, sizeof *targets);
    if (!k || !targets) {
        free(targets);
        free(k);
        return NULL;
    }
    for (int64_t i = 0; i < o->rows; i++) targets[i] = i * 7919 % o->vocab;
    k->loss = (tg_cross_entropy_args){.logits = normal(k, TG_SHAPE(o->rows, o->vocab)),
                                      .target = keep(k, tg_from_host(ctx, TG_I64, TG_SHAPE(o->rows), targets)),
                                      .loss = zeros(k, TG_F32, TG_SHAPE(o->rows)),
                                      .top = zeros(k, TG_F32, TG_SHAPE(o->rows)),
                                      .mass = zeros(k, TG_F32, TG_SHAPE(o->rows)),
                                      .ignore_index = -100,
                                      .bad = &k->bad};
    free(targets);
    return k;
}

static void *loss_open(tg_ctx *ctx, const bench_options *o) { return loss_new(ctx, o, loss_once); }

static void *loss_grad_open(tg_ctx *ctx, const bench_options *o) {
    kernel *k = loss_new(ctx, o, loss_grad_once);
    if (!k) return NULL;
    if (tg_ctx_status(ctx) == TG_OK) k->ops->cross_entropy(ctx, &k->loss); /* fills top and mass */
    k->loss.gloss = k->loss.loss;
    k->loss.loss = (tg_array){0};
    k->loss.glogits = zeros(k, TG_DTYPE_DEFAULT, TG_SHAPE(o->rows, o->vocab));
    return k;
}

/* ---- Attention, causal: [batch, heads, seq-len, hidden / heads] ---- */

static tg_status attention_once(kernel *k) { return k->ops->attention(k->ctx, &k->attention); }
static tg_status attention_grad_once(kernel *k) { return k->ops->attention_grad(k->ctx, &k->attention); }

static kernel *attention_new(tg_ctx *ctx, const bench_options *o, tg_status (*once)(kernel *k)) {
    kernel *k = kernel_new(ctx, o, once);
    if (!k) return NULL;
    int64_t size = o->hidden / o->heads;
    tg_shape s = TG_SHAPE(o->batch, o->heads, o->seq_len, size);
    double scale = 1;
    while (scale * scale * (double)size > 1) scale /= 2;
    k->attention = (tg_attention_args){.q = normal(k, s), .k = normal(k, s), .v = normal(k, s),
                                       .out = zeros(k, TG_DTYPE_DEFAULT, s),
                                       .top = zeros(k, TG_F32, TG_SHAPE(o->batch, o->heads, o->seq_len)),
                                       .mass = zeros(k, TG_F32, TG_SHAPE(o->batch, o->heads, o->seq_len)),
                                       .scale = scale, .causal = true};
    return k;
}

static void *attention_open(tg_ctx *ctx, const bench_options *o) { return attention_new(ctx, o, attention_once); }

static void *attention_grad_open(tg_ctx *ctx, const bench_options *o) {
    kernel *k = attention_new(ctx, o, attention_grad_once);
    if (!k) return NULL;
    tg_shape s = TG_SHAPE(o->batch, o->heads, o->seq_len, o->hidden / o->heads);
    if (tg_ctx_status(ctx) == TG_OK) k->ops->attention(ctx, &k->attention); /* fills out, top and mass */
    k->attention.gout = normal(k, s);
    k->attention.gq = zeros(k, TG_DTYPE_DEFAULT, s);
    k->attention.gk = zeros(k, TG_DTYPE_DEFAULT, s);
    k->attention.gv = zeros(k, TG_DTYPE_DEFAULT, s);
    return k;
}

/* ---- The rows ---- */

KERNEL_ROW(copy, "copy", "a copy within the device");
KERNEL_ROW(gelu, "gelu", "GELU by the error function");
KERNEL_ROW(softmax, "softmax", "softmax of rows");
KERNEL_ROW(norm, "norm", "layer norm");
KERNEL_ROW(norm_grad, "norm-grad", "layer norm's gradient");
KERNEL_ROW(loss, "loss", "cross-entropy of logits [rows, vocab]");
KERNEL_ROW(loss_grad, "loss-grad", "cross-entropy's gradient");
KERNEL_ROW(attention, "attention", "causal attention");
KERNEL_ROW(attention_grad, "attention-grad", "causal attention's gradient");
