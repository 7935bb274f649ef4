/* Computes prompts, in chunks of several rows. */
#include "base/os.h"
#include "generate/generator.h"

/* Adds what fits into a chunk. Few logits are wanted at a time, so that the product with the output matrix has few rows
 * (TG_GENERATE_FEW) in any case. */
static void add_chunk(tg_generator *g, bool draft) {
    int64_t left = g->o.chunk;
    tg_forward_begin(g);
    for (int64_t i = 0; i < g->o.rows && left > 0 && g->f.wanted < TG_GENERATE_FEW; i++) {
        tg_row *r = &g->row[i];
        if (!r->sample || !r->prompting) continue;
        int64_t pending = draft ? tg_row_undrafted(r) : tg_row_pending(r), begin = draft ? r->drafted : r->cached;
        if (draft && begin + pending > g->draft_positions) continue;
        int64_t n = pending < left ? pending : left;
        if (n > 0) tg_forward_add(g, r, begin, n, !draft && n == pending);
        left -= n;
    }
}

/* Draws the next token of the row's sample from logits number i. If it is the sample's first token, further samples of
 * the prompt get rows, and theirs is drawn too. */
static tg_status begin_samples(tg_generator *g, tg_row *r, int64_t i) {
    int64_t prompt = r->sample->prompt;
    bool slid = r->sample->count > r->sample->given;
    r->prompting = false;
    TG_TRY(tg_generate_draw(g, r, i));
    for (tg_row *to; !slid && (to = tg_rows_fork(g, r, prompt));) TG_TRY(tg_generate_draw(g, to, i));
    return g->ctx->run.status;
}

/* Computes the draft model's chunk that add_chunk has made. */
static tg_status draft_chunk(tg_generator *g) {
    double begin = tg_system_now();
    TG_TRY(tg_forward_run(g, true, true));
    g->stats.prompt_seconds += tg_system_now() - begin;
    for (int64_t i = 0; i < g->f.runs && g->f.row[i]; i++) g->f.row[i]->drafted += g->f.run[i].count;
    tg_forward_end(g);
    return g->ctx->run.status;
}

tg_status tg_generate_prompts(tg_generator *g) {
    double begin = tg_system_now();
    int64_t wanted = 0;
    if (g->o.draft) {
        add_chunk(g, true);
        if (g->f.tokens) return draft_chunk(g);
    }
    add_chunk(g, false);
    TG_TRY(tg_forward_run(g, false, true));
    g->stats.prompt_seconds += tg_system_now() - begin;
    for (int64_t i = 0; i < g->f.runs && g->f.row[i] && !g->ended; i++) {
        tg_row *r = g->f.row[i];
        r->cached += g->f.run[i].count;
        r->exact = r->cached;
        if (tg_row_pending(r) == 0) TG_TRY(begin_samples(g, r, wanted++));
    }
    tg_forward_end(g);
    return g->ctx->run.status;
}
