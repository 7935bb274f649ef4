/* The random streams of a context: adds and finds them, saves and restores their states, and forks them. The current
 * stream is the one that ops draw from. It is the default stream, except between a fork and its join. */
#include "core/random/rng.h"

#include "base/memory/host_memory.h"
#include "core/capture/capture.h"

/* ---- Look-up ---- */

static tg_named_rng *find(const tg_ctx *ctx, const char *name) {
    for (tg_named_rng *r = ctx->streams.first; r; r = r->next)
        if (!strcmp(r->name, name)) return r;
    return NULL;
}

static tg_named_rng *by_id(const tg_ctx *ctx, uint64_t id) {
    for (tg_named_rng *r = ctx->streams.first; r; r = r->next)
        if (r->id == id) return r;
    return NULL;
}

static tg_status fail_unknown(tg_ctx *ctx, const char *name, const char *who) {
    return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: no random stream is named \"%s\"; tg_rng_add makes one", who, name);
}

/* Returns where the state of stream r is stored now: in ctx->rng if r is the current stream. r is NULL for the
 * default stream. */
static tg_rng *state_of(tg_ctx *ctx, tg_named_rng *r) {
    if (ctx->streams.current == r) return &ctx->rng;
    return r ? &r->rng : &ctx->streams.base;
}

/* Stores the state of the current stream and makes r the current one. r is NULL for the default stream. */
static void make_current(tg_ctx *ctx, tg_named_rng *r) {
    *(ctx->streams.current ? &ctx->streams.current->rng : &ctx->streams.base) = ctx->rng;
    ctx->streams.current = r;
    ctx->rng = r ? r->rng : ctx->streams.base;
}

tg_rng *tg_rng_named(tg_ctx *ctx, const char *name) {
    tg_named_rng *r = find(ctx, name);
    return r ? state_of(ctx, r) : NULL;
}

tg_rng *tg_rng_by_id(tg_ctx *ctx, uint64_t id) {
    tg_named_rng *r = id ? by_id(ctx, id) : NULL;
    return id && !r ? NULL : state_of(ctx, r);
}

uint64_t tg_rng_id(const tg_ctx *ctx, const tg_rng *state) {
    const tg_named_rng *r = ctx->streams.current;
    if (state != &ctx->rng)
        for (r = ctx->streams.first; r && state != &r->rng;) r = r->next;
    return r ? r->id : 0;
}

bool tg_rng_is_common(const tg_ctx *ctx) {
    const tg_named_rng *r = ctx->streams.current;
    bool common = r ? r->common : true;
    return common && ctx->rng.seed == (r ? r->seed : ctx->streams.seed) && !ctx->rng.stream;
}

/* ---- Names ---- */

static tg_status check_new(tg_ctx *ctx, const char *name, uint64_t seed) {
    if (!name || !*name) return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_rng_add: the name is %s", name ? "empty" : "NULL");
    if (find(ctx, name)) return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_rng_add: a stream named \"%s\" exists already", name);
    for (const tg_named_rng *r = ctx->streams.first; r; r = r->next)
        if (r->seed == seed)
            return tg_fail(ctx, TG_ERR_ARGUMENT,
                           "tg_rng_add: \"%s\" and \"%s\" would both have the seed %llu and draw the same numbers; "
                           "choose another seed",
                           name, r->name, (unsigned long long)seed);
    return TG_OK;
}

static tg_named_rng *add(tg_ctx *ctx, const char *name) {
    tg_named_rng *r = tg_host_alloc(ctx, sizeof *r);
    if (!r) return NULL;
    *r = (tg_named_rng){.next = ctx->streams.first, .name = tg_host_strdup(ctx, name), .id = ++ctx->streams.ids};
    if (r->name) return ctx->streams.first = r;
    tg_host_free(ctx, r, sizeof *r);
    return NULL;
}

tg_status tg_rng_add(tg_ctx *ctx, const char *name, uint64_t seed) {
    if (!tg_ok(ctx)) return tg_ctx_status(ctx);
    TG_TRY(tg_recording_refuse(ctx, "tg_rng_add", TG_RECORDING_STREAM, TG_SITE));
    TG_TRY(check_new(ctx, name, seed));
    tg_named_rng *r = add(ctx, name);
    if (!r) return ctx->run.status;
    r->seed = seed;
    r->rng = (tg_rng){.seed = seed};
    return TG_OK;
}

/* Returns whether a fork to r, or from r, is open. */
static bool is_forked(const tg_ctx *ctx, const tg_named_rng *r) {
    bool open = ctx->streams.current == r;
    for (int i = 0; i < ctx->streams.n_held; i++) open |= ctx->streams.fork[i].outer == r;
    return open;
}

static void remove_stream(tg_ctx *ctx, tg_named_rng *r) {
    tg_named_rng **at = &ctx->streams.first;
    while (*at != r) at = &(*at)->next;
    *at = r->next;
    tg_host_strfree(ctx, r->name);
    tg_host_free(ctx, r, sizeof *r);
}

tg_status tg_rng_remove(tg_ctx *ctx, const char *name) {
    if (!tg_ok(ctx)) return tg_ctx_status(ctx);
    TG_TRY(tg_recording_refuse(ctx, "tg_rng_remove", TG_RECORDING_STREAM, TG_SITE));
    if (!name) return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_rng_remove: the name is NULL");
    tg_named_rng *r = find(ctx, name);
    if (!r) return fail_unknown(ctx, name, "tg_rng_remove");
    if (is_forked(ctx, r))
        return tg_fail(ctx, TG_ERR_STATE, "tg_rng_remove: stream \"%s\" is forked; call tg_rng_join first", name);
    remove_stream(ctx, r);
    return TG_OK;
}

/* Returns the name of stream i of those that exist, from 0 in the order in which they were added, or NULL. The list has
 * the newest stream first. */
const char *tg_rng_name(const tg_ctx *ctx, int i) {
    int n = 0;
    if (!ctx || ctx->run.dead || i < 0) return NULL;
    for (const tg_named_rng *r = ctx->streams.first; r; r = r->next) n++;
    const tg_named_rng *r = i < n ? ctx->streams.first : NULL;
    for (int k = n - 1; r && k > i; k--) r = r->next;
    return r ? r->name : NULL;
}

void tg_rngs_free(tg_ctx *ctx) {
    while (ctx->streams.first) remove_stream(ctx, ctx->streams.first);
    tg_host_free(ctx, ctx->streams.fork, (size_t)ctx->streams.capacity * sizeof *ctx->streams.fork);
}

/* ---- States ---- */

static tg_status named_state(tg_ctx *ctx, const char *name, const char *who, tg_rng **state) {
    tg_named_rng *r = name ? find(ctx, name) : NULL;
    if (name && !r) return fail_unknown(ctx, name, who);
    *state = name ? state_of(ctx, r) : &ctx->rng;
    return TG_OK;
}

tg_status tg_rng_get(tg_ctx *ctx, const char *name, tg_rng *out) {
    tg_rng *state = NULL;
    if (!tg_ok(ctx)) return tg_ctx_status(ctx);
    if (!out) return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_rng_get: out is NULL");
    TG_TRY(named_state(ctx, name, "tg_rng_get", &state));
    *out = *state;
    return TG_OK;
}

tg_status tg_rng_set(tg_ctx *ctx, const char *name, const tg_rng *s) {
    tg_rng *state = NULL;
    if (!tg_ok(ctx)) return tg_ctx_status(ctx);
    TG_TRY(tg_recording_refuse(ctx, "tg_rng_set", TG_RECORDING_STREAM, TG_SITE));
    if (!s) return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_rng_set: the state is NULL");
    if (s->stream >> 62) /* draws by key have the larger numbers */
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_rng_set: the state's stream is %llu, expected less than 2^62",
                       (unsigned long long)s->stream);
    TG_TRY(named_state(ctx, name, "tg_rng_set", &state));
    *state = *s;
    return TG_OK;
}

size_t tg_rng_states_bytes(const tg_ctx *ctx) {
    size_t n = 0;
    for (const tg_named_rng *r = ctx->streams.first; r; r = r->next) n++;
    return sizeof(tg_rng_states) + n * sizeof(((tg_rng_states *)0)->stream[0]);
}

void tg_rng_states_save(const tg_ctx *ctx, tg_rng_states *to) {
    const tg_named_rng *current = ctx->streams.current;
    *to = (tg_rng_states){.keys = ctx->keys, .now = ctx->rng, .base = ctx->streams.base};
    to->current = current ? current->id : 0;
    for (const tg_named_rng *r = ctx->streams.first; r; r = r->next, to->n++) {
        to->stream[to->n].id = r->id;
        to->stream[to->n].rng = r->rng;
    }
}

void tg_rng_states_load(tg_ctx *ctx, const tg_rng_states *from) {
    for (int i = 0; i < from->n; i++) {
        tg_named_rng *r = by_id(ctx, from->stream[i].id);
        if (r) r->rng = from->stream[i].rng;
    }
    ctx->streams.base = from->base;
    ctx->streams.current = from->current ? by_id(ctx, from->current) : NULL;
    ctx->rng = from->now;
    ctx->keys = from->keys;
}

/* ---- Forks ---- */

/* Finds the stream that a fork is to make current. */
static tg_status fork_to(tg_ctx *ctx, const char *name, tg_named_rng **to) {
    if (ctx->run.status != TG_OK) return ctx->run.status;
    if (!name) return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_rng_fork: the name is NULL");
    tg_named_rng *r = find(ctx, name);
    if (!r) return fail_unknown(ctx, name, "tg_rng_fork");
    *to = r;
    return TG_OK;
}

/* Makes the named stream the current one until tg_rng_join. Every fork needs a join, even if the context has an error,
 * which may be cleared between the two. So a fork that fails still counts as open, and leaves the current stream as it
 * is. */
tg_status tg_rng_fork(tg_ctx *ctx, const char *name) {
    if (!ctx || ctx->run.dead) return tg_ctx_status(ctx);
    tg_named_rng *to = ctx->streams.current;
    tg_status s = fork_to(ctx, name, &to);
    int before = ctx->streams.forks++;
    if (!tg_host_grow(ctx, (void **)&ctx->streams.fork, ctx->streams.n_held, &ctx->streams.capacity,
                      sizeof *ctx->streams.fork))
        return ctx->run.status;
    if (!ctx->streams.n_held) ctx->streams.outside = *state_of(ctx, NULL);
    ctx->streams.fork[ctx->streams.n_held++] = (tg_open_fork){ctx->streams.current, before};
    make_current(ctx, to);
    return s;
}

/* Warns if the state of the default stream has changed since the outermost fork. Draws inside a fork do not advance it,
 * so the caller has set it inside the fork, which is probably a mistake. */
static void warn_if_moved(tg_ctx *ctx) {
    const tg_rng *now = state_of(ctx, NULL), *then = &ctx->streams.outside;
    bool same = now->seed == then->seed && now->stream == then->stream && now->counter == then->counter;
    if (same || !ctx->log) return;
    ctx->log(ctx->log_user, TG_LOG_WARNING,
             "tg_rng_join: the default random stream was seeded again between tg_rng_fork and its tg_rng_join");
}

tg_status tg_rng_join(tg_ctx *ctx) {
    if (!ctx || ctx->run.dead) return tg_ctx_status(ctx);
    if (!ctx->streams.forks)
        return ctx->run.status != TG_OK
                   ? ctx->run.status
                   : tg_fail(ctx, TG_ERR_STATE, "tg_rng_join: no stream is forked; call tg_rng_fork first");
    /* A fork that failed has not left the default stream, from which later draws then come. */
    bool left = ctx->streams.n_held && ctx->streams.current;
    tg_rng_unwind(ctx, ctx->streams.forks - 1);
    if (left && !ctx->streams.n_held) warn_if_moved(ctx);
    return ctx->run.status;
}

/* A fork for which memory ran out has changed no stream, so only the number of forks says that it is open. */
void tg_rng_unwind(tg_ctx *ctx, int n) {
    if (ctx->streams.forks > n) ctx->streams.forks = n;
    while (ctx->streams.n_held && ctx->streams.fork[ctx->streams.n_held - 1].before >= n)
        make_current(ctx, ctx->streams.fork[--ctx->streams.n_held].outer);
}

/* ---- The streams of tg_rng_seed_parallel ---- */

enum { RANK_STREAMS = 3 };
static const char *const rank_streams[RANK_STREAMS] = {"data-parallel-rng", "model-parallel-rng",
                                                       "expert-parallel-rng"};

static bool is_rank_stream(const tg_named_rng *r) {
    for (int i = 0; i < RANK_STREAMS; i++)
        if (!strcmp(r->name, rank_streams[i])) return true;
    return false;
}

static tg_status check_seeds(tg_ctx *ctx, const uint64_t *seed) {
    for (int i = 0; i < RANK_STREAMS; i++) {
        const char *same = NULL;
        for (int k = 0; k < i; k++)
            if (seed[k] == seed[i]) same = rank_streams[k];
        for (const tg_named_rng *r = ctx->streams.first; r; r = r->next) {
            if (r->seed == seed[i] && !is_rank_stream(r)) same = r->name;
            if (is_rank_stream(r) && is_forked(ctx, r))
                return tg_fail(ctx, TG_ERR_STATE,
                               "tg_rng_seed_parallel: stream \"%s\" is forked; call tg_rng_join first", r->name);
        }
        if (same)
            return tg_fail(
                ctx, TG_ERR_ARGUMENT,
                "tg_rng_seed_parallel: \"%s\" and \"%s\" would both have the seed %llu and draw the same numbers; "
                "choose another seed",
                rank_streams[i], same, (unsigned long long)seed[i]);
    }
    return TG_OK;
}

/* Finds the three streams, and adds those that do not exist. If there is no memory for all of them, adds none. */
static tg_status find_rank_streams(tg_ctx *ctx, tg_named_rng *r[RANK_STREAMS]) {
    const tg_named_rng *newest = ctx->streams.first;
    for (int i = 0; i < RANK_STREAMS; i++) {
        r[i] = find(ctx, rank_streams[i]);
        if (r[i] || (r[i] = add(ctx, rank_streams[i]))) continue;
        while (ctx->streams.first != newest) remove_stream(ctx, ctx->streams.first);
        return ctx->run.status;
    }
    return TG_OK;
}

/* Adds the three streams, or seeds them again if they exist. The formulas for the seeds are those of Megatron-Core
 * (core/tensor_parallel/random.py). */
tg_status tg_rng_seed_ranks(tg_ctx *ctx, uint64_t seed, bool own, int tp, int ep, int etp) {
    const uint64_t seeds[RANK_STREAMS] = {seed, seed + 2718 + (uint64_t)tp,
                                          seed + 1024 + 100 * (uint64_t)ep + (uint64_t)etp};
    tg_named_rng *r[RANK_STREAMS];
    TG_TRY(tg_recording_refuse(ctx, "tg_rng_seed_parallel", TG_RECORDING_STREAM, NULL));
    if (seed == 0) return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_rng_seed_parallel: the seed is 0, expected 1 or more");
    TG_TRY(check_seeds(ctx, seeds));
    TG_TRY(find_rank_streams(ctx, r));
    for (int i = 0; i < RANK_STREAMS; i++) {
        r[i]->seed = seeds[i];
        r[i]->common = i == 0 || !own;
        r[i]->by_rank = !r[i]->common;
        r[i]->rng = (tg_rng){.seed = seeds[i]};
    }
    *state_of(ctx, NULL) = (tg_rng){.seed = seed};
    ctx->streams.seed = seed;
    return TG_OK;
}
