/* Reductions over a set of dims. Inside, the reduced dims stay, with size 1, so that everything broadcasts. */
#include "autograd/ops/derive.h"
#include "autograd/ops/op.h"

#include <float.h>
#include <math.h>

typedef struct reduce_params {
    tg_dims dims;
    bool keepdim;
    int correction; /* var */
    uint32_t mask;  /* of dims, by infer */
} reduce_params;

static const reduce_params *params(const tg_call *c) { return c->params; }

/* The shape without the dims of mask, or with size 1 there; its ndim. */
static int reduced_shape(const tg_tensor *x, uint32_t mask, bool keepdim, int64_t *shape) {
    int n = 0;
    for (int d = 0; d < x->ndim; d++) {
        bool gone = mask >> d & 1;
        if (!gone || keepdim) shape[n++] = gone ? 1 : x->shape[d];
    }
    return n;
}

static tg_status reduce_infer(tg_call *c, tg_dtype dtype) {
    reduce_params *p = c->params;
    int64_t shape[TG_MAX_DIMS];
    TG_TRY(tg_need_dims(c, 0, p->dims, &p->mask));
    c->dims = p->mask;
    int n = reduced_shape(c->in[0], p->mask, p->keepdim, shape);
    return tg_call_out(c, 0, dtype, n, shape);
}

/* How many elements of x make one of the result. */
static int64_t group(const tg_call *c, const tg_tensor *x) {
    int64_t n = 1;
    for (int d = 0; d < x->ndim; d++)
        if (params(c)->mask >> d & 1) n *= x->shape[d];
    return n;
}

static tg_status reduce(tg_call *c, tg_reduction kind, const tg_tensor *out, const tg_tensor *x, double scale) {
    tg_extent e;
    tg_array y = tg_array_keep(tg_array_of(out), x->ndim, params(c)->mask, &e);
    return tg_ctx_ops(c->ctx)->reduce(c->ctx, kind, y, tg_array_of(x), scale, false);
}

/* A view of r, a result of the reduction or its gradient, with the reduced dims back. */
static tg_tensor *kept(tg_call *c, tg_tensor *r, int ndim) {
    tg_extent e;
    tg_array_keep(tg_array_of(r), ndim, params(c)->mask, &e);
    return tg_call_view_of(c, r, 0, ndim, e.shape, e.stride);
}

/* Temporaries, in the dtype that sums run in: of x's shape, and of the result's with the reduced dims kept. */
static tg_tensor *whole_temp(tg_call *c, const tg_tensor *x) {
    return tg_call_temp(c, tg_accumulate_dtype((tg_dtype)x->dtype), x->ndim, x->shape);
}

static tg_tensor *small_temp(tg_call *c, const tg_tensor *x) {
    int64_t shape[TG_MAX_DIMS];
    reduced_shape(x, params(c)->mask, true, shape);
    return tg_call_temp(c, tg_accumulate_dtype((tg_dtype)x->dtype), x->ndim, shape);
}

/* Input 0's gradient is scale * g in every element that was summed. */
static tg_status spread(tg_call *c, double scale) {
    tg_extent e;
    const tg_tensor *x = c->in[0];
    tg_tensor *g = c->gout[0];
    if (scale != 1) {
        tg_tensor *scaled = tg_call_temp(c, (tg_dtype)g->dtype, g->ndim, g->shape);
        if (!tg_ok(c->ctx)) return c->ctx->status;
        TG_TRY(tg_op_map(c, TG_FN_affine, scaled, TG_T1(g), 1, scale, 0, false));
        g = scaled;
    }
    tg_array_keep(tg_array_of(g), x->ndim, params(c)->mask, &e);
    return tg_op_pass_view(c, 0, g, 0, x->ndim, x->shape, e.stride);
}

/* ---- The same as taped ops ---- */

/* r, a result or its gradient, with the reduced dims back. */
static tg_tensor *kept_taped(tg_tape *t, const tg_node *n, tg_tensor *r) {
    const reduce_params *p = tg_node_params(n);
    tg_shape shape = {.ndim = tg_node_in(n)[0]->ndim};
    reduced_shape(tg_node_in(n)[0], p->mask, true, shape.dim);
    return tg_reshape(t, r, shape);
}

static tg_tensor *spread_taped(tg_tape *t, const tg_node *n, tg_tensor *g, double scale) {
    tg_tensor *wide = tg_expand(t, kept_taped(t, n, g), tg_shape_of(tg_node_in(n)[0]));
    return scale == 1 ? wide : tg_scale(t, wide, scale);
}

static int64_t node_group(const tg_node *n) {
    const reduce_params *p = tg_node_params(n);
    int64_t size = 1;
    for (int d = 0; d < tg_node_in(n)[0]->ndim; d++)
        if (p->mask >> d & 1) size *= tg_node_in(n)[0]->shape[d];
    return size;
}

#define LIST(...) {.n = sizeof((int[]){__VA_ARGS__}) / sizeof(int), .dim = {__VA_ARGS__}}
#define OVER(...) &(const reduce_params){.dims = LIST(__VA_ARGS__)}
#define KEEP(...) &(const reduce_params){.dims = LIST(__VA_ARGS__), .keepdim = true}
#define ALL &(const reduce_params){.dims = {.n = -1}}

#define REDUCE_SAMPLES                                                                                      \
    {.note = "all", .params = ALL, .n_in = 1, .in = {TG_S(3, 5)}},                                          \
    {.note = "last", .params = OVER(-1), .n_in = 1, .in = {TG_S(3, 5)}},                                    \
    {.note = "first, kept", .params = KEEP(0), .n_in = 1, .in = {TG_S(4, 3)}},                              \
    {.note = "middle", .params = OVER(1), .n_in = 1, .in = {TG_S(2, 3, 4)}},                                \
    {.note = "outer two, kept", .params = KEEP(0, 2), .n_in = 1, .in = {TG_S(2, 3, 4)}},                    \
    {.note = "transposed", .params = OVER(0), .n_in = 1, .in = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 5)}},      \
    {.note = "strided", .params = OVER(1), .n_in = 1, .in = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 5)}},            \
    {.note = "expanded, across", .params = OVER(1), .n_in = 1, .in = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 5)}},  \
    {.note = "no result", .params = OVER(1), .n_in = 1, .in = {TG_S(0, 3)}},                                \
    {.note = "no such dim", .params = OVER(2), .n_in = 1, .in = {TG_S(3, 5)}, .refused = TG_ERR_SHAPE},     \
    {.note = "a dim twice", .params = OVER(0, -2), .n_in = 1, .in = {TG_S(3, 5)}, .refused = TG_ERR_SHAPE}, \
    {.note = "big", .params = OVER(-1), .n_in = 1, .in = {TG_S(1024, 1024)}, .bench = true}
/* What makes no sense for var: groups of one element. */
#define SMALL_SAMPLES                                                  \
    {.note = "size 1", .params = OVER(0), .n_in = 1, .in = {TG_S(1)}}, \
    {.note = "scalar", .params = ALL, .n_in = 1, .in = {TG_S_SCALAR}}, \
    {.note = "no dims: as it is", .params = &(const reduce_params){.keepdim = false}, .n_in = 1, .in = {TG_S(3, 2)}}

/* Reductions count the elements that they read. */
static int64_t input_flops(const tg_node *n) { return tg_numel(tg_node_input(n, 0)); }

#define REDUCTION(name)                                                                                     \
    tg_tensor *tg_##name(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim) {                            \
        return TG_RECORD(t, tg_op_##name, (&(const reduce_params){.dims = dims, .keepdim = keepdim}), x);         \
    }

/* ---- sum ---- */

static tg_status sum_infer(tg_call *c) {
    tg_dtype d = (tg_dtype)c->in[0]->dtype;
    return reduce_infer(c, tg_is_float(d) ? d : TG_I64);
}

static tg_status sum_forward(tg_call *c) { return reduce(c, TG_SUM, c->out[0], c->in[0], 1); }

static tg_status sum_backward(tg_call *c) { return spread(c, 1); }

TG_VJP(sum_vjp, spread_taped(t, n, g, 1))

static const tg_sample sum_samples[] = {
    REDUCE_SAMPLES, SMALL_SAMPLES,
    {.note = "expanded, along", .params = OVER(0), .n_in = 1, .in = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 5)}},
    {.note = "of nothing", .params = OVER(1), .n_in = 1, .in = {TG_S(3, 0)}},
    {.note = "how many hold", .params = ALL, .n_in = 1, .in = {TG_S_BOOL(3, 5)}},
};

const tg_op tg_op_sum = {
    .size = sizeof(tg_op), .name = "sum", .formula = "sum of x over dims", .n_in = 1, .n_out = 1,
    .params_size = sizeof(reduce_params), .passes = 1, .family = TG_FAMILY_SUM, .sums_f32 = true, .infer = sum_infer,
    .forward = sum_forward, .backward = sum_backward, .vjp = sum_vjp, .jvp = tg_jvp_linear, .flops = input_flops,
    TG_SAMPLES(sum_samples)};

/* The sum over dims; int64 for integers and bools (it counts what holds). */
REDUCTION(sum)

/* ---- mean ---- */

static tg_status mean_infer(tg_call *c) {
    TG_TRY(tg_need_float(c, 0));
    return reduce_infer(c, (tg_dtype)c->in[0]->dtype);
}

static tg_status mean_forward(tg_call *c) {
    return reduce(c, TG_SUM, c->out[0], c->in[0], 1.0 / (double)group(c, c->in[0]));
}

static tg_status mean_backward(tg_call *c) { return spread(c, 1.0 / (double)group(c, c->in[0])); }

TG_VJP(mean_vjp, spread_taped(t, n, g, 1.0 / (double)node_group(n)))

static const tg_sample mean_samples[] = {
    REDUCE_SAMPLES, SMALL_SAMPLES,
    {.note = "integers", .params = ALL, .n_in = 1, .in = {TG_S_INDEX(4, 3)}, .refused = TG_ERR_DTYPE},
};

const tg_op tg_op_mean = {
    .size = sizeof(tg_op), .name = "mean", .formula = "sum of x over dims, divided by their size", .n_in = 1,
    .n_out = 1, .params_size = sizeof(reduce_params), .passes = 1, .family = TG_FAMILY_MEAN, .sums_f32 = true,
    .infer = mean_infer, .forward = mean_forward, .backward = mean_backward, .vjp = mean_vjp,
    .jvp = tg_jvp_linear, .flops = input_flops, TG_SAMPLES(mean_samples)};

/* The mean over dims; NaN of no elements. */
REDUCTION(mean)

/* ---- var ---- */

static tg_status var_infer(tg_call *c) {
    const tg_tensor *x = c->in[0];
    int64_t shape[TG_MAX_DIMS];
    TG_TRY(mean_infer(c));
    if (params(c)->correction < 0)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "correction %d: expected 0 or more", params(c)->correction);
    if (group(c, x) <= params(c)->correction)
        return tg_call_fail(c, TG_ERR_SHAPE, "%lld elements, correction %d: expected more elements than that",
                            (long long)group(c, x), params(c)->correction);
    reduced_shape(x, params(c)->mask, true, shape);
    return tg_call_save(c, 0, tg_accumulate_dtype((tg_dtype)x->dtype), x->ndim, shape);
}

static double var_scale(const tg_call *c, const tg_tensor *x) {
    return 1.0 / (double)(group(c, x) - params(c)->correction);
}

/* Two passes: the mean, which backward reads too, then the squared distances from it. */
static tg_status var_forward(tg_call *c) {
    const tg_tensor *x = c->in[0], *mean = c->saved[0];
    tg_tensor *square = whole_temp(c, x);
    if (!tg_ok(c->ctx)) return c->ctx->status;
    TG_TRY(reduce(c, TG_SUM, mean, x, 1.0 / (double)group(c, x)));
    TG_TRY(tg_op_map(c, TG_FN_sub_square, square, TG_T2(x, mean), 2, 0, 0, false));
    return reduce(c, TG_SUM, c->out[0], square, var_scale(c, x));
}

static tg_status var_backward(tg_call *c) {
    const tg_tensor *x = c->in[0];
    tg_tensor *g = kept(c, c->gout[0], x->ndim);
    if (!tg_ok(c->ctx)) return c->ctx->status;
    double scale = 2 * var_scale(c, x);
    return tg_op_map(c, TG_FN_sub_scaled, c->gin[0], TG_T3(x, c->saved[0], g), 3, scale, 0, tg_adds(c, 0));
}

static tg_tensor *var_taped(tg_tape *t, const tg_node *n, tg_tensor *g) {
    const reduce_params *p = tg_node_params(n);
    tg_tensor *x = tg_node_in(n)[0], *mean = tg_mean(t, x, p->dims, true);
    double scale = 2.0 / (double)(node_group(n) - p->correction);
    return tg_scale(t, tg_mul(t, tg_sub(t, x, mean), kept_taped(t, n, g)), scale);
}

TG_VJP(var_vjp, var_taped(t, n, g))

static const tg_sample var_samples[] = {
    REDUCE_SAMPLES,
    {.note = "unbiased", .params = &(const reduce_params){.dims = {.n = 1, .dim = {1}}, .correction = 1}, .n_in = 1,
     .in = {TG_S(3, 5)}},
    {.note = "far from 0", .params = ALL, .n_in = 1, .in = {TG_S_IN(1000, 1001, 4, 5)}, .rtol = 1e-4},
    {.note = "size 1", .params = OVER(0), .n_in = 1, .in = {TG_S(1, 3)}},
    {.note = "unbiased, of one", .params = &(const reduce_params){.dims = {.n = -1}, .correction = 1}, .n_in = 1,
     .in = {TG_S(1)},
     .refused = TG_ERR_SHAPE},
    {.note = "negative correction", .params = &(const reduce_params){.dims = {.n = -1}, .correction = -1}, .n_in = 1,
     .in = {TG_S(3)},
     .refused = TG_ERR_ARGUMENT},
};

const tg_op tg_op_var = {
    .size = sizeof(tg_op), .name = "var", .formula = "sum of (x - mean)^2 over dims, divided by n - correction",
    .n_in = 1, .n_out = 1, .params_size = sizeof(reduce_params), .saves_in = 1, .family = TG_FAMILY_REDUCE,
    .sums_f32 = true, .infer = var_infer, .forward = var_forward, .backward = var_backward, .vjp = var_vjp,
    .jvp = tg_jvp_by_vjp, .flops = input_flops, TG_SAMPLES(var_samples)};

/* The variance over dims of n elements, n > correction >= 0: 0 of a population, 1 the unbiased estimate of a sample. */
tg_tensor *tg_var(tg_tape *t, tg_tensor *x, tg_dims dims, int correction, bool keepdim) {
    return TG_RECORD(t, tg_op_var, (&(reduce_params){.dims = dims, .keepdim = keepdim, .correction = correction}), x);
}

/* ---- max, min ---- */

static tg_status extremum_infer(tg_call *c) {
    TG_TRY(tg_need_number(c, 0));
    TG_TRY(reduce_infer(c, (tg_dtype)c->in[0]->dtype));
    if (c->out[0]->numel > 0 && group(c, c->in[0]) == 0)
        return tg_call_fail(c, TG_ERR_SHAPE, "no elements in the reduced dims: there is no extremum");
    return TG_OK;
}

/* The elements that equal the extremum share its gradient evenly. */
static tg_status extremum_backward(tg_call *c) {
    const tg_tensor *x = c->in[0];
    tg_tensor *g = kept(c, c->gout[0], x->ndim), *y = kept(c, c->out[0], x->ndim);
    tg_tensor *ties = tg_call_temp(c, TG_BOOL, x->ndim, x->shape), *share = small_temp(c, x);
    if (!tg_ok(c->ctx)) return c->ctx->status;
    TG_TRY(tg_op_map(c, TG_FN_eq, ties, TG_T2(x, y), 2, 0, 0, false));
    TG_TRY(reduce(c, TG_SUM, share, ties, 1));
    TG_TRY(tg_op_map(c, TG_FN_div, share, TG_T2(g, share), 2, 0, 0, false));
    return tg_op_map(c, TG_FN_where_da, c->gin[0], TG_T2(ties, share), 2, 0, 0, tg_adds(c, 0));
}

static tg_tensor *extremum_taped(tg_tape *t, const tg_node *n, tg_tensor *g) {
    const reduce_params *p = tg_node_params(n);
    tg_tensor *x = tg_node_in(n)[0], *ties = tg_eq(t, x, kept_taped(t, n, tg_node_out(n)[0]));
    tg_tensor *count = tg_cast(t, tg_sum(t, ties, p->dims, true), (tg_dtype)g->dtype);
    return tg_where(t, ties, tg_div(t, kept_taped(t, n, g), count), tg_number_like(t, g, 0));
}

TG_VJP(extremum_vjp, extremum_taped(t, n, g))

static const tg_sample extremum_samples[] = {
    REDUCE_SAMPLES, SMALL_SAMPLES,
    {.note = "ties", .params = OVER(1), .n_in = 1, .in = {TG_S_INDEX(2, 4, 6)}},
    {.note = "of nothing", .params = OVER(1), .n_in = 1, .in = {TG_S(3, 0)}, .refused = TG_ERR_SHAPE},
    {.note = "bools", .params = ALL, .n_in = 1, .in = {TG_S_BOOL(3)}, .refused = TG_ERR_DTYPE},
};

static tg_status max_forward(tg_call *c) { return reduce(c, TG_MAX, c->out[0], c->in[0], 1); }

const tg_op tg_op_max = {
    .size = sizeof(tg_op), .name = "max", .formula = "the greatest x over dims", .n_in = 1, .n_out = 1,
    .params_size = sizeof(reduce_params), .saves_in = 1, .saves_out = 1, .family = TG_FAMILY_REDUCE, .sums_f32 = true,
    .infer = extremum_infer, .forward = max_forward, .backward = extremum_backward, .vjp = extremum_vjp,
    .jvp = tg_jvp_by_vjp, .flops = input_flops, TG_SAMPLES(extremum_samples)};

/* The greatest element over dims, NaN where there is one; equal ones share the gradient evenly. */
REDUCTION(max)

static tg_status min_forward(tg_call *c) { return reduce(c, TG_MIN, c->out[0], c->in[0], 1); }

const tg_op tg_op_min = {
    .size = sizeof(tg_op), .name = "min", .formula = "the smallest x over dims", .n_in = 1, .n_out = 1,
    .params_size = sizeof(reduce_params), .saves_in = 1, .saves_out = 1, .family = TG_FAMILY_REDUCE, .sums_f32 = true,
    .infer = extremum_infer, .forward = min_forward, .backward = extremum_backward, .vjp = extremum_vjp,
    .jvp = tg_jvp_by_vjp, .flops = input_flops, TG_SAMPLES(extremum_samples)};

/* The smallest element over dims, NaN where there is one; equal ones share the gradient evenly. */
REDUCTION(min)

/* ---- logsumexp ---- */

/* Shifts are finite: with them a row of -inf gives -inf, and one that holds inf gives inf, not NaN. */
static tg_status finite_shift(tg_call *c, tg_tensor *shift, const tg_tensor *x) {
    double most = shift->dtype == TG_F64 ? DBL_MAX : (double)FLT_MAX;
    return tg_op_map(c, TG_FN_clamp, shift, TG_T1(x), 1, -most, most, false);
}

static tg_status logsumexp_forward(tg_call *c) {
    const tg_tensor *x = c->in[0];
    tg_tensor *e = whole_temp(c, x), *shift = small_temp(c, x), *sum = small_temp(c, x);
    tg_tensor *y = kept(c, c->out[0], x->ndim);
    if (!tg_ok(c->ctx)) return c->ctx->status;
    if (group(c, x) == 0) return tg_ctx_ops(c->ctx)->fill(c->ctx, tg_array_of(y), -INFINITY);
    TG_TRY(reduce(c, TG_MAX, shift, x, 1));
    TG_TRY(finite_shift(c, shift, shift));
    TG_TRY(tg_op_map(c, TG_FN_exp_sub, e, TG_T2(x, shift), 2, 0, 0, false));
    TG_TRY(reduce(c, TG_SUM, sum, e, 1));
    return tg_op_map(c, TG_FN_log_add, y, TG_T2(sum, shift), 2, 0, 0, false);
}

static tg_status logsumexp_backward(tg_call *c) {
    const tg_tensor *x = c->in[0];
    tg_tensor *g = kept(c, c->gout[0], x->ndim), *y = kept(c, c->out[0], x->ndim), *shift = small_temp(c, x);
    if (!tg_ok(c->ctx)) return c->ctx->status;
    TG_TRY(finite_shift(c, shift, y));
    return tg_op_map(c, TG_FN_exp_sub_mul, c->gin[0], TG_T3(x, shift, g), 3, 0, 0, tg_adds(c, 0));
}

/* A row that is -inf alone has no slope. */
static tg_tensor *logsumexp_taped(tg_tape *t, const tg_node *n, tg_tensor *g) {
    tg_tensor *x = tg_node_in(n)[0], *y = kept_taped(t, n, tg_node_out(n)[0]);
    double most = x->dtype == TG_F64 ? DBL_MAX : (double)FLT_MAX;
    return tg_mul(t, tg_exp(t, tg_sub(t, x, tg_clamp(t, y, -most, most))), kept_taped(t, n, g));
}

TG_VJP(logsumexp_vjp, logsumexp_taped(t, n, g))

static const tg_sample logsumexp_samples[] = {
    REDUCE_SAMPLES, SMALL_SAMPLES,
    {.note = "great values", .params = OVER(1), .n_in = 1, .in = {TG_S_IN(900, 903, 3, 4)}},
    {.note = "of nothing", .params = OVER(1), .n_in = 1, .in = {TG_S(3, 0)}},
    {.note = "integers", .params = ALL, .n_in = 1, .in = {TG_S_INDEX(4, 3)}, .refused = TG_ERR_DTYPE},
};

const tg_op tg_op_logsumexp = {
    .size = sizeof(tg_op), .name = "logsumexp", .formula = "ln of the sum of e^x over dims", .n_in = 1, .n_out = 1,
    .params_size = sizeof(reduce_params), .saves_in = 1, .saves_out = 1, .family = TG_FAMILY_REDUCE, .sums_f32 = true,
    .infer = mean_infer, .forward = logsumexp_forward, .backward = logsumexp_backward,
    .vjp = logsumexp_vjp, .jvp = tg_jvp_by_vjp, .flops = input_flops, TG_SAMPLES(logsumexp_samples)};

/* ln sum e^x over dims, computed from x's maximum; -inf of no elements and of -inf alone (whose gradient is 0). */
REDUCTION(logsumexp)

/* ---- argmax ---- */

static tg_status argmax_infer(tg_call *c) {
    TG_TRY(reduce_infer(c, TG_I64));
    if (c->out[0]->numel > 0 && group(c, c->in[0]) == 0)
        return tg_call_fail(c, TG_ERR_SHAPE, "no elements in the reduced dim: there is no maximum");
    return TG_OK;
}

static tg_status argmax_forward(tg_call *c) { return reduce(c, TG_ARGMAX, c->out[0], c->in[0], 1); }

static const tg_sample argmax_samples[] = {
    {.note = "last", .params = OVER(-1), .n_in = 1, .in = {TG_S(3, 5)}},
    {.note = "first, kept", .params = KEEP(0), .n_in = 1, .in = {TG_S(4, 3)}},
    {.note = "transposed", .params = OVER(1), .n_in = 1, .in = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 5)}},
    {.note = "strided", .params = OVER(1), .n_in = 1, .in = {TG_S_AS(TG_SAMPLE_STRIDED, 2, 3, 4)}},
    {.note = "ties: the first", .params = OVER(1), .n_in = 1, .in = {TG_S_INDEX(2, 4, 6)}},
    {.note = "size 1", .params = OVER(0), .n_in = 1, .in = {TG_S(1)}},
    {.note = "no result", .params = OVER(1), .n_in = 1, .in = {TG_S(0, 3)}},
    {.note = "of nothing", .params = OVER(1), .n_in = 1, .in = {TG_S(3, 0)}, .refused = TG_ERR_SHAPE},
    {.note = "no such dim", .params = OVER(1), .n_in = 1, .in = {TG_S(3)}, .refused = TG_ERR_SHAPE},
    {.note = "big", .params = OVER(-1), .n_in = 1, .in = {TG_S(1024, 1024)}, .bench = true},
};

const tg_op tg_op_argmax = {
    .size = sizeof(tg_op), .name = "argmax", .formula = "where x is greatest along a dim", .n_in = 1, .n_out = 1,
    .params_size = sizeof(reduce_params), .family = TG_FAMILY_REDUCE, .infer = argmax_infer,
    .forward = argmax_forward, .flops = input_flops, TG_SAMPLES(argmax_samples)};

/* int64: the index along dim of the greatest element, the first of equals; a NaN counts as the greatest. */
tg_tensor *tg_argmax(tg_tape *t, tg_tensor *x, int dim, bool keepdim) {
    return TG_RECORD(t, tg_op_argmax, (&(reduce_params){.dims = {.n = 1, .dim = {dim}}, .keepdim = keepdim}), x);
}
