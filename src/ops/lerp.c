/* Linear interpolation between two tensors, with a tensor or a number as the weight. */
#include "ops/common/derive.h"
#include "ops/common/op.h"

/* ---- lerp ---- */

static tg_status lerp_infer(tg_call *c) {
    c->saves_in = (tg_needs(c, 0) || tg_needs(c, 1) ? 4u : 0) | (tg_needs(c, 2) ? 3u : 0);
    TG_TRY(tg_need_float(c, 0));
    TG_TRY(tg_call_linear(c, 3)); /* jointly linear in a and b, so w must not be PARTIAL */
    return tg_infer_broadcast(c, 0, TG_DTYPE_DEFAULT);
}

static tg_status lerp_forward(tg_call *c) {
    return tg_op_map(c, TG_FN_lerp, c->out[0], TG_T3(c->input[0], c->input[1], c->input[2]), 3, 0, 0, false);
}

static tg_status lerp_backward(tg_call *c) {
    TG_TRY(tg_op_map_grad(c, 0, TG_FN_one_minus_mul, TG_T2(c->gout[0], c->input[2]), 2, 0, 0));
    TG_TRY(tg_op_map_grad(c, 1, TG_FN_mul, TG_T2(c->gout[0], c->input[2]), 2, 0, 0));
    return tg_op_map_grad(c, 2, TG_FN_sub_mul, TG_T3(c->input[1], c->input[0], c->gout[0]), 3, 0, 0);
}

static tg_status lerp_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    tg_tensor *g = gout[0], *a = tg_node_in(n)[0], *b = tg_node_in(n)[1], *w = tg_node_in(n)[2];
    if (tg_node_needs_grad(n, 0)) gin[0] = tg_sum_to(t, tg_mul(t, g, tg_one_minus(t, w)), a);
    if (tg_node_needs_grad(n, 1)) gin[1] = tg_sum_to(t, tg_mul(t, g, w), b);
    if (tg_node_needs_grad(n, 2)) gin[2] = tg_sum_to(t, tg_mul(t, tg_sub(t, b, a), g), w);
    return TG_OK;
}

static const tg_sample lerp_samples[] = {
    {.note = "same shape", .n_in = 3, .input = {TG_S(3, 5), TG_S(3, 5), TG_S_IN(0.6, 1.5, 3, 5)}},
    {.note = "light weights", .n_in = 3, .input = {TG_S(3, 5), TG_S(3, 5), TG_S_IN(-0.4, 0.4, 3, 5)}},
    {.note = "all stretched", .n_in = 3, .input = {TG_S(3, 1), TG_S(2, 1, 1), TG_S_IN(0.1, 0.4, 4)}},
    {.note = "a weight for all", .n_in = 3, .input = {TG_S(2, 3), TG_S(2, 3), {.lo = 0.1, .hi = 0.9}}},
    {.note = "transposed, strided", .n_in = 3,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 5), TG_S_AS(TG_SAMPLE_STRIDED, 3, 5), TG_S(3, 5)}},
    {.note = "expanded", .n_in = 3, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 5), TG_S(3, 5), TG_S(3, 1)}},
    {.note = "size 1", .n_in = 3, .input = {TG_S(1), TG_S(1), TG_S(1)}},
    {.note = "scalars", .n_in = 3, .input = {TG_S_SCALAR, TG_S_SCALAR, TG_S_SCALAR}},
    {.note = "empty", .n_in = 3, .input = {TG_S(1, 3), TG_S(0, 3), TG_S(3)}},
    {.note = "weight a bool", .n_in = 3, .input = {TG_S(3), TG_S(3), TG_S_BOOL(3)}, .refused = TG_ERR_DTYPE},
    {.note = "integers", .n_in = 3, .input = {TG_S_INDEX(5, 3), TG_S_INDEX(5, 3), TG_S_INDEX(5, 3)},
     .refused = TG_ERR_DTYPE},
    {.note = "no broadcast", .n_in = 3, .input = {TG_S(3), TG_S(3), TG_S(2)}, .refused = TG_ERR_SHAPE},
    {.note = "big", .n_in = 3, .input = {TG_S(1024, 1024), TG_S(1024, 1024), TG_S(1024, 1024)}, .bench = true},
};

const tg_op tg_op_lerp = {
    .size = sizeof(tg_op), .name = "lerp", .formula = "a + w (b - a)", .inputs = "a b w", .n_in = 3, .n_out = 1,
    .saves_in = 7, .family = TG_FAMILY_POINTWISE, .sums_f32 = true, .infer = lerp_infer, .forward = lerp_forward,
    .backward = lerp_backward, .vjp = lerp_vjp, .jvp = tg_jvp_by_vjp, TG_SAMPLES(lerp_samples)};

/* Returns a + w (b - a), for floats. If b - a is finite, this is exactly a for w = 0 and exactly b for w = 1. */
tg_tensor *tg_lerp(tg_tape *t, tg_tensor *a, tg_tensor *b, tg_tensor *w) {
    return TG_RECORD(t, tg_op_lerp, NULL, a, b, w);
}

/* ---- lerp_scalar: an op of its own, because a weight in a 16-bit dtype would be rounded ---- */

typedef struct lerp_params {
    double w;
} lerp_params;

static double weight_of(const void *params) { return ((const lerp_params *)params)->w; }

static tg_status lerp_scalar_infer(tg_call *c) {
    TG_TRY(tg_need_float(c, 0));
    return tg_infer_broadcast(c, 0, TG_DTYPE_DEFAULT);
}

static tg_status lerp_scalar_forward(tg_call *c) {
    double w = weight_of(c->params);
    return tg_op_map(c, TG_FN_lerp_number, c->out[0], TG_T2(c->input[0], c->input[1]), 2, w, 0, false);
}

static tg_status lerp_scalar_backward(tg_call *c) {
    TG_TRY(tg_op_sum_to(c, 0, c->gout[0], 1 - weight_of(c->params)));
    return tg_op_sum_to(c, 1, c->gout[0], weight_of(c->params));
}

static tg_status lerp_scalar_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    double w = weight_of(tg_node_params(n));
    if (tg_node_needs_grad(n, 0)) gin[0] = tg_sum_to(t, tg_scale(t, gout[0], 1 - w), tg_node_in(n)[0]);
    if (tg_node_needs_grad(n, 1)) gin[1] = tg_sum_to(t, tg_scale(t, gout[0], w), tg_node_in(n)[1]);
    return TG_OK;
}

#define BY(w_) .params = &(const lerp_params){w_}, .n_in = 2
static const tg_sample lerp_scalar_samples[] = {
    {.note = "same shape", BY(0.3), .input = {TG_S(3, 5), TG_S(3, 5)}},
    {.note = "heavy", BY(0.8), .input = {TG_S(3, 5), TG_S(3, 5)}},
    {.note = "beyond b", BY(1.5), .input = {TG_S(3, 5), TG_S(3, 5)}},
    {.note = "row and column", BY(0.3), .input = {TG_S(1, 5), TG_S(3, 1)}},
    {.note = "b stretched", BY(0.7), .input = {TG_S(2, 3, 4), TG_S(4)}},
    {.note = "transposed and strided", BY(0.3),
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 5), TG_S_AS(TG_SAMPLE_STRIDED, 3, 5)}},
    {.note = "expanded", BY(0.3), .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 5), TG_S(3, 5)}},
    {.note = "size 1", BY(0.3), .input = {TG_S(1), TG_S(1)}},
    {.note = "scalars", BY(0.3), .input = {TG_S_SCALAR, TG_S_SCALAR}},
    {.note = "empty", BY(0.3), .input = {TG_S(0, 4), TG_S(1, 4)}},
    {.note = "one with itself", BY(0.3), .input = {TG_S(2, 3), TG_S(2, 3)}, .aliases = true},
    {.note = "integers", BY(0.3), .input = {TG_S_INDEX(5, 3), TG_S_INDEX(5, 3)}, .refused = TG_ERR_DTYPE},
    {.note = "no broadcast", BY(0.3), .input = {TG_S(3, 2), TG_S(3)}, .refused = TG_ERR_SHAPE},
    {.note = "big", BY(0.3), .input = {TG_S(1024, 1024), TG_S(1024, 1024)}, .bench = true},
};

static const tg_field lerp_scalar_fields[] = {
    TG_ARG(lerp_params, w, DOUBLE, "Weight of b - a.", .required = true),
};

const tg_op tg_op_lerp_scalar = {
    .size = sizeof(tg_op), .name = "lerp_scalar", .formula = "a + w (b - a), for a number w", .inputs = "a b",
    .n_in = 2, .n_out = 1, .params_size = sizeof(lerp_params), .passes = 3, .family = TG_FAMILY_ADDITIVE,
    .sums_f32 = true, .infer = lerp_scalar_infer, .forward = lerp_scalar_forward, .backward = lerp_scalar_backward,
    .vjp = lerp_scalar_vjp, .jvp = tg_jvp_linear, TG_FIELDS(lerp_scalar_fields), TG_SAMPLES(lerp_scalar_samples)};

/* Returns a + w (b - a), for floats, with a number w, which is not rounded to the tensors' dtype. */
tg_tensor *tg_lerp_scalar(tg_tape *t, tg_tensor *a, tg_tensor *b, double w) {
    return TG_RECORD(t, tg_op_lerp_scalar, &(lerp_params){w}, a, b);
}
