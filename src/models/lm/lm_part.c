/* Runs one part of a model for one micro-batch. The part takes ids, or the hidden states of the part before, and
 * returns hidden states, logits or the loss. */
#include <stdio.h>

#include "models/lm/lm.h"
#include "tape/tape.h"

/* Checks x[d], where x is the argument called `name` (ids or targets): it must be int64 [batch, sequence] and, unless
 * `like` is NULL, have the shape of `like`. */
static tg_status check_batch(const tg_module *lm, tg_tensor *const *x, const char *name, int d, const tg_tensor *like) {
    char what[64], is[160], other[160] = "i64[batch, sequence]";
    snprintf(what, sizeof what, "tg_lm_part: %s[%d]", name, d);
    TG_TRY(tg_check(lm->ctx, x[d], what));
    bool same = !like || (x[d]->ndim == 2 && memcmp(x[d]->shape, like->shape, 2 * sizeof *like->shape) == 0);
    if (x[d]->dtype == TG_I64 && x[d]->ndim == 2 && same) return TG_OK;
    tg_describe(x[d], is, sizeof is);
    if (like) tg_describe(like, other, sizeof other);
    return tg_fail(lm->ctx, TG_ERR_SHAPE, "%s is %s, expected %s%s", what, is, other, like ? " like targets[0]" : "");
}

/* Checks the inputs of the first part. */
static tg_status check_ids(const tg_module *lm, tg_tensor *const *ids, const tg_tensor *positions) {
    const tg_lm_config *c = &tg_lm_of(lm)->c;
    if (!ids) return tg_fail(lm->ctx, TG_ERR_ARGUMENT, "tg_lm_part: ids is NULL, but the first part needs them");
    TG_TRY(tg_lm_check_ids(lm, ids[0], 0));
    if (!positions) return TG_OK;
    TG_TRY(tg_check(lm->ctx, positions, "tg_lm_part: positions"));
    if (positions->ndim == 2) return TG_OK; /* of packed documents: tg_lm_pack checks them */
    if (c->position_kind != TG_LM_LEARNED)
        return tg_fail(lm->ctx, TG_ERR_UNSUPPORTED, "tg_lm_part: positions are given, but %s; pass NULL",
                       c->position_kind == TG_LM_ROTARY ? "rotary positions always count from 0"
                                                        : "the model has no positions");
    if (positions->dtype == TG_I64 && positions->ndim == 1 && positions->shape[0] == ids[0]->shape[1]) return TG_OK;
    return tg_fail(lm->ctx, TG_ERR_SHAPE,
                   "tg_lm_part: positions are not i64[%lld], one for each column of ids, or those of packed documents, "
                   "i64[batch, sequence]",
                   (long long)ids[0]->shape[1]);
}

/* Checks the inputs that the last part needs for the loss of hidden states x [s, b, h]. */
static tg_status check_targets(const tg_module *lm, const tg_tensor *x, tg_tensor *const *ids,
                               tg_tensor *const *targets) {
    const tg_lm_config *c = &tg_lm_of(lm)->c;
    int64_t rows = tg_is_sequence_parallel(c->parallel) ? tg_lm_tp(c) * x->shape[0] : x->shape[0];
    if (c->mtp && !ids)
        return tg_fail(lm->ctx, TG_ERR_ARGUMENT,
                       "tg_lm_part: ids is NULL, but multi-token prediction needs ids[1] to ids[%d] on the last part",
                       c->mtp);
    for (int d = 0; d <= c->mtp; d++) {
        TG_TRY(check_batch(lm, targets, "targets", d, d ? targets[0] : NULL));
        if (d) TG_TRY(check_batch(lm, ids, "ids", d, targets[0]));
    }
    if (targets[0]->shape[0] == x->shape[1] && targets[0]->shape[1] == rows) return TG_OK;
    return tg_fail(lm->ctx, TG_ERR_SHAPE, "tg_lm_part: targets[0] is i64[%lld, %lld], expected i64[%lld, %lld]",
                   (long long)targets[0]->shape[0], (long long)targets[0]->shape[1], (long long)x->shape[1],
                   (long long)rows);
}

/* Checks the hidden states of the part before. */
static tg_status check_hidden(const tg_module *lm, const tg_tensor *x) {
    char is[160];
    int64_t h = tg_lm_of(lm)->c.hidden;
    TG_TRY(tg_check(lm->ctx, x, "tg_lm_part: input[0]"));
    if (x->ndim == 3 && x->shape[2] == h) return TG_OK;
    tg_describe(x, is, sizeof is);
    return tg_fail(lm->ctx, TG_ERR_SHAPE, "tg_lm_part: input[0] is %s, expected [sequence, batch, %lld]", is,
                   (long long)h);
}

/* Computes the loss of the trunk's output x, with the losses of multi-token prediction added. */
static tg_tensor *loss_of(tg_module *lm, tg_tape *t, tg_tensor *x, tg_tensor *const *ids, tg_tensor *const *targets,
                          const tg_packing *packing) {
    if (!tg_ok(lm->ctx) || check_targets(lm, x, ids, targets) != TG_OK) return tg_inert(lm->ctx);
    tg_tensor *loss = tg_lm_loss_of_trunk(lm, t, x, targets[0], TG_LOSS_SUM);
    return tg_mtp_losses(lm, t, x, ids, targets, packing, loss);
}

/* If positions are those of packed documents, fills *out and sets *packing to out. Otherwise sets *packing to NULL.
 * `in` are the hidden states of the part before; the first part does not read them. */
static tg_status pack(const tg_module *lm, tg_tape *t, tg_tensor *in, tg_tensor *const *ids, tg_tensor *positions,
                      tg_packing *out, const tg_packing **packing) {
    const tg_lm_config *c = &tg_lm_of(lm)->c;
    int64_t parts = tg_is_sequence_parallel(c->parallel) ? tg_lm_tp(c) : 1;
    *packing = NULL;
    if (!positions || tg_ndim(positions) != 2) return lm->ctx->run.status;
    *packing = out;
    if (tg_lm_of(lm)->stage.embedding)
        return tg_lm_pack(lm, t, positions, ids[0]->shape[0], ids[0]->shape[1], "tg_lm_part: positions", out);
    return tg_lm_pack(lm, t, positions, in->shape[1], parts * in->shape[0], "tg_lm_part: positions", out);
}

tg_status tg_lm_run_part(tg_module *lm, tg_tape *t, tg_tensor *in, tg_tensor **out, tg_tensor *const *ids,
                         tg_tensor *const *targets, tg_tensor *positions) {
    const tg_lm_stage *s = &tg_lm_of(lm)->stage;
    TG_TRY(tg_tape_check(t, "tg_lm_part"));
    TG_TRY(s->embedding ? check_ids(lm, ids, positions) : check_hidden(lm, in));
    tg_packing own;
    const tg_packing *packing;
    TG_TRY(pack(lm, t, in, ids, positions, &own, &packing));
    bool training = tg_module_use_mode(lm, t);
    tg_tensor *x = s->embedding ? tg_lm_embed(lm, t, ids[0], positions, 0) : in;
    x = tg_lm_layers(lm, t, x, NULL, packing);
    if (s->head) x = targets ? loss_of(lm, t, x, ids, targets, packing) : tg_lm_shard_logits(lm, t, x);
    tg_tape_set_training(t, training);
    *out = x;
    return lm->ctx->run.status;
}

tg_status tg_lm_part(tg_module *lm, tg_pipe_call *c, tg_tensor *const *ids, tg_tensor *const *targets,
                     tg_tensor *positions) {
    if (!lm) return TG_ERR_ARGUMENT;
    TG_TRY(lm->ctx->run.status);
    if (!c || !c->out)
        return tg_fail(lm->ctx, TG_ERR_ARGUMENT, "tg_lm_part: %s is NULL", c ? "out of the call" : "the call");
    TG_TRY(tg_lm_enter(lm, c->tape, "tg_lm_part"));
    if (!tg_lm_of(lm)->stage.embedding && !c->input)
        return tg_fail(lm->ctx, TG_ERR_ARGUMENT,
                       "tg_lm_part: input of the call is NULL, but part %d takes hidden states",
                       tg_lm_of(lm)->stage.part);
    TG_TRY(tg_tape_key(c->tape, (uint64_t)c->micro));
    tg_scope *s = tg_site_open(c->tape, TG_SITE);
    tg_status status = tg_lm_run_part(lm, c->tape, c->input ? c->input[0] : NULL, c->out, ids, targets, positions);
    tg_site_close(c->tape, s);
    tg_lm_leave(lm, NULL);
    return status;
}
