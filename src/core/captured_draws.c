/* The random draws of a captured step. A recorded kernel has a fixed stream number and a fixed counter, to which it
 * adds those of a row. A row is a tg_rng in the device's memory, which the host fills before each replay. The seed of
 * the row replaces that of the recording. A stream has two rows at most: one for draws by order and one for draws by
 * key (keys.h). */
#include "core/captured_draws.h"

#include "base/host_memory.h"
#include "core/rng.h"

/* A random stream that existed before the step. */
typedef struct tg_captured_stream {
    uint64_t id;
    int row[2];     /* 1 + the index of the row for draws by order, and of that for draws by key; 0 if there is none */
    tg_rng before;  /* its state before the recording */
    uint64_t drawn; /* numbers that one step draws from it by order */
} stream;

/* ---- Recording ---- */

static int count_streams(const tg_ctx *ctx) {
    int n = 1;
    for (const tg_named_rng *r = ctx->streams.first; r; r = r->next) n++;
    return n;
}

tg_status tg_captured_draws_open(tg_captured_draws *d, tg_ctx *ctx) {
    d->ctx = ctx;
    d->n_streams = count_streams(ctx);
    d->streams = tg_host_alloc(ctx, (size_t)d->n_streams * sizeof *d->streams);
    d->host_rows = d->streams ? tg_host_alloc(ctx, tg_captured_draws_bytes(d)) : NULL;
    if (!d->host_rows) return ctx->run.status;
    const tg_named_rng *r = ctx->streams.first;
    for (int i = 1; i < d->n_streams; i++, r = r->next) d->streams[i].id = r->id;
    for (int i = 0; i < d->n_streams; i++) d->streams[i].before = *tg_rng_by_id(ctx, d->streams[i].id);
    d->current = tg_rng_id(ctx, &ctx->rng);
    d->forks = ctx->streams.forks;
    d->open_keys = ctx->keys.depth;
    d->old_notes = ctx->key_notes.n;
    return TG_OK;
}

size_t tg_captured_draws_bytes(const tg_captured_draws *d) {
    return 2 * (size_t)d->n_streams * sizeof *d->host_rows;
}

tg_status tg_captured_draws_row(tg_captured_draws *d, const tg_rng *state, bool keyed, const tg_rng **captured) {
    uint64_t id = tg_rng_id(d->ctx, state);
    if (keyed && d->open_keys) {
        d->ctx->run.recording->refused = true;
        return tg_fail(
            d->ctx, TG_ERR_UNSUPPORTED,
            "tg_graph_new: the step draws in %s that the program opened before it; open the keys within the step",
            tg_count(d->open_keys, "key").text);
    }
    for (int i = 0; i < d->n_streams; i++) {
        int *row = &d->streams[i].row[keyed];
        if (d->streams[i].id != id) continue;
        if (!*row) *row = ++d->n_rows;
        *captured = d->device_rows + *row - 1;
    }
    return TG_OK;
}

/* Lists the keys in which the step draws. */
static tg_status note_keys(tg_captured_draws *d) {
    const tg_key_notes *k = &d->ctx->key_notes;
    int n = k->n - d->old_notes;
    if (!n) return TG_OK;
    if (!(d->keys = tg_host_alloc(d->ctx, (size_t)n * sizeof *d->keys))) return d->ctx->run.status;
    for (int i = 0; i < n; i++) d->keys[i] = k->note[d->old_notes + i].stream;
    d->n_keys = n;
    return TG_OK;
}

tg_status tg_captured_draws_end(tg_captured_draws *d) {
    tg_ctx *ctx = d->ctx;
    if (ctx->streams.forks != d->forks || ctx->streams.forks_missed || tg_rng_id(ctx, &ctx->rng) != d->current)
        return tg_fail(ctx, TG_ERR_STATE,
                       "tg_graph_new: the step ends with %s of random streams, but began with %d; match each "
                       "tg_rng_fork with tg_rng_join",
                       tg_count(ctx->streams.forks + ctx->streams.forks_missed, "open fork").text, d->forks);
    if (ctx->keys.depth != d->open_keys)
        return tg_fail(
            ctx, TG_ERR_STATE,
            "tg_graph_new: the step ends with %s, but began with %d; match each tg_key_open with tg_key_close",
            tg_count(ctx->keys.depth, "open key").text, d->open_keys);
    for (int i = 0; i < d->n_streams; i++)
        d->streams[i].drawn = tg_rng_by_id(ctx, d->streams[i].id)->counter - d->streams[i].before.counter;
    return note_keys(d);
}

void tg_captured_draws_undo(tg_captured_draws *d) {
    if (!d->host_rows) return;
    tg_rng_unwind(d->ctx, d->forks);
    tg_keys_unwind(d->ctx, d->open_keys);
    tg_key_notes_keep(d->ctx, d->old_notes);
    for (int i = 0; i < d->n_streams; i++) *tg_rng_by_id(d->ctx, d->streams[i].id) = d->streams[i].before;
}

/* ---- Replays ---- */

tg_status tg_captured_draws_check(const tg_captured_draws *d) {
    tg_ctx *ctx = d->ctx;
    if (tg_rng_id(ctx, &ctx->rng) != d->current)
        return tg_fail(ctx, TG_ERR_STATE,
                       "tg_graph_replay: the current random stream is not the one of the recording; call tg_rng_fork "
                       "or tg_rng_join as before tg_graph_new");
    if (d->n_keys && ctx->keys.depth)
        return tg_fail(ctx, TG_ERR_STATE,
                       "tg_graph_replay: %s %s open, but none was when the step was recorded; call tg_key_close first",
                       tg_count(ctx->keys.depth, "key").text, ctx->keys.depth == 1 ? "is" : "are");
    for (int i = 0; i < d->n_keys; i++)
        if (tg_key_note_find(ctx, d->keys[i]))
            return tg_fail(ctx, TG_ERR_STATE,
                           "tg_graph_replay: the keys of the step have drawn in step %llu already, and would draw the "
                           "same numbers; call tg_draws_step before each replay",
                           (unsigned long long)ctx->keys.step);
    return TG_OK;
}

/* Fills the rows of a stream whose state is *now. A row for draws by order has the stream number and the counter
 * relative to those before the recording. A row for draws by key has only the seed, because nothing else changes
 * between replays. */
static tg_status fill_rows(tg_captured_draws *d, const stream *s, const tg_rng *now) {
    if (!now)
        return tg_fail(d->ctx, TG_ERR_STATE,
                       "tg_graph_replay: a random stream that the step draws from was removed; capture the step "
                       "again");
    uint64_t other = now->stream - s->before.stream;
    if (s->row[1] && other)
        return tg_fail(d->ctx, TG_ERR_STATE,
                       "tg_graph_replay: tg_rng_set has changed the stream number of a random stream from which the "
                       "step draws by key; capture the step again");
    if (s->row[0]) d->host_rows[s->row[0] - 1] = (tg_rng){now->seed, other, now->counter - s->before.counter};
    if (s->row[1]) d->host_rows[s->row[1] - 1] = (tg_rng){.seed = tg_key_seed(d->ctx, now->seed)};
    return TG_OK;
}

/* Notes the keys in which a replay draws. */
static tg_status draw_in_keys(const tg_captured_draws *d, const void *site) {
    tg_key_note note = {.opening = d->n_keys ? ++d->ctx->key_notes.openings : 0, .site = site};
    const tg_key_note *before;
    for (int i = 0; i < d->n_keys; i++) {
        note.stream = d->keys[i];
        TG_TRY(tg_key_note_add(d->ctx, &note, &before));
    }
    return TG_OK;
}

tg_status tg_captured_draws_send(tg_captured_draws *d, bool first, const void *site) {
    tg_ctx *ctx = d->ctx;
    if (!d->n_rows) return TG_OK;
    for (int i = 0; i < d->n_streams; i++) {
        const stream *s = &d->streams[i];
        if (s->row[0] || s->row[1]) TG_TRY(fill_rows(d, s, first ? &s->before : tg_rng_by_id(ctx, s->id)));
    }
    if (!first) TG_TRY(draw_in_keys(d, site));
    return ctx->run.ops->copy(ctx, d->device_rows, d->host_rows, (size_t)d->n_rows * sizeof *d->host_rows,
                              TG_COPY_FROM_HOST);
}

void tg_captured_draws_advance(const tg_captured_draws *d) {
    for (int i = 0; i < d->n_streams; i++) {
        tg_rng *now = d->streams[i].drawn ? tg_rng_by_id(d->ctx, d->streams[i].id) : NULL;
        if (now) now->counter += d->streams[i].drawn;
    }
}

void tg_captured_draws_free(tg_captured_draws *d) {
    tg_host_free(d->ctx, d->streams, (size_t)d->n_streams * sizeof *d->streams);
    tg_host_free(d->ctx, d->host_rows, tg_captured_draws_bytes(d));
    tg_host_free(d->ctx, d->keys, (size_t)d->n_keys * sizeof *d->keys);
}
