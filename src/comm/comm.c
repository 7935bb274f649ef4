/* Communicators: construction, splitting, recovery and freeing. The collectives over them are in dispatch.c. */
#include "comm/comm.h"

#include "base/memory/host_memory.h"
#include "base/text.h"
#include "core/work.h"

/* Returned by a constructor that fails. It is const: every function that writes to a communicator checks for it
 * first. */
static const tg_comm inert = {.ctx = (tg_ctx *)&tg_dead_ctx, .size = 1, .axis = TG_MAX_AXES};

tg_status tg_comm_note_missed(const tg_comm *c, tg_status s) {
    if (s != TG_OK && c && c->ops && c->size > 1) tg_ctx_skip(c->ctx);
    return s;
}

bool tg_comm_ok(const tg_comm *c) { return c && c->ops && tg_ok(c->ctx); }

tg_status tg_comm_check_ended(const tg_comm *c, const char *who) {
    if (!c->ended) return TG_OK;
    return tg_fail(c->ctx, TG_ERR_ABORTED,
                   "%s: group \"%s\" has ended because tg_comm_recover was called on a communicator that it comes from"
                   "; split it again",
                   who, c->name);
}

tg_call_entry tg_transfer_entry(const tg_transfer *t, int size) {
    return (tg_call_entry){.kind = (uint8_t)t->kind,
                           .dtype = (uint8_t)t->dtype,
                           .op = (uint8_t)t->op,
                           .root = t->root,
                           .size = size,
                           .count = t->count,
                           .site = (uint64_t)(uintptr_t)t->site};
}

tg_comm *tg_comm_or_inert(tg_comm *c) { return c ? c : (tg_comm *)&inert; }

tg_comm *tg_comm_make(tg_ctx *ctx, const tg_comm_ops *ops, void *state, int rank, int size, tg_recorder *recorder) {
    tg_comm *c = tg_host_alloc(ctx, sizeof *c);
    if (c && !recorder) recorder = tg_recorder_new(ctx, NULL, 1, rank, size, 0, true);
    if (!c || !recorder) {
        tg_host_free(ctx, c, sizeof *c);
        tg_recorder_unref(ctx, recorder);
        return NULL;
    }
    *c = (tg_comm){.ctx = ctx,
                   .ops = ops,
                   .state = state,
                   .rank = rank,
                   .size = size,
                   .axis = TG_MAX_AXES,
                   .recorder = recorder,
                   .counts = TG_COMM_INFO()};
    c->live.next = c->live.prev = &c->live;
    return c;
}

/* ---- Missed calls ---- */

/* Notifies the transport of a program (tg_comm_new_on) through its slot abort. The library's own transports have
 * listeners of their own. */
static void on_missed_call(tg_listener *l) {
    tg_comm *c = (tg_comm *)l;
    if (c->aborted || c->ended || !c->ops->abort) return;
    c->aborted = true;
    c->ops->abort(c->ctx, c->state, tg_ctx_message(c->ctx));
}

static void listen(tg_comm *c) {
    if (!c->ops->abort) return;
    c->listens = true;
    c->listener = (tg_listener){.skipped = on_missed_call};
    tg_ctx_listen(c->ctx, &c->listener);
}

static tg_status check_table(tg_ctx *ctx, const tg_comm_ops *ops, int rank, int size) {
    if (!ops) return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_comm_new_on: ops is NULL, expected the table of a transport");
    TG_TRY(tg_table_check(ctx, ops->size, sizeof *ops, "tg_comm_new_on: the table"));
    if (!ops->name || !ops->start || !ops->test || !ops->wait || !ops->drop || !ops->split || !ops->close)
        return tg_fail(
            ctx, TG_ERR_ARGUMENT,
            "tg_comm_new_on: the table lacks a required slot: name, start, test, wait, drop, split or close");
    if (size < 1 || rank < 0 || rank >= size)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_comm_new_on: rank %d of %d, expected 0 <= rank < size", rank, size);
    return TG_OK;
}

tg_comm *tg_comm_new_on(tg_ctx *ctx, const tg_comm_ops *ops, void *state, int rank, int size) {
    tg_comm *c = NULL;
    if (tg_ok(ctx) && check_table(ctx, ops, rank, size) == TG_OK) {
        c = tg_comm_make(ctx, ops, state, rank, size, NULL);
        if (c)
            listen(c);
        else
            ops->close(ctx, state);
    } else if (ctx && ops && ops->size >= offsetof(tg_comm_ops, close) + sizeof ops->close && ops->close) {
        /* A table of another version has close at the same offset, as new slots are only added at the end. */
        ops->close(ctx, state);
    }
    return tg_comm_or_inert(c);
}

tg_comm *tg_comm_self_new(tg_ctx *ctx) { return tg_comm_new_on(ctx, &tg_self_transport, NULL, 0, 1); }

tg_comm *tg_comm_plan_new(tg_ctx *ctx, int rank, int size) {
    if (tg_ok(ctx) && (size < 1 || rank < 0 || rank >= size)) {
        tg_fail(ctx, TG_ERR_ARGUMENT, "tg_comm_plan_new: rank %d of %d, expected 0 <= rank < size", rank, size);
        return tg_comm_or_inert(NULL);
    }
    return tg_comm_new_on(ctx, &tg_plan_transport, NULL, rank, size);
}

/* ---- Free ---- */

/* Removes c from its parent's list. The groups split from c lose their parent. */
static void leave_parent(tg_comm *c) {
    for (tg_comm **at = c->parent ? &c->parent->child : NULL; at && *at; at = &(*at)->sibling)
        if (*at == c) {
            *at = c->sibling;
            break;
        }
    for (tg_comm *child = c->child; child; child = child->sibling) child->parent = NULL;
}

/* Ends the declarations that the ranks of c share parameters (tg_share). */
static void end_shares(const tg_comm *c) {
    for (tg_tensor *x = c->ctx->owned; x; x = x->ext->next_owned)
        if (x->ext->shared == c) x->ext->shared = NULL;
}

void tg_comm_free(tg_comm *c) {
    if (!c || !c->ops) return;
    tg_ctx *ctx = c->ctx;
    tg_comm_finish_all(c);
    tg_replays_end(c);
    end_shares(c);
    if (c->listens) tg_ctx_unlisten(c->ctx, &c->listener);
    leave_parent(c);
    c->ops->close(ctx, c->state);
    tg_recorder_unref(ctx, c->recorder);
    for (tg_comm_request *r = c->free, *next; r; r = next) {
        next = r->next;
        tg_host_free(ctx, r, sizeof *r);
    }
    tg_host_free(ctx, c, sizeof *c);
}

void tg_comm_free_all(tg_comm *c) {
    while (c && c->child) tg_comm_free_all(c->child);
    tg_comm_free(c);
}

/* ---- Split ---- */

static void set_name(tg_comm *g, const char *name) {
    size_t at = 0;
    tg_text(g->name, sizeof g->name, &at, "%s", name ? name : "");
}

/* Makes the communicator of a group that was split from c. Closes state on error. */
static tg_comm *group_of(tg_comm *c, void *state, const tg_comm_ops *ops, int rank, int n, const char *name,
                         tg_axis axis) {
    c->recorder->refs++;
    tg_comm *g = tg_comm_make(c->ctx, ops, state, rank, n, c->recorder);
    if (!g) {
        ops->close(c->ctx, state);
        return tg_comm_or_inert(NULL);
    }
    set_name(g, name);
    if (c->listens && ops == c->ops) listen(g);
    g->axis = axis;
    g->parent = c;
    g->sibling = c->child;
    c->child = g;
    return g;
}

static tg_status check_members(tg_comm *c, const char *name, const int *ranks, int n, int *mine) {
    *mine = -1;
    for (int i = 0; i < n; i++) {
        if (ranks[i] < 0 || ranks[i] >= c->size)
            return tg_fail(c->ctx, TG_ERR_ARGUMENT, "group \"%s\": its member %d is rank %d, expected 0 to %d",
                           name ? name : "", i, ranks[i], c->size - 1);
        if (ranks[i] == c->rank) *mine = i;
    }
    if (*mine >= 0) return TG_OK;
    return tg_fail(c->ctx, TG_ERR_ARGUMENT, "group \"%s\": rank %d, which forms it, is not among its members",
                   name ? name : "", c->rank);
}

tg_comm *tg_comm_split_known(tg_comm *c, const int *ranks, int n, const char *name, tg_axis axis, bool all) {
    int mine;
    void *state = NULL;
    if (!tg_comm_ok(c) || check_members(c, name, ranks, n, &mine) != TG_OK) return tg_comm_or_inert(NULL);
    const tg_comm_ops *ops = n == 1 && !c->ops->silent ? &tg_self_transport : c->ops;
    if (ops == c->ops && ops->split(c->ctx, c->state, ranks, n, mine, name, all, &state) != TG_OK)
        return tg_comm_or_inert(NULL);
    return group_of(c, state, ops, mine, n, name, axis);
}

/* The color and key that a rank passes to tg_comm_split. */
typedef struct colored {
    int64_t color, key;
} colored;

/* Lists the ranks that have the color of rank `mine`, ordered by (key, rank), and returns their number. The insertion
 * keeps ranks with equal keys in rank order. */
static int members(const colored *all, int n, int mine, int *ranks) {
    int count = 0;
    for (int r = 0; r < n; r++) {
        if (all[r].color != all[mine].color) continue;
        int at = count++;
        for (; at > 0 && all[ranks[at - 1]].key > all[r].key; at--) ranks[at] = ranks[at - 1];
        ranks[at] = r;
    }
    return count;
}

/* Returns whether every rank is in a group of two or more. ranks: space for a list of n ranks. */
static bool none_is_left_out(const colored *all, int n, int *ranks) {
    for (int r = 0; r < n; r++)
        if (all[r].color < 0 || members(all, n, r, ranks) < 2) return false;
    return true;
}

/* Exchanges the colors over a transport that moves device memory only. */
static tg_status exchange_on_device(tg_comm *c, tg_transfer *call, const colored *mine, colored *all) {
    tg_ctx *ctx = c->ctx;
    tg_tensor *x = tg_from_host(ctx, TG_I64, TG_SHAPE(2), mine);
    tg_tensor *y = tg_zeros(ctx, TG_I64, TG_SHAPE(c->size, 2));
    if (ctx->run.status == TG_OK) {
        call->src = tg_data(x);
        call->dst = tg_data(y);
        if (tg_comm_exchange(c, call) == TG_OK) tg_read(y, all, (size_t)c->size * sizeof *all);
    }
    tg_drop(x);
    tg_drop(y);
    return ctx->run.status;
}

/* Gathers the colors and keys of all ranks in `all`. */
static tg_status exchange_colors(tg_comm *c, colored mine, colored *all, const void *site) {
    tg_transfer call = {
        .kind = TG_ALL_GATHER, .dtype = TG_I64, .src = &mine, .dst = all, .count = 2, .site = site};
    all[c->rank] = mine;
    if (c->size == 1) return TG_OK;
    return c->ops->host ? tg_comm_exchange(c, &call) : exchange_on_device(c, &call, &mine, all);
}

static tg_comm *split(tg_comm *c, colored mine, colored *all, int *ranks, const char *name, tg_axis axis,
                      const void *site) {
    if (exchange_colors(c, mine, all, site) != TG_OK) return tg_comm_or_inert(NULL);
    if (mine.color < 0) return NULL;
    bool together = none_is_left_out(all, c->size, ranks);
    return tg_comm_split_known(c, ranks, members(all, c->size, c->rank, ranks), name, axis, together);
}

static tg_status check_split(const tg_comm *c, tg_axis axis) {
    if (!tg_comm_ok(c)) return TG_ERR_ABORTED;
    if (axis < 0 || axis > TG_MAX_AXES)
        return tg_fail(c->ctx, TG_ERR_ARGUMENT, "tg_comm_split: axis %d, expected an axis or TG_MAX_AXES", (int)axis);
    TG_TRY(tg_comm_check_ended(c, "tg_comm_split"));
    if (c->batch)
        return tg_fail(c->ctx, TG_ERR_STATE,
                       "tg_comm_split: a batch of sends and receives is open; call tg_comm_batch_close first");
    if (c->ops->silent && c->size > 1)
        return tg_fail(c->ctx, TG_ERR_UNSUPPORTED,
                       "tg_comm_split: transport \"%s\" cannot exchange the colors of the ranks; use "
                       "tg_parallel_new",
                       c->ops->name);
    return TG_OK;
}

tg_comm *tg_comm_split(tg_comm *c, int color, int key, const char *name, tg_axis axis) {
    if (tg_comm_note_missed(c, check_split(c, axis)) != TG_OK) return tg_comm_or_inert(NULL);
    tg_ctx *ctx = c->ctx;
    size_t n = (size_t)c->size;
    colored *all = tg_host_alloc(ctx, n * sizeof *all);
    int *ranks = all ? tg_host_alloc(ctx, n * sizeof *ranks) : NULL;
    tg_comm *g = ranks ? split(c, (colored){color, key}, all, ranks, name, axis, TG_SITE) : tg_comm_or_inert(NULL);
    tg_host_free(ctx, ranks, n * sizeof *ranks);
    tg_host_free(ctx, all, n * sizeof *all);
    tg_comm_note_missed(c, ctx->run.status);
    return g;
}

tg_status tg_comm_rejoin(tg_comm *g, const int *ranks, int n, const char *name, bool all) {
    int mine;
    void *state = NULL;
    tg_comm *c = g->parent;
    if (!c || !tg_comm_ok(c)) return g->ctx->run.status;
    TG_TRY(check_members(c, name, ranks, n, &mine));
    const tg_comm_ops *ops = n == 1 && !c->ops->silent ? &tg_self_transport : c->ops;
    if (ops == c->ops) TG_TRY(ops->split(c->ctx, c->state, ranks, n, mine, name, all, &state));
    tg_replays_end(g);
    g->ops->close(g->ctx, g->state);
    set_name(g, name);
    g->ops = ops;
    g->state = state;
    g->rank = mine;
    g->size = n;
    g->sequence = 0;
    g->batch = g->ended = g->aborted = false;
    return TG_OK;
}

/* ---- Queries and recovery ---- */

tg_ctx *tg_comm_ctx(const tg_comm *c) { return c ? c->ctx : NULL; }
int tg_comm_rank(const tg_comm *c) { return c ? c->rank : 0; }
int tg_comm_size(const tg_comm *c) { return c ? c->size : 1; }
const char *tg_comm_name(const tg_comm *c) { return c ? c->name : ""; }
const char *tg_comm_transport(const tg_comm *c) { return c && c->ops ? c->ops->name : ""; }
tg_axis tg_comm_axis(const tg_comm *c) { return c ? c->axis : TG_MAX_AXES; }

const char *tg_collective_name(tg_collective k) {
    static const char *const names[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all",
                                        "gather",     "scatter",    "send",           "recv",      "barrier",
                                        "replay"};
    return (unsigned)k < TG_LEN(names) ? names[k] : "?";
}

tg_status tg_comm_query(const tg_comm *c, tg_comm_info *out) {
    if (!tg_comm_ok(c)) return c ? tg_ctx_status(c->ctx) : TG_ERR_ARGUMENT;
    if (!out || out->size < sizeof(size_t))
        return tg_fail(c->ctx, TG_ERR_ARGUMENT, "tg_comm_query: out is NULL or has no size; use TG_COMM_INFO()");
    size_t size = out->size < sizeof *out ? out->size : sizeof *out;
    memcpy((char *)out + sizeof(size_t), (const char *)&c->counts + sizeof(size_t), size - sizeof(size_t));
    return TG_OK;
}

/* Ends c and the groups split from it, because the communicator that c was split from recovers. */
static void end_with_parent(tg_comm *c) {
    for (tg_comm *child = c->child; child; child = child->sibling) end_with_parent(child);
    c->ended = true;
    if (c->ops->abort && !c->aborted)
        c->ops->abort(c->ctx, c->state, "the communicator that this group was split from recovers");
    c->aborted = true;
    tg_comm_finish_all(c);
}

tg_status tg_comm_recover(tg_comm *c) {
    if (!tg_comm_ok(c)) return c ? tg_ctx_status(c->ctx) : TG_ERR_ARGUMENT;
    int rank = c->rank, size = c->size;
    TG_TRY(tg_comm_check_ended(c, "tg_comm_recover"));
    if (c->size == 1 || c->ops->silent) return TG_OK;
    if (!c->ops->recover)
        return tg_fail(c->ctx, TG_ERR_UNSUPPORTED,
                       "tg_comm_recover: transport \"%s\" has no slot recover; create a new communicator",
                       c->ops->name);
    for (tg_comm *child = c->child; child; child = child->sibling) end_with_parent(child);
    tg_comm_finish_all(c);
    tg_ctx_clear(c->ctx); /* clears the errors of the calls that were in flight, which the caller gives up */
    tg_replays_end(c);
    TG_TRY(c->ops->recover(c->ctx, c->state, &rank, &size));
    c->rank = rank;
    c->size = size;
    c->sequence = 0;
    c->batch = c->aborted = false;
    return TG_OK;
}
