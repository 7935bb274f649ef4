/* Random streams in sharded state, as text in its metadata. The default stream is the same on every rank, so its text
 * is one state. With TG_RNG_MEGATRON and several pipeline stages it differs between stages, and is written like a named
 * one. The text of a named stream has the sizes of the axes over which streams may differ, and then a row for each
 * rank: the rank's positions on these axes, and the state of its stream. The last text is the step of draws by key
 * (tg_draws_step). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <tapegrad/parallel.h>

#include "base/memory/host_memory.h"
#include "core/capture/capture.h"
#include "core/random/rng.h"
#include "comm/comm.h"
#include "checkpoint/state/state_index.h"

static const tg_axis axes[] = {TG_TP, TG_PP, TG_ETP, TG_EP};
/* A row has AXES positions and the WORDS numbers of a state: seed, stream, counter. DIGITS is the number of characters
 * that a number, a space and a terminating zero need. */
enum { AXES = TG_LEN(axes), WORDS = 3, ROW = AXES + WORDS, DIGITS = 22 };

tg_status tg_shards_add_rng(tg_shards *s) {
    if (!s) return TG_ERR_ARGUMENT;
    TG_TRY(s->ctx->run.status);
    if (s->rng) return tg_fail(s->ctx, TG_ERR_STATE, "tg_shards_add_rng: the random streams were added already");
    s->rng = true;
    return TG_OK;
}

static const char step_key[] = "rng.step";

/* Returns the number of random streams; 0 if they are not in the list. */
static int count_streams(const tg_shards *s) {
    int n = s->rng;
    while (s->rng && tg_rng_name(s->ctx, n - 1)) n++;
    return n;
}

int tg_shards_streams(const tg_shards *s) { return s->rng ? count_streams(s) + 1 : 0; }

/* Returns whether stream i is the same on every rank. */
static bool is_common(const tg_shards *s, int i) {
    return !i && !(tg_parallel_rng(s->p) == TG_RNG_MEGATRON && tg_parallel_size(s->p, TG_PP) > 1);
}

/* Returns the name of stream i; NULL for stream 0, the default one. */
static const char *name_of(const tg_shards *s, int i) { return i ? tg_rng_name(s->ctx, i - 1) : NULL; }

static tg_rng *state_of(const tg_shards *s, int i) {
    return i ? tg_rng_named(s->ctx, name_of(s, i)) : tg_rng_by_id(s->ctx, 0);
}

/* Writes the metadata key of stream i: "rng" for the default stream, "rng/NAME" for a named one. */
static tg_status key_of(const tg_shards *s, int i, char key[TG_SHARDS_KEY]) {
    const char *name = name_of(s, i);
    if (snprintf(key, TG_SHARDS_KEY, "rng%s%s", name ? "/" : "", name ? name : "") < TG_SHARDS_KEY) return TG_OK;
    return tg_fail(s->ctx, TG_ERR_ARGUMENT, "tg_shards: the random stream's name '%.64s...' is too long", name);
}

/* ---- Saving ---- */

/* Fills this rank's row of each of n streams: the rank's positions on the axes, then the stream's state. */
static void fill_rows(const tg_shards *s, int n, uint64_t *row) {
    for (int i = 0; i < n; i++, row += ROW) {
        const tg_rng *r = state_of(s, i);
        for (int a = 0; a < AXES; a++) row[a] = (uint64_t)tg_parallel_rank(s->p, axes[a]);
        memcpy(row + AXES, (uint64_t[]){r->seed, r->stream, r->counter}, WORDS * sizeof *row);
    }
}

/* Gathers the rows of all ranks in rank order. This rank's rows are already in their place. Collective over the
 * world. */
static tg_status gather_rows(const tg_shards *s, int n, uint64_t *rows) {
    tg_comm *world = tg_parallel_world(s->p);
    int size = tg_comm_size(world);
    int64_t own = (int64_t)n * ROW;
    if (size == 1) return TG_OK;
    tg_tensor *mine = tg_from_host(s->ctx, TG_I64, TG_SHAPE(own), rows + tg_comm_rank(world) * own),
              *all = tg_zeros(s->ctx, TG_I64, TG_SHAPE(size * own));
    if (tg_comm_all_gather(world, all, mine)) tg_read(all, rows, (size_t)(size * own) * sizeof *rows);
    tg_drop(mine);
    tg_drop(all);
    return s->ctx->run.status;
}

/* Writes a number and a space, and returns the end of the text. */
static char *number(char *to, uint64_t value) { return to + snprintf(to, DIGITS, "%" PRIu64 " ", value); }

/* Writes the text of stream i: if it is the same on every rank its state, else the sizes of the axes and then the row
 * of each rank. */
static void write_text(const tg_shards *s, int i, int n, const uint64_t *rows, char *to) {
    int size = tg_comm_size(tg_parallel_world(s->p));
    bool common = is_common(s, i);
    for (int a = 0; !common && a < AXES; a++) to = number(to, (uint64_t)tg_parallel_size(s->p, axes[a]));
    for (int rank = 0; rank < (common ? 1 : size); rank++)
        for (int k = common ? AXES : 0; k < ROW; k++) to = number(to, rows[((int64_t)rank * n + i) * ROW + k]);
    to[-1] = '\0';
}

static tg_status describe_step(const tg_shards *s, tg_shards_metadata *out) {
    snprintf(out->key, sizeof out->key, "%s", step_key);
    if (!(out->text = tg_host_alloc(s->ctx, DIGITS))) return s->ctx->run.status;
    out->bytes = DIGITS;
    snprintf(out->text, DIGITS, "%" PRIu64, s->ctx->keys.step);
    return TG_OK;
}

tg_status tg_shards_describe_streams(const tg_shards *s, tg_shards_metadata *out) {
    int n = count_streams(s), size = tg_comm_size(tg_parallel_world(s->p));
    size_t bytes = (size_t)n * (size_t)size * ROW * sizeof(uint64_t), most = (AXES + (size_t)size * ROW) * DIGITS + 1;
    if (!n) return TG_OK;
    uint64_t *rows = tg_host_alloc(s->ctx, bytes);
    if (!rows) return s->ctx->run.status;
    fill_rows(s, n, rows + (int64_t)tg_comm_rank(tg_parallel_world(s->p)) * n * ROW);
    tg_status status = gather_rows(s, n, rows);
    for (int i = 0; i < n && status == TG_OK; i++) {
        status = key_of(s, i, out[i].key);
        if (status == TG_OK && !(out[i].text = tg_host_alloc(s->ctx, most))) status = s->ctx->run.status;
        if (status == TG_OK) write_text(s, i, n, rows, out[i].text), out[i].bytes = most;
    }
    tg_host_free(s->ctx, rows, bytes);
    return status == TG_OK ? describe_step(s, &out[n]) : status;
}

/* ---- Loading ---- */

/* Reads the next number of the text and moves *at to the end of it. Returns false if there is none. */
static bool next_number(const char **at, uint64_t *value) {
    char *end;
    while (**at == ' ') ++*at;
    if (**at < '0' || **at > '9') return false;
    *value = strtoull(*at, &end, 10);
    *at = end;
    return true;
}

/* Chooses the state with which this rank continues a stream that was saved in rows, from the text at `at`. On entry
 * *state is the stream's current state. If the axes have the sizes in the text, the state is that of a saved rank with
 * this rank's positions on the axes: of the rank with the same number in the world if it had these positions, else of
 * the first such rank. If an axis has another size, no saved rank fits. Then *state keeps its seed, and its counter
 * becomes the largest of its own and those of all saved ranks, so that no number is drawn twice. Returns false if the
 * text is malformed. */
static bool choose_state(const tg_shards *s, const char *at, tg_rng *state) {
    uint64_t sizes[AXES], row[ROW], most = state->counter;
    tg_comm *world = tg_parallel_world(s->p);
    bool same = true, found = false;
    int64_t rank = 0;
    for (int a = 0; a < AXES; a++) {
        if (!next_number(&at, &sizes[a])) return false;
        same &= sizes[a] == (uint64_t)tg_parallel_size(s->p, axes[a]);
    }
    for (; *at; rank++) {
        bool here = same;
        for (int k = 0; k < ROW; k++)
            if (!next_number(&at, &row[k])) return false;
        for (int a = 0; a < AXES; a++) here &= row[a] == (uint64_t)tg_parallel_rank(s->p, axes[a]);
        if (row[ROW - 1] > most) most = row[ROW - 1];
        if (!here || (found && rank != tg_comm_rank(world))) continue;
        *state = (tg_rng){row[AXES], row[AXES + 1], row[AXES + 2]};
        found = true;
    }
    if (!found) state->counter = most;
    return rank > 0;
}

/* Reads the state of the default stream. Returns false if the text is malformed. */
static bool read_state(const char *at, tg_rng *state) {
    return next_number(&at, &state->seed) && next_number(&at, &state->stream) && next_number(&at, &state->counter) &&
           !*at;
}

/* Reads the state of the default stream, which was saved as one state or, if it differed between stages, in rows. If it
 * was saved as one state, but now differs between stages, *state keeps its seed, and its counter becomes the larger of
 * its own and the saved one. Returns false if the text is malformed. */
static bool read_default(const tg_shards *s, const char *text, tg_rng *state) {
    tg_rng all;
    if (!read_state(text, &all)) return choose_state(s, text, state);
    if (is_common(s, 0))
        *state = all;
    else if (all.counter > state->counter)
        state->counter = all.counter;
    return true;
}

/* Fails if the state has a named stream that the context does not have. */
static tg_status check_known(const tg_shards *s, const tg_state *d) {
    const char *key;
    json_t *text;
    json_object_foreach(d->metadata, key, text)
        if (!strncmp(key, "rng/", 4) && !tg_rng_named(s->ctx, key + 4))
            return tg_fail(s->ctx, TG_ERR_FORMAT, "'%s' has a random stream '%.128s' that this context does not have",
                           d->dir, key + 4);
    return TG_OK;
}

/* Reads the step of draws by key into the counter of *out. State of an earlier version has no step; the counter is
 * then the context's step. */
static tg_status read_step(const tg_shards *s, const tg_state *d, tg_rng *out) {
    const char *text = tg_state_metadata(d, step_key);
    *out = (tg_rng){.counter = s->ctx->keys.step};
    if (!text || (next_number(&text, &out->counter) && !*text)) return TG_OK;
    return tg_fail(s->ctx, TG_ERR_FORMAT, "'%s': the step of the random draws is malformed", d->dir);
}

tg_status tg_shards_read_streams(const tg_shards *s, const tg_state *d, tg_rng *out) {
    if (!s->rng) return TG_OK;
    TG_TRY(tg_recording_refuse(s->ctx, "tg_shards_load", TG_RECORDING_STREAM, TG_SITE));
    int n = count_streams(s);
    for (int i = 0; i < n; i++) {
        char key[TG_SHARDS_KEY];
        TG_TRY(key_of(s, i, key));
        const char *text = tg_state_metadata(d, key);
        out[i] = *state_of(s, i);
        if (text && (i ? choose_state(s, text, &out[i]) : read_default(s, text, &out[i]))) continue;
        return tg_fail(s->ctx, TG_ERR_FORMAT, "'%s': the random stream '%.128s' is %s", d->dir,
                       i ? name_of(s, i) : "(default)", text ? "malformed" : "missing");
    }
    TG_TRY(read_step(s, d, &out[n]));
    return check_known(s, d);
}

void tg_shards_set_streams(const tg_shards *s, const tg_rng *from) {
    int n = count_streams(s);
    for (int i = 0; i < n; i++) *state_of(s, i) = from[i];
    if (n) tg_keys_begin_step(s->ctx, from[n].counter);
}
