/* Element-wise losses of two tensors of one shape: l1, smooth_l1, huber and kl_div. */
#include <float.h>
#include <math.h>

#include "ops/common/derive.h"
#include "ops/common/elementwise_loss.h"

/* ---- l1, smooth_l1, huber ----
 *
 * With d = scale (x - y), and m = d clamped to [-w, w] where w = scale width, the loss is m (d - m / 2). If scale is 1,
 * this is d^2 / 2 in the middle, where |d| <= width, and a straight line outside. Other scales multiply that by
 * scale^2. With a width of 0 the loss is |d|.
 *
 * The loss of smooth_l1 is 1 / beta times that of huber, so its scale is 1 / sqrt(beta). If the loss were divided by
 * beta instead, d^2 would overflow or underflow for values of beta for which d^2 / beta does not. */

static const tg_elementwise_loss_params *params(const tg_call *c) { return c->params; }

/* d = scale (x - y) */
static tg_status scaled_difference(tg_call *c, tg_tensor *d, const tg_tensor *x, const tg_tensor *y) {
    double scale = params(c)->scale;
    if (scale == 1) return tg_op_map(c, TG_FN_sub, d, TG_T2(x, y), 2, 0, 0, false);
    tg_tensor *s = tg_call_temp(c, (tg_dtype)d->dtype, 0, NULL);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_ctx_ops(c->ctx)->fill(c->ctx, tg_array_of(s), scale));
    return tg_op_map(c, TG_FN_sub_mul, d, TG_T3(x, y, s), 3, 0, 0, false);
}

static tg_status distance_forward(tg_call *c) {
    double w = params(c)->width * params(c)->scale;
    tg_tensor *loss = tg_elementwise_loss_buffer(c), *d = tg_elementwise_loss_temp(c),
              *middle = w ? tg_elementwise_loss_temp(c) : NULL;
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(scaled_difference(c, d, c->input[0], c->input[1]));
    if (w) {
        TG_PUT_P(clamp, -w, w, middle, d);
        TG_PUT_P(linear_sum, 1, -0.5, d, d, middle);
        TG_PUT(mul, loss, d, middle);
    } else {
        TG_PUT(abs, loss, d);
    }
    return tg_elementwise_loss_reduce(c, loss);
}

/* gx (+)= g scale m, or g sign(d) if the width is 0; gy (+)= the negative of that. */
static tg_status distance_backward(tg_call *c) {
    double scale = params(c)->scale, w = params(c)->width * scale;
    tg_formula slope = w ? TG_FN_mul : TG_FN_abs_d;
    tg_tensor *d = tg_elementwise_loss_temp(c), *g = tg_elementwise_loss_gradient(c, scale);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(scaled_difference(c, d, c->input[0], c->input[1]));
    if (w) TG_PUT_P(clamp, -w, w, d, d);
    if (c->gin_mode[0]) TG_TRY(tg_op_map(c, slope, c->gin[0], TG_T2(g, d), 2, 0, 0, tg_adds(c, 0)));
    if (!c->gin_mode[1]) return TG_OK;
    TG_PUT(neg, d, d);
    return tg_op_map(c, slope, c->gin[1], TG_T2(g, d), 2, 0, 0, tg_adds(c, 1));
}

/* Records the parabola and the line of the loss from parts of d that are constant where the other part is the loss.
 * Derivatives of m (d - m / 2) would be NaN where d is infinite, because they have d times the derivative of m, which
 * is 0 there. A difference that is NaN is in the parabola. */
static tg_status distance_compose(tg_tape *t, const tg_node *n, tg_tensor **out) {
    const tg_elementwise_loss_params *p = tg_node_params(n);
    double w = p->width * p->scale;
    tg_tensor *d = tg_sub(t, tg_wide(t, tg_node_in(n)[0]), tg_wide(t, tg_node_in(n)[1])), *loss;
    if (p->scale != 1) d = tg_scale(t, d, p->scale);
    if (isinf(w)) { /* there is no line */
        loss = tg_scale(t, tg_square(t, d), 0.5);
    } else if (w) {
        tg_tensor *far = tg_above(t, tg_abs(t, d), w), *near = tg_logical_not(t, far);
        tg_tensor *parabola = tg_scale(t, tg_square(t, tg_masked_fill(t, d, far, 0)), 0.5);
        tg_tensor *line = tg_abs(t, tg_masked_fill(t, d, near, w / 2));
        loss = tg_add(t, parabola, tg_scale(t, tg_add_scalar(t, line, -w / 2), w));
    } else {
        loss = tg_abs(t, d);
    }
    out[0] = tg_elementwise_loss_compose(t, n, loss);
    return TG_OK;
}

TG_COMPOSED(distance)

static tg_status l1_infer(tg_call *c) {
    tg_elementwise_loss_params *p = c->params;
    p->width = 0;
    p->scale = 1;
    return tg_elementwise_loss_infer(c, TG_LOSS_NONE);
}

#define ANY(layout_, ...) TG_LOSS_IN(TG_SAMPLE_##layout_, __VA_ARGS__)
#define CONSTANT(...) {.shape = TG_S_SHAPE(__VA_ARGS__), .frozen = true}
#define PLAIN(...)                                                                                                     \
    TG_PAIR_SAMPLES(ANY, ANY, __VA_ARGS__),                                                                            \
    {.note = "a constant target", .params = TG_LOSS_P(MEAN, __VA_ARGS__), .n_in = 2,                                   \
     .input = {TG_S(2, 3), CONSTANT(2, 3)}},                                                                           \
    {.note = "scalars", .params = TG_LOSS_P(NONE, __VA_ARGS__), .n_in = 2, .input = {TG_S_SCALAR, TG_S_SCALAR}},       \
    {.note = "batch_mean", .params = TG_LOSS_P(BATCH_MEAN, __VA_ARGS__), .n_in = 2, .input = {TG_S(2, 3), TG_S(2, 3)}, \
     .refused = TG_ERR_ARGUMENT}
#define WIDTH(note_, width_, status_)                                                                                \
    {.note = note_, .params = TG_LOSS_P(MEAN, .width = width_), .n_in = 2, .input = {TG_S(2, 3), TG_S(2, 3)},        \
     .refused = TG_##status_}
#define MIDDLES                                                                                        \
    WIDTH("all in the middle", 10, OK),                                                                \
    {.note = "all outside", .params = TG_LOSS_P(NONE, .width = 0.25), .n_in = 2,                       \
     .input = {TG_S_IN(1, 2, 2, 3), TG_S_IN(-2, -1, 2, 3)}}

static const tg_sample l1_samples[] = {PLAIN(.width = 0)};

static const tg_field l1_fields[] = {
    TG_ARG(tg_elementwise_loss_params, reduction, ENUM, "How the losses of all elements become the result.",
           .of = "tg_loss_reduction"),
};

const tg_op tg_op_l1 = {
    .size = sizeof(tg_op), .name = "l1", .formula = "|x - y|", .inputs = "x y", .n_in = 2, .n_out = 1,
    .params_size = sizeof(tg_elementwise_loss_params), .saves_in = 3, .family = TG_FAMILY_LOSS, .infer = l1_infer,
    .forward = distance_forward, .backward = distance_backward, .vjp = distance_vjp, .jvp = distance_jvp,
    TG_FIELDS(l1_fields), .preset = TG_LOSS_P(MEAN, .width = 0), TG_SAMPLES(l1_samples)};

/* Returns |x - y|, reduced by mean, sum, or not at all. The gradient is 0 where x and y are equal. The loss is
 * float32 for 16-bit inputs, as all losses are; the mean of no elements is NaN. */
tg_tensor *tg_l1(tg_tape *t, tg_tensor *x, tg_tensor *y, const tg_loss_opts *opts) {
    tg_elementwise_loss_params p = tg_elementwise_loss_params_of(opts, 0);
    return TG_RECORD(t, tg_op_l1, &p, x, y);
}

/* Replaces a width below all positive numbers of the computing dtype by 0. The scale of a much smaller width would be
 * infinite in that dtype. The result is the same: no difference but 0 is in the middle. */
static tg_status smooth_l1_infer(tg_call *c) {
    tg_elementwise_loss_params *p = c->params;
    if (!(p->width >= 0 && isfinite(p->width)))
        return tg_call_fail(c, TG_ERR_ARGUMENT, "beta is %g; it must be finite and 0 or more", p->width);
    if (c->input[0]->dtype != TG_F64 && p->width < (double)FLT_TRUE_MIN) p->width = 0;
    p->scale = p->width ? 1 / sqrt(p->width) : 1;
    return tg_elementwise_loss_infer(c, TG_LOSS_NONE);
}

static const tg_sample smooth_l1_samples[] = {
    PLAIN(.width = 0.75), MIDDLES, WIDTH("beta 0", 0, OK), WIDTH("beta below 0", -1, ERR_ARGUMENT),
    WIDTH("beta inf", INFINITY, ERR_ARGUMENT),
};

static const tg_field smooth_l1_fields[] = {
    TG_ARG_AS(tg_elementwise_loss_params, width, "beta", DOUBLE, "|x - y| up to which the loss is a parabola."),
    TG_ARG(tg_elementwise_loss_params, reduction, ENUM, "How the losses of all elements become the result.",
           .of = "tg_loss_reduction"),
};

const tg_op tg_op_smooth_l1 = {
    .size = sizeof(tg_op), .name = "smooth_l1", .formula = "d = |x - y|: d < beta ? d^2 / (2 beta) : d - beta / 2",
    .inputs = "x y", .n_in = 2, .n_out = 1, .params_size = sizeof(tg_elementwise_loss_params), .saves_in = 3,
    .family = TG_FAMILY_LOSS, .infer = smooth_l1_infer, .forward = distance_forward, .backward = distance_backward,
    .vjp = distance_vjp, .jvp = distance_jvp, TG_FIELDS(smooth_l1_fields), .preset = TG_LOSS_P(MEAN, .width = 1),
    TG_SAMPLES(smooth_l1_samples)};

/* Returns, with d = |x - y|, d - beta / 2 where d is beta or more, and the parabola d^2 / (2 beta) elsewhere. beta is 0
 * or more; with 0 the result is that of tg_l1. */
tg_tensor *tg_smooth_l1(tg_tape *t, tg_tensor *x, tg_tensor *y, double beta, const tg_loss_opts *opts) {
    tg_elementwise_loss_params p = tg_elementwise_loss_params_of(opts, 0);
    p.width = beta;
    return TG_RECORD(t, tg_op_smooth_l1, &p, x, y);
}

static tg_status huber_infer(tg_call *c) {
    tg_elementwise_loss_params *p = c->params;
    if (!(p->width > 0)) return tg_call_fail(c, TG_ERR_ARGUMENT, "delta is %g; it must be greater than 0", p->width);
    p->scale = 1;
    return tg_elementwise_loss_infer(c, TG_LOSS_NONE);
}

static const tg_sample huber_samples[] = {
    PLAIN(.width = 0.75), MIDDLES, WIDTH("delta inf", INFINITY, OK), WIDTH("delta 0", 0, ERR_ARGUMENT),
    WIDTH("delta is no number", NAN, ERR_ARGUMENT),
};

static const tg_field huber_fields[] = {
    TG_ARG_AS(tg_elementwise_loss_params, width, "delta", DOUBLE, "|x - y| up to which the loss is a parabola."),
    TG_ARG(tg_elementwise_loss_params, reduction, ENUM, "How the losses of all elements become the result.",
           .of = "tg_loss_reduction"),
};

const tg_op tg_op_huber = {
    .size = sizeof(tg_op), .name = "huber", .formula = "d = |x - y|: d < delta ? d^2 / 2 : delta (d - delta / 2)",
    .inputs = "x y", .n_in = 2, .n_out = 1, .params_size = sizeof(tg_elementwise_loss_params), .saves_in = 3,
    .family = TG_FAMILY_LOSS, .infer = huber_infer, .forward = distance_forward, .backward = distance_backward,
    .vjp = distance_vjp, .jvp = distance_jvp, TG_FIELDS(huber_fields), .preset = TG_LOSS_P(MEAN, .width = 1),
    TG_SAMPLES(huber_samples)};

/* Returns, with d = |x - y|, d^2 / 2 where d is less than delta, and delta (d - delta / 2) elsewhere: delta times the
 * result of tg_smooth_l1. delta is above 0. */
tg_tensor *tg_huber(tg_tape *t, tg_tensor *x, tg_tensor *y, double delta, const tg_loss_opts *opts) {
    tg_elementwise_loss_params p = tg_elementwise_loss_params_of(opts, 0);
    p.width = delta;
    return TG_RECORD(t, tg_op_huber, &p, x, y);
}

/* ---- kl_div ----
 *
 * With q the target's probability, the loss is q (log q - x), and 0 where q is 0. */

static tg_status kl_div_infer(tg_call *c) { return tg_elementwise_loss_infer(c, TG_LOSS_BATCH_MEAN); }

/* Sets *q to the target's probability and *log_q to its logarithm. The target y is one of the two; the other is
 * computed in temp. */
static tg_status probabilities(tg_call *c, tg_tensor *temp, const tg_tensor **q, const tg_tensor **log_q) {
    bool log = params(c)->log_target;
    const tg_tensor *y = c->input[1];
    *q = log ? temp : y;
    *log_q = log ? y : temp;
    return tg_op_map(c, log ? TG_FN_exp : TG_FN_log, temp, TG_T1(y), 1, 0, 0, false);
}

static tg_status kl_div_forward(tg_call *c) {
    tg_tensor *loss = tg_elementwise_loss_buffer(c), *temp = tg_elementwise_loss_temp(c);
    const tg_tensor *q, *log_q;
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(probabilities(c, temp, &q, &log_q));
    TG_PUT(sub_mul, loss, log_q, c->input[0], q);
    TG_PUT(where_da, loss, q, loss);
    return tg_elementwise_loss_reduce(c, loss);
}

/* gx (+)= -g q; gy (+)= g (log q - x + 1), times q if y is a logarithm, and 0 where q is 0. */
static tg_status kl_div_backward(tg_call *c) {
    tg_tensor *temp = tg_elementwise_loss_temp(c), *slope = tg_elementwise_loss_temp(c),
              *g = tg_elementwise_loss_gradient(c, 1);
    tg_tensor *minus = c->gin_mode[0] ? tg_elementwise_loss_gradient(c, -1) : NULL;
    const tg_tensor *q, *log_q;
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(probabilities(c, temp, &q, &log_q));
    if (c->gin_mode[0]) TG_TRY(tg_op_map(c, TG_FN_mul, c->gin[0], TG_T2(minus, q), 2, 0, 0, tg_adds(c, 0)));
    if (!c->gin_mode[1]) return TG_OK;
    TG_PUT(sub, slope, log_q, c->input[0]);
    TG_PUT_P(affine, 1, 1, slope, slope);
    TG_PUT(mul, slope, slope, g);
    if (params(c)->log_target) TG_PUT(mul, slope, slope, q);
    return tg_op_map(c, TG_FN_where_da, c->gin[1], TG_T2(q, slope), 2, 0, 0, tg_adds(c, 1));
}

/* Returns y (x0 - x), where x0 is x without a gradient: the loss where probability y is 0. Its value and its first
 * derivatives are 0, as they must be. Its mixed derivative by x and y is -1, the same as where y is not 0. Where x is
 * infinite, all of these are 0. */
static tg_tensor *loss_at_zero(tg_tape *t, tg_tensor *x, tg_tensor *y) {
    tg_tensor *d = tg_sub(t, tg_detach(t, x), x);
    return tg_mul(t, y, tg_masked_fill(t, d, tg_ne(t, d, d), 0));
}

static tg_status kl_div_compose(tg_tape *t, const tg_node *n, tg_tensor **out) {
    bool log = ((const tg_elementwise_loss_params *)tg_node_params(n))->log_target;
    tg_tensor *x = tg_wide(t, tg_node_in(n)[0]), *y = tg_wide(t, tg_node_in(n)[1]);
    tg_tensor *zero = tg_equals(t, log ? tg_exp(t, y) : y, 0), *nonzero = tg_masked_fill(t, y, zero, 1);
    tg_tensor *loss = tg_mul(t, log ? tg_exp(t, nonzero) : nonzero, tg_sub(t, log ? nonzero : tg_log(t, nonzero), x));
    loss = log ? tg_masked_fill(t, loss, zero, 0) : tg_where(t, zero, loss_at_zero(t, x, y), loss);
    out[0] = tg_elementwise_loss_compose(t, n, loss);
    return TG_OK;
}

TG_COMPOSED(kl_div)

#define PROBABILITY(layout_, ...) \
    {.shape = TG_S_SHAPE(__VA_ARGS__), .layout = TG_SAMPLE_##layout_, .lo = 0.05, .hi = 1}
#define LOGARITHM(layout_, ...) {.shape = TG_S_SHAPE(__VA_ARGS__), .layout = TG_SAMPLE_##layout_, .lo = -3, .hi = -0.1}

static const tg_sample kl_div_samples[] = {
    TG_PAIR_SAMPLES(LOGARITHM, PROBABILITY, .log_target = false),
    {.note = "logarithms", .params = TG_LOSS_P(MEAN, .log_target = true), .n_in = 2,
     .input = {LOGARITHM(ROWS, 3, 4), LOGARITHM(ROWS, 3, 4)}},
    {.note = "logarithms, one loss per element", .params = TG_LOSS_P(NONE, .log_target = true), .n_in = 2,
     .input = {LOGARITHM(STRIDED, 3, 4), LOGARITHM(TRANSPOSED, 3, 4)}},
    {.note = "mean over the batch", .params = TG_LOSS_P(BATCH_MEAN, .log_target = false), .n_in = 2,
     .input = {LOGARITHM(ROWS, 3, 4), PROBABILITY(ROWS, 3, 4)}},
    {.note = "logarithms, mean over the batch", .params = TG_LOSS_P(BATCH_MEAN, .log_target = true), .n_in = 2,
     .input = {LOGARITHM(ROWS, 2, 2, 3), LOGARITHM(ROWS, 2, 2, 3)}},
    {.note = "a constant target", .params = TG_LOSS_P(SUM, .log_target = false), .n_in = 2,
     .input = {LOGARITHM(ROWS, 3), {.shape = TG_S_SHAPE(3), .lo = 0.1, .hi = 1, .frozen = true}}},
    {.note = "no batch", .params = TG_LOSS_P(BATCH_MEAN, .log_target = false), .n_in = 2,
     .input = {TG_S_SCALAR, TG_S_SCALAR}, .refused = TG_ERR_SHAPE},
};

static const tg_field kl_div_fields[] = {
    TG_ARG(tg_elementwise_loss_params, reduction, ENUM, "How the losses of all elements become the result.",
           .of = "tg_loss_reduction"),
    TG_ARG(tg_elementwise_loss_params, log_target, BOOL, "y contains logarithms."),
};

const tg_op tg_op_kl_div = {
    .size = sizeof(tg_op), .name = "kl_div", .formula = "y (log(y) - x)", .inputs = "x y", .n_in = 2, .n_out = 1,
    .params_size = sizeof(tg_elementwise_loss_params), .saves_in = 3, .family = TG_FAMILY_LOSS, .infer = kl_div_infer,
    .forward = kl_div_forward, .backward = kl_div_backward, .vjp = kl_div_vjp, .jvp = kl_div_jvp,
    TG_FIELDS(kl_div_fields), .preset = TG_LOSS_P(MEAN, .width = 0), TG_SAMPLES(kl_div_samples)};

/* Returns the Kullback-Leibler divergence of log-probabilities x from the target distribution y. y has probabilities
 * or, with .log_target, their logarithms. Where a target probability is 0, value and gradient are 0.
 * TG_LOSS_BATCH_MEAN is the mathematical definition for a batch of distributions along dim 0; the default mean is
 * over all elements, as in PyTorch. */
tg_tensor *tg_kl_div(tg_tape *t, tg_tensor *x, tg_tensor *y, const tg_loss_opts *opts) {
    tg_elementwise_loss_params p = tg_elementwise_loss_params_of(opts, TG_LOSS_USES_LOG_TARGET);
    return TG_RECORD(t, tg_op_kl_div, &p, x, y);
}
