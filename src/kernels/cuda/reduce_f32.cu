/* The kernels of reduce that compute in float (reduce.h). */
#include "kernels/cuda/reduce_kernels.h"

void tg::reduce_f32(const ReduceJob &job, cudaStream_t stream) { launch_reduce<float>(job, stream); }
