/* Element-wise kernels in int64. */
#include "kernels/cuda/map_kernels.h"

void tg::map_i64(const MapJob &job, cudaStream_t stream) { launch_map<int64_t>(job, stream); }
