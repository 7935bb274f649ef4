/* Shared parameters (tg_share), of which each rank of a group holds a copy, such as the word embeddings of the first
 * and the last pipeline stage: their declaration, and the sums of their gradients. */
#include "autograd/gradients.h"
#include "parallel/dp/grads.h"

/* In check mode, fails unless x has the same bytes on all ranks that share it. Collective over these ranks, unless x
 * cannot be compared. */
static tg_status compare(tg_tensor *x, const char *who) {
    char what[160];
    int rank;
    int64_t mine, first, other;
    if (!x->ctx->check || !tg_placement_comparable(x)) return TG_OK;
    TG_TRY(tg_placement_hash(x, &mine));
    TG_TRY(tg_placement_compare_number(x->ctx, x->ext->shared, mine, &rank, &first, &other));
    if (rank < 0) return TG_OK;
    tg_describe(x, what, sizeof what);
    return tg_fail(x->ctx, TG_ERR_PLACEMENT,
                   "%s: the values of %s, which is shared over \"%s\", differ between ranks 0 and %d of that group; "
                   "give every copy the same values before tg_share, and update all of them alike",
                   who, what, tg_comm_name(x->ext->shared), rank);
}

static tg_status share(const tg_parallel *p, tg_tensor *x, tg_comm *c) {
    char what[160];
    tg_ctx *ctx = p->ctx;
    TG_TRY(ctx->run.status);
    TG_TRY(tg_check(ctx, x, "tg_share: param"));
    tg_describe(x, what, sizeof what);
    if (!c || tg_comm_ctx(c) != ctx)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_share: c is %s, expected a group of this context",
                       c ? "a communicator of another context" : "NULL");
    if (x->tape || !(x->flags & TG_F_REQUIRES_GRAD))
        return tg_fail(ctx, TG_ERR_STATE, "tg_share: %s is not a leaf of the context that needs a gradient", what);
    if (!tg_ext_of(x)) return ctx->run.status;
    if (x->ext->range)
        return tg_fail(ctx, TG_ERR_STATE, "tg_share: %s is divided already; share parameters before tg_flat_new", what);
    if (x->ext->shared)
        return tg_fail(ctx, TG_ERR_STATE, "tg_share: %s is shared over \"%s\" already; share a parameter once", what,
                       tg_comm_name(x->ext->shared));
    x->ext->shared = c;
    tg_status s = compare(x, "tg_share");
    if (s != TG_OK) x->ext->shared = NULL;
    return s;
}

tg_status tg_share(const tg_parallel *p, tg_tensor *param, tg_comm *c) {
    return p ? tg_comm_note_missed(c, share(p, param, c)) : TG_ERR_ARGUMENT;
}

/* Leaves sums in flight; tg_grads_finalize waits for them. */
tg_status tg_grads_sum_shares(tg_tensor *const *params, int n) {
    for (int i = 0; i < n; i++) {
        tg_tensor *x = params[i], *leaf = tg_gradient_leaf(x), *g;
        if (!x->ext->shared) continue;
        TG_TRY(compare(x, "tg_grads_finalize"));
        if (!(g = tg_gradient_or_zero(leaf))) return x->ctx->run.status;
        TG_TRY(tg_storage_need(g->storage, g));
        if (g->numel) tg_comm_all_reduce(x->ext->shared, g, g, TG_REDUCE_SUM);
        TG_TRY(x->ctx->run.status);
        x->ext->has_grad = leaf->ext->has_grad = true;
        x->ext->unsure = false;
    }
    return TG_OK;
}
