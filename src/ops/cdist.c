/* Distances between the rows of two matrices: the norm of each difference, composed of sub and norm. */
#include <math.h>

#include "ops/common/derive.h"
#include "ops/common/op.h"

typedef struct cdist_params {
    double p;
} cdist_params;

static tg_status cdist_compose(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out,
                               const void *site) {
    double p = ((const cdist_params *)params)->p;
    tg_tensor *a = in[0], *b = in[1];
    (void)site;
    if (a->ndim < 2 || b->ndim < 2)
        return tg_fail(t->ctx, TG_ERR_SHAPE, "a has %s and b %s; a must be [.., m, k] and b [.., n, k]",
                       tg_count(a->ndim, "dim").text, tg_count(b->ndim, "dim").text);
    if (a->shape[a->ndim - 1] != b->shape[b->ndim - 1])
        return tg_fail(t->ctx, TG_ERR_SHAPE, "rows of a have %s and rows of b have %lld; the numbers must be equal",
                       tg_count(a->shape[a->ndim - 1], "element").text, (long long)b->shape[b->ndim - 1]);
    if (!(p >= 0)) return tg_fail(t->ctx, TG_ERR_ARGUMENT, "p is %g; it must be 0 or more", p);
    out[0] = tg_norm(t, tg_sub(t, tg_unsqueeze(t, a, -2), tg_unsqueeze(t, b, -3)), p, TG_DIMS(-1), false);
    return t->ctx->run.status;
}

#define P(p_)                                                                                                          \
    &(const cdist_params) { p_ }
#define PAIR(...) .n_in = 2, .input = {__VA_ARGS__}
static const tg_sample cdist_samples[] = {
    {.note = "p 2", .params = P(2), PAIR(TG_S(3, 4), TG_S(2, 4))},
    {.note = "p 1, leading dims that broadcast", .params = P(1), PAIR(TG_S(2, 1, 3, 2), TG_S(3, 2, 2))},
    {.note = "p 3.5", .params = P(3.5), PAIR(TG_S(2, 3), TG_S(3, 3))},
    {.note = "the greatest difference", .params = P(INFINITY), PAIR(TG_S(2, 3), TG_S(3, 3))},
    {.note = "transposed", .params = P(2), PAIR(TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 4), TG_S(2, 4))},
    {.note = "strided", .params = P(2), PAIR(TG_S(3, 4), TG_S_AS(TG_SAMPLE_STRIDED, 2, 4))},
    {.note = "rows of nothing", .params = P(2), PAIR(TG_S(3, 0), TG_S(2, 0))},
    {.note = "no rows", .params = P(2), PAIR(TG_S(0, 4), TG_S(2, 4))},
    {.note = "rows of other lengths", .params = P(2), PAIR(TG_S(3, 4), TG_S(3, 1)), .refused = TG_ERR_SHAPE},
    {.note = "a vector", .params = P(2), PAIR(TG_S(4), TG_S(3, 4)), .refused = TG_ERR_SHAPE},
    {.note = "negative p", .params = P(-1), PAIR(TG_S(3, 4), TG_S(3, 4)), .refused = TG_ERR_ARGUMENT},
    {.note = "integers", .params = P(2), PAIR(TG_S_INDEX(9, 3, 4), TG_S_INDEX(9, 2, 4)), .refused = TG_ERR_DTYPE},
    {.note = "points", .params = P(2), PAIR(TG_S(1024, 16), TG_S(1024, 16)), .bench = true},
};

static const tg_field cdist_fields[] = {TG_ARG(cdist_params, p, DOUBLE, "Order of the norm, 0 or more.")};

const tg_op tg_op_cdist = {.size = sizeof(tg_op),
                           .name = "cdist",
                           .formula = "y[.., i, j] = norm of a[.., i, :] - b[.., j, :]",
                           .inputs = "a b",
                           .n_in = 2,
                           .n_out = 1,
                           .params_size = sizeof(cdist_params),
                           .compose = cdist_compose,
                           TG_FIELDS(cdist_fields),
                           .preset = P(2),
                           TG_SAMPLES(cdist_samples)};

/* Returns the p-norm of the difference of each row of a [.., m, k] and each row of b [.., n, k]: [.., m, n]. All m n k
 * differences are in memory at once. */
tg_tensor *tg_cdist(tg_tape *t, tg_tensor *a, tg_tensor *b, double p) {
    return TG_RECORD(t, tg_op_cdist, &(cdist_params){p}, a, b);
}
