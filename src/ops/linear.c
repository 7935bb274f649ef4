/* The linear layer's product, with and without an activation: y [.., out] = act(x [.., in] w^T + b), with w [out, in]
 * and b [out] or absent. The five ops share this code; their params name the activation. */
#include "ops/common/derive.h"
#include "ops/linear.h"
#include "ops/common/nn_op.h"
#include "ops/common/product.h"
#include "autograd/apply.h"

typedef struct act_params {
    tg_activation act;
} act_params;

static tg_activation activation(const tg_call *c) {
    return ((const act_params *)c->params)->act;
}

tg_status tg_linear_shapes(tg_call *c, int least) {
    const tg_tensor *x = c->input[0], *w = c->input[1], *b = c->n_in > 2 ? c->input[2] : NULL;
    if (x->ndim < least || w->ndim != 2)
        return tg_call_fail(c, TG_ERR_SHAPE, "x [.., in] must have %d or more dims and w [out, in] two, but they have "
                            "%d and %d", least, x->ndim, w->ndim);
    if (x->shape[x->ndim - 1] != w->shape[1])
        return tg_call_fail(c, TG_ERR_SHAPE, "x has %s but w has %lld; they must be equal",
                            tg_count(x->shape[x->ndim - 1], "column").text, (long long)w->shape[1]);
    if (b && (b->ndim != 1 || b->shape[0] != w->shape[0]))
        return tg_call_fail(c, TG_ERR_SHAPE, "b must be a vector of %s, one for each row of w",
                            tg_count(w->shape[0], "element").text);
    return TG_OK;
}

/* States the placement rules of an op with an activation (docs/placements.md). The activation of a sum over ranks is
 * not the sum of the activations. So the dim over which the product sums must not be sharded, and no input may be
 * PARTIAL. */
static tg_status state_nonlinear(tg_call *c) {
    TG_TRY(tg_call_role(c, 0, c->input[0]->ndim - 1, TG_WHOLE));
    TG_TRY(tg_call_role(c, 1, 1, TG_WHOLE));
    return tg_call_linear(c, 0);
}

/* The gradient of relu is computed from y. The other activations need the value before the activation, which is saved
 * for them. */
static tg_status linear_infer(tg_call *c) {
    int64_t shape[TG_MAX_DIMS];
    const tg_tensor *x = c->input[0];
    tg_dtype dtype = (tg_dtype)x->dtype;
    TG_TRY(tg_need_float(c, 0));
    TG_TRY(tg_need_same_dtype(c, 0, 1));
    if (c->input[2]) TG_TRY(tg_need_same_dtype(c, 0, 2));
    TG_TRY(tg_linear_shapes(c, 1));
    memcpy(shape, x->shape, x->ndim * sizeof *shape);
    shape[x->ndim - 1] = c->input[1]->shape[0];
    if (!tg_needs(c, 1)) c->saves_in &= ~1u;
    if (!tg_needs(c, 0)) c->saves_in &= ~2u;
    if (activation(c)) TG_TRY(state_nonlinear(c));
    if (c->needs && activation(c) > TG_ACT_RELU) TG_TRY(tg_call_save(c, 0, dtype, x->ndim, shape));
    return tg_call_out(c, 0, dtype, x->ndim, shape);
}

/* Returns a product whose batch dims are the leading dims of a. b and out have the same leading dims, or are NULL; for
 * NULL the step is 0 in every batch dim. The caller fills in the matrices. */
static tg_product row_product(const tg_tensor *a, const tg_tensor *b, const tg_tensor *out) {
    tg_product p = {.g = {.alpha = 1}, .n = a->ndim - 1};
    for (int i = 0; i < p.n; i++) {
        int d = p.n - 1 - i;
        p.dim[i] = (tg_batch_dim){.count = a->shape[d], .a = a->stride[d]};
        if (b) p.dim[i].b = b->stride[d];
        if (out) p.dim[i].c = out->stride[d];
    }
    return p;
}

/* Returns the last dim of x as a matrix of one row. */
static tg_matrix row_of(const tg_tensor *x) {
    return (tg_matrix){.data = tg_data(x), .cs = x->stride[x->ndim - 1], .dtype = (tg_dtype)x->dtype};
}

tg_status tg_linear_rows(const tg_tensor *x, const tg_tensor *w, const tg_tensor *b, tg_activation act,
                         const tg_tensor *y, const tg_tensor *pre) {
    tg_product p = row_product(x, NULL, y);
    p.g.m = 1, p.g.n = w->shape[0], p.g.k = w->shape[1];
    p.g.a = row_of(x);
    p.g.b = tg_matrix_transposed(tg_matrix_of(w));
    p.g.c = row_of(y);
    p.g.act = act;
    if (pre) p.g.pre = row_of(pre);
    if (b) {
        p.g.bias = tg_data(b);
        p.g.bias_dtype = (tg_dtype)b->dtype;
    }
    return tg_product_run(y->ctx, &p);
}

tg_status tg_linear_dgrad(const tg_tensor *gy, const tg_tensor *w, const tg_tensor *gx, bool add) {
    tg_product p = row_product(gy, NULL, gx);
    p.g.m = 1, p.g.n = w->shape[1], p.g.k = w->shape[0], p.g.beta = add;
    p.g.a = row_of(gy);
    p.g.b = tg_matrix_of(w);
    p.g.c = row_of(gx);
    return tg_product_run(gx->ctx, &p);
}

/* Zeroes the rows of a weight's gradient from `first` on. */
static tg_status zero_rows(const tg_tensor *gw, int64_t first) {
    tg_extent e;
    tg_array rest = tg_array_slice(tg_array_of(gw), 0, first, gw->shape[0] - first, 1, &e);
    return tg_ctx_ops(gw->ctx)->fill(gw->ctx, rest, 0);
}

tg_status tg_linear_wgrad(const tg_tensor *gy, const tg_tensor *x, const tg_tensor *gw, bool add) {
    tg_product p = row_product(gy, x, NULL);
    int64_t used = gy->shape[gy->ndim - 1];
    p.g.m = used, p.g.n = gw->shape[1], p.g.k = 1, p.g.beta = add;
    p.g.a = tg_matrix_transposed(row_of(gy));
    p.g.b = row_of(x);
    p.g.c = tg_matrix_of(gw);
    if (!add && used < gw->shape[0]) TG_TRY(zero_rows(gw, used));
    return tg_product_run(gw->ctx, &p);
}

static tg_status linear_forward(tg_call *c) {
    tg_tensor *b = c->input[2];
    if (b) TG_TRY(tg_op_dense(c, &b));
    return tg_linear_rows(c->input[0], c->input[1], b, activation(c), c->out[0], c->n_saved ? c->saved[0] : NULL);
}

/* Sets *g to the gradient of the value before the activation, computed from gy. */
static tg_status before_activation(tg_call *c, tg_tensor **g) {
    static const tg_formula grad[] = {
        [TG_ACT_RELU] = TG_FN_relu_d,
        [TG_ACT_GELU_TANH] = TG_FN_gelu_tanh_d,
        [TG_ACT_GELU] = TG_FN_gelu_d,
        [TG_ACT_SILU] = TG_FN_silu_d,
    };
    tg_activation act = activation(c);
    const tg_tensor *gy = c->gout[0], *z = act == TG_ACT_RELU ? c->out[0] : act ? c->saved[0] : NULL;
    *g = c->gout[0];
    if (!z) return TG_OK;
    *g = tg_call_temp(c, (tg_dtype)gy->dtype, gy->ndim, gy->shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    return tg_op_map(c, grad[act], *g, TG_T2(gy, z), 2, 0, 0, false);
}

/* gx = g w, gw = g^T x, gb = g summed over the rows. The product gw may be deferred (tg_call_defers). */
static tg_status linear_backward(tg_call *c) {
    tg_tensor *g;
    TG_TRY(before_activation(c, &g));
    if (c->gin_mode[0]) TG_TRY(tg_linear_dgrad(g, c->input[1], c->gin[0], tg_adds(c, 0)));
    bool now = c->gin_mode[1] && !tg_call_defers(c, 1, c->input[0], g);
    TG_TRY(c->ctx->run.status);
    if (now) TG_TRY(tg_linear_wgrad(g, c->input[0], c->gin[1], tg_adds(c, 1)));
    return c->input[2] ? tg_op_sum_to(c, 2, g, 1) : TG_OK;
}

/* Returns x [.., n] reshaped to [rows, n]. */
static tg_tensor *as_rows(tg_tape *t, tg_tensor *x) {
    int64_t n = x->shape[x->ndim - 1], rows = 1;
    for (int d = 0; d < x->ndim - 1; d++) rows *= x->shape[d];
    return tg_reshape(t, x, TG_SHAPE(rows, n));
}

static tg_tensor *activate(tg_tape *t, tg_tensor *z, tg_activation act) {
    switch (act) {
    case TG_ACT_RELU: return tg_relu(t, z);
    case TG_ACT_GELU_TANH: return tg_gelu_tanh(t, z);
    case TG_ACT_GELU: return tg_gelu(t, z);
    case TG_ACT_SILU: return tg_silu(t, z);
    default: return z;
    }
}

static const tg_op linear_known;

/* Records the sum x w^T + b of node n again, so that the derivatives of the sum can be recorded. Does not compute the
 * sum again, because inputs that the node did not save may have changed, but uses the value that the node saved. A node
 * with relu saved no sum. Its result is used instead, because the result is above 0 exactly where the sum is. */
static tg_tensor *known_sum(tg_tape *t, const tg_node *n) {
    static const act_params none = {TG_ACT_NONE};
    tg_tensor *const *in = tg_node_in(n), *y = tg_node_out(n)[0], *of = n->n_saved ? tg_node_kept(n)[0] : y;
    tg_tensor *z = tg_tape_alias(t, of);
    if (!z) return tg_inert(t->ctx);
    z->place = y->place;
    return tg_record(t, &linear_known, &none, (tg_tensor *const[]){in[0], in[1], in[2], z}, 4, n->site);
}

static tg_status linear_compose(tg_tape *t, const tg_node *n, tg_tensor **out) {
    out[0] = activate(t, known_sum(t, n), ((const act_params *)tg_node_params(n))->act);
    return TG_OK;
}

static tg_status linear_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    tg_tensor *x = tg_node_in(n)[0], *w = tg_node_in(n)[1], *b = tg_node_in(n)[2], *g = gout[0];
    if (((const act_params *)tg_node_params(n))->act) return tg_vjp_composed(t, n, gout, linear_compose);
    if (tg_node_needs_grad(n, 0)) gin[0] = tg_linear(t, g, tg_transpose(t, w, 0, 1), NULL);
    if (tg_node_needs_grad(n, 1)) gin[1] = tg_matmul(t, tg_transpose(t, as_rows(t, g), 0, 1), as_rows(t, x));
    if (tg_node_needs_grad(n, 2)) gin[2] = tg_sum_to(t, g, b);
    return TG_OK;
}

/* The tangent is dx w^T + x dw^T + db. */
static tg_status linear_jvp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout) {
    tg_tensor *x = tg_node_in(n)[0], *w = tg_node_in(n)[1];
    if (((const act_params *)tg_node_params(n))->act) return tg_jvp_composed(t, n, dout, linear_compose);
    tg_tensor *by_x = din[0] ? tg_linear(t, din[0], w, NULL) : tg_zero_tangent(t, tg_node_out(n)[0]);
    tg_tensor *by_w = din[1] ? tg_linear(t, x, din[1], din[2]) : NULL;
    dout[0] = by_w ? tg_add(t, by_x, by_w) : din[2] ? tg_add(t, by_x, din[2]) : by_x;
    return TG_OK;
}

/* The inputs are x, w, b and z = x w^T + b. The output is a handle on the bytes of z, so there is no forward. */
static tg_status known_infer(tg_call *c) {
    const tg_tensor *z = c->input[3];
    if (!tg_needs(c, 1)) c->saves_in &= ~1u;
    if (!tg_needs(c, 0)) c->saves_in &= ~2u;
    c->out[0] = tg_tape_alias(c->tape, z);
    if (!c->out[0]) return c->ctx->run.status;
    c->out[0]->place = tg_place_of(z);
    tg_call_placed(c);
    return c->ctx->run.status;
}

static const tg_op linear_known = {
    .size = sizeof(tg_op), .name = "linear_known", .formula = "x w^T + b", .n_in = 4, .n_out = 1,
    .params_size = sizeof(act_params), .saves_in = 3, .optional = 4, .family = TG_FAMILY_CUSTOM, .sums_f32 = true,
    .infer = known_infer, .backward = linear_backward, .vjp = linear_vjp, .jvp = linear_jvp};

static int64_t linear_flops(const tg_node *n) {
    return tg_flops(2 * tg_numel(tg_node_output(n, 0)), tg_dim(tg_node_input(n, 1), 1));
}

#define SAMPLE(p_, note_, ...) {.note = note_, .params = (p_), .n_in = 3, __VA_ARGS__}
#define LINEAR_SAMPLES(p)                                                                                             \
    SAMPLE(p, "rows", .input = {TG_S(4, 3), TG_S(5, 3), TG_S(5)}),                                                    \
    SAMPLE(p, "no bias", .input = {TG_S(4, 3), TG_S(2, 3), TG_S_ABSENT}),                                             \
    SAMPLE(p, "leading dims", .input = {TG_S(2, 3, 4), TG_S(5, 4), TG_S(5)}),                                         \
    SAMPLE(p, "one vector", .input = {TG_S(4), TG_S(3, 4), TG_S(3)}),                                                 \
    SAMPLE(p, "no unit strides", .input = {TG_S_AS(TG_SAMPLE_STRIDED, 2, 3, 4), TG_S_AS(TG_SAMPLE_STRIDED, 5, 4),     \
                                        TG_S_AS(TG_SAMPLE_STRIDED, 5)}),                                              \
    SAMPLE(p, "transposed", .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 2, 3, 4), TG_S_AS(TG_SAMPLE_TRANSPOSED, 5, 4), \
                                   TG_S(5)}),                                                                         \
    SAMPLE(p, "equal rows", .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4), TG_S(1, 4), TG_S(1)}),                       \
    SAMPLE(p, "in = out = 1", .input = {TG_S(1, 1), TG_S(1, 1), TG_S(1)}),                                            \
    SAMPLE(p, "in = 0 leaves the bias", .input = {TG_S(2, 0), TG_S(3, 0), TG_S(3)}),                                  \
    SAMPLE(p, "no rows", .input = {TG_S(0, 3), TG_S(2, 3), TG_S(2)}),                                                 \
    SAMPLE(p, "rows differ", .input = {TG_S(4, 3), TG_S(3, 4), TG_S_ABSENT}, .refused = TG_ERR_SHAPE),                \
    SAMPLE(p, "bias of in", .input = {TG_S(4, 3), TG_S(5, 3), TG_S(3)}, .refused = TG_ERR_SHAPE),                     \
    SAMPLE(p, "scalar x", .input = {TG_S_SCALAR, TG_S(5, 3), TG_S_ABSENT}, .refused = TG_ERR_SHAPE),                  \
    SAMPLE(p, "integer w", .input = {TG_S(2, 3), TG_S_INDEX(3, 2, 3), TG_S_ABSENT}, .refused = TG_ERR_DTYPE),         \
    SAMPLE(p, "512 x 768 to 3072", .input = {TG_S(512, 768), TG_S(3072, 768), TG_S(3072)}, .bench = true)

/* Defines the block of one activation: params, samples, op and public function. */
#define LINEAR(name_, act_, formula_, out_)                                       \
    static const act_params name_##_params = {act_};                              \
    static const tg_sample name_##_samples[] = {LINEAR_SAMPLES(&name_##_params)}; \
    const tg_op tg_op_##name_ = {                                                 \
        .size = sizeof(tg_op),                                                    \
        .name = #name_,                                                           \
        .formula = formula_,                                                      \
        .inputs = "x w b",                                                        \
        .n_in = 3,                                                                \
        .n_out = 1,                                                               \
        .params_size = sizeof(act_params),                                        \
        .saves_in = 3,                                                            \
        .saves_out = out_,                                                        \
        .optional = 4,                                                            \
        .family = TG_FAMILY_LINEAR,                                               \
        .sums_f32 = true,                                                         \
        .infer = linear_infer,                                                    \
        .forward = linear_forward,                                                \
        .backward = linear_backward,                                              \
        .vjp = linear_vjp,                                                        \
        .jvp = linear_jvp,                                                        \
        .flops = linear_flops,                                                    \
        .preset = &name_##_params,                                                \
        TG_SAMPLES(name_##_samples),                                              \
    };                                                                            \
    tg_tensor *tg_##name_(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b) { \
        return TG_RECORD(t, tg_op_##name_, &name_##_params, x, w, b);             \
    }

/* Returns x w^T + b for x [.., in], w [out, in] and b [out] or NULL: [.., out]. Forward is one product, with the bias
 * added as the result is written. x may have any leading dims and strides; the gradients of w and b are summed over all
 * leading dims, in float32 if the caller accumulates gradients in float32. The variants apply an activation in the same
 * pass: relu saves its result; the others save the sum before the activation, but only if a gradient is needed. */
LINEAR(linear, TG_ACT_NONE, "x w^T + b", 0)
LINEAR(linear_relu, TG_ACT_RELU, "relu(x w^T + b)", 1)
LINEAR(linear_gelu, TG_ACT_GELU, "gelu(x w^T + b)", 0)
LINEAR(linear_gelu_tanh, TG_ACT_GELU_TANH, "gelu_tanh(x w^T + b)", 0)
LINEAR(linear_silu, TG_ACT_SILU, "silu(x w^T + b)", 0)
