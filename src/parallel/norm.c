#include "parallel/grads.h"

enum { MASKS = 16 };

/* Along one axis, the sums of all masks that have it, in one collective. */
static tg_status sum_axis(tg_ctx *ctx, int axis, const uint32_t *mask, double *sum, int n) {
    double v[MASKS];
    int64_t k = 0;
    for (int i = 0; i < n; i++)
        if (mask[i] >> axis & 1) v[k++] = sum[i];
    if (!k) return TG_OK;
    tg_tensor *x = tg_temp_empty(ctx, TG_F64, 1, &k, TG_MEM_TEMPORARY);
    if (!x) return ctx->status;
    size_t bytes = (size_t)k * sizeof *v;
    tg_status s = ctx->meta ? TG_OK : ctx->ops->copy(ctx, tg_data(x), v, bytes, TG_COPY_FROM_HOST);
    if (s == TG_OK && !tg_comm_all_reduce(ctx->parallel->comm[axis], x, x, TG_REDUCE_SUM)) s = ctx->status;
    if (s == TG_OK) s = tg_storage_need(x->storage, x);
    if (s == TG_OK && !ctx->meta) s = ctx->ops->copy(ctx, v, tg_data(x), bytes, TG_COPY_TO_HOST);
    tg_temp_free(x);
    k = 0;
    for (int i = 0; i < n && s == TG_OK; i++)
        if (mask[i] >> axis & 1) sum[i] = v[k++];
    return s;
}

tg_status tg_grid_sum(tg_ctx *ctx, const uint32_t *mask, double *sum, int n) {
    if (n > MASKS) return tg_fail(ctx, TG_ERR_INTERNAL, "%d sets of axes, expected at most %d", n, MASKS);
    for (int a = 0; a < TG_MAX_AXES; a++) TG_TRY(sum_axis(ctx, a, mask, sum, n));
    return TG_OK;
}
