/* Calls, from start to end. */
#include <sched.h>

#include "base/host_memory.h"
#include "base/os.h"
#include "comm/nccl/nccl.h"

/* ---- NCCL's answers ---- */

static tg_status explain(tg_nccl_group *g, ncclResult_t r, const char *call) {
    tg_status s = r == ncclRemoteError ? TG_ERR_REMOTE : TG_ERR_DEVICE;
    const char *more = ncclGetLastError(g->comm);
    return tg_fail(g->self->ctx, s, "%s, group \"%s\": %s%s%s", call, g->name, ncclGetErrorString(r),
                   more && *more ? ": " : "", more ? more : "");
}

/* Success alone says little: of a window and of a split NCCL returns it while a thread of its own goes on. */
tg_status tg_nccl_settle(tg_nccl_group *g, ncclResult_t r, const char *call) {
    if (r == ncclSuccess && g->comm) r = ncclInProgress;
    double since = r == ncclInProgress ? tg_system_now() : 0;
    while (r == ncclInProgress) {
        ncclResult_t queried = ncclCommGetAsyncError(g->comm, &r);
        if (queried != ncclSuccess) r = queried;
        if (r != ncclInProgress) break;
        TG_TRY(tg_nccl_look_at(g, tg_system_now() - since));
        sched_yield();
    }
    return r == ncclSuccess ? TG_OK : explain(g, r, call);
}

/* ---- The life of a call ---- */

static tg_status one_more(tg_nccl_rank *self) {
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

/* How many are on their way at once depends on the ranks' pace: some more than were needed so far are at hand, so that
 * a steady step never allocates. */
static tg_nccl_call *call_new(tg_nccl_group *g) {
    enum { MORE = 32 };
    tg_nccl_rank *self = g->self;
    for (int i = self->free ? MORE : 0; i < MORE; i++)
        if (one_more(self) != TG_OK) return NULL;
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

/* Forgets the request at the control once all ranks have made the call; an error says that they will not. */
static tg_status query_control(tg_nccl_call *c) {
    const tg_comm *control = c->group->control;
    tg_ctx *ctx = c->group->self->ctx;
    if (!control->ops->test(ctx, control->state, c->control)) return TG_OK;
    tg_status s = control->ops->wait(ctx, control->state, c->control);
    control->ops->drop(ctx, control->state, c->control);
    c->control = NULL;
    return s;
}

/* Whether all ranks have made the call. */
static bool has_met(tg_nccl_call *c) {
    if (c->control && query_control(c) != TG_OK) tg_nccl_abort_all(c->group->self);
    return !c->control;
}

static void finish(tg_nccl_call *c, bool done) {
    tg_nccl_group *g = c->group;
    tg_recorder_settle(g->self->recorder, c->record, done ? TG_CALL_DONE : TG_CALL_FAILED);
    c->finished = true;
    if (c->dropped) call_free(c);
}

static bool is_done(const tg_nccl_call *c) {
    return c->captured || tg_cuda_answer(cudaEventQuery(c->done)) == cudaSuccess;
}

/* Those behind many that others have yet to make are left for later. */
void tg_nccl_progress(tg_nccl_group *g) {
    enum { PATIENCE = 4 };
    int unmet = 0;
    if (g->self->progressing) return;
    g->self->progressing = true;
    for (tg_nccl_call **at = &g->first, *c; (c = *at) && (unmet < PATIENCE || g->self->failed);) {
        if (g->self->cuda->capturing && !c->captured) { /* the device cannot be asked */
            at = &c->next;
            continue;
        }
        bool met = has_met(c), over = met && (g->self->failed || (c->launched && is_done(c)));
        unmet += !met;
        if (!over) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        if (!c->next) g->end = at;
        finish(c, c->launched && !g->self->failed);
    }
    g->self->progressing = false;
}

/* ---- The slots ---- */

/* The other ranks get to know of the call, and this one of theirs: what disagrees with a call that is there already is
 * not launched. */
static tg_status meet(tg_nccl_group *g, const tg_transfer *t, tg_nccl_call *c) {
    const tg_comm *control = g->control;
    tg_transfer bare = *t;
    bare.src = bare.dst = NULL;
    if (!control || c->captured) return TG_OK; /* replays meet */
    TG_TRY(control->ops->start(g->self->ctx, control->state, &bare, &c->control));
    return query_control(c);
}

/* What is sent in place would be received over while it is sent. */
static tg_status copy_src(tg_nccl_group *g, const tg_transfer *t, tg_nccl_call *c) {
    tg_ctx *ctx = g->self->ctx;
    int64_t n = t->send ? 0 : t->count * g->size;
    for (int r = 0; t->send && r < g->size; r++) n += t->send[r];
    if (t->kind != TG_ALL_TO_ALL || t->src != t->dst || !n) return TG_OK;
    size_t bytes = (size_t)n * tg_dtype_size(t->dtype);
    TG_TRY(tg_cuda_scratch_take(ctx, bytes, &c->scratch));
    return ctx->run.ops->copy(ctx, c->scratch.data, t->src, bytes, TG_COPY_DEVICE);
}

/* One call that is in no list yet, or those of a batch (NULL), as one launch; so are the parts of a call. While NCCL
 * settles, calls before them may end and leave the list. */
static tg_status submit(tg_nccl_group *g, tg_nccl_call *one, const char *what) {
    tg_nccl_rank *self = g->self;
    TG_TRY(tg_cuda_follow(self->ctx, self->cuda->compute, self->ready, g->stream));
    ncclResult_t r = ncclGroupStart(), end = ncclSuccess;
    bool begun = r == ncclSuccess;
    for (tg_nccl_call *c = one ? one : g->first; c && (r == ncclSuccess || r == ncclInProgress); c = c->next)
        if (!c->launched) r = tg_nccl_enqueue(g, &c->transfer);
    if (begun) end = ncclGroupEnd();
    if (r == ncclSuccess || r == ncclInProgress) r = end;
    TG_TRY(tg_nccl_settle(g, r, what));
    for (tg_nccl_call *c = one ? one : g->first; c; c = c->next) {
        if (c->launched) continue;
        c->launched = true;
        TG_TRY(tg_cuda_check(self->ctx, cudaEventRecord(c->done, g->stream), "cudaEventRecord"));
    }
    return TG_OK;
}

static tg_status launch(tg_nccl_group *g, const tg_transfer *t, tg_nccl_call *c) {
    c->transfer = *t;
    if (g->batch) return TG_OK;
    TG_TRY(copy_src(g, t, c));
    if (c->scratch.data) c->transfer.src = c->scratch.data;
    return submit(g, c, tg_collective_name(t->kind));
}

static tg_status nccl_start(tg_ctx *ctx, void *state, const tg_transfer *t, void **request) {
    tg_nccl_group *g = state;
    if (g->self->failed) return tg_nccl_aborted(g);
    tg_nccl_progress(g);
    tg_nccl_call *c = ctx->run.status == TG_OK ? call_new(g) : NULL;
    if (!c) return ctx->run.status;
    c->record = t->record;
    c->entry = tg_transfer_entry(t, g->size);
    c->captured = g->self->cuda->capturing != NULL;
    tg_status s = meet(g, t, c);
    if (s == TG_OK) s = launch(g, t, c);
    if (s != TG_OK) tg_nccl_abort_all(g->self);
    *g->end = c; /* also of a failed one: what it has begun ends with the others */
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
    return c->finished || ((tg_nccl_group *)state)->self->failed;
}

/* Who reads it next, reads it on the compute stream. */
static tg_status put_in_order(tg_nccl_call *c) {
    tg_nccl_rank *self = c->group->self;
    if (c->ordered) return TG_OK;
    if (self->failed) return tg_nccl_aborted(c->group);
    if (!c->launched)
        return tg_fail(self->ctx, TG_ERR_STATE, "%s: waiting for it in an open batch; close it first",
                       tg_collective_name(c->entry.kind));
    c->ordered = true;
    return tg_cuda_check(self->ctx, cudaStreamWaitEvent(self->cuda->compute, c->done, 0), "cudaStreamWaitEvent");
}

/* The hosts meet. */
static tg_status wait_barrier(tg_nccl_group *g, tg_nccl_call *c) {
    if (!c->control) return g->control ? TG_OK : tg_cuda_await(g->self->cuda, c->done);
    tg_status s = g->control->ops->wait(g->self->ctx, g->control->state, c->control);
    if (s != TG_OK) tg_nccl_abort_all(g->self);
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
    if (!c->group->self->failed) put_in_order(c);
    tg_cuda_scratch_give(ctx, &c->scratch); /* in the order of the compute stream */
    c->dropped = true;
    if (c->finished) call_free(c);
}

static tg_status nccl_batch(tg_ctx *ctx, void *state, bool open) {
    tg_nccl_group *g = state;
    bool was_open = g->batch;
    tg_status s = TG_OK;
    g->batch = open;
    if (g->self->failed) return tg_nccl_aborted(g);
    if (was_open && !open)
        s = ctx->run.status == TG_OK ? submit(g, NULL, "a batch of sends and receives") : ctx->run.status;
    if (s != TG_OK) tg_nccl_abort_all(g->self);
    return s;
}

static void nccl_abort(tg_ctx *ctx, void *state, const char *why) {
    (void)ctx, (void)why;
    tg_nccl_abort_all(((tg_nccl_group *)state)->self);
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
