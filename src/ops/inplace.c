/* In-place ops. Output 0 is a new handle on the storage of input a. Input b broadcasts to the shape of a; tg_apply
 * refuses a b that shares bytes with a. Backward can read only the new value of a, so forward saves a copy of the old
 * value if backward needs it. */
#include "ops/common/derive.h"
#include "ops/common/op.h"

/* Tests that run these samples pass the result of another op as a, except for samples that must be refused. */
#define FROZEN(...) {.shape = TG_S_SHAPE(__VA_ARGS__), .frozen = true}
static const tg_sample inplace_samples[] = {
    {.note = "same shape", .n_in = 2, .input = {TG_S(3, 5), TG_S(3, 5)}},
    {.note = "row", .n_in = 2, .input = {TG_S(2, 3, 5), TG_S(5)}},
    {.note = "column", .n_in = 2, .input = {TG_S(3, 5), TG_S(3, 1)}},
    {.note = "transposed", .n_in = 2, .input = {TG_S(3, 5), TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 5)}},
    {.note = "strided", .n_in = 2, .input = {TG_S(3, 5), TG_S_AS(TG_SAMPLE_STRIDED, 3, 5)}},
    {.note = "expanded", .n_in = 2, .input = {TG_S(3, 5), TG_S_AS(TG_SAMPLE_EXPANDED, 3, 5)}},
    {.note = "size 1", .n_in = 2, .input = {TG_S(1), TG_S_SCALAR}},
    {.note = "scalars", .n_in = 2, .input = {TG_S_SCALAR, TG_S_SCALAR}},
    {.note = "empty", .n_in = 2, .input = {TG_S(0, 3), TG_S(3)}},
    {.note = "b larger", .n_in = 2, .input = {FROZEN(1, 5), FROZEN(3, 5)}, .refused = TG_ERR_SHAPE},
    {.note = "other dtypes", .n_in = 2, .input = {FROZEN(3), TG_S_INDEX(3, 3)}, .refused = TG_ERR_DTYPE},
    {.note = "a leaf with gradient", .n_in = 2, .input = {TG_S(3), FROZEN(3)}, .refused = TG_ERR_STATE},
    {.note = "a buffer, b with gradient", .n_in = 2, .input = {FROZEN(3), TG_S(3)}, .refused = TG_ERR_STATE},
    {.note = "one with itself", .n_in = 2, .input = {FROZEN(3), FROZEN(3)}, .refused = TG_ERR_STATE, .aliases = true},
    {.note = "big", .n_in = 2, .input = {TG_S(1024, 1024), TG_S(1024, 1024)}, .bench = true},
};

/* Checks that b broadcasts to the shape of a, which the result has. */
static tg_status inplace_infer(tg_call *c) {
    const tg_tensor *a = c->input[0], *b = c->input[1];
    TG_TRY(tg_need_same_dtype(c, 0, 1));
    bool fits = b->ndim <= a->ndim;
    for (int d = 0; fits && d < b->ndim; d++) fits = b->shape[d] == 1 || b->shape[d] == a->shape[a->ndim - b->ndim + d];
    if (!fits) return tg_call_fail(c, TG_ERR_SHAPE, "input 1 does not broadcast to the shape of input 0");
    return tg_infer_same(c);
}

static tg_status arithmetic_infer(tg_call *c) {
    TG_TRY(tg_need_number(c, 0));
    return inplace_infer(c);
}

static tg_status update(tg_call *c, tg_formula f) {
    return tg_op_map(c, f, c->out[0], TG_T2(c->input[0], c->input[1]), 2, 0, 0, false);
}

#define PUBLIC(name) \
    tg_tensor *tg_##name(tg_tape *t, tg_tensor *a, tg_tensor *b) { return TG_RECORD(t, tg_op_##name, NULL, a, b); }

/* Returns tangent d, or zeros if d is NULL, expanded to the shape of the output. Tangents are never updated in place,
 * because they may belong to the caller. */
static tg_tensor *tangent(tg_tape *t, const tg_node *n, tg_tensor *d) {
    return d ? tg_expand(t, d, tg_shape_kept(tg_node_out(n)[0])) : tg_zero_tangent(t, tg_node_out(n)[0]);
}

/* ---- add_, sub_ ---- */

static tg_status add__forward(tg_call *c) { return update(c, TG_FN_add); }

static tg_status add__backward(tg_call *c) {
    TG_TRY(tg_op_sum_to(c, 0, c->gout[0], 1));
    return tg_op_sum_to(c, 1, c->gout[0], 1);
}

static tg_status add__vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    gin[0] = gout[0];
    if (tg_node_needs_grad(n, 1)) gin[1] = tg_sum_to(t, gout[0], tg_node_in(n)[1]);
    return TG_OK;
}

static tg_status add__jvp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout) {
    dout[0] = tg_add(t, tangent(t, n, din[0]), tangent(t, n, din[1]));
    return TG_OK;
}

const tg_op tg_op_add_ = {
    .size = sizeof(tg_op), .name = "add_", .formula = "a := a + b", .inputs = "a b", .n_in = 2, .n_out = 1, .passes = 3,
    .family = TG_FAMILY_ADDITIVE, .inplace = true, .infer = arithmetic_infer, .forward = add__forward,
    .backward = add__backward, .vjp = add__vjp, .jvp = add__jvp, TG_SAMPLES(inplace_samples)};

/* Computes a := a + b. */
PUBLIC(add_)

static tg_status sub__forward(tg_call *c) { return update(c, TG_FN_sub); }

static tg_status sub__backward(tg_call *c) {
    TG_TRY(tg_op_sum_to(c, 0, c->gout[0], 1));
    return tg_op_sum_to(c, 1, c->gout[0], -1);
}

static tg_status sub__vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    gin[0] = gout[0];
    if (tg_node_needs_grad(n, 1)) gin[1] = tg_sum_to(t, tg_neg(t, gout[0]), tg_node_in(n)[1]);
    return TG_OK;
}

static tg_status sub__jvp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout) {
    dout[0] = tg_sub(t, tangent(t, n, din[0]), tangent(t, n, din[1]));
    return TG_OK;
}

const tg_op tg_op_sub_ = {
    .size = sizeof(tg_op), .name = "sub_", .formula = "a := a - b", .inputs = "a b", .n_in = 2, .n_out = 1, .passes = 3,
    .family = TG_FAMILY_ADDITIVE, .inplace = true, .infer = arithmetic_infer, .forward = sub__forward,
    .backward = sub__backward, .vjp = sub__vjp, .jvp = sub__jvp, TG_SAMPLES(inplace_samples)};

/* Computes a := a - b. */
PUBLIC(sub_)

/* ---- mul_ ---- */

/* The gradient of b needs the old value of a, so a private copy is saved. */
static tg_status mul__infer(tg_call *c) {
    const tg_tensor *a = c->input[0];
    if (!tg_needs(c, 0)) c->saves_in = 0;
    TG_TRY(arithmetic_infer(c));
    return tg_needs(c, 1) ? tg_call_save(c, 0, (tg_dtype)a->dtype, a->ndim, a->shape) : TG_OK;
}

static tg_status mul__forward(tg_call *c) {
    if (c->n_saved) TG_TRY(tg_op_copy(c, tg_array_of(c->saved[0]), tg_array_of(c->input[0]), false));
    return update(c, TG_FN_mul);
}

static tg_status mul__backward(tg_call *c) {
    TG_TRY(tg_op_map_grad(c, 0, TG_FN_mul, TG_T2(c->gout[0], c->input[1]), 2, 0, 0));
    return c->n_saved ? tg_op_map_grad(c, 1, TG_FN_mul, TG_T2(c->gout[0], c->saved[0]), 2, 0, 0) : TG_OK;
}

static tg_status mul__vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    tg_tensor *g = gout[0], *b = tg_node_in(n)[1];
    if (tg_node_needs_grad(n, 0)) gin[0] = tg_mul(t, g, b);
    if (tg_node_needs_grad(n, 1)) gin[1] = tg_sum_to(t, tg_mul(t, g, tg_node_kept_input(t, n, 0, 0)), b);
    return TG_OK;
}

static tg_status mul__jvp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout) {
    if (din[0]) dout[0] = tg_mul(t, din[0], tg_node_in(n)[1]);
    if (!din[1]) return TG_OK;
    tg_tensor *by_b = tg_mul(t, tg_node_kept_input(t, n, 0, 0), din[1]);
    dout[0] = dout[0] ? tg_add(t, dout[0], by_b) : by_b;
    return TG_OK;
}

const tg_op tg_op_mul_ = {
    .size = sizeof(tg_op), .name = "mul_", .formula = "a := a b", .inputs = "a b", .n_in = 2, .n_out = 1, .saves_in = 2,
    .family = TG_FAMILY_FACTORS, .inplace = true, .infer = mul__infer, .forward = mul__forward,
    .backward = mul__backward, .vjp = mul__vjp, .jvp = mul__jvp, TG_SAMPLES(inplace_samples)};

/* Computes a := a b. Saves a copy of the old a if b requires a gradient. */
PUBLIC(mul_)

/* ---- copy_ ---- */

/* The result does not depend on the old value of a, so it is linear in b alone, and in a and b together. */
static tg_status copy__infer(tg_call *c) {
    TG_TRY(tg_call_linear(c, 2));
    TG_TRY(tg_call_linear(c, 3));
    return inplace_infer(c);
}

static tg_status copy__forward(tg_call *c) {
    return tg_op_map(c, TG_FN_id, c->out[0], TG_T1(c->input[1]), 1, 0, 0, false);
}

static tg_status copy__backward(tg_call *c) {
    TG_TRY(tg_op_zero(c, 0));
    return tg_op_sum_to(c, 1, c->gout[0], 1);
}

static tg_status copy__vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    if (tg_node_needs_grad(n, 1)) gin[1] = tg_sum_to(t, gout[0], tg_node_in(n)[1]);
    return TG_OK;
}

static tg_status copy__jvp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout) {
    if (din[1]) dout[0] = tangent(t, n, din[1]);
    return TG_OK;
}

const tg_op tg_op_copy_ = {
    .size = sizeof(tg_op), .name = "copy_", .formula = "a := b", .inputs = "a b", .n_in = 2, .n_out = 1, .passes = 3,
    .family = TG_FAMILY_ADDITIVE, .inplace = true, .moves = true, .infer = copy__infer, .forward = copy__forward,
    .backward = copy__backward, .vjp = copy__vjp, .jvp = copy__jvp, TG_SAMPLES(inplace_samples)};

/* Computes a := b in a's storage. The old a gets no gradient. */
PUBLIC(copy_)

/* ---- relu_ ---- */

static tg_status relu__infer(tg_call *c) {
    TG_TRY(tg_need_number(c, 0));
    return tg_infer_same(c);
}

static tg_status relu__forward(tg_call *c) {
    return tg_op_map(c, TG_FN_relu, c->out[0], TG_T1(c->input[0]), 1, 0, 0, false);
}

static tg_status relu__backward(tg_call *c) {
    return tg_op_map_grad(c, 0, TG_FN_relu_d, TG_T2(c->gout[0], c->out[0]), 2, 0, 0);
}

TG_VJP(relu__vjp, tg_masked_fill(t, g, tg_equals(t, y, 0), 0))

static const tg_sample relu__samples[] = {
    {.note = "positive", .n_in = 1, .input = {TG_S_IN(0.2, 2, 3, 5)}},
    {.note = "negative", .n_in = 1, .input = {TG_S_IN(-2, -0.2, 2, 3, 4)}},
    {.note = "mixed", .n_in = 1, .input = {TG_S(3, 4)}, .kinked = true},
    {.note = "size 1", .n_in = 1, .input = {TG_S_IN(0.2, 2, 1)}},
    {.note = "scalar", .n_in = 1, .input = {TG_S_SCALAR}},
    {.note = "empty", .n_in = 1, .input = {TG_S(0, 2)}},
    {.note = "bool", .n_in = 1, .input = {TG_S_BOOL(3)}, .refused = TG_ERR_DTYPE},
    {.note = "a leaf with gradient", .n_in = 1, .input = {TG_S(3)}, .refused = TG_ERR_STATE},
    {.note = "big", .n_in = 1, .input = {TG_S(1024, 1024)}, .bench = true},
};

const tg_op tg_op_relu_ = {
    .size = sizeof(tg_op), .name = "relu_", .formula = "a := max(a, 0)", .inputs = "a", .n_in = 1, .n_out = 1,
    .saves_out = 1, .family = TG_FAMILY_POINTWISE, .inplace = true, .infer = relu__infer, .forward = relu__forward,
    .backward = relu__backward, .vjp = relu__vjp, .jvp = tg_jvp_pointwise, TG_SAMPLES(relu__samples)};

/* Computes a := max(a, 0). */
tg_tensor *tg_relu_(tg_tape *t, tg_tensor *a) { return TG_RECORD(t, tg_op_relu_, NULL, a); }
