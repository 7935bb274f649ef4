/* Ops that return a tensor with the same values: cast (in another dtype), detach (without a gradient) and contiguous
 * (in row-major order). */
#include "ops/common/derive.h"
#include "ops/common/op.h"

/* Copies the input to the output, unless infer made the output a view of the input. */
static tg_status copy_forward(tg_call *c) {
    if (c->out[0]->storage == c->input[0]->storage) return TG_OK;
    return tg_op_copy(c, tg_array_of(c->out[0]), tg_array_of(c->input[0]), false);
}

static tg_status view_as_is(tg_call *c) {
    const tg_tensor *x = c->input[0];
    return tg_call_view(c, 0, 0, x->ndim, x->shape, x->stride);
}

/* ---- cast ---- */

typedef struct cast_params {
    tg_dtype dtype;
} cast_params;

static tg_status cast_infer(tg_call *c) {
    tg_dtype *d = &((cast_params *)c->params)->dtype;
    const tg_tensor *x = c->input[0];
    if (*d == TG_DTYPE_DEFAULT) *d = c->ctx->dtype;
    if (!tg_is_stored(*d))
        return tg_call_fail(c, TG_ERR_DTYPE, "dtype is %s; no tensor has this dtype", tg_dtype_name(*d));
    if (!tg_is_float(*d) && *d != x->dtype) TG_TRY(tg_call_linear(c, 0)); /* rounding is not linear */
    return *d == x->dtype ? view_as_is(c) : tg_call_out(c, 0, *d, x->ndim, x->shape);
}

static tg_status cast_backward(tg_call *c) {
    tg_tensor *g = c->gout[0];
    if (g->dtype == c->input[0]->dtype) return tg_call_pass(c, 0, g);
    const tg_tensor *x = tg_call_gin(c, 0);
    return tg_ok(c->ctx) ? tg_op_copy(c, tg_array_of(x), tg_array_of(g), tg_adds(c, 0)) : c->ctx->run.status;
}

TG_VJP(cast_vjp, tg_cast(t, g, (tg_dtype)x->dtype))

static const tg_sample cast_samples[] = {
    {.note = "to float64", .params = &(const cast_params){TG_F64}, .n_in = 1, .input = {TG_S(3, 5)}},
    {.note = "transposed", .params = &(const cast_params){TG_F64}, .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 5)}},
    {.note = "strided", .params = &(const cast_params){TG_F64}, .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 5)}},
    {.note = "from bool", .params = &(const cast_params){TG_F32}, .n_in = 1, .input = {TG_S_BOOL(7)}},
    {.note = "from indices", .params = &(const cast_params){TG_I32}, .n_in = 1, .input = {TG_S_INDEX(9, 2, 3)}},
    {.note = "size 1", .params = &(const cast_params){TG_F64}, .n_in = 1, .input = {TG_S(1)}},
    {.note = "scalar", .params = &(const cast_params){TG_F64}, .n_in = 1, .input = {TG_S_SCALAR}},
    {.note = "empty", .params = &(const cast_params){TG_F64}, .n_in = 1, .input = {TG_S(2, 0)}},
    {.note = "to float8", .params = &(const cast_params){TG_F8E4M3}, .n_in = 1, .input = {TG_S(3)}},
    {.note = "to unsigned", .params = &(const cast_params){TG_U16}, .n_in = 1, .input = {TG_S_INDEX(9, 2, 3)}},
    {.note = "to 4 bits", .params = &(const cast_params){TG_F4E2M1}, .n_in = 1, .input = {TG_S(3)},
     .refused = TG_ERR_DTYPE},
    {.note = "big", .params = &(const cast_params){TG_BF16}, .n_in = 1, .input = {TG_S(1024, 1024)}, .bench = true},
};

static const tg_field cast_fields[] = {
    TG_ARG(cast_params, dtype, DTYPE, "Dtype of the result.", .required = true),
};

const tg_op tg_op_cast = {
    .size = sizeof(tg_op), .name = "cast", .formula = "x in another dtype", .inputs = "x", .n_in = 1, .n_out = 1,
    .params_size = sizeof(cast_params), .passes = 1, .family = TG_FAMILY_SCALE, .sums_f32 = true, .moves = true,
    .infer = cast_infer, .forward = copy_forward, .backward = cast_backward, .vjp = cast_vjp, .jvp = tg_jvp_linear,
    TG_FIELDS(cast_fields), TG_SAMPLES(cast_samples)};

/* Returns x in another dtype. If x already has this dtype, returns a view of x. TG_DTYPE_DEFAULT is the context's
 * default dtype. To a float or float8, numbers are rounded to nearest even. To an integer, floats and float8 are
 * rounded toward zero and saturate, and NaN becomes 0; integers wrap around. To bool, 0 becomes false and every other
 * value true. What is too large for float8, infinity included, becomes the greatest number, 448, in f8e4m3, infinity in
 * f8e5m2 and NaN in f8e8m0; negative numbers become NaN in f8e8m0, whose values are powers of two. The gradient is
 * converted back to the dtype of x. No gradient flows through integers, bools and float8. */
tg_tensor *tg_cast(tg_tape *t, tg_tensor *x, tg_dtype dtype) {
    return TG_RECORD(t, tg_op_cast, &(cast_params){dtype}, x);
}

/* ---- detach ---- */

static const tg_sample as_is_samples[] = {
    {.note = "matrix", .n_in = 1, .input = {TG_S(3, 5)}},
    {.note = "transposed", .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 3, 4)}},
    {.note = "strided", .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 5)}},
    {.note = "expanded", .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 5)}},
    {.note = "size 1", .n_in = 1, .input = {TG_S(1)}},
    {.note = "scalar", .n_in = 1, .input = {TG_S_SCALAR}},
    {.note = "empty", .n_in = 1, .input = {TG_S(0, 3)}},
    {.note = "big", .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 1024, 1024)}, .bench = true},
};

const tg_op tg_op_detach = {
    .size = sizeof(tg_op), .name = "detach", .formula = "x, without a gradient", .inputs = "x", .n_in = 1, .n_out = 1,
    .family = TG_FAMILY_SCALE, .moves = true, .infer = view_as_is, TG_SAMPLES(as_is_samples)};

/* Returns a view of x through which no gradient flows. */
tg_tensor *tg_detach(tg_tape *t, tg_tensor *x) { return TG_RECORD(t, tg_op_detach, NULL, x); }

/* ---- contiguous ---- */

static tg_status contiguous_infer(tg_call *c) {
    return c->input[0]->flags & TG_F_CONTIGUOUS ? view_as_is(c) : tg_infer_same(c);
}

static tg_status contiguous_backward(tg_call *c) { return tg_call_pass(c, 0, c->gout[0]); }

TG_VJP(contiguous_vjp, g)

const tg_op tg_op_contiguous = {
    .size = sizeof(tg_op), .name = "contiguous", .formula = "x in row-major order", .inputs = "x", .n_in = 1,
    .n_out = 1, .passes = 1, .family = TG_FAMILY_SCALE, .sums_f32 = true, .moves = true, .infer = contiguous_infer,
    .forward = copy_forward, .backward = contiguous_backward, .vjp = contiguous_vjp, .jvp = tg_jvp_linear,
    TG_SAMPLES(as_is_samples)};

/* Returns x in row-major order without gaps: x itself if it already is, otherwise a copy. */
tg_tensor *tg_contiguous(tg_tape *t, tg_tensor *x) {
    return tg_may_return(t, x) && x->flags & TG_F_CONTIGUOUS ? x : TG_RECORD(t, tg_op_contiguous, NULL, x);
}
