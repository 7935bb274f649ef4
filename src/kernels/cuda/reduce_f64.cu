/* The kernels of reduce that compute in double (reduce.h). */
#include "kernels/cuda/reduce_kernels.h"

void tg::reduce_f64(const ReduceJob &job, cudaStream_t stream) { launch_reduce<double>(job, stream); }
