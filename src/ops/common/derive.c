/* Parts of derivatives that several ops record; see derive.h. */
#include "ops/common/derive.h"
#include "ops/common/op.h"

/* With s = sigmoid(x): s (1 + x (1 - s)). */
tg_tensor *tg_silu_slope(tg_tape *t, tg_tensor *x) {
    tg_tensor *s = tg_sigmoid(t, x);
    return tg_mul(t, s, tg_add_scalar(t, tg_mul(t, x, tg_one_minus(t, s)), 1));
}

/* Phi(x) + x phi(x), with Phi the cumulative distribution and phi the density of the normal distribution. Phi is not
 * computed as gelu(x) / x, because that divides 0 by 0 at 0. */
tg_tensor *tg_gelu_slope(tg_tape *t, tg_tensor *x) {
    tg_tensor *cdf = tg_add_scalar(t, tg_scale(t, tg_erf(t, tg_scale(t, x, 0.70710678118654752)), 0.5), 0.5);
    tg_tensor *density = tg_scale(t, tg_exp(t, tg_scale(t, tg_square(t, x), -0.5)), 0.39894228040143268);
    return tg_add(t, cdf, tg_mul(t, x, density));
}

/* With u = 2 sqrt(2/pi) (x + 0.044715 x^3) and s = sigmoid(u): s + x s (1 - s) u'. x is clamped to [-100, 100], beyond
 * which the slope is 0 or 1. */
tg_tensor *tg_gelu_tanh_slope(tg_tape *t, tg_tensor *given) {
    const double k = 1.5957691216057308;
    tg_tensor *x = tg_clamp(t, tg_wide(t, given), -100, 100), *square = tg_square(t, x);
    tg_tensor *s = tg_sigmoid(t, tg_mul(t, x, tg_add_scalar(t, tg_scale(t, square, k * 0.044715), k)));
    tg_tensor *du = tg_add_scalar(t, tg_scale(t, square, k * 0.134145), k);
    tg_tensor *slope = tg_add(t, s, tg_mul(t, tg_mul(t, x, du), tg_mul(t, s, tg_one_minus(t, s))));
    return tg_cast(t, slope, (tg_dtype)given->dtype);
}

tg_tensor *tg_power_or_0(tg_tape *t, tg_tensor *x, double p) {
    tg_tensor *zero = tg_equals(t, x, 0), *nonzero = tg_masked_fill(t, x, zero, 1);
    return tg_masked_fill(t, p == 0.5 ? tg_sqrt(t, nonzero) : tg_pow_scalar(t, nonzero, p), zero, 0);
}

tg_tensor *tg_node_kept_tensor(tg_tape *t, const tg_node *n, int k, const tg_placements *place) {
    tg_tensor *y = tg_tape_alias(t, tg_node_kept(n)[k]);
    if (!y) return tg_inert(t->ctx);
    y->place = place;
    return y;
}

tg_tensor *tg_node_kept_input(tg_tape *t, const tg_node *n, int i, int k) {
    const tg_tensor *x = tg_node_in(n)[i];
    tg_tensor *y = tg_node_kept_tensor(t, n, k, x->place);
    if (!tg_is_alive(y)) return y;
    y->node = x->node; /* the gradient of y goes where the gradient of x goes */
    y->out = x->out;
    y->flags |= x->flags & TG_F_REQUIRES_GRAD;
    return y;
}

tg_tensor *tg_norm_compose(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, double eps, bool rms) {
    tg_dtype dtype = (tg_dtype)x->dtype;
    tg_tensor *d = tg_wide(t, x);
    if (!rms) d = tg_sub(t, d, tg_mean(t, d, TG_DIMS(-1), true));
    d = tg_mul(t, d, tg_rsqrt(t, tg_add_scalar(t, tg_mean(t, tg_square(t, d), TG_DIMS(-1), true), eps)));
    if (w) d = tg_mul(t, d, tg_wide(t, w));
    if (b) d = tg_add(t, d, tg_wide(t, b));
    return tg_cast(t, d, dtype);
}

tg_status tg_steps_backward(tg_call *c) {
    for (int i = 0; i < c->n_in; i++) TG_TRY(tg_op_zero(c, i));
    return TG_OK;
}

tg_status tg_steps_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    (void)gout;
    for (int i = 0; i < tg_node_inputs(n); i++)
        if (tg_node_needs_grad(n, i)) gin[i] = tg_zeros_like(t, tg_node_in(n)[i]);
    return TG_OK;
}

tg_status tg_steps_jvp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout) {
    (void)t, (void)n, (void)din, (void)dout;
    return TG_OK; /* dout[0] stays NULL: the tangent is 0 */
}
