/* Errors, handles and ownership (promises 2 and 4 of docs/design.md), and the serial numbers that recognize stale
 * handles. */
#include "check_main.h"

#include <math.h>
#include <string.h>

#include <tapegrad/extend.h>
#include <tapegrad/tapegrad.h>

static tg_ctx *ctx_new(void) { return tg_ctx_new(TG_CONFIG(.seed = 3, .threads = 1)); }

#define ck_status(ctx, s)                                                                                              \
    ck_assert_msg(tg_ctx_status(ctx) == (s), "%s: %s", tg_status_name(tg_ctx_status(ctx)), tg_ctx_message(ctx))
#define ck_says(ctx, text) ck_assert_msg(strstr(tg_ctx_message(ctx), text), "\"%s\" in: %s", text, tg_ctx_message(ctx))

START_TEST(first_error_sticks) {
    tg_ctx *ctx = ctx_new();
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *a = tg_randn(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(2, 3), 1),
              *b = tg_randn(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(4, 5), 1);
    tg_tensor *bad = tg_add(t, a, b);
    ck_status(ctx, TG_ERR_SHAPE);
    ck_says(ctx, "add");
    ck_says(ctx, "[2, 3]");
    ck_says(ctx, "[4, 5]");
    ck_says(ctx, "f32");
    ck_says(ctx, "called from");
    ck_assert(!tg_is_alive(bad));
    char first[2048];
    strcpy(first, tg_ctx_message(ctx));
    tg_matmul(t, bad, b);
    tg_backward(t, bad);
    ck_assert(isnan(tg_item(bad)));
    ck_assert(tg_randn(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(1), 1) == bad);
    ck_assert_str_eq(tg_ctx_message(ctx), first);
    tg_ctx_clear(ctx);
    ck_status(ctx, TG_OK);
    ck_assert_str_eq(tg_ctx_message(ctx), "");
    ck_assert(tg_is_alive(tg_add(t, a, a)));
    tg_neg(t, bad);
    ck_status(ctx, TG_ERR_HANDLE);
    ck_says(ctx, "inert");
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(a_failed_call_changes_nothing) {
    tg_ctx *ctx = ctx_new();
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *p = tg_param_new(ctx, "p", TG_DTYPE_DEFAULT, TG_SHAPE(3, 3), 1),
              *q = tg_randn(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(2, 2), 1);
    tg_mul(t, p, p);
    tg_memory_info before = TG_MEMORY_INFO(), after = TG_MEMORY_INFO();
    tg_rng r0, r1;
    tg_memory_query(ctx, &before);
    tg_rng_get(ctx, NULL, &r0);
    int64_t nodes = tg_tape_nodes(t);
    tg_matmul(t, p, q);
    tg_ctx_clear(ctx);
    tg_dropout(t, p, 1.5);
    ck_status(ctx, TG_ERR_ARGUMENT);
    tg_ctx_clear(ctx);
    tg_memory_query(ctx, &after);
    tg_rng_get(ctx, NULL, &r1);
    ck_assert_int_eq(before.live, after.live);
    ck_assert_int_eq(nodes, tg_tape_nodes(t));
    ck_assert(memcmp(&r0, &r1, sizeof r0) == 0);
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(stale_handles_are_recognized) {
    tg_ctx *ctx = ctx_new();
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = tg_randn(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(2), 1), *y = tg_neg(t, x);
    tg_ref ref = tg_ref_of(y);
    ck_assert(tg_ref_get(ctx, ref) == y);
    tg_tape_reset(t);
    ck_assert(!tg_is_alive(y));
    ck_assert(!tg_is_alive(tg_ref_get(ctx, ref)));
    ck_assert_int_eq(tg_ndim(y), 0);
    tg_neg(t, y);
    ck_status(ctx, TG_ERR_HANDLE);
    ck_says(ctx, "reset");
    tg_ctx_clear(ctx);
    tg_drop(x);
    tg_neg(t, x);
    ck_status(ctx, TG_ERR_HANDLE);
    ck_says(ctx, "dropped");
    tg_ctx_clear(ctx);
    tg_drop(x); /* dropping twice does nothing */
    tg_tensor *z = tg_full(t, TG_F32, TG_SHAPE(1), 2);
    tg_tape_free(t);
    ck_assert(!tg_is_alive(z));
    tg_neg(t, z);
    ck_status(ctx, TG_ERR_HANDLE);
    tg_ctx_free(ctx);
}
END_TEST

/* Their slots are reused, except for half of them in each second step, which is shorter. */
START_TEST(handles_of_the_last_step_are_dead_while_the_next_one_records) {
    enum { MANY = 300 };
    tg_ctx *ctx = ctx_new();
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *last[MANY], *now[MANY];
    for (int step = 0, n_last = 0, n; step < 6; step++, n_last = n) {
        n = step % 2 ? MANY / 2 : MANY;
        for (int i = 0; i < n; i++) {
            now[i] = tg_full(t, TG_F32, TG_SHAPE(1), i);
            for (int j = 0; j < n_last; j++) ck_assert(now[i] != last[j] && !tg_is_alive(last[j]));
        }
        for (int i = 0; i < n_last; i++) {
            ck_assert_int_eq(tg_numel(last[i]), 0);
            tg_drop(last[i]);
            tg_keep(last[i]);
            ck_status(ctx, TG_ERR_HANDLE);
            ck_says(ctx, "reset");
            tg_ctx_clear(ctx);
        }
        for (int i = 0; i < n; i++) ck_assert(tg_item(now[i]) == i);
        memcpy(last, now, sizeof last);
        tg_tape_reset(t);
    }
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(references_outlive_reuse) {
    tg_ctx *ctx = ctx_new();
    tg_tape *t = tg_tape_new(ctx);
    tg_ref refs[20];
    for (int step = 0; step < 20; step++) { /* slabs are reused many times */
        refs[step] = tg_ref_of(tg_full(t, TG_F32, TG_SHAPE(1), step));
        for (int i = 0; i < step; i++) ck_assert(!tg_is_alive(tg_ref_get(ctx, refs[i])));
        ck_assert(tg_item(tg_ref_get(ctx, refs[step])) == step);
        tg_tape_reset(t);
    }
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(foreign_tensors_are_refused) {
    tg_ctx *a = ctx_new(), *b = ctx_new();
    tg_tape *ta = tg_tape_new(a), *tb = tg_tape_new(b), *tb2 = tg_tape_new(b);
    tg_tensor *x = tg_randn(a, TG_DTYPE_DEFAULT, TG_SHAPE(2), 1), *y = tg_randn(b, TG_DTYPE_DEFAULT, TG_SHAPE(2), 1);
    tg_add(tb, y, x);
    ck_status(b, TG_ERR_HANDLE);
    ck_says(b, "another context");
    ck_status(a, TG_OK);
    tg_ctx_clear(b);
    tg_tensor *r = tg_neg(tb, y);
    tg_neg(tb2, r);
    ck_status(b, TG_ERR_HANDLE);
    ck_says(b, "tg_tape_input");
    tg_ctx_clear(b);
    ck_assert(tg_is_alive(tg_neg(tb2, tg_tape_input(tb2, r))));
    tg_tape_free(ta);
    tg_ctx_free(a);
    tg_ctx_free(b);
}
END_TEST

START_TEST(a_context_that_cannot_be_made_is_dead) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "abacus"));
    ck_status(ctx, TG_ERR_DEVICE);
    ck_says(ctx, "abacus");
    tg_tape *t = tg_tape_new(ctx);
    ck_assert_ptr_nonnull(t);
    tg_tensor *x = tg_randn(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(2), 1);
    ck_assert(!tg_is_alive(tg_neg(t, x)));
    tg_ctx_clear(ctx);
    ck_status(ctx, TG_ERR_DEVICE); /* a dead context stays dead */
    tg_tape_free(t);
    tg_ctx_free(ctx);
    ctx = tg_ctx_new(TG_CONFIG(.threads = -2));
    ck_status(ctx, TG_ERR_ARGUMENT);
    tg_ctx_free(ctx);
    ctx = tg_ctx_new(TG_CONFIG(.isa = "mmx"));
    ck_status(ctx, TG_ERR_ARGUMENT);
    tg_ctx_free(ctx);
}
END_TEST

static void count(void *user) { ++*(int *)user; }

START_TEST(a_limit_of_memory_is_kept) {
    tg_ctx *c = tg_ctx_new(TG_CONFIG(.threads = 1, .memory = 1 << 20));
    tg_tape *tape = tg_tape_new(c);
    tg_tensor *w = tg_param_new(c, "w", TG_DTYPE_DEFAULT, TG_SHAPE(150000), 1),
              *small = tg_zeros(c, TG_F32, TG_SHAPE(1000));
    ck_assert_msg(tg_ctx_status(c) == TG_OK, "%s", tg_ctx_message(c));
    ck_assert(!tg_is_alive(tg_exp(tape, w)) && tg_ctx_status(c) == TG_ERR_MEMORY);
    ck_assert_msg(strstr(tg_ctx_message(c), "600000 bytes were asked for, the limit is 1048576; ") &&
                      strstr(tg_ctx_message(c), "(parameters 600"),
                  "%s", tg_ctx_message(c));
    tg_ctx_clear(c);
    ck_assert(!tg_is_alive(tg_lease(tape, "big", TG_F32, TG_SHAPE(150000))) && tg_ctx_status(c) == TG_ERR_MEMORY);
    tg_ctx_clear(c);
    ck_assert(tg_is_alive(tg_exp(tape, small)) && tg_ctx_status(c) == TG_OK); /* smaller allocations succeed */
    tg_drop(w);
    ck_assert(tg_is_alive(tg_zeros(c, TG_F32, TG_SHAPE(200000))) && tg_ctx_status(c) == TG_OK);
    tg_ctx_free(c);
}
END_TEST

/* Sorting needs 32 bytes of workspace per element. */
START_TEST(a_limit_of_memory_counts_workspaces) {
    for (int mib = 2; mib <= 4; mib += 2) {
        tg_ctx *c = tg_ctx_new(TG_CONFIG(.threads = 1, .memory = (int64_t)mib << 20));
        tg_tape *tape = tg_tape_new(c);
        tg_tensor *x = tg_zeros(c, TG_F32, TG_SHAPE(50000)), *y = tg_sort(tape, x, 0, false, NULL);
        tg_status expected = mib == 2 ? TG_ERR_MEMORY : TG_OK;
        ck_assert_msg(tg_ctx_status(c) == expected && tg_is_alive(y) == !expected, "%s", tg_ctx_message(c));
        ck_assert(!expected ||
                  strstr(tg_ctx_message(c), "1600000 bytes of workspace were asked for, the limit is 2097152"));
        tg_ctx_clear(c);
        /* The sorted tensor, its order and the workspace are nearly 3 MB. */
        tg_tensor *more = tg_zeros(c, TG_F32, TG_SHAPE(425000));
        ck_assert_int_eq(tg_ctx_status(c), mib == 2 ? TG_OK : TG_ERR_MEMORY);
        tg_drop(more);
        tg_ctx_clear(c);
        ck_assert(tg_is_alive(tg_exp(tape, x)));
        tg_ctx_free(c);
    }
}
END_TEST

START_TEST(wrapped_memory_is_used_in_place_and_released) {
    tg_ctx *ctx = ctx_new();
    tg_tape *t = tg_tape_new(ctx);
    float data[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    int released = 0;
    tg_tensor *x = tg_wrap(ctx, TG_F32, TG_SHAPE(3, 2), (const int64_t[]){4, 2}, data, count, &released);
    ck_status(ctx, TG_OK);
    ck_assert(tg_host_data(x) == data);
    float got[6];
    ck_assert(tg_read(tg_neg(t, x), got, sizeof got) == TG_OK);
    ck_assert(got[0] == -1 && got[1] == -3 && got[2] == -5 && got[5] == -11);
    tg_drop(x);
    ck_assert_int_eq(released, 1);
    tg_wrap(ctx, TG_F32, TG_SHAPE(2), NULL, NULL, count, &released);
    ck_status(ctx, TG_ERR_ARGUMENT);
    ck_assert_int_eq(released, 2); /* released at once if it cannot be wrapped */
    tg_ctx_clear(ctx);
    tg_wrap(ctx, TG_F32, TG_SHAPE(2), NULL, (char *)data + 1, NULL, NULL);
    ck_status(ctx, TG_ERR_ARGUMENT);
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(wrapped_memory_of_no_elements_may_be_nowhere) {
    tg_ctx *ctx = ctx_new();
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = tg_wrap(ctx, TG_F32, TG_SHAPE(0, 4), NULL, NULL, NULL, NULL), *gx;
    tg_set_requires_grad(x, true);
    tg_tensor *gain = tg_zeros(ctx, TG_F32, TG_SHAPE(4)), *target = tg_zeros(ctx, TG_I64, TG_SHAPE(0));
    tg_tensor *y[] = {tg_softmax(t, x, 1),
                      tg_softmax(t, tg_transpose(t, x, 0, 1), 1), /* rows without elements */
                      tg_log_softmax(t, x, 1),
                      tg_layer_norm(t, x, gain, gain, 1e-5),
                      tg_rms_norm(t, x, NULL, 1e-5),
                      tg_cross_entropy(t, x, target, TG_CROSS_ENTROPY(.reduction = TG_LOSS_SUM))};
    for (size_t i = 0; i < sizeof y / sizeof y[0]; i++) {
        tg_tensor *sum = tg_sum(t, y[i], TG_ALL_DIMS, false);
        tg_grad(t, &sum, 1, &x, 1, &gx, TG_GRAD(.retain = true, .create_graph = true));
        ck_status(ctx, TG_OK);
        ck_assert(tg_numel(gx) == 0 && tg_item(sum) == 0);
    }
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(shapes_and_sizes_are_checked) {
    tg_ctx *ctx = ctx_new();
    const struct {
        tg_shape shape;
        tg_dtype dtype;
        tg_status status;
    } rows[] = {
        {TG_SHAPE(-1), TG_F32, TG_ERR_SHAPE},
        {TG_SHAPE(1, 1, 1, 1, 1, 1, 1, 1, 1), TG_F32, TG_ERR_SHAPE},
        {TG_SHAPE(INT64_MAX, 2), TG_F32, TG_ERR_SHAPE},
        {TG_SHAPE(INT64_MAX / 4, 1), TG_F64, TG_ERR_SHAPE},
        {TG_SHAPE((int64_t)1 << 50), TG_F32, TG_ERR_MEMORY},
        {TG_SHAPE(2), TG_F4E2M1, TG_ERR_DTYPE},
        {TG_SHAPE(2), (tg_dtype)99, TG_ERR_DTYPE},
        {TG_SHAPE(0, INT64_MAX, 0), TG_F32, TG_OK},
        {TG_SHAPE(), TG_F32, TG_OK},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tg_tensor *x = tg_zeros(ctx, rows[i].dtype, rows[i].shape);
        ck_assert_msg(tg_ctx_status(ctx) == rows[i].status, "row %zu: %s", i, tg_ctx_message(ctx));
        ck_assert(tg_is_alive(x) == (rows[i].status == TG_OK));
        tg_ctx_clear(ctx);
    }
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(values_go_in_and_out) {
    tg_ctx *ctx = ctx_new();
    tg_tensor *x = tg_zeros(ctx, TG_BF16, TG_SHAPE(2, 2));
    double in[4] = {1, -2.5, 0.333, NAN}, out[4];
    ck_assert(tg_write_f64(x, in, 4) == TG_OK && tg_read_f64(x, out, 4) == TG_OK);
    ck_assert(out[0] == 1 && out[1] == -2.5 && fabs(out[2] - 0.333) < 0.002 && isnan(out[3]));
    ck_assert(tg_read(x, out, 7) == TG_ERR_ARGUMENT);
    ck_says(ctx, "8");
    tg_ctx_clear(ctx);
    tg_item(x);
    ck_status(ctx, TG_ERR_SHAPE);
    tg_ctx_free(ctx);
}
END_TEST

/* ---- The caller's own threads ---- */

typedef struct turns {
    int calls, parts;
} turns;

/* Runs the parts in another order than a pool: in reverse, and one of them empty. */
static void in_turns(void *user, int64_t n, tg_range_fn body, void *arg) {
    turns *u = user;
    const int64_t cut[] = {0, n / 3, n / 3, n - n / 4, n};
    u->calls++;
    for (int i = 3; i >= 0; i--, u->parts++)
        if (cut[i] < cut[i + 1]) body(arg, cut[i], cut[i + 1]);
}

static void product(tg_ctx *ctx, double *y) {
    enum { SIDE = 160 };
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = tg_uniform(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(SIDE, SIDE), -1, 1);
    tg_tensor *sums = tg_sum(t, tg_softmax(t, tg_matmul(t, x, x), 1), TG_DIMS(0), false);
    tg_read_f64(tg_mul(t, sums, tg_slice(t, tg_reshape(t, x, TG_SHAPE(SIDE * SIDE)), 0, 0, SIDE, 1)), y, SIDE);
    tg_tape_free(t);
}

START_TEST(a_callers_threads_give_the_same_bits) {
    double own[160], alone[160];
    turns u = {0};
    tg_ctx *ctx = ctx_new();
    product(ctx, alone);
    tg_ctx_free(ctx);
    ctx = tg_ctx_new(TG_CONFIG(.seed = 3, .threads = 4, .parallel_for = in_turns, .parallel_user = &u));
    product(ctx, own);
    ck_status(ctx, TG_OK);
    tg_ctx_free(ctx);
    ck_assert_msg(u.calls > 1 && u.parts == 4 * u.calls, "%d calls", u.calls);
    ck_assert_mem_eq(own, alone, sizeof own);
}
END_TEST

int main(void) {
    const TTest *tests[] = {first_error_sticks,
                            a_failed_call_changes_nothing,
                            stale_handles_are_recognized,
                            handles_of_the_last_step_are_dead_while_the_next_one_records,
                            references_outlive_reuse,
                            foreign_tensors_are_refused,
                            a_context_that_cannot_be_made_is_dead,
                            a_limit_of_memory_is_kept,
                            a_limit_of_memory_counts_workspaces,
                            wrapped_memory_is_used_in_place_and_released,
                            wrapped_memory_of_no_elements_may_be_nowhere,
                            shapes_and_sizes_are_checked,
                            values_go_in_and_out,
                            a_callers_threads_give_the_same_bits};
    return tg_check_main("status", tests, sizeof tests / sizeof *tests);
}
