/* Row "floor": the least that a GPT-2 124M training step must do, called directly as slots of the device (device.h):
 * its matrix products, passes that move as many bytes as its element-wise ops, and one AdamW pass. There is no tape, no
 * handles are made, and all buffers are allocated beforehand.
 *
 * Each product occurs once in forward, once for the gradient of its input and once for that of its weight. Nothing is
 * recomputed. Activations are [s, b, h], as in the library's transformer layers. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/extend.h>

#include "bench.h"
#include "kernels/scalar.h"

typedef enum pass_kind { PRODUCT, SWEEP, TOTAL, ADAMW } pass_kind;

/* One call of a slot. A PRODUCT is a matrix product. A SWEEP computes out = a + b, or out = a if b is NULL; if `add` is
 * true, it adds the result to out. A TOTAL sums the rows or columns of a into out. */
typedef struct pass {
    const char *name;
    pass_kind kind;
    bool add;
    tg_gemm product;
    tg_tensor *out, *a, *b;
    tg_adamw_args adamw;
} pass;

enum { H = GPT2_HIDDEN, HEADS = GPT2_HEADS, D = H / HEADS, FFN = 4 * H };

/* CHUNK: rows of logits that are computed at once, as in tg_linear_cross_entropy. SPARE: the most passes, and the most
 * tensors, of a layer and of the rest of the step; also the most passes of a chunk. */
enum { CHUNK = 512, SPARE = 64 };

/* A weight [out, in], its bias, and their gradients. */
typedef struct weight {
    const char *name;
    int64_t out, input;
    tg_tensor *w, *g, *bias, *gbias;
} weight;

/* The weights of a layer, and its activations: x is the input, n1 and n2 are the results of the norms, parts has the
 * queries, keys and values, mixed is attention's result, x1 is x plus its projection, and z and h are the MLP's hidden
 * activations before and after GELU. */
typedef struct layer {
    weight qkv, mix, up, down;
    tg_tensor *x, *n1, *parts, *scores, *mixed, *x1, *n2, *z, *h;
} layer;

typedef struct floor_step {
    tg_ctx *ctx;
    int64_t b, t, rows; /* batch, sequence length, and their product */
    int n, capacity;
    pass *passes;
    int n_made, made_capacity;
    tg_tensor **made; /* all tensors, to drop them at the end */
    double scalars[TG_STEP_SCALARS];
    layer *layers;
    int64_t n_layers;
    weight head;
    tg_tensor *y, *g, *gn, *gh, *gparts, *gscores, *gmixed, *last, *logits, *glogits, *losses;
} floor_step;

/* ---- Buffers of the context, so that their addresses stay the same ---- */

/* Adds x to the tensors that floor_close drops. Returns x. */
static tg_tensor *own(floor_step *f, tg_tensor *x) {
    assert(f->n_made < f->made_capacity);
    return f->made[f->n_made++] = x;
}

static tg_tensor *buffer(floor_step *f, tg_dtype dtype, tg_shape shape) {
    return own(f, tg_zeros(f->ctx, dtype, shape));
}

static tg_tensor *activation(floor_step *f, int64_t cols) {
    return buffer(f, TG_DTYPE_DEFAULT, TG_SHAPE(f->rows, cols));
}

static tg_matrix matrix(tg_tensor *x) {
    return (tg_matrix){.data = tg_host_data(x), .rs = tg_dim(x, -1), .cs = 1, .dtype = tg_dtype_of(x)};
}

static tg_matrix transposed(tg_matrix x) {
    int64_t rs = x.rs;
    x.rs = x.cs;
    x.cs = rs;
    return x;
}

/* ---- Passes ---- */

static pass *next_pass(floor_step *f, const char *name, pass_kind kind) {
    assert(f->n < f->capacity);
    f->passes[f->n] = (pass){.name = name, .kind = kind};
    return &f->passes[f->n++];
}

static tg_gemm *product(floor_step *f, const char *name, int64_t m, int64_t n, int64_t k, tg_matrix a, tg_matrix b,
                        tg_matrix c) {
    pass *p = next_pass(f, name, PRODUCT);
    p->product = (tg_gemm){.m = m, .n = n, .k = k, .batch = {1, 1}, .a = a, .b = b, .c = c, .alpha = 1};
    return &p->product;
}

static void sweep(floor_step *f, const char *name, tg_tensor *out, tg_tensor *a, tg_tensor *b, bool add) {
    pass *p = next_pass(f, name, SWEEP);
    p->out = out, p->a = a, p->b = b, p->add = add;
}

static void total(floor_step *f, const char *name, tg_tensor *out, tg_tensor *a) {
    pass *p = next_pass(f, name, TOTAL);
    p->out = out, p->a = a;
}

/* Plans y = x w^T + b. */
static tg_gemm *apply(floor_step *f, const weight *w, tg_tensor *x, tg_tensor *y) {
    tg_gemm *g = product(f, w->name, f->rows, w->out, w->input, matrix(x), transposed(matrix(w->w)), matrix(y));
    g->bias = tg_host_data(w->bias);
    g->bias_dtype = tg_dtype_of(w->bias);
    return g;
}

/* Plans the gradients of y = x w^T + b. g is the gradient of y, and gx that of x. */
static void apply_grad(floor_step *f, const weight *w, tg_tensor *g, tg_tensor *x, tg_tensor *gx) {
    product(f, w->name, f->rows, w->input, w->out, matrix(g), matrix(w->w), matrix(gx));
    product(f, w->name, w->out, w->input, f->rows, transposed(matrix(g)), matrix(x), matrix(w->g));
    total(f, "bias gradients", w->gbias, g);
}

/* Returns part 0, 1 or 2 (queries, keys, values) of x [t, b, parts, heads, d], as an operand of a product batched over
 * b and heads. */
static tg_matrix heads(const floor_step *f, tg_tensor *x, int part) {
    int64_t row = tg_dim(x, -1);
    tg_matrix m = {.data = tg_host_data(x), .rs = f->b * row, .cs = 1, .bs = {row, D}, .dtype = tg_dtype_of(x)};
    if (m.data) m.data = (char *)m.data + part * H * (tg_dtype_bits(m.dtype) / 8);
    return m;
}

static tg_matrix score_matrix(const floor_step *f, tg_tensor *s) {
    return (tg_matrix){tg_host_data(s), f->t, 1, {HEADS * f->t * f->t, f->t * f->t}, tg_dtype_of(s)};
}

/* Plans a product for each head of each sequence. */
static void of_heads(floor_step *f, int64_t m, int64_t n, int64_t k, tg_matrix a, tg_matrix b, tg_matrix c) {
    tg_gemm *g = product(f, "attention", m, n, k, a, b, c);
    g->batch[0] = f->b;
    g->batch[1] = HEADS;
}

static void attend(floor_step *f, layer *l) {
    tg_matrix s = score_matrix(f, l->scores), v = heads(f, l->parts, 2);
    of_heads(f, f->t, f->t, D, heads(f, l->parts, 0), transposed(heads(f, l->parts, 1)), s);
    sweep(f, "attention", l->scores, l->scores, NULL, false);
    of_heads(f, f->t, D, f->t, s, v, heads(f, l->mixed, 0));
}

static void attend_grad(floor_step *f, layer *l) {
    tg_matrix s = score_matrix(f, l->scores), gs = score_matrix(f, f->gscores), go = heads(f, f->gmixed, 0);
    of_heads(f, f->t, D, f->t, transposed(s), go, heads(f, f->gparts, 2));
    of_heads(f, f->t, f->t, D, go, transposed(heads(f, l->parts, 2)), gs);
    sweep(f, "attention", f->gscores, f->gscores, l->scores, false);
    of_heads(f, f->t, D, f->t, gs, heads(f, l->parts, 1), heads(f, f->gparts, 0));
    of_heads(f, f->t, D, f->t, transposed(gs), heads(f, l->parts, 0), heads(f, f->gparts, 1));
}

static void forward(floor_step *f, layer *l, tg_tensor *x2) {
    sweep(f, "layer norms", l->n1, l->x, NULL, false);
    apply(f, &l->qkv, l->n1, l->parts);
    attend(f, l);
    apply(f, &l->mix, l->mixed, f->y);
    sweep(f, "residuals", l->x1, l->x, f->y, false);
    sweep(f, "layer norms", l->n2, l->x1, NULL, false);
    tg_gemm *up = apply(f, &l->up, l->n2, l->h);
    up->act = TG_ACT_GELU_TANH;
    up->pre = matrix(l->z);
    apply(f, &l->down, l->h, f->y);
    sweep(f, "residuals", x2, l->x1, f->y, false);
}

static void backward(floor_step *f, layer *l) {
    apply_grad(f, &l->down, f->g, l->h, f->gh);
    sweep(f, "GELU's gradient", f->gh, f->gh, l->z, false);
    apply_grad(f, &l->up, f->gh, l->n2, f->gn);
    sweep(f, "layer norms", f->g, f->gn, l->x1, true);
    apply_grad(f, &l->mix, f->g, l->mixed, f->gmixed);
    attend_grad(f, l);
    apply_grad(f, &l->qkv, f->gparts, l->n1, f->gn);
    sweep(f, "layer norms", f->g, f->gn, l->x, true);
}

/* Plans the loss: for each CHUNK of rows, the logits and their gradient, which has the dtype of the operands. */
static void loss(floor_step *f) {
    tg_matrix x = matrix(f->last), gx = matrix(f->g), w = matrix(f->head.w), logits = matrix(f->logits);
    tg_matrix g = matrix(f->glogits), gw = matrix(f->head.g);
    int64_t step = CHUNK * H * (tg_dtype_bits(x.dtype) / 8);
    for (int64_t first = 0; first < f->rows; first += CHUNK) {
        int64_t n = f->rows - first < CHUNK ? f->rows - first : CHUNK;
        product(f, "logits", n, GPT2_VOCAB, H, x, transposed(w), logits);
        total(f, "cross-entropy", f->losses, f->logits);
        sweep(f, "cross-entropy", f->glogits, f->logits, NULL, false);
        product(f, "logits", n, H, GPT2_VOCAB, g, w, gx);
        product(f, "logits", GPT2_VOCAB, H, n, transposed(g), x, gw)->beta = first > 0;
        x.data = (char *)x.data + step;
        gx.data = (char *)gx.data + step;
    }
}

/* Plans AdamW for a weight and its gradient. The learning rate is 0, so the weights do not change. */
static void adamw(floor_step *f, tg_tensor *w, tg_tensor *g) {
    pass *p = next_pass(f, "AdamW", ADAMW);
    tg_shape shape = tg_shape_of(w);
    p->adamw = (tg_adamw_args){.param = tg_array_of(w),
                               .grad = tg_array_of(g),
                               .beta1 = 0.9,
                               .beta2 = 0.999,
                               .eps = 1e-8,
                               .weight_decay = 0.01,
                               .decoupled = true,
                               .step = f->scalars};
    p->adamw.m = tg_array_of(buffer(f, TG_F32, shape));
    p->adamw.v = tg_array_of(buffer(f, TG_F32, shape));
    if (tg_dtype_of(w) != TG_F32) p->adamw.master = tg_array_of(buffer(f, TG_F32, shape));
}

static void step_weight(floor_step *f, const weight *w) {
    adamw(f, w->w, w->g);
    if (w->bias) adamw(f, w->bias, w->gbias);
}

/* ---- One step ---- */

static weight make_weight(floor_step *f, const char *name, int64_t out, int64_t in, bool bias) {
    weight w = {.name = name, .out = out, .input = in};
    w.w = own(f, tg_randn(f->ctx, TG_DTYPE_DEFAULT, TG_SHAPE(out, in), 1 / sqrt((double)in)));
    w.g = buffer(f, TG_F32, TG_SHAPE(out, in));
    if (bias)
        w.bias = own(f, tg_randn(f->ctx, TG_DTYPE_DEFAULT, TG_SHAPE(out), 0.02)),
        w.gbias = buffer(f, TG_F32, TG_SHAPE(1, out));
    return w;
}

static layer make_layer(floor_step *f) {
    return (layer){
        .qkv = make_weight(f, "qkv", 3 * H, H, true),
        .mix = make_weight(f, "attention's projection", H, H, true),
        .up = make_weight(f, "up", FFN, H, true),
        .down = make_weight(f, "down", H, FFN, true),
        .x = own(f, tg_randn(f->ctx, TG_DTYPE_DEFAULT, TG_SHAPE(f->rows, H), 1)),
        .n1 = activation(f, H),
        .parts = activation(f, 3 * H),
        .scores = buffer(f, TG_DTYPE_DEFAULT, TG_SHAPE(f->b, HEADS, f->t, f->t)),
        .mixed = activation(f, H),
        .x1 = activation(f, H),
        .n2 = activation(f, H),
        .z = activation(f, FFN),
        .h = activation(f, FFN),
    };
}

static void make_shared(floor_step *f) {
    int64_t chunk = f->rows < CHUNK ? f->rows : CHUNK;
    f->head = make_weight(f, "logits", GPT2_VOCAB, H, false);
    f->y = activation(f, H);
    f->g = activation(f, H);
    f->gn = activation(f, H);
    f->gh = activation(f, FFN);
    f->gparts = activation(f, 3 * H);
    f->gmixed = activation(f, H);
    f->last = own(f, tg_randn(f->ctx, TG_DTYPE_DEFAULT, TG_SHAPE(f->rows, H), 1));
    f->gscores = buffer(f, TG_DTYPE_DEFAULT, TG_SHAPE(f->b, HEADS, f->t, f->t));
    f->logits = buffer(f, TG_F32, TG_SHAPE(chunk, GPT2_VOCAB));
    f->glogits = tg_dtype_of(f->g) == TG_F32 ? f->logits : buffer(f, TG_DTYPE_DEFAULT, TG_SHAPE(chunk, GPT2_VOCAB));
    f->losses = buffer(f, TG_F32, TG_SHAPE(chunk, 1));
}

static void plan_step(floor_step *f) {
    for (int64_t i = 0; i < f->n_layers; i++)
        forward(f, &f->layers[i], i + 1 < f->n_layers ? f->layers[i + 1].x : f->y);
    sweep(f, "layer norms", f->gn, f->y, NULL, false);
    loss(f);
    sweep(f, "layer norms", f->g, f->gn, f->y, false);
    for (int64_t i = f->n_layers - 1; i >= 0; i--) backward(f, &f->layers[i]);
    for (int64_t i = 0; i < f->n_layers; i++) {
        layer *l = &f->layers[i];
        step_weight(f, &l->qkv);
        step_weight(f, &l->mix);
        step_weight(f, &l->up);
        step_weight(f, &l->down);
    }
    step_weight(f, &f->head);
}

static void floor_close(void *state) {
    floor_step *f = state;
    for (int i = 0; i < f->n_made; i++) tg_drop(f->made[i]);
    free(f->made);
    free(f->passes);
    free(f->layers);
    free(f);
}

static void *floor_open(tg_ctx *ctx, const bench_options *o) {
    if (o->hidden != H || o->heads != HEADS || o->vocab != GPT2_VOCAB || !tg_ctx_ops(ctx)->host) {
        tg_ctx_fail(ctx, TG_ERR_ARGUMENT,
                    "row \"floor\" needs device cpu, and --hidden, --heads and --vocab of GPT-2 124M; leave them out");
        return NULL;
    }
    floor_step *f = malloc(sizeof *f);
    if (!f) return NULL;
    *f = (floor_step){.ctx = ctx,
                      .b = o->batch,
                      .t = o->seq_len,
                      .rows = o->batch * o->seq_len,
                      .n_layers = o->layers,
                      .scalars = {0, 1, 0.1, 0.001, 0}}; /* the first two are the learning rate and the clip factor */
    f->capacity = (int)(SPARE * (o->layers + 1 + f->rows / CHUNK));
    f->made_capacity = (int)(SPARE * (o->layers + 1));
    f->passes = malloc((size_t)f->capacity * sizeof *f->passes);
    f->made = malloc((size_t)f->made_capacity * sizeof *f->made);
    f->layers = malloc((size_t)o->layers * sizeof *f->layers);
    if (!f->passes || !f->made || !f->layers) {
        floor_close(f);
        return NULL;
    }
    for (int64_t i = 0; i < o->layers; i++) f->layers[i] = make_layer(f);
    make_shared(f);
    if (tg_ctx_status(ctx) == TG_OK) plan_step(f);
    return f;
}

/* ---- Running the step ---- */

static tg_status run_sweep(const floor_step *f, const pass *p) {
    tg_array in[2] = {tg_array_of(p->a)};
    if (p->b) in[1] = tg_array_of(p->b);
    return tg_ctx_ops(f->ctx)->apply(f->ctx, p->b ? TG_FN_add : TG_FN_id, tg_array_of(p->out), in, p->b ? 2 : 1, NULL,
                                   p->add);
}

static tg_status run_pass(const floor_step *f, const pass *p) {
    const tg_device_ops *ops = tg_ctx_ops(f->ctx);
    switch (p->kind) {
    case PRODUCT: return ops->gemm(f->ctx, &p->product);
    case SWEEP: return run_sweep(f, p);
    case TOTAL: return ops->reduce(f->ctx, TG_SUM, tg_array_of(p->out), tg_array_of(p->a), 1, false);
    case ADAMW: return ops->adamw(f->ctx, &p->adamw, 1);
    }
    return TG_OK;
}

static double floor_measure(void *state) {
    const floor_step *f = state;
    double begun = seconds_now();
    for (int i = 0; i < f->n; i++) run_pass(f, &f->passes[i]);
    return 1e3 * (seconds_now() - begun);
}

/* The sums over all passes of one name. */
typedef struct share {
    const char *name;
    int calls;
    double seconds, flops;
} share;

static double flops_of(const pass *p) {
    const tg_gemm *g = &p->product;
    return p->kind == PRODUCT ? 2.0 * (double)(g->m * g->n) * (double)(g->k * g->batch[0] * g->batch[1]) : 0;
}

/* Runs a step, and prints the time of the passes of each name. */
static void floor_profile(void *state) {
    enum { MOST = 32 };
    const floor_step *f = state;
    share shares[MOST] = {0};
    int n = 0;
    for (int i = 0; i < f->n; i++) {
        const pass *p = &f->passes[i];
        int j = 0;
        while (j < n && strcmp(shares[j].name, p->name) != 0) j++;
        if (j == MOST) continue;
        if (j == n) shares[n++].name = p->name;
        double begun = seconds_now();
        run_pass(f, p);
        shares[j].seconds += seconds_now() - begun;
        shares[j].flops += flops_of(p);
        shares[j].calls++;
    }
    printf("%-24s %6s %10s %10s\n", "pass", "calls", "ms", "GF/s");
    for (int i = 0; i < n; i++)
        printf("%-24s %6d %10.2f %10.1f\n", shares[i].name, shares[i].calls, 1e3 * shares[i].seconds,
               1e-9 * shares[i].flops / shares[i].seconds);
}

const bench_row floor_row = {
    .name = "floor",
    .unit = "ms a step",
    .summary = "the kernels that a GPT-2 124M training step needs at least, without the library around them",
    .open = floor_open,
    .measure = floor_measure,
    .profile = floor_profile,
    .close = floor_close,
};
