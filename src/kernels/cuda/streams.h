/* Order on the device, and the host's waits for it. */
#ifndef TG_CUDA_ORDER_H
#define TG_CUDA_ORDER_H

#include "kernels/cuda/cuda.h"

/* Somebody whose calls may keep the device from ever coming to an end, as those do that wait for other GPUs. look is
 * called again and again while the host waits for the device, with the seconds that it has waited, and once with -1
 * when that is over: it helps along, and answers with the error that it has recorded, after which nothing of its own
 * waits on the device any more. */
typedef struct tg_cuda_watch {
    tg_status (*look)(struct tg_cuda_watch *w, double waited);
    struct tg_cuda_watch *next;
} tg_cuda_watch;

void tg_cuda_watch_begin(tg_cuda *c, tg_cuda_watch *w);
void tg_cuda_watch_end(tg_cuda *c, tg_cuda_watch *w);

/* What a query has answered. "Not ready" is no error, and must not stay the runtime's last one, for which the next
 * launch would be blamed. */
static inline cudaError_t tg_cuda_answer(cudaError_t e) {
    if (e == cudaErrorNotReady) cudaGetLastError();
    return e;
}

/* All waits of the host are one of these. */
tg_status tg_cuda_await(tg_cuda *c, cudaEvent_t e);
tg_status tg_cuda_await_stream(tg_cuda *c, cudaStream_t stream); /* for what is queued there now */

tg_status tg_cuda_event_new(tg_ctx *ctx, cudaEvent_t *e);
/* What is queued on `then` from now on comes after what is queued on `first` now; by event e. */
tg_status tg_cuda_follow(tg_ctx *ctx, cudaStream_t first, cudaEvent_t e, cudaStream_t then);

/* Slots of the device */
tg_status tg_cuda_sync(tg_ctx *ctx);
tg_status tg_cuda_event_record(tg_ctx *ctx, void **event);
tg_status tg_cuda_event_wait(tg_ctx *ctx, void *event);
void tg_cuda_event_free(tg_ctx *ctx, void *event);
bool tg_cuda_event_test(tg_ctx *ctx, void *event);
tg_status tg_cuda_event_await(tg_ctx *ctx, void *event);

#endif
