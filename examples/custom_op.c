/* An op of your own. Defines the op's description, forward, backward and samples, checks its gradient by finite
 * differences, and uses it.
 *
 * charbonnier(x) = sqrt(x^2 + eps^2) - eps is |x| without the kink: a loss for data with outliers. The program fits a
 * line to points of which every tenth is far off, once with squared errors and once with this op.
 */
#include <math.h>
#include <stdio.h>

#include <tapegrad/extend.h>
#include <tapegrad/gradcheck.h>
#include <tapegrad/optim.h>

/* ---- The op ---- */

typedef struct charbonnier_params {
    double eps;
} charbonnier_params;

/* Returns the address of element i in row-major order. Tensors may have any strides: the gradient of a mean, for
 * example, is a single number with strides of 0. */
static void *element(const tg_array *a, int64_t i) {
    int64_t at = 0;
    for (int d = a->ndim - 1; d >= 0; i /= a->shape[d], d--) at += i % a->shape[d] * a->stride[d];
    return (char *)a->data + at * tg_dtype_bits((tg_dtype)a->dtype) / 8;
}

static double get(const tg_array *a, int64_t i) {
    return a->dtype == TG_F64 ? *(const double *)element(a, i) : (double)*(const float *)element(a, i);
}

static void put(const tg_array *a, int64_t i, double v) {
    if (a->dtype == TG_F64)
        *(double *)element(a, i) = v;
    else
        *(float *)element(a, i) = (float)v;
}

/* Checks x, and declares y with its shape and dtype. */
static tg_status charbonnier_infer(tg_call *c) {
    const charbonnier_params *p = c->params;
    tg_dtype dtype = tg_dtype_of(c->input[0]);
    tg_shape shape = tg_shape_of(c->input[0]);
    if (dtype != TG_F32 && dtype != TG_F64) return tg_call_fail(c, TG_ERR_DTYPE, "expected float32 or float64");
    if (!(p->eps > 0)) return tg_call_fail(c, TG_ERR_ARGUMENT, "eps is %g, expected more than 0", p->eps);
    return tg_call_out(c, 0, dtype, (int)shape.ndim, shape.dim);
}

static tg_status charbonnier_forward(tg_call *c) {
    const charbonnier_params *p = c->params;
    tg_array x = tg_array_of(c->input[0]), y = tg_array_of(c->out[0]);
    for (int64_t i = 0; i < x.numel; i++) put(&y, i, hypot(get(&x, i), p->eps) - p->eps);
    return TG_OK;
}

/* Computes gx = gy x / sqrt(x^2 + eps^2). gin_mode says whether to write gx or to add to it. */
static tg_status charbonnier_backward(tg_call *c) {
    const charbonnier_params *p = c->params;
    tg_array x = tg_array_of(c->input[0]), gy = tg_array_of(c->gout[0]), gx = tg_array_of(c->gin[0]);
    bool add = c->gin_mode[0] == TG_GRAD_ADD;
    for (int64_t i = 0; i < x.numel; i++) {
        double g = get(&gy, i) * get(&x, i) / hypot(get(&x, i), p->eps);
        put(&gx, i, add ? get(&gx, i) + g : g);
    }
    return TG_OK;
}

#define EPS(e) (&(const charbonnier_params){.eps = (e)})

static const tg_sample samples[] = {
    {.note = "matrix", .params = EPS(1), .n_in = 1, .input = {TG_S(3, 5)}},
    {.note = "sharp", .params = EPS(0.01), .n_in = 1, .input = {TG_S_IN(-2, 2, 7)}},
    {.note = "transposed", .params = EPS(0.5), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 3, 4)}},
    {.note = "scalar", .params = EPS(0.5), .n_in = 1, .input = {TG_S_SCALAR}},
    {.note = "empty", .params = EPS(0.5), .n_in = 1, .input = {TG_S(2, 0)}},
};

static const tg_op charbonnier_op = {
    .size = sizeof(tg_op),
    .name = "charbonnier",
    .formula = "sqrt(x^2 + eps^2) - eps",
    .n_in = 1,
    .n_out = 1,
    .params_size = sizeof(charbonnier_params),
    .saves_in = 1, /* backward reads x */
    .family = TG_FAMILY_POINTWISE,
    .infer = charbonnier_infer,
    .forward = charbonnier_forward,
    .backward = charbonnier_backward,
    TG_SAMPLES(samples),
};

static tg_tensor *charbonnier(tg_tape *t, tg_tensor *x, double eps) {
    tg_tensor *y;
    tg_apply(t, &charbonnier_op, EPS(eps), &x, 1, &y, 1, NULL, NULL, TG_SITE);
    return y;
}

/* ---- Its gradient, checked ---- */

static bool check(tg_ctx *ctx) {
    bool right = true;
    for (int i = 0; i < charbonnier_op.n_samples; i++) {
        tg_gradcheck_info r = TG_GRADCHECK_INFO();
        right &= tg_gradcheck_op(ctx, &charbonnier_op, i, &r, NULL) == TG_OK;
        printf("charbonnier (%s): %s\n", samples[i].note, r.failed ? r.report : "ok");
    }
    return right;
}

/* ---- A fit ---- */

enum { POINTS = 100 };

/* Fits a line to points of y = 2 x + 1, of which every tenth lies 20 higher. Returns the larger of two errors: that of
 * the line's slope and that of its offset. */
static double fit(tg_ctx *ctx, bool robust) {
    float x[POINTS], y[POINTS];
    for (int i = 0; i < POINTS; i++) {
        x[i] = (float)i / POINTS;
        y[i] = 2 * x[i] + 1 + (i % 10 == 0 ? 20.0F : 0);
    }
    tg_tensor *xs = tg_from_host(ctx, TG_F32, TG_SHAPE(POINTS, 1), x);
    tg_tensor *ys = tg_from_host(ctx, TG_F32, TG_SHAPE(POINTS, 1), y);
    tg_tensor *p[] = {tg_param_new(ctx, "slope", TG_F32, TG_SHAPE(1, 1), 0),
                      tg_param_new(ctx, "offset", TG_F32, TG_SHAPE(1), 0)};
    tg_optim *opt = tg_adam_new(ctx, p, 2, TG_ADAMW(.lr = 0.05));
    tg_tape *t = tg_tape_new(ctx);
    for (int step = 0; step < 1000; step++) {
        tg_tensor *off = tg_sub(t, tg_linear(t, xs, p[0], p[1]), ys);
        tg_tensor *each = robust ? charbonnier(t, off, 0.1) : tg_square(t, off);
        tg_backward(t, tg_mean(t, each, TG_ALL_DIMS, false));
        tg_optim_step(opt);
        tg_optim_zero_grad(opt);
        tg_tape_reset(t);
    }
    double slope = tg_item(p[0]), offset = tg_item(p[1]);
    printf("%-12s y = %.3f x + %.3f\n", robust ? "charbonnier:" : "squares:", slope, offset);
    tg_optim_free(opt);
    tg_tape_free(t);
    return fmax(fabs(slope - 2), fabs(offset - 1));
}

int main(void) {
    tg_ctx *ctx = tg_ctx_new(NULL);
    bool right = check(ctx);
    double squares = fit(ctx, false), robust = fit(ctx, true);
    bool failed = tg_ctx_status(ctx) != TG_OK;
    if (failed) fprintf(stderr, "%s\n", tg_ctx_message(ctx));
    tg_ctx_free(ctx);
    return failed || !right || robust > 0.1 || squares < 1;
}
