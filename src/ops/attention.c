/* Scaled dot-product attention, with masks, windows, packed sequences, a sink and dropout.
 *
 * out [b, h, sq, dv] = softmax(scale q k^T + mask) v, with q [b, h, sq, dk], k [b, g, sk, dk] and v [b, g, sk, dv].
 * A sink adds one logit to each softmax; its probability multiplies no value. */
#include "ops/attention.h"

#include <math.h>
#include <stdio.h>

#include "ops/common/nn_op.h"
#include "placement/draws.h"
#include "kernels/composed.h"
#include "autograd/apply.h"

enum { TOP, MASS }; /* private saved buffers, one number per row of scores each; see tg_attention_args (device.h) */

static int64_t size(const tg_call *c, int i, int dim) {
    return c->input[i]->shape[dim];
}

tg_status tg_attention_shapes(tg_call *c) {
    for (int i = Q; i <= V; i++)
        if (c->input[i]->ndim != 4)
            return tg_call_fail(c, TG_ERR_SHAPE, "q, k and v must have 4 dims: batch, heads, sequence, size");
    int64_t h = size(c, Q, 1), g = size(c, K, 1);
    if (size(c, K, 0) != size(c, Q, 0) || size(c, V, 0) != size(c, Q, 0))
        return tg_call_fail(c, TG_ERR_SHAPE, "q, k and v must have the same batch size (dim 0)");
    if (size(c, V, 1) != g || size(c, V, 2) != size(c, K, 2))
        return tg_call_fail(c, TG_ERR_SHAPE, "k and v must have the same number of heads (dim 1) and the same length "
                            "(dim 2)");
    if (size(c, K, 3) != size(c, Q, 3))
        return tg_call_fail(c, TG_ERR_SHAPE, "heads of q have size %lld but heads of k have %lld; they must be equal",
                            (long long)size(c, Q, 3), (long long)size(c, K, 3));
    if (g == 0 ? h != 0 : h % g != 0)
        return tg_call_fail(c, TG_ERR_SHAPE, "q has %s and k has %lld; the heads of q must be a multiple of those of k",
                            tg_count(h, "head").text, (long long)g);
    return TG_OK;
}

static tg_status mask_fits(tg_call *c) {
    const tg_tensor *m = c->input[MASK], *q = c->input[Q];
    const int64_t full[4] = {q->shape[0], q->shape[1], q->shape[2], size(c, K, 2)};
    if (!m) return TG_OK;
    if (m->dtype != TG_BOOL && m->dtype != q->dtype && m->dtype != TG_F32)
        return tg_call_fail(c, TG_ERR_DTYPE, "mask is %s; it must be bool, f32 or q's dtype",
                            tg_dtype_name((tg_dtype)m->dtype));
    bool fits = m->ndim <= 4;
    for (int d = 0, j = 4 - m->ndim; fits && d < m->ndim; d++, j++) fits = m->shape[d] == 1 || m->shape[d] == full[j];
    if (fits) return TG_OK;
    return tg_call_fail(c, TG_ERR_SHAPE, "mask does not broadcast to [%lld, %lld, %lld, %lld], the shape of the scores",
                        (long long)full[0], (long long)full[1], (long long)full[2], (long long)full[3]);
}

tg_status tg_attention_sink_fits(tg_call *c, int i) {
    const tg_tensor *x = c->input[i], *q = c->input[Q];
    if (!x) return TG_OK;
    if (x->dtype != q->dtype && x->dtype != TG_F32)
        return tg_call_fail(c, TG_ERR_DTYPE, "sink is %s; it must be f32 or q's dtype",
                            tg_dtype_name((tg_dtype)x->dtype));
    if (x->ndim == 1 && x->shape[0] == q->shape[1]) return TG_OK;
    return tg_call_fail(c, TG_ERR_SHAPE, "sink must be a vector of %s, one for each head of q",
                        tg_count(q->shape[1], "element").text);
}

tg_status tg_attention_index_vector(tg_call *c, int i, const char *what) {
    const tg_tensor *x = c->input[i];
    if (x->dtype != TG_I64)
        return tg_call_fail(c, TG_ERR_DTYPE, "%s is %s; it must be i64", what, tg_dtype_name((tg_dtype)x->dtype));
    if (x->ndim != 1)
        return tg_call_fail(c, TG_ERR_SHAPE, "%s has %s; it must be a vector", what, tg_count(x->ndim, "dim").text);
    return TG_OK;
}

/* Fails unless input i, which messages call `what`, is int64, and is a vector or has a row for each batch entry. */
static tg_status starts_are_indices(tg_call *c, int i, const char *what) {
    const tg_tensor *x = c->input[i];
    if (x->ndim == 1 || x->dtype != TG_I64) return tg_attention_index_vector(c, i, what);
    if (x->ndim != 2)
        return tg_call_fail(c, TG_ERR_SHAPE, "%s has %s; it must be a vector or have a row for each batch entry", what,
                            tg_count(x->ndim, "dim").text);
    if (x->shape[0] == size(c, Q, 0)) return TG_OK;
    return tg_call_fail(c, TG_ERR_SHAPE, "%s has %s; it must have %lld, one for each batch entry", what,
                        tg_count(x->shape[0], "row").text, (long long)size(c, Q, 0));
}

/* Checks the sizes of both starts. */
static tg_status starts_fit(tg_call *c, const tg_tensor *q, const tg_tensor *k) {
    int64_t of_q = q->shape[q->ndim - 1], of_k = k->shape[k->ndim - 1];
    if (q->ndim != k->ndim)
        return tg_call_fail(c, TG_ERR_SHAPE, "starts_q has %s and starts_k has %d; both must be vectors or both have a "
                            "row for each batch entry", tg_count(q->ndim, "dim").text, k->ndim);
    if (of_q != of_k || of_q < 2)
        return tg_call_fail(c, TG_ERR_SHAPE,
                            "starts_q has %s and starts_k has %lld; both must have n + 1 for n packed sequences",
                            tg_count(of_q, "element").text, (long long)of_k);
    if (q->ndim == 1 && size(c, Q, 0) != 1)
        return tg_call_fail(c, TG_ERR_SHAPE, "with vectors starts_q and starts_k the batch size must be 1, because the "
                            "sequences are packed into one; for a larger batch they must be [batch, n + 1]");
    return TG_OK;
}

/* Checks the tensors that describe padding (lengths) and packing (starts). */
static tg_status extents_fit(tg_call *c) {
    const tg_tensor *lengths = c->input[LENGTHS], *q = c->input[STARTS_Q], *k = c->input[STARTS_K];
    if (!q != !k) return tg_call_fail(c, TG_ERR_ARGUMENT, "only one of starts_q and starts_k is given; packing needs "
                                      "both");
    if (lengths && q) return tg_call_fail(c, TG_ERR_ARGUMENT, "lengths and starts are both given; use lengths for "
                                          "padding or starts for packing");
    if (lengths) {
        TG_TRY(tg_attention_index_vector(c, LENGTHS, "lengths"));
        if (lengths->shape[0] != size(c, Q, 0))
            return tg_call_fail(c, TG_ERR_SHAPE, "lengths must have %s, one for each batch entry",
                                tg_count(size(c, Q, 0), "element").text);
    }
    if (!q) return TG_OK;
    TG_TRY(starts_are_indices(c, STARTS_Q, "starts_q"));
    TG_TRY(starts_are_indices(c, STARTS_K, "starts_k"));
    return starts_fit(c, q, k);
}

/* Computes the placement of the probabilities [b, h, sq, sk]. It is the placement of q, except that the last dim is
 * placed as the sequence of the keys. On an axis on which an input is opaque (TG_OPAQUE), the probabilities are too. */
static void place_scores(const tg_call *c, tg_placement at[TG_MAX_AXES]) {
    for (int a = 0; a < TG_MAX_AXES; a++) {
        tg_placement q = tg_place_on(c->input[Q], (tg_axis)a), k = tg_place_on(c->input[K], (tg_axis)a);
        at[a] = q;
        if (q.kind != TG_VARYING && k.kind == TG_VARYING && k.layout != TG_OPAQUE && k.dim == 2) {
            at[a] = k;
            at[a].dim = 3;
        }
        for (int i = 0; i < INPUTS; i++) {
            if (!c->input[i]) continue;
            tg_placement p = tg_place_on(c->input[i], (tg_axis)a);
            if (p.kind == TG_VARYING && p.layout == TG_OPAQUE) at[a] = p;
        }
    }
}

/* Takes one draw per probability, for dropout. */
static tg_status take_draws(tg_call *c) {
    attention_params *p = c->params;
    const tg_tensor *q = c->input[Q];
    tg_placement at[TG_MAX_AXES];
    TG_TRY(tg_call_draws_now(c));
    if (tg_grid_axes(c->ctx)) place_scores(c, at);
    return tg_draws_take(c, 4, (int64_t[]){q->shape[0], q->shape[1], q->shape[2], size(c, K, 2)},
                         tg_grid_axes(c->ctx) ? at : NULL, &p->draws);
}

/* Replaces the option *extent by a number from 0 to `most`. `most` is so large that a bound of that extent hides
 * nothing. Returns whether the option sets a bound. */
static bool bound_of(int64_t *extent, int64_t most) {
    bool bound = *extent != TG_NONE;
    *extent = !bound ? 0 : *extent < most ? *extent : most;
    return bound;
}

static tg_status resolve_window(tg_call *c) {
    attention_params *p = c->params;
    int64_t most = size(c, Q, 2) + size(c, K, 2), given[] = {p->opts.left, p->opts.right};
    for (int i = 0; i < 2; i++)
        if (given[i] < TG_NONE)
            return tg_call_fail(c, TG_ERR_ARGUMENT, "%s is %lld; it must be the extent of a window, 0 or more, or "
                                "TG_NONE for no bound", i ? "right" : "left", (long long)given[i]);
    p->left_bound = bound_of(&p->opts.left, most);
    p->right_bound = bound_of(&p->opts.right, most);
    return TG_OK;
}

tg_status tg_attention_numbers(tg_call *c, double *scale, double dropout, double *softcap) {
    const tg_tensor *q = c->input[Q];
    if (*scale == TG_AUTO) *scale = q->shape[3] ? 1 / sqrt((double)q->shape[3]) : 1;
    if (!(*scale >= 0 && isfinite(*scale)))
        return tg_call_fail(c, TG_ERR_ARGUMENT, "scale is %g; it must be finite, 0 or more, or TG_AUTO; negate q for a "
                            "negative factor", *scale);
    if (!(dropout >= 0 && dropout < 1))
        return tg_call_fail(c, TG_ERR_ARGUMENT, "dropout is %g; it must be at least 0 and less than 1", dropout);
    if (*softcap == TG_NONE) *softcap = 0;
    else if (!(*softcap > 0 && isfinite(*softcap)))
        return tg_call_fail(c, TG_ERR_ARGUMENT, "softcap is %g; it must be finite and greater than 0, or TG_NONE for "
                            "scores without a bound", *softcap);
    return TG_OK;
}

static tg_status attention_options(tg_call *c) {
    attention_params *p = c->params;
    tg_attention_opts *o = &p->opts;
    TG_TRY(tg_size_check(c->ctx, o->size, sizeof *o, "the options"));
    TG_TRY(tg_attention_numbers(c, &o->scale, o->dropout, &o->softcap));
    TG_TRY(resolve_window(c));
    if (!tg_is_training(c->tape)) o->dropout = 0;
    return o->dropout > 0 ? take_draws(c) : TG_OK;
}

/* States which dims of the mask, the sink, the lengths and the starts may be sharded (tg_call_role). Each becomes the
 * dim of the result to which it broadcasts. In the mask, repeated dims and the dim of keys must not be sharded, nor
 * the dim of queries if rows_whole is true. */
static tg_status place_extras(tg_call *c, bool rows_whole) {
    const tg_tensor *m = c->input[MASK];
    for (int d = 0; m && d < m->ndim; d++) {
        int j = d + 4 - m->ndim;
        bool repeated = m->shape[d] == 1 && tg_place_scale(m, d) == 1;
        if (j < 2 + !rows_whole && !repeated) TG_TRY(tg_call_role(c, MASK, d, j));
    }
    if (c->input[SINK]) TG_TRY(tg_call_role(c, SINK, 0, 1));
    for (int i = STARTS_Q; i <= STARTS_K; i++)
        if (c->input[i] && c->input[i]->ndim == 2) TG_TRY(tg_call_role(c, i, 0, 0));
    return c->input[LENGTHS] ? tg_call_role(c, LENGTHS, 0, 0) : TG_OK;
}

static tg_status attention_infer(tg_call *c) {
    const attention_params *p = c->params;
    const tg_tensor *q = c->input[Q];
    tg_dtype dtype = (tg_dtype)q->dtype;
    TG_TRY(tg_need_float(c, Q));
    TG_TRY(tg_need_same_dtype(c, Q, K));
    TG_TRY(tg_need_same_dtype(c, Q, V));
    TG_TRY(tg_attention_shapes(c));
    TG_TRY(mask_fits(c));
    TG_TRY(tg_attention_sink_fits(c, SINK));
    TG_TRY(extents_fit(c));
    TG_TRY(attention_options(c));
    /* With one of these options, the keys that a query may see depend on the query's position in the whole sequence. So
     * the sequence must not be sharded. */
    bool rows_whole = p->opts.causal || p->left_bound || p->right_bound || c->input[STARTS_Q];
    if (rows_whole) TG_TRY(tg_call_role(c, Q, 2, TG_WHOLE));
    TG_TRY(place_extras(c, rows_whole));
    TG_TRY(tg_call_save(c, TOP, tg_accumulate_dtype(dtype), 3, q->shape));
    TG_TRY(tg_call_save(c, MASS, tg_accumulate_dtype(dtype), 3, q->shape));
    return tg_call_out(c, 0, dtype, 4, (int64_t[]){q->shape[0], q->shape[1], q->shape[2], size(c, V, 3)});
}

/* Views x, the mask or its gradient, as [b, h, sq, sk], with stride 0 in the dims along which it is repeated. */
static tg_array expanded(const tg_call *c, const tg_tensor *x, tg_extent *e) {
    const int64_t full[4] = {size(c, Q, 0), size(c, Q, 1), size(c, Q, 2), size(c, K, 2)};
    tg_array a = tg_op_absent_or(x);
    if (!a.data) return a;
    for (int j = 0; j < 4; j++) {
        int d = j + a.ndim - 4;
        e->shape[j] = full[j];
        e->stride[j] = d < 0 || a.shape[d] == 1 ? 0 : a.stride[d];
    }
    return tg_array_at(a, 0, 4, e->shape, e->stride);
}

/* Fills *a with what forward and backward share. *mask is memory for the layout of the mask. */
static tg_status attention_args(tg_call *c, tg_attention_args *a, tg_extent *mask) {
    const attention_params *p = c->params;
    tg_tensor *starts_q = c->input[STARTS_Q], *starts_k = c->input[STARTS_K];
    if (starts_q) TG_TRY(tg_op_dense(c, &starts_q));
    if (starts_k) TG_TRY(tg_op_dense(c, &starts_k));
    *a = (tg_attention_args){
        .q = tg_array_of(c->input[Q]),
        .k = tg_array_of(c->input[K]),
        .v = tg_array_of(c->input[V]),
        .out = tg_array_of(c->out[0]),
        .top = tg_array_of(c->saved[TOP]),
        .mass = tg_array_of(c->saved[MASS]),
        .scale = p->opts.scale,
        .dropout = p->opts.dropout,
        .softcap = p->opts.softcap,
        .causal = p->opts.causal,
        .left_bound = p->left_bound,
        .right_bound = p->right_bound,
        .left = p->opts.left,
        .right = p->opts.right,
        .mask = expanded(c, c->input[MASK], mask),
        .sink = tg_op_absent_or(c->input[SINK]),
        .lengths = tg_op_absent_or(c->input[LENGTHS]),
        .starts_q = tg_op_absent_or(starts_q),
        .starts_k = tg_op_absent_or(starts_k),
        .draws = p->draws,
    };
    return TG_OK;
}

/* Returns an entry of a vector, whose row is 0, or of a matrix. */
static long long entry_of(const tg_tensor *x, int64_t row, int64_t column) {
    int64_t at = x->ndim == 2 ? row * x->stride[0] + column * x->stride[1] : column * x->stride[0];
    return ((const int64_t *)tg_data(x))[at];
}

/* If bad is not 0, reports an invalid value in lengths or starts. The message quotes the value if the host can read
 * it. */
static tg_status bad_extent(tg_call *c, int64_t bad) {
    const tg_tensor *x = c->input[LENGTHS] ? c->input[LENGTHS] : c->input[STARTS_Q];
    int64_t i = bad - 1, total = size(c, Q, 2);
    const char *name = c->input[LENGTHS] ? "lengths" : "starts_q";
    if (TG_LIKELY(!bad)) return TG_OK;
    if (!c->input[LENGTHS] && i >= x->numel) {
        i -= x->numel;
        total = size(c, K, 2);
        x = c->input[STARTS_K];
        name = "starts_k";
    }
    if (!c->ctx->host) return tg_op_bad(c, i + 1, name);
    int64_t columns = x->shape[x->ndim - 1], row = i / columns, column = i % columns;
    long long found = entry_of(x, row, column);
    if (c->input[LENGTHS])
        return tg_call_fail(c, TG_ERR_DATA, "lengths[%lld] is %lld; it must be from 0 to %lld", (long long)i, found,
                            (long long)size(c, K, 2));
    char place[48];
    if (x->ndim == 2) snprintf(place, sizeof place, "[%lld, %lld]", (long long)row, (long long)column);
    else snprintf(place, sizeof place, "[%lld]", (long long)column);
    return tg_call_fail(c, TG_ERR_DATA, "%s%s is %lld; the first element%s must be 0, the last %lld, and none may "
                        "be less than the one before it", name, place, found, x->ndim == 2 ? " of a row" : "",
                        (long long)total);
}

static tg_status attention_forward(tg_call *c) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    tg_attention_args a;
    tg_extent mask;
    int64_t bad = 0;
    TG_TRY(attention_args(c, &a, &mask));
    if (a.lengths.data || a.starts_q.data) a.bad = &bad;
    TG_TRY((ops->attention ? ops->attention : tg_composed_attention)(c->ctx, &a));
    return bad_extent(c, bad);
}

/* The device's slot computes the probabilities again, tile by tile, from q, k and the saved numbers of each row. */
static tg_status attention_backward(tg_call *c) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    tg_attention_args a;
    tg_extent mask, gmask;
    TG_TRY(attention_args(c, &a, &mask));
    a.gout = tg_array_of(c->gout[0]);
    a.gq = tg_op_gin(c, Q);
    a.gk = tg_op_gin(c, K);
    a.gv = tg_op_gin(c, V);
    a.gsink = tg_op_gin(c, SINK);
    a.add_q = tg_adds(c, Q);
    a.add_k = tg_adds(c, K);
    a.add_v = tg_adds(c, V);
    a.add_sink = tg_adds(c, SINK);
    if (c->gin_mode[MASK] && c->input[MASK]->numel) a.gmask = expanded(c, c->gin[MASK], &gmask);
    a.add_mask = tg_adds(c, MASK);
    return (ops->attention_grad ? ops->attention_grad : tg_composed_attention_grad)(c->ctx, &a);
}

/* Counts two products of sq x sk for every head. A window that is bounded on both sides limits sk to its width; causal
 * bounds the right side. Otherwise a causal mask leaves about half. */
static int64_t attention_flops(const tg_node *n) {
    const attention_params *p = tg_node_params(n);
    const tg_tensor *q = tg_node_input(n, Q), *v = tg_node_input(n, V);
    int64_t sk = tg_dim(v, 2), right = p->opts.causal ? 0 : p->opts.right, width = p->opts.left + right + 1;
    int64_t row = tg_flops(2 * tg_dim(q, 0) * tg_dim(q, 1) * tg_dim(q, 2), tg_dim(q, 3) + tg_dim(v, 3));
    if (p->left_bound && (p->right_bound || p->opts.causal) && width < sk) return tg_flops(row, width);
    if (!p->opts.causal) return tg_flops(row, sk);
    return row % 2 ? row : tg_flops(row / 2, sk); /* row is odd only if it is INT64_MAX, after an overflow */
}

#define OPTS(...) &(const attention_params){.opts = {TG_ATTENTION_DEFAULTS, __VA_ARGS__}}

#define NO         TG_S_ABSENT
#define PLAIN      NO, NO, NO, NO, NO
#define MASKED(...) __VA_ARGS__, NO, NO, NO, NO
#define SUNK(h)    NO, TG_S(h), NO, NO, NO
#define PADDED(...) NO, NO, __VA_ARGS__, NO, NO
#define PACKED(n, sq, sk) NO, NO, NO, TG_S_STARTS(sq, n), TG_S_STARTS(sk, n)
#define STARTS_OF(b, n, total) \
    {.shape = TG_S_SHAPE(b, n), .kind = TG_SAMPLE_STARTS, .hi = (total)}
#define PACKED_ROWS(b, n, sq, sk) NO, NO, NO, STARTS_OF(b, n, sq), STARTS_OF(b, n, sk)
#define SEEN TG_S_HOLDS
#define IN(lo_, hi_, ...) {.shape = TG_S_SHAPE(__VA_ARGS__), .kind = TG_SAMPLE_INDEX, .lo = (lo_), .hi = (hi_)}

static const tg_sample attention_samples[] = {
    {.note = "all keys", .params = OPTS(.causal = false), .n_in = INPUTS,
     .input = {TG_S(2, 2, 3, 4), TG_S(2, 2, 5, 4), TG_S(2, 2, 5, 3), PLAIN}},
    {.note = "causal", .params = OPTS(.causal = true), .n_in = INPUTS,
     .input = {TG_S(1, 2, 5, 4), TG_S(1, 2, 5, 4), TG_S(1, 2, 5, 4), PLAIN}},
    {.note = "causal after a cache", .params = OPTS(.causal = true), .n_in = INPUTS,
     .input = {TG_S(1, 2, 2, 4), TG_S(1, 2, 5, 4), TG_S(1, 2, 5, 4), PLAIN}},
    {.note = "causal, queries without a key", .params = OPTS(.causal = true), .n_in = INPUTS,
     .input = {TG_S(1, 1, 4, 3), TG_S(1, 1, 2, 3), TG_S(1, 1, 2, 3), PLAIN}},
    {.note = "grouped-query", .params = OPTS(.causal = true), .n_in = INPUTS,
     .input = {TG_S(1, 4, 3, 2), TG_S(1, 2, 3, 2), TG_S(1, 2, 3, 2), PLAIN}},
    {.note = "multi-query, own scale", .params = OPTS(.scale = 0.3), .n_in = INPUTS,
     .input = {TG_S(2, 3, 4, 2), TG_S(2, 1, 3, 2), TG_S(2, 1, 3, 5), PLAIN}},
    {.note = "longer than a tile", .params = OPTS(.causal = true), .n_in = INPUTS,
     .input = {TG_S(1, 1, 70, 2), TG_S(1, 1, 70, 2), TG_S(1, 1, 70, 2), PLAIN}, .slow = true},
    {.note = "dropout", .params = OPTS(.dropout = 0.4), .n_in = INPUTS,
     .input = {TG_S(1, 2, 3, 4), TG_S(1, 2, 5, 4), TG_S(1, 2, 5, 3), PLAIN}},
    {.note = "causal dropout", .params = OPTS(.causal = true, .dropout = 0.2), .n_in = INPUTS,
     .input = {TG_S(1, 2, 4, 2), TG_S(1, 1, 4, 2), TG_S(1, 1, 4, 2), PLAIN}},
    {.note = "strided", .params = OPTS(.causal = true), .n_in = INPUTS,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 1, 2, 3, 4), TG_S_AS(TG_SAMPLE_STRIDED, 1, 2, 3, 4),
            TG_S_AS(TG_SAMPLE_TRANSPOSED, 1, 2, 3, 4), PLAIN}},
    {.note = "equal batches", .params = OPTS(.causal = false), .n_in = INPUTS,
     .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 2, 1, 2, 4), TG_S(2, 1, 3, 4), TG_S_AS(TG_SAMPLE_EXPANDED, 2, 1, 3, 2),
               PLAIN}},
    {.note = "one query, one key", .params = OPTS(.causal = true), .n_in = INPUTS,
     .input = {TG_S(1, 1, 1, 1), TG_S(1, 1, 1, 1), TG_S(1, 1, 1, 1), PLAIN}},
    {.note = "no batch", .params = OPTS(.causal = true), .n_in = INPUTS,
     .input = {TG_S(0, 2, 3, 4), TG_S(0, 2, 3, 4), TG_S(0, 2, 3, 4), PLAIN}},
    {.note = "no queries", .params = OPTS(.causal = false), .n_in = INPUTS,
     .input = {TG_S(1, 1, 0, 4), TG_S(1, 1, 3, 4), TG_S(1, 1, 3, 4), PLAIN}},
    /* Masks. */
    {.note = "a bool mask", .params = OPTS(.causal = false), .n_in = INPUTS,
     .input = {TG_S(2, 2, 3, 4), TG_S(2, 2, 5, 4), TG_S(2, 2, 5, 3), MASKED(TG_S_BOOL(2, 2, 3, 5))}},
    {.note = "a bool mask that hides all", .params = OPTS(.causal = false), .n_in = INPUTS,
     .input = {TG_S(1, 2, 3, 4), TG_S(1, 1, 5, 4), TG_S(1, 1, 5, 3), MASKED(SEEN(2, 2, 1, 2, 1, 5))}},
    {.note = "a mask added", .params = OPTS(.causal = false), .n_in = INPUTS,
     .input = {TG_S(2, 2, 3, 4), TG_S(2, 2, 5, 4), TG_S(2, 2, 5, 3), MASKED(TG_S(2, 2, 3, 5))}},
    {.note = "a bias of heads, causal", .params = OPTS(.causal = true), .n_in = INPUTS,
     .input = {TG_S(2, 2, 3, 4), TG_S(2, 1, 3, 4), TG_S(2, 1, 3, 4), MASKED(TG_S(2, 3, 3))}},
    {.note = "a bias of batches and keys", .params = OPTS(.scale = 0.5), .n_in = INPUTS,
     .input = {TG_S(2, 2, 3, 4), TG_S(2, 2, 3, 4), TG_S(2, 2, 3, 4), MASKED(TG_S(2, 1, 1, 3))}},
    {.note = "one number added", .params = OPTS(.causal = true), .n_in = INPUTS,
     .input = {TG_S(1, 2, 3, 4), TG_S(1, 2, 3, 4), TG_S(1, 2, 3, 4), TG_S_SCALAR, TG_S(2), NO, NO, NO}},
    {.note = "a bias of queries, dropout", .params = OPTS(.dropout = 0.3), .n_in = INPUTS,
     .input = {TG_S(2, 2, 3, 4), TG_S(2, 2, 5, 4), TG_S(2, 2, 5, 3), TG_S(1, 1, 3, 1), TG_S(2), NO, NO, NO}},
    {.note = "strided mask, float32", .params = OPTS(.causal = false), .n_in = INPUTS,
     .input = {TG_S(2, 2, 3, 4), TG_S(2, 2, 5, 4), TG_S(2, 2, 5, 3),
            MASKED({.shape = TG_S_SHAPE(2, 2, 3, 5), .layout = TG_SAMPLE_STRIDED, .frozen = true, .dtype = TG_F32})}},
    {.note = "a strided bias", .params = OPTS(.causal = false), .n_in = INPUTS,
     .input = {TG_S(2, 2, 3, 4), TG_S(2, 2, 5, 4), TG_S(2, 2, 5, 3), MASKED(TG_S_AS(TG_SAMPLE_STRIDED, 2, 1, 3, 5))}},
    {.note = "a frozen mask, transposed", .params = OPTS(.causal = false), .n_in = INPUTS,
     .input = {TG_S(1, 2, 3, 4), TG_S(1, 2, 5, 4), TG_S(1, 2, 5, 3),
            MASKED({.shape = TG_S_SHAPE(3, 5), .layout = TG_SAMPLE_TRANSPOSED, .frozen = true})}},
    {.note = "a mask longer than a tile", .params = OPTS(.causal = true), .n_in = INPUTS,
     .input = {TG_S(1, 2, 70, 2), TG_S(1, 1, 70, 2), TG_S(1, 1, 70, 2), MASKED(TG_S(1, 70, 70))}, .slow = true},
    /* The sink. */
    {.note = "a sink", .params = OPTS(.causal = false), .n_in = INPUTS,
     .input = {TG_S(2, 4, 3, 2), TG_S(2, 2, 5, 2), TG_S(2, 2, 5, 3), SUNK(4)}},
    {.note = "a sink, queries without a key", .params = OPTS(.causal = true), .n_in = INPUTS,
     .input = {TG_S(1, 2, 4, 3), TG_S(1, 2, 2, 3), TG_S(1, 2, 2, 3), SUNK(2)}},
    {.note = "a sink, dropout", .params = OPTS(.causal = true, .dropout = 0.2), .n_in = INPUTS,
     .input = {TG_S(1, 2, 4, 2), TG_S(1, 1, 4, 2), TG_S(1, 1, 4, 2), SUNK(2)}},
    {.note = "a sink without keys", .params = OPTS(.causal = false), .n_in = INPUTS,
     .input = {TG_S(1, 2, 2, 3), TG_S(1, 2, 0, 3), TG_S(1, 2, 0, 3), SUNK(2)}},
    /* Windows. */
    {.note = "a window", .params = OPTS(.left = 2, .right = 1), .n_in = INPUTS,
     .input = {TG_S(1, 2, 6, 4), TG_S(1, 2, 6, 4), TG_S(1, 2, 6, 4), PLAIN}},
    {.note = "a causal window after a cache", .params = OPTS(.causal = true, .left = 1), .n_in = INPUTS,
     .input = {TG_S(2, 2, 3, 2), TG_S(2, 1, 5, 2), TG_S(2, 1, 5, 2), PLAIN}},
    {.note = "itself and what follows", .params = OPTS(.left = 0), .n_in = INPUTS,
     .input = {TG_S(1, 2, 4, 2), TG_S(1, 2, 3, 2), TG_S(1, 2, 3, 2), PLAIN}},
    {.note = "a window past tiles", .params = OPTS(.left = 3, .right = 2), .n_in = INPUTS,
     .input = {TG_S(1, 1, 140, 2), TG_S(1, 1, 140, 2), TG_S(1, 1, 140, 2), PLAIN}, .slow = true},
    /* A bound of the scores. */
    {.note = "a soft cap", .params = OPTS(.softcap = 0.8), .n_in = INPUTS,
     .input = {TG_S(2, 4, 3, 4), TG_S(2, 2, 5, 4), TG_S(2, 2, 5, 3), PLAIN}},
    {.note = "a soft cap, causal, a mask and a sink", .params = OPTS(.causal = true, .softcap = 1.5), .n_in = INPUTS,
     .input = {TG_S(1, 2, 4, 2), TG_S(1, 1, 4, 2), TG_S(1, 1, 4, 2), TG_S(2, 4, 4), TG_S(2), NO, NO, NO}},
    {.note = "a soft cap, past tiles, dropout", .params = OPTS(.left = 30, .softcap = 0.5, .dropout = 0.2),
     .n_in = INPUTS, .input = {TG_S(1, 1, 70, 2), TG_S(1, 1, 70, 2), TG_S(1, 1, 70, 2), PLAIN}, .slow = true},
    {.note = "a soft cap of 0", .params = OPTS(.softcap = 0), .n_in = INPUTS,
     .input = {TG_S(1, 1, 2, 2), TG_S(1, 1, 2, 2), TG_S(1, 1, 2, 2), PLAIN}, .refused = TG_ERR_ARGUMENT},
    /* Padding and packing. */
    {.note = "padded keys", .params = OPTS(.causal = false), .n_in = INPUTS,
     .input = {TG_S(3, 2, 3, 2), TG_S(3, 2, 5, 2), TG_S(3, 2, 5, 2), PADDED(TG_S_INDEX(6, 3))}},
    {.note = "no keys but padding", .params = OPTS(.causal = true), .n_in = INPUTS,
     .input = {TG_S(2, 2, 3, 2), TG_S(2, 2, 3, 2), TG_S(2, 2, 3, 2), PADDED(IN(0, 1, 2))}},
    {.note = "packed", .params = OPTS(.causal = false), .n_in = INPUTS,
     .input = {TG_S(1, 2, 7, 2), TG_S(1, 1, 9, 2), TG_S(1, 1, 9, 3), PACKED(4, 7, 9)}},
    {.note = "strided lengths", .params = OPTS(.causal = false), .n_in = INPUTS,
     .input = {TG_S(2, 1, 3, 2), TG_S(2, 1, 4, 2), TG_S(2, 1, 4, 2),
            PADDED({.shape = TG_S_SHAPE(2), .kind = TG_SAMPLE_INDEX, .layout = TG_SAMPLE_STRIDED, .hi = 5})}},
    {.note = "strided starts", .params = OPTS(.causal = true), .n_in = INPUTS,
     .input = {TG_S(1, 1, 5, 2), TG_S(1, 1, 5, 2), TG_S(1, 1, 5, 2), NO, NO, NO,
            {.shape = TG_S_SHAPE(3), .kind = TG_SAMPLE_STARTS, .layout = TG_SAMPLE_STRIDED, .hi = 5},
            TG_S_STARTS(5, 3)}},
    {.note = "packed, causal", .params = OPTS(.causal = true), .n_in = INPUTS,
     .input = {TG_S(1, 2, 9, 2), TG_S(1, 2, 7, 2), TG_S(1, 2, 7, 2), PACKED(4, 9, 7)}},
    {.note = "packed in each batch entry, causal", .params = OPTS(.causal = true), .n_in = INPUTS,
     .input = {TG_S(2, 2, 7, 2), TG_S(2, 1, 7, 2), TG_S(2, 1, 7, 3), PACKED_ROWS(2, 4, 7, 7)}},
    {.note = "packed in each batch entry, a window", .params = OPTS(.left = 1, .right = 1), .n_in = INPUTS,
     .input = {TG_S(3, 1, 6, 2), TG_S(3, 1, 8, 2), TG_S(3, 1, 8, 2), PACKED_ROWS(3, 3, 6, 8)}},
    {.note = "packed in each batch entry, past tiles", .params = OPTS(.causal = true, .dropout = 0.2), .n_in = INPUTS,
     .input = {TG_S(2, 1, 70, 2), TG_S(2, 1, 70, 2), TG_S(2, 1, 70, 2), PACKED_ROWS(2, 4, 70, 70)}, .slow = true},
    {.note = "all but packing", .params = OPTS(.causal = true, .left = 3, .dropout = 0.1), .n_in = INPUTS,
     .input = {TG_S(2, 4, 5, 2), TG_S(2, 2, 6, 2), TG_S(2, 2, 6, 3), TG_S(4, 1, 6), TG_S(4), IN(2, 7, 2), NO, NO}},
    {.note = "all but padding", .params = OPTS(.left = 2, .right = 1), .n_in = INPUTS,
     .input = {TG_S(1, 2, 7, 2), TG_S(1, 1, 9, 2), TG_S(1, 1, 9, 3), TG_S(2, 7, 9), TG_S(2), NO, TG_S_STARTS(7, 4),
            TG_S_STARTS(9, 4)}},
    {.note = "all, and no batch", .params = OPTS(.causal = true, .left = 3), .n_in = INPUTS,
     .input = {TG_S(0, 2, 3, 2), TG_S(0, 2, 3, 2), TG_S(0, 2, 3, 2), TG_S(2, 3, 3), TG_S(2), IN(0, 1, 0), NO, NO}},
    {.note = "keys of another size", .params = OPTS(.causal = false), .n_in = INPUTS,
     .input = {TG_S(1, 1, 3, 4), TG_S(1, 1, 3, 5), TG_S(1, 1, 3, 4), PLAIN}, .refused = TG_ERR_SHAPE},
    {.note = "3 heads share 2", .params = OPTS(.causal = false), .n_in = INPUTS,
     .input = {TG_S(1, 3, 3, 4), TG_S(1, 2, 3, 4), TG_S(1, 2, 3, 4), PLAIN}, .refused = TG_ERR_SHAPE},
    {.note = "fewer values than keys", .params = OPTS(.causal = false), .n_in = INPUTS,
     .input = {TG_S(1, 1, 3, 4), TG_S(1, 1, 3, 4), TG_S(1, 1, 2, 4), PLAIN}, .refused = TG_ERR_SHAPE},
    {.note = "three dims", .params = OPTS(.causal = false), .n_in = INPUTS,
     .input = {TG_S(2, 3, 4), TG_S(2, 3, 4), TG_S(2, 3, 4), PLAIN},
     .refused = TG_ERR_SHAPE},
    {.note = "dropout of all", .params = OPTS(.dropout = 1), .n_in = INPUTS,
     .input = {TG_S(1, 1, 2, 2), TG_S(1, 1, 2, 2), TG_S(1, 1, 2, 2), PLAIN},
     .refused = TG_ERR_ARGUMENT},
    {.note = "a mask of integers", .params = OPTS(.causal = false), .n_in = INPUTS,
     .input = {TG_S(1, 1, 2, 2), TG_S(1, 1, 2, 2), TG_S(1, 1, 2, 2), MASKED(TG_S_INDEX(2, 2, 2))},
     .refused = TG_ERR_DTYPE},
    {.note = "a mask of other heads", .params = OPTS(.causal = false), .n_in = INPUTS,
     .input = {TG_S(1, 4, 2, 2), TG_S(1, 2, 2, 2), TG_S(1, 2, 2, 2), MASKED(TG_S(2, 2, 2))}, .refused = TG_ERR_SHAPE},
    {.note = "a mask of five dims", .params = OPTS(.causal = false), .n_in = INPUTS,
     .input = {TG_S(1, 1, 2, 2), TG_S(1, 1, 2, 2), TG_S(1, 1, 2, 2), MASKED(TG_S(1, 1, 1, 2, 2))},
     .refused = TG_ERR_SHAPE},
    {.note = "a sink of key heads", .params = OPTS(.causal = false), .n_in = INPUTS,
     .input = {TG_S(1, 4, 2, 2), TG_S(1, 2, 2, 2), TG_S(1, 2, 2, 2), SUNK(2)}, .refused = TG_ERR_SHAPE},
    {.note = "a negative window", .params = OPTS(.left = -2), .n_in = INPUTS,
     .input = {TG_S(1, 1, 2, 2), TG_S(1, 1, 2, 2), TG_S(1, 1, 2, 2), PLAIN}, .refused = TG_ERR_ARGUMENT},
    {.note = "lengths of another batch", .params = OPTS(.causal = false), .n_in = INPUTS,
     .input = {TG_S(2, 1, 2, 2), TG_S(2, 1, 2, 2), TG_S(2, 1, 2, 2), PADDED(TG_S_INDEX(2, 3))},
         .refused = TG_ERR_SHAPE},
    {.note = "a length beyond the keys", .params = OPTS(.causal = false), .n_in = INPUTS,
     .input = {TG_S(2, 1, 2, 2), TG_S(2, 1, 4, 2), TG_S(2, 1, 4, 2), PADDED(IN(5, 6, 2))}, .refused = TG_ERR_DATA},
    {.note = "packed and padded", .params = OPTS(.causal = false), .n_in = INPUTS,
     .input = {TG_S(1, 1, 4, 2), TG_S(1, 1, 4, 2), TG_S(1, 1, 4, 2), NO, NO, TG_S_INDEX(2, 1), TG_S_STARTS(4, 3),
            TG_S_STARTS(4, 3)},
     .refused = TG_ERR_ARGUMENT},
    {.note = "queries packed alone", .params = OPTS(.causal = false), .n_in = INPUTS,
     .input = {TG_S(1, 1, 4, 2), TG_S(1, 1, 4, 2), TG_S(1, 1, 4, 2), NO, NO, NO, TG_S_STARTS(4, 3), NO},
     .refused = TG_ERR_ARGUMENT},
    {.note = "two batches packed", .params = OPTS(.causal = false), .n_in = INPUTS,
     .input = {TG_S(2, 1, 4, 2), TG_S(2, 1, 4, 2), TG_S(2, 1, 4, 2), PACKED(3, 4, 4)}, .refused = TG_ERR_SHAPE},
    {.note = "rows of starts of another batch", .params = OPTS(.causal = false), .n_in = INPUTS,
     .input = {TG_S(2, 1, 4, 2), TG_S(2, 1, 4, 2), TG_S(2, 1, 4, 2), PACKED_ROWS(3, 3, 4, 4)}, .refused = TG_ERR_SHAPE},
    {.note = "rows of starts that end early", .params = OPTS(.causal = false), .n_in = INPUTS,
     .input = {TG_S(2, 1, 4, 2), TG_S(2, 1, 4, 2), TG_S(2, 1, 4, 2), PACKED_ROWS(2, 3, 4, 3)}, .refused = TG_ERR_DATA},
    {.note = "starts that end early", .params = OPTS(.causal = false), .n_in = INPUTS,
     .input = {TG_S(1, 1, 4, 2), TG_S(1, 1, 4, 2), TG_S(1, 1, 4, 2), PACKED(3, 4, 3)}, .refused = TG_ERR_DATA},
    {.note = "48 heads of 1024 x 64", .params = OPTS(.causal = true), .n_in = INPUTS,
     .input = {TG_S(4, 12, 1024, 64), TG_S(4, 12, 1024, 64), TG_S(4, 12, 1024, 64), PLAIN}, .bench = true},
};

static const tg_field attention_fields[] = {
    TG_ARG_AS(attention_params, opts.causal, "causal", BOOL, "Query i attends only to keys j <= i + sk - sq."),
    TG_ARG_AS(attention_params, opts.scale, "scale", DOUBLE, "Factor of the scores, 0 or more; -1: 1 / sqrt(dk)."),
    TG_ARG_AS(attention_params, opts.dropout, "dropout", DOUBLE, "Probability of dropout of the attention weights."),
    TG_ARG_AS(attention_params, opts.softcap, "softcap", DOUBLE, "Smooth bound of the scores, more than 0; -1: none."),
    TG_ARG_AS(attention_params, opts.left, "left", INT64, "Number of earlier keys that a query sees; -1: all."),
    TG_ARG_AS(attention_params, opts.right, "right", INT64, "Number of later keys that a query sees; -1: all."),
};

const tg_op tg_op_attention = {
    .size = sizeof(tg_op),
    .name = "attention",
    .formula = "softmax(scale q k^T + mask) v",
    .inputs = "q k v mask sink lengths starts_q starts_k",
    .n_in = INPUTS,
    .n_out = 1,
    .params_size = sizeof(attention_params),
    .saves_in = 255,
    .saves_out = 1,
    .optional = 248, /* bits of MASK to STARTS_K */
    .family = TG_FAMILY_ATTENTION,
    .infer = attention_infer,
    .forward = attention_forward,
    .backward = attention_backward,
    .vjp = tg_attention_vjp,
    .jvp = tg_attention_jvp,
    .flops = attention_flops,
    TG_FIELDS(attention_fields),
    .preset = OPTS(.causal = false),
    TG_SAMPLES(attention_samples),
};

/* Returns scaled dot-product attention: q [b, h, sq, dk], k [b, g, sk, dk] and v [b, g, sk, dv] give [b, h, sq, dv]. g
 * must divide h: each key and value head serves h / g neighboring query heads. Query i has position p = i + sk - sq
 * among the keys, so the last query is aligned with the last key, as after a cache of earlier keys. With .causal the
 * query sees the keys j <= p. A window is placed relative to p. Among packed sequences, a query sees only keys of its
 * own sequence, and the last query of the sequence is aligned with its last key. Masks follow PyTorch: a bool mask is
 * true where a key may be seen, a float mask is added to the scores. A key is seen only if lengths, window, packing
 * and mask all allow it. A query that sees no key gives zeros and gets no gradient. Dropout applies to the
 * probabilities, in training mode only. The sq x sk scores are never stored as a whole (Dao et al., arXiv 2205.14135):
 * the op saves its inputs, the result and two numbers per row, and backward computes the scores again. opts may be
 * NULL. */
tg_tensor *tg_attention(tg_tape *t, tg_tensor *q, tg_tensor *k, tg_tensor *v, const tg_attention_opts *opts) {
    attention_params p = {.draws = {.n = 0}};
    tg_op_options(&p.opts, &tg_attention_opts_struct, opts);
    tg_attention_opts *o = &p.opts;
    tg_tensor *in[INPUTS] = {q, k, v, o->mask, o->sink, o->lengths, o->starts_q, o->starts_k};
    o->mask = o->sink = o->lengths = o->starts_q = o->starts_k = NULL;
    return tg_record(t, &tg_op_attention, &p, in, INPUTS, TG_SITE);
}
