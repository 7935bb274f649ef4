/* Products as cuBLASLt wants them described, kept by shape. */
#ifndef TG_CUDA_PLANS_H
#define TG_CUDA_PLANS_H

#include "kernels/cuda/cuda.h"

tg_status tg_cuda_plans_open(tg_cuda *c);
void tg_cuda_plans_close(tg_cuda *c);

#endif
