/* A constant added to all logits of a row, or all scores of a query, changes nothing: in float32, with constants so
 * large that a rounded log-sum-exp would be wrong by hundredths. TG_TEST_DEVICE names another device. */
#include <math.h>

#include <tapegrad/derivatives.h>
#include <tapegrad/ops.h>

#include "world.h"

enum { ROWS = 5, CLASSES = 40, WIDTH = 4, FAR = 1 << 17 }; /* float32 has steps of 1/64 there */

static double number(int64_t i) { return (double)((i * 37 + 11) % 401 - 200) / 64; }

static tg_tensor *leaf_at(tg_shape shape, int64_t seed, double offset) {
    double v[ROWS * CLASSES];
    tg_tensor *x = tg_zeros(ctx, TG_F32, shape);
    for (int64_t i = 0; i < tg_numel(x); i++) v[i] = offset + number(seed + i);
    tg_write_f64(x, v, tg_numel(x));
    tg_set_requires_grad(x, true);
    return x;
}

/* A leaf of multiples of 1/8, whose products float32 can represent next to FAR, and whose rows begin with `first`. */
static tg_tensor *leaf_with(tg_shape shape, int64_t seed, double first) {
    double v[ROWS * CLASSES];
    tg_tensor *x = leaf_at(shape, seed, 0);
    tg_read_f64(x, v, tg_numel(x));
    for (int64_t i = 0; i < tg_numel(x); i++) v[i] = i % tg_dim(x, -1) ? floor(v[i] * 8) / 8 : first;
    tg_write_f64(x, v, tg_numel(x));
    return x;
}

static void near(tg_tensor *a, tg_tensor *b, int64_t skip, double tol, const char *what) {
    double x[ROWS * CLASSES], y[ROWS * CLASSES];
    int64_t n = tg_numel(a), width = skip ? tg_dim(a, -1) : n;
    tg_read_f64(a, x, n);
    tg_read_f64(b, y, n);
    ck_status(TG_OK);
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg((skip && i % width < skip) || fabs(x[i] - y[i]) <= tol * (1 + fabs(x[i])),
                      "%s, element %d: %.9g far from 0, %.9g near", what, (int)i, y[i], x[i]);
}

static tg_tensor *target(void) {
    const int64_t classes[ROWS] = {3, 0, 39, 17, 8};
    return tg_from_host(ctx, TG_I64, TG_SHAPE(ROWS), classes);
}

static tg_tensor *weights(void) {
    return tg_abs(t, tg_add_scalar(t, tg_detach(t, leaf_at(TG_SHAPE(CLASSES), 5, 0)), 4));
}


static tg_tensor *log_softmax(tg_tensor *x) { return tg_log_softmax(t, x, -1); }
static tg_tensor *one_a_row(tg_tensor *x) {
    return tg_cross_entropy(t, x, target(), TG_CROSS_ENTROPY(.reduction = TG_LOSS_NONE));
}
static tg_tensor *smoothed(tg_tensor *x) {
    return tg_cross_entropy(t, x, target(), TG_CROSS_ENTROPY(.reduction = TG_LOSS_NONE, .label_smoothing = 0.25));
}
static tg_tensor *weighed(tg_tensor *x) {
    return tg_cross_entropy(t, x, target(),
                            TG_CROSS_ENTROPY(.reduction = TG_LOSS_NONE, .label_smoothing = 0.25, .weight = weights()));
}

/* Returns the result, the gradient, and a gradient of its squares. */
static void losses_of(tg_tensor *(*f)(tg_tensor *), double offset, tg_tensor *got[3]) {
    tg_tensor *x = leaf_at(TG_SHAPE(ROWS, CLASSES), 0, offset), *g;
    got[0] = f(x);
    tg_tensor *sum = tg_sum(t, tg_mul(t, got[0], got[0]), TG_ALL_DIMS, false);
    ck_assert_int_eq(tg_grad(t, &sum, 1, &x, 1, &got[1], TG_GRAD(.retain = true)), TG_OK);
    ck_assert_int_eq(tg_grad(t, &sum, 1, &x, 1, &g, TG_GRAD(.create_graph = true)), TG_OK);
    tg_tensor *squares = tg_sum(t, tg_mul(t, g, g), TG_ALL_DIMS, false);
    ck_assert_int_eq(tg_grad(t, &squares, 1, &x, 1, &got[2], NULL), TG_OK);
}

START_TEST(losses_ignore_a_constant_added_to_all_logits) {
    tg_tensor *(*const f[])(tg_tensor *) = {log_softmax, one_a_row, smoothed, weighed};
    const char *const names[] = {"log_softmax", "cross_entropy", "smoothed cross_entropy", "weighed cross_entropy"};
    begin();
    for (int i = 0; i < 4; i++) {
        tg_tensor *here[3], *there[3];
        losses_of(f[i], 0, here);
        losses_of(f[i], FAR, there);
        for (int k = 0; k < 3; k++) near(here[k], there[k], 0, 2e-5, names[i]);
    }
    end();
}
END_TEST

/* Logits of 256 w[0] and more, where w[0] is 512 or 0. */
static void head_of(double offset, tg_tensor *got[3]) {
    tg_tensor *w = leaf_with(TG_SHAPE(CLASSES, WIDTH), 3, offset ? 512 : 0);
    tg_tensor *x = leaf_with(TG_SHAPE(ROWS, WIDTH), 9, 256), *in[] = {x, w};
    got[0] = tg_linear_cross_entropy(t, x, w, target(), NULL);
    ck_assert_int_eq(tg_grad(t, got, 1, in, 2, got + 1, NULL), TG_OK);
}

START_TEST(a_head_ignores_a_constant_added_to_all_logits) {
    tg_tensor *here[3], *there[3];
    begin();
    head_of(0, here);
    head_of(FAR, there);
    near(here[0], there[0], 0, 2e-5, "linear_cross_entropy");
    near(here[1], there[1], 1, 2e-5, "its gradient of x");
    near(here[2], there[2], 1, 2e-5, "its gradient of w");
    end();
}
END_TEST

static void attention_of(double offset, tg_tensor *got[4]) {
    tg_shape shape = TG_SHAPE(1, 2, ROWS, WIDTH);
    tg_tensor *in[] = {leaf_with(shape, 1, 256), leaf_with(shape, 2, offset ? 512 : 0), leaf_at(shape, 3, 0)};
    tg_tensor *y = tg_attention(t, in[0], in[1], in[2], TG_ATTENTION(.scale = 1));
    got[0] = y;
    tg_tensor *sum = tg_sum(t, tg_mul(t, y, y), TG_ALL_DIMS, false);
    ck_assert_int_eq(tg_grad(t, &sum, 1, in, 3, got + 1, TG_GRAD(.retain = true)), TG_OK);
}

START_TEST(attention_ignores_a_constant_added_to_all_scores) {
    tg_tensor *here[4], *there[4];
    const char *const names[] = {"attention", "its gradient of q", "its gradient of k", "its gradient of v"};
    begin();
    attention_of(0, here);
    attention_of(FAR, there);
    for (int k = 0; k < 4; k++) near(here[k], there[k], k == 1 || k == 2, 5e-5, names[k]);
    end();
}
END_TEST

int main(void) {
    const TTest *const tests[] = {losses_ignore_a_constant_added_to_all_logits,
                                  a_head_ignores_a_constant_added_to_all_logits,
                                  attention_ignores_a_constant_added_to_all_scores};
    return tg_check_main("shifts", tests, sizeof tests / sizeof *tests);
}
