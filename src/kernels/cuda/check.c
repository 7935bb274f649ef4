/* Records errors of the CUDA runtime in the context, and makes its GPU the current one. The other files of the device
 * use these functions, which use none of the other files. */
#include "base/runtime.h"
#include "kernels/cuda/cuda.h"

tg_status tg_cuda_check(tg_ctx *ctx, cudaError_t e, const char *call) {
    if (TG_LIKELY(e == cudaSuccess)) return TG_OK;
    tg_status s = e == cudaErrorMemoryAllocation ? TG_ERR_MEMORY : TG_ERR_DEVICE;
    cudaGetLastError(); /* clears the error, so that the next launch does not report it again */
    return tg_fail(ctx, s, "%s: %s (%s)", call, cudaGetErrorName(e), cudaGetErrorString(e));
}

tg_status tg_cuda_launched(tg_ctx *ctx, const char *kernel) { return tg_cuda_check(ctx, cudaGetLastError(), kernel); }

void tg_cuda_enter(const tg_ctx *ctx) {
    const tg_cuda *c = (const tg_cuda *)tg_ctx_device_state(ctx);
    int current = -1;
    if (!c) return; /* the device is being opened, which has made its GPU the current one */
    if (TG_LIKELY(cudaGetDevice(&current) == cudaSuccess && current == c->device)) return;
    tg_cuda_check(c->ctx, cudaSetDevice(c->device), "cudaSetDevice");
}
