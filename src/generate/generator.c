/* Creates and frees generators: checks of arguments, and memory. */
#include "base/memory/host_memory.h"
#include "base/options.h"
#include "generate/generator.h"

/* ---- Creation ---- */

static tg_status check_draft(const tg_generator *g, const tg_module *draft) {
    if (!tg_is_lm(draft) || draft->ctx != g->ctx)
        return tg_fail(g->ctx, TG_ERR_ARGUMENT,
                       "tg_generator_new: draft is a \"%s\"%s, expected a language model of the same context",
                       tg_module_kind(draft), draft->ctx != g->ctx ? " of another context" : "");
    int64_t vocab = tg_lm_of(draft)->c.vocab;
    if (vocab == g->vocab) return TG_OK;
    return tg_fail(g->ctx, TG_ERR_ARGUMENT,
                   "tg_generator_new: the draft model has a vocabulary of %lld ids and the model of %lld; they must be "
                   "equal, and have the same meaning",
                   (long long)vocab, (long long)g->vocab);
}

enum { MOST = 1 << 20 }; /* limit of rows and of tokens in a chunk, so that sizes do not overflow */

static tg_status check_new(const tg_generator *g, int64_t positions) {
    const tg_generator_opts *o = &g->o, defaults = {TG_GENERATOR_DEFAULTS};
    if (o->rows < 1 || o->rows > MOST || o->chunk < 1 || o->chunk > MOST)
        return tg_fail(g->ctx, TG_ERR_ARGUMENT, "tg_generator_new: rows is %lld and chunk %lld, expected 1 to %d",
                       (long long)o->rows, (long long)o->chunk, MOST);
    if (o->positions < 2 || o->positions > positions)
        return tg_fail(g->ctx, TG_ERR_ARGUMENT,
                       "tg_generator_new: positions is %lld, expected 2 to %lld, the model's positions, or TG_AUTO",
                       (long long)o->positions, (long long)positions);
    if (o->draft_tokens < 1 || o->draft_tokens >= TG_GENERATE_FEW)
        return tg_fail(g->ctx, TG_ERR_ARGUMENT, "tg_generator_new: draft_tokens is %lld, expected 1 to %d",
                       (long long)o->draft_tokens, TG_GENERATE_FEW - 1);
    if (o->draft) return check_draft(g, o->draft);
    if (o->draft_tokens == defaults.draft_tokens) return TG_OK;
    return tg_fail(g->ctx, TG_ERR_ARGUMENT,
                   "tg_generator_new: draft_tokens is %lld, but draft, the model that proposes them, is NULL; leave "
                   "draft_tokens at its default, %lld",
                   (long long)o->draft_tokens, (long long)defaults.draft_tokens);
}

/* Allocates one array of the generator. */
static void *array(tg_generator *g, int64_t n, size_t size) { return tg_host_alloc(g->ctx, (size_t)n * size); }

static tg_status open_rows(tg_generator *g) {
    g->row = array(g, g->o.rows, sizeof *g->row);
    g->continued = array(g, g->o.rows, sizeof(tg_row *));
    for (int64_t i = 0; i < g->o.rows && g->row; i++)
        if (!(g->row[i].ids = array(g, g->o.positions, sizeof(int64_t)))) break;
    return g->ctx->run.status;
}

static tg_status open_buffers(tg_generator *g) {
    tg_forward *f = &g->f;
    g->group = g->o.rows > TG_GENERATE_FEW ? g->o.rows : TG_GENERATE_FEW;
    g->limit = (g->o.chunk > g->group ? g->o.chunk : g->group) + TG_GENERATE_FEW + 1;
    f->ids = array(g, g->limit, sizeof *f->ids);
    f->rows = array(g, g->limit, sizeof *f->rows);
    f->run = array(g, g->limit, sizeof *f->run);
    f->row = array(g, g->limit, sizeof(tg_row *));
    g->logits = array(g, g->vocab, sizeof *g->logits);
    g->raw = array(g, g->vocab, sizeof *g->raw);
    tg_sampler_open(&g->sampler, g->ctx, g->vocab);
    tg_distribution_open(g->ctx, &g->target, g->vocab);
    if (g->o.draft) g->proposal = array(g, g->group, sizeof *g->proposal);
    for (int64_t i = 0; i < g->group && g->proposal; i++)
        TG_TRY(tg_distribution_open(g->ctx, &g->proposal[i], g->vocab));
    return g->ctx->run.status;
}

static tg_status open_draft(tg_generator *g) {
    if (!g->o.draft) return TG_OK;
    int64_t most = tg_lm_of(g->o.draft)->c.positions;
    g->draft_positions = most < g->o.positions ? most : g->o.positions;
    g->draft_cache = tg_gpt_cache_new(g->o.draft, g->o.rows, g->draft_positions);
    return g->ctx->run.status;
}

static tg_status open(tg_generator *g) {
    TG_TRY(open_rows(g));
    TG_TRY(open_buffers(g));
    g->cache = tg_gpt_cache_new(g->lm, g->o.rows, g->o.positions);
    TG_TRY(g->ctx->run.status);
    TG_TRY(open_draft(g));
    g->tape = tg_tape_new(g->ctx);
    return g->ctx->run.status;
}

tg_generator *tg_generator_new(tg_module *lm, const tg_generator_opts *opts) {
    static const char who[] = "tg_generator_new";
    tg_generator_opts o;
    if (!lm || lm->ctx->run.status != TG_OK) return NULL;
    tg_ctx *ctx = lm->ctx;
    if (tg_options(ctx, &o, &tg_generator_opts_struct, opts, who) != TG_OK) return NULL;
    if (!tg_is_lm(lm)) {
        tg_fail(ctx, TG_ERR_ARGUMENT, "%s: the module is a \"%s\", expected a language model", who, tg_module_kind(lm));
        return NULL;
    }
    tg_generator *g = tg_host_alloc(ctx, sizeof *g);
    if (!g) return NULL;
    const tg_lm_config *c = &tg_lm_of(lm)->c;
    *g = (tg_generator){.ctx = ctx, .lm = lm, .o = o, .vocab = c->vocab};
    if (o.positions == TG_AUTO) g->o.positions = c->positions;
    if (check_new(g, c->positions) == TG_OK && open(g) == TG_OK) return g;
    tg_generator_free(g);
    return NULL;
}

/* ---- The end ---- */

static void drop(tg_generator *g, void *x, int64_t n, size_t size) {
    if (x) tg_host_free(g->ctx, x, (size_t)n * size);
}

static void free_buffers(tg_generator *g) {
    tg_forward *f = &g->f;
    drop(g, f->ids, g->limit, sizeof *f->ids);
    drop(g, f->rows, g->limit, sizeof *f->rows);
    drop(g, f->run, g->limit, sizeof *f->run);
    drop(g, f->row, g->limit, sizeof(tg_row *));
    drop(g, g->logits, g->vocab, sizeof *g->logits);
    drop(g, g->raw, g->vocab, sizeof *g->raw);
    tg_sampler_close(&g->sampler);
    tg_distribution_close(g->ctx, &g->target, g->vocab);
    for (int64_t i = 0; i < g->group && g->proposal; i++) tg_distribution_close(g->ctx, &g->proposal[i], g->vocab);
    drop(g, g->proposal, g->group, sizeof *g->proposal);
}

void tg_generator_free(tg_generator *g) {
    if (!g) return;
    if (g->running) {
        tg_fail(g->ctx, TG_ERR_STATE,
                "tg_generator_free: the generator is running a call, as in on_token; free it after that one has "
                "returned");
        return;
    }
    tg_samples_close(g);
    free_buffers(g);
    for (int64_t i = 0; i < g->o.rows && g->row; i++) drop(g, g->row[i].ids, g->o.positions, sizeof(int64_t));
    drop(g, g->row, g->o.rows, sizeof *g->row);
    drop(g, g->continued, g->o.rows, sizeof(tg_row *));
    tg_gpt_cache_free(g->cache);
    tg_gpt_cache_free(g->draft_cache);
    if (g->tape) tg_tape_free(g->tape);
    tg_host_free(g->ctx, g, sizeof *g);
}
