/* The documents of a token stream, and which of its tokens are predicted. */
#include "io/tokens.h"

int64_t tg_tokens_documents(const tg_tokens *t) { return t ? t->documents : 0; }

/* ---- Runs ---- */

/* Moves a run of part p by the place of the part in the joined stream, or back if sign is -1. */
static void shift(const tg_tokens *t, tg_token_run *run, int p, int sign) {
    run->first += sign * t->first_token[p];
    run->stop += sign * t->first_token[p];
    run->document += sign * t->first_document[p];
    run->part = p;
}

/* Finds the run of a token in a stream that is one file. */
static tg_status find_in_file(tg_tokens *t, int64_t token, tg_token_run *out) {
    if (t->index.path) return tg_megatron_find(t, token, out);
    *out = (tg_token_run){.stop = t->count};
    return TG_OK;
}

static tg_status find(tg_tokens *t, int64_t token, tg_token_run *out) {
    if (!t->n_parts) return find_in_file(t, token, out);
    int p = tg_tokens_part_of(t, token);
    TG_TRY(find_in_file(t->part[p], token - t->first_token[p], out));
    shift(t, out, p, 1);
    return TG_OK;
}

static tg_status next(tg_tokens *t, tg_token_run *run) {
    if (!t->n_parts) return tg_megatron_next(t, run);
    int p = run->part;
    if (run->stop == t->first_token[p] + t->part[p]->count) return find(t, run->stop, run);
    shift(t, run, p, -1);
    TG_TRY(tg_megatron_next(t->part[p], run));
    shift(t, run, p, 1);
    return TG_OK;
}

tg_status tg_tokens_find_run(tg_tokens *t, int64_t token, tg_token_run *out) {
    if (!t) return TG_ERR_ARGUMENT;
    TG_TRY(tg_io_enter(t->ctx));
    if (!out || token < 0 || token >= t->count)
        return tg_fail(t->ctx, TG_ERR_ARGUMENT,
                       "tg_tokens_find_run: token is %lld and out %p, expected a token from 0 to %lld, and a run",
                       (long long)token, (const void *)out, (long long)(t->count - 1));
    return find(t, token, out);
}

tg_status tg_tokens_next_run(tg_tokens *t, tg_token_run *run) {
    if (!t) return TG_ERR_ARGUMENT;
    TG_TRY(tg_io_enter(t->ctx));
    if (!run || run->first < 0 || run->stop <= run->first || run->stop >= t->count)
        return tg_fail(t->ctx, TG_ERR_ARGUMENT,
                       "tg_tokens_next_run: run %p ends with token %lld, expected a run of tg_tokens_find_run that "
                       "ends before token %lld",
                       (const void *)run, run ? (long long)run->stop - 1 : -1, (long long)(t->count - 1));
    tg_token_run after = *run; /* so that *run stays as it is if reading the index fails */
    TG_TRY(next(t, &after));
    *run = after;
    return TG_OK;
}

/* ---- Windows ---- */

enum { IGNORED = -100 };

bool tg_tokens_has_context(const tg_tokens *t) { return t && t->has_modes; }

tg_status tg_tokens_set_windows(tg_tokens *t, tg_token_windows windows) {
    if (!t) return TG_ERR_ARGUMENT;
    TG_TRY(tg_io_enter(t->ctx));
    if ((unsigned)windows > TG_WINDOWS_PADDED)
        return tg_fail(t->ctx, TG_ERR_ARGUMENT,
                       "tg_tokens_set_windows: windows is %d, expected TG_WINDOWS_ACROSS, _PACKED or _PADDED",
                       (int)windows);
    t->windows = windows;
    return TG_OK;
}

tg_token_windows tg_tokens_windows(const tg_tokens *t) { return t ? t->windows : TG_WINDOWS_ACROSS; }

/* Fails unless the window is in the stream. */
static tg_status check_window(const tg_tokens *t, int64_t first, int64_t n, const char *who) {
    bool padded = t->windows == TG_WINDOWS_PADDED;
    if (first >= 0 && first < t->count && n >= 1 && (padded || n < t->count - first)) return TG_OK;
    return tg_fail(t->ctx, TG_ERR_ARGUMENT,
                   "%s: a window of %lld from token %lld on, expected at least one token and the token after it, of "
                   "the stream's %lld",
                   who, (long long)n, (long long)first, (long long)t->count);
}

/* Sets *end to the end of the document of token `first`, or to `most` if it ends there or later. */
static tg_status find_end(tg_tokens *t, int64_t first, int64_t most, int64_t *end) {
    tg_token_run run;
    TG_TRY(find(t, first, &run));
    int64_t document = run.document;
    for (*end = run.stop; *end < most && run.document == document;) {
        TG_TRY(next(t, &run));
        if (run.document == document) *end = run.stop;
    }
    if (*end > most) *end = most;
    return TG_OK;
}

/* If windows are padded, limits a window of *n tokens to the document of token `first`: sets *n to the number of tokens
 * of the window that have a token after them in this document. */
static tg_status limit(tg_tokens *t, int64_t first, int64_t *n) {
    int64_t most = t->count - first > *n ? first + *n + 1 : t->count, end;
    if (t->windows != TG_WINDOWS_PADDED) return TG_OK;
    TG_TRY(find_end(t, first, most, &end));
    *n = end - first - 1;
    return TG_OK;
}

static void fill(int64_t *out, int64_t from, int64_t to, int64_t value) {
    for (int64_t i = from; i < to; i++) out[i] = value;
}

/* Finds the run of token `first`, which is not the first one of the stream. Sets *document to that of the token before
 * it. */
static tg_status find_after(tg_tokens *t, int64_t first, tg_token_run *run, int64_t *document) {
    TG_TRY(find(t, first - 1, run));
    *document = run->document;
    return run->stop == first ? next(t, run) : TG_OK;
}

/* Counts the tokens of a range that are predicted, and, unless out is NULL, replaces the others in it. The others are
 * context and, with TG_WINDOWS_PACKED, the first token of each document. */
static tg_status mask(tg_tokens *t, int64_t first, int64_t n, int64_t *out, int64_t *count) {
    tg_token_run run;
    int64_t end = first + n, document;
    bool packed = t->windows == TG_WINDOWS_PACKED;
    *count = n;
    if (!n || (!t->has_modes && !packed)) return TG_OK;
    TG_TRY(find_after(t, first, &run, &document));
    for (int64_t from = first, to; from < end; from = to) {
        to = run.stop < end ? run.stop : end;
        int64_t hidden = run.context ? to - from : packed && run.document != document;
        if (out) fill(out, from - first, from - first + hidden, IGNORED);
        *count -= hidden;
        document = run.document;
        if (to < end) TG_TRY(next(t, &run));
    }
    return TG_OK;
}

tg_status tg_tokens_read_window(tg_tokens *t, int64_t first, int64_t n, int64_t *ids, int64_t *targets) {
    int64_t count, here = n;
    if (!t) return TG_ERR_ARGUMENT;
    TG_TRY(tg_io_enter(t->ctx));
    TG_TRY(check_window(t, first, n, "tg_tokens_read_window"));
    TG_TRY(limit(t, first, &here));
    int64_t with_last = here < n ? here + 1 : n; /* the last token of a document has no target */
    if (ids) {
        TG_TRY(tg_tokens_read(t, first, with_last, ids));
        fill(ids, with_last, n, 0);
    }
    if (!targets) return TG_OK;
    TG_TRY(tg_tokens_read(t, first + 1, here, targets));
    fill(targets, here, n, IGNORED);
    return mask(t, first + 1, here, targets, &count);
}

int64_t tg_tokens_count_targets(tg_tokens *t, int64_t first, int64_t n) {
    int64_t count = 0;
    if (!t || tg_io_enter(t->ctx) != TG_OK) return 0;
    if (check_window(t, first, n, "tg_tokens_count_targets") != TG_OK) return 0;
    if (limit(t, first, &n) != TG_OK || mask(t, first + 1, n, NULL, &count) != TG_OK) return 0;
    return count;
}

tg_status tg_tokens_read_positions(tg_tokens *t, int64_t first, int64_t n, int64_t *positions) {
    tg_token_run run;
    if (!t) return TG_ERR_ARGUMENT;
    TG_TRY(tg_io_enter(t->ctx));
    TG_TRY(tg_tokens_check_range(t, first, n, positions, "tg_tokens_read_positions"));
    if (n < 1) return tg_fail(t->ctx, TG_ERR_ARGUMENT, "tg_tokens_read_positions: n is 0, expected 1 or more");
    TG_TRY(find(t, first, &run));
    for (int64_t at = first, begin = first, document = run.document; at < first + n; at++) {
        if (at == run.stop) TG_TRY(next(t, &run));
        if (run.document != document) begin = at, document = run.document;
        positions[at - first] = at - begin;
    }
    return TG_OK;
}
