/* Shared by tests of modules: a module with two inputs, three outputs, a child and two buffers, and hooks for it. */
#ifndef TG_TEST_MIXER_H
#define TG_TEST_MIXER_H

#include <tapegrad/nn.h>

#include "world.h"

enum { N = 6, C = 4, OUT = 3 };

static inline tg_status mixer_call(tg_module *m, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out,
                                   int n_out) {
    (void)n_in, (void)n_out;
    tg_tensor *x =
        tg_batch_norm(tape, in[0], NULL, NULL, tg_module_find(m, "mean"), tg_module_find(m, "var"), 0.5, 1e-5);
    out[0] = tg_module_forward(tg_module_child(m, "body"), tape, tg_mul(tape, x, in[1]));
    out[1] = tg_dropout(tape, x, 0.5);
    out[2] = tg_sum(tape, tg_square(tape, out[0]), TG_ALL_DIMS, false);
    return tg_ctx_status(tg_tape_ctx(tape));
}

static inline size_t mixer_describe(const tg_module *m, char *buf, size_t n) {
    (void)m;
    return (size_t)snprintf(buf, n, "momentum %g", 0.5);
}

static const tg_module_ops mixer_ops = {.size = sizeof(tg_module_ops),
                                        .kind = "mixer",
                                        .call = mixer_call,
                                        .describe = mixer_describe,
                                        .n_in = 2,
                                        .n_out = 3};

static inline tg_tensor *of_host(tg_dtype dtype, tg_shape shape, double first, double step) {
    double v[64];
    tg_tensor *x = tg_zeros(ctx, dtype, shape);
    for (int64_t i = 0; i < tg_numel(x); i++) v[i] = first + step * (double)i;
    tg_write_f64(x, v, tg_numel(x));
    return x;
}

static inline tg_module *mixer_new(void) {
    tg_module *m = tg_module_new(ctx, &mixer_ops, NULL);
    tg_module_add_child(m, "body", tg_nn_linear(ctx, C, OUT, true, 0.5));
    tg_module_add_buffer(m, "mean", of_host(TG_F64, TG_SHAPE(C), 0, 0), NULL);
    tg_module_add_buffer(m, "var", of_host(TG_F64, TG_SHAPE(C), 1, 0), NULL);
    return m;
}

/* Inputs that live as long as the context. */
static inline void inputs(tg_tensor *in[2]) {
    in[0] = of_host(TG_F64, TG_SHAPE(N, C), -1, 0.13);
    in[1] = of_host(TG_F64, TG_SHAPE(C), 0.5, 0.25);
}

static inline tg_status double_first(void *user, tg_module *m, tg_tape *tape, tg_tensor **x, int n) {
    (void)m;
    ++*(int *)user;
    ck_assert_int_eq(n, 2);
    x[0] = tg_scale(tape, x[0], 2);
    return TG_OK;
}

static inline tg_status negate_first(void *user, tg_module *m, tg_tape *tape, tg_tensor **x, int n) {
    (void)m;
    ++*(int *)user;
    ck_assert_int_eq(n, 3);
    x[0] = tg_neg(tape, x[0]);
    return TG_OK;
}

/* Calls m, and checks the error, that the outputs are inert, and that the tape is as before. */
static inline void refused(tg_module *m, tg_tensor *x, tg_status status, const char *says) {
    bool training = tg_is_training(t);
    tg_tensor *y = NULL;
    ck_assert_int_eq(tg_module_call(m, t, &x, 1, &y, 1), status);
    ck_assert(!tg_is_alive(y) && tg_is_training(t) == training);
    ck_status(status);
    ck_says(says);
    tg_ctx_clear(ctx);
}

#endif
