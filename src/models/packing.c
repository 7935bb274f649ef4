/* Documents that are packed into sequences: positions that begin anew with each document, and attention within each. */
#include "models/lm/lm.h"
#include "tape/tape.h"

static tg_status check_positions(const tg_module *lm, tg_tensor *positions, int64_t b, int64_t s, const char *what) {
    char is[160];
    TG_TRY(tg_check(lm->ctx, positions, what));
    tg_describe(positions, is, sizeof is);
    if (positions->dtype != TG_I64 || positions->ndim != 2 || positions->shape[0] != b || positions->shape[1] != s)
        return tg_fail(lm->ctx, TG_ERR_SHAPE, "%s are %s, expected i64[%lld, %lld], one for each token", what, is,
                       (long long)b, (long long)s);
    return TG_OK;
}

/* Returns the places of this rank's s tokens in their sequence: int64 [s], a zigzag shard if ranks divide sequences. */
static tg_tensor *places(const tg_parallel *p, tg_tape *t, int64_t s) {
    int cp = tg_parallel_size(p, TG_CP);
    tg_tensor *all = tg_arange(t, TG_I64, 0, (double)(s * cp), 1);
    return cp == 1 ? all : tg_shard_as(t, all, TG_SHARD_ZIGZAG(0), tg_parallel_comm(p, TG_CP));
}

tg_status tg_lm_pack(const tg_module *lm, tg_tape *t, tg_tensor *positions, int64_t b, int64_t s, const char *what,
                     tg_packing *out) {
    const tg_parallel *p = tg_lm_of(lm)->c.parallel;
    int cp = tg_parallel_size(p, TG_CP);
    TG_TRY(check_positions(lm, positions, b, s, what));
    /* Entry i is the first token of the document of token i. So attention gets a sequence for each token: that of a
     * document's last token is the document, and the others are empty. The number of entries depends on the shape
     * alone. */
    tg_tensor *begun = tg_clamp(t, tg_sub(t, places(p, t, s), positions), 0, (double)(s * cp));
    if (cp > 1) begun = tg_gather_from(t, begun, 1, tg_parallel_comm(p, TG_CP));
    *out = (tg_packing){positions, tg_pad(t, begun, 1, 0, 1, (double)(s * cp))};
    return lm->ctx->run.status;
}

tg_tensor *tg_lm_packed_logits(tg_module *lm, tg_tape *t, tg_tensor *ids, tg_tensor *positions) {
    return tg_lm_logits_of_ids(lm, t, ids, &positions, "tg_lm_packed_logits", TG_SITE);
}

tg_tensor *tg_lm_packed_loss(tg_module *lm, tg_tape *t, tg_tensor *ids, tg_tensor *positions, tg_tensor *target,
                             tg_loss_reduction reduction) {
    return tg_lm_loss_of_ids(lm, t, ids, &positions, target, reduction, "tg_lm_packed_loss", TG_SITE);
}
