/* Products with few rows of bf16 numbers, for the GEMM's template of AMX: one instruction multiplies 16 columns of B,
 * which are read in place, by all rows of A, and adds up pairs of numbers in float32. It takes as long for one row as
 * for TG_GEMM_ROWS. */
#ifndef TG_GEMM_TILES_H
#define TG_GEMM_TILES_H

#ifdef TG_TILES
#include <immintrin.h>

#include "kernels/cpu/gemm/gemm_rows.h"

enum { TILE_COLS = 16, TILE_STEP = TG_GEMM_PAIR_STEP }; /* columns of B, and numbers along k, of a tile */

/* The registers. A tile of B is [columns][TILE_STEP], one of A [TILE_STEP / 2][rows] of pairs, and the sums are
 * [columns][rows] of float32. The instructions take only constants as register numbers. */
#define TILE_SUMS 0
#define TILE_B 1
#define TILE_A 2

/* The operand of LDTILECFG: the rows of each register and the bytes of a row. */
typedef struct tile_config {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} tile_config;

/* Before its version 13, gcc does not know that the instructions for tiles read memory. */
#define TILES_READ(p) __asm__ volatile("" : : "r"(p) : "memory")

/* Sets the registers for m rows of A and n columns of B. */
static void set_tiles(int64_t m, int64_t n) {
    tile_config c = {.palette = 1};
    c.rows[TILE_SUMS] = c.rows[TILE_B] = (uint8_t)n;
    c.rows[TILE_A] = TILE_STEP / 2;
    c.bytes[TILE_SUMS] = c.bytes[TILE_A] = (uint16_t)(4 * m);
    c.bytes[TILE_B] = 2 * TILE_STEP;
    TILES_READ(&c);
    _tile_loadconfig(&c);
}

/* Adds the products with the last `rest` numbers of the columns, and zeros after them. */
static void add_rest(const uint32_t *x, int64_t m, const uint16_t *b, int64_t cs, int64_t rest, int64_t n) {
    uint16_t end[TILE_COLS][TILE_STEP] = {{0}};
    for (int64_t j = 0; j < n; j++) memcpy(end[j], b + j * cs, (size_t)rest * sizeof **end);
    TILES_READ(end);
    _tile_loadd(TILE_B, end, sizeof *end);
    _tile_loadd(TILE_A, x, 4 * m);
    _tile_dpbf16ps(TILE_SUMS, TILE_B, TILE_A);
}

/* Computes n columns for all m rows. From b on, B has n runs of `length` adjacent columns each; the n columns are
 * column number i of each run. x holds the pairs of A. Because the caller takes i from 0 to length - 1, each row of a
 * tile of B reads the columns of its run one after the other, which is adjacent memory. This is faster than runs of a
 * single column. Prefetches AHEAD numbers ahead: from the same column, the next column of the run, or the runs after
 * these. */
static void tile_columns(const tg_gemm_item *t, const uint32_t *x, const uint16_t *b, int64_t n, int64_t length,
                         int64_t i, real *sum) {
    enum { AHEAD = 256 };
    int64_t m = t->m, k = t->k, cs = t->b.cs, step = length * cs, q = 0;
    const uint16_t *at = b + i * cs, *after = b + (i + 1 < length ? i + 1 : n * length) * cs;
    real s[TILE_COLS * TG_GEMM_ROWS];
    _tile_zero(TILE_SUMS);
    for (; q + TILE_STEP <= k; q += TILE_STEP) {
        const uint16_t *next = q + AHEAD < k ? at + q + AHEAD : after + q + AHEAD - k;
        for (int64_t j = 0; j < n; j++) __builtin_prefetch(next + j * step);
        _tile_loadd(TILE_B, at + q, 2 * step);
        _tile_loadd(TILE_A, x + q / 2 * m, 4 * m);
        _tile_dpbf16ps(TILE_SUMS, TILE_B, TILE_A);
    }
    if (q < k) add_rest(x + q / 2 * m, m, at + q, step, k - q, n);
    _tile_stored(TILE_SUMS, s, 4 * m);
    for (int64_t r = 0; r < m; r++)
        for (int64_t j = 0; j < n; j++) sum[r * DOT_COLS + j * length + i] = s[j * m + r];
}

/* Computes n runs of `length` columns each, from column j on. The registers are set for n columns. */
static void tile_runs(const tg_gemm_item *t, const void *x, int64_t j, int64_t n, int64_t length) {
    real sum[TG_GEMM_ROWS * DOT_COLS] = {0}; /* zeros, because finish reads whole vectors */
    const uint16_t *b = (const uint16_t *)t->b.data + j * t->b.cs;
    for (int64_t i = 0; i < length; i++) tile_columns(t, x, b, n, length, i, sum);
    finish(&t->out, 0, j, t->m, n * length, sum, DOT_COLS);
}

/* x is what gather_pairs makes. Releases the registers at the end, so that switches between threads need not save their
 * state. */
static void dot_tiles(const tg_gemm_item *t, const void *x, int64_t ldx, int64_t j, int64_t cols) {
    enum { LONGEST = DOT_COLS / TILE_COLS };
    int64_t c = 0, rest = cols % TILE_COLS, whole = cols - rest;
    (void)ldx;
    TILES_READ(x);
    if (whole) set_tiles(t->m, TILE_COLS);
    for (int64_t length; c < whole; c += length * TILE_COLS) {
        length = min_of(LONGEST, (whole - c) / TILE_COLS);
        tile_runs(t, x, j + c, TILE_COLS, length);
    }
    if (rest) {
        set_tiles(t->m, rest);
        tile_runs(t, x, j + c, rest, 1);
    }
    _tile_release();
}

/* Loads n numbers, followed by zeros, as words of two. */
TG_INLINE vec load_words(const uint16_t *p, int64_t n) {
    return (vec)_mm512_maskz_loadu_epi16((__mmask32)((UINT64_C(1) << n) - 1), p);
}

/* Copies n numbers along k, at most TILE_STEP, of m rows to pairs: [TILE_STEP / 2][m]. */
static void gather_strided(const uint16_t *a, int64_t rs, int64_t cs, int64_t m, int64_t n, uint32_t *x) {
    uint16_t *to = (uint16_t *)x;
    memset(x, 0, (size_t)(TILE_STEP / 2 * m) * sizeof *x);
    for (int64_t i = 0; i < m; i++)
        for (int64_t q = 0; q < n; q++) to[2 * (q / 2 * m + i) + q % 2] = a[i * rs + q * cs];
}

/* Does the same for rows that are contiguous. */
static void gather_step(const uint16_t *a, int64_t rs, int64_t m, int64_t n, uint32_t *x) {
    vec r[LANES];
    for (int64_t i = 0; i < LANES; i++) r[i] = i < m ? load_words(a + i * rs, n) : (vec){0};
    transpose(r);
    for (int64_t q = 0; q < TILE_STEP / 2; q++)
        _mm512_mask_storeu_ps(x + q * m, (__mmask16)((1u << m) - 1), (__m512)r[q]);
}

/* Copies A to x[k / 2][m] of pairs, where k is rounded up to a multiple of TILE_STEP with zeros. */
static void gather_pairs(const tg_gemm_item *t, void *x) {
    int64_t m = t->m, cs = t->a.cs;
    for (int64_t q = 0; q < t->k; q += TILE_STEP) {
        const uint16_t *a = (const uint16_t *)t->a.data + q * cs;
        uint32_t *to = (uint32_t *)x + q / 2 * m;
        int64_t n = min_of(TILE_STEP, t->k - q);
        if (cs == 1) gather_step(a, t->a.rs, m, n, to);
        else gather_strided(a, t->a.rs, cs, m, n, to);
    }
}
#endif

#endif
