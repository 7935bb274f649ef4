/* Selects the reduction kernel of collectives by instruction set and dtype. */
#include "kernels/cpu/rank_sums.h"

tg_ranks_fn tg_ranks_kernel(tg_cpu_level_t level, tg_dtype dtype) {
#if defined(__x86_64__)
#define TG_X(name, S, A) {tg_ranks_##name##_portable, tg_ranks_##name##_avx2, tg_ranks_##name##_avx512},
#else
#define TG_X(name, S, A) {tg_ranks_##name##_portable, tg_ranks_##name##_portable, tg_ranks_##name##_portable},
#endif
    static const tg_ranks_fn kernels[][3] = {TG_RANKS_LIST(TG_X)};
#undef TG_X
    return kernels[dtype - TG_F32][level > TG_CPU_AVX512 ? TG_CPU_AVX512 : level];
}
