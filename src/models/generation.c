/* Generation with a key-value cache. Each call of tg_gpt_next appends the next tokens of each sequence to the cache,
 * and returns the logits of the token after them. */
#include "base/memory/host_memory.h"
#include "models/lm/lm.h"
#include "tape/tape.h"

/* ---- The cache ---- */

/* Fails if the model cannot generate with a cache of these sizes. */
static tg_status check_cache(const tg_module *gpt, int64_t batch, int64_t positions) {
    tg_ctx *ctx = gpt->ctx;
    const tg_lm_config *c = tg_lm_config_of(gpt);
    if (!c)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_gpt_cache_new: the module is a \"%s\", expected a language model",
                       tg_module_kind(gpt));
    if (batch <= 0 || positions <= 0 || positions > c->positions)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_gpt_cache_new: batch is %lld and positions %lld, expected a batch of 1 or more, and 1 to "
                       "%lld positions, as many as the model has",
                       (long long)batch, (long long)positions, (long long)c->positions);
    if (tg_lm_of(gpt)->stage.parts > 1)
        return tg_fail(ctx, TG_ERR_STATE,
                       "tg_gpt_cache_new: the module is part %d of a model of %d parts, expected a whole model",
                       tg_lm_of(gpt)->stage.part, tg_lm_of(gpt)->stage.parts);
    if (tg_lm_tp(c) > 1 && tg_is_sequence_parallel(c->parallel))
        return tg_fail(ctx, TG_ERR_STATE,
                       "tg_gpt_cache_new: the model is sequence-parallel, but a single token cannot be split over "
                       "ranks; make its groups without sequence_parallel");
    if (tg_lm_cp(c) > 1)
        return tg_fail(ctx, TG_ERR_STATE,
                       "tg_gpt_cache_new: the model is on a grid with cp %d, but a single token cannot be split over "
                       "ranks; make its groups without cp",
                       tg_lm_cp(c));
    if (!tg_lm_head_is_called(gpt)) tg_lm_output_weight(gpt); /* fails if the matrix is missing */
    return ctx->run.status;
}

tg_gpt_cache *tg_gpt_cache_new(tg_module *gpt, int64_t batch, int64_t positions) {
    if (!gpt || gpt->ctx->run.status != TG_OK || check_cache(gpt, batch, positions) != TG_OK) return NULL;
    tg_ctx *ctx = gpt->ctx;
    const tg_lm_config *c = tg_lm_config_of(gpt);
    size_t bytes = sizeof(tg_gpt_cache) + 2 * (size_t)c->layers * sizeof(tg_tensor *);
    tg_gpt_cache *k = tg_host_alloc(ctx, bytes);
    if (!k) return NULL;
    *k = (tg_gpt_cache){
        .ctx = ctx, .gpt = gpt->serial, .batch = batch, .positions = positions, .layers = c->layers, .bytes = bytes};
    tg_dtype dtype = tg_dtype_of(tg_module_param(gpt, 0, NULL));
    int64_t heads = c->kv_heads < tg_lm_tp(c) ? 1 : c->kv_heads / tg_lm_tp(c);
    for (int64_t i = 0; i < 2 * c->layers; i++) {
        k->kv[i] = tg_zeros(ctx, dtype, (tg_shape){4, {batch, heads, positions, c->head_dim}});
        if (tg_lm_tp(c) > 1) tg_place(c->parallel, k->kv[i], TG_TP, TG_SHARD(1));
    }
    if (ctx->run.status == TG_OK) return k;
    tg_gpt_cache_free(k);
    return NULL;
}

void tg_gpt_cache_free(tg_gpt_cache *c) {
    if (!c) return;
    for (int64_t i = 0; i < 2 * c->layers; i++) tg_drop(c->kv[i]);
    tg_host_free(c->ctx, c->numbers, (size_t)c->capacity * sizeof *c->numbers);
    tg_host_free(c->ctx, c, c->bytes);
}

int64_t tg_gpt_cache_length(const tg_gpt_cache *c) { return c ? c->length : 0; }

/* ---- The next token ---- */

/* Computes the logits of the last position only: ids [b, n] -> [b, vocab]. */
static tg_tensor *next_logits(tg_module *gpt, tg_tape *t, tg_gpt_cache *c, tg_tensor *ids, const void *site) {
    if (tg_scope_open_at(t, "generate", site) != TG_OK) return tg_scope_close(t, NULL, 0), tg_inert(c->ctx);
    tg_tensor *x = tg_lm_trunk(gpt, t, ids, c);
    tg_tensor *y = tg_lm_logits(gpt, t, tg_select(t, x, 0, tg_dim(ids, 1) - 1));
    return tg_scope_close(t, &y, 1) == TG_OK ? y : tg_inert(c->ctx);
}

/* Checks the cache and the ids. */
static tg_status check_next(const tg_module *gpt, const tg_gpt_cache *c, const tg_tensor *ids) {
    char what[160];
    tg_ctx *ctx = gpt->ctx;
    if (!c) return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_gpt_next: the cache is NULL; make one with tg_gpt_cache_new");
    if (c->gpt != gpt->serial)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_gpt_next: the cache was made for another model, which may have been freed; make one for "
                       "this model with tg_gpt_cache_new");
    TG_TRY(tg_check(ctx, ids, "tg_gpt_next: ids"));
    if (ids->ndim == 2 && ids->shape[0] == c->batch && ids->shape[1] >= 1 && c->length + ids->shape[1] <= c->positions)
        return TG_OK;
    if (c->length == c->positions)
        return tg_fail(ctx, TG_ERR_SHAPE,
                       "tg_gpt_next: the cache is full: it holds %lld of %lld positions; make a new one with "
                       "tg_gpt_cache_new",
                       (long long)c->length, (long long)c->positions);
    tg_describe(ids, what, sizeof what);
    return tg_fail(ctx, TG_ERR_SHAPE,
                   "tg_gpt_next: ids are %s, expected i64[%lld, 1 to %lld]: the cache holds %lld of %lld positions",
                   what, (long long)c->batch, (long long)(c->positions - c->length), (long long)c->length,
                   (long long)c->positions);
}

static tg_tensor *next(tg_module *gpt, tg_tape *t, tg_gpt_cache *c, tg_tensor *ids, const void *site) {
    if (tg_lm_enter_whole(gpt, t, "tg_gpt_next") != TG_OK) return tg_inert(gpt ? gpt->ctx : &tg_dead_ctx);
    if (check_next(gpt, c, ids) != TG_OK) return tg_inert(gpt->ctx);
    int64_t n = ids->shape[1];
    bool grad = tg_tape_set_grad_mode(t, false), training = tg_tape_set_training(t, false);
    tg_tensor *y = next_logits(gpt, t, c, ids, site);
    tg_tape_set_grad_mode(t, grad);
    tg_tape_set_training(t, training);
    if (gpt->ctx->run.status == TG_OK) c->length += n;
    return y;
}

tg_tensor *tg_gpt_next(tg_module *gpt, tg_tape *t, tg_gpt_cache *c, tg_tensor *ids) {
    return tg_lm_leave(gpt, next(gpt, t, c, ids, TG_SITE));
}
