/* Sums partial results in the order of the parts (tg_sum_job). This is the second pass of reductions whose bits must
 * not depend on the number of threads. */
#include "kernels/cpu/fused.h"
#include "kernels/cpu/tile.h"

static void sum_tile(const tg_sum_job *job, int64_t r, int64_t j) {
    int64_t n = tile_len(job->out.n, j);
    const real *part = (const real *)job->parts + r * job->row_size + j;
    real sum[TILE];
    for (int64_t i = 0; i < n; i++)
        sum[i] = part[i];
    for (int64_t p = 1; p < job->count; p++) {
        part += job->part_size;
        for (int64_t i = 0; i < n; i++)
            sum[i] += part[i];
    }
    char *at = tg_row_at(&job->out, r, j);
    if (job->add)
        tile_add(at, job->out.dtype, job->out.stride, n, sum);
    else
        tile_store(at, job->out.dtype, job->out.stride, n, sum);
}

void TG_K(sum_partials)(void *arg, int64_t begin, int64_t end) {
    const tg_sum_job *job = arg;
    for (int64_t u = begin; u < end; u++)
        sum_tile(job, u / job->tiles, u % job->tiles * TILE);
}
