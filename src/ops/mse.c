/* The mean squared error: the mean of (x - y)^2 over all elements of x and y, which have one shape. */
#include "ops/common/derive.h"
#include "ops/common/nn_op.h"

static tg_status mse_infer(tg_call *c) {
    const tg_tensor *x = c->input[0], *y = c->input[1];
    TG_TRY(tg_need_float(c, 0));
    TG_TRY(tg_need_same_dtype(c, 0, 1));
    if (!tg_same_shape(x, y))
        return tg_call_fail(c, TG_ERR_SHAPE, "x and y have different shapes; they must be equal");
    return tg_call_out(c, 0, tg_accumulate_dtype((tg_dtype)x->dtype), 0, x->shape);
}

static tg_status mse_forward(tg_call *c) {
    const tg_tensor *x = c->input[0], *y = c->input[1], *loss = c->out[0];
    tg_extent e;
    tg_tensor *squares = tg_call_temp(c, (tg_dtype)loss->dtype, x->ndim, x->shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_op_map(c, TG_FN_sub_square, squares, TG_T2(x, y), 2, 0, 0, false));
    tg_array sum = tg_array_keep(tg_array_of(loss), x->ndim, (1u << x->ndim) - 1, &e);
    return tg_ctx_ops(c->ctx)->reduce(c->ctx, TG_SUM, sum, tg_array_of(squares), 1 / (double)x->numel, false);
}

/* gx (+)= (2 / n) (x - y) g, where n is the number of elements. gy (+)= the negative of that. */
static tg_status mse_backward(tg_call *c) {
    const tg_tensor *x = c->input[0], *y = c->input[1], *g = c->gout[0];
    double scale = 2 / (double)x->numel;
    if (c->gin_mode[0]) TG_TRY(tg_op_map(c, TG_FN_sub_scaled, c->gin[0], TG_T3(x, y, g), 3, scale, 0, tg_adds(c, 0)));
    if (!c->gin_mode[1]) return TG_OK;
    return tg_op_map(c, TG_FN_sub_scaled, c->gin[1], TG_T3(x, y, g), 3, -scale, 0, tg_adds(c, 1));
}

static tg_status mse_compose(tg_tape *t, const tg_node *n, tg_tensor **out) {
    tg_tensor *x = tg_wide(t, tg_node_in(n)[0]), *y = tg_wide(t, tg_node_in(n)[1]);
    out[0] = tg_mean(t, tg_square(t, tg_sub(t, x, y)), TG_ALL_DIMS, false);
    return TG_OK;
}

TG_COMPOSED(mse)

static const tg_sample mse_samples[] = {
    {.note = "matrices", .n_in = 2, .input = {TG_S(3, 4), TG_S(3, 4)}},
    {.note = "one vector", .n_in = 2, .input = {TG_S(7), TG_S(7)}},
    {.note = "other strides", .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 4), TG_S_AS(TG_SAMPLE_STRIDED, 3, 4)}},
    {.note = "equal rows", .n_in = 2, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4), TG_S(3, 4)}},
    {.note = "a constant target", .n_in = 2, .input = {TG_S(2, 3), {.shape = TG_S_SHAPE(2, 3), .frozen = true}}},
    {.note = "scalars", .n_in = 2, .input = {TG_S_SCALAR, TG_S_SCALAR}},
    {.note = "one element", .n_in = 2, .input = {TG_S(1, 1), TG_S(1, 1)}},
    {.note = "x is y", .n_in = 2, .input = {TG_S(2, 3), TG_S(2, 3)}, .aliases = true},
    {.note = "shapes differ", .n_in = 2, .input = {TG_S(3, 4), TG_S(1, 4)}, .refused = TG_ERR_SHAPE},
    {.note = "integers", .n_in = 2, .input = {TG_S_INDEX(4, 3), TG_S_INDEX(4, 3)}, .refused = TG_ERR_DTYPE},
    {.note = "4 M elements", .n_in = 2, .input = {TG_S(2048, 2048), TG_S(2048, 2048)}, .bench = true},
};

const tg_op tg_op_mse = {
    .size = sizeof(tg_op),
    .name = "mse",
    .formula = "mean((x - y)^2)",
    .inputs = "x y",
    .n_in = 2,
    .n_out = 1,
    .saves_in = 3,
    .family = TG_FAMILY_LOSS,
    .infer = mse_infer,
    .forward = mse_forward,
    .backward = mse_backward,
    .vjp = mse_vjp,
    .jvp = mse_jvp,
    TG_SAMPLES(mse_samples),
};

/* Returns a scalar: the mean squared difference of two tensors of one shape. It is float32 for 16-bit inputs, and NaN
 * for inputs without elements. */
tg_tensor *tg_mse(tg_tape *t, tg_tensor *x, tg_tensor *y) {
    return TG_RECORD(t, tg_op_mse, NULL, x, y);
}
