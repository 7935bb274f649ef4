/* The functions of the transport's table, and its world communicator. */
#include "base/memory/host_memory.h"
#include "base/os.h"
#include "comm/p2p/buffers.h"
#include "comm/p2p/failure.h"
#include "comm/p2p/p2p.h"
#include "comm/shm/shm.h"

/* ---- The transport's slots ---- */

static tg_p2p_request *request_new(tg_p2p_group *g) {
    tg_p2p_rank *self = g->self;
    tg_p2p_request *r = self->free;
    if (r)
        self->free = r->next;
    else if (!(r = tg_host_alloc(self->ctx, sizeof *r)))
        return NULL;
    *r = (tg_p2p_request){.group = g};
    return r;
}

static void request_free(tg_p2p_request *r) {
    r->next = r->group->self->free;
    r->group->self->free = r;
}

static void request_start(tg_p2p_request *r) {
    tg_p2p_rank *self = r->group->self;
    r->prev = self->last;
    r->next = NULL;
    *(self->last ? &self->last->next : &self->first) = r;
    self->last = r;
}

/* Calls a slot of the node's transport, for a communicator whose ranks are of one node. */
#define NODE(handle, slot, ...) (handle)->self->node->ops->slot((handle)->self->ctx, (handle)->inner, __VA_ARGS__)

static tg_status p2p_start(tg_ctx *ctx, void *state, const tg_transfer *t, void **request) {
    tg_p2p_handle *handle = state;
    if (handle->inner) return NODE(handle, start, t, request);
    tg_p2p_group *g = handle->g;
    tg_p2p_progress(g->self); /* receives failures that were announced meanwhile */
    if (g->failed) return tg_control_failed(&g->control, false);
    tg_p2p_request *r = request_new(g);
    if (!r) return ctx->run.status;
    if (tg_p2p_start(g, t, r) != TG_OK) {
        request_free(r);
        return ctx->run.status;
    }
    request_start(r);
    *request = r;
    tg_p2p_progress(g->self);
    return TG_OK;
}

static bool p2p_test(tg_ctx *ctx, void *state, void *request) {
    (void)ctx;
    tg_p2p_handle *handle = state;
    tg_p2p_request *r = request;
    if (handle->inner) return NODE(handle, test, request);
    if (!r->done) tg_p2p_progress(handle->self);
    return r->done || tg_p2p_cannot_finish(r->call) || handle->self->broken;
}

static tg_status p2p_wait(tg_ctx *ctx, void *state, void *request) {
    (void)ctx;
    tg_p2p_handle *handle = state;
    return handle->inner ? NODE(handle, wait, request) : tg_control_wait(&handle->g->control, request, NULL, 0);
}

static tg_status p2p_poll(tg_ctx *ctx, void *state, void *request, double waited) {
    (void)ctx;
    tg_p2p_handle *handle = state;
    return handle->inner ? NODE(handle, poll, request, waited) : tg_control_poll(&handle->g->control, request, waited);
}

static void p2p_drop(tg_ctx *ctx, void *state, void *request) {
    (void)ctx;
    tg_p2p_handle *handle = state;
    tg_p2p_request *r = request;
    if (handle->inner) {
        NODE(handle, drop, request);
        return;
    }
    if (!r->done && tg_control_wait(&handle->g->control, r, NULL, 0) != TG_OK && !r->done) tg_p2p_forget(r);
    request_free(r);
}

static void p2p_abort(tg_ctx *ctx, void *state, const char *why) {
    (void)ctx;
    tg_p2p_handle *handle = state;
    if (handle->inner)
        NODE(handle, abort, why);
    else
        tg_p2p_fail(handle->g, TG_ERR_ABORTED, handle->self->me, handle->self->me, why, handle->g->sequence);
}

/* Agrees with the other members on the next group, which replaces that of the handle. */
static tg_status recover(tg_p2p_handle *handle, int *rank, int *size) {
    tg_p2p_group *old = handle->g, *g = NULL;
    tg_ctx *ctx = old->self->ctx;
    size_t bytes = (size_t)old->control.size * sizeof(int);
    int n = 0, mine = -1, *ranks = tg_host_alloc(ctx, bytes);
    if (!ranks) return ctx->run.status;
    tg_p2p_key origin = {old->key.base, ~old->key.ordinal}; /* differs from that of a group split from the old one */
    if (tg_control_regroup(&old->control, ranks, &n, &mine) == TG_OK)
        g = tg_p2p_group_new(old->self, &origin, ranks, n, mine, old->name);
    tg_host_free(ctx, ranks, bytes);
    if (!g) return ctx->run.status;
    g->world = old->world;
    tg_p2p_group_close(old);
    handle->g = g;
    *rank = mine;
    *size = n;
    return TG_OK;
}

static tg_status p2p_recover(tg_ctx *ctx, void *state, int *rank, int *size) {
    (void)ctx;
    tg_p2p_handle *handle = state;
    return handle->inner ? NODE(handle, recover, rank, size) : recover(handle, rank, size);
}

/* ---- Groups ---- */

/* Makes a communicator's state over g, or over `inner` if g is NULL. On an error closes g or `inner`. */
static tg_p2p_handle *handle_new(tg_p2p_rank *self, tg_p2p_group *g, void *inner) {
    tg_p2p_handle *handle = tg_host_alloc(self->ctx, sizeof *handle);
    if (handle) {
        *handle = (tg_p2p_handle){.self = self, .g = g, .inner = inner};
        self->open++;
    } else if (g) {
        tg_p2p_group_close(g);
    } else {
        self->node->ops->close(self->ctx, inner);
    }
    return handle;
}

static bool are_of_this_node(const tg_p2p_rank *self, const int *ranks, int n) {
    if (!self->node) return false;
    for (int i = 0; i < n; i++)
        if (self->nodes[ranks[i]] != self->nodes[self->me]) return false;
    return true;
}

/* Makes the group of these ranks of the world: over the node's transport if all of them are of this node, and the ranks
 * of this node share memory. */
static tg_p2p_handle *split(const tg_p2p_handle *handle, const int *ranks, int n, int rank, const char *name) {
    tg_p2p_rank *self = handle->self;
    void *inner = NULL;
    if (are_of_this_node(self, ranks, n)) {
        uint64_t origin = tg_p2p_digest(&handle->g->key) >> 2 | TG_ORIGIN_OTHER;
        tg_status s = tg_shm_split(self->ctx, self->node->state, origin, ranks, n, rank, name, &inner);
        return s == TG_OK ? handle_new(self, NULL, inner) : NULL;
    }
    tg_p2p_group *g = tg_p2p_group_new(self, &handle->g->key, ranks, n, rank, name);
    return g ? handle_new(self, g, NULL) : NULL;
}

static tg_p2p_handle *split_inner(const tg_p2p_handle *handle, const int *ranks, int n, int rank, const char *name,
                                  bool all) {
    void *inner = NULL;
    tg_status s = NODE(handle, split, ranks, n, rank, name, all, &inner);
    return s == TG_OK ? handle_new(handle->self, NULL, inner) : NULL;
}

static tg_status p2p_split(tg_ctx *ctx, void *state, const int *ranks, int n, int rank, const char *name, bool all,
                            void **group) {
    tg_p2p_handle *handle = state;
    size_t bytes = (size_t)n * sizeof(int);
    if (handle->inner) {
        *group = split_inner(handle, ranks, n, rank, name, all);
        return *group ? TG_OK : ctx->run.status;
    }
    int *of_world = tg_host_alloc(ctx, bytes);
    if (!of_world) return ctx->run.status;
    for (int i = 0; i < n; i++) of_world[i] = handle->g->member[ranks[i]].rank;
    *group = split(handle, of_world, n, rank, name);
    tg_host_free(ctx, of_world, bytes);
    return *group ? TG_OK : ctx->run.status;
}

/* ---- The end ---- */

static tg_p2p_phase phase_of(const tg_p2p_rank *self) {
    return self->layer->phase ? self->layer->phase(self->state) : TG_P2P_OPEN;
}

static bool all_completed(tg_p2p_rank *self) { return tg_p2p_groups_sweep(self) && tg_p2p_sent(self); }

static bool all_gone(tg_p2p_rank *self) {
    for (int i = 0; i < self->size; i++)
        if (i != self->me && !tg_p2p_is_gone(self, i)) return false;
    return tg_p2p_sent(self);
}

/* Waits until all pieces that this rank has requested have arrived and all that it sends is sent. Then sends TG_P2P_BYE
 * to all other ranks, and answers their requests until each of them has sent TG_P2P_BYE too or is lost. After that no
 * message can arrive (quiet). Each of the two waits ends at the deadline. */
static void end_messages(tg_p2p_rank *self) {
    if (self->broken) return;
    bool arrived = tg_p2p_until(self, all_completed);
    for (int i = 0; i < self->size; i++)
        if (i != self->me) tg_p2p_post(self, tg_p2p_draft(self, TG_P2P_BYE, NULL), i);
    self->quiet = tg_p2p_until(self, all_gone) && arrived;
}

static void rank_free(tg_p2p_rank *self) {
    tg_ctx *ctx = self->ctx;
    tg_comm_free(self->node);
    tg_ctx_unlisten(ctx, &self->listener);
    tg_p2p_close(self);
    for (tg_p2p_request *r = self->free, *next; r; r = next) {
        next = r->next;
        tg_host_free(ctx, r, sizeof *r);
    }
    tg_p2p_groups_free(self);
    if (self->recorder && ctx->run.heartbeat == &self->recorder->rank_slot->heartbeat)
        ctx->run.heartbeat = &ctx->run.own_heartbeat;
    tg_recorder_unref(ctx, self->recorder);
    for (int i = 0; self->peer && i < self->size; i++) tg_host_free(ctx, self->peer[i].failure, TG_P2P_FAILURE);
    tg_host_free(ctx, self->nodes, (size_t)self->size * sizeof *self->nodes);
    tg_host_free(ctx, self->peer, (size_t)self->size * sizeof *self->peer);
    tg_host_free(ctx, self, sizeof *self);
}

static void p2p_close(tg_ctx *ctx, void *state) {
    tg_p2p_handle *handle = state;
    tg_p2p_rank *self = handle->self;
    if (phase_of(self) == TG_P2P_ENDED) self->broken = true; /* the layer must not be called to notify the members */
    if (handle->inner)
        self->node->ops->close(ctx, handle->inner);
    else
        tg_p2p_group_close(handle->g);
    tg_host_free(ctx, handle, sizeof *handle);
    if (--self->open) return;
    end_messages(self);
    rank_free(self);
}

const tg_comm_ops tg_p2p_transport = {
    .size = sizeof(tg_comm_ops),
    .name = "p2p",
    .host = true,
    .start = p2p_start,
    .test = p2p_test,
    .wait = p2p_wait,
    .drop = p2p_drop,
    .split = p2p_split,
    .close = p2p_close,
    .abort = p2p_abort,
    .recover = p2p_recover,
    .poll = p2p_poll,
};

/* ---- The world ---- */

static tg_status check_layer(tg_ctx *ctx, const tg_p2p_ops *ops, const void *state, int rank, int size) {
    if (!ops)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_comm_p2p_new: ops is NULL, expected the table of a message layer");
    TG_TRY(tg_table_check(ctx, ops->size, sizeof *ops, "tg_comm_p2p_new: the table"));
    if (!ops->name || !ops->send || !ops->receive || !ops->poll || !ops->explain || !ops->close)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_comm_p2p_new: the table lacks a required slot: name, send, receive, poll, explain or close");
    if (!state) return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_comm_p2p_new: state is NULL, expected the state of the layer");
    if (size < 1 || rank < 0 || rank >= size)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_comm_p2p_new: rank %d of %d, expected 0 <= rank < size", rank, size);
    if (size > TG_MAX_RANKS)
        return tg_fail(ctx, TG_ERR_UNSUPPORTED, "tg_comm_p2p_new: size is %d, expected at most %d", size, TG_MAX_RANKS);
    return TG_OK;
}

/* Waits until the layer is open. */
static tg_status await_layer(const tg_p2p_rank *self) {
    double start = tg_system_now();
    for (int round = 0; phase_of(self) != TG_P2P_OPEN; round++) {
        if (phase_of(self) == TG_P2P_ENDED)
            return tg_fail(self->ctx, TG_ERR_STATE,
                           "tg_comm_p2p_new: the message layer \"%s\" has ended; expected one that is open",
                           self->layer->name);
        if (tg_system_now() - start > self->ctx->run.deadline)
            return tg_fail(self->ctx, TG_ERR_TIMEOUT,
                           "tg_comm_p2p_new: the deadline of %g s has passed before all ranks of %s have connected",
                           self->ctx->run.deadline, self->layer->name);
        tg_p2p_pause(self, round);
    }
    return TG_OK;
}

static tg_p2p_group *world_group(tg_p2p_rank *self) {
    size_t bytes = (size_t)self->size * sizeof(int);
    int *ranks = tg_host_alloc(self->ctx, bytes);
    for (int i = 0; ranks && i < self->size; i++) ranks[i] = i;
    tg_p2p_group *g = ranks ? tg_p2p_group_new(self, NULL, ranks, self->size, self->me, "world") : NULL;
    tg_host_free(self->ctx, ranks, bytes);
    return g;
}

/* Allocates what a rank needs, and waits until the layer is open. From then on this rank announces the context's
 * errors, and the recorder holds the context's heartbeat. */
static tg_status rank_open(tg_p2p_rank *self) {
    tg_ctx *ctx = self->ctx;
    self->thread = pthread_self();
    self->spins = tg_system_cores() >= self->size * (ctx->run.threads > 0 ? ctx->run.threads : 1) ? 500 : 20;
    self->early_end = &self->early;
    self->peer = tg_host_alloc(ctx, (size_t)self->size * sizeof *self->peer);
    self->recorder = tg_recorder_new(ctx, NULL, 1, self->me, self->size, 0, false);
    if (!self->peer || !self->recorder) return ctx->run.status;
    for (int i = 0; i < self->size; i++) self->peer[i].cause = -1;
    TG_TRY(await_layer(self));
    TG_TRY(tg_p2p_open(self));
    self->listener = tg_p2p_listener();
    tg_ctx_listen(ctx, &self->listener);
    ctx->run.heartbeat = &self->recorder->rank_slot->heartbeat;
    return TG_OK;
}

static tg_comm *world(tg_p2p_rank *self) {
    tg_ctx *ctx = self->ctx;
    tg_p2p_group *g = rank_open(self) == TG_OK ? world_group(self) : NULL;
    tg_p2p_handle *handle = g ? handle_new(self, g, NULL) : NULL;
    if (!handle) {
        rank_free(self);
        return NULL;
    }
    self->recorder->refs++;
    tg_comm *c = tg_comm_make(ctx, &self->table, handle, self->me, self->size, self->recorder);
    if (!c) p2p_close(ctx, handle);
    return c;
}

/* Finds out which ranks share a node, over a group of all ranks of c. The last two arguments are those of
 * tg_p2p_meet. */
static tg_status meet(tg_comm *c, tg_comm **node, bool *in_one) {
    tg_p2p_rank *self = ((tg_p2p_handle *)c->state)->self;
    size_t bytes = (size_t)c->size * sizeof(int);
    self->nodes = tg_host_alloc(c->ctx, (size_t)c->size * sizeof *self->nodes);
    int *ranks = self->nodes ? tg_host_alloc(c->ctx, bytes) : NULL;
    if (!ranks) return c->ctx->run.status;
    for (int i = 0; i < c->size; i++) ranks[i] = i;
    tg_comm *meeting = tg_comm_split_known(c, ranks, c->size, "nodes", TG_MAX_AXES, true);
    tg_host_free(c->ctx, ranks, bytes);
    tg_status s = meeting->ops ? tg_p2p_meet(self, meeting, node, in_one) : c->ctx->run.status;
    tg_comm_free(meeting);
    return s;
}

/* Connects the ranks that share a node. Returns c or, if all ranks are of one node and share its memory, the
 * communicator over that memory. In the second case frees c. On an error frees c too, and returns NULL. */
static tg_comm *connect_nodes(tg_comm *c) {
    tg_comm *node = NULL;
    bool in_one = false;
    tg_status s = c->size > 1 ? meet(c, &node, &in_one) : TG_OK;
    bool replaced = s == TG_OK && in_one;
    if (!replaced) ((tg_p2p_handle *)c->state)->self->node = node && node->ops ? node : NULL;
    if (s == TG_OK && !replaced) return c;
    tg_comm_free(c);
    return replaced ? node : NULL;
}

static void ignore_completed(void *token, size_t bytes) { (void)token, (void)bytes; }

tg_comm *tg_comm_p2p_new(tg_ctx *ctx, const tg_p2p_ops *ops, void *state, int rank, int size) {
    bool valid = tg_ok(ctx) && check_layer(ctx, ops, state, rank, size) == TG_OK;
    tg_p2p_rank *self = valid ? tg_host_alloc(ctx, sizeof *self) : NULL;
    if (!self) {
        /* A table of another version has close at the same offset, as new slots are only added at the end. */
        bool closes = ops && ops->size >= offsetof(tg_p2p_ops, close) + sizeof ops->close && ops->close;
        if (closes && state) ops->close(state, false, ignore_completed);
        return tg_comm_or_inert(NULL);
    }
    *self = (tg_p2p_rank){.ctx = ctx, .table = tg_p2p_transport, .layer = ops, .state = state, .me = rank,
                           .size = size, .cause = -1};
    self->table.name = ops->name;
    tg_comm *c = world(self);
    return tg_comm_or_inert(c ? connect_nodes(c) : NULL);
}
