/* Reductions in int64. */
#include "kernels/cuda/reduce_kernels.h"

void tg::reduce_i64(const ReduceJob &job, cudaStream_t stream) { launch_reduce<int64_t>(job, stream); }
