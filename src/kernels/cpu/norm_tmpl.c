/* Layer norm and RMS norm of rows, and their gradients. */
#include "kernels/cpu/fused.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/tile.h"

/* Returns the sum of (t - mean)^2. */
TILE_REDUCTION tile_sum_square(const real *t, int64_t n, real mean) {
    real lane[LANES] = {0}, s = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] += (t[i + l] - mean) * (t[i + l] - mean);
#pragma omp simd reduction(+ : s)
    for (int64_t k = i; k < n; k++)
        s += (t[k] - mean) * (t[k] - mean);
    return s + lanes_sum(lane);
}

/* Sets *rest to the sum of t - mean, and returns the sum of (t - mean)^2. */
TILE_REDUCTION tile_deviations(const real *t, int64_t n, real mean, real *rest) {
    real lane[LANES] = {0}, left[LANES] = {0}, s = 0, r = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            real d = t[i + l] - mean;
            left[l] += d;
            lane[l] += d * d;
        }
#pragma omp simd reduction(+ : s, r)
    for (int64_t k = i; k < n; k++) {
        r += t[k] - mean;
        s += (t[k] - mean) * (t[k] - mean);
    }
    *rest = r + lanes_sum(left);
    return s + lanes_sum(lane);
}

/* Sets *sum_g to the sum of g = gy w, and returns the sum of g (x - mean). */
TILE_REDUCTION tile_dots(const real *gy, const real *w, const real *x, int64_t n, real mean, real *sum_g) {
    real a = 0, b = 0;
#pragma omp simd reduction(+ : a, b)
    for (int64_t i = 0; i < n; i++) {
        a += gy[i] * w[i];
        b += gy[i] * w[i] * (x[i] - mean);
    }
    *sum_g = a;
    return b;
}

/* Returns the sum of x^2 along row r. */
static real sum_square(const tg_rows *x, int64_t r) {
    real buf[TILE], sum = 0;
    for (int64_t j = 0; j < x->n; j += TILE) {
        int64_t n = tile_len(x->n, j);
        sum += tile_sum_square(tile_in(x, r, j, n, buf), n, 0);
    }
    return sum;
}

/* Returns the sum of row r. */
static real sum_row(const tg_rows *x, int64_t r) {
    real buf[TILE], sum = 0;
    for (int64_t j = 0; j < x->n; j += TILE) {
        int64_t n = tile_len(x->n, j);
        sum += tile_sum(tile_in(x, r, j, n, buf), n);
    }
    return sum;
}

/* Returns the mean of row r, and sets *variance to its variance. The variance comes from a second pass over the row,
 * which is in the cache by then: computed in one pass, it would be a difference of large numbers, which is inaccurate.
 * The sum of x - mean in the second pass corrects the mean, so that the mean of equal elements is exactly their
 * value. */
static real moments(const tg_rows *x, int64_t r, real *variance) {
    real buf[TILE], n = (real)x->n, mean = sum_row(x, r) / n, rest = 0, sum = 0, left;
    for (int64_t j = 0; j < x->n; j += TILE) {
        int64_t len = tile_len(x->n, j);
        sum += tile_deviations(tile_in(x, r, j, len, buf), len, mean, &left);
        rest += left;
    }
    rest /= n;
    sum = sum / n - rest * rest;
    *variance = sum < 0 ? 0 : sum;
    return mean + rest;
}

/* Returns elements [j, j + n) of a vector of weights or biases, or the number `absent` n times if there is no
 * vector. */
static const real *vector_tile(const tg_rows *w, int64_t j, int64_t n, real absent, real *buf) {
    if (w->data)
        return tile_in(w, 0, j, n, buf);
    for (int64_t i = 0; i < n; i++)
        buf[i] = absent;
    return buf;
}

/* Computes y = (x - mean) rstd w + b. Prefetches the tile `next`. */
static void tile_affine(real *y, const real *x, const real *w, const real *b, int64_t n, real mean, real rstd,
                        const real *next) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes_fetch(next + i);
#pragma omp simd
        for (int l = 0; l < LANES; l++)
            y[i + l] = (x[i + l] - mean) * rstd * w[i + l] + b[i + l];
    }
    for (; i < n; i++)
        y[i] = (x[i] - mean) * rstd * w[i] + b[i];
}

/* Does the same as tile_affine, with non-temporal stores. y is aligned to a cache line, and n elements fill whole cache
 * lines. */
static void tile_affine_streamed(real *y, const real *x, const real *w, const real *b, int64_t n, real mean, real rstd,
                                 const real *next) {
    enum { LINE = TG_STREAM_LINE / sizeof(real) };
    for (int64_t i = 0; i < n; i += LINE) {
        real line[LINE];
        __builtin_prefetch(next + i);
#pragma omp simd
        for (int l = 0; l < LINE; l++)
            line[l] = (x[i + l] - mean) * rstd * w[i + l] + b[i + l];
        tg_stream(y + i, line, sizeof line);
    }
}

/* Computes y of row r. */
static void norm_row(const tg_norm_job *job, int64_t r, real mean, real rstd) {
    real xbuf[TILE], wbuf[TILE], bbuf[TILE], ybuf[TILE];
    for (int64_t j = 0; j < job->x.n; j += TILE) {
        int64_t n = tile_len(job->x.n, j);
        const real *x = tile_in(&job->x, r, j, n, xbuf);
        const real *w = vector_tile(&job->w, j, n, 1, wbuf), *b = vector_tile(&job->b, j, n, 0, bbuf);
        const real *next = tile_next(&job->x, r, j, x);
        if (job->streams) {
            tile_affine_streamed((real *)tg_row_at(&job->y, r, j), x, w, b, n, mean, rstd, next);
            continue;
        }
        real *y = tile_out(&job->y, r, j, false, ybuf);
        tile_affine(y, x, w, b, n, mean, rstd, next);
        tile_put(&job->y, r, j, n, false, y);
    }
}

void TG_K(norm)(void *arg, int64_t begin, int64_t end) {
    const tg_norm_job *job = arg;
    int64_t last = tg_unit_end(job->x.count, job->per_unit, end);
    for (int64_t r = begin * job->per_unit; r < last; r++) {
        real mean = 0, square;
        if (job->rms)
            square = sum_square(&job->x, r) / (real)job->x.n;
        else
            mean = moments(&job->x, r, &square);
        real rstd = 1 / real_sqrt(square + (real)job->eps);
        if (job->mean.data && !job->rms)
            row_set(&job->mean, r, mean);
        if (job->rstd.data)
            row_set(&job->rstd, r, rstd);
        norm_row(job, r, mean, rstd);
    }
    if (job->streams)
        tg_stream_fence();
}

/* What gx of a row is computed from. With h = (x - mean) rstd and g = gy w:
 *     gx = rstd (g - mean(g) - h mean(g h)), where RMS norm lacks mean(g). */
typedef struct row_grad {
    real mean, rstd;
    real sum_g, sum_gh;
} row_grad;

/* Computes the two sums of s for row r, and adds the contribution of the row to gw and gb, unless they are NULL. */
static void grad_sums(const tg_norm_job *job, int64_t r, real *gw, real *gb, row_grad *s) {
    real xbuf[TILE], gbuf[TILE], wbuf[TILE], mean = s->mean, rstd = s->rstd;
    for (int64_t j = 0; j < job->x.n; j += TILE) {
        int64_t n = tile_len(job->x.n, j);
        const real *x = tile_in(&job->x, r, j, n, xbuf), *gy = tile_in(&job->gy, r, j, n, gbuf);
        real g, gh = tile_dots(gy, vector_tile(&job->w, j, n, 1, wbuf), x, n, mean, &g);
        s->sum_g += g;
        s->sum_gh += gh * rstd;
        if (gw)
            for (int64_t i = 0; i < n; i++)
                gw[j + i] += gy[i] * ((x[i] - mean) * rstd);
        if (gb)
            for (int64_t i = 0; i < n; i++)
                gb[j + i] += gy[i];
    }
}

/* Computes gx of row r. */
static void grad_x(const tg_norm_job *job, int64_t r, const row_grad *s) {
    real xbuf[TILE], gbuf[TILE], wbuf[TILE], out[TILE], len = (real)job->x.n;
    real mean_g = job->rms ? 0 : s->sum_g / len, mean_gh = s->sum_gh / len, mean = s->mean, rstd = s->rstd;
    for (int64_t j = 0; j < job->x.n; j += TILE) {
        int64_t n = tile_len(job->x.n, j);
        const real *x = tile_in(&job->x, r, j, n, xbuf), *gy = tile_in(&job->gy, r, j, n, gbuf);
        real *gx = tile_out(&job->gx, r, j, job->add_x, out);
        const real *w = vector_tile(&job->w, j, n, 1, wbuf);
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            gx[i] = rstd * (gy[i] * w[i] - mean_g - (x[i] - mean) * rstd * mean_gh);
        tile_put(&job->gx, r, j, n, job->add_x, gx);
    }
}

/* Computes unit u: gx of its rows, and the sums over these rows for gw and gb. The driver adds the sums of all
 * units. */
static void grad_unit(const tg_norm_job *job, int64_t u) {
    int64_t n = job->x.n, last = tg_unit_end(job->x.count, job->per_unit, u + 1);
    real *gw = job->gw ? (real *)job->gw + u * n : NULL, *gb = job->gb ? (real *)job->gb + u * n : NULL;
    for (int64_t i = 0; gw && i < n; i++)
        gw[i] = 0;
    for (int64_t i = 0; gb && i < n; i++)
        gb[i] = 0;
    for (int64_t r = u * job->per_unit; r < last; r++) {
        row_grad s = {.mean = job->rms ? 0 : row_value(&job->mean, r), .rstd = row_value(&job->rstd, r)};
        grad_sums(job, r, gw, gb, &s);
        if (job->gx.data)
            grad_x(job, r, &s);
    }
}

void TG_K(norm_grad)(void *arg, int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; u++)
        grad_unit(arg, u);
}
