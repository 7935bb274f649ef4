/* Ordering on the device, and the host's waits for it. */
#ifndef TG_CUDA_ORDER_H
#define TG_CUDA_ORDER_H

#include "kernels/cuda/cuda.h"

/* An observer whose calls may keep the device from finishing, such as those that wait for other GPUs. poll is called
 * repeatedly while the host waits for the device, with the seconds waited so far, and once with -1 when the wait is
 * over. It makes progress on its calls and returns the error that it has recorded, after which nothing of its own
 * waits on the device any more. */
typedef struct tg_cuda_poller {
    tg_status (*poll)(struct tg_cuda_poller *w, double waited);
    struct tg_cuda_poller *next;
} tg_cuda_poller;

void tg_cuda_poller_add(tg_cuda *c, tg_cuda_poller *w);
void tg_cuda_poller_remove(tg_cuda *c, tg_cuda_poller *w);

/* The result of a query. "Not ready" is no error and must not stay the runtime's last error, for which the next
 * launch would be blamed. */
static inline cudaError_t tg_cuda_answer(cudaError_t e) {
    if (e == cudaErrorNotReady) cudaGetLastError();
    return e;
}

/* Every wait of the host is one of these. */
tg_status tg_cuda_await(tg_cuda *c, cudaEvent_t e);
tg_status tg_cuda_await_stream(tg_cuda *c, cudaStream_t stream); /* for what is queued there now */

tg_status tg_cuda_event_new(tg_ctx *ctx, cudaEvent_t *e);
/* Work queued on `then` from now on follows what is queued on `first` now; uses event e. */
tg_status tg_cuda_follow(tg_ctx *ctx, cudaStream_t first, cudaEvent_t e, cudaStream_t then);

/* Slots of the device. */
tg_status tg_cuda_sync(tg_ctx *ctx);
tg_status tg_cuda_event_record(tg_ctx *ctx, void **event);
tg_status tg_cuda_event_wait(tg_ctx *ctx, void *event);
void tg_cuda_event_free(tg_ctx *ctx, void *event);
bool tg_cuda_event_test(tg_ctx *ctx, void *event);
tg_status tg_cuda_event_await(tg_ctx *ctx, void *event);

#endif
