/* Reductions over ranks: the arithmetic of a collective such as all_reduce, for one piece of the data. */
#ifndef TG_RANKS_H
#define TG_RANKS_H

#include "kernels/convert.h"
#include "kernels/cpu/cpu.h"

/* Sets element i of every dst to src[0][i] op src[1][i] op ..., in that order, for i in [0, n). An average is the sum
 * divided by n_src, and needs floats. 16-bit floats are summed in float32 and rounded once. Integers wrap. A sum of
 * bools is their OR. In maxima and minima NaN wins over any number. A dst may be one of the sources. */
typedef void (*tg_ranks_fn)(tg_reduce_op op, const void *const *src, int n_src, void *const *dst, int n_dst, int64_t n);
/* Returns the function for this instruction-set level and dtype. */
tg_ranks_fn tg_ranks_kernel(tg_cpu_level_t level, tg_dtype dtype);

/* X(dtype, stored as, summed as), in the order of tg_dtype. b8 is bool, whose name is a macro. */
#define TG_RANKS_LIST(X)          \
    X(f32, float, float)          \
    X(f64, double, double)        \
    X(bf16, uint16_t, float)      \
    X(f16, uint16_t, float)       \
    X(i64, int64_t, int64_t)      \
    X(i32, int32_t, int32_t)      \
    X(u8, uint8_t, uint8_t)       \
    X(i8, int8_t, int8_t)         \
    X(i16, int16_t, int16_t)      \
    X(u16, uint16_t, uint16_t)    \
    X(u32, uint32_t, uint32_t)    \
    X(u64, uint64_t, uint64_t)    \
    X(b8, uint8_t, uint8_t)
#define TG_X(name, S, A)                                                                              \
    void tg_ranks_##name##_portable(tg_reduce_op, const void *const *, int, void *const *, int, int64_t); \
    void tg_ranks_##name##_avx2(tg_reduce_op, const void *const *, int, void *const *, int, int64_t);     \
    void tg_ranks_##name##_avx512(tg_reduce_op, const void *const *, int, void *const *, int, int64_t);
TG_RANKS_LIST(TG_X)
#undef TG_X

#endif
