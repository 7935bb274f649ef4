/* Activations that take one or two numbers in addition to the tensor: leaky_relu, elu, softplus and hardtanh; and the
 * piecewise polynomials hardsigmoid and hardswish. Backward reads the input x, not the result, so that the numbers may
 * have any sign. */

#include <math.h>

#include "ops/common/derive.h"
#include "ops/unary.h"

typedef struct activation_params {
    double p, q; /* the parameters of the formula: slope; alpha; beta and threshold; or lo and hi */
} activation_params;

static tg_status forward_by(tg_call *c, tg_formula f) {
    const activation_params *a = c->params;
    return tg_op_map(c, f, c->out[0], TG_T1(c->input[0]), 1, a->p, a->q, false);
}

static tg_status backward_by(tg_call *c, tg_formula f) {
    const activation_params *a = c->params;
    return tg_op_map_grad(c, 0, f, TG_T2(c->gout[0], c->input[0]), 2, a->p, a->q);
}

/* Defines the op name_. Its forward is the formula name_, and its backward the formula name_##_d (kernels/scalar.h).
 * recorded(t, g, x, params) records the gradient. */
#define ACTIVATION(name_, text, infer_, recorded, samples_)                                                 \
    static tg_status name_##_forward(tg_call *c) { return forward_by(c, TG_FN_##name_); }                   \
    static tg_status name_##_backward(tg_call *c) { return backward_by(c, TG_FN_##name_##_d); }             \
    TG_VJP(name_##_vjp, recorded(t, g, x, tg_node_params(n)))                                               \
    const tg_op tg_op_##name_ = {                                                                           \
        .size = sizeof(tg_op), .name = #name_, .formula = text, .inputs = "x", .n_in = 1, .n_out = 1,       \
        .params_size = sizeof(activation_params), .saves_in = 1, .family = TG_FAMILY_POINTWISE,             \
        .sums_f32 = true, .infer = infer_, .forward = name_##_forward, .backward = name_##_backward,        \
        .vjp = name_##_vjp, .jvp = tg_jvp_pointwise, TG_FIELDS(name_##_fields), .preset = &name_##_preset,  \
        TG_SAMPLES(samples_)};

/* ---- leaky_relu ---- */

static tg_tensor *leaky_relu_gradient(tg_tape *t, tg_tensor *g, tg_tensor *x, const activation_params *a) {
    return tg_where(t, tg_above(t, x, 0), g, tg_scale(t, g, a->p));
}

static const tg_sample leaky_relu_samples[] = {
    RANGES(&(const activation_params){.p = 0.1}, 0.3, 3, -3, -0.3),
    {.note = "slope 0", .params = &(const activation_params){.p = 0}, .n_in = 1, .input = {TG_S_IN(-3, -0.3, 4)}},
    {.note = "negative slope", .params = &(const activation_params){.p = -2}, .n_in = 1,
     .input = {TG_S_IN(-3, -0.3, 3, 5)}},
};

static const tg_field leaky_relu_fields[] = {
    TG_ARG_AS(activation_params, p, "slope", DOUBLE, "Slope of the line where x < 0."),
};
static const activation_params leaky_relu_preset = {.p = 0.01};
ACTIVATION(leaky_relu, "x > 0 ? x : slope x", tg_infer_float, leaky_relu_gradient, leaky_relu_samples)

/* Returns x where x is above 0 and slope x elsewhere. The gradient at 0 is slope. */
tg_tensor *tg_leaky_relu(tg_tape *t, tg_tensor *x, double slope) {
    return TG_RECORD(t, tg_op_leaky_relu, &(activation_params){.p = slope}, x);
}

/* ---- elu ---- */

/* x is clamped before the exponential, because the exponential of a large x overflows, and the derivative of this
 * expression would be NaN there. */
static tg_tensor *elu_gradient(tg_tape *t, tg_tensor *g, tg_tensor *x, const activation_params *a) {
    tg_tensor *slope = tg_scale(t, tg_exp(t, tg_clamp(t, x, -INFINITY, 0)), a->p);
    return tg_where(t, tg_above(t, x, 0), g, tg_mul(t, g, slope));
}

static const tg_sample elu_samples[] = {
    RANGES(&(const activation_params){.p = 1.5}, 0.3, 3, -3, -0.3),
    {.note = "alpha 1", .params = &(const activation_params){.p = 1}, .n_in = 1, .input = {TG_S_IN(-3, -0.3, 3, 5)}},
    {.note = "negative alpha", .params = &(const activation_params){.p = -0.5}, .n_in = 1,
     .input = {TG_S_IN(-3, -0.3, 3, 5)}},
};

static const tg_field elu_fields[] = {
    TG_ARG_AS(activation_params, p, "alpha", DOUBLE, "Distance of the lower bound from 0."),
};
static const activation_params elu_preset = {.p = 1};
ACTIVATION(elu, "x > 0 ? x : alpha (e^x - 1)", tg_infer_float, elu_gradient, elu_samples)

/* Returns x where x is above 0 and alpha (e^x - 1) elsewhere. The gradient at 0 is alpha. */
tg_tensor *tg_elu(tg_tape *t, tg_tensor *x, double alpha) {
    return TG_RECORD(t, tg_op_elu, &(activation_params){.p = alpha}, x);
}

/* ---- softplus ---- */

static tg_status softplus_infer(tg_call *c) {
    const activation_params *a = c->params;
    if (!isfinite(a->p) || a->p == 0)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "beta is %g; it must be finite and not 0", a->p);
    if (isnan(a->q)) return tg_call_fail(c, TG_ERR_ARGUMENT, "threshold is NaN; it must be a number (infinity is "
                                         "allowed)");
    return tg_infer_float(c);
}

static tg_tensor *softplus_gradient(tg_tape *t, tg_tensor *g, tg_tensor *x, const activation_params *a) {
    tg_tensor *z = tg_scale(t, x, a->p);
    return tg_where(t, tg_above(t, z, a->q), g, tg_mul(t, g, tg_sigmoid(t, z)));
}

static const tg_sample softplus_samples[] = {
    RANGES((&(const activation_params){1.5, 3}), -2, 1.9, 2.1, 4),
    {.note = "the usual", .params = &(const activation_params){1, 20}, .n_in = 1, .input = {TG_S_IN(-5, 5, 3, 5)}},
    {.note = "negative beta", .params = &(const activation_params){-2, 20}, .n_in = 1, .input = {TG_S_IN(-3, 3, 3, 5)}},
    {.note = "no threshold", .params = &(const activation_params){1, INFINITY}, .n_in = 1,
     .input = {TG_S_IN(50, 60, 4)}},
    {.note = "beta 0", .params = &(const activation_params){0, 20}, .n_in = 1,
     .input = {TG_S(3)}, .refused = TG_ERR_ARGUMENT},
    {.note = "NaN threshold", .params = &(const activation_params){1, NAN}, .n_in = 1,
     .input = {TG_S(3)}, .refused = TG_ERR_ARGUMENT},
};

static const tg_field softplus_fields[] = {
    TG_ARG_AS(activation_params, p, "beta", DOUBLE, "Steepness."),
    TG_ARG_AS(activation_params, q, "threshold", DOUBLE, "The result is x itself where beta * x is larger."),
};
static const activation_params softplus_preset = {.p = 1, .q = 20};
ACTIVATION(softplus, "ln(1 + e^(beta x)) / beta; x where beta x > threshold", softplus_infer, softplus_gradient,
           softplus_samples)

/* Returns ln(1 + e^(beta x)) / beta, and x itself where beta x is above threshold (commonly 20; infinity is
 * allowed). beta may be negative. */
tg_tensor *tg_softplus(tg_tape *t, tg_tensor *x, double beta, double threshold) {
    return TG_RECORD(t, tg_op_softplus, (&(activation_params){beta, threshold}), x);
}

/* ---- hardtanh, hardsigmoid, hardswish ---- */

/* Returns g where lo < x < hi, and 0 elsewhere. */
static tg_tensor *inside(tg_tape *t, tg_tensor *g, tg_tensor *x, double lo, double hi) {
    tg_tensor *between = tg_logical_and(t, tg_above(t, x, lo), tg_below(t, x, hi));
    return tg_where(t, between, g, tg_number_like(t, g, 0));
}

static tg_status hardtanh_infer(tg_call *c) {
    const activation_params *a = c->params;
    if (!(a->p <= a->q)) return tg_call_fail(c, TG_ERR_ARGUMENT, "lo is %g and hi is %g; lo must be at most hi", a->p,
                                             a->q);
    return tg_infer_float(c);
}

static tg_tensor *hardtanh_gradient(tg_tape *t, tg_tensor *g, tg_tensor *x, const activation_params *a) {
    return inside(t, g, x, a->p, a->q);
}

static const tg_sample hardtanh_samples[] = {
    RANGES((&(const activation_params){-1, 2}), -0.9, 1.9, 2.1, 4),
    {.note = "below", .params = &(const activation_params){0, 6}, .n_in = 1, .input = {TG_S_IN(-3, -0.3, 3, 5)}},
    {.note = "bounds swapped", .params = &(const activation_params){1, -1}, .n_in = 1, .input = {TG_S(3)},
     .refused = TG_ERR_ARGUMENT},
};

static const tg_field hardtanh_fields[] = {
    TG_ARG_AS(activation_params, p, "lo", DOUBLE, "Lower bound."),
    TG_ARG_AS(activation_params, q, "hi", DOUBLE, "Upper bound."),
};
static const activation_params hardtanh_preset = {-1, 1};
ACTIVATION(hardtanh, "min(max(x, lo), hi)", hardtanh_infer, hardtanh_gradient, hardtanh_samples)

/* Returns x limited to [lo, hi]. The gradient at the bounds is 0, unlike that of tg_clamp. */
tg_tensor *tg_hardtanh(tg_tape *t, tg_tensor *x, double lo, double hi) {
    return TG_RECORD(t, tg_op_hardtanh, (&(activation_params){lo, hi}), x);
}

static const tg_sample hard_samples[] = {
    RANGES(NULL, -2.9, 2.9, 3.1, 9),
    {.note = "below", .n_in = 1, .input = {TG_S_IN(-9, -3.1, 3, 5)}},
};

#define HARD(name_, text, recorded)                                                                              \
    static tg_status name_##_forward(tg_call *c) {                                                               \
        return tg_op_map(c, TG_FN_##name_, c->out[0], TG_T1(c->input[0]), 1, 0, 0, false);                       \
    }                                                                                                            \
    static tg_status name_##_backward(tg_call *c) {                                                              \
        return tg_op_map_grad(c, 0, TG_FN_##name_##_d, TG_T2(c->gout[0], c->input[0]), 2, 0, 0);                 \
    }                                                                                                            \
    TG_VJP(name_##_vjp, recorded)                                                                                \
    const tg_op tg_op_##name_ = {                                                                                \
        .size = sizeof(tg_op), .name = #name_, .formula = text, .inputs = "x", .n_in = 1, .n_out = 1,            \
        .saves_in = 1, .family = TG_FAMILY_POINTWISE, .sums_f32 = true, .infer = tg_infer_float,                 \
        .forward = name_##_forward, .backward = name_##_backward, .vjp = name_##_vjp, .jvp = tg_jvp_pointwise,   \
        TG_SAMPLES(hard_samples)};                                                                               \
    tg_tensor *tg_##name_(tg_tape *t, tg_tensor *x) { return TG_RECORD(t, tg_op_##name_, NULL, x); }

/* Returns the slope of hardswish: 0 where x <= -3, 1 where x >= 3, and x / 3 + 1 / 2 elsewhere, also where x is NaN. */
static tg_tensor *hardswish_slope(tg_tape *t, tg_tensor *x) {
    tg_tensor *line = tg_add_scalar(t, tg_scale(t, x, 1.0 / 3), 0.5);
    tg_tensor *low = tg_le(t, x, tg_number_like(t, x, -3)), *high = tg_ge(t, x, tg_number_like(t, x, 3));
    return tg_where(t, low, tg_number_like(t, x, 0), tg_where(t, high, tg_number_like(t, x, 1), line));
}

/* The gradients at -3 and 3 are those of the line outside. */
HARD(hardsigmoid, "min(max(x + 3, 0), 6) / 6", tg_scale(t, inside(t, g, x, -3, 3), 1.0 / 6))
HARD(hardswish, "x min(max(x + 3, 0), 6) / 6", tg_mul(t, g, hardswish_slope(t, x)))
