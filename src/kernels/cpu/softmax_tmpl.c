/* Softmax and log-softmax of rows, and their gradients. */
#include "kernels/cpu/fused.h"
#include "kernels/cpu/lse.h"

static void log_row(const tg_softmax_job *job, int64_t r) {
    lse s = lse_of_row(&job->x, r);
    real in[TILE], out[TILE], z = (real)log(s.sum);
    for (int64_t j = 0; j < job->x.n; j += TILE) {
        int64_t n = tile_len(job->x.n, j);
        const real *x = tile_in(&job->x, r, j, n, in);
        real *y = tile_out(&job->y, r, j, false, out);
        for (int64_t i = 0; i < n; i++)
            y[i] = (x[i] - s.ref) - z;
        tile_put(&job->y, r, j, n, false, y);
    }
}

/* Computes y = exp(x - max) and returns the sum of y. Prefetches the tile `next`. */
TILE_REDUCTION tile_exp(real *restrict y, const real *restrict x, int64_t n, real max, const real *next) {
    real lane[LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes_fetch(next + i);
        for (int l = 0; l < LANES; l++) {
            real e = real_exp(x[i + l] - max);
            y[i + l] = e;
            lane[l] += e;
        }
    }
#pragma omp simd reduction(+ : sum)
    for (int64_t k = i; k < n; k++) {
        y[k] = real_exp(x[k] - max);
        sum += y[k];
    }
    return sum + lanes_sum(lane);
}

/* Computes the softmax of a row of at most one tile, with each exponential computed once. */
static void short_row(const tg_softmax_job *job, int64_t r) {
    int64_t n = job->x.n;
    real in[TILE], out[TILE];
    in[0] = 0; /* silences a gcc warning about rows without elements */
    const real *x = tile_in(&job->x, r, 0, n, in);
    real *y = tile_out(&job->y, r, 0, false, out), max = tile_max(x, n);
    real scale = 1 / tile_exp(y, x, n, max, tile_next(&job->x, r, 0, x));
    for (int64_t i = 0; i < n; i++)
        y[i] *= scale;
    tile_put(&job->y, r, 0, n, false, y);
}

/* Computes the softmax of a longer row. Computes each exponential twice: for the sum and for y. So it passes over
 * memory twice; to store the exponentials and scale them later would take three passes. */
static void long_row(const tg_softmax_job *job, int64_t r) {
    lse s = lse_of_row(&job->x, r);
    real in[TILE], out[TILE], scale = 1 / s.sum;
    for (int64_t j = 0; j < job->x.n; j += TILE) {
        int64_t n = tile_len(job->x.n, j);
        const real *x = tile_in(&job->x, r, j, n, in);
        real *y = tile_out(&job->y, r, j, false, out);
        for (int64_t i = 0; i < n; i++)
            y[i] = real_exp(x[i] - s.ref) * scale;
        tile_put(&job->y, r, j, n, false, y);
    }
}

void TG_K(softmax)(void *arg, int64_t begin, int64_t end) {
    const tg_softmax_job *job = arg;
    int64_t last = tg_unit_end(job->x.count, job->per_unit, end);
    for (int64_t r = begin * job->per_unit; r < last; r++) {
        if (job->log)
            log_row(job, r);
        else if (job->x.n <= TILE)
            short_row(job, r);
        else
            long_row(job, r);
    }
}

/* Returns the sum of gy y along row r, or of gy for log-softmax. */
static real grad_dot(const tg_softmax_job *job, int64_t r) {
    real a[TILE], b[TILE], sum = 0;
    for (int64_t j = 0; j < job->gy.n; j += TILE) {
        int64_t n = tile_len(job->gy.n, j);
        const real *gy = tile_in(&job->gy, r, j, n, a);
        sum += job->log ? tile_sum(gy, n) : tile_dot(gy, tile_in(&job->y, r, j, n, b), n);
    }
    return sum;
}

static void grad_row(const tg_softmax_job *job, int64_t r) {
    real a[TILE], b[TILE], out[TILE], sum = grad_dot(job, r);
    for (int64_t j = 0; j < job->gy.n; j += TILE) {
        int64_t n = tile_len(job->gy.n, j);
        const real *gy = tile_in(&job->gy, r, j, n, a), *y = tile_in(&job->y, r, j, n, b);
        real *gx = tile_out(&job->gx, r, j, job->add, out);
        if (job->log)
            for (int64_t i = 0; i < n; i++)
                gx[i] = gy[i] - real_exp(y[i]) * sum;
        else
            for (int64_t i = 0; i < n; i++)
                gx[i] = y[i] * (gy[i] - sum);
        tile_put(&job->gx, r, j, n, job->add, gx);
    }
}

void TG_K(softmax_grad)(void *arg, int64_t begin, int64_t end) {
    const tg_softmax_job *job = arg;
    int64_t last = tg_unit_end(job->gx.count, job->per_unit, end);
    for (int64_t r = begin * job->per_unit; r < last; r++)
        grad_row(job, r);
}
