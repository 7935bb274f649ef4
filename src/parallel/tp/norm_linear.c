/* The column layer with a norm in front (Megatron-Core's TELayerNormColumnParallelLinear), and the split of this layer
 * into two modules (tg_norm_linear_split). */
#include "base/memory/host_memory.h"
#include "base/text.h"
#include "kernels/scalar.h"
#include "tape/tape.h"

#include <tapegrad/megatron.h>

#include "parallel/tp/layers.h"

static tg_tensor *run(tg_module *m, tg_tape *t, tg_tensor *x, tg_tensor *w) {
    const tg_parallel_linear *s = tg_parallel_linear_of(m);
    tg_norm_linear_opts o = {
        .size = sizeof o,
        .rms = s->o.rms_norm,
        .eps = s->o.norm_eps,
        .zero_centered = s->o.zero_centered,
        .sequence_parallel = s->sp,
        .allreduce_dgrad = !s->sp && !s->o.no_dgrad_reduce,
        .fused_wgrad = s->o.fused_wgrad,
        .deferred = s->deferred,
        .chunks = s->sp ? s->o.chunks : 1,
    };
    return tg_norm_linear(t, x, w, tg_parallel_linear_bias(m), tg_module_own(m, "layer_norm_weight"),
                          tg_module_own(m, "layer_norm_bias"), s->comm, &o);
}

const tg_linear_kind tg_norm_column_linear = {
    .ops = TG_LINEAR_OPS("norm_linear"), .mode = TG_LINEAR_COLUMN, .norm = true, .run = run};

tg_module *tg_nn_norm_linear(const tg_parallel *p, int64_t in, int64_t out, const tg_parallel_linear_opts *opts) {
    return tg_parallel_linear_new(p, &tg_norm_column_linear, in, out, opts, "tg_nn_norm_linear");
}

/* ---- The norm as a module of its own ---- */

typedef struct front_norm {
    tg_ctx *ctx;
    double eps;
    bool rms, zero_centered;
} front_norm;

static tg_tensor *norm_forward(tg_module *m, tg_tape *t, tg_tensor *x) {
    const front_norm *s = m->state;
    tg_tensor *w = tg_module_own(m, "weight");
    if (s->zero_centered) w = tg_add_scalar(t, w, 1);
    return s->rms ? tg_rms_norm(t, x, w, s->eps) : tg_layer_norm(t, x, w, tg_module_own(m, "bias"), s->eps);
}

static void norm_free(void *state) {
    front_norm *s = state;
    tg_host_free(s->ctx, s, sizeof *s);
}

static size_t norm_describe(const tg_module *m, char *buf, size_t n) {
    const front_norm *s = m->state;
    size_t at = 0;
    tg_text(buf, n, &at, "eps %g%s", s->eps, s->zero_centered ? ", zero-centered" : "");
    return at;
}

static const tg_module_ops layer_norm_ops = {.size = sizeof(tg_module_ops),
                                             .kind = "layer_norm",
                                             .forward = norm_forward,
                                             .free = norm_free,
                                             .describe = norm_describe};
static const tg_module_ops rms_norm_ops = {.size = sizeof(tg_module_ops),
                                           .kind = "rms_norm",
                                           .forward = norm_forward,
                                           .free = norm_free,
                                           .describe = norm_describe};

/* ---- Splitting ---- */

/* Copies the values of `from` to the parameter `to`, and whether it requires a gradient. */
static tg_status copy_param(tg_tensor *to, tg_tensor *from) {
    const double none[2] = {0, 0};
    tg_array x = tg_array_of(from);
    if (!tg_requires_grad(from)) tg_set_requires_grad(to, false);
    TG_TRY(tg_storage_need(from->storage, from));
    return from->numel ? from->ctx->run.ops->apply(from->ctx, TG_FN_id, tg_array_of(to), &x, 1, none, false) : TG_OK;
}

/* If `fused` has the parameter `source`, adds a copy of it to m, as the parameter `name`. */
static void add_copy(tg_module *m, const char *name, tg_module *fused, const char *source, tg_placement at) {
    const tg_parallel_linear *s = tg_parallel_linear_of(fused);
    tg_tensor *from = tg_module_own(fused, source);
    if (!from || !tg_ok(m->ctx)) return;
    tg_tensor *to = tg_layer_param(s->p, name, (tg_dtype)from->dtype, (tg_shape){1, {s->in}}, 0, s->axis, at);
    if (tg_ok(m->ctx)) copy_param(to, from);
    tg_layer_add(m, name, to);
}

/* Makes the module of the norm, with copies of its parameters. */
static tg_module *norm_of(tg_module *fused) {
    const tg_parallel_linear *s = tg_parallel_linear_of(fused);
    tg_placement at = tg_linear_norm_place(s);
    front_norm *state = tg_host_alloc(s->ctx, sizeof *state);
    if (!state) return tg_layer_checked(NULL);
    *state = (front_norm){s->ctx, s->o.norm_eps, s->o.rms_norm, s->o.zero_centered};
    tg_module *m = tg_module_new(s->ctx, s->o.rms_norm ? &rms_norm_ops : &layer_norm_ops, state);
    if (!tg_module_ok(m)) return m;
    add_copy(m, "weight", fused, "layer_norm_weight", at);
    add_copy(m, "bias", fused, "layer_norm_bias", at);
    return tg_layer_checked(m);
}

/* Makes the column layer without the norm, with copies of the weight and the bias. */
static tg_module *linear_of(tg_module *fused) {
    const tg_parallel_linear_opts usual = {TG_PARALLEL_LINEAR_DEFAULTS};
    const tg_parallel_linear *s = tg_parallel_linear_of(fused);
    static const char *const names[] = {"weight", "bias"};
    tg_tensor *own = tg_module_own(fused, "weight");
    tg_parallel_linear_opts o = s->o;
    o.rms_norm = o.zero_centered = false;
    o.norm_eps = usual.norm_eps;
    o.std = usual.std;
    o.weight = NULL;
    o.init = o.bias_init = NULL;
    o.no_init = !o.no_weight;
    if (own) o.dtype = (tg_dtype)own->dtype;
    tg_module *m = tg_parallel_linear_new(s->p, &tg_column_linear, s->in, s->out, &o, "tg_norm_linear_split");
    for (int i = 0; i < 2 && tg_module_ok(m); i++) {
        tg_tensor *from = tg_module_own(fused, names[i]), *to = tg_module_own(m, names[i]);
        if (from && to) copy_param(to, from);
    }
    return tg_layer_checked(m);
}

tg_status tg_norm_linear_split(tg_module *fused, tg_module **norm, tg_module **linear) {
    tg_ctx *ctx = fused ? fused->ctx : NULL;
    if (norm) *norm = tg_layer_checked(NULL);
    if (linear) *linear = tg_layer_checked(NULL);
    if (!tg_module_ok(fused)) return ctx ? tg_ctx_status(ctx) : TG_ERR_ARGUMENT;
    if (!norm || !linear)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_norm_linear_split: %s is NULL, expected where to store the module",
                       norm ? "linear" : "norm");
    if (fused->ops != &tg_norm_column_linear.ops)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_norm_linear_split: the module is a \"%s\", expected one made by tg_nn_norm_linear",
                       tg_module_kind(fused));
    tg_module *n = norm_of(fused), *l = tg_ok(ctx) ? linear_of(fused) : tg_layer_checked(NULL);
    if (tg_ok(ctx)) {
        *norm = n, *linear = l;
        return TG_OK;
    }
    tg_module_free(n);
    tg_module_free(l);
    return tg_ctx_status(ctx);
}
