/* The element-wise kernels that compute in float (map_kernels.h). */
#include "kernels/cuda/map_kernels.h"

void tg::map_f32(const MapJob &job, cudaStream_t stream) { launch_map<float>(job, stream); }
