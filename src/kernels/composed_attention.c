/* Attention and its gradient composed of required slots. One head is computed at a time, with all its scores in
 * memory. */
#include <math.h>

#include "kernels/attention_mask.h"
#include "kernels/composed_parts.h"

/* The operands and gradients of one head, dense and, except for the draws, in the dtype of the computation
 * (compute_of). o is the output or its gradient. */
typedef struct head {
    arena memory;
    view q, k, v, o, gq, gk, gv, product; /* product: out times its gradient */
    view p, gp;                           /* [sq, sk]: scores, then probabilities; gradient of the scores */
    view hidden, u;                       /* [sq, sk]: 1 where a score is hidden, else 0; draws, in float32 */
    view tanh;                            /* [sq, sk]: tanh(score / softcap), if the scores are bounded */
    view row, other, scale, key;          /* temporaries: [sq, 1], but key is [1, sk] */
    view sum, total;                      /* [sq, sk] and [1, 1]: gradients of the mask and the sink */
    tg_mask_rules rules;
} head;

/* One matrix [m, n] of a head, for the table in head_open. */
typedef struct part {
    view *view;
    int64_t m, n;
    tg_dtype dtype;
} part;

/* Reserves the memory of h. Fills h->hidden by the causal rule, which is the same for all heads. */
static tg_status head_open(tg_ctx *ctx, const tg_attention_args *a, head *h) {
    int64_t sq = a->q.shape[2], sk = a->k.shape[2], dk = a->q.shape[3], dv = a->v.shape[3];
    tg_dtype d = compute_of(&a->q);
    const part parts[] = {
        {&h->q, sq, dk, d},   {&h->gq, sq, dk, d},    {&h->k, sk, dk, d},     {&h->gk, sk, dk, d},
        {&h->v, sk, dv, d},   {&h->gv, sk, dv, d},    {&h->o, sq, dv, d},     {&h->product, sq, dv, d},
        {&h->p, sq, sk, d},   {&h->gp, sq, sk, d},    {&h->hidden, sq, sk, d}, {&h->u, sq, sk, TG_F32},
        {&h->row, sq, 1, d},  {&h->other, sq, 1, d},  {&h->scale, sq, 1, d},  {&h->key, 1, sk, d},
        {&h->sum, a->gmask.data ? sq : 0, sk, d}, {&h->total, 1, 1, d}, {&h->tanh, a->softcap > 0 ? sq : 0, sk, d},
    };
    double elements = 0;
    size_t bytes = 0;
    arena *w = &h->memory;
    for (int i = 0; i < TG_LEN(parts); i++) {
        elements += (double)parts[i].m * (double)parts[i].n;
        if (elements > 0x1p56) /* the number of bytes could overflow */
            return tg_ctx_fail(ctx, TG_ERR_MEMORY,
                               "attention: this device has no slot for it, and without one all scores of a head are "
                               "in memory; no memory can hold those of %lld queries and %lld keys",
                               (long long)sq, (long long)sk);
        bytes += arena_bytes(parts[i].m * parts[i].n, parts[i].dtype);
    }
    TG_TRY(arena_open(ctx, w, COMPOSED_HEADS, bytes));
    for (int i = 0; i < TG_LEN(parts); i++) {
        const part *p = &parts[i];
        view_dense(p->view, arena_take(w, p->m * p->n, p->dtype), p->dtype, 2, (const int64_t[]){p->m, p->n});
    }
    TG_TRY(tg_ctx_ops(ctx)->iota(ctx, h->row.a, (double)(sk - sq), 1));
    TG_TRY(tg_ctx_ops(ctx)->iota(ctx, h->key.a, 0, 1));
    MAP(gt, h->hidden.a, h->key.a, h->row.a);
    h->rules = tg_mask_rules_of(a);
    if (h->rules.more && !tg_ctx_ops(ctx)->host)
        return tg_ctx_fail(ctx, TG_ERR_UNSUPPORTED,
                           "attention: this device has no slot for it; in that case windows, lengths and packing "
                           "need device memory that the host can access");
    return TG_OK;
}

/* Fills h->hidden for batch entry b if there are rules besides causal (attention_mask.h). The host writes it, after
 * the queued work, which may still read the values of the previous entry. */
static tg_status hide_by_rules(tg_ctx *ctx, const head *h, int64_t b) {
    int64_t sk = h->rules.sk;
    if (!h->rules.more)
        return TG_OK;
    TG_TRY(tg_ctx_ops(ctx)->sync(ctx));
    for (int64_t i = 0; i < h->rules.sq; i++) {
        tg_key_range s = tg_mask_keys(&h->rules, b, i);
        for (int64_t j = 0; j < sk; j++) {
            bool hides = j < s.first || j >= s.end;
            if (h->hidden.a.dtype == TG_F64)
                ((double *)h->hidden.a.data)[i * sk + j] = hides;
            else
                ((float *)h->hidden.a.data)[i * sk + j] = hides;
        }
    }
    return TG_OK;
}

/* Makes v the rows of head (b, h) of x: [s, d], or [s, 1] if x has one value per row. Returns its array. */
static tg_array slice(view *v, const tg_array *x, int64_t b, int64_t h) {
    bool column = x->ndim == 3;
    int64_t at = b * x->stride[0] + h * x->stride[1];
    v->a = *x;
    v->a.data = (char *)x->data + at * tg_dtype_bits((tg_dtype)x->dtype) / 8;
    v->shape[0] = x->shape[2];
    v->stride[0] = x->stride[2];
    v->shape[1] = column ? 1 : x->shape[3];
    v->stride[1] = column ? 0 : x->stride[3];
    v->a.numel = v->shape[0] * v->shape[1];
    v->a.ndim = 2;
    v->a.contiguous = false;
    v->a.shape = v->shape;
    v->a.stride = v->stride;
    return v->a;
}

/* Copies head (b, h) of x to `to`. */
static tg_status load(tg_ctx *ctx, const view *to, const tg_array *x, int64_t b, int64_t h) {
    view from;
    MAP(id, to->a, slice(&from, x, b, h));
    return TG_OK;
}

/* Stores `from` in head (b, h) of x, or adds it. Does nothing if x is absent. */
static tg_status save(tg_ctx *ctx, const tg_array *x, int64_t b, int64_t h, const view *from, bool add) {
    view to;
    if (x->data)
        MAP_P(id, slice(&to, x, b, h), 0, 0, add, from->a);
    return TG_OK;
}

static tg_matrix matrix(const view *x, bool transposed) {
    int64_t rs = x->stride[0], cs = x->stride[1];
    return (tg_matrix){.data = x->a.data, .rs = transposed ? cs : rs, .cs = transposed ? rs : cs,
                       .dtype = (tg_dtype)x->a.dtype};
}

/* Computes c = alpha a b + beta c for dense matrices. ta and tb tell whether a and b are transposed first. */
static tg_status multiply(tg_ctx *ctx, const view *a, bool ta, const view *b, bool tb, const view *c, double alpha,
                          double beta) {
    tg_gemm g = {.m = c->shape[0], .n = c->shape[1], .k = a->shape[ta ? 0 : 1], .batch = {1, 1},
                 .a = matrix(a, ta), .b = matrix(b, tb), .c = matrix(c, false), .alpha = alpha, .beta = beta};
    return tg_ctx_ops(ctx)->gemm(ctx, &g);
}

/* Makes v an array [1, 1] that holds the element of head h in x, an array [heads]. Returns the array of v. */
static tg_array number(view *v, const tg_array *x, int64_t h) {
    view_dense(v, (char *)x->data + h * x->stride[0] * tg_dtype_bits((tg_dtype)x->dtype) / 8, (tg_dtype)x->dtype, 2,
               (const int64_t[]){1, 1});
    return v->a;
}

/* Computes scale q k^T, and bounds it by softcap. */
static tg_status products(tg_ctx *ctx, const tg_attention_args *a, const head *h) {
    if (a->softcap <= 0) return multiply(ctx, &h->q, false, &h->k, true, &h->p, a->scale, 0);
    TG_TRY(multiply(ctx, &h->q, false, &h->k, true, &h->tanh, a->scale / a->softcap, 0));
    MAP(tanh, h->tanh.a, h->tanh.a);
    MAP_P(affine, h->p.a, a->softcap, 0, false, h->tanh.a);
    return TG_OK;
}

/* Computes the scores of head (b, i) from h->q and h->k into h->p, -inf where they are hidden. Overwrites h->gp. */
static tg_status scores(tg_ctx *ctx, const tg_attention_args *a, const head *h, int64_t b, int64_t i) {
    view mask;
    TG_TRY(products(ctx, a, h));
    if (a->mask.data && a->mask.dtype == TG_BOOL) {
        TG_TRY(tg_ctx_ops(ctx)->fill(ctx, h->gp.a, -INFINITY));
        MAP(where, h->p.a, slice(&mask, &a->mask, b, i), h->p.a, h->gp.a);
    } else if (a->mask.data) {
        MAP(add, h->p.a, h->p.a, slice(&mask, &a->mask, b, i));
    }
    if (a->causal || h->rules.more)
        MAP_P(masked_fill, h->p.a, -INFINITY, 0, false, h->p.a, h->hidden.a);
    return TG_OK;
}

/* Multiplies x by the dropout factors of head (b, i). */
static tg_status drop(tg_ctx *ctx, const tg_attention_args *a, const head *h, const view *x, int64_t b, int64_t i) {
    double p = a->dropout;
    tg_draws draws = a->draws;
    if (p <= 0)
        return TG_OK;
    /* tg_draws writes positions in a mixed radix. The head's first position has zeros in all digits that count within
     * a head, so adding a position within the head carries nothing, and the numbers of the draws add up. */
    draws.rng.counter = tg_draw_number(&draws, (b * a->q.shape[1] + i) * h->p.a.numel);
    TG_TRY(tg_ctx_ops(ctx)->random(ctx, TG_RANDOM_UNIFORM, h->u.a, 0, 1, &draws));
    MAP_P(keep, x->a, (float)p, p < 1 ? 1 / (1 - p) : 0, false, x->a, h->u.a);
    return TG_OK;
}

/* Replaces -inf in h->row, the greatest score of each row, by the lowest finite number of its dtype. So exp(score -
 * greatest) is 0, not NaN, in a row that sees no key. */
static tg_status make_finite(tg_ctx *ctx, const head *h) {
    MAP_P(clamp, h->row.a, -tg_greatest((tg_dtype)h->row.a.dtype), INFINITY, false, h->row.a);
    return TG_OK;
}

/* Computes h->p, the probabilities; h->row, the greatest score; and h->other, the sum of exp(score - greatest). The
 * sink (tg_attention_args) counts as the score of one more key. In a row that has no score the sum is 0, and 0 replaces
 * its reciprocal. */
static tg_status softmax(tg_ctx *ctx, const tg_attention_args *a, const head *h, int64_t i) {
    view sink;
    bool has_sink = a->sink.data != NULL;
    REDUCE(TG_MAX, h->row.a, h->p.a, 1, false);
    if (has_sink)
        MAP(maximum, h->row.a, h->row.a, number(&sink, &a->sink, i));
    TG_TRY(make_finite(ctx, h));
    MAP(exp_sub, h->p.a, h->p.a, h->row.a);
    REDUCE(TG_SUM, h->other.a, h->p.a, 1, false);
    if (has_sink) {
        MAP(exp_sub, h->scale.a, number(&sink, &a->sink, i), h->row.a);
        MAP(add, h->other.a, h->other.a, h->scale.a);
    }
    MAP(reciprocal, h->scale.a, h->other.a);
    MAP(where_da, h->scale.a, h->other.a, h->scale.a);
    MAP(mul, h->p.a, h->p.a, h->scale.a);
    return TG_OK;
}

static tg_status attention(tg_ctx *ctx, const tg_attention_args *a, head *h) {
    TG_TRY(head_open(ctx, a, h));
    if (a->bad && h->rules.more) {
        TG_TRY(tg_ctx_ops(ctx)->sync(ctx)); /* lengths and starts may be results of queued work */
        *a->bad = tg_mask_bad(&h->rules, a->q.shape[0]);
        if (*a->bad) return TG_OK;
    }
    for (int64_t b = 0; b < a->q.shape[0]; b++) {
        TG_TRY(hide_by_rules(ctx, h, b));
        for (int64_t i = 0; i < a->q.shape[1]; i++) {
            int64_t g = i / (a->q.shape[1] / a->k.shape[1]);
            TG_TRY(load(ctx, &h->q, &a->q, b, i));
            TG_TRY(load(ctx, &h->k, &a->k, b, g));
            TG_TRY(load(ctx, &h->v, &a->v, b, g));
            TG_TRY(scores(ctx, a, h, b, i));
            TG_TRY(softmax(ctx, a, h, i));
            TG_TRY(drop(ctx, a, h, &h->p, b, i));
            TG_TRY(multiply(ctx, &h->p, false, &h->v, false, &h->o, 1, 0));
            TG_TRY(save(ctx, &a->out, b, i, &h->o, false));
            TG_TRY(save(ctx, &a->top, b, i, &h->row, false));
            TG_TRY(save(ctx, &a->mass, b, i, &h->other, false));
        }
    }
    return TG_OK;
}

tg_status tg_composed_attention(tg_ctx *ctx, const tg_attention_args *a) {
    head h = {.memory = {0}};
    return arena_close(ctx, &h.memory, attention(ctx, a, &h));
}

/* Computes h->row, the greatest score of each row of head (b, i); h->scale, 1 / the sum of exp(score - greatest), or 0
 * if the row has no score (tg_attention_args); and h->other, the row's sum of gout times out. h->o must hold gout. */
static tg_status row_terms(tg_ctx *ctx, const tg_attention_args *a, const head *h, int64_t b, int64_t i) {
    view out;
    TG_TRY(load(ctx, &h->row, &a->top, b, i));
    TG_TRY(load(ctx, &h->other, &a->mass, b, i));
    MAP(reciprocal, h->scale.a, h->other.a);
    MAP(where_da, h->scale.a, h->other.a, h->scale.a);
    TG_TRY(make_finite(ctx, h));
    MAP(mul, h->product.a, slice(&out, &a->out, b, i), h->o.a);
    REDUCE(TG_SUM, h->other.a, h->product.a, 1, false);
    return TG_OK;
}

/* Computes h->p, the probabilities with dropout, and h->gp, the gradient of the bounded scores, for head (b, i). Loads
 * h->q and h->o; h->k and h->v must hold the head's keys and values. */
static tg_status score_grad(tg_ctx *ctx, const tg_attention_args *a, const head *h, int64_t b, int64_t i) {
    TG_TRY(load(ctx, &h->q, &a->q, b, i));
    TG_TRY(load(ctx, &h->o, &a->gout, b, i));
    TG_TRY(scores(ctx, a, h, b, i));
    TG_TRY(row_terms(ctx, a, h, b, i));
    MAP(exp_sub_mul, h->p.a, h->p.a, h->row.a, h->scale.a);
    TG_TRY(multiply(ctx, &h->o, false, &h->v, true, &h->gp, 1, 0));
    TG_TRY(drop(ctx, a, h, &h->gp, b, i));
    MAP_P(sub_scaled, h->gp.a, 1, 0, false, h->gp.a, h->other.a, h->p.a);
    return drop(ctx, a, h, &h->p, b, i);
}

/* Computes gq, gk and gv of group g in batch entry b. Takes the group's heads in order, and sums their contributions to
 * gk and gv in the compute type. */
static tg_status group_grad(tg_ctx *ctx, const tg_attention_args *a, const head *h, int64_t b, int64_t g) {
    int64_t heads = a->q.shape[1] / a->k.shape[1];
    TG_TRY(load(ctx, &h->k, &a->k, b, g));
    TG_TRY(load(ctx, &h->v, &a->v, b, g));
    TG_TRY(tg_ctx_ops(ctx)->fill(ctx, h->gk.a, 0));
    TG_TRY(tg_ctx_ops(ctx)->fill(ctx, h->gv.a, 0));
    for (int64_t i = g * heads; i < (g + 1) * heads; i++) {
        TG_TRY(score_grad(ctx, a, h, b, i));
        if (a->softcap > 0) MAP(tanh_d, h->gp.a, h->gp.a, h->tanh.a);
        TG_TRY(multiply(ctx, &h->gp, false, &h->k, false, &h->gq, a->scale, 0));
        TG_TRY(multiply(ctx, &h->gp, true, &h->q, false, &h->gk, a->scale, 1));
        TG_TRY(multiply(ctx, &h->p, true, &h->o, false, &h->gv, 1, 1));
        TG_TRY(save(ctx, &a->gq, b, i, &h->gq, a->add_q));
    }
    TG_TRY(save(ctx, &a->gk, b, g, &h->gk, a->add_k));
    return save(ctx, &a->gv, b, g, &h->gv, a->add_v);
}

/* Computes the gradient of the mask of head (b, i). (b, i) is the first of the heads that share this mask, and the
 * gradient is summed over all of them. */
static tg_status mask_grad(tg_ctx *ctx, const tg_attention_args *a, const head *h, int64_t b, int64_t i) {
    int64_t batches = a->gmask.stride[0] ? b + 1 : a->q.shape[0], heads = a->gmask.stride[1] ? i + 1 : a->q.shape[1];
    TG_TRY(tg_ctx_ops(ctx)->fill(ctx, h->sum.a, 0));
    for (int64_t c = b; c < batches; c++) {
        TG_TRY(hide_by_rules(ctx, h, c));
        for (int64_t j = i; j < heads; j++) {
            int64_t g = j / (a->q.shape[1] / a->k.shape[1]);
            TG_TRY(load(ctx, &h->k, &a->k, c, g));
            TG_TRY(load(ctx, &h->v, &a->v, c, g));
            TG_TRY(score_grad(ctx, a, h, c, j));
            MAP_P(id, h->sum.a, 0, 0, true, h->gp.a);
        }
    }
    view to;
    slice(&to, &a->gmask, b, i);
    if (to.stride[0] && to.stride[1]) return save(ctx, &a->gmask, b, i, &h->sum, a->add_mask);
    REDUCE(TG_SUM, to.a, h->sum.a, 1, a->add_mask);
    return TG_OK;
}

/* Computes the gradient of the sink of head i: minus the sum, over all batch entries and queries, of the sink's
 * probability times D. D is h->other of row_terms. */
static tg_status sink_grad(tg_ctx *ctx, const tg_attention_args *a, const head *h, int64_t i) {
    view sink, to;
    TG_TRY(tg_ctx_ops(ctx)->fill(ctx, h->total.a, 0));
    for (int64_t b = 0; b < a->q.shape[0]; b++) {
        TG_TRY(load(ctx, &h->o, &a->gout, b, i));
        TG_TRY(row_terms(ctx, a, h, b, i));
        MAP(exp_sub_mul, h->scale.a, number(&sink, &a->sink, i), h->row.a, h->scale.a);
        MAP(mul, h->scale.a, h->scale.a, h->other.a);
        REDUCE(TG_SUM, h->total.a, h->scale.a, -1, true);
    }
    MAP_P(id, number(&to, &a->gsink, i), 0, 0, a->add_sink, h->total.a);
    return TG_OK;
}

/* Computes the gradients of the mask and the sinks, if they are wanted. */
static tg_status extras_grad(tg_ctx *ctx, const tg_attention_args *a, const head *h) {
    const tg_array *g = &a->gmask;
    for (int64_t b = 0; g->data && b < (g->stride[0] ? a->q.shape[0] : 1); b++)
        for (int64_t i = 0; i < (g->stride[1] ? a->q.shape[1] : 1); i++) TG_TRY(mask_grad(ctx, a, h, b, i));
    for (int64_t i = 0; a->gsink.data && i < a->q.shape[1]; i++) TG_TRY(sink_grad(ctx, a, h, i));
    return TG_OK;
}

static tg_status attention_grad(tg_ctx *ctx, const tg_attention_args *a, head *h) {
    TG_TRY(head_open(ctx, a, h));
    for (int64_t b = 0; b < a->k.shape[0]; b++) {
        TG_TRY(hide_by_rules(ctx, h, b));
        for (int64_t g = 0; g < a->k.shape[1]; g++)
            TG_TRY(group_grad(ctx, a, h, b, g));
    }
    return extras_grad(ctx, a, h);
}

tg_status tg_composed_attention_grad(tg_ctx *ctx, const tg_attention_args *a) {
    head h = {.memory = {0}};
    return arena_close(ctx, &h.memory, attention_grad(ctx, a, &h));
}
