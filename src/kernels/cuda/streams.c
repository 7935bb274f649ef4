/* Orders streams by events, and makes the host wait for the device. */
#define _GNU_SOURCE
#include <sched.h>
#include <time.h>

#include "base/recording.h"
#include "base/runtime.h"
#include "base/os.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/streams.h"

/* ---- Waiting ---- */

/* Lets other threads run between two polls: yields at first, then sleeps for 50 microseconds. */
static void rest(int round) {
    enum { YIELDS = 1000 };
    struct timespec nap = {.tv_nsec = 50000};
    if (round < YIELDS)
        sched_yield();
    else
        nanosleep(&nap, NULL);
}

/* Calls all pollers, until one fails. A poller may remove itself from the list meanwhile. */
static tg_status poll_all(tg_cuda *c, double waited) {
    for (tg_cuda_poller *w = c->pollers, *next; w; w = next) {
        next = w->next;
        TG_TRY(w->poll(w, waited));
    }
    return TG_OK;
}

/* Called after a poller has failed and ended its own work on the device. Waits up to 5 seconds for the other queued
 * work, which may still read or write the host's memory. */
static void drain(cudaEvent_t e) {
    const double patience = 5;
    double since = tg_system_now();
    for (int i = 0; tg_cuda_answer(cudaEventQuery(e)) == cudaErrorNotReady && tg_system_now() - since < patience; i++)
        rest(i);
}

/* Waits for e and polls meanwhile. Pollers run once more, with -1, when e has been reached or its query has failed. */
static tg_status await_and_poll(tg_cuda *c, cudaEvent_t e) {
    double since = tg_system_now();
    tg_status s = TG_OK;
    for (int round = 0; s == TG_OK; round++) {
        cudaError_t answer = tg_cuda_answer(cudaEventQuery(e));
        if (answer != cudaErrorNotReady) {
            s = tg_cuda_check(c->ctx, answer, "cudaEventQuery");
            poll_all(c, -1);
            return s;
        }
        s = poll_all(c, tg_system_now() - since);
        rest(round);
    }
    drain(e);
    return s;
}

tg_status tg_cuda_await(tg_cuda *c, cudaEvent_t e) {
    if (c->pollers) return await_and_poll(c, e);
    return tg_cuda_check(c->ctx, cudaEventSynchronize(e), "cudaEventSynchronize");
}

tg_status tg_cuda_await_stream(tg_cuda *c, cudaStream_t stream) {
    TG_TRY(tg_cuda_check(c->ctx, cudaEventRecord(c->reached, stream), "cudaEventRecord"));
    return tg_cuda_await(c, c->reached);
}

void tg_cuda_poller_add(tg_cuda *c, tg_cuda_poller *w) {
    w->next = c->pollers;
    c->pollers = w;
}

void tg_cuda_poller_remove(tg_cuda *c, tg_cuda_poller *w) {
    for (tg_cuda_poller **at = &c->pollers; *at; at = &(*at)->next)
        if (*at == w) {
            *at = w->next;
            return;
        }
}

/* ---- Events ---- */

tg_status tg_cuda_event_new(tg_ctx *ctx, cudaEvent_t *e) {
    tg_cuda_enter(ctx);
    return tg_cuda_check(ctx, cudaEventCreateWithFlags(e, cudaEventDisableTiming), "cudaEventCreateWithFlags");
}

tg_status tg_cuda_follow(tg_ctx *ctx, cudaStream_t first, cudaEvent_t e, cudaStream_t then) {
    TG_TRY(tg_cuda_check(ctx, cudaEventRecord(e, first), "cudaEventRecord"));
    return tg_cuda_check(ctx, cudaStreamWaitEvent(then, e, 0), "cudaStreamWaitEvent");
}

/* ---- The slots ---- */

tg_status tg_cuda_sync(tg_ctx *ctx) {
    tg_cuda *c = tg_cuda_of(ctx);
    TG_TRY(tg_recording_refuse(ctx, NULL, TG_RECORDING_WAIT, NULL));
    TG_TRY(tg_cuda_fault_fetch(c));
    TG_TRY(tg_cuda_await(c, c->fetched));
    return tg_cuda_fault_report(c);
}

tg_status tg_cuda_event_record(tg_ctx *ctx, void **event) {
    if (!*event) {
        cudaEvent_t e;
        TG_TRY(tg_cuda_event_new(ctx, &e));
        *event = e;
    }
    return tg_cuda_check(ctx, cudaEventRecord(*event, tg_cuda_of(ctx)->compute), "cudaEventRecord");
}

tg_status tg_cuda_event_wait(tg_ctx *ctx, void *event) {
    return tg_cuda_check(ctx, cudaStreamWaitEvent(tg_cuda_of(ctx)->compute, event, 0), "cudaStreamWaitEvent");
}

void tg_cuda_event_free(tg_ctx *ctx, void *event) {
    (void)ctx;
    if (event) cudaEventDestroy(event);
}

bool tg_cuda_event_test(tg_ctx *ctx, void *event) {
    (void)ctx;
    return tg_cuda_answer(cudaEventQuery(event)) != cudaErrorNotReady;
}

tg_status tg_cuda_event_await(tg_ctx *ctx, void *event) {
    TG_TRY(tg_recording_refuse(ctx, NULL, TG_RECORDING_WAIT, NULL));
    return tg_cuda_await(tg_cuda_of(ctx), event);
}
