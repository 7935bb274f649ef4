/* Reductions and losses at difficult arguments: zeros, ties, infinities, huge values, and nothing to reduce.
 * TG_TEST_DEVICE names another device. */
#include <math.h>

#include <tapegrad/derivatives.h>
#include <tapegrad/gradcheck.h>
#include <tapegrad/ops.h>
#include <tapegrad/backward.h>

#include "check_main.h"

#define INF INFINITY
#define LN2 0.69314718055994531

typedef tg_tensor *(*function)(tg_tape *t, tg_tensor *x);
typedef tg_tensor *(*function2)(tg_tape *t, tg_tensor *x, tg_tensor *y);

static tg_ctx *open_ctx(tg_dtype dtype) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = getenv("TG_TEST_DEVICE"), .dtype = dtype, .threads = 1));
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    return ctx;
}

static tg_tensor *leaf(tg_ctx *ctx, tg_dtype dtype, tg_shape shape, const double *v) {
    tg_tensor *x = tg_zeros(ctx, dtype, shape);
    tg_write_f64(x, v, tg_numel(x));
    tg_set_requires_grad(x, true);
    return x;
}

static bool same(double got, double want, double tol) {
    return isnan(want) ? isnan(got) : got == want || fabs(got - want) <= tol * fabs(want);
}

static void check_values(tg_tensor *x, const double *want, const char *what, double tol) {
    double got[16];
    int64_t n = tg_numel(x);
    ck_assert_int_le(n, 16);
    tg_read_f64(x, got, n);
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg(same(got[i], want[i], tol), "%s, element %d: %.17g, expected %.17g", what, (int)i, got[i],
                      want[i]);
}

/* ---- One vector of four ---- */

#define AS(name, expr) \
    static tg_tensor *name(tg_tape *t, tg_tensor *x) { return expr; }
AS(prod, tg_prod(t, x, TG_ALL_DIMS, false))
AS(norm_0, tg_norm(t, x, 0, TG_ALL_DIMS, false))
AS(norm_half, tg_norm(t, x, 0.5, TG_ALL_DIMS, false))
AS(norm_below_0, tg_norm(t, x, -1, TG_ALL_DIMS, false))
AS(norm_1, tg_norm(t, x, 1, TG_ALL_DIMS, false))
AS(norm_2, tg_norm(t, x, 2, TG_ALL_DIMS, false))
AS(norm_3, tg_norm(t, x, 3, TG_ALL_DIMS, false))
AS(norm_max, tg_norm(t, x, INFINITY, TG_ALL_DIMS, false))
AS(norm_min, tg_norm(t, x, -INFINITY, TG_ALL_DIMS, false))
AS(greatest, tg_max(t, x, TG_ALL_DIMS, false))
AS(smallest, tg_min(t, x, TG_ALL_DIMS, false))
AS(deviation, tg_std(t, x, TG_ALL_DIMS, 0, false))
AS(log_sum, tg_logsumexp(t, x, TG_ALL_DIMS, false))
AS(sample_deviation, tg_std(t, x, TG_ALL_DIMS, 1, false))

/* f, x, f(x), the gradient of f: values of PyTorch 2 in float64, with the digits of an exact value. */
static const struct {
    const char *name;
    function f;
    double x[4], y, slope[4];
} row[] = {
#define ROW(f, ...) {#f, f, __VA_ARGS__}
    ROW(prod, {1, 2, 3, 4}, 24, {24, 12, 8, 6}),
    ROW(prod, {2, 0, 3, -4}, 0, {0, -24, 0, 0}),
    ROW(prod, {2, 0, 3, 0}, 0, {0, 0, 0, 0}),
    ROW(prod, {0, 0, 0, 0}, 0, {0, 0, 0, 0}),
    ROW(prod, {-0.0, 2, 3, 4}, 0, {24, 0, 0, 0}),
    ROW(prod, {0, INF, 1, 1}, NAN, {INF, 0, NAN, NAN}),
    ROW(prod, {0, NAN, 2, 1}, NAN, {NAN, 0, NAN, NAN}),
    ROW(prod, {0, NAN, 0, 1}, NAN, {NAN, 0, NAN, NAN}),
    ROW(greatest, {1, 2, 2, -INF}, 2, {0, 0.5, 0.5, 0}),
    ROW(greatest, {1, NAN, 0, INF}, NAN, {NAN, NAN, NAN, NAN}),
    ROW(smallest, {1, 2, 1, INF}, 1, {0.5, 0, 0.5, 0}),
    ROW(smallest, {1, NAN, 0, NAN}, NAN, {NAN, NAN, NAN, NAN}),
    ROW(norm_0, {0, 2, -0.0, -4}, 2, {0, 0, 0, 0}),
    ROW(norm_half, {1, 0, -4, 9}, 36, {6, 0, -3, 2}),
    ROW(norm_half, {1e-30, 0, 1e10, 0}, 1e10, {1e20, 0, 1, 0}),
    ROW(norm_below_0, {1, -2, 4, -4}, 0.5, {0.25, -0.0625, 0.015625, -0.015625}),
    ROW(norm_below_0, {1, 0, 2, -4}, 0, {0, 0, 0, 0}),
    ROW(norm_below_0, {INF, 1, 1, -INF}, 0.5, {0, 0.25, 0.25, 0}),
    ROW(norm_below_0, {1e-16, 1, -1, 100}, 1e-16, {1, 1e-32, -1e-32, 1e-36}),
    ROW(norm_below_0, {NAN, 1, 2, 3}, NAN, {NAN, NAN, NAN, NAN}),
    ROW(norm_1, {0, 2, -3, 4}, 9, {0, 1, -1, 1}),
    ROW(norm_1, {0, 0, 0, 0}, 0, {0, 0, 0, 0}),
    ROW(norm_2, {0, 3, -4, 0}, 5, {0, 0.6, -0.8, 0}),
    ROW(norm_2, {0, 0, 0, 0}, 0, {0, 0, 0, 0}),
    ROW(norm_2, {INF, 1, 0, 0}, INF, {NAN, 0, 0, 0}),
    ROW(norm_3, {0, 3, -4, 5}, 6, {0, 0.25, -4.0 / 9, 25.0 / 36}),
    ROW(norm_3, {0, 0, 0, 0}, 0, {0, 0, 0, 0}),
    ROW(norm_max, {1, -3, 2, 3}, 3, {0, -0.5, 0, 0.5}),
    ROW(norm_max, {0, 0, 0, 0}, 0, {0, 0, 0, 0}),
    ROW(norm_max, {1, -INF, 2, 3}, INF, {0, -1, 0, 0}),
    ROW(norm_max, {1, NAN, 0, -3}, NAN, {NAN, NAN, NAN, NAN}),
    ROW(norm_min, {-2, -3, 2, 3}, 2, {-0.5, 0, 0.5, 0}),
    ROW(log_sum, {5000, 5000, 5000, 5000}, 5000 + 2 * LN2, {0.25, 0.25, 0.25, 0.25}),
    ROW(log_sum, {-7e4, -INF, -7e4, -7e8}, -7e4 + LN2, {0.5, 0, 0.5, 0}),
    ROW(log_sum, {1, NAN, 0, 2}, NAN, {NAN, NAN, NAN, NAN}),
    ROW(deviation, {1, 3, 1, 3}, 1, {-0.25, 0.25, -0.25, 0.25}),
    ROW(deviation, {7, 7, 7, 7}, 0, {0, 0, 0, 0}),
    ROW(deviation, {1e30, 3e30, 1e30, 3e30}, 1e30, {-0.25, 0.25, -0.25, 0.25}),
    ROW(deviation, {1e-30, 3e-30, 1e-30, 3e-30}, 1e-30, {-0.25, 0.25, -0.25, 0.25}),
    ROW(sample_deviation, {0, 0, 6, 6}, 3.4641016151377544,
        {-0.28867513459481292, -0.28867513459481292, 0.28867513459481292, 0.28867513459481292}),
};

/* Compares the gradient of backward, of recorded derivatives, and of forward mode. */
static void check_row(tg_ctx *ctx, tg_dtype dtype, size_t i, double tol) {
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = leaf(ctx, dtype, TG_SHAPE(4), row[i].x), *g, *recorded, *y = row[i].f(t, x);
    check_values(y, &row[i].y, row[i].name, tol);
    tg_grad(t, &y, 1, &x, 1, &g, TG_GRAD(.retain = true));
    check_values(g, row[i].slope, row[i].name, tol);
    tg_grad(t, &y, 1, &x, 1, &recorded, TG_GRAD(.create_graph = true, .allow_unused = true));
    bool beside_infinity = false, beside_nan = false;
    for (int k = 0; k < 4; k++) beside_infinity |= isinf(row[i].x[k]), beside_nan |= isnan(row[i].x[k]);
    if (!beside_infinity) check_values(recorded, row[i].slope, row[i].name, tol);
    for (int k = 0; k < 4 && !beside_infinity; k++) {
        double one[4] = {0};
        one[k] = 1;
        tg_tensor *v = leaf(ctx, dtype, TG_SHAPE(4), one), *dy;
        tg_jvp(t, &y, 1, &x, 1, &v, &dy);
        if (!beside_nan || isnan(row[i].slope[k])) /* else a tangent of 0 is multiplied by NaN */
            check_values(dy, &row[i].slope[k], row[i].name, tol);
        tg_drop(v);
    }
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s: %s", row[i].name, tg_ctx_message(ctx));
    tg_tape_free(t);
    tg_drop(x);
}

START_TEST(special_values_are_right) {
    const tg_dtype dtype[] = {TG_F64, TG_F32};
    const double tol[] = {1e-14, 1e-6};
    for (int d = 0; d < 2; d++) {
        tg_ctx *ctx = open_ctx(dtype[d]);
        for (size_t i = 0; i < sizeof row / sizeof *row; i++) check_row(ctx, dtype[d], i, tol[d]);
        tg_ctx_free(ctx);
    }
}
END_TEST

/* The derivatives of a log-sum-exp do not come from its rounded result, which a 16-bit dtype rounds to integers
 * here. */
START_TEST(log_sums_far_from_0) {
    const tg_dtype dtype[] = {TG_F64, TG_F32, TG_BF16, TG_F16};
    const double v[] = {2000, 2000, 2000, 2000}, quarter[] = {0.25, 0.25, 0.25, 0.25};
    for (int d = 0; d < 4; d++) {
        tg_ctx *ctx = open_ctx(dtype[d]);
        tg_tape *t = tg_tape_new(ctx);
        tg_tensor *x = leaf(ctx, dtype[d], TG_SHAPE(4), v), *y = log_sum(t, x), *g, *recorded;
        tg_grad(t, &y, 1, &x, 1, &g, TG_GRAD(.retain = true));
        check_values(g, quarter, tg_dtype_name(dtype[d]), 0);
        tg_grad(t, &y, 1, &x, 1, &recorded, TG_GRAD(.create_graph = true));
        check_values(recorded, quarter, tg_dtype_name(dtype[d]), 0);
        ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
        tg_tape_free(t);
        tg_drop(x);
        tg_ctx_free(ctx);
    }
}
END_TEST

/* ---- Equal elements ---- */

enum { MOST_EQUAL = 4097 };

/* However their mean is rounded, no element differs from it. */
static void check_equal(tg_ctx *ctx, tg_dtype dtype, double value, int64_t n) {
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = tg_full(t, dtype, TG_SHAPE(2, n), value), *cube = tg_reshape(t, x, TG_SHAPE(2, 1, n));
    tg_tensor *tall = tg_full(t, dtype, TG_SHAPE(n, 2), value);
    tg_tensor *y[] = {tg_var(t, x, TG_DIMS(1), 0, false), tg_std(t, x, TG_DIMS(1), 0, false),
                      tg_var(t, tall, TG_DIMS(0), 1, false), tg_std(t, tall, TG_DIMS(0), 1, false),
                      tg_layer_norm(t, x, NULL, NULL, 1e-5), tg_group_norm(t, cube, 1, NULL, NULL, 1e-5),
                      tg_batch_norm(t, tall, NULL, NULL, NULL, NULL, 0.1, 1e-5)};
    for (int i = 0; i < (int)(sizeof y / sizeof *y); i++) {
        double got = tg_item(tg_max(t, tg_abs(t, y[i]), TG_ALL_DIMS, false));
        ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
        ck_assert_msg(got == 0, "function %d of %d times %g in %s is %g", i, (int)n, value, tg_dtype_name(dtype), got);
    }
    tg_tape_free(t);
}

START_TEST(equal_elements_are_their_mean) {
    const double value[] = {0.1, -1e5 / 3, 7e-9};
    const int64_t size[] = {3, 49, 1000, MOST_EQUAL};
    for (int d = 0; d < 2; d++) {
        tg_ctx *ctx = open_ctx(d ? TG_F32 : TG_F64);
        for (int i = 0; i < 12; i++) check_equal(ctx, d ? TG_F32 : TG_F64, value[i % 3], size[i / 3]);
        tg_ctx_free(ctx);
    }
}
END_TEST

/* ---- Extrema by index ---- */

/* 3000 equal elements go to one place. Each gets 1/3000 of the gradient, in every dtype. The elements may be so large
 * that their sum is infinite. */
START_TEST(equal_elements_share_the_gradient_of_their_extremum) {
    enum { N = 3000 };
    const tg_dtype dtype[] = {TG_F64, TG_F32, TG_BF16, TG_F16};
    const double greatest[] = {1.7976931348623157e308, 3.4028234663852886e38, 3.3895313892515355e38, 65504};
    static double v[N], got[N];
    for (int d = 0; d < 16; d++) {
        for (int i = 0; i < N; i++) v[i] = d < 8 ? 0.5 : -greatest[d / 2 % 4];
        tg_ctx *ctx = open_ctx(TG_F32);
        tg_tape *t = tg_tape_new(ctx);
        tg_tensor *x = tg_zeros(ctx, dtype[d / 2 % 4], TG_SHAPE(1)), *src = leaf(ctx, dtype[d / 2 % 4], TG_SHAPE(N), v);
        tg_tensor *index = tg_full(t, TG_I64, TG_SHAPE(N), 0);
        tg_tensor *y = (d % 2 ? tg_scatter_max : tg_scatter_min)(t, x, 0, index, src, false);
        check_values(y, v, "extremum by index", 0);
        tg_backward(t, tg_sum(t, y, TG_ALL_DIMS, false));
        tg_read_f64(tg_grad_of(src), got, N);
        ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
        for (int i = 0; i < N; i++)
            ck_assert_msg(same(got[i], 1. / N, 0x1p-8), "%s: %g", tg_dtype_name(dtype[d / 2 % 4]), got[i]);
        tg_tape_free(t);
        tg_ctx_free(ctx);
    }
}
END_TEST

/* ---- Second derivatives of a product with zeros ---- */

static tg_status product(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)n_in, (void)n_out;
    out[0] = tg_prod(t, in[0], TG_DIMS(1), false);
    return TG_OK;
}

static tg_status product_gradient(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)n_in, (void)n_out;
    bool grad = tg_tape_set_grad_mode(t, true);
    tg_tensor *p = tg_prod(t, in[0], TG_DIMS(1), false);
    tg_tensor *y = tg_sum(t, tg_square(t, tg_add_scalar(t, p, 1)), TG_ALL_DIMS, false);
    tg_status s = tg_grad(t, &y, 1, in, 1, out, TG_GRAD(.create_graph = true));
    tg_tape_set_grad_mode(t, grad);
    return s;
}

START_TEST(products_with_zeros_have_right_derivatives) {
    const double v[] = {1.5, -2, 0.5, 0, 3, 2, 0, 0, -1, 0, 0, 0};
    tg_ctx *ctx = open_ctx(TG_F64);
    const tg_fn f[] = {product, product_gradient};
    for (int i = 0; i < 2; i++) {
        tg_tape *t = tg_tape_new(ctx);
        tg_tensor *x = leaf(ctx, TG_F64, TG_SHAPE(4, 3), v);
        tg_gradcheck_info r = TG_GRADCHECK_INFO();
        tg_status s = tg_gradcheck(t, f[i], NULL, &x, 1, 1, &r, TG_GRADCHECK(.no_extras = true, .name = "prod"));
        ck_assert_msg(s == TG_OK, "%s", tg_ctx_message(ctx));
        tg_tape_free(t);
        tg_drop(x);
    }
    tg_ctx_free(ctx);
}
END_TEST

/* Without dims to reduce, the product is x. Its derivatives are recorded also if x has as many dims as a tensor can. */
START_TEST(products_over_no_dims_have_derivatives) {
    const double v[] = {2, -3}, first[] = {4, -6}, second[] = {2, 2};
    tg_ctx *ctx = open_ctx(TG_F64);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = leaf(ctx, TG_F64, TG_SHAPE(1, 1, 1, 1, 1, 1, 1, 2), v), *g, *gg;
    tg_tensor *y = tg_sum(t, tg_square(t, tg_prod(t, x, (tg_dims){.n = 0}, false)), TG_ALL_DIMS, false);
    tg_grad(t, &y, 1, &x, 1, &g, TG_GRAD(.create_graph = true));
    tg_tensor *sum = tg_sum(t, g, TG_ALL_DIMS, false);
    tg_grad(t, &sum, 1, &x, 1, &gg, NULL);
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    check_values(g, first, "gradient", 0);
    check_values(gg, second, "second derivative", 0);
    tg_tape_free(t);
    tg_drop(x);
    tg_ctx_free(ctx);
}
END_TEST

/* ---- Pairs of numbers ---- */

#define AS2(name, expr) \
    static tg_tensor *name(tg_tape *t, tg_tensor *x, tg_tensor *y) { return expr; }
AS2(l1, tg_l1(t, x, y, NULL))
AS2(smooth, tg_smooth_l1(t, x, y, 2, NULL))
AS2(huber, tg_huber(t, x, y, 2, NULL))
AS2(bce, tg_bce_with_logits(t, x, y, NULL, NULL, NULL))
AS2(kl, tg_kl_div(t, x, y, NULL))
AS2(kl_log, tg_kl_div(t, x, y, TG_LOSS(.log_target = true)))
AS2(cosine, tg_cosine_similarity(t, tg_reshape(t, x, TG_SHAPE(1)), tg_reshape(t, y, TG_SHAPE(1)), 0, 1e-8))

#define E4 54.598150033144239
static const struct {
    const char *name;
    function2 f;
    double x, y, value, by_x, by_y;
} pair[] = {
#define PAIR(f, ...) {#f, f, __VA_ARGS__}
    PAIR(l1, 3, 3, 0, 0, 0), PAIR(l1, 1, 3, 2, -1, 1), PAIR(l1, INF, 3, INF, 1, -1), PAIR(l1, NAN, 3, NAN, 0, 0),
    PAIR(smooth, 1, 1, 0, 0, 0), PAIR(smooth, 2, 1, 0.25, 0.5, -0.5), PAIR(smooth, 5, 1, 3, 1, -1),
    PAIR(smooth, 3, 1, 1, 1, -1), PAIR(smooth, -INF, 1, INF, -1, 1),
    PAIR(huber, 2, 1, 0.5, 1, -1), PAIR(huber, 1, 5, 6, -2, 2), PAIR(huber, NAN, 1, NAN, NAN, NAN),
    PAIR(bce, 0, 1, LN2, -0.5, 0), PAIR(bce, 0, 0, LN2, 0.5, 0),
    PAIR(bce, 100, 1, 3.7200759760208361e-44, -3.7200759760208361e-44, -100),
    PAIR(bce, -30, 0, 9.3576229688397368e-14, 9.3576229688392989e-14, 30), PAIR(bce, 300, 0, 300, 1, -300),
    PAIR(bce, -300, 1, 300, -1, 300), PAIR(bce, NAN, 1, NAN, NAN, NAN),
    PAIR(kl, -1, 1, 1, -1, 2), PAIR(kl, -1, 0, 0, 0, 0), PAIR(kl, -INF, 0, 0, 0, 0), PAIR(kl, -INF, 1, INF, -1, INF),
    PAIR(kl_log, -1, 0, 1, -1, 2), PAIR(kl_log, -1, -INF, 0, 0, 0), PAIR(kl_log, -INF, -INF, 0, 0, 0),
    PAIR(kl_log, 1, 4, 3 * E4, -E4, 4 * E4),
    PAIR(cosine, 2, 3, 1, 0, 0), PAIR(cosine, -2, 3, -1, 0, 0), PAIR(cosine, 0, 3, 0, 1e8, 0),
    PAIR(cosine, 0, 0, 0, 0, 0),
};

static void check_pair(tg_ctx *ctx, tg_dtype dtype, size_t i, double tol) {
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *in[] = {leaf(ctx, dtype, TG_SHAPE(), &pair[i].x), leaf(ctx, dtype, TG_SHAPE(), &pair[i].y)}, *g[2];
    tg_tensor *loss = tg_reshape(t, pair[i].f(t, in[0], in[1]), TG_SHAPE());
    bool finite = isfinite(pair[i].x) && isfinite(pair[i].y);
    for (int recorded = 0; recorded <= finite; recorded++) {
        const tg_grad_opts how = {.size = sizeof how, .retain = true, .create_graph = recorded, .allow_unused = true};
        tg_grad(t, &loss, 1, in, 2, g, &how);
        check_values(loss, &pair[i].value, pair[i].name, tol);
        check_values(g[0], &pair[i].by_x, pair[i].name, tol);
        check_values(g[1], &pair[i].by_y, pair[i].name, tol);
    }
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s: %s", pair[i].name, tg_ctx_message(ctx));
    tg_tape_free(t);
    tg_drop(in[0]);
    tg_drop(in[1]);
}

START_TEST(special_pairs_are_right) {
    tg_ctx *ctx = open_ctx(TG_F64);
    for (size_t i = 0; i < sizeof pair / sizeof *pair; i++) check_pair(ctx, TG_F64, i, 1e-14);
    tg_ctx_free(ctx);
}
END_TEST

/* The parabola of smooth_l1 may be narrower than any number of the dtype. */
START_TEST(narrow_parabolas_are_lines) {
    static const tg_dtype dtypes[] = {TG_F32, TG_F64, TG_BF16, TG_F16};
    const double beta[] = {1e-310, 1e-46, 1e-40, 2e-38}, one = 1, none = 0, minus = -1;
    for (int i = 0; i < 16; i++) {
        tg_dtype d = dtypes[i / 4];
        tg_ctx *ctx = open_ctx(d);
        tg_tape *t = tg_tape_new(ctx);
        tg_tensor *x = leaf(ctx, d, TG_SHAPE(), &one), *y = leaf(ctx, d, TG_SHAPE(), &none);
        tg_tensor *loss = tg_smooth_l1(t, x, y, beta[i % 4], NULL);
        tg_backward(t, loss);
        check_values(loss, &one, "smooth_l1", 1e-6);
        check_values(tg_grad_of(x), &one, "smooth_l1 by x", 1e-6);
        check_values(tg_grad_of(y), &minus, "smooth_l1 by y", 1e-6);
        tg_tape_free(t);
        tg_drop(x);
        tg_drop(y);
        tg_ctx_free(ctx);
    }
}
END_TEST

/* Compares smooth_l1 of d and 0 with the definition. */
static void check_parabola(tg_ctx *ctx, double d, double beta, bool recorded) {
    const double zero = 0, slope = d < beta ? d / beta : 1, minus = -slope;
    const double value = d < beta ? 0.5 * d * (d / beta) : d - 0.5 * beta;
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *in[] = {leaf(ctx, TG_F32, TG_SHAPE(), &d), leaf(ctx, TG_F32, TG_SHAPE(), &zero)}, *g[2];
    tg_tensor *loss = tg_smooth_l1(t, in[0], in[1], beta, NULL);
    tg_grad(t, &loss, 1, in, 2, g, TG_GRAD(.create_graph = recorded));
    char what[80];
    snprintf(what, sizeof what, "smooth_l1(%g, 0, %g)%s", d, beta, recorded ? ", recorded" : "");
    check_values(loss, &value, what, 1e-6);
    check_values(g[0], &slope, what, 1e-6);
    check_values(g[1], &minus, what, 1e-6);
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    tg_tape_free(t);
    tg_drop(in[0]);
    tg_drop(in[1]);
}

/* The squares of the differences are outside the range of float32, but the losses are inside. */
START_TEST(parabolas_of_any_width_keep_their_digits) {
    static const double beta[] = {4e-37, 3e-30, 7e-20, 0.3, 5e20, 2e35}, of[] = {0.3, 0.9, 1.1, 50};
    tg_ctx *ctx = open_ctx(TG_F32);
    for (int i = 0; i < 6; i++)
        for (int recorded = 0; recorded < 2; recorded++) {
            for (int k = 0; k < 4; k++) check_parabola(ctx, (double)(float)(of[k] * beta[i]), beta[i], recorded);
            check_parabola(ctx, 1.5, beta[i], recorded);
            check_parabola(ctx, 1e15F, beta[i], recorded);
        }
    tg_ctx_free(ctx);
}
END_TEST

/* Small losses keep their digits in float32. */
START_TEST(far_logits_lose_nothing) {
    tg_ctx *ctx = open_ctx(TG_F32);
    tg_tape *t = tg_tape_new(ctx);
    const double x[] = {-20, 20, -8, 8, 0.5, -70}, y[] = {0, 1, 0, 1, 0.25, 0};
    tg_tensor *logits = leaf(ctx, TG_F32, TG_SHAPE(6), x), *target = leaf(ctx, TG_F32, TG_SHAPE(6), y);
    tg_tensor *loss = tg_bce_with_logits(t, logits, target, NULL, NULL, TG_LOSS(.reduction = TG_LOSS_NONE));
    double want[6];
    for (int i = 0; i < 6; i++) want[i] = y[i] * log1p(exp(-x[i])) + (1 - y[i]) * log1p(exp(x[i]));
    check_values(loss, want, "bce_with_logits", 1e-6);
    tg_tape_free(t);
    tg_drop(logits);
    tg_drop(target);
    tg_ctx_free(ctx);
}
END_TEST

/* ---- nll ---- */

static void check_nll(tg_ctx *ctx, const int64_t *ids, const tg_loss_opts *opts, double value, const double *by_x,
                      const double *by_w) {
    static const double x[] = {-1, -2, -3, -4, -5, -6, -INF, -8, -9}, w[] = {1, 2, 4};
    for (int recorded = 0; recorded < 2; recorded++) {
        tg_tape *t = tg_tape_new(ctx);
        tg_tensor *target = tg_from_host(ctx, TG_I64, TG_SHAPE(3), ids), *g[2];
        tg_tensor *in[] = {leaf(ctx, TG_F64, TG_SHAPE(3, 3), x), leaf(ctx, TG_F64, TG_SHAPE(3), w)};
        tg_tensor *loss = tg_nll(t, in[0], target, in[1], opts);
        check_values(loss, &value, "nll", 1e-14);
        const tg_grad_opts how = {.size = sizeof how, .create_graph = recorded};
        tg_grad(t, &loss, 1, in, 2, g, &how);
        check_values(g[0], by_x, "nll by x", 1e-14);
        check_values(g[1], by_w, "nll by w", 1e-14);
        ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
        tg_tape_free(t);
        tg_drop(target);
        tg_drop(in[0]);
        tg_drop(in[1]);
    }
}

START_TEST(targets) {
    tg_ctx *ctx = open_ctx(TG_F64);
    const int64_t ids[] = {1, 2, -100}, zero[] = {1, 2, 0}, none[] = {-100, -100, -100};
    const double sum_x[] = {0, -2, 0, 0, 0, -4, 0, 0, 0}, sum_w[] = {0, 2, 6};
    const double mean_x[] = {0, -2.0 / 6, 0, 0, 0, -4.0 / 6, 0, 0, 0};
    const double mean_w[] = {0, (2 - 28.0 / 6) / 6, (6 - 28.0 / 6) / 6}, nothing[9] = {0};
    check_nll(ctx, ids, TG_LOSS(.reduction = TG_LOSS_SUM), 28, sum_x, sum_w);
    check_nll(ctx, ids, NULL, 28.0 / 6, mean_x, mean_w);
    check_nll(ctx, zero, TG_LOSS(.ignore_index = 0), 28.0 / 6, mean_x, mean_w);
    check_nll(ctx, none, TG_LOSS(.reduction = TG_LOSS_SUM), 0, nothing, nothing);
    tg_ctx_free(ctx);
}
END_TEST

/* The mean over no rows is NaN, and has no gradient. */
START_TEST(rows_without_targets_are_handled) {
    tg_ctx *ctx = open_ctx(TG_F64);
    tg_tape *t = tg_tape_new(ctx);
    const int64_t ids[] = {-100, -100};
    const double v[] = {-1, -2, -3, -4}, nothing[4] = {0}, nan_ = NAN;
    tg_tensor *x = leaf(ctx, TG_F64, TG_SHAPE(2, 2), v), *target = tg_from_host(ctx, TG_I64, TG_SHAPE(2), ids), *g;
    tg_tensor *loss = tg_nll(t, x, target, NULL, NULL);
    check_values(loss, &nan_, "nll of no rows", 0);
    tg_grad(t, &loss, 1, &x, 1, &g, NULL);
    check_values(g, nothing, "nll of no rows", 0);
    tg_tape_free(t);
    tg_drop(x);
    tg_drop(target);
    tg_ctx_free(ctx);
}
END_TEST

/* ---- Bools and positions ---- */

START_TEST(positions_and_masks_are_right) {
    tg_ctx *ctx = open_ctx(TG_F64);
    tg_tape *t = tg_tape_new(ctx);
    const double v[] = {3, 1, 1, 2, NAN, 0};
    const bool m[] = {true, false, false, false, true, true};
    const double argmin[] = {1, 1}, argmax[] = {0, 1}, any[] = {1, 1}, all[] = {0, 0}, column[] = {0, 0, 0};
    tg_tensor *x = leaf(ctx, TG_F64, TG_SHAPE(2, 3), v), *mask = tg_from_host(ctx, TG_BOOL, TG_SHAPE(2, 3), m);
    check_values(tg_argmin(t, x, 1, false), argmin, "argmin", 0);
    check_values(tg_argmax(t, x, 1, false), argmax, "argmax", 0);
    check_values(tg_cast(t, tg_any(t, mask, TG_DIMS(1), false), TG_F64), any, "any", 0);
    check_values(tg_cast(t, tg_all(t, mask, TG_DIMS(1), false), TG_F64), all, "all", 0);
    check_values(tg_cast(t, tg_all(t, mask, TG_DIMS(0), true), TG_F64), column, "all", 0);
    tg_tensor *none = tg_slice(t, mask, 1, 0, 0, 1);
    const double no[] = {0, 0}, yes[] = {1, 1};
    check_values(tg_cast(t, tg_any(t, none, TG_DIMS(1), false), TG_F64), no, "any of none", 0);
    check_values(tg_cast(t, tg_all(t, none, TG_DIMS(1), false), TG_F64), yes, "all of none", 0);
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    tg_tape_free(t);
    tg_drop(x);
    tg_drop(mask);
    tg_ctx_free(ctx);
}
END_TEST

int main(void) {
    const TTest *tests[] = {special_values_are_right,
                            log_sums_far_from_0,
                            equal_elements_are_their_mean,
                            equal_elements_share_the_gradient_of_their_extremum,
                            products_with_zeros_have_right_derivatives,
                            products_over_no_dims_have_derivatives,
                            special_pairs_are_right,
                            narrow_parabolas_are_lines,
                            parabolas_of_any_width_keep_their_digits,
                            far_logits_lose_nothing,
                            targets,
                            rows_without_targets_are_handled,
                            positions_and_masks_are_right};
    return tg_check_main("reductions", tests, sizeof tests / sizeof *tests);
}
