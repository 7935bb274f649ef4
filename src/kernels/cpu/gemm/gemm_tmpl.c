/* The GEMM's kernels for one instruction set (TG_ISA) and compute type (TG_T): the tile and the table of kernels. */
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/gemm/gemm_amx.h"
#include "kernels/cpu/gemm/gemm_finish.h"
#include "kernels/cpu/gemm/gemm_pack.h"
#include "kernels/cpu/gemm/gemm_pairs.h"
#include "kernels/cpu/gemm/gemm_rows.h"
#include "kernels/cpu/gemm/gemm_tiles.h"
#include "kernels/cpu/gemm/gemm_vec.h"
#include "kernels/cpu/gemm/gemm_words.h"

#ifndef TG_TILES
#ifdef TG_PAIRS
#include <immintrin.h>

/* Returns s + the sum of the two products of a pair, in every lane. */
TG_INLINE vec multiply_add(vec s, real pair, vec b) {
    int32_t a;
    memcpy(&a, &pair, sizeof a);
    return (vec)_mm512_dpbf16_ps((__m512)s, (__m512bh)_mm512_set1_epi32(a), (__m512bh)b);
}
#else
TG_INLINE vec multiply_add(vec s, real a, vec b) { return s + a * b; }
#endif

/* Multiplies two panels over `units` steps of k. The sums of MR rows and nv vectors of columns stay in registers from
 * the first step to the last. They start from the sums at `from`, or from 0 if `from` is NULL. */
TG_INLINE void multiply(vec s[MR][NV], int nv, const real *from, const real *a, const real *b, int64_t units) {
    TG_UNROLL for (int i = 0; i < MR; i++)
        TG_UNROLL for (int j = 0; j < nv; j++) s[i][j] = from ? get(from + i * NR + j * LANES) : (vec){0};
    for (int64_t q = 0; q < units; q++, a += MR, b += NR) {
        vec w[NV];
        __builtin_prefetch(a + MR * units, 0, 2);
        TG_UNROLL for (int j = 0; j < nv; j++) w[j] = get(b + j * LANES);
        TG_UNROLL for (int i = 0; i < MR; i++)
            TG_UNROLL for (int j = 0; j < nv; j++) s[i][j] = multiply_add(s[i][j], a[i], w[j]);
    }
}

TG_INLINE void tile_of(int nv, real *sum, const real *from, const real *a, const real *b, int64_t units) {
    vec s[MR][NV];
    multiply(s, nv, from, a, b, units);
    TG_UNROLL for (int i = 0; i < MR; i++)
        TG_UNROLL for (int j = 0; j < nv; j++) put(sum + i * NR + j * LANES, s[i][j]);
}

static void tile(void *sum, const void *a, const void *b, int64_t units, int64_t cols, bool add) {
    if (cols <= LANES) tile_of(1, sum, add ? sum : NULL, a, b, units);
    else if (cols <= 2 * LANES && NV > 2) tile_of(2, sum, add ? sum : NULL, a, b, units);
    else if (add) tile_of(NV, sum, sum, a, b, units);
    else tile_of(NV, sum, NULL, a, b, units);
}

static void tile_out(const tg_gemm_out *o, int64_t i, int64_t j, const void *from, const void *a, const void *b,
                     int64_t units) {
    vec s[MR][NV];
    const real alpha = (real)o->alpha, beta = (real)o->beta;
    real *c = (real *)o->c.data + i * o->c.rs + j;
    TG_UNROLL for (int r = 0; r < MR; r++)
        for (int l = 0; l < NR; l += 64 / (int)sizeof(real)) __builtin_prefetch(c + r * o->c.rs + l, 1);
    if (from) multiply(s, NV, from, a, b, units);
    else multiply(s, NV, NULL, a, b, units);
    TG_UNROLL for (int r = 0; r < MR; r++, c += o->c.rs)
        TG_UNROLL for (int v = 0; v < NV; v++) {
            vec out = alpha * s[r][v];
            if (beta != 0) out += beta * get(c + v * LANES);
            if (o->bias) out += load(at(o->bias, j + v * LANES, o->bias_dtype), o->bias_dtype);
            put(c + v * LANES, out);
        }
}
#endif

const tg_gemm_kernels TG_K(gemm_kernels) = {
#ifdef TG_TILES
    .mr = AMX_SIDE,
    .nr = AMX_SIDE,
    .pair = TG_GEMM_PAIR_STEP,
    .unit_size = AMX_UNIT * sizeof(real),
    .pack_a = pack_rows_of_units,
    .pack_b = pack_columns_of_units,
    .tile = tile_of_units,
    .tile_out = tile_of_units_out,
#else
    .mr = MR,
    .nr = NR,
    .pair = PAIR,
    .unit_size = sizeof(real),
    .near_bytes = NEAR,
    .pack_a = pack_a,
    .pack_b = pack_b,
    .tile = tile,
    .tile_out = tile_out,
#endif
    .sum_size = sizeof(real),
    .finish = finish,
    .dot_cols = DOT_COLS,
    .dot = dot,
    .axpy = axpy,
#ifdef TG_TILES
    .dot_pairs = dot_tiles,
    .gather_pairs = gather_pairs,
#elif defined(TG_PAIRS)
    .dot_pairs = dot_pairs,
#elif !TG_F64_HERE
    .dot_pairs = dot_words,
    .gather_pairs = gather_words,
#endif
    .gather = gather,
};
