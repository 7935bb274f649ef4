/* Reductions in double. */
#include "kernels/cuda/reduce_kernels.h"

void tg::reduce_f64(const ReduceJob &job, cudaStream_t stream) { launch_reduce<double>(job, stream); }
