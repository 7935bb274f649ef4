/* Sums, means, extrema, their positions, and log-sum-exp over a set of dims; also what all reductions share. */
#include "ops/common/reduce.h"

#include "ops/common/derive.h"

#include <math.h>

int tg_reduce_shape(const tg_tensor *x, uint32_t mask, bool keepdim, int64_t *shape) {
    int n = 0;
    for (int d = 0; d < x->ndim; d++) {
        bool gone = mask >> d & 1;
        if (!gone || keepdim) shape[n++] = gone ? 1 : x->shape[d];
    }
    return n;
}

tg_status tg_reduce_infer(tg_call *c, tg_dtype dtype) {
    tg_reduce_params *p = c->params;
    int64_t shape[TG_MAX_DIMS];
    TG_TRY(tg_need_dims(c, 0, p->dims, &p->mask));
    c->dims = p->mask;
    int n = tg_reduce_shape(c->input[0], p->mask, p->keepdim, shape);
    return tg_call_out(c, 0, dtype, n, shape);
}

tg_status tg_reduce_float_infer(tg_call *c) {
    TG_TRY(tg_need_float(c, 0));
    return tg_reduce_infer(c, (tg_dtype)c->input[0]->dtype);
}

int64_t tg_reduce_group(const tg_call *c, const tg_tensor *x) {
    int64_t n = 1;
    for (int d = 0; d < x->ndim; d++)
        if (tg_reduce_params_of(c)->mask >> d & 1) n *= x->shape[d];
    return n;
}

tg_status tg_reduce_need_some(tg_call *c, const char *what) {
    if (c->out[0]->numel == 0 || tg_reduce_group(c, c->input[0]) > 0) return TG_OK;
    return tg_call_fail(c, TG_ERR_SHAPE, "the reduced dims have no elements, so there is no %s", what);
}

tg_status tg_reduce_run(tg_call *c, tg_reduction kind, const tg_tensor *out, const tg_tensor *x, double scale) {
    tg_extent e;
    tg_array y = tg_array_keep(tg_array_of(out), x->ndim, tg_reduce_params_of(c)->mask, &e);
    return tg_ctx_ops(c->ctx)->reduce(c->ctx, kind, y, tg_array_of(x), scale, false);
}

tg_tensor *tg_reduce_kept(tg_call *c, tg_tensor *r, int ndim) {
    tg_extent e;
    tg_array_keep(tg_array_of(r), ndim, tg_reduce_params_of(c)->mask, &e);
    return tg_call_view_of(c, r, 0, ndim, e.shape, e.stride);
}

tg_tensor *tg_reduce_whole(tg_call *c, const tg_tensor *x) {
    return tg_call_temp(c, tg_accumulate_dtype((tg_dtype)x->dtype), x->ndim, x->shape);
}

static tg_tensor *small(tg_call *c, const tg_tensor *x, tg_dtype dtype) {
    int64_t shape[TG_MAX_DIMS];
    tg_reduce_shape(x, tg_reduce_params_of(c)->mask, true, shape);
    return tg_call_temp(c, dtype, x->ndim, shape);
}

tg_tensor *tg_reduce_small(tg_call *c, const tg_tensor *x) {
    return small(c, x, tg_accumulate_dtype((tg_dtype)x->dtype));
}

tg_tensor *tg_reduce_small_f64(tg_call *c, const tg_tensor *x) { return small(c, x, TG_F64); }

/* Gives x its gradient: every element gets scale * (the gradient of the element to which it was summed). */
static tg_status spread(tg_call *c, double scale) {
    tg_extent e;
    const tg_tensor *x = c->input[0];
    tg_tensor *g = c->gout[0];
    if (scale != 1) {
        tg_tensor *scaled = tg_call_temp(c, (tg_dtype)g->dtype, g->ndim, g->shape);
        if (!tg_ok(c->ctx)) return c->ctx->run.status;
        TG_TRY(tg_op_map(c, TG_FN_affine, scaled, TG_T1(g), 1, scale, 0, false));
        g = scaled;
    }
    tg_array_keep(tg_array_of(g), x->ndim, tg_reduce_params_of(c)->mask, &e);
    return tg_op_pass_view(c, 0, g, 0, x->ndim, x->shape, e.stride);
}

const tg_field tg_reduce_fields[2] = {
    TG_ARG(tg_reduce_params, dims, DIMS, "The dims to reduce."),
    TG_ARG(tg_reduce_params, keepdim, BOOL, "The reduced dims stay, with size 1."),
};

/* ---- The same computation as recorded ops ---- */

tg_tensor *tg_reduce_kept_recorded(tg_tape *t, const tg_node *n, tg_tensor *r) {
    const tg_reduce_params *p = tg_node_params(n);
    tg_shape shape = {.ndim = tg_node_in(n)[0]->ndim};
    tg_reduce_shape(tg_node_in(n)[0], p->mask, true, shape.dim);
    return tg_reshape(t, r, shape);
}

static tg_tensor *spread_gradient(tg_tape *t, const tg_node *n, tg_tensor *g, double scale) {
    tg_tensor *wide = tg_expand(t, tg_reduce_kept_recorded(t, n, g), tg_shape_kept(tg_node_in(n)[0]));
    return scale == 1 ? wide : tg_scale(t, wide, scale);
}

int64_t tg_reduce_node_group(const tg_node *n) {
    const tg_reduce_params *p = tg_node_params(n);
    int64_t size = 1;
    for (int d = 0; d < tg_node_in(n)[0]->ndim; d++)
        if (p->mask >> d & 1) size *= tg_node_in(n)[0]->shape[d];
    return size;
}

int64_t tg_reduce_flops(const tg_node *n) { return tg_numel(tg_node_input(n, 0)); }

/* ---- sum ---- */

static tg_status sum_infer(tg_call *c) {
    tg_dtype d = (tg_dtype)c->input[0]->dtype;
    return tg_reduce_infer(c, tg_total_dtype(d));
}

static tg_status sum_forward(tg_call *c) { return tg_reduce_run(c, TG_SUM, c->out[0], c->input[0], 1); }

static tg_status sum_backward(tg_call *c) { return spread(c, 1); }

TG_VJP(sum_vjp, spread_gradient(t, n, g, 1))

static const tg_sample sum_samples[] = {
    TG_REDUCE_SAMPLES, TG_SMALL_SAMPLES,
    {.note = "expanded dim", .params = TG_OVER(0), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 5)}},
    {.note = "no elements", .params = TG_OVER(1), .n_in = 1, .input = {TG_S(3, 0)}},
    {.note = "count of true elements", .params = TG_ALL, .n_in = 1, .input = {TG_S_BOOL(3, 5)}},
};

const tg_op tg_op_sum = {
    .size = sizeof(tg_op), .name = "sum", .formula = "sum of x over dims", .n_in = 1, .n_out = 1,
    .params_size = sizeof(tg_reduce_params), .passes = 1, .family = TG_FAMILY_SUM, .sums_f32 = true, .infer = sum_infer,
    .forward = sum_forward, .backward = sum_backward, .vjp = sum_vjp, .jvp = tg_jvp_linear, .flops = tg_reduce_flops,
    TG_REDUCE_ARGS, TG_SAMPLES(sum_samples)};

/* Returns the sum over dims: uint64 for uint64, int64 for other integers and bools (for bools, the number of true
 * elements). */
TG_REDUCTION(sum)

/* ---- mean ---- */

static tg_status mean_forward(tg_call *c) {
    return tg_reduce_run(c, TG_SUM, c->out[0], c->input[0], 1.0 / (double)tg_reduce_group(c, c->input[0]));
}

static tg_status mean_backward(tg_call *c) { return spread(c, 1.0 / (double)tg_reduce_group(c, c->input[0])); }

TG_VJP(mean_vjp, spread_gradient(t, n, g, 1.0 / (double)tg_reduce_node_group(n)))

static const tg_sample mean_samples[] = {
    TG_REDUCE_SAMPLES, TG_SMALL_SAMPLES,
    {.note = "integers", .params = TG_ALL, .n_in = 1, .input = {TG_S_INDEX(4, 3)}, .refused = TG_ERR_DTYPE},
};

const tg_op tg_op_mean = {
    .size = sizeof(tg_op), .name = "mean", .formula = "sum of x over dims, divided by their size", .n_in = 1,
    .n_out = 1, .params_size = sizeof(tg_reduce_params), .passes = 1, .family = TG_FAMILY_MEAN, .sums_f32 = true,
    .infer = tg_reduce_float_infer, .forward = mean_forward, .backward = mean_backward, .vjp = mean_vjp,
    .jvp = tg_jvp_linear, .flops = tg_reduce_flops, TG_REDUCE_ARGS, TG_SAMPLES(mean_samples)};

/* Returns the mean over dims; NaN for no elements. */
TG_REDUCTION(mean)

/* ---- max, min ---- */

static tg_status extremum_infer(tg_call *c) {
    TG_TRY(tg_need_number(c, 0));
    TG_TRY(tg_reduce_infer(c, (tg_dtype)c->input[0]->dtype));
    return tg_reduce_need_some(c, "extremum");
}

/* Elements that equal the extremum share its gradient evenly. If an element is NaN, so is the extremum; then no element
 * equals it, and every gradient is 0 * (g / 0), which is NaN. */
static tg_status extremum_backward(tg_call *c) {
    const tg_tensor *x = c->input[0];
    tg_tensor *g = tg_reduce_kept(c, c->gout[0], x->ndim), *y = tg_reduce_kept(c, c->out[0], x->ndim);
    tg_tensor *ties = tg_call_temp(c, TG_BOOL, x->ndim, x->shape), *share = tg_reduce_small(c, x);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_op_map(c, TG_FN_eq, ties, TG_T2(x, y), 2, 0, 0, false));
    TG_TRY(tg_reduce_run(c, TG_SUM, share, ties, 1));
    TG_TRY(tg_op_map(c, TG_FN_div, share, TG_T2(g, share), 2, 0, 0, false));
    return tg_op_map(c, TG_FN_mul, c->gin[0], TG_T2(ties, share), 2, 0, 0, tg_adds(c, 0));
}

static tg_tensor *extremum_gradient(tg_tape *t, const tg_node *n, tg_tensor *g) {
    const tg_reduce_params *p = tg_node_params(n);
    tg_tensor *x = tg_node_in(n)[0], *ties = tg_eq(t, x, tg_reduce_kept_recorded(t, n, tg_node_out(n)[0]));
    tg_tensor *all = tg_wide(t, tg_reduce_kept_recorded(t, n, g));
    tg_tensor *share = tg_div(t, all, tg_cast(t, tg_sum(t, ties, p->dims, true), (tg_dtype)all->dtype));
    return tg_cast(t, tg_mul(t, tg_cast(t, ties, (tg_dtype)all->dtype), share), (tg_dtype)g->dtype);
}

TG_VJP(extremum_vjp, extremum_gradient(t, n, g))

static const tg_sample extremum_samples[] = {
    TG_REDUCE_SAMPLES, TG_SMALL_SAMPLES,
    {.note = "ties", .params = TG_OVER(1), .n_in = 1, .input = {TG_S_INDEX(2, 4, 6)}},
    {.note = "no elements", .params = TG_OVER(1), .n_in = 1, .input = {TG_S(3, 0)}, .refused = TG_ERR_SHAPE},
    {.note = "bools", .params = TG_ALL, .n_in = 1, .input = {TG_S_BOOL(3)}, .refused = TG_ERR_DTYPE},
};

static tg_status max_forward(tg_call *c) { return tg_reduce_run(c, TG_MAX, c->out[0], c->input[0], 1); }

const tg_op tg_op_max = {
    .size = sizeof(tg_op), .name = "max", .formula = "the greatest x over dims", .n_in = 1, .n_out = 1,
    .params_size = sizeof(tg_reduce_params), .saves_in = 1, .saves_out = 1, .family = TG_FAMILY_REDUCE,
    .sums_f32 = true, .infer = extremum_infer, .forward = max_forward, .backward = extremum_backward,
    .vjp = extremum_vjp, .jvp = tg_jvp_by_vjp, .flops = tg_reduce_flops, TG_REDUCE_ARGS, TG_SAMPLES(extremum_samples)};

/* Returns the greatest element over dims; equal elements share the gradient evenly. If an element is NaN, the result
 * and all gradients are NaN. */
TG_REDUCTION(max)

static tg_status min_forward(tg_call *c) { return tg_reduce_run(c, TG_MIN, c->out[0], c->input[0], 1); }

const tg_op tg_op_min = {
    .size = sizeof(tg_op), .name = "min", .formula = "the smallest x over dims", .n_in = 1, .n_out = 1,
    .params_size = sizeof(tg_reduce_params), .saves_in = 1, .saves_out = 1, .family = TG_FAMILY_REDUCE,
    .sums_f32 = true, .infer = extremum_infer, .forward = min_forward, .backward = extremum_backward,
    .vjp = extremum_vjp, .jvp = tg_jvp_by_vjp, .flops = tg_reduce_flops, TG_REDUCE_ARGS, TG_SAMPLES(extremum_samples)};

/* Returns the smallest element over dims; equal elements share the gradient evenly. If an element is NaN, the result
 * and all gradients are NaN. */
TG_REDUCTION(min)

/* ---- logsumexp ---- */

/* The private saved buffers have the result's shape with reduced dims kept. TOP is the greatest x, and MASS the sum of
 * e^(x - TOP). A single number, the log-sum-exp, would lose more digits the larger x is. TOP is clamped to finite
 * numbers, so that a row of -inf gives -inf, and a row with inf gives inf, instead of NaN. */
enum { TOP, MASS };

/* The range to which MASS is clamped before derivatives are divided by it. MASS is from 1 to the number of elements,
 * except that it is 0 in a row of -inf, and inf if an element is inf. */
static const double least_mass = 1, most_mass = 0x1p64;

static tg_status logsumexp_infer(tg_call *c) {
    const tg_tensor *x = c->input[0];
    tg_dtype dtype = tg_accumulate_dtype((tg_dtype)x->dtype);
    int64_t shape[TG_MAX_DIMS];
    TG_TRY(tg_reduce_float_infer(c));
    tg_reduce_shape(x, tg_reduce_params_of(c)->mask, true, shape);
    TG_TRY(tg_call_save(c, TOP, dtype, x->ndim, shape));
    return tg_call_save(c, MASS, dtype, x->ndim, shape);
}

static tg_status logsumexp_forward(tg_call *c) {
    const tg_tensor *x = c->input[0], *top = c->saved[TOP], *mass = c->saved[MASS];
    tg_tensor *e = tg_reduce_whole(c, x), *y = tg_reduce_kept(c, c->out[0], x->ndim);
    double most = tg_greatest((tg_dtype)top->dtype);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    if (tg_reduce_group(c, x) == 0) return tg_ctx_ops(c->ctx)->fill(c->ctx, tg_array_of(y), -INFINITY);
    TG_TRY(tg_reduce_run(c, TG_MAX, top, x, 1));
    TG_TRY(tg_op_map(c, TG_FN_clamp, top, TG_T1(top), 1, -most, most, false));
    TG_TRY(tg_op_map(c, TG_FN_exp_sub, e, TG_T2(x, top), 2, 0, 0, false));
    TG_TRY(tg_reduce_run(c, TG_SUM, mass, e, 1));
    TG_TRY(tg_op_map(c, TG_FN_log_add, y, TG_T2(mass, top), 2, 0, 0, false));
    return tg_op_map(c, TG_FN_clamp, mass, TG_T1(mass), 1, least_mass, most_mass, false);
}

static tg_status logsumexp_backward(tg_call *c) {
    const tg_tensor *x = c->input[0];
    tg_tensor *gy = tg_reduce_kept(c, c->gout[0], x->ndim), *g = tg_reduce_small(c, x), *top = c->saved[TOP];
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_op_map(c, TG_FN_div, g, TG_T2(gy, c->saved[MASS]), 2, 0, 0, false));
    return tg_op_map(c, TG_FN_exp_sub_mul, c->gin[0], TG_T3(x, top, g), 3, 0, 0, tg_adds(c, 0));
}

/* Returns the slope of each element, which is its share of the sum. */
static tg_tensor *logsumexp_shares(tg_tape *t, const tg_node *n) {
    const tg_reduce_params *p = tg_node_params(n);
    tg_tensor *x = tg_wide(t, tg_node_in(n)[0]);
    double most = tg_greatest((tg_dtype)x->dtype);
    if (tg_numel(x) == 0) return x;
    tg_tensor *top = tg_clamp(t, tg_detach(t, tg_max(t, x, p->dims, true)), -most, most);
    tg_tensor *e = tg_exp(t, tg_sub(t, x, top));
    return tg_div(t, e, tg_clamp(t, tg_sum(t, e, p->dims, true), least_mass, most_mass));
}

static tg_tensor *logsumexp_gradient(tg_tape *t, const tg_node *n, tg_tensor *g) {
    tg_tensor *wide = tg_wide(t, tg_reduce_kept_recorded(t, n, g));
    return tg_cast(t, tg_mul(t, logsumexp_shares(t, n), wide), (tg_dtype)g->dtype);
}

TG_VJP(logsumexp_vjp, logsumexp_gradient(t, n, g))

/* An element that is inf has the slope inf. If its tangent is 0, its term is 0 and not NaN. */
static tg_status logsumexp_jvp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout) {
    const tg_reduce_params *p = tg_node_params(n);
    tg_tensor *share = logsumexp_shares(t, n), *d = tg_wide(t, din[0]), *still = tg_equals(t, d, 0);
    tg_tensor *slope = tg_masked_fill(t, share, tg_where(t, still, tg_equals(t, share, INFINITY), still), 0);
    dout[0] = tg_cast(t, tg_sum(t, tg_mul(t, slope, d), p->dims, p->keepdim), (tg_dtype)din[0]->dtype);
    return TG_OK;
}

static const tg_sample logsumexp_samples[] = {
    TG_REDUCE_SAMPLES, TG_SMALL_SAMPLES,
    {.note = "large values", .params = TG_OVER(1), .n_in = 1, .input = {TG_S_IN(900, 903, 3, 4)}},
    {.note = "no elements", .params = TG_OVER(1), .n_in = 1, .input = {TG_S(3, 0)}},
    {.note = "integers", .params = TG_ALL, .n_in = 1, .input = {TG_S_INDEX(4, 3)}, .refused = TG_ERR_DTYPE},
};

const tg_op tg_op_logsumexp = {
    .size = sizeof(tg_op), .name = "logsumexp", .formula = "ln of the sum of e^x over dims", .n_in = 1, .n_out = 1,
    .params_size = sizeof(tg_reduce_params), .saves_in = 1, .family = TG_FAMILY_REDUCE, .sums_f32 = true,
    .infer = logsumexp_infer, .forward = logsumexp_forward, .backward = logsumexp_backward, .vjp = logsumexp_vjp,
    .jvp = logsumexp_jvp, .flops = tg_reduce_flops, TG_REDUCE_ARGS, TG_SAMPLES(logsumexp_samples)};

/* Returns ln(sum(e^x)) over dims, computed relative to the maximum of x. The result is -inf if there are no elements,
 * and also, with gradient 0, if all elements are -inf. */
TG_REDUCTION(logsumexp)

/* ---- argmax, argmin ---- */

static tg_status position_infer(tg_call *c) {
    TG_TRY(tg_reduce_infer(c, TG_I64));
    return tg_reduce_need_some(c, "extremum");
}

static tg_status argmax_forward(tg_call *c) { return tg_reduce_run(c, TG_ARGMAX, c->out[0], c->input[0], 1); }

static const tg_sample position_samples[] = {
    {.note = "last", .params = TG_OVER(-1), .n_in = 1, .input = {TG_S(3, 5)}},
    {.note = "first, kept", .params = TG_KEEP(0), .n_in = 1, .input = {TG_S(4, 3)}},
    {.note = "transposed", .params = TG_OVER(1), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 5)}},
    {.note = "strided", .params = TG_OVER(1), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 2, 3, 4)}},
    {.note = "ties: the first", .params = TG_OVER(1), .n_in = 1, .input = {TG_S_INDEX(2, 4, 6)}},
    {.note = "size 1", .params = TG_OVER(0), .n_in = 1, .input = {TG_S(1)}},
    {.note = "no result", .params = TG_OVER(1), .n_in = 1, .input = {TG_S(0, 3)}},
    {.note = "no elements", .params = TG_OVER(1), .n_in = 1, .input = {TG_S(3, 0)}, .refused = TG_ERR_SHAPE},
    {.note = "no such dim", .params = TG_OVER(1), .n_in = 1, .input = {TG_S(3)}, .refused = TG_ERR_SHAPE},
    {.note = "big", .params = TG_OVER(-1), .n_in = 1, .input = {TG_S(1024, 1024)}, .bench = true},
};

static const tg_field position_fields[] = {
    TG_ARG_AS(tg_reduce_params, dims.dim[0], "dim", INT,
              "Dim of x; a negative number counts from the end.", .required = true),
    TG_ARG(tg_reduce_params, keepdim, BOOL, "Dim stays, with size 1."),
};

const tg_op tg_op_argmax = {
    .size = sizeof(tg_op), .name = "argmax", .formula = "where x is greatest along a dim", .inputs = "x", .n_in = 1,
    .n_out = 1, .params_size = sizeof(tg_reduce_params), .family = TG_FAMILY_REDUCE, .infer = position_infer,
    .forward = argmax_forward, .flops = tg_reduce_flops, TG_FIELDS(position_fields), .preset = TG_OVER(0),
    TG_SAMPLES(position_samples)};

/* Returns, as int64, the index along dim of the greatest element, the first of equal ones. NaN counts as the
 * greatest. */
tg_tensor *tg_argmax(tg_tape *t, tg_tensor *x, int dim, bool keepdim) {
    return TG_RECORD(t, tg_op_argmax, (&(tg_reduce_params){.dims = {.n = 1, .dim = {dim}}, .keepdim = keepdim}), x);
}

static tg_status argmin_forward(tg_call *c) { return tg_reduce_run(c, TG_ARGMIN, c->out[0], c->input[0], 1); }

const tg_op tg_op_argmin = {
    .size = sizeof(tg_op), .name = "argmin", .formula = "where x is smallest along a dim", .inputs = "x", .n_in = 1,
    .n_out = 1, .params_size = sizeof(tg_reduce_params), .family = TG_FAMILY_REDUCE, .infer = position_infer,
    .forward = argmin_forward, .flops = tg_reduce_flops, TG_FIELDS(position_fields), .preset = TG_OVER(0),
    TG_SAMPLES(position_samples)};

/* Returns, as int64, the index along dim of the smallest element, the first of equal ones. NaN counts as the
 * smallest. */
tg_tensor *tg_argmin(tg_tape *t, tg_tensor *x, int dim, bool keepdim) {
    return TG_RECORD(t, tg_op_argmin, (&(tg_reduce_params){.dims = {.n = 1, .dim = {dim}}, .keepdim = keepdim}), x);
}
