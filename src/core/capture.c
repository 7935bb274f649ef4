/* Captured steps (tg_graph). The device records the work that its functions queue (tapegrad/device.h). This file makes
 * the recording repeatable: it keeps the memory that the step uses at its addresses, advances the random streams at
 * each replay, updates what the host knows about gradients, and refuses a replay that would overwrite a saved
 * tensor. */
#include "core/capture.h"

#include "base/host_memory.h"
#include "core/captured_draws.h"
#include "core/work.h"

/* A block of memory that the step uses. The block lies outside the graph's arena (base/heap.h), or lies inside it and
 * is still live after the step. */
typedef struct use {
    tg_block *block;
    bool written; /* a replay writes it, so no node may have saved it for a later backward */
} use;

/* What the host knows of a leaf's gradient. */
typedef struct gradient {
    bool has, partial, summed;
} gradient;

/* A leaf whose gradient the step uses. */
typedef struct leaf {
    tg_ref ref;
    bool read; /* the recording depends on whether the leaf had a gradient */
    gradient before, after; /* before and after the step */
} leaf;

struct tg_graph {
    tg_ctx *ctx;
    tg_graph *next, *prev; /* in the context's list */
    tg_status (*fn)(void *state, tg_ctx *ctx);
    void *state;
    tg_recording recording;
    void *recorded;   /* the device's recording; NULL if replays call fn, or after the recording has ended */
    const char *ended; /* why the graph can no longer be replayed; NULL if it can */
    int arena;
    int running;  /* calls of fn by a replay that have not returned */
    int64_t nodes, bytes, steps;
    use *uses;
    leaf *leaves;
    int n_uses, uses_capacity, n_leaves, leaves_capacity;
    tg_captured_draws draws;
    tg_replay_hooks *hooks; /* callbacks at each replay; NULL means none */
};

static const tg_graph inert = {.ctx = (tg_ctx *)&tg_dead_ctx};

/* ---- During the recording ---- */

/* Notes that the step uses block b. If there is no memory for the entry, the context has the error and the capture
 * fails. */
static void use_block(tg_graph *g, tg_block *b, bool written) {
    if (!tg_host_grow(g->ctx, (void **)&g->uses, g->n_uses, &g->uses_capacity, sizeof *g->uses)) return;
    if (tg_heap_arena_use(g->ctx->run.heap, b)) g->uses[g->n_uses++] = (use){.block = b, .written = written};
}

void tg_capture_uses(tg_storage *s) {
    if (s->block) use_block(s->ctx->capture, s->block, false);
}

void tg_capture_writes(tg_storage *s) {
    tg_graph *g = s->ctx->capture;
    if (!s->block) return;
    use_block(g, s->block, true);
    for (int i = 0; i < g->n_uses; i++)
        if (g->uses[i].block == s->block) g->uses[i].written = true;
}

static gradient gradient_now(const tg_tensor *x) {
    return (gradient){x->ext->has_grad, x->ext->partial, x->ext->summed};
}

static void gradient_set(const tg_tensor *x, gradient to) {
    x->ext->has_grad = to.has;
    x->ext->partial = to.partial;
    x->ext->summed = to.summed;
}

void tg_capture_gradient(const tg_tensor *x, bool read) {
    tg_graph *g = x->ctx->capture;
    for (int i = 0; i < g->n_leaves; i++)
        if (g->leaves[i].ref.tensor == x && g->leaves[i].ref.serial == x->serial) return;
    if (!tg_host_grow(g->ctx, (void **)&g->leaves, g->n_leaves, &g->leaves_capacity, sizeof *g->leaves)) return;
    g->leaves[g->n_leaves++] = (leaf){.ref = tg_ref_of(x), .read = read, .before = gradient_now(x)};
}

tg_status tg_capture_draws(tg_ctx *ctx, const tg_rng *state, bool keyed, const tg_rng **captured) {
    return tg_captured_draws_row(&ctx->capture->draws, state, keyed, captured);
}

/* ---- Recording ---- */

/* Calls the step's function. An error quotes `who`. */
static tg_status call_fn(tg_graph *g, const char *who) {
    tg_ctx *ctx = g->ctx;
    ctx->busy++;
    tg_status s = g->fn(g->state, ctx);
    ctx->busy--;
    if (ctx->run.status != TG_OK) return ctx->run.status;
    return s == TG_OK ? s : tg_fail(ctx, TG_ERR_CALLBACK, "%s: the step failed with %s", who, tg_status_name(s));
}

static tg_status run_fn(tg_graph *g) {
    tg_ctx *ctx = g->ctx;
    TG_TRY(call_fn(g, "tg_graph_new"));
    if (g->recording.refused)
        return tg_fail(ctx, TG_ERR_STATE,
                       "tg_graph_new: the step cleared the error of a call that cannot be captured; remove that call "
                       "from the step");
    TG_TRY(tg_works_settle(ctx, NULL, NULL)); /* works on other streams must end within the recording */
    return tg_captured_draws_end(&g->draws);
}

static tg_status open_memory(tg_graph *g) {
    tg_ctx *ctx = g->ctx;
    g->arena = tg_heap_arena_open(ctx->run.heap);
    tg_block *rows =
        g->arena ? tg_heap_arena_pin(ctx->run.heap, g->arena, tg_captured_draws_bytes(&g->draws)) : NULL;
    if (!rows)
        return tg_fail(ctx, TG_ERR_MEMORY,
                       "tg_graph_new: out of memory on device \"%s\", or 255 graphs are alive already; free some with "
                       "tg_graph_free",
                       ctx->run.ops->name);
    g->draws.device_rows = tg_block_data(rows);
    return TG_OK;
}

static void use_live_block(void *user, const tg_block *b) {
    if (tg_block_owner(b)) use_block(user, (tg_block *)b, true);
}

static void close_memory(tg_graph *g) {
    tg_heap *h = g->ctx->run.heap;
    tg_heap_arena_close(h, g->arena);
    if (g->ctx->run.status == TG_OK) tg_heap_arena_each(h, g->arena, use_live_block, g);
    for (int i = 0; i < g->n_uses; i++) tg_block_forget_use(g->uses[i].block);
    g->bytes = tg_heap_arena_bytes(h, g->arena);
}

/* Records the step. The device executes nothing of it. */
static tg_status record(tg_graph *g) {
    tg_ctx *ctx = g->ctx;
    TG_TRY(tg_captured_draws_open(&g->draws, ctx));
    TG_TRY(tg_works_settle(ctx, NULL, NULL)); /* the recording cannot wait for work that began before it */
    tg_status s = open_memory(g);
    if (s == TG_OK) s = ctx->run.ops->capture_begin(ctx);
    if (s == TG_OK) {
        ctx->capture = g;
        ctx->run.recording = &g->recording;
        s = run_fn(g);
        ctx->run.recording = NULL;
        ctx->capture = NULL;
        tg_status ended = ctx->run.ops->capture_end(ctx, s == TG_OK, &g->recorded, &g->nodes);
        if (s == TG_OK) s = ended;
    }
    if (g->arena) close_memory(g);
    return s == TG_OK ? ctx->run.status : s;
}

/* Sends the states of the random streams to the device, and runs the recorded step. If the hook `begin` has succeeded,
 * calls the hook `end` too, even if the launch fails. */
static tg_status send_and_launch(tg_graph *g, bool first, const void *site) {
    TG_TRY(tg_captured_draws_send(&g->draws, first, site));
    if (g->hooks) TG_TRY(g->hooks->begin(g->hooks, site));
    tg_status s = g->ctx->run.ops->capture_launch(g->ctx, g->recorded);
    tg_status ended = g->hooks ? g->hooks->end(g->hooks) : TG_OK;
    if (s == TG_OK) s = ended;
    return s;
}

/* Runs the recorded step once. On an error, forgets that the keys of the step have drawn. */
static tg_status launch(tg_graph *g, bool first, const void *site) {
    int notes = g->ctx->key_notes.n;
    tg_status s = send_and_launch(g, first, site);
    if (s == TG_OK)
        g->steps++;
    else
        tg_key_notes_keep(g->ctx, notes);
    return s;
}

tg_replay_hooks *tg_capture_hooks(tg_ctx *ctx) { return ctx->capture->hooks; }
void tg_capture_set_hooks(tg_ctx *ctx, tg_replay_hooks *h) { ctx->capture->hooks = h; }

void tg_graphs_each_hooks(tg_ctx *ctx, void (*fn)(tg_replay_hooks *h, const void *arg), const void *arg) {
    for (tg_graph *g = ctx->graphs; g; g = g->next)
        if (g->hooks) fn(g->hooks, arg);
}

/* Undoes a capture that failed. The recording executed nothing, so the tensors that the step made hold no values: they
 * are discarded. Gradients and random streams become what they were before the step. */
static void undo(tg_graph *g) {
    tg_ctx *ctx = g->ctx;
    for (tg_block *b; g->arena && (b = tg_heap_arena_any(ctx->run.heap, g->arena));)
        tg_storage_discard(tg_block_owner(b), "a tg_graph_new that failed", g->recording.site);
    for (int i = 0; i < g->n_leaves; i++) {
        const tg_tensor *x = g->leaves[i].ref.tensor;
        if (x->serial == g->leaves[i].ref.serial && x->ext) gradient_set(x, g->leaves[i].before);
    }
    tg_captured_draws_undo(&g->draws);
}

static void note_gradients(tg_graph *g) {
    for (int i = 0; i < g->n_leaves; i++) {
        const tg_tensor *x = g->leaves[i].ref.tensor;
        if (x->serial == g->leaves[i].ref.serial && x->ext) g->leaves[i].after = gradient_now(x);
    }
}

/* Performs the first step: records and launches it, or, on a device that does not record, calls the function. */
static tg_status begin(tg_graph *g) {
    tg_ctx *ctx = g->ctx;
    if (!ctx->run.ops->capture_begin) {
        TG_TRY(call_fn(g, "tg_graph_new"));
        g->steps++;
        return TG_OK;
    }
    tg_status s = record(g);
    if (s == TG_OK) s = launch(g, true, g->recording.site);
    if (s == TG_OK)
        note_gradients(g);
    else
        undo(g);
    return s;
}

static void free_recorded(tg_graph *g) {
    if (g->recorded) g->ctx->run.ops->capture_free(g->ctx, g->recorded);
    g->recorded = NULL;
}

void tg_graphs_end(tg_ctx *ctx, bool (*ends)(tg_replay_hooks *h, const void *arg), const void *arg, const char *why) {
    for (tg_graph *g = ctx->graphs; g; g = g->next) {
        if (g->ended || !g->hooks || !ends(g->hooks, arg)) continue;
        g->ended = why;
        free_recorded(g);
    }
}

static bool can_capture(tg_ctx *ctx) {
    const tg_device_ops *o = ctx->run.ops;
    return o->capture_begin ? o->capture_end && o->capture_launch && o->capture_free : ctx->host || ctx->meta;
}

static tg_status check_capture(tg_ctx *ctx, const void *fn) {
    if (!fn) return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_graph_new: the function is NULL");
    if (ctx->capture) {
        ctx->capture->recording.refused = true;
        return tg_fail(ctx, TG_ERR_STATE, "tg_graph_new: a step is being captured; captures do not nest");
    }
    if (can_capture(ctx)) return TG_OK;
    return tg_fail(ctx, TG_ERR_UNSUPPORTED, "tg_graph_new: device \"%s\" cannot record a step", ctx->run.ops->name);
}

static tg_graph *capture(tg_ctx *ctx, tg_status (*fn)(void *state, tg_ctx *ctx), void *state, const void *site) {
    if (!tg_ok(ctx) || check_capture(ctx, (const void *)(uintptr_t)fn) != TG_OK) return NULL;
    tg_graph *g = tg_host_alloc(ctx, sizeof *g);
    if (!g) return NULL;
    *g = (tg_graph){.ctx = ctx, .fn = fn, .state = state, .recording.site = site, .next = ctx->graphs};
    if (g->next) g->next->prev = g;
    ctx->graphs = g;
    if (begin(g) == TG_OK) return g;
    tg_graph_free(g);
    return NULL;
}

tg_graph *tg_graph_new(tg_ctx *ctx, tg_status (*fn)(void *state, tg_ctx *ctx), void *state) {
    tg_graph *g = capture(ctx, fn, state, TG_SITE);
    if (!g && ctx && ctx->run.has_peers) tg_ctx_skip(ctx); /* the step may contain collectives over any axis */
    return g ? g : (tg_graph *)&inert;
}

/* ---- Replays ---- */

/* Fails if the step writes a tensor that a node has saved for a later backward. */
static tg_status check_uses(const tg_graph *g) {
    char what[160] = "a tensor";
    for (int i = 0; i < g->n_uses; i++) {
        const tg_storage *s = tg_block_owner(g->uses[i].block);
        if (TG_LIKELY(!g->uses[i].written || !s || !s->saves)) continue;
        if (tg_storage_maker(s)) tg_describe(tg_storage_maker(s), what, sizeof what);
        return tg_fail(g->ctx, TG_ERR_STATE,
                       "tg_graph_replay: the step writes %s, which a node has saved for backward; run that backward, "
                       "or reset its tape, first",
                       what);
    }
    return TG_OK;
}

/* Fails if a gradient that the step adds to is absent, or one that it overwrites is present. */
static tg_status check_gradients(const tg_graph *g) {
    char what[160];
    for (int i = 0; i < g->n_leaves; i++) {
        const leaf *l = &g->leaves[i];
        const tg_tensor *x = l->ref.tensor;
        if (TG_LIKELY(x->serial != l->ref.serial || !x->ext || !l->read || x->ext->has_grad == l->before.has)) continue;
        tg_describe(x, what, sizeof what);
        return tg_fail(g->ctx, TG_ERR_STATE,
                       "tg_graph_replay: %s has %s gradient, but the step was recorded %s, so it %s; zero gradients "
                       "within the step, or capture one for each case",
                       what, l->before.has ? "no" : "a", l->before.has ? "with one" : "without",
                       l->before.has ? "would add to a gradient that does not exist" : "would overwrite it");
    }
    return TG_OK;
}

/* Returns whether a work may continue during the replay, because it copies memory that the step does not touch, such as
 * the inputs of the next step. */
static bool is_independent(const void *arg, const tg_work *w) {
    const tg_graph *g = arg;
    const tg_block *b = w->fills ? w->fills->block : w->reads;
    if (!w->ops->order || !b || tg_block_arena(b) == g->arena) return false;
    for (int i = 0; i < g->n_uses; i++)
        if (g->uses[i].block == b) return false;
    return true;
}

static tg_status check_replay(const tg_graph *g) {
    tg_ctx *ctx = g->ctx;
    if (ctx->capture) {
        ctx->capture->recording.refused = true;
        return tg_fail(ctx, TG_ERR_STATE, "tg_graph_replay: a step is being captured; captures do not nest");
    }
    if (g->ended)
        return tg_fail(ctx, TG_ERR_ABORTED, "tg_graph_replay: %s; capture the step again", g->ended);
    if (!g->recorded) return TG_OK;
    TG_TRY(tg_captured_draws_check(&g->draws));
    TG_TRY(check_uses(g));
    return check_gradients(g);
}

static tg_status replay(tg_graph *g, const void *site) {
    tg_ctx *ctx = g->ctx;
    if (!tg_ok(ctx)) return tg_ctx_status(ctx);
    TG_TRY(check_replay(g));
    if (!g->recorded) {
        g->running++;
        tg_status s = call_fn(g, "tg_graph_replay");
        g->running--;
        g->steps += s == TG_OK;
        return s;
    }
    TG_TRY(tg_works_settle(ctx, is_independent, g));
    if (ctx->run.ops->poll) TG_TRY(ctx->run.ops->poll(ctx));
    TG_TRY(launch(g, false, site));
    tg_captured_draws_advance(&g->draws);
    for (int i = 0; i < g->n_leaves; i++) {
        const tg_tensor *x = g->leaves[i].ref.tensor;
        if (x->serial == g->leaves[i].ref.serial && x->ext) gradient_set(x, g->leaves[i].after);
    }
    return TG_OK;
}

tg_status tg_graph_replay(tg_graph *g) {
    if (!g) return TG_ERR_ARGUMENT;
    tg_status s = replay(g, TG_SITE);
    bool collective = g->recorded ? g->hooks != NULL : g->ctx->run.has_peers;
    if (s != TG_OK && collective) tg_ctx_skip(g->ctx);
    return s;
}

tg_status tg_graph_query(const tg_graph *g, tg_graph_info *out) {
    if (!g) return TG_ERR_ARGUMENT;
    if (!tg_ok(g->ctx)) return tg_ctx_status(g->ctx);
    if (!out || out->size < sizeof(size_t))
        return tg_fail(g->ctx, TG_ERR_ARGUMENT, "tg_graph_query: out is NULL or has no size; use TG_GRAPH_INFO()");
    tg_graph_info info = {.nodes = g->nodes, .bytes = g->bytes, .steps = g->steps,
                          .collectives = g->hooks ? g->hooks->collectives : 0};
    size_t size = out->size < sizeof info ? out->size : sizeof info;
    memcpy((char *)out + sizeof(size_t), (char *)&info + sizeof(size_t), size - sizeof(size_t));
    return TG_OK;
}

/* ---- Free ---- */

void tg_graph_free(tg_graph *g) {
    if (!g || g == &inert) return;
    tg_ctx *ctx = g->ctx;
    if (g->running) {
        tg_fail(ctx, TG_ERR_STATE, "tg_graph_free: called by the graph's own step; free the graph after it");
        return;
    }
    free_recorded(g);
    if (g->hooks) g->hooks->free(g->hooks);
    for (int i = 0; i < g->n_uses; i++) tg_block_unuse(ctx->run.heap, g->uses[i].block);
    if (g->arena) tg_heap_arena_end(ctx->run.heap, g->arena);
    tg_host_free(ctx, g->uses, (size_t)g->uses_capacity * sizeof *g->uses);
    tg_host_free(ctx, g->leaves, (size_t)g->leaves_capacity * sizeof *g->leaves);
    if (g->draws.ctx) tg_captured_draws_free(&g->draws);
    if (g->next) g->next->prev = g->prev;
    *(g->prev ? &g->prev->next : &ctx->graphs) = g->next;
    tg_host_free(ctx, g, sizeof *g);
}

void tg_graphs_free(tg_ctx *ctx) {
    while (ctx->graphs) tg_graph_free(ctx->graphs);
}
