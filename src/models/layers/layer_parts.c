/* The parts of attention, MLP and transformer layers: the module's state, projections and norms. */
#include "base/memory/host_memory.h"
#include "models/lm/lm.h"
#include "tape/tape.h"

void tg_layer_free(void *state) {
    tg_layer_state *s = state;
    tg_host_free(s->ctx, s, sizeof *s);
}

tg_module *tg_layer_begin(tg_ctx *ctx, const tg_module_ops *ops, const tg_lm_config *c) {
    tg_layer_state *s = tg_ok(ctx) ? tg_host_alloc(ctx, sizeof *s) : NULL;
    if (!s) return NULL;
    *s = (tg_layer_state){.ctx = ctx, .c = *c};
    s->c.layout = s->c.attention_kinds = s->c.extra = NULL; /* these texts may be freed before the layer */
    tg_module *m = tg_module_new(ctx, ops, s);
    return tg_module_ok(m) ? m : NULL;
}

tg_module *tg_layer_finish(tg_module *m) {
    if (tg_module_ok(m)) return m;
    if (m) tg_module_free(m);
    return tg_module_new(NULL, NULL, NULL);
}

tg_module *tg_projection(tg_ctx *ctx, const tg_lm_config *c, tg_projection_kind kind, int64_t in, int64_t out,
                         int parts, bool bias, double std) {
    if (tg_lm_tp(c) == 1 || kind == TG_PROJECT_WHOLE)
        return c->wgrad == TG_WGRAD_DEFERRED ? tg_deferred_linear_new(ctx, in, out, bias, std)
                                             : tg_nn_linear(ctx, in, out, bias, std);
    const tg_parallel_linear_opts *o =
        TG_PARALLEL_LINEAR(.no_bias = !bias, .std = std, .strides = parts, .fused_wgrad = c->wgrad != TG_WGRAD_PLAIN,
                           .deferred_wgrads = c->wgrad == TG_WGRAD_DEFERRED ? TG_NONE : 0);
    return kind == TG_PROJECT_COLUMN ? tg_nn_column_linear(c->parallel, in, out, o)
                                     : tg_nn_row_linear(c->parallel, in, out, o);
}

/* Runs what tg_run_cached runs between the hooks. */
static tg_tensor *run_inner(tg_module *m, const tg_module_ops *ops, tg_cached_fn forward, tg_tape *t, tg_tensor *x,
                            const tg_past *past) {
    if (tg_is_captured(m)) return tg_run_cached(tg_module_part(m, ""), ops, forward, t, x, past);
    if (m->ops == ops) return forward(m, t, x, past);
    bool packs = past->packing != NULL;
    tg_fail(m->ctx, TG_ERR_UNSUPPORTED,
            "%s: a \"%s\" has replaced the \"%s\" of a layer, and only the library's own can %s; use %s",
            packs ? "packed documents" : "tg_gpt_next", tg_module_kind(m), ops->kind,
            packs ? "keep documents apart" : "use a cache", packs ? "a sequence for each document" : "tg_gpt_logits");
    return NULL;
}

tg_tensor *tg_run_cached(tg_module *m, const tg_module_ops *ops, tg_cached_fn forward, tg_tape *t, tg_tensor *x,
                         const tg_past *past) {
    bool training;
    tg_tensor *y = NULL;
    if (!m) return tg_inert(t->ctx);
    if (tg_module_enter(m, t, &x, 1, &training) == TG_OK) y = run_inner(m, ops, forward, t, x, past);
    return tg_module_leave(m, t, &y, 1, training) == TG_OK && y ? y : tg_inert(t->ctx);
}

tg_tensor *tg_module_own_at(const tg_module *m, const char *child, const char *name) {
    const tg_module *c = tg_module_part(m, child);
    return c ? tg_module_own(c, name) : NULL;
}
