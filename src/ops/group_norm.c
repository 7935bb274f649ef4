/* Group normalization. The channels of x [n, c, ..] are divided into groups of neighbors, and each group is
 * normalized to mean 0 and variance 1. Then each channel is multiplied by its element of w, and its element of b is
 * added. */
#include <math.h>

#include "ops/common/channel_norm.h"
#include "ops/common/derive.h"
#include "ops/common/nn_op.h"

typedef struct group_norm_params {
    int64_t groups;
    double eps;
} group_norm_params;

enum { X = TG_NORM_X, W, B };

/* Describes the normalization. */
static tg_channel_norm norm_of(const tg_call *c) {
    const group_norm_params *p = c->params;
    return tg_channel_norm_of(c->input[X], p->groups, 1u << 2 | 1u << 3, p->eps);
}

static tg_status group_norm_infer(tg_call *c) {
    const group_norm_params *p = c->params;
    const tg_tensor *x = c->input[X];
    TG_TRY(tg_need_float(c, X));
    if (x->ndim < 2) return tg_call_fail(c, TG_ERR_SHAPE, "x has too few dims; it must be [n, c, ..] with 2 or more");
    if (p->groups < 1) return tg_call_fail(c, TG_ERR_ARGUMENT, "groups is %lld; it must be 1 or more",
                                           (long long)p->groups);
    if (x->shape[1] % p->groups)
        return tg_call_fail(c, TG_ERR_SHAPE, "%s cannot be divided evenly into %lld groups",
                            tg_count(x->shape[1], "channel").text, (long long)p->groups);
    if (!(p->eps >= 0 && isfinite(p->eps)))
        return tg_call_fail(c, TG_ERR_ARGUMENT, "eps is %g; it must be finite and 0 or more", p->eps);
    const tg_channel_norm k = norm_of(c);
    TG_TRY(tg_channel_norm_infer(c, &k));
    TG_TRY(tg_call_role(c, X, 0, 0));
    if (c->input[W]) TG_TRY(tg_call_linear(c, 1u << W | 1u << B)); /* jointly linear in w and b */
    return tg_infer_same(c);
}

static tg_status group_norm_forward(tg_call *c) {
    const tg_channel_norm k = norm_of(c);
    tg_tensor *x = tg_norm_inside(c, &k, c->input[X]), *t = tg_norm_temp(c, &k);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_norm_moments(c, &k, x, t));
    return tg_norm_apply(c, &k, x, t);
}

static tg_status group_norm_backward(tg_call *c) {
    const tg_channel_norm k = norm_of(c);
    return tg_norm_back(c, &k);
}

static tg_status group_norm_compose(tg_tape *t, const tg_node *n, tg_tensor **out) {
    const group_norm_params *p = tg_node_params(n);
    tg_tensor *const *in = tg_node_in(n), *x = in[X];
    const tg_channel_norm k = tg_channel_norm_of(x, p->groups, 0, p->eps);
    const int64_t *s = k.shape;
    tg_tensor *h = tg_reshape(t, tg_wide(t, x), TG_SHAPE(s[0], s[1], s[2] * s[3]));
    h = tg_reshape(t, tg_norm_compose(t, h, NULL, NULL, p->eps, false), TG_SHAPE(s[0], s[1] * s[2], s[3]));
    if (in[W]) h = tg_mul(t, h, tg_unsqueeze(t, tg_wide(t, in[W]), 1));
    if (in[B]) h = tg_add(t, h, tg_unsqueeze(t, tg_wide(t, in[B]), 1));
    out[0] = tg_cast(t, tg_reshape(t, h, tg_shape_kept(x)), (tg_dtype)x->dtype);
    return TG_OK;
}

TG_COMPOSED(group_norm)

#define GROUPS(n_) &(const group_norm_params){(n_), 1e-5}

static const tg_sample group_norm_samples[] = {
    {.note = "two groups", .params = GROUPS(2), .n_in = 3, .input = {TG_S(2, 4, 3), TG_S(4), TG_S(4)}},
    {.note = "one group", .params = GROUPS(1), .n_in = 3, .input = {TG_S(2, 3, 2), TG_S(3), TG_S(3)}},
    {.note = "a channel each", .params = GROUPS(3), .n_in = 3, .input = {TG_S(2, 3, 4), TG_S(3), TG_S(3)}},
    {.note = "images", .params = GROUPS(2), .n_in = 3, .input = {TG_S(2, 4, 2, 3), TG_S(4), TG_S(4)}},
    {.note = "channels alone", .params = GROUPS(2), .n_in = 3, .input = {TG_S(3, 6), TG_S(6), TG_S(6)}},
    {.note = "no weights", .params = GROUPS(2), .n_in = 3, .input = {TG_S(2, 4, 3), TG_S_ABSENT, TG_S_ABSENT}},
    {.note = "no bias", .params = GROUPS(2), .n_in = 3, .input = {TG_S(2, 4, 3), TG_S(4), TG_S_ABSENT}},
    {.note = "bias alone", .params = GROUPS(2), .n_in = 3, .input = {TG_S(2, 4, 3), TG_S_ABSENT, TG_S(4)}},
    {.note = "transposed", .params = GROUPS(2), .n_in = 3,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 4, 3), TG_S(4), TG_S(4)}},
    {.note = "strided", .params = GROUPS(2), .n_in = 3,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 2, 4, 3), TG_S_AS(TG_SAMPLE_STRIDED, 4), TG_S_AS(TG_SAMPLE_STRIDED, 4)}},
    {.note = "equal members", .params = GROUPS(2), .n_in = 3,
     .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 2, 4, 3), TG_S(4), TG_S(4)}},
    {.note = "far from zero", .params = GROUPS(2), .n_in = 3, .input = {TG_S_IN(100, 102, 2, 4, 3), TG_S(4), TG_S(4)}},
    {.note = "empty batch", .params = GROUPS(2), .n_in = 3, .input = {TG_S(0, 4, 3), TG_S(4), TG_S(4)}},
    {.note = "no places", .params = GROUPS(2), .n_in = 3, .input = {TG_S(2, 4, 0), TG_S(4), TG_S(4)}},
    {.note = "uneven groups", .params = GROUPS(3), .n_in = 3, .input = {TG_S(2, 4, 3), TG_S(4), TG_S(4)},
     .refused = TG_ERR_SHAPE},
    {.note = "no groups", .params = GROUPS(0), .n_in = 3, .input = {TG_S(2, 4, 3), TG_S(4), TG_S(4)},
     .refused = TG_ERR_ARGUMENT},
    {.note = "no channels", .params = GROUPS(1), .n_in = 3, .input = {TG_S(4), TG_S_ABSENT, TG_S_ABSENT},
     .refused = TG_ERR_SHAPE},
    {.note = "w of another size", .params = GROUPS(2), .n_in = 3, .input = {TG_S(2, 4, 3), TG_S(3), TG_S(4)},
     .refused = TG_ERR_SHAPE},
    {.note = "negative eps", .params = &(const group_norm_params){2, -1}, .n_in = 3,
     .input = {TG_S(2, 4, 3), TG_S(4), TG_S(4)}, .refused = TG_ERR_ARGUMENT},
    {.note = "32 images of 64 channels", .params = GROUPS(8), .n_in = 3,
     .input = {TG_S(32, 64, 28, 28), TG_S(64), TG_S(64)}, .bench = true},
};

static const tg_field group_norm_fields[] = {
    TG_ARG(group_norm_params, groups, INT64, "Number of groups of channels.", .required = true),
    TG_ARG(group_norm_params, eps, DOUBLE, "Is added to the variance."),
};

const tg_op tg_op_group_norm = {
    .size = sizeof(tg_op),
    .name = "group_norm",
    .formula = "(x - mean) / sqrt(var + eps) w + b, of groups of channels",
    .inputs = "x w b",
    .n_in = 3,
    .n_out = 1,
    .params_size = sizeof(group_norm_params),
    .saves_in = 3,
    .optional = 6,
    .family = TG_FAMILY_CUSTOM,
    .sums_f32 = true,
    .infer = group_norm_infer,
    .forward = group_norm_forward,
    .backward = group_norm_backward,
    .vjp = group_norm_vjp,
    .jvp = group_norm_jvp,
    TG_FIELDS(group_norm_fields),
    .preset = &(const group_norm_params){.eps = 1e-5},
    TG_SAMPLES(group_norm_samples),
};

/* Divides the channels of x [n, c, ..] into `groups` groups of neighbors. Normalizes each group, separately for each of
 * the n batch entries, to mean 0 and (biased) variance 1. Then multiplies each channel by its element of w, and adds
 * its element of b; w and b are [c] or NULL. Statistics are float32 (float64 for float64). */
tg_tensor *tg_group_norm(tg_tape *t, tg_tensor *x, int64_t groups, tg_tensor *w, tg_tensor *b, double eps) {
    group_norm_params p = {.groups = groups, .eps = eps};
    return TG_RECORD(t, tg_op_group_norm, &p, x, w, b);
}
