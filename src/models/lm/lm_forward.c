/* Computes what precedes a model's output matrix: the embedding, the layers and the last norm. */
#include <math.h>
#include <stdio.h>
#include <tapegrad/megatron.h>
#include <tapegrad/recompute.h>

#include "comm/comm.h"
#include "core/memory/mapping.h"
#include "models/lm/lm.h"
#include "tape/tape.h"

/* ---- The embedding ---- */

/* Returns the embeddings [.., n, h] of the positions `at` [.., n] or, if that is NULL, of n positions from `offset` on.
 * For the latter takes a slice of the table's weight, if the table is the library's own embedding. Otherwise calls the
 * table with the positions as ids. */
static tg_tensor *position_rows(tg_module *lm, tg_tape *t, tg_tensor *at, int64_t offset, int64_t n) {
    const char *name = tg_lm_names_of(&tg_lm_of(lm)->c)->positions;
    const tg_module *table = tg_module_part(tg_lm_body(lm), name);
    if (!at && tg_is_own_embedding(table)) return tg_slice(t, tg_module_own(table, "weight"), 0, offset, offset + n, 1);
    if (!at) at = tg_arange(t, TG_I64, (double)offset, (double)(offset + n), 1);
    return tg_module_run(tg_lm_body(lm), name, t, at);
}

/* Returns the embeddings of this rank's n positions, [n, 1, h], or [n, b, h] if `at` is [b, n]: under context
 * parallelism those of its chunks, and under sequence parallelism this rank's part of them. Positions `at` are this
 * rank's already. */
static tg_tensor *position_part(tg_module *lm, tg_tape *t, tg_tensor *at, int64_t offset, int64_t n) {
    const tg_lm_config *c = &tg_lm_of(lm)->c;
    const tg_placement chunks = {.kind = TG_VARYING, .layout = TG_ZIGZAG};
    tg_tensor *p = position_rows(lm, t, at, offset, at ? n : n * tg_lm_cp(c));
    bool each = at && tg_ndim(at) == 2; /* each sequence has positions of its own */
    if (!at && tg_lm_cp(c) > 1) p = tg_shard_as(t, p, chunks, tg_lm_cp_comm(c));
    if (each) p = tg_transpose(t, p, 0, 1);
    if (tg_is_sequence_parallel(c->parallel)) p = tg_shard(t, p, 0, tg_lm_tp_comm(c));
    return each ? p : tg_unsqueeze(t, p, 1);
}

/* Returns v rounded to the digits of a 16-bit float; v itself for wider ones. Published models multiply their embedding
 * by a factor of the embedding's own dtype. */
static double rounded(double v, tg_dtype dtype) {
    int exponent, digits = dtype == TG_BF16 ? 8 : dtype == TG_F16 ? 11 : 0;
    if (!digits) return v;
    frexp(v, &exponent);
    return ldexp(nearbyint(ldexp(v, digits - exponent)), exponent - digits);
}

tg_tensor *tg_lm_word_rows(tg_module *lm, tg_tape *t, tg_tensor *ids) {
    const tg_lm_config *c = &tg_lm_of(lm)->c;
    tg_tensor *x = tg_lm_tp(c) == 1 ? tg_transpose(t, ids, 0, 1) : ids;
    x = tg_module_run(tg_lm_body(lm), tg_lm_names_of(c)->embedding, t, x);
    return c->embed_scale == 1 ? x : tg_scale(t, x, rounded(c->embed_scale, tg_dtype_of(x)));
}

/* Does what tg_lm_embed does. The caller has opened the key of the embedding. */
static tg_tensor *embed(tg_module *lm, tg_tape *t, tg_tensor *ids, tg_tensor *positions, int64_t offset) {
    const tg_lm_config *c = &tg_lm_of(lm)->c;
    tg_tensor *x = tg_lm_word_rows(lm, t, ids);
    if (c->position_kind == TG_LM_LEARNED) x = tg_add(t, x, position_part(lm, t, positions, offset, tg_dim(ids, 1)));
    return c->embed_dropout > 0 ? tg_dropout(t, x, c->embed_dropout) : x;
}

tg_tensor *tg_lm_embed(tg_module *lm, tg_tape *t, tg_tensor *ids, tg_tensor *positions, int64_t offset) {
    tg_lm_key_open(tg_lm_of(lm), TG_LM_KEY_EMBEDDING, tg_scope_site(t->scope, TG_SITE));
    tg_tensor *x = embed(lm, t, ids, positions, offset);
    tg_lm_key_close(tg_lm_of(lm));
    return x;
}

/* ---- Layers ---- */

static tg_module *layers_of(const tg_module *lm) {
    return tg_module_part(tg_lm_body(lm), tg_lm_names_of(&tg_lm_of(lm)->c)->layers);
}

/* Runs layer f, with what attention needs in addition; past may be NULL. */
static tg_tensor *call_layer(const tg_layer_fn *f, tg_tape *t, tg_tensor *x, const tg_past *past) {
    if (!past) return tg_module_run(layers_of(f->lm), f->name, t, x);
    return tg_transformer_layer(tg_module_part(layers_of(f->lm), f->name), t, x, past);
}

/* The callback of recomputation that runs a layer. in: x, or x and the positions and starts of a tg_packing. */
static tg_status layer_call(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_out;
    const tg_packing packing = {n_in > 1 ? in[1] : NULL, n_in > 1 ? in[2] : NULL};
    out[0] = call_layer(state, t, in[0], n_in > 1 ? &(tg_past){.packing = &packing} : NULL);
    return t->ctx->run.status;
}

/* Runs a layer so that backward recomputes all of it. */
static tg_tensor *recompute_layer(tg_lm *s, tg_layer_fn *f, tg_tape *t, tg_tensor *x, const tg_packing *packing) {
    tg_tensor *in[3] = {x, packing ? packing->positions : NULL, packing ? packing->starts : NULL}, *y = NULL;
    /* Under sequence parallelism a rank has only its part of the input, so there is nothing to distribute. */
    bool distribute =
        s->c.recompute == TG_GPT_DISTRIBUTED && tg_lm_tp(&s->c) > 1 && !tg_is_sequence_parallel(s->c.parallel);
    tg_recompute(t, layer_call, f, in, packing ? 3 : 1, &y, 1,
                 TG_RECOMPUTE(.name = "transformer_layer", .distribute = distribute ? tg_lm_tp_comm(&s->c) : NULL));
    return y;
}

/* Runs layer i of this part in a scope of the layer's name and under the layer's key. Without a cache, recomputes the
 * layer in backward if the config says so. past may be NULL. */
static tg_tensor *run_layer(tg_lm *s, int64_t i, tg_tape *t, tg_tensor *x, const tg_past *past) {
    tg_layer_fn *f = &s->layer[i];
    if (tg_scope_open(t, f->name) != TG_OK) return tg_scope_close(t, NULL, 0), tg_inert(s->ctx);
    bool again = s->c.recompute == TG_GPT_FULL || s->c.recompute == TG_GPT_DISTRIBUTED;
    tg_lm_key_open(s, (uint64_t)(s->stage.first + i), tg_scope_site(t->scope, TG_SITE));
    tg_tensor *y = again && !(past && past->k) ? recompute_layer(s, f, t, x, past ? past->packing : NULL)
                                               : call_layer(f, t, x, past);
    tg_lm_key_close(s);
    return tg_scope_close(t, &y, 1) == TG_OK ? y : tg_inert(s->ctx);
}

tg_tensor *tg_lm_layers(tg_module *lm, tg_tape *t, tg_tensor *x, tg_gpt_cache *cache, const tg_packing *packing) {
    tg_lm *s = tg_lm_of(lm);
    for (int64_t i = 0; i < s->stage.layers && tg_ok(s->ctx); i++) {
        tg_past past = {.packing = packing};
        if (cache) past = (tg_past){cache->kv[2 * i], cache->kv[2 * i + 1], cache->length, cache->runs, NULL};
        x = run_layer(s, i, t, x, cache || packing ? &past : NULL);
    }
    return s->stage.head ? tg_module_run(tg_lm_body(lm), tg_lm_names_of(&s->c)->last_norm, t, x) : x;
}

/* ---- The trunk ---- */

tg_status tg_lm_check_ids(const tg_module *lm, tg_tensor *ids, int64_t offset) {
    tg_ctx *ctx = lm->ctx;
    const char *kind = tg_module_kind(lm);
    int64_t most = tg_lm_of(lm)->c.positions, cp = tg_lm_cp(&tg_lm_of(lm)->c);
    char what[160];
    snprintf(what, sizeof what, "%s: ids", kind);
    TG_TRY(tg_check(ctx, ids, what));
    tg_describe(ids, what, sizeof what);
    if (ids->dtype != TG_I64 || ids->ndim != 2)
        return tg_fail(ctx, TG_ERR_SHAPE, "%s: ids are %s, expected i64[batch, sequence]", kind, what);
    if (cp > 1 && ids->shape[1] % 2)
        return tg_fail(ctx, TG_ERR_SHAPE,
                       "%s: ids are %s on each of %lld cp ranks, expected an even length: two chunks of the sequence",
                       kind, what, (long long)cp);
    if (offset + ids->shape[1] * cp > most)
        return tg_fail(ctx, TG_ERR_SHAPE, "%s: ids are %s%s from position %lld on, but the model has %lld positions",
                       kind, what, cp > 1 ? ", on each of several cp ranks," : "", (long long)offset, (long long)most);
    return TG_OK;
}

tg_tensor *tg_lm_trunk(tg_module *lm, tg_tape *t, tg_tensor *ids, tg_gpt_cache *cache) {
    int64_t offset = cache ? cache->length : 0;
    if (tg_tape_check(t, tg_module_kind(lm)) != TG_OK || tg_lm_check_ids(lm, ids, offset) != TG_OK)
        return tg_inert(lm->ctx);
    bool training = tg_module_use_mode(lm, t);
    tg_tensor *x = tg_lm_layers(lm, t, tg_lm_embed(lm, t, ids, NULL, offset), cache, NULL);
    tg_tape_set_training(t, training);
    return x;
}

tg_tensor *tg_lm_packed_trunk(tg_module *lm, tg_tape *t, tg_tensor *ids, tg_tensor *positions) {
    tg_packing packing;
    char what[64];
    snprintf(what, sizeof what, "%s: positions", tg_module_kind(lm));
    if (tg_tape_check(t, tg_module_kind(lm)) != TG_OK || tg_lm_check_ids(lm, ids, 0) != TG_OK ||
        tg_lm_pack(lm, t, positions, ids->shape[0], ids->shape[1], what, &packing) != TG_OK)
        return tg_inert(lm->ctx);
    bool training = tg_module_use_mode(lm, t);
    tg_tensor *x = tg_lm_layers(lm, t, tg_lm_embed(lm, t, ids, positions, 0), NULL, &packing);
    tg_tape_set_training(t, training);
    return x;
}

/* ---- Entering and leaving ---- */

tg_status tg_lm_enter(const tg_module *lm, const tg_tape *t, const char *who) {
    if (!lm) return TG_ERR_ARGUMENT;
    if (lm->ctx->run.status != TG_OK) return lm->ctx->run.status;
    if (!tg_is_lm(lm)) {
        bool gpt = strncmp(who, "tg_gpt", 6) == 0;
        return tg_fail(lm->ctx, TG_ERR_ARGUMENT, "%s: the module is a \"%s\", expected %s", who, lm->ops->kind,
                       gpt ? "a gpt (tg_gpt_new)" : "a language model (tg_lm_new)");
    }
    if (t && t->ctx != lm->ctx)
        return tg_fail(lm->ctx, TG_ERR_HANDLE, "%s: tape and model are of different contexts", who);
    return t ? TG_OK : tg_fail(lm->ctx, TG_ERR_ARGUMENT, "%s: the tape is NULL", who);
}

tg_status tg_lm_enter_whole(const tg_module *lm, const tg_tape *t, const char *who) {
    TG_TRY(tg_lm_enter(lm, t, who));
    const tg_lm_stage *s = &tg_lm_of(lm)->stage;
    if (s->parts == 1) return TG_OK;
    return tg_fail(lm->ctx, TG_ERR_STATE,
                   "%s: the module is part %d of a model of %d parts, expected a whole model; run the parts with "
                   "tg_lm_part",
                   who, s->part, s->parts);
}

tg_tensor *tg_lm_leave(const tg_module *lm, tg_tensor *y) {
    if (tg_is_lm(lm)) tg_mappings_check(lm->ctx);
    if (tg_is_lm(lm)) tg_comm_note_missed(tg_lm_tp_comm(&tg_lm_of(lm)->c), lm->ctx->run.status);
    if (tg_is_lm(lm)) tg_comm_note_missed(tg_lm_cp_comm(&tg_lm_of(lm)->c), lm->ctx->run.status);
    return y;
}
