/* Groups of ranks over NCCL, each with an NCCL communicator of its own: creation, split, recovery and end. */
#include <stddef.h>
#include <stdio.h>

#include "base/memory/host_memory.h"
#include "base/text.h"
#include "comm/nccl/nccl.h"
#include "kernels/cuda/device_table.h"

/* ---- Group objects: making and freeing ---- */

/* Frees a group and its resources, and also its host communicator unless the caller owns that. */
static void group_free(tg_nccl_group *g) {
    tg_nccl_rank *self = g->self;
    tg_ctx *ctx = self->ctx;
    for (tg_nccl_group **at = &self->groups; *at; at = &(*at)->next)
        if (*at == g) {
            *at = g->next;
            break;
        }
    tg_nccl_windows_end(g);
    if (g->comm) ncclCommAbort(g->comm);
    if (g->stream) cudaStreamDestroy(g->stream);
    if (g->token) cudaFree(g->token);
    if (!g->borrows_host) tg_comm_free(g->host);
    tg_host_free(ctx, g, sizeof *g);
}

/* Returns the control of the group, in which this rank is number `rank`. Errors name this rank by self->me, its number
 * in the world. */
static tg_control control_of(const tg_nccl_group *g, int rank, int size) {
    tg_nccl_rank *self = g->self;
    return (tg_control){.ops = &tg_nccl_control,
                        .mover = &tg_nccl_mover,
                        .ctx = self->ctx,
                        .name = g->name,
                        .me = self->me,
                        .rank = rank,
                        .size = size,
                        .cause = &self->cause,
                        .missed = self->ctx->run.missed};
}

/* Makes a group that has no NCCL communicator yet. first: the first member's number in the parent group, which is
 * appended to the group's name in NCCL's messages, as in "tp0"; -1: nothing is appended. */
static tg_nccl_group *group_new(tg_nccl_rank *self, tg_comm *host, int rank, int size, const char *name, int first) {
    tg_ctx *ctx = self->ctx;
    tg_nccl_group *g = tg_host_alloc(ctx, sizeof *g);
    if (!g) return NULL;
    *g = (tg_nccl_group){.self = self, .host = host, .next = self->groups};
    g->control = control_of(g, rank, size);
    g->end = &g->first;
    self->groups = g;
    snprintf(g->name, sizeof g->name, "%s", name);
    size_t at = 0;
    tg_text(g->nccl_name, sizeof g->nccl_name, &at, "%.30s", *name ? name : "group");
    if (first >= 0) tg_text(g->nccl_name, sizeof g->nccl_name, &at, "%d", first);
    tg_cuda_enter(ctx);
    tg_status s =
        tg_cuda_check(ctx, cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    if (s == TG_OK && !host) s = tg_cuda_check(ctx, cudaMalloc(&g->token, sizeof(int64_t)), "cudaMalloc");
    if (s == TG_OK && !host)
        s = tg_cuda_check(ctx, cudaMemsetAsync(g->token, 0, sizeof(int64_t), g->stream), "cudaMemsetAsync");
    if (s == TG_OK) return g;
    g->host = NULL; /* so that group_free leaves the host communicator to the caller */
    group_free(g);
    return NULL;
}

/* Returns the configuration of the group's NCCL communicator, whose calls do not block the host. */
static ncclConfig_t config_of(const tg_nccl_group *g) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.splitShare = 1; /* groups split off this one share its resources */
    config.commName = g->nccl_name;
    return config;
}

/* ---- NCCL's id, which all ranks of a communicator need to create it ---- */

/* Sends the id from rank 0 to the other ranks, over host or, if host is NULL, by the caller's broadcast function. */
static tg_status broadcast_id(tg_ctx *ctx, tg_comm *host, tg_nccl_broadcast_fn broadcast, void *user,
                              ncclUniqueId *id) {
    tg_transfer call = {.kind = TG_BROADCAST, .dtype = TG_U8, .dst = id, .count = sizeof *id};
    if (host) return host->size > 1 ? tg_comm_exchange(host, &call) : TG_OK;
    int answer = broadcast(user, id, sizeof *id);
    if (!answer) return TG_OK;
    return tg_fail(ctx, TG_ERR_IO, "tg_comm_nccl_new_by: the caller's broadcast returned %d, expected 0", answer);
}

/* Sends NCCL's id from the first rank to the others. If the first rank has an error it sends an id of zeros, so that
 * the others do not wait for it. */
static tg_status share_id(tg_nccl_group *g, tg_nccl_broadcast_fn broadcast, void *user, ncclUniqueId *id) {
    static const ncclUniqueId none;
    tg_ctx *ctx = g->self->ctx;
    memset(id, 0, sizeof *id);
    ncclResult_t r = g->control.rank == 0 ? ncclGetUniqueId(id) : ncclSuccess;
    if (r != ncclSuccess) memset(id, 0, sizeof *id);
    tg_status s = broadcast_id(ctx, g->host, broadcast, user, id);
    if (r != ncclSuccess) return tg_nccl_await(g, r, "ncclGetUniqueId");
    if (s == TG_OK && !memcmp(id, &none, sizeof none))
        return tg_fail(ctx, TG_ERR_REMOTE,
                       "group \"%s\": its first rank could not make NCCL's id; that rank's error says why", g->name);
    return s;
}

/* Creates NCCL's communicator of the group. Collective over the group. */
static tg_status join(tg_nccl_group *g, tg_nccl_broadcast_fn broadcast, void *user) {
    ncclUniqueId id;
    ncclConfig_t config = config_of(g);
    TG_TRY(share_id(g, broadcast, user, &id));
    tg_cuda_enter(g->self->ctx); /* the caller's broadcast may have changed the current GPU */
    ncclResult_t r = ncclCommInitRankConfig(&g->comm, g->control.size, id, g->control.rank, &config);
    return tg_nccl_await(g, r, "ncclCommInitRankConfig");
}

/* ---- Split ---- */

/* Makes g->part, which NCCL has split off the parent's communicator, the communicator of g. */
static void take_part(tg_nccl_group *g) {
    g->comm = g->part;
    g->part = NULL;
}

/* Creates NCCL's communicator of g by a split of the parent. All ranks of the parent call this together, so that the
 * new communicators share the parent's channels and buffers. The split is an asynchronous operation of the parent: a
 * thread of NCCL may write g->part until the wait on the parent succeeds or the parent is aborted. A second wait is on
 * the new communicator. */
static tg_status split_all(tg_nccl_group *parent, tg_nccl_group *g, int color) {
    ncclConfig_t config = config_of(g);
    ncclResult_t r = ncclCommSplit(parent->comm, color, g->control.rank, &g->part, &config);
    TG_TRY(tg_nccl_await(parent, r, "ncclCommSplit"));
    if (!g->part)
        return tg_fail(g->self->ctx, TG_ERR_DEVICE, "ncclCommSplit, group \"%s\": no communicator was made", g->name);
    take_part(g);
    return tg_nccl_await(g, ncclSuccess, "ncclCommSplit");
}

/* Fails if the split needs a host communicator and there is none. `all`: all ranks of the parent take part. */
static tg_status check_split(const tg_nccl_group *parent, const char *name, bool all) {
    if (all || parent->host) return TG_OK;
    return tg_fail(parent->self->ctx, TG_ERR_UNSUPPORTED,
                   "group \"%s\": a communicator made by tg_comm_nccl_new_by can be split only if all its ranks take "
                   "part in the split; make it with tg_comm_nccl_new over a host communicator instead",
                   name ? name : "");
}

tg_status tg_nccl_split(tg_ctx *ctx, void *state, const int *ranks, int n, int rank, const char *name, bool all,
                        void **group) {
    tg_nccl_group *parent = state;
    if (parent->self->aborted) return tg_control_failed(&parent->control, false);
    TG_TRY(check_split(parent, name, all));
    tg_comm *host = parent->host ? tg_comm_split_known(parent->host, ranks, n, name, TG_MAX_AXES, all) : NULL;
    if (host && !host->ops) return ctx->run.status;
    tg_nccl_group *g = group_new(parent->self, host, rank, n, name ? name : "", ranks[0]);
    if (!g) {
        tg_comm_free(host);
        return ctx->run.status;
    }
    if ((all ? split_all(parent, g, ranks[0]) : join(g, NULL, NULL)) == TG_OK) {
        *group = g;
        return TG_OK;
    }
    tg_nccl_abort_all(parent->self, NULL);
    if (g->part) take_part(g); /* the parent was aborted during the split; group_free aborts this communicator too */
    group_free(g);
    return ctx->run.status;
}

/* ---- Closing a communicator ---- */

static void rank_free(tg_nccl_rank *self) {
    tg_ctx *ctx = self->ctx;
    tg_cuda_poller_remove(self->cuda, &self->poller);
    tg_ctx_unlisten(ctx, &self->listener);
    tg_nccl_calls_free(self);
    if (self->ready) cudaEventDestroy(self->ready);
    tg_recorder_unref(ctx, self->recorder);
    tg_host_free(ctx, self, sizeof *self);
}

/* Waits for the calls in flight before the communicator ends. If a call fails, aborts all communicators of this
 * rank. */
static void finish_calls(tg_nccl_group *g) {
    for (tg_nccl_call *c = g->first; c && !g->self->aborted; c = g->first) {
        const tg_comm *host = g->host;
        if (c->host_request && host->ops->wait(g->self->ctx, host->state, c->host_request) != TG_OK)
            tg_nccl_abort_all(g->self, NULL);
        if (!g->self->aborted && c->launched && tg_cuda_await(g->self->cuda, c->done) != TG_OK)
            tg_nccl_abort_all(g->self, NULL);
        if (!c->launched) tg_nccl_abort_all(g->self, "a rank has freed a communicator with an open batch");
        tg_nccl_progress(g);
    }
    tg_nccl_progress(g);
}

/* Ends NCCL's communicator together with the other ranks. If they have ended the group instead, that is no error of
 * this rank, whose calls are done. As over host transports, freeing the communicator then succeeds. */
static void finalize(tg_nccl_group *g) {
    tg_ctx *ctx = g->self->ctx;
    bool had_failed = ctx->run.status != TG_OK;
    tg_status s = tg_nccl_await(g, ncclCommFinalize(g->comm), "ncclCommFinalize");
    if (s == TG_OK) {
        ncclCommDestroy(g->comm);
        g->comm = NULL;
    } else if (!had_failed && (s == TG_ERR_ABORTED || s == TG_ERR_REMOTE)) {
        tg_ctx_clear(ctx);
    }
}

void tg_nccl_close(tg_ctx *ctx, void *state) {
    tg_nccl_group *g = state;
    tg_nccl_rank *self = g->self;
    (void)ctx;
    finish_calls(g);
    tg_nccl_abort_end(self);
    tg_nccl_windows_end(g);
    if (!self->aborted && g->comm) finalize(g);
    group_free(g);
    if (!self->groups) rank_free(self);
}

/* ---- Recovery ---- */

tg_status tg_nccl_recover(tg_ctx *ctx, void *state, int *rank, int *size) {
    tg_nccl_group *g = state;
    tg_nccl_rank *self = g->self;
    if (!g->borrows_host)
        return tg_fail(
            ctx, TG_ERR_UNSUPPORTED,
            "tg_comm_recover: group \"%s\" was not made by tg_comm_nccl_new; call tg_comm_recover on the communicator "
            "that tg_comm_nccl_new returned",
            g->name);
    tg_nccl_abort_all(self, "a rank has called tg_comm_recover");
    tg_nccl_abort_end(self);
    for (tg_nccl_group *each = self->groups; each; each = each->next) tg_nccl_progress(each);
    tg_ctx_clear(ctx); /* clears the errors of the calls that were in flight */
    TG_TRY(tg_comm_recover(g->host));
    self->aborted = false;
    self->status = TG_OK;
    *rank = tg_comm_rank(g->host);
    *size = tg_comm_size(g->host);
    g->control = control_of(g, *rank, *size);
    g->sequence = 0;
    g->batch = false;
    tg_status s = join(g, NULL, NULL);
    if (s != TG_OK) tg_nccl_abort_all(self, NULL);
    return s;
}

/* ---- The group of all ranks ---- */

/* Advances NCCL's calls while this rank waits in a call of a host communicator. */
static void advance_calls(tg_listener *l) {
    tg_nccl_rank *self = (tg_nccl_rank *)((char *)l - offsetof(tg_nccl_rank, listener));
    for (tg_nccl_group *g = self->groups; g; g = g->next) tg_nccl_progress(g);
}

/* Registers advance_calls with the context. */
static void listen(tg_nccl_rank *self) {
    self->listener = (tg_listener){.idle = advance_calls};
    tg_ctx_listen(self->ctx, &self->listener);
}

/* Makes the state that the communicators of this rank share. Returns NULL after recording an error. */
static tg_nccl_rank *rank_new(tg_ctx *ctx, tg_comm *host, int rank, int size) {
    tg_nccl_rank *self = tg_host_alloc(ctx, sizeof *self);
    if (!self) return NULL;
    *self =
        (tg_nccl_rank){.poller = {.poll = tg_nccl_poll}, .ctx = ctx, .cuda = tg_cuda_of(ctx), .me = rank, .cause = -1};
    if (host)
        (self->recorder = host->recorder)->refs++;
    else
        self->recorder = tg_recorder_new(ctx, NULL, 1, rank, size, 0, true);
    tg_cuda_poller_add(self->cuda, &self->poller);
    listen(self);
    if (self->recorder && tg_cuda_event_new(ctx, &self->ready) == TG_OK) return self;
    rank_free(self);
    return NULL;
}

tg_comm *tg_nccl_world(tg_ctx *ctx, tg_comm *host, int rank, int size, tg_nccl_broadcast_fn broadcast, void *user) {
    if (ctx->run.ops != &tg_cuda_device) {
        tg_fail(ctx, TG_ERR_DEVICE,
                "%s: the context's device \"cuda\" is not that of this library's plugin; it is the caller's own, or of "
                "another copy of the library",
                host ? "tg_comm_nccl_new" : "tg_comm_nccl_new_by");
        return NULL;
    }
    tg_nccl_rank *self = rank_new(ctx, host, rank, size);
    tg_nccl_group *g = self ? group_new(self, host, rank, size, "world", -1) : NULL;
    if (!g) {
        if (self) rank_free(self);
        return NULL;
    }
    g->borrows_host = host != NULL;
    self->recorder->refs++; /* the reference that the communicator holds */
    tg_comm *c = NULL;
    if (join(g, broadcast, user) == TG_OK)
        c = tg_comm_make(ctx, &tg_nccl_transport, g, rank, size, self->recorder);
    else
        tg_recorder_unref(ctx, self->recorder);
    if (c) return c;
    tg_nccl_abort_all(self, NULL);
    group_free(g);
    rank_free(self);
    return NULL;
}
