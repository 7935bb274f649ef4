/* A forward over runs: tokens of sequences of different lengths, one after the other. Norms, MLPs and projections see
 * one long sequence of a batch of 1. Only positions and attention know which tokens belong together, so no token is
 * padding, and a run's numbers do not depend on the other runs. */
#include "base/memory/host_memory.h"
#include "kernels/scalar.h"
#include "models/lm/lm.h"
#include "ops/common/op.h"
#include "tape/tape.h"

/* ---- Keys and values ---- */

/* Copies n positions of x [1, heads, .., d], the first of which is number `first`, to a slot of `cache`, where the
 * first one becomes number `begin`. */
static void copy_positions(tg_ctx *ctx, tg_tensor *cache, int64_t slot, int64_t begin, tg_array x, int64_t first,
                           int64_t n) {
    const double none[2] = {0, 0};
    tg_extent e[3];
    tg_array from = tg_array_slice(x, 2, first, n, 1, &e[0]);
    tg_array to = tg_array_slice(tg_array_slice(tg_array_of(cache), 0, slot, 1, 1, &e[1]), 2, begin, n, 1, &e[2]);
    ctx->run.ops->apply(ctx, TG_FN_id, to, &from, 1, none, false);
}

/* Writes the keys or values x [1, heads, tokens, d] of all runs after those of their slots. */
static void keep(const tg_runs *runs, tg_tensor *cache, tg_tensor *x) {
    int64_t first = 0;
    for (int64_t i = 0; i < runs->n && x->ctx->run.status == TG_OK; i++) {
        const tg_run *r = &runs->run[i];
        if (r->slot >= 0) copy_positions(x->ctx, cache, r->slot, r->begin, tg_array_of(x), first, r->count);
        first += r->count;
    }
}

/* ---- Attention ---- */

/* Runs whose attention is computed at once: a single run, or runs of one token each whose slots follow each other. */
typedef struct group {
    int64_t run, n;        /* the first run, and the number of runs */
    int64_t first, tokens; /* the first token, and the number of tokens */
    int64_t longest;       /* most keys of a run */
} group;

/* Returns the group that begins with run number i and token number `first`. */
static group group_at(const tg_runs *runs, int64_t i, int64_t first) {
    const tg_run *r = &runs->run[i];
    group g = {i, 1, first, r->count, r->begin + r->count};
    while (!runs->apart && r->count == 1 && r->slot >= 0 && i + g.n < runs->n && r[g.n].count == 1 &&
           r[g.n].slot == r->slot + g.n) {
        int64_t keys = r[g.n++].begin + 1;
        g.tokens++;
        g.longest = keys > g.longest ? keys : g.longest;
    }
    return g;
}

/* Returns the tokens of a group from x [1, heads, tokens, d]. */
static tg_tensor *tokens_of(tg_tape *t, const group *g, tg_tensor *x) {
    if (g->tokens == tg_dim(x, 2)) return x;
    return tg_slice(t, x, 2, g->first, g->first + g->tokens, 1);
}

/* Returns the keys or values of a group: those in its slots or, if it has none, those of its tokens in x. */
static tg_tensor *cached(tg_tape *t, const tg_runs *runs, const group *g, tg_tensor *cache, tg_tensor *x) {
    int64_t slot = runs->run[g->run].slot;
    if (slot < 0) return tokens_of(t, g, x);
    tg_tensor *all = tg_slice(t, tg_tape_input(t, cache), 0, slot, slot + g->n, 1);
    return tg_slice(t, all, 2, 0, g->longest, 1);
}

/* Returns the rows of a group from the starts of all runs. */
static tg_tensor *starts_of(tg_tape *t, const tg_runs *runs, const group *g, tg_tensor *starts) {
    return g->n == runs->n ? starts : tg_slice(t, starts, 0, g->run, g->run + g->n, 1);
}

/* Computes the attention of a group: [1, heads, tokens, d]. With several runs, each is an entry of a batch. */
static tg_tensor *attend_group(const tg_module *m, tg_tape *t, tg_tensor *const qkv[3], const tg_past *past,
                               const group *g, tg_weigh_fn weigh) {
    const tg_dims exchange = {4, {2, 1, 0, 3}};
    const tg_runs *runs = past->runs;
    tg_tensor *own[3] = {tokens_of(t, g, qkv[0]), cached(t, runs, g, past->k, qkv[1]),
                         cached(t, runs, g, past->v, qkv[2])};
    if (g->n == 1) return weigh(m, t, own, NULL);
    tg_tensor *starts[2] = {starts_of(t, runs, g, runs->starts[0]), starts_of(t, runs, g, runs->starts[1])};
    own[0] = tg_permute(t, own[0], exchange);
    return tg_permute(t, weigh(m, t, own, starts), exchange);
}

tg_tensor *tg_attend_runs(const tg_module *m, tg_tape *t, tg_tensor *const qkv[3], const tg_past *past,
                          tg_weigh_fn weigh) {
    enum { AT_ONCE = 64 }; /* results that are joined at a time */
    tg_tensor *part[AT_ONCE];
    int64_t first = 0;
    int n = 0;
    if (t->ctx->run.status != TG_OK) return tg_inert(t->ctx);
    keep(past->runs, past->k, qkv[1]);
    keep(past->runs, past->v, qkv[2]);
    for (int64_t i = 0; i < past->runs->n && t->ctx->run.status == TG_OK;) {
        group g = group_at(past->runs, i, first);
        if (n == AT_ONCE) part[0] = tg_concat(t, part, n, 2), n = 1;
        part[n++] = attend_group(m, t, qkv, past, &g, weigh);
        i += g.n;
        first += g.tokens;
    }
    if (t->ctx->run.status != TG_OK) return tg_inert(t->ctx);
    return n == 1 ? part[0] : tg_concat(t, part, n, 2);
}

/* ---- The forward ---- */

/* Returns numbers of the host as a tensor, which all tensor-parallel ranks have alike. */
static tg_tensor *numbers(const tg_lm_config *c, tg_ctx *ctx, tg_shape shape, const int64_t *x) {
    tg_tensor *y = tg_from_host(ctx, TG_I64, shape, x);
    if (c->parallel) tg_place(c->parallel, y, TG_TP, TG_I);
    return y;
}

/* Returns memory of the cache for n numbers, so that the next forward allocates none; NULL on an error. */
static int64_t *reserve_numbers(tg_gpt_cache *cache, int64_t n) {
    while (cache->capacity < n)
        if (!tg_host_grow(cache->ctx, (void **)&cache->numbers, cache->capacity, &cache->capacity,
                          sizeof *cache->numbers))
            return NULL;
    return cache->numbers;
}

/* Returns the positions of all tokens. */
static tg_tensor *positions_of(const tg_lm_config *c, tg_gpt_cache *cache, const tg_runs *runs, int64_t tokens) {
    int64_t *x = reserve_numbers(cache, tokens), *to = x;
    if (!x) return tg_inert(cache->ctx);
    for (int64_t i = 0; i < runs->n; i++)
        for (int64_t k = 0; k < runs->run[i].count; k++) *to++ = runs->run[i].begin + k;
    return numbers(c, cache->ctx, TG_SHAPE(tokens), x);
}

/* Fills starts[2] (tg_attention) if attention computes several runs at once. Each of these runs is an entry of the
 * batch with two packed sequences. The first one is the run's token and its keys. The second one has no token; its keys
 * are those that only longer runs have. */
static void make_starts(const tg_lm_config *c, tg_gpt_cache *cache, const tg_runs *runs, tg_tensor *starts[2]) {
    int64_t n = runs->n, *q = reserve_numbers(cache, 6 * n);
    group g = {0};
    if (!q) return;
    int64_t *k = q + 3 * n;
    for (int64_t i = 0; i < n; i++) {
        if (i == g.run + g.n) g = group_at(runs, i, 0);
        const int64_t own = runs->run[i].begin + runs->run[i].count;
        memcpy(q + 3 * i, (const int64_t[]){0, 1, 1}, 3 * sizeof *q);
        memcpy(k + 3 * i, (const int64_t[]){0, own, g.longest}, 3 * sizeof *k);
    }
    starts[0] = numbers(c, cache->ctx, TG_SHAPE(n, 3), q);
    starts[1] = numbers(c, cache->ctx, TG_SHAPE(n, 3), k);
}

/* Returns whether attention computes several runs at once. */
static bool has_groups(const tg_runs *runs) {
    for (int64_t i = 0; i < runs->n; i++)
        if (group_at(runs, i, 0).n > 1) return true;
    return false;
}

/* Computes the logits of the tokens with these indices: ids [1, tokens], rows [n_rows] -> [n_rows, vocab]. */
static tg_tensor *logits_of(tg_module *lm, tg_tape *t, tg_gpt_cache *cache, tg_tensor *ids, tg_tensor *rows) {
    tg_tensor *x = tg_lm_embed(lm, t, ids, cache->runs->positions, 0);
    x = tg_select(t, tg_lm_layers(lm, t, x, cache, NULL), 1, 0);
    return tg_lm_logits(lm, t, tg_index_select(t, x, 0, rows));
}

static tg_tensor *in_scope(tg_module *lm, tg_tape *t, tg_gpt_cache *cache, tg_tensor *ids, tg_tensor *rows) {
    if (tg_scope_open(t, "generate") != TG_OK) return tg_scope_close(t, NULL, 0), tg_inert(t->ctx);
    tg_tensor *y = logits_of(lm, t, cache, ids, rows);
    return tg_scope_close(t, &y, 1) == TG_OK ? y : tg_inert(t->ctx);
}

tg_tensor *tg_lm_runs(tg_module *lm, tg_tape *t, tg_gpt_cache *cache, const int64_t *ids, const tg_run *run, int64_t n,
                      const int64_t *rows, int64_t n_rows) {
    const tg_lm_config *c = &tg_lm_of(lm)->c;
    tg_ctx *ctx = lm->ctx;
    int64_t tokens = 0;
    for (int64_t i = 0; i < n; i++) tokens += run[i].count;
    tg_tensor *in = numbers(c, ctx, TG_SHAPE(1, tokens), ids), *out = numbers(c, ctx, TG_SHAPE(n_rows), rows);
    tg_runs runs = {.run = run, .n = n, .apart = c->backend == TG_LM_COMPOSED};
    runs.positions = positions_of(c, cache, &runs, tokens);
    if (has_groups(&runs)) make_starts(c, cache, &runs, runs.starts);
    bool grad = tg_tape_set_grad_mode(t, false), training = tg_tape_set_training(t, false);
    cache->runs = &runs;
    tg_tensor *y = in_scope(lm, t, cache, in, out);
    cache->runs = NULL;
    tg_tape_set_grad_mode(t, grad);
    tg_tape_set_training(t, training);
    tg_tensor *const own[] = {in, out, runs.positions, runs.starts[0], runs.starts[1]};
    for (int i = 0; i < TG_LEN(own); i++) tg_drop(own[i]);
    return tg_lm_leave(lm, y);
}

/* ---- Slots ---- */

tg_status tg_lm_copy_slot(tg_gpt_cache *cache, int64_t from, int64_t to, int64_t count) {
    tg_ctx *ctx = cache->ctx;
    for (int64_t i = 0; i < 2 * cache->layers && count > 0 && ctx->run.status == TG_OK; i++) {
        tg_extent e;
        tg_array of = tg_array_slice(tg_array_of(cache->kv[i]), 0, from, 1, 1, &e);
        copy_positions(ctx, cache->kv[i], to, 0, of, 0, count);
    }
    return ctx->run.status;
}
