/* The optimizer's state on the device: the norm and its limit, the scale of the loss, skipped steps. On the CPU, on a
 * device without the optional slots, and on device cuda if there is one. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <tapegrad/ops.h>
#include <tapegrad/optim.h>

#include "kernels/cpu/cpu.h"
#include "world.h"

/* ---- Devices ---- */

static tg_device_ops bare, counted;
static int copies;

static tg_status count_copy(tg_ctx *c, void *dst, const void *src, size_t bytes, tg_copy_kind kind) {
    copies += kind != TG_COPY_DEVICE;
    return tg_cpu_device.copy(c, dst, src, bytes, kind);
}

/* Returns false if there is no such device. */
static bool open_on(int device, tg_dtype dtype) {
    const tg_config *config = TG_CONFIG(.seed = 5, .threads = 1, .dtype = dtype);
    bare = counted = tg_cpu_device;
    bare.prepare = NULL;
    bare.adamw = NULL;
    counted.copy = count_copy;
    const tg_device_ops *on[] = {&tg_cpu_device, &bare, &counted};
    ctx = device < 3 ? tg_ctx_new_on(on[device], config)
                     : tg_ctx_new(TG_CONFIG(.device = "cuda", .seed = 5, .threads = 1, .dtype = dtype));
    if (tg_ctx_status(ctx) == TG_OK) {
        t = tg_tape_new(ctx);
        return true;
    }
    ck_assert_msg(device == 3 && !getenv("TG_TEST_CUDA"), "%s", tg_ctx_message(ctx));
    tg_ctx_free(ctx);
    return false;
}
enum { CPU, BARE, COUNTED, CUDA, DEVICES };

/* Runs a function that takes a device as a test on each device. */
#define ON_EACH(name, dtype)                               \
    START_TEST(name) {                                     \
        for (int device = 0; device < DEVICES; device++) { \
            if (!open_on(device, dtype)) continue;         \
            name##_on();                                   \
            end();                                         \
        }                                                  \
    }                                                      \
    END_TEST

/* ---- The sequence of scales ---- */

static void scale_state(tg_optim *o, double s[3]) {
    const char *name;
    tg_tensor *x = tg_optim_state(o, tg_optim_state_count(o) - 1, &name);
    ck_assert_str_eq(name, "loss_scale");
    tg_read_f64(x, s, 3);
}

/* Runs one step in which the gradient of x is g. */
static void step_with(tg_optim *o, tg_tensor *x, double g) {
    tg_backward(t, tg_scale_loss(t, tg_scale(t, tg_sum(t, x, TG_ALL_DIMS, false), g), o));
    tg_optim_step(o);
    tg_optim_zero_grad(o);
    tg_tape_reset(t);
}

/* Computed by hand: scale 64, doubled after 3 clean steps, halved from the second overflow on, at least 8. */
static const struct {
    double g, scale, clean, hysteresis;
    int steps;
} sequence[] = {
    {1, 64, 1, 2, 1},        {INFINITY, 64, 0, 1, 1},  {INFINITY, 32, 0, 0, 1},  {-INFINITY, 16, 0, -1, 1},
    {1, 16, 1, -1, 2},       {1, 16, 2, -1, 3},        {NAN, 8, 0, -2, 3},       {INFINITY, 8, 0, -3, 3},
    {1, 8, 1, -3, 4},        {1, 8, 2, -3, 5},         {1, 16, 0, 2, 6},         {INFINITY, 16, 0, 1, 6},
    {1, 16, 1, 1, 7},        {1, 16, 2, 1, 8},         {1, 32, 0, 2, 9},         {1, 32, 1, 2, 10},
    {1, 32, 2, 2, 11},       {1, 64, 0, 2, 12},        {INFINITY, 64, 0, 1, 12}, {NAN, 32, 0, 0, 12},
};

static void the_scale_follows_the_table_on(void) {
    tg_tensor *x = leaf(2);
    tg_optim *o = tg_adamw_new(ctx, &x, 1, TG_ADAMW(.lr = 0.1));
    tg_optim_set_scale(o, TG_LOSS_SCALE(.initial = 64, .interval = 3, .min = 8));
    for (size_t i = 0; i < sizeof sequence / sizeof *sequence; i++) {
        double s[3];
        step_with(o, x, sequence[i].g);
        scale_state(o, s);
        ck_assert_msg(s[0] == sequence[i].scale && s[1] == sequence[i].clean && s[2] == sequence[i].hysteresis,
                      "step %zu: %g, %g, %g", i + 1, s[0], s[1], s[2]);
        ck_assert(tg_optim_scale(o) == sequence[i].scale && tg_optim_steps(o) == sequence[i].steps);
        ck_assert(isfinite(sequence[i].g) ? tg_optim_norm(o) == 1 : !isfinite(tg_optim_norm(o)));
    }
    tg_optim_free(o);
}
ON_EACH(the_scale_follows_the_table, TG_F64)

/* A fixed scale does not change, but an overflow skips the step nevertheless. */
static void a_fixed_scale_stays_on(void) {
    tg_tensor *x = leaf(2);
    tg_optim *o = tg_sgd_new(ctx, &x, 1, TG_SGD(.lr = 0.5));
    tg_optim_set_scale(o, TG_LOSS_SCALE(.initial = 0.25, .fixed = true));
    ck_assert_int_eq(tg_optim_state_count(o), 0);
    step_with(o, x, 3);
    step_with(o, x, INFINITY);
    ck_assert(tg_item(x) == 0.5 && tg_optim_scale(o) == 0.25 && tg_optim_steps(o) == 1);
    tg_optim_set_scale(o, NULL);
    ck_assert(tg_optim_scale(o) == 1);
    step_with(o, x, 1);
    ck_assert(tg_item(x) == 0 && isnan(tg_optim_norm(o)));
    tg_optim_free(o);
}
ON_EACH(a_fixed_scale_stays, TG_F64)

/* A scale that grows with each step stays finite. */
static void the_scale_never_is_infinite_on(void) {
    tg_tensor *x = leaf(2);
    tg_optim *o = tg_sgd_new(ctx, &x, 1, TG_SGD(.lr = 0));
    tg_optim_set_scale(o, TG_LOSS_SCALE(.initial = 1, .growth = 0x1p300, .interval = 1));
    for (int i = 0; i < 6; i++) step_with(o, x, 0);
    ck_assert_msg(tg_optim_scale(o) == 0x1p900, "%g", tg_optim_scale(o));
    tg_optim_free(o);
}
ON_EACH(the_scale_never_is_infinite, TG_F64)

/* ---- A step ---- */

enum { METHODS = 9, PARAMS = 3 };

static tg_optim *method(int k, tg_tensor **p, int n) {
    switch (k) {
    case 0: return tg_adamw_new(ctx, p, n, TG_ADAMW(.lr = 0.1));
    case 1: return tg_adam_new(ctx, p, n, TG_ADAMW(.lr = 0.1, .weight_decay = 0.1));
    case 2: return tg_sgd_new(ctx, p, n, TG_SGD(.lr = 0.1, .weight_decay = 0.1));
    case 3: return tg_sgd_new(ctx, p, n, TG_SGD(.lr = 0.1, .momentum = 0.9, .dampening = 0.5));
    case 4: return tg_sgd_new(ctx, p, n, TG_SGD(.lr = 0.1, .momentum = 0.9, .nesterov = true));
    case 5: return tg_rmsprop_new(ctx, p, n, TG_RMSPROP(.lr = 0.1, .centered = true, .momentum = 0.5));
    case 6: return tg_adagrad_new(ctx, p, n, TG_ADAGRAD(.lr = 0.1, .weight_decay = 0.1));
    case 7: return tg_lion_new(ctx, p, n, TG_LION(.lr = 0.1, .weight_decay = 0.1));
    default: return tg_muon_new(ctx, p, n, TG_MUON(.lr = 0.1, .others = p, .n_others = 1));
    }
}

/* Parameters in float32, float64 and float16, which has a master. */
static void make_params(tg_tensor *p[PARAMS]) {
    static const double v[3][4] = {{1, -0.0, 0.25, -3}, {2, 1, -0.0, 0.125}, {-1, 0.5, -0.0, 7}};
    static const tg_dtype dtypes[PARAMS] = {TG_F32, TG_F64, TG_F16};
    for (int i = 0; i < PARAMS; i++) {
        p[i] = tg_zeros(ctx, dtypes[i], TG_SHAPE(2, 2));
        tg_write_f64(p[i], v[i], 4);
        tg_set_requires_grad(p[i], true);
    }
}

static void backward_of(tg_tensor *const *p, tg_optim *o, double g) {
    for (int i = 0; i < PARAMS; i++) {
        tg_tensor *wide = tg_cast(t, p[i], TG_F64), *y = tg_mul(t, wide, wide);
        tg_backward(t, tg_scale_loss(t, tg_scale(t, tg_sum(t, y, TG_ALL_DIMS, false), g), o));
    }
    tg_tape_reset(t);
}

/* Returns the whole state of p and o as doubles, which show each bit except those of a NaN. */
static int contents(tg_tensor *const *p, tg_optim *o, double *v) {
    int n = 0;
    for (int i = 0; i < PARAMS; i++, n += 4) tg_read_f64(p[i], v + n, 4);
    for (int i = 0; i < tg_optim_state_count(o); i++) {
        const char *name;
        tg_tensor *x = tg_optim_state(o, i, &name);
        if (strcmp(name, "loss_scale") == 0) continue;
        tg_read_f64(x, v + n, 4);
        n += 4;
    }
    return n;
}

static void a_skipped_step_changes_no_bit_on(void) {
    for (int k = 0; k < METHODS; k++) {
        tg_tensor *p[PARAMS];
        double before[64], after[64];
        make_params(p);
        tg_optim *o = method(k, p, PARAMS);
        tg_optim_set_scale(o, TG_LOSS_SCALE(.initial = 8));
        for (int i = 0; i < 4; i++) {
            bool bad = i == 0 || i == 2;
            int n = contents(p, o, before);
            backward_of(p, o, bad ? INFINITY : 1);
            tg_optim_step(o);
            tg_optim_zero_grad(o);
            ck_assert_int_eq(contents(p, o, after), n);
            ck_assert_int_eq(memcmp(before, after, (size_t)n * sizeof *before) == 0, bad);
            ck_assert_int_eq(tg_optim_steps(o), (i + 1) / 2);
        }
        tg_optim_free(o);
        for (int i = 0; i < PARAMS; i++) tg_drop(p[i]);
    }
}
ON_EACH(a_skipped_step_changes_no_bit, TG_F64)

/* A scale that is a power of two is removed from the gradients without rounding. */
static void a_scale_is_taken_out_on(void) {
    for (int k = 0; k < METHODS; k++) {
        double v[2][64];
        int n = 0;
        for (int scaled = 0; scaled < 2; scaled++) {
            tg_tensor *p[PARAMS];
            make_params(p);
            tg_optim *o = method(k, p, PARAMS);
            tg_optim_set_clip(o, 2);
            if (scaled) tg_optim_set_scale(o, TG_LOSS_SCALE(.initial = 1024, .interval = 2));
            for (int i = 0; i < 5; i++) {
                backward_of(p, o, 1 + i);
                tg_optim_step(o);
                tg_optim_zero_grad(o);
            }
            ck_assert(tg_optim_scale(o) == (scaled ? 4096 : 1));
            n = contents(p, o, v[scaled]);
            tg_optim_free(o);
            for (int i = 0; i < PARAMS; i++) tg_drop(p[i]);
        }
        ck_assert_mem_eq(v[0], v[1], (size_t)n * sizeof **v);
    }
}
ON_EACH(a_scale_is_taken_out, TG_F64)

/* Clipping by tg_optim_set_clip and by tg_optim_clip give the same. */
static void clipping_is_the_device_s_on(void) {
    for (int k = 0; k < METHODS; k++) {
        double v[2][64], norm = 0;
        int n = 0;
        for (int set = 0; set < 2; set++) {
            tg_tensor *p[PARAMS];
            make_params(p);
            tg_optim *o = method(k, p, PARAMS);
            ck_assert(isnan(tg_optim_norm(o)));
            if (set) tg_optim_set_clip(o, 3);
            for (int i = 0; i < 3; i++) {
                backward_of(p, o, 0.5 + i);
                if (!set) norm = tg_optim_clip(o, 3);
                tg_optim_step(o);
                tg_optim_zero_grad(o);
            }
            ck_assert_double_eq_tol(tg_optim_norm(o), norm, 1e-12 * norm);
            ck_assert(norm > 3);
            n = contents(p, o, v[set]);
            tg_optim_free(o);
            for (int i = 0; i < PARAMS; i++) tg_drop(p[i]);
        }
        ck_assert_mem_eq(v[0], v[1], (size_t)n * sizeof **v);
    }
}
ON_EACH(clipping_is_the_device_s, TG_F64)

static void a_limit_is_one_or_none_on(void) {
    tg_tensor *x = leaf(0);
    tg_optim *o = tg_sgd_new(ctx, &x, 1, TG_SGD(.lr = 1));
    tg_optim_set_clip(o, INFINITY); /* only the norm */
    step_with(o, x, 8);
    ck_assert(tg_item(x) == -8 && tg_optim_norm(o) == 8);
    step_with(o, x, NAN);
    ck_assert(tg_item(x) == -8 && isnan(tg_optim_norm(o)) && tg_optim_steps(o) == 1);
    tg_optim_set_clip(o, 2);
    step_with(o, x, 4);
    ck_assert(tg_item(x) == -8 - 4 * (2 / (4 + 1e-6)));
    tg_backward(t, tg_scale(t, x, 4)); /* tg_optim_clip: its limit holds for this step only */
    ck_assert(tg_optim_clip(o, 0) == 4);
    tg_optim_step(o);
    tg_optim_zero_grad(o);
    ck_assert(tg_item(x) == -8 - 4 * (2 / (4 + 1e-6)) - 4);
    tg_write_f64(x, &(double){0}, 1);
    step_with(o, x, 4);
    ck_assert(tg_item(x) == -4 * (2 / (4 + 1e-6)));
    tg_optim_set_clip(o, 0);
    step_with(o, x, 4);
    ck_assert(tg_item(x) == -4 * (2 / (4 + 1e-6)) - 4 && isnan(tg_optim_norm(o)));
    tg_optim_free(o);
}
ON_EACH(a_limit_is_one_or_none, TG_F64)

/* The device alone makes the decisions of a step. */
START_TEST(a_step_copies_nothing) {
    for (int k = 0; k < METHODS; k++) {
        ck_assert(open_on(COUNTED, TG_F64));
        tg_tensor *p[PARAMS];
        make_params(p);
        tg_optim *o = method(k, p, PARAMS);
        tg_optim_set_clip(o, 1);
        tg_optim_set_scale(o, TG_LOSS_SCALE(.initial = 8));
        for (int i = 0; i < 5; i++) {
            copies = 0;
            backward_of(p, o, i == 2 ? INFINITY : 1);
            tg_optim_step(o);
            tg_optim_zero_grad(o);
            ck_assert_int_eq(copies, 0);
            tg_optim_set_lr(o, 0.1 / (i + 1));
            ck_assert_int_eq(copies, 1);
        }
        ck_assert_int_eq(tg_optim_steps(o), 4);
        tg_optim_free(o);
        end();
    }
}
END_TEST

static void a_loss_is_scaled_in_float32_on(void) {
    tg_tensor *x = tg_full(t, TG_F16, TG_SHAPE(), 2);
    tg_tensor *p = leaf(1);
    tg_optim *o = tg_sgd_new(ctx, &p, 1, TG_SGD(.lr = 1));
    ck_assert_ptr_eq(tg_scale_loss(t, x, o), x);
    tg_optim_set_scale(o, NULL);
    ck_assert_ptr_eq(tg_scale_loss(t, x, o), x);
    tg_optim_set_scale(o, TG_LOSS_SCALE());
    tg_tensor *y = tg_scale_loss(t, x, o);
    ck_assert(tg_dtype_of(y) == TG_F32 && tg_item(y) == 0x1p33);
    ck_assert(tg_dtype_of(tg_scale_loss(t, tg_full(t, TG_F64, TG_SHAPE(), 2), o)) == TG_F64);
    tg_optim_free(o);
}
ON_EACH(a_loss_is_scaled_in_float32, TG_F64)

/* A loss keeps the scale with which it was multiplied, and the next step would not divide that out. */
static void a_loss_with_another_scale_is_refused_on(void) {
    const tg_loss_scale *next[] = {TG_LOSS_SCALE(.initial = 4), NULL};
    for (int i = 0; i < TG_LEN(next); i++) {
        tg_tensor *p = leaf(1);
        tg_optim *o = tg_sgd_new(ctx, &p, 1, TG_SGD(.lr = 1));
        tg_optim_set_scale(o, TG_LOSS_SCALE(.initial = 1024));
        tg_tensor *l = tg_scale_loss(t, tg_cast(t, tg_square(t, p), TG_F32), o);
        tg_optim_set_scale(o, next[i]);
        ck_assert_int_eq(tg_backward(t, l), TG_ERR_VERSION);
        tg_ctx_clear(ctx);
        tg_optim_free(o);
    }
}
ON_EACH(a_loss_with_another_scale_is_refused, TG_F64)

/* ---- Training in float16 ---- */

enum { ROWS = 32, IN = 4, WIDTH = 16 };

typedef struct net {
    tg_tensor *x, *y, *p[4];
    tg_optim *o;
} net;

static net net_of(double initial, int64_t interval) {
    net n = {.x = tg_zeros(ctx, TG_F16, TG_SHAPE(ROWS, IN)),
             .y = tg_zeros(ctx, TG_F16, TG_SHAPE(ROWS, 1)),
             .p = {tg_param_new(ctx, "fc1.weight", TG_DTYPE_DEFAULT, TG_SHAPE(WIDTH, IN), 0.5),
                   tg_param_new(ctx, "fc1.bias", TG_DTYPE_DEFAULT, TG_SHAPE(WIDTH), 0),
                   tg_param_new(ctx, "fc2.weight", TG_DTYPE_DEFAULT, TG_SHAPE(1, WIDTH), 0.25),
                   tg_param_new(ctx, "fc2.bias", TG_DTYPE_DEFAULT, TG_SHAPE(1), 0)}};
    double x[ROWS * IN], y[ROWS];
    for (int i = 0; i < ROWS * IN; i++) x[i] = sin(1.7 * i + 0.3);
    for (int i = 0; i < ROWS; i++) y[i] = x[i * IN] * x[i * IN + 1] + 0.5 * x[i * IN + 2];
    tg_write_f64(n.x, x, ROWS * IN);
    tg_write_f64(n.y, y, ROWS);
    n.o = tg_adamw_new(ctx, n.p, 4, TG_ADAMW(.lr = 1e-2));
    tg_optim_set_scale(n.o, TG_LOSS_SCALE(.initial = initial, .interval = interval));
    tg_optim_set_clip(n.o, 1);
    return n;
}

static double train(net *n, int steps) {
    double loss = NAN;
    for (int i = 0; i < steps; i++) {
        tg_tensor *h = tg_tanh(t, tg_linear(t, n->x, n->p[0], n->p[1]));
        tg_tensor *l = tg_mse(t, tg_linear(t, h, n->p[2], n->p[3]), n->y);
        tg_backward(t, tg_scale_loss(t, l, n->o));
        tg_optim_step(n->o);
        tg_optim_zero_grad(n->o);
        if (i == steps - 1) loss = tg_item(l);
        tg_tape_reset(t);
    }
    return loss;
}

static void net_free(net *n) {
    tg_optim_free(n->o);
    for (int i = 0; i < 4; i++) tg_drop(n->p[i]);
    tg_drop(n->x);
    tg_drop(n->y);
}

/* The first scales overflow. The first one that does not trains, and the scale grows again. */
static void training_overflows_and_recovers_on(void) {
    net n = net_of(0x1p40, 50);
    double first = train(&n, 1);
    ck_assert(tg_optim_steps(n.o) == 0 && tg_optim_scale(n.o) == 0x1p40);
    train(&n, 1);
    ck_assert(tg_optim_steps(n.o) == 0 && tg_optim_scale(n.o) == 0x1p39);
    double last = train(&n, 150);
    int64_t taken = tg_optim_steps(n.o);
    ck_assert_msg(taken >= 50 && taken < 152 && last < first / 4, "%d steps, from %g to %g", (int)taken, first, last);
    ck_assert(tg_optim_scale(n.o) > 1 && tg_optim_scale(n.o) < 0x1p39);
    net_free(&n);
}
ON_EACH(training_overflows_and_recovers, TG_F16)

/* In the middle of a growth interval, with the hysteresis used up. */
static void a_run_goes_on_bit_for_bit_on(void) {
    enum { STATES = 13 }; /* m, v and master of each parameter, and the scale */
    static const int64_t sizes[] = {WIDTH * IN, WIDTH, WIDTH, 1};
    double state[STATES][WIDTH * IN], param[4][WIDTH * IN], v[2][4][WIDTH * IN], s[2][3];
    net n = net_of(0x1p24, 7);
    train(&n, 24);
    ck_assert_int_eq(tg_optim_state_count(n.o), STATES);
    for (int i = 0; i < STATES; i++) {
        tg_tensor *x = tg_optim_state(n.o, i, NULL);
        tg_read_f64(x, state[i], tg_numel(x));
    }
    for (int i = 0; i < 4; i++) tg_read_f64(n.p[i], param[i], sizes[i]);
    scale_state(n.o, s[0]);
    ck_assert(s[0][1] > 0 && s[0][1] < 7);
    int64_t taken = tg_optim_steps(n.o);
    net again = net_of(3, 7);
    for (int i = 0; i < STATES; i++) {
        tg_tensor *x = tg_optim_state(again.o, i, NULL);
        tg_write_f64(x, state[i], tg_numel(x));
    }
    for (int i = 0; i < 4; i++) tg_write_f64(again.p[i], param[i], sizes[i]);
    tg_optim_set_steps(again.o, taken);
    ck_assert(train(&n, 20) == train(&again, 20));
    for (int i = 0; i < 4; i++) {
        tg_read_f64(n.p[i], v[0][i], sizes[i]);
        tg_read_f64(again.p[i], v[1][i], sizes[i]);
        ck_assert_mem_eq(v[0][i], v[1][i], (size_t)sizes[i] * sizeof(double));
    }
    scale_state(n.o, s[0]);
    scale_state(again.o, s[1]);
    ck_assert_mem_eq(s[0], s[1], sizeof s[0]);
    ck_assert_int_eq(tg_optim_steps(n.o), tg_optim_steps(again.o));
    net_free(&n);
    net_free(&again);
}
ON_EACH(a_run_goes_on_bit_for_bit, TG_F16)

int main(void) {
    const TTest *tests[] = {the_scale_follows_the_table,
                            a_fixed_scale_stays,
                            the_scale_never_is_infinite,
                            a_skipped_step_changes_no_bit,
                            a_scale_is_taken_out,
                            clipping_is_the_device_s,
                            a_limit_is_one_or_none,
                            a_step_copies_nothing,
                            a_loss_is_scaled_in_float32,
                            a_loss_with_another_scale_is_refused,
                            training_overflows_and_recovers,
                            a_run_goes_on_bit_for_bit};
    return tg_check_main("loss_scale", tests, sizeof tests / sizeof *tests);
}
