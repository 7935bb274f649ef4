/* The kernels of reduce that compute in int64, whatever integer or bool dtype the elements have. Each compute type has
 * a file of its own (also reduce_f32.cu, reduce_f64.cu), so that the compiler can work on them at the same time. */
#include "kernels/cuda/reduce_kernels.h"

void tg::reduce_i64(const ReduceJob &job, cudaStream_t stream) { launch_reduce<int64_t>(job, stream); }
