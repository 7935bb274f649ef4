/* Check mode: verifies that a tensor which claims to be the same on every rank of an axis is so, by comparing a hash of
 * its bytes.
 *
 * Ranks of a tensor- or context-parallel group record the same ops, so a leaf is compared there at its first use.
 * Data-parallel ranks may use different parameters from each other, so on those axes tg_grads_finalize compares the
 * parameters. */
#include "base/host_memory.h"

#include <tapegrad/comm.h>

#include "placement/rule.h"

static const uint32_t data_axes = 1u << TG_DP | 1u << TG_EDP;
static const uint32_t expert_axes = 1u << TG_ETP | 1u << TG_EP | 1u << TG_EDP;

/* Returns the axes on which x claims to be equal on every rank. If x was placed on the expert grid, they are among
 * the axes that it was placed on. Otherwise they are among the axes of the dense grid, without pp. */
uint32_t tg_placement_claimed(const tg_tensor *x) {
    uint32_t placed = x->ext ? x->ext->placed : 0;
    uint32_t axes = placed & expert_axes ? placed : tg_grid_axes(x->ctx) & ~(expert_axes | 1u << TG_PP);
    const tg_placements *p = x->place;
    return axes & tg_grid_axes(x->ctx) & ~(p ? p->varying | p->partial : 0);
}

static uint64_t hash_bytes(const unsigned char *p, size_t n) {
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 1099511628211u;
    return h;
}

/* Copies the bytes of a device tensor to the host to hash them; check mode may be slow. */
tg_status tg_placement_hash(const tg_tensor *x, int64_t *out) {
    tg_ctx *ctx = x->ctx;
    TG_TRY(tg_storage_need(x->storage, x));
    size_t n = (size_t)x->numel * tg_dtype_size((tg_dtype)x->dtype);
    void *copy = ctx->host || !n ? NULL : tg_host_alloc(ctx, n);
    if (!ctx->host && n && !copy) return ctx->run.status;
    tg_status s = copy ? ctx->run.ops->copy(ctx, copy, tg_data(x), n, TG_COPY_TO_HOST) : TG_OK;
    if (s == TG_OK) *out = (int64_t)hash_bytes(copy ? copy : tg_data(x), n);
    tg_host_free(ctx, copy, n);
    return s;
}

static tg_status differs(const tg_tensor *x, tg_axis axis, int rank) {
    char what[160], is[24];
    tg_describe(x, what, sizeof what);
    tg_placement_name(tg_place_on(x, axis), is, sizeof is);
    return tg_fail(x->ctx, TG_ERR_PLACEMENT,
                   "%s is %s on axis %s, but its bytes differ between ranks 0 and %d; declare its true placement "
                   "(tg_place), or make it equal (tg_broadcast_data)",
                   what, is, tg_axis_name(axis), rank);
}

/* Compares n numbers with those of rank 0, in one collective. *wrong is -1 if all are equal. Otherwise it is rank *
 * n + i, for the first rank that differs and its first different number i. */
static tg_status find_other(tg_ctx *ctx, tg_comm *comm, const int64_t *mine, int64_t n, int64_t *wrong) {
    int64_t all = n * tg_comm_size(comm);
    *wrong = -1;
    tg_tensor *src = tg_temp_empty(ctx, TG_I64, 1, &n, TG_MEM_TEMPORARY);
    tg_tensor *dst = src ? tg_temp_empty(ctx, TG_I64, 1, &all, TG_MEM_TEMPORARY) : NULL;
    tg_status s = ctx->run.status;
    int64_t *said = dst ? tg_host_alloc(ctx, (size_t)all * sizeof *said) : NULL;
    if (said) {
        s = ctx->run.ops->copy(ctx, tg_data(src), mine, (size_t)n * sizeof *mine, TG_COPY_FROM_HOST);
        if (s == TG_OK && !tg_comm_all_gather(comm, dst, src)) s = ctx->run.status;
        if (s == TG_OK) s = tg_storage_need(dst->storage, dst);
        if (s == TG_OK) s = ctx->run.ops->copy(ctx, said, tg_data(dst), (size_t)all * sizeof *said, TG_COPY_TO_HOST);
    }
    for (int64_t i = 0; said && s == TG_OK && i < all && *wrong < 0; i++)
        if (said[i] != said[i % n]) *wrong = i;
    tg_host_free(ctx, said, (size_t)all * sizeof *said);
    tg_temp_free(src);
    tg_temp_free(dst);
    return said ? s : ctx->run.status;
}

/* Fails unless the hashes are equal on all ranks. mine has one hash for each of the n tensors. */
tg_status tg_placement_compare_hashes(tg_tensor *const *x, const int64_t *mine, int64_t n, tg_axis axis) {
    tg_ctx *ctx = x[0]->ctx;
    int64_t wrong;
    TG_TRY(find_other(ctx, tg_grid_of(ctx)->comm[axis], mine, n, &wrong));
    return wrong < 0 ? TG_OK : differs(x[wrong % n], axis, (int)(wrong / n));
}

bool tg_placement_comparable(const tg_tensor *x) { return !x->ctx->meta && x->flags & TG_F_CONTIGUOUS; }

tg_status tg_placement_compare(tg_tensor *x) {
    uint32_t axes = tg_placement_claimed(x) & ~data_axes;
    x->flags |= TG_F_COMPARED;
    if (!axes || !tg_placement_comparable(x)) return TG_OK;
    int64_t mine;
    TG_TRY(tg_placement_hash(x, &mine));
    for (int a = 0; a < TG_MAX_AXES; a++)
        if (axes >> a & 1) TG_TRY(tg_placement_compare_hashes(&x, &mine, 1, (tg_axis)a));
    return TG_OK;
}

tg_status tg_placement_compare_over(tg_tensor *x, tg_comm *c, const char *who) {
    char what[160];
    int64_t wrong;
    if (!tg_placement_comparable(x)) return TG_OK;
    int64_t mine;
    TG_TRY(tg_placement_hash(x, &mine));
    TG_TRY(find_other(x->ctx, c, &mine, 1, &wrong));
    if (wrong < 0) return TG_OK;
    tg_describe(x, what, sizeof what);
    return tg_fail(x->ctx, TG_ERR_PLACEMENT,
                   "%s: the bytes of %s differ between ranks 0 and %d of \"%s\", so ranks would get parts of each "
                   "other's tensors; distribute a tensor that is the same on all of them",
                   who, what, (int)wrong, tg_comm_name(c));
}
