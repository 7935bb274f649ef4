/* Named random streams: forks, states as values, recomputation, seeds of ranks; keys and forks that failed to open. */
#include <string.h>

#include <tapegrad/gradcheck.h>
#include <tapegrad/backward.h>
#include <tapegrad/ops.h>
#include <tapegrad/recompute.h>

#include "check_main.h"
#include "core/random/rng.h"
#include "unit/counted_allocator.h"

static tg_ctx *new_ctx(void) { return tg_ctx_new(TG_CONFIG(.threads = 1, .seed = 3)); }

static void expect_ok(const tg_ctx *ctx) { ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx)); }

static void expect_error(tg_ctx *ctx, tg_status status, const char *says) {
    ck_assert_msg(tg_ctx_status(ctx) == status && strstr(tg_ctx_message(ctx), says), "%s: %s",
                  tg_status_name(tg_ctx_status(ctx)), tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
}

/* Returns the next n draws of the current stream as integers. */
static void draw(tg_ctx *ctx, int n, float *x) {
    tg_tensor *u = tg_uniform(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(n), 0, 1);
    tg_read(u, x, (size_t)n * sizeof *x);
    tg_drop(u);
}

/* The first 16 draws of a seed. */
static void draws_of(uint64_t seed, float *x) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .seed = seed));
    draw(ctx, 16, x);
    tg_ctx_free(ctx);
}

static bool same(const float *a, const float *b, int n) { return !memcmp(a, b, (size_t)n * sizeof *a); }

START_TEST(forks_go_on_where_they_were_left) {
    tg_ctx *ctx = new_ctx();
    float base[16], a[16], b[16], x[16];
    draws_of(3, base), draws_of(11, a), draws_of(12, b);
    tg_rng_add(ctx, "a", 11);
    tg_rng_add(ctx, "b", 12);
    draw(ctx, 2, x);
    tg_rng_fork(ctx, "a");
    draw(ctx, 3, x);
    ck_assert(same(x, a, 3));
    tg_rng_fork(ctx, "b");
    draw(ctx, 2, x);
    ck_assert(same(x, b, 2));
    tg_rng_fork(ctx, "a"); /* nested: the outer one continues after it */
    draw(ctx, 4, x);
    ck_assert(same(x, a + 3, 4));
    tg_rng_join(ctx);
    draw(ctx, 1, x);
    ck_assert(same(x, b + 2, 1));
    tg_rng_join(ctx);
    tg_rng_fork(ctx, "a");
    draw(ctx, 1, x);
    ck_assert(same(x, a + 7, 1));
    tg_rng_join(ctx);
    draw(ctx, 1, x);
    ck_assert(same(x, a + 8, 1));
    tg_rng_join(ctx);
    draw(ctx, 3, x);
    ck_assert(same(x, base + 2, 3));
    tg_rng_fork(ctx, "b");
    draw(ctx, 1, x);
    ck_assert(same(x, b + 3, 1));
    tg_rng_join(ctx);
    expect_ok(ctx);
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(states_are_values) {
    tg_ctx *ctx = new_ctx();
    tg_rng before, inside, after;
    float first[4], again[4];
    tg_rng_add(ctx, "a", 11);
    tg_rng_get(ctx, "a", &before);
    ck_assert(before.seed == 11 && before.counter == 0);
    tg_rng_fork(ctx, "a");
    draw(ctx, 4, first);
    tg_rng_get(ctx, "a", &after); /* of the current stream, by name and without */
    tg_rng_get(ctx, NULL, &inside);
    ck_assert(after.counter == 4 && !memcmp(&after, &inside, sizeof after));
    tg_rng_set(ctx, "a", &before);
    draw(ctx, 4, again);
    ck_assert(same(first, again, 4));
    tg_rng_join(ctx);
    tg_rng_get(ctx, NULL, &inside);
    ck_assert(inside.seed == 3 && inside.counter == 0);
    ck_assert(before.counter == 0);
    tg_rng_set(ctx, "a", &before);
    tg_rng_fork(ctx, "a");
    draw(ctx, 4, again);
    ck_assert(same(first, again, 4));
    tg_rng_join(ctx);
    expect_ok(ctx);
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(names_and_seeds_are_unique) {
    tg_ctx *ctx = new_ctx();
    tg_rng_add(ctx, "a", 11);
    tg_rng_add(ctx, "a", 12);
    expect_error(ctx, TG_ERR_ARGUMENT, "\"a\" exists already");
    tg_rng_add(ctx, "b", 11);
    expect_error(ctx, TG_ERR_ARGUMENT, "\"b\" and \"a\" would both have the seed 11");
    tg_rng_fork(ctx, "b");
    tg_rng_join(ctx);
    expect_error(ctx, TG_ERR_ARGUMENT, "no random stream is named \"b\"");
    tg_rng_fork(ctx, "a");
    tg_rng_remove(ctx, "a");
    expect_error(ctx, TG_ERR_STATE, "is forked");
    tg_rng_join(ctx);
    tg_rng_remove(ctx, "a");
    expect_ok(ctx);
    tg_rng_add(ctx, "b", 11);
    tg_rng_add(ctx, "as the default one", 3);
    expect_ok(ctx);
    tg_ctx_free(ctx);
}
END_TEST

/* Every fork needs a join, whatever happens in between. */
START_TEST(errors_leave_forks_in_pairs) {
    tg_ctx *ctx = new_ctx();
    float a[16], base[16], x[4];
    draws_of(11, a), draws_of(3, base);
    tg_rng_add(ctx, "a", 11);
    tg_rng_fork(ctx, "a");
    tg_rng_fork(ctx, "none");
    tg_rng_fork(ctx, "a");
    tg_rng_join(ctx);
    tg_ctx_clear(ctx);
    draw(ctx, 2, x); /* of a, which stays current after the failed fork */
    ck_assert(same(x, a, 2));
    tg_rng_join(ctx);
    draw(ctx, 2, x);
    ck_assert(same(x, a + 2, 2));
    tg_ctx_fail(ctx, TG_ERR_DATA, "on purpose");
    tg_rng_join(ctx);
    tg_ctx_clear(ctx);
    draw(ctx, 2, x);
    ck_assert(same(x, base, 2));
    tg_rng_join(ctx);
    expect_error(ctx, TG_ERR_STATE, "no stream is forked");
    tg_ctx_free(ctx);
}
END_TEST

/* ---- Recomputation ---- */

typedef struct layer {
    bool forks, leaves_open, fails, joins;
} layer;

static tg_status drops(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in, (void)n_out;
    const layer *l = state;
    tg_ctx *ctx = tg_tape_ctx(t);
    tg_tensor *x = tg_dropout(t, in[0], 0.5);
    if (l->joins) tg_rng_join(ctx);
    if (l->forks) {
        tg_rng_fork(ctx, "a");
        x = tg_dropout(t, x, 0.2);
        tg_rng_fork(ctx, "b");
        x = tg_dropout(t, x, 0.2);
        tg_rng_join(ctx);
        if (l->fails) return tg_ctx_fail(ctx, TG_ERR_DATA, "on purpose");
        if (!l->leaves_open) tg_rng_join(ctx);
    }
    out[0] = tg_square(t, tg_dropout(t, x, 0.1));
    return tg_ctx_status(ctx);
}

static tg_ctx *layer_ctx(tg_tensor **w) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .seed = 3, .check = true));
    *w = tg_param_new(ctx, "w", TG_DTYPE_DEFAULT, TG_SHAPE(64), 1);
    tg_rng_add(ctx, "a", 11);
    tg_rng_add(ctx, "b", 12);
    return ctx;
}

/* Two layers, inside a fork or not, with draws after them and between forward and backward. */
static void two_layers(bool recompute, bool inside, float *grad, tg_rng *left) {
    tg_tensor *w, *h, *y;
    tg_ctx *ctx = layer_ctx(&w);
    tg_tape *t = tg_tape_new(ctx);
    layer l = {.forks = true};
    float unused[8];
    if (inside) tg_rng_fork(ctx, "b");
    for (int i = 0; i < 2; i++, w = i == 1 ? h : w) {
        if (recompute)
            tg_recompute(t, drops, &l, &w, 1, i ? &y : &h, 1, NULL);
        else
            drops(&l, t, &w, 1, i ? &y : &h, 1);
    }
    if (inside) tg_rng_join(ctx);
    draw(ctx, 5, unused);
    tg_rng_fork(ctx, "a");
    draw(ctx, 3, unused);
    tg_rng_join(ctx);
    tg_backward(t, tg_sum(t, y, TG_ALL_DIMS, false));
    expect_ok(ctx);
    tg_rng_get(ctx, NULL, &left[0]);
    tg_rng_get(ctx, "a", &left[1]);
    tg_rng_get(ctx, "b", &left[2]);
    const tg_node *first = tg_tape_node(t, 0);
    tg_read(tg_grad_of(tg_node_output(first, 0)), grad, 64 * sizeof *grad);
    expect_ok(ctx);
    tg_tape_free(t);
    tg_ctx_free(ctx);
}

/* ---- The default stream, seeded again inside a fork ---- */

static void count_warnings(void *user, tg_log_level level, const char *message) {
    if (level == TG_LOG_WARNING && strstr(message, "the default random stream was seeded again")) ++*(int *)user;
}

START_TEST(a_default_stream_that_moves_inside_a_fork_is_reported) {
    int warnings = 0;
    float x[4];
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .seed = 3, .log = count_warnings, .log_user = &warnings));
    tg_rng_add(ctx, "a", 11);
    tg_rng_add(ctx, "b", 12);
    draw(ctx, 2, x);
    tg_rng_fork(ctx, "a");
    draw(ctx, 2, x);
    tg_rng_fork(ctx, "b");
    draw(ctx, 2, x);
    tg_rng_join(ctx);
    tg_rng_join(ctx);
    ck_assert_int_eq(warnings, 0);
    tg_rng_fork(ctx, "a");
    tg_rng_fork(ctx, "b");
    tg_rng_seed_ranks(ctx, 40, true, 0, 0, 0);
    tg_rng_join(ctx);
    ck_assert_int_eq(warnings, 0); /* only the join of the outer fork returns to it */
    tg_rng_join(ctx);
    ck_assert_int_eq(warnings, 1);
    tg_rng_fork(ctx, "a");
    tg_rng_join(ctx);
    draw(ctx, 2, x);
    tg_rng_seed_ranks(ctx, 41, true, 0, 0, 0);
    ck_assert_int_eq(warnings, 1);
    tg_rng_fork(ctx, "none"); /* fails, so the default stream stays current, and draws advance it */
    expect_error(ctx, TG_ERR_ARGUMENT, "no random stream is named \"none\"");
    draw(ctx, 2, x);
    tg_rng_join(ctx);
    ck_assert_int_eq(warnings, 1);
    expect_ok(ctx);
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(recomputation_restores_every_stream) {
    for (int inside = 0; inside < 2; inside++) {
        float plain[64], again[64];
        tg_rng left[3], left_again[3];
        two_layers(false, inside, plain, left);
        two_layers(true, inside, again, left_again);
        ck_assert(same(plain, again, 64));
        ck_assert(!memcmp(left, left_again, sizeof left));
    }
}
END_TEST

/* Streams that are added or removed between the two runs do not affect the function. */
START_TEST(recomputation_while_streams_come_and_go) {
    tg_tensor *w, *y;
    tg_ctx *ctx = layer_ctx(&w);
    tg_tape *t = tg_tape_new(ctx);
    layer l = {.forks = true};
    tg_rng_add(ctx, "passing", 90);
    tg_recompute(t, drops, &l, &w, 1, &y, 1, NULL);
    tg_rng_remove(ctx, "passing");
    tg_rng_add(ctx, "later", 91);
    tg_rng_fork(ctx, "later");
    float x[4];
    draw(ctx, 4, x);
    tg_backward(t, tg_sum(t, y, TG_ALL_DIMS, false)); /* check mode compares the bits */
    tg_rng later;
    tg_rng_get(ctx, "later", &later);
    ck_assert_int_eq((int64_t)later.counter, 4);
    tg_rng_join(ctx);
    expect_ok(ctx);
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(a_function_must_join_its_forks_and_no_others) {
    tg_tensor *w, *y;
    tg_ctx *ctx = layer_ctx(&w);
    tg_tape *t = tg_tape_new(ctx);
    layer open = {.forks = true, .leaves_open = true}, fails = {.forks = true, .fails = true}, joins = {.joins = true};
    tg_recompute(t, drops, &open, &w, 1, &y, 1, TG_RECOMPUTE(.name = "open"));
    expect_error(ctx, TG_ERR_STATE, "open: the function forks random streams 1 time more often than it joins them");
    tg_recompute(t, drops, &fails, &w, 1, &y, 1, NULL);
    expect_error(ctx, TG_ERR_DATA, "on purpose");
    tg_rng_fork(ctx, "a");
    tg_recompute(t, drops, &joins, &w, 1, &y, 1, TG_RECOMPUTE(.name = "joins"));
    expect_error(ctx, TG_ERR_STATE, "joins: the function joins random streams 1 time more often than it forks them");
    tg_rng_join(ctx);
    expect_error(ctx, TG_ERR_STATE, "no stream is forked");
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

static tg_status misses(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)in, (void)n_in, (void)out, (void)n_out;
    tg_tape_ctx(t)->streams.forks++; /* as a fork does for which there is no memory */
    return tg_ctx_fail(tg_tape_ctx(t), TG_ERR_MEMORY, "on purpose"), TG_ERR_MEMORY;
}

/* Forks for which memory ran out before the function stay open until their joins, and those within it do not. */
START_TEST(missed_forks_stay_open_until_their_joins) {
    tg_tensor *w, *y;
    tg_ctx *ctx = layer_ctx(&w);
    tg_tape *t = tg_tape_new(ctx);
    layer fails = {.forks = true, .fails = true};
    ctx->streams.forks++;
    tg_recompute(t, drops, &fails, &w, 1, &y, 1, NULL);
    expect_error(ctx, TG_ERR_DATA, "on purpose");
    ck_assert_int_eq(ctx->streams.forks, 1);
    tg_recompute(t, misses, NULL, &w, 1, &y, 1, NULL);
    expect_error(ctx, TG_ERR_MEMORY, "on purpose");
    ck_assert_int_eq(ctx->streams.forks, 1);
    tg_rng_join(ctx);
    expect_ok(ctx);
    tg_rng_join(ctx);
    expect_error(ctx, TG_ERR_STATE, "no stream is forked");
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

static tg_status opens_a_key_too_many(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out,
                                      int n_out) {
    (void)state, (void)in, (void)n_in, (void)out, (void)n_out;
    tg_key_open(tg_tape_ctx(t), 1);
    return tg_key_open(tg_tape_ctx(t), 2);
}

/* Keys that failed to open before the function stay open until their closes, and those within it do not. */
START_TEST(missed_keys_stay_open_until_their_closes) {
    tg_tensor *w, *y;
    tg_ctx *ctx = layer_ctx(&w);
    tg_tape *t = tg_tape_new(ctx);
    for (int i = 0; i < 17; i++) tg_key_open(ctx, (uint64_t)i);
    expect_error(ctx, TG_ERR_STATE, "16 keys are open, which is the most");
    tg_recompute(t, opens_a_key_too_many, NULL, &w, 1, &y, 1, NULL);
    expect_error(ctx, TG_ERR_STATE, "16 keys are open, which is the most");
    tg_key_close(ctx); /* the one that failed */
    ck_assert_int_eq(ctx->keys.depth, 16);
    tg_key_close(ctx);
    ck_assert_int_eq(ctx->keys.depth, 15);
    tg_recompute(t, opens_a_key_too_many, NULL, &w, 1, &y, 1, NULL);
    expect_error(ctx, TG_ERR_STATE, "16 keys are open, which is the most");
    ck_assert_int_eq(ctx->keys.depth, 15);
    for (int i = 0; i < 15; i++) tg_key_close(ctx);
    ck_assert_int_eq(ctx->keys.depth, 0);
    expect_ok(ctx);
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

static tg_status fails_within_key_and_fork(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out,
                                           int n_out) {
    (void)in, (void)n_in, (void)out, (void)n_out;
    tg_key_open(tg_tape_ctx(t), 1);
    tg_rng_fork(tg_tape_ctx(t), "a");
    return *(const tg_status *)state;
}

/* A function that fails, or does not end what it has opened, leaves neither a fork nor a key open. */
START_TEST(a_function_that_fails_leaves_no_fork_and_no_key_open) {
    tg_tensor *w, *y;
    tg_ctx *ctx = layer_ctx(&w);
    tg_tape *t = tg_tape_new(ctx);
    tg_status fails[] = {TG_ERR_DATA, TG_OK};
    tg_recompute(t, fails_within_key_and_fork, &fails[0], &w, 1, &y, 1, TG_RECOMPUTE(.name = "f"));
    expect_error(ctx, TG_ERR_CALLBACK, "f: the function failed with TG_ERR_DATA");
    ck_assert(!ctx->streams.forks && !ctx->keys.opens && !ctx->keys.depth);
    tg_recompute(t, fails_within_key_and_fork, &fails[1], &w, 1, &y, 1, TG_RECOMPUTE(.name = "f"));
    expect_error(ctx, TG_ERR_STATE, "f: the function forks random streams 1 time more often than it joins them");
    ck_assert(!ctx->streams.forks && !ctx->keys.opens && !ctx->keys.depth);
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

/* Each join returns to the stream that was current before its own fork, although one fork has had no memory. */
START_TEST(joins_after_a_missed_fork_are_in_order) {
    tg_ctx *ctx = new_ctx();
    float a[16], b[16], x[16];
    draws_of(11, a), draws_of(12, b);
    tg_rng_add(ctx, "a", 11);
    tg_rng_add(ctx, "b", 12);
    tg_rng_fork(ctx, "a");
    ctx->streams.forks++; /* as a fork does for which there is no memory */
    tg_rng_fork(ctx, "b");
    draw(ctx, 1, x);
    ck_assert(same(x, b, 1));
    for (int i = 0; i < 2; i++) {
        tg_rng_join(ctx);
        draw(ctx, 1, x);
        ck_assert(same(x, a + i, 1));
    }
    tg_rng_join(ctx);
    expect_ok(ctx);
    ck_assert(!ctx->streams.current);
    tg_rng_join(ctx);
    expect_error(ctx, TG_ERR_STATE, "no stream is forked");
    tg_ctx_free(ctx);
}
END_TEST

static tg_status noisy(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    layer l = {.forks = true};
    (void)state;
    return drops(&l, t, in, n_in, out, n_out);
}

START_TEST(gradcheck_draws_the_same_in_every_run) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64));
    tg_rng_add(ctx, "a", 11);
    tg_rng_add(ctx, "b", 12);
    tg_tensor *w = tg_param_new(ctx, "w", TG_DTYPE_DEFAULT, TG_SHAPE(20), 1);
    tg_tape *t = tg_tape_new(ctx);
    tg_gradcheck(t, noisy, NULL, &w, 1, 1, NULL, NULL);
    expect_ok(ctx);
    tg_rng a;
    tg_rng_get(ctx, "a", &a);
    ck_assert_int_eq((int64_t)a.counter, 0);
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(forks_allocate_nothing) {
    tg_tensor *w, *y;
    tg_ctx *ctx = layer_ctx(&w);
    tg_tape *t = tg_tape_new(ctx);
    layer l = {.forks = true};
    tg_memory_info m = TG_MEMORY_INFO(), after = TG_MEMORY_INFO();
    for (int step = 0; step < 6; step++) {
        if (step == 3) tg_memory_query(ctx, &m);
        tg_recompute(t, drops, &l, &w, 1, &y, 1, NULL);
        tg_backward(t, tg_sum(t, y, TG_ALL_DIMS, false));
        tg_tape_reset(t);
    }
    tg_memory_query(ctx, &after);
    ck_assert_int_eq(after.host_allocations, m.host_allocations);
    expect_ok(ctx);
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

/* ---- Seeds of ranks ---- */

static uint64_t seed_of(tg_ctx *ctx, const char *name) {
    tg_rng s = {0};
    tg_rng_get(ctx, name, &s);
    return s.counter == 0 ? s.seed : 0;
}

START_TEST(ranks_are_seeded_by_the_formulas) {
    tg_ctx *ctx = new_ctx();
    float x[4];
    tg_rng_seed_ranks(ctx, 1000, true, 3, 2, 1);
    ck_assert(seed_of(ctx, NULL) == 1000 && seed_of(ctx, "data-parallel-rng") == 1000);
    ck_assert(seed_of(ctx, "model-parallel-rng") == 3721 && seed_of(ctx, "expert-parallel-rng") == 2225);
    draw(ctx, 4, x);
    tg_rng_fork(ctx, "model-parallel-rng");
    tg_rng_seed_ranks(ctx, 7, true, 0, 0, 0);
    expect_error(ctx, TG_ERR_STATE, "\"model-parallel-rng\" is forked");
    tg_rng_join(ctx);
    tg_rng_seed_ranks(ctx, 7, true, 0, 0, 0); /* again */
    ck_assert(seed_of(ctx, NULL) == 7 && seed_of(ctx, "data-parallel-rng") == 7);
    ck_assert(seed_of(ctx, "model-parallel-rng") == 2725 && seed_of(ctx, "expert-parallel-rng") == 1031);
    tg_rng_seed_ranks(ctx, 0, true, 0, 0, 0);
    expect_error(ctx, TG_ERR_ARGUMENT, "the seed is 0");
    tg_rng_seed_ranks(ctx, 5, true, 6, 17, 0); /* 5 + 2718 + 6 = 5 + 1024 + 1700 */
    expect_error(ctx, TG_ERR_ARGUMENT,
                 "\"expert-parallel-rng\" and \"model-parallel-rng\" would both have the seed 2729");
    ck_assert_int_eq((int64_t)seed_of(ctx, "model-parallel-rng"), 2725); /* nothing has changed */
    tg_rng_add(ctx, "mine", 2800);
    tg_rng_seed_ranks(ctx, 82, true, 0, 0, 0);
    expect_error(ctx, TG_ERR_ARGUMENT, "\"model-parallel-rng\" and \"mine\" would both have the seed 2800");
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(ranks_are_seeded_entirely_or_not_at_all) {
    bool failed = true;
    for (int fail = 1; failed; fail++) {
        counted memory = {0};
        const tg_allocator allocator = {counted_alloc, counted_free, &memory};
        tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .seed = 3, .allocator = allocator));
        memory.fail_at = memory.calls + fail;
        failed = tg_rng_seed_ranks(ctx, 1000, true, 3, 2, 1) != TG_OK;
        ck_assert(failed ? tg_ctx_status(ctx) == TG_ERR_MEMORY : fail > 6); /* three streams, each with a name */
        tg_ctx_clear(ctx);
        ck_assert(seed_of(ctx, NULL) == (failed ? 3 : 1000) && (tg_rng_name(ctx, 0) == NULL) == failed);
        ck_assert(tg_rng_seed_ranks(ctx, 1000, true, 3, 2, 1) == TG_OK);
        ck_assert(seed_of(ctx, "expert-parallel-rng") == 2225 && !tg_rng_name(ctx, 3));
        tg_ctx_free(ctx);
        ck_assert_int_eq(memory.held, 0);
    }
}
END_TEST

START_TEST(streams_are_listed_as_they_came) {
    tg_ctx *ctx = new_ctx();
    ck_assert_ptr_null(tg_rng_name(ctx, 0));
    tg_rng_add(ctx, "a", 11);
    tg_rng_add(ctx, "b", 12);
    tg_rng_add(ctx, "c", 13);
    tg_rng_remove(ctx, "b");
    tg_rng_fork(ctx, "c");
    ck_assert_str_eq(tg_rng_name(ctx, 0), "a");
    ck_assert_str_eq(tg_rng_name(ctx, 1), "c");
    ck_assert_ptr_null(tg_rng_name(ctx, 2));
    tg_rng_join(ctx);
    expect_ok(ctx);
    tg_ctx_free(ctx);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {forks_go_on_where_they_were_left,
                                  states_are_values,
                                  names_and_seeds_are_unique,
                                  errors_leave_forks_in_pairs,
                                  a_default_stream_that_moves_inside_a_fork_is_reported,
                                  recomputation_restores_every_stream,
                                  recomputation_while_streams_come_and_go,
                                  a_function_must_join_its_forks_and_no_others,
                                  gradcheck_draws_the_same_in_every_run,
                                  missed_forks_stay_open_until_their_joins,
                                  missed_keys_stay_open_until_their_closes,
                                  a_function_that_fails_leaves_no_fork_and_no_key_open,
                                  joins_after_a_missed_fork_are_in_order,
                                  forks_allocate_nothing,
                                  ranks_are_seeded_by_the_formulas,
                                  ranks_are_seeded_entirely_or_not_at_all,
                                  streams_are_listed_as_they_came};
    return tg_check_main("streams", tests, sizeof tests / sizeof *tests);
}
