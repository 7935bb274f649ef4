/* Documents that are packed into sequences: positions that begin anew with each document, and attention within each. */
#include "models/lm.h"
#include "tape/tape.h"

static tg_status check_positions(const tg_module *lm, tg_tensor *positions, int64_t b, int64_t s, const char *what) {
    char is[160];
    TG_TRY(tg_check(lm->ctx, positions, what));
    tg_describe(positions, is, sizeof is);
    if (positions->dtype != TG_I64 || positions->ndim != 2 || positions->shape[0] != b || positions->shape[1] != s)
        return tg_fail(lm->ctx, TG_ERR_SHAPE, "%s are %s, expected i64[%lld, %lld], one for each token", what, is,
                       (long long)b, (long long)s);
    if (tg_lm_cp(&tg_lm_of(lm)->c) == 1) return TG_OK;
    return tg_fail(lm->ctx, TG_ERR_UNSUPPORTED,
                   "%s are those of packed documents, but the model is on a grid with cp %d, whose ranks divide each "
                   "sequence; give a sequence to each document, or make the grid without cp",
                   what, tg_lm_cp(&tg_lm_of(lm)->c));
}

tg_status tg_lm_pack(const tg_module *lm, tg_tape *t, tg_tensor *positions, int64_t b, int64_t s, const char *what,
                     tg_packing *out) {
    TG_TRY(check_positions(lm, positions, b, s, what));
    tg_tensor *token = tg_arange(t, TG_I64, 0, (double)s, 1);
    /* Token i begins sequence i of attention, or, if it does not begin a document, the document's sequence again: those
     * before the last one of a document are empty. So the number of entries depends on the shape alone. */
    tg_tensor *begun = tg_clamp(t, tg_sub(t, token, positions), 0, (double)s);
    *out = (tg_packing){positions, tg_pad(t, begun, 1, 0, 1, (double)s)};
    return lm->ctx->run.status;
}

tg_tensor *tg_lm_packed_logits(tg_module *lm, tg_tape *t, tg_tensor *ids, tg_tensor *positions) {
    return tg_lm_logits_of_ids(lm, t, ids, &positions, "tg_lm_packed_logits", TG_SITE);
}

tg_tensor *tg_lm_packed_loss(tg_module *lm, tg_tape *t, tg_tensor *ids, tg_tensor *positions, tg_tensor *target,
                             tg_loss_reduction reduction) {
    return tg_lm_loss_of_ids(lm, t, ids, &positions, target, reduction, "tg_lm_packed_loss", TG_SITE);
}
