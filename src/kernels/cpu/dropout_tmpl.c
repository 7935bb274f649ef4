/* Dropout: y = x keep / (1 - p), or y += x keep / (1 - p) if the job's `add` is true. keep is 1 for an element whose
 * draw, a uniform number in [0, 1), is p or more, and 0 for the others. If p is 1, all elements are dropped. The kernel
 * also computes the gradient: x is then the gradient of the output, and the caller gives the draws of forward. */
#include "kernels/cpu/fused.h"
#include "kernels/cpu/tile.h"
#include "kernels/philox.h"

static void drop_tile(const tg_dropout_job *job, int64_t r, int64_t j) {
    int64_t n = tile_len(job->x.n, j);
    float u[TILE], p = (float)job->p;
    real in[TILE], out[TILE], scale = job->p < 1 ? (real)(1 / (1 - job->p)) : 0;
    const real *x = tile_in(&job->x, r, j, n, in);
    real *y = tile_out(&job->y, r, j, job->add, out);
    tg_draws_uniform_row(&job->draws, r * job->x.n + j, n, u);
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = u[i] >= p ? x[i] * scale : 0;
    tile_put(&job->y, r, j, n, job->add, y);
}

void TG_K(dropout)(void *arg, int64_t begin, int64_t end) {
    const tg_dropout_job *job = arg;
    for (int64_t u = begin; u < end; u++)
        drop_tile(job, u / job->tiles, u % job->tiles * TILE);
}
