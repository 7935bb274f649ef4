/* The methods of optimizers: RMSprop and Adagrad compared with PyTorch's, Lion and Muon with their formulas. */
#include <math.h>
#include <stdlib.h>

#include <tapegrad/ops.h>
#include <tapegrad/average.h>
#include <tapegrad/lbfgs.h>
#include <tapegrad/optim.h>
#include <tapegrad/parallel.h>

#include "on_ranks.h"
#include "unit/optim_reference.h"
#include "unit/world.h"

#define ck_close(a, b) ck_assert_double_eq_tol(a, b, 1e-12 * (1 + fabs((double)(b))))

/* Sets the gradient of x to g[]. */
static void give(tg_tensor *x, const double *g) {
    int64_t dim[TG_MAX_DIMS];
    for (int d = 0; d < tg_ndim(x); d++) dim[d] = tg_dim(x, d);
    tg_tensor *by = tg_from_host(ctx, TG_F64, tg_shape_make((size_t)tg_ndim(x), dim), g);
    tg_backward(t, tg_sum(t, tg_mul(t, x, by), TG_ALL_DIMS, false));
    tg_tape_reset(t);
    tg_drop(by);
}

static void step(tg_optim *o) {
    tg_optim_step(o);
    tg_optim_zero_grad(o);
}

/* ---- Compared with PyTorch's ---- */

enum { N = 5, STEPS = 20 };

static tg_tensor *start(void) { return leaf_of(TG_SHAPE(N), (double[N]){1, -0.5, 0.25, 2, -3}); }

/* Makes the steps that tests/reference/optimizers.py makes, and compares the parameter with its values. */
static void runs_to(tg_optim *o, tg_tensor *x, const double want[N]) {
    for (int k = 1; k <= STEPS; k++) {
        double v[N], g[N];
        tg_read_f64(x, v, N);
        for (int i = 0; i < N; i++) g[i] = (i + 1) * 0.25 * (v[i] - 0.5) + 0.3 * sin(k + i);
        give(x, g);
        step(o);
    }
    double v[N];
    tg_read_f64(x, v, N);
    for (int i = 0; i < N; i++) ck_close(v[i], want[i]);
    tg_optim_free(o);
}

START_TEST(rmsprop_is_pytorch_s) {
    const tg_rmsprop_opts *const rows[] = {
        NULL,
        TG_RMSPROP(.alpha = 0.9, .eps = 1e-3, .weight_decay = 0.1),
        TG_RMSPROP(.centered = true, .alpha = 0.95),
        TG_RMSPROP(.momentum = 0.9),
        TG_RMSPROP(.alpha = 0.9, .momentum = 0.5, .centered = true, .weight_decay = 0.05),
    };
    begin();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tg_tensor *x = start();
        tg_optim *o = tg_rmsprop_new(ctx, &x, 1, rows[i]);
        ck_assert_int_eq(tg_optim_state_count(o),
                         1 + (rows[i] && rows[i]->centered) + (rows[i] && rows[i]->momentum > 0));
        runs_to(o, x, rmsprop_after[i]);
    }
    end();
}
END_TEST

START_TEST(adagrad_is_pytorch_s) {
    const tg_adagrad_opts *const rows[] = {TG_ADAGRAD(.lr = 0.1),
                                           TG_ADAGRAD(.lr = 0.1, .initial = 0.5, .eps = 1e-3, .weight_decay = 0.1)};
    begin();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tg_tensor *x = start();
        runs_to(tg_adagrad_new(ctx, &x, 1, rows[i]), x, adagrad_after[i]);
    }
    end();
}
END_TEST

/* Rounding makes the variance of equal gradients negative; the step must stay finite. */
START_TEST(a_variance_of_zero_is_no_nan) {
    begin();
    tg_tensor *x = leaf(1);
    tg_optim *o = tg_rmsprop_new(ctx, &x, 1, TG_RMSPROP(.lr = 1e-12, .centered = true, .alpha = 0.1));
    for (int i = 0; i < 200; i++) {
        give(x, (double[]){0.1 + 0.1 * (i / 50)});
        step(o);
    }
    ck_assert_msg(isfinite(tg_item(x)), "%g", tg_item(x));
    tg_optim_free(o);
    end();
}
END_TEST

/* ---- Lion ---- */

static double sign(double x) { return (x > 0) - (x < 0); }

START_TEST(lion_is_its_formula) {
    begin();
    tg_tensor *x = leaf(2);
    tg_optim *o = tg_lion_new(ctx, &x, 1, TG_LION(.lr = 0.01, .beta1 = 0.7, .beta2 = 0.8, .weight_decay = 0.5));
    double p = 2, m = 0;
    for (int k = 1; k <= STEPS; k++) {
        double g = sin(k) - 0.1;
        p -= 0.01 * (sign(0.7 * m + 0.3 * g) + 0.5 * p);
        m = 0.8 * m + 0.2 * g;
        give(x, &g);
        step(o);
        ck_close(tg_item(x), p);
        ck_close(tg_item(tg_optim_state(o, 0, NULL)), m);
    }
    tg_optim_free(o);
    end();
}
END_TEST

/* ---- Muon ---- */

enum { MOST = 12 };

/* Computes c = alpha a b + beta d for matrices [m, k] and [k, n]. */
static void product(int m, int k, int n, double alpha, const double *a, const double *b, double beta, const double *d,
                    double *c) {
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int l = 0; l < k; l++) sum += a[i * k + l] * b[l * n + j];
            c[i * n + j] = alpha * sum + beta * d[i * n + j];
        }
}

/* Makes x [m, n] nearly orthogonal, by the published polynomial of x x^T, whichever dim is shorter. */
static void orthogonal(int m, int n, double *x, int iterations) {
    double norm = 0, xt[MOST], s[MOST * MOST] = {0}, u[MOST * MOST], y[MOST];
    for (int i = 0; i < m * n; i++) norm += x[i] * x[i];
    for (int i = 0; i < m * n; i++) x[i] /= fmax(sqrt(norm), 1e-7);
    for (int k = 0; k < iterations; k++) {
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++) xt[j * m + i] = x[i * n + j];
        product(m, n, m, 1, x, xt, 0, s, s);
        product(m, m, m, 2.0315, s, s, -4.775, s, u);
        product(m, m, n, 1, u, x, 3.4445, x, y);
        memcpy(x, y, (size_t)(m * n) * sizeof *x);
    }
}

typedef struct muon_row {
    int m, n;
    tg_muon_opts opts;
    double scale;
} muon_row;

static void muon_step(const muon_row *r, double *p, double *mean, const double *g) {
    double step[MOST], mu = r->opts.momentum, lr = r->opts.lr;
    for (int i = 0; i < r->m * r->n; i++) {
        mean[i] = mu * mean[i] + (1 - mu) * g[i];
        step[i] = r->opts.nesterov ? (1 - mu) * g[i] + mu * mean[i] : mean[i];
    }
    orthogonal(r->m, r->n, step, r->opts.iterations);
    for (int i = 0; i < r->m * r->n; i++) p[i] = (1 - lr * r->opts.weight_decay) * p[i] - lr * r->scale * step[i];
}

/* A vector that is stepped by the same optimizer is stepped as by AdamW alone, and so is a matrix that is listed. */
START_TEST(muon_is_its_formula) {
    const muon_row rows[] = {
        {2, 4, *TG_MUON(), 1},
        {4, 3, *TG_MUON(.lr = 0.1, .weight_decay = 0.3, .momentum = 0.5), sqrt(4 / 3.)},
        {3, 4, *TG_MUON(.nesterov = false, .iterations = 3, .scale = TG_MUON_RMS), 0.2 * 2},
        {3, 1, *TG_MUON(.lr = 0.05), sqrt(3)},
    };
    begin();
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        const muon_row *r = &rows[k];
        const int64_t dim[2] = {r->m, r->n};
        double p[MOST], mean[MOST] = {0}, g[MOST], got[MOST];
        for (int i = 0; i < MOST; i++) p[i] = cos(3 * i);
        tg_tensor *x[] = {leaf_of(tg_shape_make(2, dim), p), start(), leaf_of(TG_SHAPE(1, N), p)};
        tg_tensor *alone[] = {start(), leaf_of(TG_SHAPE(1, N), p)};
        tg_muon_opts opts = r->opts;
        opts.others = &x[2], opts.n_others = 1, opts.adamw = TG_ADAMW(.lr = 0.03, .beta2 = 0.9);
        tg_optim *o = tg_muon_new(ctx, x, 3, &opts);
        tg_optim *a = tg_adamw_new(ctx, alone, 2, opts.adamw);
        ck_status(TG_OK);
        ck_assert_int_eq(tg_optim_state_count(o), 5);
        for (int s = 1; s <= STEPS; s++) {
            for (int i = 0; i < MOST; i++) g[i] = sin(s * s + 2 * i);
            for (int i = 0; i < 3; i++) give(x[i], g);
            for (int i = 0; i < 2; i++) give(alone[i], g);
            step(o);
            step(a);
            muon_step(r, p, mean, g);
            tg_read_f64(x[0], got, r->m * r->n);
            for (int i = 0; i < r->m * r->n; i++) ck_close(got[i], p[i]);
        }
        for (int i = 0; i < 2; i++) {
            double one[N], other[N];
            tg_read_f64(x[1 + i], one, N);
            tg_read_f64(alone[i], other, N);
            for (int j = 0; j < N; j++) ck_close(one[j], other[j]);
        }
        tg_optim_free(o);
        tg_optim_free(a);
    }
    end();
}
END_TEST

/* The singular values of a step lie between 0.6 and 1.3 whatever those of the gradient are. */
START_TEST(muon_makes_steps_nearly_orthogonal) {
    begin();
    tg_tensor *x = leaf_of(TG_SHAPE(2, 2), (double[4]){0});
    tg_optim *o = tg_muon_new(ctx, &x, 1, TG_MUON(.lr = 1));
    give(x, (double[4]){3, 0, 0, 0.2});
    step(o);
    double v[4];
    tg_read_f64(x, v, 4);
    ck_assert(v[0] < -0.6 && v[0] > -1.3 && v[3] < -0.6 && v[3] > -1.3);
    ck_assert_double_lt(fabs(v[1]) + fabs(v[2]), 1e-12);
    tg_optim_free(o);
    end();
}
END_TEST

/* A rate that is set for the optimizer keeps the ratio of the two methods' rates. */
START_TEST(muon_has_two_groups) {
    begin();
    tg_tensor *x[] = {leaf_of(TG_SHAPE(1, 1), &(double){0}), leaf(0)};
    tg_optim *o = tg_muon_new(ctx, x, 2, TG_MUON(.lr = 0.2, .adamw = TG_ADAMW(.lr = 0.1, .eps = 0)));
    tg_optim_set_lr(o, 0.02);
    give(x[0], &(double){1});
    give(x[1], &(double){1});
    step(o);
    ck_close(tg_item(x[1]), -0.01);
    ck_assert(tg_item(x[0]) < -0.02 * 0.6 && tg_item(x[0]) > -0.02 * 1.3);
    tg_optim_free(o);
    tg_optim_free(tg_muon_new(ctx, x, 2, TG_MUON(.adamw = TG_ADAMW(.lr = -1))));
    ck_says("tg_muon_new: .adamw: lr is -1, expected a finite number, 0 or more");
    tg_ctx_clear(ctx);
    end();
}
END_TEST

/* ---- Groups and memory ---- */

/* Only RMSprop's groups have an eps of their own, and only Lion's have betas. */
START_TEST(groups_have_the_numbers_of_the_method) {
    begin();
    tg_tensor *x[] = {leaf(1), leaf(1)}, *y[] = {leaf(1), leaf(1)};
    tg_optim *r = tg_rmsprop_new(ctx, x, 2, NULL), *l = tg_lion_new(ctx, y, 2, TG_LION(.lr = 0.1));
    int own = tg_optim_add_group(r, TG_GROUP(.eps = 0.9));
    tg_optim_assign(r, own, &x[1], 1);
    own = tg_optim_add_group(l, TG_GROUP(.lr_scale = 2, .beta2 = 0));
    tg_optim_assign(l, own, &y[1], 1);
    for (int i = 0; i < 2; i++) give(x[i], &(double){1}), give(y[i], &(double){3});
    step(r);
    step(l);
    ck_close(tg_item(x[0]), 1 - 0.01 / (0.1 + 1e-8));
    ck_close(tg_item(x[1]), 1 - 0.01 / (0.1 + 0.9));
    ck_close(tg_item(y[0]), 1 - 0.1);
    ck_close(tg_item(y[1]), 1 - 0.2);
    ck_close(tg_item(tg_optim_state(l, 1, NULL)), 3);
    ck_assert(tg_optim_add_group(l, TG_GROUP(.eps = 1)) < 0);
    ck_says("but lion has only betas; leave the others TG_AUTO");
    tg_ctx_clear(ctx);
    tg_optim_free(r);
    tg_optim_free(l);
    end();
}
END_TEST

/* ---- Memory ---- */

/* An allocator whose fail-th call fails. */
typedef struct memory {
    int calls, fail, blocks;
} memory;

static void *take(void *user, size_t bytes, size_t align) {
    memory *m = user;
    void *p = NULL;
    if (++m->calls == m->fail || posix_memalign(&p, align < sizeof p ? sizeof p : align, bytes)) return NULL;
    m->blocks++;
    return p;
}

static void give_back(void *user, void *p, size_t bytes) {
    (void)bytes;
    ((memory *)user)->blocks--;
    free(p);
}

/* Makes an optimizer of each method, L-BFGS and averages, and two steps of each. Returns the calls of the allocator in
 * the second step. */
static int make_all(memory *m) {
    int calls = 0;
    tg_tensor *p[2] = {tg_param_new(ctx, "w", TG_BF16, TG_SHAPE(40, 30), 1),
                       tg_param_new(ctx, "b", TG_F64, TG_SHAPE(9), 1)};
    tg_optim *o[] = {tg_sgd_new(ctx, p, 2, TG_SGD(.lr = 0.1, .momentum = 0.9)),
                     tg_rmsprop_new(ctx, p, 2, TG_RMSPROP(.centered = true, .momentum = 0.9)),
                     tg_adagrad_new(ctx, p, 2, NULL), tg_lion_new(ctx, p, 2, NULL), tg_muon_new(ctx, p, 2, NULL)};
    tg_average *a = tg_ema_new(ctx, p, 2, 0.9);
    tg_lbfgs *l = tg_lbfgs_new(ctx, &p[1], 1, TG_LBFGS(.history = 3));
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < 2; i++) tg_backward(t, tg_sum(t, tg_mul(t, p[i], p[i]), TG_ALL_DIMS, false));
        tg_tape_reset(t);
        int before = m->calls;
        for (size_t i = 0; i < sizeof o / sizeof *o; i++) tg_optim_step(o[i]);
        tg_average_update(a);
        calls = m->calls - before;
    }
    for (size_t i = 0; i < sizeof o / sizeof *o; i++) tg_optim_free(o[i]);
    tg_average_free(a);
    tg_lbfgs_free(l);
    return calls;
}

/* Any one allocation may fail: nothing leaks. A second step allocates nothing. */
START_TEST(every_allocation_may_fail) {
    for (int n = 1, failed = 1; failed; n++) {
        memory m = {.fail = n};
        ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .allocator = {take, give_back, &m}));
        t = tg_tape_new(ctx);
        int calls = make_all(&m);
        failed = m.calls >= n;
        ck_assert_int_eq(tg_ctx_status(ctx), failed ? TG_ERR_MEMORY : TG_OK);
        if (!failed) ck_assert_int_eq(calls, 0);
        tg_tape_free(t);
        tg_ctx_free(ctx);
        ck_assert_msg(m.blocks == 0, "%d blocks leak after failure %d", m.blocks, n);
    }
}
END_TEST

/* ---- Ranks ---- */

/* A shard of rows is refused where the whole matrix is needed, and stepped by AdamW if it is listed. */
static tg_status shards(void *arg, tg_ctx *c, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    tg_tensor *w = tg_param_new(c, "w", TG_F64, TG_SHAPE(2, 2), 1);
    tg_place(p, w, TG_TP, TG_SHARD(0));
    REFUSED(c, TG_ERR_PLACEMENT, "w f64[2, 2], is a shard (tp V0), but Muon needs whole matrices",
            tg_muon_new(c, &w, 1, NULL));
    REFUSED(c, TG_ERR_PLACEMENT, "w f64[2, 2], is a shard (tp V0)", tg_lbfgs_new(c, &w, 1, NULL));
    tg_optim *o = tg_muon_new(c, &w, 1, TG_MUON(.others = &w, .n_others = 1));
    EXPECT(c, tg_optim_state_count(o) == 2);
    tg_optim_free(o);
    tg_drop(w);
    tg_parallel_free(p);
    return tg_ctx_status(c);
}

/* On the CPU in every run of the program, which may have only one GPU. */
START_TEST(shards_of_matrices_are_refused) {
    char message[1024];
    tg_status s = tg_ranks_run(2, shards, NULL, TG_RANKS(.config = TG_CONFIG(.threads = 1, .dtype = TG_F64),
                                                         .message = message, .message_size = sizeof message));
    ck_assert_msg(s == TG_OK, "%s", message);
}
END_TEST

int main(void) {
    const TTest *tests[] = {rmsprop_is_pytorch_s,
                            adagrad_is_pytorch_s,
                            a_variance_of_zero_is_no_nan,
                            lion_is_its_formula,
                            muon_is_its_formula,
                            muon_makes_steps_nearly_orthogonal,
                            muon_has_two_groups,
                            every_allocation_may_fail,
                            shards_of_matrices_are_refused,
                            groups_have_the_numbers_of_the_method};
    return tg_check_main("methods", tests, sizeof tests / sizeof *tests);
}
