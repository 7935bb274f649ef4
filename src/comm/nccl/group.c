/* Communicators: how they begin, split, begin anew and end. */
#include <stddef.h>
#include <stdio.h>

#include "base/host_memory.h"
#include "comm/nccl/nccl.h"

/* ---- States ---- */

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
    if (!g->world) tg_comm_free(g->control);
    tg_host_free(ctx, g, sizeof *g);
}

static tg_nccl_group *group_new(tg_nccl_rank *self, tg_comm *control, int rank, int size, const char *name) {
    tg_ctx *ctx = self->ctx;
    tg_nccl_group *g = tg_host_alloc(ctx, sizeof *g);
    if (!g) return NULL;
    *g = (tg_nccl_group){.self = self, .control = control, .rank = rank, .size = size, .next = self->groups};
    g->end = &g->first;
    self->groups = g;
    snprintf(g->name, sizeof g->name, "%s", name);
    tg_status s =
        tg_cuda_check(ctx, cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    if (s == TG_OK && !control) s = tg_cuda_check(ctx, cudaMalloc(&g->token, sizeof(int64_t)), "cudaMalloc");
    if (s == TG_OK && !control)
        s = tg_cuda_check(ctx, cudaMemsetAsync(g->token, 0, sizeof(int64_t), g->stream), "cudaMemsetAsync");
    if (s == TG_OK) return g;
    g->control = NULL; /* stays the caller's */
    group_free(g);
    return NULL;
}

static ncclConfig_t config_of(const tg_nccl_group *g) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.splitShare = 1; /* what is split off this one shares its resources */
    config.commName = g->name;
    return config;
}

/* ---- The id ---- */

static tg_status broadcast_id(tg_ctx *ctx, tg_comm *control, tg_nccl_broadcast_fn broadcast, void *user,
                              ncclUniqueId *id) {
    tg_transfer call = {.kind = TG_BROADCAST, .dtype = TG_U8, .dst = id, .count = sizeof *id};
    if (control) return control->size > 1 ? tg_comm_exchange(control, &call) : TG_OK;
    int answer = broadcast(user, id, sizeof *id);
    if (!answer) return TG_OK;
    return tg_fail(ctx, TG_ERR_IO, "tg_comm_nccl_new_by: the caller's broadcast answered %d, expected 0", answer);
}

/* An error of the first rank is told to the others as an id of zeros, or they would wait for it. */
static tg_status share_id(tg_nccl_group *g, tg_nccl_broadcast_fn broadcast, void *user, ncclUniqueId *id) {
    static const ncclUniqueId none;
    tg_ctx *ctx = g->self->ctx;
    memset(id, 0, sizeof *id);
    ncclResult_t r = g->rank == 0 ? ncclGetUniqueId(id) : ncclSuccess;
    if (r != ncclSuccess) memset(id, 0, sizeof *id);
    tg_status s = broadcast_id(ctx, g->control, broadcast, user, id);
    if (r != ncclSuccess)
        return tg_fail(ctx, TG_ERR_DEVICE, "ncclGetUniqueId: %s: %s", ncclGetErrorString(r), ncclGetLastError(NULL));
    if (s == TG_OK && !memcmp(id, &none, sizeof none))
        return tg_fail(ctx, TG_ERR_REMOTE, "the first rank of group \"%s\" could not make an id for NCCL", g->name);
    return s;
}

static tg_status join(tg_nccl_group *g, tg_nccl_broadcast_fn broadcast, void *user) {
    ncclUniqueId id;
    ncclConfig_t config = config_of(g);
    TG_TRY(share_id(g, broadcast, user, &id));
    ncclResult_t r = ncclCommInitRankConfig(&g->comm, g->size, id, g->rank, &config);
    return tg_nccl_settle(g, r, "ncclCommInitRankConfig");
}

/* ---- Split ---- */

/* All ranks of the parent do it at once, so that the parts share its channels and buffers. It is the parent that is
 * busy meanwhile: the part is known when that has done. */
static tg_status split_all(tg_nccl_group *parent, tg_nccl_group *g, int color) {
    ncclConfig_t config = config_of(g);
    ncclComm_t part = NULL;
    ncclResult_t r = ncclCommSplit(parent->comm, color, g->rank, &part, &config);
    tg_status s = tg_nccl_settle(parent, r, "ncclCommSplit");
    g->comm = part; /* of a failed one, too: it is freed with the group */
    if (s == TG_OK && !part)
        s = tg_fail(g->self->ctx, TG_ERR_DEVICE, "ncclCommSplit, group \"%s\": no communicator was made", g->name);
    return s == TG_OK ? tg_nccl_settle(g, ncclSuccess, "ncclCommSplit") : s;
}

static tg_status check_split(const tg_nccl_group *parent, const char *name, bool all) {
    if (all || parent->control) return TG_OK;
    return tg_fail(parent->self->ctx, TG_ERR_UNSUPPORTED,
                   "group \"%s\" is of some ranks of a communicator made by tg_comm_nccl_new_by, which needs all of "
                   "them at once; make that one by tg_comm_nccl_new over a host communicator",
                   name);
}

/* NCCL's own messages say "tp0" for the group of rank 0. */
static void name_group(char *to, size_t n, const char *name, int first) {
    snprintf(to, n, "%.40s%d", name && *name ? name : "group", first);
}

tg_status tg_nccl_split(tg_ctx *ctx, void *state, const int *ranks, int n, int rank, const char *name, bool all,
                        void **group) {
    tg_nccl_group *parent = state;
    char text[48];
    if (parent->self->failed) return tg_nccl_aborted(parent);
    TG_TRY(check_split(parent, name, all));
    name_group(text, sizeof text, name, ranks[0]);
    tg_comm *control =
        parent->control ? tg_comm_split_known(parent->control, ranks, n, name, TG_MAX_AXES, all) : NULL;
    if (control && !control->ops) return ctx->run.status;
    tg_nccl_group *g = group_new(parent->self, control, rank, n, text);
    if (!g) {
        tg_comm_free(control);
        return ctx->run.status;
    }
    if ((all ? split_all(parent, g, ranks[0]) : join(g, NULL, NULL)) == TG_OK) {
        *group = g;
        return TG_OK;
    }
    tg_nccl_abort_all(parent->self);
    group_free(g);
    return ctx->run.status;
}

/* ---- The end ---- */

static void rank_free(tg_nccl_rank *self) {
    tg_ctx *ctx = self->ctx;
    tg_cuda_watch_end(self->cuda, &self->watch);
    tg_ctx_unlisten(ctx, &self->listener);
    tg_nccl_calls_free(self);
    if (self->ready) cudaEventDestroy(self->ready);
    tg_recorder_unref(ctx, self->recorder);
    tg_host_free(ctx, self, sizeof *self);
}

/* What was called is done before the communicator ends, or given up. */
static void finish_calls(tg_nccl_group *g) {
    for (tg_nccl_call *c = g->first; c && !g->self->failed; c = g->first) {
        const tg_comm *control = g->control;
        if (c->control && control->ops->wait(g->self->ctx, control->state, c->control) != TG_OK)
            tg_nccl_abort_all(g->self);
        if (!g->self->failed && c->launched && tg_cuda_await(g->self->cuda, c->done) != TG_OK)
            tg_nccl_abort_all(g->self);
        if (!c->launched) tg_nccl_abort_all(g->self);
        tg_nccl_progress(g);
    }
    tg_nccl_progress(g);
}

void tg_nccl_close(tg_ctx *ctx, void *state) {
    tg_nccl_group *g = state;
    tg_nccl_rank *self = g->self;
    (void)ctx;
    finish_calls(g);
    tg_nccl_abort_end(self);
    tg_nccl_windows_end(g);
    if (!self->failed && g->comm && tg_nccl_settle(g, ncclCommFinalize(g->comm), "ncclCommFinalize") == TG_OK) {
        ncclCommDestroy(g->comm);
        g->comm = NULL;
    }
    group_free(g);
    if (!self->groups) rank_free(self);
}

/* ---- Beginning anew ---- */

tg_status tg_nccl_recover(tg_ctx *ctx, void *state, int *rank, int *size) {
    tg_nccl_group *g = state;
    tg_nccl_rank *self = g->self;
    if (!g->world || !g->control)
        return tg_fail(ctx, TG_ERR_UNSUPPORTED, "tg_comm_recover: group \"%s\" is not what tg_comm_nccl_new has made",
                       g->name);
    tg_nccl_abort_all(self);
    tg_nccl_abort_end(self);
    for (tg_nccl_group *each = self->groups; each; each = each->next) tg_nccl_progress(each);
    tg_ctx_clear(ctx); /* of what those calls have recorded */
    TG_TRY(tg_comm_recover(g->control));
    self->failed = false;
    g->rank = *rank = tg_comm_rank(g->control);
    g->size = *size = tg_comm_size(g->control);
    g->batch = false;
    tg_status s = join(g, NULL, NULL);
    if (s != TG_OK) tg_nccl_abort_all(self);
    return s;
}

/* ---- The world ---- */

/* A host that waits for hosts looks after its calls on the device, too. */
static void look_after_calls(tg_listener *l) {
    tg_nccl_rank *self = (tg_nccl_rank *)((char *)l - offsetof(tg_nccl_rank, listener));
    for (tg_nccl_group *g = self->groups; g; g = g->next) tg_nccl_progress(g);
}

static void listen(tg_nccl_rank *self) {
    self->listener = (tg_listener){.idle = look_after_calls};
    tg_ctx_listen(self->ctx, &self->listener);
}

static tg_nccl_rank *rank_new(tg_ctx *ctx, tg_comm *control, int rank, int size) {
    tg_nccl_rank *self = tg_host_alloc(ctx, sizeof *self);
    if (!self) return NULL;
    *self = (tg_nccl_rank){.watch = {.look = tg_nccl_look}, .ctx = ctx, .cuda = tg_cuda_of(ctx)};
    if (control)
        (self->recorder = control->recorder)->refs++;
    else
        self->recorder = tg_recorder_new(ctx, NULL, 1, rank, size, 0, true);
    tg_cuda_watch_begin(self->cuda, &self->watch);
    listen(self);
    if (self->recorder && tg_cuda_event_new(ctx, &self->ready) == TG_OK) return self;
    rank_free(self);
    return NULL;
}

tg_comm *tg_nccl_world(tg_ctx *ctx, tg_comm *control, int rank, int size, tg_nccl_broadcast_fn broadcast, void *user) {
    tg_nccl_rank *self = rank_new(ctx, control, rank, size);
    tg_nccl_group *g = self ? group_new(self, control, rank, size, "world") : NULL;
    if (!g) {
        if (self) rank_free(self);
        return NULL;
    }
    g->world = control != NULL;
    self->recorder->refs++; /* the communicator's */
    tg_comm *c = NULL;
    if (join(g, broadcast, user) == TG_OK)
        c = tg_comm_make(ctx, &tg_nccl_transport, g, rank, size, self->recorder);
    else
        tg_recorder_unref(ctx, self->recorder);
    if (c) return c;
    tg_nccl_abort_all(self);
    group_free(g);
    rank_free(self);
    return NULL;
}
