#include "autograd/ops/derive.h"
#include "autograd/ops/network.h"

/* y = silu(gate) up, of one shape. */

static tg_status swiglu_infer(tg_call *c) {
    const tg_tensor *gate = c->in[0], *up = c->in[1];
    TG_TRY(tg_need_float(c, 0));
    TG_TRY(tg_need_same_dtype(c, 0, 1));
    if (gate->ndim != up->ndim || memcmp(gate->shape, up->shape, gate->ndim * sizeof *gate->shape) != 0)
        return tg_call_fail(c, TG_ERR_SHAPE, "gate and up differ: expected one shape");
    if (!tg_needs(c, 0)) c->saves_in &= ~2u;
    TG_TRY(tg_call_free(c, 0, 0));
    TG_TRY(tg_call_free(c, 1, 0));
    TG_TRY(tg_call_linear(c, 2));
    return tg_infer_same(c);
}

static tg_status swiglu_forward(tg_call *c) {
    return tg_op_map(c, TG_FN_swiglu, c->out[0], TG_T2(c->in[0], c->in[1]), 2, 0, 0, false);
}

/* ggate = g up silu'(gate), gup = g silu(gate). */
static tg_status swiglu_backward(tg_call *c) {
    const tg_tensor *gate = c->in[0], *up = c->in[1], *g = c->gout[0];
    TG_TRY(tg_op_map_grad(c, 0, TG_FN_swiglu_da, TG_T3(g, gate, up), 3, 0, 0));
    return tg_op_map_grad(c, 1, TG_FN_swiglu_db, TG_T2(g, gate), 2, 0, 0);
}

static tg_status swiglu_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    tg_tensor *gate = tg_node_in(n)[0], *up = tg_node_in(n)[1], *g = gout[0];
    if (tg_node_needs(n, 0)) gin[0] = tg_mul(t, tg_mul(t, g, up), tg_silu_slope(t, gate));
    if (tg_node_needs(n, 1)) gin[1] = tg_mul(t, g, tg_silu(t, gate));
    return TG_OK;
}

static const tg_sample swiglu_samples[] = {
    {.note = "matrices", .n_in = 2, .in = {TG_S(3, 4), TG_S(3, 4)}},
    {.note = "wide values", .n_in = 2, .in = {TG_S_IN(-30, 30, 4, 5), TG_S_IN(-3, 3, 4, 5)}},
    {.note = "other strides", .n_in = 2,
     .in = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 4), TG_S_AS(TG_SAMPLE_STRIDED, 3, 4)}},
    {.note = "equal rows", .n_in = 2, .in = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4), TG_S(3, 4)}},
    {.note = "scalars", .n_in = 2, .in = {TG_S_SCALAR, TG_S_SCALAR}},
    {.note = "one element", .n_in = 2, .in = {TG_S(1), TG_S(1)}},
    {.note = "empty", .n_in = 2, .in = {TG_S(2, 0), TG_S(2, 0)}},
    {.note = "gate is up", .n_in = 2, .in = {TG_S(2, 3), TG_S(2, 3)}, .aliases = true},
    {.note = "shapes differ", .n_in = 2, .in = {TG_S(2, 3), TG_S(1, 3)}, .refused = TG_ERR_SHAPE},
    {.note = "integers", .n_in = 2, .in = {TG_S_INDEX(4, 3), TG_S_INDEX(4, 3)}, .refused = TG_ERR_DTYPE},
    {.note = "512 x 8192", .n_in = 2, .in = {TG_S(512, 8192), TG_S(512, 8192)}, .bench = true},
};

const tg_op tg_op_swiglu = {
    .size = sizeof(tg_op),
    .name = "swiglu",
    .formula = "silu(gate) up",
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

/* silu(gate) up of two tensors of one shape: the gated unit of Llama's MLP (Shazeer, arXiv 2002.05202). */
tg_tensor *tg_swiglu(tg_tape *t, tg_tensor *gate, tg_tensor *up) {
    return TG_RECORD(t, tg_op_swiglu, NULL, gate, up);
}
