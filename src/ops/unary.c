/* Element-wise ops of one tensor: y = f(x). UNARY_X and UNARY_Y each define an op and its public function from two
 * formulas of kernels/scalar.h: one for y, and one for the gradient. With UNARY_X the gradient is computed from (g, x)
 * and the op saves x; with UNARY_Y it is computed from (g, y) and the op saves y. The last argument of the macros
 * records the same gradient as ops of the tape. */
#include <math.h>

#include "ops/common/derive.h"
#include "ops/unary.h"

static const tg_sample signed_samples[] = {RANGES(NULL, -2, 2, -1, 3)};
static const tg_sample positive_samples[] = {RANGES(NULL, 0.2, 3, 1, 8)};
static const tg_sample unit_samples[] = {RANGES(NULL, -0.9, 0.9, -0.5, 0.8)};
static const tg_sample nonzero_samples[] = {RANGES(NULL, 0.3, 3, -3, -0.3)};

static tg_status number_infer(tg_call *c) {
    TG_TRY(tg_need_number(c, 0));
    return tg_infer_same(c);
}

/* y = name_(x): forward is formula name_, and the gradient is formula `grad` of g and `saved`, which is x or y. */
#define UNARY(name_, text, infer_, grad, x_saved, y_saved, saved, samples_, recorded)                      \
    static tg_status name_##_forward(tg_call *c) {                                                         \
        return tg_op_map(c, TG_FN_##name_, c->out[0], TG_T1(c->input[0]), 1, 0, 0, false);                 \
    }                                                                                                      \
    static tg_status name_##_backward(tg_call *c) {                                                        \
        return tg_op_map_grad(c, 0, TG_FN_##grad, TG_T2(c->gout[0], saved), 2, 0, 0);                      \
    }                                                                                                      \
    TG_VJP(name_##_vjp, recorded)                                                                          \
    const tg_op tg_op_##name_ = {                                                                          \
        .size = sizeof(tg_op), .name = #name_, .formula = text, .inputs = "x", .n_in = 1, .n_out = 1,      \
        .saves_in = x_saved, .saves_out = y_saved, .family = TG_FAMILY_POINTWISE, .sums_f32 = true,        \
        .infer = infer_, .forward = name_##_forward, .backward = name_##_backward, .vjp = name_##_vjp,     \
        .jvp = tg_jvp_pointwise, TG_SAMPLES(samples_)};                                                    \
    tg_tensor *tg_##name_(tg_tape *t, tg_tensor *x) { return TG_RECORD(t, tg_op_##name_, NULL, x); }
#define UNARY_X(name, text, infer, grad, samples, recorded) \
    UNARY(name, text, infer, grad, 1, 0, c->input[0], samples, recorded)
#define UNARY_Y(name, text, infer, grad, samples, recorded) \
    UNARY(name, text, infer, grad, 0, 1, c->out[0], samples, recorded)

/* ---- Ops of floats and integers ---- */

UNARY_X(abs, "|x|", number_infer, abs_d, nonzero_samples,
        tg_mul(t, g, tg_sign(t, x)))
UNARY_X(square, "x^2", number_infer, square_d, signed_samples, tg_scale(t, tg_mul(t, g, x), 2))
UNARY_Y(relu, "max(x, 0)", number_infer, relu_d, nonzero_samples, tg_masked_fill(t, g, tg_equals(t, y, 0), 0))

/* ---- Ops of floats ---- */

static const tg_sample tan_samples[] = {RANGES(NULL, -1.2, 1.2, 2, 4.2)};
static const tg_sample above_samples[] = {RANGES(NULL, -0.7, 2, 1, 8)}; /* above -1 */
static const tg_sample beyond_samples[] = {RANGES(NULL, 1.2, 3, 4, 9)}; /* above 1 */

/* Returns 1 / sqrt(1 - x^2). The value of 1 - x^2 is computed as (1 - x) (1 + x), without cancellation, but is
 * differentiated as 1 - x^2. So its derivatives are infinite at 1 and -1, where those of the product would be NaN,
 * because one factor is 0. */
static tg_tensor *unit_slope(tg_tape *t, tg_tensor *x) {
    tg_tensor *rest = tg_one_minus(t, tg_square(t, x)), *exact = tg_mul(t, tg_one_minus(t, x), tg_add_scalar(t, x, 1));
    return tg_rsqrt(t, tg_add(t, rest, tg_detach(t, tg_sub(t, exact, rest))));
}

/* With y = tanh(ln(1 + e^x)): y + x (1 - y^2) sigmoid(x). */
static tg_tensor *mish_slope(tg_tape *t, tg_tensor *x) {
    tg_tensor *y = tg_tanh(t, tg_softplus(t, x, 1, INFINITY));
    return tg_add(t, y, tg_mul(t, x, tg_mul(t, tg_one_minus(t, tg_square(t, y)), tg_sigmoid(t, x))));
}

UNARY_Y(exp, "e^x", tg_infer_float, mul, signed_samples, tg_mul(t, g, y))
UNARY_X(log, "ln x", tg_infer_float, div, positive_samples, tg_div(t, g, x))
UNARY_Y(sqrt, "sqrt(x)", tg_infer_float, sqrt_d, positive_samples, tg_scale(t, tg_div(t, g, y), 0.5))
UNARY_Y(rsqrt, "1 / sqrt(x)", tg_infer_float, rsqrt_d, positive_samples,
        tg_scale(t, tg_mul(t, g, tg_pow_scalar(t, y, 3)), -0.5))
UNARY_Y(reciprocal, "1 / x", tg_infer_float, reciprocal_d, nonzero_samples, tg_neg(t, tg_mul(t, g, tg_square(t, y))))
UNARY_X(sin, "sin x", tg_infer_float, sin_d, signed_samples, tg_mul(t, g, tg_cos(t, x)))
UNARY_X(cos, "cos x", tg_infer_float, cos_d, signed_samples, tg_neg(t, tg_mul(t, g, tg_sin(t, x))))
UNARY_Y(tanh, "tanh x", tg_infer_float, tanh_d, signed_samples, tg_mul(t, g, tg_one_minus(t, tg_square(t, y))))
UNARY_Y(sigmoid, "1 / (1 + e^-x)", tg_infer_float, sigmoid_d, signed_samples,
        tg_mul(t, g, tg_mul(t, y, tg_one_minus(t, y))))
UNARY_X(erf, "2 / sqrt(pi) times the integral of e^(-t^2) from 0 to x", tg_infer_float, erf_d, signed_samples,
        tg_scale(t, tg_mul(t, g, tg_exp(t, tg_neg(t, tg_square(t, x)))), 1.1283791670955126))
UNARY_X(erfc, "1 - erf(x)", tg_infer_float, erfc_d, signed_samples,
        tg_scale(t, tg_mul(t, g, tg_exp(t, tg_neg(t, tg_square(t, x)))), -1.1283791670955126))
UNARY_Y(tan, "tan x", tg_infer_float, tan_d, tan_samples, tg_mul(t, g, tg_add_scalar(t, tg_square(t, y), 1)))
UNARY_X(asin, "arcsin x", tg_infer_float, asin_d, unit_samples, tg_mul(t, g, unit_slope(t, x)))
UNARY_X(acos, "arccos x", tg_infer_float, acos_d, unit_samples, tg_neg(t, tg_mul(t, g, unit_slope(t, x))))
UNARY_X(atan, "arctan x", tg_infer_float, atan_d, signed_samples,
        tg_div(t, g, tg_add_scalar(t, tg_square(t, x), 1)))
UNARY_X(asinh, "arsinh x", tg_infer_float, asinh_d, signed_samples,
        tg_mul(t, g, tg_rsqrt(t, tg_add_scalar(t, tg_square(t, x), 1))))
UNARY_X(acosh, "arcosh x", tg_infer_float, acosh_d, beyond_samples,
        tg_mul(t, g, tg_rsqrt(t, tg_mul(t, tg_add_scalar(t, x, -1), tg_add_scalar(t, x, 1)))))
UNARY_X(atanh, "artanh x", tg_infer_float, atanh_d, unit_samples,
        tg_div(t, g, tg_mul(t, tg_one_minus(t, x), tg_add_scalar(t, x, 1))))
UNARY_X(sinh, "(e^x - e^-x) / 2", tg_infer_float, sinh_d, signed_samples, tg_mul(t, g, tg_cosh(t, x)))
UNARY_X(cosh, "(e^x + e^-x) / 2", tg_infer_float, cosh_d, signed_samples, tg_mul(t, g, tg_sinh(t, x)))
UNARY_X(log1p, "ln(1 + x)", tg_infer_float, log1p_d, above_samples, tg_div(t, g, tg_add_scalar(t, x, 1)))
UNARY_X(expm1, "e^x - 1", tg_infer_float, expm1_d, signed_samples, tg_mul(t, g, tg_exp(t, x)))
UNARY_X(log2, "logarithm of x to base 2", tg_infer_float, log2_d, positive_samples,
        tg_scale(t, tg_div(t, g, x), 1.4426950408889634))
UNARY_X(log10, "logarithm of x to base 10", tg_infer_float, log10_d, positive_samples,
        tg_scale(t, tg_div(t, g, x), 0.43429448190325183))
UNARY_Y(exp2, "2^x", tg_infer_float, exp2_d, signed_samples, tg_scale(t, tg_mul(t, g, y), 0.69314718055994531))
UNARY_X(silu, "x sigmoid(x)", tg_infer_float, silu_d, signed_samples, tg_mul(t, g, tg_silu_slope(t, x)))
UNARY_X(gelu, "x (1 + erf(x / sqrt 2)) / 2", tg_infer_float, gelu_d, signed_samples,
        tg_mul(t, g, tg_gelu_slope(t, x)))
UNARY_X(gelu_tanh, "x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2", tg_infer_float, gelu_tanh_d, signed_samples,
        tg_mul(t, g, tg_gelu_tanh_slope(t, x)))

UNARY_X(mish, "x tanh(ln(1 + e^x))", tg_infer_float, mish_d, signed_samples, tg_mul(t, g, mish_slope(t, x)))
UNARY_X(log_sigmoid, "-ln(1 + e^-x)", tg_infer_float, log_sigmoid_d, signed_samples,
        tg_mul(t, g, tg_sigmoid(t, tg_neg(t, x))))
UNARY_X(softsign, "x / (1 + |x|)", tg_infer_float, softsign_d, nonzero_samples,
        tg_mul(t, g, tg_square(t, tg_reciprocal(t, tg_add_scalar(t, tg_abs(t, x), 1)))))

/* ---- Step functions: the gradient is 0 wherever it is defined, and 0 at the steps ---- */

#define STEP(name_, text, infer_, samples_)                                                                \
    static tg_status name_##_forward(tg_call *c) {                                                         \
        return tg_op_map(c, TG_FN_##name_, c->out[0], TG_T1(c->input[0]), 1, 0, 0, false);                 \
    }                                                                                                      \
    STEP_OP(name_, text, infer_, samples_)
#define STEP_OP(name_, text, infer_, samples_)                                                             \
    const tg_op tg_op_##name_ = {                                                                          \
        .size = sizeof(tg_op), .name = #name_, .formula = text, .inputs = "x", .n_in = 1, .n_out = 1,      \
        .family = TG_FAMILY_POINTWISE, .sums_f32 = true, .infer = infer_, .forward = name_##_forward,      \
        .backward = tg_steps_backward, .vjp = tg_steps_vjp, .jvp = tg_steps_jvp, TG_SAMPLES(samples_)};    \
    tg_tensor *tg_##name_(tg_tape *t, tg_tensor *x) { return TG_RECORD(t, tg_op_##name_, NULL, x); }

static const tg_sample between_samples[] = {RANGES(NULL, 1.1, 1.9, -2.9, -2.1)};
static const tg_sample near_samples[] = {RANGES(NULL, 0.6, 1.4, -2.4, -1.6)};

/* Of uint64, whose numbers have no sign, the result is whether they are not 0. */
static tg_status sign_forward(tg_call *c) {
    const tg_tensor *x = c->input[0], *y = c->out[0];
    if (x->dtype == TG_U64) return tg_op_map(c, TG_FN_logical_or, y, TG_T2(x, x), 2, 0, 0, false);
    return tg_op_map(c, TG_FN_sign, y, TG_T1(x), 1, 0, 0, false);
}

/* Returns -1, 0 or 1, the sign of a float or integer tensor; 0 for NaN. */
STEP_OP(sign, "the sign of x: -1, 0 or 1", number_infer, nonzero_samples)
/* Return the greatest integer that is at most x, the least that is at least x, the nearest (of two, the even one), and
 * x without its fraction. NaN and infinities stay. */
STEP(floor, "the greatest integer <= x", tg_infer_float, between_samples)
STEP(ceil, "the least integer >= x", tg_infer_float, between_samples)
STEP(round, "the integer nearest to x, halves to even", tg_infer_float, near_samples)
STEP(trunc, "x without its fraction", tg_infer_float, between_samples)

/* ---- Ops with a number in addition to the tensor ---- */

typedef struct affine_params {
    double a, b;
} affine_params;

static tg_status affine_forward(tg_call *c) {
    const affine_params *p = c->params;
    return tg_op_map(c, TG_FN_affine, c->out[0], TG_T1(c->input[0]), 1, p->a, p->b, false);
}

static tg_status affine_backward(tg_call *c) {
    return tg_op_sum_to(c, 0, c->gout[0], ((const affine_params *)c->params)->a);
}

static tg_status neg_forward(tg_call *c) { return tg_op_map(c, TG_FN_neg, c->out[0], TG_T1(c->input[0]), 1, 0, 0,
                                                            false); }

static tg_status neg_backward(tg_call *c) { return tg_op_sum_to(c, 0, c->gout[0], -1); }

TG_VJP(neg_vjp, tg_neg(t, g))

const tg_op tg_op_neg = {
    .size = sizeof(tg_op), .name = "neg", .formula = "-x", .inputs = "x", .n_in = 1, .n_out = 1,
    .family = TG_FAMILY_SCALE, .sums_f32 = true, .infer = number_infer, .forward = neg_forward,
    .backward = neg_backward, .vjp = neg_vjp, .jvp = tg_jvp_linear, TG_SAMPLES(signed_samples)};

/* Returns -x, for a float or integer tensor. */
tg_tensor *tg_neg(tg_tape *t, tg_tensor *x) { return TG_RECORD(t, tg_op_neg, NULL, x); }

TG_VJP(affine_vjp, tg_scale(t, g, ((const affine_params *)tg_node_params(n))->a))

static const tg_sample scale_samples[] = {RANGES((&(const affine_params){-2.5, -0.0}), -2, 2, -1, 3)};

static const tg_field scale_fields[] = {
    TG_ARG(affine_params, a, DOUBLE, "The factor.", .required = true),
};

const tg_op tg_op_scale = {
    .size = sizeof(tg_op), .name = "scale", .formula = "a x, for a number a", .inputs = "x", .n_in = 1, .n_out = 1,
    .params_size = sizeof(affine_params), .passes = 1, .family = TG_FAMILY_SCALE, .sums_f32 = true,
    .infer = tg_infer_float, .forward = affine_forward, .backward = affine_backward, .vjp = affine_vjp,
    .jvp = tg_jvp_linear, TG_FIELDS(scale_fields), .preset = &(const affine_params){.b = -0.0},
    TG_SAMPLES(scale_samples)};

/* Returns a x, for a number a. The kernel computes a x + b; b is -0, because adding 0 would turn -0 into 0. */
tg_tensor *tg_scale(tg_tape *t, tg_tensor *x, double a) {
    return TG_RECORD(t, tg_op_scale, (&(affine_params){a, -0.0}), x);
}

static tg_status add_scalar_infer(tg_call *c) {
    TG_TRY(tg_need_number(c, 0));
    TG_TRY(tg_need_value(c, (tg_dtype)c->input[0]->dtype, ((const affine_params *)c->params)->b, "b"));
    return tg_infer_same(c);
}

static const tg_sample add_scalar_samples[] = {
    RANGES((&(const affine_params){1, 0.75}), -2, 2, -1, 3),
    {.note = "integers", .params = &(const affine_params){1, -3}, .n_in = 1, .input = {TG_S_INDEX(9, 3, 4)}},
    {.note = "half of an integer", .params = &(const affine_params){1, 0.5}, .n_in = 1,
     .input = {TG_S_INDEX(9, 3)}, .refused = TG_ERR_ARGUMENT},
};

static const tg_field add_scalar_fields[] = {
    TG_ARG(affine_params, b, DOUBLE, "The number that is added.", .required = true),
};

const tg_op tg_op_add_scalar = {
    .size = sizeof(tg_op), .name = "add_scalar", .formula = "x + b, for a number b", .inputs = "x", .n_in = 1,
    .n_out = 1, .params_size = sizeof(affine_params), .passes = 1, .family = TG_FAMILY_POINTWISE, .sums_f32 = true,
    .infer = add_scalar_infer, .forward = affine_forward, .backward = affine_backward, .vjp = affine_vjp,
    .jvp = tg_jvp_pointwise, TG_FIELDS(add_scalar_fields), .preset = &(const affine_params){.a = 1},
    TG_SAMPLES(add_scalar_samples)};

/* Returns x + b for a number b. For integers, which wrap around as in tg_add, b must be representable in their
 * dtype. */
tg_tensor *tg_add_scalar(tg_tape *t, tg_tensor *x, double b) {
    return TG_RECORD(t, tg_op_add_scalar, (&(affine_params){1, b}), x);
}

typedef struct pow_params {
    double p;
} pow_params;

static tg_status pow_scalar_forward(tg_call *c) {
    return tg_op_map(c, TG_FN_pow_scalar, c->out[0], TG_T1(c->input[0]), 1, ((const pow_params *)c->params)->p, 0,
                     false);
}

static tg_status pow_scalar_backward(tg_call *c) {
    double p = ((const pow_params *)c->params)->p;
    return tg_op_map_grad(c, 0, TG_FN_pow_scalar_d, TG_T2(c->gout[0], c->input[0]), 2, p, 0);
}

/* For p = 0 the slope is 0 everywhere. At x = 0 the formula p x^(p - 1) would be 0 times infinity, which is NaN. */
static tg_tensor *pow_scalar_gradient(tg_tape *t, tg_tensor *g, tg_tensor *x, double p) {
    return p == 0 ? tg_zeros_like(t, x) : tg_mul(t, g, tg_scale(t, tg_pow_scalar(t, x, p - 1), p));
}

TG_VJP(pow_scalar_vjp, pow_scalar_gradient(t, g, x, ((const pow_params *)tg_node_params(n))->p))

static const tg_sample pow_scalar_samples[] = {
    RANGES(&(const pow_params){2.5}, 0.2, 3, 1, 4),
    {.note = "cube of signed ones", .params = &(const pow_params){3}, .n_in = 1, .input = {TG_S_IN(-2, 2, 3, 5)}},
    {.note = "negative power", .params = &(const pow_params){-1.5}, .n_in = 1, .input = {TG_S_IN(0.5, 2, 3, 5)}},
    {.note = "power 0", .params = &(const pow_params){0}, .n_in = 1, .input = {TG_S_IN(-2, 2, 4)}},
};

static const tg_field pow_scalar_fields[] = {
    TG_ARG(pow_params, p, DOUBLE, "The exponent.", .required = true),
};

const tg_op tg_op_pow_scalar = {
    .size = sizeof(tg_op), .name = "pow_scalar", .formula = "x^p, for a number p", .inputs = "x", .n_in = 1, .n_out = 1,
    .params_size = sizeof(pow_params), .saves_in = 1, .family = TG_FAMILY_POINTWISE, .sums_f32 = true,
    .infer = tg_infer_float, .forward = pow_scalar_forward, .backward = pow_scalar_backward, .vjp = pow_scalar_vjp,
    .jvp = tg_jvp_pointwise, TG_FIELDS(pow_scalar_fields), TG_SAMPLES(pow_scalar_samples)};

/* Returns x^p. The result is NaN where x is negative and finite and p is not an integer. At x = -infinity it is NaN for
 * p = 1/2 and p = -1/2, as in PyTorch, and the result of C's pow for other p. The gradient for p = 0 is 0, also at
 * x = 0. */
tg_tensor *tg_pow_scalar(tg_tape *t, tg_tensor *x, double p) {
    return TG_RECORD(t, tg_op_pow_scalar, &(pow_params){p}, x);
}

typedef struct clamp_params {
    double lo, hi;
} clamp_params;

static tg_status clamp_infer(tg_call *c) {
    const clamp_params *p = c->params;
    if (!(p->lo <= p->hi)) return tg_call_fail(c, TG_ERR_ARGUMENT, "lo is %g and hi is %g; lo must be at most hi",
                                               p->lo, p->hi);
    TG_TRY(tg_need_number(c, 0));
    /* lo = -INFINITY and hi = INFINITY restrict nothing; kernels reduce them to the range of an integer dtype. */
    if (p->lo != -INFINITY) TG_TRY(tg_need_value(c, (tg_dtype)c->input[0]->dtype, p->lo, "the lower bound"));
    if (p->hi != INFINITY) TG_TRY(tg_need_value(c, (tg_dtype)c->input[0]->dtype, p->hi, "the upper bound"));
    return tg_infer_same(c);
}

/* Clamps uint64, whose order the formula of int64 does not know, by two formulas that do. */
static tg_status clamp_u64(tg_call *c, const clamp_params *p) {
    const tg_tensor *lo = tg_call_temp(c, TG_U64, 0, NULL), *hi = tg_call_temp(c, TG_U64, 0, NULL);
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(ops->fill(c->ctx, tg_array_of(lo), p->lo));
    TG_TRY(ops->fill(c->ctx, tg_array_of(hi), p->hi));
    TG_TRY(tg_op_map(c, TG_FN_maximum, c->out[0], TG_T2(c->input[0], lo), 2, 0, 0, false));
    return tg_op_map(c, TG_FN_minimum, c->out[0], TG_T2(c->out[0], hi), 2, 0, 0, false);
}

static tg_status clamp_forward(tg_call *c) {
    const clamp_params *p = c->params;
    if (c->input[0]->dtype == TG_U64) return clamp_u64(c, p);
    return tg_op_map(c, TG_FN_clamp, c->out[0], TG_T1(c->input[0]), 1, p->lo, p->hi, false);
}

static tg_status clamp_backward(tg_call *c) {
    const clamp_params *p = c->params;
    return tg_op_map_grad(c, 0, TG_FN_clamp_d, TG_T2(c->gout[0], c->input[0]), 2, p->lo, p->hi);
}

static tg_tensor *clamp_gradient(tg_tape *t, tg_tensor *g, tg_tensor *x, const clamp_params *p) {
    return tg_masked_fill(t, g, tg_ne(t, x, tg_clamp(t, x, p->lo, p->hi)), 0);
}

TG_VJP(clamp_vjp, clamp_gradient(t, g, x, tg_node_params(n)))

static const tg_sample clamp_samples[] = {
    RANGES((&(const clamp_params){-4, 1.5}), -3, 1.4, 1.6, 3),
    {.note = "no bounds", .params = &(const clamp_params){-INFINITY, INFINITY}, .n_in = 1, .input = {TG_S(3, 4)}},
    {.note = "bounds swapped", .params = &(const clamp_params){1, -1}, .n_in = 1,
     .input = {TG_S(3)}, .refused = TG_ERR_ARGUMENT},
    {.note = "NaN bound", .params = &(const clamp_params){NAN, 1}, .n_in = 1,
     .input = {TG_S(3)}, .refused = TG_ERR_ARGUMENT},
    {.note = "integers", .params = &(const clamp_params){2, 5}, .n_in = 1, .input = {TG_S_INDEX(9, 3, 4)}},
    {.note = "integers, no lower bound", .params = &(const clamp_params){-INFINITY, 5}, .n_in = 1,
     .input = {TG_S_INDEX(9, 4)}},
    {.note = "half of an integer", .params = &(const clamp_params){0.5, 5}, .n_in = 1,
     .input = {TG_S_INDEX(9, 3)}, .refused = TG_ERR_ARGUMENT},
};

static const tg_field clamp_fields[] = {
    TG_ARG(clamp_params, lo, DOUBLE, "Lower bound.", .required = true),
    TG_ARG(clamp_params, hi, DOUBLE, "Upper bound.", .required = true),
};

const tg_op tg_op_clamp = {
    .size = sizeof(tg_op), .name = "clamp", .formula = "min(max(x, lo), hi)", .inputs = "x", .n_in = 1, .n_out = 1,
    .params_size = sizeof(clamp_params), .saves_in = 1, .family = TG_FAMILY_POINTWISE, .sums_f32 = true,
    .infer = clamp_infer, .forward = clamp_forward, .backward = clamp_backward, .vjp = clamp_vjp,
    .jvp = tg_jvp_pointwise, TG_FIELDS(clamp_fields), TG_SAMPLES(clamp_samples)};

/* Returns x limited to [lo, hi]; NaN stays NaN. The slope is 1 inside and at the bounds, so that an element at a bound
 * can leave it. It is 0 outside and where x is NaN. For an integer tensor, lo must be -INFINITY or representable in the
 * dtype of x, and hi must be INFINITY or representable. */
tg_tensor *tg_clamp(tg_tape *t, tg_tensor *x, double lo, double hi) {
    return TG_RECORD(t, tg_op_clamp, (&(clamp_params){lo, hi}), x);
}
