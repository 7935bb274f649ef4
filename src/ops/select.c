/* Element-wise choice by a mask: where and masked_fill. All inputs broadcast. */
#include "ops/common/derive.h"
#include "ops/common/op.h"

/* ---- where ---- */

static tg_status where_infer(tg_call *c) {
    TG_TRY(tg_need_bool(c, 0));
    return tg_infer_broadcast(c, 1, TG_DTYPE_DEFAULT);
}

static tg_status where_forward(tg_call *c) {
    return tg_op_map(c, TG_FN_where, c->out[0], TG_T3(c->input[0], c->input[1], c->input[2]), 3, 0, 0, false);
}

static tg_status where_backward(tg_call *c) {
    TG_TRY(tg_op_map_grad(c, 1, TG_FN_where_da, TG_T2(c->input[0], c->gout[0]), 2, 0, 0));
    return tg_op_map_grad(c, 2, TG_FN_where_db, TG_T2(c->input[0], c->gout[0]), 2, 0, 0);
}

static tg_status where_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    tg_tensor *const *in = tg_node_in(n), *g = gout[0];
    tg_tensor *none = tg_number_like(t, g, 0);
    if (tg_node_needs_grad(n, 1)) gin[1] = tg_sum_to(t, tg_where(t, in[0], g, none), in[1]);
    if (tg_node_needs_grad(n, 2)) gin[2] = tg_sum_to(t, tg_where(t, in[0], none, g), in[2]);
    return TG_OK;
}

static const tg_sample where_samples[] = {
    {.note = "same shape", .n_in = 3, .input = {TG_S_BOOL(3, 5), TG_S(3, 5), TG_S(3, 5)}},
    {.note = "all stretched", .n_in = 3, .input = {TG_S_BOOL(3, 1), TG_S(2, 1, 1), TG_S(4)}},
    {.note = "condition stretched", .n_in = 3, .input = {TG_S_BOOL(5), TG_S(2, 3, 5), TG_S(3, 1)}},
    {.note = "transposed, strided", .n_in = 3,
     .input = {TG_S_BOOL(3, 5), TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 5), TG_S_AS(TG_SAMPLE_STRIDED, 3, 5)}},
    {.note = "expanded", .n_in = 3, .input = {TG_S_BOOL(3, 5), TG_S_AS(TG_SAMPLE_EXPANDED, 3, 5), TG_S_SCALAR}},
    {.note = "size 1", .n_in = 3, .input = {TG_S_BOOL(1), TG_S(1), TG_S(1)}},
    {.note = "scalars", .n_in = 3, .input = {{.kind = TG_SAMPLE_BOOL}, TG_S_SCALAR, TG_S_SCALAR}},
    {.note = "empty", .n_in = 3, .input = {TG_S_BOOL(1, 3), TG_S(0, 3), TG_S(3)}},
    {.note = "condition not bool", .n_in = 3, .input = {TG_S(3), TG_S(3), TG_S(3)}, .refused = TG_ERR_DTYPE},
    {.note = "other dtypes", .n_in = 3, .input = {TG_S_BOOL(3), TG_S(3), TG_S_INDEX(2, 3)}, .refused = TG_ERR_DTYPE},
    {.note = "no broadcast", .n_in = 3, .input = {TG_S_BOOL(2), TG_S(3), TG_S(3)}, .refused = TG_ERR_SHAPE},
    {.note = "big", .n_in = 3, .input = {TG_S_BOOL(1024, 1024), TG_S(1024, 1024), TG_S(1024, 1024)}, .bench = true},
};

const tg_op tg_op_where = {
    .size = sizeof(tg_op), .name = "where", .formula = "c ? a : b", .inputs = "c a b", .n_in = 3, .n_out = 1,
    .saves_in = 1, .family = TG_FAMILY_SELECT, .sums_f32 = true, .infer = where_infer, .forward = where_forward,
    .backward = where_backward, .vjp = where_vjp, .jvp = tg_jvp_linear, TG_SAMPLES(where_samples)};

/* Returns a where c (bool) is true and b elsewhere. An element that is not selected may be NaN: it affects neither
 * value nor gradient. */
tg_tensor *tg_where(tg_tape *t, tg_tensor *c, tg_tensor *a, tg_tensor *b) {
    return TG_RECORD(t, tg_op_where, NULL, c, a, b);
}

/* ---- masked_fill ---- */

typedef struct masked_fill_params {
    double value;
} masked_fill_params;

static tg_status masked_fill_infer(tg_call *c) {
    const tg_tensor *x = c->input[0];
    TG_TRY(tg_need_bool(c, 1));
    double value = ((const masked_fill_params *)c->params)->value;
    TG_TRY(tg_need_value(c, (tg_dtype)x->dtype, value, "the value"));
    if (value == 0) TG_TRY(tg_call_linear(c, 1));
    return tg_infer_broadcast(c, 1, (tg_dtype)x->dtype);
}

static tg_status masked_fill_forward(tg_call *c) {
    double value = ((const masked_fill_params *)c->params)->value;
    return tg_op_map(c, TG_FN_masked_fill, c->out[0], TG_T2(c->input[0], c->input[1]), 2, value, 0, false);
}

static tg_status masked_fill_backward(tg_call *c) {
    return tg_op_map_grad(c, 0, TG_FN_where_db, TG_T2(c->input[1], c->gout[0]), 2, 0, 0);
}

TG_VJP(masked_fill_vjp, tg_sum_to(t, tg_masked_fill(t, g, tg_node_in(n)[1], 0), x))

static tg_status masked_fill_jvp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout) {
    dout[0] = tg_masked_fill(t, din[0], tg_node_in(n)[1], 0);
    return TG_OK;
}

static const tg_sample masked_fill_samples[] = {
    {.note = "same shape", .params = &(const masked_fill_params){-3}, .n_in = 2, .input = {TG_S(3, 5), TG_S_BOOL(3,
                                                                                                                 5)}},
    {.note = "mask stretched", .params = &(const masked_fill_params){0.5}, .n_in = 2,
     .input = {TG_S(2, 3, 5), TG_S_BOOL(3, 1)}},
    {.note = "both stretched", .params = &(const masked_fill_params){0}, .n_in = 2,
     .input = {TG_S(3, 1), TG_S_BOOL(2, 1, 4)}},
    {.note = "transposed", .params = &(const masked_fill_params){1}, .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 5), TG_S_BOOL(5)}},
    {.note = "strided", .params = &(const masked_fill_params){1}, .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 5), TG_S_BOOL(3, 5)}},
    {.note = "expanded", .params = &(const masked_fill_params){1}, .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 5), TG_S_BOOL(3, 5)}},
    {.note = "size 1", .params = &(const masked_fill_params){2}, .n_in = 2, .input = {TG_S(1), TG_S_BOOL(1)}},
    {.note = "scalars", .params = &(const masked_fill_params){2}, .n_in = 2,
     .input = {TG_S_SCALAR, {.kind = TG_SAMPLE_BOOL}}},
    {.note = "empty", .params = &(const masked_fill_params){2}, .n_in = 2, .input = {TG_S(3, 0), TG_S_BOOL(3, 1)}},
    {.note = "mask not bool", .params = &(const masked_fill_params){2}, .n_in = 2, .input = {TG_S(3), TG_S_INDEX(2, 3)},
     .refused = TG_ERR_DTYPE},
    {.note = "no broadcast", .params = &(const masked_fill_params){2}, .n_in = 2, .input = {TG_S(3), TG_S_BOOL(2)},
     .refused = TG_ERR_SHAPE},
    {.note = "half in an integer", .params = &(const masked_fill_params){0.5}, .n_in = 2,
     .input = {TG_S_INDEX(3, 2), TG_S_BOOL(2)},
     .refused = TG_ERR_ARGUMENT},
    {.note = "big", .params = &(const masked_fill_params){-1}, .n_in = 2,
     .input = {TG_S(1024, 1024), TG_S_BOOL(1024, 1024)},
     .bench = true},
};

static const tg_field masked_fill_fields[] = {
    TG_ARG(masked_fill_params, value, DOUBLE, "Value where mask is true.", .required = true),
};

const tg_op tg_op_masked_fill = {
    .size = sizeof(tg_op), .name = "masked_fill", .formula = "mask ? value : x", .inputs = "x mask", .n_in = 2,
    .n_out = 1, .params_size = sizeof(masked_fill_params), .saves_in = 2, .family = TG_FAMILY_POINTWISE,
    .sums_f32 = true, .infer = masked_fill_infer, .forward = masked_fill_forward, .backward = masked_fill_backward,
    .vjp = masked_fill_vjp, .jvp = masked_fill_jvp, TG_FIELDS(masked_fill_fields), TG_SAMPLES(masked_fill_samples)};

/* Returns value where mask (bool) is true and x elsewhere. value may be infinite. */
tg_tensor *tg_masked_fill(tg_tape *t, tg_tensor *x, tg_tensor *mask, double value) {
    return TG_RECORD(t, tg_op_masked_fill, &(masked_fill_params){value}, x, mask);
}
