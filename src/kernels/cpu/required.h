/* The functions of the CPU's required slots that compute, and of its optional slots scan, sort and put; and macros with
 * which their drivers find the copies of a template (cpu.h). */
#ifndef TG_CPU_REQUIRED_H
#define TG_CPU_REQUIRED_H

#include "kernels/cpu/cpu.h"

tg_status tg_cpu_map(tg_ctx *ctx, tg_formula f, tg_array out, const tg_array *in, int n_in, const double p[2],
                     bool add);
tg_status tg_cpu_fill(tg_ctx *ctx, tg_array out, double value);
tg_status tg_cpu_iota(tg_ctx *ctx, tg_array out, double start, double step);
tg_status tg_cpu_reduce(tg_ctx *ctx, tg_reduction kind, tg_array out, tg_array in, double scale, bool add);
tg_status tg_cpu_gemm(tg_ctx *ctx, const tg_gemm *g);
tg_status tg_cpu_take(tg_ctx *ctx, tg_array out, tg_array src, tg_array index, int dim, int64_t *bad);
tg_status tg_cpu_put_add(tg_ctx *ctx, tg_array dst, tg_array src, tg_array index, int dim, int64_t *bad);
tg_status tg_cpu_scan(tg_ctx *ctx, tg_reduction kind, tg_array y, tg_array x, bool back, bool add);
tg_status tg_cpu_sort(tg_ctx *ctx, tg_array y, tg_array order, tg_array x, bool falling);
tg_status tg_cpu_put(tg_ctx *ctx, tg_array dst, tg_array src, tg_array index, int dim, int64_t *bad);
tg_status tg_cpu_random(tg_ctx *ctx, tg_random kind, tg_array out, double a, double b, const tg_draws *draws);

/* The blocks of work memory (tg_workspace) that reduce, sort and put_add use. gemm uses blocks 0 to 2, and the fused
 * kernels use blocks 5 and 6. sort and put_add share a block, because neither calls the other. */
enum { TG_WS_REDUCE = 3, TG_WS_SORT = 4, TG_WS_PUT = 4 };

/* TG_CPU_COPIES declares the copies of a template's table, and TG_CPU_TABLE lists them by tg_cpu_level_t. On machines
 * other than x86-64 only the portable copy exists. */
#ifdef __x86_64__
#define TG_CPU_COPIES(type, name, t)                                                                                   \
    extern const type tg_##name##_##t##_portable, tg_##name##_##t##_avx2, tg_##name##_##t##_avx512;
#define TG_CPU_TABLE(name, t)                                                                                          \
    { &tg_##name##_##t##_portable, &tg_##name##_##t##_avx2, &tg_##name##_##t##_avx512, &tg_##name##_##t##_avx512,      \
      &tg_##name##_##t##_avx512 }
#else
#define TG_CPU_COPIES(type, name, t) extern const type tg_##name##_##t##_portable;
#define TG_CPU_TABLE(name, t)                                                                                          \
    {                                                                                                                  \
        &tg_##name##_##t##_portable, &tg_##name##_##t##_portable, &tg_##name##_##t##_portable,                         \
            &tg_##name##_##t##_portable, &tg_##name##_##t##_portable                                                   \
    }
#endif

#endif
