/* Gated linear units: swiglu and glu (Dauphin et al., arXiv 1612.08083; Shazeer, arXiv 2002.05202). */
#include <math.h>

#include "ops/common/derive.h"
#include "ops/common/nn_op.h"

/* ---- swiglu: y = silu(gate) up, of one shape ---- */

static tg_status swiglu_infer(tg_call *c) {
    const tg_tensor *gate = c->input[0], *up = c->input[1];
    TG_TRY(tg_need_float(c, 0));
    TG_TRY(tg_need_same_dtype(c, 0, 1));
    if (!tg_same_shape(gate, up))
        return tg_call_fail(c, TG_ERR_SHAPE, "gate and up have different shapes; they must be equal");
    if (!tg_needs(c, 0)) c->saves_in &= ~2u;
    TG_TRY(tg_call_free(c, 0, 0));
    TG_TRY(tg_call_free(c, 1, 0));
    TG_TRY(tg_call_linear(c, 2)); /* linear in up */
    return tg_infer_same(c);
}

static tg_status swiglu_forward(tg_call *c) {
    return tg_op_map(c, TG_FN_swiglu, c->out[0], TG_T2(c->input[0], c->input[1]), 2, 0, 0, false);
}

/* ggate = g up silu'(gate), gup = g silu(gate). */
static tg_status swiglu_backward(tg_call *c) {
    const tg_tensor *gate = c->input[0], *up = c->input[1], *g = c->gout[0];
    TG_TRY(tg_op_map_grad(c, 0, TG_FN_swiglu_da, TG_T3(g, gate, up), 3, 0, 0));
    return tg_op_map_grad(c, 1, TG_FN_swiglu_db, TG_T2(g, gate), 2, 0, 0);
}

static tg_status swiglu_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    tg_tensor *gate = tg_node_in(n)[0], *up = tg_node_in(n)[1], *g = gout[0];
    if (tg_node_needs_grad(n, 0)) gin[0] = tg_mul(t, tg_mul(t, g, up), tg_silu_slope(t, gate));
    if (tg_node_needs_grad(n, 1)) gin[1] = tg_mul(t, g, tg_silu(t, gate));
    return TG_OK;
}

static const tg_sample swiglu_samples[] = {
    {.note = "matrices", .n_in = 2, .input = {TG_S(3, 4), TG_S(3, 4)}},
    {.note = "wide values", .n_in = 2, .input = {TG_S_IN(-30, 30, 4, 5), TG_S_IN(-3, 3, 4, 5)}},
    {.note = "other strides", .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 4), TG_S_AS(TG_SAMPLE_STRIDED, 3, 4)}},
    {.note = "equal rows", .n_in = 2, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4), TG_S(3, 4)}},
    {.note = "scalars", .n_in = 2, .input = {TG_S_SCALAR, TG_S_SCALAR}},
    {.note = "one element", .n_in = 2, .input = {TG_S(1), TG_S(1)}},
    {.note = "empty", .n_in = 2, .input = {TG_S(2, 0), TG_S(2, 0)}},
    {.note = "gate is up", .n_in = 2, .input = {TG_S(2, 3), TG_S(2, 3)}, .aliases = true},
    {.note = "shapes differ", .n_in = 2, .input = {TG_S(2, 3), TG_S(1, 3)}, .refused = TG_ERR_SHAPE},
    {.note = "integers", .n_in = 2, .input = {TG_S_INDEX(4, 3), TG_S_INDEX(4, 3)}, .refused = TG_ERR_DTYPE},
    {.note = "512 x 8192", .n_in = 2, .input = {TG_S(512, 8192), TG_S(512, 8192)}, .bench = true},
};

const tg_op tg_op_swiglu = {
    .size = sizeof(tg_op),
    .name = "swiglu",
    .formula = "silu(gate) up",
    .inputs = "gate up",
    .n_in = 2,
    .n_out = 1,
    .saves_in = 3,
    .family = TG_FAMILY_CUSTOM,
    .infer = swiglu_infer,
    .forward = swiglu_forward,
    .backward = swiglu_backward,
    .vjp = swiglu_vjp,
    .jvp = tg_jvp_by_vjp,
    TG_SAMPLES(swiglu_samples),
};

/* Returns silu(gate) up for two tensors of one shape: the gated unit of Llama's MLP (Shazeer, arXiv 2002.05202). */
tg_tensor *tg_swiglu(tg_tape *t, tg_tensor *gate, tg_tensor *up) {
    return TG_RECORD(t, tg_op_swiglu, NULL, gate, up);
}

/* ---- glu: y = a sigmoid(b), where a and b are the halves of a dim ---- */

typedef struct glu_params {
    int dim;
} glu_params;

static int glu_dim(const void *params) { return ((const glu_params *)params)->dim; }

static tg_status glu_infer(tg_call *c) {
    const tg_tensor *x = c->input[0];
    int *dim = &((glu_params *)c->params)->dim;
    int64_t shape[TG_MAX_DIMS];
    TG_TRY(tg_need_float(c, 0));
    TG_TRY(tg_need_dim(c, 0, dim));
    memcpy(shape, x->shape, x->ndim * sizeof *shape);
    if (shape[*dim] % 2)
        return tg_call_fail(c, TG_ERR_SHAPE, "dim %d has size %lld; it must be even, to be cut into halves", *dim,
                            (long long)shape[*dim]);
    shape[*dim] /= 2;
    for (int d = 0; d < x->ndim; d++)
        if (d != *dim) TG_TRY(tg_call_role(c, 0, d, d));
    return tg_call_out(c, 0, (tg_dtype)x->dtype, x->ndim, shape);
}

/* Returns half i (0 or 1) of x along dim. */
static tg_array half_of(const tg_tensor *x, int dim, int i, tg_extent *e) {
    int64_t n = x->shape[dim] / 2;
    return tg_array_slice(tg_array_of(x), dim, i * n, n, 1, e);
}

/* y (+)= a sigmoid(b), computed as the slope of softplus at b, times a. */
static tg_status gate(tg_call *c, tg_array y, tg_array a, tg_array b, bool add) {
    return tg_ctx_ops(c->ctx)->apply(c->ctx, TG_FN_softplus_d, y, (const tg_array[]){a, b}, 2,
                                     (const double[2]){1, INFINITY}, add);
}

static tg_status glu_forward(tg_call *c) {
    tg_extent ea, eb;
    int dim = glu_dim(c->params);
    return gate(c, tg_array_of(c->out[0]), half_of(c->input[0], dim, 0, &ea), half_of(c->input[0], dim, 1, &eb), false);
}

/* ga = g sigmoid(b), gb = g a sigmoid'(b); 16-bit tensors keep the factors of gb in float32 until the last
 * product. */
static tg_status glu_backward(tg_call *c) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    const double none[2] = {0};
    tg_extent ea, eb, egin;
    const tg_tensor *x = c->input[0], *g = c->gout[0], *gin = c->gin[0];
    int dim = glu_dim(c->params);
    tg_dtype wide = tg_accumulate_dtype((tg_dtype)x->dtype);
    const tg_tensor *ga = tg_call_temp(c, wide, g->ndim, g->shape), *s = tg_call_temp(c, wide, g->ndim, g->shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    tg_array a = half_of(x, dim, 0, &ea), b = half_of(x, dim, 1, &eb);
    TG_TRY(gate(c, half_of(gin, dim, 0, &egin), tg_array_of(g), b, tg_adds(c, 0)));
    TG_TRY(ops->apply(c->ctx, TG_FN_mul, tg_array_of(ga), (const tg_array[]){tg_array_of(g), a}, 2, none, false));
    TG_TRY(ops->apply(c->ctx, TG_FN_sigmoid, tg_array_of(s), &b, 1, none, false));
    return ops->apply(c->ctx, TG_FN_sigmoid_d, half_of(gin, dim, 1, &egin),
                      (const tg_array[]){tg_array_of(ga), tg_array_of(s)}, 2, none, tg_adds(c, 0));
}

static tg_status glu_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    tg_tensor *x = tg_node_in(n)[0], *g = gout[0];
    int dim = glu_dim(tg_node_params(n));
    int64_t half = x->shape[dim] / 2;
    tg_tensor *a = tg_slice(t, x, dim, 0, half, 1), *s = tg_sigmoid(t, tg_slice(t, x, dim, half, 2 * half, 1));
    tg_tensor *ga = tg_mul(t, g, s), *gb = tg_mul(t, tg_mul(t, ga, a), tg_one_minus(t, s));
    gin[0] = tg_concat(t, (tg_tensor *[]){ga, gb}, 2, dim);
    return TG_OK;
}

#define ALONG(dim_) .params = &(const glu_params){dim_}, .n_in = 1
static const tg_sample glu_samples[] = {
    {.note = "last dim", ALONG(-1), .input = {TG_S(3, 8)}},
    {.note = "first dim", ALONG(0), .input = {TG_S(4, 3)}},
    {.note = "between", ALONG(1), .input = {TG_S(2, 6, 3)}},
    {.note = "closed and open gates", ALONG(-1), .input = {TG_S_IN(-30, 30, 4, 6)}},
    {.note = "transposed", ALONG(-1), .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 8)}},
    {.note = "strided", ALONG(-1), .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 8)}},
    {.note = "equal rows", ALONG(-1), .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 8)}},
    {.note = "two elements", ALONG(0), .input = {TG_S(2)}},
    {.note = "no rows", ALONG(-1), .input = {TG_S(0, 4)}},
    {.note = "empty halves", ALONG(-1), .input = {TG_S(3, 0)}},
    {.note = "odd", ALONG(-1), .input = {TG_S(4, 3)}, .refused = TG_ERR_SHAPE},
    {.note = "no such dim", ALONG(2), .input = {TG_S(4, 2)}, .refused = TG_ERR_SHAPE},
    {.note = "scalar", ALONG(0), .input = {TG_S_SCALAR}, .refused = TG_ERR_SHAPE},
    {.note = "integers", ALONG(-1), .input = {TG_S_INDEX(4, 4)}, .refused = TG_ERR_DTYPE},
    {.note = "512 x 8192", ALONG(-1), .input = {TG_S(512, 8192)}, .bench = true},
};

static const tg_field glu_fields[] = {
    TG_ARG(glu_params, dim, INT, "Dim of x; a negative number counts from the end."),
};

const tg_op tg_op_glu = {
    .size = sizeof(tg_op), .name = "glu", .formula = "a sigmoid(b), of the halves a, b of a dim", .inputs = "x",
    .n_in = 1, .n_out = 1, .params_size = sizeof(glu_params), .saves_in = 1, .family = TG_FAMILY_CUSTOM,
    .infer = glu_infer, .forward = glu_forward, .backward = glu_backward, .vjp = glu_vjp, .jvp = tg_jvp_by_vjp,
    TG_FIELDS(glu_fields), .preset = &(const glu_params){-1}, TG_SAMPLES(glu_samples)};

/* Returns a sigmoid(b), where a and b are the two halves of x along dim, whose size must be even. */
tg_tensor *tg_glu(tg_tape *t, tg_tensor *x, int dim) { return TG_RECORD(t, tg_op_glu, &(glu_params){dim}, x); }
