/* Ops of two tensors that divide in whole numbers: remainder, floor_divide and trunc_divide. Integers are computed in
 * float64, so the result is exact if their magnitudes are at most 2^53. */
#include "ops/binary.h"

static tg_status quotient_infer(tg_call *c) {
    TG_TRY(tg_need_number(c, 0));
    return tg_infer_broadcast(c, 0, TG_DTYPE_DEFAULT);
}

/* ---- remainder ---- */

static tg_status remainder_infer(tg_call *c) {
    save_what_is_read(c, 0, 3);
    return quotient_infer(c);
}

FORWARD(remainder)

static tg_status remainder_backward(tg_call *c) {
    TG_TRY(tg_op_sum_to(c, 0, c->gout[0], 1));
    return tg_op_map_grad(c, 1, TG_FN_remainder_db, TG_T3(c->gout[0], c->input[0], c->input[1]), 3, 0, 0);
}

VJP(remainder, g, tg_neg(t, tg_mul(t, g, tg_floor_divide(t, a, b))))

#define INTEGERS(lo_, hi_, ...) {.shape = TG_S_SHAPE(__VA_ARGS__), .kind = TG_SAMPLE_INDEX, .lo = (lo_), .hi = (hi_)}
/* Intervals in which a / b crosses no integer. */
static const tg_sample quotient_samples[] = {
    PAIRS(7.2, 7.9, 2.7, 3.5),
    {.note = "negative dividends", .n_in = 2, .input = {ROWS(-7.9, -7.2, 3, 5), ROWS(2.7, 3.5, 5)}},
    {.note = "negative divisors", .n_in = 2, .input = {ROWS(4.2, 4.8, 3, 5), ROWS(-3.9, -2.5, 3, 1)}},
    {.note = "both negative, smaller", .n_in = 2, .input = {ROWS(-2, -0.3, 3, 5), ROWS(-3.9, -2.5, 3, 1)}},
    {.note = "integers", .n_in = 2, .input = {TG_S_INDEX(90, 4, 5), INTEGERS(2, 7, 5)}},
};

const tg_op tg_op_remainder = {
    .size = sizeof(tg_op), .name = "remainder", .formula = "a - b floor(a / b)", .inputs = "a b", .n_in = 2, .n_out = 1,
    .saves_in = 3, .passes = 1, .family = TG_FAMILY_POINTWISE, .sums_f32 = true, .infer = remainder_infer,
    .forward = remainder_forward, .backward = remainder_backward, .vjp = remainder_vjp, .jvp = tg_jvp_by_vjp,
    TG_SAMPLES(quotient_samples)};

/* Returns the remainder of a / b with the sign of b, as in Python: exact, except that b is added to a remainder of the
 * other sign. The gradient of b is -floor(a / b). Where b is 0, floats give NaN and integers 0. */
PUBLIC(remainder)

/* ---- floor_divide, trunc_divide: the gradient is 0 wherever it is defined, and 0 at the steps ---- */

#define STEP(name_, text)                                                                                       \
    FORWARD(name_)                                                                                              \
    const tg_op tg_op_##name_ = {                                                                               \
        .size = sizeof(tg_op), .name = #name_, .formula = text, .inputs = "a b", .n_in = 2, .n_out = 1,         \
        .family = TG_FAMILY_POINTWISE, .sums_f32 = true, .infer = quotient_infer, .forward = name_##_forward,   \
        .backward = tg_steps_backward, .vjp = tg_steps_vjp, .jvp = tg_steps_jvp, TG_SAMPLES(quotient_samples)}; \
    PUBLIC(name_)

/* Return a / b rounded down, and a / b rounded toward 0. Where b is 0, floats give what a / b gives, and integers the
 * extremes of their dtype, or 0 for 0 / 0. */
STEP(floor_divide, "the greatest integer <= a / b")
STEP(trunc_divide, "a / b without its fraction")
