/* Triangular systems a x = b, solved by recursive halving. One half of the rows of x is found first. One matrix product
 * then subtracts its contribution from the other half of b, and a triangular system of half the size remains. So nearly
 * all of the work is matrix products. A system of one row is a division. */
#include "ops/solve.h"

#include "ops/common/derive.h"
#include "ops/common/nn_op.h"
#include "ops/common/product.h"

tg_matrix tg_solve_matrix(const tg_tensor *x) {
    int64_t rows = x->shape[x->ndim - 2], cols = x->shape[x->ndim - 1];
    return (tg_matrix){tg_data(x), cols, 1, {0, rows * cols}, (tg_dtype)x->dtype};
}

static int64_t count_of(const tg_tensor *x) {
    int64_t n = 1;
    for (int d = 0; d < x->ndim - 2; d++) n *= x->shape[d];
    return n;
}

tg_triangles tg_solve_triangles(const tg_tensor *x, bool upper, bool unit) {
    return (tg_triangles){tg_solve_matrix(x), count_of(x), x->shape[x->ndim - 1], upper, unit};
}

tg_triangles tg_solve_transposed(tg_triangles a) {
    a.a = tg_matrix_transposed(a.a);
    a.upper = !a.upper;
    return a;
}

tg_status tg_solve_copy(tg_call *c, const tg_tensor *x, tg_tensor **copy) {
    *copy = tg_call_temp(c, tg_accumulate_dtype((tg_dtype)x->dtype), x->ndim, x->shape);
    return tg_ok(c->ctx) ? tg_op_map(c, TG_FN_id, *copy, TG_T1(x), 1, 0, 0, false) : c->ctx->run.status;
}

tg_matrix tg_solve_from(tg_matrix m, int64_t row, int64_t col) {
    if (m.data) m.data = (char *)m.data + (row * m.rs + col * m.cs) * (int64_t)tg_dtype_size(m.dtype);
    return m;
}

tg_status tg_solve_multiply(tg_call *c, int64_t count, int64_t m, int64_t n, int64_t k, tg_matrix to, tg_matrix a,
                            tg_matrix b, double alpha, double beta) {
    const tg_gemm g = {.m = m, .n = n, .k = k, .batch = {1, count}, .a = a, .b = b, .c = to, .alpha = alpha,
                       .beta = beta};
    return count && m && n ? tg_ctx_ops(c->ctx)->gemm(c->ctx, &g) : TG_OK;
}

/* Divides row i of b by diagonal element i of a. */
static tg_status divide_row(tg_call *c, const tg_triangles *a, tg_matrix b, int64_t k, int64_t i) {
    const int64_t shape[] = {a->count, k}, sb[] = {b.bs[1], b.cs}, sa[] = {a->a.bs[1], 0};
    tg_array row = {.dtype = (uint8_t)b.dtype}, by = row;
    row.data = tg_solve_from(b, i, 0).data;
    by.data = tg_solve_from(a->a, i, i).data;
    row = tg_array_at(row, 0, 2, shape, sb);
    const tg_array in[] = {row, tg_array_at(by, 0, 2, shape, sa)};
    return tg_ctx_ops(c->ctx)->apply(c->ctx, TG_FN_div, row, in, 2, (const double[2]){0}, false);
}

/* Replaces n rows of b, from row `first` on, by rows of the solution. `one` is the first row of the half that is solved
 * first, and `two` is the first row of the other half. */
static tg_status solve_rows(tg_call *c, const tg_triangles *a, tg_matrix b, int64_t k, int64_t first, int64_t n) {
    if (n == 1) return a->unit ? TG_OK : divide_row(c, a, b, k, first);
    int64_t half = n / 2, rest = n - half, one = a->upper ? first + half : first,
            two = a->upper ? first : first + half, n_one = a->upper ? rest : half, n_two = n - n_one;
    TG_TRY(solve_rows(c, a, b, k, one, n_one));
    TG_TRY(tg_solve_multiply(c, a->count, n_two, k, n_one, tg_solve_from(b, two, 0), tg_solve_from(a->a, two, one),
                             tg_solve_from(b, one, 0), -1, 1));
    return solve_rows(c, a, b, k, two, n_two);
}

tg_status tg_solve_run(tg_call *c, const tg_triangles *a, tg_matrix b, int64_t k) {
    return a->count && a->n && k ? solve_rows(c, a, b, k, 0, a->n) : TG_OK;
}

tg_status tg_solve_mask(tg_call *c, tg_dtype dtype, int64_t n, bool upper, double diagonal, tg_tensor **mask) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    const int64_t square[] = {n, n};
    tg_tensor *i = tg_call_temp(c, TG_I64, 1, &n), *above = tg_call_temp(c, dtype, 2, square),
              *on = tg_call_temp(c, dtype, 2, square);
    tg_tensor *rows = tg_call_view_of(c, i, 0, 2, (const int64_t[]){n, 1}, (const int64_t[]){1, 0});
    *mask = above;
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(ops->iota(c->ctx, tg_array_of(i), 0, 1));
    TG_TRY(tg_op_map(c, upper ? TG_FN_lt : TG_FN_gt, above, TG_T2(rows, i), 2, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_eq, on, TG_T2(rows, i), 2, 0, 0, false));
    return tg_op_map(c, TG_FN_affine, above, TG_T1(on), 1, diagonal, 0, true);
}

tg_status tg_solve_infer(tg_call *c, int i) {
    const tg_tensor *x = c->input[i];
    TG_TRY(tg_need_float(c, i));
    if (x->ndim < 2 || x->shape[x->ndim - 1] != x->shape[x->ndim - 2])
        return tg_call_fail(c, TG_ERR_SHAPE, "input %d is not square; it must be [.., n, n]", i);
    for (int d = 0; d < x->ndim - 2; d++) TG_TRY(tg_call_role(c, i, d, d));
    return TG_OK;
}

/* ---- The op ---- */

typedef struct solve_params {
    size_t size, known; /* sizes of the caller's options struct and of the library's */
    bool upper, transpose, unit;
} solve_params;

static const solve_params *params(const tg_call *c) { return c->params; }

static tg_status triangular_solve_infer(tg_call *c) {
    const solve_params *p = params(c);
    const tg_tensor *a = c->input[0], *b = c->input[1];
    TG_TRY(tg_size_check(c->ctx, p->size, p->known, "the options"));
    TG_TRY(tg_solve_infer(c, 0));
    TG_TRY(tg_need_same_dtype(c, 0, 1));
    if (b->ndim != a->ndim || memcmp(a->shape, b->shape, (size_t)(a->ndim - 1) * sizeof *a->shape) != 0)
        return tg_call_fail(c, TG_ERR_SHAPE, "b must be [.., n, k], with the leading dims and the n of a");
    for (int d = 0; d < b->ndim; d++)
        if (d != b->ndim - 2) TG_TRY(tg_call_role(c, 1, d, d));
    TG_TRY(tg_call_linear(c, 2)); /* linear in b */
    if (!tg_needs(c, 0)) c->saves_out = 0;
    return tg_call_out(c, 0, (tg_dtype)b->dtype, b->ndim, b->shape);
}

/* Sets x to a^-1 b, or to a^-T b if transpose is true. x is dense and has b's shape and the accumulation dtype. */
static tg_status solve(tg_call *c, const tg_tensor *x, const tg_tensor *b, bool transpose) {
    const solve_params *p = params(c);
    tg_tensor *a;
    TG_TRY(tg_solve_copy(c, c->input[0], &a));
    TG_TRY(tg_op_map(c, TG_FN_id, x, TG_T1(b), 1, 0, 0, false));
    tg_triangles t = tg_solve_triangles(a, p->upper, p->unit);
    if (transpose) t = tg_solve_transposed(t);
    return tg_solve_run(c, &t, tg_solve_matrix(x), x->shape[x->ndim - 1]);
}

static tg_tensor *temp_like(tg_call *c, const tg_tensor *like) {
    return tg_call_temp(c, tg_accumulate_dtype((tg_dtype)like->dtype), like->ndim, like->shape);
}

static tg_status triangular_solve_forward(tg_call *c) {
    const tg_tensor *y = c->out[0], *x = y;
    if (tg_accumulate_dtype((tg_dtype)y->dtype) != y->dtype) x = temp_like(c, y);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(solve(c, x, c->input[1], params(c)->transpose));
    return x == y ? TG_OK : tg_op_map(c, TG_FN_id, y, TG_T1(x), 1, 0, 0, false);
}

/* With op(a) = a, or a^T for .transpose: gb = op(a)^-T gy. ga is -gb y^T, transposed for .transpose, in the triangle of
 * a that is read, and 0 elsewhere. */
static tg_status triangular_solve_backward(tg_call *c) {
    const solve_params *p = params(c);
    const tg_tensor *gb = temp_like(c, c->input[1]);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(solve(c, gb, c->gout[0], !p->transpose));
    if (c->gin_mode[1]) TG_TRY(tg_op_map(c, TG_FN_id, c->gin[1], TG_T1(gb), 1, 0, 0, tg_adds(c, 1)));
    if (!c->gin_mode[0]) return TG_OK;
    tg_tensor *y, *ga = temp_like(c, c->input[0]), *mask;
    TG_TRY(tg_solve_copy(c, c->out[0], &y));
    int64_t n = y->shape[y->ndim - 2], k = y->shape[y->ndim - 1];
    TG_TRY(tg_solve_mask(c, (tg_dtype)ga->dtype, n, p->upper, !p->unit, &mask));
    const tg_tensor *left = p->transpose ? y : gb, *right = p->transpose ? gb : y;
    TG_TRY(tg_solve_multiply(c, count_of(y), n, n, k, tg_solve_matrix(ga), tg_solve_matrix(left),
                             tg_matrix_transposed(tg_solve_matrix(right)), -1, 0));
    /* The triangle is selected, not multiplied by 0: elements outside it may be infinite, and 0 times infinity is
     * NaN. */
    return tg_op_map(c, TG_FN_where_da, c->gin[0], TG_T2(mask, ga), 2, 0, 0, tg_adds(c, 0));
}

/* ---- The same computation as recorded ops ---- */

static tg_tensor *record_solve(tg_tape *t, const solve_params *p, tg_tensor *a, tg_tensor *b, bool transpose) {
    return tg_triangular_solve(t, a, b, TG_SOLVE(.upper = p->upper, .unit = p->unit, .transpose = transpose));
}

tg_tensor *tg_solve_flipped(tg_tape *t, tg_tensor *x) { return tg_transpose(t, x, -1, -2); }

static tg_tensor *triangle(tg_tape *t, const solve_params *p, tg_tensor *x) {
    return p->upper ? tg_triu(t, x, p->unit) : tg_tril(t, x, -(int64_t)p->unit);
}

static tg_status triangular_solve_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    const solve_params *p = tg_node_params(n);
    tg_tensor *y = tg_node_out(n)[0], *gb = record_solve(t, p, tg_node_in(n)[0], gout[0], !p->transpose);
    if (tg_node_needs_grad(n, 1)) gin[1] = gb;
    if (!tg_node_needs_grad(n, 0)) return TG_OK;
    tg_tensor *ga = p->transpose ? tg_matmul(t, y, tg_solve_flipped(t, gb)) : tg_matmul(t, gb, tg_solve_flipped(t, y));
    gin[0] = triangle(t, p, tg_neg(t, ga));
    return TG_OK;
}

/* dy = op(a)^-1 (db - op(da) y). */
static tg_status triangular_solve_jvp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout) {
    const solve_params *p = tg_node_params(n);
    tg_tensor *b = din[1];
    if (din[0]) {
        tg_tensor *da = triangle(t, p, din[0]);
        tg_tensor *moved = tg_matmul(t, p->transpose ? tg_solve_flipped(t, da) : da, tg_node_out(n)[0]);
        b = b ? tg_sub(t, b, moved) : tg_neg(t, moved);
    }
    dout[0] = record_solve(t, p, tg_node_in(n)[0], b, p->transpose);
    return TG_OK;
}

static int64_t triangular_solve_flops(const tg_node *n) {
    const tg_tensor *b = tg_node_input(n, 1);
    return tg_flops(tg_numel(b), tg_dim(b, -2));
}

#define SOLVE(...) &(const solve_params){.size = sizeof(size_t), .known = sizeof(size_t), __VA_ARGS__}
#define AWAY(...) TG_S_IN(0.5, 1.5, __VA_ARGS__)
static const tg_sample triangular_solve_samples[] = {
    {.note = "lower", .params = SOLVE(.upper = false), .n_in = 2, .input = {AWAY(3, 3), TG_S(3, 2)}},
    {.note = "upper", .params = SOLVE(.upper = true), .n_in = 2, .input = {AWAY(4, 4), TG_S(4, 3)}},
    {.note = "lower, transposed", .params = SOLVE(.transpose = true), .n_in = 2, .input = {AWAY(3, 3), TG_S(3, 2)}},
    {.note = "upper, transposed", .params = SOLVE(.upper = true, .transpose = true), .n_in = 2,
     .input = {AWAY(5, 5), TG_S(5, 1)}},
    {.note = "ones on the diagonal", .params = SOLVE(.unit = true), .n_in = 2, .input = {TG_S(3, 3), TG_S(3, 2)}},
    {.note = "upper, ones, transposed", .params = SOLVE(.upper = true, .unit = true, .transpose = true), .n_in = 2,
     .input = {TG_S(4, 4), TG_S(4, 2)}},
    {.note = "several", .params = SOLVE(.upper = false), .n_in = 2, .input = {AWAY(2, 3, 3), TG_S(2, 3, 2)}},
    {.note = "leading dims", .params = SOLVE(.upper = true), .n_in = 2, .input = {AWAY(2, 2, 3, 3), TG_S(2, 2, 3, 1)}},
    {.note = "other strides", .params = SOLVE(.upper = false), .n_in = 2,
     .input = {{.shape = TG_S_SHAPE(2, 3, 3), .layout = TG_SAMPLE_TRANSPOSED, .lo = 0.5, .hi = 1.5},
            TG_S_AS(TG_SAMPLE_STRIDED, 2, 3, 2)}},
    {.note = "one matrix for all", .params = SOLVE(.upper = false), .n_in = 2,
     .input = {{.shape = TG_S_SHAPE(2, 3, 3), .layout = TG_SAMPLE_EXPANDED, .lo = 0.5, .hi = 1.5},
            TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 3, 2)}},
    {.note = "one number", .params = SOLVE(.upper = false), .n_in = 2, .input = {AWAY(1, 1), TG_S(1, 1)}},
    {.note = "no columns", .params = SOLVE(.upper = false), .n_in = 2, .input = {AWAY(3, 3), TG_S(3, 0)}},
    {.note = "no rows", .params = SOLVE(.upper = false), .n_in = 2, .input = {TG_S(2, 0, 0), TG_S(2, 0, 2)}},
    {.note = "not square", .params = SOLVE(.upper = false), .n_in = 2, .input = {TG_S(3, 2), TG_S(3, 2)},
     .refused = TG_ERR_SHAPE},
    {.note = "b of other rows", .params = SOLVE(.upper = false), .n_in = 2, .input = {AWAY(3, 3), TG_S(2, 3)},
     .refused = TG_ERR_SHAPE},
    {.note = "b without leading dims", .params = SOLVE(.upper = false), .n_in = 2, .input = {AWAY(2, 3, 3), TG_S(3, 2)},
     .refused = TG_ERR_SHAPE},
    {.note = "integers", .params = SOLVE(.upper = false), .n_in = 2, .input = {TG_S_INDEX(4, 2, 2), TG_S_INDEX(4, 2,
                                                                                                               2)},
     .refused = TG_ERR_DTYPE},
    {.note = "512 x 512", .params = SOLVE(.unit = true), .n_in = 2,
     .input = {TG_S_IN(-0.01, 0.01, 512, 512), TG_S(512, 512)}, .bench = true},
};

static const tg_field triangular_solve_fields[] = {
    TG_ARG(solve_params, upper, BOOL, "Reads only the upper triangle of a instead of the lower one."),
    TG_ARG(solve_params, transpose, BOOL, "Solves a^T @ x = b instead."),
    TG_ARG(solve_params, unit, BOOL, "Takes every element on the diagonal of a as 1."),
};

const tg_op tg_op_triangular_solve = {
    .size = sizeof(tg_op), .name = "triangular_solve", .formula = "a^-1 b of a triangle", .inputs = "a b", .n_in = 2,
    .n_out = 1, .params_size = sizeof(solve_params), .saves_in = 1, .saves_out = 1, .family = TG_FAMILY_CUSTOM,
    .sums_f32 = true, .infer = triangular_solve_infer, .forward = triangular_solve_forward,
    .backward = triangular_solve_backward, .vjp = triangular_solve_vjp, .jvp = triangular_solve_jvp,
    .flops = triangular_solve_flops, TG_FIELDS(triangular_solve_fields), .preset = SOLVE(.upper = false),
    TG_SAMPLES(triangular_solve_samples)};

/* Returns the solution x of a x = b or, with .transpose, of a^T x = b. Only one triangle of a [.., n, n] is read: the
 * lower one, or the upper one with .upper. The other triangle counts as zeros. With .unit the diagonal is not read
 * either, and counts as ones. b [.., n, k] has a's leading dims. A zero on the diagonal gives infinities and NaN, not
 * an error. The gradient of a is 0 outside of what is read. 16-bit systems are solved in float32. The op runs on every
 * device. It takes about 2 n steps, so small systems are slow on a GPU. opts may be NULL. */
tg_tensor *tg_triangular_solve(tg_tape *t, tg_tensor *a, tg_tensor *b, const tg_solve_opts *opts) {
    tg_solve_opts o;
    tg_op_options(&o, &tg_solve_opts_struct, opts);
    solve_params p = {.size = o.size, .known = sizeof o, .upper = o.upper, .transpose = o.transpose, .unit = o.unit};
    return TG_RECORD(t, tg_op_triangular_solve, &p, a, b);
}
