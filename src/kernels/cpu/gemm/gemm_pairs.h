/* Products with few rows of bf16 numbers, for the GEMM's template of AVX512-BF16: one instruction multiplies 32 of
 * them, and adds up two at a time in float32. A and B are read in place, and need no conversion. */
#ifndef TG_GEMM_PAIRS_H
#define TG_GEMM_PAIRS_H

#if defined(TG_PAIRS) && !defined(TG_TILES)
#include <immintrin.h>

#include "kernels/cpu/gemm/gemm_rows.h"

enum { PAIR_STEP = 2 * LANES, PAIR_ROWS = 4, PAIR_COLS = 4 }; /* numbers of a vector; most rows and columns at a time */

TG_INLINE __m512bh pairs_at(const uint16_t *p) { return (__m512bh)_mm512_loadu_si512(p); }
TG_INLINE __m512bh some_pairs(const uint16_t *p, int64_t n) {
    return (__m512bh)_mm512_maskz_loadu_epi16((__mmask32)((1u << n) - 1), p);
}

/* Stores the sums of the lanes of four vectors. Adds lanes in the order of sum_lanes, but all vectors at once. */
TG_INLINE void sum_lanes_of_4(const vec s[4], real *sum) {
    vec a = __builtin_shufflevector(s[0], s[1], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
            __builtin_shufflevector(s[0], s[1], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    vec b = __builtin_shufflevector(s[2], s[3], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
            __builtin_shufflevector(s[2], s[3], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    vec c = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
            __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    c += __builtin_shufflevector(c, c, TG_LIST(TG_FLIP, 2));
    c += __builtin_shufflevector(c, c, TG_LIST(TG_FLIP, 1));
    for (int j = 0; j < 4; j++) sum[j] = c[4 * j];
}

/* Stores the sums of mr rows of nc vectors: sum[i][j]. */
TG_INLINE void sum_block(vec s[PAIR_ROWS][PAIR_COLS], real *sum, int mr, int nc) {
    real four[4];
    for (int i = 0; i < mr; i++) {
        if (nc == 4) {
            sum_lanes_of_4(s[i], sum + i * DOT_COLS);
        } else if (nc == 2 && mr > 1) {
            if (i % 2) continue;
            sum_lanes_of_4((const vec[]){s[i][0], s[i][1], s[i + 1][0], s[i + 1][1]}, four);
            for (int k = 0; k < 4; k++) sum[(i + k / 2) * DOT_COLS + k % 2] = four[k];
        } else {
            for (int j = 0; j < nc; j++) sum[i * DOT_COLS + j] = sum_lanes(s[i][j]);
        }
    }
}

/* Computes sum[i][j] = row i of x times column j of B for mr rows (4, 2 or 1) and nc columns (4, 2 or 1). Prefetches B
 * `ahead` numbers ahead. */
TG_INLINE void pair_block(const uint16_t *x, int64_t ldx, const uint16_t *b, int64_t cs, int64_t k, real *sum, int mr,
                          int nc, int64_t ahead) {
    vec s[PAIR_ROWS][PAIR_COLS];
    for (int i = 0; i < mr; i++)
        for (int j = 0; j < nc; j++) s[i][j] = (vec){0};
    int64_t q = 0;
    for (; q + PAIR_STEP <= k; q += PAIR_STEP) {
        int64_t next = q + ahead < k ? q + ahead : q + ahead - k + nc * cs;
        __m512bh w[PAIR_COLS];
        for (int j = 0; j < nc; j++) {
            w[j] = pairs_at(b + j * cs + q);
            __builtin_prefetch(b + j * cs + next);
        }
        for (int i = 0; i < mr; i++) {
            __m512bh v = pairs_at(x + i * ldx + q);
            for (int j = 0; j < nc; j++) s[i][j] = (vec)_mm512_dpbf16_ps((__m512)s[i][j], v, w[j]);
        }
    }
    for (int i = 0; i < mr && q < k; i++)
        for (int j = 0; j < nc; j++)
            s[i][j] = (vec)_mm512_dpbf16_ps((__m512)s[i][j], some_pairs(x + i * ldx + q, k - q),
                                            some_pairs(b + j * cs + q, k - q));
    sum_block(s, sum, mr, nc);
}

/* Computes nc columns for all m rows. The first rows bring the columns of B into the caches. */
TG_INLINE void pair_columns(const uint16_t *x, int64_t ldx, int64_t m, const uint16_t *b, int64_t cs, int64_t k,
                            real *sum, int nc, int64_t ahead) {
    int64_t i = 0;
    for (; i + 4 <= m; i += 4) pair_block(x + i * ldx, ldx, b, cs, k, sum + i * DOT_COLS, 4, nc, ahead);
    for (; i + 2 <= m; i += 2) pair_block(x + i * ldx, ldx, b, cs, k, sum + i * DOT_COLS, 2, nc, ahead);
    if (i < m) pair_block(x + i * ldx, ldx, b, cs, k, sum + i * DOT_COLS, 1, nc, ahead);
}

/* Does what dot does. With 3 rows or more two columns at a time, from further ahead, come faster from memory. */
static void pairs_step(const tg_gemm_item *t, const uint16_t *x, int64_t ldx, int64_t j, int64_t cols) {
    enum { NEAR_AHEAD = 512, FAR_AHEAD = 1024 }; /* numbers */
    real sum[TG_GEMM_ROWS * DOT_COLS] = {0};     /* zeros, because finish reads whole vectors */
    const uint16_t *b = (const uint16_t *)t->b.data + j * t->b.cs;
    int64_t cs = t->b.cs, c = 0;
    if (t->m < 3)
        for (; c + 4 <= cols; c += 4) pair_columns(x, ldx, t->m, b + c * cs, cs, t->k, sum + c, 4, NEAR_AHEAD);
    for (; c + 2 <= cols; c += 2) pair_columns(x, ldx, t->m, b + c * cs, cs, t->k, sum + c, 2, FAR_AHEAD);
    for (; c < cols; c++) pair_columns(x, ldx, t->m, b + c * cs, cs, t->k, sum + c, 1, FAR_AHEAD);
    finish(&t->out, 0, j, t->m, cols, sum, DOT_COLS);
}

static void dot_pairs(const tg_gemm_item *t, const void *x, int64_t ldx, int64_t j, int64_t cols) {
    for (int64_t c = 0; c < cols; c += DOT_COLS) pairs_step(t, x, ldx, j + c, min_of(DOT_COLS, cols - c));
}
#endif

#endif
