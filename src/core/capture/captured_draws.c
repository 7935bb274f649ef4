/* The random draws of a captured step. A recorded kernel contains the stream number and the counter of its draw in the
 * recording. To these it adds those of a row on the device, which the host fills before each replay; the seed is that
 * of the row. Draws by order have one row for each random stream. Draws by key have one for each stream too if the step
 * opens its keys itself, because then only the seed differs between replays. If a replay draws in keys that its caller
 * has opened, each key of the recording has a row: the difference between the key's stream number in the replay and
 * that in the recording. */
#include "core/capture/captured_draws.h"

#include "base/memory/host_memory.h"
#include "core/random/rng.h"

enum { KEYS = 256 }; /* the largest number of keys in which a relative step may draw */

/* A random stream that existed before the step. */
typedef struct tg_captured_stream {
    uint64_t id;
    tg_rng before;  /* its state before the recording */
    uint64_t drawn; /* numbers that one step draws from it by order */
} stream;

/* The draws that have one row in common. */
typedef struct tg_captured_row {
    int stream; /* index of the random stream */
    bool keyed;
    /* The rest is for keyed draws of a relative step. */
    uint64_t recorded; /* stream number of the draws in the recording */
    uint64_t micro;    /* their micro-batch */
    int depth;         /* number of keys that the step had opened */
    uint64_t key[TG_KEY_LEVELS];
} row;

/* ---- Recording ---- */

static int count_streams(const tg_ctx *ctx) {
    int n = 1;
    for (const tg_named_rng *r = ctx->streams.first; r; r = r->next) n++;
    return n;
}

static uint64_t opening_now(const tg_ctx *ctx) {
    return ctx->keys.depth ? ctx->keys.level[ctx->keys.depth - 1].opening : 0;
}

tg_status tg_captured_draws_open(tg_captured_draws *d, tg_ctx *ctx, const tg_recording_words *words, bool relative,
                                 uint64_t micro) {
    d->ctx = ctx;
    d->words = words;
    d->relative = relative || ctx->keys.depth;
    d->n_streams = count_streams(ctx);
    d->most_rows = d->n_streams + (d->relative ? KEYS : d->n_streams);
    d->streams = tg_host_alloc(ctx, (size_t)d->n_streams * sizeof *d->streams);
    d->host_rows = d->streams ? tg_host_alloc(ctx, tg_captured_draws_bytes(d)) : NULL;
    if (!d->host_rows) return ctx->run.status;
    const tg_named_rng *r = ctx->streams.first;
    for (int i = 1; i < d->n_streams; i++, r = r->next) d->streams[i].id = r->id;
    for (int i = 0; i < d->n_streams; i++) d->streams[i].before = *tg_rng_by_id(ctx, d->streams[i].id);
    d->current = tg_rng_id(ctx, &ctx->rng);
    d->forks = ctx->streams.forks;
    d->keyed = tg_is_keyed(ctx);
    d->micro = micro;
    d->opens = ctx->keys.opens;
    d->open_keys = ctx->keys.depth;
    d->opening = opening_now(ctx);
    d->counter = ctx->keys.counter;
    d->old_notes = ctx->key_notes.n;
    return TG_OK;
}

size_t tg_captured_draws_bytes(const tg_captured_draws *d) { return (size_t)d->most_rows * sizeof *d->host_rows; }

/* Returns the index of a random stream, or -1 if it did not exist before the step. */
static int index_of(const tg_captured_draws *d, uint64_t id) {
    int i = d->n_streams - 1;
    while (i >= 0 && d->streams[i].id != id) i--;
    return i;
}

/* Fails if a key that was open before the step is not open any more. */
static tg_status check_outer(const tg_captured_draws *d) {
    const tg_keys *k = &d->ctx->keys;
    bool open = k->depth >= d->open_keys && (!d->open_keys || k->level[d->open_keys - 1].opening == d->opening);
    if (open) return TG_OK;
    d->ctx->run.recording->refused = true;
    return tg_fail(d->ctx, TG_ERR_STATE,
                   "%s: %s draws after it has closed a key that was opened before it; close only keys that it opens",
                   d->words->record, d->words->subject);
}

/* Adds a row. The keys of its draws are those that the step has opened and not closed. */
static tg_status add_row(tg_captured_draws *d, row *r) {
    const tg_keys *k = &d->ctx->keys;
    if (d->n_rows == d->most_rows)
        return tg_fail(d->ctx, TG_ERR_UNSUPPORTED, "%s: %s draws in more than %d keys; capture it in parts",
                       d->words->record, d->words->subject, KEYS);
    if (!tg_host_grow(d->ctx, (void **)&d->rows, d->n_rows, &d->rows_capacity, sizeof *d->rows))
        return d->ctx->run.status;
    for (int i = d->open_keys; r->recorded && i < k->depth; i++) r->key[r->depth++] = k->level[i].key;
    d->rows[d->n_rows++] = *r;
    return TG_OK;
}

tg_status tg_captured_draws_row(tg_captured_draws *d, const tg_rng *state, uint64_t micro, tg_draws *out) {
    row r = {.stream = index_of(d, tg_rng_id(d->ctx, state)), .keyed = tg_is_keyed(d->ctx)};
    if (r.stream < 0) return TG_OK;
    if (r.keyed && d->relative) {
        TG_TRY(check_outer(d));
        r.recorded = out->rng.stream;
        r.micro = micro;
    }
    int i = 0;
    while (i < d->n_rows &&
           (d->rows[i].stream != r.stream || d->rows[i].keyed != r.keyed || d->rows[i].recorded != r.recorded))
        i++;
    if (i == d->n_rows) TG_TRY(add_row(d, &r));
    out->captured = d->device_rows + i;
    return TG_OK;
}

/* Lists the keys in which the step draws. */
static tg_status list_keys(tg_captured_draws *d) {
    const tg_key_notes *k = &d->ctx->key_notes;
    int n = k->n - d->old_notes;
    if (!n || d->relative) return TG_OK;
    if (!(d->keys = tg_host_alloc(d->ctx, (size_t)n * sizeof *d->keys))) return d->ctx->run.status;
    for (int i = 0; i < n; i++) d->keys[i] = k->note[d->old_notes + i].stream;
    d->n_keys = n;
    return TG_OK;
}

/* Returns how many numbers of a random stream, by order, have been drawn since the recording began. */
static uint64_t drawn_of(const tg_captured_draws *d, const stream *s) {
    return tg_rng_by_id(d->ctx, s->id)->counter - s->before.counter;
}

/* Returns the same for the key that was open before the step. */
static uint64_t taken_of(const tg_captured_draws *d) { return d->open_keys ? d->ctx->keys.counter - d->counter : 0; }

static tg_status note_draws(tg_captured_draws *d) {
    for (int i = 0; i < d->n_streams; i++) d->streams[i].drawn = drawn_of(d, &d->streams[i]);
    d->taken = taken_of(d);
    d->ended = true;
    return list_keys(d);
}

static tg_status check_no_more(const tg_captured_draws *d) {
    bool more = taken_of(d) != d->taken;
    for (int i = 0; i < d->n_streams; i++) more |= drawn_of(d, &d->streams[i]) != d->streams[i].drawn;
    if (!more) return TG_OK;
    return tg_fail(d->ctx, TG_ERR_UNSUPPORTED,
                   "%s: the backward of %s draws random numbers, which it can draw again only if its forward has drawn "
                   "them",
                   d->words->record, d->words->subject);
}

/* Fails because the step has closed what was open before it, and has opened another of its kind. */
static tg_status closed_outer(const tg_captured_draws *d, const char *what, const char *call) {
    return tg_fail(d->ctx, TG_ERR_STATE,
                   "%s: %s has closed a %s that was open before it; call %s only for those that it opens",
                   d->words->record, d->words->subject, what, call);
}

tg_status tg_captured_draws_end(tg_captured_draws *d) {
    tg_ctx *ctx = d->ctx;
    if (ctx->streams.forks != d->forks)
        return tg_fail(ctx, TG_ERR_STATE,
                       "%s: %s ends with %d open forks of random streams, but began with %d; match each tg_rng_fork "
                       "with tg_rng_join",
                       d->words->record, d->words->subject, ctx->streams.forks, d->forks);
    if (tg_rng_id(ctx, &ctx->rng) != d->current) return closed_outer(d, "fork of random streams", "tg_rng_join");
    if (ctx->keys.opens != d->opens)
        return tg_fail(ctx, TG_ERR_STATE,
                       "%s: %s ends with %d open keys, but began with %d; match each tg_key_open with tg_key_close",
                       d->words->record, d->words->subject, ctx->keys.opens, d->opens);
    if (opening_now(ctx) != d->opening) return closed_outer(d, "key", "tg_key_close");
    return d->ended ? check_no_more(d) : note_draws(d);
}

void tg_captured_draws_undo(tg_captured_draws *d) {
    if (!d->host_rows) return;
    tg_rng_unwind(d->ctx, d->forks);
    tg_keys_unwind(d->ctx, d->opens);
    if (d->open_keys) d->ctx->keys.counter = d->counter;
    tg_key_notes_keep(d->ctx, d->old_notes);
    for (int i = 0; i < d->n_streams; i++) *tg_rng_by_id(d->ctx, d->streams[i].id) = d->streams[i].before;
}

/* ---- Checks before a replay ---- */

/* Fails if the current stream is not that of the recording, or if the streams from which the step draws are not what
 * the rows can express. */
static tg_status check_streams(const tg_captured_draws *d) {
    tg_ctx *ctx = d->ctx;
    if (tg_rng_id(ctx, &ctx->rng) != d->current)
        return tg_fail(ctx, TG_ERR_STATE,
                       "%s: the current random stream is not the one of the recording; call tg_rng_fork or tg_rng_join "
                       "as before %s",
                       d->words->replay, d->words->record);
    for (int i = 0; i < d->n_rows; i++) {
        const stream *s = &d->streams[d->rows[i].stream];
        const tg_rng *now = tg_rng_by_id(ctx, s->id);
        if (!now)
            return tg_fail(ctx, TG_ERR_STATE, "%s: a random stream that %s draws from was removed; capture it again",
                           d->words->replay, d->words->subject);
        if (d->rows[i].keyed && !d->relative && now->stream != s->before.stream)
            return tg_fail(ctx, TG_ERR_STATE,
                           "%s: tg_rng_set has changed the stream number of a random stream from which %s draws by "
                           "key; capture it again",
                           d->words->replay, d->words->subject);
    }
    return TG_OK;
}

/* Fails if the step would draw by key what the recording draws by order, or the reverse. */
static tg_status check_open_keys(const tg_captured_draws *d) {
    tg_ctx *ctx = d->ctx;
    if (!d->n_rows || tg_is_keyed(ctx) == d->keyed) return TG_OK;
    if (d->keyed)
        return tg_fail(ctx, TG_ERR_STATE,
                       "%s: no key is open, but %s was recorded with %d open; call tg_key_open first", d->words->replay,
                       d->words->subject, d->open_keys);
    return tg_fail(ctx, TG_ERR_STATE,
                   "%s: keys are open, but %s was recorded with none open; call tg_key_close first", d->words->replay,
                   d->words->subject);
}

/* Returns the stream number that draws with this row have in a replay. */
static uint64_t number_in_replay(const tg_captured_draws *d, const row *r, uint64_t micro) {
    const tg_rng *now = tg_rng_by_id(d->ctx, d->streams[r->stream].id);
    return tg_key_stream(&d->ctx->keys, now->stream, r->micro == d->micro ? micro : r->micro, r->key, r->depth);
}

/* Returns whether the keys of the step have drawn already. The key that is open now may draw more. */
static bool has_drawn(const tg_captured_draws *d, uint64_t micro) {
    for (int i = 0; i < d->n_keys; i++)
        if (tg_key_note_find(d->ctx, d->keys[i])) return true;
    for (int i = 0; d->relative && i < d->n_rows; i++) {
        const row *r = &d->rows[i];
        const tg_key_note *n = r->keyed ? tg_key_note_find(d->ctx, number_in_replay(d, r, micro)) : NULL;
        if (n && (r->depth || n->opening != opening_now(d->ctx))) return true;
    }
    return false;
}

tg_status tg_captured_draws_check(const tg_captured_draws *d, uint64_t micro) {
    TG_TRY(check_streams(d));
    TG_TRY(check_open_keys(d));
    if (d->ctx->keys.repeats || !has_drawn(d, micro)) return TG_OK;
    return tg_fail(d->ctx, TG_ERR_STATE,
                   "%s: the keys of %s have drawn in step %llu already, and would draw the same numbers; %s",
                   d->words->replay, d->words->subject, (unsigned long long)d->ctx->keys.step,
                   d->relative ? "call tg_draws_step before a new step and tg_tape_key before a further micro-batch, "
                                 "or open another key"
                               : "call tg_draws_step before each replay");
}

/* ---- Replays ---- */

/* Computes a row. Its stream number and its counter are relative to the recording. `now` is the state of its random
 * stream, and `taken` says how many more numbers of the key around the step are taken than before the recording. */
static tg_rng filled(const tg_captured_draws *d, const row *r, uint64_t micro, const tg_rng *now, uint64_t taken) {
    const tg_rng *before = &d->streams[r->stream].before;
    tg_rng to = {.seed = tg_key_seed(d->ctx, now->seed)};
    if (!r->keyed) return (tg_rng){now->seed, now->stream - before->stream, now->counter - before->counter};
    if (!d->relative) return to;
    to.stream = number_in_replay(d, r, micro) - r->recorded;
    if (!r->depth) to.counter = taken;
    return to;
}

static tg_status note_key(const tg_captured_draws *d, uint64_t stream, uint64_t opening, const void *site) {
    const tg_key_note note = {stream, opening, site}, *before;
    return tg_key_note_add(d->ctx, &note, &before); /* a check before has shown that no other opening has drawn */
}

/* Notes the keys in which a replay draws. */
static tg_status note_keys(const tg_captured_draws *d, uint64_t micro, const void *site) {
    tg_keys *k = &d->ctx->keys;
    uint64_t opening = ++d->ctx->key_notes.openings;
    for (int i = 0; i < d->n_keys; i++) TG_TRY(note_key(d, d->keys[i], opening, site));
    for (int i = 0; d->relative && i < d->n_rows; i++) {
        const row *r = &d->rows[i];
        if (!r->keyed) continue;
        const tg_key_level *outer = r->depth ? NULL : &k->level[k->depth - 1];
        TG_TRY(note_key(d, number_in_replay(d, r, micro), outer ? outer->opening : opening,
                        outer ? outer->site : site));
    }
    return TG_OK;
}

tg_status tg_captured_draws_send(tg_captured_draws *d, uint64_t micro, bool first, const void *site) {
    tg_ctx *ctx = d->ctx;
    if (!d->n_rows) return TG_OK;
    for (int i = 0; i < d->n_rows; i++) {
        const stream *s = &d->streams[d->rows[i].stream];
        d->host_rows[i] = filled(d, &d->rows[i], micro, first ? &s->before : tg_rng_by_id(ctx, s->id),
                                 first ? 0 : ctx->keys.counter - d->counter);
    }
    if (!first && !ctx->keys.repeats) TG_TRY(note_keys(d, micro, site));
    return ctx->run.ops->copy(ctx, d->device_rows, d->host_rows, (size_t)d->n_rows * sizeof *d->host_rows,
                              TG_COPY_FROM_HOST);
}

void tg_captured_draws_advance(const tg_captured_draws *d) {
    for (int i = 0; i < d->n_streams; i++) {
        tg_rng *now = d->streams[i].drawn ? tg_rng_by_id(d->ctx, d->streams[i].id) : NULL;
        if (now) now->counter += d->streams[i].drawn;
    }
    if (d->keyed) d->ctx->keys.counter += d->taken;
}

void tg_captured_draws_free(tg_captured_draws *d) {
    tg_host_free(d->ctx, d->streams, (size_t)d->n_streams * sizeof *d->streams);
    tg_host_free(d->ctx, d->host_rows, tg_captured_draws_bytes(d));
    tg_host_free(d->ctx, d->rows, (size_t)d->rows_capacity * sizeof *d->rows);
    tg_host_free(d->ctx, d->keys, (size_t)d->n_keys * sizeof *d->keys);
}
