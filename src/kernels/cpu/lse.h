/* For templates only: the stable sum of a row's exponentials (log-sum-exp) in one pass over memory (Milakov and
 * Gimelshein, arXiv 1805.02867). The result is two numbers, a reference and a sum. A single number, log(sum) + ref,
 * would lose digits in rows with large values. */
#ifndef TG_LSE_H
#define TG_LSE_H

#include "kernels/cpu/tile.h"

/* The sum of exp over a row is sum * exp(ref), where ref is the row's maximum. For a row of -inf, or without elements,
 * ref and sum are 0, so that -inf - -inf does not occur. */
typedef struct lse {
    real ref, sum;
} lse;

/* Returns the maximum of t. Ignores NaN, because a NaN makes the row's result NaN through the sum. Combines lanes by
 * halves, because gcc does not vectorize a maximum reduction if there may be NaN. */
TILE_REDUCTION tile_max(const real *t, int64_t n) {
    real lane[LANES], m = -INFINITY;
    int64_t i = 0;
    for (int l = 0; l < LANES; l++)
        lane[l] = m;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] = t[i + l] > lane[l] ? t[i + l] : lane[l];
#define HALVE(half)                                                                                                    \
    for (int l = 0; l < (half); l++)                                                                                   \
        lane[l] = lane[l + (half)] > lane[l] ? lane[l + (half)] : lane[l];
    HALVE(LANES / 2)
    HALVE(LANES / 4)
    HALVE(LANES / 8)
#undef HALVE
    for (int l = 0; l < LANES / 8; l++)
        m = lane[l] > m ? lane[l] : m;
    for (; i < n; i++)
        m = t[i] > m ? t[i] : m;
    return m;
}

/* Returns the sum of exp(t - ref). Prefetches the tile `next`. */
TILE_REDUCTION tile_sum_exp(const real *t, int64_t n, real ref, const real *next) {
    real lane[LANES] = {0}, s = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes_fetch(next + i);
        for (int l = 0; l < LANES; l++)
            lane[l] += real_exp(t[i + l] - ref);
    }
#pragma omp simd reduction(+ : s)
    for (int64_t k = i; k < n; k++)
        s += real_exp(t[k] - ref);
    return s + lanes_sum(lane);
}

/* Returns the lse of row r. Sums tile by tile; if a tile raises the maximum, rescales the sum so far. */
static inline lse lse_of_row(const tg_rows *x, int64_t r) {
    real buf[TILE], max = -INFINITY;
    lse s = {0, 0};
    for (int64_t j = 0; j < x->n; j += TILE) {
        int64_t n = tile_len(x->n, j);
        const real *t = tile_in(x, r, j, n, buf);
        real m = tile_max(t, n);
        if (m > max) {
            s.sum *= max == -(real)INFINITY ? 1 : real_exp(max - m);
            s.ref = max = m;
        }
        s.sum += tile_sum_exp(t, n, s.ref, tile_next(x, r, j, t));
    }
    return s;
}

#endif
