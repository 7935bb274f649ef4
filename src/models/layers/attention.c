/* Attention: the projections of queries, keys and values, and attention itself. The config chooses rotary positions and
 * grouped queries. Generation adds a cache, and packing the bounds of documents. Activations are [s, b, h]. */
#include <math.h>
#include <tapegrad/megatron.h>

#include "kernels/scalar.h"
#include "models/layers/heads.h"
#include "models/lm/lm.h"
#include "tape/tape.h"

/* ---- Projections ---- */

/* Computes keys and values if there are fewer key-value heads than ranks. Every rank computes all of these heads and
 * keeps one. */
static void project_replicated(const tg_module *m, tg_tape *t, tg_tensor *x, tg_tensor *kv[2]) {
    const tg_lm_config *c = tg_layer_config(m);
    const tg_lm_name_table *names = tg_lm_names_of(c);
    tg_comm *tp = tg_lm_tp_comm(c);
    x = tg_is_sequence_parallel(c->parallel) ? tg_gather_from_sp(t, x, tp, NULL) : tg_copy_to_tp(t, x, tp);
    for (int i = 0; i < 2; i++) {
        tg_tensor *all = tg_module_run(m, names->projection[1 + i], t, x);
        kv[i] = tg_heads_own(t, all, c->kv_heads, tp);
    }
}

/* Normalizes queries (i = 0) or keys (i = 1) if the config has norms of this kind. Values (i = 2) have no norm. */
static tg_tensor *normed(tg_module *m, tg_tape *t, tg_tensor *x, int i, tg_lm_qk_norm kind) {
    const tg_lm_config *c = tg_layer_config(m);
    return i < 2 && c->qk_norm == kind ? tg_module_run(m, tg_lm_names_of(c)->qk_norm[i], t, x) : x;
}

/* Computes the outputs of the projections for this rank's heads, each [s, b, heads * d]. */
static void project_rows(tg_module *m, tg_tape *t, tg_tensor *x, tg_tensor *qkv[3]) {
    const tg_lm_config *c = tg_layer_config(m);
    const tg_lm_name_table *names = tg_lm_names_of(c);
    int64_t d = c->head_dim, tp = tg_lm_tp(c), q = c->heads / tp * d, kv = c->kv_heads / tp * d;
    if (names->qkv) {
        tg_split(t, tg_module_run(m, names->qkv, t, x), 2, (const int64_t[]){q, kv, kv}, 3, qkv);
        return;
    }
    qkv[0] = tg_module_run(m, names->projection[0], t, x);
    if (c->kv_heads < tp)
        project_replicated(m, t, x, qkv + 1);
    else
        for (int i = 1; i < 3; i++) qkv[i] = tg_module_run(m, names->projection[i], t, x);
}

/* Computes the queries, keys and values of this rank's heads, each [b, heads, s, d]. */
static void project(tg_module *m, tg_tape *t, tg_tensor *x, tg_tensor *qkv[3]) {
    const tg_lm_config *c = tg_layer_config(m);
    project_rows(m, t, x, qkv);
    for (int i = 0; i < 3; i++) {
        qkv[i] = normed(m, t, qkv[i], i, TG_LM_QK_NORM_OF_PROJECTIONS);
        if (c->clip_qkv != TG_NONE) qkv[i] = tg_clamp(t, qkv[i], -c->clip_qkv, c->clip_qkv);
        qkv[i] = normed(m, t, tg_heads_split(t, qkv[i], c->head_dim), i, TG_LM_QK_NORM_OF_HEADS);
    }
}

/* ---- Attention ---- */

/* Returns a mask bool [n, k] of n queries and k keys, true where the key's position is after the query's or, if there
 * is a window, before the window that ends with the query. The last query is at the position of the last key. With
 * packed documents the mask is [b, 1, 1, n, k], and also true where the key is before the query's document. starts:
 * those of a tg_packing; NULL: none are packed. */
static tg_tensor *hidden(const tg_lm_config *c, tg_tape *t, int64_t n, int64_t k, tg_tensor *starts) {
    tg_tensor *query = tg_unsqueeze(t, tg_arange(t, TG_I64, (double)(k - n), (double)k, 1), 1);
    tg_tensor *key = tg_arange(t, TG_I64, 0, (double)k, 1), *mask = tg_gt(t, key, query);
    if (c->window != TG_NONE)
        mask = tg_logical_or(t, mask, tg_le(t, key, tg_add_scalar(t, query, -(double)c->window)));
    if (!starts) return mask;
    tg_tensor *begun = tg_slice(t, starts, 1, 0, n, 1); /* entry i is the beginning of the document of token i */
    begun = tg_reshape_shard(t, begun, (tg_shape){5, {tg_dim(starts, 0), 1, 1, n, 1}}, 0);
    return tg_logical_or(t, mask, tg_lt(t, key, begun));
}

/* Computes attention by separate ops (TG_LM_COMPOSED). h is the number of query heads here, and g that of key-value
 * heads. The h / g query heads that share a key-value head get a dim of their own: queries are [b, g, h / g, n, d],
 * keys and values [b, g, 1, k, d]. */
static tg_tensor *composed(const tg_lm_config *c, tg_tape *t, tg_tensor *const qkv[3], double scale,
                           tg_tensor *starts) {
    int64_t b = tg_dim(qkv[0], 0), h = tg_dim(qkv[0], 1), n = tg_dim(qkv[0], 2), d = c->head_dim;
    int64_t g = tg_dim(qkv[1], 1), k = tg_dim(qkv[1], 2);
    if (!tg_ok(t->ctx)) return tg_inert(t->ctx);
    tg_tensor *q = tg_reshape_shard(t, qkv[0], (tg_shape){5, {b, g, h / g, n, d}}, 1);
    tg_tensor *keys = tg_transpose(t, tg_unsqueeze(t, qkv[1], 2), 3, 4);
    tg_tensor *s = tg_softcap(t, tg_scale(t, tg_matmul(t, q, keys), scale), c->attention_softcap);
    tg_tensor *weights = tg_softmax(t, tg_masked_fill(t, s, hidden(c, t, n, k, starts), -INFINITY), 4);
    if (c->attention_dropout > 0) weights = tg_dropout(t, weights, c->attention_dropout);
    tg_tensor *y = tg_matmul(t, weights, tg_unsqueeze(t, qkv[2], 2));
    return tg_reshape_shard(t, y, (tg_shape){4, {b, h, n, d}}, 1);
}

/* Computes causal attention with the config's window, soft cap and dropout: queries [b, heads, n, d], keys and values
 * [b, kv heads, k, d] -> [b, heads, n, d]. starts: those of a tg_packing; NULL: no documents are packed. */
static tg_tensor *weigh_packed(const tg_module *m, tg_tape *t, tg_tensor *const qkv[3], tg_tensor *starts) {
    const tg_lm_config *c = tg_layer_config(m);
    double scale = tg_attention_scale(c);
    if (c->backend == TG_LM_COMPOSED) return composed(c, t, qkv, scale, starts);
    return tg_heads_attend(t, qkv, c->parallel,
                           TG_CONTEXT_ATTENTION(.kind = c->cp_kind, .inner = c->cp_inner, .causal = true,
                                                .scale = scale, .dropout = c->attention_dropout,
                                                .softcap = c->attention_softcap, .starts = starts,
                                                .cut_as_one = true,
                                                .left = c->window == TG_NONE ? TG_NONE : c->window - 1));
}

static tg_tensor *weigh(const tg_module *m, tg_tape *t, tg_tensor *const qkv[3]) {
    return weigh_packed(m, t, qkv, NULL);
}

/* Computes the attention of one or several runs (tg_weigh_fn). */
static tg_tensor *weigh_runs(const tg_module *m, tg_tape *t, tg_tensor *const qkv[3], tg_tensor *const starts[2]) {
    const tg_lm_config *c = tg_layer_config(m);
    if (!starts) return weigh(m, t, qkv);
    return tg_attention(t, qkv[0], qkv[1], qkv[2],
                        TG_ATTENTION(.causal = true, .scale = tg_attention_scale(c), .softcap = c->attention_softcap,
                                     .left = c->window == TG_NONE ? TG_NONE : c->window - 1, .starts_q = starts[0],
                                     .starts_k = starts[1]));
}

/* ---- Forward ---- */

/* Writes the new keys or values x [b, g, n, d] after the cached ones. Returns a view of the cached and the new ones. */
static tg_tensor *append(tg_tape *t, tg_tensor *cache, int64_t length, tg_tensor *x) {
    tg_ctx *ctx = t->ctx;
    if (ctx->run.status != TG_OK) return tg_inert(ctx);
    tg_tensor *slot = tg_temp_new(ctx, cache->dtype, 4, x->shape, cache->stride, tg_storage_ref(cache->storage),
                                  length * cache->stride[2]);
    if (!slot) return tg_inert(ctx);
    const double none[2] = {0, 0};
    tg_array from = tg_array_of(x);
    ctx->run.ops->apply(ctx, TG_FN_id, tg_array_of(slot), &from, 1, none, false);
    tg_temp_free(slot);
    return tg_slice(t, tg_tape_input(t, cache), 2, 0, length + x->shape[2], 1);
}

/* Rotates queries and keys by their positions. */
static void rotate(const tg_lm_config *c, tg_tape *t, tg_tensor *qk[2], const tg_past *past) {
    tg_rope_opts rope = tg_lm_rope_of(c);
    if (past && past->runs) rope.positions = past->runs->positions;
    else if (past && past->packing) rope.positions = past->packing->positions;
    else rope.offset = past ? past->length : 0;
    tg_heads_rotate(t, qk, &rope, NULL, c->parallel);
}

/* Computes attention, with the cached keys and values or within packed documents. past may be NULL. */
static tg_tensor *weigh_with(const tg_module *m, tg_tape *t, tg_tensor *qkv[3], const tg_past *past) {
    if (!past) return weigh(m, t, qkv);
    if (past->packing) return weigh_packed(m, t, qkv, past->packing->starts);
    if (past->runs) return tg_attend_runs(m, t, qkv, past, weigh_runs);
    qkv[1] = append(t, past->k, past->length, qkv[1]);
    qkv[2] = append(t, past->v, past->length, qkv[2]);
    return weigh(m, t, qkv);
}

/* Runs the whole layer: x [s, b, h] -> [s, b, h]. past may be NULL. */
static tg_tensor *attend(tg_module *m, tg_tape *t, tg_tensor *x, const tg_past *past) {
    const tg_lm_config *c = tg_layer_config(m);
    tg_tensor *qkv[3];
    project(m, t, x, qkv);
    if (c->position_kind == TG_LM_ROTARY) rotate(c, t, qkv, past);
    return tg_module_run(m, tg_lm_names_of(c)->out, t, tg_heads_join(t, weigh_with(m, t, qkv, past)));
}

static tg_tensor *attention_forward(tg_module *m, tg_tape *t, tg_tensor *x) { return attend(m, t, x, NULL); }

/* ---- Creation ---- */

static const tg_module_ops attention_ops = {
    .size = sizeof(tg_module_ops), .kind = "attention", .forward = attention_forward, .free = tg_layer_free};

tg_tensor *tg_attend(tg_module *m, tg_tape *t, tg_tensor *x, const tg_past *past) {
    return tg_run_cached(m, &attention_ops, attend, t, x, past);
}

/* Adds three projections, one each for queries, keys and values. */
static void add_projections(tg_module *m, const tg_lm_config *c, int64_t q, int64_t kv) {
    const char *const *names = tg_lm_names_of(c)->projection;
    tg_projection_kind of_kv = c->kv_heads < tg_lm_tp(c) ? TG_PROJECT_WHOLE : TG_PROJECT_COLUMN;
    for (int i = 0; i < 3; i++)
        tg_module_add_child(m, names[i],
                            tg_projection(m->ctx, c, i ? of_kv : TG_PROJECT_COLUMN, c->hidden, i ? kv : q, 1,
                                          c->qkv_bias, tg_hidden_std(c)));
}

/* Adds the norms of queries and keys. Every rank of tp norms heads of its own with the same weights, whose gradients
 * are summed. */
static void add_qk_norms(tg_module *m, const tg_lm_config *c, int64_t q, int64_t kv) {
    const char *const *names = tg_lm_names_of(c)->qk_norm;
    bool heads = c->qk_norm == TG_LM_QK_NORM_OF_HEADS;
    for (int i = 0; i < 2 && c->qk_norm != TG_LM_NO_QK_NORM; i++) {
        tg_module *norm = tg_lm_rms_norm_new(m->ctx, c, heads ? c->head_dim : i ? kv : q);
        tg_module_add_child(m, names[i], norm);
        if (tg_lm_tp(c) > 1 && tg_module_ok(norm)) tg_place(c->parallel, tg_module_own(norm, "weight"), TG_TP, TG_R);
    }
}

/* If every rank has the whole weights of keys and values, places these weights R on tp (placement.h), so that their
 * gradients are summed over the ranks: each rank uses only its own head. */
static void place_whole(tg_module *m, const tg_lm_config *c) {
    const tg_lm_name_table *names = tg_lm_names_of(c);
    if (names->qkv || c->kv_heads >= tg_lm_tp(c) || !tg_module_ok(m)) return;
    for (int i = 1; i < 3; i++) {
        const tg_module *p = tg_module_part(m, names->projection[i]);
        tg_place(c->parallel, tg_module_own(p, "weight"), TG_TP, TG_R);
        if (c->qkv_bias) tg_place(c->parallel, tg_module_own(p, "bias"), TG_TP, TG_R);
    }
}

tg_module *tg_lm_attention_new(tg_ctx *ctx, const tg_lm_config *c) {
    const tg_lm_name_table *names = tg_lm_names_of(c);
    int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim, h = c->hidden;
    tg_module *m = tg_layer_begin(ctx, &attention_ops, c);
    if (!m) return tg_layer_finish(m);
    if (names->qkv)
        tg_module_add_child(
            m, names->qkv,
            tg_projection(ctx, c, TG_PROJECT_COLUMN, h, q + 2 * kv, 3, c->qkv_bias, tg_hidden_std(c)));
    else
        add_projections(m, c, q, kv);
    add_qk_norms(m, c, q, kv);
    tg_module_add_child(m, names->out,
                        tg_projection(ctx, c, TG_PROJECT_ROW, q, h, 1, c->out_bias, tg_residual_std(c)));
    place_whole(m, c);
    return tg_layer_finish(m);
}
