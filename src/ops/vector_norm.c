/* The p-norm over a set of dims: (sum |x|^p)^(1/p). */
#include <math.h>

#include "ops/common/derive.h"
#include "ops/common/reduce.h"

enum { NORM }; /* private saved buffer: the result before rounding, with reduced dims kept */

static bool by_extremum(const tg_reduce_params *p) { return isinf(p->p); }

static tg_status norm_infer(tg_call *c) {
    const tg_reduce_params *p = c->params;
    const tg_tensor *x = c->input[0];
    int64_t shape[TG_MAX_DIMS];
    TG_TRY(tg_reduce_float_infer(c));
    if (isnan(p->p)) return tg_call_fail(c, TG_ERR_ARGUMENT, "p is %g; it must be a number or an infinity", p->p);
    if (by_extremum(p)) TG_TRY(tg_reduce_need_some(c, "extremum"));
    else if (p->p < 0) TG_TRY(tg_reduce_need_some(c, "norm with a p below 0"));
    tg_reduce_shape(x, p->mask, true, shape);
    return tg_call_save(c, NORM, tg_accumulate_dtype((tg_dtype)x->dtype), x->ndim, shape);
}

static tg_status power(tg_call *c, const tg_tensor *x, double p) {
    return tg_op_map(c, TG_FN_pow_scalar, x, TG_T1(x), 1, p, 0, false);
}

/* Sets y to the sum of |x|^p, to the extremum of |x| if p is infinite, or to the number of elements that are not 0 if p
 * is 0. For p < 0, y must be float64: the sum is infinite if an element is 0, and must be finite if elements of a
 * float32 x are only small. */
static tg_status sum_powers(tg_call *c, double p, const tg_tensor *y) {
    const tg_tensor *x = c->input[0];
    if (p == 2) return tg_reduce_run(c, TG_SUMSQ, y, x, 1);
    tg_tensor *size = p < 0 ? tg_call_temp(c, TG_F64, x->ndim, x->shape) : tg_reduce_whole(c, x);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_op_map(c, TG_FN_abs, size, TG_T1(x), 1, 0, 0, false));
    if (isinf(p)) return tg_reduce_run(c, p > 0 ? TG_MAX : TG_MIN, y, size, 1);
    if (p == 0) {
        TG_TRY(tg_op_map(c, TG_FN_logical_not, size, TG_T1(size), 1, 0, 0, false));
        TG_TRY(tg_op_map(c, TG_FN_affine, size, TG_T1(size), 1, -1, 1, false));
    } else if (p != 1) {
        TG_TRY(power(c, size, p));
    }
    return tg_reduce_run(c, TG_SUM, y, size, 1);
}

static tg_status norm_forward(tg_call *c) {
    double p = tg_reduce_params_of(c)->p;
    const tg_tensor *norm = c->saved[NORM], *sum = p < 0 ? tg_reduce_small_f64(c, c->input[0]) : norm;
    tg_tensor *y = tg_reduce_kept(c, c->out[0], c->input[0]->ndim);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(sum_powers(c, p, sum));
    if (p == 2) TG_TRY(tg_op_map(c, TG_FN_sqrt, sum, TG_T1(sum), 1, 0, 0, false));
    else if (p != 0 && p != 1 && !isinf(p)) TG_TRY(power(c, sum, 1 / p));
    if (sum != norm) TG_TRY(tg_op_map(c, TG_FN_id, norm, TG_T1(sum), 1, 0, 0, false));
    return tg_op_map(c, TG_FN_id, y, TG_T1(norm), 1, 0, 0, false);
}

/* Elements whose magnitude is the extremum share its gradient evenly. If an element is NaN, so is the extremum; then no
 * magnitude equals it, and every gradient is 0 * (g / 0), which is NaN. */
static tg_status extremum_backward(tg_call *c, const tg_tensor *g) {
    const tg_tensor *x = c->input[0];
    tg_tensor *ties = tg_call_temp(c, TG_BOOL, x->ndim, x->shape), *size = tg_reduce_whole(c, x);
    tg_tensor *share = tg_reduce_small(c, x);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_op_map(c, TG_FN_abs, size, TG_T1(x), 1, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_eq, ties, TG_T2(size, c->saved[NORM]), 2, 0, 0, false));
    TG_TRY(tg_reduce_run(c, TG_SUM, share, ties, 1));
    TG_TRY(tg_op_map(c, TG_FN_div, share, TG_T2(g, share), 2, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_mul, size, TG_T2(ties, share), 2, 0, 0, false));
    return tg_op_map(c, TG_FN_abs_d, c->gin[0], TG_T2(size, x), 2, 0, 0, tg_adds(c, 0));
}

/* Replaces `slope`, which holds |x|, by |x|^(p - 1) y^(1 - p), for 0 < p < 1. In float32, |x| / y could underflow to 0
 * for an element much smaller than the others, and its power would be infinite. In float64 the powers of a float32 are
 * finite. */
static tg_status small_powers(tg_call *c, double p, const tg_tensor *slope) {
    tg_tensor *all = tg_reduce_small_f64(c, c->input[0]);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_op_map(c, TG_FN_id, all, TG_T1(c->saved[NORM]), 1, 0, 0, false));
    TG_TRY(power(c, all, 1 - p));
    TG_TRY(power(c, slope, p - 1));
    return tg_op_map(c, TG_FN_mul, slope, TG_T2(slope, all), 2, 0, 0, false);
}

/* For finite p other than 0: gx = g sign(x) (|x| / y)^(p - 1), and 0 where x or y is 0. For p = 0, gx is 0. */
static tg_status norm_backward(tg_call *c) {
    double p = tg_reduce_params_of(c)->p;
    const tg_tensor *x = c->input[0], *norm = c->saved[NORM];
    tg_tensor *g = tg_reduce_kept(c, c->gout[0], x->ndim);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    if (p == 0) return tg_op_zero(c, 0);
    if (isinf(p)) return extremum_backward(c, g);
    if (p == 1) return tg_op_map(c, TG_FN_abs_d, c->gin[0], TG_T2(g, x), 2, 0, 0, tg_adds(c, 0));
    if (p == 2) {
        tg_tensor *share = tg_reduce_small(c, x);
        if (!tg_ok(c->ctx)) return c->ctx->run.status;
        TG_TRY(tg_op_map(c, TG_FN_div, share, TG_T2(g, norm), 2, 0, 0, false));
        TG_TRY(tg_op_map(c, TG_FN_where_da, share, TG_T2(norm, share), 2, 0, 0, false));
        return tg_op_map(c, TG_FN_mul, c->gin[0], TG_T2(x, share), 2, 0, 0, tg_adds(c, 0));
    }
    bool small = 0 < p && p < 1; /* only then may |x| / y underflow before it is raised to a power below 0 */
    tg_tensor *slope = small ? tg_call_temp(c, TG_F64, x->ndim, x->shape) : tg_reduce_whole(c, x);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_op_map(c, TG_FN_abs, slope, TG_T1(x), 1, 0, 0, false));
    if (small) {
        TG_TRY(small_powers(c, p, slope));
    } else {
        TG_TRY(tg_op_map(c, TG_FN_div, slope, TG_T2(slope, norm), 2, 0, 0, false));
        TG_TRY(power(c, slope, p - 1));
    }
    TG_TRY(tg_op_map(c, TG_FN_abs_d, slope, TG_T2(slope, x), 2, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_mul, slope, TG_T2(slope, g), 2, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_where_da, slope, TG_T2(norm, slope), 2, 0, 0, false));
    return tg_op_map(c, TG_FN_where_da, c->gin[0], TG_T2(x, slope), 2, 0, 0, tg_adds(c, 0));
}

static tg_status norm_compose(tg_tape *t, const tg_node *n, tg_tensor **out) {
    const tg_reduce_params *p = tg_node_params(n);
    tg_tensor *x = tg_node_in(n)[0], *y;
    if (p->p == 0) return TG_OK; /* a step function has no gradient */
    x = p->p < 0 ? tg_cast(t, x, TG_F64) : tg_wide(t, x);
    if (p->p == 2) y = tg_root_or_0(t, tg_sum(t, tg_square(t, x), p->dims, p->keepdim));
    else if (by_extremum(p)) y = (p->p > 0 ? tg_max : tg_min)(t, tg_abs(t, x), p->dims, p->keepdim);
    else if (p->p == 1) y = tg_sum(t, tg_abs(t, x), p->dims, p->keepdim);
    else y = tg_power_or_0(t, tg_sum(t, tg_power_or_0(t, tg_abs(t, x), p->p), p->dims, p->keepdim), 1 / p->p);
    if (p->p < 0 && !by_extremum(p)) /* where an element is 0, norm and gradient are 0 */
        y = tg_masked_fill(t, y, tg_any(t, tg_equals(t, x, 0), p->dims, p->keepdim), 0);
    out[0] = tg_cast(t, y, (tg_dtype)tg_node_out(n)[0]->dtype);
    return TG_OK;
}

TG_COMPOSED(norm)

#define OF(p_) &(const tg_reduce_params){.dims = {.n = -1}, .p = (p_)}
#define ROWS(p_) &(const tg_reduce_params){.dims = TG_LIST(-1), .p = (p_)}
#define KEPT(p_) &(const tg_reduce_params){.dims = TG_LIST(0, 2), .keepdim = true, .p = (p_)}
#define EACH(p_)                                                                                      \
    {.note = "all, p " #p_, .params = OF(p_), .n_in = 1, .input = {TG_S(3, 5)}},                      \
    {.note = "rows, p " #p_, .params = ROWS(p_), .n_in = 1, .input = {TG_S(3, 5)}},                   \
    {.note = "kept, p " #p_, .params = KEPT(p_), .n_in = 1, .input = {TG_S_IN(0.3, 2, 2, 3, 4)}},     \
    {.note = "strided, p " #p_, .params = ROWS(p_), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 4)}}

static const tg_sample norm_samples[] = {
    EACH(2), EACH(1), EACH(3), EACH(0.5), EACH(1.5), EACH(INFINITY), EACH(-INFINITY), EACH(0), EACH(-1),
    EACH(-2.5),
    {.note = "transposed", .params = ROWS(2), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 5)}},
    {.note = "expanded", .params = ROWS(2), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 5)}},
    {.note = "size 1", .params = ROWS(2), .n_in = 1, .input = {TG_S_IN(-2, -1, 3, 1)}},
    {.note = "scalar", .params = OF(3), .n_in = 1, .input = {TG_S_SCALAR}},
    {.note = "no result", .params = ROWS(2), .n_in = 1, .input = {TG_S(0, 3)}},
    {.note = "no elements", .params = ROWS(2), .n_in = 1, .input = {TG_S(3, 0)}},
    {.note = "extremum, no elements", .params = ROWS(INFINITY), .n_in = 1, .input = {TG_S(3, 0)},
     .refused = TG_ERR_SHAPE},
    {.note = "p below 0, no elements", .params = ROWS(-1), .n_in = 1, .input = {TG_S(3, 0)}, .refused = TG_ERR_SHAPE},
    {.note = "p is NaN", .params = ROWS(NAN), .n_in = 1, .input = {TG_S(3, 5)}, .refused = TG_ERR_ARGUMENT},
    {.note = "integers", .params = ROWS(2), .n_in = 1, .input = {TG_S_INDEX(4, 3)}, .refused = TG_ERR_DTYPE},
    {.note = "big", .params = ROWS(2), .n_in = 1, .input = {TG_S(1024, 1024)}, .bench = true},
    TG_REDUCE_REFUSED,
};

static const tg_field norm_fields[] = {
    TG_ARG(tg_reduce_params, p, DOUBLE, "The power; infinite for the greatest or the least |x|."),
    TG_ARG(tg_reduce_params, dims, DIMS, "The dims to reduce."),
    TG_ARG(tg_reduce_params, keepdim, BOOL, "The reduced dims stay, with size 1."),
};

const tg_op tg_op_norm = {
    .size = sizeof(tg_op), .name = "norm", .formula = "(sum of |x|^p)^(1/p) over dims", .inputs = "x", .n_in = 1,
    .n_out = 1, .params_size = sizeof(tg_reduce_params), .saves_in = 1, .family = TG_FAMILY_REDUCE, .sums_f32 = true,
    .infer = norm_infer, .forward = norm_forward, .backward = norm_backward, .vjp = norm_vjp, .jvp = norm_jvp,
    .flops = tg_reduce_flops, TG_FIELDS(norm_fields), .preset = OF(2), TG_SAMPLES(norm_samples)};

/* Returns the p-norm over dims, for any number p or an infinity: INFINITY gives the greatest |x| and -INFINITY the
 * smallest (equal magnitudes share the gradient evenly), 0 gives the number of elements that are not 0 (with
 * gradient 0). For p < 0 the norm and its gradient are 0 where an element is 0. The gradient at x = 0 is 0, as in
 * PyTorch. */
tg_tensor *tg_norm(tg_tape *t, tg_tensor *x, double p, tg_dims dims, bool keepdim) {
    return TG_RECORD(t, tg_op_norm, (&(tg_reduce_params){.dims = dims, .keepdim = keepdim, .p = p}), x);
}
