/* Which sample uses which row, and what it finds there. */
#include "generate/generator.h"

/* ---- What caches have ---- */

static int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }

/* Returns how many positions of a row's caches a waiting sample can use: the first ones whose ids are equal, and of a
 * row that was used in this call only those that are exact (tg_row). The last id of the prompt is never among them,
 * because the model must compute its logits. */
static int64_t usable(const tg_generator *g, const tg_row *r, const tg_sample *s) {
    const int64_t *ids = g->prompts[s->prompt].ids + s->first;
    int64_t most = min_of(r->call == g->calls ? r->exact : r->cached, s->count - s->first - 1), n = 0;
    while (n < most && r->ids[n] == ids[n]) n++;
    return n;
}

/* Copies the first `n` positions of the caches from one row to another, which may be the same. */
static tg_status copy_row(tg_generator *g, const tg_row *from, tg_row *to, int64_t n) {
    int64_t drafted = min_of(from->drafted, n);
    if (from != to) {
        TG_TRY(tg_lm_copy_slot(g->cache, from - g->row, to - g->row, n));
        if (g->o.draft) TG_TRY(tg_lm_copy_slot(g->draft_cache, from - g->row, to - g->row, drafted));
        memcpy(to->ids, from->ids, (size_t)n * sizeof *to->ids);
    }
    to->exact = from->call == g->calls ? min_of(from->exact, n) : n;
    to->cached = n;
    to->drafted = drafted;
    return TG_OK;
}

/* ---- Rows of samples ---- */

/* Returns `wanted` if it is free, otherwise the free row that was last used the longest ago or, of several, the one
 * with the fewest positions in its cache; NULL if no row is free. */
static tg_row *free_row(tg_generator *g, tg_row *wanted) {
    tg_row *best = NULL;
    if (wanted && !wanted->sample) return wanted;
    for (int64_t i = 0; i < g->o.rows; i++) {
        tg_row *r = &g->row[i];
        if (r->sample) continue;
        if (!best || r->call < best->call || (r->call == best->call && r->cached < best->cached)) best = r;
    }
    return best;
}

/* Gives a row the next sample. */
static tg_status start(tg_generator *g, tg_row *r) {
    TG_TRY(tg_sample_start(g, &g->sample[g->waiting]));
    r->sample = &g->sample[g->waiting++];
    r->call = g->calls;
    r->guesses = 0;
    return TG_OK;
}

/* Returns whether a row is computing the prompt of sample s, which then waits for the row's caches. */
static bool is_computed(const tg_generator *g, const tg_sample *s) {
    for (int64_t i = 0; i < g->o.rows; i++)
        if (g->row[i].prompting && g->row[i].sample->prompt == s->prompt) return true;
    return false;
}

static tg_status assign(tg_generator *g, const tg_sample *s) {
    tg_row *from = &g->row[0];
    for (int64_t i = 1; i < g->o.rows; i++)
        if (usable(g, &g->row[i], s) > usable(g, from, s)) from = &g->row[i];
    int64_t n = usable(g, from, s);
    tg_row *to = free_row(g, n ? from : NULL);
    TG_TRY(copy_row(g, from, to, n));
    if (s->number == 0) g->stats.cached_tokens += n;
    TG_TRY(start(g, to));
    to->prompting = true;
    return TG_OK;
}

tg_status tg_rows_assign(tg_generator *g) {
    while (g->waiting < g->n_samples && free_row(g, NULL) && !is_computed(g, &g->sample[g->waiting]))
        TG_TRY(assign(g, &g->sample[g->waiting]));
    return g->ctx->run.status;
}

tg_row *tg_rows_fork(tg_generator *g, tg_row *from, int64_t prompt) {
    if (g->ended || g->waiting == g->n_samples || g->sample[g->waiting].prompt != prompt) return NULL;
    tg_row *to = free_row(g, from);
    return to && copy_row(g, from, to, from->exact) == TG_OK && start(g, to) == TG_OK ? to : NULL;
}

void tg_row_release(tg_generator *g, tg_row *r) {
    r->sample = NULL;
    r->prompting = false;
    r->guesses = 0;
    if (r->cached > g->o.positions) r->cached = g->o.positions;
}

void tg_row_slide(tg_generator *g, tg_row *r) {
    r->sample->first = r->sample->count - (g->o.positions + 1) / 2;
    r->cached = r->drafted = r->exact = 0;
    r->prompting = true;
}
