/* Modules: calls with several inputs and outputs, also recomputed and captured, buffers, printing, and tables of other
 * versions. */
#include <math.h>

#include <tapegrad/capture.h>
#include <tapegrad/recompute.h>

#include "core/context.h"
#include "counted_allocator.h"
#include "kernels/scalar.h"
#include "mixer.h"

START_TEST(a_call_has_several_inputs_and_outputs) {
    begin();
    tg_module *m = mixer_new();
    tg_tensor *in[2], *out[3];
    double y[N * OUT], sum = 0, mean[C];
    inputs(in);
    ck_assert(tg_module_call(m, t, in, 2, out, 3) == TG_OK);
    ck_assert(tg_dim(out[0], 1) == OUT && tg_dim(out[1], 1) == C && tg_ndim(out[2]) == 0);
    tg_read_f64(out[0], y, N * OUT);
    for (int i = 0; i < N * OUT; i++) sum += y[i] * y[i];
    ck_assert(fabs(tg_item(out[2]) - sum) < 1e-12);
    tg_backward(t, out[2]);
    ck_assert(tg_has_grad(tg_module_find(m, "body.weight")));
    tg_read_f64(tg_module_find(m, "mean"), mean, C); /* half of the batch's mean */
    for (int c = 0; c < C; c++) ck_assert(fabs(mean[c] - 0.5 * (-1 + 0.13 * (c + C * (N - 1) / 2.0))) < 1e-12);
    for (int i = 0; i < 2; i++) tg_drop(in[i]);
    tg_tape_reset(t);
    tg_module_free(m);
    end();
}
END_TEST

static tg_status call_mixer(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    return tg_module_call(state, tape, in, n_in, out, n_out);
}

/* Hooks and buffers in a recomputation: the same gradients as without it, and one update of the running mean. */
START_TEST(a_recomputed_module_gives_the_same_bits) {
    double grad[2][OUT * C], mean[2][C];
    int runs = 0;
    for (int again = 0; again < 2; again++) {
        begin();
        tg_module *m = mixer_new();
        tg_tensor *in[2], *out[3];
        inputs(in);
        tg_module_hook(m, TG_BEFORE, double_first, &runs);
        if (again)
            tg_recompute(t, call_mixer, m, in, 2, out, 3, NULL);
        else
            tg_module_call(m, t, in, 2, out, 3);
        tg_backward(t, tg_add(t, out[2], tg_sum(t, out[1], TG_ALL_DIMS, false)));
        tg_read_f64(tg_grad_of(tg_module_find(m, "body.weight")), grad[again], OUT * C);
        tg_read_f64(tg_module_find(m, "mean"), mean[again], C);
        for (int i = 0; i < 2; i++) tg_drop(in[i]);
        tg_tape_reset(t);
        tg_module_free(m);
        end();
    }
    ck_assert(!memcmp(grad[0], grad[1], sizeof *grad) && !memcmp(mean[0], mean[1], sizeof *mean));
    ck_assert_int_eq(runs, 3); /* the hook runs again with the module */
}
END_TEST

/* ---- Steady and captured steps ---- */

typedef struct stepper {
    tg_module *m;
    tg_tensor *input[2], *w, *loss;
    int hooked;
} stepper;

static void copy_to(tg_tensor *to, tg_tensor *from, bool add) {
    const double none[2] = {0, 0};
    tg_array out = tg_array_of(to), in = tg_array_of(from);
    tg_storage_wrote(to->storage, "copy_to", NULL);
    ctx->run.ops->apply(ctx, TG_FN_id, out, &in, 1, none, add);
}

static tg_status step(void *state, tg_ctx *c) {
    stepper *s = state;
    tg_tensor *out[3];
    tg_module_call(s->m, t, s->input, 2, out, 3);
    tg_backward(t, out[2]);
    tg_tape_set_grad_mode(t, false);
    copy_to(s->w, tg_scale(t, tg_grad_of(s->w), -0.01), true);
    copy_to(s->loss, out[2], false);
    tg_zero_grad(s->w);
    tg_tape_set_grad_mode(t, true);
    tg_tape_reset(t);
    return tg_ctx_status(c);
}

static void stepper_begin(stepper *s) {
    begin();
    *s = (stepper){.m = mixer_new()};
    inputs(s->input);
    s->w = tg_module_find(s->m, "body.weight");
    tg_set_requires_grad(tg_module_find(s->m, "body.bias"), false);
    s->loss = of_host(TG_F64, TG_SHAPE(), 0, 0);
    tg_module_hook(s->m, TG_BEFORE, double_first, &s->hooked);
    tg_module_hook(s->m, TG_AFTER, negate_first, &s->hooked);
}

static void stepper_end(stepper *s) {
    tg_drop(s->loss);
    for (int i = 0; i < 2; i++) tg_drop(s->input[i]);
    tg_module_free(s->m);
    end();
}

static int64_t allocations(void) {
    tg_memory_info info = TG_MEMORY_INFO();
    tg_memory_query(ctx, &info);
    return info.host_allocations;
}

START_TEST(a_hooked_step_allocates_nothing) {
    stepper s;
    stepper_begin(&s);
    for (int i = 0; i < 3; i++) step(&s, ctx);
    int64_t before = allocations();
    for (int i = 0; i < 5; i++) step(&s, ctx);
    ck_assert_int_eq(allocations(), before);
    ck_assert_int_eq(s.hooked, 16);
    stepper_end(&s);
}
END_TEST

START_TEST(a_captured_step_gives_the_same_bits) {
    double w[2][OUT * C], mean[2][C], loss[2];
    for (int capture = 0; capture < 2; capture++) {
        stepper s;
        tg_graph *g = NULL;
        stepper_begin(&s);
        for (int i = 0; i < 2; i++) step(&s, ctx);
        if (capture) g = tg_graph_new(ctx, step, &s);
        for (int i = capture; i < 4; i++) ck_assert(capture ? tg_graph_replay(g) == TG_OK : step(&s, ctx) == TG_OK);
        tg_read_f64(s.w, w[capture], OUT * C);
        tg_read_f64(tg_module_find(s.m, "mean"), mean[capture], C);
        loss[capture] = tg_item(s.loss);
        tg_graph_free(g);
        stepper_end(&s);
    }
    ck_assert(loss[0] == loss[1] && !memcmp(w[0], w[1], sizeof *w) && !memcmp(mean[0], mean[1], sizeof *mean));
}
END_TEST

/* ---- Allocations that fail ---- */

/* Builds a module, hooks into it, runs it, and wraps it. */
static void build_and_run(void) {
    int runs = 0;
    tg_tensor *in[2], *out[3];
    tg_module *m = mixer_new();
    tg_module_hook(m, TG_BEFORE, double_first, &runs);
    inputs(in);
    tg_module_call(m, t, in, 2, out, 3);
    tg_tape_reset(t);
    tg_module_free(tg_float16_new(m, TG_BF16, true, true));
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
    ck_assert_int_gt(fail, 20);
}
END_TEST

/* ---- Tables of other versions and counts ---- */

static tg_tensor *twice(tg_module *m, tg_tape *tape, tg_tensor *x) {
    (void)m;
    return tg_add(tape, x, x);
}

START_TEST(a_table_of_the_first_version_is_taken) {
    static const tg_module_ops old = {.size = offsetof(tg_module_ops, call),
                                      .kind = "twice",
                                      .forward = twice,
                                      .call = mixer_call,
                                      .n_in = 2,
                                      .n_out = 3}; /* the fields after its size are not read */
    static const tg_module_ops tables[] = {{.size = offsetof(tg_module_ops, call) - 1, .kind = "short"},
                                           {.size = sizeof(tg_module_ops) + 8, .kind = "long"}};
    begin();
    tg_module *m = tg_module_new(ctx, &old, NULL);
    tg_tensor *x = of_host(TG_F64, TG_SHAPE(2), 1, 1), *y = NULL;
    ck_assert(tg_module_call(m, t, &x, 1, &y, 1) == TG_OK && tg_numel(y) == 2);
    for (int i = 0; i < 2; i++) {
        tg_module_free(tg_module_new(ctx, &tables[i], NULL));
        ck_status(TG_ERR_ARGUMENT);
        ck_says(i ? "this library knows" : "expected 32 to");
        tg_ctx_clear(ctx);
    }
    tg_drop(x);
    tg_tape_reset(t);
    tg_module_free(m);
    end();
}
END_TEST

static tg_status no_output(tg_module *m, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)m, (void)tape, (void)in, (void)n_in, (void)out, (void)n_out;
    return TG_OK;
}

static tg_status only_fails(tg_module *m, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    no_output(m, tape, in, n_in, out, n_out);
    return TG_ERR_DATA;
}

START_TEST(a_call_with_other_counts_is_refused) {
    static const tg_module_ops nothing = {.size = sizeof nothing, .kind = "nothing", .call = no_output},
                               failing = {.size = sizeof failing, .kind = "failing", .call = only_fails};
    begin();
    tg_module *m = mixer_new(), *l = tg_nn_linear(ctx, 2, 2, false, 1), *n = tg_module_new(ctx, &nothing, NULL),
              *f = tg_module_new(ctx, &failing, NULL);
    tg_tensor *x = of_host(TG_F64, TG_SHAPE(1, 2), 1, 1), *out[3];
    refused(m, x, TG_ERR_SHAPE, "\"mixer\" takes 2 inputs and gives 3 outputs, but the call has 1 and 1");
    ck_assert(tg_module_call(l, t, (tg_tensor *[]){x, x}, 2, out, 3) == TG_ERR_SHAPE);
    ck_says("\"linear\" takes 1 input and gives 1 output, but the call has 2 and 3");
    tg_ctx_clear(ctx);
    refused(n, x, TG_ERR_ARGUMENT, "an output of a module");
    refused(f, x, TG_ERR_CALLBACK, "the call of a \"failing\" failed with TG_ERR_DATA");
    ck_assert(!tg_is_alive(tg_module_forward(m, t, x)));
    ck_status(TG_ERR_SHAPE);
    tg_ctx_clear(ctx);
    tg_drop(x);
    tg_tape_reset(t);
    for (int i = 0; i < 4; i++) tg_module_free((tg_module *[]){m, l, n, f}[i]);
    end();
}
END_TEST

/* ---- Printing ---- */

START_TEST(a_module_prints_as_a_tree) {
    static const char *const want = "mixer (momentum 0.5), eval\n"
                                    "  body: linear (in 4, out 3, bias)\n"
                                    "    weight: f64[3, 4], keeps its dtype\n"
                                    "    bias: f64[3]\n"
                                    "  mean: buffer f64[4]\n"
                                    "  var: buffer f64[4]\n"
                                    "  table: buffer i64[2], transient\n"
                                    "  norm: rms_norm (eps 1e-06)\n"
                                    "    weight: f64[2]\n";
    begin();
    char text[512];
    tg_module *m = mixer_new();
    tg_module_add_buffer(m, "table", of_host(TG_I64, TG_SHAPE(2), 0, 1), TG_BUFFER(.transient = true));
    tg_module_add_child(m, "norm", tg_nn_rms_norm(ctx, 2, 1e-6));
    tg_module_set_mode(m, TG_MODE_EVAL);
    tg_module_keep_f32(m, "body.weight");
    ck_assert_uint_eq(tg_module_print(m, text, sizeof text), strlen(want));
    ck_assert_str_eq(text, want);
    for (size_t n = 1; n < strlen(want); n++) { /* what does not fit is left out, and nothing is written past the end */
        memset(text, '#', sizeof text);
        ck_assert_uint_eq(tg_module_print(m, text, n), strlen(want));
        ck_assert(strncmp(text, want, n - 1) == 0 && strlen(text) == n - 1 && text[n] == '#');
    }
    ck_assert_uint_eq(tg_module_print(m, NULL, 0), strlen(want));
    tg_module_free(m);
    m = tg_float16_new(tg_nn_linear(ctx, 2, 1, false, 1), TG_F16, true, true);
    tg_module_print(m, text, sizeof text);
    ck_assert_str_eq(text, "float16 (f16, first, last, gives f32)\n  linear (in 2, out 1)\n    weight: f16[1, 2]\n");
    tg_module_free(m);
    end();
}
END_TEST

/* ---- Buffers in the state dict ---- */

START_TEST(buffers_are_listed_apart_from_parameters) {
    static const char *const names[] = {"mean", "var", "table"};
    begin();
    tg_module *m = mixer_new();
    tg_tensor *table = of_host(TG_I64, TG_SHAPE(2), 0, 1);
    tg_module_add_buffer(m, "table", table, TG_BUFFER(.transient = true));
    ck_assert(tg_module_param_count(m) == 2 && tg_module_buffer_count(m) == 3);
    ck_assert_int_eq(tg_module_numel(m), OUT * C + OUT);
    for (int k = 0; k < 6; k++) { /* forward, and backward */
        int i = k < 3 ? k : 5 - k;
        const char *path;
        ck_assert_ptr_eq(tg_module_buffer(m, i, &path), tg_module_find(m, names[i]));
        ck_assert_str_eq(path, names[i]);
    }
    tg_drop(table); /* the module owns it */
    ck_assert(tg_is_alive(table));
    tg_module_free(m);
    ck_assert(!tg_is_alive(table));
    end();
}
END_TEST

int main(void) {
    const TTest *const tests[] = {a_call_has_several_inputs_and_outputs,
                                  a_recomputed_module_gives_the_same_bits,
                                  a_hooked_step_allocates_nothing,
                                  a_captured_step_gives_the_same_bits,
                                  no_failed_allocation_leaks,
                                  a_table_of_the_first_version_is_taken,
                                  a_call_with_other_counts_is_refused,
                                  a_module_prints_as_a_tree,
                                  buffers_are_listed_apart_from_parameters};
    return tg_check_main("modules", tests, sizeof tests / sizeof *tests);
}
