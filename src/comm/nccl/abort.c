/* Calls that cannot be finished: looking after them while the host waits, and the end of all communicators. */
#include <sched.h>
#include <stdio.h>
#include <time.h>

#include "base/os.h"
#include "comm/nccl/nccl.h"

/* ---- Abort ---- */

tg_status tg_nccl_aborted(tg_nccl_group *g) {
    return tg_fail(g->self->ctx, TG_ERR_ABORTED, "group \"%s\" was aborted; tg_comm_recover begins anew", g->name);
}

/* What NCCL has left undone ends now: its memory may be used again after that. */
static void drain(tg_nccl_group *g) {
    const double patience = 5;
    double since = tg_system_now();
    while (g->stream && tg_cuda_answer(cudaStreamQuery(g->stream)) == cudaErrorNotReady &&
           tg_system_now() - since < patience)
        sched_yield();
}

/* In one group of calls, which marks each and then waits for all: the kernel that one waits for may stand behind that
 * of another, which ends when it is marked. */
static void abort_communicators(tg_nccl_rank *self) {
    ncclGroupStart();
    for (tg_nccl_group *g = self->groups; g; g = g->next) {
        ncclComm_t comm = g->comm;
        g->comm = NULL;
        tg_nccl_windows_end(g); /* NCCL forgets them with the communicator */
        if (comm) ncclCommAbort(comm);
    }
    ncclGroupEnd();
    for (tg_nccl_group *g = self->groups; g; g = g->next) drain(g);
}

void tg_nccl_abort_end(tg_nccl_rank *self) {
    if (!self->failed || self->cuda->capturing) return;
    tg_replays_end_all(self->ctx, &tg_nccl_transport);
    abort_communicators(self);
}

void tg_nccl_abort_all(tg_nccl_rank *self) {
    if (self->failed) return;
    self->failed = true;
    for (tg_nccl_group *g = self->groups; g; g = g->next) {
        const tg_comm *control = g->control;
        if (control && control->ops->abort) control->ops->abort(self->ctx, control->state, self->ctx->run.message);
    }
    tg_nccl_abort_end(self);
}

/* ---- Looking ---- */

static const tg_nccl_call *oldest(const tg_nccl_group *g) {
    for (const tg_nccl_call *c = g->first; c; c = c->next)
        if (c->launched) return c;
    return NULL;
}

static tg_status pass_deadline(tg_nccl_group *g, double waited) {
    char call[96], site[192];
    size_t at = 0;
    const tg_nccl_call *c = oldest(g);
    if (!c)
        return tg_fail(g->self->ctx, TG_ERR_TIMEOUT,
                       "the deadline of %g s has passed while group \"%s\" waited for its other ranks to join",
                       g->self->ctx->run.deadline, g->name);
    tg_call_entry_text(&c->entry, call, sizeof call, &at);
    tg_describe_site((const void *)(uintptr_t)c->entry.site, site, sizeof site);
    return tg_fail(g->self->ctx, TG_ERR_TIMEOUT,
                   "the deadline of %g s has passed after %.1f s in %s of group \"%s\", from %s; %s, and the GPUs "
                   "have not finished it",
                   g->self->ctx->run.deadline, waited, call, g->name, site,
                   c->control ? "not all ranks have called it" : "this rank has called it");
}

static tg_status look_at_nccl(tg_nccl_group *g) {
    ncclResult_t state = ncclSuccess, r = g->comm ? ncclCommGetAsyncError(g->comm, &state) : ncclSuccess;
    if (r == ncclSuccess) r = state;
    if (r == ncclSuccess || r == ncclInProgress) return TG_OK;
    return tg_fail(g->self->ctx, r == ncclRemoteError ? TG_ERR_REMOTE : TG_ERR_DEVICE, "group \"%s\": %s: %s", g->name,
                   ncclGetErrorString(r), ncclGetLastError(g->comm));
}

/* The first call that other ranks have yet to make and that the compute stream waits for: what is called, and not
 * waited for, keeps nobody. NULL: none. */
static const tg_nccl_call *awaited(const tg_nccl_group *g) {
    const tg_nccl_call *first = NULL;
    for (const tg_nccl_call *c = g->first; c; c = c->next) {
        if (!first && c->control) first = c;
        if (first && c->ordered) return first; /* itself, or one behind it on the group's stream */
    }
    return NULL;
}

/* c: what the host waits for; NULL: for no other rank's call. */
static tg_status look_at_control(tg_nccl_group *g, const tg_nccl_call *c, double waited) {
    const tg_comm *control = g->control;
    if (!control || !control->ops->look) return TG_OK;
    return control->ops->look(g->self->ctx, control->state, c ? c->control : NULL, waited);
}

static tg_status look_at(tg_nccl_group *g, const tg_nccl_call *c, double waited) {
    tg_status s = g->self->failed ? tg_nccl_aborted(g) : TG_OK;
    if (s == TG_OK) s = look_at_control(g, c, waited);
    if (s == TG_OK) s = look_at_nccl(g);
    if (s == TG_OK && waited > g->self->ctx->run.deadline) s = pass_deadline(g, waited);
    if (s != TG_OK) tg_nccl_abort_all(g->self);
    return s;
}

tg_status tg_nccl_look_at(tg_nccl_group *g, double waited) { return look_at(g, NULL, waited); }

tg_status tg_nccl_look(tg_cuda_watch *w, double waited) {
    const double period = 0.001;
    tg_nccl_rank *self = (tg_nccl_rank *)w;
    tg_status s = TG_OK;
    bool too_soon = waited > period && waited - self->looked < period;
    if (self->failed || self->cuda->capturing || too_soon) return TG_OK;
    self->looked = waited;
    for (tg_nccl_group *g = self->groups; g && s == TG_OK; g = g->next) {
        if (waited < 0) {
            look_at_control(g, NULL, -1);
            continue;
        }
        tg_nccl_progress(g);
        if (self->failed) return self->ctx->run.status != TG_OK ? self->ctx->run.status : tg_nccl_aborted(g);
        if (g->first) s = look_at(g, awaited(g), waited);
    }
    return s;
}
