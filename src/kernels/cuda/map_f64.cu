/* The element-wise kernels that compute in double (map_kernels.h). */
#include "kernels/cuda/map_kernels.h"

void tg::map_f64(const MapJob &job, cudaStream_t stream) { launch_map<double>(job, stream); }
