/* Captured modules: a module with graphs for each slot computes the bits of the module that it holds, whatever is in
 * flight, and says what it cannot do. On the CPU, which records nothing, the same calls give the same numbers. */
#include "captured_mixer.h"
#include "nn/captured/captured.h"

enum { MICROS = 5, STEPS = 3, FLOATS = N * OUT + N * C + 1 };

/* What one run leaves behind. */
typedef struct result {
    double out[STEPS][MICROS][FLOATS], gx[STEPS][MICROS][N * C], weight[STEPS][C * OUT], bias[STEPS][OUT];
    double mean[STEPS][C], var[STEPS][C];
    int doubled, accumulated;
    tg_rng rng;
} result;

/* One micro-batch in flight. */
typedef struct flight {
    tg_tape *t;
    tg_tensor *x, *out[3];
} flight;

static tg_status count(void *user, tg_tape *tape, tg_tensor *x, tg_tensor **g) {
    (void)tape, (void)x, (void)g;
    ++*(int *)user;
    return TG_OK;
}

/* The forward of a micro-batch. Its input is a result of another op. */
static void forward(tg_module *m, flight *f, tg_tensor *const *in, int step, int micro) {
    tg_tape_key(f->t, (uint64_t)micro);
    f->x = of_host(TG_F64, TG_SHAPE(N, C), micro - 1, 0.1 + step);
    tg_set_requires_grad(f->x, true);
    tg_tensor *x = tg_mul(f->t, f->x, in[0]);
    tg_module_call(m, f->t, (tg_tensor *[]){x, in[1]}, 2, f->out, 3);
    ck_status(TG_OK);
}

static void backward(flight *f, double *out, double *gx) {
    tg_tensor *a = tg_sum(f->t, tg_square(f->t, f->out[0]), TG_ALL_DIMS, false);
    tg_tensor *b = tg_sum(f->t, tg_mul(f->t, f->out[1], f->x), TG_ALL_DIMS, false);
    tg_tensor *loss = tg_add(f->t, tg_add(f->t, a, b), f->out[2]);
    tg_read_f64(f->out[0], out, N * OUT);
    tg_read_f64(f->out[1], out + N * OUT, N * C);
    tg_read_f64(f->out[2], out + N * OUT + N * C, 1);
    tg_backward(f->t, loss);
    tg_read_f64(tg_grad_of(f->x), gx, N * C);
    tg_tape_reset(f->t);
    tg_drop(f->x);
}

/* A step with two micro-batches in flight, as in a pipeline. */
static void step_of(tg_module *m, flight *f, tg_tensor *const *in, int step, result *r) {
    tg_draws_step(ctx, (uint64_t)step + 1);
    for (int i = 0; i < MICROS + 1; i++) {
        if (i < MICROS) {
            tg_key_open(ctx, 7);
            forward(m, &f[i % SLOTS], in, step, i);
            tg_key_close(ctx);
        }
        if (i) backward(&f[(i - 1) % SLOTS], r->out[step][i - 1], r->gx[step][i - 1]);
    }
}

static void read_state(tg_module *m, int step, result *r) {
    tg_tensor *w = tg_module_find(m, "body.weight"), *b = tg_module_find(m, "body.bias");
    tg_read_f64(tg_grad_of(w), r->weight[step], C * OUT);
    tg_read_f64(tg_grad_of(b), r->bias[step], OUT);
    tg_zero_grad(w), tg_zero_grad(b);
    tg_read_f64(tg_module_find(m, "mean"), r->mean[step], C);
    tg_read_f64(tg_module_find(m, "var"), r->var[step], C);
}

/* Runs the steps, captured or not. */
static void run(bool captured, bool hooked, result *r) {
    begin();
    tg_module *m = captured ? captured_of(mixer_new()) : mixer_new();
    tg_tensor *in[2];
    flight f[SLOTS] = {{.t = tg_tape_new(ctx)}, {.t = tg_tape_new(ctx)}};
    inputs(in);
    if (hooked) tg_module_hook(m, TG_BEFORE, double_first, &r->doubled);
    if (hooked) tg_on_accumulated(tg_module_find(m, "body.weight"), count, &r->accumulated);
    for (int i = 0; i < STEPS; i++) {
        step_of(m, f, in, i, r);
        read_state(m, i, r);
    }
    tg_rng_get(ctx, NULL, &r->rng);
    tg_module_free(m);
    for (int i = 0; i < SLOTS; i++) tg_tape_free(f[i].t);
    end();
}

START_TEST(slots_compute_what_the_module_computes) {
    for (int hooked = 0; hooked < 2; hooked++) {
        static result a, b;
        memset(&a, 0, sizeof a), memset(&b, 0, sizeof b);
        run(false, hooked, &a);
        run(true, hooked, &b);
        ck_assert_mem_eq(a.out, b.out, sizeof a.out);
        ck_assert_mem_eq(a.gx, b.gx, sizeof a.gx);
        ck_assert_mem_eq(a.weight, b.weight, sizeof a.weight);
        ck_assert_mem_eq(a.bias, b.bias, sizeof a.bias);
        ck_assert_mem_eq(a.mean, b.mean, sizeof a.mean);
        ck_assert_mem_eq(a.var, b.var, sizeof a.var);
        ck_assert_mem_eq(&a.rng, &b.rng, sizeof a.rng);
        ck_assert(a.doubled == b.doubled && a.accumulated == b.accumulated);
        ck_assert_int_eq(a.doubled, hooked * STEPS * MICROS);
        ck_assert_int_eq(a.accumulated, hooked * STEPS * MICROS);
        ck_assert(memcmp(a.out[0][0], a.out[0][2], sizeof a.out[0][0]) != 0);
    }
}
END_TEST

/* ---- Draws ---- */

typedef struct drawing {
    bool keyed; /* the module opens a key */
    tg_module *m;
} drawing;

static tg_status drawing_call(tg_module *m, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    const drawing *d = tg_module_state(m);
    (void)n_in, (void)n_out;
    tg_tensor *x = tg_dropout(tape, in[0], 0.5);
    if (d->keyed) tg_key_open(ctx, 3);
    x = tg_dropout(tape, x, 0.5);
    tg_rng_fork(ctx, "other");
    out[0] = tg_dropout(tape, x, 0.25);
    tg_rng_join(ctx);
    if (d->keyed) tg_key_close(ctx);
    return tg_ctx_status(ctx);
}

static const tg_module_ops drawing_ops = {.size = sizeof drawing_ops, .kind = "drawing", .call = drawing_call};

enum { DRAWN = 64, CALLS = 4 };

/* Calls the module in several ways: after other draws in the same key, in another key, for another micro-batch, and
 * after the stream was set. `outer` is the number of keys around. */
static void draw(bool captured, int outer, bool keyed, double y[CALLS][2][DRAWN]) {
    begin();
    tg_rng_add(ctx, "other", 12);
    drawing d = {.keyed = keyed};
    tg_tensor *x = of_host(TG_F64, TG_SHAPE(DRAWN), 1, 1);
    tg_set_requires_grad(x, true);
    tg_module *m = tg_module_new(ctx, &drawing_ops, &d);
    if (captured) m = tg_captured_new(m, (tg_shape[]){TG_SHAPE(DRAWN)}, (tg_dtype[]){TG_F64}, 1, 1);
    for (int i = 0; i < CALLS; i++) {
        tg_tensor *out = NULL;
        tg_draws_step(ctx, i == 3 ? 2 : 1);
        tg_tape_key(t, i == 2);
        for (int k = 0; k < outer; k++) tg_key_open(ctx, (uint64_t)(i == 1 ? 20 + k : 10 + k));
        if (i == 1) tg_dropout(t, x, 0.5); /* numbers of the outer key that the module does not get */
        ck_assert(tg_module_call(m, t, &x, 1, &out, 1) == TG_OK);
        out = tg_add(t, out, tg_dropout(t, x, 0.5)); /* and those that come after it */
        for (int k = 0; k < outer; k++) tg_key_close(ctx);
        tg_backward(t, tg_sum(t, out, TG_ALL_DIMS, false));
        tg_read_f64(out, y[i][0], DRAWN);
        tg_read_f64(tg_grad_of(x), y[i][1], DRAWN);
        tg_zero_grad(x);
        tg_tape_reset(t);
        if (i == 2) tg_rng_set(ctx, "other", &(tg_rng){.seed = 4, .stream = 9, .counter = 40});
    }
    tg_module_free(m);
    end();
}

START_TEST(replays_draw_in_the_keys_of_their_call) {
    for (int outer = 0; outer < 3; outer++)
        for (int keyed = 0; keyed < 2; keyed++) {
            double a[CALLS][2][DRAWN], b[CALLS][2][DRAWN];
            draw(false, outer, keyed, a);
            draw(true, outer, keyed, b);
            for (int i = 0; i < CALLS; i++)
                ck_assert_msg(!memcmp(a[i], b[i], sizeof a[i]), "%d keys around%s, call %d", outer,
                              keyed ? " and one within" : "", i);
            for (int i = 1; i < CALLS; i++) ck_assert(memcmp(a[0][0], a[i][0], sizeof a[0][0]) != 0);
        }
}
END_TEST

/* A key that is opened twice draws the same numbers, in graphs as without them. */
START_TEST(a_key_draws_once) {
    begin();
    tg_rng_add(ctx, "other", 12);
    drawing d = {0};
    tg_tensor *x = of_host(TG_F64, TG_SHAPE(DRAWN), 1, 1), *y = NULL;
    tg_set_requires_grad(x, true);
    tg_module *m = tg_captured_new(tg_module_new(ctx, &drawing_ops, &d), (tg_shape[]){TG_SHAPE(DRAWN)},
                                   (tg_dtype[]){TG_F64}, 1, 1);
    for (int i = 0; i < 2; i++) {
        tg_key_open(ctx, 5);
        tg_status s = tg_module_call(m, t, &x, 1, &y, 1);
        tg_key_close(ctx);
        ck_assert_int_eq(s, i ? TG_ERR_STATE : TG_OK);
        tg_tape_reset(t);
    }
    ck_says(records() ? "the keys of the module have drawn in step 0 already" : "has drawn in step 0 already");
    tg_ctx_clear(ctx);
    if (records()) {
        ck_assert(tg_module_call(m, t, &x, 1, &y, 1) == TG_ERR_STATE);
        ck_says("captured module: no key is open, but the module was recorded with 1 open");
        tg_ctx_clear(ctx);
    }
    tg_tape_reset(t);
    tg_module_free(m);
    end();
}
END_TEST

/* ---- Around other things ---- */

static tg_status call_mixer(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    return tg_module_call(state, tape, in, n_in, out, n_out);
}

/* Recomputation runs the module twice, but its buffer moves once. */
static void recomputed(bool captured, double y[FLOATS], double gw[C * OUT], double mean[C]) {
    begin();
    tg_module *m = captured ? captured_of(mixer_new()) : mixer_new();
    tg_tensor *in[2], *out[3];
    inputs(in);
    for (int i = 0; i < 2; i++) {
        tg_recompute(t, call_mixer, m, in, 2, out, 3, NULL);
        tg_backward(t, tg_add(t, tg_sum(t, out[0], TG_ALL_DIMS, false), out[2]));
        tg_read_f64(out[0], y, N * OUT);
        tg_tape_reset(t);
        tg_tensor *plain[3];
        tg_module_call(m, t, in, 2, plain, 3); /* records the graph that the next recomputation must not run */
        tg_tape_reset(t);
    }
    tg_read_f64(tg_grad_of(tg_module_find(m, "body.weight")), gw, C * OUT);
    tg_read_f64(tg_module_find(m, "mean"), mean, C);
    tg_module_free(m);
    end();
}

START_TEST(recomputation_runs_graphs) {
    double y[2][FLOATS] = {0}, gw[2][C * OUT], mean[2][C];
    for (int i = 0; i < 2; i++) recomputed(i, y[i], gw[i], mean[i]);
    ck_assert_mem_eq(y[0], y[1], sizeof y[0]);
    ck_assert_mem_eq(gw[0], gw[1], sizeof gw[0]);
    ck_assert_mem_eq(mean[0], mean[1], sizeof mean[0]);
}
END_TEST

/* Writes the buffers, draws, and then does what cannot be recorded. */
static tg_status spoilt_call(tg_module *m, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    mixer_call(m, tape, in, n_in, out, n_out);
    tg_item(out[2]);
    return tg_ctx_status(ctx);
}

START_TEST(recording_leaves_no_trace) {
    if (!records()) return;
    begin();
    tg_module_ops ops = mixer_ops;
    tg_module *spoilt = mixer_new();
    ops.call = spoilt_call;
    spoilt->ops = &ops;
    tg_module *m = captured_of(spoilt);
    tg_tensor *in[2], *out[3], *w = tg_module_find(m, "body.weight");
    double before[C], after[C];
    tg_rng rng, rng_after;
    inputs(in);
    tg_read_f64(tg_module_find(m, "mean"), before, C);
    tg_rng_get(ctx, NULL, &rng);
    tg_key_open(ctx, 4);
    tg_module_call(m, t, in, 2, out, 3);
    ck_status(TG_ERR_UNSUPPORTED);
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
    spoilt->ops = &mixer_ops;
    ck_assert(tg_module_call(m, t, in, 2, out, 3) == TG_OK); /* the key has not drawn */
    tg_key_close(ctx);
    tg_tape_reset(t);
    tg_rng_get(ctx, NULL, &rng_after);
    tg_read_f64(tg_module_find(m, "mean"), after, C);
    for (int i = 0; i < C; i++) ck_assert(before[i] == 0 && after[i] != 0);
    double mean[2][C];
    for (int i = 0; i < 2; i++) { /* one call moves the buffer once, captured or not */
        tg_module *other = i ? captured_of(mixer_new()) : mixer_new();
        tg_draws_step(ctx, 1 + (uint64_t)i);
        tg_module_call(other, t, in, 2, out, 3);
        tg_read_f64(tg_module_find(other, "mean"), mean[i], C);
        ck_assert(!tg_has_grad(tg_module_find(other, "body.weight")));
        tg_tape_reset(t);
        tg_module_free(other);
    }
    ck_assert_mem_eq(mean[0], mean[1], sizeof mean[0]);
    ck_assert_mem_eq(mean[0], after, sizeof after);
    ck_assert_mem_eq(&rng, &rng_after, sizeof rng);
    ck_assert(!tg_has_grad(w));
    tg_module_free(m);
    end();
}
END_TEST

/* Evaluation, no-grad mode and captured steps call the module. */
static tg_status whole_step(void *state, tg_ctx *c) {
    tg_tensor *in[2], *out[3];
    in[0] = ((tg_tensor **)state)[0];
    in[1] = ((tg_tensor **)state)[1];
    tg_module *m = ((tg_module **)state)[2];
    tg_zero_grad(tg_module_find(m, "body.weight")), tg_zero_grad(tg_module_find(m, "body.bias"));
    tg_module_call(m, t, in, 2, out, 3);
    tg_backward(t, out[2]);
    tg_tape_reset(t);
    return tg_ctx_status(c);
}

START_TEST(other_calls_run_op_by_op) {
    begin();
    tg_module *m = captured_of(mixer_new());
    tg_tensor *in[2], *out[3];
    inputs(in);
    tg_tape_set_training(t, false);
    tg_module_call(m, t, in, 2, out, 3);
    ck_assert(tg_tape_nodes(t) > 3);
    tg_tape_set_training(t, true);
    tg_tape_reset(t);
    tg_tape_set_grad_mode(t, false);
    for (int i = 0; i < 3; i++) tg_module_call(m, t, in, 2, out, 3); /* no use of a slot */
    tg_tape_set_grad_mode(t, true);
    void *state[] = {in[0], in[1], m};
    tg_graph *g = tg_graph_new(ctx, whole_step, state);
    tg_graph_replay(g);
    ck_status(TG_OK);
    ck_assert(tg_has_grad(tg_module_find(m, "body.weight")));
    tg_module_call(m, t, in, 2, out, 3);
    ck_assert(!records() || tg_node_of(out[0]) == tg_node_of(out[1]));
    tg_graph_free(g);
    tg_tape_reset(t);
    tg_module_free(m);
    end();
}
END_TEST

/* ---- Misuse ---- */

/* Calls m, and checks the error. */
static void call_fails(tg_module *m, tg_tensor *const *in, int n_in, int n_out, tg_status status, const char *says) {
    tg_tensor *out[4];
    ck_assert_int_eq(tg_module_call(m, t, in, n_in, out, n_out), status);
    ck_says(says);
    for (int i = 0; i < n_out; i++) ck_assert(!tg_is_alive(out[i]));
    tg_ctx_clear(ctx);
}

START_TEST(a_slot_serves_one_micro_batch) {
    if (!records()) return;
    begin();
    tg_module *m = captured_of(mixer_new());
    tg_tensor *in[2], *out[3];
    tg_tape *other = tg_tape_new(ctx);
    inputs(in);
    tg_tape_key(t, 4);
    tg_module_call(m, t, in, 2, out, 3);
    tg_tape_key(t, 6);
    call_fails(m, in, 2, 3, TG_ERR_STATE,
               "captured module: slot 0 is in use by micro-batch 4, whose backward has not run, so micro-batch 6 "
               "cannot use it; run that backward, reset its tape, or give tg_captured_new more slots than the 2 of "
               "now");
    tg_tape_key(other, 5);
    ck_assert(tg_module_call(m, other, in, 2, out, 3) == TG_OK);
    tg_tape_reset(t); /* frees slot 0 without a backward */
    tg_tape_key(t, 6);
    ck_assert(tg_module_call(m, t, in, 2, out, 3) == TG_OK);
    tg_backward(t, out[2]);
    ck_assert(tg_backward(t, out[2]) == TG_ERR_STATE);
    ck_says("has run in an earlier backward, which released what the nodes had saved");
    tg_ctx_clear(ctx);
    tg_tape_key(t, 8);
    ck_assert(tg_module_call(m, t, in, 2, out, 3) == TG_OK); /* on the same tape, after the backward */
    tg_tensor *root = out[2];
    ck_assert(tg_backward_with(t, &root, 1, TG_BACKWARD(.retain = true)) == TG_ERR_UNSUPPORTED);
    ck_says("cannot run with .retain = true");
    tg_ctx_clear(ctx);
    tg_tape_reset(t); /* must not free the use of slot 0 by a later node; there is none */
    tg_tape_free(other);
    tg_module_free(m);
    end();
}
END_TEST

/* A module may be freed while a slot is in use: the graph lives until the backward has run. */
START_TEST(a_module_may_go_before_its_backward) {
    double g[2][N * C];
    for (int captured = 0; captured < 2; captured++) {
        begin();
        tg_module *m = captured ? captured_of(mixer_new()) : mixer_new();
        tg_tensor *in[2], *out[3];
        inputs(in);
        tg_set_requires_grad(in[0], true);
        tg_module_call(m, t, in, 2, out, 3);
        tg_module_free(m);
        tg_backward(t, out[2]);
        tg_read_f64(tg_grad_of(in[0]), g[captured], N * C);
        tg_tape_reset(t);
        tg_memory_info info = TG_MEMORY_INFO();
        tg_memory_query(ctx, &info);
        ck_assert_int_eq(info.by_category[TG_MEM_GRAPH], 0);
        end();
    }
    ck_assert_mem_eq(g[0], g[1], sizeof g[0]);
}
END_TEST

START_TEST(inputs_are_those_of_the_recording) {
    begin();
    tg_module *m = captured_of(mixer_new());
    tg_tensor *in[2], *out[3], *bad[2];
    inputs(in);
    tg_tensor *wide = of_host(TG_F64, TG_SHAPE(N + 1, C), 0, 1), *narrow = of_host(TG_F32, TG_SHAPE(C), 0, 1);
    bad[0] = wide, bad[1] = in[1];
    call_fails(m, bad, 2, 3, TG_ERR_SHAPE, "captured module: input 0 is f64[7, 4], expected f64[6, 4]");
    bad[0] = in[0], bad[1] = narrow;
    call_fails(m, bad, 2, 3, TG_ERR_DTYPE, "input 1 is f32[4], expected f64[4]");
    bad[1] = NULL;
    call_fails(m, bad, 2, 3, TG_ERR_ARGUMENT, "input 1 is NULL");
    call_fails(m, in, 1, 3, TG_ERR_SHAPE, "the call has 1 inputs, but tg_captured_new was given 2");
    if (records()) {
        tg_module_call(m, t, in, 2, out, 3);
        tg_tape_reset(t);
        tg_set_requires_grad(in[0], true);
        call_fails(m, in, 2, 3, TG_ERR_STATE, "needs a gradient, but the one that was captured needed none");
        tg_set_requires_grad(in[0], false);
        call_fails(m, in, 2, 2, TG_ERR_SHAPE, "the call has 2 outputs, but the one that was captured had 3");
    }
    tg_drop(wide), tg_drop(narrow);
    tg_tape_reset(t);
    tg_module_free(m);
    end();
}
END_TEST

enum { WIDTH = 8, ROUNDS = 5, NUMBERS = 2 * WIDTH * WIDTH + 2 };

/* Changes the mode of a module, and which parameters need a gradient, between the rounds. */
static void change_settings(tg_module *m, int round) {
    static const tg_mode mode[ROUNDS] = {TG_MODE_TAPE, TG_MODE_EVAL, TG_MODE_TRAIN, TG_MODE_TAPE, TG_MODE_TAPE};
    tg_module_set_mode(tg_module_child(m, "1"), mode[round]);
    tg_set_requires_grad(tg_module_find(m, "0.weight"), round != 3);
    tg_set_requires_grad(tg_module_find(m, "0.bias"), round > 1);
}

static void run_rounds(bool captured, double out[ROUNDS][NUMBERS]) {
    begin();
    tg_module *m = tg_nn_sequential(ctx);
    tg_sequential_add(m, tg_nn_linear(ctx, WIDTH, WIDTH, true, 0.1));
    tg_sequential_add(m, tg_nn_dropout(ctx, 0.5));
    if (captured) m = tg_captured_new(m, (tg_shape[]){TG_SHAPE(WIDTH, WIDTH)}, (tg_dtype[]){TG_F64}, 1, 1);
    tg_tensor *x = of_host(TG_F64, TG_SHAPE(WIDTH, WIDTH), 1, 1);
    tg_tensor *w = tg_module_find(m, "0.weight"), *b = tg_module_find(m, "0.bias");
    for (int i = 0; i < ROUNDS; i++) {
        change_settings(m, i);
        tg_tensor *y = tg_module_forward(m, t, x);
        tg_read_f64(y, out[i], WIDTH * WIDTH);
        tg_backward(t, tg_sum(t, tg_square(t, y), TG_ALL_DIMS, false));
        bool has_w = tg_has_grad(w), has_b = tg_has_grad(b);
        out[i][NUMBERS - 1] = has_w, out[i][NUMBERS - 2] = has_b;
        ck_assert(has_w == (i != 3) && has_b == (i > 1));
        if (has_w) tg_read_f64(tg_grad_of(w), out[i] + WIDTH * WIDTH, WIDTH * WIDTH);
        tg_zero_grad(w), tg_zero_grad(b);
        tg_tape_reset(t);
        ck_status(TG_OK);
    }
    tg_module_free(m);
    end();
}

START_TEST(changed_settings_are_recorded_again) {
    static double a[ROUNDS][NUMBERS], b[ROUNDS][NUMBERS];
    run_rounds(false, a);
    run_rounds(true, b);
    for (int i = 0; i < ROUNDS; i++) ck_assert_msg(!memcmp(a[i], b[i], sizeof a[i]), "round %d", i);
}
END_TEST

static tg_tensor *reads(tg_module *m, tg_tape *tape, tg_tensor *x) {
    (void)m;
    tg_tensor *y = tg_sum(tape, x, TG_ALL_DIMS, false);
    tg_item(y);
    return y;
}

static tg_tensor *keeps_open(tg_module *m, tg_tape *tape, tg_tensor *x) {
    (void)m;
    tg_key_open(ctx, 1);
    return tg_scale(tape, x, 2);
}

static const tg_module_ops reads_ops = {.size = sizeof reads_ops, .kind = "reads", .forward = reads};
static const tg_module_ops keeps_open_ops = {.size = sizeof keeps_open_ops, .kind = "keeps", .forward = keeps_open};

START_TEST(what_cannot_be_recorded_is_refused) {
    if (!records()) return;
    begin();
    tg_tensor *x = of_host(TG_F64, TG_SHAPE(3), 1, 1);
    tg_set_requires_grad(x, true);
    static const struct {
        const tg_module_ops *ops;
        tg_status status;
        const char *says;
    } wrong[] = {
        {&reads_ops, TG_ERR_UNSUPPORTED,
         "tg_item: the module that tg_captured_new captures reads a value of the device"},
        {&keeps_open_ops, TG_ERR_STATE, "captured module: the module ends with 1 open keys, but began with 0"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tg_module *m = tg_captured_new(tg_module_new(ctx, wrong[i].ops, NULL), (tg_shape[]){TG_SHAPE(3)},
                                       (tg_dtype[]){TG_F64}, 1, 1);
        for (int again = 0; again < 2; again++) call_fails(m, &x, 1, 1, wrong[i].status, wrong[i].says);
        ck_assert(tg_key_close(ctx) == TG_ERR_STATE);
        tg_ctx_clear(ctx);
        tg_tape_reset(t);
        tg_module_free(m);
    }
    end();
}
END_TEST

START_TEST(derivatives_of_derivatives_are_refused) {
    if (!records()) return;
    begin();
    tg_module *m = captured_of(mixer_new());
    tg_tensor *in[2], *out[3], *g = NULL;
    inputs(in);
    tg_set_requires_grad(in[0], true);
    tg_module_call(m, t, in, 2, out, 3);
    ck_assert(tg_grad(t, &out[2], 1, &in[0], 1, &g, TG_GRAD(.create_graph = true)) == TG_ERR_UNSUPPORTED);
    ck_says("captured");
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
    tg_module_free(m);
    end();
}
END_TEST

int main(void) {
    const TTest *tests[] = {slots_compute_what_the_module_computes,
                            replays_draw_in_the_keys_of_their_call,
                            a_key_draws_once,
                            recomputation_runs_graphs,
                            recording_leaves_no_trace,
                            other_calls_run_op_by_op,
                            a_slot_serves_one_micro_batch,
                            a_module_may_go_before_its_backward,
                            inputs_are_those_of_the_recording,
                            changed_settings_are_recorded_again,
                            what_cannot_be_recorded_is_refused,
                            derivatives_of_derivatives_are_refused};
    return tg_check_main("captured_modules", tests, sizeof tests / sizeof *tests);
}
