/* Records errors of the CUDA runtime in the context. The other files of the device use these functions, which use none
 * of the other files. */
#include "base/runtime.h"
#include "kernels/cuda/cuda.h"

tg_status tg_cuda_check(tg_ctx *ctx, cudaError_t e, const char *call) {
    if (TG_LIKELY(e == cudaSuccess)) return TG_OK;
    tg_status s = e == cudaErrorMemoryAllocation ? TG_ERR_MEMORY : TG_ERR_DEVICE;
    cudaGetLastError(); /* clears the error, so that the next launch does not report it again */
    return tg_fail(ctx, s, "%s: %s (%s)", call, cudaGetErrorName(e), cudaGetErrorString(e));
}

tg_status tg_cuda_launched(tg_ctx *ctx, const char *kernel) { return tg_cuda_check(ctx, cudaGetLastError(), kernel); }
