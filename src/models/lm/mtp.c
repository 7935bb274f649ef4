/* Multi-token prediction (DeepSeek-AI, arXiv 2412.19437, section 2.2): after the last layer, one more layer for each
 * depth. Depth d, from 1, sees the hidden states of depth d - 1 (of the trunk if d is 1) and the embedding of the token
 * d ahead. It predicts the token d + 1 ahead with the model's own output matrix. Names are Megatron-Core's. */
#include <stdio.h>
#include <tapegrad/megatron.h>
#include <tapegrad/recompute.h>

#include "models/lm/lm.h"
#include "tape/tape.h"

/* ---- Forward ---- */

/* Normalizes the embeddings e and the hidden states h, joins them, and projects the result back to the hidden size. */
static tg_tensor *join(const tg_module *m, tg_tape *t, tg_tensor *h, tg_tensor *e) {
    const tg_lm_config *c = tg_layer_config(m);
    tg_tensor *both[2] = {tg_module_run(m, "enorm", t, e), tg_module_run(m, "hnorm", t, h)};
    tg_tensor *y = tg_module_run(m, "eh_proj", t, tg_concat(t, both, 2, 2));
    if (tg_lm_tp(c) == 1) return y;
    y = tg_gather_from_tp(t, y, tg_lm_tp_comm(c));
    return tg_is_sequence_parallel(c->parallel) ? tg_scatter_to_sp(t, y, tg_lm_tp_comm(c)) : y;
}

/* Runs one depth: in[0] are the hidden states and in[1] the embeddings of run_depth; in[2] and in[3], if given, are
 * what a tg_packing has. */
static tg_status depth_call(tg_module *m, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_out;
    if (n_in != 2 && n_in != 4)
        return tg_fail(t->ctx, TG_ERR_SHAPE,
                       "mtp: the call has %d inputs, expected hidden states and embeddings, and for packed documents "
                       "positions and starts",
                       n_in);
    const tg_packing packing = {n_in > 2 ? in[2] : NULL, n_in > 2 ? in[3] : NULL};
    tg_tensor *x = join(m, t, in[0], in[1]);
    tg_tensor *y = n_in > 2 ? tg_transformer_layer(tg_module_part(m, "transformer_layer"), t, x,
                                                   &(tg_past){.packing = &packing})
                            : tg_module_run(m, "transformer_layer", t, x);
    out[0] = tg_module_run(m, "final_layernorm", t, y);
    return t->ctx->run.status;
}

static const tg_module_ops depth_ops = {
    .size = sizeof(tg_module_ops), .kind = "mtp", .free = tg_layer_free, .call = depth_call, .n_out = 1};

/* The callback that runs a depth in forward and, if layers are recomputed, again in backward. */
static tg_status call_depth(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    const tg_layer_fn *f = state;
    tg_module *m = tg_module_part(tg_module_part(f->lm, "mtp"), f->name);
    tg_tensor *own[4] = {0}; /* hooks may replace them */
    for (int i = 0; i < n_in; i++) own[i] = in[i];
    return m ? tg_module_run_call(m, t, own, n_in, out, n_out) : t->ctx->run.status;
}

/* Runs depth d, from 1, in a scope "mtp": h [s, b, h] and the embeddings e of the tokens d ahead -> [s, b, h]. packing
 * may be NULL. */
static tg_tensor *run_depth(tg_lm *s, int d, tg_tape *t, tg_tensor *h, tg_tensor *e, const tg_packing *packing) {
    tg_layer_fn *f = &s->layer[s->stage.layers + d - 1];
    tg_tensor *in[4] = {h, e, packing ? packing->positions : NULL, packing ? packing->starts : NULL}, *y = NULL;
    int n_in = packing ? 4 : 2;
    if (tg_scope_open(t, "mtp") != TG_OK) return tg_scope_close(t, NULL, 0), tg_inert(s->ctx);
    tg_lm_key_open(s, TG_LM_KEY_DEPTH + (uint64_t)d, tg_scope_site(t->scope, TG_SITE));
    if (s->c.recompute == TG_GPT_FULL || s->c.recompute == TG_GPT_DISTRIBUTED)
        tg_recompute(t, call_depth, f, in, n_in, &y, 1, TG_RECOMPUTE(.name = "mtp"));
    else
        call_depth(f, t, in, n_in, &y, 1);
    tg_lm_key_close(s);
    return tg_scope_close(t, &y, 1) == TG_OK ? y : tg_inert(s->ctx);
}

tg_tensor *tg_mtp_losses(tg_module *lm, tg_tape *t, tg_tensor *h, tg_tensor *const *ids, tg_tensor *const *targets,
                         const tg_packing *packing, tg_tensor *loss) {
    tg_lm *s = tg_lm_of(lm);
    for (int d = 1; d <= s->c.mtp && tg_ok(s->ctx); d++) {
        h = run_depth(s, d, t, h, tg_lm_word_rows(lm, t, ids[d]), packing);
        tg_tensor *sum = tg_lm_loss_of_trunk(lm, t, h, targets[d], TG_LOSS_SUM);
        loss = tg_add(t, loss, tg_mul(t, sum, s->layer[s->stage.layers + d - 1].weight));
    }
    return loss;
}

/* ---- Weights of the losses ---- */

/* Sets the factor of the losses of depth d, from 1. */
static tg_status set_weight(const tg_lm *s, int d, double v) {
    tg_tensor *x = s->layer[s->stage.layers + d - 1].weight;
    TG_TRY(tg_storage_may_change(x));
    tg_storage_wrote(x->storage, "tg_lm_set_tokens", NULL);
    return s->ctx->run.ops->fill(s->ctx, tg_array_of(x), v); /* v is equal on all ranks, so x stays I (placement.h) */
}

tg_status tg_lm_set_tokens(tg_module *lm, const int64_t *tokens) {
    if (!lm) return TG_ERR_ARGUMENT;
    TG_TRY(lm->ctx->run.status);
    if (!tg_is_lm(lm) || !tokens)
        return tg_fail(lm->ctx, TG_ERR_ARGUMENT, "tg_lm_set_tokens: %s",
                       tokens ? "the module is not a language model" : "tokens is NULL");
    const tg_lm *s = tg_lm_of(lm);
    for (int d = 0; d <= s->c.mtp; d++)
        if (tokens[d] < 0)
            return tg_fail(lm->ctx, TG_ERR_ARGUMENT, "tg_lm_set_tokens: tokens[%d] is %lld, expected 0 or more", d,
                           (long long)tokens[d]);
    for (int d = 1; s->stage.head && d <= s->c.mtp; d++) {
        double ratio = tokens[d] ? (double)tokens[0] / (double)tokens[d] : 0;
        TG_TRY(set_weight(s, d, s->c.mtp_weight / s->c.mtp * ratio));
    }
    return TG_OK;
}

/* ---- Creation ---- */

static tg_module *depth_new(tg_ctx *ctx, const tg_lm_config *c) {
    tg_module *m = tg_layer_begin(ctx, &depth_ops, c);
    if (!m) return tg_layer_finish(m);
    tg_module_add_child(m, "enorm", tg_lm_norm_new(ctx, c, c->hidden));
    tg_module_add_child(m, "hnorm", tg_lm_norm_new(ctx, c, c->hidden));
    tg_module_add_child(m, "eh_proj", tg_projection(ctx, c, TG_PROJECT_COLUMN, 2 * c->hidden, c->hidden, 1, false,
                                                    tg_hidden_std(c)));
    tg_module_add_child(m, "transformer_layer", tg_lm_layer_new(ctx, c));
    tg_module_add_child(m, "final_layernorm", tg_lm_norm_new(ctx, c, c->hidden));
    return tg_layer_finish(m);
}

tg_module *tg_mtp_new(tg_module *lm) {
    tg_lm *s = tg_lm_of(lm);
    tg_module *list = tg_module_new(s->ctx, &tg_lm_list_ops, NULL);
    for (int d = 0; d < s->c.mtp && tg_module_ok(list); d++) {
        tg_layer_fn *f = &s->layer[s->stage.layers + d];
        f->lm = lm;
        f->weight = tg_zeros(s->ctx, s->ctx->dtype == TG_F64 ? TG_F64 : TG_F32, TG_SHAPE()); /* the dtype of a loss */
        if (tg_ok(s->ctx)) set_weight(s, d + 1, s->c.mtp_weight / s->c.mtp);
        snprintf(f->name, sizeof f->name, "%d", d);
        tg_lm_key_open(s, TG_LM_KEY_DEPTH + 1 + (uint64_t)d, s->site);
        const tg_lm_config own = tg_lm_config_of_layer(&s->c, s->c.layers + d);
        tg_module_add_child(list, f->name, depth_new(s->ctx, &own));
        tg_lm_key_close(s);
    }
    return list;
}
