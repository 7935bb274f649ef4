/* What all kernels of the CPU share: instruction-set levels and the naming of templates.
 *
 * Files named *_tmpl.c are templates. The build compiles them once per instruction set and compute type (rank_sums: per
 * dtype), with TG_ISA (such as portable, avx2, avx512) and TG_T (such as f32, f64) defined. TG_K(name) gives each copy
 * its own symbol. Each copy of a template defines functions, or one const table of function pointers. The drivers are
 * ordinary .c files: they prepare a call, and select a copy of the template by tg_cpu_level. */
#ifndef TG_CPU_H
#define TG_CPU_H

#include <tapegrad/device.h>

#include "base/runtime.h"

typedef enum tg_cpu_level_t {
    TG_CPU_PORTABLE,
    TG_CPU_AVX2,
    TG_CPU_AVX512,
    TG_CPU_AVX512_BF16,
    TG_CPU_AMX, /* AMX for bf16, in addition to AVX512-BF16 */
    TG_CPU_LEVELS
} tg_cpu_level_t;

/* Returns the instruction-set level of this context, from CPUID or from the context's config. */
static inline tg_cpu_level_t tg_cpu_level(const tg_ctx *ctx) { return (tg_cpu_level_t)tg_runtime_of(ctx)->cpu_level; }
/* Returns the highest level that this machine supports, from CPUID. */
tg_cpu_level_t tg_cpu_detect(void);
/* Returns "portable", "avx2" and so on; "?" if level is out of range. */
const char *tg_cpu_level_name(tg_cpu_level_t level);

#define TG_PASTE_(a, b, c, d) a##b##_##c##_##d
#define TG_PASTE(a, b, c, d) TG_PASTE_(a, b, c, d)
#define TG_K(name) TG_PASTE(tg_, name, TG_T, TG_ISA)

extern const tg_device_ops tg_cpu_device;

#endif
