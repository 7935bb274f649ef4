/* Products with few rows of bf16 numbers, for the GEMM's templates without instructions for them. Two neighbors in k
 * are read as one word of 32 bits. The word shifted left by 16 bits is the first of them in float32, and the word with
 * its lower half cleared is the second. This takes fewer instructions than widening each number. */
#ifndef TG_GEMM_WORDS_H
#define TG_GEMM_WORDS_H

#if !TG_F64_HERE && !defined(TG_PAIRS)
#include "kernels/cpu/gemm/gemm_rows.h"

/* A line is a cache line of B. Its even numbers are those with an even position in it. In the copy of A each line has
 * its even numbers first, and then its odd ones. */
enum { LINE = TG_GEMM_PAIR_STEP, HALF = LINE / 2 };

/* Up to WORD_ROWS rows are computed together. Each has a sum for even numbers and one for odd ones. With fewer sums the
 * multiplier would wait, and more would not fit into the registers. */
enum { WORD_ROWS = 4 };

/* Reads LANES pairs of numbers. */
TG_INLINE void split_words(const uint16_t *p, vec *even, vec *odd) {
    vec_bits w;
    memcpy(&w, p, sizeof w);
    *even = (vec)(w << 16);
    *odd = (vec)(w & 0xffff0000u);
}

/* Adds the products with a line of mr rows of A and of a column of B. */
TG_INLINE void add_line(vec s[WORD_ROWS][2], const real *x, int64_t ldx, const uint16_t *b, int mr) {
    TG_UNROLL for (int h = 0; h < HALF; h += LANES) {
        vec even, odd;
        split_words(b + 2 * h, &even, &odd);
        for (int i = 0; i < mr; i++) s[i][0] += get(x + i * ldx + h) * even;
        for (int i = 0; i < mr; i++) s[i][1] += get(x + i * ldx + HALF + h) * odd;
    }
}

/* Computes sum[i] = row i of x times a column of B, for mr rows (4, 2 or 1): the sum of the products of even numbers,
 * plus that of odd ones, lane by lane, and then that of the lanes. Prefetches B `ahead` numbers ahead. */
TG_INLINE void word_block(const real *x, int64_t ldx, const uint16_t *b, int64_t ahead, int64_t k, real *sum, int mr) {
    vec s[WORD_ROWS][2];
    for (int i = 0; i < mr; i++) s[i][0] = s[i][1] = (vec){0};
    int64_t q = 0;
    for (; q + LINE <= k; q += LINE) {
        __builtin_prefetch(b + q + ahead);
        add_line(s, x + q, ldx, b + q, mr);
    }
    if (q < k) {
        uint16_t end[LINE] = {0};
        memcpy(end, b + q, (size_t)(k - q) * sizeof *end);
        add_line(s, x + q, ldx, end, mr);
    }
    for (int i = 0; i < mr; i++) sum[i * DOT_COLS] = sum_lanes(s[i][0] + s[i][1]);
}

/* Computes mr rows of `cols` columns, cs apart, one after the other. */
TG_INLINE void word_columns(const real *x, int64_t ldx, const uint16_t *b, int64_t cs, int64_t cols, int64_t k,
                            real *sum, int mr) {
    int64_t ahead = column_ahead(cs, k);
    for (int64_t c = 0; c < cols; c++) word_block(x, ldx, b + c * cs, ahead, k, sum + c, mr);
}

/* Computes up to DOT_COLS columns, one after the other, because reading memory in its order is faster than reading
 * several columns at a time. The first rows bring the columns into the caches. */
static void words_step(const tg_gemm_item *t, const real *x, int64_t ldx, int64_t j, int64_t cols) {
    real sum[TG_GEMM_ROWS * DOT_COLS] = {0}; /* zeros, because finish reads whole vectors */
    const uint16_t *b = (const uint16_t *)t->b.data + j * t->b.cs;
    int64_t i = 0, cs = t->b.cs, k = t->k;
    for (; i + 4 <= t->m; i += 4) word_columns(x + i * ldx, ldx, b, cs, cols, k, sum + i * DOT_COLS, 4);
    for (; i + 2 <= t->m; i += 2) word_columns(x + i * ldx, ldx, b, cs, cols, k, sum + i * DOT_COLS, 2);
    if (i < t->m) word_columns(x + i * ldx, ldx, b, cs, cols, k, sum + i * DOT_COLS, 1);
    finish(&t->out, 0, j, t->m, cols, sum, DOT_COLS);
}

/* x is what gather_words makes. */
static void dot_words(const tg_gemm_item *t, const void *x, int64_t ldx, int64_t j, int64_t cols) {
    ldx = (t->k + LINE - 1) / LINE * LINE;
    for (int64_t c = 0; c < cols; c += DOT_COLS) words_step(t, x, ldx, j + c, min_of(DOT_COLS, cols - c));
}

/* Copies A to float32, line by line. The last line is filled up with zeros. */
static void gather_words(const tg_gemm_item *t, void *x) {
    int64_t cs = t->a.cs;
    real *to = x;
    for (int64_t i = 0; i < t->m; i++)
        for (int64_t q = 0; q < t->k; q += LINE, to += LINE) {
            const uint16_t *a = (const uint16_t *)t->a.data + i * t->a.rs + q * cs;
            uint16_t line[LINE] = {0};
            int64_t n = min_of(LINE, t->k - q);
            for (int64_t e = 0; e < n; e++) line[e] = a[e * cs];
            for (int h = 0; h < HALF; h += LANES) {
                vec even, odd;
                split_words(line + 2 * h, &even, &odd);
                put(to + h, even);
                put(to + HALF + h, odd);
            }
        }
}
#endif

#endif
