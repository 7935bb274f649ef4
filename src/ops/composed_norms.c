/* Norms of channels that are composed of other ops: instance_norm and local_response_norm. */
#include "ops/common/derive.h"
#include "ops/common/op.h"

typedef struct instance_params {
    double eps;
} instance_params;

static tg_status instance_norm_compose(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out,
                                       const void *site) {
    (void)site;
    if (in[0]->ndim < 2 || in[0]->shape[1] < 1)
        return tg_fail(t->ctx, TG_ERR_SHAPE, "x must be [n, c, ..] with a channel or more");
    out[0] = tg_group_norm(t, in[0], in[0]->shape[1], in[1], in[2], ((const instance_params *)params)->eps);
    return t->ctx->run.status;
}

#define EPS(eps_)                                                                                                      \
    &(const instance_params) { eps_ }
#define THREE(...) .n_in = 3, .input = {__VA_ARGS__}
static const tg_sample instance_samples[] = {
    {.note = "images", .params = EPS(1e-5), THREE(TG_S(2, 3, 2, 4), TG_S(3), TG_S(3))},
    {.note = "lines, no w and b", .params = EPS(0.1), THREE(TG_S(2, 3, 5), TG_S_ABSENT, TG_S_ABSENT)},
    {.note = "no b", .params = EPS(1e-5), THREE(TG_S(2, 2, 4), TG_S(2), TG_S_ABSENT)},
    {.note = "transposed", .params = EPS(1e-5), THREE(TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 3, 4), TG_S(3), TG_S(3))},
    {.note = "strided", .params = EPS(1e-5), THREE(TG_S_AS(TG_SAMPLE_STRIDED, 2, 3, 4), TG_S(3), TG_S(3))},
    {.note = "empty batch", .params = EPS(1e-5), THREE(TG_S(0, 3, 4), TG_S(3), TG_S(3))},
    {.note = "no channels",
     .params = EPS(1e-5),
     THREE(TG_S(2, 0, 4), TG_S_ABSENT, TG_S_ABSENT),
     .refused = TG_ERR_SHAPE},
    {.note = "w of another size", .params = EPS(1e-5), THREE(TG_S(2, 3, 4), TG_S(4), TG_S(3)), .refused = TG_ERR_SHAPE},
    {.note = "negative eps", .params = EPS(-1), THREE(TG_S(2, 3, 4), TG_S(3), TG_S(3)), .refused = TG_ERR_ARGUMENT},
    {.note = "style transfer", .params = EPS(1e-5), THREE(TG_S(4, 64, 64, 64), TG_S(64), TG_S(64)), .bench = true},
};

static const tg_field instance_fields[] = {TG_ARG(instance_params, eps, DOUBLE, "Is added to the variance.")};

const tg_op tg_op_instance_norm = {.size = sizeof(tg_op),
                                   .name = "instance_norm",
                                   .formula = "group_norm with one group for each channel",
                                   .inputs = "x w b",
                                   .n_in = 3,
                                   .n_out = 1,
                                   .params_size = sizeof(instance_params),
                                   .optional = 6,
                                   .compose = instance_norm_compose,
                                   TG_FIELDS(instance_fields),
                                   .preset = EPS(1e-5),
                                   TG_SAMPLES(instance_samples)};

/* Normalizes each channel of each x[n] of x [n, c, ..]: tg_group_norm with c groups. w and b are [c] or NULL. */
tg_tensor *tg_instance_norm(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, double eps) {
    return TG_RECORD(t, tg_op_instance_norm, &(instance_params){eps}, x, w, b);
}

/* ---- local_response_norm ---- */

typedef struct response_params {
    int64_t size;
    double alpha, beta, k;
} response_params;

/* Returns, for each element of x, the mean of x^2 over `size` channels around the element's. The means are an average
 * pool of the image [n, 1, c, places], whose rows are the channels. */
static tg_tensor *response(tg_tape *t, tg_tensor *x, int64_t size) {
    int64_t c = x->shape[1], places = 1;
    for (int d = 2; d < x->ndim; d++) places *= x->shape[d];
    tg_tensor *rows = tg_reshape(t, tg_square(t, x), TG_SHAPE(x->shape[0], 1, c, places));
    rows = tg_pad(t, rows, 2, size / 2, (size - 1) / 2, 0);
    return tg_reshape(t, tg_avg_pool2d(t, rows, size, 1, TG_POOL(.stride = {1, 1})), tg_shape_kept(x));
}

static tg_status local_response_norm_compose(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out,
                                             const void *site) {
    const response_params *p = params;
    tg_tensor *x = in[0];
    (void)site;
    if (x->ndim < 2 || x->numel == 0)
        return tg_fail(t->ctx, TG_ERR_SHAPE, "x must be [n, c, ..] with an element or more");
    if (p->size < 1) return tg_fail(t->ctx, TG_ERR_ARGUMENT, "size is %lld; it must be 1 or more", (long long)p->size);
    if (!tg_is_float(x->dtype))
        return tg_fail(t->ctx, TG_ERR_DTYPE, "x is %s; expected a float dtype", tg_dtype_name((tg_dtype)x->dtype));
    tg_tensor *wide = tg_wide(t, x);
    if (!tg_is_alive(wide)) return t->ctx->run.status;
    tg_tensor *mean = response(t, wide, p->size);
    tg_tensor *divisor = tg_pow_scalar(t, tg_add_scalar(t, tg_scale(t, mean, p->alpha), p->k), p->beta);
    tg_tensor *y = tg_div(t, wide, divisor);
    out[0] = y->dtype == x->dtype ? y : tg_cast(t, y, (tg_dtype)x->dtype);
    return t->ctx->run.status;
}

#define OF(size_, alpha_, beta_, k_)                                                                                   \
    &(const response_params) { size_, alpha_, beta_, k_ }
#define ONE(...) .n_in = 1, .input = {__VA_ARGS__}
static const tg_sample response_samples[] = {
    {.note = "images", .params = OF(3, 0.5, 0.75, 1), ONE(TG_S(2, 4, 2, 3))},
    {.note = "an even number of channels", .params = OF(4, 0.9, 0.5, 2), ONE(TG_S(2, 5, 3))},
    {.note = "one channel", .params = OF(1, 0.5, 1, 1), ONE(TG_S(2, 3, 2))},
    {.note = "more than there are", .params = OF(9, 2, 0.75, 1), ONE(TG_S(2, 3))},
    {.note = "transposed", .params = OF(3, 0.5, 0.75, 1), ONE(TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 4, 3))},
    {.note = "strided", .params = OF(3, 0.5, 0.75, 1), ONE(TG_S_AS(TG_SAMPLE_STRIDED, 2, 4, 3))},
    {.note = "no channels", .params = OF(0, 0.5, 0.75, 1), ONE(TG_S(2, 4, 3)), .refused = TG_ERR_ARGUMENT},
    {.note = "empty", .params = OF(3, 0.5, 0.75, 1), ONE(TG_S(2, 0, 3)), .refused = TG_ERR_SHAPE},
    {.note = "a vector", .params = OF(3, 0.5, 0.75, 1), ONE(TG_S(3)), .refused = TG_ERR_SHAPE},
    {.note = "integers", .params = OF(3, 0.5, 0.75, 1), ONE(TG_S_INDEX(9, 1, 3, 2)), .refused = TG_ERR_DTYPE},
    {.note = "AlexNet's first", .params = OF(5, 1e-4, 0.75, 2), ONE(TG_S(16, 96, 27, 27)), .bench = true},
};

static const tg_field response_fields[] = {
    TG_ARG(response_params, size, INT64, "Number of channels of a mean.", .required = true),
    TG_ARG(response_params, alpha, DOUBLE, "Factor of the mean."),
    TG_ARG(response_params, beta, DOUBLE, "Exponent of the divisor."),
    TG_ARG(response_params, k, DOUBLE, "Is added to the mean."),
};

const tg_op tg_op_local_response_norm = {.size = sizeof(tg_op),
                                         .name = "local_response_norm",
                                         .formula = "x / (k + alpha (mean of x^2 over size channels))^beta",
                                         .inputs = "x",
                                         .n_in = 1,
                                         .n_out = 1,
                                         .params_size = sizeof(response_params),
                                         .compose = local_response_norm_compose,
                                         TG_FIELDS(response_fields),
                                         .preset = OF(1, 1e-4, 0.75, 1),
                                         TG_SAMPLES(response_samples)};

/* Divides each element of x [n, c, ..] by (k + alpha m)^beta. m is the mean of x^2 over `size` channels around the
 * element's; channels outside x count as zeros. */
tg_tensor *tg_local_response_norm(tg_tape *t, tg_tensor *x, int64_t size, double alpha, double beta, double k) {
    return TG_RECORD(t, tg_op_local_response_norm, (&(response_params){size, alpha, beta, k}), x);
}
