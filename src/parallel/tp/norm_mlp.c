/* The MLP with a norm in front (Transformer Engine's LayerNormMLP): a norm and a column layer, an activation, and a row
 * layer. */
#include "base/memory/host_memory.h"
#include "base/options.h"
#include "base/text.h"
#include "tape/tape.h"

#include <tapegrad/megatron.h>

#include "parallel/parallel.h"
#include "parallel/tp/layers.h"

typedef struct norm_mlp {
    tg_ctx *ctx;
    tg_mlp_activation activation;
} norm_mlp;

static const struct {
    const char *name;
    tg_tensor *(*of)(tg_tape *t, tg_tensor *x);
} activations[] = {
    [TG_MLP_GELU] = {"gelu", tg_gelu},  [TG_MLP_GELU_TANH] = {"gelu_tanh", tg_gelu_tanh},
    [TG_MLP_RELU] = {"relu", tg_relu},  [TG_MLP_SILU] = {"silu", tg_silu},
    [TG_MLP_SWIGLU] = {"swiglu", NULL},
};

static tg_tensor *activate(tg_tape *t, tg_tensor *h, tg_mlp_activation activation) {
    tg_tensor *half[2];
    if (activations[activation].of) return activations[activation].of(t, h);
    return tg_chunk(t, h, -1, 2, half) == TG_OK ? tg_swiglu(t, half[0], half[1]) : tg_inert(t->ctx);
}

static tg_tensor *forward(tg_module *m, tg_tape *t, tg_tensor *x) {
    tg_tensor *h = tg_module_run(m, "linear_fc1", t, x);
    return tg_module_run(m, "linear_fc2", t, activate(t, h, ((const norm_mlp *)m->state)->activation));
}

static void norm_mlp_free(void *state) {
    norm_mlp *s = state;
    tg_host_free(s->ctx, s, sizeof *s);
}

static size_t describe(const tg_module *m, char *buf, size_t n) {
    size_t at = 0;
    tg_text(buf, n, &at, "%s", activations[((const norm_mlp *)m->state)->activation].name);
    return at;
}

static const tg_module_ops norm_mlp_ops = {
    .size = sizeof(tg_module_ops), .kind = "norm_mlp", .forward = forward, .free = norm_mlp_free, .describe = describe};

static const char *const who = "tg_nn_norm_mlp";

/* Reads and checks the options. The first layer checks those that both layers have, before it draws its weight. */
static tg_status read_options(const tg_parallel *p, int64_t hidden, int64_t ffn, const tg_norm_mlp_opts *given,
                              tg_norm_mlp_opts *o) {
    tg_ctx *ctx = tg_parallel_ctx(p);
    TG_TRY(tg_options(ctx, o, &tg_norm_mlp_opts_struct, given, who));
    if ((unsigned)o->activation >= TG_LEN(activations))
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: activation is %d, expected TG_MLP_GELU to TG_MLP_SWIGLU", who,
                       (int)o->activation);
    if (!tg_layer_positive(ctx, who, "hidden", hidden) || !tg_layer_finite(ctx, who, "std", o->std) ||
        !tg_layer_finite(ctx, who, "out_std", o->out_std))
        return ctx->run.status;
    if (ffn > INT64_MAX / 2)
        return tg_fail(ctx, TG_ERR_SHAPE, "%s: ffn is %lld, so 2 ffn overflows", who, (long long)ffn);
    return tg_layer_divide(p, who, "ffn", ffn, TG_TP);
}

static void add_layers(tg_module *m, const tg_parallel *p, int64_t hidden, int64_t ffn, const tg_norm_mlp_opts *o) {
    int halves = o->activation == TG_MLP_SWIGLU ? 2 : 1;
    tg_parallel_linear_opts linear = {TG_PARALLEL_LINEAR_DEFAULTS,
                                      .no_bias = o->no_bias,
                                      .std = o->out_std,
                                      .sequence_parallel = o->sequence_parallel,
                                      .fused_wgrad = o->fused_wgrad,
                                      .deferred_wgrads = o->deferred_wgrads,
                                      .dtype = o->dtype,
                                      .chunks = o->chunks};
    tg_parallel_linear_opts first = linear;
    first.std = o->std;
    first.strides = halves;
    first.rms_norm = o->rms_norm;
    first.zero_centered = o->zero_centered;
    first.norm_eps = o->norm_eps;
    tg_module *fc1 = tg_parallel_linear_new(p, &tg_norm_column_linear, hidden, halves * ffn, &first, who);
    tg_module_add_child(m, "linear_fc1", fc1);
    if (!tg_module_ok(m)) return;
    tg_module_add_child(m, "linear_fc2", tg_parallel_linear_new(p, &tg_row_linear, ffn, hidden, &linear, who));
}

tg_module *tg_nn_norm_mlp(const tg_parallel *p, int64_t hidden, int64_t ffn, const tg_norm_mlp_opts *opts) {
    tg_norm_mlp_opts o;
    tg_ctx *ctx = tg_parallel_ctx(p);
    if (!tg_ok(ctx) || read_options(p, hidden, ffn, opts, &o) != TG_OK) return tg_layer_checked(NULL);
    norm_mlp *s = tg_host_alloc(ctx, sizeof *s);
    if (!s) return tg_layer_checked(NULL);
    *s = (norm_mlp){ctx, o.activation};
    tg_module *m = tg_module_new(ctx, &norm_mlp_ops, s);
    if (tg_module_ok(m)) add_layers(m, p, hidden, ffn, &o);
    return tg_layer_checked(m);
}
