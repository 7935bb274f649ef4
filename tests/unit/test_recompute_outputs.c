/* Recomputation that discards its outputs: they are filled again, through every view, before they are read; each
 * function runs exactly twice. */
#include <math.h>

#include <tapegrad/extend.h>

#include "world.h"

enum { N = 24 };

static int64_t live(void) {
    tg_memory_info m = TG_MEMORY_INFO();
    tg_memory_query(ctx, &m);
    return m.live;
}

typedef struct fn_state {
    int runs, ended;
    bool drop, fail_again, other_again;
    tg_tensor *w;
} fn_state;

static void end_state(void *state) { ((fn_state *)state)->ended++; }

/* tanh(in w), with dropout or not. */
static tg_status layer(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in, (void)n_out;
    fn_state *s = state;
    s->runs++;
    if (s->fail_again && s->runs > 1) return tg_ctx_fail(ctx, TG_ERR_DATA, "not again");
    tg_tensor *x = tg_mul(tape, in[0], s->w);
    if (s->drop) x = tg_dropout(tape, x, 0.3);
    if (s->other_again && s->runs > 1) x = tg_neg(tape, x);
    out[0] = tg_tanh(tape, x);
    return tg_ctx_status(ctx);
}

static tg_tensor *vector(int k) {
    double v[N];
    for (int i = 0; i < N; i++) v[i] = 0.1 * (i % 7 - 3) + 0.05 * k;
    return leaf_of(TG_SHAPE(4, 6), v);
}

static void expect_grad(tg_tensor *x, const double *want) {
    double got[N];
    tg_read_f64(tg_grad_of(x), got, N);
    ck_status(TG_OK);
    ck_assert(!memcmp(got, want, sizeof got));
}

static void expect_near(tg_tensor *x, const double *want) {
    double got[N];
    tg_read_f64(tg_grad_of(x), got, N);
    ck_status(TG_OK);
    for (int i = 0; i < N; i++) ck_assert(fabs(got[i] - want[i]) < 1e-15);
}

static tg_tensor *total(tg_tensor *y) { return tg_sum(t, tg_square(t, y), TG_ALL_DIMS, false); }

/* ---- Values and gradients ---- */

/* Two chained layers; a product that saves it and a view use each result. Computes the gradients of x and w. */
static void chain(bool replay, bool hook, bool early, double *gx, double *gw, int *runs) {
    begin();
    tg_tensor *x = vector(0), *w = vector(1), *a, *b;
    fn_state s1 = {.drop = true, .w = w}, s2 = {.drop = true, .w = w};
    tg_replay *r = replay ? tg_replay_open(t) : NULL;
    if (replay) {
        tg_replay_run(r, layer, &s1, &x, 1, &a, 1, TG_RECOMPUTE(.name = "first"));
        tg_replay_run(r, layer, &s2, &a, 1, &b, 1, TG_RECOMPUTE(.name = "second"));
    } else {
        layer(&s1, t, &x, 1, &a, 1);
        layer(&s2, t, &a, 1, &b, 1);
    }
    tg_tensor *flat = tg_reshape(t, b, TG_SHAPE(N)), *turned = tg_transpose(t, a, 0, 1);
    tg_tensor *y = tg_mul(t, flat, flat), *z = tg_mul(t, turned, turned);
    tg_tensor *sum = tg_add(t, y, tg_reshape(t, z, TG_SHAPE(N)));
    if (replay) {
        ck_assert_int_eq(tg_replay_close(r, hook ? sum : NULL), TG_OK);
        ck_assert_int_eq(tg_storage_state_of(a), TG_DISCARDED);
        ck_assert_int_eq(tg_storage_state_of(b), TG_DISCARDED);
        ck_assert_int_eq(tg_storage_state_of(flat), TG_DISCARDED);
    }
    if (early) {
        double v[N];
        tg_read_f64(flat, v, N);
        ck_assert_int_eq(tg_storage_state_of(turned), TG_PRESENT); /* all are restored at once */
        ck_assert(s1.runs == 2 && s2.runs == 2);
    }
    tg_randn(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(5), 1); /* advances the stream */
    tg_backward(t, tg_sum(t, sum, TG_ALL_DIMS, false));
    ck_status(TG_OK);
    *runs = s1.runs == s2.runs ? s1.runs : -1;
    tg_read_f64(tg_grad_of(x), gx, N);
    tg_read_f64(tg_grad_of(w), gw, N);
    end();
}

START_TEST(the_same_bits_and_two_runs) {
    double gx[N], gw[N], hx[N], hw[N];
    int runs;
    chain(false, false, false, gx, gw, &runs);
    for (int hook = 0; hook < 2; hook++)
        for (int early = 0; early < 2; early++) {
            chain(true, hook, early, hx, hw, &runs);
            ck_assert_int_eq(runs, 2);
            ck_assert(!memcmp(gx, hx, sizeof gx) && !memcmp(gw, hw, sizeof gw));
        }
}
END_TEST

/* The hook restores them before the node of its tensor runs, in the order of the forward pass. */
typedef struct ordered {
    int number, *next, seen[2];
} ordered;

static tg_status numbered(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in, (void)n_out;
    ordered *s = state;
    s->seen[s->seen[0] >= 0] = (*s->next)++;
    out[0] = tg_tanh(tape, in[0]);
    return TG_OK;
}

static tg_status note(void *user, tg_tape *tape, tg_tensor *x, tg_tensor **g) {
    (void)tape, (void)x, (void)g;
    int *order = user;
    order[0] = order[1]++;
    return TG_OK;
}

START_TEST(the_hook_replays_in_forward_order) {
    begin();
    int next = 0, before[2] = {-1, 100};
    ordered a = {0, &next, {-1, -1}}, b = {1, &next, {-1, -1}};
    tg_tensor *x = vector(0), *u, *v;
    tg_replay *r = tg_replay_open(t);
    tg_replay_run(r, numbered, &a, &x, 1, &u, 1, NULL);
    tg_replay_run(r, numbered, &b, &u, 1, &v, 1, NULL);
    tg_tensor *y = tg_square(t, v), *late = tg_neg(t, y);
    tg_replay_close(r, late);
    tg_tensor *loss = tg_sum(t, tg_square(t, late), TG_ALL_DIMS, false);
    tg_on_grad(y, note, before);
    tg_backward(t, loss);
    ck_assert(a.seen[0] == 0 && b.seen[0] == 1 && a.seen[1] == 2 && b.seen[1] == 3);
    ck_assert(before[0] == 100 && next == 4);
    end();
}
END_TEST

/* ---- Discarded results, and others ---- */

START_TEST(the_bytes_are_given_back_and_taken_again) {
    begin();
    tg_tensor *x = vector(0), *w = vector(1), *a;
    fn_state s = {.w = w};
    tg_replay *r = tg_replay_open(t);
    int64_t before = live();
    tg_replay_run(r, layer, &s, &x, 1, &a, 1, NULL);
    int64_t with = live();
    tg_tensor *y = tg_square(t, a);
    int64_t after = live();
    tg_replay_close(r, y);
    ck_assert_int_eq(with - before, 192);
    ck_assert_int_eq(after - live(), 192);
    double v[N], again[N];
    tg_read_f64(a, v, N);
    ck_assert_int_eq(s.runs, 2);
    tg_read_f64(a, again, N);
    ck_assert(s.runs == 2 && !memcmp(v, again, sizeof v));
    tg_backward(t, tg_sum(t, y, TG_ALL_DIMS, false));
    ck_assert_int_eq(s.runs, 2);
    ck_assert_int_eq(tg_storage_state_of(a), TG_DISCARDED);
    ck_status(TG_OK);
    tg_read_f64(a, v, N); /* backward is past it, so it is not restored a third time */
    ck_status(TG_ERR_DISCARDED);
    tg_ctx_clear(ctx);
    end();
}
END_TEST

static tg_status mixed(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in, (void)n_out;
    fn_state *s = state;
    s->runs++;
    out[0] = in[0];
    out[1] = tg_transpose(tape, in[0], 0, 1);
    out[2] = s->w;
    out[3] = tg_tanh(tape, in[0]);
    out[4] = tg_reshape(tape, out[3], TG_SHAPE(N));
    return tg_ctx_status(ctx);
}

START_TEST(inputs_and_leaves_stay) {
    begin();
    tg_tensor *x = vector(0), *w = vector(1), *h = tg_neg(t, x), *out[5];
    fn_state s = {.w = w};
    tg_replay *r = tg_replay_open(t);
    tg_replay_run(r, mixed, &s, &h, 1, out, 5, NULL);
    tg_tensor *y = tg_mul(t, out[3], tg_mul(t, out[0], out[2]));
    tg_tensor *z = tg_mul(t, tg_reshape(t, out[1], TG_SHAPE(N)), out[4]);
    tg_replay_close(r, y);
    for (int i = 0; i < 3; i++) ck_assert_int_eq(tg_storage_state_of(out[i]), TG_PRESENT);
    ck_assert(tg_storage_state_of(out[3]) == TG_DISCARDED && tg_storage_state_of(out[4]) == TG_DISCARDED);
    ck_assert_int_eq(tg_storage_state_of(h), TG_PRESENT);
    tg_backward(t, tg_add(t, tg_sum(t, y, TG_ALL_DIMS, false), tg_sum(t, z, TG_ALL_DIMS, false)));
    ck_status(TG_OK);
    double gx[N], gw[N];
    tg_read_f64(tg_grad_of(x), gx, N);
    tg_read_f64(tg_grad_of(w), gw, N);
    tg_zero_grad(x), tg_zero_grad(w);
    tg_tape_reset(t);
    h = tg_neg(t, x);
    mixed(&s, t, &h, 1, out, 5);
    y = tg_mul(t, out[3], tg_mul(t, out[0], out[2]));
    z = tg_mul(t, tg_reshape(t, out[1], TG_SHAPE(N)), out[4]);
    tg_backward(t, tg_add(t, tg_sum(t, y, TG_ALL_DIMS, false), tg_sum(t, z, TG_ALL_DIMS, false)));
    expect_near(x, gx); /* a node adds the shares of its results before those of others */
    expect_near(w, gw);
    end();
}
END_TEST

START_TEST(shared_results_stay) {
    begin();
    tg_tensor *x = vector(0), *a;
    fn_state s = {.w = vector(1)};
    tg_replay *r = tg_replay_open(t);
    tg_replay_run(r, layer, &s, &x, 1, &a, 1, NULL);
    tg_tensor *kept = tg_keep(a);
    tg_replay_close(r, NULL);
    ck_assert_int_eq(tg_storage_state_of(a), TG_PRESENT);
    tg_backward(t, total(a));
    ck_status(TG_OK);
    ck_assert(s.runs == 2 && tg_storage_state_of(kept) == TG_PRESENT);
    tg_drop(kept);
    end();
}
END_TEST

START_TEST(results_overwritten_before_the_close_stay) {
    begin();
    tg_tensor *x = vector(0), *a;
    fn_state s = {.w = vector(1)};
    double v[N], gx[N];
    for (int i = 0; i < N; i++) v[i] = i;
    for (int way = 0; way < 2; way++) {
        s.runs = 0;
        tg_replay *r = tg_replay_open(t);
        tg_replay_run(r, layer, &s, &x, 1, &a, 1, NULL);
        tg_tensor *written = tg_from_host(ctx, TG_F64, TG_SHAPE(4, 6), v);
        if (way) tg_write_f64(a, v, N);
        tg_tensor *loss = total(way ? a : tg_add(t, a, tg_sub(t, written, tg_detach(t, a))));
        tg_replay_close(r, NULL);
        ck_assert_int_eq(tg_storage_state_of(a), way ? TG_PRESENT : TG_DISCARDED);
        tg_backward(t, loss);
        ck_status(TG_OK);
        if (way)
            expect_near(x, gx);
        else
            tg_read_f64(tg_grad_of(x), gx, N);
        ck_assert_int_eq(s.runs, 2);
        tg_zero_grad(x);
        tg_tape_reset(t);
    }
    end();
}
END_TEST

/* A result that was never read is not restored only for its gradient. */
START_TEST(results_that_no_gradient_reaches) {
    begin();
    tg_tensor *x = vector(0), *w = vector(1), *a, *b;
    fn_state s1 = {.w = w}, s2 = {.w = w};
    tg_replay *r = tg_replay_open(t);
    tg_replay_run(r, layer, &s1, &x, 1, &a, 1, TG_RECOMPUTE(.destroy = end_state));
    tg_replay_run(r, layer, &s2, &x, 1, &b, 1, TG_RECOMPUTE(.destroy = end_state));
    tg_replay_close(r, NULL);
    tg_tensor *y = tg_neg(t, x);
    tg_backward(t, tg_sum(t, y, TG_ALL_DIMS, false));
    ck_assert(s1.runs == 1 && s2.runs == 1 && s1.ended == 0);
    int64_t before = live();
    tg_read_f64(b, (double[N]){0}, N);
    ck_assert(s1.runs == 2 && s2.runs == 2 && live() > before);
    tg_tape_reset(t); /* cancels second runs that no backward needed */
    ck_assert(s1.ended == 1 && s2.ended == 1);
    ck_assert_int_lt(live(), before);
    end();
}
END_TEST

START_TEST(a_retained_tape_runs_twice) {
    begin();
    tg_tensor *x = vector(0), *w = vector(1), *a;
    fn_state s = {.drop = true, .w = w};
    tg_replay *r = tg_replay_open(t);
    tg_replay_run(r, layer, &s, &x, 1, &a, 1, NULL);
    tg_tensor *y = tg_square(t, a), *loss = tg_sum(t, y, TG_ALL_DIMS, false);
    tg_replay_close(r, y);
    double once[N], twice[N];
    tg_backward_with(t, &loss, 1, TG_BACKWARD(.retain = true));
    tg_read_f64(tg_grad_of(x), once, N);
    tg_backward(t, loss);
    tg_read_f64(tg_grad_of(x), twice, N);
    ck_status(TG_OK);
    for (int i = 0; i < N; i++) ck_assert(twice[i] == 2 * once[i]);
    ck_assert_int_eq(s.runs, 2);
    tg_backward(t, loss);
    ck_status(TG_ERR_STATE);
    tg_ctx_clear(ctx);
    end();
}
END_TEST

/* ---- With recomputation, without gradients, in a steady state ---- */

/* A view that passes its gradient on. It cannot write a float32 gradient of a bfloat16 input. */
static tg_status same_infer(tg_call *c) {
    const int64_t size = tg_numel(c->input[0]), stride = 1;
    return tg_call_view(c, 0, 0, 1, &size, &stride);
}

static tg_status same_backward(tg_call *c) { return tg_call_pass(c, 0, c->gout[0]); }

static tg_status times_same(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    static const tg_op same = {.size = sizeof same, .name = "same", .n_in = 1, .n_out = 1, .passes = 1,
                               .infer = same_infer, .backward = same_backward};
    tg_tensor *w = state, *y;
    (void)n_in, (void)n_out;
    tg_apply(tape, &same, NULL, &w, 1, &y, 1, NULL, NULL, TG_SITE);
    out[0] = tg_mul(tape, in[0], y);
    return TG_OK;
}

START_TEST(a_zeroed_gradient_is_overwritten_again) {
    begin();
    tg_tensor *w = tg_param_new(ctx, "w", TG_BF16, TG_SHAPE(2), 1), *x = tg_zeros(ctx, TG_BF16, TG_SHAPE(2)), *y;
    tg_write_f64(x, (double[]){3, 4}, 2);
    tg_replay *p = tg_replay_open(t);
    tg_replay_run(p, times_same, w, &x, 1, &y, 1, NULL);
    tg_tensor *loss = tg_sum(t, y, TG_ALL_DIMS, false);
    tg_replay_close(p, NULL);
    for (int i = 0; i < 3; i++) {
        double g[2];
        tg_backward_with(t, &loss, 1, TG_BACKWARD(.retain = true));
        tg_read_f64(tg_grad_of(w), g, 2);
        ck_assert_msg(g[0] == 3 && g[1] == 4, "%g %g", g[0], g[1]);
        tg_zero_grad(w);
    }
    end();
}
END_TEST

START_TEST(released_results_are_left_out) {
    begin();
    int next = 0;
    ordered runs[2] = {{0, &next, {-1, -1}}, {1, &next, {-1, -1}}};
    tg_tensor *x = vector(0), *y[2];
    tg_replay *p = tg_replay_open(t);
    for (int i = 0; i < 2; i++) tg_replay_run(p, numbered, &runs[i], &x, 1, &y[i], 1, NULL);
    tg_release(y[0]);
    ck_assert(tg_replay_close(p, y[1]) == TG_OK);
    ck_assert(tg_backward(t, tg_sum(t, y[1], TG_ALL_DIMS, false)) == TG_OK && tg_has_grad(x));
    ck_assert(runs[0].seen[1] == -1 && runs[1].seen[1] == 2); /* only the second function ran again */
    end();
}
END_TEST

static tg_status with_replay(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in, (void)n_out;
    tg_tensor *a;
    tg_replay *r = tg_replay_open(tape);
    tg_replay_run(r, layer, state, in, 1, &a, 1, NULL);
    out[0] = tg_square(tape, a);
    tg_replay_close(r, out[0]);
    return tg_ctx_status(ctx);
}

START_TEST(a_replay_inside_a_recomputation) {
    begin();
    tg_tensor *x = vector(0), *w = vector(1), *y;
    fn_state s = {.drop = true, .w = w};
    with_replay(&s, t, &x, 1, &y, 1);
    tg_backward(t, tg_sum(t, y, TG_ALL_DIMS, false));
    double gx[N], gw[N];
    tg_read_f64(tg_grad_of(x), gx, N);
    tg_read_f64(tg_grad_of(w), gw, N);
    tg_zero_grad(x), tg_zero_grad(w);
    tg_tape_reset(t);
    tg_rng_set(ctx, NULL, &(tg_rng){.seed = 5});
    s.runs = 0;
    tg_recompute(t, with_replay, &s, &x, 1, &y, 1, NULL);
    ck_assert_int_eq(s.runs, 1);
    tg_backward(t, tg_sum(t, y, TG_ALL_DIMS, false));
    ck_assert_int_eq(s.runs, 3);
    expect_grad(x, gx);
    expect_grad(w, gw);
    end();
}
END_TEST

START_TEST(without_grad_it_only_runs) {
    begin();
    tg_tensor *x = vector(0), *w = vector(1), *a;
    fn_state s = {.w = w}, frozen = {.w = tg_detach(t, w)};
    tg_tape_set_grad_mode(t, false);
    tg_replay *r = tg_replay_open(t);
    tg_replay_run(r, layer, &s, &x, 1, &a, 1, TG_RECOMPUTE(.destroy = end_state));
    ck_assert_int_eq(s.ended, 1);
    tg_replay_close(r, a);
    ck_assert_int_eq(tg_storage_state_of(a), TG_PRESENT);
    tg_tape_set_grad_mode(t, true);
    /* Nothing requires a gradient: the result is kept, because it could not be restored. */
    tg_tensor *c = tg_zeros(ctx, TG_F64, TG_SHAPE(4, 6));
    frozen.w = tg_zeros(ctx, TG_F64, TG_SHAPE(4, 6));
    r = tg_replay_open(t);
    tg_replay_run(r, layer, &frozen, &c, 1, &a, 1, TG_RECOMPUTE(.destroy = end_state));
    tg_replay_close(r, NULL);
    ck_assert(tg_storage_state_of(a) == TG_PRESENT && frozen.ended == 1);
    end();
}
END_TEST

/* The function of a replay that has no state. */
static tg_status doubled(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)n_in, (void)n_out;
    out[0] = tg_scale(tape, in[0], 2);
    return tg_ctx_status(ctx);
}

/* end_state would read the state that it gets. */
START_TEST(without_a_state_nothing_is_destroyed) {
    begin();
    tg_tensor *x = vector(0), *a;
    tg_replay *r = tg_replay_open(t);
    tg_replay_run(r, doubled, NULL, &x, 1, &a, 1, TG_RECOMPUTE(.destroy = end_state));
    ck_assert(tg_is_alive(a) && tg_requires_grad(a));
    tg_replay_close(r, NULL);
    tg_tape_reset(t);
    ck_status(TG_OK);
    end();
}
END_TEST

START_TEST(a_steady_step_allocates_nothing) {
    begin();
    tg_tensor *x = vector(0), *w = vector(1), *y;
    fn_state s = {.drop = true, .w = w};
    tg_memory_info before = TG_MEMORY_INFO(), after = TG_MEMORY_INFO();
    for (int step = 0; step < 6; step++) {
        if (step == 3) tg_memory_query(ctx, &before);
        y = x;
        for (int i = 0; i < 4; i++) with_replay(&s, t, &y, 1, &y, 1);
        tg_backward(t, tg_sum(t, y, TG_ALL_DIMS, false));
        tg_tape_reset(t);
    }
    tg_memory_query(ctx, &after);
    ck_assert_int_eq(after.host_allocations, before.host_allocations);
    ck_assert_int_eq(after.live, before.live);
    end();
}
END_TEST

/* A result in a named buffer is returned to the buffer, and restored elsewhere. */
static tg_status leases(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)n_in, (void)n_out;
    tg_tensor *b = tg_lease(tape, "replay", TG_F64, TG_SHAPE(4, 6));
    tg_ctx_ops(ctx)->fill(ctx, tg_array_of(b), 2);
    out[0] = tg_mul(tape, in[0], b);
    out[1] = b;
    return tg_ctx_status(ctx);
}

START_TEST(a_leased_result) {
    begin();
    tg_tensor *x = vector(0), *out[2];
    tg_replay *r = tg_replay_open(t);
    tg_replay_run(r, leases, NULL, &x, 1, out, 2, NULL);
    tg_tensor *y = tg_mul(t, out[0], out[1]);
    tg_replay_close(r, y);
    ck_assert_int_eq(tg_storage_state_of(out[1]), TG_DISCARDED);
    ck_assert(tg_is_alive(tg_lease(t, "replay", TG_F64, TG_SHAPE(4, 6))));
    tg_backward(t, tg_sum(t, y, TG_ALL_DIMS, false));
    double want[N];
    for (int i = 0; i < N; i++) want[i] = 4;
    expect_grad(x, want);
    end();
}
END_TEST

/* ---- Errors ---- */

START_TEST(wrong_calls_are_refused) {
    begin();
    tg_tensor *x = vector(0), *w = vector(1), *a;
    tg_tape *u = tg_tape_new(ctx);
    fn_state s = {.w = w};
    tg_replay *r = tg_replay_open(t);
    tg_replay_run(r, layer, &s, &x, 1, &a, 1, NULL);
    tg_replay_close(r, tg_neg(u, x));
    ck_status(TG_ERR_HANDLE), ck_says("not of the replay's tape");
    tg_ctx_clear(ctx);
    tg_replay_close(r, NULL);
    ck_status(TG_OK);
    tg_replay_close(r, NULL);
    ck_status(TG_ERR_STATE), ck_says("tg_replay_close: the replay is closed");
    tg_ctx_clear(ctx);
    tg_replay_run(r, layer, &s, &x, 1, &a, 1, TG_RECOMPUTE(.destroy = end_state));
    ck_status(TG_ERR_STATE), ck_says("tg_replay_run: the replay is closed");
    ck_assert(!tg_is_alive(a) && s.ended == 1);
    tg_ctx_clear(ctx);
    tg_tape_free(u);
    end();
}
END_TEST

START_TEST(a_second_run_that_fails_or_differs) {
    begin();
    tg_tensor *x = vector(0), *w = vector(1), *a;
    for (int k = 0; k < 2; k++) {
        fn_state s = {.fail_again = k == 0, .other_again = k == 1, .w = w};
        tg_replay *r = tg_replay_open(t);
        tg_replay_run(r, layer, &s, &x, 1, &a, 1, TG_RECOMPUTE(.name = "odd"));
        tg_tensor *y = tg_square(t, a);
        tg_replay_close(r, y);
        tg_backward(t, tg_sum(t, y, TG_ALL_DIMS, false));
        ck_status(k ? TG_ERR_STATE : TG_ERR_DATA);
        ck_says(k ? "odd: output 0, f64[4, 6], has other bits in the second run" : "not again");
        tg_ctx_clear(ctx);
        tg_tape_reset(t);
        tg_zero_grad(x), tg_zero_grad(w);
    }
    end();
}
END_TEST

START_TEST(overwriting_a_restored_result_is_found) {
    begin();
    tg_tensor *x = vector(0), *w = vector(1), *a;
    fn_state s = {.w = w};
    tg_replay *r = tg_replay_open(t);
    tg_replay_run(r, layer, &s, &x, 1, &a, 1, TG_RECOMPUTE(.name = "act"));
    tg_tensor *y = tg_add(t, a, x); /* saves nothing */
    tg_replay_close(r, NULL);
    double v[N] = {0};
    tg_write_f64(a, v, N);
    tg_backward(t, tg_sum(t, y, TG_ALL_DIMS, false));
    ck_status(TG_ERR_VERSION), ck_says("act: output 0 was overwritten after a replay had recreated it");
    tg_ctx_clear(ctx);
    end();
}
END_TEST

int main(void) {
    const TTest *const tests[] = {the_same_bits_and_two_runs,
                                  the_hook_replays_in_forward_order,
                                  the_bytes_are_given_back_and_taken_again,
                                  inputs_and_leaves_stay,
                                  shared_results_stay,
                                  results_overwritten_before_the_close_stay,
                                  results_that_no_gradient_reaches,
                                  a_retained_tape_runs_twice,
                                  a_zeroed_gradient_is_overwritten_again,
                                  released_results_are_left_out,
                                  a_replay_inside_a_recomputation,
                                  without_grad_it_only_runs,
                                  without_a_state_nothing_is_destroyed,
                                  a_steady_step_allocates_nothing,
                                  a_leased_result,
                                  wrong_calls_are_refused,
                                  a_second_run_that_fails_or_differs,
                                  overwriting_a_restored_result_is_found};
    return tg_check_main("replay", tests, sizeof tests / sizeof *tests);
}
