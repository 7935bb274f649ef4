/* The MPI transport's slots, and its world. */
#include <tapegrad/mpi.h>

#include "core/system.h"
#include "parallel/mpi_transport.h"
#include "parallel/shm.h"

/* ---- The transport's slots ---- */

static tg_mpi_request *request_new(tg_mpi_group *g) {
    tg_mpi_rank *self = g->self;
    tg_mpi_request *r = self->free;
    if (r)
        self->free = r->next;
    else if (!(r = tg_host_alloc(self->ctx, sizeof *r)))
        return NULL;
    *r = (tg_mpi_request){.group = g};
    return r;
}

static void request_free(tg_mpi_request *r) {
    r->next = r->group->self->free;
    r->group->self->free = r;
}

static void request_start(tg_mpi_request *r) {
    tg_mpi_rank *self = r->group->self;
    r->prev = self->last;
    r->next = NULL;
    *(self->last ? &self->last->next : &self->first) = r;
    self->last = r;
}

/* A communicator of one node goes to that node's transport. */
#define NODE(seat, slot, ...) (seat)->self->node->ops->slot((seat)->self->ctx, (seat)->inner, __VA_ARGS__)

static tg_status mpi_start(tg_ctx *ctx, void *state, const tg_transfer *t, void **request) {
    tg_mpi_seat *seat = state;
    if (seat->inner) return NODE(seat, start, t, request);
    tg_mpi_group *g = seat->g;
    tg_mpi_progress(g->self); /* news of a failure: what MPI fetches in one test it may tell in the next */
    tg_mpi_progress(g->self);
    if (g->failed) return tg_mpi_failed(g, false);
    tg_mpi_request *r = request_new(g);
    if (!r) return ctx->status;
    if (tg_mpi_start(g, t, r) != TG_OK) {
        request_free(r);
        return ctx->status;
    }
    request_start(r);
    *request = r;
    tg_mpi_progress(g->self);
    return TG_OK;
}

static bool mpi_test(tg_ctx *ctx, void *state, void *request) {
    (void)ctx;
    tg_mpi_seat *seat = state;
    tg_mpi_request *r = request;
    if (seat->inner) return NODE(seat, test, request);
    if (!r->done) tg_mpi_progress(seat->self);
    return r->done || tg_mpi_over(r->call) || seat->self->broken;
}

static tg_status mpi_wait(tg_ctx *ctx, void *state, void *request) {
    (void)ctx;
    tg_mpi_seat *seat = state;
    return seat->inner ? NODE(seat, wait, request) : tg_mpi_await(seat->g, request, NULL);
}

static void mpi_drop(tg_ctx *ctx, void *state, void *request) {
    (void)ctx;
    tg_mpi_seat *seat = state;
    tg_mpi_request *r = request;
    if (seat->inner) {
        NODE(seat, drop, request);
        return;
    }
    if (!r->done && tg_mpi_await(seat->g, r, NULL) != TG_OK && !r->done) tg_mpi_forget(r);
    request_free(r);
}

static void mpi_abort(tg_ctx *ctx, void *state, const char *why) {
    (void)ctx;
    tg_mpi_seat *seat = state;
    if (seat->inner)
        NODE(seat, abort, why);
    else
        tg_mpi_fail(seat->g, TG_ERR_ABORTED, seat->self->me, seat->self->me, why, seat->g->sequence);
}

static tg_status mpi_recover(tg_ctx *ctx, void *state, int *rank, int *size) {
    (void)ctx;
    tg_mpi_seat *seat = state;
    return seat->inner ? NODE(seat, recover, rank, size) : tg_mpi_recover(seat, rank, size);
}

/* ---- Groups ---- */

/* A state for a group, which is closed where there is no memory for one. */
static tg_mpi_seat *seat_new(tg_mpi_rank *self, tg_mpi_group *g, void *inner) {
    tg_mpi_seat *seat = tg_host_alloc(self->ctx, sizeof *seat);
    if (seat) {
        *seat = (tg_mpi_seat){.self = self, .g = g, .inner = inner};
        self->open++;
    } else if (g) {
        tg_mpi_group_close(g);
    } else {
        self->node->ops->close(self->ctx, inner);
    }
    return seat;
}

static bool are_of_this_node(const tg_mpi_rank *self, const int *ranks, int n) {
    if (!self->node) return false;
    for (int i = 0; i < n; i++)
        if (self->nodes[ranks[i]] != self->nodes[self->me]) return false;
    return true;
}

/* ranks: of the world. */
static tg_mpi_seat *split(const tg_mpi_seat *seat, const int *ranks, int n, int rank, const char *name) {
    tg_mpi_rank *self = seat->self;
    void *inner = NULL;
    if (are_of_this_node(self, ranks, n)) {
        tg_status s = self->node->ops->split(self->ctx, self->node->state, ranks, n, rank, name, &inner);
        return s == TG_OK ? seat_new(self, NULL, inner) : NULL;
    }
    tg_mpi_group *g = tg_mpi_group_new(self, &seat->g->key, ranks, n, rank, name);
    return g ? seat_new(self, g, NULL) : NULL;
}

static tg_mpi_seat *split_inner(const tg_mpi_seat *seat, const int *ranks, int n, int rank, const char *name) {
    void *inner = NULL;
    tg_status s = NODE(seat, split, ranks, n, rank, name, &inner);
    return s == TG_OK ? seat_new(seat->self, NULL, inner) : NULL;
}

static tg_status mpi_split(tg_ctx *ctx, void *state, const int *ranks, int n, int rank, const char *name,
                           void **group) {
    tg_mpi_seat *seat = state;
    size_t bytes = (size_t)n * sizeof(int);
    if (seat->inner) {
        *group = split_inner(seat, ranks, n, rank, name);
        return *group ? TG_OK : ctx->status;
    }
    int *of_world = tg_host_alloc(ctx, bytes);
    if (!of_world) return ctx->status;
    for (int i = 0; i < n; i++) of_world[i] = seat->g->member[ranks[i]].rank;
    *group = split(seat, of_world, n, rank, name);
    tg_host_free(ctx, of_world, bytes);
    return *group ? TG_OK : ctx->status;
}

/* ---- The end ---- */

static bool everything_landed(tg_mpi_rank *self) { return tg_mpi_groups_sweep(self) && tg_mpi_sent(self); }

static bool all_gone(tg_mpi_rank *self) {
    for (int i = 0; i < self->size; i++)
        if (i != self->me && !self->peer[i].gone) return false;
    return tg_mpi_sent(self);
}

/* A rank says goodbye when nobody owes it anything any more, and then answers what others ask until they have said it
 * too: after that nothing comes. */
static void say_goodbye(tg_mpi_rank *self) {
    int over = 0;
    MPI_Finalized(&over);
    if (over || self->broken) return;
    tg_mpi_until(self, everything_landed);
    for (int i = 0; i < self->size; i++)
        if (i != self->me) tg_mpi_post(self, tg_mpi_draft(self, TG_MPI_BYE, NULL), i);
    tg_mpi_until(self, all_gone);
}

static void unlisten(tg_mpi_rank *self) {
    for (tg_listener **at = &self->ctx->listeners; *at; at = &(*at)->next)
        if (*at == &self->listener) {
            *at = self->listener.next;
            return;
        }
}

static void rank_free(tg_mpi_rank *self) {
    tg_ctx *ctx = self->ctx;
    tg_comm_free(self->node);
    unlisten(self);
    tg_mpi_link_close(self);
    for (tg_mpi_request *r = self->free, *next; r; r = next) {
        next = r->next;
        tg_host_free(ctx, r, sizeof *r);
    }
    tg_mpi_groups_free(self);
    tg_board_unref(ctx, self->board);
    for (int i = 0; self->peer && i < self->size; i++) tg_host_free(ctx, self->peer[i].failure, TG_MPI_FAILURE);
    tg_host_free(ctx, self->nodes, (size_t)self->size * sizeof *self->nodes);
    tg_host_free(ctx, self->peer, (size_t)self->size * sizeof *self->peer);
    tg_host_free(ctx, self, sizeof *self);
}

static void mpi_close(tg_ctx *ctx, void *state) {
    tg_mpi_seat *seat = state;
    tg_mpi_rank *self = seat->self;
    if (seat->inner)
        self->node->ops->close(ctx, seat->inner);
    else
        tg_mpi_group_close(seat->g);
    tg_host_free(ctx, seat, sizeof *seat);
    if (--self->open) return;
    say_goodbye(self);
    rank_free(self);
}

const tg_comm_ops tg_mpi_transport = {
    .size = sizeof(tg_comm_ops),
    .name = "mpi",
    .host = true,
    .start = mpi_start,
    .test = mpi_test,
    .wait = mpi_wait,
    .drop = mpi_drop,
    .split = mpi_split,
    .close = mpi_close,
    .abort = mpi_abort,
    .recover = mpi_recover,
};

/* ---- The world ---- */

static tg_status check_mpi(tg_ctx *ctx, MPI_Comm comm) {
    int begun = 0, over = 0, level = MPI_THREAD_SINGLE, main_thread = 0;
    MPI_Initialized(&begun);
    MPI_Finalized(&over);
    if (!begun || over)
        return tg_fail(ctx, TG_ERR_STATE, "tg_comm_mpi_new: MPI %s; call MPI_Init_thread first",
                       over ? "has been ended" : "has not been begun");
    if (comm == MPI_COMM_NULL) return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_comm_mpi_new: comm is MPI_COMM_NULL");
    MPI_Query_thread(&level);
    MPI_Is_thread_main(&main_thread);
    if (level < MPI_THREAD_SERIALIZED && !main_thread)
        return tg_fail(ctx, TG_ERR_STATE,
                       "tg_comm_mpi_new: MPI was begun by another thread, for that thread alone; ask "
                       "MPI_Init_thread for MPI_THREAD_SERIALIZED");
    return TG_OK;
}

/* A communicator of our own, so that our messages meet nobody else's. */
static tg_status duplicate(tg_mpi_rank *self, MPI_Comm comm) {
    MPI_Request r;
    double start = tg_shm_now();
    int done = 0;
    if (MPI_Comm_idup(comm, &self->comm, &r) != MPI_SUCCESS)
        return tg_fail(self->ctx, TG_ERR_IO, "tg_comm_mpi_new: MPI_Comm_idup failed");
    while (MPI_Test(&r, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done) {
        if (tg_shm_now() - start < self->ctx->deadline) continue;
        self->comm = MPI_COMM_NULL;
        return tg_fail(self->ctx, TG_ERR_TIMEOUT, "tg_comm_mpi_new: deadline of %g s passed before all ranks were here",
                       self->ctx->deadline);
    }
    MPI_Comm_set_errhandler(self->comm, MPI_ERRORS_RETURN);
    return TG_OK;
}

static tg_mpi_group *world_group(tg_mpi_rank *self) {
    size_t bytes = (size_t)self->size * sizeof(int);
    int *ranks = tg_host_alloc(self->ctx, bytes);
    for (int i = 0; ranks && i < self->size; i++) ranks[i] = i;
    tg_mpi_group *g = ranks ? tg_mpi_group_new(self, NULL, ranks, self->size, self->me, "world") : NULL;
    tg_host_free(self->ctx, ranks, bytes);
    return g;
}

static tg_status rank_open(tg_mpi_rank *self, MPI_Comm comm) {
    tg_ctx *ctx = self->ctx;
    MPI_Comm_rank(comm, &self->me);
    MPI_Comm_size(comm, &self->size);
    if (self->size > TG_MAX_RANKS)
        return tg_fail(ctx, TG_ERR_UNSUPPORTED, "tg_comm_mpi_new: %d ranks, at most %d", self->size, TG_MAX_RANKS);
    self->thread = pthread_self();
    self->spins = tg_system_cores() >= self->size * (ctx->threads > 0 ? ctx->threads : 1) ? 500 : 20;
    self->early_end = &self->early;
    self->peer = tg_host_alloc(ctx, (size_t)self->size * sizeof *self->peer);
    self->board = tg_board_new(ctx, NULL, 1, self->me, self->size, 0, false);
    if (!self->peer || !self->board) return ctx->status;
    TG_TRY(duplicate(self, comm));
    TG_TRY(tg_mpi_link_open(self));
    self->listener = tg_mpi_listener(ctx->listeners);
    ctx->listeners = &self->listener;
    return TG_OK;
}

static tg_comm *world(tg_ctx *ctx, MPI_Comm comm) {
    tg_mpi_rank *self = tg_host_alloc(ctx, sizeof *self);
    if (!self) return NULL;
    *self = (tg_mpi_rank){.ctx = ctx, .comm = MPI_COMM_NULL, .cause = -1};
    tg_mpi_group *g = rank_open(self, comm) == TG_OK ? world_group(self) : NULL;
    tg_mpi_seat *seat = g ? seat_new(self, g, NULL) : NULL;
    if (!seat) {
        rank_free(self);
        return NULL;
    }
    self->board->refs++;
    tg_comm *c = tg_comm_make(ctx, &tg_mpi_transport, seat, self->me, self->size, self->board);
    if (!c) mpi_close(ctx, seat);
    return c;
}

/* Where all ranks have met in the memory of one node, nothing is left for MPI to do. */
static tg_comm *settle(tg_comm *c) {
    tg_mpi_rank *self = ((tg_mpi_seat *)c->state)->self;
    tg_comm *node = NULL;
    bool in_one = false;
    size_t bytes = (size_t)c->size * sizeof(int);
    int *ranks = c->size > 1 ? tg_host_alloc(c->ctx, bytes) : NULL;
    self->nodes = ranks ? tg_host_alloc(c->ctx, (size_t)c->size * sizeof *self->nodes) : NULL;
    if (!self->nodes) return c;
    for (int i = 0; i < c->size; i++) ranks[i] = i;
    tg_comm *meeting = tg_comm_split_known(c, ranks, c->size, "nodes", TG_MAX_AXES);
    tg_host_free(c->ctx, ranks, bytes);
    tg_status s = meeting->ops ? tg_mpi_meet(meeting, &node, self->nodes, &in_one) : c->ctx->status;
    tg_comm_free(meeting);
    if (s == TG_OK && in_one) {
        tg_comm_free(c);
        return node;
    }
    self->node = node && node->ops ? node : NULL;
    return c;
}

tg_comm *tg_comm_mpi_new(tg_ctx *ctx, MPI_Comm comm) {
    tg_comm *c = tg_ok(ctx) && check_mpi(ctx, comm) == TG_OK ? world(ctx, comm) : NULL;
    return tg_comm_or_inert(c ? settle(c) : NULL);
}
