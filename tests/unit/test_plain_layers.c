/* Convolution, norm, dropout and function modules, and sequences of modules: what they compute, gradients, modes,
 * printing, and allocations that fail. */
#include <math.h>

#include <tapegrad/gradcheck.h>
#include <tapegrad/nn.h>

#include "counted_allocator.h"
#include "world.h"

enum { N = 2, C = 4, L = 5, MOST = 128 };

static tg_tensor *wave(tg_shape shape, int k) {
    double v[MOST];
    int64_t n = 1;
    for (int d = 0; d < shape.ndim; d++) n *= shape.dim[d];
    for (int i = 0; i < n; i++) v[i] = cos(0.3 * i + k);
    return tg_from_host(ctx, TG_F64, shape, v);
}

/* Gives all parameters other values than those of a new module. */
static tg_module *waves(tg_module *m) {
    double v[MOST];
    for (int k = 0, n = tg_module_param_count(m); k < n; k++) {
        tg_tensor *p = tg_module_param(m, k, NULL);
        for (int i = 0; i < tg_numel(p); i++) v[i] = 0.5 * sin(0.7 * i + k + 1);
        tg_write_f64(p, v, tg_numel(p));
    }
    return m;
}

static bool same(tg_tensor *a, tg_tensor *b) {
    double v[2][MOST];
    ck_assert_int_eq(tg_numel(a), tg_numel(b));
    tg_read_f64(a, v[0], tg_numel(a));
    tg_read_f64(b, v[1], tg_numel(b));
    return !memcmp(v[0], v[1], (size_t)tg_numel(a) * sizeof **v);
}

static tg_tensor *w(tg_module *m) { return tg_module_find(m, "weight"); }
static tg_tensor *b(tg_module *m) { return tg_module_find(m, "bias"); }

/* ---- Each layer is its op ---- */

START_TEST(layers_are_their_ops) {
    begin();
    const tg_conv_opts *strided = TG_CONV(.stride = {2}, .padding = {1}, .dilation = {1}, .groups = 2),
                       *plane = TG_CONV(.stride = {1, 2}, .padding = {1, 0}, .dilation = {1, 1}, .groups = 1);
    tg_tensor *x = wave(TG_SHAPE(N, C, L), 1), *image = wave(TG_SHAPE(1, 2, 4, 5), 2);
    tg_module *m[] = {waves(tg_nn_conv1d(ctx, C, 6, 3, true, 1, strided)),
                      waves(tg_nn_conv2d(ctx, 2, 3, 3, 2, false, 1, plane)), waves(tg_nn_group_norm(ctx, 2, C, 1e-3)),
                      tg_nn_function(ctx, "silu", tg_silu), tg_nn_sequential(ctx)};
    ck_assert(tg_dim(w(m[0]), 0) == 6 && tg_dim(w(m[0]), 1) == C / 2 && tg_dim(w(m[0]), 2) == 3);
    ck_assert(tg_dim(w(m[1]), 2) == 3 && tg_dim(w(m[1]), 3) == 2 && !b(m[1]));
    ck_assert(same(tg_module_forward(m[0], t, x), tg_conv1d(t, x, w(m[0]), b(m[0]), strided)));
    ck_assert(same(tg_module_forward(m[1], t, image), tg_conv2d(t, image, w(m[1]), NULL, plane)));
    ck_assert(same(tg_module_forward(m[2], t, x), tg_group_norm(t, x, 2, w(m[2]), b(m[2]), 1e-3)));
    ck_assert(same(tg_module_forward(m[3], t, x), tg_silu(t, x)));
    ck_assert(same(tg_module_forward(m[4], t, x), x)); /* a sequence of nothing */
    tg_tape_reset(t);
    for (int i = 0; i < 5; i++) tg_module_free(m[i]);
    end();
}
END_TEST

START_TEST(dropout_is_keyed_and_only_in_training) {
    begin();
    tg_module *m = tg_nn_dropout(ctx, 0.5);
    tg_tensor *x = wave(TG_SHAPE(N, C, L), 1), *y[2];
    for (int i = 0; i < 2; i++) {
        tg_draws_step(ctx, 3);
        tg_key_open(ctx, 7);
        y[i] = tg_module_forward(m, t, x);
        tg_key_close(ctx);
    }
    ck_assert(same(y[0], y[1]) && !same(y[0], x));
    tg_module_set_mode(m, TG_MODE_EVAL);
    ck_assert(same(tg_module_forward(m, t, x), x));
    tg_tape_reset(t);
    tg_module_free(m);
    end();
}
END_TEST

/* ---- Batch norm ---- */

START_TEST(batch_norm_keeps_statistics) {
    begin();
    tg_module *m = tg_nn_batch_norm(ctx, C, 0.25, 0);
    tg_tensor *x = wave(TG_SHAPE(N, C, L), 1), *mean = tg_module_find(m, "running_mean"),
              *var = tg_module_find(m, "running_var"), *first = tg_mean(t, x, TG_DIMS(0, 2), false),
              *spread = tg_var(t, x, TG_DIMS(0, 2), 1, false);
    double got[2][C], of_x[2][C];
    ck_assert(tg_module_param_count(m) == 2 && tg_module_buffer_count(m) == 2);
    tg_module_forward(m, t, x);
    tg_read_f64(mean, got[0], C), tg_read_f64(var, got[1], C);
    tg_read_f64(first, of_x[0], C), tg_read_f64(spread, of_x[1], C);
    for (int c = 0; c < C; c++)
        ck_assert(fabs(got[0][c] - 0.25 * of_x[0][c]) < 1e-14 && fabs(got[1][c] - 0.75 - 0.25 * of_x[1][c]) < 1e-14);
    tg_module_set_mode(m, TG_MODE_EVAL);
    tg_shape channels = TG_SHAPE(1, C, 1);
    tg_tensor *y = tg_module_forward(m, t, x), *centered = tg_sub(t, x, tg_reshape(t, mean, channels)),
              *by_hand = tg_div(t, centered, tg_sqrt(t, tg_reshape(t, var, channels)));
    ck_assert(tg_item(tg_max(t, tg_abs(t, tg_sub(t, y, by_hand)), TG_ALL_DIMS, false)) < 1e-14);
    tg_tape_reset(t);
    tg_module_free(m);
    end();
}
END_TEST

START_TEST(a_cast_leaves_the_statistics) {
    begin();
    tg_module *m = tg_nn_sequential(ctx);
    tg_sequential_add(m, tg_nn_batch_norm(ctx, C, 0.1, 1e-5));
    tg_module_cast(m, TG_BF16);
    ck_assert(tg_dtype_of(tg_module_find(m, "0.weight")) == TG_BF16);
    ck_assert(tg_dtype_of(tg_module_find(m, "0.running_var")) == TG_F64);
    tg_module_free(m);
    end();
}
END_TEST

/* ---- Sequences ---- */

/* A small network with every kind of layer. */
static tg_module *network(void) {
    tg_module *m = tg_nn_sequential(ctx);
    tg_sequential_add(m, tg_nn_conv1d(ctx, C, 4, 2, true, 0.5, NULL));
    tg_sequential_add(m, tg_nn_batch_norm(ctx, 4, 0.1, 1e-3));
    tg_sequential_add(m, tg_nn_function(ctx, "tanh", tg_tanh));
    tg_sequential_add(m, tg_nn_group_norm(ctx, 2, 4, 1e-3));
    tg_sequential_add(m, tg_nn_dropout(ctx, 0.25));
    tg_module_add_child(m, "last", tg_nn_linear(ctx, L - 1, 3, true, 0.5));
    return m;
}

START_TEST(a_sequence_runs_its_children_in_their_order) {
    static const char *const want = "sequential\n"
                                    "  0: conv1d (in 4, out 4, window [2], bias)\n"
                                    "    weight: f64[4, 4, 2]\n"
                                    "    bias: f64[4]\n"
                                    "  1: batch_norm (momentum 0.1, eps 0.001)\n"
                                    "    weight: f64[4]\n"
                                    "    bias: f64[4]\n"
                                    "    running_mean: buffer f64[4], keeps its dtype\n"
                                    "    running_var: buffer f64[4], keeps its dtype\n"
                                    "  2: function (tanh)\n"
                                    "  3: group_norm (groups 2, eps 0.001)\n"
                                    "    weight: f64[4]\n"
                                    "    bias: f64[4]\n"
                                    "  4: dropout (p 0.25)\n"
                                    "  last: linear (in 4, out 3, bias)\n"
                                    "    weight: f64[3, 4]\n"
                                    "    bias: f64[3]\n";
    begin();
    char text[1024];
    tg_module *m = network();
    tg_module_print(m, text, sizeof text);
    ck_assert_str_eq(text, want);
    tg_module_set_mode(m, TG_MODE_EVAL);
    tg_tensor *x = wave(TG_SHAPE(N, C, L), 1), *y = x;
    static const char *const names[] = {"0", "1", "2", "3", "4", "last"};
    for (int i = 0; i < 6; i++) y = tg_module_forward(tg_module_child(m, names[i]), t, y);
    ck_assert(same(tg_module_forward(m, t, x), y));
    tg_module *linear = tg_nn_linear(ctx, 2, 2, true, 0);
    ck_assert(tg_sequential_add(linear, tg_nn_dropout(ctx, 0)) == TG_ERR_ARGUMENT);
    ck_says("the module is a \"linear\", expected one that tg_nn_sequential made");
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
    tg_module_free(linear);
    tg_module_free(m);
    end();
}
END_TEST

START_TEST(a_child_is_added_after_another_was_freed) {
    begin();
    tg_module *m = tg_nn_sequential(ctx);
    for (int i = 0; i < 3; i++) tg_sequential_add(m, tg_nn_function(ctx, "tanh", tg_tanh));
    tg_module_free(tg_module_child(m, "1"));
    ck_assert(tg_sequential_add(m, tg_nn_dropout(ctx, 0)) == TG_OK);
    ck_assert_str_eq(tg_module_kind(tg_module_child(m, "3")), "dropout");
    tg_module_free(m);
    end();
}
END_TEST

static tg_status call(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in;
    return tg_module_call(state, tape, in, 1, out, n_out);
}

START_TEST(gradients_are_those_of_differences) {
    begin();
    for (int training = 0; training < 2; training++) {
        tg_module *m = waves(network()), *plane = tg_nn_conv2d(ctx, 2, 2, 2, 2, true, 0.5, NULL);
        tg_tensor *in[16] = {wave(TG_SHAPE(N, C, L), 1)}, *image[3] = {wave(TG_SHAPE(1, 2, 3, 3), 1)};
        tg_set_requires_grad(in[0], true), tg_set_requires_grad(image[0], true);
        int n = 1 + tg_module_params(m, in + 1, 15);
        tg_module_params(plane, image + 1, 2);
        tg_module_set_mode(tg_module_child(m, "4"), TG_MODE_EVAL); /* differences need the same draws */
        tg_module_set_mode(tg_module_child(m, "1"), training ? TG_MODE_TRAIN : TG_MODE_EVAL);
        /* Training moves the statistics from run to run, which the check of equal runs would see. */
        ck_assert_msg(tg_gradcheck(t, call, m, in, n, 1, NULL, TG_GRADCHECK(.strict = true, .no_extras = training)) ==
                          TG_OK,
                      "%s", tg_ctx_message(ctx));
        ck_assert(tg_gradcheck(t, call, plane, image, 3, 1, NULL, TG_GRADCHECK(.strict = true)) == TG_OK);
        tg_module_free(m);
        tg_module_free(plane);
    }
    end();
}
END_TEST

/* ---- Allocations that fail ---- */

/* Makes, runs and changes modules of every kind. Returns nothing: what is made is freed, also after an error. */
static void build_and_run(void) {
    tg_module *m = network(), *r = tg_nn_lstm(ctx, 2, 2, 2, TG_RNN(.bidirectional = true)), *other;
    tg_tensor *x = wave(TG_SHAPE(N, C, L), 1), *s = wave(TG_SHAPE(2, 1, 2), 1), *out[3];
    tg_module_forward(m, t, x);
    tg_module_call(r, t, &s, 1, out, 3);
    tg_param_init(tg_module_find(m, "last.weight"), TG_ORTHOGONAL(1));
    tg_param_init(tg_module_find(m, "last.weight"), TG_INIT(.kind = TG_INIT_EYE, .a = 1));
    tg_tape_reset(t);
    other = tg_nn_dropout(ctx, 0);
    tg_module_free(tg_module_replace(m, "last", other));
    if (tg_ctx_status(ctx) != TG_OK) tg_module_free(other); /* else it belongs to m */
    tg_module_free(m);
    tg_module_free(r);
}

START_TEST(no_failed_allocation_leaks) {
    counted memory = {.lasting = true};
    int fail = 0;
    for (bool failed = true; failed; fail++) {
        ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64, .allocator = {counted_alloc, counted_free, &memory}));
        t = tg_tape_new(ctx);
        memory.fail_at = memory.calls + fail + 1;
        build_and_run();
        failed = tg_ctx_status(ctx) != TG_OK;
        if (failed) ck_status(TG_ERR_MEMORY);
        memory.fail_at = 0;
        tg_ctx_clear(ctx);
        tg_tape_free(t);
        tg_ctx_free(ctx);
        ck_assert_msg(memory.held == 0, "%lld blocks are left after allocation %d failed", (long long)memory.held,
                      fail);
    }
    ck_assert_int_gt(fail, 50);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        layers_are_their_ops,         dropout_is_keyed_and_only_in_training,       batch_norm_keeps_statistics,
        a_cast_leaves_the_statistics, a_sequence_runs_its_children_in_their_order, gradients_are_those_of_differences,
        no_failed_allocation_leaks,   a_child_is_added_after_another_was_freed};
    return tg_check_main("plain_layers", tests, sizeof tests / sizeof *tests);
}
