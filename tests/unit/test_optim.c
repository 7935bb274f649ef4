/* Optimizers compared with their formulas; groups, clipping, float32 master weights and their restoration from a file;
 * schedules. */
#include <math.h>

#include <tapegrad/ops.h>
#include <tapegrad/optim.h>

#include "world.h"

#define ck_near(a, b) ck_assert_double_eq_tol(a, b, 1e-12 * (1 + fabs((double)(b))))

/* Sets the gradient of x to g. */
static void give(tg_tensor *x, double g) { tg_backward(t, tg_scale(t, tg_sum(t, x, TG_ALL_DIMS, false), g)); }

static double value(tg_tensor *x) {
    double v[4];
    tg_read_f64(x, v, tg_numel(x));
    return v[0];
}

START_TEST(adamw_is_its_formula) {
    begin();
    tg_tensor *x = leaf(2);
    tg_optim *o =
        tg_adamw_new(ctx, &x, 1, TG_ADAMW(.lr = 0.1, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-3, .weight_decay = 0.5));
    double p = 2, m = 0, v = 0;
    for (int k = 1; k <= 5; k++) {
        double g = 0.3 * k - 1;
        m = 0.8 * m + 0.2 * g, v = 0.9 * v + 0.1 * g * g;
        p -= 0.1 * 0.5 * p;
        p -= 0.1 * (m / (1 - pow(0.8, k))) / (sqrt(v / (1 - pow(0.9, k))) + 1e-3);
        give(x, g);
        tg_optim_step(o);
        tg_optim_zero_grad(o);
        ck_near(value(x), p);
    }
    ck_assert_int_eq(tg_optim_steps(o), 5);
    tg_optim_free(o);
    end();
}
END_TEST

START_TEST(sgd_is_its_formula) {
    begin();
    for (int nesterov = 0; nesterov < 2; nesterov++) {
        tg_tensor *x = leaf(2);
        tg_optim *o =
            tg_sgd_new(ctx, &x, 1, TG_SGD(.lr = 0.1, .momentum = 0.9, .weight_decay = 0.5, .nesterov = nesterov));
        double p = 2, m = 0;
        for (int k = 1; k <= 4; k++) {
            double g = 0.3 * k + 0.5 * p;
            m = 0.9 * m + g;
            p -= 0.1 * (nesterov ? g + 0.9 * m : m);
            give(x, 0.3 * k);
            tg_optim_step(o);
            tg_optim_zero_grad(o);
            ck_near(value(x), p);
        }
        tg_optim_free(o);
    }
    end();
}
END_TEST

/* Only matrices keep weight decay, in every group that has it, at the group's own rate. */
START_TEST(vectors_do_not_decay) {
    begin();
    tg_tensor *p[4];
    for (int i = 0; i < 4; i++) p[i] = leaf_of(i % 2 ? TG_SHAPE(1) : TG_SHAPE(1, 1), &(double){1});
    tg_optim *o = tg_adamw_new(ctx, p, 4, TG_ADAMW(.lr = 0.1, .weight_decay = 0.5));
    int slow = tg_optim_add_group(o, TG_GROUP(.lr_scale = 0.1, .weight_decay = 0.2));
    tg_optim_assign(o, slow, p + 2, 2);
    tg_optim_no_decay_1d(o);
    for (int i = 0; i < 4; i++) give(p[i], 0);
    tg_optim_step(o);
    ck_near(value(p[0]), 1 - 0.1 * 0.5);
    ck_near(value(p[1]), 1);
    ck_near(value(p[2]), 1 - 0.01 * 0.2);
    ck_near(value(p[3]), 1);
    tg_optim_free(o);
    end();
}
END_TEST

/* Two groups need a copy, but there is space for one. */
START_TEST(all_vectors_decay_if_a_group_has_no_space) {
    begin();
    tg_tensor *p[2] = {leaf_of(TG_SHAPE(1), &(double){1}), leaf_of(TG_SHAPE(1), &(double){1})};
    tg_optim *o = tg_adamw_new(ctx, p, 2, TG_ADAMW(.lr = 0.1, .weight_decay = 0.5));
    tg_optim_assign(o, tg_optim_add_group(o, NULL), &p[1], 1);
    while (tg_optim_add_group(o, NULL) < 30) continue;
    ck_assert_int_eq(tg_optim_no_decay_1d(o), TG_ERR_ARGUMENT);
    ck_says("tg_optim_no_decay_1d: the optimizer has 31 groups already, and would get 2 more; expected at most 32");
    tg_ctx_clear(ctx);
    for (int i = 0; i < 2; i++) give(p[i], 0);
    tg_optim_step(o);
    for (int i = 0; i < 2; i++) ck_near(value(p[i]), 1 - 0.1 * 0.5);
    tg_optim_free(o);
    end();
}
END_TEST

/* A group steps like an optimizer made with its options. */
START_TEST(a_group_has_its_own_numbers) {
    begin();
    tg_tensor *both[2], *alone;
    for (int i = 0; i < 2; i++) both[i] = leaf(1);
    alone = leaf(1);
    tg_optim *o = tg_adamw_new(ctx, both, 2, TG_ADAMW(.lr = 0.1, .weight_decay = 0.5));
    tg_optim *a = tg_adamw_new(ctx, &alone, 1,
                               TG_ADAMW(.lr = 0.04, .beta1 = 0.5, .beta2 = 0.7, .eps = 1e-2, .weight_decay = 0));
    int own = tg_optim_add_group(o, TG_GROUP(.lr_scale = 0.5, .weight_decay = 0, .beta1 = 0.5, .beta2 = 0.7,
                                         .eps = 1e-2));
    int same = tg_optim_add_group(o, NULL);
    tg_optim_assign(o, own, &both[1], 1);
    tg_optim_assign(o, same, &both[0], 1);
    tg_optim_set_lr_of(o, own, 0.08);
    for (int i = 0; i < 3; i++) {
        give(both[0], 0), give(both[1], 1 + i), give(alone, 1 + i);
        tg_optim_step(o);
        tg_optim_step(a);
        tg_optim_zero_grad(o);
        tg_optim_zero_grad(a);
    }
    ck_assert(value(both[1]) == value(alone));
    ck_near(value(both[0]), pow(1 - 0.1 * 0.5, 3));
    tg_optim_set_lr(o, 0); /* of every group */
    give(both[0], 1), give(both[1], 1);
    double before[2] = {value(both[0]), value(both[1])};
    tg_optim_step(o);
    ck_assert(value(both[0]) == before[0] && value(both[1]) == before[1]);
    tg_optim_free(o);
    tg_optim_free(a);
    end();
}
END_TEST

/* The rate of a schedule is that of the step that is made; a skipped step does not count. */
START_TEST(a_group_follows_its_schedule) {
    begin();
    tg_tensor *x[32];
    const tg_schedule *s = TG_SCHEDULE(.lr = 1, .min_lr = 0.25, .warmup = 2, .steps = 6, .decay = TG_DECAY_COSINE);
    for (int i = 0; i < 32; i++) x[i] = leaf(0);
    tg_optim *o = tg_sgd_new(ctx, x, 32, TG_SGD(.lr = 0.5));
    tg_optim_set_clip(o, INFINITY);
    for (int i = 1; i < 32; i++)
        ck_assert(tg_optim_add_group(o, TG_GROUP(.lr_scale = i, .schedule = i % 2 ? s : NULL)) == i);
    for (int i = 1; i < 32; i++) tg_optim_assign(o, i, &x[i], 1);
    double want[32] = {0};
    int64_t taken = 0;
    for (int i = 0; i < 9; i++) {
        bool bad = i == 1 || i == 4;
        for (int j = 0; j < 32; j++) give(x[j], bad ? NAN : 1);
        tg_optim_set_lr(o, 0.5 + i);
        tg_optim_step(o);
        tg_optim_zero_grad(o);
        taken += !bad;
        for (int j = 0; j < 32; j++) {
            if (!bad) want[j] -= (j % 2 ? tg_schedule_lr(s, taken) : 0.5 + i) * (j ? j : 1);
            ck_near(value(x[j]), want[j]);
        }
    }
    tg_optim_free(o);
    end();
}
END_TEST

START_TEST(a_clip_is_of_the_gradients_that_it_saw) {
    begin();
    tg_tensor *x = leaf(0);
    tg_optim *o = tg_sgd_new(ctx, &x, 1, TG_SGD(.lr = 1));
    give(x, INFINITY);
    ck_assert(isinf(tg_optim_clip(o, 1)));
    tg_optim_step(o);
    ck_assert(value(x) == 0 && tg_optim_steps(o) == 0);
    ck_assert(isinf(tg_optim_clip(o, 1)));
    tg_optim_zero_grad(o);
    give(x, 1);
    tg_optim_step(o);
    ck_near(value(x), -1);
    tg_optim_zero_grad(o);
    give(x, 8);
    ck_near(tg_optim_clip(o, 2), 8);
    tg_optim_step(o);
    ck_near(value(x), -1 - 8 * (2 / (8 + 1e-6)));
    tg_optim_free(o);
    end();
}
END_TEST

static tg_optim *bf16_optim(tg_tensor **x) {
    *x = tg_zeros(ctx, TG_BF16, TG_SHAPE(1));
    tg_write_f64(*x, &(double){1}, 1);
    tg_set_requires_grad(*x, true);
    return tg_adamw_new(ctx, x, 1, TG_ADAMW(.lr = 1e-4, .weight_decay = 0));
}

static tg_tensor *master_of(tg_optim *o) {
    const char *name;
    tg_tensor *s = tg_optim_state(o, tg_optim_state_count(o) - 1, &name);
    ck_assert(strstr(name, ".master") != NULL);
    return s;
}

static void steps(tg_optim *o, tg_tensor *x, int n) {
    for (int i = 0; i < n; i++) {
        give(x, 1);
        tg_optim_step(o);
        tg_optim_zero_grad(o);
    }
}

/* Five steps change the master by less than bfloat16 can represent; a restored run must continue from the master. */
START_TEST(masters_come_back_in_any_order) {
    begin();
    tg_tensor *x;
    tg_optim *o = bf16_optim(&x);
    steps(o, x, 5);
    ck_assert(value(x) == 1 && value(master_of(o)) < 0.9996);
    double kept[3], param = value(x), expected;
    for (int i = 0; i < 3; i++) tg_read_f64(tg_optim_state(o, i, NULL), &kept[i], 1);
    steps(o, x, 1);
    expected = value(master_of(o));
    for (int order = 0; order < 2; order++) {
        tg_tensor *y;
        tg_optim *again = bf16_optim(&y);
        if (order) tg_write_f64(y, &param, 1);
        for (int i = 0; i < 3; i++) tg_write_f64(tg_optim_state(again, i, NULL), &kept[i], 1);
        if (!order) tg_write_f64(y, &param, 1);
        tg_optim_set_steps(again, 5);
        steps(again, y, 1);
        ck_assert(value(master_of(again)) == expected);
        tg_optim_free(again);
    }
    tg_write_f64(x, &(double){3}, 1); /* a parameter that was written alone replaces its master */
    steps(o, x, 1);
    ck_assert(value(master_of(o)) > 2.99 && value(x) == 3);
    tg_optim_free(o);
    end();
}
END_TEST

/* In every build, whatever the compiler inlines. */
START_TEST(a_step_is_named_by_its_place) {
    begin();
    tg_tensor *x = leaf(2), *y = tg_square(t, x);
    tg_optim *o = tg_sgd_new(ctx, &x, 1, TG_SGD(.lr = 1));
    give(x, 1);
    tg_optim_step(o);
    ck_assert_int_eq(tg_backward(t, y), TG_ERR_VERSION);
    ck_says("was overwritten by tg_optim_step, called from test_optim.c:");
    tg_ctx_clear(ctx);
    tg_optim_free(o);
    end();
}
END_TEST

START_TEST(schedules_pass_through_their_points) {
    const struct {
        tg_schedule s;
        int64_t step;
        double lr;
    } rows[] = {
        {*TG_SCHEDULE(.lr = 1, .warmup = 10, .steps = 100, .decay = TG_DECAY_CONSTANT), 5, 0.5},
        {*TG_SCHEDULE(.lr = 1, .warmup = 10, .steps = 100, .decay = TG_DECAY_CONSTANT), 500, 1},
        {*TG_SCHEDULE(.lr = 1, .min_lr = 0.2, .warmup = 10, .steps = 110, .decay = TG_DECAY_LINEAR), 60, 0.6},
        {*TG_SCHEDULE(.lr = 1, .min_lr = 0.2, .warmup = 10, .steps = 110, .decay = TG_DECAY_COSINE), 60, 0.6},
        {*TG_SCHEDULE(.lr = 1, .min_lr = 0.2, .warmup = 10, .steps = 110, .decay = TG_DECAY_COSINE), 110, 0.2},
        {*TG_SCHEDULE(.lr = 1, .min_lr = 0.2, .warmup = 10, .steps = 110, .decay = TG_DECAY_COSINE), 111, 0.2},
        {*TG_SCHEDULE(.lr = 1, .warmup = 25, .steps = 1000, .decay = TG_DECAY_INVERSE_SQRT), 100, 0.5},
        {*TG_SCHEDULE(.lr = 1, .warmup = 10, .steps = 100, .decay = TG_DECAY_WSD, .wsd_steps = 40), 60, 1},
        {*TG_SCHEDULE(.lr = 1, .warmup = 10, .steps = 100, .decay = TG_DECAY_WSD, .wsd_steps = 40), 70, 0.75},
        {*TG_SCHEDULE(.lr = 1, .warmup = 10, .steps = 100, .decay = TG_DECAY_WSD, .wsd_steps = 40,
                      .wsd = TG_WSD_MINUS_SQRT),
         70, 0.5},
        {*TG_SCHEDULE(.lr = 1, .warmup = 10, .steps = 100, .decay = TG_DECAY_WSD, .wsd_steps = 40,
                      .wsd = TG_WSD_COSINE),
         80, 0.5},
        {*TG_SCHEDULE(.lr = 1, .warmup = 10, .steps = 100, .decay = TG_DECAY_WSD, .wsd_steps = 40,
                      .wsd = TG_WSD_EXPONENTIAL),
         100, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        ck_near(tg_schedule_lr(&rows[i].s, rows[i].step), rows[i].lr);
    ck_assert(isnan(tg_schedule_lr(NULL, 1)) && isnan(tg_schedule_lr(&rows[0].s, -1)));
}
END_TEST

int main(void) {
    const TTest *tests[] = {adamw_is_its_formula,
                            sgd_is_its_formula,
                            vectors_do_not_decay,
                            all_vectors_decay_if_a_group_has_no_space,
                            a_group_has_its_own_numbers,
                            a_group_follows_its_schedule,
                            a_clip_is_of_the_gradients_that_it_saw,
                            masters_come_back_in_any_order,
                            a_step_is_named_by_its_place,
                            schedules_pass_through_their_points};
    return tg_check_main("optim", tests, sizeof tests / sizeof *tests);
}
