#include <math.h>

#include "autograd/ops/derive.h"
#include "autograd/ops/network.h"
#include "core/draws.h"
#include "kernels/composed.h"

/* out [b, h, sq, dv] = softmax(scale q k^T) v, q [b, h, sq, dk], k [b, g, sk, dk], v [b, g, sk, dv]. */

typedef struct attention_params {
    tg_attention_opts opts; /* as infer resolves them: the scale, no dropout in evaluation */
    tg_draws draws;
} attention_params;

enum { Q, K, V };

static int64_t size(const tg_call *c, int i, int dim) {
    return c->in[i]->shape[dim];
}

static tg_status attention_shapes(tg_call *c) {
    for (int i = Q; i <= V; i++)
        if (c->in[i]->ndim != 4)
            return tg_call_fail(c, TG_ERR_SHAPE, "expected q, k and v of 4 dims: batch, heads, sequence, size");
    int64_t h = size(c, Q, 1), g = size(c, K, 1);
    if (size(c, K, 0) != size(c, Q, 0) || size(c, V, 0) != size(c, Q, 0))
        return tg_call_fail(c, TG_ERR_SHAPE, "expected q, k and v of one batch size");
    if (size(c, V, 1) != g || size(c, V, 2) != size(c, K, 2))
        return tg_call_fail(c, TG_ERR_SHAPE, "expected k and v with as many heads and of one length");
    if (size(c, K, 3) != size(c, Q, 3))
        return tg_call_fail(c, TG_ERR_SHAPE, "q has heads of size %lld and k of %lld: expected one size",
                            (long long)size(c, Q, 3), (long long)size(c, K, 3));
    if (g == 0 ? h != 0 : h % g != 0)
        return tg_call_fail(c, TG_ERR_SHAPE, "%lld heads of q share %lld of k: expected a multiple", (long long)h,
                            (long long)g);
    return TG_OK;
}

/* The probabilities [b, h, sq, sk] lie as q does, but that the keys' sequence is their last dim; where one input is
 * opaque, they are. */
static void place_scores(const tg_call *c, tg_placement at[TG_MAX_AXES]) {
    for (int a = 0; a < TG_MAX_AXES; a++) {
        tg_placement q = tg_place_on(c->in[Q], (tg_axis)a), k = tg_place_on(c->in[K], (tg_axis)a);
        at[a] = q;
        if (q.kind != TG_VARYING && k.kind == TG_VARYING && k.layout != TG_OPAQUE && k.dim == 2) {
            at[a] = k;
            at[a].dim = 3;
        }
        for (int i = K; i <= V; i++) {
            tg_placement p = tg_place_on(c->in[i], (tg_axis)a);
            if (p.kind == TG_VARYING && p.layout == TG_OPAQUE) at[a] = p;
        }
    }
}

static tg_status take_draws(tg_call *c) {
    attention_params *p = c->params;
    const tg_tensor *q = c->in[Q];
    tg_placement at[TG_MAX_AXES];
    if (c->ctx->grid.axes) place_scores(c, at);
    return tg_draws_take(c->ctx, 4, (int64_t[]){q->shape[0], q->shape[1], q->shape[2], size(c, K, 2)},
                         c->ctx->grid.axes ? at : NULL, &p->draws);
}

static tg_status attention_options(tg_call *c) {
    attention_params *p = c->params;
    tg_attention_opts *o = &p->opts;
    const tg_tensor *q = c->in[Q];
    TG_TRY(tg_size_check(c->ctx, o->size, sizeof *o, "the options"));
    if (!isfinite(o->scale)) return tg_call_fail(c, TG_ERR_ARGUMENT, "scale is %g: expected a number", o->scale);
    if (!(o->dropout >= 0 && o->dropout < 1))
        return tg_call_fail(c, TG_ERR_ARGUMENT, "dropout is %g: expected 0 <= p < 1", o->dropout);
    if (o->scale == 0) o->scale = q->shape[3] ? 1 / sqrt((double)q->shape[3]) : 1;
    if (!tg_training_p(c->tape)) o->dropout = 0;
    return o->dropout > 0 ? take_draws(c) : TG_OK;
}

static tg_status attention_infer(tg_call *c) {
    const tg_tensor *q = c->in[Q];
    tg_dtype dtype = (tg_dtype)q->dtype;
    TG_TRY(tg_need_float(c, Q));
    TG_TRY(tg_need_same_dtype(c, Q, K));
    TG_TRY(tg_need_same_dtype(c, Q, V));
    TG_TRY(attention_shapes(c));
    TG_TRY(attention_options(c));
    /* Which keys a query sees depends on its row in the whole sequence. */
    if (((const attention_params *)c->params)->opts.causal) TG_TRY(tg_call_role(c, Q, 2, TG_WHOLE));
    TG_TRY(tg_call_save(c, 0, tg_accumulate_dtype(dtype), 3, q->shape));
    return tg_call_out(c, 0, dtype, 4, (int64_t[]){q->shape[0], q->shape[1], q->shape[2], size(c, V, 3)});
}

static tg_attention_args attention_args(const tg_call *c) {
    const attention_params *p = c->params;
    return (tg_attention_args){
        .q = tg_array_of(c->in[Q]),
        .k = tg_array_of(c->in[K]),
        .v = tg_array_of(c->in[V]),
        .out = tg_array_of(c->out[0]),
        .lse = tg_array_of(c->saved[0]),
        .scale = p->opts.scale,
        .dropout = p->opts.dropout,
        .causal = p->opts.causal,
        .draws = p->draws,
    };
}

static tg_status attention_forward(tg_call *c) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    tg_attention_args a = attention_args(c);
    return (ops->attention ? ops->attention : tg_composed_attention)(c->ctx, &a);
}

/* The probabilities are computed again, tile by tile, from q, k and the log-sum-exp of their rows. */
static tg_status attention_backward(tg_call *c) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    tg_attention_args a = attention_args(c);
    a.gout = tg_array_of(c->gout[0]);
    a.gq = tg_op_gin(c, Q);
    a.gk = tg_op_gin(c, K);
    a.gv = tg_op_gin(c, V);
    a.add_q = tg_adds(c, Q);
    a.add_k = tg_adds(c, K);
    a.add_v = tg_adds(c, V);
    return (ops->attention_grad ? ops->attention_grad : tg_composed_attention_grad)(c->ctx, &a);
}

/* Two products of sq x sk for every head; a causal mask leaves about half. */
static int64_t attention_flops(const tg_node *n) {
    const attention_params *p = tg_node_params(n);
    const tg_tensor *q = tg_node_input(n, Q), *v = tg_node_input(n, V);
    int64_t all = 2 * tg_dim(q, 0) * tg_dim(q, 1) * tg_dim(q, 2) * tg_dim(v, 2) * (tg_dim(q, 3) + tg_dim(v, 3));
    return p->opts.causal ? all / 2 : all;
}

/* Which keys [sk] each query [sq] does not see. */
static tg_tensor *hidden(tg_tape *t, int64_t sq, int64_t sk) {
    tg_tensor *last = tg_arange(t, TG_I64, (double)(sk - sq), (double)sk, 1);
    tg_tensor *key = tg_arange(t, TG_I64, 0, (double)sk, 1);
    return tg_gt(t, key, tg_unsqueeze(t, last, 1));
}

/* With all scores. Those that are hidden are finite, so that a row without any key has a gradient of 0, not NaN. */
static tg_status attention_compose(tg_tape *t, const tg_node *n, tg_tensor **out) {
    const attention_params *p = tg_node_params(n);
    const tg_tensor *y = tg_node_out(n)[0];
    tg_tensor *q = tg_wide(t, tg_node_in(n)[Q]), *k = tg_wide(t, tg_node_in(n)[K]), *v = tg_wide(t, tg_node_in(n)[V]);
    int64_t b = q->shape[0], h = q->shape[1], sq = q->shape[2], sk = k->shape[2], g = k->shape[1], r = g ? h / g : 1;
    q = tg_reshape(t, tg_scale(t, q, p->opts.scale), TG_SHAPE(b, g, r, sq, q->shape[3]));
    tg_tensor *s = tg_matmul(t, q, tg_transpose(t, tg_unsqueeze(t, k, 2), -1, -2));
    tg_tensor *mask = p->opts.causal ? hidden(t, sq, sk) : NULL;
    if (mask) s = tg_masked_fill(t, s, mask, -1e30);
    s = tg_softmax(t, s, -1);
    if (mask) s = tg_masked_fill(t, s, mask, 0);
    s = tg_reshape(t, s, TG_SHAPE(b, h, sq, sk));
    if (p->opts.dropout > 0) s = tg_dropout_again(t, s, p->opts.dropout, &p->draws);
    s = tg_matmul(t, tg_reshape(t, s, TG_SHAPE(b, g, r, sq, sk)), tg_unsqueeze(t, v, 2));
    out[0] = tg_cast(t, tg_reshape(t, s, tg_shape_of(y)), (tg_dtype)y->dtype);
    return TG_OK;
}

TG_COMPOSED(attention)

#define OPTS(...) &(const attention_params){.opts = {.size = sizeof(tg_attention_opts), __VA_ARGS__}}

static const tg_sample attention_samples[] = {
    {.note = "all keys", .params = OPTS(.causal = false), .n_in = 3,
     .in = {TG_S(2, 2, 3, 4), TG_S(2, 2, 5, 4), TG_S(2, 2, 5, 3)}},
    {.note = "causal", .params = OPTS(.causal = true), .n_in = 3,
     .in = {TG_S(1, 2, 5, 4), TG_S(1, 2, 5, 4), TG_S(1, 2, 5, 4)}},
    {.note = "causal after a cache", .params = OPTS(.causal = true), .n_in = 3,
     .in = {TG_S(1, 2, 2, 4), TG_S(1, 2, 5, 4), TG_S(1, 2, 5, 4)}},
    {.note = "causal, queries without a key", .params = OPTS(.causal = true), .n_in = 3,
     .in = {TG_S(1, 1, 4, 3), TG_S(1, 1, 2, 3), TG_S(1, 1, 2, 3)}},
    {.note = "grouped-query", .params = OPTS(.causal = true), .n_in = 3,
     .in = {TG_S(1, 4, 3, 2), TG_S(1, 2, 3, 2), TG_S(1, 2, 3, 2)}},
    {.note = "multi-query, own scale", .params = OPTS(.scale = 0.3), .n_in = 3,
     .in = {TG_S(2, 3, 4, 2), TG_S(2, 1, 3, 2), TG_S(2, 1, 3, 5)}},
    {.note = "longer than a tile", .params = OPTS(.causal = true), .n_in = 3,
     .in = {TG_S(1, 1, 70, 2), TG_S(1, 1, 70, 2), TG_S(1, 1, 70, 2)}, .slow = true},
    {.note = "dropout", .params = OPTS(.dropout = 0.4), .n_in = 3,
     .in = {TG_S(1, 2, 3, 4), TG_S(1, 2, 5, 4), TG_S(1, 2, 5, 3)}},
    {.note = "causal dropout", .params = OPTS(.causal = true, .dropout = 0.2), .n_in = 3,
     .in = {TG_S(1, 2, 4, 2), TG_S(1, 1, 4, 2), TG_S(1, 1, 4, 2)}},
    {.note = "strided", .params = OPTS(.causal = true), .n_in = 3,
     .in = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 1, 2, 3, 4), TG_S_AS(TG_SAMPLE_STRIDED, 1, 2, 3, 4),
            TG_S_AS(TG_SAMPLE_TRANSPOSED, 1, 2, 3, 4)}},
    {.note = "equal batches", .params = OPTS(.causal = false), .n_in = 3,
     .in = {TG_S_AS(TG_SAMPLE_EXPANDED, 2, 1, 2, 4), TG_S(2, 1, 3, 4), TG_S_AS(TG_SAMPLE_EXPANDED, 2, 1, 3, 2)}},
    {.note = "one query, one key", .params = OPTS(.causal = true), .n_in = 3,
     .in = {TG_S(1, 1, 1, 1), TG_S(1, 1, 1, 1), TG_S(1, 1, 1, 1)}},
    {.note = "no batch", .params = OPTS(.causal = true), .n_in = 3,
     .in = {TG_S(0, 2, 3, 4), TG_S(0, 2, 3, 4), TG_S(0, 2, 3, 4)}},
    {.note = "no queries", .params = OPTS(.causal = false), .n_in = 3,
     .in = {TG_S(1, 1, 0, 4), TG_S(1, 1, 3, 4), TG_S(1, 1, 3, 4)}},
    {.note = "keys of another size", .params = OPTS(.causal = false), .n_in = 3,
     .in = {TG_S(1, 1, 3, 4), TG_S(1, 1, 3, 5), TG_S(1, 1, 3, 4)}, .refused = TG_ERR_SHAPE},
    {.note = "3 heads share 2", .params = OPTS(.causal = false), .n_in = 3,
     .in = {TG_S(1, 3, 3, 4), TG_S(1, 2, 3, 4), TG_S(1, 2, 3, 4)}, .refused = TG_ERR_SHAPE},
    {.note = "fewer values than keys", .params = OPTS(.causal = false), .n_in = 3,
     .in = {TG_S(1, 1, 3, 4), TG_S(1, 1, 3, 4), TG_S(1, 1, 2, 4)}, .refused = TG_ERR_SHAPE},
    {.note = "three dims", .params = OPTS(.causal = false), .n_in = 3,
     .in = {TG_S(2, 3, 4), TG_S(2, 3, 4), TG_S(2, 3, 4)},
     .refused = TG_ERR_SHAPE},
    {.note = "dropout of all", .params = OPTS(.dropout = 1), .n_in = 3,
     .in = {TG_S(1, 1, 2, 2), TG_S(1, 1, 2, 2), TG_S(1, 1, 2, 2)},
     .refused = TG_ERR_ARGUMENT},
    {.note = "48 heads of 1024 x 64", .params = OPTS(.causal = true), .n_in = 3,
     .in = {TG_S(4, 12, 1024, 64), TG_S(4, 12, 1024, 64), TG_S(4, 12, 1024, 64)}, .bench = true},
};

const tg_op tg_op_attention = {
    .size = sizeof(tg_op),
    .name = "attention",
    .formula = "softmax(scale q k^T) v",
    .n_in = 3,
    .n_out = 1,
    .params_size = sizeof(attention_params),
    .saves_in = 7,
    .saves_out = 1,
    .family = TG_FAMILY_ATTENTION,
    .infer = attention_infer,
    .forward = attention_forward,
    .backward = attention_backward,
    .vjp = attention_vjp,
    .jvp = attention_jvp,
    .flops = attention_flops,
    TG_SAMPLES(attention_samples),
};

/* Scaled dot-product attention: q [b, h, sq, dk], k [b, g, sk, dk] and v [b, g, sk, dv] give [b, h, sq, dv]. g divides
 * h: each key and value head serves h / g neighbouring query heads. Causal: query i sees keys j <= i + sk - sq, so the
 * last query sees all, as after a cache of earlier keys; a query that sees none gives zeros. Dropout falls on the
 * probabilities, in training mode only. The sq x sk scores never exist as a whole (Dao et al., arXiv 2205.14135): it
 * saves q, k, v, the result and one number a row, and backward computes them again. opts may be NULL. */
tg_tensor *tg_attention(tg_tape *t, tg_tensor *q, tg_tensor *k, tg_tensor *v, const tg_attention_opts *opts) {
    attention_params p = {.draws = {.n = 0}};
    tg_op_options(&p.opts, sizeof p.opts, opts);
    return TG_RECORD(t, tg_op_attention, &p, q, k, v);
}
