/* Continues samples by one token or, with a draft model, by several: speculative decoding (Leviathan, Kalman and
 * Matias, arXiv 2211.17192). The model computes the proposed tokens at once, and accepts each with the probability that
 * makes the distribution of what is generated the model's own. */
#include "generate/generator.h"

/* Returns the uniform number of one draw for the token that a sample generates as number `index`, from 0. */
static double uniform(const tg_generator *g, const tg_sample *s, int64_t index, tg_draw what) {
    return tg_draw_uniform(g->sampling.seed, s->prompt, s->number, index, what);
}

void tg_generate_settle(tg_generator *g, tg_row *r) {
    if (r->sample->finish != TG_FINISH_NONE) tg_row_release(g, r);
    else if (r->sample->count - r->sample->first > g->o.positions) tg_row_slide(g, r);
}

tg_status tg_generate_draw(tg_generator *g, tg_row *r, int64_t i) {
    tg_sample *s = r->sample;
    TG_TRY(tg_sample_reserve(g, s, 1));
    TG_TRY(tg_forward_distribution(g, i, s, s->count, &g->target));
    tg_sample_add(g, s, tg_distribution_pick(&g->target, uniform(g, s, s->count - s->given, TG_DRAW_TOKEN)));
    tg_generate_settle(g, r);
    return g->ctx->run.status;
}

/* ---- Proposals ---- */

/* Returns how many tokens are proposed for a row. Both caches must have positions for them, and the sample must have
 * place for one more token, which the model itself adds. 0 if the draft model's cache is too short. */
static int64_t guesses_for(const tg_generator *g, const tg_row *r) {
    if (!g->o.draft) return 0;
    int64_t used = r->sample->count - r->sample->first, n = g->o.draft_tokens;
    int64_t most = g->call.tokens - (r->sample->count - r->sample->given) - 1;
    if (n > most) n = most;
    if (n > g->o.positions - used) n = g->o.positions - used;
    return used + n > g->draft_positions ? 0 : n;
}

/* Draws proposal number k of a row from logits number i. */
static tg_status guess(tg_generator *g, tg_row *r, int64_t k, int64_t i) {
    tg_sample *s = r->sample;
    tg_distribution *d = &g->proposal[r->proposal + k];
    TG_TRY(tg_sample_reserve(g, s, k + 1));
    TG_TRY(tg_forward_distribution(g, i, s, s->count + k, d));
    s->ids[s->count + k] = tg_distribution_pick(d, uniform(g, s, s->count + k - s->given, TG_DRAW_PROPOSAL));
    return TG_OK;
}

tg_status tg_generate_propose(tg_generator *g, tg_row *const *rows, int64_t n) {
    for (int64_t k = 0; k < g->o.draft_tokens; k++) {
        tg_forward_begin(g);
        for (int64_t i = 0; i < n; i++) {
            tg_row *r = rows[i];
            if (r->guesses > k) tg_forward_add(g, r, r->drafted, tg_row_undrafted(r) + k, 1);
        }
        if (!g->f.tokens) break;
        TG_TRY(tg_forward_run(g, true, false));
        for (int64_t i = 0; i < g->f.runs; i++) {
            g->f.row[i]->drafted += g->f.run[i].count;
            TG_TRY(guess(g, g->f.row[i], k, i));
            g->stats.drafted++;
        }
        tg_forward_end(g);
    }
    return g->ctx->run.status;
}

/* ---- The model's own tokens ---- */

/* Decides about proposal number k of a row, whose distribution by the model is g->target. Returns the token that the
 * sample gets: the proposed one, or another one. */
static int64_t decide(tg_generator *g, tg_row *r, int64_t k) {
    const tg_sample *s = r->sample;
    const tg_distribution *q = &g->proposal[r->proposal + k];
    int64_t id = s->ids[s->count], index = s->count - s->given;
    double accept = uniform(g, s, index, TG_DRAW_ACCEPT);
    if (accept * tg_distribution_at(q, id) < tg_distribution_at(&g->target, id)) return id;
    tg_distribution_subtract(&g->target, q);
    return tg_distribution_pick(&g->target, uniform(g, s, index, TG_DRAW_INSTEAD));
}

/* Adds the tokens of a row, whose logits begin at number i of the forward: accepted proposals, then one more token. */
static tg_status take(tg_generator *g, tg_row *r, int64_t i) {
    tg_sample *s = r->sample;
    int64_t guesses = r->guesses;
    bool same = true;
    r->guesses = 0;
    r->cached++; /* the token that was pending */
    for (int64_t k = 0; k < guesses && same && s->finish == TG_FINISH_NONE; k++) {
        TG_TRY(tg_forward_distribution(g, i + k, s, s->count, &g->target));
        int64_t proposed = s->ids[s->count], id = decide(g, r, k);
        same = id == proposed;
        tg_sample_add(g, s, id);
        r->cached += same;
        g->stats.accepted += same;
    }
    if (r->drafted > r->cached) r->drafted = r->cached;
    if (same && s->finish == TG_FINISH_NONE) return tg_generate_draw(g, r, i + guesses);
    tg_generate_settle(g, r);
    return g->ctx->run.status;
}

static tg_status continue_rows(tg_generator *g, tg_row *const *rows, int64_t n) {
    int64_t at = 0;
    if (g->o.draft) TG_TRY(tg_generate_propose(g, rows, n));
    tg_forward_begin(g);
    for (int64_t i = 0; i < n; i++) {
        TG_TRY(tg_sample_reserve(g, rows[i]->sample, rows[i]->guesses + 1));
        tg_forward_add(g, rows[i], rows[i]->cached, 1 + rows[i]->guesses, 1 + rows[i]->guesses);
    }
    TG_TRY(tg_forward_run(g, false, false));
    g->stats.forwards++;
    for (int64_t i = 0; i < n && !g->ended; i++) {
        int64_t logits = 1 + rows[i]->guesses;
        TG_TRY(take(g, rows[i], at));
        at += logits;
    }
    tg_forward_end(g);
    return g->ctx->run.status;
}

tg_status tg_generate_continue(tg_generator *g) {
    tg_row **rows = g->continued;
    int64_t n = 0, tokens = 0;
    for (int64_t i = 0; i < g->o.rows && !g->ended; i++) {
        tg_row *r = &g->row[i];
        if (!r->sample || r->prompting) continue;
        r->guesses = guesses_for(g, r);
        if (tokens + 1 + r->guesses > g->group) {
            TG_TRY(continue_rows(g, rows, n));
            n = tokens = 0;
        }
        r->proposal = tokens;
        rows[n++] = r;
        tokens += 1 + r->guesses;
    }
    return n && !g->ended ? continue_rows(g, rows, n) : g->ctx->run.status;
}
