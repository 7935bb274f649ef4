/* Averages of parameters: their values, evaluation with them, the masters of 16-bit parameters, and their state. */
#include <math.h>

#include <tapegrad/average.h>
#include <tapegrad/ops.h>
#include <tapegrad/optim.h>

#include "world.h"

#define ck_close(a, b) ck_assert_double_eq_tol(a, b, 1e-13 * (1 + fabs((double)(b))))

static void set(tg_tensor *x, double v) { tg_write_f64(x, &v, 1); }

static tg_tensor *average_of(tg_average *a, int i) { return tg_average_state(a, i, NULL); }

START_TEST(an_ema_is_its_formula) {
    begin();
    tg_tensor *x = leaf(7);
    tg_average *a = tg_ema_new(ctx, &x, 1, 0.75);
    double want = NAN;
    for (int k = 0; k < 20; k++) {
        double v = sin(k);
        set(x, v);
        tg_average_update(a);
        want = k ? 0.75 * want + 0.25 * v : v;
        ck_close(tg_item(average_of(a, 0)), want);
        ck_assert_int_eq(tg_average_updates(a), k + 1);
    }
    tg_average_free(a);
    end();
}
END_TEST

START_TEST(a_mean_is_the_mean) {
    begin();
    tg_tensor *x[] = {leaf(0), tg_zeros(ctx, TG_F32, TG_SHAPE())};
    tg_set_requires_grad(x[1], true);
    tg_average *a = tg_swa_new(ctx, x, 2);
    double sum = 0;
    for (int k = 1; k <= 20; k++) {
        for (int i = 0; i < 2; i++) set(x[i], k * k);
        sum += k * k;
        tg_average_update(a);
        ck_close(tg_item(average_of(a, 0)), sum / k);
        ck_assert_double_eq_tol(tg_item(average_of(a, 1)), sum / k, 1e-4);
    }
    tg_average_free(a);
    end();
}
END_TEST

/* The average of a 16-bit parameter keeps what the parameter cannot represent. */
START_TEST(sixteen_bits_average_in_float32) {
    begin();
    tg_tensor *x = tg_zeros(ctx, TG_BF16, TG_SHAPE());
    tg_set_requires_grad(x, true);
    tg_average *a = tg_swa_new(ctx, &x, 1);
    set(x, 1), tg_average_update(a);
    set(x, 1 + 0x1p-7), tg_average_update(a);
    ck_assert(tg_dtype_of(average_of(a, 0)) == TG_F32 && tg_item(average_of(a, 0)) == 1 + 0x1p-8);
    tg_average_free(a);
    end();
}
END_TEST

/* One step of AdamW, which a bfloat16 parameter hardly sees but its master does. */
static void step(tg_optim *o, tg_tensor *x) {
    tg_backward(t, tg_sum(t, x, TG_ALL_DIMS, false));
    tg_optim_step(o);
    tg_optim_zero_grad(o);
    tg_tape_reset(t);
}

/* A run that is evaluated with the averages between its steps has the bits of one that is not, masters included. */
START_TEST(evaluation_leaves_no_trace) {
    double end_of[2][4];
    begin();
    for (int evaluates = 0; evaluates < 2; evaluates++) {
        tg_tensor *x[] = {tg_zeros(ctx, TG_BF16, TG_SHAPE()), leaf(2)};
        set(x[0], 1);
        tg_set_requires_grad(x[0], true);
        tg_optim *o = tg_adamw_new(ctx, x, 2, TG_ADAMW(.lr = 1e-4));
        tg_average *a = tg_ema_new(ctx, x, 2, 0.5);
        for (int k = 0; k < 8; k++) {
            step(o, x[0]), step(o, x[1]);
            tg_average_update(a);
            if (!evaluates) continue;
            double own = tg_item(x[1]);
            tg_average_apply(a);
            ck_assert(tg_item(x[1]) == tg_item(average_of(a, 1)));
            tg_average_restore(a);
            ck_assert(tg_item(x[1]) == own);
        }
        for (int i = 0; i < 2; i++)
            end_of[evaluates][i] = tg_item(x[i]), end_of[evaluates][2 + i] = tg_item(average_of(a, i));
        const char *name;
        tg_tensor *master = tg_optim_state(o, 2, &name);
        ck_assert_ptr_nonnull(strstr(name, "master"));
        end_of[evaluates][0] = tg_item(master);
        ck_assert(end_of[evaluates][0] < 1 && end_of[evaluates][0] > 0.99);
        tg_average_free(a);
        tg_optim_free(o);
    }
    ck_assert_mem_eq(end_of[0], end_of[1], sizeof end_of[0]);
    end();
}
END_TEST

#define REFUSED(code, says, call)                                                                                      \
    do {                                                                                                               \
        ck_assert_int_eq(call, TG_ERR_##code);                                                                         \
        ck_says(says);                                                                                                 \
        tg_ctx_clear(ctx);                                                                                             \
    } while (0)

START_TEST(calls_out_of_order_change_nothing) {
    begin();
    tg_tensor *x = leaf(2);
    tg_average *a = tg_ema_new(ctx, &x, 1, 0.5);
    REFUSED(STATE, "there was no tg_average_update", tg_average_apply(a));
    REFUSED(STATE, "call tg_average_apply first", tg_average_restore(a));
    REFUSED(STATE, "call tg_average_apply first", tg_average_commit(a));
    tg_average_update(a);
    set(x, 4);
    tg_average_apply(a);
    REFUSED(STATE, "call tg_average_restore first", tg_average_update(a));
    REFUSED(STATE, "applied already", tg_average_apply(a));
    ck_assert(tg_item(x) == 2);
    set(x, 9);
    REFUSED(STATE, "was written after tg_average_apply", tg_average_restore(a));
    ck_assert(tg_item(x) == 9);
    ck_assert_int_eq(tg_average_commit(a), TG_OK);
    ck_assert(tg_item(x) == 9 && tg_item(average_of(a, 0)) == 2);
    tg_average_update(a);
    ck_assert(tg_item(average_of(a, 0)) == 5.5);
    tg_average_free(a);
    end();
}
END_TEST

static struct {
    tg_ctx *ctx;
    const tg_device_ops *ops;
    int left; /* the number of maps of this context that succeed, before `failing` ones fail */
    int failing;
} weak;

static tg_status weak_apply(tg_ctx *c, tg_formula f, tg_array out, const tg_array *in, int n, const double p[2],
                            bool add) {
    if (c != weak.ctx || weak.left-- > 0 || weak.failing-- <= 0) return weak.ops->apply(c, f, out, in, n, p, add);
    return tg_ctx_fail(c, TG_ERR_DEVICE, "the device is weak");
}

/* A device that fails in the midst leaves the parameters as they were, or a state from which they are restored. */
START_TEST(a_device_that_fails_loses_no_parameter) {
    enum { N = 3 };
    tg_ctx *cpu = tg_ctx_new(TG_CONFIG(.threads = 1));
    tg_device_ops ops = *(weak.ops = tg_ctx_ops(cpu));
    ops.apply = weak_apply;
    ctx = tg_ctx_new_on(&ops, TG_CONFIG(.threads = 1, .dtype = TG_F64));
    t = tg_tape_new(ctx);
    tg_tensor *x[N];
    for (int i = 0; i < N; i++) x[i] = leaf(i);
    tg_average *a = tg_ema_new(ctx, x, N, 0.5);
    tg_average_update(a);
    for (int i = 0; i < N; i++) set(x[i], 10 + i);
    for (int failing = 1; failing <= 2; failing++) /* 2: the copies cannot be written back either */
        for (int left = 0; left < 2 * N; left++) {
            weak.ctx = ctx, weak.left = left, weak.failing = failing;
            REFUSED(DEVICE, "the device is weak", tg_average_apply(a));
            weak.ctx = NULL;
            if (failing == 2 && left >= N) ck_assert_int_eq(tg_average_restore(a), TG_OK);
            REFUSED(STATE, "call tg_average_apply first", tg_average_restore(a));
            for (int i = 0; i < N; i++) ck_assert(tg_item(x[i]) == 10 + i);
        }
    for (int left = 0; left < N; left++) {
        ck_assert_int_eq(tg_average_apply(a), TG_OK);
        weak.ctx = ctx, weak.left = left, weak.failing = 1;
        REFUSED(DEVICE, "the device is weak", tg_average_restore(a));
        weak.ctx = NULL;
        ck_assert_int_eq(tg_average_restore(a), TG_OK);
        for (int i = 0; i < N; i++) ck_assert(tg_item(x[i]) == 10 + i);
    }
    tg_average_free(a);
    end();
    tg_ctx_free(cpu);
}
END_TEST

/* Also the state of an optimizer, of which several tensors have names that differ at the end alone. */
START_TEST(long_names_are_whole) {
    begin();
    char path[256] = "", text[300];
    const char *name;
    memset(path, 'w', sizeof path - 1);
    tg_tensor *x = leaf(1);
    tg_set_name(x, path);
    tg_average *a = tg_ema_new(ctx, &x, 1, 0.5);
    tg_optim *o = tg_adamw_new(ctx, &x, 1, NULL);
    tg_average_state(a, 0, &name);
    snprintf(text, sizeof text, "%s.average", path);
    ck_assert_str_eq(name, text);
    for (int i = 0; i < 2; i++) {
        tg_optim_state(o, i, &name);
        snprintf(text, sizeof text, "%s.%s", path, i ? "v" : "m");
        ck_assert_str_eq(name, text);
    }
    tg_optim_free(o);
    tg_average_free(a);
    end();
}
END_TEST

/* The state that is written into other averages makes them continue with the same bits. */
START_TEST(a_state_is_restored) {
    begin();
    for (int mean = 0; mean < 2; mean++) {
        tg_tensor *x = leaf(1);
        tg_set_name(x, "w");
        tg_average *a = mean ? tg_swa_new(ctx, &x, 1) : tg_ema_new(ctx, &x, 1, 0.9);
        for (int k = 0; k < 3; k++) set(x, cos(k)), tg_average_update(a);
        tg_average *b = mean ? tg_swa_new(ctx, &x, 1) : tg_ema_new(ctx, &x, 1, 0.9);
        ck_assert_int_eq(tg_average_state_count(a), 2);
        for (int i = 0; i < 2; i++) {
            const char *name;
            double v;
            tg_read_f64(tg_average_state(a, i, &name), &v, 1);
            ck_assert_str_eq(name, i ? "updates" : "w.average");
            tg_write_f64(tg_average_state(b, i, NULL), &v, 1);
        }
        set(x, 5);
        tg_average_update(a);
        tg_average_update(b);
        ck_assert(tg_item(average_of(a, 0)) == tg_item(average_of(b, 0)) && tg_average_updates(b) == 4);
        tg_average_free(a);
        tg_average_free(b);
    }
    end();
}
END_TEST

int main(void) {
    const TTest *tests[] = {an_ema_is_its_formula,
                            a_mean_is_the_mean,
                            sixteen_bits_average_in_float32,
                            evaluation_leaves_no_trace,
                            calls_out_of_order_change_nothing,
                            a_device_that_fails_loses_no_parameter,
                            long_names_are_whole,
                            a_state_is_restored};
    return tg_check_main("average", tests, sizeof tests / sizeof *tests);
}
