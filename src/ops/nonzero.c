/* Ops that depend on where a mask is true, and are composed of others: nonzero and masked_scatter. */
#include "ops/common/derive.h"
#include "ops/common/indexed.h"

/* ---- nonzero ---- */

typedef struct nonzero_params {
    int64_t count;
} nonzero_params;

/* Returns the index in a dim of elements at these positions in row-major order. stride is the number of elements from
 * one index of the dim to the next. */
static tg_tensor *index_along(tg_tape *t, tg_tensor *position, int64_t stride, int64_t size) {
    tg_tensor *rows = tg_floor_divide(t, position, tg_number_like(t, position, (double)stride));
    return tg_remainder(t, rows, tg_number_like(t, position, (double)size));
}

static tg_status nonzero_compose(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out,
                                 const void *site) {
    tg_tensor *x = in[0], *column[TG_MAX_DIMS];
    int64_t count = ((const nonzero_params *)params)->count, stride = 1;
    tg_tensor *mask = x->dtype == TG_BOOL ? x : tg_ne(t, x, tg_number_like(t, x, 0));
    tg_tensor *all = tg_reshape(t, tg_arange(t, TG_I64, 0, (double)x->numel, 1), tg_shape_of(x));
    tg_tensor *position = tg_masked_select(t, all, mask, count);
    (void)site;
    for (int d = x->ndim - 1; d >= 0 && tg_is_alive(position); stride *= x->shape[d--])
        column[d] = index_along(t, position, stride, x->shape[d]);
    if (tg_is_alive(position))
        out[0] = x->ndim ? tg_stack(t, column, x->ndim, 1) : tg_full(t, TG_I64, TG_SHAPE(count, 0), 0);
    return t->ctx->run.status;
}

static const tg_sample nonzero_samples[] = {
    {.note = "every second", .params = &(const nonzero_params){7}, .n_in = 1, .input = {TG_S_HOLDS(1, 2, 3, 5)}},
    {.note = "of three dims", .params = &(const nonzero_params){16}, .n_in = 1, .input = {TG_S_HOLDS(1, 3, 2, 3, 4)}},
    {.note = "floats", .params = &(const nonzero_params){8}, .n_in = 1,
     .input = {{.shape = TG_S_SHAPE(3, 4), .lo = 1, .hi = 2, .zeros = 3}}},
    {.note = "none", .params = &(const nonzero_params){0}, .n_in = 1, .input = {TG_S_HOLDS(1, 1, 3, 2)}},
    {.note = "another count", .params = &(const nonzero_params){5}, .n_in = 1, .input = {TG_S_HOLDS(1, 2, 8)},
     .refused = TG_ERR_DATA},
    {.note = "negative count", .params = &(const nonzero_params){-1}, .n_in = 1, .input = {TG_S_HOLDS(1, 2, 8)},
     .refused = TG_ERR_ARGUMENT},
    {.note = "empty", .params = &(const nonzero_params){0}, .n_in = 1, .input = {TG_S(0, 3)}},
    {.note = "big", .params = &(const nonzero_params){1024 * 512}, .n_in = 1, .input = {TG_S_HOLDS(1, 2, 1024, 1024)},
     .bench = true},
};

static const tg_field nonzero_fields[] = {
    TG_ARG(nonzero_params, count, INT64, "Number of elements of x that are not 0.", .required = true),
};

const tg_op tg_op_nonzero = {
    .size = sizeof(tg_op), .name = "nonzero", .formula = "the indices of the elements of x that are not 0",
    .inputs = "x", .n_in = 1, .n_out = 1, .params_size = sizeof(nonzero_params), .compose = nonzero_compose,
    TG_FIELDS(nonzero_fields), TG_SAMPLES(nonzero_samples)};

/* Returns the indices of the elements of x that are not 0, in row-major order: [count, dims of x], int64. The caller
 * states their number, because no shape may depend on data. */
tg_tensor *tg_nonzero(tg_tape *t, tg_tensor *x, int64_t count) {
    return TG_RECORD(t, tg_op_nonzero, &(nonzero_params){count}, x);
}

/* ---- masked_scatter ---- */

typedef struct places_params {
    int64_t available; /* number of elements of src */
} places_params;

static tg_status places_infer(tg_call *c) {
    TG_TRY(tg_need_bool(c, 0));
    return tg_call_out(c, 0, TG_I64, 1, c->input[0]->shape);
}

static tg_status places_forward(tg_call *c) {
    const int64_t n = c->input[0]->numel, available = ((const places_params *)c->params)->available;
    const tg_tensor *y = c->out[0];
    tg_extent e;
    int64_t held;
    if (n == 0) return TG_OK;
    TG_TRY(tg_op_scan(c, TG_SUM, tg_array_of(y), tg_array_of(c->input[0]), false, false));
    TG_TRY(tg_op_compare_count(c, tg_array_slice(tg_array_of(y), 0, n - 1, 1, 1, &e), TG_FN_gt, available, &held));
    if (TG_UNLIKELY(held >= 0))
        return tg_call_fail(c, TG_ERR_DATA, "the mask selects %s but src has %lld; it must have as many or more",
                            tg_count(held, "element").text, (long long)available);
    TG_TRY(tg_op_map(c, TG_FN_affine, y, TG_T1(y), 1, 1, -1, false));
    return tg_op_map(c, TG_FN_mul, y, TG_T2(y, c->input[0]), 2, 0, 0, false);
}

/* The op that returns, for each true element of a mask [n], the number of true elements before it, which is the place
 * in src of the new element; 0 for the others. */
static const tg_op masked_scatter_places = {
    .size = sizeof(tg_op), .name = "masked_scatter_places", .formula = "where src has the element for each place",
    .n_in = 1, .n_out = 1, .params_size = sizeof(places_params), .family = TG_FAMILY_CUSTOM, .infer = places_infer,
    .forward = places_forward};

static tg_status masked_scatter_compose(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out,
                                        const void *site) {
    tg_tensor *x = in[0], *src = in[2];
    tg_shape whole = tg_shape_of(x);
    (void)params, (void)site;
    if (in[1]->dtype != TG_BOOL || src->dtype != x->dtype)
        return tg_fail(t->ctx, TG_ERR_DTYPE, "masked_scatter: mask is %s and src is %s; mask must be bool, and src %s, "
                       "the dtype of x", tg_dtype_name((tg_dtype)in[1]->dtype), tg_dtype_name((tg_dtype)src->dtype),
                       tg_dtype_name((tg_dtype)x->dtype));
    tg_tensor *mask = tg_reshape(t, tg_expand(t, in[1], whole), TG_SHAPE(x->numel));
    tg_tensor *places = TG_RECORD(t, masked_scatter_places, (&(const places_params){src->numel}), mask);
    if (x->numel == 0 || src->numel == 0) { /* the mask is true nowhere */
        out[0] = tg_is_alive(places) ? tg_masked_fill(t, x, in[1], 0) : places;
        return t->ctx->run.status;
    }
    tg_tensor *chosen = tg_index_select(t, tg_reshape(t, src, TG_SHAPE(src->numel)), 0, places);
    out[0] = tg_where(t, in[1], tg_reshape(t, chosen, whole), x);
    return t->ctx->run.status;
}

static const tg_sample masked_scatter_samples[] = {
    {.note = "matrix", .n_in = 3, .input = {TG_S(3, 5), TG_S_HOLDS(1, 2, 3, 5), TG_S(7)}},
    {.note = "src is longer, and has two dims", .n_in = 3, .input = {TG_S(3, 4), TG_S_HOLDS(2, 3, 3, 4), TG_S(2, 3)}},
    {.note = "mask stretched", .n_in = 3, .input = {TG_S(3, 5), TG_S_HOLDS(3, 5, 5), TG_S(9)}},
    {.note = "transposed, strided", .n_in = 3,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 4), TG_S_HOLDS(1, 2, 3, 4), TG_S_AS(TG_SAMPLE_STRIDED, 3, 4)}},
    {.note = "bools", .n_in = 3, .input = {TG_S_BOOL(6), TG_S_HOLDS(1, 2, 6), TG_S_BOOL(3)}},
    {.note = "nothing", .n_in = 3, .input = {TG_S(4), TG_S_HOLDS(1, 1, 4), TG_S(1)}},
    {.note = "src too short", .n_in = 3, .input = {TG_S(6), TG_S_HOLDS(1, 2, 6), TG_S(2)}, .refused = TG_ERR_DATA},
    {.note = "mask of floats", .n_in = 3, .input = {TG_S(6), TG_S(6), TG_S(6)}, .refused = TG_ERR_DTYPE},
    {.note = "mask of another shape", .n_in = 3, .input = {TG_S(6), TG_S_HOLDS(1, 2, 5), TG_S(6)},
     .refused = TG_ERR_SHAPE},
    {.note = "other dtypes", .n_in = 3, .input = {TG_S(6), TG_S_HOLDS(1, 2, 6), TG_S_INDEX(3, 6)},
     .refused = TG_ERR_DTYPE},
    {.note = "big", .n_in = 3, .input = {TG_S(1024, 1024), TG_S_HOLDS(1, 2, 1024, 1024), TG_S(1024, 1024)},
     .bench = true},
};

const tg_op tg_op_masked_scatter = {
    .size = sizeof(tg_op), .name = "masked_scatter", .formula = "x with the elements of src in turn where mask holds",
    .inputs = "x mask src", .n_in = 3, .n_out = 1, .compose = masked_scatter_compose,
    TG_SAMPLES(masked_scatter_samples)};

/* Returns a copy of x in which the elements of src, in row-major order, replace those where mask is true. */
tg_tensor *tg_masked_scatter(tg_tape *t, tg_tensor *x, tg_tensor *mask, tg_tensor *src) {
    return TG_RECORD(t, tg_op_masked_scatter, NULL, x, mask, src);
}
