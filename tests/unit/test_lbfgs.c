/* L-BFGS: compared with PyTorch's, on functions that are hard to minimize, and after errors. */
#include <math.h>
#include <stdlib.h>

#include <tapegrad/lbfgs.h>
#include <tapegrad/ops.h>

#include "unit/optim_reference.h"
#include "unit/world.h"

#define ck_close(a, b) ck_assert_double_eq_tol(a, b, 1e-12 * (1 + fabs((double)(b))))

enum { N = 5, STEPS = 4 };

static tg_tensor *start(void) { return leaf_of(TG_SHAPE(N), (double[N]){1, -0.5, 0.25, 2, -3}); }

/* The chained Rosenbrock function of the parameter *user. */
static tg_status rosenbrock(void *user, double *loss) {
    tg_tensor *x = *(tg_tensor **)user;
    tg_tensor *left = tg_slice(t, x, 0, 0, N - 1, 1), *right = tg_slice(t, x, 0, 1, N, 1);
    tg_tensor *bend = tg_sub(t, right, tg_mul(t, left, left)), *rest = tg_add_scalar(t, tg_neg(t, left), 1);
    tg_tensor *y = tg_add(t, tg_scale(t, tg_mul(t, bend, bend), 100), tg_mul(t, rest, rest));
    y = tg_sum(t, y, TG_ALL_DIMS, false);
    *loss = tg_item(y);
    tg_status s = tg_backward(t, y);
    tg_tape_reset(t);
    return s;
}

START_TEST(the_steps_are_pytorch_s) {
    const tg_lbfgs_opts *const rows[] = {
        TG_LBFGS(.iterations = 5, .evaluations = 6, .history = 100),
        TG_LBFGS(.lr = 0.5, .iterations = 8, .evaluations = 30, .history = 3),
    };
    begin();
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        tg_tensor *x = start();
        tg_lbfgs *l = tg_lbfgs_new(ctx, &x, 1, rows[r]);
        for (int k = 0; k < STEPS; k++) {
            double loss, v[N];
            ck_assert_int_eq(tg_lbfgs_step(l, rosenbrock, &x, &loss), TG_OK);
            tg_read_f64(x, v, N);
            for (int i = 0; i < N; i++) ck_close(v[i], lbfgs_after[r][k * (N + 1) + i]);
            ck_close(loss, lbfgs_after[r][k * (N + 1) + N]);
        }
        tg_lbfgs_free(l);
    }
    end();
}
END_TEST

/* All parameters are 1 at the minimum; further steps change nothing. */
START_TEST(the_minimum_is_found) {
    begin();
    tg_tensor *x = leaf_of(TG_SHAPE(N), (double[N]){0.2, 0.5, 1.5, 0.8, 0.6});
    tg_lbfgs *l = tg_lbfgs_new(ctx, &x, 1, TG_LBFGS(.iterations = 200, .evaluations = 400, .change_tolerance = 0));
    double loss, v[N], again[N];
    tg_lbfgs_step(l, rosenbrock, &x, &loss);
    tg_read_f64(x, v, N);
    for (int i = 0; i < N; i++) ck_assert_double_eq_tol(v[i], 1, 1e-6);
    ck_assert_double_lt(loss, 1e-12);
    tg_lbfgs_step(l, rosenbrock, &x, NULL);
    tg_read_f64(x, again, N);
    for (int i = 0; i < N; i++) ck_assert_double_eq_tol(again[i], v[i], 1e-7);
    tg_lbfgs_free(l);
    end();
}
END_TEST

/* ---- Several parameters ---- */

typedef struct pair {
    tg_tensor *a, *b, *unused;
    int calls, fails_at; /* fails_at: number of the call that fails; 0: none */
    tg_status status;
} pair;

/* sum(exp(a)) - sum(a) + sum((b - 2)^2), whose minimum is at a = 0 and b = 2. It is infinite where a is above 700. */
static tg_status two(void *user, double *loss) {
    pair *p = user;
    if (++p->calls == p->fails_at) return p->status;
    tg_tensor *a = tg_cast(t, p->a, TG_F64), *b = tg_add_scalar(t, p->b, -2);
    tg_tensor *y = tg_sum(t, tg_sub(t, tg_exp(t, a), a), TG_ALL_DIMS, false);
    y = tg_add(t, y, tg_sum(t, tg_mul(t, b, b), TG_ALL_DIMS, false));
    *loss = tg_item(y);
    tg_backward(t, y);
    tg_tape_reset(t);
    return TG_OK;
}

static pair pair_of(void) {
    pair p = {.a = tg_zeros(ctx, TG_F32, TG_SHAPE(2, 2)), .b = leaf_of(TG_SHAPE(3), (double[3]){-4, 0, 5})};
    tg_write_f64(p.a, (double[4]){-3, 1, 2, -1}, 4);
    tg_set_requires_grad(p.a, true);
    p.unused = leaf(7);
    return p;
}

/* Dtypes may be mixed, and a parameter without a gradient stays as it is. A first step that is far too long leads to
 * infinite losses, from which the search comes back. */
START_TEST(several_parameters_are_one_vector) {
    begin();
    for (int far = 0; far < 2; far++) {
        pair p = pair_of();
        tg_lbfgs *l = tg_lbfgs_new(ctx, (tg_tensor *[]){p.a, p.b, p.unused}, 3,
                                   TG_LBFGS(.lr = far ? 1e6 : 1, .iterations = 60, .evaluations = 200));
        double loss, a[4], b[3];
        ck_assert_int_eq(tg_lbfgs_step(l, two, &p, &loss), TG_OK);
        tg_read_f64(p.a, a, 4);
        tg_read_f64(p.b, b, 3);
        for (int i = 0; i < 4; i++) ck_assert_double_eq_tol(a[i], 0, 1e-3);
        for (int i = 0; i < 3; i++) ck_assert_double_eq_tol(b[i], 2, 1e-4);
        ck_assert_double_eq_tol(loss, 4, 1e-6);
        ck_assert(tg_item(p.unused) == 7);
        tg_lbfgs_free(l);
    }
    end();
}
END_TEST

/* Whichever call of the function fails, the parameters are those of a complete iteration, and steps can follow. */
START_TEST(a_failed_function_leaves_a_complete_iteration) {
    begin();
    int k = 1;
    for (bool failed = true; failed; k++) {
        pair p = pair_of();
        double before[3], after[3], loss;
        tg_lbfgs *l = tg_lbfgs_new(ctx, (tg_tensor *[]){p.a, p.b}, 2, TG_LBFGS(.iterations = 1));
        tg_lbfgs_step(l, two, &p, NULL);
        tg_read_f64(p.b, before, 3);
        p.calls = 0, p.fails_at = k, p.status = TG_ERR_DATA;
        tg_status s = tg_lbfgs_step(l, two, &p, NULL);
        failed = p.calls == k;
        ck_assert_int_eq(s, failed ? TG_ERR_CALLBACK : TG_OK);
        if (failed) ck_says("the loss function failed with TG_ERR_DATA");
        tg_ctx_clear(ctx);
        tg_read_f64(p.b, after, 3);
        ck_assert_int_eq(memcmp(before, after, sizeof before) == 0, failed);
        p.fails_at = 0;
        for (int i = 0; i < 30; i++) ck_assert_int_eq(tg_lbfgs_step(l, two, &p, &loss), TG_OK);
        ck_assert_double_eq_tol(loss, 4, 1e-6);
        tg_lbfgs_free(l);
    }
    ck_assert_int_gt(k, 3);
    end();
}
END_TEST

/* Drops a parameter in the second call. */
static tg_status two_then_drop(void *user, double *loss) {
    pair *p = user;
    tg_status s = two(p, loss);
    if (p->calls == 2) tg_drop(p->b);
    return s;
}

START_TEST(a_function_may_not_drop_a_parameter) {
    begin();
    pair p = pair_of();
    tg_lbfgs *l = tg_lbfgs_new(ctx, (tg_tensor *[]){p.a, p.b}, 2, NULL);
    ck_assert_int_eq(tg_lbfgs_step(l, two_then_drop, &p, NULL), TG_ERR_HANDLE);
    ck_says("parameter 1 was dropped");
    tg_ctx_clear(ctx);
    tg_lbfgs_free(l);
    end();
}
END_TEST

/* A loss function that steps or frees the object for which it is called. */
typedef struct inner {
    pair p;
    tg_lbfgs *l;
    bool frees, clears; /* clears: clears the error of its own call */
} inner;

static tg_status two_within(void *user, double *loss) {
    inner *i = user;
    if (i->frees)
        tg_lbfgs_free(i->l);
    else
        tg_lbfgs_step(i->l, two, &i->p, NULL);
    ck_assert_int_eq(tg_ctx_status(ctx), TG_ERR_STATE);
    ck_says(i->frees ? "tg_lbfgs_free: called by the loss function" : "tg_lbfgs_step: called by the loss function");
    if (i->clears) tg_ctx_clear(ctx);
    return two(&i->p, loss);
}

START_TEST(a_function_may_not_step_or_free_the_object) {
    begin();
    for (int k = 0; k < 4; k++) {
        inner i = {.p = pair_of(), .frees = k & 1, .clears = k & 2};
        double loss = 0;
        i.l = tg_lbfgs_new(ctx, (tg_tensor *[]){i.p.a, i.p.b}, 2, TG_LBFGS(.iterations = 60, .evaluations = 200));
        ck_assert_int_eq(tg_lbfgs_step(i.l, two_within, &i, &loss), i.clears ? TG_OK : TG_ERR_STATE);
        tg_ctx_clear(ctx);
        ck_assert_int_eq(tg_lbfgs_step(i.l, two, &i.p, &loss), TG_OK);
        ck_assert_double_eq_tol(loss, 4, 1e-6);
        tg_lbfgs_free(i.l);
    }
    end();
}
END_TEST

/* While the object lives, a parameter's bytes cannot move, so it cannot be divided over ranks or get another dtype. */
START_TEST(parameters_are_held) {
    begin();
    tg_tensor *x = start(), *view = tg_zeros(ctx, tg_dtype_of(x), TG_SHAPE(N));
    tg_lbfgs *l = tg_lbfgs_new(ctx, &x, 1, NULL);
    ck_assert_int_eq(tg_rehome(x, view), TG_ERR_STATE);
    ck_says("an optimizer holds it");
    tg_ctx_clear(ctx);
    tg_lbfgs_free(l);
    ck_assert_int_eq(tg_rehome(x, view), TG_OK);
    end();
}
END_TEST

int main(void) {
    const TTest *tests[] = {the_steps_are_pytorch_s,
                            the_minimum_is_found,
                            several_parameters_are_one_vector,
                            a_failed_function_leaves_a_complete_iteration,
                            a_function_may_not_drop_a_parameter,
                            a_function_may_not_step_or_free_the_object,
                            parameters_are_held};
    return tg_check_main("lbfgs", tests, sizeof tests / sizeof *tests);
}
