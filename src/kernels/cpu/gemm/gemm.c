/* The CPU's gemm slot: chooses the kernels, the orientation and the algorithm. */
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/transposed.h"

static const tg_gemm_kernels *kernels_for(const tg_ctx *ctx, const tg_gemm *g) {
    bool f64 = g->a.dtype == TG_F64;
#ifdef __x86_64__
    tg_cpu_level_t level = tg_cpu_level(ctx);
    if (level == TG_CPU_AMX && g->a.dtype == TG_BF16) return &tg_gemm_kernels_f32_amx;
    if (level == TG_CPU_AVX512_BF16 && g->a.dtype == TG_BF16) return &tg_gemm_kernels_f32_avx512_bf16;
    if (level >= TG_CPU_AVX512) return f64 ? &tg_gemm_kernels_f64_avx512 : &tg_gemm_kernels_f32_avx512;
    if (level == TG_CPU_AVX2) return f64 ? &tg_gemm_kernels_f64_avx2 : &tg_gemm_kernels_f32_avx2;
#else
    (void)ctx;
#endif
    return f64 ? &tg_gemm_kernels_f64_portable : &tg_gemm_kernels_f32_portable;
}

/* Returns the address of matrix (u, v) of a batch; NULL if x is absent. */
static char *place(const tg_matrix *x, int64_t u, int64_t v) {
    return x->data ? (char *)x->data + (u * x->bs[0] + v * x->bs[1]) * (tg_dtype_bits(x->dtype) / 8) : NULL;
}

tg_gemm_item tg_gemm_item_of(const tg_gemm *g, int64_t batch) {
    int64_t u = batch / g->batch[1], v = batch % g->batch[1];
    tg_gemm_item t = {.m = g->m, .n = g->n, .k = g->k, .a = g->a, .b = g->b};
    t.out = (tg_gemm_out){g->c, g->pre, g->alpha, g->beta, g->bias, g->bias_dtype, false, g->act};
    t.a.data = place(&g->a, u, v);
    t.b.data = place(&g->b, u, v);
    t.out.c.data = place(&g->c, u, v);
    t.out.pre.data = place(&g->pre, u, v);
    return t;
}

/* Returns whether few_rows.c can compute g and is faster. */
static bool has_few_rows(const tg_gemm *g) { return g->m <= TG_GEMM_ROWS && (g->b.rs == 1 || g->b.cs == 1); }

tg_status tg_cpu_gemm(tg_ctx *ctx, const tg_gemm *g) {
    if (g->m <= 0 || g->n <= 0 || g->batch[0] <= 0 || g->batch[1] <= 0) return TG_OK;
    const tg_gemm_kernels *kn = kernels_for(ctx, g);
    tg_gemm t = tg_transposed_product(g);
    if (has_few_rows(g)) return tg_gemm_few_rows(ctx, kn, g, false);
    if (has_few_rows(&t)) return tg_gemm_few_rows(ctx, kn, &t, true);
    if (g->c.cs != 1 && g->c.rs == 1) return tg_gemm_blocked(ctx, kn, &t, true);
    return tg_gemm_blocked(ctx, kn, g, false);
}
