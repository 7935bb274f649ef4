/* Element-wise ops at difficult arguments: zeros, infinities, NaN, ties, huge values; and the error of float32 in units
 * in the last place, on every instruction set. TG_TEST_DEVICE names another device. */
#include <math.h>

#include <tapegrad/ops.h>
#include <tapegrad/backward.h>

#include "check_main.h"
#include "on_device.h"

static const char *const isas[] = {"portable", "avx2", "avx512"};
enum { ISAS = sizeof isas / sizeof *isas };

/* NULL if this machine does not have it. */
static tg_ctx *open_ctx(tg_dtype dtype, const char *isa) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = getenv("TG_TEST_DEVICE"), .dtype = dtype, .isa = isa, .threads = 1));
    if (tg_ctx_status(ctx) == TG_OK) return ctx;
    tg_ctx_free(ctx);
    return NULL;
}

/* ---- Special values ---- */

typedef tg_tensor *(*function)(tg_tape *t, tg_tensor *x);

static tg_tensor *leaky(tg_tape *t, tg_tensor *x) { return tg_leaky_relu(t, x, 0.25); }
static tg_tensor *elu(tg_tape *t, tg_tensor *x) { return tg_elu(t, x, 2); }
static tg_tensor *softplus(tg_tape *t, tg_tensor *x) { return tg_softplus(t, x, 1, 20); }
static tg_tensor *softplus_to_40(tg_tape *t, tg_tensor *x) { return tg_softplus(t, x, 2, 40); }
static tg_tensor *softplus_all(tg_tape *t, tg_tensor *x) { return tg_softplus(t, x, 1, INFINITY); }
static tg_tensor *softplus_mirrored(tg_tape *t, tg_tensor *x) { return tg_softplus(t, x, -1, 20); }
static tg_tensor *twice(tg_tape *t, tg_tensor *x) { return tg_scale(t, x, 2); }
static tg_tensor *clamp(tg_tape *t, tg_tensor *x) { return tg_clamp(t, x, -1, 2); }
static tg_tensor *root(tg_tape *t, tg_tensor *x) { return tg_pow_scalar(t, x, 0.5); }
static tg_tensor *inverse_root(tg_tape *t, tg_tensor *x) { return tg_pow_scalar(t, x, -0.5); }
static tg_tensor *root_cubed(tg_tape *t, tg_tensor *x) { return tg_pow_scalar(t, x, 1.5); }

#define INF INFINITY
#define LN2 0.69314718055994531
#define PI_2 1.5707963267948966

/* x, f(x) and f'(x). */
static const struct {
    const char *name;
    function f;
    double x, y, slope;
} row[] = {
#define ROW(f, x, y, slope) {#f, f, x, y, slope}
    ROW(tg_log1p, 0, 0, 1), ROW(tg_log1p, -0.0, -0.0, 1), ROW(tg_log1p, -1, -INF, INF), ROW(tg_log1p, -2, NAN, -1),
    ROW(tg_log1p, INF, INF, 0), ROW(tg_log1p, -INF, NAN, -0.0), ROW(tg_log1p, NAN, NAN, NAN),
    ROW(tg_log1p, 0x1p-80, 0x1p-80, 1), ROW(tg_log1p, 0x1p-140, 0x1p-140, 1),
    ROW(tg_log1p, 0x1p127, 127 * LN2, 0x1p-127),
    ROW(tg_log1p, 1, LN2, 0.5), ROW(tg_log1p, 0x1p-12, 0.0002441108275273627, 1 / (1 + 0x1p-12)),
    ROW(tg_expm1, 0, 0, 1), ROW(tg_expm1, -0.0, -0.0, 1), ROW(tg_expm1, INF, INF, INF), ROW(tg_expm1, -INF, -1, 0),
    ROW(tg_expm1, NAN, NAN, NAN), ROW(tg_expm1, 0x1p-80, 0x1p-80, 1), ROW(tg_expm1, 0x1p-140, 0x1p-140, 1),
    ROW(tg_expm1, -40, -1, 4.248354255291589e-18), ROW(tg_expm1, 88.5, 2.7230878250681117e38, 2.7230878250681117e38),
    ROW(tg_expm1, 1, 1.7182818284590452, 2.7182818284590452),
    ROW(leaky, 0, 0, 0.25), ROW(leaky, -0.0, -0.0, 0.25), ROW(leaky, -8, -2, 0.25), ROW(leaky, INF, INF, 1),
    ROW(leaky, -INF, -INF, 0.25), ROW(leaky, NAN, NAN, 0.25),
    ROW(elu, 0, 0, 2), ROW(elu, INF, INF, 1), ROW(elu, -INF, -2, 0), ROW(elu, NAN, NAN, NAN), ROW(elu, 1e30, 1e30, 1),
    ROW(elu, -0x1p-80, -0x1p-79, 2),
    ROW(softplus, 0, LN2, 0.5), ROW(softplus, INF, INF, 1), ROW(softplus, -INF, 0, 0), ROW(softplus, NAN, NAN, NAN),
    ROW(softplus, 21, 21, 1), ROW(softplus, -50, 1.9287498479639178e-22, 1.9287498479639178e-22),
    ROW(softplus_to_40, 20.5, 20.5, 1), ROW(softplus_to_40, 0, LN2 / 2, 0.5), ROW(softplus_all, 1000, 1000, 1),
    ROW(softplus_mirrored, 0, -LN2, 0.5), ROW(softplus_mirrored, -21, -21, 1),
    ROW(clamp, -1, -1, 1), ROW(clamp, 2, 2, 1), ROW(clamp, -0.0, -0.0, 1), ROW(clamp, -1.5, -1, 0),
    ROW(clamp, INF, 2, 0), ROW(clamp, -INF, -1, 0), ROW(clamp, NAN, NAN, 0),
    ROW(tg_tanh, 0, 0, 1), ROW(tg_tanh, -0.0, -0.0, 1), ROW(tg_tanh, INF, 1, 0), ROW(tg_tanh, -INF, -1, 0),
    ROW(tg_tanh, NAN, NAN, NAN), ROW(tg_tanh, 0x1p-80, 0x1p-80, 1),
    ROW(tg_relu, 0, 0, 0), ROW(tg_relu, -0.0, -0.0, 0), ROW(tg_relu, INF, INF, 1), ROW(tg_relu, -INF, 0, 0),
    ROW(tg_relu, NAN, NAN, 1), ROW(tg_abs, NAN, NAN, 0), ROW(tg_abs, -0.0, 0, 0),
    ROW(twice, 0, 0, 2), ROW(twice, -0.0, -0.0, 2),
    ROW(tg_gelu_tanh, 1e14, 1e14, 1), ROW(tg_gelu_tanh, 1e30, 1e30, 1), ROW(tg_gelu_tanh, INF, INF, 1),
    ROW(tg_gelu_tanh, -1e14, -0.0, 0), ROW(tg_gelu_tanh, -1e30, -0.0, 0), ROW(tg_gelu_tanh, NAN, NAN, NAN),
    ROW(tg_sign, 0, 0, 0), ROW(tg_sign, -0.0, 0, 0), ROW(tg_sign, -3, -1, 0), ROW(tg_sign, INF, 1, 0),
    ROW(tg_sign, -INF, -1, 0), ROW(tg_sign, NAN, 0, 0),
    ROW(tg_floor, 2.5, 2, 0), ROW(tg_floor, -2.5, -3, 0), ROW(tg_floor, 7, 7, 0), ROW(tg_floor, -0.0, -0.0, 0),
    ROW(tg_floor, -INF, -INF, 0), ROW(tg_floor, NAN, NAN, 0), ROW(tg_floor, 0x1p30, 0x1p30, 0),
    ROW(tg_ceil, 2.5, 3, 0), ROW(tg_ceil, -2.5, -2, 0), ROW(tg_ceil, -0.5, -0.0, 0), ROW(tg_ceil, INF, INF, 0),
    ROW(tg_ceil, NAN, NAN, 0), ROW(tg_ceil, -7, -7, 0),
    ROW(tg_round, 0.5, 0, 0), ROW(tg_round, 1.5, 2, 0), ROW(tg_round, 2.5, 2, 0), ROW(tg_round, -0.5, -0.0, 0),
    ROW(tg_round, -1.5, -2, 0), ROW(tg_round, 0.49999997, 0, 0), ROW(tg_round, 8388609, 8388609, 0),
    ROW(tg_round, -INF, -INF, 0), ROW(tg_round, NAN, NAN, 0),
    ROW(tg_tan, 0, 0, 1), ROW(tg_tan, INF, NAN, NAN), ROW(tg_tan, 1, 1.5574077246549022, 3.4255188208147597),
    ROW(tg_asin, 1, PI_2, INF), ROW(tg_asin, -1, -PI_2, INF), ROW(tg_asin, 1.5, NAN, NAN), ROW(tg_asin, 0, 0, 1),
    ROW(tg_acos, 1, 0, -INF), ROW(tg_acos, -1, 2 * PI_2, -INF), ROW(tg_acos, -1.5, NAN, NAN),
    ROW(tg_acos, 0, PI_2, -1),
    ROW(tg_atan, INF, PI_2, 0), ROW(tg_atan, -INF, -PI_2, 0), ROW(tg_atan, 1e200, PI_2, 0),
    ROW(tg_atan, NAN, NAN, NAN),
    ROW(tg_sinh, 0, 0, 1), ROW(tg_sinh, INF, INF, INF), ROW(tg_sinh, -INF, -INF, INF),
    ROW(tg_cosh, 0, 1, 0), ROW(tg_cosh, INF, INF, INF), ROW(tg_cosh, -INF, INF, -INF),
    ROW(root, -INF, NAN, NAN), ROW(root, -4, NAN, NAN), ROW(root, 4, 2, 0.25), ROW(root, 0, 0, INF),
    ROW(root, -0.0, 0, INF), ROW(root, INF, INF, 0), ROW(inverse_root, -INF, NAN, -0.0),
    ROW(inverse_root, 4, 0.5, -0.0625), ROW(root_cubed, -INF, INF, NAN), ROW(root_cubed, -4, NAN, NAN),
};

typedef tg_tensor *(*function2)(tg_tape *t, tg_tensor *a, tg_tensor *b);

static tg_tensor *quarter(tg_tape *t, tg_tensor *a, tg_tensor *b) { return tg_lerp_scalar(t, a, b, 0.25); }

/* a, b, f(a, b), and its derivatives by a and b. */
static const struct {
    const char *name;
    function2 f;
    double a, b, y, by_a, by_b;
} pair[] = {
#define PAIR(f, a, b, y, by_a, by_b) {#f, f, a, b, y, by_a, by_b}
    PAIR(tg_atan2, 0, 0, 0, 0, 0), PAIR(tg_atan2, 0, -1, 2 * PI_2, -1, -0.0),
    PAIR(tg_atan2, -0.0, -1, -2 * PI_2, -1, -0.0),
    PAIR(tg_atan2, 1, 0, PI_2, 0, -1), PAIR(tg_atan2, -1, 0, -PI_2, 0, 1),
    PAIR(tg_atan2, 1e30, 1e30, PI_2 / 2, 5e-31, -5e-31),
    PAIR(tg_atan2, 1e-30, -1e-30, 1.5 * PI_2, -5e29, -5e29), PAIR(tg_atan2, 1, INF, 0, 0, 0),
    PAIR(tg_atan2, INF, 1, PI_2, 0, 0), PAIR(tg_atan2, INF, INF, PI_2 / 2, NAN, NAN),
    PAIR(tg_atan2, NAN, 1, NAN, NAN, NAN), PAIR(tg_atan2, NAN, 0, NAN, NAN, NAN), PAIR(tg_atan2, 0, NAN, NAN, NAN, NAN),
    PAIR(tg_atan2, NAN, NAN, NAN, NAN, NAN),
    PAIR(tg_maximum, 2, 1, 2, 1, 0), PAIR(tg_maximum, INF, INF, INF, 0.5, 0.5), PAIR(tg_maximum, -INF, INF, INF, 0, 1),
    PAIR(tg_maximum, NAN, 1, NAN, NAN, NAN), PAIR(tg_maximum, 1, NAN, NAN, NAN, NAN),
    PAIR(tg_maximum, NAN, NAN, NAN, NAN, NAN),
    PAIR(tg_minimum, 2, 1, 1, 0, 1), PAIR(tg_minimum, -INF, -INF, -INF, 0.5, 0.5),
    PAIR(tg_minimum, -INF, INF, -INF, 1, 0),
    PAIR(tg_minimum, NAN, 1, NAN, NAN, NAN), PAIR(tg_minimum, 1, NAN, NAN, NAN, NAN),
    PAIR(tg_fmod, 7, 2, 1, 1, -3), PAIR(tg_fmod, -7, 2, -1, 1, 3), PAIR(tg_fmod, 7, -2, 1, 1, 3),
    PAIR(tg_fmod, -7, -2, -1, 1, -3),
    PAIR(tg_fmod, 6, 2, 0, 1, -3), PAIR(tg_fmod, -6, 2, -0.0, 1, 3), PAIR(tg_fmod, 1, INF, 1, 1, 0),
    PAIR(tg_fmod, INF, 2, NAN, 1, NAN),
    PAIR(tg_fmod, 1, 0, NAN, 1, NAN), PAIR(tg_fmod, 1, NAN, NAN, 1, NAN), PAIR(tg_fmod, 0x1p23, 1, 0, 1, -0x1p23),
    PAIR(quarter, 3, 3, 3, 0.75, 0.25), PAIR(quarter, 0, 4, 1, 0.75, 0.25), PAIR(quarter, 1, INF, INF, 0.75, 0.25),
};

static bool close_to(double got, double want, double tol) {
    if (isnan(want)) return isnan(got);
    if (want == 0) return got == 0 && signbit(got) == signbit(want);
    return got == want || fabs(got - want) <= tol * fabs(want);
}

static tg_tensor *leaf(tg_ctx *ctx, tg_dtype dtype, double v) {
    float narrow = (float)v;
    tg_tensor *x = tg_from_host(ctx, dtype, TG_SHAPE(), dtype == TG_F64 ? (const void *)&v : &narrow);
    tg_set_requires_grad(x, true);
    return x;
}

/* Zeros have a sign in values, but not in derivatives. */
static void check_row(tg_ctx *ctx, tg_dtype dtype, size_t i, double tol) {
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = leaf(ctx, dtype, row[i].x), *y = row[i].f(t, x);
    double got = tg_item(y);
    tg_backward(t, y);
    double slope = tg_item(tg_grad_of(x));
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    ck_assert_msg(close_to(got, row[i].y, tol), "%s(%g) is %.9g, expected %.9g, %s %s", row[i].name, row[i].x, got,
                  row[i].y, tg_dtype_name(dtype), tg_ctx_isa(ctx));
    ck_assert_msg(close_to(slope + 0.0, row[i].slope + 0.0, tol), "the slope of %s at %g is %.9g, expected %.9g, %s %s",
                  row[i].name, row[i].x, slope, row[i].slope, tg_dtype_name(dtype), tg_ctx_isa(ctx));
    tg_tape_free(t);
    tg_drop(x);
}

static void check_pair(tg_ctx *ctx, tg_dtype dtype, size_t i, double tol) {
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *a = leaf(ctx, dtype, pair[i].a), *b = leaf(ctx, dtype, pair[i].b), *y = pair[i].f(t, a, b);
    double value = tg_item(y);
    tg_backward(t, y);
    const double got[] = {value, tg_item(tg_grad_of(a)) + 0.0, tg_item(tg_grad_of(b)) + 0.0};
    const double want[] = {pair[i].y, pair[i].by_a + 0.0, pair[i].by_b + 0.0};
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    for (int k = 0; k < 3; k++)
        ck_assert_msg(close_to(got[k], want[k], tol), "%s(%g, %g), %s: %.9g, expected %.9g, %s %s", pair[i].name,
                      pair[i].a, pair[i].b, k == 0 ? "value" : k == 1 ? "slope by a" : "slope by b", got[k], want[k],
                      tg_dtype_name(dtype), tg_ctx_isa(ctx));
    tg_tape_free(t);
    tg_drop(a);
    tg_drop(b);
}

START_TEST(special_values_are_right) {
    static const tg_dtype dtypes[] = {TG_F64, TG_F32};
    int worlds = 0;
    for (int d = 0; d < 2; d++)
        for (int k = 0; k < ISAS; k++) {
            double tol = dtypes[d] == TG_F64 ? 1e-14 : 4 * 0x1p-23;
            tg_ctx *ctx = open_ctx(dtypes[d], isas[k]);
            if (!ctx) continue;
            worlds++;
            for (size_t i = 0; i < sizeof row / sizeof *row; i++) check_row(ctx, dtypes[d], i, tol);
            for (size_t i = 0; i < sizeof pair / sizeof *pair; i++) check_pair(ctx, dtypes[d], i, tol);
            tg_ctx_free(ctx);
        }
    ck_assert_int_ge(worlds, 2);
}
END_TEST

/* ---- Accuracy ---- */

/* Allowed distance of float32 from float64 in units of the last place. */
static const struct {
    const char *name;
    function f;
    double lo, hi, most;
} within[] = {
#define WITHIN(f, lo, hi, most) {#f, f, lo, hi, most}
    WITHIN(tg_log1p, -1, INF, 2), WITHIN(tg_expm1, -INF, 88.7, 2), WITHIN(elu, -INF, INF, 2),
    WITHIN(softplus, -85, INF, 2), WITHIN(softplus_to_40, -42, INF, 2), WITHIN(tg_tan, -3000, 3000, 3),
    WITHIN(tg_asin, -1, 1, 3), WITHIN(tg_acos, -1, 1, 3), WITHIN(tg_atan, -INF, INF, 3), WITHIN(tg_sinh, -89, 89, 3),
    WITHIN(tg_cosh, -89, 89, 3), WITHIN(tg_round, -INF, INF, 0), WITHIN(tg_floor, -INF, INF, 0),
    WITHIN(tg_ceil, -INF, INF, 0),
};

/* Every STEP-th float32 number of both signs, equally many of each magnitude. */
enum { STEP = 32749 };

static int64_t numbers(float *narrow, double *wide, double lo, double hi) {
    int64_t n = 0;
    for (uint64_t bits = 1; bits < 1ull << 32; bits += STEP) {
        union {
            uint32_t u;
            float f;
        } x = {.u = (uint32_t)bits};
        if (!(x.f > lo && x.f < hi)) continue;
        if (narrow) narrow[n] = x.f;
        if (wide) wide[n] = x.f;
        n++;
    }
    return n;
}

static void compute(function f, tg_ctx *ctx, tg_dtype dtype, const void *x, void *y, int64_t n) {
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *in = tg_from_host(ctx, dtype, TG_SHAPE(n), x);
    tg_read(f(t, in), y, (size_t)n * (dtype == TG_F64 ? sizeof(double) : sizeof(float)));
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    tg_drop(in);
    tg_tape_free(t);
}

static double last_place(double y) {
    int e;
    frexp(y, &e);
    return ldexp(1, (e < -125 ? -125 : e) - 24);
}

static void check_within(tg_ctx *ctx, tg_ctx *wide, size_t i) {
    int64_t n = numbers(NULL, NULL, within[i].lo, within[i].hi);
    float *x = malloc((size_t)n * sizeof *x), *y = malloc((size_t)n * sizeof *y);
    double *xx = malloc((size_t)n * sizeof *xx), *want = malloc((size_t)n * sizeof *want);
    double worst = 0, at = 0, most = within[i].most;
    ck_assert_int_gt(n, 1000);
    numbers(x, xx, within[i].lo, within[i].hi);
    compute(within[i].f, wide, TG_F64, xx, want, n);
    compute(within[i].f, ctx, TG_F32, x, y, n);
    for (int64_t k = 0; k < n; k++) {
        double off = fabs(y[k] - want[k]) / last_place(want[k]);
        if (y[k] != want[k] && !(off <= worst)) worst = off, at = xx[k];
    }
    if (getenv("TG_TEST_DEVICE") && most > 0) most = 5; /* CUDA guarantees at most 4 for some functions */
    ck_assert_msg(worst <= most, "%s is off by %.2f units at %.9g, %s", within[i].name, worst, at,
                  tg_ctx_isa(ctx));
    free(x), free(y), free(xx), free(want);
}

START_TEST(float32_is_accurate) {
    tg_ctx *wide = open_ctx(TG_F64, NULL);
    int worlds = 0;
    for (int k = 0; k < ISAS; k++) {
        tg_ctx *ctx = open_ctx(TG_F32, isas[k]);
        if (!ctx) continue;
        worlds++;
        for (size_t i = 0; i < sizeof within / sizeof *within; i++) check_within(ctx, wide, i);
        tg_ctx_free(ctx);
    }
    tg_ctx_free(wide);
    ck_assert_int_ge(worlds, 1);
}
END_TEST

/* ---- Integers ---- */

static void ck_integers(tg_tensor *y, tg_dtype dtype, int n, const double *want) {
    double v[8];
    ck_assert_msg(tg_dtype_of(y) == dtype && tg_read_f64(y, v, n) == TG_OK, "%s", tg_ctx_message(tg_ctx_of(y)));
    for (int i = 0; i < n; i++) ck_assert_msg(v[i] == want[i], "%d: %g, expected %g", i, v[i], want[i]);
}

START_TEST(integers_are_clamped_and_moved) {
    const double signed_ones[] = {-3, 0, 4, 100}, small[] = {0, 1, 200, 255};
    const tg_dtype dtypes[] = {TG_I64, TG_I32};
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = test_device(), .threads = 1));
    tg_tape *t = tg_tape_new(ctx);
    for (int i = 0; i < 2; i++) {
        tg_tensor *x = tg_zeros(ctx, dtypes[i], TG_SHAPE(4));
        tg_write_f64(x, signed_ones, 4);
        ck_integers(tg_clamp(t, x, -1, 50), dtypes[i], 4, (const double[]){-1, 0, 4, 50});
        ck_integers(tg_clamp(t, x, -INFINITY, 2), dtypes[i], 4, (const double[]){-3, 0, 2, 2});
        ck_integers(tg_clamp(t, x, 1, INFINITY), dtypes[i], 4, (const double[]){1, 1, 4, 100});
        ck_integers(tg_add_scalar(t, x, -7), dtypes[i], 4, (const double[]){-10, -7, -3, 93});
    }
    tg_tensor *u = tg_zeros(ctx, TG_U8, TG_SHAPE(4)), *most = tg_zeros(ctx, TG_I64, TG_SHAPE());
    tg_write_f64(u, small, 4);
    ck_integers(tg_clamp(t, u, 1, 250), TG_U8, 4, (const double[]){1, 1, 200, 250});
    ck_integers(tg_add_scalar(t, tg_clamp(t, u, 0, 9), 3), TG_U8, 4, (const double[]){3, 4, 12, 12});
    tg_write(most, &(int64_t){INT64_MAX}, sizeof(int64_t)); /* not representable as a double */
    int64_t kept;
    ck_assert(tg_read(tg_clamp(t, most, 0, INFINITY), &kept, sizeof kept) == TG_OK && kept == INT64_MAX);
    ck_assert(!tg_requires_grad(tg_clamp(t, u, 1, 2)) && tg_ctx_status(ctx) == TG_OK);
    tg_add_scalar(t, u, 0.5);
    ck_assert_msg(strstr(tg_ctx_message(ctx), "b is 0.5; it must be an integer from 0 to 255 for dtype u8"), "%s",
                  tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    tg_clamp(t, u, -1, 3);
    ck_assert_msg(strstr(tg_ctx_message(ctx), "the lower bound is -1; it must be an integer"), "%s",
                  tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    tg_clamp(t, u, INFINITY, INFINITY);
    ck_assert(tg_ctx_status(ctx) == TG_ERR_ARGUMENT);
    tg_ctx_free(ctx);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {special_values_are_right, float32_is_accurate, integers_are_clamped_and_moved};
    return tg_check_main("elementwise", tests, sizeof tests / sizeof *tests);
}
