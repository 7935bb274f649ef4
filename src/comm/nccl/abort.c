/* Aborts all NCCL communicators of a rank when one of them fails. */
#include <sched.h>

#include "base/os.h"
#include "base/text.h"
#include "comm/nccl/nccl.h"

/* Waits, for a limited time, until the group's stream is empty. NCCL then no longer touches the memory of calls that it
 * did not finish. */
static void drain(tg_nccl_group *g) {
    const double limit = 5; /* seconds */
    double since = tg_system_now();
    while (g->stream && tg_cuda_answer(cudaStreamQuery(g->stream)) == cudaErrorNotReady &&
           tg_system_now() - since < limit)
        sched_yield();
}

/* Aborts all communicators between one ncclGroupStart and ncclGroupEnd. NCCL then marks all of them as aborted before
 * it waits for any. This matters because the kernel of communicator A may be queued after a kernel of communicator B,
 * and B's kernel ends only once B is marked. */
static void abort_communicators(tg_nccl_rank *self) {
    ncclGroupStart();
    for (tg_nccl_group *g = self->groups; g; g = g->next) {
        ncclComm_t comm = g->comm;
        g->comm = NULL;
        tg_nccl_windows_end(g); /* only forgets the windows; NCCL deregisters them with the communicator */
        if (comm) ncclCommAbort(comm);
    }
    ncclGroupEnd();
    for (tg_nccl_group *g = self->groups; g; g = g->next) drain(g);
}

void tg_nccl_abort_end(tg_nccl_rank *self) {
    if (!self->aborted || self->cuda->capturing) return;
    tg_replays_end_all(self->ctx, &tg_nccl_transport);
    abort_communicators(self);
}

/* Stores the reason, which later calls report. */
static void keep_reason(tg_nccl_rank *self, const char *why) {
    size_t at = 0;
    tg_status s = self->ctx->run.status;
    if (self->status != TG_OK) return;
    self->status = s != TG_OK ? s : TG_ERR_ABORTED;
    tg_text(self->failure, sizeof self->failure, &at, "%s", s != TG_OK ? self->ctx->run.message : why);
}

void tg_nccl_abort_all(tg_nccl_rank *self, const char *why) {
    if (self->aborted) return;
    self->aborted = true;
    keep_reason(self, why);
    for (tg_nccl_group *g = self->groups; g; g = g->next) {
        const tg_comm *host = g->host;
        g->control.notified = true;
        if (host && host->ops->abort) host->ops->abort(self->ctx, host->state, self->failure);
    }
    tg_nccl_abort_end(self);
}
