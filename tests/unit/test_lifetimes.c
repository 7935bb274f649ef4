/* Owners and lifetimes: hooks added and removed while they run, works that are never waited for, the caller's memory,
 * accumulation buffers, several tapes (promises 4, 5, 10, 12 and 16 of docs/design.md). */
#include "world.h"

#include <math.h>
#include <string.h>

#include <tapegrad/extend.h>
#include <tapegrad/nn.h>
#include <tapegrad/optim.h>

/* ---- Hooks ---- */

typedef struct actor {
    int calls;
    uint64_t removes[2]; /* hooks to remove from the tensor; 0: none */
    struct actor *adds;
    tg_status result;
} actor;

static tg_status act(void *user, tg_tape *tape, tg_tensor *x, tg_tensor **g) {
    (void)tape, (void)g;
    actor *a = user;
    a->calls++;
    for (int i = 0; i < 2; i++)
        if (a->removes[i]) tg_remove_hook(x, a->removes[i]);
    if (a->adds) tg_on_grad(x, act, a->adds);
    a->adds = NULL;
    return a->result;
}

START_TEST(hooks_come_and_go_while_they_run) {
    begin();
    tg_tensor *x = leaf(2);
    actor late = {0}, first = {.adds = &late}, gone = {0}, last = {0};
    first.removes[0] = tg_on_grad(x, act, &first);
    first.removes[1] = tg_on_grad(x, act, &gone);
    tg_on_grad(x, act, &last);
    tg_backward(t, tg_square(t, x));
    ck_assert(first.calls == 1 && gone.calls == 0 && last.calls == 1 && late.calls == 1);
    ck_assert(tg_remove_hook(x, first.removes[0]) == TG_ERR_ARGUMENT); /* it was removed already */
    tg_ctx_clear(ctx);
    tg_backward(t, tg_square(t, x));
    ck_assert(first.calls == 1 && gone.calls == 0 && last.calls == 2 && late.calls == 2);
    end();
}
END_TEST

START_TEST(a_hook_that_removes_itself_and_fails) {
    begin();
    tg_tensor *x = leaf(2);
    actor a = {.result = TG_ERR_IO};
    a.removes[0] = tg_on_grad(x, act, &a);
    ck_assert(tg_backward(t, tg_square(t, x)) == TG_ERR_CALLBACK);
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
    tg_backward(t, tg_square(t, x));
    ck_assert(a.calls == 1 && grad(x) == 4);
    end();
}
END_TEST

/* ---- Works ---- */

typedef struct work_log {
    int waits, aborts, frees;
} work_log;

static tg_status log_wait(tg_ctx *c, void *self) {
    (void)c;
    ((work_log *)self)->waits++;
    return TG_OK;
}

static void log_abort(void *self) { ((work_log *)self)->aborts++; }
static void log_free(void *self) { ((work_log *)self)->frees++; }

static const tg_work_ops log_ops = {
    .size = sizeof(tg_work_ops), .name = "log", .wait = log_wait, .abort = log_abort, .free = log_free};

static tg_status slow_infer(tg_call *c) { return tg_call_out(c, 0, TG_F64, 0, NULL); }
static tg_status slow_forward(tg_call *c) { return tg_ctx_ops(c->ctx)->fill(c->ctx, tg_array_of(c->out[0]), 1); }

static tg_status slow_backward(tg_call *c) {
    tg_tensor *g = tg_call_temp(c, TG_F64, 0, NULL);
    tg_ctx_ops(c->ctx)->fill(c->ctx, tg_array_of(g), 1);
    return tg_call_in_flight(c, 0, g, tg_work_new(c->ctx, &log_ops, c->state));
}

static const tg_op slow = {.size = sizeof(tg_op),
                           .name = "slow",
                           .n_in = 1,
                           .n_out = 1,
                           .passes = 1,
                           .infer = slow_infer,
                           .forward = slow_forward,
                           .backward = slow_backward};

START_TEST(a_work_that_is_never_read_is_aborted) {
    begin();
    tg_tensor *x = leaf(2), *w = leaf(3), *y = tg_square(t, x), *u = tg_exp(t, w), *z;
    work_log log = {0};
    actor fails = {.result = TG_ERR_IO};
    tg_apply(t, &slow, NULL, &y, 1, &z, 1, &log, NULL, TG_SITE);
    uint64_t id = tg_on_grad(u, act, &fails); /* runs after slow's backward, and before y's gradient is read */
    ck_assert(tg_backward(t, tg_add(t, z, u)) == TG_ERR_CALLBACK);
    ck_assert(log.waits == 0 && log.aborts == 1 && log.frees == 1);
    tg_ctx_clear(ctx);
    tg_remove_hook(u, id);
    tg_tape_reset(t);
    y = tg_square(t, x);
    tg_apply(t, &slow, NULL, &y, 1, &z, 1, &log, NULL, TG_SITE);
    tg_backward(t, z);
    ck_assert(log.waits == 1 && log.aborts == 1 && log.frees == 2 && grad(x) == 4);
    end();
}
END_TEST

/* ---- Memory of the caller ---- */

static void count(void *user) { ++*(int *)user; }

START_TEST(wrapped_memory_is_held_while_anything_refers_to_it) {
    if (!test_on_host()) return; /* tg_wrap needs a context on the CPU */
    begin();
    double data[2] = {1, 2};
    int released = 0;
    tg_tensor *x = tg_wrap(ctx, TG_F64, TG_SHAPE(2), NULL, data, count, &released);
    tg_tensor *view = tg_select(t, x, 0, 1), *kept = tg_keep(view);
    tg_drop(x);
    ck_assert(released == 0 && tg_item(view) == 2);
    tg_tape_reset(t);
    ck_assert(released == 0 && tg_item(kept) == 2);
    tg_drop(kept);
    ck_assert_int_eq(released, 1);
    tg_wrap(ctx, TG_F64, TG_SHAPE(2), NULL, data, count, &released);
    end(); /* the context frees the rest */
    ck_assert_int_eq(released, 2);
}
END_TEST

START_TEST(a_wrapped_leaf_is_held_by_its_nodes) {
    if (!test_on_host()) return; /* tg_wrap needs a context on the CPU */
    begin();
    double data = 3;
    int released = 0;
    tg_tensor *x = tg_wrap(ctx, TG_F64, TG_SHAPE(), NULL, &data, count, &released), *w = leaf(2);
    tg_set_requires_grad(x, true);
    tg_tensor *y = tg_mul(t, x, w);
    tg_drop(x);
    ck_assert_int_eq(released, 0);
    tg_backward(t, y);
    ck_assert(grad(w) == 3);
    tg_tape_reset(t);
    ck_assert_int_eq(released, 1);
    end();
}
END_TEST

START_TEST(wraps_of_one_memory_share_bytes) {
    if (!test_on_host()) return; /* tg_wrap needs a context on the CPU */
    begin();
    double data[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    tg_tensor *low = tg_wrap(ctx, TG_F64, TG_SHAPE(4), NULL, data, NULL, NULL);
    tg_tensor *middle = tg_wrap(ctx, TG_F64, TG_SHAPE(4), NULL, data + 2, NULL, NULL);
    tg_tensor *high = tg_wrap(ctx, TG_F64, TG_SHAPE(4), NULL, data + 4, NULL, NULL);
    tg_copy_(t, middle, low);
    ck_status(TG_ERR_STATE);
    ck_says("input 1 shares the overwritten bytes");
    tg_ctx_clear(ctx);
    tg_add_(t, low, tg_slice(t, middle, 0, 0, 1, 1));
    ck_status(TG_ERR_STATE);
    tg_ctx_clear(ctx);
    ck_assert(data[2] == 3 && data[0] == 1);
    tg_copy_(t, high, low); /* adjacent memory does not overlap */
    tg_add_(t, low, tg_slice(t, middle, 0, 2, 3, 1));
    ck_status(TG_OK);
    ck_assert(data[4] == 1 && data[7] == 4 && data[0] == 2 && data[3] == 5);
    ck_assert(tg_set_main_grad(low, middle) == TG_ERR_STATE);
    ck_says("not share the tensor's bytes");
    tg_ctx_clear(ctx);
    ck_assert(tg_set_main_grad(low, high) == TG_OK);
    end();
}
END_TEST

/* ---- Accumulation buffers ---- */

START_TEST(main_grads_are_held_and_not_saved) {
    if (!test_on_host()) return; /* tg_wrap needs a context on the CPU */
    begin();
    tg_tensor *flat = tg_zeros(ctx, TG_F32, TG_SHAPE(4));
    float *all = tg_host_data(flat);
    tg_tensor *buf[2], *w[2];
    for (int i = 0; i < 2; i++) { /* views of a flat buffer */
        buf[i] = tg_wrap(ctx, TG_F32, TG_SHAPE(2), NULL, all + 2 * i, NULL, NULL);
        w[i] = tg_param_new(ctx, "w", TG_BF16, TG_SHAPE(2), 1);
        tg_set_main_grad(w[i], buf[i]);
    }
    tg_tensor *loss = tg_sum(t, tg_add(t, w[0], w[1]), TG_ALL_DIMS, false);
    const float ones[2] = {1, 1};
    tg_write(buf[0], ones, sizeof ones); /* its versions are not checked */
    tg_backward_with(t, &loss, 1, TG_BACKWARD(.retain = true));
    tg_backward(t, loss);
    for (int i = 0; i < 4; i++) ck_assert(all[i] == 2);
    ck_assert(tg_grad_of(w[1]) == buf[1]);
    tg_zero_grad(w[0]);
    tg_set_main_grad(w[1], NULL);
    ck_assert(!tg_has_grad(w[0]) && !tg_has_grad(w[1]));
    end();
}
END_TEST

START_TEST(nodes_that_saved_a_gradient_notice_additions) {
    begin();
    tg_tensor *p = leaf(3), *w = leaf(5);
    tg_backward(t, tg_square(t, p));
    tg_tensor *y = tg_mul(t, tg_grad_of(p), w);
    tg_backward(t, tg_square(t, p));
    ck_assert(tg_backward(t, y) == TG_ERR_VERSION);
    ck_says("overwritten by a backward");
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
    tg_backward(t, tg_mul(t, tg_grad_of(p), w));
    ck_assert(grad(p) == 12 && grad(w) == 12);
    end();
}
END_TEST

START_TEST(backward_may_read_the_gradient_to_which_it_adds) {
    enum { N = 40 };
    static double v[N][N], g[N][N];
    begin();
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) v[i][j] = N * i + j;
    for (int seeded = 0; seeded < 2; seeded++) {
        tg_tensor *a = leaf_of(TG_SHAPE(N, N), v[0]);
        tg_backward(t, tg_sum(t, tg_square(t, a), TG_ALL_DIMS, false));
        tg_tensor *twice = tg_grad_of(a); /* 2 a, to which its transpose is added */
        tg_tensor *root = seeded ? tg_transpose(t, a, 0, 1)
                                 : tg_sum(t, tg_mul(t, tg_transpose(t, twice, 0, 1), a), TG_ALL_DIMS, false);
        tg_backward_with(t, &root, 1, TG_BACKWARD(.seeds = seeded ? &twice : NULL));
        tg_read(tg_grad_of(a), g, sizeof g);
        for (int i = 0; i < N; i++)
            for (int j = 0; j < N; j++) ck_assert(g[i][j] == 2 * v[i][j] + 2 * v[j][i]);
    }
    end();
}
END_TEST

/* ---- Several tapes ---- */

START_TEST(a_reset_ends_the_handles_of_its_tape_alone) {
    begin();
    tg_tape *u = tg_tape_new(ctx);
    tg_tensor *x = leaf(2), *a = tg_square(t, x), *b = tg_square(u, x), *in = tg_tape_input(u, a),
              *c = tg_mul(u, in, b);
    tg_ref old = tg_ref_of(a);
    tg_tape_reset(t);
    ck_assert(!tg_is_alive(a) && tg_is_alive(b) && tg_is_alive(in) && tg_item(in) == 4); /* its memory is kept */
    tg_backward(u, c);
    ck_assert(grad(x) == 4 * 4 && grad(in) == 4);
    tg_tape_reset(t);
    tg_tensor *again = tg_square(t, x); /* reuses the first slab */
    ck_assert(tg_is_alive(again) && !tg_is_alive(tg_ref_get(ctx, old)));
    end();
}
END_TEST

/* ---- Random streams and steps ---- */

START_TEST(a_restored_stream_draws_the_same) {
    begin();
    tg_rng rng;
    double a[64], b[64];
    tg_randn(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(7), 1);
    tg_rng_get(ctx, NULL, &rng);
    tg_tensor *x = tg_full(t, TG_F64, TG_SHAPE(64), 1);
    tg_read(tg_dropout(t, x, 0.5), a, sizeof a);
    tg_rng_set(ctx, NULL, &rng);
    tg_read(tg_dropout(t, x, 0.5), b, sizeof b);
    ck_assert(memcmp(a, b, sizeof a) == 0);
    tg_read(tg_dropout(t, x, 0.5), b, sizeof b);
    ck_assert(memcmp(a, b, sizeof a) != 0);
    end();
}
END_TEST

START_TEST(a_step_with_an_infinite_norm_changes_nothing) {
    begin();
    tg_tensor *p = tg_param_new(ctx, "p", TG_DTYPE_DEFAULT, TG_SHAPE(2), 1);
    tg_optim *o = tg_adamw_new(ctx, &p, 1, NULL);
    double before[2], after[2];
    tg_read(p, before, sizeof before);
    tg_backward(t, tg_sum(t, tg_scale(t, p, INFINITY), TG_ALL_DIMS, false));
    ck_assert(isinf(tg_optim_clip(o, 1)));
    ck_assert(tg_optim_step(o) == TG_OK && tg_optim_steps(o) == 0);
    tg_read(p, after, sizeof after);
    ck_assert(memcmp(before, after, sizeof before) == 0);
    tg_optim_free(o);
    end();
}
END_TEST

/* ---- Modules ---- */

/* Lists the parameters of m by name, forward and backward. */
static void expect_paths(const tg_module *m, const char *const *paths, int n) {
    ck_assert_int_eq(tg_module_param_count(m), n);
    for (int k = 0; k < 2 * n; k++) {
        int i = k < n ? k : 2 * n - 1 - k;
        const char *path = "";
        tg_tensor *x = tg_module_param(m, i, &path);
        ck_assert_str_eq(path, paths[i]);
        ck_assert_ptr_eq(x, tg_module_find(m, paths[i]));
    }
    ck_status(TG_OK);
}
#define PATHS(m, ...)                                                                                                  \
    expect_paths(m, (const char *const[]){__VA_ARGS__}, (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)))

static tg_module *list_of(const char *name) {
    static const tg_module_ops ops = {.size = sizeof ops, .kind = "list"};
    tg_module *m = tg_module_new(ctx, &ops, NULL);
    if (name) tg_module_add_param(m, name, leaf(1));
    return m;
}

START_TEST(parameters_are_those_that_a_module_has_now) {
    begin();
    tg_module *root = list_of("a"), *child = list_of("b"), *inner = list_of("c"), *last = list_of("d");
    tg_module_add_child(child, "empty", list_of(NULL));
    tg_module_add_child(child, "inner", inner);
    PATHS(child, "b", "inner.c");
    tg_module_add_child(root, "child", child);
    tg_module_add_child(root, "last", last);
    PATHS(root, "a", "child.b", "child.inner.c", "last.d");
    ck_assert_int_eq(tg_module_numel(root), 4);
    tg_module_add_param(inner, "e", leaf(2)); /* after the position of the walk over root, and before it */
    PATHS(root, "a", "child.b", "child.inner.c", "child.inner.e", "last.d");
    PATHS(inner, "c", "e");
    tg_tensor *tied = tg_module_param(root, 2, NULL);
    tg_module_add_param(last, "tied", tied);
    PATHS(root, "a", "child.b", "child.inner.c", "child.inner.e", "last.d");
    PATHS(last, "d", "tied");
    tg_module_free(inner);
    PATHS(root, "a", "child.b", "last.d", "last.tied");
    tg_module_add_child(child, "again", list_of("f"));
    PATHS(root, "a", "child.b", "child.again.f", "last.d", "last.tied");
    tg_module_free(last); /* it was the last one */
    tg_module_add_param(root, "g", leaf(3));
    PATHS(root, "a", "child.b", "child.again.f", "g");
    tg_module_free(root);
    end();
}
END_TEST
/* ---- Results of replays ---- */

typedef struct keeper {
    int runs;
    tg_tensor *kept;
} keeper;

static tg_status keeps_the_second(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n) {
    (void)n_in, (void)n;
    keeper *k = state;
    out[0] = tg_mul(tape, in[0], in[1]);
    if (++k->runs == 2) k->kept = tg_keep(out[0]);
    return tg_ctx_status(ctx);
}

/* A result that a replay has restored is a copy if the function has kept its own, so the program may overwrite that. */
START_TEST(a_kept_result_of_a_second_run_may_be_overwritten) {
    begin();
    keeper k = {0};
    tg_tensor *in[] = {leaf(3), leaf(2)}, *y;
    tg_replay *r = tg_replay_open(t);
    tg_replay_run(r, keeps_the_second, &k, in, 2, &y, 1, NULL);
    tg_tensor *square = tg_square(t, y);
    tg_replay_close(r, NULL);
    ck_assert(tg_item(y) == 6 && k.runs == 2);
    tg_write_f64(k.kept, (double[]){0}, 1);
    tg_backward(t, square);
    ck_assert(grad(in[0]) == 24);
    end();
}
END_TEST

int main(void) {
    const TTest *tests[] = {hooks_come_and_go_while_they_run,
                            a_hook_that_removes_itself_and_fails,
                            a_work_that_is_never_read_is_aborted,
                            wrapped_memory_is_held_while_anything_refers_to_it,
                            a_wrapped_leaf_is_held_by_its_nodes,
                            wraps_of_one_memory_share_bytes,
                            main_grads_are_held_and_not_saved,
                            nodes_that_saved_a_gradient_notice_additions,
                            backward_may_read_the_gradient_to_which_it_adds,
                            a_reset_ends_the_handles_of_its_tape_alone,
                            a_restored_stream_draws_the_same,
                            a_step_with_an_infinite_norm_changes_nothing,
                            parameters_are_those_that_a_module_has_now,
                            a_kept_result_of_a_second_run_may_be_overwritten};
    return tg_check_main("lifetimes", tests, sizeof tests / sizeof *tests);
}
