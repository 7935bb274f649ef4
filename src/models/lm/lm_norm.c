/* The norms of language models: those of nn, a layer norm without parameters, and RMS norms whose factor is
 * 1 + weight. */
#include "models/lm/lm.h"
#include "nn/layer.h"

static double eps_of(const tg_module *m) { return tg_layer_config(m)->norm_eps; }

static tg_tensor *plain_forward(tg_module *m, tg_tape *t, tg_tensor *x) {
    return tg_layer_norm(t, x, NULL, NULL, eps_of(m));
}

static const tg_module_ops plain_ops = {
    .size = sizeof(tg_module_ops), .kind = "plain_layer_norm", .forward = plain_forward, .free = tg_layer_free};

static tg_tensor *unit_forward(tg_module *m, tg_tape *t, tg_tensor *x) {
    return tg_rms_norm(t, x, tg_add_scalar(t, tg_module_own(m, "weight"), 1), eps_of(m));
}

static const tg_module_ops unit_ops = {
    .size = sizeof(tg_module_ops), .kind = "unit_rms_norm", .forward = unit_forward, .free = tg_layer_free};

tg_module *tg_lm_rms_norm_new(tg_ctx *ctx, const tg_lm_config *c, int64_t size) {
    if (!c->unit_norm) return tg_nn_rms_norm(ctx, size, c->norm_eps);
    tg_module *m = tg_layer_begin(ctx, &unit_ops, c);
    if (m) tg_layer_add(m, "weight", tg_layer_vector(ctx, "weight", size, 0));
    return tg_layer_finish(m);
}

tg_module *tg_lm_norm_new(tg_ctx *ctx, const tg_lm_config *c, int64_t size) {
    if (c->norm == TG_LM_LAYER_NORM) return tg_nn_layer_norm(ctx, size, c->norm_eps);
    if (c->norm == TG_LM_PLAIN_LAYER_NORM) return tg_layer_finish(tg_layer_begin(ctx, &plain_ops, c));
    return tg_lm_rms_norm_new(ctx, c, size);
}
