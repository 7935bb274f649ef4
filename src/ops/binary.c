/* Arithmetic of two tensors a and b that broadcast against each other. A gradient is summed over the dims along
 * which its input was broadcast. */
#include <math.h>

#include "ops/binary.h"

static tg_status number_infer(tg_call *c) {
    TG_TRY(tg_need_number(c, 0));
    return tg_infer_broadcast(c, 0, TG_DTYPE_DEFAULT);
}

/* ---- add, sub ---- */

static const tg_sample sum_samples[] = {PAIRS(-2, 2, -2, 2), ALIASED(-2, 2)};

FORWARD(add)

static tg_status add_backward(tg_call *c) {
    TG_TRY(tg_op_sum_to(c, 0, c->gout[0], 1));
    return tg_op_sum_to(c, 1, c->gout[0], 1);
}

VJP(add, g, g)

const tg_op tg_op_add = {
    .size = sizeof(tg_op), .name = "add", .formula = "a + b", .inputs = "a b", .n_in = 2, .n_out = 1, .passes = 3,
    .family = TG_FAMILY_ADDITIVE, .sums_f32 = true, .infer = number_infer, .forward = add_forward,
    .backward = add_backward, .vjp = add_vjp, .jvp = tg_jvp_linear, TG_SAMPLES(sum_samples)};

/* Returns a + b, for floats or integers. */
PUBLIC(add)

FORWARD(sub)

static tg_status sub_backward(tg_call *c) {
    TG_TRY(tg_op_sum_to(c, 0, c->gout[0], 1));
    return tg_op_sum_to(c, 1, c->gout[0], -1);
}

VJP(sub, g, tg_neg(t, g))

const tg_op tg_op_sub = {
    .size = sizeof(tg_op), .name = "sub", .formula = "a - b", .inputs = "a b", .n_in = 2, .n_out = 1, .passes = 3,
    .family = TG_FAMILY_ADDITIVE, .sums_f32 = true, .infer = number_infer, .forward = sub_forward,
    .backward = sub_backward, .vjp = sub_vjp, .jvp = tg_jvp_linear, TG_SAMPLES(sum_samples)};

/* Returns a - b, for floats or integers. */
PUBLIC(sub)

/* ---- mul ---- */

static tg_status mul_infer(tg_call *c) {
    save_what_is_read(c, 2, 1);
    return number_infer(c);
}

FORWARD(mul)

static tg_status mul_backward(tg_call *c) {
    TG_TRY(tg_op_map_grad(c, 0, TG_FN_mul, TG_T2(c->gout[0], c->input[1]), 2, 0, 0));
    return tg_op_map_grad(c, 1, TG_FN_mul, TG_T2(c->gout[0], c->input[0]), 2, 0, 0);
}

VJP(mul, tg_mul(t, g, b), tg_mul(t, g, a))

const tg_op tg_op_mul = {
    .size = sizeof(tg_op), .name = "mul", .formula = "a b", .inputs = "a b", .n_in = 2, .n_out = 1, .saves_in = 3,
    .family = TG_FAMILY_FACTORS, .sums_f32 = true, .infer = mul_infer, .forward = mul_forward, .backward = mul_backward,
    .vjp = mul_vjp, .jvp = tg_jvp_multilinear, TG_SAMPLES(sum_samples)};

/* Returns a b element by element, for floats or integers. */
PUBLIC(mul)

/* ---- div ---- */

static tg_status div_infer(tg_call *c) {
    save_what_is_read(c, 2, 3);
    TG_TRY(tg_need_float(c, 0));
    return tg_infer_broadcast(c, 0, TG_DTYPE_DEFAULT);
}

FORWARD(div)

static tg_status div_backward(tg_call *c) {
    TG_TRY(tg_op_map_grad(c, 0, TG_FN_div, TG_T2(c->gout[0], c->input[1]), 2, 0, 0));
    return tg_op_map_grad(c, 1, TG_FN_div_db, TG_T3(c->gout[0], c->input[0], c->input[1]), 3, 0, 0);
}

VJP(div, tg_div(t, g, b), tg_neg(t, tg_mul(t, g, tg_div(t, tg_div(t, a, b), b))))

static const tg_sample div_samples[] = {
    PAIRS(-2, 2, 0.5, 2), ALIASED(0.5, 2),
    {.note = "negative divisors", .n_in = 2, .input = {ROWS(-2, 2, 3, 5), ROWS(-2, -0.5, 5)}},
    {.note = "integers", .n_in = 2, .input = {TG_S_INDEX(5, 3), TG_S_INDEX(5, 3)}, .refused = TG_ERR_DTYPE},
};

const tg_op tg_op_div = {
    .size = sizeof(tg_op), .name = "div", .formula = "a / b", .inputs = "a b", .n_in = 2, .n_out = 1, .saves_in = 3,
    .family = TG_FAMILY_QUOTIENT, .sums_f32 = true, .infer = div_infer, .forward = div_forward,
    .backward = div_backward, .vjp = div_vjp, .jvp = tg_jvp_by_vjp, TG_SAMPLES(div_samples)};

/* Returns a / b, for floats. */
PUBLIC(div)

/* ---- pow ---- */

static tg_status real_infer(tg_call *c) {
    save_what_is_read(c, 3, 3);
    TG_TRY(tg_need_float(c, 0));
    return tg_infer_broadcast(c, 0, TG_DTYPE_DEFAULT);
}

FORWARD(pow)

static tg_status pow_backward(tg_call *c) {
    TG_TRY(tg_op_map_grad(c, 0, TG_FN_pow_da, TG_T3(c->gout[0], c->input[0], c->input[1]), 3, 0, 0));
    return tg_op_map_grad(c, 1, TG_FN_pow_db, TG_T3(c->gout[0], c->input[0], c->input[1]), 3, 0, 0);
}

/* Record the gradients of a and b, with the special cases of pow_da and pow_db in scalar.h: the gradient of a is 0
 * where b is 0; the gradient of b is 0 where a is 0 and b is not negative. In these cases the arguments of the recorded
 * ops are replaced, not their results: the derivative of a result that is replaced afterward would be 0 times infinity.
 * Where b is 0, the gradient of a has the derivative g / a with respect to b. To keep this derivative, the exponent is
 * replaced there only if 1 / a is not finite. The exponent b - 1 of 16-bit tensors is computed in float32, because its
 * rounding would change the result by powers of a. */
static tg_tensor *pow_by_a(tg_tape *t, tg_tensor *g, tg_tensor *a, tg_tensor *b) {
    const tg_tensor *given = g;
    g = tg_wide(t, g), a = tg_wide(t, a), b = tg_wide(t, b);
    tg_tensor *none = tg_equals(t, b, 0), *finite = tg_below(t, tg_abs(t, tg_reciprocal(t, a)), INFINITY);
    tg_tensor *less = tg_masked_fill(t, tg_add_scalar(t, b, -1), tg_gt(t, none, finite), 0);
    return tg_narrow_like(t, tg_mul(t, g, tg_mul(t, b, tg_pow(t, a, less))), given);
}

static tg_tensor *pow_by_b(tg_tape *t, tg_tensor *g, tg_tensor *a, tg_tensor *b) {
    tg_tensor *zero = tg_equals(t, a, 0), *flat = tg_where(t, zero, tg_ge(t, b, tg_number_like(t, b, 0)), zero);
    return tg_mul(t, g, tg_mul(t, tg_pow(t, a, b), tg_log(t, tg_masked_fill(t, a, flat, 1))));
}

VJP(pow, pow_by_a(t, g, a, b), pow_by_b(t, g, a, b))

static const tg_sample pow_samples[] = {PAIRS(0.3, 2, -2, 2), ALIASED(0.3, 2)};

const tg_op tg_op_pow = {
    .size = sizeof(tg_op), .name = "pow", .formula = "a^b", .inputs = "a b", .n_in = 2, .n_out = 1, .saves_in = 3,
    .family = TG_FAMILY_POINTWISE, .sums_f32 = true, .infer = real_infer, .forward = pow_forward,
    .backward = pow_backward, .vjp = pow_vjp, .jvp = tg_jvp_by_vjp, TG_SAMPLES(pow_samples)};

/* Returns a^b, for floats: NaN where a is negative and b is not an integer. The gradient of b is 0 where a is 0 and
 * b is not negative. */
PUBLIC(pow)

/* ---- atan2, fmod ---- */

FORWARD(atan2)

static tg_status atan2_backward(tg_call *c) {
    TG_TRY(tg_op_map_grad(c, 0, TG_FN_atan2_da, TG_T3(c->gout[0], c->input[0], c->input[1]), 3, 0, 0));
    return tg_op_map_grad(c, 1, TG_FN_atan2_db, TG_T3(c->gout[0], c->input[0], c->input[1]), 3, 0, 0);
}

/* Records the gradient of a, g b / (a^2 + b^2), or that of b, -g a / (a^2 + b^2). As in scalar.h, no square
 * overflows: `most` is a or b, whichever has the greater magnitude, r is the other one divided by it, and a^2 + b^2
 * divided by most is most (1 + r^2). For 16-bit tensors this product is computed in float32, because it can be twice
 * the largest float16. At (0, 0) the gradient is 0. */
static tg_tensor *atan2_slope(tg_tape *t, tg_tensor *g, tg_tensor *a, tg_tensor *b, bool by_b) {
    const tg_tensor *given = g;
    g = tg_wide(t, g), a = tg_wide(t, a), b = tg_wide(t, b);
    tg_tensor *up = tg_abs(t, a), *along = tg_abs(t, b), *steep = tg_gt(t, up, along), *most = tg_where(t, steep, a, b);
    tg_tensor *origin = tg_equals(t, tg_add(t, up, along), 0), *one = tg_number_like(t, g, 1);
    most = tg_masked_fill(t, most, origin, 1);
    tg_tensor *r = tg_div(t, tg_where(t, steep, b, a), most);
    tg_tensor *share = by_b ? tg_neg(t, tg_where(t, steep, one, r)) : tg_where(t, steep, r, one);
    tg_tensor *slope = tg_div(t, share, tg_mul(t, most, tg_add_scalar(t, tg_square(t, r), 1)));
    return tg_narrow_like(t, tg_mul(t, g, tg_masked_fill(t, slope, origin, 0)), given);
}

VJP(atan2, atan2_slope(t, g, a, b, false), atan2_slope(t, g, a, b, true))

static const tg_sample atan2_samples[] = {
    PAIRS(-2, 2, 0.5, 2), ALIASED(0.5, 2),
    {.note = "to the left", .n_in = 2, .input = {ROWS(0.3, 2, 3, 5), ROWS(-2, -0.5, 5)}},
    {.note = "below, to the left", .n_in = 2, .input = {ROWS(-2, -0.3, 3, 5), ROWS(-2, -0.5, 5)}},
    {.note = "straight up", .n_in = 2, .input = {ROWS(1, 2, 3, 5), ROWS(-0.1, 0.1, 3, 5)}},
};

const tg_op tg_op_atan2 = {
    .size = sizeof(tg_op), .name = "atan2", .formula = "the angle of the point (b, a), in [-pi, pi]", .inputs = "a b",
    .n_in = 2,
    .n_out = 1, .saves_in = 3, .family = TG_FAMILY_POINTWISE, .sums_f32 = true, .infer = real_infer,
    .forward = atan2_forward, .backward = atan2_backward, .vjp = atan2_vjp, .jvp = tg_jvp_by_vjp,
    TG_SAMPLES(atan2_samples)};

/* Returns the angle between the axis of b and the point (b, a), for floats. Both gradients are 0 at (0, 0), and NaN
 * if a or b is NaN. */
PUBLIC(atan2)

static tg_status fmod_infer(tg_call *c) {
    save_what_is_read(c, 0, 3);
    TG_TRY(tg_need_float(c, 0));
    return tg_infer_broadcast(c, 0, TG_DTYPE_DEFAULT);
}

FORWARD(fmod)

static tg_status fmod_backward(tg_call *c) {
    TG_TRY(tg_op_sum_to(c, 0, c->gout[0], 1));
    return tg_op_map_grad(c, 1, TG_FN_fmod_db, TG_T3(c->gout[0], c->input[0], c->input[1]), 3, 0, 0);
}

/* Computes trunc(a / b) from the remainder, which is exact. trunc of the rounded quotient would be wrong where a / b
 * rounds up to an integer. */
static tg_tensor *whole_quotient(tg_tape *t, tg_tensor *a, tg_tensor *b) {
    return tg_round(t, tg_div(t, tg_sub(t, a, tg_fmod(t, a, b)), b));
}

VJP(fmod, g, tg_neg(t, tg_mul(t, g, whole_quotient(t, a, b))))

static const tg_sample fmod_samples[] = {
    PAIRS(7.2, 7.9, 2.7, 3.5),
    {.note = "negative dividends", .n_in = 2, .input = {ROWS(-7.9, -7.2, 3, 5), ROWS(2.7, 3.5, 5)}},
    {.note = "negative divisors", .n_in = 2, .input = {ROWS(4.2, 4.8, 3, 5), ROWS(-3.9, -2.5, 3, 1)}},
    {.note = "both negative, smaller", .n_in = 2, .input = {ROWS(-2, -0.3, 3, 5), ROWS(-3.9, -2.5, 3, 1)}},
};

const tg_op tg_op_fmod = {
    .size = sizeof(tg_op), .name = "fmod", .formula = "a - b trunc(a / b)", .inputs = "a b", .n_in = 2, .n_out = 1,
    .saves_in = 3, .passes = 1, .family = TG_FAMILY_POINTWISE, .sums_f32 = true, .infer = fmod_infer,
    .forward = fmod_forward, .backward = fmod_backward, .vjp = fmod_vjp, .jvp = tg_jvp_by_vjp,
    TG_SAMPLES(fmod_samples)};

/* Returns the remainder of a / b, for floats: exact, with the sign of a. The gradient of a is 1, that of b is
 * -trunc(a / b). The value and the gradient of b are NaN where b is 0 or a is infinite. */
PUBLIC(fmod)

/* ---- maximum, minimum ---- */

static tg_status extremum_infer(tg_call *c) {
    save_what_is_read(c, 3, 3);
    return number_infer(c);
}

static const tg_sample extremum_samples[] = {
    PAIRS(-2, -0.5, 0.5, 2),
    {.note = "a greater", .n_in = 2, .input = {ROWS(0.5, 2, 3, 5), ROWS(-2, 0.4, 3, 1)}},
    {.note = "mixed", .n_in = 2, .input = {ROWS(-2, 2, 4, 5), ROWS(-2, 2, 4, 5)}, .kinked = true},
};

/* Returns the gradient of one of the two inputs: g where this input wins, half of g where both are equal, 0 where it
 * loses, and NaN where either is NaN. */
static tg_tensor *share(tg_tape *t, tg_tensor *g, tg_tensor *wins, tg_tensor *ties, tg_tensor *loses) {
    tg_tensor *half = tg_number_like(t, g, 0.5), *all = tg_number_like(t, g, 1), *none = tg_number_like(t, g, 0);
    tg_tensor *less = tg_where(t, ties, half, tg_where(t, loses, none, tg_number_like(t, g, NAN)));
    return tg_mul(t, g, tg_where(t, wins, all, less));
}

/* Defines an op that selects a where wins(a, b), which is tg_gt or tg_lt. */
#define EXTREMUM(name_, text, wins)                                                                                \
    FORWARD(name_)                                                                                                 \
    static tg_status name_##_backward(tg_call *c) {                                                                \
        TG_TRY(tg_op_map_grad(c, 0, TG_FN_##name_##_da, TG_T3(c->gout[0], c->input[0], c->input[1]), 3, 0, 0));    \
        return tg_op_map_grad(c, 1, TG_FN_##name_##_db, TG_T3(c->gout[0], c->input[0], c->input[1]), 3, 0, 0);     \
    }                                                                                                              \
    VJP(name_, share(t, g, wins(t, a, b), tg_eq(t, a, b), wins(t, b, a)),                                          \
          share(t, g, wins(t, b, a), tg_eq(t, a, b), wins(t, a, b)))                                               \
    const tg_op tg_op_##name_ = {                                                                                  \
        .size = sizeof(tg_op), .name = #name_, .formula = text, .inputs = "a b", .n_in = 2, .n_out = 1,            \
        .saves_in = 3, .family = TG_FAMILY_POINTWISE, .sums_f32 = true, .infer = extremum_infer,                   \
        .forward = name_##_forward, .backward = name_##_backward, .vjp = name_##_vjp, .jvp = tg_jvp_by_vjp,        \
        TG_SAMPLES(extremum_samples)};                                                                             \
    PUBLIC(name_)

/* Return the greater and the smaller of a and b, for floats or integers. Equal elements get half the gradient each.
 * If either is NaN, the result is NaN and both gradients are NaN. */
EXTREMUM(maximum, "max(a, b)", tg_gt)
EXTREMUM(minimum, "min(a, b)", tg_lt)
