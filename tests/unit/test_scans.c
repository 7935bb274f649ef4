/* Scans, sorting and scattering at difficult arguments: zeros, ties, NaN, several values for one destination; and draws
 * from classes. Expected values are PyTorch's, or follow from the comment next to them. TG_TEST_DEVICE names another
 * device. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/device.h>
#include <tapegrad/ops.h>
#include <tapegrad/backward.h>

#include "check_main.h"
#include "kernels/composed.h"
#include "kernels/cpu/cpu.h"

enum { MOST = 16 };

static const tg_dtype floats[] = {TG_F32, TG_F64, TG_BF16, TG_F16};

static tg_ctx *open_ctx(void) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = getenv("TG_TEST_DEVICE"), .threads = 1, .seed = 7));
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    return ctx;
}

static void close_ctx(tg_ctx *ctx, tg_tape *t) {
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    tg_tape_free(t);
    tg_ctx_free(ctx);
}

static tg_tensor *leaf(tg_ctx *ctx, tg_dtype dtype, tg_shape shape, const double *v) {
    tg_tensor *x = tg_zeros(ctx, dtype, shape);
    tg_write_f64(x, v, tg_numel(x));
    tg_set_requires_grad(x, true);
    return x;
}

/* All numbers of these tests are exact in 16 bits. */
static void check_values(tg_tensor *x, const double *want, const char *what) {
    double got[MOST];
    int64_t n = tg_numel(x);
    ck_assert_int_le(n, MOST);
    ck_assert_msg(tg_read_f64(x, got, n) == TG_OK, "%s: %s", what, tg_ctx_message(tg_ctx_of(x)));
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg(got[i] == want[i] || (isnan(got[i]) && isnan(want[i])), "%s, element %d: %g, expected %g", what,
                      (int)i, got[i], want[i]);
}

/* Gradients are those of the sum of y weighted with 1, 2, 3 ... */
static void check_gradient(tg_tape *t, tg_tensor *x, tg_tensor *y, const double *want, const char *what) {
    tg_dtype dtype = tg_dtype_of(y);
    tg_tensor *weights = tg_reshape(t, tg_arange(t, dtype, 1, (double)tg_numel(y) + 1, 1), tg_shape_of(y));
    tg_backward(t, tg_sum(t, tg_mul(t, y, weights), TG_ALL_DIMS, false));
    check_values(tg_grad_of(x), want, what);
}

/* Gradients of products without a zero, with one, and with two. */
START_TEST(products_with_zeros_have_right_derivatives) {
    const double x[] = {1, 2, 4, 2, 2, 0, 4, 2, 0, 2, 0, 4};
    const double y[] = {1, 2, 8, 16, 2, 0, 0, 0, 0, 0, 0, 0};
    const double g[] = {1 + 2 * 2 + 3 * 8 + 4 * 16, 2 + 3 * 4 + 4 * 8,       3 * 2 + 4 * 4, 4 * 8,
                        5,                          6 * 2 + 7 * 8 + 8 * 16, 0,             0,
                        9 + 10 * 2,                 0,                      0,             0};
    for (int d = 0; d < 4; d++) {
        tg_ctx *ctx = open_ctx();
        tg_tape *t = tg_tape_new(ctx);
        tg_tensor *a = leaf(ctx, floats[d], TG_SHAPE(3, 4), x), *p = tg_cumprod(t, a, 1);
        check_values(p, y, "cumprod");
        check_gradient(t, a, p, g, "gradient of cumprod");
        close_ctx(ctx, t);
    }
}
END_TEST

/* Two rows of numbers that no float32 sum or product can combine exactly: n of each along dim, `other` next to each
 * other. */
static void check_wide(int dim, int64_t n, int64_t other) {
    enum { COUNT = 40 * 40 };
    static double x[2][COUNT], got[COUNT];
    const double from[2][3] = {{0x1p24, 1, 1}, {0x1p100, 0x1p100, 0x1p-100}};
    const double to[2][3] = {{0x1p24, 0x1p24, 0x1p24 + 2}, {0x1p100, INFINITY, 0x1p100}};
    tg_ctx *ctx = open_ctx();
    tg_tape *t = tg_tape_new(ctx);
    tg_shape shape = dim ? TG_SHAPE(other, n) : TG_SHAPE(n, other);
    ck_assert_int_le(n * other, COUNT);
    for (int k = 0; k < 2; k++) {
        for (int64_t i = 0; i < n * other; i++) {
            int64_t at = dim ? i % n : i / other;
            x[k][i] = at < 3 ? from[k][at] : k;
        }
        tg_tensor *a = leaf(ctx, TG_F32, shape, x[k]);
        tg_read_f64(k ? tg_cumprod(t, a, dim) : tg_cumsum(t, a, dim), got, n * other);
        for (int64_t i = 0; i < n * other; i++) {
            int64_t at = dim ? i % n : i / other;
            double want = to[k][at < 3 ? at : 2];
            ck_assert_msg(got[i] == want, "%s along %d of %d, element %d: %g, expected %g", k ? "products" : "sums",
                          dim, (int)n, (int)at, got[i], want);
        }
    }
    close_ctx(ctx, t);
}

START_TEST(floats_run_in_float64) {
    check_wide(1, 3, 1);
    check_wide(1, 40, 2);
    check_wide(0, 40, 40);
    check_wide(0, 3, 5);
}
END_TEST

/* float32 does not hold 2^24 + 1. */
START_TEST(integers_are_not_rounded_before_they_are_added) {
    int32_t x[] = {(1 << 24) + 1, -(1 << 24), 1};
    const int64_t n[] = {3}, stride[] = {1};
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "cpu", .threads = 1));
    for (int composed = 0; composed < 2; composed++) {
        float y[3];
        tg_array to = {y, n, stride, 3, 1, TG_F32, true}, from = {x, n, stride, 3, 1, TG_I32, true};
        tg_status s = (composed ? tg_composed_scan : tg_ctx_ops(ctx)->scan)(ctx, TG_SUM, to, from, false, false);
        ck_assert_int_eq(s, TG_OK);
        ck_assert_msg(y[0] == 0x1p24f && y[1] == 1 && y[2] == 2, "%d: %g, %g, %g", composed, y[0], y[1], y[2]);
    }
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(scans_run_in_both_directions) {
    const double x[] = {1, 2, 3, 4, 5, 6}, across[] = {1, 3, 6, 4, 9, 15}, down[] = {1, 2, 3, 5, 7, 9};
    const double g[] = {6, 5, 3, 15, 11, 6}, g_down[] = {5, 7, 9, 4, 5, 6};
    for (int d = 0; d < 4; d++) {
        tg_ctx *ctx = open_ctx();
        tg_tape *t = tg_tape_new(ctx);
        tg_tensor *a = leaf(ctx, floats[d], TG_SHAPE(2, 3), x), *b = leaf(ctx, floats[d], TG_SHAPE(2, 3), x);
        tg_tensor *y = tg_cumsum(t, a, -1), *z = tg_cumsum(t, b, 0);
        check_values(y, across, "cumsum");
        check_values(z, down, "cumsum down");
        check_gradient(t, a, y, g, "gradient of cumsum");
        check_gradient(t, b, z, g_down, "gradient of cumsum down");
        close_ctx(ctx, t);
    }
}
END_TEST

/* Equal elements keep their order in both directions, NaN is the greatest, and -0 equals 0. */
START_TEST(order_of_ties_and_nan) {
    const double x[] = {2, NAN, 1, 2, -INFINITY, NAN, 1, INFINITY};
    const double up[] = {-INFINITY, 1, 1, 2, 2, INFINITY, NAN, NAN}, up_at[] = {4, 2, 6, 0, 3, 7, 1, 5};
    const double down[] = {NAN, NAN, INFINITY, 2, 2, 1, 1, -INFINITY}, down_at[] = {1, 5, 7, 0, 3, 2, 6, 4};
    const double g[] = {4, 7, 2, 5, 1, 8, 3, 6}, zeros[] = {0, -0.0, 0}, zeros_at[] = {0, 1, 2};
    for (int d = 0; d < 4; d++) {
        tg_ctx *ctx = open_ctx();
        tg_tape *t = tg_tape_new(ctx);
        tg_tensor *a = leaf(ctx, floats[d], TG_SHAPE(8), x), *at;
        check_values(tg_sort(t, a, 0, true, &at), down, "falling");
        check_values(at, down_at, "where, falling");
        check_values(tg_topk(t, a, 3, 0, true, &at), down, "the greatest");
        check_values(at, down_at, "where the greatest");
        check_values(tg_topk(t, a, 5, 0, false, &at), up, "the smallest");
        check_values(at, up_at, "where the smallest");
        tg_tensor *y = tg_sort(t, a, 0, false, &at);
        check_values(y, up, "rising");
        check_values(at, up_at, "where, rising");
        check_gradient(t, a, y, g, "gradient of sort");
        tg_sort(t, leaf(ctx, floats[d], TG_SHAPE(3), zeros), 0, false, &at);
        check_values(at, zeros_at, "zeros");
        close_ctx(ctx, t);
    }
}
END_TEST

/* The median of four is the lower of the middle two; a NaN is the result, the first of several. */
START_TEST(medians) {
    const double x[] = {3, 1, 4, 2, 1, NAN, 0, NAN, 5, 5, 5, 5}, y[] = {2, NAN, 5}, at[] = {3, 1, 1};
    const double g[] = {0, 0, 0, 1, 0, 2, 0, 0, 0, 3, 0, 0};
    for (int d = 0; d < 4; d++) {
        tg_ctx *ctx = open_ctx();
        tg_tape *t = tg_tape_new(ctx);
        tg_tensor *a = leaf(ctx, floats[d], TG_SHAPE(3, 4), x), *where, *m = tg_median(t, a, 1, false, &where);
        check_values(m, y, "median");
        check_values(where, at, "where the median is");
        ck_assert_int_eq(tg_ndim(m), 1);
        ck_assert_int_eq(tg_ndim(tg_median(t, a, 1, true, NULL)), 2);
        check_gradient(t, a, m, g, "gradient of median");
        close_ctx(ctx, t);
    }
}
END_TEST

/* The last value written remains, and gets the gradient; 40 positions are sorted, while a few are searched. */
START_TEST(the_last_one_lands) {
    const double x[] = {1, 2, 3, 4}, src[] = {10, 20, 30, 40, 50}, y[] = {40, 2, 3, 50};
    const double gx[] = {0, 2, 3, 0}, gs[] = {0, 0, 0, 1, 4};
    const int64_t index[] = {0, 3, 3, 0, 3};
    for (int d = 0; d < 4; d++) {
        tg_ctx *ctx = open_ctx();
        tg_tape *t = tg_tape_new(ctx);
        tg_tensor *a = leaf(ctx, floats[d], TG_SHAPE(4), x), *b = leaf(ctx, floats[d], TG_SHAPE(5), src);
        tg_tensor *z = tg_scatter(t, a, 0, tg_from_host(ctx, TG_I64, TG_SHAPE(5), index), b);
        check_values(z, y, "scatter");
        check_gradient(t, a, z, gx, "gradient by x");
        check_values(tg_grad_of(b), gs, "gradient by src");
        tg_tensor *many = tg_arange(t, TG_I64, 0, 40, 1), *last = tg_full(t, TG_I64, TG_SHAPE(2), -1);
        tg_tensor *odd = tg_fmod(t, tg_arange(t, TG_F32, 0, 40, 1), tg_full(t, TG_F32, TG_SHAPE(), 2));
        tg_tensor *both = tg_scatter(t, last, 0, tg_cast(t, odd, TG_I64), many);
        check_values(both, (const double[]){38, 39}, "scatter of many");
        close_ctx(ctx, t);
    }
}
END_TEST

/* The result is exactly one-hot, while the gradient is that of the soft result of the same draws. */
START_TEST(draws_from_classes) {
    const double x[] = {0, 1, -1, 0.5, 2, 0, 0, 0, 0, -3, 3, 1};
    double hot[12], soft[12], g_hot[12], g_soft[12];
    for (int hard = 0; hard < 2; hard++) {
        tg_ctx *ctx = open_ctx();
        tg_tape *t = tg_tape_new(ctx);
        tg_tensor *a = leaf(ctx, TG_F64, TG_SHAPE(3, 4), x), *y = tg_gumbel_softmax(t, a, 0.7, hard, 1);
        tg_tensor *weights = tg_reshape(t, tg_arange(t, TG_F64, 1, 13, 1), TG_SHAPE(3, 4));
        tg_read_f64(y, hard ? hot : soft, 12);
        tg_backward(t, tg_sum(t, tg_mul(t, y, weights), TG_ALL_DIMS, false));
        tg_read_f64(tg_grad_of(a), hard ? g_hot : g_soft, 12);
        close_ctx(ctx, t);
    }
    for (int r = 0; r < 3; r++) {
        int best = 0;
        for (int j = 1; j < 4; j++) best = soft[4 * r + j] > soft[4 * r + best] ? j : best;
        for (int j = 0; j < 4; j++) ck_assert_double_eq(hot[4 * r + j], j == best);
    }
    for (int i = 0; i < 12; i++) ck_assert_double_eq_tol(g_hot[i], g_soft[i], 1e-12);
}
END_TEST

/* Mean and variance of 200,000 elements are within six standard deviations of Euler's constant and pi^2 / 6. */
START_TEST(noise_is_gumbels) {
    enum { N = 200000 };
    double *v = malloc(sizeof *v * N), sum = 0, squares = 0;
    tg_ctx *ctx = open_ctx();
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = tg_zeros(ctx, TG_F32, TG_SHAPE(N)), *g = tg_gumbel(t, x);
    ck_assert(!tg_requires_grad(g));
    ck_assert_int_eq(tg_read_f64(g, v, N), TG_OK);
    for (int i = 0; i < N; i++) {
        ck_assert(isfinite(v[i]));
        sum += v[i];
        squares += v[i] * v[i];
    }
    double mean = sum / N, variance = squares / N - mean * mean;
    ck_assert_double_eq_tol(mean, 0.5772156649, 6 * 1.2825 / sqrt(N));
    ck_assert_double_eq_tol(variance, 1.6449340668, 6 * 3.45 / sqrt(N));
    free(v);
    close_ctx(ctx, t);
}
END_TEST

/* ---- Many values for one destination ---- */

enum { MANY = 3072 }; /* exact in 16 bits, unlike the sum of as many ones that is rounded after each of them */

/* Ops that read an element of x MANY times. */
static tg_tensor *read_gather(tg_tape *t, tg_tensor *x, tg_tensor *zeros) { return tg_gather(t, x, 0, zeros); }
static tg_tensor *read_slices(tg_tape *t, tg_tensor *x, tg_tensor *zeros) { return tg_index_select(t, x, 0, zeros); }
static tg_tensor *read_index(tg_tape *t, tg_tensor *x, tg_tensor *zeros) {
    return tg_index(t, x, TG_DIMS(0), &zeros, 1);
}
static tg_tensor *read_rows(tg_tape *t, tg_tensor *x, tg_tensor *zeros) {
    return tg_embedding(t, tg_reshape(t, x, TG_SHAPE(1, 1)), zeros);
}
static tg_tensor *read_nearest(tg_tape *t, tg_tensor *x, tg_tensor *zeros) {
    (void)zeros;
    return tg_upsample_nearest(t, tg_reshape(t, x, TG_SHAPE(1, 1, 1)), TG_SHAPE(MANY), NULL);
}

START_TEST(sums_of_many_are_rounded_once) {
    static tg_tensor *(*const reads[])(tg_tape *, tg_tensor *, tg_tensor *) = {read_gather, read_slices, read_index,
                                                                               read_rows, read_nearest};
    const double none = 0, all = MANY, minus = -MANY;
    for (int d = 0; d < 4; d++) {
        tg_ctx *ctx = open_ctx();
        tg_tape *t = tg_tape_new(ctx);
        tg_tensor *to = leaf(ctx, floats[d], TG_SHAPE(1), &none);
        tg_tensor *zeros = tg_full(t, TG_I64, TG_SHAPE(MANY), 0), *ones = tg_full(t, floats[d], TG_SHAPE(MANY), 1);
        check_values(tg_scatter_add(t, to, 0, zeros, ones), &all, "scatter_add");
        check_values(tg_index_put(t, to, TG_DIMS(0), ones, &zeros, 1, true), &all, "index_put");
        for (int k = 0; k < 5; k++) {
            tg_tensor *x = leaf(ctx, floats[d], TG_SHAPE(1), &none), *y = leaf(ctx, floats[d], TG_SHAPE(1), &none);
            tg_backward(t, tg_sum(t, reads[k](t, x, zeros), TG_ALL_DIMS, false));
            check_values(tg_grad_of(x), &all, "the gradient of a leaf");
            tg_backward(t, tg_sum(t, reads[k](t, tg_neg(t, y), zeros), TG_ALL_DIMS, false));
            check_values(tg_grad_of(y), &minus, "the gradient of a result");
        }
        close_ctx(ctx, t);
    }
}
END_TEST

START_TEST(devices_that_do_not_sort_say_so) {
    tg_device_ops ops = tg_cpu_device;
    ops.sort = NULL;
    tg_ctx *ctx = tg_ctx_new_on(&ops, TG_CONFIG(.threads = 1));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = tg_zeros(ctx, TG_F32, TG_SHAPE(3));
    for (int k = 0; k < 3; k++) {
        tg_tensor *y = k == 0   ? tg_sort(t, x, 0, false, NULL)
                       : k == 1 ? tg_topk(t, x, 1, 0, true, NULL)
                                : tg_median(t, x, 0, false, NULL);
        (void)y;
        ck_assert_int_eq(tg_ctx_status(ctx), TG_ERR_UNSUPPORTED);
        ck_assert_msg(strstr(tg_ctx_message(ctx), "device cpu has no sort"), "%s", tg_ctx_message(ctx));
        tg_ctx_clear(ctx);
    }
    close_ctx(ctx, t);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {products_with_zeros_have_right_derivatives,
                                  floats_run_in_float64,
                                  integers_are_not_rounded_before_they_are_added,
                                  scans_run_in_both_directions,
                                  order_of_ties_and_nan,
                                  medians,
                                  the_last_one_lands,
                                  draws_from_classes,
                                  noise_is_gumbels,
                                  sums_of_many_are_rounded_once,
                                  devices_that_do_not_sort_say_so};
    return tg_check_main("scans", tests, sizeof tests / sizeof *tests);
}
