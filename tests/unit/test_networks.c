/* Convolutions compared with plain loops, pooling at ties and NaN, running statistics of batch norm through modes
 * and recomputation, class weights, matrices without a Cholesky factor, gradients of far diagonals, dtypes of weights'
 * gradients. TG_TEST_DEVICE names another device. */
#include <math.h>

#include <tapegrad/extend.h>
#include <tapegrad/ops.h>

#include "world.h"

static void expect_values(tg_tensor *x, const double *want, int n, double tol, const char *what) {
    double got[64];
    ck_assert_int_eq(tg_numel(x), n);
    tg_read_f64(x, got, n);
    ck_status(TG_OK);
    for (int i = 0; i < n; i++)
        ck_assert_msg(isnan(want[i]) ? isnan(got[i]) : fabs(got[i] - want[i]) <= tol,
                      "%s, element %d: %.17g, expected %.17g", what, i, got[i], want[i]);
}

/* ---- Convolutions ---- */

enum { NUMEL = 2048 };

typedef struct conv_case {
    int64_t n, c, h, w, o, kh, kw;
    tg_conv_opts opts;
} conv_case;

static double number(int64_t i) { return (double)((i * 37 + 11) % 31 - 15) / 8; }

static int64_t windows_of(const conv_case *k, int d) {
    int64_t in = d ? k->w : k->h, size = d ? k->kw : k->kh;
    return (in + 2 * k->opts.padding[d] - (size - 1) * k->opts.dilation[d] - 1) / k->opts.stride[d] + 1;
}

/* Returns element (o, p, q) of image i by the definition. */
static double conv_at(const conv_case *k, const double *x, const double *w, int64_t i, int64_t o, int64_t p,
                      int64_t q) {
    int64_t each = k->c / k->opts.groups, first = o / (k->o / k->opts.groups) * each;
    double sum = 0;
    for (int64_t c = 0; c < each; c++)
        for (int64_t a = 0; a < k->kh; a++)
            for (int64_t b = 0; b < k->kw; b++) {
                int64_t y = p * k->opts.stride[0] + a * k->opts.dilation[0] - k->opts.padding[0];
                int64_t z = q * k->opts.stride[1] + b * k->opts.dilation[1] - k->opts.padding[1];
                if (y < 0 || y >= k->h || z < 0 || z >= k->w) continue;
                sum += x[((i * k->c + first + c) * k->h + y) * k->w + z] * w[((o * each + c) * k->kh + a) * k->kw + b];
            }
    return sum;
}

START_TEST(convolutions_are_their_sums) {
    begin();
    static const conv_case cases[] = {
        {2, 3, 5, 4, 4, 3, 2, {0, {1, 1}, {0, 0}, {1, 1}, 1, {0}}},
        {1, 4, 6, 7, 2, 3, 3, {0, {2, 1}, {1, 2}, {1, 2}, 2, {0}}},
        {3, 4, 3, 3, 8, 1, 1, {0, {1, 1}, {0, 0}, {1, 1}, 4, {0}}},
        {2, 2, 5, 5, 2, 1, 1, {0, {2, 2}, {0, 0}, {1, 1}, 1, {0}}},
        {1, 2, 2, 9, 2, 4, 3, {0, {1, 3}, {3, 1}, {1, 2}, 2, {0}}},
        {1, 1, 1, 1, 3, 1, 1, {0, {1, 1}, {0, 0}, {1, 1}, 1, {0}}},
        {2, 6, 3, 2, 6, 3, 3, {0, {1, 1}, {1, 1}, {1, 1}, 6, {0}}},
    };
    double xv[NUMEL], wv[NUMEL];
    for (int64_t i = 0; i < NUMEL; i++) xv[i] = number(i), wv[i] = number(3 * i + 1);
    for (size_t j = 0; j < sizeof cases / sizeof *cases; j++) {
        conv_case k = cases[j];
        k.opts.size = sizeof k.opts;
        int64_t p = windows_of(&k, 0), q = windows_of(&k, 1);
        tg_tensor *x = leaf_of(TG_SHAPE(k.n, k.c, k.h, k.w), xv);
        tg_tensor *w = leaf_of(TG_SHAPE(k.o, k.c / k.opts.groups, k.kh, k.kw), wv);
        tg_tensor *y = tg_conv2d(t, x, w, NULL, &k.opts);
        double got[NUMEL];
        ck_status(TG_OK);
        ck_assert_int_eq(tg_numel(y), k.n * k.o * p * q);
        tg_read_f64(y, got, tg_numel(y));
        for (int64_t i = 0; i < k.n * k.o * p * q; i++) {
            double want = conv_at(&k, xv, wv, i / (k.o * p * q), i / (p * q) % k.o, i / q % p, i % q);
            ck_assert_msg(fabs(got[i] - want) < 1e-12, "case %d, element %d: %.17g, expected %.17g", (int)j, (int)i,
                          got[i], want);
        }
        tg_drop(x);
        tg_drop(w);
    }
    end();
}
END_TEST

/* ---- Pools ---- */

START_TEST(ties_and_nan_of_max_pool) {
    begin();
    const double v[] = {1, 3, 3, 2, -INFINITY, -INFINITY, 5, NAN, 7, 4};
    tg_tensor *x = leaf_of(TG_SHAPE(1, 1, 10), v);
    tg_tensor *y = tg_max_pool1d(t, x, 2, NULL);
    expect_values(tg_slice(t, y, 2, 0, 2, 1), (const double[]){3, 3}, 2, 0, "ties");
    expect_values(tg_slice(t, y, 2, 3, 4, 1), (const double[]){NAN}, 1, 0, "NaN");
    ck_assert(tg_item(tg_select(t, tg_reshape(t, y, TG_SHAPE(5)), 0, 2)) == -INFINITY);
    tg_backward(t, tg_sum(t, y, TG_ALL_DIMS, false));
    expect_values(tg_grad_of(x), (const double[]){0, 1, 1, 0, 1, 0, 0, 1, 1, 0}, 10, 0, "the first of equals");
    tg_drop(x);
    x = leaf_of(TG_SHAPE(1, 1, 2), v + 4);
    tg_backward(t, tg_sum(t, tg_max_pool1d(t, x, 3, TG_POOL(.padding = {1})), TG_ALL_DIMS, false));
    expect_values(tg_grad_of(x), (const double[]){1, 0}, 2, 0, "padding never wins");
    tg_drop(x);
    end();
}
END_TEST

START_TEST(padding_counts_or_does_not) {
    begin();
    const double v[] = {1, 2, 3, 4};
    tg_tensor *x = leaf_of(TG_SHAPE(1, 1, 4), v);
    expect_values(tg_avg_pool1d(t, x, 3, TG_POOL(.stride = {1}, .padding = {1})),
                  (const double[]){1, 2, 3, 7.0 / 3}, 4, 1e-15, "with padding");
    expect_values(tg_avg_pool1d(t, x, 3, TG_POOL(.stride = {1}, .padding = {1}, .exclude_padding = true)),
                  (const double[]){1.5, 2, 3, 3.5}, 4, 1e-15, "without");
    tg_drop(x);
    end();
}
END_TEST

/* ---- Batch norm ---- */

typedef struct norm {
    tg_tensor *mean, *var;
    int runs;
} norm;

static tg_status norm_of(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    norm *s = state;
    (void)n_in, (void)n_out;
    s->runs++;
    out[0] = tg_square(tape, tg_batch_norm(tape, in[0], NULL, NULL, s->mean, s->var, 0.5, 0));
    return tg_ctx_status(ctx);
}

/* Statistics of the channels (1, 3) and (2, 8): means 2 and 5, unbiased variances 2 and 18. */
static norm open_norm(tg_tensor **x) {
    const double v[] = {1, 2, 3, 8}, ones[] = {1, 1};
    *x = leaf_of(TG_SHAPE(2, 2), v);
    return (norm){.mean = tg_zeros(ctx, TG_F64, TG_SHAPE(2)), .var = tg_from_host(ctx, TG_F64, TG_SHAPE(2), ones)};
}

static void close_norm(norm *s, tg_tensor *x) {
    tg_drop(s->mean);
    tg_drop(s->var);
    tg_drop(x);
}

START_TEST(running_statistics_follow) {
    begin();
    tg_tensor *x;
    norm s = open_norm(&x);
    tg_tensor *y = tg_batch_norm(t, x, NULL, NULL, s.mean, s.var, 0.5, 0);
    expect_values(y, (const double[]){-1, -1, 1, 1}, 4, 1e-15, "by the batch");
    expect_values(s.mean, (const double[]){1, 2.5}, 2, 1e-15, "the mean, half way");
    expect_values(s.var, (const double[]){1.5, 9.5}, 2, 1e-15, "the unbiased variance, half way");
    tg_tape_set_training(t, false);
    y = tg_batch_norm(t, x, NULL, NULL, s.mean, s.var, 0.5, 0);
    const double by[] = {0, -0.5 / sqrt(9.5), 2 / sqrt(1.5), 5.5 / sqrt(9.5)};
    expect_values(y, by, 4, 1e-15, "by running statistics");
    expect_values(s.mean, (const double[]){1, 2.5}, 2, 0, "the mean stays");
    y = tg_batch_norm(t, x, NULL, NULL, NULL, NULL, 0.5, 0);
    expect_values(y, (const double[]){-1, -1, 1, 1}, 4, 1e-15, "without any, by the batch");
    close_norm(&s, x);
    end();
}
END_TEST

/* A node that has saved what a step updates detects the change. Derivatives in evaluation mode are those of the
 * statistics at that time. */
START_TEST(statistics_of_a_node_are_its_own) {
    begin();
    tg_tensor *x, *g, *again;
    norm s = open_norm(&x);
    tg_tape_set_training(t, false);
    tg_tensor *y = tg_batch_norm(t, x, NULL, NULL, s.mean, s.var, 0.5, 0); /* x itself */
    tg_tape_set_training(t, true);
    tg_batch_norm(t, x, NULL, NULL, s.mean, s.var, 0.5, 0);
    tg_tensor *root = tg_sum(t, tg_square(t, y), TG_ALL_DIMS, false);
    tg_grad(t, &root, 1, &x, 1, &g, TG_GRAD(.create_graph = true));
    expect_values(g, (const double[]){2, 4, 6, 16}, 4, 1e-14, "a gradient");
    tg_tensor *sum = tg_sum(t, g, TG_ALL_DIMS, false);
    tg_grad(t, &sum, 1, &x, 1, &again, NULL);
    expect_values(again, (const double[]){2, 2, 2, 2}, 4, 1e-14, "its gradient");
    tg_tensor *uses = tg_mul(t, x, s.mean);
    tg_batch_norm(t, x, NULL, NULL, s.mean, s.var, 0.5, 0);
    tg_backward(t, tg_sum(t, uses, TG_ALL_DIMS, false));
    ck_status(TG_ERR_VERSION);
    ck_says("batch_norm");
    tg_ctx_clear(ctx);
    close_norm(&s, x);
    end();
}
END_TEST

/* The second run of a recomputation, also of a nested one, updates nothing. */
static tg_status norm_within(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    return tg_recompute(tape, norm_of, state, in, n_in, out, n_out, NULL);
}

START_TEST(recomputation_moves_statistics_once) {
    begin();
    static const tg_fn fns[] = {norm_of, norm_within};
    for (int k = 0; k < 2; k++) {
        tg_tensor *x, *y;
        norm s = open_norm(&x);
        tg_recompute(t, fns[k], &s, &x, 1, &y, 1, NULL);
        expect_values(s.mean, (const double[]){1, 2.5}, 2, 1e-15, "the first run moves");
        tg_backward(t, tg_sum(t, tg_mul(t, y, x), TG_ALL_DIMS, false));
        ck_status(TG_OK);
        ck_assert_int_ge(s.runs, 2);
        expect_values(s.mean, (const double[]){1, 2.5}, 2, 1e-15, "the second does not");
        expect_values(s.var, (const double[]){1.5, 9.5}, 2, 1e-15, "nor the variance");
        close_norm(&s, x);
        tg_tape_reset(t);
    }
    end();
}
END_TEST

/* ---- Losses, factors ---- */

START_TEST(class_weights_are_applied) {
    begin();
    const double v[] = {0, 1, 2, 3, 0, 1}, weights[] = {1, 2, 4};
    const int64_t classes[] = {2, 0};
    tg_tensor *x = leaf_of(TG_SHAPE(2, 3), v), *w = tg_from_host(ctx, TG_F64, TG_SHAPE(3), weights);
    tg_tensor *target = tg_from_host(ctx, TG_I64, TG_SHAPE(2), classes);
    double lse[2], p[2][3], plain = 0, spread = 0;
    for (int i = 0; i < 2; i++) {
        lse[i] = log(exp(v[3 * i]) + exp(v[3 * i + 1]) + exp(v[3 * i + 2]));
        for (int j = 0; j < 3; j++) p[i][j] = lse[i] - v[3 * i + j];
        plain += weights[classes[i]] * p[i][classes[i]];
        for (int j = 0; j < 3; j++) spread += weights[j] * p[i][j] / 3;
    }
    tg_tensor *y = tg_cross_entropy(t, x, target, TG_CROSS_ENTROPY(.weight = w));
    expect_values(y, (const double[]){plain / 5}, 1, 1e-15, "the mean");
    y = tg_cross_entropy(t, x, target,
                         TG_CROSS_ENTROPY(.weight = w, .reduction = TG_LOSS_SUM, .label_smoothing = 0.25));
    expect_values(y, (const double[]){0.75 * plain + 0.25 * spread}, 1, 1e-14, "smoothed");
    y = tg_cross_entropy(t, x, target, TG_CROSS_ENTROPY(.weight = w, .ignore_index = 2));
    expect_values(y, (const double[]){p[1][0]}, 1, 1e-15, "one row ignored");
    tg_drop(x);
    tg_drop(w);
    tg_drop(target);
    end();
}
END_TEST

/* As in backward, an ignored row contributes nothing. */
START_TEST(ignored_rows_may_hold_anything) {
    const double v[] = {1, 2, 3, NAN, 1, INFINITY}, along[] = {1, 1, 2, 1, 1, 1};
    begin();
    tg_tensor *x = tg_from_host(ctx, TG_F64, TG_SHAPE(2, 3), v), *dx = tg_from_host(ctx, TG_F64, TG_SHAPE(2, 3), along);
    tg_tensor *target = tg_from_host(ctx, TG_I64, TG_SHAPE(2), (const int64_t[]){1, -100}), *g, *dy;
    double backward[6], recorded[6], slope = 0;
    tg_set_requires_grad(x, true);
    tg_tensor *y = tg_cross_entropy(t, x, target, NULL);
    tg_grad(t, &y, 1, &x, 1, &g, TG_GRAD(.retain = true));
    tg_read_f64(g, backward, 6);
    tg_grad(t, &y, 1, &x, 1, &g, TG_GRAD(.retain = true, .create_graph = true));
    tg_read_f64(g, recorded, 6);
    for (int i = 0; i < 6; i++) {
        ck_assert_double_eq_tol(recorded[i], backward[i], 1e-15);
        slope += backward[i] * along[i];
    }
    ck_assert(recorded[3] == 0 && recorded[5] == 0);
    tg_jvp(t, &y, 1, &x, 1, &dx, &dy);
    ck_assert_double_eq_tol(tg_item(dy), slope, 1e-15);
    tg_drop(x);
    tg_drop(dx);
    tg_drop(target);
    end();
}
END_TEST

/* d gx / dy of y (ln(y) - x) is -1 at y = 0 too, and so is d gy / dx, although gx and gy themselves are 0 there. */
START_TEST(a_probability_of_0_moves_the_gradient) {
    const double v[] = {-1, -3, -INFINITY}, probability[] = {0, 0.25, 0};
    begin();
    tg_tensor *x = leaf_of(TG_SHAPE(3), v), *y = leaf_of(TG_SHAPE(3), probability), *both[] = {x, y}, *g[2], *mixed;
    tg_tensor *loss = tg_kl_div(t, x, y, TG_LOSS(.reduction = TG_LOSS_SUM));
    tg_grad(t, &loss, 1, both, 2, g, TG_GRAD(.retain = true, .create_graph = true));
    expect_values(g[0], (const double[]){0, -0.25, 0}, 3, 1e-15, "by x");
    expect_values(g[1], (const double[]){0, log(0.25) + 4, 0}, 3, 1e-15, "by y");
    for (int i = 0; i < 2; i++) {
        tg_tensor *first = tg_sum(t, tg_slice(t, g[i], 0, 0, 2, 1), TG_ALL_DIMS, false);
        tg_grad(t, &first, 1, &both[1 - i], 1, &mixed, TG_GRAD(.retain = true));
        expect_values(mixed, (const double[]){-1, -1, 0}, 3, 1e-15, "by both");
    }
    tg_drop(x);
    tg_drop(y);
    end();
}
END_TEST

START_TEST(matrices_without_a_factor_are_named) {
    begin();
    const double v[] = {4, 2, 0, 2, 5, 4, 0, 4, 3, 4, 2, 0, 2, 5, 0, 0, 0, 1}; /* of the first: 3 - 4^2 / (5 - 1) < 0 */
    tg_tensor *a = leaf_of(TG_SHAPE(2, 3, 3), v);
    tg_tensor *l = tg_cholesky(t, tg_select(t, a, 0, 1));
    expect_values(l, (const double[]){2, 0, 0, 1, 2, 0, 0, 0, 1}, 9, 1e-15, "the factor");
    tg_cholesky(t, a);
    if (tg_ctx_ops(ctx)->poll) tg_ctx_ops(ctx)->sync(ctx);
    ck_status(TG_ERR_DATA);
    if (!tg_ctx_ops(ctx)->poll) ck_says("matrix 0 is not positive definite: its leading minor of order 3");
    tg_ctx_clear(ctx);
    tg_drop(a);
    end();
}
END_TEST

/* The op computes in float32. The gradients of weights that an op has computed are bfloat16, like the weights. */
START_TEST(weights_of_a_loss_have_gradients_of_their_dtype) {
    begin();
    const double v[] = {0.5, -1, 2, 0.25};
    tg_tensor *leaf = leaf_of(TG_SHAPE(2, 2), v), *x = tg_cast(t, leaf, TG_BF16), *w[2], *g[2];
    for (int i = 0; i < 2; i++) w[i] = tg_cast(t, tg_abs(t, leaf), TG_BF16);
    tg_tensor *y = tg_bce_with_logits(t, x, tg_sigmoid(t, x), w[0], w[1], TG_LOSS(.reduction = TG_LOSS_SUM));
    tg_grad(t, &y, 1, w, 2, g, NULL);
    ck_status(TG_OK);
    for (int i = 0; i < 2; i++) ck_assert_int_eq(tg_dtype_of(g[i]), TG_BF16);
    tg_drop(leaf);
    end();
}
END_TEST

/* A square matrix with the long side would need 4 TB. */
START_TEST(the_gradient_of_a_far_diagonal_has_the_size_of_x) {
    enum { LONG = 1000000 };
    begin();
    tg_tensor *x = tg_zeros(ctx, TG_F32, TG_SHAPE(2, LONG)), *g;
    tg_set_requires_grad(x, true);
    tg_tensor *y = tg_sum(t, tg_diag(t, x, LONG - 2), TG_ALL_DIMS, false);
    tg_grad(t, &y, 1, &x, 1, &g, TG_GRAD(.create_graph = true));
    expect_values(tg_sum(t, g, TG_DIMS(1), false), (const double[]){1, 1}, 2, 0, "sums of rows");
    expect_values(tg_diag(t, g, LONG - 2), (const double[]){1, 1}, 2, 0, "the diagonal");
    tg_drop(x);
    end();
}
END_TEST

/* float32 represents every position of an element only up to 2^24. */
START_TEST(images_may_have_more_than_2_to_the_24_elements) {
    const int64_t w = (1 << 23) + 1;
    begin();
    tg_tensor *last = tg_pad(t, tg_full(t, TG_F32, TG_SHAPE(1), 7), 0, 2 * w - 1, 0, 0);
    tg_tensor *x = tg_reshape(t, last, TG_SHAPE(1, 1, 2, w)), *corner = tg_full(t, TG_F32, TG_SHAPE(1, 1, 1, 2), 1);
    tg_tensor *y = tg_grid_sampler_2d(t, x, corner, TG_GRID(.mode = TG_GRID_NEAREST, .align_corners = true));
    expect_values(y, (const double[]){7}, 1, 0, "the last element");
    end();
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        convolutions_are_their_sums, ties_and_nan_of_max_pool,         padding_counts_or_does_not,
        running_statistics_follow,   statistics_of_a_node_are_its_own, recomputation_moves_statistics_once,
        class_weights_are_applied,   ignored_rows_may_hold_anything,   a_probability_of_0_moves_the_gradient,
        matrices_without_a_factor_are_named, the_gradient_of_a_far_diagonal_has_the_size_of_x,
        weights_of_a_loss_have_gradients_of_their_dtype, images_may_have_more_than_2_to_the_24_elements};
    return tg_check_main("networks", tests, sizeof tests / sizeof *tests);
}
