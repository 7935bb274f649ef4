/* The batched matrix product: y [.., m, n] = a [.., m, k] b [.., k, n]; the leading dims broadcast. */
#include "ops/common/derive.h"
#include "ops/common/product.h"

/* Return the size and the stride of batch dim i of x, where dim 0 is the innermost. The stride is 0 if x broadcasts. */
static int64_t batch_size(const tg_tensor *x, int i) {
    return i < x->ndim - 2 ? x->shape[x->ndim - 3 - i] : 1;
}

static int64_t batch_step(const tg_tensor *x, int i) {
    return batch_size(x, i) == 1 ? 0 : x->stride[x->ndim - 3 - i];
}

static tg_status matmul_infer(tg_call *c) {
    const tg_tensor *a = c->input[0], *b = c->input[1];
    int64_t shape[TG_MAX_DIMS];
    int ndim = a->ndim > b->ndim ? a->ndim : b->ndim;
    TG_TRY(tg_need_float(c, 0));
    TG_TRY(tg_need_same_dtype(c, 0, 1));
    if (a->ndim < 2 || b->ndim < 2)
        return tg_call_fail(c, TG_ERR_SHAPE, "a has %s and b has %d; both must have 2 or more",
                            tg_count(a->ndim, "dim").text, b->ndim);
    shape[ndim - 2] = a->shape[a->ndim - 2];
    shape[ndim - 1] = b->shape[b->ndim - 1];
    if (a->shape[a->ndim - 1] != b->shape[b->ndim - 2])
        return tg_call_fail(c, TG_ERR_SHAPE, "a has %s but b has %s; they must be equal",
                            tg_count(a->shape[a->ndim - 1], "column").text,
                            tg_count(b->shape[b->ndim - 2], "row").text);
    for (int i = 0; i < ndim - 2; i++) {
        int64_t m = batch_size(a, i), n = batch_size(b, i);
        if (m != n && m != 1 && n != 1)
            return tg_call_fail(c, TG_ERR_SHAPE, "leading dims of sizes %lld and %lld do not broadcast", (long long)m,
                                (long long)n);
        shape[ndim - 3 - i] = m == 1 ? n : m;
    }
    if (!tg_needs(c, 1)) c->saves_in &= ~1u;
    if (!tg_needs(c, 0)) c->saves_in &= ~2u;
    return tg_call_out(c, 0, (tg_dtype)a->dtype, ndim, shape);
}

/* out = a b, or out += a b if add is true, over the batch dims of y. If ta or tb is true, a or b is transposed. The
 * products are summed over batch dims that out lacks or in which it has size 1. */
static tg_status multiply(tg_call *c, const tg_tensor *y, const tg_tensor *out, const tg_tensor *a, bool ta,
                          const tg_tensor *b, bool tb, bool add) {
    tg_matrix ma = tg_matrix_of(a), mb = tg_matrix_of(b);
    const int64_t *shape = out->shape + out->ndim - 2;
    tg_product p = {.g = {.m = shape[0],
                          .n = shape[1],
                          .k = a->shape[a->ndim - 1 - ta],
                          .a = ta ? tg_matrix_transposed(ma) : ma,
                          .b = tb ? tg_matrix_transposed(mb) : mb,
                          .c = tg_matrix_of(out),
                          .alpha = 1,
                          .beta = add},
                    .n = y->ndim - 2};
    for (int i = 0; i < p.n; i++)
        p.dim[i] = (tg_batch_dim){batch_size(y, i), batch_step(a, i), batch_step(b, i), batch_step(out, i)};
    return tg_product_run(c->ctx, &p);
}

static tg_status matmul_forward(tg_call *c) {
    return multiply(c, c->out[0], c->out[0], c->input[0], false, c->input[1], false, false);
}

/* Computes the gradient of input i: the product of a and b, summed over the dims along which the input was broadcast.
 * If there is such a dim, a 16-bit gradient is summed in float32. */
static tg_status operand_grad(tg_call *c, int i, const tg_tensor *a, bool ta, const tg_tensor *b, bool tb) {
    const tg_tensor *y = c->gout[0], *gin = c->gin[i];
    bool sums = false;
    if (c->gin_mode[i] == TG_GRAD_NONE) return TG_OK;
    for (int d = 0; d < y->ndim - 2; d++) sums |= batch_size(gin, d) != batch_size(y, d);
    if (!sums || tg_dtype_size((tg_dtype)gin->dtype) > 2) return multiply(c, y, gin, a, ta, b, tb, tg_adds(c, i));
    tg_tensor *wide = tg_call_temp(c, TG_F32, gin->ndim, gin->shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(multiply(c, y, wide, a, ta, b, tb, false));
    return tg_op_map(c, TG_FN_id, gin, TG_T1(wide), 1, 0, 0, tg_adds(c, i));
}

/* ga = gy b^T, gb = a^T gy. */
static tg_status matmul_backward(tg_call *c) {
    TG_TRY(operand_grad(c, 0, c->gout[0], false, c->input[1], true));
    return operand_grad(c, 1, c->input[0], true, c->gout[0], false);
}

static tg_status matmul_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    tg_tensor *a = tg_node_in(n)[0], *b = tg_node_in(n)[1], *g = gout[0];
    if (tg_node_needs_grad(n, 0)) gin[0] = tg_sum_to(t, tg_matmul(t, g, tg_transpose(t, b, -1, -2)), a);
    if (tg_node_needs_grad(n, 1)) gin[1] = tg_sum_to(t, tg_matmul(t, tg_transpose(t, a, -1, -2), g), b);
    return TG_OK;
}

static int64_t matmul_flops(const tg_node *n) {
    const tg_tensor *a = tg_node_input(n, 0);
    return tg_flops(2 * tg_numel(tg_node_output(n, 0)), tg_dim(a, -1));
}

static const tg_sample matmul_samples[] = {
    {.note = "matrices", .n_in = 2, .input = {TG_S(3, 4), TG_S(4, 5)}},
    {.note = "square", .n_in = 2, .input = {TG_S(3, 3), TG_S(3, 3)}},
    {.note = "transposed operands", .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 4), TG_S_AS(TG_SAMPLE_TRANSPOSED, 4, 5)}},
    {.note = "no unit stride", .n_in = 2, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 4), TG_S_AS(TG_SAMPLE_STRIDED, 4,
                                                                                              2)}},
    {.note = "equal rows", .n_in = 2, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4), TG_S(4, 2)}},
    {.note = "batch", .n_in = 2, .input = {TG_S(2, 3, 4), TG_S(2, 4, 5)}},
    {.note = "three batch dims, transposed", .n_in = 2,
     .input = {TG_S(2, 1, 3, 2, 3), TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 2, 3, 3, 2)}},
    {.note = "one b for all", .n_in = 2, .input = {TG_S(2, 3, 4), TG_S(4, 5)}},
    {.note = "one a for all", .n_in = 2, .input = {TG_S(3, 4), TG_S(2, 2, 4, 5)}},
    {.note = "both broadcast", .n_in = 2, .input = {TG_S(2, 1, 3, 2), TG_S(1, 3, 2, 4)}},
    {.note = "batch of equal matrices", .n_in = 2, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 2, 3, 4), TG_S(2, 4, 2)}},
    {.note = "row by column", .n_in = 2, .input = {TG_S(1, 5), TG_S(5, 1)}},
    {.note = "one element", .n_in = 2, .input = {TG_S(1, 1), TG_S(1, 1)}},
    {.note = "k = 0 gives zeros", .n_in = 2, .input = {TG_S(2, 3, 0), TG_S(2, 0, 2)}},
    {.note = "no rows", .n_in = 2, .input = {TG_S(0, 3), TG_S(3, 2)}},
    {.note = "empty batch", .n_in = 2, .input = {TG_S(0, 2, 3), TG_S(3, 2)}},
    {.note = "inner sizes differ", .n_in = 2, .input = {TG_S(3, 4), TG_S(3, 4)}, .refused = TG_ERR_SHAPE},
    {.note = "batch sizes differ", .n_in = 2, .input = {TG_S(2, 3, 4), TG_S(3, 4, 5)}, .refused = TG_ERR_SHAPE},
    {.note = "a vector", .n_in = 2, .input = {TG_S(4), TG_S(4, 5)}, .refused = TG_ERR_SHAPE},
    {.note = "a scalar", .n_in = 2, .input = {TG_S(4, 5), TG_S_SCALAR}, .refused = TG_ERR_SHAPE},
    {.note = "integers", .n_in = 2, .input = {TG_S_INDEX(3, 2, 2), TG_S(2, 2)}, .refused = TG_ERR_DTYPE},
    {.note = "1024 x 1024 x 1024", .n_in = 2, .input = {TG_S(1024, 1024), TG_S(1024, 1024)}, .bench = true},
};

const tg_op tg_op_matmul = {
    .size = sizeof(tg_op),
    .name = "matmul",
    .formula = "a b",
    .inputs = "a b",
    .n_in = 2,
    .n_out = 1,
    .saves_in = 3,
    .family = TG_FAMILY_MATMUL,
    .infer = matmul_infer,
    .forward = matmul_forward,
    .backward = matmul_backward,
    .vjp = matmul_vjp,
    .jvp = tg_jvp_multilinear,
    .flops = matmul_flops,
    .sums_f32 = true,
    TG_SAMPLES(matmul_samples),
};

/* Returns the product of a [.., m, k] and b [.., k, n]: [.., m, n]. Both have 2 or more dims. The leading dims
 * broadcast, and an operand's gradient is summed over the dims along which the operand was broadcast. Any strides are
 * allowed: a transposed view is not copied. Where the strides allow it, a batch times a single matrix is computed as
 * one product. k = 0 gives zeros. */
tg_tensor *tg_matmul(tg_tape *t, tg_tensor *a, tg_tensor *b) {
    return TG_RECORD(t, tg_op_matmul, NULL, a, b);
}
