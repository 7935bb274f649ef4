/* cummax and cummin: the extremum of each element and all elements before it along a dim, and its position. Positions
 * are found without gradients, in log n steps; the ops then take the elements of x at these positions. */
#include "ops/common/derive.h"
#include "ops/common/op.h"

enum { VALUES, POSITIONS, OUTPUTS };

typedef struct running_params {
    int dim;
} running_params;

static tg_status check(tg_tape *t, const tg_tensor *x, int *dim) {
    int d = *dim < 0 ? *dim + x->ndim : *dim;
    if (d < 0 || d >= x->ndim)
        return tg_fail(t->ctx, TG_ERR_SHAPE, "dim is %d, but x has %s", *dim, tg_count(x->ndim, "dim").text);
    *dim = d;
    return TG_OK;
}

/* Returns the number of each element along dim, in the shape of x. */
static tg_tensor *numbers(tg_tape *t, const tg_tensor *x, int dim) {
    tg_shape along = {.ndim = x->ndim - dim};
    for (int d = 0; d < along.ndim; d++) along.dim[d] = d ? 1 : x->shape[dim];
    tg_tensor *row = tg_reshape(t, tg_arange(t, TG_I64, 0, (double)x->shape[dim], 1), along);
    return tg_contiguous(t, tg_expand(t, row, tg_shape_of(x)));
}

/* Replaces elements by those `by` positions before them where `before` is true. `before` has no elements for the first
 * `by` positions, whose elements stay. */
static tg_tensor *take(tg_tape *t, tg_tensor *x, int dim, int64_t by, tg_tensor *before) {
    tg_tensor *first = tg_slice(t, x, dim, 0, by, 1), *later = tg_slice(t, x, dim, by, INT64_MAX, 1);
    later = tg_where(t, before, tg_slice(t, x, dim, 0, tg_dim(x, dim) - by, 1), later);
    return tg_concat(t, (tg_tensor *[]){first, later}, 2, dim);
}

/* Returns where each running extremum of x lies. After the step of `by`, an element is the extremum of the 2 * by
 * elements that end at it. The later of two elements is kept if it is NaN, equal to the earlier one, or greater (for
 * minima: less). So the last of equal elements wins, and NaN wins over any number. */
static tg_tensor *positions(tg_tape *t, tg_tensor *x, int dim, bool least) {
    tg_tensor *values = tg_detach(t, x), *at = numbers(t, x, dim);
    for (int64_t by = 1, n = x->shape[dim]; by < n && tg_is_alive(at); by *= 2) {
        tg_tensor *earlier = tg_slice(t, values, dim, 0, n - by, 1), *later = tg_slice(t, values, dim, by, n, 1);
        tg_tensor *wins = least ? tg_le(t, later, earlier) : tg_ge(t, later, earlier);
        tg_tensor *before = tg_logical_and(t, tg_logical_not(t, wins), tg_eq(t, later, later));
        values = take(t, values, dim, by, before);
        at = take(t, at, dim, by, before);
    }
    return at;
}

static tg_status extremum(tg_tape *t, const running_params *p, tg_tensor *x, tg_tensor **out, bool least) {
    int dim = p->dim;
    TG_TRY(check(t, x, &dim));
    out[POSITIONS] = positions(t, x, dim, least);
    out[VALUES] = tg_gather(t, x, dim, out[POSITIONS]);
    return t->ctx->run.status;
}

static tg_status cummax_compose(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out,
                                const void *site) {
    (void)site;
    return extremum(t, params, in[0], out, false);
}

static tg_status cummin_compose(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out,
                                const void *site) {
    (void)site;
    return extremum(t, params, in[0], out, true);
}

#define ALONG(dim_) &(const running_params){.dim = (dim_)}
static const tg_sample running_samples[] = {
    {.note = "rows", .params = ALONG(-1), .n_in = 1, .input = {TG_S(3, 9)}},
    {.note = "first dim", .params = ALONG(0), .n_in = 1, .input = {TG_S(6, 3)}},
    {.note = "middle dim", .params = ALONG(1), .n_in = 1, .input = {TG_S(2, 4, 3)}},
    {.note = "transposed", .params = ALONG(-1), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 4, 3)}},
    {.note = "strided", .params = ALONG(-2), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 4)}},
    {.note = "expanded", .params = ALONG(1), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4)}},
    {.note = "integers, ties", .params = ALONG(1), .n_in = 1, .input = {TG_S_INDEX(4, 3, 9)}},
    {.note = "bools", .params = ALONG(0), .n_in = 1, .input = {TG_S_BOOL(9)}},
    {.note = "size 1", .params = ALONG(0), .n_in = 1, .input = {TG_S(1)}},
    {.note = "rows of one", .params = ALONG(1), .n_in = 1, .input = {TG_S(3, 1)}},
    {.note = "no rows", .params = ALONG(1), .n_in = 1, .input = {TG_S(0, 4)}},
    {.note = "empty rows", .params = ALONG(1), .n_in = 1, .input = {TG_S(3, 0)}},
    {.note = "no such dim", .params = ALONG(2), .n_in = 1, .input = {TG_S(2, 3)}, .refused = TG_ERR_SHAPE},
    {.note = "scalar", .params = ALONG(0), .n_in = 1, .input = {TG_S_SCALAR}, .refused = TG_ERR_SHAPE},
    {.note = "big", .params = ALONG(1), .n_in = 1, .input = {TG_S(1024, 1024)}, .bench = true},
};

static const tg_field running_fields[] = {
    TG_ARG(running_params, dim, INT, "Dim of x; a negative number counts from the end.", .required = true),
};

#define RUNNING(name_, text)                                                                                       \
    const tg_op tg_op_##name_ = {                                                                                  \
        .size = sizeof(tg_op), .name = #name_, .formula = "y[.., i, ..] = " text " of x[.., 0..i, ..]; its index", \
        .inputs = "x", .outputs = "y index", .n_in = 1, .n_out = OUTPUTS, .params_size = sizeof(running_params),   \
        .compose = name_##_compose, TG_FIELDS(running_fields), TG_SAMPLES(running_samples)};                       \
    tg_tensor *tg_##name_(tg_tape *t, tg_tensor *x, int dim, tg_tensor **index) {                                  \
        tg_tensor *out[OUTPUTS] = {NULL, NULL};                                                                    \
        tg_apply(t, &tg_op_##name_, ALONG(dim), &x, 1, out, OUTPUTS, NULL, NULL, TG_SITE);                         \
        if (index) *index = out[POSITIONS];                                                                        \
        return out[VALUES];                                                                                        \
    }

/* Return the greatest, or the least, of each element and all elements before it along dim. *index (index may be NULL)
 * receives its position along dim, the last of equal ones, to which the gradient goes. */
RUNNING(cummax, "maximum")
RUNNING(cummin, "minimum")
