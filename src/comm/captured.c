/* Collectives within captured steps. While a step is captured, this file collects its calls. Each replay adds them to
 * the counts of their communicators (tg_comm_info). For each group in which the step makes calls that are compared, the
 * replay also starts one call without data (TG_REPLAY in comm.h), which is recorded and compared between ranks. So a
 * rank that replays a different step, or none, is reported like a rank that makes a different call, or none, and the
 * deadline applies. */
#include "base/memory/host_memory.h"
#include "base/text.h"
#include "core/capture/capture.h"
#include "comm/comm.h"

/* One group that the captured step uses: what is compared of its calls, and the state of its replay. */
typedef struct part {
    tg_comm *c;
    /* Number of this group's calls that the ranks compare. In a group of more than two ranks, sends and receives are
     * not among them, because the other ranks do not know of them. */
    int collectives;
    /* Digests of the calls that are compared: [2] of collectives and, in a group of two ranks, [0] and [1] of the
     * messages that rank 0 or 1 sends. Two ranks that send to each other may each send first and then receive. */
    uint32_t digest[3];
    void *request;   /* the request of the replay that is starting */
    bool begun;      /* begin_part has run, and end_part has not */
} part;

typedef struct call {
    tg_call_entry entry;
    int64_t bytes;
    int part; /* index of its group */
} call;

/* The calls of one captured step. */
typedef struct replay {
    tg_replay_hooks hooks; /* first, because callbacks convert its address */
    tg_ctx *ctx;
    part *parts;
    call *calls;
    int n_parts, parts_capacity, n_calls, calls_capacity;
} replay;

/* ---- Begin and end ---- */

/* Counts the calls of one replay. */
static void count(const replay *r) {
    for (int i = 0; i < r->n_calls; i++)
        for (tg_comm *c = r->parts[r->calls[i].part].c; c; c = c->parent) {
            c->counts.calls[r->calls[i].entry.kind]++;
            c->counts.bytes[r->calls[i].entry.kind] += r->calls[i].bytes;
        }
}

/* Adds a word to a digest, by the FNV-1a hash. */
static uint32_t fold(uint32_t digest, int64_t word) {
    for (int k = 0; k < 64; k += 8) digest = (digest ^ (uint32_t)(word >> k & 255)) * 16777619u;
    return digest;
}

/* Returns the count of the group's TG_REPLAY call (comm.h). */
static int64_t count_and_digest(const part *p) {
    uint32_t digest = fold(fold(p->digest[2], p->digest[0]), p->digest[1]);
    return (int64_t)digest << TG_REPLAY_BITS | tg_replay_calls(p->collectives);
}

/* Starts and records the group's TG_REPLAY call, if calls of the group are compared. */
static tg_status begin_part(part *p, const void *site) {
    tg_comm *c = p->c;
    if (!p->collectives) return TG_OK;
    if (!tg_comm_ok(c)) return c->ctx->run.status;
    if (c->batch)
        return tg_fail(c->ctx, TG_ERR_STATE,
                       "tg_graph_replay: a batch of sends and receives is open; call tg_comm_batch_close first");
    tg_call_entry entry = {.kind = TG_REPLAY,
                           .dtype = TG_U8,
                           .size = c->size,
                           .count = count_and_digest(p),
                           .site = (uint64_t)(uintptr_t)site,
                           .sequence = ++c->sequence};
    tg_transfer t = {
        .size = sizeof t, .kind = (tg_collective)TG_REPLAY, .dtype = TG_U8, .count = entry.count, .site = site};
    size_t at = 0;
    tg_text(entry.group, sizeof entry.group, &at, "%s", *c->name ? c->name : "world");
    t.record = tg_recorder_post(c->recorder, &entry);
    p->request = NULL;
    p->begun = true;
    tg_status s = c->ops->batch ? c->ops->batch(c->ctx, c->state, true) : TG_OK; /* end_part closes the batch */
    if (s == TG_OK) s = c->ops->start(c->ctx, c->state, &t, &p->request);
    if (!p->request) tg_recorder_finish(c->recorder, t.record, s == TG_OK); /* else the transport does (transport.h) */
    return s;
}

/* Ends what begin_part has begun, also if it failed halfway. */
static tg_status end_part(part *p) {
    tg_comm *c = p->c;
    if (!p->begun) return TG_OK;
    p->begun = false;
    tg_status s = c->ops->batch ? c->ops->batch(c->ctx, c->state, false) : TG_OK;
    if (p->request) c->ops->drop(c->ctx, c->state, p->request);
    return s;
}

static tg_status end(tg_replay_hooks *hooks) {
    replay *r = (replay *)hooks;
    tg_status s = TG_OK;
    for (int i = 0; i < r->n_parts; i++) {
        tg_status ended = end_part(&r->parts[i]);
        if (s == TG_OK) s = ended;
    }
    if (s == TG_OK && r->ctx->run.status == TG_OK) count(r);
    return s;
}

static tg_status begin(tg_replay_hooks *hooks, const void *site) {
    replay *r = (replay *)hooks;
    tg_status s = TG_OK;
    for (int i = 0; i < r->n_parts && s == TG_OK; i++) s = begin_part(&r->parts[i], site);
    if (s != TG_OK) end(hooks);
    return s;
}

/* ---- Recording ---- */

static bool meets(const tg_replay_hooks *hooks, const tg_work *w) {
    const replay *r = (const replay *)hooks;
    const tg_comm *c = tg_comm_of_work(w);
    bool found = false;
    for (int i = 0; c && i < r->n_parts; i++) found |= r->parts[i].c == c;
    return found;
}

static void free_replay(tg_replay_hooks *hooks) {
    replay *r = (replay *)hooks;
    tg_host_free(r->ctx, r->parts, (size_t)r->parts_capacity * sizeof *r->parts);
    tg_host_free(r->ctx, r->calls, (size_t)r->calls_capacity * sizeof *r->calls);
    tg_host_free(r->ctx, r, sizeof *r);
}

/* Returns the calls of the step that is being captured; NULL after recording the error. */
static replay *replay_of(tg_ctx *ctx) {
    replay *r = (replay *)tg_capture_hooks(ctx);
    if (r || !(r = tg_host_alloc(ctx, sizeof *r))) return r;
    *r = (replay){.hooks = {.begin = begin, .end = end, .free = free_replay, .meets = meets}, .ctx = ctx};
    tg_capture_set_hooks(ctx, &r->hooks);
    return r;
}

static part *part_of(replay *r, tg_comm *c) {
    for (int i = 0; i < r->n_parts; i++)
        if (r->parts[i].c == c) return &r->parts[i];
    if (!tg_host_grow(r->ctx, (void **)&r->parts, r->n_parts, &r->parts_capacity, sizeof *r->parts)) return NULL;
    r->parts[r->n_parts] = (part){.c = c, .digest = {2166136261u, 2166136261u, 2166136261u}};
    return &r->parts[r->n_parts++];
}

/* Adds a call to the digests. Leaves out the call's count if it may differ between ranks (`even` is false). A send and
 * its receive add the same words to the digest of the sender's messages. One of the words is the digest of the
 * collectives before them. */
static void digest(part *p, const tg_call_entry *entry, bool even) {
    bool message = entry->kind == TG_SEND || entry->kind == TG_RECV;
    int sender = entry->kind == TG_SEND ? p->c->rank : entry->root;
    uint32_t *d = &p->digest[message ? sender : 2];
    const int64_t words[] = {message ? p->digest[2] : entry->kind, entry->dtype, entry->op, message ? 0 : entry->root,
                             even ? entry->count : -1};
    for (int i = 0; i < TG_LEN(words); i++) *d = fold(*d, words[i]);
}

tg_status tg_replay_add(tg_comm *c, const tg_call_entry *entry, int64_t bytes, bool even) {
    tg_ctx *ctx = c->ctx;
    replay *r = replay_of(ctx);
    part *p = r ? part_of(r, c) : NULL;
    if (!p || !tg_host_grow(ctx, (void **)&r->calls, r->n_calls, &r->calls_capacity, sizeof *r->calls))
        return ctx->run.status;
    r->calls[r->n_calls++] = (call){.entry = *entry, .bytes = bytes, .part = (int)(p - r->parts)};
    r->hooks.collectives++;
    if ((entry->kind == TG_SEND || entry->kind == TG_RECV) && c->size != 2) return TG_OK;
    p->collectives++;
    digest(p, entry, even);
    return TG_OK;
}

/* ---- All graphs of a context ---- */

/* Returns whether the captured step uses communicator c, so that its replays end with c. */
static bool ends_with(tg_replay_hooks *hooks, const void *c) {
    const replay *r = (const replay *)hooks;
    for (int i = 0; i < r->n_parts; i++)
        if (r->parts[i].c == c) return true;
    return false;
}

static bool ends_with_transport(tg_replay_hooks *hooks, const void *ops) {
    const replay *r = (const replay *)hooks;
    for (int i = 0; i < r->n_parts; i++)
        if (r->parts[i].c->ops == ops) return true;
    return false;
}

#define ENDED "a communicator of the step has ended or recovered"

void tg_replays_end(tg_comm *c) { tg_graphs_end(c->ctx, ends_with, c, ENDED); }
void tg_replays_end_all(tg_ctx *ctx, const tg_comm_ops *ops) { tg_graphs_end(ctx, ends_with_transport, ops, ENDED); }

/* The arguments of list_calls. */
typedef struct listing {
    const tg_call_entry *entry;
    void (*fn)(void *user, const tg_call_entry *call);
    void *user;
    bool done;
} listing;

/* Returns whether the entry is that of a replay of group number `part`. Different groups may make the same calls. */
static bool is_replay_of(const replay *r, int part, const tg_call_entry *entry) {
    int k = 0;
    if (count_and_digest(&r->parts[part]) != entry->count) return false;
    while (k < r->n_calls && r->calls[k].part != part) k++;
    return k < r->n_calls && r->calls[k].entry.size == entry->size && !strcmp(r->calls[k].entry.group, entry->group);
}

static void list_calls(tg_replay_hooks *hooks, const void *arg) {
    const replay *r = (const replay *)hooks;
    listing *l = (listing *)(uintptr_t)arg;
    for (int i = 0; i < r->n_parts && !l->done; i++) {
        if (!is_replay_of(r, i, l->entry)) continue;
        l->done = true;
        for (int k = 0; k < r->n_calls; k++)
            if (r->calls[k].part == i) l->fn(l->user, &r->calls[k].entry);
    }
}

void tg_replay_each(tg_ctx *ctx, const tg_call_entry *entry, void (*fn)(void *user, const tg_call_entry *call),
                    void *user) {
    listing l = {entry, fn, user, false};
    tg_graphs_each_hooks(ctx, list_calls, &l);
}
