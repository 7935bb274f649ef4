/* Cumulative sums and products along a dim. */
#include "ops/common/derive.h"
#include "ops/common/op.h"

typedef struct scan_params {
    int dim;
    bool back; /* accumulate from the last element to the first, as the gradient of a cumsum does */
} scan_params;

static const scan_params *params_of(const tg_call *c) { return c->params; }

static tg_status scan_infer(tg_call *c) {
    int *dim = &((scan_params *)c->params)->dim;
    const tg_tensor *x = c->input[0];
    tg_dtype d = (tg_dtype)x->dtype;
    TG_TRY(tg_need_dim(c, 0, dim));
    c->dims = 1u << *dim;
    return tg_call_out(c, 0, tg_total_dtype(d), x->ndim, x->shape);
}

/* Writes the cumulative sums or products of `from` to `to`, or adds them to `to`. If back is true, accumulates from the
 * last element to the first. */
static tg_status scan(tg_call *c, tg_reduction kind, const tg_tensor *to, const tg_tensor *from, bool back, bool add) {
    int dim = params_of(c)->dim;
    tg_extent ey, ex;
    tg_array y = tg_array_last(tg_array_of(to), dim, &ey), x = tg_array_last(tg_array_of(from), dim, &ex);
    return tg_op_scan(c, kind, y, x, back, add);
}

#define SCAN(dim_) &(const scan_params){.dim = (dim_)}
#define SCAN_SAMPLES                                                                                                   \
    {.note = "rows", .params = SCAN(-1), .n_in = 1, .input = {TG_S(3, 5)}},                                            \
    {.note = "first dim", .params = SCAN(0), .n_in = 1, .input = {TG_S(6, 3)}},                                        \
    {.note = "middle dim", .params = SCAN(1), .n_in = 1, .input = {TG_S(2, 4, 3)}},                                    \
    {.note = "transposed", .params = SCAN(-1), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 4, 3)}},          \
    {.note = "strided", .params = SCAN(-2), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 4)}},                   \
    {.note = "expanded", .params = SCAN(0), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4)}},                  \
    {.note = "integers", .params = SCAN(1), .n_in = 1, .input = {TG_S_INDEX(4, 3, 5)}},                                \
    {.note = "bools", .params = SCAN(0), .n_in = 1, .input = {TG_S_BOOL(9)}},                                          \
    {.note = "size 1", .params = SCAN(0), .n_in = 1, .input = {TG_S(1)}},                                              \
    {.note = "rows of one", .params = SCAN(1), .n_in = 1, .input = {TG_S(3, 1)}},                                      \
    {.note = "no rows", .params = SCAN(1), .n_in = 1, .input = {TG_S(0, 4)}},                                          \
    {.note = "empty rows", .params = SCAN(1), .n_in = 1, .input = {TG_S(3, 0)}},                                       \
    {.note = "no such dim", .params = SCAN(2), .n_in = 1, .input = {TG_S(2, 3)}, .refused = TG_ERR_SHAPE},             \
    {.note = "scalar", .params = SCAN(0), .n_in = 1, .input = {TG_S_SCALAR}, .refused = TG_ERR_SHAPE}

/* ---- cumsum ---- */

static tg_status cumsum_infer(tg_call *c) {
    TG_TRY(scan_infer(c));
    for (int d = 0; d < c->input[0]->ndim; d++)
        if (d != params_of(c)->dim) TG_TRY(tg_call_role(c, 0, d, d));
    return TG_OK;
}

static tg_status cumsum_forward(tg_call *c) {
    return scan(c, TG_SUM, c->out[0], c->input[0], params_of(c)->back, false);
}

static tg_status cumsum_backward(tg_call *c) {
    return scan(c, TG_SUM, c->gin[0], c->gout[0], !params_of(c)->back, tg_adds(c, 0));
}

static tg_status cumsum_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin);

static const tg_sample cumsum_samples[] = {
    SCAN_SAMPLES,
    {.note = "from the end", .params = &(const scan_params){.dim = 1, .back = true}, .n_in = 1, .input = {TG_S(3, 7)}},
    {.note = "from the end, first dim", .params = &(const scan_params){.dim = 0, .back = true}, .n_in = 1,
     .input = {TG_S(5, 3)}},
    {.note = "long rows", .params = SCAN(1), .n_in = 1, .input = {TG_S_IN(0, 1, 2, 600)}},
    {.note = "big", .params = SCAN(1), .n_in = 1, .input = {TG_S(1024, 1024)}, .bench = true},
    {.note = "big, first dim", .params = SCAN(0), .n_in = 1, .input = {TG_S(1024, 1024)}, .bench = true},
};

static const tg_field scan_fields[] = {
    TG_ARG(scan_params, dim, INT, "Dim of x; a negative number counts from the end.", .required = true),
};

const tg_op tg_op_cumsum = {
    .size = sizeof(tg_op), .name = "cumsum", .formula = "y[.., i, ..] = sum of x[.., 0..i, ..]", .inputs = "x",
    .n_in = 1, .n_out = 1, .params_size = sizeof(scan_params), .family = TG_FAMILY_SHAPE, .sums_f32 = true,
    .infer = cumsum_infer, .forward = cumsum_forward, .backward = cumsum_backward, .vjp = cumsum_vjp,
    .jvp = tg_jvp_linear, TG_FIELDS(scan_fields), TG_SAMPLES(cumsum_samples)};

static tg_status cumsum_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    const scan_params *p = tg_node_params(n);
    gin[0] = TG_RECORD(t, tg_op_cumsum, (&(const scan_params){.dim = p->dim, .back = !p->back}), gout[0]);
    return TG_OK;
}

/* Returns the sum of each element and all elements before it along dim: uint64 for uint64, int64 for other integers and
 * bools. Float sums run in float64. */
tg_tensor *tg_cumsum(tg_tape *t, tg_tensor *x, int dim) {
    return TG_RECORD(t, tg_op_cumsum, SCAN(dim), x);
}

/* ---- cumprod ---- */

static tg_status cumprod_forward(tg_call *c) { return scan(c, TG_PROD, c->out[0], c->input[0], false, false); }

/* Let y be the products, y' the products if the first zero of the row is replaced by 1, and s(v)[k] the sum of v from k
 * to the end. The gradient of x[k] is s(g y)[k] / x[k] before the first zero, s(g y')[k] at it, and 0 after it. Only y'
 * is computed, because y equals y' before the first zero and, if x is finite, is 0 from there on. */
static tg_status cumprod_backward(tg_call *c) {
    const tg_tensor *x = c->input[0], *g = c->gout[0];
    tg_dtype wide = tg_accumulate_dtype((tg_dtype)x->dtype);
    tg_tensor *zero = tg_call_temp(c, TG_BOOL, x->ndim, x->shape), *live = tg_call_temp(c, TG_BOOL, x->ndim, x->shape);
    tg_tensor *zeros = tg_call_temp(c, TG_I64, x->ndim, x->shape), *some = tg_call_temp(c, wide, x->ndim, x->shape);
    tg_tensor *gy = tg_call_temp(c, wide, x->ndim, x->shape), *all = tg_call_temp(c, wide, x->ndim, x->shape);
    tg_tensor *sum = tg_call_temp(c, wide, x->ndim, x->shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_op_map(c, TG_FN_logical_not, zero, TG_T1(x), 1, 0, 0, false));
    TG_TRY(scan(c, TG_SUM, zeros, zero, false, false));
    TG_TRY(tg_op_map(c, TG_FN_eq, live, TG_T2(zeros, zero), 2, 0, 0, false)); /* up to and including the first zero */
    TG_TRY(tg_op_map(c, TG_FN_logical_and, zero, TG_T2(zero, live), 2, 0, 0, false)); /* only the first zero */
    TG_TRY(tg_op_map(c, TG_FN_masked_fill, some, TG_T2(x, zero), 2, 1, 0, false));
    TG_TRY(scan(c, TG_PROD, gy, some, false, false));
    TG_TRY(tg_op_map(c, TG_FN_mul, gy, TG_T2(g, gy), 2, 0, 0, false));
    TG_TRY(scan(c, TG_SUM, all, gy, true, false));
    TG_TRY(tg_op_map(c, TG_FN_where_db, gy, TG_T2(zeros, gy), 2, 0, 0, false)); /* 0 from the first zero on */
    TG_TRY(scan(c, TG_SUM, sum, gy, true, false));
    TG_TRY(tg_op_map(c, TG_FN_div, sum, TG_T2(sum, some), 2, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_where, sum, TG_T3(zero, all, sum), 3, 0, 0, false));
    return tg_op_map(c, TG_FN_where_da, c->gin[0], TG_T2(live, sum), 2, 0, 0, tg_adds(c, 0));
}

/* Computes the products in log n steps, each of which multiplies elements that are `by` positions apart. Derivatives of
 * any order are right also where elements are 0. */
static tg_status cumprod_compose(tg_tape *t, const tg_node *n, tg_tensor **out) {
    int dim = ((const scan_params *)tg_node_params(n))->dim;
    tg_tensor *x = tg_node_in(n)[0], *y = tg_wide(t, x);
    int64_t size = x->shape[dim];
    for (int64_t by = 1; by < size && tg_is_alive(y); by *= 2) {
        tg_tensor *low = tg_slice(t, y, dim, 0, by, 1), *high = tg_slice(t, y, dim, by, size, 1);
        tg_tensor *both = tg_mul(t, high, tg_slice(t, y, dim, 0, size - by, 1));
        y = tg_concat(t, (tg_tensor *[]){low, both}, 2, dim);
    }
    out[0] = tg_cast(t, y, (tg_dtype)x->dtype);
    return TG_OK;
}

TG_COMPOSED(cumprod)

/* An input with many zeros: integers from 0 to 2. */
#define WHOLE(...) {.shape = TG_S_SHAPE(__VA_ARGS__), .kind = TG_SAMPLE_INDEX, .hi = 3}
static const tg_sample cumprod_samples[] = {
    SCAN_SAMPLES,
    {.note = "an odd number", .params = SCAN(1), .n_in = 1, .input = {TG_S_IN(0.5, 2, 2, 7)}},
    {.note = "long rows", .params = SCAN(1), .n_in = 1, .input = {TG_S_IN(0.9, 1.1, 2, 600)}},
    {.note = "one zero and two in a row", .params = SCAN(1), .n_in = 1,
     .input = {{.shape = TG_S_SHAPE(5, 4), .zeros = 3}}},
    {.note = "zeros among integers", .params = SCAN(0), .n_in = 1, .input = {WHOLE(5, 4)}},
    {.note = "big", .params = SCAN(1), .n_in = 1, .input = {TG_S_IN(0.9, 1.1, 1024, 1024)}, .bench = true},
};

const tg_op tg_op_cumprod = {
    .size = sizeof(tg_op), .name = "cumprod", .formula = "y[.., i, ..] = product of x[.., 0..i, ..]", .inputs = "x",
    .n_in = 1, .n_out = 1, .params_size = sizeof(scan_params), .saves_in = 1, .family = TG_FAMILY_SOFTMAX,
    .sums_f32 = true, .infer = scan_infer, .forward = cumprod_forward, .backward = cumprod_backward, .vjp = cumprod_vjp,
    .jvp = cumprod_jvp, TG_FIELDS(scan_fields), TG_SAMPLES(cumprod_samples)};

/* Returns the product of each element and all elements before it along dim: uint64 for uint64, int64 for other integers
 * and bools. The gradient is right also if elements are 0. */
tg_tensor *tg_cumprod(tg_tape *t, tg_tensor *x, int dim) {
    return TG_RECORD(t, tg_op_cumprod, SCAN(dim), x);
}
