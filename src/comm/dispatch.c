/* Dispatch: checks, records, counts and starts every collective, and implements the works that collectives return. */
#include "base/memory/host_memory.h"
#include "base/text.h"
#include "core/capture/capture.h"
#include "core/work.h"
#include "comm/comm.h"

/* A call while it is being dispatched. */
typedef struct dispatch {
    tg_comm *c;
    const tg_collective_args *a;
    const char *name;
    tg_transfer t;
} dispatch;

/* ---- Checks ---- */

/* Checks dst or src. role: the name of the tensor in errors. wanted: this rank must pass the tensor; if false, the
 * tensor must be NULL. */
static tg_status check_tensor(const dispatch *e, const tg_tensor *x, const char *role, bool wanted) {
    tg_ctx *ctx = e->c->ctx;
    char what[160];
    if (!wanted && !x) return TG_OK;
    if (!wanted || !x)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: %s is %s on rank %d of %d", e->name, role,
                       x ? "given, expected NULL" : "NULL", e->c->rank, e->c->size);
    TG_TRY(tg_check(ctx, x, e->name));
    if (TG_LIKELY(tg_comm_moves(x->dtype) && x->flags & TG_F_CONTIGUOUS)) return TG_OK;
    tg_describe(x, what, sizeof what);
    if (!tg_comm_moves(x->dtype))
        return tg_fail(ctx, TG_ERR_DTYPE, "%s: %s %s has a dtype that collectives do not move; cast it first (tg_cast)",
                       e->name, role, what);
    return tg_fail(ctx, TG_ERR_SHAPE, "%s: %s %s is not contiguous; copy it first (tg_contiguous)", e->name, role,
                   what);
}

/* Return whether this rank must pass dst, or src. */
static bool has_dst(const dispatch *e) {
    tg_collective k = e->a->kind;
    return k == TG_GATHER ? e->c->rank == e->a->root : k != TG_SEND && k != TG_BARRIER;
}

static bool has_src(const dispatch *e) {
    tg_collective k = e->a->kind;
    return k == TG_SCATTER ? e->c->rank == e->a->root : k != TG_RECV && k != TG_BARRIER && k != TG_BROADCAST;
}

static tg_status check_tensors(const dispatch *e) {
    const tg_collective_args *a = e->a;
    TG_TRY(check_tensor(e, a->dst, a->kind == TG_BROADCAST ? "x" : "dst", has_dst(e)));
    TG_TRY(check_tensor(e, a->src, "src", has_src(e)));
    if (a->dst && a->src && a->dst->dtype != a->src->dtype)
        return tg_fail(e->c->ctx, TG_ERR_DTYPE, "%s: dst is %s and src is %s, expected one dtype", e->name,
                       tg_dtype_name(a->dst->dtype), tg_dtype_name(a->src->dtype));
    return TG_OK;
}

static tg_status check_scalars(const dispatch *e) {
    const tg_collective_args *a = e->a;
    tg_ctx *ctx = e->c->ctx;
    int n = e->c->size;
    bool rooted = a->kind == TG_BROADCAST || a->kind == TG_GATHER || a->kind == TG_SCATTER;
    bool paired = a->kind == TG_SEND || a->kind == TG_RECV;
    const char *peer = a->kind == TG_SEND ? "to" : "from";
    if ((rooted || paired) && (a->root < 0 || a->root >= n))
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: %s is %d, expected 0 to %d", e->name, rooted ? "root" : peer, a->root,
                       n - 1);
    if (paired && a->root == e->c->rank)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: %s is %d, which is this rank; expected another", e->name, peer,
                       a->root);
    if (e->c->batch && !paired)
        return tg_fail(ctx, TG_ERR_STATE, "%s: a batch of sends and receives is open; call tg_comm_batch_close first",
                       e->name);
    return TG_OK;
}

static tg_status check_reduction(const dispatch *e) {
    const tg_collective_args *a = e->a;
    if (a->kind != TG_ALL_REDUCE && a->kind != TG_REDUCE_SCATTER) return TG_OK;
    if ((unsigned)a->op > TG_REDUCE_AVG)
        return tg_fail(e->c->ctx, TG_ERR_ARGUMENT, "%s: op is %d, expected TG_REDUCE_SUM, MAX, MIN or AVG", e->name,
                       (int)a->op);
    if (a->op == TG_REDUCE_AVG && !tg_is_float(a->src->dtype))
        return tg_fail(e->c->ctx, TG_ERR_DTYPE, "%s: op is TG_REDUCE_AVG and src has dtype %s, expected a float dtype",
                       e->name, tg_dtype_name(a->src->dtype));
    return TG_OK;
}

/* ---- Sizes ---- */

/* Checks that the counts of all ranks add up to numel, the number of elements of the tensor `role`. */
static tg_status check_counts(const dispatch *e, const int64_t *counts, int64_t numel, const char *role) {
    int64_t sum = 0;
    for (int r = 0; r < e->c->size; r++) {
        if (counts[r] < 0)
            return tg_fail(e->c->ctx, TG_ERR_ARGUMENT, "%s: the count of rank %d is %lld, expected 0 or more", e->name,
                           r, (long long)counts[r]);
        if (__builtin_add_overflow(sum, counts[r], &sum)) sum = INT64_MAX;
    }
    if (sum == numel) return TG_OK;
    return tg_fail(e->c->ctx, TG_ERR_SHAPE,
                   "%s: the counts add up to %lld elements but %s has %lld; expected equal numbers", e->name,
                   (long long)sum, role, (long long)numel);
}

static tg_status check_size(const dispatch *e, const tg_tensor *x, const char *role, int64_t expected,
                            const char *why) {
    if (x->numel == expected) return TG_OK;
    return tg_fail(e->c->ctx, TG_ERR_SHAPE, "%s: %s has %s, expected %lld (%s)", e->name, role,
                   tg_count(x->numel, "element").text, (long long)expected, why);
}

/* Sets the call's count to the size of `part`, and checks that `whole` consists of one part for each rank and that
 * `part` has the size of this rank's part. counts: the sizes of all parts; NULL: they are equal. */
static tg_status size_parts(dispatch *e, const tg_tensor *whole, const char *whole_role, const tg_tensor *part,
                            const char *part_role, const int64_t *counts) {
    e->t.count = part->numel;
    if (!counts) {
        int64_t all;
        if (__builtin_mul_overflow(part->numel, (int64_t)e->c->size, &all)) all = -1;
        return check_size(e, whole, whole_role, all, "a part for each rank");
    }
    TG_TRY(check_counts(e, counts, whole->numel, whole_role));
    return check_size(e, part, part_role, counts[e->c->rank], "this rank's count");
}

/* Checks the sizes of an all-to-all. If the caller gives no counts, sets the call's count to the size of one part. */
static tg_status size_all_to_all(dispatch *e) {
    const tg_collective_args *a = e->a;
    if (!a->send != !a->recv)
        return tg_fail(e->c->ctx, TG_ERR_ARGUMENT,
                       "%s: %s is NULL and the other counts are not; expected both or neither", e->name,
                       a->send ? "recv_counts" : "send_counts");
    if (a->send) {
        TG_TRY(check_counts(e, a->send, a->src->numel, "src"));
        return check_counts(e, a->recv, a->dst->numel, "dst");
    }
    if (a->src->numel % e->c->size)
        return tg_fail(e->c->ctx, TG_ERR_SHAPE, "%s: src has %s, expected a multiple of the %d ranks", e->name,
                       tg_count(a->src->numel, "element").text, e->c->size);
    e->t.count = a->src->numel / e->c->size;
    return check_size(e, a->dst, "dst", a->src->numel, "as many as src");
}

/* Checks that dst and src fit each other, and sets the call's count and the sizes of its parts. */
static tg_status size_call(dispatch *e) {
    const tg_collective_args *a = e->a;
    switch (a->kind) {
    case TG_ALL_REDUCE:
        e->t.count = a->src->numel;
        return check_size(e, a->dst, "dst", a->src->numel, "as many as src");
    case TG_ALL_GATHER: e->t.recv = a->recv; return size_parts(e, a->dst, "dst", a->src, "src", a->recv);
    case TG_REDUCE_SCATTER: e->t.send = a->send; return size_parts(e, a->src, "src", a->dst, "dst", a->send);
    case TG_ALL_TO_ALL: e->t.send = a->send, e->t.recv = a->recv; return size_all_to_all(e);
    case TG_GATHER:
        e->t.count = a->src->numel;
        return a->dst ? size_parts(e, a->dst, "dst", a->src, "src", NULL) : TG_OK;
    case TG_SCATTER:
        e->t.count = a->dst->numel;
        return a->src ? size_parts(e, a->src, "src", a->dst, "dst", NULL) : TG_OK;
    case TG_BARRIER: return TG_OK;
    default: e->t.count = a->src ? a->src->numel : a->dst->numel; return TG_OK;
    }
}

/* ---- Memory ---- */

/* Returns the offset in elements of rank `rank`'s part. counts NULL: every part has `count` elements. */
static int64_t elements_before(const int64_t *counts, int64_t count, int rank) {
    int64_t sum = counts ? 0 : count * rank;
    for (int r = 0; counts && r < rank; r++) sum += counts[r];
    return sum;
}

/* Returns the offset in elements from dst to src that an in-place call must have. */
static int64_t in_place_at(const dispatch *e) {
    switch (e->a->kind) {
    case TG_ALL_GATHER: return elements_before(e->t.recv, e->t.count, e->c->rank);
    case TG_REDUCE_SCATTER: return -elements_before(e->t.send, e->t.count, e->c->rank);
    case TG_GATHER: return e->t.count * e->c->rank;
    case TG_SCATTER: return -e->t.count * e->c->rank;
    default: return 0;
    }
}

/* Fails if dst and src overlap, unless the call is in place. */
static tg_status check_overlap(const dispatch *e) {
    const char *d = e->t.dst, *s = e->t.src;
    if (!d || !s) return TG_OK;
    int64_t size = (int64_t)tg_dtype_size(e->t.dtype);
    const char *d_end = d + e->a->dst->numel * size, *s_end = s + e->a->src->numel * size;
    if (d == d_end || s == s_end || d >= s_end || s >= d_end) return TG_OK;
    if (s - d != in_place_at(e) * size)
        return tg_fail(
            e->c->ctx, TG_ERR_ARGUMENT,
            "%s: dst and src overlap; expected separate memory, or a call in place: both the same memory, or the "
            "smaller one at this rank's part of the larger one",
            e->name);
    if (e->t.send && e->t.recv && memcmp(e->t.send, e->t.recv, (size_t)e->c->size * sizeof *e->t.send))
        return tg_fail(e->c->ctx, TG_ERR_ARGUMENT,
                       "%s: dst and src are the same memory, so send_counts and recv_counts must be equal", e->name);
    return TG_OK;
}

/* Sets the addresses of src and dst and checks them. First waits for the pending works that this call must follow: the
 * work that fills src, because src must have its value; the work that fills dst, because at most one work may fill a
 * storage; and the works that still read dst. A receive does not wait for the readers of dst: two ranks that send a
 * tensor to each other and then receive into the same tensor would wait for each other forever. Before a receive the
 * caller must make sure that dst is no longer read. */
static tg_status prepare_memory(dispatch *e) {
    tg_tensor *d = e->a->dst, *s = e->a->src;
    const tg_comm_ops *ops = e->c->ops;
    tg_ctx *ctx = e->c->ctx;
    if (ops->host && e->c->size > 1 && (!ctx->host || ctx->meta))
        return tg_fail(ctx, TG_ERR_DEVICE,
                       "%s: transport \"%s\" moves host memory, and cannot move that of device \"%s\"; create a "
                       "communicator %s",
                       e->name, ops->name, ctx->run.ops->name,
                       ctx->meta ? "without peers with tg_comm_plan_new" : "of GPUs with tg_comm_nccl_new");
    if (s) TG_TRY(tg_storage_need(s->storage, s));
    if (d) TG_TRY(tg_storage_need(d->storage, d));
    if (d) TG_TRY(tg_storage_check_write(d->storage, e->name));
    if (d && e->a->kind != TG_RECV) TG_TRY(tg_storage_await_readers(d->storage));
    e->t.src = s && s->numel ? tg_data(s) : NULL;
    e->t.dst = d && d->numel ? tg_data(d) : NULL;
    return check_overlap(e);
}

/* ---- Dispatch ---- */

static tg_status check_dispatch(dispatch *e) {
    TG_TRY(check_scalars(e));
    TG_TRY(check_tensors(e));
    TG_TRY(check_reduction(e));
    TG_TRY(size_call(e));
    return prepare_memory(e);
}

/* Copies src to dst. That is all that a call does in a group of one rank. */
static tg_status copy_own(const dispatch *e) {
    tg_ctx *ctx = e->c->ctx;
    if (!e->t.dst || !e->t.src || e->t.dst == e->t.src) return TG_OK;
    size_t bytes = (size_t)e->a->dst->numel * tg_dtype_size(e->t.dtype);
    return ctx->run.ops->copy(ctx, e->t.dst, e->t.src, bytes, TG_COPY_DEVICE);
}

/* Returns the number of elements that count_call counts for this rank. */
static int64_t payload(const dispatch *e) {
    const tg_tensor *d = e->a->dst, *s = e->a->src;
    switch (e->a->kind) {
    case TG_BARRIER: return 0;
    case TG_ALL_GATHER:
    case TG_BROADCAST:
    case TG_SCATTER:
    case TG_RECV: return d->numel;
    default: return s->numel;
    }
}

/* Counts the call in its communicator, and in those that the communicator was split from. */
static void count_call(const dispatch *e) {
    int64_t bytes = payload(e) * (int64_t)tg_dtype_size(e->t.dtype);
    for (tg_comm *c = e->c; c; c = c->parent) {
        c->counts.calls[e->a->kind]++;
        c->counts.bytes[e->a->kind] += bytes;
    }
}

static tg_call_entry entry_of(const dispatch *e, uint64_t sequence) {
    const tg_comm *c = e->c;
    tg_call_entry entry = tg_transfer_entry(&e->t, c->size);
    entry.sequence = sequence;
    size_t at = 0;
    tg_text(entry.group, sizeof entry.group, &at, "%s", *c->name ? c->name : "world");
    return entry;
}

/* Records the call in the flight recorder. Also advances the heartbeat, because a rank that makes calls is alive. A
 * send or a receive has no number of its own, because only two ranks know of it: it is recorded with the number of the
 * next collective of its group. */
static void record_call(const dispatch *e, tg_comm_request *r) {
    tg_comm *c = e->c;
    uint64_t beats = atomic_load_explicit(c->ctx->run.heartbeat, memory_order_relaxed);
    atomic_store_explicit(c->ctx->run.heartbeat, beats + 1, memory_order_relaxed);
    bool counts = e->a->kind != TG_SEND && e->a->kind != TG_RECV;
    tg_call_entry entry = entry_of(e, c->sequence + 1);
    c->sequence += counts;
    r->entry = tg_recorder_post(c->recorder, &entry);
}

/* Adds the call to the step that is being captured. No data moves now. Each replay of the step moves the data, and is
 * counted, compared and recorded (captured.c). */
static tg_status start_captured(dispatch *e, tg_comm_request *r) {
    tg_comm *c = e->c;
    tg_call_entry entry = entry_of(e, 0);
    if (e->a->kind == TG_BARRIER) return tg_recording_refuse(c->ctx, e->name, TG_RECORDING_WAIT, e->a->site);
    if (!c->ops->queued)
        return tg_fail(c->ctx, TG_ERR_UNSUPPORTED, "%s: transport \"%s\" cannot be captured: the host moves its data",
                       e->name, c->ops->name);
    TG_TRY(tg_replay_add(c, &entry, payload(e) * (int64_t)tg_dtype_size(e->t.dtype), !e->t.send && !e->t.recv));
    return r->status = c->ops->start(c->ctx, c->state, &e->t, &r->request);
}

static tg_status start(dispatch *e, tg_comm_request *r) {
    tg_comm *c = e->c;
    if (c->size == 1) return copy_own(e);
    if (c->ctx->capture) return start_captured(e, r);
    record_call(e, r);
    e->t.record = r->entry;
    r->status = c->ops->start(c->ctx, c->state, &e->t, &r->request);
    if (r->status == TG_OK) count_call(e);
    return r->status;
}

/* Hands the work over to dst's storage. The work of a call without dst belongs to the communicator, until tg_comm_reap
 * or tg_work_wait ends it. */
static tg_work *give_away(const dispatch *e, tg_comm_request *r) {
    tg_work *w = r->work;
    if (e->a->src && (!e->a->dst || e->a->dst->storage != e->a->src->storage)) tg_work_reads(w, e->a->src->storage);
    if (!e->a->dst) {
        r->ownerless = true;
        e->c->ownerless++;
        return w;
    }
    tg_storage_wrote(e->a->dst->storage, e->name, e->a->site);
    return tg_work_fills(w, e->a->dst->storage) == TG_OK ? w : NULL;
}

/* Notifies the peers that this rank misses the call, so that they do not wait for it. Returns NULL. */
static tg_work *miss(tg_comm *c) {
    tg_comm_note_missed(c, TG_ERR_ABORTED);
    return NULL;
}

static tg_work *no_comm(const tg_collective_args *a) {
    const tg_tensor *x = a->dst ? a->dst : a->src;
    if (tg_is_alive(x)) tg_fail(x->ctx, TG_ERR_ARGUMENT, "%s: the communicator is NULL", tg_collective_name(a->kind));
    return NULL;
}

static tg_status reserve(tg_comm *c);

tg_work *tg_comm_start(tg_comm *c, const tg_collective_args *a) {
    if (!c) return no_comm(a);
    if (!tg_comm_ok(c)) return miss(c);
    const tg_tensor *any = a->dst ? a->dst : a->src;
    dispatch e = {.c = c, .a = a, .name = tg_collective_name(a->kind)};
    e.t = (tg_transfer){.size = sizeof e.t, .kind = a->kind, .op = a->op, .root = a->root, .site = a->site};
    e.t.dtype = any ? (tg_dtype)any->dtype : TG_U8;
    if (tg_comm_check_ended(c, e.name) != TG_OK || check_dispatch(&e) != TG_OK) return miss(c);
    tg_comm_reap(c);
    if (!a->dst && a->kind != TG_BARRIER && reserve(c) != TG_OK) return miss(c);
    tg_comm_request *r = tg_comm_request_new(c);
    if (!r) return miss(c);
    if ((!a->dst || tg_storage_extra_of(a->dst->storage)) && start(&e, r) == TG_OK) return give_away(&e, r);
    tg_work_abandon(r->work);
    return miss(c);
}

/* ---- Works ---- */

static bool request_test(void *self) {
    tg_comm_request *r = self;
    return !r->request || r->comm->ops->test(r->comm->ctx, r->comm->state, r->request);
}

static tg_status request_wait(tg_ctx *ctx, void *self) {
    tg_comm_request *r = self;
    tg_comm *c = r->comm;
    if (!r->request) return r->status;
    _Atomic uint64_t *waiting = &c->recorder->rank_slot[c->recorder->me].waiting;
    atomic_store_explicit(waiting, r->entry, memory_order_relaxed);
    r->status = c->ops->wait(ctx, c->state, r->request);
    r->waited = true;
    atomic_store_explicit(waiting, 0, memory_order_relaxed);
    return r->status;
}

static void request_abort(void *self) { (void)self; } /* request_free, which follows, ends the call */

tg_status tg_comm_record_end(tg_comm *c, uint64_t record, tg_status status) {
    if (!c) return TG_ERR_ARGUMENT;
    if (!c->ops) return c->ctx->run.status;
    uint64_t calls = tg_recorder_calls(c->recorder);
    if (!c->ops->queued)
        return tg_fail(c->ctx, TG_ERR_ARGUMENT,
                       "tg_comm_record_end: c is of transport \"%s\", which is not queued; the library itself ends its "
                       "calls",
                       c->ops->name);
    if (record > calls)
        return tg_fail(c->ctx, TG_ERR_ARGUMENT,
                       "tg_comm_record_end: record is %llu, expected the number of a call (tg_transfer.record); the "
                       "last one has %llu",
                       (unsigned long long)record, (unsigned long long)calls);
    tg_recorder_finish(c->recorder, record, status == TG_OK);
    return TG_OK;
}

/* Ends the transport's request and records whether the call succeeded. A `queued` transport itself records the end of
 * its requests. */
static void end_request(tg_comm_request *r) {
    tg_comm *c = r->comm;
    if (r->request && !r->waited) r->status = c->ops->wait(c->ctx, c->state, r->request); /* recorded below */
    if (r->request) c->ops->drop(c->ctx, c->state, r->request);
    if (r->entry && !(c->ops->queued && r->request)) tg_recorder_finish(c->recorder, r->entry, r->status == TG_OK);
    r->request = NULL;
    r->entry = 0;
}

static void request_free(void *self) {
    tg_comm_request *r = self;
    tg_comm *c = r->comm;
    end_request(r);
    if (r->ownerless) c->ownerless--;
    r->prev->next = r->next;
    r->next->prev = r->prev;
    r->next = c->free;
    c->free = r;
}

static const tg_work_ops request_ops = {.size = sizeof(tg_work_ops),
                                        .name = "a collective",
                                        .test = request_test,
                                        .wait = request_wait,
                                        .abort = request_abort,
                                        .free = request_free};

tg_comm *tg_comm_of_work(const tg_work *w) {
    return w->ops == &request_ops ? ((const tg_comm_request *)w->self)->comm : NULL;
}

tg_comm_request *tg_comm_request_new(tg_comm *c) {
    tg_comm_request *r = c->free;
    if (r)
        c->free = r->next;
    else if (!(r = tg_host_alloc(c->ctx, sizeof *r)))
        return NULL;
    *r = (tg_comm_request){.comm = c, .next = &c->live, .prev = c->live.prev};
    r->work = tg_work_new(c->ctx, &request_ops, r);
    if (!r->work) {
        r->next = c->free;
        c->free = r;
        return NULL;
    }
    r->prev->next = c->live.prev = r;
    return r;
}

/* The caller may hold the handle of a work that no storage owns, even after the work is done. So the last KEPT of these
 * works are not freed. */
enum { KEPT = 32 };

/* Allocates requests and works for the calls without dst, whose works no storage owns, before the first of these calls
 * starts. Barriers need none: each ends before it returns. */
static tg_status reserve(tg_comm *c) {
    if (c->reserved) return TG_OK;
    TG_TRY(tg_works_reserve(c->ctx, 2 * KEPT));
    for (int i = 0; i < 2 * KEPT; i++) {
        tg_comm_request *r = tg_host_alloc(c->ctx, sizeof *r);
        if (!r) return c->ctx->run.status;
        r->next = c->free;
        c->free = r;
    }
    c->reserved = true;
    return TG_OK;
}

void tg_comm_reap(tg_comm *c) {
    int seen = c->ownerless;
    for (tg_comm_request *r = c->live.next, *next; seen > 0 && r != &c->live; r = next) {
        next = r->next;
        if (!r->ownerless) continue;
        seen--;
        if (!request_test(r)) continue;
        end_request(r); /* reports a failure */
        if (c->ownerless > KEPT)
            tg_work_end(r->work);
        else
            tg_work_over(r->work);
    }
}

void tg_comm_finish_all(tg_comm *c) {
    while (c->live.next != &c->live) {
        tg_work *w = c->live.next->work;
        if (w->fills)
            tg_storage_need(w->fills, NULL);
        else if (!c->live.next->request)
            tg_work_end(w); /* tg_comm_reap has reported its result */
        else
            tg_work_finish(w);
    }
}

tg_status tg_comm_exchange(tg_comm *c, tg_transfer *call) {
    void *request = NULL;
    call->size = sizeof *call;
    c->sequence++; /* like a collective that is recorded: errors count it too */
    if (call->site) tg_recorder_keep_site(c->recorder, (uint64_t)(uintptr_t)call->site);
    TG_TRY(c->ops->start(c->ctx, c->state, call, &request));
    tg_status s = request ? c->ops->wait(c->ctx, c->state, request) : TG_OK;
    if (request) c->ops->drop(c->ctx, c->state, request);
    return s;
}
