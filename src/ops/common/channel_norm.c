/* The shared computation of batch norm and group norm; see channel_norm.h. */
#include "ops/common/channel_norm.h"

#include "ops/common/nn_op.h"

enum { X = TG_NORM_X, W, B };
enum { MEAN = TG_NORM_MEAN, RSTD };
enum { DIMS = TG_NORM_DIMS };
/* The dims of the internal shape over which the gradients of w and b are summed. */
static const uint32_t all_but_channels = 1u << 0 | 1u << 3;

tg_channel_norm tg_channel_norm_of(const tg_tensor *x, int64_t groups, uint32_t means, double eps) {
    const int64_t per = groups ? x->shape[1] / groups : 1;
    tg_channel_norm k = {.shape = {x->shape[0], groups, per, 1}, .means = means, .eps = eps};
    for (int d = 2; d < x->ndim; d++) k.shape[3] *= x->shape[d];
    return k;
}

tg_status tg_need_channels(tg_call *c, int i, const char *what) {
    const tg_tensor *w = c->input[i];
    const int64_t channels = c->input[X]->shape[1];
    if (!w || (w->ndim == 1 && w->shape[0] == channels)) return TG_OK;
    return tg_call_fail(c, TG_ERR_SHAPE, "%s must be a vector of %s, one for each channel of x", what,
                        tg_count(channels, "element").text);
}

tg_status tg_channel_norm_infer(tg_call *c, const tg_channel_norm *k) {
    int64_t stats[DIMS];
    for (int i = W; i <= B; i++) {
        if (c->input[i]) TG_TRY(tg_need_same_dtype(c, X, i));
        TG_TRY(tg_need_channels(c, i, i == W ? "w" : "b"));
    }
    for (int d = 0; d < DIMS; d++) stats[d] = k->means >> d & 1 ? 1 : k->shape[d];
    for (int i = MEAN; i <= RSTD; i++)
        TG_TRY(tg_call_save(c, i, tg_accumulate_dtype((tg_dtype)c->input[X]->dtype), DIMS, stats));
    return TG_OK;
}

double tg_norm_members(const tg_channel_norm *k) {
    double n = 1;
    for (int d = 0; d < DIMS; d++) n *= k->means >> d & 1 ? (double)k->shape[d] : 1;
    return n;
}

/* ---- Views in the internal shape ---- */

tg_tensor *tg_norm_inside(tg_call *c, const tg_channel_norm *k, tg_tensor *x) {
    int64_t stride[DIMS];
    if (tg_op_dense(c, &x) != TG_OK) return x;
    tg_row_major(DIMS, k->shape, stride);
    return tg_call_view_of(c, x, 0, DIMS, k->shape, stride);
}

tg_tensor *tg_norm_by_channel(tg_call *c, const tg_channel_norm *k, tg_tensor *w) {
    const int64_t step = w->stride[0];
    return tg_call_view_of(c, w, 0, DIMS, (const int64_t[]){1, k->shape[1], k->shape[2], 1},
                           (const int64_t[]){0, k->shape[2] * step, step, 0});
}

tg_tensor *tg_norm_temp(tg_call *c, const tg_channel_norm *k) {
    return tg_call_temp(c, tg_accumulate_dtype((tg_dtype)c->input[X]->dtype), DIMS, k->shape);
}

static tg_status sum(tg_call *c, const tg_tensor *out, const tg_tensor *x, uint32_t mask, double scale, bool add) {
    tg_extent e;
    tg_array to = tg_array_keep(tg_array_of(out), DIMS, mask, &e);
    return tg_ctx_ops(c->ctx)->reduce(c->ctx, TG_SUM, to, tg_array_of(x), scale, add);
}

static tg_status mean_of(tg_call *c, const tg_channel_norm *k, const tg_tensor *out, const tg_tensor *x) {
    return sum(c, out, x, k->means, 1 / tg_norm_members(k), false);
}

/* ---- Forward ---- */

/* Computes the mean so that it is exact if all elements are equal. A float32 mean is rounded from a float64 mean. To a
 * float64 mean, the mean of x - mean is added. t is a temporary of the internal shape. */
static tg_status center(tg_call *c, const tg_channel_norm *k, const tg_tensor *x, const tg_tensor *t) {
    const tg_tensor *mean = c->saved[MEAN];
    tg_tensor *sum = tg_call_temp(c, TG_F64, DIMS, mean->shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(mean_of(c, k, sum, x));
    TG_TRY(tg_op_map(c, TG_FN_id, mean, TG_T1(sum), 1, 0, 0, false));
    if (mean->dtype != TG_F64) return TG_OK;
    TG_TRY(tg_op_map(c, TG_FN_sub, t, TG_T2(x, mean), 2, 0, 0, false));
    TG_TRY(mean_of(c, k, sum, t));
    return tg_op_map(c, TG_FN_add, mean, TG_T2(mean, sum), 2, 0, 0, false);
}

/* Makes two passes over x: one for the mean, one for the squared distances from it. */
tg_status tg_norm_moments(tg_call *c, const tg_channel_norm *k, const tg_tensor *x, const tg_tensor *t) {
    TG_TRY(center(c, k, x, t));
    TG_TRY(tg_op_map(c, TG_FN_sub_square, t, TG_T2(x, c->saved[MEAN]), 2, 0, 0, false));
    return mean_of(c, k, c->saved[RSTD], t);
}

tg_status tg_norm_apply(tg_call *c, const tg_channel_norm *k, const tg_tensor *x, const tg_tensor *h) {
    const tg_tensor *mean = c->saved[MEAN], *rstd = c->saved[RSTD], *y = tg_norm_inside(c, k, c->out[0]);
    const tg_tensor *w = c->input[W] ? tg_norm_by_channel(c, k, c->input[W]) : NULL;
    const tg_tensor *b = c->input[B] ? tg_norm_by_channel(c, k, c->input[B]) : NULL;
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_op_map(c, TG_FN_rsqrt_affine, rstd, TG_T1(rstd), 1, 1, k->eps, false));
    TG_TRY(tg_op_map(c, TG_FN_sub_mul, h, TG_T3(x, mean, rstd), 3, 0, 0, false));
    if (w && b) return tg_op_map(c, TG_FN_mul_add, y, TG_T3(h, w, b), 3, 0, 0, false);
    if (w) return tg_op_map(c, TG_FN_mul, y, TG_T2(h, w), 2, 0, 0, false);
    if (b) return tg_op_map(c, TG_FN_add, y, TG_T2(h, b), 2, 0, 0, false);
    return tg_op_map(c, TG_FN_id, y, TG_T1(h), 1, 0, 0, false);
}

/* ---- Backward ---- */

/* With h = (x - mean) rstd and g = gy w: gx = rstd (g - mean(g) - h mean(g h)). If k->given, gx = rstd g. */
static tg_status grad_x(tg_call *c, const tg_channel_norm *k, const tg_tensor *gy, const tg_tensor *h,
                        const tg_tensor *t) {
    const tg_tensor *rstd = c->saved[RSTD], *g = gy, *w = c->input[W] ? tg_norm_by_channel(c, k, c->input[W]) : NULL;
    tg_tensor *weighted = w ? tg_norm_temp(c, k) : NULL, *gx = tg_norm_inside(c, k, c->gin[X]);
    tg_tensor *mean = tg_call_temp(c, (tg_dtype)rstd->dtype, DIMS, rstd->shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    if (w) {
        TG_TRY(tg_op_map(c, TG_FN_mul, weighted, TG_T2(gy, w), 2, 0, 0, false));
        g = weighted;
    }
    if (k->given) return tg_op_map(c, TG_FN_mul, gx, TG_T2(g, rstd), 2, 0, 0, tg_adds(c, X));
    TG_TRY(tg_op_map(c, TG_FN_mul, t, TG_T2(g, h), 2, 0, 0, false));
    TG_TRY(mean_of(c, k, mean, t));
    TG_TRY(tg_op_map(c, TG_FN_mul, t, TG_T2(h, mean), 2, 0, 0, false));
    TG_TRY(mean_of(c, k, mean, g));
    TG_TRY(tg_op_map(c, TG_FN_add, t, TG_T2(t, mean), 2, 0, 0, false));
    return tg_op_map(c, TG_FN_sub_mul, gx, TG_T3(g, t, rstd), 3, 0, 0, tg_adds(c, X));
}

/* Stores the sum of x for each channel as the gradient of input i, w or b, or adds it. */
static tg_status sum_channels(tg_call *c, const tg_channel_norm *k, int i, const tg_tensor *x) {
    tg_tensor *g = tg_norm_by_channel(c, k, c->gin[i]);
    return tg_ok(c->ctx) ? sum(c, g, x, all_but_channels, 1, tg_adds(c, i)) : c->ctx->run.status;
}

/* With h = (x - mean) rstd: gw = sum(gy h) and gb = sum(gy) for each channel. */
tg_status tg_norm_back(tg_call *c, const tg_channel_norm *k) {
    tg_tensor *gy = tg_norm_inside(c, k, c->gout[0]);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    if (c->gin_mode[B]) TG_TRY(sum_channels(c, k, B, gy));
    if (!c->gin_mode[X] && !c->gin_mode[W]) return TG_OK;
    tg_tensor *x = tg_norm_inside(c, k, c->input[X]), *h = tg_norm_temp(c, k), *t = tg_norm_temp(c, k);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_op_map(c, TG_FN_sub_mul, h, TG_T3(x, c->saved[MEAN], c->saved[RSTD]), 3, 0, 0, false));
    if (c->gin_mode[W]) {
        TG_TRY(tg_op_map(c, TG_FN_mul, t, TG_T2(gy, h), 2, 0, 0, false));
        TG_TRY(sum_channels(c, k, W, t));
    }
    return c->gin_mode[X] ? grad_x(c, k, gy, h, t) : TG_OK;
}
