/* Opens and closes the CUDA device of a context, and defines tg_cuda_device, the table of the functions that this
 * device provides. No other file of this folder calls this one. */
#include "base/memory/host_memory.h"
#include "base/runtime.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/graphs.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/streams.h"
#include "kernels/cuda/gemm_plans.h"
#include "kernels/cuda/slots.h"
#include "kernels/cuda/device_table.h"

/* Finds the number of the GPU: for "cuda" the thread's current GPU, for "cuda:2" the third. */
static tg_status choose(tg_ctx *ctx, int *device) {
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e == cudaErrorInsufficientDriver)
        return tg_fail(ctx, TG_ERR_DEVICE,
                       "device \"cuda\": there is no NVIDIA driver here, or it is too old for CUDA %d.%d; "
                       "device \"cpu\" needs none",
                       CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    if (e == cudaErrorNoDevice || (e == cudaSuccess && n == 0))
        return tg_fail(ctx, TG_ERR_DEVICE, "device \"cuda\": the driver finds no GPU; device \"cpu\" needs none");
    TG_TRY(tg_cuda_check(ctx, e, "cudaGetDeviceCount"));
    if (tg_runtime_of(ctx)->device_index < 0) return tg_cuda_check(ctx, cudaGetDevice(device), "cudaGetDevice");
    if (tg_runtime_of(ctx)->device_index >= n)
        return tg_fail(ctx, TG_ERR_DEVICE, "device \"cuda:%d\": the driver finds %d GPU%s; the first is \"cuda:0\"",
                       tg_runtime_of(ctx)->device_index, n, n == 1 ? "" : "s");
    *device = tg_runtime_of(ctx)->device_index;
    return TG_OK;
}

static tg_status open_device(tg_cuda *c) {
    tg_ctx *ctx = c->ctx;
    TG_TRY(choose(ctx, &c->device));
    tg_runtime_of(ctx)->device_index = c->device;
    TG_TRY(tg_cuda_check(ctx, cudaSetDevice(c->device), "cudaSetDevice"));
    TG_TRY(
        tg_cuda_check(ctx, cudaStreamCreateWithFlags(&c->compute, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"));
    TG_TRY(
        tg_cuda_check(ctx, cudaStreamCreateWithFlags(&c->copy, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"));
    TG_TRY(tg_cuda_event_new(ctx, &c->reached));
    TG_TRY(tg_cuda_event_new(ctx, &c->queued));
    TG_TRY(tg_cuda_memory_open(c));
    return tg_cuda_plans_open(c);
}

static void cuda_close(tg_ctx *ctx, void *dev) {
    tg_cuda *c = dev;
    if (!c) return;
    if (c->compute) { /* without it nothing was made, and c->device may not have been chosen */
        cudaSetDevice(c->device);
        cudaStreamSynchronize(c->compute);
    }
    if (c->copy) cudaStreamSynchronize(c->copy);
    tg_cuda_plans_close(c);
    tg_cuda_memory_close(c);
    if (c->reached) cudaEventDestroy(c->reached);
    if (c->queued) cudaEventDestroy(c->queued);
    if (c->copy) cudaStreamDestroy(c->copy);
    if (c->compute) cudaStreamDestroy(c->compute);
    cudaGetLastError(); /* errors of these calls are ignored */
    tg_host_free(ctx, c, sizeof *c);
}

static tg_status cuda_open(tg_ctx *ctx, void **dev) {
    tg_cuda *c = tg_host_alloc(ctx, sizeof *c);
    if (!c) return tg_runtime_of(ctx)->status;
    c->ctx = ctx;
    tg_status s = open_device(c);
    if (s == TG_OK)
        *dev = c;
    else
        cuda_close(ctx, c);
    return s;
}

const tg_device_ops tg_cuda_device = {
    .size = sizeof(tg_device_ops),
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .alloc = tg_cuda_alloc,
    .free = tg_cuda_free,
    .copy = tg_cuda_copy,
    .sync = tg_cuda_sync,
    .event_record = tg_cuda_event_record,
    .event_wait = tg_cuda_event_wait,
    .event_free = tg_cuda_event_free,
    .poll = tg_cuda_poll,
    .fault_sum = tg_cuda_fault_sum,
    .capture_begin = tg_cuda_capture_begin,
    .capture_end = tg_cuda_capture_end,
    .capture_launch = tg_cuda_capture_launch,
    .capture_free = tg_cuda_capture_free,
    .host_alloc = tg_cuda_host_alloc,
    .host_free = tg_cuda_host_free,
    .copy_async = tg_cuda_copy_async,
    .event_test = tg_cuda_event_test,
    .event_await = tg_cuda_event_await,
    .apply = tg_cuda_map,
    .fill = tg_cuda_fill,
    .iota = tg_cuda_iota,
    .reduce = tg_cuda_reduce,
    .gemm = tg_cuda_gemm,
    .take = tg_cuda_take,
    .put_add = tg_cuda_put_add,
    .random = tg_cuda_random,
    .softmax = tg_cuda_softmax,
    .softmax_grad = tg_cuda_softmax_grad,
    .norm = tg_cuda_norm,
    .norm_grad = tg_cuda_norm_grad,
    .cross_entropy = tg_cuda_cross_entropy,
    .cross_entropy_grad = tg_cuda_cross_entropy_grad,
    .attention = tg_cuda_attention,
    .attention_grad = tg_cuda_attention_grad,
    .dropout = tg_cuda_dropout,
    .scan = tg_cuda_scan,
    .sort = tg_cuda_sort,
    .put = tg_cuda_put,
    .prepare = tg_cuda_prepare,
    .adamw = tg_cuda_adamw,
};
