/* The transformer layer. It has two sublayers, attention and MLP, with norms before or after them, or both. A residual
 * connection goes around the norms and the sublayer. Activations are [s, b, h]. */
#include <tapegrad/recompute.h>

#include "models/lm/lm.h"
#include "tape/tape.h"

static const tg_module_ops layer_ops;

/* Returns x + y, with dropout on y. */
static tg_tensor *residual(tg_module *m, tg_tape *t, tg_tensor *x, tg_tensor *y) {
    const tg_lm_config *c = tg_layer_config(m);
    return tg_add(t, x, c->dropout > 0 ? tg_dropout(t, y, c->dropout) : y);
}

/* Runs a child in a scope of the child's name. If past is not NULL, the child must be attention, and uses past. */
static tg_tensor *in_scope(tg_module *m, const char *child, tg_tape *t, tg_tensor *x, const tg_past *past) {
    if (tg_scope_open(t, child) != TG_OK) return tg_scope_close(t, NULL, 0), tg_inert(t->ctx);
    tg_tensor *y = past ? tg_attend(tg_module_part(m, child), t, x, past) : tg_module_run(m, child, t, x);
    return tg_scope_close(t, &y, 1) == TG_OK ? y : tg_inert(t->ctx);
}

/* The callback that computes a norm in forward, and again in backward. */
static tg_status norm_again(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    const tg_norm_ref *norm = state;
    (void)n_in, (void)n_out;
    out[0] = tg_module_run(norm->layer, norm->name, t, in[0]);
    return t->ctx->run.status;
}

/* Runs the norm before sublayer i (0 is attention, 1 the MLP), if there is one. With selective recomputation the norm's
 * result is discarded when the caller closes *r, and computed again when the sublayer's backward reads it. */
static tg_tensor *norm_before(tg_module *m, int i, tg_tape *t, tg_tensor *x, tg_replay **r) {
    const char *norm = tg_lm_norm_before(tg_layer_config(m), i);
    tg_norm_ref *again = &((tg_layer_state *)m->state)->norm[i];
    tg_tensor *n = NULL;
    if (!norm) return x;
    if (tg_layer_config(m)->recompute != TG_GPT_SELECTIVE || !t->grad) return in_scope(m, norm, t, x, NULL);
    *r = tg_replay_open(t);
    *again = (tg_norm_ref){m, norm};
    tg_replay_run(*r, norm_again, again, &x, 1, &n, 1, TG_RECOMPUTE(.name = norm));
    return n;
}

/* Runs the attention or the MLP of sublayer i on n, the output of the norm before it, and then the norm after it, if
 * there is one. */
static tg_tensor *body(tg_module *m, int i, tg_tape *t, tg_tensor *n, const tg_past *past) {
    const tg_lm_name_table *names = tg_lm_names_of(tg_layer_config(m));
    const char *norm = tg_lm_norm_after(tg_layer_config(m), i);
    tg_tensor *y = in_scope(m, i ? names->mlp : names->attention, t, n, i ? NULL : past);
    return norm ? in_scope(m, norm, t, y, NULL) : y;
}

/* Runs sublayer i with its norms and its residual connection. */
static tg_tensor *sublayer(tg_module *m, int i, tg_tape *t, tg_tensor *x, const tg_past *past) {
    tg_replay *r = NULL;
    tg_tensor *y = body(m, i, t, norm_before(m, i, t, x, &r), past);
    if (r) tg_replay_close(r, NULL);
    return residual(m, t, x, y);
}

/* Runs both sublayers on the output of one norm. */
static tg_tensor *parallel(tg_module *m, tg_tape *t, tg_tensor *x, const tg_past *past) {
    tg_replay *r = NULL;
    tg_tensor *n = norm_before(m, 0, t, x, &r), *y[2];
    for (int i = 0; i < 2; i++) y[i] = body(m, i, t, n, past);
    if (r) tg_replay_close(r, NULL);
    return residual(m, t, residual(m, t, x, y[0]), y[1]);
}

static tg_tensor *layer(tg_module *m, tg_tape *t, tg_tensor *x, const tg_past *past) {
    if (tg_layer_config(m)->parallel_residual) return parallel(m, t, x, past);
    x = sublayer(m, 0, t, x, past);
    return sublayer(m, 1, t, x, past);
}

tg_tensor *tg_transformer_layer(tg_module *m, tg_tape *t, tg_tensor *x, const tg_past *past) {
    return tg_run_cached(m, &layer_ops, layer, t, x, past);
}

static tg_tensor *layer_forward(tg_module *m, tg_tape *t, tg_tensor *x) { return layer(m, t, x, NULL); }

static const tg_module_ops layer_ops = {
    .size = sizeof(tg_module_ops), .kind = "transformer_layer", .forward = layer_forward, .free = tg_layer_free};

tg_module *tg_lm_layer_new(tg_ctx *ctx, const tg_lm_config *c) {
    const tg_lm_name_table *names = tg_lm_names_of(c);
    tg_module *m = tg_layer_begin(ctx, &layer_ops, c);
    if (!m) return tg_layer_finish(m);
    for (int i = 0; i < 2; i++) {
        const char *before = tg_lm_norm_before(c, i), *after = tg_lm_norm_after(c, i);
        if (before) tg_module_add_child(m, before, tg_lm_norm_new(ctx, c, c->hidden));
        tg_module_add_child(m, i ? names->mlp : names->attention,
                            i ? tg_lm_mlp_new(ctx, c) : tg_lm_attention_new(ctx, c));
        if (after) tg_module_add_child(m, after, tg_lm_norm_new(ctx, c, c->hidden));
    }
    return tg_layer_finish(m);
}
