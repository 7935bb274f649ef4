/* The panels and tiles of blocked products of bf16 numbers, for the GEMM's template of AMX. A unit is TG_GEMM_PAIR_STEP
 * numbers along k, as many as one instruction adds up, and a tile of sums is four of AMX's registers. */
#ifndef TG_GEMM_AMX_H
#define TG_GEMM_AMX_H

#ifdef TG_TILES
#include <immintrin.h>

#include "kernels/cpu/gemm/gemm_finish.h"
#include "kernels/cpu/gemm/gemm_pack.h"
#include "kernels/cpu/gemm/gemm_tiles.h"

/* AMX_ROWS is the number of rows of a register. AMX_SIDE is the number of rows, and of columns, of a tile of sums.
 * AMX_UNIT is the number of 32-bit words of a unit; a word is a pair of numbers. */
enum { AMX_ROWS = 16, AMX_SIDE = 2 * AMX_ROWS, AMX_UNIT = TG_GEMM_PAIR_STEP / 2 };

/* ---- Panels ---- */

/* Loads a unit of each of AMX_ROWS rows, which are contiguous along k. `rows` of them exist, and n numbers of each. */
TG_INLINE void units_of_rows(vec r[AMX_ROWS], const void *p, int64_t ps, int64_t rows, int64_t n, tg_dtype d) {
    for (int64_t i = 0; i < AMX_ROWS; i++) {
        r[i] = i < rows ? units_along(at(p, i * ps, d), n, d) : (vec){0};
        if (i < rows) __builtin_prefetch(at(p, i * ps + AHEAD_BYTES / 2, d));
    }
}

/* Does the same for rows of any strides. */
TG_INLINE void units_of_strided_rows(vec r[AMX_ROWS], const void *p, int64_t ps, int64_t ks, int64_t rows, int64_t n,
                                     tg_dtype d) {
    for (int64_t i = 0; i < AMX_UNIT; i++)
        r[i] = rows > 0 && 2 * i < n ? units_across(at(p, 2 * i * ks, d), ps, ks, rows, n - 2 * i, d) : (vec){0};
    transpose(r);
}

/* Packs a panel of A as [unit][AMX_SIDE][AMX_UNIT]: each row of a unit is a row of a register. */
static void pack_rows_of_units(void *dst, const void *src, int64_t ps, int64_t ks, int64_t np, int64_t nk, tg_dtype d) {
    real *to = dst;
    vec r[AMX_ROWS];
    for (int64_t q = 0; q < nk; q += TG_GEMM_PAIR_STEP)
        for (int64_t p = 0; p < AMX_SIDE; p += AMX_ROWS, to += AMX_ROWS * AMX_UNIT) {
            const void *from = at(src, p * ps + q * ks, d);
            const int64_t rows = min_of(AMX_ROWS, np - p), n = min_of(TG_GEMM_PAIR_STEP, nk - q);
            if (ks == 1) units_of_rows(r, from, ps, rows, n, d);
            else units_of_strided_rows(r, from, ps, ks, rows, n, d);
            for (int i = 0; i < AMX_ROWS; i++) put(to + i * AMX_UNIT, r[i]);
        }
}

/* Packs a panel of B as [unit][AMX_UNIT][AMX_SIDE]: the pairs of a unit one after the other, for all columns. */
static void pack_columns_of_units(void *dst, const void *src, int64_t ps, int64_t ks, int64_t np, int64_t nk,
                                  tg_dtype d) {
    const int64_t pairs = (nk + 1) / 2, all = (pairs + AMX_UNIT - 1) / AMX_UNIT * AMX_UNIT;
    pack_any(dst, AMX_SIDE, src, ps, ks, np, nk, d);
    memset((real *)dst + pairs * AMX_SIDE, 0, (size_t)((all - pairs) * AMX_SIDE) * sizeof(real));
}

/* ---- Tiles ---- */

/* The numbers of the registers. Four hold the sums, each for a half of the rows and a half of the columns. Two hold the
 * halves of A's rows, and two the halves of B's columns. The instructions take only constants as register numbers. */
#define AMX_SUM_00 0
#define AMX_SUM_01 1
#define AMX_SUM_10 2
#define AMX_SUM_11 3
#define AMX_A_0 4
#define AMX_A_1 5
#define AMX_B_0 6
#define AMX_B_1 7

static void set_registers(void) {
    tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.rows[i] = AMX_ROWS;
        c.bytes[i] = AMX_ROWS * sizeof(real);
    }
    TILES_READ(&c);
    _tile_loadconfig(&c);
}

enum { AMX_SUM_BYTES = AMX_SIDE * sizeof(real), AMX_HALF = AMX_ROWS * AMX_SIDE };

static void load_sums(const real *sum, bool add) {
    _tile_zero(AMX_SUM_00);
    _tile_zero(AMX_SUM_01);
    _tile_zero(AMX_SUM_10);
    _tile_zero(AMX_SUM_11);
    if (!add) return;
    _tile_loadd(AMX_SUM_00, sum, AMX_SUM_BYTES);
    _tile_loadd(AMX_SUM_01, sum + AMX_ROWS, AMX_SUM_BYTES);
    _tile_loadd(AMX_SUM_10, sum + AMX_HALF, AMX_SUM_BYTES);
    _tile_loadd(AMX_SUM_11, sum + AMX_HALF + AMX_ROWS, AMX_SUM_BYTES);
}

static void store_sums(real *sum) {
    _tile_stored(AMX_SUM_00, sum, AMX_SUM_BYTES);
    _tile_stored(AMX_SUM_01, sum + AMX_ROWS, AMX_SUM_BYTES);
    _tile_stored(AMX_SUM_10, sum + AMX_HALF, AMX_SUM_BYTES);
    _tile_stored(AMX_SUM_11, sum + AMX_HALF + AMX_ROWS, AMX_SUM_BYTES);
}

/* Adds the products of one unit. Each register of A and B is used twice. */
TG_INLINE void add_unit(const real *a, const real *b) {
    _tile_loadd(AMX_B_0, b, AMX_SUM_BYTES);
    _tile_loadd(AMX_A_0, a, AMX_UNIT * sizeof(real));
    _tile_dpbf16ps(AMX_SUM_00, AMX_A_0, AMX_B_0);
    _tile_loadd(AMX_B_1, b + AMX_ROWS, AMX_SUM_BYTES);
    _tile_dpbf16ps(AMX_SUM_01, AMX_A_0, AMX_B_1);
    _tile_loadd(AMX_A_1, a + AMX_ROWS * AMX_UNIT, AMX_UNIT * sizeof(real));
    _tile_dpbf16ps(AMX_SUM_10, AMX_A_1, AMX_B_0);
    _tile_dpbf16ps(AMX_SUM_11, AMX_A_1, AMX_B_1);
}

/* Member `tile` of the table of kernels. Releases the registers at the end, so that switches between threads need not
 * save their state. */
static void tile_of_units(void *sum, const void *a, const void *b, int64_t units, int64_t cols, bool add) {
    (void)cols;
    TILES_READ(a);
    TILES_READ(b);
    TILES_READ(sum);
    set_registers();
    load_sums(sum, add);
    for (int64_t q = 0; q < units; q++)
        add_unit((const real *)a + q * AMX_SIDE * AMX_UNIT, (const real *)b + q * AMX_SIDE * AMX_UNIT);
    store_sums(sum);
    _tile_release();
}

static void tile_of_units_out(const tg_gemm_out *o, int64_t i, int64_t j, const void *from, const void *a,
                              const void *b, int64_t units) {
    _Alignas(64) real sum[AMX_SIDE * AMX_SIDE];
    if (from) memcpy(sum, from, sizeof sum);
    tile_of_units(sum, a, b, units, AMX_SIDE, from != NULL);
    finish(o, i, j, AMX_SIDE, AMX_SIDE, sum, AMX_SIDE);
}
#endif

#endif
