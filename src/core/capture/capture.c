/* Captured steps (tg_graph). The device records the work that its functions queue (tapegrad/device.h). This file
 * makes the recording repeatable: it keeps the memory that the step uses at its addresses, and notes what the step does
 * with random streams, gradients and saved tensors. core/capture/replay.c uses these notes at each replay. */
#include "core/capture/graph.h"

#include "base/callback.h"
#include "base/memory/host_memory.h"
#include "core/work.h"

static const tg_recording_words step_words = {
    .record = "tg_graph_new",
    .replay = "tg_graph_replay",
    .subject = "the step",
    .recorded = "the step that tg_graph_new records",
    .elsewhere = "outside of the step, before or after tg_graph_replay",
    .failed = "a tg_graph_new that failed",
};
static const tg_recording_words module_words = {
    .record = "captured module",
    .replay = "captured module",
    .subject = "the module",
    .recorded = "the module that tg_captured_new captures",
    .elsewhere = "outside of the module",
    .failed = "the capture of a module, which failed",
};

static const tg_graph inert = {.ctx = (tg_ctx *)&tg_dead_ctx, .recording.words = &step_words};

/* ---- During the recording ---- */

/* Notes that the step uses block b. If there is no memory for the entry, the context has the error and the capture
 * fails. */
static void use_block(tg_graph *g, tg_block *b, bool written) {
    if (!tg_host_grow(g->ctx, (void **)&g->uses, g->n_uses, &g->uses_capacity, sizeof *g->uses)) return;
    if (tg_heap_arena_use(g->ctx->run.heap, b)) g->uses[g->n_uses++] = (tg_graph_use){.block = b, .written = written};
}

void tg_capture_uses(tg_storage *s) {
    if (s->block)
        use_block(s->ctx->capture, s->block, false);
    else if (s->data && !s->ctx->host) /* an imported tensor (dlpack.h) */
        tg_recording_refuse(s->ctx, NULL, TG_RECORDING_OUTSIDE, NULL);
}

void tg_capture_writes(tg_storage *s) {
    tg_graph *g = s->ctx->capture;
    if (!s->block) return;
    use_block(g, s->block, true);
    for (int i = 0; i < g->n_uses; i++)
        if (g->uses[i].block == s->block) g->uses[i].written = true;
}

static tg_gradient_state gradient_now(const tg_tensor *x) {
    const tg_ext *e = x->ext;
    return (tg_gradient_state){.has = e->has_grad,
                               .partial = e->partial,
                               .summed = e->summed,
                               .divided = e->divided,
                               .unsure = e->unsure,
                               .awaits = tg_storage_awaits(x->storage)};
}

void tg_graph_set_gradients(const tg_graph *g, bool after) {
    for (int i = 0; i < g->n_leaves; i++) {
        const tg_graph_leaf *l = &g->leaves[i];
        const tg_tensor *x = l->ref.tensor;
        const tg_gradient_state *to = after ? &l->after : &l->before;
        if (x->serial != l->ref.serial || !x->ext) continue;
        x->ext->has_grad = to->has;
        x->ext->partial = to->partial;
        x->ext->summed = to->summed;
        x->ext->divided = to->divided;
        x->ext->unsure = to->unsure;
        if (to->awaits) tg_storage_await(x->storage);
    }
}

void tg_capture_gradient(const tg_tensor *x, bool read) {
    tg_graph *g = x->ctx->capture;
    for (int i = 0; i < g->n_leaves; i++)
        if (g->leaves[i].ref.tensor == x && g->leaves[i].ref.serial == x->serial) return;
    if (!tg_host_grow(g->ctx, (void **)&g->leaves, g->n_leaves, &g->leaves_capacity, sizeof *g->leaves)) return;
    g->leaves[g->n_leaves++] = (tg_graph_leaf){.ref = tg_ref_of(x), .read = read, .before = gradient_now(x)};
}

tg_status tg_capture_draws(tg_ctx *ctx, const tg_rng *stream, uint64_t micro, tg_draws *out) {
    return tg_captured_draws_row(&ctx->capture->draws, stream, micro, out);
}

tg_replay_hooks *tg_capture_hooks(tg_ctx *ctx) { return ctx->capture->part[ctx->capture->current].hooks; }
void tg_capture_set_hooks(tg_ctx *ctx, tg_replay_hooks *h) { ctx->capture->part[ctx->capture->current].hooks = h; }

/* ---- Recording ---- */

tg_status tg_graph_call(tg_graph *g, int part, const char *who) {
    tg_ctx *ctx = g->ctx;
    ctx->busy++;
    tg_status s = g->part[part].fn(g->state, ctx);
    ctx->busy--;
    return tg_callback_end(ctx, s, "%s: %s", who, g->recording.words->subject);
}

static bool began_before(const void *g, const tg_work *w) { return w->graph != g; }

static tg_status run_fn(tg_graph *g) {
    tg_ctx *ctx = g->ctx;
    const tg_recording_words *w = g->recording.words;
    TG_TRY(tg_graph_call(g, g->current, w->record));
    if (g->recording.refused)
        return tg_fail(ctx, TG_ERR_STATE,
                       "%s: %s cleared the error of a call that cannot be captured; remove that call from %s",
                       w->record, w->subject, w->subject);
    TG_TRY(tg_works_settle(ctx, began_before, g)); /* works on other streams must end within the recording */
    return tg_captured_draws_end(&g->draws);
}

/* Lets the device record the work of one function, without executing it. */
static tg_status record_part(tg_graph *g, int i) {
    tg_ctx *ctx = g->ctx;
    tg_graph_part *p = &g->part[i];
    g->current = i;
    TG_TRY(ctx->run.ops->capture_begin(ctx));
    ctx->capture = g;
    ctx->run.recording = &g->recording;
    tg_status s = run_fn(g);
    ctx->run.recording = NULL;
    ctx->capture = NULL;
    tg_status ended = ctx->run.ops->capture_end(ctx, s == TG_OK, &p->recorded, &p->nodes);
    return s == TG_OK ? ended : s;
}

static tg_status open_memory(tg_graph *g) {
    tg_ctx *ctx = g->ctx;
    g->arena = tg_heap_arena_open(ctx->run.heap);
    tg_block *rows = g->arena ? tg_heap_arena_pin(ctx->run.heap, g->arena, tg_captured_draws_bytes(&g->draws)) : NULL;
    if (!rows)
        return tg_fail(
            ctx, TG_ERR_MEMORY,
            "%s: out of memory on device \"%s\", or 255 graphs are alive already (one for each tg_graph_new, "
            "and for each slot of a captured module); free some",
            g->recording.words->record, ctx->run.ops->name);
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

/* Returns whether a work may continue while a module is recorded, because it fills no tensor of the module: a message
 * that is awaited, or gradients that are being summed. Waiting for a message could be a deadlock, because its sender
 * may wait for a message that this rank sends later. */
static bool goes_on(const void *arg, const tg_work *w) {
    (void)arg;
    const tg_storage *s = w->fills;
    return !w->ops->order &&
           (!s || s->category == TG_MEM_TEMPORARY || s->category == TG_MEM_SAVED || s->category == TG_MEM_GRADIENT);
}

/* Records all functions. Draws are relative as tg_captured_draws_open says. */
static tg_status record(tg_graph *g, bool relative, uint64_t micro) {
    tg_ctx *ctx = g->ctx;
    TG_TRY(tg_captured_draws_open(&g->draws, ctx, g->recording.words, relative, micro));
    /* The recording cannot wait for work that began before it. */
    TG_TRY(tg_works_settle(ctx, relative ? goes_on : NULL, NULL));
    tg_status s = open_memory(g);
    for (int i = 0; i < g->n_parts && s == TG_OK; i++) s = record_part(g, i);
    if (g->arena) close_memory(g);
    return s == TG_OK ? ctx->run.status : s;
}

/* Undoes a capture that failed. The recording executed nothing, so the tensors that the step made in the arena hold no
 * values: they are discarded. Gradients and random streams become what they were before the step. */
static void undo(tg_graph *g) {
    tg_ctx *ctx = g->ctx;
    for (tg_block *b; g->arena && (b = tg_heap_arena_any(ctx->run.heap, g->arena));)
        tg_storage_discard(tg_block_owner(b), g->recording.words->failed, g->recording.site);
    tg_graph_set_gradients(g, false);
    tg_captured_draws_undo(&g->draws);
}

static void note_gradients(tg_graph *g) {
    for (int i = 0; i < g->n_leaves; i++) {
        const tg_tensor *x = g->leaves[i].ref.tensor;
        if (x->serial == g->leaves[i].ref.serial && x->ext) g->leaves[i].after = gradient_now(x);
    }
}

/* Performs the first step: records and launches it, or, on a device that does not record, calls the function. */
static tg_status begin_step(tg_graph *g) {
    tg_ctx *ctx = g->ctx;
    if (!ctx->run.ops->capture_begin) {
        TG_TRY(tg_graph_call(g, 0, g->recording.words->record));
        g->steps++;
        return TG_OK;
    }
    tg_status s = record(g, false, 0);
    if (s == TG_OK) s = tg_graph_launch(g, 0, 0, true, g->recording.site);
    if (s == TG_OK)
        note_gradients(g);
    else
        undo(g);
    return s;
}

/* ---- Creation ---- */

bool tg_can_record(const tg_ctx *ctx) {
    const tg_device_ops *o = ctx->run.ops;
    return o->capture_begin && o->capture_end && o->capture_launch && o->capture_free;
}

static tg_status check_capture(tg_ctx *ctx, const void *fn) {
    if (!fn) return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_graph_new: the function is NULL");
    if (ctx->capture) {
        ctx->capture->recording.refused = true;
        return tg_fail(ctx, TG_ERR_STATE, "tg_graph_new: a step is being captured; captures do not nest");
    }
    if (tg_can_record(ctx) || (!ctx->run.ops->capture_begin && (ctx->host || ctx->meta))) return TG_OK;
    return tg_fail(ctx, TG_ERR_UNSUPPORTED, "tg_graph_new: device \"%s\" cannot record a step", ctx->run.ops->name);
}

/* Adds a graph of n functions to the context. Returns NULL after recording the error. */
static tg_graph *add_graph(tg_ctx *ctx, const tg_graph_fn *fn, int n, void *state, const tg_recording_words *words,
                           const void *site) {
    tg_graph *g = tg_host_alloc(ctx, sizeof *g);
    if (!g) return NULL;
    *g = (tg_graph){.ctx = ctx, .n_parts = n, .state = state, .recording = {words, site, false}, .next = ctx->graphs};
    for (int i = 0; i < n; i++) g->part[i].fn = fn[i];
    if (g->next) g->next->prev = g;
    return ctx->graphs = g;
}

static tg_graph *capture(tg_ctx *ctx, tg_graph_fn fn, void *state, const void *site) {
    if (!tg_ok(ctx) || check_capture(ctx, (const void *)(uintptr_t)fn) != TG_OK) return NULL;
    tg_graph *g = add_graph(ctx, &fn, 1, state, &step_words, site);
    if (!g || begin_step(g) == TG_OK) return g;
    tg_graph_free(g);
    return NULL;
}

tg_graph *tg_graph_new(tg_ctx *ctx, tg_status (*fn)(void *state, tg_ctx *ctx), void *state) {
    tg_graph *g = capture(ctx, fn, state, TG_SITE);
    if (!g && ctx && ctx->run.has_peers) tg_ctx_skip(ctx); /* the step may contain collectives over any axis */
    return g ? g : (tg_graph *)&inert;
}

tg_graph *tg_graph_record(tg_ctx *ctx, const tg_graph_fn *fn, int n, void *state, uint64_t micro, const void *site) {
    tg_graph *g = add_graph(ctx, fn, n, state, &module_words, site);
    if (!g) return NULL;
    if (record(g, true, micro) == TG_OK) {
        tg_captured_draws_undo(&g->draws);
        tg_graph_set_gradients(g, false);
        g->n_leaves = 0; /* the tape accumulates what replays compute, as it does for any op */
        return g;
    }
    undo(g);
    tg_graph_free(g);
    return NULL;
}

/* ---- Queries ---- */

bool tg_graph_changes_state(const tg_graph *g) {
    bool changes = false;
    for (int i = 0; i < g->n_uses; i++) changes |= g->uses[i].written && tg_block_arena(g->uses[i].block) != g->arena;
    return changes;
}

bool tg_graph_has_ended(const tg_graph *g) { return g->ended; }

void tg_graphs_each_hooks(tg_ctx *ctx, void (*fn)(tg_replay_hooks *h, const void *arg), const void *arg) {
    for (tg_graph *g = ctx->graphs; g; g = g->next)
        for (int i = 0; i < g->n_parts; i++)
            if (g->part[i].hooks) fn(g->part[i].hooks, arg);
}

tg_status tg_graph_query(const tg_graph *g, tg_graph_info *out) {
    if (!g) return TG_ERR_ARGUMENT;
    if (!tg_ok(g->ctx)) return tg_ctx_status(g->ctx);
    if (!out || out->size < sizeof(size_t))
        return tg_fail(g->ctx, TG_ERR_ARGUMENT, "tg_graph_query: out is NULL or has no size; use TG_GRAPH_INFO()");
    tg_graph_info info = {.bytes = g->bytes, .steps = g->steps};
    for (int i = 0; i < g->n_parts; i++) {
        info.nodes += g->part[i].nodes;
        if (g->part[i].hooks) info.collectives += g->part[i].hooks->collectives;
    }
    size_t size = out->size < sizeof info ? out->size : sizeof info;
    memcpy((char *)out + sizeof(size_t), (char *)&info + sizeof(size_t), size - sizeof(size_t));
    return TG_OK;
}

/* ---- Ends ---- */

static void free_recorded(tg_graph *g) {
    for (int i = 0; i < g->n_parts; i++) {
        if (g->part[i].recorded) g->ctx->run.ops->capture_free(g->ctx, g->part[i].recorded);
        g->part[i].recorded = NULL;
    }
}

void tg_graphs_end(tg_ctx *ctx, bool (*ends)(tg_replay_hooks *h, const void *arg), const void *arg, const char *why) {
    for (tg_graph *g = ctx->graphs; g; g = g->next)
        for (int i = 0; i < g->n_parts && !g->ended; i++) {
            if (!g->part[i].hooks || !ends(g->part[i].hooks, arg)) continue;
            g->ended = why;
            free_recorded(g);
        }
}

void tg_graph_free(tg_graph *g) {
    if (!g || g == &inert) return;
    tg_ctx *ctx = g->ctx;
    if (g->running) {
        tg_fail(ctx, TG_ERR_STATE, "tg_graph_free: called by the graph's own step; free the graph after it");
        return;
    }
    free_recorded(g);
    for (int i = 0; i < g->n_parts; i++)
        if (g->part[i].hooks) g->part[i].hooks->free(g->part[i].hooks);
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
