/* A forward over runs: tokens of sequences of different lengths, one after the other. Norms, MLPs and projections see
 * one long sequence of a batch of 1. Only positions and attention know which tokens belong together, so no token is
 * padding, and a run's numbers do not depend on the other runs. */
#include "base/host_memory.h"
#include "kernels/scalar.h"
#include "models/lm.h"
#include "tape/tape.h"

/* ---- Attention ---- */

/* Returns the view of positions [begin, end) of a slot of a cache [slots, heads, positions, d], as a tensor that the
 * caller frees. NULL on an error. */
static tg_tensor *part_of_slot(tg_tensor *cache, int64_t slot, int64_t begin, int64_t end) {
    const int64_t shape[4] = {1, cache->shape[1], end - begin, cache->shape[3]};
    return tg_temp_new(cache->ctx, cache->dtype, 4, shape, cache->stride, tg_storage_ref(cache->storage),
                       slot * cache->stride[0] + begin * cache->stride[2]);
}

/* Copies x to `slot`, which it frees. */
static void copy_to(tg_ctx *ctx, tg_tensor *slot, const tg_array *x) {
    const double none[2] = {0, 0};
    if (slot) ctx->run.ops->apply(ctx, TG_FN_id, tg_array_of(slot), x, 1, none, false);
    tg_temp_free(slot);
}

/* Writes the keys or values x [1, heads, count, d] of a run after those of its slot. Returns all of them. */
static tg_tensor *keep(tg_tape *t, tg_tensor *cache, const tg_run *r, tg_tensor *x) {
    tg_ctx *ctx = t->ctx;
    if (r->slot < 0 || ctx->run.status != TG_OK) return x;
    tg_array from = tg_array_of(x);
    copy_to(ctx, part_of_slot(cache, r->slot, r->begin, r->begin + r->count), &from);
    tg_tensor *all = tg_slice(t, tg_tape_input(t, cache), 0, r->slot, r->slot + 1, 1);
    return tg_slice(t, all, 2, 0, r->begin + r->count, 1);
}

/* Computes the attention of a run, whose tokens begin at token `first`. */
static tg_tensor *attend_run(const tg_module *m, tg_tape *t, tg_tensor *const qkv[3], const tg_past *past,
                             const tg_run *r, int64_t first, tg_weigh_fn weigh) {
    tg_tensor *own[3];
    for (int i = 0; i < 3; i++)
        own[i] = past->runs->n == 1 ? qkv[i] : tg_slice(t, qkv[i], 2, first, first + r->count, 1);
    own[1] = keep(t, past->k, r, own[1]);
    own[2] = keep(t, past->v, r, own[2]);
    return weigh(m, t, own);
}

tg_tensor *tg_attend_runs(const tg_module *m, tg_tape *t, tg_tensor *const qkv[3], const tg_past *past,
                          tg_weigh_fn weigh) {
    enum { AT_ONCE = 64 }; /* results that are joined at a time */
    tg_tensor *part[AT_ONCE];
    int64_t first = 0;
    int n = 0;
    for (int64_t i = 0; i < past->runs->n && t->ctx->run.status == TG_OK; i++) {
        const tg_run *r = &past->runs->run[i];
        if (n == AT_ONCE) part[0] = tg_concat(t, part, n, 2), n = 1;
        part[n++] = attend_run(m, t, qkv, past, r, first, weigh);
        first += r->count;
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

/* Returns the positions of all tokens. Their memory is the cache's, so that the next forward allocates none. */
static tg_tensor *positions_of(const tg_lm_config *c, tg_gpt_cache *cache, const tg_run *run, int64_t n,
                               int64_t tokens) {
    tg_ctx *ctx = cache->ctx;
    while (cache->room < tokens)
        if (!tg_host_grow(ctx, (void **)&cache->numbers, cache->room, &cache->room, sizeof *cache->numbers))
            return tg_inert(ctx);
    int64_t *to = cache->numbers;
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < run[i].count; k++) *to++ = run[i].begin + k;
    return numbers(c, ctx, TG_SHAPE(tokens), cache->numbers);
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
    tg_runs runs = {run, n, positions_of(c, cache, run, n, tokens)};
    bool grad = tg_tape_set_grad_mode(t, false), training = tg_tape_set_training(t, false);
    cache->runs = &runs;
    tg_tensor *y = in_scope(lm, t, cache, in, out);
    cache->runs = NULL;
    tg_tape_set_grad_mode(t, grad);
    tg_tape_set_training(t, training);
    tg_drop(in);
    tg_drop(out);
    tg_drop(runs.positions);
    return tg_lm_leave(lm, y);
}

/* ---- Slots ---- */

tg_status tg_lm_copy_slot(tg_gpt_cache *cache, int64_t from, int64_t to, int64_t count) {
    tg_ctx *ctx = cache->ctx;
    for (int64_t i = 0; i < 2 * cache->layers && count > 0 && ctx->run.status == TG_OK; i++) {
        tg_tensor *x = part_of_slot(cache->kv[i], from, 0, count);
        if (!x) break;
        tg_array at = tg_array_of(x);
        copy_to(ctx, part_of_slot(cache->kv[i], to, 0, count), &at);
        tg_temp_free(x);
    }
    return ctx->run.status;
}
