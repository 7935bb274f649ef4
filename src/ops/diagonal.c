/* Matrix diagonals: tril, triu, diag and diagonal. Diagonal k holds the elements [i, i + k]. */
#include "ops/common/derive.h"
#include "ops/common/op.h"

typedef struct diagonal_params {
    int64_t k;
} diagonal_params;

static int64_t diagonal_of(const tg_node *n) { return ((const diagonal_params *)tg_node_params(n))->k; }

/* ---- tril, triu ---- */

/* Checks x and clamps k. All diagonals beyond the same corner of the matrix select the same elements. */
static tg_status triangle_infer(tg_call *c) {
    diagonal_params *p = c->params;
    const tg_tensor *x = c->input[0];
    if (x->ndim < 2)
        return tg_call_fail(c, TG_ERR_SHAPE, "x has %s; it must be a matrix or a batch of matrices (2 or more dims)",
                            tg_count(x->ndim, "dim").text);
    int64_t rows = x->shape[x->ndim - 2], cols = x->shape[x->ndim - 1];
    if (p->k < -rows) p->k = -rows;
    if (p->k > cols) p->k = cols;
    for (int d = 0; d < x->ndim - 2; d++) TG_TRY(tg_call_role(c, 0, d, d));
    return tg_infer_same(c);
}

/* to[.., i, j] (+)= from[.., i, j] where keeps(i + k, j) is true, and 0 elsewhere. keeps is a comparison. */
static tg_status keep_triangle(tg_call *c, tg_formula keeps, const tg_tensor *to, const tg_tensor *from, bool add) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    int64_t rows = from->shape[from->ndim - 2], cols = from->shape[from->ndim - 1];
    tg_tensor *row = tg_call_temp(c, TG_I64, 2, (const int64_t[]){rows, 1});
    tg_tensor *col = tg_call_temp(c, TG_I64, 2, (const int64_t[]){1, cols});
    tg_tensor *mask = tg_call_temp(c, TG_BOOL, 2, (const int64_t[]){rows, cols});
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(ops->iota(c->ctx, tg_array_of(row), (double)((const diagonal_params *)c->params)->k, 1));
    TG_TRY(ops->iota(c->ctx, tg_array_of(col), 0, 1));
    TG_TRY(tg_op_map(c, keeps, mask, TG_T2(row, col), 2, 0, 0, false));
    return tg_op_map(c, TG_FN_where_da, to, TG_T2(mask, from), 2, 0, 0, add);
}

static const tg_sample triangle_samples[] = {
    {.note = "square", .params = &(const diagonal_params){0}, .n_in = 1, .input = {TG_S(4, 4)}},
    {.note = "wide, above", .params = &(const diagonal_params){1}, .n_in = 1, .input = {TG_S(3, 5)}},
    {.note = "tall, below", .params = &(const diagonal_params){-2}, .n_in = 1, .input = {TG_S(5, 3)}},
    {.note = "batch", .params = &(const diagonal_params){0}, .n_in = 1, .input = {TG_S(2, 3, 3, 2)}},
    {.note = "transposed", .params = &(const diagonal_params){0}, .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 5)}},
    {.note = "strided", .params = &(const diagonal_params){1}, .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 4, 4)}},
    {.note = "expanded", .params = &(const diagonal_params){0}, .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3,
                                                                                             4)}},
    {.note = "past the upper corner", .params = &(const diagonal_params){INT64_MAX}, .n_in = 1, .input = {TG_S(2, 3)}},
    {.note = "past the lower corner", .params = &(const diagonal_params){INT64_MIN}, .n_in = 1, .input = {TG_S(2, 3)}},
    {.note = "integers", .params = &(const diagonal_params){0}, .n_in = 1, .input = {TG_S_INDEX(9, 3, 3)}},
    {.note = "bools", .params = &(const diagonal_params){0}, .n_in = 1, .input = {TG_S_BOOL(3, 3)}},
    {.note = "size 1", .params = &(const diagonal_params){0}, .n_in = 1, .input = {TG_S(1, 1)}},
    {.note = "empty", .params = &(const diagonal_params){0}, .n_in = 1, .input = {TG_S(0, 3)}},
    {.note = "a vector", .params = &(const diagonal_params){0}, .n_in = 1, .input = {TG_S(3)}, .refused = TG_ERR_SHAPE},
    {.note = "big", .params = &(const diagonal_params){0}, .n_in = 1, .input = {TG_S(1024, 1024)}, .bench = true},
};

static const tg_field diagonal_fields[] = {
    TG_ARG(diagonal_params, k, INT64, "The diagonal: 0 is the main one, larger numbers lie above it."),
};

#define TRIANGLE(name_, keeps, text)                                                                                \
    static tg_status name_##_forward(tg_call *c) { return keep_triangle(c, keeps, c->out[0], c->input[0], false); } \
    static tg_status name_##_backward(tg_call *c) {                                                                 \
        return keep_triangle(c, keeps, c->gin[0], c->gout[0], tg_adds(c, 0));                                       \
    }                                                                                                               \
    TG_VJP(name_##_vjp, tg_##name_(t, g, diagonal_of(n)))                                                           \
    const tg_op tg_op_##name_ = {                                                                                   \
        .size = sizeof(tg_op), .name = #name_, .formula = text, .inputs = "x", .n_in = 1, .n_out = 1,               \
        .params_size = sizeof(diagonal_params), .family = TG_FAMILY_SHAPE, .sums_f32 = true,                        \
        .infer = triangle_infer, .forward = name_##_forward, .backward = name_##_backward, .vjp = name_##_vjp,      \
        .jvp = tg_jvp_linear, TG_FIELDS(diagonal_fields), TG_SAMPLES(triangle_samples)};                            \
    tg_tensor *tg_##name_(tg_tape *t, tg_tensor *x, int64_t k) {                                                    \
        return TG_RECORD(t, tg_op_##name_, &(diagonal_params){k}, x);                                               \
    }

/* Returns the lower triangle of each matrix [.., m, n]: diagonal k and the elements below it. The elements above are
 * 0, even where x is NaN. */
TRIANGLE(tril, TG_FN_ge, "x[.., i, j] where j - i <= k, else 0")
/* Returns the upper triangle of each matrix: diagonal k and the elements above it. */
TRIANGLE(triu, TG_FN_le, "x[.., i, j] where j - i >= k, else 0")

/* ---- diag ---- */

/* The layout of a diagonal of a matrix. */
typedef struct diagonal {
    int64_t offset, n, stride; /* offset of its first element, number of elements, distance between them */
} diagonal;

/* Returns the layout of diagonal k of the matrices along dims d0 and d1 of x. It has no elements if k lies beyond a
 * corner. */
static diagonal find_diagonal(const tg_tensor *x, int d0, int d1, int64_t k) {
    int64_t rows = x->shape[d0], cols = x->shape[d1];
    if (k >= cols || k <= -rows) return (diagonal){0, 0, 1};
    int64_t below = k < 0 ? -k : 0, right = k > 0 ? k : 0;
    int64_t n = rows - below < cols - right ? rows - below : cols - right;
    return (diagonal){below * x->stride[d0] + right * x->stride[d1], n, x->stride[d0] + x->stride[d1]};
}

static tg_status diag_infer(tg_call *c) {
    int64_t k = ((const diagonal_params *)c->params)->k;
    const tg_tensor *x = c->input[0];
    if (x->ndim == 2) {
        diagonal d = find_diagonal(x, 0, 1, k);
        return tg_call_view(c, 0, d.offset, 1, &d.n, &d.stride);
    }
    if (x->ndim != 1)
        return tg_call_fail(c, TG_ERR_SHAPE, "x has %s; it must be a vector or a matrix",
                            tg_count(x->ndim, "dim").text);
    int64_t size;
    if (k == INT64_MIN || __builtin_add_overflow(x->shape[0], k < 0 ? -k : k, &size))
        return tg_call_fail(c, TG_ERR_SHAPE, "diagonal %lld is too far out: the size of the matrix overflows 64 bits",
                            (long long)k);
    return tg_call_out(c, 0, (tg_dtype)x->dtype, 2, (const int64_t[]){size, size});
}

/* If add is false, writes v to diagonal k of matrix m, and 0 elsewhere. If add is true, adds v to that diagonal. */
static tg_status put_diagonal(tg_call *c, const tg_tensor *m, const tg_tensor *v, bool add) {
    diagonal d = find_diagonal(m, 0, 1, ((const diagonal_params *)c->params)->k);
    if (!add) TG_TRY(tg_ctx_ops(c->ctx)->fill(c->ctx, tg_array_of(m), 0));
    return tg_op_copy(c, tg_array_at(tg_array_of(m), d.offset, 1, &d.n, &d.stride), tg_array_of(v), add);
}

static tg_status diag_forward(tg_call *c) {
    return c->input[0]->ndim == 2 ? TG_OK : put_diagonal(c, c->out[0], c->input[0], false);
}

static tg_status diag_backward(tg_call *c) {
    tg_tensor *g = c->gout[0];
    if (g->ndim == 2) {
        diagonal d = find_diagonal(g, 0, 1, ((const diagonal_params *)c->params)->k);
        return tg_op_pass_view(c, 0, g, d.offset, 1, &d.n, &d.stride);
    }
    const tg_tensor *x = tg_call_gin(c, 0);
    return tg_ok(c->ctx) ? put_diagonal(c, x, g, tg_adds(c, 0)) : c->ctx->run.status;
}

/* Records the gradient of x. For a matrix x, this is the square matrix with g on its main diagonal, in a matrix of
 * zeros that has the shape of x. A square matrix with g on diagonal k could be far larger than x. */
static tg_tensor *diag_back(tg_tape *t, const tg_node *n, tg_tensor *g) {
    const tg_tensor *x = tg_node_in(n)[0];
    int64_t k = diagonal_of(n);
    if (g->ndim == 2) return tg_diag(t, g, k);
    if (g->numel == 0) return tg_zeros_like(t, x);
    tg_tensor *y = tg_diag(t, g, 0);
    if (tg_is_alive(y)) y = tg_spread(t, y, 0, k < 0 ? -k : 0, 1, x->shape[0]);
    return tg_is_alive(y) ? tg_spread(t, y, 1, k > 0 ? k : 0, 1, x->shape[1]) : y;
}

TG_VJP(diag_vjp, diag_back(t, n, g))

static const tg_sample diag_samples[] = {
    {.note = "to a matrix", .params = &(const diagonal_params){0}, .n_in = 1, .input = {TG_S(4)}},
    {.note = "to a matrix, above", .params = &(const diagonal_params){2}, .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3)}},
    {.note = "to a matrix, below", .params = &(const diagonal_params){-1}, .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3)}},
    {.note = "of a square", .params = &(const diagonal_params){0}, .n_in = 1, .input = {TG_S(3, 3)}},
    {.note = "of a wide one, above", .params = &(const diagonal_params){2}, .n_in = 1, .input = {TG_S(3, 6)}},
    {.note = "of a tall one, below", .params = &(const diagonal_params){-1}, .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 5, 3)}},
    {.note = "of a tall one, above", .params = &(const diagonal_params){1}, .n_in = 1, .input = {TG_S(6, 3)}},
    {.note = "of a wide one, below", .params = &(const diagonal_params){-2}, .n_in = 1, .input = {TG_S(3, 6)}},
    {.note = "of a strided one", .params = &(const diagonal_params){0}, .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 4)}},
    {.note = "of an expanded one", .params = &(const diagonal_params){0}, .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4)}},
    {.note = "past the corner: nothing", .params = &(const diagonal_params){INT64_MIN}, .n_in = 1, .input = {TG_S(3,
                                                                                                                  4)}},
    {.note = "integers", .params = &(const diagonal_params){0}, .n_in = 1, .input = {TG_S_INDEX(9, 3)}},
    {.note = "size 1", .params = &(const diagonal_params){0}, .n_in = 1, .input = {TG_S(1)}},
    {.note = "empty", .params = &(const diagonal_params){1}, .n_in = 1, .input = {TG_S(0)}},
    {.note = "of nothing", .params = &(const diagonal_params){0}, .n_in = 1, .input = {TG_S(0, 3)}},
    {.note = "three dims", .params = &(const diagonal_params){0}, .n_in = 1, .input = {TG_S(2, 2, 2)},
     .refused = TG_ERR_SHAPE},
    {.note = "scalar", .params = &(const diagonal_params){0}, .n_in = 1, .input = {TG_S_SCALAR},
     .refused = TG_ERR_SHAPE},
    {.note = "overflow", .params = &(const diagonal_params){INT64_MAX}, .n_in = 1, .input = {TG_S(3)},
     .refused = TG_ERR_SHAPE},
    {.note = "big", .params = &(const diagonal_params){0}, .n_in = 1, .input = {TG_S(1024)}, .bench = true},
};

const tg_op tg_op_diag = {
    .size = sizeof(tg_op), .name = "diag", .formula = "the matrix whose diagonal k is x; or diagonal k of x",
    .inputs = "x", .n_in = 1, .n_out = 1, .params_size = sizeof(diagonal_params), .passes = 1,
    .family = TG_FAMILY_SHAPE, .sums_f32 = true, .infer = diag_infer, .forward = diag_forward,
    .backward = diag_backward, .vjp = diag_vjp, .jvp = tg_jvp_linear, TG_FIELDS(diagonal_fields),
    TG_SAMPLES(diag_samples)};

/* For a vector [n], returns the matrix [n + |k|, n + |k|] with x on diagonal k and 0 elsewhere. For a matrix,
 * returns a view of its diagonal k, which has no elements if k lies beyond a corner. */
tg_tensor *tg_diag(tg_tape *t, tg_tensor *x, int64_t k) {
    return TG_RECORD(t, tg_op_diag, &(diagonal_params){k}, x);
}

/* ---- diagonal ---- */

typedef struct diagonals_params {
    int64_t k;
    int d0, d1; /* the dims of the rows and of the columns */
} diagonals_params;

/* Sets e to the layout of the diagonals of x: the other dims of x, then the elements of a diagonal. Returns the offset
 * of the first element. */
static int64_t lay_out(const diagonals_params *p, const tg_tensor *x, tg_extent *e) {
    diagonal d = find_diagonal(x, p->d0, p->d1, p->k);
    int n = 0;
    for (int i = 0; i < x->ndim; i++) {
        if (i == p->d0 || i == p->d1) continue;
        e->shape[n] = x->shape[i];
        e->stride[n++] = x->stride[i];
    }
    e->shape[n] = d.n;
    e->stride[n] = d.stride;
    return d.offset;
}

static tg_status diagonal_infer(tg_call *c) {
    diagonals_params *p = c->params;
    const tg_tensor *x = c->input[0];
    tg_extent e;
    TG_TRY(tg_need_dim(c, 0, &p->d0));
    TG_TRY(tg_need_dim(c, 0, &p->d1));
    if (p->d0 == p->d1) return tg_call_fail(c, TG_ERR_SHAPE, "d0 and d1 are both dim %d; they must differ", p->d0);
    for (int d = 0, j = 0; d < x->ndim; d++)
        if (d != p->d0 && d != p->d1) TG_TRY(tg_call_role(c, 0, d, j++));
    int64_t offset = lay_out(p, x, &e);
    return tg_call_view(c, 0, offset, x->ndim - 1, e.shape, e.stride);
}

static tg_status diagonal_backward(tg_call *c) {
    const tg_tensor *x = c->gin[0];
    tg_extent e;
    TG_TRY(tg_op_zero(c, 0));
    int64_t offset = lay_out(c->params, x, &e);
    return tg_op_copy(c, tg_array_at(tg_array_of(x), offset, x->ndim - 1, e.shape, e.stride), tg_array_of(c->gout[0]),
                      tg_adds(c, 0));
}

/* Moves the last dim of g to where the indices of dims d0 and d1 are in the result of tg_index. */
static tg_tensor *diagonal_first(tg_tape *t, tg_tensor *g, const diagonals_params *p) {
    int lowest = p->d0 < p->d1 ? p->d0 : p->d1, before = p->d0 - p->d1 == 1 || p->d1 - p->d0 == 1 ? lowest : 0;
    tg_dims order = {.n = g->ndim};
    for (int i = 0; i < g->ndim; i++) order.dim[i] = i < before ? i : i == before ? g->ndim - 1 : i - 1;
    return tg_permute(t, g, order);
}

static tg_tensor *diagonal_back(tg_tape *t, const tg_node *n, tg_tensor *g) {
    const diagonals_params *p = tg_node_params(n);
    double size = (double)g->shape[g->ndim - 1];
    double below = p->k < 0 ? -(double)p->k : 0, right = p->k > 0 ? (double)p->k : 0;
    tg_tensor *zeros = tg_zeros_like(t, tg_node_in(n)[0]);
    if (size == 0) return zeros;
    tg_tensor *const index[] = {tg_arange(t, TG_I64, below, below + size, 1),
                                tg_arange(t, TG_I64, right, right + size, 1)};
    return tg_index_put(t, zeros, TG_DIMS(p->d0, p->d1), diagonal_first(t, g, p), index, 2, true);
}

TG_VJP(diagonal_vjp, diagonal_back(t, n, g))

#define ALONG(k_, d0_, d1_) &(const diagonals_params){k_, d0_, d1_}
static const tg_sample diagonals_samples[] = {
    {.note = "matrix", .params = ALONG(0, 0, 1), .n_in = 1, .input = {TG_S(3, 3)}},
    {.note = "wide, above", .params = ALONG(2, 0, 1), .n_in = 1, .input = {TG_S(3, 6)}},
    {.note = "batch, below", .params = ALONG(-1, -2, -1), .n_in = 1, .input = {TG_S(2, 4, 3)}},
    {.note = "columns first", .params = ALONG(1, 1, 0), .n_in = 1, .input = {TG_S(4, 3, 2)}},
    {.note = "outer dims", .params = ALONG(0, 0, 2), .n_in = 1, .input = {TG_S(3, 2, 4)}},
    {.note = "transposed", .params = ALONG(0, 1, 2), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 3, 4)}},
    {.note = "strided", .params = ALONG(1, 0, 1), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 4)}},
    {.note = "expanded", .params = ALONG(0, 0, 1), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4)}},
    {.note = "past the corner: nothing", .params = ALONG(INT64_MIN, 0, 1), .n_in = 1, .input = {TG_S(3, 4)}},
    {.note = "integers", .params = ALONG(0, 0, 1), .n_in = 1, .input = {TG_S_INDEX(9, 3, 3)}},
    {.note = "of nothing", .params = ALONG(0, 0, 1), .n_in = 1, .input = {TG_S(0, 3)}},
    {.note = "one dim twice", .params = ALONG(0, 1, -1), .n_in = 1, .input = {TG_S(3, 4)}, .refused = TG_ERR_SHAPE},
    {.note = "a vector", .params = ALONG(0, 0, 1), .n_in = 1, .input = {TG_S(3)}, .refused = TG_ERR_SHAPE},
    {.note = "big", .params = ALONG(0, 1, 2), .n_in = 1, .input = {TG_S(16, 256, 256)}, .bench = true},
};

static const tg_field diagonals_fields[] = {
    TG_ARG(diagonals_params, k, INT64, "The diagonal: 0 is the main one, larger numbers lie above it."),
    TG_ARG(diagonals_params, d0, INT, "The dim of the rows; a negative number counts from the end."),
    TG_ARG(diagonals_params, d1, INT, "The dim of the columns; a negative number counts from the end."),
};

const tg_op tg_op_diagonal = {
    .size = sizeof(tg_op), .name = "diagonal", .formula = "diagonal k of the matrices along two dims of x",
    .inputs = "x", .n_in = 1, .n_out = 1, .params_size = sizeof(diagonals_params), .family = TG_FAMILY_SHAPE,
    .sums_f32 = true, .infer = diagonal_infer, .backward = diagonal_backward, .vjp = diagonal_vjp,
    .jvp = tg_jvp_linear, TG_FIELDS(diagonals_fields), .preset = ALONG(0, 0, 1), TG_SAMPLES(diagonals_samples)};

/* Returns a view of diagonal k of each matrix whose rows lie along dim d0 of x and whose columns along d1. The other
 * dims of x come first, and the elements of the diagonal last. */
tg_tensor *tg_diagonal(tg_tape *t, tg_tensor *x, int64_t k, int d0, int d1) {
    return TG_RECORD(t, tg_op_diagonal, (&(diagonals_params){k, d0, d1}), x);
}
