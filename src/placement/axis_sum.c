/* Sums of float64 numbers over axes of the grid, on the device. Norms and counts of sharded tensors use them. */
#include "placement/grid.h"

#include <tapegrad/comm.h>

/* Replaces sums[from, to) by their sums over the ranks of comm. */
static tg_status sum_run(tg_comm *comm, tg_tensor *sums, int from, int to) {
    tg_ctx *ctx = sums->ctx;
    int64_t n = to - from;
    tg_tensor *x = tg_temp_new(ctx, TG_F64, 1, &n, NULL, tg_storage_ref(sums->storage), sums->offset + from);
    if (!x) return ctx->run.status;
    tg_status s = tg_comm_all_reduce(comm, x, x, TG_REDUCE_SUM) ? TG_OK : ctx->run.status;
    if (s == TG_OK) s = tg_storage_need(x->storage, x);
    tg_temp_free(x);
    return s;
}

tg_status tg_grid_sum_world(tg_ctx *ctx, tg_tensor *x) { return sum_run((tg_comm *)tg_grid_of(ctx)->world, x, 0, 1); }

/* Makes one collective on each axis for each run of consecutive elements whose masks contain that axis. Usually all
 * elements form one run. */
tg_status tg_grid_sum(tg_ctx *ctx, const uint32_t *mask, tg_tensor *sums, int n) {
    for (int a = 0; a < TG_MAX_AXES; a++)
        for (int i = 0, to; i < n; i = to) {
            to = i + 1;
            if (!(mask[i] >> a & 1)) continue;
            while (to < n && mask[to] >> a & 1) to++;
            TG_TRY(sum_run(tg_grid_of(ctx)->comm[a], sums, i, to));
        }
    return TG_OK;
}
