/* One forward of the model or of the draft model over tokens of several rows. */
#include "generate/generator.h"

void tg_forward_begin(tg_generator *g) { g->f.tokens = g->f.runs = g->f.wanted = 0; }

static void add_run(tg_forward *f, int64_t slot, int64_t begin, int64_t n, tg_row *r) {
    f->row[f->runs] = r;
    f->run[f->runs++] = (tg_run){slot, begin, n};
    f->tokens += n;
}

void tg_forward_add(tg_generator *g, tg_row *r, int64_t begin, int64_t n, int64_t wanted) {
    tg_forward *f = &g->f;
    const int64_t *ids = r->sample->ids + r->sample->first + begin;
    memcpy(f->ids + f->tokens, ids, (size_t)n * sizeof *ids);
    memcpy(r->ids + begin, ids, (size_t)n * sizeof *ids);
    for (int64_t i = n - wanted; i < n; i++) f->rows[f->wanted++] = f->tokens + i;
    add_run(f, r - g->row, begin, n, r);
}

/* Adds tokens that belong to no row, until the products of the forward have more than a few rows. */
static void fill_up(tg_generator *g, int64_t positions) {
    tg_forward *f = &g->f;
    while (f->tokens <= TG_GENERATE_FEW) {
        int64_t n = TG_GENERATE_FEW + 1 - f->tokens;
        if (n > positions) n = positions;
        memset(f->ids + f->tokens, 0, (size_t)n * sizeof *f->ids);
        add_run(f, -1, 0, n, NULL);
    }
}

tg_status tg_forward_run(tg_generator *g, bool draft, bool fill) {
    tg_forward *f = &g->f;
    tg_module *lm = draft ? g->o.draft : g->lm;
    if (fill) fill_up(g, draft ? g->draft_positions : g->o.positions);
    /* A forward of which no logits are wanted gives those of one token, so that all have the same ops. */
    if (!f->wanted) f->rows[f->wanted++] = 0;
    f->logits = tg_lm_runs(lm, g->tape, draft ? g->draft_cache : g->cache, f->ids, f->run, f->runs, f->rows, f->wanted);
    return g->ctx->run.status;
}

tg_status tg_forward_distribution(tg_generator *g, int64_t i, const tg_sample *s, int64_t count, tg_distribution *d) {
    TG_TRY(tg_read_f64(tg_select(g->tape, g->f.logits, 0, i), g->logits, g->vocab));
    TG_TRY(tg_logits_check(g->ctx, g->logits, g->vocab, count, "tg_generator_run"));
    if (g->call.logprobs && d == &g->target) memcpy(g->raw, g->logits, (size_t)g->vocab * sizeof *g->raw);
    tg_sampler_run(&g->sampler, g->logits, s->ids, count, s->given, &g->sampling, d);
    return TG_OK;
}

void tg_forward_end(tg_generator *g) {
    g->f.logits = NULL;
    tg_tape_reset(g->tape);
}
