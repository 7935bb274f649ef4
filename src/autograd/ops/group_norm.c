/* Group norm: x [n, c, ..] in groups of neighbouring channels, each with mean 0 and variance 1, then times w and plus b
 * by channel. Inside, x is [n, groups, c / groups, the rest]. */
#include <math.h>

#include "autograd/ops/derive.h"
#include "autograd/ops/network.h"

typedef struct group_norm_params {
    int64_t groups;
    double eps;
} group_norm_params;

enum { X, W, B };
enum { MEAN, RSTD }; /* private saved buffers [n, groups, 1, 1] */
enum { DIMS = 4 };
static const uint32_t of_group = 12, of_channel = 9; /* the dims that statistics and weights are sums over */

static const group_norm_params *params(const tg_call *c) { return c->params; }

/* x's shape inside. */
static void inner_shape(const tg_tensor *x, int64_t groups, int64_t *shape) {
    shape[0] = x->shape[0];
    shape[1] = groups;
    shape[2] = x->shape[1] / groups;
    shape[3] = 1;
    for (int d = 2; d < x->ndim; d++) shape[3] *= x->shape[d];
}

static tg_status need_channels(tg_call *c, int i, const char *what) {
    const tg_tensor *w = c->in[i];
    if (!w) return TG_OK;
    TG_TRY(tg_need_same_dtype(c, X, i));
    if (w->ndim == 1 && w->shape[0] == c->in[X]->shape[1]) return TG_OK;
    return tg_call_fail(c, TG_ERR_SHAPE, "expected %s of [%lld], the channels of x", what,
                        (long long)c->in[X]->shape[1]);
}

static tg_status group_norm_infer(tg_call *c) {
    const group_norm_params *p = c->params;
    const tg_tensor *x = c->in[X];
    TG_TRY(tg_need_float(c, X));
    if (x->ndim < 2) return tg_call_fail(c, TG_ERR_SHAPE, "expected x [n, c, ..] of 2 or more dims");
    if (p->groups < 1) return tg_call_fail(c, TG_ERR_ARGUMENT, "%lld groups: expected 1 or more", (long long)p->groups);
    if (x->shape[1] % p->groups)
        return tg_call_fail(c, TG_ERR_SHAPE, "%lld channels in %lld groups: expected groups of one size",
                            (long long)x->shape[1], (long long)p->groups);
    if (!(p->eps >= 0 && isfinite(p->eps)))
        return tg_call_fail(c, TG_ERR_ARGUMENT, "eps is %g: expected 0 or more, finite", p->eps);
    TG_TRY(need_channels(c, W, "w"));
    TG_TRY(need_channels(c, B, "b"));
    TG_TRY(tg_call_role(c, X, 0, 0));
    if (c->in[W]) TG_TRY(tg_call_linear(c, 1u << W | 1u << B)); /* jointly in w and b */
    const int64_t stats[DIMS] = {x->shape[0], p->groups, 1, 1};
    for (int i = MEAN; i <= RSTD; i++)
        TG_TRY(tg_call_save(c, i, tg_accumulate_dtype((tg_dtype)x->dtype), DIMS, stats));
    return tg_infer_same(c);
}

/* ---- Views as they are inside ---- */

/* Of a tensor of x's shape: itself, or of a copy where its strides do not allow that. */
static tg_tensor *inside(tg_call *c, tg_tensor *x) {
    int64_t shape[DIMS], stride[DIMS];
    if (tg_op_dense(c, &x) != TG_OK) return x;
    inner_shape(c->in[X], params(c)->groups, shape);
    tg_row_major(DIMS, shape, stride);
    return tg_call_view_of(c, x, 0, DIMS, shape, stride);
}

/* Of a number a channel. */
static tg_tensor *by_channel(tg_call *c, tg_tensor *w) {
    const int64_t per = c->in[X]->shape[1] / params(c)->groups, step = w->stride[0];
    return tg_call_view_of(c, w, 0, DIMS, (const int64_t[]){1, params(c)->groups, per, 1},
                           (const int64_t[]){0, per * step, step, 0});
}

static tg_tensor *temp(tg_call *c) {
    int64_t shape[DIMS];
    inner_shape(c->in[X], params(c)->groups, shape);
    return tg_call_temp(c, tg_accumulate_dtype((tg_dtype)c->in[X]->dtype), DIMS, shape);
}

static tg_status sum(tg_call *c, const tg_tensor *out, const tg_tensor *x, uint32_t mask, double scale, bool add) {
    tg_extent e;
    tg_array to = tg_array_keep(tg_array_of(out), DIMS, mask, &e);
    return tg_ctx_ops(c->ctx)->reduce(c->ctx, TG_SUM, to, tg_array_of(x), scale, add);
}

static double one_by_group(const tg_tensor *inner) { return 1 / (double)(inner->shape[2] * inner->shape[3]); }

/* Two passes: the mean, then the squared distances from it. t is a temporary. */
static tg_status statistics(tg_call *c, const tg_tensor *x, const tg_tensor *t) {
    const tg_tensor *mean = c->saved[MEAN], *rstd = c->saved[RSTD];
    TG_TRY(sum(c, mean, x, of_group, one_by_group(x), false));
    TG_TRY(tg_op_map(c, TG_FN_sub_square, t, TG_T2(x, mean), 2, 0, 0, false));
    TG_TRY(sum(c, rstd, t, of_group, one_by_group(x), false));
    return tg_op_map(c, TG_FN_rsqrt_affine, rstd, TG_T1(rstd), 1, 1, params(c)->eps, false);
}

static tg_status group_norm_forward(tg_call *c) {
    tg_tensor *x = inside(c, c->in[X]), *y = inside(c, c->out[0]), *h = temp(c);
    const tg_tensor *w = c->in[W] ? by_channel(c, c->in[W]) : NULL, *b = c->in[B] ? by_channel(c, c->in[B]) : NULL;
    if (!tg_ok(c->ctx)) return c->ctx->status;
    TG_TRY(statistics(c, x, h));
    TG_TRY(tg_op_map(c, TG_FN_sub_mul, h, TG_T3(x, c->saved[MEAN], c->saved[RSTD]), 3, 0, 0, false));
    if (w && b) return tg_op_map(c, TG_FN_mul_add, y, TG_T3(h, w, b), 3, 0, 0, false);
    if (w) return tg_op_map(c, TG_FN_mul, y, TG_T2(h, w), 2, 0, 0, false);
    if (b) return tg_op_map(c, TG_FN_add, y, TG_T2(h, b), 2, 0, 0, false);
    return tg_op_map(c, TG_FN_id, y, TG_T1(h), 1, 0, 0, false);
}

/* With g = gy w: gx = rstd (g - mean(g) - h mean(g h)). */
static tg_status grad_x(tg_call *c, const tg_tensor *gy, const tg_tensor *h, const tg_tensor *t) {
    const tg_tensor *stats = c->saved[MEAN], *g = gy, *w = c->in[W] ? by_channel(c, c->in[W]) : NULL;
    tg_tensor *weighted = w ? temp(c) : NULL, *gx = inside(c, c->gin[X]);
    tg_tensor *mean = tg_call_temp(c, (tg_dtype)stats->dtype, DIMS, stats->shape);
    if (!tg_ok(c->ctx)) return c->ctx->status;
    if (w) {
        TG_TRY(tg_op_map(c, TG_FN_mul, weighted, TG_T2(gy, w), 2, 0, 0, false));
        g = weighted;
    }
    TG_TRY(tg_op_map(c, TG_FN_mul, t, TG_T2(g, h), 2, 0, 0, false));
    TG_TRY(sum(c, mean, t, of_group, one_by_group(h), false));
    TG_TRY(tg_op_map(c, TG_FN_mul, t, TG_T2(h, mean), 2, 0, 0, false));
    TG_TRY(sum(c, mean, g, of_group, one_by_group(h), false));
    TG_TRY(tg_op_map(c, TG_FN_add, t, TG_T2(t, mean), 2, 0, 0, false));
    return tg_op_map(c, TG_FN_sub_mul, gx, TG_T3(g, t, c->saved[RSTD]), 3, 0, 0, tg_adds(c, X));
}

/* With h = (x - mean) rstd: gw = sum(gy h), gb = sum(gy) of each channel. */
static tg_status group_norm_backward(tg_call *c) {
    tg_tensor *gy = inside(c, c->gout[0]);
    if (!tg_ok(c->ctx)) return c->ctx->status;
    if (c->gin_mode[B]) TG_TRY(sum(c, by_channel(c, c->gin[B]), gy, of_channel, 1, tg_adds(c, B)));
    if (!c->gin_mode[X] && !c->gin_mode[W]) return TG_OK;
    tg_tensor *x = inside(c, c->in[X]), *h = temp(c), *t = temp(c);
    if (!tg_ok(c->ctx)) return c->ctx->status;
    TG_TRY(tg_op_map(c, TG_FN_sub_mul, h, TG_T3(x, c->saved[MEAN], c->saved[RSTD]), 3, 0, 0, false));
    if (c->gin_mode[W]) {
        TG_TRY(tg_op_map(c, TG_FN_mul, t, TG_T2(gy, h), 2, 0, 0, false));
        TG_TRY(sum(c, by_channel(c, c->gin[W]), t, of_channel, 1, tg_adds(c, W)));
    }
    return c->gin_mode[X] ? grad_x(c, gy, h, t) : TG_OK;
}

static tg_status group_norm_compose(tg_tape *t, const tg_node *n, tg_tensor **out) {
    const group_norm_params *p = tg_node_params(n);
    tg_tensor *const *in = tg_node_in(n), *x = in[X];
    int64_t s[DIMS];
    inner_shape(x, p->groups, s);
    tg_tensor *h = tg_reshape(t, tg_wide(t, x), TG_SHAPE(s[0], s[1], s[2] * s[3]));
    h = tg_reshape(t, tg_norm_taped(t, h, NULL, NULL, p->eps, false), TG_SHAPE(s[0], s[1] * s[2], s[3]));
    if (in[W]) h = tg_mul(t, h, tg_unsqueeze(t, tg_wide(t, in[W]), 1));
    if (in[B]) h = tg_add(t, h, tg_unsqueeze(t, tg_wide(t, in[B]), 1));
    out[0] = tg_cast(t, tg_reshape(t, h, tg_shape_of(x)), (tg_dtype)x->dtype);
    return TG_OK;
}

TG_COMPOSED(group_norm)

#define GROUPS(n_) &(const group_norm_params){(n_), 1e-5}

static const tg_sample group_norm_samples[] = {
    {.note = "two groups", .params = GROUPS(2), .n_in = 3, .in = {TG_S(2, 4, 3), TG_S(4), TG_S(4)}},
    {.note = "one group", .params = GROUPS(1), .n_in = 3, .in = {TG_S(2, 3, 2), TG_S(3), TG_S(3)}},
    {.note = "a channel each", .params = GROUPS(3), .n_in = 3, .in = {TG_S(2, 3, 4), TG_S(3), TG_S(3)}},
    {.note = "images", .params = GROUPS(2), .n_in = 3, .in = {TG_S(2, 4, 2, 3), TG_S(4), TG_S(4)}},
    {.note = "channels alone", .params = GROUPS(2), .n_in = 3, .in = {TG_S(3, 6), TG_S(6), TG_S(6)}},
    {.note = "no weights", .params = GROUPS(2), .n_in = 3, .in = {TG_S(2, 4, 3), TG_S_ABSENT, TG_S_ABSENT}},
    {.note = "no bias", .params = GROUPS(2), .n_in = 3, .in = {TG_S(2, 4, 3), TG_S(4), TG_S_ABSENT}},
    {.note = "bias alone", .params = GROUPS(2), .n_in = 3, .in = {TG_S(2, 4, 3), TG_S_ABSENT, TG_S(4)}},
    {.note = "transposed", .params = GROUPS(2), .n_in = 3,
     .in = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 4, 3), TG_S(4), TG_S(4)}},
    {.note = "strided", .params = GROUPS(2), .n_in = 3,
     .in = {TG_S_AS(TG_SAMPLE_STRIDED, 2, 4, 3), TG_S_AS(TG_SAMPLE_STRIDED, 4), TG_S_AS(TG_SAMPLE_STRIDED, 4)}},
    {.note = "equal members", .params = GROUPS(2), .n_in = 3,
     .in = {TG_S_AS(TG_SAMPLE_EXPANDED, 2, 4, 3), TG_S(4), TG_S(4)}},
    {.note = "far from zero", .params = GROUPS(2), .n_in = 3, .in = {TG_S_IN(100, 102, 2, 4, 3), TG_S(4), TG_S(4)}},
    {.note = "nobody", .params = GROUPS(2), .n_in = 3, .in = {TG_S(0, 4, 3), TG_S(4), TG_S(4)}},
    {.note = "no places", .params = GROUPS(2), .n_in = 3, .in = {TG_S(2, 4, 0), TG_S(4), TG_S(4)}},
    {.note = "uneven groups", .params = GROUPS(3), .n_in = 3, .in = {TG_S(2, 4, 3), TG_S(4), TG_S(4)},
     .refused = TG_ERR_SHAPE},
    {.note = "no groups", .params = GROUPS(0), .n_in = 3, .in = {TG_S(2, 4, 3), TG_S(4), TG_S(4)},
     .refused = TG_ERR_ARGUMENT},
    {.note = "no channels", .params = GROUPS(1), .n_in = 3, .in = {TG_S(4), TG_S_ABSENT, TG_S_ABSENT},
     .refused = TG_ERR_SHAPE},
    {.note = "w of another size", .params = GROUPS(2), .n_in = 3, .in = {TG_S(2, 4, 3), TG_S(3), TG_S(4)},
     .refused = TG_ERR_SHAPE},
    {.note = "negative eps", .params = &(const group_norm_params){2, -1}, .n_in = 3,
     .in = {TG_S(2, 4, 3), TG_S(4), TG_S(4)}, .refused = TG_ERR_ARGUMENT},
    {.note = "32 images of 64 channels", .params = GROUPS(8), .n_in = 3,
     .in = {TG_S(32, 64, 28, 28), TG_S(64), TG_S(64)}, .bench = true},
};

const tg_op tg_op_group_norm = {
    .size = sizeof(tg_op),
    .name = "group_norm",
    .formula = "(x - mean) / sqrt(var + eps) w + b, of groups of channels",
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
    TG_SAMPLES(group_norm_samples),
};

/* The channels of x [n, c, ..] in `groups` groups of neighbours, each brought, within one of the n, to mean 0 and
 * variance 1 (the biased one); then times w and plus b, each [c] or NULL. Statistics are float32 (float64 for float64).
 */
tg_tensor *tg_group_norm(tg_tape *t, tg_tensor *x, int64_t groups, tg_tensor *w, tg_tensor *b, double eps) {
    group_norm_params p = {.groups = groups, .eps = eps};
    return TG_RECORD(t, tg_op_group_norm, &p, x, w, b);
}
