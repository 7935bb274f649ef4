/* Max pooling into a given number of windows, which are those of adaptive_avg_pool. The positions of the maxima are
 * found without gradients; the op then takes the elements of x at these positions.
 *
 * To find them, each pooled dim is replaced by its windows, one after the other, all of the size of the largest. A
 * smaller window repeats its last element, which changes neither the maximum nor which of equal maxima is the first. */
#include "ops/common/derive.h"
#include "ops/common/op.h"
#include "ops/max_pool.h"

enum { SPATIAL = 3 }; /* the most dims that are pooled */

/* The limit of the product of a dim's number of windows and its number of elements. elements_of computes with integers
 * up to this product in float64, which holds all integers up to 2^53 exactly. */
static const int64_t exact_in_double = (int64_t)1 << 53;

typedef struct adaptive_params {
    tg_shape size;
} adaptive_params;

static tg_status check(tg_tape *t, tg_shape size, const tg_tensor *x) {
    if (size.ndim < 1 || size.ndim > SPATIAL || x->ndim != size.ndim + 2)
        return tg_fail(t->ctx, TG_ERR_SHAPE,
                       "size has %s and x has %s; expected 1 to %d numbers, and x [n, c, ..] with a dim after c for "
                       "each",
                       tg_count(size.ndim, "number").text, tg_count(x->ndim, "dim").text, SPATIAL);
    if (!tg_is_float(x->dtype))
        return tg_fail(t->ctx, TG_ERR_DTYPE, "x is %s; expected a float dtype", tg_dtype_name((tg_dtype)x->dtype));
    for (int d = 0; d < size.ndim; d++) {
        if (size.dim[d] < 1 || size.dim[d] > INT32_MAX || x->shape[d + 2] < 1 || x->shape[d + 2] > INT32_MAX)
            return tg_fail(t->ctx, TG_ERR_SHAPE,
                           "size[%d] is %lld, for a dim of %s; both must be 1 or more and below "
                           "2^31",
                           d, (long long)size.dim[d], tg_count(x->shape[d + 2], "element").text);
        if (size.dim[d] * x->shape[d + 2] > exact_in_double)
            return tg_fail(t->ctx, TG_ERR_SHAPE,
                           "size[%d] is %lld, for a dim of %s; their product must be at most 2^53", d,
                           (long long)size.dim[d], tg_count(x->shape[d + 2], "element").text);
    }
    return TG_OK;
}

/* Returns the number of elements of the largest of m windows over n elements. */
static int64_t largest(int64_t n, int64_t m) {
    int64_t most = 0;
    for (int64_t i = 0; i < m; i++) {
        int64_t size = ((i + 1) * n + m - 1) / m - i * n / m;
        if (size > most) most = size;
    }
    return most;
}

/* Returns a tensor of one dim with m * k elements: for each of m windows over n elements the positions of its elements,
 * the last one repeated until there are k. Window i begins at floor(i * n / m) and ends before ceil((i + 1) * n / m).
 * Both are computed in float64, and are right although quotients are rounded: the products are exact, because m * n is
 * at most 2^53, and a quotient that is no integer is at least 1 / m away from every integer, while its rounding error
 * is below n / 2^53, which is at most 1 / m. */
static tg_tensor *elements_of(tg_tape *t, int64_t n, int64_t m, int64_t k) {
    tg_tensor *count = tg_full(t, TG_F64, TG_SHAPE(), (double)m),
              *starts = tg_arange(t, TG_F64, 0, (double)(m * n), (double)n);
    tg_tensor *first = tg_floor(t, tg_div(t, starts, count));
    tg_tensor *last = tg_add_scalar(t, tg_ceil(t, tg_div(t, tg_add_scalar(t, starts, (double)n), count)), -1);
    tg_tensor *all = tg_add(t, tg_unsqueeze(t, first, 1), tg_arange(t, TG_F64, 0, (double)k, 1));
    return tg_reshape(t, tg_cast(t, tg_minimum(t, all, tg_unsqueeze(t, last, 1)), TG_I64), TG_SHAPE(m * k));
}

/* Moves the elements of each window to the last dim, and joins the dims of windows: of x [.., m0 * k0, m1 * k1] makes
 * [.., m0 * m1, k0 * k1]. The first `leading` dims stay. */
static tg_tensor *windows_last(tg_tape *t, tg_tensor *x, int leading, tg_shape m, const int64_t *k) {
    int n = (int)m.ndim;
    tg_shape split = {.ndim = leading + 2 * n}, joined = {.ndim = leading + 2};
    tg_dims order = {.n = leading + 2 * n};
    for (int d = 0; d < leading; d++) split.dim[d] = joined.dim[d] = tg_dim(x, d), order.dim[d] = d;
    joined.dim[leading] = joined.dim[leading + 1] = 1;
    for (int d = 0; d < n; d++) {
        split.dim[leading + 2 * d] = m.dim[d];
        split.dim[leading + 2 * d + 1] = k[d];
        order.dim[leading + d] = leading + 2 * d;
        order.dim[leading + n + d] = leading + 2 * d + 1;
        joined.dim[leading] *= m.dim[d];
        joined.dim[leading + 1] *= k[d];
    }
    return tg_reshape(t, tg_permute(t, tg_reshape(t, x, split), order), joined);
}

/* Returns [n, c, size..]: the position of the maximum of each window of x [n, c, ..], counted within its channel. */
static tg_tensor *positions(tg_tape *t, tg_tensor *x, tg_shape size) {
    int64_t k[SPATIAL];
    tg_tensor *at = NULL, *values = tg_detach(t, x);
    for (int d = 0; d < size.ndim; d++) {
        int64_t n = x->shape[d + 2];
        k[d] = largest(n, size.dim[d]);
        tg_tensor *index = elements_of(t, n, size.dim[d], k[d]);
        values = tg_index_select(t, values, d + 2, index);
        /* at [.., m * k]: the position within the dims that have been handled so far */
        at = !at ? index
                 : tg_add(t, tg_unsqueeze(t, tg_mul(t, at, tg_full(t, TG_I64, TG_SHAPE(), (double)n)), d), index);
    }
    values = windows_last(t, values, 2, size, k);
    at = windows_last(t, at, 0, size, k);
    if (!tg_is_alive(values) || !tg_is_alive(at)) return tg_inert(t->ctx);
    int64_t n = x->shape[0], c = x->shape[1];
    tg_shape every = {4, {n, c, at->shape[0], at->shape[1]}}, result = {size.ndim + 2, {n, c}};
    memcpy(result.dim + 2, size.dim, (size_t)size.ndim * sizeof *size.dim);
    return tg_reshape(t, tg_gather(t, tg_expand(t, at, every), 3, tg_argmax(t, values, 3, true)), result);
}

static tg_status adaptive_max_pool_compose(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out,
                                           const void *site) {
    tg_shape size = ((const adaptive_params *)params)->size;
    (void)site;
    TG_TRY(check(t, size, in[0]));
    out[1] = positions(t, in[0], size);
    out[0] = tg_take_positions(t, in[0], out[1]);
    return t->ctx->run.status;
}

#define TO(...)                                                                                                        \
    &(const adaptive_params) { .size = TG_S_SHAPE(__VA_ARGS__) }
static const tg_sample adaptive_samples[] = {
    {.note = "windows of one size", .params = TO(3, 2), .n_in = 1, .input = {TG_S(2, 2, 6, 4)}},
    {.note = "overlapping", .params = TO(3, 4), .n_in = 1, .input = {TG_S(2, 2, 7, 5)}},
    {.note = "more windows than elements", .params = TO(7), .n_in = 1, .input = {TG_S(1, 2, 3)}},
    {.note = "volumes", .params = TO(2, 3, 2), .n_in = 1, .input = {TG_S(1, 2, 3, 4, 2)}},
    {.note = "transposed", .params = TO(1, 1), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 3, 3, 5)}},
    {.note = "strided", .params = TO(2, 3), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 1, 2, 3, 4)}},
    {.note = "empty batch", .params = TO(2, 2), .n_in = 1, .input = {TG_S(0, 2, 3, 3)}},
    {.note = "windows of nothing", .params = TO(2), .n_in = 1, .input = {TG_S(2, 2, 0)}, .refused = TG_ERR_SHAPE},
    {.note = "no windows", .params = TO(2, 0), .n_in = 1, .input = {TG_S(2, 2, 3, 3)}, .refused = TG_ERR_SHAPE},
    {.note = "too few dims", .params = TO(2, 2), .n_in = 1, .input = {TG_S(2, 3, 3)}, .refused = TG_ERR_SHAPE},
    {.note = "integers", .params = TO(2), .n_in = 1, .input = {TG_S_INDEX(9, 1, 1, 4)}, .refused = TG_ERR_DTYPE},
    {.note = "the last pooling of VGG", .params = TO(7, 7), .n_in = 1, .input = {TG_S(32, 512, 12, 12)}, .bench = true},
};
#undef TO

static const tg_field adaptive_fields[] = {
    TG_ARG(adaptive_params, size, SHAPE, "Numbers of windows along the dims after n and c.", .required = true),
};

const tg_op tg_op_adaptive_max_pool = {.size = sizeof(tg_op),
                                       .name = "adaptive_max_pool",
                                       .formula = "the greatest of x in each of size windows, and its position",
                                       .inputs = "x",
                                       .outputs = "y index",
                                       .n_in = 1,
                                       .n_out = 2,
                                       .params_size = sizeof(adaptive_params),
                                       .compose = adaptive_max_pool_compose,
                                       TG_FIELDS(adaptive_fields),
                                       TG_SAMPLES(adaptive_samples)};

/* Divides each dim 2 + d of x [n, c, ..] into size.dim[d] windows, and returns the maximum of each combination of them:
 * [n, c, size..]. If index is not NULL, *index receives the position of each maximum, counted within its channel. */
tg_tensor *tg_adaptive_max_pool(tg_tape *t, tg_tensor *x, tg_shape size, tg_tensor **index) {
    tg_tensor *out[2] = {NULL, NULL};
    tg_apply(t, &tg_op_adaptive_max_pool, &(adaptive_params){size}, &x, 1, out, 2, NULL, NULL, TG_SITE);
    if (index) *index = out[1];
    return out[0];
}
