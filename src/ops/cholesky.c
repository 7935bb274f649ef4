/* The Cholesky factorization, computed by recursive halving. For a = [a11 a21^T; a21 a22], l11 is the factor of a11,
 * l21 = a21 l11^-T, and l22 is the factor of a22 - l21 l21^T. The factor of a single element is its square root. */
#include "ops/common/derive.h"
#include "ops/common/product.h"
#include "ops/solve.h"

typedef struct cholesky_params {
    double ridge; /* added to the diagonal of a, to make samples positive definite */
} cholesky_params;

static tg_status cholesky_infer(tg_call *c) {
    TG_TRY(tg_solve_infer(c, 0));
    return tg_infer_same(c);
}

/* Returns n diagonal elements of each of the t->count matrices, from index `first` on, as [count, n]. */
static tg_array diagonal(const tg_triangles *t, int64_t first, int64_t n, tg_extent *e) {
    tg_array a = {.data = tg_solve_from(t->a, first, first).data, .dtype = (uint8_t)t->a.dtype};
    e->shape[0] = t->count;
    e->shape[1] = n;
    e->stride[0] = t->a.bs[1];
    e->stride[1] = t->a.rs + t->a.cs;
    return tg_array_at(a, 0, 2, e->shape, e->stride);
}

/* Factorizes n rows and columns from `first` on, in place. Ignores the elements above the diagonal. */
static tg_status factorize(tg_call *c, const tg_triangles *t, int64_t first, int64_t n) {
    tg_extent e;
    if (n == 1) {
        tg_array pivot = diagonal(t, first, 1, &e);
        return tg_ctx_ops(c->ctx)->apply(c->ctx, TG_FN_sqrt, pivot, &pivot, 1, (const double[2]){0}, false);
    }
    int64_t half = n / 2, next = first + half, rest = n - half;
    TG_TRY(factorize(c, t, first, half));
    tg_triangles known = *t;
    known.a = tg_solve_from(t->a, first, first);
    known.n = half;
    tg_matrix left = tg_solve_from(t->a, next, first);
    TG_TRY(tg_solve_run(c, &known, tg_matrix_transposed(left), rest));
    TG_TRY(tg_solve_multiply(c, t->count, rest, rest, half, tg_solve_from(t->a, next, next), left,
                             tg_matrix_transposed(left), -1, 1));
    return factorize(c, t, next, rest);
}

/* Checks that every diagonal element is above 0, by slots that every device has. A comparison gives 0 for an element
 * that is above 0, and 1 for others. Slot take then uses these numbers as indices into rows of one element, and reports
 * the first index 1 as out of range. */
static tg_status check_pivots(tg_call *c, const tg_triangles *t) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    const int64_t all[] = {t->count, t->n}, one[] = {t->count, 1}, none[] = {0, 0};
    tg_tensor *zero = tg_call_temp(c, t->a.dtype, 0, none), *fails = tg_call_temp(c, TG_I64, 2, all),
              *read = tg_call_temp(c, t->a.dtype, 2, all);
    tg_extent e;
    int64_t bad = 0;
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(ops->fill(c->ctx, tg_array_of(zero), 0));
    const tg_array in[] = {diagonal(t, 0, t->n, &e), tg_array_at(tg_array_of(zero), 0, 2, all, none)};
    TG_TRY(ops->apply(c->ctx, TG_FN_gt, tg_array_of(fails), in, 2, (const double[2]){0}, false));
    TG_TRY(tg_op_map(c, TG_FN_logical_not, fails, TG_T1(fails), 1, 0, 0, false));
    TG_TRY(ops->take(c->ctx, tg_array_of(read), tg_array_at(tg_array_of(zero), 0, 2, one, none), tg_array_of(fails), 1,
                     &bad));
    if (TG_LIKELY(!bad)) return TG_OK;
    return tg_call_fail(c, TG_ERR_DATA, "matrix %lld is not positive definite: its leading minor of order %lld is not "
                        "positive", (long long)((bad - 1) / t->n), (long long)((bad - 1) % t->n + 1));
}

/* Views x with its last two dims swapped. */
static tg_tensor *swapped(tg_call *c, tg_tensor *x) {
    int64_t stride[TG_MAX_DIMS];
    memcpy(stride, x->stride, x->ndim * sizeof *stride);
    stride[x->ndim - 1] = x->stride[x->ndim - 2];
    stride[x->ndim - 2] = x->stride[x->ndim - 1];
    return tg_call_view_of(c, x, 0, x->ndim, x->shape, stride);
}

static tg_status cholesky_forward(tg_call *c) {
    tg_tensor *a = c->input[0], *y = c->out[0], *mask;
    const double ridge = ((const cholesky_params *)c->params)->ridge;
    tg_tensor *l = tg_call_temp(c, tg_accumulate_dtype((tg_dtype)a->dtype), a->ndim, a->shape), *turned = swapped(c, a);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    if (a->numel == 0) return TG_OK;
    tg_extent e;
    tg_triangles t = tg_solve_triangles(l, false, false);
    TG_TRY(tg_op_map(c, TG_FN_linear_sum, l, TG_T2(a, turned), 2, 0.5, 0.5, false));
    tg_array d = diagonal(&t, 0, t.n, &e);
    if (ridge != 0) TG_TRY(tg_ctx_ops(c->ctx)->apply(c->ctx, TG_FN_affine, d, &d, 1, (const double[2]){1, ridge},
                                                     false));
    TG_TRY(factorize(c, &t, 0, t.n));
    TG_TRY(check_pivots(c, &t));
    TG_TRY(tg_solve_mask(c, (tg_dtype)l->dtype, t.n, false, 1, &mask));
    return tg_op_map(c, TG_FN_where_da, y, TG_T2(mask, l), 2, 0, 0, false); /* y = the lower triangle of l */
}

/* Let P be the lower triangle of l^T g with its diagonal halved, where g is the gradient of l, and let
 * Z = l^-T P l^-1. Then ga = (Z + Z^T) / 2 (Murray, arXiv 1602.07527).
 *
 * Triangles are selected, not multiplied by 0, because elements above the diagonal may be infinite, and 0 times
 * infinity is NaN. */
static tg_status cholesky_backward(tg_call *c) {
    tg_tensor *l, *g, *whole, *z = tg_call_temp(c, tg_accumulate_dtype((tg_dtype)c->input[0]->dtype), c->input[0]->ndim,
                                               c->input[0]->shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    if (z->numel == 0) return TG_OK;
    TG_TRY(tg_solve_copy(c, c->out[0], &l));
    TG_TRY(tg_solve_copy(c, c->gout[0], &g));
    tg_triangles t = tg_solve_triangles(l, false, false), back = tg_solve_transposed(t);
    TG_TRY(tg_solve_mask(c, (tg_dtype)z->dtype, t.n, false, 1, &whole));
    TG_TRY(tg_op_map(c, TG_FN_where_da, g, TG_T2(whole, g), 2, 0, 0, false));
    tg_matrix mz = tg_solve_matrix(z);
    TG_TRY(tg_solve_multiply(c, t.count, t.n, t.n, t.n, mz, back.a, tg_solve_matrix(g), 1, 0));
    TG_TRY(tg_op_map(c, TG_FN_where_da, z, TG_T2(whole, z), 2, 0, 0, false));
    tg_extent e;
    tg_triangles p = tg_solve_triangles(z, false, false);
    tg_array d = diagonal(&p, 0, p.n, &e);
    TG_TRY(tg_ctx_ops(c->ctx)->apply(c->ctx, TG_FN_affine, d, &d, 1, (const double[2]){0.5, 0}, false));
    TG_TRY(tg_solve_run(c, &back, mz, t.n));
    TG_TRY(tg_solve_run(c, &back, tg_matrix_transposed(mz), t.n));
    tg_tensor *turned = swapped(c, z);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    return tg_op_map(c, TG_FN_linear_sum, c->gin[0], TG_T2(z, turned), 2, 0.5, 0.5, tg_adds(c, 0));
}

/* ---- The same computation as a composition of other ops ---- */

/* Returns the lower triangle of x with its diagonal halved. */
static tg_tensor *half_triangle(tg_tape *t, tg_tensor *x) {
    return tg_scale(t, tg_add(t, tg_tril(t, x, 0), tg_tril(t, x, -1)), 0.5);
}

/* Returns (x + x^T) / 2. */
static tg_tensor *symmetric(tg_tape *t, tg_tensor *x) { return tg_scale(t, tg_add(t, x, tg_solve_flipped(t, x)), 0.5); }

static tg_tensor *cholesky_back(tg_tape *t, tg_tensor *l, tg_tensor *g) {
    const tg_solve_opts *back = TG_SOLVE(.transpose = true);
    tg_tensor *p = half_triangle(t, tg_matmul(t, tg_solve_flipped(t, l), tg_tril(t, g, 0)));
    tg_tensor *z = tg_solve_flipped(t, tg_triangular_solve(t, l, p, back));
    return symmetric(t, tg_triangular_solve(t, l, z, back));
}

TG_VJP(cholesky_vjp, cholesky_back(t, y, g))

/* dl = l P, where P is the lower triangle of l^-1 da l^-T with its diagonal halved. */
static tg_status cholesky_jvp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout) {
    tg_tensor *l = tg_node_out(n)[0], *half = tg_triangular_solve(t, l, symmetric(t, din[0]), NULL);
    dout[0] = tg_matmul(t, l, half_triangle(t, tg_triangular_solve(t, l, tg_solve_flipped(t, half), NULL)));
    return TG_OK;
}

/* Counts n^3 / 3 for each n x n matrix. */
static int64_t cholesky_flops(const tg_node *n) {
    const tg_tensor *a = tg_node_input(n, 0);
    return tg_flops(tg_numel(a), tg_dim(a, -1)) / 3;
}

#define RIDGE(r_) &(const cholesky_params){.ridge = r_}
static const tg_sample cholesky_samples[] = {
    {.note = "3 x 3", .params = RIDGE(6), .n_in = 1, .input = {TG_S(3, 3)}},
    {.note = "5 x 5", .params = RIDGE(9), .n_in = 1, .input = {TG_S(5, 5)}},
    {.note = "several", .params = RIDGE(6), .n_in = 1, .input = {TG_S(2, 3, 3)}},
    {.note = "leading dims", .params = RIDGE(5), .n_in = 1, .input = {TG_S(2, 2, 2, 2)}},
    {.note = "transposed", .params = RIDGE(6), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 3, 3)}},
    {.note = "strided", .params = RIDGE(6), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 4, 4)}},
    {.note = "one for all", .params = RIDGE(6), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 2, 3, 3)}},
    {.note = "one number", .params = RIDGE(6), .n_in = 1, .input = {TG_S(1, 1)}},
    {.note = "no rows", .params = RIDGE(0), .n_in = 1, .input = {TG_S(2, 0, 0)}},
    {.note = "none", .params = RIDGE(0), .n_in = 1, .input = {TG_S(0, 2, 2)}},
    {.note = "negative", .params = RIDGE(0), .n_in = 1, .input = {TG_S_IN(-2, -1, 2, 2)}, .refused = TG_ERR_DATA},
    {.note = "singular", .params = RIDGE(-1), .n_in = 1,
     .input = {{.shape = TG_S_SHAPE(2, 1, 1), .kind = TG_SAMPLE_FLOAT, .lo = 1, .hi = 1}}, .refused = TG_ERR_DATA},
    {.note = "not square", .params = RIDGE(6), .n_in = 1, .input = {TG_S(3, 2)}, .refused = TG_ERR_SHAPE},
    {.note = "a vector", .params = RIDGE(6), .n_in = 1, .input = {TG_S(3)}, .refused = TG_ERR_SHAPE},
    {.note = "integers", .params = RIDGE(6), .n_in = 1, .input = {TG_S_INDEX(4, 2, 2)}, .refused = TG_ERR_DTYPE},
    {.note = "512 x 512", .params = RIDGE(100), .n_in = 1, .input = {TG_S(512, 512)}, .bench = true},
};

const tg_op tg_op_cholesky = {
    .size = sizeof(tg_op), .name = "cholesky", .formula = "lower l of a = l l^T", .inputs = "a", .n_in = 1, .n_out = 1,
    .params_size = sizeof(cholesky_params), .saves_out = 1, .family = TG_FAMILY_CUSTOM, .sums_f32 = true,
    .infer = cholesky_infer, .forward = cholesky_forward, .backward = cholesky_backward, .vjp = cholesky_vjp,
    .jvp = cholesky_jvp, .flops = cholesky_flops, TG_SAMPLES(cholesky_samples)};

/* Returns the lower triangular l with a positive diagonal and a = l l^T, for symmetric positive definite matrices a
 * [.., n, n]. If a is not symmetric, (a + a^T) / 2 is used in its place, so the gradient is symmetric. A matrix that
 * is not positive definite fails with TG_ERR_DATA. On the CPU the message names its first leading minor that is not
 * positive; a GPU reports the error later, like all data errors. 16-bit matrices are factorized in float32. The op is
 * composed of products and runs on every device, as triangular_solve does. */
tg_tensor *tg_cholesky(tg_tape *t, tg_tensor *a) {
    return TG_RECORD(t, tg_op_cholesky, &(cholesky_params){.ridge = 0}, a);
}
