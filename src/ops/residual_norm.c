/* A residual addition and the RMS normalization that follows it, in one op. */
#include <math.h>

#include "ops/common/derive.h"
#include "ops/common/nn_op.h"
#include "kernels/composed.h"

/* Between two transformer layers, r = x + residual is passed on as the next residual, and y = rms_norm(r) w enters the
 * next layer. x, residual, r and y are [.., h]; w is [h] or absent. */

typedef struct residual_params {
    double eps;
} residual_params;

enum { X, RESIDUAL, W };
enum { R, Y };
enum { MEAN, RSTD }; /* buffers that the op saves; MEAN has no elements, because RMS norm has no mean */

static tg_status residual_shapes(tg_call *c) {
    const tg_tensor *x = c->input[X], *w = c->input[W];
    if (x->ndim < 1) return tg_call_fail(c, TG_ERR_SHAPE, "x is a scalar; it must have 1 or more dims, of which the "
                                         "last is normalized");
    if (!tg_same_shape(x, c->input[RESIDUAL]))
        return tg_call_fail(c, TG_ERR_SHAPE, "residual must have x's shape; neither is broadcast");
    if (w && (w->ndim != 1 || w->shape[0] != x->shape[x->ndim - 1]))
        return tg_call_fail(c, TG_ERR_SHAPE, "w must be a vector of %s, the size of the last dim of x",
                            tg_count(x->shape[x->ndim - 1], "element").text);
    return TG_OK;
}

static tg_status residual_infer(tg_call *c) {
    const tg_tensor *x = c->input[X];
    double eps = ((const residual_params *)c->params)->eps;
    tg_dtype stats = tg_accumulate_dtype((tg_dtype)x->dtype);
    int64_t rows = 1;
    TG_TRY(tg_need_float(c, X));
    TG_TRY(tg_need_same_dtype(c, X, RESIDUAL));
    if (c->input[W]) TG_TRY(tg_need_same_dtype(c, X, W));
    TG_TRY(residual_shapes(c));
    if (!(eps >= 0 && isfinite(eps)))
        return tg_call_fail(c, TG_ERR_ARGUMENT, "eps is %g; it must be finite and 0 or more", eps);
    for (int d = 0; d < x->ndim - 1; d++) rows *= x->shape[d];
    for (int i = X; i <= RESIDUAL; i++)
        for (int d = 0; d < x->ndim; d++) TG_TRY(tg_call_role(c, i, d, d < x->ndim - 1 ? d : TG_WHOLE));
    TG_TRY(tg_call_save(c, MEAN, stats, 1, (int64_t[]){0}));
    TG_TRY(tg_call_save(c, RSTD, stats, 1, &rows));
    TG_TRY(tg_call_out(c, R, (tg_dtype)x->dtype, x->ndim, x->shape));
    return tg_call_out(c, Y, (tg_dtype)x->dtype, x->ndim, x->shape);
}

static tg_norm_args norm_args(const tg_call *c) {
    return (tg_norm_args){
        .x = tg_array_of(c->out[R]),
        .w = tg_op_absent_or(c->input[W]),
        .mean = tg_array_of(c->saved[MEAN]),
        .rstd = tg_array_of(c->saved[RSTD]),
        .eps = ((const residual_params *)c->params)->eps,
        .rms = true,
    };
}

static tg_status residual_forward(tg_call *c) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    TG_TRY(tg_op_map(c, TG_FN_add, c->out[R], TG_T2(c->input[X], c->input[RESIDUAL]), 2, 0, 0, false));
    tg_norm_args a = norm_args(c);
    a.y = tg_array_of(c->out[Y]);
    return (ops->norm ? ops->norm : tg_composed_norm)(c->ctx, &a);
}

/* x and residual both get the gradient of r: the gradient of output r, which may be missing, plus that of output y,
 * which may be missing too, through the norm. */
static tg_status residual_backward(tg_call *c) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    tg_tensor *gr = c->gout[R], *gy = c->gout[Y], *g = gr;
    if (!gy) TG_TRY(tg_op_zero(c, W));
    if (gy) {
        const tg_tensor *r = c->out[R];
        tg_norm_args a = norm_args(c);
        g = tg_call_temp(c, (tg_dtype)r->dtype, r->ndim, r->shape);
        if (!tg_ok(c->ctx)) return c->ctx->run.status;
        a.gy = tg_array_of(gy);
        a.gx = tg_array_of(g);
        a.gw = tg_op_gin(c, W);
        a.add_w = tg_adds(c, W);
        TG_TRY((ops->norm_grad ? ops->norm_grad : tg_composed_norm_grad)(c->ctx, &a));
        if (gr) TG_TRY(tg_op_map(c, TG_FN_id, g, TG_T1(gr), 1, 0, 0, true));
    }
    if (c->gin_mode[X]) TG_TRY(tg_call_pass(c, X, g));
    return c->gin_mode[RESIDUAL] ? tg_call_pass(c, RESIDUAL, g) : TG_OK;
}

/* Computes the gradients from r, because x and residual are not saved. With rstd = 1 / sqrt(mean(r^2) + eps),
 * unit = r * rstd and g = gy * w, the norm adds rstd * (g - unit * mean(g * unit)) to the gradient of r. */
static tg_status residual_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    tg_tensor *r = tg_node_out(n)[R], *w = tg_node_in(n)[W], *gr = gout[R], *gy = gout[Y];
    tg_dtype dtype = (tg_dtype)r->dtype;
    if (gy) {
        double eps = ((const residual_params *)tg_node_params(n))->eps;
        tg_tensor *wide = tg_wide(t, r), *g = tg_wide(t, gy);
        tg_tensor *square = tg_mean(t, tg_square(t, wide), TG_DIMS(-1), true);
        tg_tensor *rstd = tg_rsqrt(t, tg_add_scalar(t, square, eps)), *unit = tg_mul(t, wide, rstd);
        if (tg_node_needs_grad(n, W)) gin[W] = tg_cast(t, tg_sum_to(t, tg_mul(t, g, unit), w), dtype);
        if (w) g = tg_mul(t, g, tg_wide(t, w));
        tg_tensor *along = tg_mean(t, tg_mul(t, g, unit), TG_DIMS(-1), true);
        g = tg_cast(t, tg_mul(t, rstd, tg_sub(t, g, tg_mul(t, unit, along))), dtype);
        gr = gr ? tg_add(t, gr, g) : g;
    }
    gin[X] = gin[RESIDUAL] = gr;
    return TG_OK;
}

static const residual_params usual = {.eps = 1e-6};

#define SAMPLE(note_, ...)                                                                                             \
    { .note = note_, .params = &usual, .n_in = 3, __VA_ARGS__ }
static const tg_sample residual_samples[] = {
    SAMPLE("rows", .input = {TG_S(4, 6), TG_S(4, 6), TG_S(6)}),
    SAMPLE("no weight", .input = {TG_S(3, 5), TG_S(3, 5), TG_S_ABSENT}),
    SAMPLE("leading dims", .input = {TG_S(2, 3, 7), TG_S(2, 3, 7), TG_S(7)}),
    SAMPLE("transposed and strided",
           .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 3, 4), TG_S_AS(TG_SAMPLE_STRIDED, 2, 3, 4), TG_S(4)}),
    SAMPLE("equal rows", .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4), TG_S(3, 4), TG_S_AS(TG_SAMPLE_STRIDED, 4)}),
    SAMPLE("one tensor twice", .input = {TG_S(6), TG_S(6), TG_S(6)}, .aliases = true),
    SAMPLE("frozen weight", .input = {TG_S(4, 6), TG_S(4, 6), {.shape = TG_S_SHAPE(6), .frozen = true}}),
    SAMPLE("one row", .input = {TG_S(5), TG_S(5), TG_S(5)}),
    SAMPLE("rows of one", .input = {TG_S_IN(0.5, 2, 3, 1), TG_S_IN(0.5, 2, 3, 1), TG_S(1)}),
    SAMPLE("no rows", .input = {TG_S(0, 4), TG_S(0, 4), TG_S(4)}),
    SAMPLE("empty rows", .input = {TG_S(3, 0), TG_S(3, 0), TG_S(0)}),
    SAMPLE("a residual that would stretch", .input = {TG_S(4, 6), TG_S(1, 6), TG_S(6)}, .refused = TG_ERR_SHAPE),
    SAMPLE("w of another size", .input = {TG_S(4, 6), TG_S(4, 6), TG_S(4)}, .refused = TG_ERR_SHAPE),
    SAMPLE("scalars", .input = {TG_S_SCALAR, TG_S_SCALAR, TG_S_ABSENT}, .refused = TG_ERR_SHAPE),
    SAMPLE("integers", .input = {TG_S_INDEX(5, 2, 3), TG_S_INDEX(5, 2, 3), TG_S_ABSENT}, .refused = TG_ERR_DTYPE),
    {.note = "eps is NaN",
     .params = &(const residual_params){.eps = NAN},
     .n_in = 3,
     .input = {TG_S(2, 3), TG_S(2, 3), TG_S(3)},
     .refused = TG_ERR_ARGUMENT},
    SAMPLE("2048 rows of 768", .input = {TG_S(2048, 768), TG_S(2048, 768), TG_S(768)}, .bench = true),
};

static const tg_field residual_rms_norm_fields[] = {
    TG_ARG(residual_params, eps, DOUBLE, "Is added to the mean of the squares."),
};

const tg_op tg_op_residual_rms_norm = {
    .size = sizeof(tg_op),
    .name = "residual_rms_norm",
    .formula = "r = x + residual, r / sqrt(mean(r^2) + eps) w",
    .inputs = "x residual w",
    .outputs = "sum y",
    .n_in = 3,
    .n_out = 2,
    .params_size = sizeof(residual_params),
    .saves_in = 1u << W,
    .saves_out = 1u << R,
    .optional = 1u << W,
    .passes = 1u << X | 1u << RESIDUAL,
    .family = TG_FAMILY_SOFTMAX,
    .sums_f32 = true,
    .infer = residual_infer,
    .forward = residual_forward,
    .backward = residual_backward,
    .vjp = residual_vjp,
    .jvp = tg_jvp_by_vjp,
    TG_FIELDS(residual_rms_norm_fields),
    .preset = &(const residual_params){1e-5},
    TG_SAMPLES(residual_samples),
};

/* Returns y = w * r / sqrt(mean(r^2) + eps), where r = x + residual. x and residual have one shape [.., h]; w is [h] or
 * NULL. If sum is not NULL, *sum receives r. The op saves r, w and one number per row. */
tg_tensor *tg_residual_rms_norm(tg_tape *t, tg_tensor *x, tg_tensor *residual, tg_tensor *w, double eps,
                                tg_tensor **sum) {
    tg_tensor *out[2];
    tg_apply(t, &tg_op_residual_rms_norm, &(residual_params){eps}, (tg_tensor *const[]){x, residual, w}, 3, out, 2,
             NULL, NULL, TG_SITE);
    if (sum) *sum = out[R];
    return out[Y];
}
