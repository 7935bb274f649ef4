/* The documents of a token stream, and which of its tokens are predicted. */
#include "io/tokens.h"

int64_t tg_tokens_documents(const tg_tokens *t) {
    return t ? t->documents : 0;
}

/* ---- Runs ---- */

/* Moves a run of part p by the place of the part in the joined stream, or back if sign is -1. */
static void shift(const tg_tokens *t, tg_token_run *run, int p, int sign) {
    run->first += sign * t->first_token[p];
    run->end += sign * t->first_token[p];
    run->document += sign * t->first_document[p];
    run->part = p;
}

/* Finds the run of a token in a stream that is one file. */
static tg_status find_in_file(tg_tokens *t, int64_t token, tg_token_run *out) {
    if (t->index.path) return tg_megatron_find(t, token, out);
    *out = (tg_token_run){.end = t->count};
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
    if (run->end == t->first_token[p] + t->part[p]->count) return find(t, run->end, run);
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
    if (!run || run->first < 0 || run->end <= run->first || run->end >= t->count)
        return tg_fail(t->ctx, TG_ERR_ARGUMENT,
                       "tg_tokens_next_run: run %p ends with token %lld, expected a run of tg_tokens_find_run that ends "
                       "before token %lld",
                       (const void *)run, run ? (long long)run->end - 1 : -1, (long long)(t->count - 1));
    return next(t, run);
}

/* ---- Targets ---- */

/* Sets *out to the document of the token before a token, whose run is given; -1: it is the first one. */
static tg_status document_before(tg_tokens *t, int64_t token, const tg_token_run *run, int64_t *out) {
    tg_token_run before = *run;
    if (run->first == token && token) TG_TRY(find(t, token - 1, &before));
    *out = token ? before.document : -1;
    return TG_OK;
}

/* Counts the tokens of a range that are predicted and, unless out is NULL, replaces the others by -100 in it. */
static tg_status mask(tg_tokens *t, int64_t first, int64_t n, bool apart, int64_t *out, int64_t *count) {
    enum { IGNORED = -100 };
    tg_token_run run;
    int64_t end = first + n, document;
    *count = 0;
    if (!n) return TG_OK;
    TG_TRY(find(t, first, &run));
    TG_TRY(document_before(t, first, &run, &document));
    for (int64_t from = first, to; from < end; from = to) {
        to = run.end < end ? run.end : end;
        int64_t begins = apart && run.document != document;
        for (int64_t i = from; out && i < (run.context ? to : from + begins); i++) out[i - first] = IGNORED;
        if (!run.context) *count += to - from - begins;
        document = run.document;
        if (to < end) TG_TRY(next(t, &run));
    }
    return TG_OK;
}

/* Returns whether all tokens are predicted. */
static bool is_plain(const tg_tokens *t, bool apart) { return !t->has_modes && !(apart && t->documents > 1); }

tg_status tg_tokens_read_targets(tg_tokens *t, int64_t first, int64_t n, bool apart, int64_t *out) {
    int64_t count;
    if (!t) return TG_ERR_ARGUMENT;
    TG_TRY(tg_io_enter(t->ctx));
    TG_TRY(tg_tokens_check_range(t, first, n, out, "tg_tokens_read_targets"));
    TG_TRY(tg_tokens_read(t, first, n, out));
    return is_plain(t, apart) ? TG_OK : mask(t, first, n, apart, out, &count);
}

int64_t tg_tokens_count_targets(tg_tokens *t, int64_t first, int64_t n, bool apart) {
    int64_t count = n;
    if (!t || tg_io_enter(t->ctx) != TG_OK) return 0;
    if (tg_tokens_check_range(t, first, n, &count, "tg_tokens_count_targets") != TG_OK) return 0;
    if (!is_plain(t, apart) && mask(t, first, n, apart, NULL, &count) != TG_OK) return 0;
    return count;
}
