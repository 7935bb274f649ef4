/* The order between streams of the device, and the functions with which the host waits for the device. */
#ifndef TG_CUDA_STREAMS_H
#define TG_CUDA_STREAMS_H

#include "base/private_api.h"
#include "kernels/cuda/cuda.h"

/* A poller has work on the device that might never end by itself, such as collectives that wait for other GPUs. While
 * the host waits for the device, the function poll of every poller is called repeatedly with the seconds waited so far,
 * and once with -1 when the wait is over. poll advances the poller's work. If the work fails, poll ends it on the
 * device, records an error and returns it. No poller is called after that, and the wait ends with this error. What poll
 * returns for -1 is ignored. */
typedef struct tg_cuda_poller {
    tg_status (*poll)(struct tg_cuda_poller *w, double waited);
    struct tg_cuda_poller *next;
} tg_cuda_poller;

TG_PRIVATE_API void tg_cuda_poller_add(tg_cuda *c, tg_cuda_poller *w);
TG_PRIVATE_API void tg_cuda_poller_remove(tg_cuda *c, tg_cuda_poller *w);

/* Returns e, the result of a query. If it is cudaErrorNotReady, clears the runtime's last error, which would be taken
 * for an error of the next launch. */
static inline cudaError_t tg_cuda_answer(cudaError_t e) {
    if (e == cudaErrorNotReady) cudaGetLastError();
    return e;
}

/* Make the host wait for an event, or for what is queued on a stream now, and poll meanwhile. If a poller fails, they
 * wait up to 5 more seconds and return its error; the event may then not have been reached. Other functions wait
 * without polling before memory returns to the driver, before the device closes, after an error in slot copy_async, and
 * after NCCL was aborted. */
TG_PRIVATE_API tg_status tg_cuda_await(tg_cuda *c, cudaEvent_t e);
TG_PRIVATE_API tg_status tg_cuda_await_stream(tg_cuda *c, cudaStream_t stream);

TG_PRIVATE_API tg_status tg_cuda_event_new(tg_ctx *ctx, cudaEvent_t *e);
/* Makes work that is queued on `then` from now on wait for what is queued on `first` now. Records event e. */
TG_PRIVATE_API tg_status tg_cuda_follow(tg_ctx *ctx, cudaStream_t first, cudaEvent_t e, cudaStream_t then);

/* Slots of the device (tapegrad/device.h). */
tg_status tg_cuda_sync(tg_ctx *ctx);
tg_status tg_cuda_event_record(tg_ctx *ctx, void **event);
tg_status tg_cuda_event_wait(tg_ctx *ctx, void *event);
void tg_cuda_event_free(tg_ctx *ctx, void *event);
bool tg_cuda_event_test(tg_ctx *ctx, void *event);
tg_status tg_cuda_event_await(tg_ctx *ctx, void *event);

#endif
