/* Computes the end of a model: the product with the output matrix, and the loss. */
#include <stdio.h>
#include <tapegrad/megatron.h>

#include "models/layers/heads.h"
#include "models/lm/lm.h"
#include "tape/tape.h"

tg_tensor *tg_lm_output_weight(const tg_module *lm) {
    const tg_lm_config *c = &tg_lm_of(lm)->c;
    tg_tensor *w = c->tied ? tg_module_own_at(tg_lm_body(lm), tg_lm_names_of(c)->embedding, "weight")
                           : tg_module_own_at(lm, "lm_head", "weight");
    if (!w)
        tg_fail(lm->ctx, TG_ERR_STATE,
                "%s: the output matrix is missing, because the module that had it was replaced or freed; add a "
                "parameter \"weight\" to the new module",
                tg_module_kind(lm));
    return w;
}

bool tg_lm_head_is_called(const tg_module *lm) {
    const tg_module *head = tg_lm_of(lm)->c.tied ? NULL : tg_module_child(lm, "lm_head");
    return head && !tg_is_own_linear(head) && (head->ops != &tg_lm_output_ops || head->hooks);
}

/* With the maximal update parametrization, divides the trunk's output, and so its product with the output matrix, by
 * tg_mup_width. */
static tg_tensor *narrow(const tg_lm_config *c, tg_tape *t, tg_tensor *x) {
    return c->mup_base > 0 ? tg_scale(t, x, 1 / tg_mup_width(c)) : x;
}

/* Returns the input of the product with the output matrix, from the trunk's output x after `narrow`. If tp is above 1,
 * the matrix is sharded, and every rank needs all of x: with sequence parallelism this function gathers x, and without
 * it calls tg_copy_to_tp. */
static tg_tensor *head_input(const tg_lm_config *c, tg_tape *t, tg_tensor *x) {
    if (tg_lm_tp(c) == 1) return x;
    return tg_is_sequence_parallel(c->parallel) ? tg_gather_from_sp(t, x, tg_lm_tp_comm(c), NULL)
                                                : tg_copy_to_tp(t, x, tg_lm_tp_comm(c));
}

/* The forward of lm_head if tp is above 1. The module wraps an embedding over ranks, because the output matrix is
 * sharded in the same way (lm.c). */
static tg_tensor *output_forward(tg_module *m, tg_tape *t, tg_tensor *x) {
    return tg_linear(t, head_input(tg_layer_config(m), t, x), tg_module_own(m, "weight"), NULL);
}

const tg_module_ops tg_lm_output_ops = {
    .size = sizeof(tg_module_ops), .kind = "output_matrix", .forward = output_forward, .free = tg_layer_free};

/* Returns whether the logits y are sharded over tp. */
static bool is_shard(const tg_tensor *y) { return tg_placement_of(y, TG_TP).kind == TG_VARYING; }

/* ---- Logits ---- */

/* Calls lm_head for x, the trunk's output after `narrow`. */
static tg_tensor *run_head(tg_module *lm, tg_tape *t, tg_tensor *x) {
    tg_lm_key_open(tg_lm_of(lm), TG_LM_KEY_HEAD, tg_scope_site(t->scope, TG_SITE));
    tg_tensor *y = tg_module_run(lm, "lm_head", t, x);
    tg_lm_key_close(tg_lm_of(lm));
    return y;
}

tg_tensor *tg_lm_shard_logits(tg_module *lm, tg_tape *t, tg_tensor *x) {
    const tg_lm_config *c = &tg_lm_of(lm)->c;
    x = narrow(c, t, x);
    tg_tensor *bias = c->head_bias ? tg_module_own_at(lm, "lm_head", "bias") : NULL;
    x = tg_lm_head_is_called(lm) ? run_head(lm, t, x)
                                 : tg_linear(t, head_input(c, t, x), tg_lm_output_weight(lm), bias);
    return tg_softcap(t, x, c->logit_softcap);
}

tg_tensor *tg_lm_logits(tg_module *lm, tg_tape *t, tg_tensor *x) {
    const tg_lm_config *c = &tg_lm_of(lm)->c;
    tg_tensor *y = tg_lm_shard_logits(lm, t, x);
    if (tg_lm_tp(c) == 1 || !is_shard(y)) return y;
    y = tg_gather_from_tp(t, y, tg_lm_tp_comm(c));
    return tg_slice(t, y, tg_ndim(y) - 1, 0, c->vocab, 1);
}

/* Runs the trunk, over packed documents if positions is not NULL. */
static tg_tensor *trunk_of(tg_module *lm, tg_tape *t, tg_tensor *ids, tg_tensor *const *positions) {
    return positions ? tg_lm_packed_trunk(lm, t, ids, *positions) : tg_lm_trunk(lm, t, ids, NULL);
}

static tg_tensor *checked_logits(tg_module *lm, tg_tape *t, tg_tensor *ids, tg_tensor *const *positions,
                                 const char *who, const void *site) {
    if (tg_lm_enter_whole(lm, t, who) != TG_OK) return tg_inert(lm ? lm->ctx : &tg_dead_ctx);
    tg_scope *s = tg_site_open(t, site);
    tg_tensor *y = tg_transpose(t, tg_lm_logits(lm, t, trunk_of(lm, t, ids, positions)), 0, 1);
    tg_site_close(t, s);
    return y;
}

tg_tensor *tg_lm_logits_of_ids(tg_module *lm, tg_tape *t, tg_tensor *ids, tg_tensor *const *positions, const char *who,
                               const void *site) {
    return tg_lm_leave(lm, checked_logits(lm, t, ids, positions, who, site));
}

/* ---- Loss ---- */

/* Computes the loss of logits [s, b, ..] for targets [s, b]. */
static tg_tensor *loss_of_logits(const tg_lm_config *c, tg_tape *t, tg_tensor *y, tg_tensor *to,
                                 tg_loss_reduction reduction) {
    if (!is_shard(y)) return tg_cross_entropy(t, y, to, TG_CROSS_ENTROPY(.reduction = reduction));
    return tg_vocab_parallel_cross_entropy(t, y, to, tg_lm_tp_comm(c),
                                           TG_VOCAB(.reduction = reduction, .classes = c->vocab));
}

/* Computes the loss of the trunk's output x for targets [s, b]. */
static tg_tensor *loss_of(tg_module *lm, tg_tape *t, tg_tensor *x, tg_tensor *to, tg_loss_reduction reduction) {
    const tg_lm_config *c = &tg_lm_of(lm)->c;
    if (tg_lm_head_is_called(lm) || c->head_bias || c->logit_softcap != TG_NONE)
        return loss_of_logits(c, t, tg_lm_shard_logits(lm, t, x), to, reduction);
    x = head_input(c, t, narrow(c, t, x));
    if (tg_lm_tp(c) == 1)
        return tg_linear_cross_entropy(t, x, tg_lm_output_weight(lm), to, TG_CROSS_ENTROPY(.reduction = reduction));
    return tg_vocab_parallel_linear_cross_entropy(t, x, tg_lm_output_weight(lm), to, tg_lm_tp_comm(c),
                                                  TG_VOCAB(.reduction = reduction, .classes = c->vocab));
}

tg_tensor *tg_lm_loss_of_trunk(tg_module *lm, tg_tape *t, tg_tensor *x, tg_tensor *target,
                               tg_loss_reduction reduction) {
    tg_tensor *y = loss_of(lm, t, x, tg_transpose(t, target, 0, 1), reduction);
    return reduction == TG_LOSS_NONE ? tg_transpose(t, y, 0, 1) : y;
}

/* Checks reduction and target before anything is recorded. The trunk checks the dtype and the dims of ids; if these are
 * wrong, target is not compared with them here. */
static tg_status check_target(tg_ctx *ctx, const tg_tensor *ids, const tg_tensor *target, tg_loss_reduction reduction,
                              const char *who) {
    char want[160], got[160];
    snprintf(want, sizeof want, "%s: ids", who);
    snprintf(got, sizeof got, "%s: target", who);
    TG_TRY(tg_check(ctx, ids, want));
    TG_TRY(tg_check(ctx, target, got));
    if ((unsigned)reduction > TG_LOSS_NONE)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: reduction is %d, expected TG_LOSS_MEAN, _SUM or _NONE", who,
                       (int)reduction);
    if (ids->dtype != TG_I64 || ids->ndim != 2) return TG_OK;
    if (target->dtype == TG_I64 && target->ndim == 2 && !memcmp(target->shape, ids->shape, 2 * sizeof *ids->shape))
        return TG_OK;
    tg_describe(ids, want, sizeof want);
    tg_describe(target, got, sizeof got);
    return tg_fail(ctx, TG_ERR_SHAPE, "%s: target is %s, expected %s like ids", who, got, want);
}

static tg_tensor *checked_loss_of_ids(tg_module *lm, tg_tape *t, tg_tensor *ids, tg_tensor *const *positions,
                                      tg_tensor *target, tg_loss_reduction reduction, const char *who,
                                      const void *site) {
    if (tg_lm_enter_whole(lm, t, who) != TG_OK) return tg_inert(lm ? lm->ctx : &tg_dead_ctx);
    if (check_target(lm->ctx, ids, target, reduction, who) != TG_OK) return tg_inert(lm->ctx);
    tg_scope *s = tg_site_open(t, site);
    tg_tensor *y = tg_lm_loss_of_trunk(lm, t, trunk_of(lm, t, ids, positions), target, reduction);
    tg_site_close(t, s);
    return y;
}

tg_tensor *tg_lm_loss_of_ids(tg_module *lm, tg_tape *t, tg_tensor *ids, tg_tensor *const *positions, tg_tensor *target,
                             tg_loss_reduction reduction, const char *who, const void *site) {
    return tg_lm_leave(lm, checked_loss_of_ids(lm, t, ids, positions, target, reduction, who, site));
}

/* ---- Loss of given logits ---- */

/* Checks logits [s, b, v] and labels [b, s]. */
static tg_status check_logits(const tg_module *lm, const tg_tensor *logits, const tg_tensor *labels) {
    char is[160], of[160];
    tg_ctx *ctx = lm->ctx;
    TG_TRY(tg_check(ctx, logits, "tg_lm_loss: logits"));
    TG_TRY(tg_check(ctx, labels, "tg_lm_loss: labels"));
    tg_describe(logits, is, sizeof is);
    tg_describe(labels, of, sizeof of);
    if (labels->dtype != TG_I64 || labels->ndim != 2)
        return tg_fail(ctx, TG_ERR_SHAPE, "tg_lm_loss: labels are %s, expected i64[batch, sequence]", of);
    if (logits->ndim != 3 || logits->shape[0] != labels->shape[1] || logits->shape[1] != labels->shape[0])
        return tg_fail(ctx, TG_ERR_SHAPE,
                       "tg_lm_loss: logits are %s and labels are %s, expected logits [sequence, batch, vocabulary] for "
                       "labels [batch, sequence]",
                       is, of);
    return TG_OK;
}

/* Checks that the last dim of the logits has the size of the vocabulary with its padding or, if tp is above 1, that the
 * logits are this rank's contiguous shard of it. */
static tg_status check_vocabulary(const tg_module *lm, const tg_tensor *logits) {
    char is[160];
    const tg_lm_config *c = &tg_lm_of(lm)->c;
    tg_placement at = tg_placement_of(logits, TG_TP);
    int64_t columns = tg_lm_rows(c) / tg_lm_tp(c);
    tg_describe(logits, is, sizeof is);
    if (tg_lm_tp(c) > 1 && (at.kind != TG_VARYING || at.layout != TG_CONTIGUOUS || at.dim != 2))
        return tg_fail(
            lm->ctx, TG_ERR_PLACEMENT,
            "tg_lm_loss: logits are %s and not a shard of the vocabulary, expected a contiguous shard of dim 2 on tp "
            "(V2); pass the logits of tg_lm_part without gathering them",
            is);
    if (logits->shape[2] == columns) return TG_OK;
    return tg_fail(lm->ctx, TG_ERR_SHAPE,
                   "tg_lm_loss: logits are %s, expected %lld as the last dim, the vocabulary%s", is,
                   (long long)columns, tg_lm_tp(c) > 1 ? " with its padding, divided by tp" : "");
}

static tg_tensor *checked_loss(tg_module *lm, tg_tape *t, tg_tensor *logits, tg_tensor *labels,
                               tg_loss_reduction reduction, const void *site) {
    if (tg_lm_enter(lm, t, "tg_lm_loss") != TG_OK) return tg_inert(lm ? lm->ctx : &tg_dead_ctx);
    if ((unsigned)reduction > TG_LOSS_NONE)
        tg_fail(lm->ctx, TG_ERR_ARGUMENT, "tg_lm_loss: reduction is %d, expected TG_LOSS_MEAN, _SUM or _NONE",
                (int)reduction);
    if (!tg_ok(lm->ctx) || check_logits(lm, logits, labels) != TG_OK || check_vocabulary(lm, logits) != TG_OK)
        return tg_inert(lm->ctx);
    tg_scope *s = tg_site_open(t, site);
    tg_tensor *y = loss_of_logits(&tg_lm_of(lm)->c, t, logits, tg_transpose(t, labels, 0, 1), reduction);
    if (reduction == TG_LOSS_NONE) y = tg_transpose(t, y, 0, 1);
    tg_site_close(t, s);
    return y;
}

tg_tensor *tg_lm_loss(tg_module *lm, tg_tape *t, tg_tensor *logits, tg_tensor *labels, tg_loss_reduction reduction) {
    return tg_lm_leave(lm, checked_loss(lm, t, logits, labels, reduction, TG_SITE));
}
