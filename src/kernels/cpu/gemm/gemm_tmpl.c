/* The GEMM's kernels for one instruction set (TG_ISA) and compute type (TG_T): the tile, and the table of all. */
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/gemm/gemm_finish.h"
#include "kernels/cpu/gemm/gemm_pack.h"
#include "kernels/cpu/gemm/gemm_rows.h"
#include "kernels/cpu/gemm/gemm_vec.h"

#ifdef TG_PAIRS
#include <immintrin.h>

/* s += the two products of a pair, for every lane. */
TG_INLINE vec multiply_add(vec s, real pair, vec b) {
    int32_t a;
    memcpy(&a, &pair, sizeof a);
    return (vec)_mm512_dpbf16_ps((__m512)s, (__m512bh)_mm512_set1_epi32(a), (__m512bh)b);
}
#else
TG_INLINE vec multiply_add(vec s, real a, vec b) { return s + a * b; }
#endif

/* The sums of MR rows and nv vectors of columns stay in registers from the first step of k to the last. */
TG_INLINE void tile_of(int nv, real *sum, const real *a, const real *b, int64_t units, bool add) {
    vec s[MR][NV];
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < nv; j++) s[i][j] = add ? get(sum + i * NR + j * LANES) : (vec){0};
    for (int64_t q = 0; q < units; q++, a += MR, b += NR) {
        vec w[NV];
       __builtin_prefetch(a + MR * units, 0, 2);
        for (int j = 0; j < nv; j++) w[j] = get(b + j * LANES);
        for (int i = 0; i < MR; i++)
            for (int j = 0; j < nv; j++) s[i][j] = multiply_add(s[i][j], a[i], w[j]);
    }
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < nv; j++) put(sum + i * NR + j * LANES, s[i][j]);
}

static void tile(void *sum, const void *a, const void *b, int64_t units, int64_t cols, bool add) {
    if (cols > 2 * LANES) tile_of(NV, sum, a, b, units, add);
    else if (cols > LANES) tile_of(2, sum, a, b, units, add);
    else tile_of(1, sum, a, b, units, add);
}

const tg_gemm_kernels TG_K(gemm_kernels) = {
    .mr = MR,
    .nr = NR,
    .pair = PAIR,
    .unit_size = sizeof(real),
    .sum_size = sizeof(real),
    .pack_a = pack_a,
    .pack_b = pack_b,
    .tile = tile,
    .finish = finish,
    .dot = dot,
    .axpy = axpy,
    .gather = gather,
};
