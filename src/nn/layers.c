/* Linear and embedding layers, whole on every rank. */
#include "base/text.h"
#include "nn/layer.h"

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

bool tg_is_linear(const tg_module *m) { return m && m->ops == &linear_ops; }
bool tg_is_own_linear(const tg_module *m) { return tg_is_linear(m) && !m->hooks; }

tg_module *tg_linear_module(tg_ctx *ctx, const tg_module_ops *ops, void *state, int64_t in, int64_t out, bool bias,
                            double std) {
    bool good = tg_layer_positive(ctx, "tg_nn_linear", "in", in) && tg_layer_positive(ctx, "tg_nn_linear", "out", out);
    tg_module *m = tg_module_new(good ? ctx : NULL, ops, state);
    if (!tg_module_ok(m)) return m;
    tg_layer_add(m, "weight", tg_param_new(ctx, "weight", TG_DTYPE_DEFAULT, (tg_shape){2, {out, in}}, std));
    if (bias) tg_layer_add(m, "bias", tg_layer_vector(ctx, "bias", out, 0));
    return tg_layer_checked(m);
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
    static const char *const who = "tg_nn_embedding";
    bool good = tg_layer_positive(ctx, who, "vocab", vocab) && tg_layer_positive(ctx, who, "hidden", hidden);
    tg_module *m = tg_module_new(good ? ctx : NULL, &embedding_ops, NULL);
    if (!tg_module_ok(m)) return m;
    tg_layer_add(m, "weight", tg_param_new(ctx, "weight", TG_DTYPE_DEFAULT, (tg_shape){2, {vocab, hidden}}, std));
    return tg_layer_checked(m);
}
