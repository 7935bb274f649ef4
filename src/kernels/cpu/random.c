/* The CPU's random slot. Integers and float64 are drawn in float64, all other dtypes in float32. */
#include "kernels/cpu/random.h"

#include "base/dtype.h"
#include "kernels/cpu/required.h"
#include "kernels/uniform.h"

/* PARALLEL_FROM is the least number of elements for which several threads are used. UNIT is the number of elements of a
 * unit of parallel work. */
enum { PARALLEL_FROM = 65536, UNIT = 16384 };

TG_CPU_COPIES(tg_random_kernels, random_kernels, f32)
TG_CPU_COPIES(tg_random_kernels, random_kernels, f64)

tg_status tg_cpu_random(tg_ctx *ctx, tg_random kind, tg_array out, double a, double b, const tg_draws *draws) {
    static const tg_random_kernels *const f32[] = TG_CPU_TABLE(random_kernels, f32);
    static const tg_random_kernels *const f64[] = TG_CPU_TABLE(random_kernels, f64);
    bool wide = out.dtype == TG_F64 || !tg_is_float(out.dtype);
    const tg_random_kernels *k = (wide ? f64 : f32)[tg_cpu_level(ctx)];
    tg_random_job job = {.kind = kind, .out = out, .a = a, .b = b, .draws = *draws, .per_unit = UNIT};
    job.inner = out.contiguous || out.ndim == 0 ? out.numel : out.shape[out.ndim - 1];
    tg_uniform_ends((tg_dtype)out.dtype, a, b, &job.least, &job.below);
    int64_t units = (out.numel + UNIT - 1) / UNIT;
    if (out.numel >= PARALLEL_FROM)
        tg_parallel_run(ctx, units, k->fill, &job);
    else
        k->fill(&job, 0, units);
    return TG_OK;
}
