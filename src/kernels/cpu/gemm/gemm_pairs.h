/* Products with few rows of bf16 numbers, for the GEMM's template of AVX512-BF16: one instruction multiplies 32 of
 * them, and adds up two at a time in float32. A and B are read in place, and need no conversion. */
#ifndef TG_GEMM_PAIRS_H
#define TG_GEMM_PAIRS_H

#if defined(TG_PAIRS) && !defined(TG_TILES)
#include <immintrin.h>

#include "kernels/cpu/gemm/gemm_rows.h"

enum { PAIR_STEP = 2 * LANES, PAIR_ROWS = 4 }; /* numbers of a vector; most rows at a time */

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

/* Stores the sums of mr vectors, DOT_COLS apart. */
TG_INLINE void sum_rows(const vec s[PAIR_ROWS], real *sum, int mr) {
    real four[PAIR_ROWS];
    if (mr == PAIR_ROWS) sum_lanes_of_4(s, four);
    for (int i = 0; i < mr; i++) sum[i * DOT_COLS] = mr == PAIR_ROWS ? four[i] : sum_lanes(s[i]);
}

/* Computes sum[i] = row i of x times a column of B, for mr rows (4, 2 or 1). Prefetches B `ahead` numbers ahead. */
TG_INLINE void pair_block(const uint16_t *x, int64_t ldx, const uint16_t *b, int64_t ahead, int64_t k, real *sum,
                          int mr) {
    vec s[PAIR_ROWS];
    for (int i = 0; i < mr; i++) s[i] = (vec){0};
    int64_t q = 0;
    for (; q + PAIR_STEP <= k; q += PAIR_STEP) {
        __m512bh w = pairs_at(b + q);
        __builtin_prefetch(b + q + ahead);
        for (int i = 0; i < mr; i++) s[i] = (vec)_mm512_dpbf16_ps((__m512)s[i], pairs_at(x + i * ldx + q), w);
    }
    for (int i = 0; i < mr && q < k; i++)
        s[i] = (vec)_mm512_dpbf16_ps((__m512)s[i], some_pairs(x + i * ldx + q, k - q), some_pairs(b + q, k - q));
    sum_rows(s, sum, mr);
}

/* Computes mr rows of `cols` columns, cs apart, one after the other. */
TG_INLINE void pair_columns(const uint16_t *x, int64_t ldx, const uint16_t *b, int64_t cs, int64_t cols, int64_t k,
                            real *sum, int mr) {
    int64_t ahead = column_ahead(cs, k);
    for (int64_t c = 0; c < cols; c++) pair_block(x, ldx, b + c * cs, ahead, k, sum + c, mr);
}

/* Does what dot does, but column by column, because reading memory in its order is faster than reading several columns
 * at a time. The first rows bring the columns into the caches. */
static void pairs_step(const tg_gemm_item *t, const uint16_t *x, int64_t ldx, int64_t j, int64_t cols) {
    real sum[TG_GEMM_ROWS * DOT_COLS] = {0}; /* zeros, because finish reads whole vectors */
    const uint16_t *b = (const uint16_t *)t->b.data + j * t->b.cs;
    int64_t i = 0, cs = t->b.cs, k = t->k;
    for (; i + 4 <= t->m; i += 4) pair_columns(x + i * ldx, ldx, b, cs, cols, k, sum + i * DOT_COLS, 4);
    for (; i + 2 <= t->m; i += 2) pair_columns(x + i * ldx, ldx, b, cs, cols, k, sum + i * DOT_COLS, 2);
    if (i < t->m) pair_columns(x + i * ldx, ldx, b, cs, cols, k, sum + i * DOT_COLS, 1);
    finish(&t->out, 0, j, t->m, cols, sum, DOT_COLS);
}

static void dot_pairs(const tg_gemm_item *t, const void *x, int64_t ldx, int64_t j, int64_t cols) {
    for (int64_t c = 0; c < cols; c += DOT_COLS) pairs_step(t, x, ldx, j + c, min_of(DOT_COLS, cols - c));
}
#endif

#endif
