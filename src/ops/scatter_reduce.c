/* Ops that reduce the elements that an index sends to one place: scatter_mean, scatter_prod, scatter_max and
 * scatter_min. They are composed of scatters and gathers, and all but the mean also of a sort. */
#include <math.h>

#include "ops/common/derive.h"
#include "ops/common/op.h"

typedef struct scatter_params {
    int dim;
    bool include_self;
} scatter_params;

/* Fails if src does not have the dtype of x or the shape of index. */
static tg_status check_src(tg_tape *t, tg_tensor *const *in) {
    tg_dtype x = (tg_dtype)in[0]->dtype, src = (tg_dtype)in[2]->dtype;
    if (src != x)
        return tg_fail(t->ctx, TG_ERR_DTYPE, "x is %s and src is %s; they must have one dtype (tg_cast converts)",
                       tg_dtype_name(x), tg_dtype_name(src));
    if (tg_same_shape(in[1], in[2])) return TG_OK;
    return tg_fail(t->ctx, TG_ERR_SHAPE, "index and src have different shapes; they must be equal");
}

/* Returns a bool mask of the elements of x to which index sends something. */
static tg_tensor *reached(tg_tape *t, const tg_tensor *x, int dim, tg_tensor *index) {
    tg_tensor *none = tg_full(t, TG_BOOL, tg_shape_of(x), 0), *all = tg_full(t, TG_BOOL, tg_shape_of(index), 1);
    return tg_scatter(t, none, dim, index, all);
}

/* ---- scatter_mean ---- */

static tg_status scatter_mean_compose(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out,
                                      const void *site) {
    const scatter_params *p = params;
    tg_tensor *x = in[0], *index = in[1], *src = in[2];
    tg_dtype wide = tg_accumulate_dtype((tg_dtype)x->dtype);
    (void)site;
    if (!tg_is_float((tg_dtype)x->dtype))
        return tg_fail(t->ctx, TG_ERR_DTYPE, "x is %s; it must have a float dtype", tg_dtype_name((tg_dtype)x->dtype));
    TG_TRY(check_src(t, in));
    tg_tensor *own = tg_full(t, wide, tg_shape_of(x), p->include_self), *one = tg_full(t, wide, tg_shape_of(index), 1);
    tg_tensor *count = tg_clamp(t, tg_scatter_add(t, own, p->dim, index, one), 1, INFINITY);
    if (!p->include_self) x = tg_masked_fill(t, x, reached(t, x, p->dim, index), 0);
    tg_tensor *sum = tg_scatter_add(t, tg_cast(t, x, wide), p->dim, index, tg_cast(t, src, wide));
    out[0] = tg_cast(t, tg_div(t, sum, count), (tg_dtype)in[0]->dtype);
    return t->ctx->run.status;
}

/* ---- scatter_prod ---- */

/* Returns, for each element of v, the product of those up to it along dim that go to the same place. `at` has the
 * place of each element; equal places are adjacent. After the step of `by`, an element is the product of up to 2 * by
 * elements. No step divides, so that derivatives are right also where elements are 0. */
static tg_tensor *running_products(tg_tape *t, tg_tensor *v, tg_tensor *at, int dim) {
    int64_t n = tg_dim(v, dim);
    for (int64_t by = 1; by < n && tg_is_alive(v); by *= 2) {
        tg_tensor *first = tg_slice(t, v, dim, 0, by, 1), *later = tg_slice(t, v, dim, by, n, 1);
        tg_tensor *same = tg_eq(t, tg_slice(t, at, dim, by, n, 1), tg_slice(t, at, dim, 0, n - by, 1));
        tg_tensor *before = tg_where(t, same, tg_slice(t, v, dim, 0, n - by, 1), tg_number_like(t, v, 1));
        v = tg_concat(t, (tg_tensor *[]){first, tg_mul(t, later, before)}, 2, dim);
    }
    return v;
}

/* The last product of each place remains when all are written in rising order. */
static tg_status scatter_prod_compose(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out,
                                      const void *site) {
    const scatter_params *p = params;
    tg_tensor *x = in[0], *index = in[1], *src = in[2];
    (void)site;
    TG_TRY(check_src(t, in));
    tg_tensor *order = tg_argsort(t, index, p->dim, false), *at = tg_gather(t, index, p->dim, order);
    tg_tensor *v = running_products(t, tg_wide(t, tg_gather(t, src, p->dim, order)), at, p->dim);
    if (!tg_is_alive(v)) return t->ctx->run.status;
    tg_tensor *start = tg_wide(t, x);
    if (p->include_self) start = tg_full(t, (tg_dtype)start->dtype, tg_shape_of(x), 1);
    tg_tensor *y = tg_scatter(t, start, p->dim, at, v);
    if (p->include_self) y = tg_mul(t, tg_wide(t, x), y);
    out[0] = tg_cast(t, y, (tg_dtype)x->dtype);
    return t->ctx->run.status;
}

/* ---- scatter_max, scatter_min ---- */

/* Returns x with the greatest, or the least, element of src at each place. src is written in rising or falling order,
 * so that the last element, which remains, is the greatest or the least one, or NaN. */
static tg_tensor *write_sorted(tg_tape *t, tg_tensor *x, int dim, tg_tensor *index, tg_tensor *src, bool least) {
    bool negated = least && tg_is_float((tg_dtype)src->dtype); /* NaN is last in rising order only */
    tg_tensor *order = tg_argsort(t, negated ? tg_neg(t, src) : src, dim, least && !negated);
    return tg_scatter(t, x, dim, tg_gather(t, index, dim, order), tg_gather(t, src, dim, order));
}

/* Returns y, whose elements are those of x or src where x_hit or src_hit is true, as a function of x and src: y plus
 * the mean of these equal elements, minus the value of the mean. The difference is 0 but has the derivatives of the
 * mean. An infinite mean is not subtracted, because the difference would be NaN; y plus the mean is then y.
 *
 * The elements are scaled by a power of 2 so that their sum does not overflow. 16-bit tensors are computed in float32,
 * because bfloat16 cannot count beyond 256. */
static tg_tensor *shared(tg_tape *t, tg_tensor *y, int dim, tg_tensor *const *in, tg_tensor *x_hit,
                         tg_tensor *src_hit) {
    tg_tensor *x = tg_wide(t, in[0]), *src = tg_wide(t, in[2]), *wide = tg_wide(t, y);
    tg_tensor *zero = tg_number_like(t, x, 0), *one = tg_number_like(t, x, 1);
    double part = 0.5;
    for (int64_t n = tg_dim(in[1], dim); n > 0; n /= 2) part /= 2; /* at most n + 1 elements are added */
    tg_tensor *count = tg_scatter_add(t, tg_where(t, x_hit, one, zero), dim, in[1], tg_where(t, src_hit, one, zero));
    tg_tensor *mean = tg_div(t, tg_scatter_add(t, tg_where(t, x_hit, tg_scale(t, x, part), zero), dim, in[1],
                                               tg_where(t, src_hit, tg_scale(t, src, part), zero)), count);
    tg_tensor *value = tg_masked_fill(t, tg_detach(t, mean), tg_logical_not(t, tg_isfinite(t, mean)), 0);
    tg_tensor *sum = tg_add(t, wide, tg_scale(t, tg_sub(t, mean, value), 1 / part));
    return sum->dtype == y->dtype ? sum : tg_cast(t, sum, (tg_dtype)y->dtype);
}

/* Returns whether x needs a gradient, or will need one when a recomputed function runs again. */
static bool may_need_grad(const tg_tensor *x) { return x->flags & (TG_F_REQUIRES_GRAD | TG_F_DIFFERENTIABLE); }

static tg_status extremum(tg_tape *t, const scatter_params *p, tg_tensor *const *in, tg_tensor **out, bool least) {
    TG_TRY(check_src(t, in));
    tg_tensor *x = tg_detach(t, in[0]), *index = in[1], *src = tg_detach(t, in[2]);
    tg_tensor *y = write_sorted(t, x, p->dim, index, src, least);
    if (p->include_self) y = least ? tg_minimum(t, y, x) : tg_maximum(t, y, x);
    out[0] = y;
    if (!may_need_grad(in[0]) && !may_need_grad(in[2])) return t->ctx->run.status;
    tg_tensor *x_hit = p->include_self ? tg_eq(t, x, y) : tg_logical_not(t, reached(t, x, p->dim, index));
    out[0] = shared(t, y, p->dim, in, x_hit, tg_eq(t, src, tg_gather(t, y, p->dim, index)));
    return t->ctx->run.status;
}

static tg_status scatter_max_compose(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out,
                                     const void *site) {
    (void)site;
    return extremum(t, params, in, out, false);
}

static tg_status scatter_min_compose(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out,
                                     const void *site) {
    (void)site;
    return extremum(t, params, in, out, true);
}

/* ---- The table ---- */

#define ALONG(dim_) &(const scatter_params){.dim = (dim_), .include_self = true}
#define WITHOUT(dim_) &(const scatter_params){.dim = (dim_)}
#define FLOAT_SAMPLES                                                                                              \
    {.note = "columns", .params = ALONG(1), .n_in = 3, .input = {TG_S(3, 5), TG_S_INDEX(5, 3, 4), TG_S(3, 4)}},    \
    {.note = "rows, not all columns", .params = WITHOUT(0), .n_in = 3,                                             \
     .input = {TG_S(4, 5), TG_S_INDEX(4, 6, 2), TG_S(6, 2)}},                                                      \
    {.note = "all at one place", .params = ALONG(0), .n_in = 3, .input = {TG_S(4), TG_S_INDEX(1, 9), TG_S(9)}},    \
    {.note = "without x", .params = WITHOUT(-1), .n_in = 3,                                                        \
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 5), TG_S_INDEX(5, 3, 4), TG_S_AS(TG_SAMPLE_STRIDED, 3, 4)}},       \
    {.note = "size 1", .params = ALONG(0), .n_in = 3, .input = {TG_S(1), TG_S_INDEX(1, 1), TG_S(1)}},              \
    {.note = "nothing", .params = WITHOUT(1), .n_in = 3, .input = {TG_S(3, 5), TG_S_INDEX(5, 3, 0), TG_S(3, 0)}},  \
    {.note = "src of another shape", .params = ALONG(0), .n_in = 3, .input = {TG_S(3), TG_S_INDEX(3, 2), TG_S(3)}, \
     .refused = TG_ERR_SHAPE},                                                                                     \
    {.note = "big", .params = ALONG(1), .n_in = 3,                                                                 \
     .input = {TG_S(256, 1024), TG_S_INDEX(1024, 256, 1024), TG_S(256, 1024)}, .bench = true}

static const tg_sample mean_samples[] = {FLOAT_SAMPLES};
static const tg_sample prod_samples[] = {
    FLOAT_SAMPLES,
    {.note = "zeros", .params = ALONG(0), .n_in = 3,
     .input = {TG_S(3), TG_S_INDEX(3, 9), {.shape = TG_S_SHAPE(9), .zeros = 3}}},
    {.note = "integers", .params = ALONG(0), .n_in = 3,
     .input = {TG_S_INDEX(9, 4), TG_S_INDEX(4, 9), TG_S_INDEX(9, 9)}},
};
static const tg_sample extremum_samples[] = {
    FLOAT_SAMPLES,
    {.note = "integers", .params = ALONG(0), .n_in = 3,
     .input = {TG_S_INDEX(9, 4), TG_S_INDEX(4, 9), TG_S_INDEX(9, 9)}},
};

static const tg_field scatter_fields[] = {
    TG_ARG(scatter_params, dim, INT, "Dim of x; a negative number counts from the end.", .required = true),
    TG_ARG(scatter_params, include_self, BOOL, "The element of x itself takes part."),
};

#define SCATTER(name_, text, samples_)                                                                              \
    const tg_op tg_op_##name_ = {                                                                                   \
        .size = sizeof(tg_op), .name = #name_, .formula = text, .inputs = "x index src", .n_in = 3, .n_out = 1,     \
        .params_size = sizeof(scatter_params), .compose = name_##_compose, TG_FIELDS(scatter_fields),               \
        .preset = ALONG(0), TG_SAMPLES(samples_)};                                                                  \
    tg_tensor *tg_##name_(tg_tape *t, tg_tensor *x, int dim, tg_tensor *index, tg_tensor *src, bool include_self) { \
        return TG_RECORD(t, tg_op_##name_, (&(scatter_params){dim, include_self}), x, index, src);                  \
    }

/* Return x with the mean, the product, the maximum or the minimum of the elements of src that index sends to one place,
 * and of the element of x there if include_self is true. Elements of x to which nothing is sent stay. */
SCATTER(scatter_mean, "x with the mean of the src that index sends to a place", mean_samples)
SCATTER(scatter_prod, "x with the product of the src that index sends to a place", prod_samples)
SCATTER(scatter_max, "x with the maximum of the src that index sends to a place", extremum_samples)
SCATTER(scatter_min, "x with the minimum of the src that index sends to a place", extremum_samples)
