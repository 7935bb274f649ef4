/* The element-wise kernels that compute in int64 (map_kernels.h). */
#include "kernels/cuda/map_kernels.h"

void tg::map_i64(const MapJob &job, cudaStream_t stream) { launch_map<int64_t>(job, stream); }
