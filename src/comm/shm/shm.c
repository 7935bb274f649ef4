/* The functions of the shared-memory transport's table: requests, posting of calls, the rank slot, and the world
 * communicator. */
#include "comm/shm/shm.h"

#include "base/memory/host_memory.h"
#include "base/os.h"

/* ---- Requests ---- */

/* Allocates more free requests than are needed now. The number in flight depends on how fast the peers are. With the
 * spare ones, a training loop soon stops allocating. */
static tg_status more_requests(tg_shm_rank *self) {
    enum { MORE = 32 };
    for (int i = 0; i < MORE; i++) {
        tg_shm_request *r = tg_host_alloc(self->ctx, sizeof *r);
        if (!r) return self->ctx->run.status;
        r->next = self->free;
        self->free = r;
    }
    return TG_OK;
}

static tg_shm_request *request_new(tg_shm_group *s, const tg_transfer *t) {
    tg_shm_rank *self = s->self;
    if (!self->free && more_requests(self) != TG_OK) return NULL;
    tg_shm_request *r = self->free;
    self->free = r->next;
    *r = (tg_shm_request){.s = s, .kind = t->kind, .peer = t->root, .sequence = s->next, .record = t->record};
    r->entry = tg_transfer_entry(t, s->control.size);
    r->entry.sequence = s->next + 1;
    return r;
}

static void request_free(tg_shm_request *r) {
    r->next = r->s->self->free;
    r->s->self->free = r;
}

static void request_start(tg_shm_request *r) {
    tg_shm_rank *self = r->s->self;
    r->prev = self->last;
    if (self->last)
        self->last->next = r;
    else
        self->first = r;
    self->last = r;
}

/* ---- Posting ---- */

/* Stores where each rank's part begins. The members read it until the slot is reused. which: 0 for the parts that are
 * sent, 1 for those received. Returns 0 if counts is NULL: the parts are equal. */
static tg_shared begins(tg_shm_group *s, uint64_t sequence, const int64_t *counts, int which) {
    if (!counts) return 0;
    int64_t *at = s->begins + ((sequence % TG_CALLS) * 2 + (size_t)which) * (size_t)(s->control.size + 1);
    return (tg_shared)((uintptr_t)tg_parts_begin(at, counts, s->control.size) - s->self->view.base);
}

static tg_status reserve_begins(tg_shm_group *s, const tg_transfer *t) {
    if ((!t->send && !t->recv) || s->begins) return TG_OK;
    s->begins_bytes = sizeof(int64_t) * TG_CALLS * 2 * (size_t)(s->control.size + 1);
    if (!s->self->process) {
        s->begins = tg_host_alloc(s->self->ctx, s->begins_bytes);
        return s->begins ? TG_OK : s->self->ctx->run.status;
    }
    s->begins_block = tg_process_alloc(s->self->process, s->begins_bytes);
    if (!s->begins_block)
        return tg_fail(s->self->ctx, TG_ERR_MEMORY, "%s: out of shared memory for the counts of %d ranks",
                       tg_collective_name(t->kind), s->control.size);
    s->begins = tg_block_data(s->begins_block);
    return TG_OK;
}

static tg_shared ref_of(const tg_shm_group *s, const void *p) {
    return p ? (tg_shared)((uintptr_t)p - s->self->view.base) : 0;
}

static void fill_post(tg_shm_group *s, tg_post *p, const tg_transfer *t, uint64_t sequence) {
    p->src = ref_of(s, t->src);
    p->dst = ref_of(s, t->dst);
    p->send_at = begins(s, sequence, t->send, 0);
    p->recv_at = begins(s, sequence, t->recv, 1);
    p->count = t->count;
    p->site = (uint64_t)(uintptr_t)t->site;
    p->signature = tg_signature_of(t, s->control.size, tg_control_missed(&s->control));
    atomic_store_explicit(&p->posted, sequence + 1, memory_order_release);
}

static void mismatch(tg_shm_group *s, const tg_slot *slot, uint64_t sequence, int a, int b) {
    tg_call_entry one = tg_shm_post_entry(&slot->post[a], sequence), two = tg_shm_post_entry(&slot->post[b], sequence);
    tg_shm_mismatch(s, a, b, &one, &two);
}

/* Compares this rank's call, and the number of calls that it has missed, with those of the first member to arrive. A
 * difference ends the group at once, even if other members have not arrived. */
static void compare(tg_shm_group *s, tg_slot *slot, uint64_t sequence) {
    int none = 0;
    if (atomic_compare_exchange_strong_explicit(&slot->first, &none, s->control.rank + 1, memory_order_acq_rel,
                                                memory_order_acquire))
        return;
    const tg_signature *a = &slot->post[none - 1].signature, *b = &slot->post[s->control.rank].signature;
    if (a->missed != b->missed)
        tg_control_fail_by(&s->control, NULL, a->missed > b->missed ? none - 1 : s->control.rank,
                           ", and has missed a call since");
    else if (!tg_signature_equal(a, b))
        mismatch(s, slot, sequence, none - 1, s->control.rank);
}

static tg_pair_counts pair_of(const tg_region_view *v, const tg_post *p, int other) {
    return (tg_pair_counts){tg_part_size(tg_at(v, p->send_at), p->count, other),
                            tg_part_size(tg_at(v, p->recv_at), p->count, other)};
}

static bool has_posted(const tg_slot *slot, int member, uint64_t sequence) {
    return atomic_load_explicit(&slot->post[member].posted, memory_order_acquire) == sequence + 1;
}

/* For an all-to-all, checks against every member that has arrived that each of the two sends what the other expects. So
 * of any two members, the one that arrives later compares them, before any of their data may move. The fence ensures
 * that if two arrive at the same time, at least one sees the other. The counts are in the members' memory. tg_shm_enter
 * makes sure that a member does not free this memory meanwhile, even if the group fails. */
static void compare_pairs(tg_shm_group *s, tg_slot *slot, uint64_t sequence) {
    const tg_post *mine = &slot->post[s->control.rank];
    const tg_region_view *v = &s->self->view;
    if (mine->signature.kind != TG_ALL_TO_ALL || !tg_shm_enter(s)) return;
    atomic_thread_fence(memory_order_seq_cst);
    int other = -1;
    for (int i = 0; i < s->control.size && other < 0; i++) {
        if (i == s->control.rank || !has_posted(slot, i, sequence)) continue;
        if (!tg_pair_agrees(pair_of(v, mine, i), pair_of(v, &slot->post[i], s->control.rank))) other = i;
    }
    tg_shm_exit(s);
    if (other >= 0) mismatch(s, slot, sequence, s->control.rank, other);
}

/* Arrives at the call. The last member to arrive divides the work into pieces. If there is only one piece, this member
 * does it at once. */
static void arrive(tg_shm_group *s, tg_slot *slot, uint64_t sequence) {
    compare(s, slot, sequence);
    compare_pairs(s, slot, sequence);
    if (atomic_fetch_add_explicit(&slot->arrived, 1, memory_order_acq_rel) + 1 < s->control.size) return;
    if (!tg_shm_enter(s)) return;
    tg_shm_cut(s, slot);
    tg_shm_exit(s);
    atomic_store_explicit(&slot->ready, sequence + 1, memory_order_release);
    if (slot->parts * slot->pieces <= 1) tg_shm_run(s, slot);
    tg_shm_wake(s);
}

static tg_status post(tg_shm_group *s, const tg_transfer *t, tg_shm_request *r) {
    uint64_t sequence = s->next;
    tg_slot *slot = tg_group_slot(s->g, sequence);
    TG_TRY(reserve_begins(s, t));
    if (atomic_load_explicit(&slot->generation, memory_order_acquire) != sequence / TG_CALLS)
        TG_TRY(tg_control_wait(&s->control, NULL, slot, sequence));
    s->next++;
    r->slot = slot;
    fill_post(s, &slot->post[s->control.rank], t, sequence);
    request_start(r);
    arrive(s, slot, sequence);
    return TG_OK;
}

/* ---- The transport's slots ---- */

static tg_status post_call(tg_shm_group *s, const tg_transfer *given, tg_shm_request *r) {
    tg_transfer t = *given;
    if (s->self->process) TG_TRY(tg_shm_stage(s, &t, r));
    if (!tg_shm_is_message(r)) return post(s, &t, r);
    tg_shm_post_message(s, &t, r);
    request_start(r);
    return TG_OK;
}

static tg_status shm_start(tg_ctx *ctx, void *state, const tg_transfer *t, void **request) {
    tg_shm_group *s = state;
    if (atomic_load_explicit(&s->g->failed, memory_order_acquire)) return tg_control_failed(&s->control, false);
    tg_shm_request *r = request_new(s, t);
    if (!r) return ctx->run.status;
    for (tg_shm_request *q = s->self->first, *next; q; q = next) { /* ends finished calls: their slots are free then */
        next = q->next;
        tg_shm_check(q);
    }
    tg_status status = post_call(s, t, r);
    if (status != TG_OK) {
        tg_shm_unstage(r, false);
        request_free(r);
        return status;
    }
    *request = r;
    return TG_OK;
}

static bool shm_test(tg_ctx *ctx, void *state, void *request) {
    (void)ctx;
    tg_shm_group *s = state;
    tg_shm_request *r = request;
    if (r->done) return true;
    if (!tg_shm_has_failed(s)) tg_shm_progress(s->self);
    if (!r->done && !r->data && tg_shm_is_message(r)) tg_shm_settle_message(r);
    return r->done || tg_shm_has_failed(s);
}

static tg_status shm_wait(tg_ctx *ctx, void *state, void *request) {
    (void)ctx;
    return tg_control_wait(state, request, NULL, 0);
}

static void shm_drop(tg_ctx *ctx, void *state, void *request) {
    (void)ctx;
    tg_shm_request *r = request;
    tg_shm_rank *self = r->s->self;
    if (tg_control_wait(state, r, NULL, 0) != TG_OK) {
        tg_shm_unstage(r, false);
        *(r->prev ? &r->prev->next : &self->first) = r->next;
        *(r->next ? &r->next->prev : &self->last) = r->prev;
    }
    request_free(r);
}

static tg_control control_of(tg_shm_group *s, int rank, int n) {
    tg_shm_rank *self = s->self;
    return (tg_control){.ops = &tg_shm_control,
                        .mover = &tg_shm_mover,
                        .ctx = self->ctx,
                        .name = s->g->name,
                        .me = self->view.me,
                        .rank = rank,
                        .size = n,
                        .cause = &self->cause,
                        .patience = tg_shm_patience(self),
                        .missed = self->ctx->run.missed};
}

/* Makes a communicator's state. Leaves the group and returns NULL on error. */
static void *group_state(tg_shm_rank *self, tg_group *g, int rank, int n) {
    tg_shm_group *s = tg_host_alloc(self->ctx, sizeof *s);
    uint64_t *pairs = s ? tg_host_alloc(self->ctx, sizeof *pairs * 4 * (size_t)n) : NULL;
    if (!pairs) {
        tg_host_free(self->ctx, s, sizeof *s);
        tg_group_leave(&self->view, g, rank);
        return NULL;
    }
    *s = (tg_shm_group){.self = self,
                        .g = g,
                        .pairs = pairs,
                        .pairs_bytes = sizeof *pairs * 4 * (size_t)n,
                        .sibling = self->group};
    s->control = control_of(s, rank, n);
    self->group = s;
    return s;
}

tg_status tg_shm_split(tg_ctx *ctx, void *state, uint64_t origin, const int *ranks, int n, int rank, const char *name,
                       void **group) {
    tg_shm_group *s = state;
    int *of_world = tg_host_alloc(ctx, (size_t)n * sizeof *of_world);
    if (!of_world) return ctx->run.status;
    for (int i = 0; i < n; i++) of_world[i] = tg_group_member(s->g, ranks[i])->rank;
    tg_group *g = tg_group_join(ctx, &s->self->view, origin, of_world, n, rank, name);
    tg_host_free(ctx, of_world, (size_t)n * sizeof *of_world);
    if (!g) return ctx->run.status;
    *group = group_state(s->self, g, rank, n);
    return *group ? TG_OK : ctx->run.status;
}

static tg_status shm_split(tg_ctx *ctx, void *state, const int *ranks, int n, int rank, const char *name, bool all,
                           void **group) {
    (void)all;
    return tg_shm_split(ctx, state, ((tg_shm_group *)state)->g->id, ranks, n, rank, name, group);
}

static void detach_context(tg_shm_rank *self);

static void rank_free(tg_shm_rank *self) {
    tg_ctx *ctx = self->ctx;
    for (tg_shm_request *r = self->free, *next; r; r = next) {
        next = r->next;
        tg_host_free(ctx, r, sizeof *r);
    }
    tg_recorder_unref(ctx, self->recorder);
    if (self->process) tg_process_close(self->process);
    tg_host_free(ctx, self, sizeof *self);
}

/* A process that closes its last group counts as returned. This is published before it leaves the group, so that peers
 * report that it has returned, and not that it has freed a communicator. (A thread has published its return before.) */
static void shm_close(tg_ctx *ctx, void *state) {
    tg_shm_group *s = state;
    tg_shm_rank *self = s->self;
    bool last = self->group == s && !s->sibling;
    if (last) detach_context(self);
    tg_group_leave(&self->view, s->g, s->control.rank);
    if (s->begins_block)
        tg_process_free(self->process, s->begins_block);
    else
        tg_host_free(ctx, s->begins, s->begins_bytes);
    tg_host_free(ctx, s->pairs, s->pairs_bytes);
    for (tg_shm_group **at = &self->group; *at; at = &(*at)->sibling)
        if (*at == s) {
            *at = s->sibling;
            break;
        }
    tg_host_free(ctx, s, sizeof *s);
    if (last) rank_free(self);
}

static void shm_abort(tg_ctx *ctx, void *state, const char *why) {
    (void)ctx;
    tg_control_abandon(state, why);
}

static tg_status shm_poll(tg_ctx *ctx, void *state, void *request, double waited) {
    (void)ctx;
    return tg_control_poll(state, request, waited);
}

/* Leaves the group that has failed, and uses g from now on. */
static void replace_group(tg_shm_group *s, tg_group *g, int rank, int size) {
    tg_group_leave(&s->self->view, s->g, s->control.rank);
    memset(s->pairs, 0, s->pairs_bytes);
    s->g = g;
    s->control = control_of(s, rank, size);
    s->next = s->messages = 0;
    s->slots_used = 0; /* the slots of lost messages stay in the old group */
    s->watched = NULL;
}

static tg_status shm_recover(tg_ctx *ctx, void *state, int *rank, int *size) {
    tg_shm_group *s = state;
    size_t bytes = (size_t)s->control.size * sizeof(int);
    int n = 0, mine = -1, *ranks = tg_host_alloc(ctx, bytes);
    if (!ranks) return ctx->run.status;
    tg_status status = tg_control_regroup(&s->control, ranks, &n, &mine);
    uint64_t origin = s->g->id | TG_ORIGIN_RECOVERY;
    tg_group *g = status == TG_OK ? tg_group_join(ctx, &s->self->view, origin, ranks, n, mine, s->g->name) : NULL;
    tg_host_free(ctx, ranks, bytes);
    if (!g) return ctx->run.status;
    replace_group(s, g, mine, n);
    *rank = mine;
    *size = n;
    return TG_OK;
}

#define TRANSPORT(name_)                                                                                     \
    {.size = sizeof(tg_comm_ops), .name = name_, .host = true, .start = shm_start, .test = shm_test,         \
     .wait = shm_wait, .drop = shm_drop, .split = shm_split, .close = shm_close, .abort = shm_abort,         \
     .recover = shm_recover, .poll = shm_poll}

const tg_comm_ops tg_threads_transport = TRANSPORT("threads");
const tg_comm_ops tg_processes_transport = TRANSPORT("shm");

/* ---- The rank slot ---- */

static tg_shm_rank *rank_of(tg_listener *l) { return (tg_shm_rank *)l; }

/* Publishes the context's first error in the rank slot at once, so that peers that wait for this rank find it. A rank
 * that has returned keeps what it has published. */
static void post_failure(tg_listener *l) {
    const tg_shm_rank *self = rank_of(l);
    tg_rank_slot *rank_slot = tg_shm_own_rank_slot(self);
    if (atomic_load_explicit(&rank_slot->state, memory_order_relaxed) == TG_RANK_RETURNED) return;
    uint64_t order = 1 + atomic_fetch_add_explicit(&self->view.region->failures, 1, memory_order_relaxed);
    tg_shared_text_write(&rank_slot->failure, self->ctx->run.message);
    atomic_store_explicit(&rank_slot->order, order, memory_order_relaxed);
    int cause = self->ctx->run.status == TG_ERR_REMOTE ? self->cause : -1;
    atomic_store_explicit(&rank_slot->cause, cause, memory_order_relaxed);
    atomic_store_explicit(&rank_slot->status, (int)self->ctx->run.status, memory_order_release);
    atomic_store_explicit(&rank_slot->state, TG_RANK_FAILED, memory_order_release);
}

/* Keeps the error's text: a peer may notice later that this rank has missed a call. */
static void post_recovery(tg_listener *l) {
    tg_rank_slot *rank_slot = tg_shm_own_rank_slot(rank_of(l));
    if (atomic_load_explicit(&rank_slot->state, memory_order_relaxed) == TG_RANK_RETURNED) return;
    atomic_store_explicit(&rank_slot->order, 0, memory_order_relaxed);
    atomic_store_explicit(&rank_slot->status, TG_OK, memory_order_relaxed);
    atomic_store_explicit(&rank_slot->state, TG_RANK_RUNNING, memory_order_release);
}

static void post_missed(tg_listener *l) {
    const tg_shm_rank *self = rank_of(l);
    atomic_store_explicit(&tg_shm_own_rank_slot(self)->missed_calls, self->ctx->run.missed, memory_order_release);
}

/* ---- The world ---- */

/* Connects the context to the rank slot: its heartbeat, its errors, and the calls that it misses. */
static void attach_context(tg_shm_rank *self) {
    tg_ctx *ctx = self->ctx;
    tg_rank_slot *rank_slot = tg_shm_own_rank_slot(self);
    ctx->run.heartbeat = &rank_slot->heartbeat;
    self->listener = (tg_listener){.failed = post_failure, .cleared = post_recovery, .skipped = post_missed};
    tg_ctx_listen(ctx, &self->listener);
    atomic_store_explicit(&rank_slot->missed_calls, ctx->run.missed, memory_order_relaxed);
    atomic_store_explicit(&rank_slot->state, TG_RANK_RUNNING, memory_order_release);
}

static void detach_context(tg_shm_rank *self) {
    tg_ctx *ctx = self->ctx;
    tg_ctx_unlisten(ctx, &self->listener);
    ctx->run.heartbeat = &ctx->run.own_heartbeat;
    if (self->process)
        atomic_store_explicit(&tg_shm_own_rank_slot(self)->state, TG_RANK_RETURNED, memory_order_release);
}

static tg_group *join_world(tg_ctx *ctx, const tg_region_view *view) {
    int n = view->region->size;
    int *ranks = tg_host_alloc(ctx, (size_t)n * sizeof *ranks);
    if (!ranks) return NULL;
    for (int i = 0; i < n; i++) ranks[i] = i;
    tg_group *g = tg_group_join(ctx, view, 0, ranks, n, view->me, "world");
    tg_host_free(ctx, ranks, (size_t)n * sizeof *ranks);
    return g;
}

/* Returns how many rounds of a wait spin. They are few if the ranks have more threads than there are cores, because
 * another rank may need this core. */
static int spins_of(const tg_ctx *ctx, int ranks) {
    return tg_system_cores() >= ranks * (ctx->run.threads > 0 ? ctx->run.threads : 1) ? 2000 : 20;
}

/* Makes the state of a rank. Closes `process` on error. Attaches the context before the rank joins a group: if a later
 * step of tg_shm_world fails, peers must find the reason before they find that this rank has left. */
static tg_shm_rank *rank_new(tg_ctx *ctx, const tg_region_view *view, tg_process *process) {
    int n = view->region->size;
    tg_shm_rank *self = tg_host_alloc(ctx, sizeof *self);
    tg_recorder *recorder = self ? tg_recorder_new(ctx, view->region->rank_slot, n, 0, n, view->me, !process) : NULL;
    if (!recorder) {
        tg_host_free(ctx, self, sizeof *self);
        if (process) tg_process_close(process);
        return NULL;
    }
    *self = (tg_shm_rank){.ctx = ctx,
                          .view = *view,
                          .recorder = recorder,
                          .process = process,
                          .cause = -1,
                          .spins = spins_of(ctx, n)};
    attach_context(self);
    return self;
}

tg_comm *tg_shm_world(tg_ctx *ctx, const tg_region_view *view, tg_process *process) {
    const tg_comm_ops *ops = process ? &tg_processes_transport : &tg_threads_transport;
    int n = view->region->size;
    tg_shm_rank *self = rank_new(ctx, view, process);
    if (!self) return NULL;
    tg_group *g = join_world(ctx, view);
    tg_shm_group *s = g ? group_state(self, g, view->me, n) : NULL;
    if (!s) {
        detach_context(self);
        rank_free(self);
        return NULL;
    }
    self->recorder->refs++;
    tg_comm *c = tg_comm_make(ctx, ops, s, view->me, n, self->recorder);
    if (!c) shm_close(ctx, s);
    return c;
}
