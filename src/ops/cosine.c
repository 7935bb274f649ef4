/* Cosine similarity: the cosine of the angle between x and y along one dim. */
#include <math.h>

#include "ops/common/derive.h"
#include "ops/common/elementwise_loss.h"

typedef struct cosine_params {
    int dim;
    double eps; /* lower bound of the norms */
} cosine_params;

enum { NORM_X, NORM_Y, COSINE }; /* private saved buffers [.., 1, ..]: the norms, before eps bounds them; the result */

static tg_status cosine_infer(tg_call *c) {
    cosine_params *p = c->params;
    const tg_tensor *x = c->input[0];
    int64_t shape[TG_MAX_DIMS];
    int n = 0;
    TG_TRY(tg_need_float(c, 0));
    TG_TRY(tg_need_same_dtype(c, 0, 1));
    if (!tg_same_shape(x, c->input[1])) return tg_call_fail(c, TG_ERR_SHAPE, "x and y have different shapes; they must "
                                                         "be equal");
    TG_TRY(tg_need_dim(c, 0, &p->dim));
    if (!(p->eps >= 0 && isfinite(p->eps)))
        return tg_call_fail(c, TG_ERR_ARGUMENT, "eps is %g; it must be finite and 0 or more", p->eps);
    for (int d = 0; d < x->ndim; d++) shape[d] = d == p->dim ? 1 : x->shape[d];
    for (int i = NORM_X; i <= COSINE; i++)
        TG_TRY(tg_call_save(c, i, tg_accumulate_dtype((tg_dtype)x->dtype), x->ndim, shape));
    for (int d = 0; d < x->ndim; d++) {
        if (d == p->dim) continue;
        for (int i = 0; tg_call_places(c) && i < 2; i++) TG_TRY(tg_call_role(c, i, d, n));
        shape[n++] = x->shape[d];
    }
    return tg_call_out(c, 0, (tg_dtype)x->dtype, n, shape);
}

/* Reduces x along the dim. */
static tg_status along(tg_call *c, tg_reduction kind, const tg_tensor *out, const tg_tensor *x) {
    return tg_ctx_ops(c->ctx)->reduce(c->ctx, kind, tg_array_of(out), tg_array_of(x), 1, false);
}

/* out = the saved norm, or eps if that is greater. */
static tg_status at_least(tg_call *c, const tg_tensor *out, int norm) {
    return tg_op_map(c, TG_FN_clamp, out, TG_T1(c->saved[norm]), 1, ((const cosine_params *)c->params)->eps, INFINITY,
                     false);
}

/* Sets *x and *y to temporaries of the reduced shape with the norms of x and y, or eps where a norm is less. */
static tg_status divisors(tg_call *c, tg_tensor **x, tg_tensor **y) {
    const tg_tensor *like = c->saved[NORM_X];
    *x = tg_call_temp(c, (tg_dtype)like->dtype, like->ndim, like->shape);
    *y = tg_call_temp(c, (tg_dtype)like->dtype, like->ndim, like->shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(at_least(c, *x, NORM_X));
    return at_least(c, *y, NORM_Y);
}

/* Views r, the result or its gradient, with the reduced dim restored. */
static tg_tensor *with_dim(tg_call *c, tg_tensor *r) {
    tg_extent e;
    tg_array_keep(tg_array_of(r), c->input[0]->ndim, 1u << ((const cosine_params *)c->params)->dim, &e);
    return tg_call_view_of(c, r, 0, c->input[0]->ndim, e.shape, e.stride);
}

static tg_status cosine_forward(tg_call *c) {
    const tg_tensor *cosine = c->saved[COSINE];
    tg_tensor *product = tg_elementwise_loss_temp(c), *nx, *ny, *y = with_dim(c, c->out[0]);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    for (int i = 0; i < 2; i++) {
        TG_TRY(along(c, TG_SUMSQ, c->saved[i], c->input[i]));
        TG_PUT(sqrt, c->saved[i], c->saved[i]);
    }
    TG_TRY(divisors(c, &nx, &ny));
    TG_PUT(mul, product, c->input[0], c->input[1]);
    TG_TRY(along(c, TG_SUM, cosine, product));
    TG_PUT(div_div, cosine, cosine, nx, ny);
    TG_PUT(id, y, cosine);
    return TG_OK;
}

/* Computes the gradient of input i, with x the input and y the other one: gx (+)= g (y / (nx ny) - cos x / nx^2),
 * without the second term where the norm of x is below eps. */
static tg_status grad_input(tg_call *c, int i, const tg_tensor *nx, const tg_tensor *ny, const tg_tensor *g) {
    const tg_tensor *x = c->input[i], *other = c->input[!i];
    double eps = ((const cosine_params *)c->params)->eps;
    tg_tensor *a = tg_call_temp(c, (tg_dtype)nx->dtype, nx->ndim, nx->shape);
    tg_tensor *b = tg_call_temp(c, (tg_dtype)nx->dtype, nx->ndim, nx->shape);
    if (!c->gin_mode[i] || !tg_ok(c->ctx)) return c->ctx->run.status;
    TG_PUT(div_div, a, g, nx, ny);
    TG_PUT(mul, b, g, c->saved[COSINE]);
    TG_PUT(div_div, b, b, nx, nx);
    TG_PUT_P(clamp_d, eps, INFINITY, b, b, c->saved[NORM_X + i]);
    return tg_op_map(c, TG_FN_mul_mul_sub, c->gin[i], (const tg_tensor *const[]){other, a, x, b}, 4, 0, 0,
                     tg_adds(c, i));
}

static tg_status cosine_backward(tg_call *c) {
    tg_tensor *nx, *ny, *g = with_dim(c, c->gout[0]);
    TG_TRY(divisors(c, &nx, &ny));
    TG_TRY(grad_input(c, 0, nx, ny, g));
    return grad_input(c, 1, ny, nx, g);
}

static tg_status cosine_compose(tg_tape *t, const tg_node *n, tg_tensor **out) {
    const cosine_params *p = tg_node_params(n);
    tg_tensor *x[2], *norm[2];
    for (int i = 0; i < 2; i++) {
        x[i] = tg_wide(t, tg_node_in(n)[i]);
        norm[i] = tg_root_or_0(t, tg_sum(t, tg_square(t, x[i]), TG_DIMS(p->dim), false));
        norm[i] = tg_clamp(t, norm[i], p->eps, INFINITY);
    }
    tg_tensor *dot = tg_sum(t, tg_mul(t, x[0], x[1]), TG_DIMS(p->dim), false);
    out[0] = tg_cast(t, tg_div(t, tg_div(t, dot, norm[0]), norm[1]), (tg_dtype)tg_node_out(n)[0]->dtype);
    return TG_OK;
}

TG_COMPOSED(cosine)

#define ALONG(...) &(const cosine_params){__VA_ARGS__, 1e-8}

static const tg_sample cosine_samples[] = {
    {.note = "rows", .params = ALONG(1), .n_in = 2, .input = {TG_S(3, 4), TG_S(3, 4)}},
    {.note = "columns", .params = ALONG(0), .n_in = 2, .input = {TG_S(3, 4), TG_S(3, 4)}},
    {.note = "the middle", .params = ALONG(-2), .n_in = 2, .input = {TG_S(2, 3, 4), TG_S(2, 3, 4)}},
    {.note = "one vector", .params = ALONG(0), .n_in = 2, .input = {TG_S(7), TG_S(7)}},
    {.note = "other strides", .params = ALONG(1), .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 4), TG_S_AS(TG_SAMPLE_STRIDED, 3, 4)}},
    {.note = "equal rows", .params = ALONG(1), .n_in = 2, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4), TG_S(3, 4)}},
    {.note = "a constant", .params = ALONG(1), .n_in = 2,
     .input = {TG_S(2, 3), {.shape = TG_S_SHAPE(2, 3), .frozen = true}}},
    {.note = "one with itself", .params = ALONG(1), .n_in = 2, .input = {TG_S(2, 3), TG_S(2, 3)}, .aliases = true},
    {.note = "norms below eps", .params = &(const cosine_params){1, 100}, .n_in = 2, .input = {TG_S(2, 3), TG_S(2, 3)}},
    {.note = "no rows", .params = ALONG(1), .n_in = 2, .input = {TG_S(0, 3), TG_S(0, 3)}},
    {.note = "of nothing", .params = ALONG(1), .n_in = 2, .input = {TG_S(3, 0), TG_S(3, 0)}},
    {.note = "shapes differ", .params = ALONG(1), .n_in = 2, .input = {TG_S(3, 4), TG_S(1, 4)},
     .refused = TG_ERR_SHAPE},
    {.note = "no such dim", .params = ALONG(2), .n_in = 2, .input = {TG_S(3, 4), TG_S(3, 4)}, .refused = TG_ERR_SHAPE},
    {.note = "integers", .params = ALONG(0), .n_in = 2,
     .input = {TG_S_INDEX(4, 3), TG_S_INDEX(4, 3)}, .refused = TG_ERR_DTYPE},
    {.note = "negative eps", .params = &(const cosine_params){0, -1}, .n_in = 2, .input = {TG_S(3), TG_S(3)},
     .refused = TG_ERR_ARGUMENT},
    {.note = "4 M elements", .params = ALONG(1), .n_in = 2, .input = {TG_S(2048, 2048), TG_S(2048, 2048)},
     .bench = true},
};

static const tg_field cosine_similarity_fields[] = {
    TG_ARG(cosine_params, dim, INT, "Dim of x; a negative number counts from the end.", .required = true),
    TG_ARG(cosine_params, eps, DOUBLE, "Lower bound of the norms."),
};

const tg_op tg_op_cosine_similarity = {
    .size = sizeof(tg_op),
    .name = "cosine_similarity",
    .formula = "sum(x y) / (max(|x|, eps) max(|y|, eps)) along a dim",
    .inputs = "x y",
    .n_in = 2,
    .n_out = 1,
    .params_size = sizeof(cosine_params),
    .saves_in = 3,
    .family = TG_FAMILY_CUSTOM,
    .sums_f32 = true,
    .infer = cosine_infer,
    .forward = cosine_forward,
    .backward = cosine_backward,
    .vjp = cosine_vjp,
    .jvp = cosine_jvp,
    TG_FIELDS(cosine_similarity_fields),
    .preset = &(const cosine_params){.eps = 1e-8},
    TG_SAMPLES(cosine_samples),
};

/* Returns the cosine of the angle between x and y along dim, which is removed. x and y have the same shape. Norms below
 * eps are replaced by eps, and the gradient treats them as constants. */
tg_tensor *tg_cosine_similarity(tg_tape *t, tg_tensor *x, tg_tensor *y, int dim, double eps) {
    cosine_params p = {.dim = dim, .eps = eps};
    return TG_RECORD(t, tg_op_cosine_similarity, &p, x, y);
}
