/* Random draws of captured steps: each replay draws what a call of the step would draw, from streams by order and by
 * key. */
#include "unit/captured.h"

/* Random streams may be set between replays, as when a run resumes from a checkpoint. */
START_TEST(replays_draw_from_where_the_stream_is) {
    world *a = world_new(), *b = world_new();
    tg_rng to = {.seed = 77, .counter = 1002};
    eager(a, 3);
    eager(b, 1);
    tg_graph *g = captured(b);
    replay(b, g, 1);
    tg_rng_set(a->ctx, NULL, &to);
    tg_rng_set(b->ctx, NULL, &to);
    eager(a, 2);
    replay(b, g, 2);
    ck_same_run(a, b);
    world_free(a);
    world_free(b);
}
END_TEST

typedef struct draw {
    tg_tape *t;
    tg_tensor *x, *y, *named;
} draw;

static tg_status draw_step(void *state, tg_ctx *ctx) {
    draw *d = state;
    tg_drop(d->y), tg_drop(d->named);
    d->y = tg_keep(tg_dropout(d->t, d->x, 0.5));
    tg_rng_fork(ctx, "other");
    d->named = tg_uniform(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(3), 0, 1); /* an odd number of draws */
    tg_rng_join(ctx);
    tg_tape_reset(d->t);
    return tg_ctx_status(ctx);
}

START_TEST(named_streams_go_on) {
    double y[2][6][16], named[2][6][3];
    for (int how = 0; how < 2; how++) {
        tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = test_device(), .seed = 3, .threads = 1));
        tg_rng_add(ctx, "other", 9);
        draw d = {.t = tg_tape_new(ctx), .x = tg_uniform(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(16), 1, 2)};
        tg_graph *g = NULL;
        for (int i = 0; i < 6; i++) {
            if (how == 0)
                draw_step(&d, ctx);
            else if (i == 0)
                g = tg_graph_new(ctx, draw_step, &d);
            else
                tg_graph_replay(g);
            tg_read_f64(d.y, y[how][i], 16);
            tg_read_f64(d.named, named[how][i], 3);
        }
        ck_fine(ctx);
        tg_tape_free(d.t);
        tg_ctx_free(ctx);
    }
    ck_assert_mem_eq(y[0], y[1], sizeof y[0]);
    ck_assert_mem_eq(named[0], named[1], sizeof named[0]);
    ck_assert(memcmp(y[0][0], y[0][1], sizeof y[0][0]) && named[0][0][0] != named[0][1][0]);
}
END_TEST

typedef struct keyed {
    tg_tape *t;
    tg_tensor *x, *y, *named;
    bool outside; /* the caller opens the key */
} keyed;

/* Draws by key from two streams, and by order from one. */
static tg_status keyed_step(void *state, tg_ctx *ctx) {
    keyed *d = state;
    tg_drop(d->y), tg_drop(d->named);
    if (!d->outside) tg_key_open(ctx, 3);
    tg_tensor *y = tg_dropout(d->t, d->x, 0.5);
    tg_rng_fork(ctx, "other");
    d->y = tg_keep(tg_add(d->t, y, tg_dropout(d->t, d->x, 0.5)));
    tg_rng_join(ctx);
    if (!d->outside) tg_key_close(ctx);
    d->named = tg_uniform(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(3), 0, 1);
    tg_tape_reset(d->t);
    return tg_ctx_status(ctx);
}

static tg_ctx *keyed_ctx(keyed *d) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = test_device(), .seed = 3, .threads = 1));
    tg_rng_add(ctx, "other", 9);
    *d = (keyed){.t = tg_tape_new(ctx), .x = tg_uniform(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(16), 1, 2)};
    return ctx;
}

/* The steps of the program say what is drawn, in any order; draws by order go on. */
START_TEST(replays_draw_by_key_in_the_step_that_is_set) {
    static const uint64_t steps[] = {5, 6, 2, 5, 0, UINT64_MAX};
    enum { N = sizeof steps / sizeof *steps };
    double y[2][N][16], named[2][N][3];
    for (int how = 0; how < 2; how++) {
        keyed d;
        tg_ctx *ctx = keyed_ctx(&d);
        tg_graph *g = NULL;
        for (int i = 0; i < N; i++) {
            tg_draws_step(ctx, steps[i]);
            if (how == 0)
                keyed_step(&d, ctx);
            else if (i == 0)
                g = tg_graph_new(ctx, keyed_step, &d);
            else
                tg_graph_replay(g);
            tg_read_f64(d.y, y[how][i], 16);
            tg_read_f64(d.named, named[how][i], 3);
            if (i == 2) tg_rng_set(ctx, "other", &(tg_rng){.seed = 44});
        }
        ck_fine(ctx);
        tg_tape_free(d.t);
        tg_ctx_free(ctx);
    }
    ck_assert_mem_eq(y[0], y[1], sizeof y[0]);
    ck_assert_mem_eq(named[0], named[1], sizeof named[0]);
    ck_assert(memcmp(y[0][0], y[0][1], sizeof y[0][0]) && memcmp(y[0][0], y[0][3], sizeof y[0][0]));
    ck_assert(named[0][0][0] != named[0][3][0]);
}
END_TEST

START_TEST(keys_of_a_replay_draw_once_in_a_step) {
    if (!on_device()) return; /* the CPU calls the step, which reports it itself */
    keyed d;
    tg_ctx *ctx = keyed_ctx(&d);
    tg_graph *g = tg_graph_new(ctx, keyed_step, &d);
    cannot_replay(g, ctx, "the keys of the step have drawn in step 0 already, and would draw the same numbers; call "
                          "tg_draws_step before each replay");
    tg_draws_step(ctx, 1);
    ck_assert_int_eq(tg_graph_replay(g), TG_OK);
    cannot_replay(g, ctx, "have drawn in step 1 already");
    keyed_step(&d, ctx); /* a called step finds what a replay has drawn */
    ck_assert_int_eq(tg_ctx_status(ctx), TG_ERR_STATE);
    ck_assert(strstr(tg_ctx_message(ctx), "key 3 of micro-batch 0"));
    tg_ctx_clear(ctx);
    tg_tape_reset(d.t);
    tg_draws_step(ctx, 2);
    tg_key_open(ctx, 3);
    cannot_replay(g, ctx, "keys are open, but the step was recorded with none open");
    tg_key_close(ctx);
    tg_rng_set(ctx, NULL, &(tg_rng){.seed = 3, .stream = 1});
    cannot_replay(g, ctx, "changed the stream number");
    tg_tape_free(d.t);
    tg_ctx_free(ctx);
}
END_TEST

/* A step whose caller opens the keys draws in those that are open at each replay: one graph serves several of them in
 * one step of the program, also from streams whose numbers were set. */
START_TEST(replays_draw_in_the_keys_around_them) {
    static const uint64_t keys[] = {1, 2, 3, 4};
    enum { K = sizeof keys / sizeof *keys };
    double y[2][2 * K][16];
    for (int how = 0; how < 2; how++) {
        keyed d;
        tg_ctx *ctx = keyed_ctx(&d);
        tg_graph *g = NULL;
        d.outside = true;
        for (int i = 0; i < 2 * K; i++) {
            if (i % K == 0) tg_draws_step(ctx, (uint64_t)i);
            tg_key_open(ctx, keys[i % K]);
            tg_key_open(ctx, 9);
            if (i % 2) tg_dropout(d.t, d.x, 0.5); /* takes numbers of the key before the step does */
            if (how == 0)
                keyed_step(&d, ctx);
            else if (i == 0)
                g = tg_graph_new(ctx, keyed_step, &d);
            else
                tg_graph_replay(g);
            tg_key_close(ctx);
            tg_key_close(ctx);
            tg_read_f64(d.y, y[how][i], 16);
            if (i == 2) tg_rng_set(ctx, "other", &(tg_rng){.seed = 44, .stream = 6});
        }
        ck_fine(ctx);
        if (on_device() && how) {
            tg_key_open(ctx, keys[0]);
            tg_key_open(ctx, 9);
            cannot_replay(g, ctx, "have drawn in step 4 already, and would draw the same numbers; call tg_draws_step "
                                  "before a new step and tg_tape_key before a further micro-batch, or open another "
                                  "key");
            tg_key_close(ctx);
            tg_key_close(ctx);
            cannot_replay(g, ctx, "no key is open, but the step was recorded with 2 open");
        }
        tg_tape_free(d.t);
        tg_ctx_free(ctx);
    }
    ck_assert_mem_eq(y[0], y[1], sizeof y[0]);
    for (int i = 1; i < 2 * K; i++) ck_assert(memcmp(y[0][0], y[0][i], sizeof y[0][0]) != 0);
}
END_TEST

typedef struct closing {
    tg_tape *t;
    tg_tensor *x;
} closing;

static tg_status closes_first(void *state, tg_ctx *ctx) {
    closing *c = state;
    tg_key_close(ctx);
    tg_key_open(ctx, 3);
    tg_dropout(c->t, c->x, 0.5);
    tg_tape_reset(c->t);
    return tg_ctx_status(ctx);
}

START_TEST(a_step_keeps_the_keys_of_its_caller) {
    if (!on_device()) return; /* the CPU calls the step */
    keyed d;
    tg_ctx *ctx = keyed_ctx(&d);
    closing c = {d.t, d.x};
    tg_key_open(ctx, 3);
    tg_graph_new(ctx, closes_first, &c);
    ck_assert_int_eq(tg_ctx_status(ctx), TG_ERR_STATE);
    ck_assert_msg(strstr(tg_ctx_message(ctx), "draws after it has closed a key that was opened before it"), "%s",
                  tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    tg_key_close(ctx);
    tg_tape_free(d.t);
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(a_stream_that_went_is_missed) {
    if (!on_device()) return; /* the CPU calls the step, which reports it itself */
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = test_device(), .seed = 3, .threads = 1));
    tg_rng_add(ctx, "other", 9);
    draw d = {.t = tg_tape_new(ctx), .x = tg_uniform(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(16), 1, 2)};
    tg_graph *g = tg_graph_new(ctx, draw_step, &d);
    ck_assert_int_eq(tg_graph_replay(g), TG_OK);
    ck_assert_int_eq(tg_rng_remove(ctx, "other"), TG_OK);
    ck_assert_int_eq(tg_graph_replay(g), TG_ERR_STATE);
    ck_assert_msg(strstr(tg_ctx_message(ctx), "random stream"), "%s", tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    tg_tape_free(d.t);
    tg_ctx_free(ctx);
}
END_TEST

static tg_status by_rng_infer(tg_call *c) {
    const tg_shape s = tg_shape_of(c->input[0]);
    tg_call_draw(c, 16);
    return tg_ok(c->ctx) ? tg_call_out(c, 0, tg_dtype_of(c->input[0]), 1, s.dim) : tg_ctx_status(c->ctx);
}

static tg_status by_rng_forward(tg_call *c) { return tg_ctx_ops(c->ctx)->fill(c->ctx, tg_array_of(c->out[0]), 1); }

static const tg_op by_rng = {
    .size = sizeof(tg_op), .name = "by_rng", .n_in = 1, .n_out = 1, .infer = by_rng_infer, .forward = by_rng_forward};

static tg_status rng_step(void *state, tg_ctx *ctx) {
    draw *d = state;
    tg_apply(d->t, &by_rng, NULL, &d->x, 1, &d->y, 1, NULL, NULL, TG_SITE);
    tg_tape_reset(d->t);
    return tg_ctx_status(ctx);
}

/* A state of a stream that the host has read is the same in every replay. */
START_TEST(a_step_does_not_draw_by_states_of_the_host) {
    if (!on_device()) return; /* the CPU calls the step */
    tg_rng before, after;
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = test_device(), .seed = 3, .threads = 1));
    draw d = {.t = tg_tape_new(ctx), .x = tg_uniform(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(16), 1, 2)};
    tg_rng_get(ctx, NULL, &before);
    tg_graph_new(ctx, rng_step, &d);
    ck_assert_int_eq(tg_ctx_status(ctx), TG_ERR_UNSUPPORTED);
    ck_assert_msg(strstr(tg_ctx_message(ctx), "draws numbers that every replay would draw again"), "%s",
                  tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    tg_rng_get(ctx, NULL, &after);
    ck_assert(before.counter == after.counter);
    tg_tape_free(d.t);
    tg_ctx_free(ctx);
}
END_TEST

int main(void) {
    const TTest *tests[] = {replays_draw_from_where_the_stream_is,
                            named_streams_go_on,
                            replays_draw_by_key_in_the_step_that_is_set,
                            keys_of_a_replay_draw_once_in_a_step,
                            replays_draw_in_the_keys_around_them,
                            a_step_keeps_the_keys_of_its_caller,
                            a_stream_that_went_is_missed,
                            a_step_does_not_draw_by_states_of_the_host};
    return tg_check_main("capture_draws", tests, sizeof tests / sizeof *tests);
}
