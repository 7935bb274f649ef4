#include "kernels/cpu/ranks.h"

#define X(name, S, A)                                                                                              \
    void tg_ranks_##name##_portable(tg_reduce_op, const void *const *, int, void *const *, int, int64_t);         \
    void tg_ranks_##name##_avx2(tg_reduce_op, const void *const *, int, void *const *, int, int64_t);             \
    void tg_ranks_##name##_avx512(tg_reduce_op, const void *const *, int, void *const *, int, int64_t);
TG_RANKS_LIST(X)
#undef X

tg_ranks_fn tg_ranks_kernel(tg_cpu_level_t level, tg_dtype dtype) {
#if defined(__x86_64__)
#define X(name, S, A) {tg_ranks_##name##_portable, tg_ranks_##name##_avx2, tg_ranks_##name##_avx512},
#else
#define X(name, S, A) {tg_ranks_##name##_portable, tg_ranks_##name##_portable, tg_ranks_##name##_portable},
#endif
    static const tg_ranks_fn kernels[][3] = {TG_RANKS_LIST(X)}; /* in the order of tg_dtype */
#undef X
    return kernels[dtype - TG_F32][level > TG_CPU_AVX512 ? TG_CPU_AVX512 : level];
}
