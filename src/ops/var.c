/* Variance and standard deviation over a set of dims. */
#include "ops/common/derive.h"
#include "ops/common/reduce.h"

enum { MEAN, DEVIATION }; /* private saved buffers, in the result's shape with reduced dims kept */

/* ---- var ---- */

static tg_status var_infer(tg_call *c) {
    const tg_tensor *x = c->input[0];
    int64_t shape[TG_MAX_DIMS];
    TG_TRY(tg_reduce_float_infer(c));
    const tg_reduce_params *p = c->params;
    if (p->correction < 0) return tg_call_fail(c, TG_ERR_ARGUMENT, "correction is %d; it must be 0 or more",
                                               p->correction);
    if (tg_reduce_group(c, x) <= p->correction)
        return tg_call_fail(c, TG_ERR_SHAPE,
                            "each group has %s and correction is %d; there must be more elements than the correction",
                            tg_count(tg_reduce_group(c, x), "element").text, p->correction);
    tg_reduce_shape(x, p->mask, true, shape);
    return tg_call_save(c, MEAN, tg_accumulate_dtype((tg_dtype)x->dtype), x->ndim, shape);
}

static double var_scale(const tg_call *c, const tg_tensor *x) {
    return 1.0 / (double)(tg_reduce_group(c, x) - tg_reduce_params_of(c)->correction);
}

/* Computes the mean, and saves it for backward. rest [shape of x] and sum [shape of the mean, float64] are temporaries.
 * If all elements are equal, the mean equals them exactly: a float32 mean is rounded from a float64 mean, and the mean
 * of x - mean is added to a float64 mean. */
static tg_status center(tg_call *c, const tg_tensor *rest, const tg_tensor *sum) {
    const tg_tensor *x = c->input[0], *mean = c->saved[MEAN];
    double scale = 1.0 / (double)tg_reduce_group(c, x);
    TG_TRY(tg_reduce_run(c, TG_SUM, sum, x, scale));
    TG_TRY(tg_op_map(c, TG_FN_id, mean, TG_T1(sum), 1, 0, 0, false));
    if (mean->dtype != TG_F64) return TG_OK;
    TG_TRY(tg_op_map(c, TG_FN_sub, rest, TG_T2(x, mean), 2, 0, 0, false));
    TG_TRY(tg_reduce_run(c, TG_SUM, sum, rest, scale));
    return tg_op_map(c, TG_FN_add, mean, TG_T2(mean, sum), 2, 0, 0, false);
}

/* Sums the squared distances from the mean. */
static tg_status var_forward(tg_call *c) {
    const tg_tensor *x = c->input[0], *mean = c->saved[MEAN];
    tg_tensor *square = tg_reduce_whole(c, x), *sum = tg_reduce_small_f64(c, x);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(center(c, square, sum));
    TG_TRY(tg_op_map(c, TG_FN_sub_square, square, TG_T2(x, mean), 2, 0, 0, false));
    return tg_reduce_run(c, TG_SUM, c->out[0], square, var_scale(c, x));
}

static tg_status var_backward(tg_call *c) {
    const tg_tensor *x = c->input[0];
    tg_tensor *g = tg_reduce_kept(c, c->gout[0], x->ndim);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    double scale = 2 * var_scale(c, x);
    return tg_op_map(c, TG_FN_sub_scaled, c->gin[0], TG_T3(x, c->saved[MEAN], g), 3, scale, 0, tg_adds(c, 0));
}

static tg_tensor *var_gradient(tg_tape *t, const tg_node *n, tg_tensor *g) {
    const tg_reduce_params *p = tg_node_params(n);
    tg_tensor *x = tg_node_in(n)[0], *mean = tg_mean(t, x, p->dims, true);
    double scale = 2.0 / (double)(tg_reduce_node_group(n) - p->correction);
    return tg_scale(t, tg_mul(t, tg_sub(t, x, mean), tg_reduce_kept_recorded(t, n, g)), scale);
}

TG_VJP(var_vjp, var_gradient(t, n, g))

#define WITH(correction_) &(const tg_reduce_params){.dims = {.n = -1}, .correction = (correction_)}
#define ROWS_WITH(correction_) &(const tg_reduce_params){.dims = TG_LIST(1), .correction = (correction_)}

static const tg_sample var_samples[] = {
    TG_REDUCE_SAMPLES,
    {.note = "unbiased", .params = ROWS_WITH(1), .n_in = 1, .input = {TG_S(3, 5)}},
    {.note = "far from 0", .params = TG_ALL, .n_in = 1, .input = {TG_S_IN(1000, 1001, 4, 5)}, .rtol = 1e-4},
    {.note = "size 1", .params = TG_OVER(0), .n_in = 1, .input = {TG_S(1, 3)}},
    {.note = "unbiased, of one", .params = WITH(1), .n_in = 1, .input = {TG_S(1)}, .refused = TG_ERR_SHAPE},
    {.note = "negative correction", .params = WITH(-1), .n_in = 1, .input = {TG_S(3)}, .refused = TG_ERR_ARGUMENT},
    {.note = "integers", .params = TG_ALL, .n_in = 1, .input = {TG_S_INDEX(4, 3)}, .refused = TG_ERR_DTYPE},
};

static const tg_field var_fields[] = {
    TG_ARG(tg_reduce_params, dims, DIMS, "The dims to reduce."),
    TG_ARG(tg_reduce_params, correction, INT,
           "Is subtracted from the number of elements; 1 gives the unbiased estimate."),
    TG_ARG(tg_reduce_params, keepdim, BOOL, "The reduced dims stay, with size 1."),
};

const tg_op tg_op_var = {
    .size = sizeof(tg_op), .name = "var", .formula = "sum of (x - mean)^2 over dims, divided by n - correction",
    .inputs = "x", .n_in = 1, .n_out = 1, .params_size = sizeof(tg_reduce_params), .saves_in = 1,
    .family = TG_FAMILY_REDUCE, .sums_f32 = true, .infer = var_infer, .forward = var_forward, .backward = var_backward,
    .vjp = var_vjp, .jvp = tg_jvp_by_vjp, .flops = tg_reduce_flops, TG_FIELDS(var_fields), .preset = WITH(1),
    TG_SAMPLES(var_samples)};

/* Returns the sum of (x - mean)^2 over dims, divided by n - correction, where n is the number of elements in the sum.
 * correction is 0 or more and less than n. A correction of 0 gives the variance of a population, and 1 the unbiased
 * estimate from a sample. */
tg_tensor *tg_var(tg_tape *t, tg_tensor *x, tg_dims dims, int correction, bool keepdim) {
    tg_reduce_params p = {.dims = dims, .keepdim = keepdim, .correction = correction};
    return TG_RECORD(t, tg_op_var, &p, x);
}

/* ---- std ---- */

static tg_status std_infer(tg_call *c) {
    const tg_tensor *x = c->input[0];
    int64_t shape[TG_MAX_DIMS];
    TG_TRY(var_infer(c));
    tg_reduce_shape(x, tg_reduce_params_of(c)->mask, true, shape);
    return tg_call_save(c, DEVIATION, tg_accumulate_dtype((tg_dtype)x->dtype), x->ndim, shape);
}

/* Computes in float64, where no square of a float32 overflows or underflows. */
static tg_status std_forward(tg_call *c) {
    const tg_tensor *x = c->input[0], *deviation = c->saved[DEVIATION];
    tg_tensor *y = tg_reduce_kept(c, c->out[0], x->ndim), *sum = tg_reduce_small_f64(c, x);
    tg_tensor *square = tg_call_temp(c, TG_F64, x->ndim, x->shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(center(c, square, sum));
    TG_TRY(tg_op_map(c, TG_FN_id, sum, TG_T1(c->saved[MEAN]), 1, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_sub_square, square, TG_T2(x, sum), 2, 0, 0, false));
    TG_TRY(tg_reduce_run(c, TG_SUM, sum, square, var_scale(c, x)));
    TG_TRY(tg_op_map(c, TG_FN_sqrt, deviation, TG_T1(sum), 1, 0, 0, false));
    return tg_op_map(c, TG_FN_id, y, TG_T1(deviation), 1, 0, 0, false);
}

/* gx = g (x - mean) / ((n - correction) y), and 0 where y is 0: elements that are all equal have no slope. */
static tg_status std_backward(tg_call *c) {
    const tg_tensor *x = c->input[0], *deviation = c->saved[DEVIATION];
    tg_tensor *g = tg_reduce_kept(c, c->gout[0], x->ndim), *share = tg_reduce_small(c, x);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_op_map(c, TG_FN_div, share, TG_T2(g, deviation), 2, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_where_da, share, TG_T2(deviation, share), 2, 0, 0, false));
    return tg_op_map(c, TG_FN_sub_scaled, c->gin[0], TG_T3(x, c->saved[MEAN], share), 3, var_scale(c, x), 0,
                     tg_adds(c, 0));
}

static tg_status std_compose(tg_tape *t, const tg_node *n, tg_tensor **out) {
    const tg_reduce_params *p = tg_node_params(n);
    tg_tensor *x = tg_node_in(n)[0];
    out[0] = tg_cast(t, tg_root_or_0(t, tg_var(t, tg_cast(t, x, TG_F64), p->dims, p->correction, p->keepdim)),
                     (tg_dtype)x->dtype);
    return TG_OK;
}

TG_COMPOSED(std)

const tg_op tg_op_std = {
    .size = sizeof(tg_op), .name = "std", .formula = "sqrt(var(x)) over dims", .inputs = "x", .n_in = 1, .n_out = 1,
    .params_size = sizeof(tg_reduce_params), .saves_in = 1, .family = TG_FAMILY_REDUCE, .sums_f32 = true,
    .infer = std_infer, .forward = std_forward, .backward = std_backward, .vjp = std_vjp, .jvp = std_jvp,
    .flops = tg_reduce_flops, TG_FIELDS(var_fields), .preset = WITH(1), TG_SAMPLES(var_samples)};

/* Returns the standard deviation over dims, the square root of tg_var. The gradient is 0 where all elements are
 * equal. */
tg_tensor *tg_std(tg_tape *t, tg_tensor *x, tg_dims dims, int correction, bool keepdim) {
    tg_reduce_params p = {.dims = dims, .keepdim = keepdim, .correction = correction};
    return TG_RECORD(t, tg_op_std, &p, x);
}
