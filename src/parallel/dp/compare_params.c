/* Check mode (tg_config.check): tg_grads_finalize compares the parameters whose placements say that they are equal on
 * all ranks of dp, or of edp for experts. Ops do not compare parameters on these axes, because the ranks may use
 * different parameters in a step; but all ranks call tg_grads_finalize. */
#include "base/memory/host_memory.h"
#include "parallel/dp/grads.h"

tg_status tg_grads_compare_params(const tg_parallel *p, tg_tensor *const *params, int n) {
    tg_ctx *ctx = p->ctx;
    if (!ctx->check || !(tg_grid_axes(ctx) & TG_DATA_PARALLEL_AXES)) return TG_OK;
    size_t bytes = (size_t)n * (sizeof(tg_tensor *) + sizeof(int64_t));
    tg_tensor **x = bytes ? tg_host_alloc(ctx, bytes) : NULL;
    int64_t *mine = x ? (int64_t *)(x + n) : NULL;
    for (int a = 0; x && a < TG_MAX_AXES && ctx->run.status == TG_OK; a++) {
        int k = 0;
        for (int i = 0; TG_DATA_PARALLEL_AXES >> a & 1 && i < n; i++) {
            if (!(tg_placement_claimed(params[i]) >> a & 1) || !tg_placement_comparable(params[i])) continue;
            x[k] = params[i];
            if (tg_placement_hash(params[i], &mine[k++]) != TG_OK) tg_ctx_skip(ctx);
        }
        if (k && ctx->run.status == TG_OK) tg_placement_compare_hashes(x, mine, k, (tg_axis)a);
    }
    tg_host_free(ctx, x, bytes);
    return ctx->run.status;
}
