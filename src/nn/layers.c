/* Linear, embedding and norm layers, whole on every rank. */
#include <math.h>
#include <tapegrad/ops.h>

#include "base/host_memory.h"
#include "base/text.h"
#include "kernels/scalar.h"
#include "nn/module.h"

/* Norms keep their eps; the other layers need no state. */
typedef struct norm_state {
    tg_ctx *ctx;
    double eps;
} norm_state;

/* Creates a parameter of n elements that all have the value. */
static tg_tensor *constant(tg_ctx *ctx, const char *name, int64_t n, double value) {
    tg_tensor *p = tg_param_new(ctx, name, TG_DTYPE_DEFAULT, (tg_shape){1, {n}}, 0);
    if (tg_ok(ctx) && value != 0) ctx->run.ops->fill(ctx, tg_array_of(p), value);
    return p;
}

/* Adds the parameter to the module; on error drops it. */
static void add(tg_module *m, const char *name, tg_tensor *p) {
    if (tg_module_add_param(m, name, p) != TG_OK) tg_drop(p);
}

/* Returns m. After an error frees m and returns an inert module instead. */
static tg_module *checked(tg_module *m) {
    if (tg_module_ok(m)) return m;
    tg_ctx *ctx = m ? m->ctx : NULL;
    if (m && m->ops) tg_module_free(m);
    return tg_module_new(ctx, NULL, NULL); /* inert, because the context has an error */
}

/* Returns whether a size is 1 or more; if not, records an error. */
static bool positive(tg_ctx *ctx, const char *who, const char *name, int64_t size) {
    if (size > 0) return true;
    if (tg_ok(ctx)) tg_fail(ctx, TG_ERR_ARGUMENT, "%s: %s is %lld, expected 1 or more", who, name, (long long)size);
    return false;
}

/* ---- Linear ---- */

static tg_tensor *linear_forward(tg_module *m, tg_tape *t, tg_tensor *x) {
    return tg_linear(t, x, tg_module_own(m, "weight"), tg_module_own(m, "bias"));
}

size_t tg_linear_describe(const tg_module *m, char *buf, size_t n) {
    const tg_tensor *w = tg_module_own(m, "weight");
    size_t at = 0;
    tg_text(buf, n, &at, "in %lld, out %lld%s", (long long)w->shape[1], (long long)w->shape[0],
            tg_module_own(m, "bias") ? ", bias" : "");
    return at;
}

static const tg_module_ops linear_ops = {
    .size = sizeof(tg_module_ops), .kind = "linear", .forward = linear_forward, .describe = tg_linear_describe};

bool tg_is_own_linear(const tg_module *m) { return m && m->ops == &linear_ops && !m->hooks; }

tg_module *tg_linear_module(tg_ctx *ctx, const tg_module_ops *ops, void *state, int64_t in, int64_t out, bool bias,
                            double std) {
    bool good = positive(ctx, "tg_nn_linear", "in", in) && positive(ctx, "tg_nn_linear", "out", out);
    tg_module *m = tg_module_new(good ? ctx : NULL, ops, state);
    if (!tg_module_ok(m)) return m;
    add(m, "weight", tg_param_new(ctx, "weight", TG_DTYPE_DEFAULT, (tg_shape){2, {out, in}}, std));
    if (bias) add(m, "bias", tg_param_new(ctx, "bias", TG_DTYPE_DEFAULT, (tg_shape){1, {out}}, 0));
    return checked(m);
}

tg_module *tg_nn_linear(tg_ctx *ctx, int64_t in, int64_t out, bool bias, double std) {
    return tg_linear_module(ctx, &linear_ops, NULL, in, out, bias, std);
}

/* ---- Embedding ---- */

static tg_tensor *embedding_forward(tg_module *m, tg_tape *t, tg_tensor *ids) {
    return tg_embedding(t, tg_module_own(m, "weight"), ids);
}

static const tg_module_ops embedding_ops = {
    .size = sizeof(tg_module_ops), .kind = "embedding", .forward = embedding_forward};

bool tg_is_own_embedding(const tg_module *m) { return m && m->ops == &embedding_ops && !m->hooks; }

tg_module *tg_nn_embedding(tg_ctx *ctx, int64_t vocab, int64_t hidden, double std) {
    bool good = positive(ctx, "tg_nn_embedding", "vocab", vocab) && positive(ctx, "tg_nn_embedding", "hidden", hidden);
    tg_module *m = tg_module_new(good ? ctx : NULL, &embedding_ops, NULL);
    if (!tg_module_ok(m)) return m;
    add(m, "weight", tg_param_new(ctx, "weight", TG_DTYPE_DEFAULT, (tg_shape){2, {vocab, hidden}}, std));
    return checked(m);
}

/* ---- Norms ---- */

static void norm_free(void *state) {
    norm_state *s = state;
    tg_host_free(s->ctx, s, sizeof *s);
}

static tg_tensor *layer_norm_forward(tg_module *m, tg_tape *t, tg_tensor *x) {
    return tg_layer_norm(t, x, tg_module_own(m, "weight"), tg_module_own(m, "bias"), ((norm_state *)m->state)->eps);
}

static tg_tensor *rms_norm_forward(tg_module *m, tg_tape *t, tg_tensor *x) {
    return tg_rms_norm(t, x, tg_module_own(m, "weight"), ((norm_state *)m->state)->eps);
}

static size_t norm_describe(const tg_module *m, char *buf, size_t n) {
    size_t at = 0;
    tg_text(buf, n, &at, "eps %g", ((norm_state *)m->state)->eps);
    return at;
}

static const tg_module_ops layer_norm_ops = {.size = sizeof(tg_module_ops), .kind = "layer_norm",
    .forward = layer_norm_forward, .free = norm_free, .describe = norm_describe};
static const tg_module_ops rms_norm_ops = {.size = sizeof(tg_module_ops), .kind = "rms_norm",
    .forward = rms_norm_forward, .free = norm_free, .describe = norm_describe};

static tg_module *norm_new(tg_ctx *ctx, const tg_module_ops *ops, const char *who, int64_t hidden, double eps,
                           bool bias) {
    if (tg_ok(ctx) && !(eps >= 0 && isfinite(eps)))
        tg_fail(ctx, TG_ERR_ARGUMENT, "%s: eps is %g, expected a finite number, 0 or more", who, eps);
    norm_state *s = positive(ctx, who, "hidden", hidden) && tg_ok(ctx) ? tg_host_alloc(ctx, sizeof *s) : NULL;
    if (s) *s = (norm_state){ctx, eps};
    tg_module *m = tg_module_new(s ? ctx : NULL, ops, s);
    if (!tg_module_ok(m)) return m;
    add(m, "weight", constant(ctx, "weight", hidden, 1));
    if (bias) add(m, "bias", constant(ctx, "bias", hidden, 0));
    return checked(m);
}

tg_module *tg_nn_layer_norm(tg_ctx *ctx, int64_t hidden, double eps) {
    return norm_new(ctx, &layer_norm_ops, "tg_nn_layer_norm", hidden, eps, true);
}
tg_module *tg_nn_rms_norm(tg_ctx *ctx, int64_t hidden, double eps) {
    return norm_new(ctx, &rms_norm_ops, "tg_nn_rms_norm", hidden, eps, false);
}
