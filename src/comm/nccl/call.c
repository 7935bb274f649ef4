/* The calls of the NCCL transport from start to end, and the transport's table of functions. */
#include <sched.h>

#include "base/memory/host_memory.h"
#include "base/os.h"
#include "comm/nccl/nccl.h"

/* ---- NCCL's results ---- */

/* Records an error of NCCL's function `call`. */
static tg_status explain(tg_nccl_group *g, ncclResult_t r, const char *call) {
    tg_status s = r == ncclRemoteError ? TG_ERR_REMOTE : TG_ERR_DEVICE;
    const char *more = ncclGetLastError(g->comm);
    return tg_fail(g->self->ctx, s, "%s, group \"%s\": %s%s%s", call, g->name, ncclGetErrorString(r),
                   more && *more ? ": " : "", more ? more : "");
}

/* Fails because the deadline has passed while this rank waited for NCCL in `call`. */
static tg_status pass_deadline(tg_nccl_group *g, const char *call) {
    return tg_fail(g->self->ctx, TG_ERR_TIMEOUT,
                   "the deadline of %g s has passed in %s of group \"%s\": NCCL waits for its other ranks, which have "
                   "not all made this call",
                   g->self->ctx->run.deadline, call, g->name);
}

/* Asks NCCL even if r is ncclSuccess, because ncclCommWindowRegister and ncclCommSplit return ncclSuccess while a
 * thread of NCCL still works. */
tg_status tg_nccl_await(tg_nccl_group *g, ncclResult_t r, const char *call) {
    if (r == ncclSuccess && g->comm) r = ncclInProgress;
    double since = r == ncclInProgress ? tg_system_now() : 0;
    bool polled = false;
    while (r == ncclInProgress) {
        ncclResult_t queried = ncclCommGetAsyncError(g->comm, &r);
        if (queried != ncclSuccess) r = queried;
        if (r != ncclInProgress) break;
        double waited = tg_system_now() - since;
        TG_TRY(tg_nccl_poll_group(g, waited));
        polled = true;
        if (waited > g->self->ctx->run.deadline) return pass_deadline(g, call);
        sched_yield();
    }
    if (polled) tg_nccl_poll_group(g, -1);
    return r == ncclSuccess ? TG_OK : explain(g, r, call);
}

/* ---- The life of a call ---- */

/* Allocates one more free call. */
static tg_status call_alloc(tg_nccl_rank *self) {
    tg_nccl_call *c = tg_host_alloc(self->ctx, sizeof *c);
    if (!c) return self->ctx->run.status;
    if (tg_cuda_event_new(self->ctx, &c->done) != TG_OK) {
        tg_host_free(self->ctx, c, sizeof *c);
        return self->ctx->run.status;
    }
    c->next = self->free;
    self->free = c;
    return TG_OK;
}

/* Takes a free call. If there is none, allocates more than are needed now, so that a training loop soon stops
 * allocating, although the number of calls in flight depends on how fast the peers are. */
static tg_nccl_call *call_new(tg_nccl_group *g) {
    enum { MORE = 32 };
    tg_nccl_rank *self = g->self;
    for (int i = self->free ? MORE : 0; i < MORE; i++)
        if (call_alloc(self) != TG_OK) return NULL;
    tg_nccl_call *c = self->free;
    self->free = c->next;
    *c = (tg_nccl_call){.group = g, .done = c->done};
    return c;
}

static void call_free(tg_nccl_call *c) {
    tg_nccl_rank *self = c->group->self;
    c->next = self->free;
    self->free = c;
}

void tg_nccl_calls_free(tg_nccl_rank *self) {
    for (tg_nccl_call *c = self->free, *next; c; c = next) {
        next = c->next;
        cudaEventDestroy(c->done);
        tg_host_free(self->ctx, c, sizeof *c);
    }
    self->free = NULL;
}

/* Drops the call's request on the host communicator if that request has ended. It ends when all ranks have made the
 * call, or with an error if they never will. */
static tg_status query_host(tg_nccl_call *c) {
    const tg_comm *host = c->group->host;
    tg_ctx *ctx = c->group->self->ctx;
    if (!host->ops->test(ctx, host->state, c->host_request)) return TG_OK;
    tg_status s = host->ops->wait(ctx, host->state, c->host_request);
    host->ops->drop(ctx, host->state, c->host_request);
    c->host_request = NULL;
    return s;
}

/* Returns true if all ranks have made the call, or if they never will. In the second case first aborts all
 * communicators of this rank. */
static bool all_have_called(tg_nccl_call *c) {
    if (c->host_request && query_host(c) != TG_OK) tg_nccl_abort_all(c->group->self, NULL);
    return !c->host_request;
}

/* Ends a call that has been removed from the list. done: the call has succeeded. */
static void finish(tg_nccl_call *c, bool done) {
    tg_nccl_group *g = c->group;
    tg_recorder_finish(g->self->recorder, c->record, done);
    c->finished = true;
    if (c->dropped) call_free(c);
}

/* Returns whether NCCL has finished the call. A captured call counts as finished. */
static bool is_done(const tg_nccl_call *c) {
    return c->captured || tg_cuda_answer(cudaEventQuery(c->done)) == cudaSuccess;
}

/* Unless the communicators are aborted, stops after four calls that other ranks have yet to make, because later calls
 * can hardly be done before these. */
void tg_nccl_progress(tg_nccl_group *g) {
    enum { MOST_AWAITED = 4 };
    int awaited = 0;
    if (g->self->progressing) return;
    g->self->progressing = true;
    for (tg_nccl_call **at = &g->first, *c; (c = *at) && (awaited < MOST_AWAITED || g->self->aborted);) {
        if (g->self->cuda->capturing && !c->captured) { /* a query is not allowed during capture */
            at = &c->next;
            continue;
        }
        bool called = all_have_called(c), ended = called && (g->self->aborted || (c->launched && is_done(c)));
        awaited += !called;
        if (!ended) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        if (!c->next) g->end = at;
        finish(c, c->launched && !g->self->aborted);
    }
    g->self->progressing = false;
}

/* ---- The transport's table ---- */

/* Starts the call on the host communicator, without data. Fails if the call disagrees with that of a rank that has made
 * it already; the call is then not launched. Calls of a captured step are compared when the step is replayed. */
static tg_status start_on_host(tg_nccl_group *g, const tg_transfer *t, tg_nccl_call *c) {
    const tg_comm *host = g->host;
    tg_transfer bare = *t;
    bare.src = bare.dst = NULL;
    if (!host || c->captured) return TG_OK;
    TG_TRY(host->ops->start(g->self->ctx, host->state, &bare, &c->host_request));
    return query_host(c);
}

/* If the call is an all-to-all in place, copies its src, because the received parts overwrite src while it is sent. */
static tg_status copy_src(tg_nccl_group *g, const tg_transfer *t, tg_nccl_call *c) {
    tg_ctx *ctx = g->self->ctx;
    int64_t n = t->send ? 0 : t->count * g->control.size;
    for (int r = 0; t->send && r < g->control.size; r++) n += t->send[r];
    if (t->kind != TG_ALL_TO_ALL || t->src != t->dst || !n) return TG_OK;
    size_t bytes = (size_t)n * tg_dtype_size(t->dtype);
    TG_TRY(tg_cuda_scratch_take(ctx, bytes, &c->scratch));
    return ctx->run.ops->copy(ctx, c->scratch.data, t->src, bytes, TG_COPY_DEVICE);
}

/* Launches call `one`, which is in no list yet, or all calls of the batch if `one` is NULL. Does so between
 * ncclGroupStart and ncclGroupEnd. While this rank waits for NCCL, older calls may end and leave the list. */
static tg_status submit(tg_nccl_group *g, tg_nccl_call *one, const char *what) {
    tg_nccl_rank *self = g->self;
    TG_TRY(tg_cuda_follow(self->ctx, self->cuda->compute, self->ready, g->stream));
    ncclResult_t r = ncclGroupStart(), end = ncclSuccess;
    bool begun = r == ncclSuccess;
    for (tg_nccl_call *c = one ? one : g->first; c && (r == ncclSuccess || r == ncclInProgress); c = c->next)
        if (!c->launched) r = tg_nccl_enqueue(g, &c->transfer);
    if (begun) end = ncclGroupEnd();
    if (r == ncclSuccess || r == ncclInProgress) r = end;
    TG_TRY(tg_nccl_await(g, r, what));
    for (tg_nccl_call *c = one ? one : g->first; c; c = c->next) {
        if (c->launched) continue;
        c->launched = true;
        TG_TRY(tg_cuda_check(self->ctx, cudaEventRecord(c->done, g->stream), "cudaEventRecord"));
    }
    return TG_OK;
}

/* Launches the call now, or leaves it to the end of the open batch. */
static tg_status launch(tg_nccl_group *g, const tg_transfer *t, tg_nccl_call *c) {
    c->transfer = *t;
    if (g->batch) return TG_OK;
    TG_TRY(copy_src(g, t, c));
    if (c->scratch.data) c->transfer.src = c->scratch.data;
    return submit(g, c, tg_collective_name(t->kind));
}

/* Fails if NCCL has no arithmetic for the dtype of a reduction. */
static tg_status check_reduction(tg_ctx *ctx, const tg_transfer *t) {
    bool reduces = t->kind == TG_ALL_REDUCE || t->kind == TG_REDUCE_SCATTER;
    if (!reduces || (t->dtype != TG_I16 && t->dtype != TG_U16)) return TG_OK;
    return tg_fail(ctx, TG_ERR_UNSUPPORTED, "%s: NCCL does not reduce %s; cast to i32 first (tg_cast)",
                   tg_collective_name(t->kind), tg_dtype_name(t->dtype));
}

static tg_status nccl_start(tg_ctx *ctx, void *state, const tg_transfer *t, void **request) {
    tg_nccl_group *g = state;
    if (g->self->aborted) return tg_control_failed(&g->control, false);
    TG_TRY(check_reduction(ctx, t));
    tg_nccl_progress(g);
    tg_nccl_call *c = ctx->run.status == TG_OK ? call_new(g) : NULL;
    if (!c) return ctx->run.status;
    c->record = t->record;
    c->entry = tg_transfer_entry(t, g->control.size);
    c->entry.sequence = g->sequence + 1;
    c->captured = g->self->cuda->capturing != NULL;
    if (!c->captured && t->kind != TG_SEND && t->kind != TG_RECV) g->sequence++;
    tg_status s = start_on_host(g, t, c);
    if (s == TG_OK) s = launch(g, t, c);
    if (s != TG_OK) tg_nccl_abort_all(g->self, NULL);
    *g->end = c; /* also after a failure: the call may have begun, and ends with the other calls */
    g->end = &c->next;
    if (s != TG_OK) {
        c->dropped = true;
        tg_cuda_scratch_give(ctx, &c->scratch);
        tg_nccl_progress(g);
        return s;
    }
    *request = c;
    return TG_OK;
}

static bool nccl_test(tg_ctx *ctx, void *state, void *request) {
    (void)ctx;
    tg_nccl_call *c = request;
    if (!c->finished) tg_nccl_progress(state);
    return c->finished || ((tg_nccl_group *)state)->self->aborted;
}

/* Makes the compute stream, which reads the result, wait for the call. */
static tg_status put_in_order(tg_nccl_call *c) {
    tg_nccl_rank *self = c->group->self;
    if (c->ordered) return TG_OK;
    if (self->aborted) return tg_control_failed(&c->group->control, true);
    if (!c->launched)
        return tg_fail(self->ctx, TG_ERR_STATE,
                       "%s: its result is waited for while its batch is open; call tg_comm_batch_close first",
                       tg_collective_name(c->entry.kind));
    c->ordered = true;
    return tg_cuda_check(self->ctx, cudaStreamWaitEvent(self->cuda->compute, c->done, 0), "cudaStreamWaitEvent");
}

/* Waits on the host until all ranks have arrived at the barrier. */
static tg_status wait_barrier(tg_nccl_group *g, tg_nccl_call *c) {
    if (!c->host_request) return g->host ? TG_OK : tg_cuda_await(g->self->cuda, c->done);
    tg_status s = g->host->ops->wait(g->self->ctx, g->host->state, c->host_request);
    if (s != TG_OK) tg_nccl_abort_all(g->self, NULL);
    return s;
}

static tg_status nccl_wait(tg_ctx *ctx, void *state, void *request) {
    (void)ctx;
    tg_nccl_call *c = request;
    TG_TRY(put_in_order(c));
    return c->entry.kind == TG_BARRIER ? wait_barrier(state, c) : TG_OK;
}

static void nccl_drop(tg_ctx *ctx, void *state, void *request) {
    (void)state;
    tg_nccl_call *c = request;
    if (!c->group->self->aborted) put_in_order(c);
    /* The call may still be running. Its copy of src can be given back already, because the next use of that memory is
     * queued on the compute stream, which waits for the call. */
    tg_cuda_scratch_give(ctx, &c->scratch);
    c->dropped = true;
    if (c->finished) call_free(c);
}

/* Opens a batch, or closes it and launches its calls. */
static tg_status nccl_batch(tg_ctx *ctx, void *state, bool open) {
    tg_nccl_group *g = state;
    bool was_open = g->batch;
    tg_status s = TG_OK;
    g->batch = open;
    if (g->self->aborted) return tg_control_failed(&g->control, false);
    if (was_open && !open)
        s = ctx->run.status == TG_OK ? submit(g, NULL, "a batch of sends and receives") : ctx->run.status;
    if (s != TG_OK) tg_nccl_abort_all(g->self, NULL);
    return s;
}

static void nccl_abort(tg_ctx *ctx, void *state, const char *why) {
    (void)ctx;
    tg_nccl_abort_all(((tg_nccl_group *)state)->self, why);
}

const tg_comm_ops tg_nccl_transport = {
    .size = sizeof(tg_comm_ops),
    .name = "nccl",
    .queued = true,
    .start = nccl_start,
    .test = nccl_test,
    .wait = nccl_wait,
    .drop = nccl_drop,
    .split = tg_nccl_split,
    .close = tg_nccl_close,
    .batch = nccl_batch,
    .abort = nccl_abort,
    .recover = tg_nccl_recover,
    .window_alloc = tg_nccl_window_alloc,
    .window_join = tg_nccl_window_join,
    .window_free = tg_nccl_window_free,
};
