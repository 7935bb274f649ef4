/* Keyed draws: their numbers against a second implementation, their independence of order, what a key must not do, and
 * dropout of given rows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/backward.h>
#include <tapegrad/derivatives.h>
#include <tapegrad/gpt.h>
#include <tapegrad/gradcheck.h>
#include <tapegrad/inputs.h>
#include <tapegrad/op_call.h>
#include <tapegrad/ops.h>
#include <tapegrad/recompute.h>

#include "check_main.h"
#include "core/random/rng.h"
#include "counted_allocator.h"
#include "on_device.h"

static tg_ctx *new_ctx(uint64_t seed) {
    return tg_ctx_new(TG_CONFIG(.device = test_device(), .threads = 1, .seed = seed));
}

static void expect_ok(const tg_ctx *ctx) { ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx)); }

static void expect_error(tg_ctx *ctx, tg_status status, const char *says) {
    ck_assert_msg(tg_ctx_status(ctx) == status && strstr(tg_ctx_message(ctx), says), "%s: %s",
                  tg_status_name(tg_ctx_status(ctx)), tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
}

static void open_all(tg_ctx *ctx, const uint64_t *keys, int n) {
    for (int i = 0; i < n; i++) tg_key_open(ctx, keys[i]);
}

static void close_all(tg_ctx *ctx, int n) {
    for (int i = 0; i < n; i++) tg_key_close(ctx);
}

/* Returns dropout, with probability one half, of a row of n ones: 2 where the draw's top bit is set, else 0. */
static void mask(tg_tape *t, int n, float *y) {
    tg_tensor *x = tg_full(t, TG_F32, TG_SHAPE(n), 1);
    tg_read(tg_dropout(t, x, 0.5), y, (size_t)n * sizeof *y);
}

/* The same in one key. */
static void mask_in(tg_tape *t, uint64_t key, int n, float *y) {
    tg_key_open(tg_tape_ctx(t), key);
    mask(t, n, y);
    tg_key_close(tg_tape_ctx(t));
}

static bool same(const float *a, const float *b, int n) { return !memcmp(a, b, (size_t)n * sizeof *a); }

/* ---- The numbers ---- */

/* A second implementation, word by word, from the description in the documentation and the paper of Philox. */
static uint64_t mixed(uint64_t a, uint64_t b) {
    uint64_t z = a + (b + 1) * UINT64_C(11400714819323198485);
    z ^= z >> 30;
    z *= UINT64_C(13787848793156543929);
    z ^= z >> 27;
    z *= UINT64_C(10723151780598845931);
    return z ^ z >> 31;
}

static uint32_t philox(const uint64_t key, uint64_t block, uint64_t stream, int word) {
    uint32_t x[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)};
    for (uint32_t round = 0; round < 10; round++) {
        uint64_t left = (uint64_t)x[0] * 3528531795u, right = (uint64_t)x[2] * 3449720151u;
        uint32_t k0 = (uint32_t)key + round * 2654435769u, k1 = (uint32_t)(key >> 32) + round * 3144134277u;
        uint32_t next[4] = {(uint32_t)(right >> 32) ^ x[1] ^ k0, (uint32_t)right, (uint32_t)(left >> 32) ^ x[3] ^ k1,
                            (uint32_t)left};
        memcpy(x, next, sizeof x);
    }
    return x[word];
}

static uint32_t word_at(uint64_t seed, uint64_t step, uint64_t micro, const uint64_t *keys, int n, uint64_t place) {
    uint64_t stream = mixed(0, micro);
    for (int i = 0; i < n; i++) stream = mixed(stream, keys[i]);
    stream = stream << 2 >> 2 | UINT64_C(1) << 62;
    return philox(step ? mixed(seed, step) : seed, place / 4, stream, (int)(place % 4));
}

typedef struct row {
    uint64_t seed, step, micro;
    int n;
    uint64_t keys[3], place;
    uint32_t word;
} row;

/* The words are those of a program in Python. */
static const row rows[] = {
    {0, 0, 0, 1, {0}, 0, 0x31595533},
    {0, 0, 0, 1, {1}, 0, 0xe7d3a192},
    {1, 0, 0, 1, {0}, 0, 0xb9f59bac},
    {1, 0, 0, 1, {0}, 1, 0x974a2031},
    {1, 1, 0, 1, {0}, 1, 0xd0d00107},
    {1, 2, 0, 1, {7}, 2, 0xca55022f},
    {1, 2, 1, 1, {7}, 2, 0xbd7756b6},
    {1, 2, 1, 1, {7}, 63, 0x51a4f262},
    {123456789, 1000000, 7, 2, {5, 3}, 17, 0x615d57a4},
    {123456789, 1000000, 7, 2, {3, 5}, 17, 0x6cbd047d},
    {UINT64_MAX, UINT64_MAX, UINT64_MAX, 3, {UINT64_MAX, 0, UINT64_MAX}, 40, 0x308aba5a},
    {2, 3, 4, 2, {UINT64_C(1) << 32, (UINT64_C(1) << 32) + 1}, 33, 0xc00bf4a6},
};

/* Reads the first word of the draws of n elements: 53 bits of a float64 begin with it. */
static void check_words(tg_ctx *ctx, const row *r, int n) {
    double u[128];
    tg_read_f64(tg_uniform(ctx, TG_F64, TG_SHAPE(n), 0, 1), u, n);
    for (int i = 0; i < n; i++)
        ck_assert_uint_eq((uint32_t)(u[i] * 0x1p32), word_at(r->seed, r->step, 0, r->keys, r->n, (uint64_t)i));
}

START_TEST(draws_are_those_of_the_definition) {
    enum { N = 70 };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const row *r = &rows[i];
        float y[N];
        ck_assert_uint_eq(word_at(r->seed, r->step, r->micro, r->keys, r->n, r->place), r->word);
        tg_ctx *ctx = new_ctx(r->seed);
        tg_tape *t = tg_tape_new(ctx);
        tg_uniform(ctx, TG_F32, TG_SHAPE(5), 0, 1); /* draws by order change nothing */
        tg_draws_step(ctx, r->step);
        tg_tape_key(t, r->micro);
        open_all(ctx, r->keys, r->n);
        mask(t, N, y);
        close_all(ctx, r->n);
        for (uint64_t k = 0; k < N; k++)
            ck_assert(y[k] == (word_at(r->seed, r->step, r->micro, r->keys, r->n, k) >> 31 ? 2 : 0));
        tg_draws_step(ctx, r->step);
        open_all(ctx, r->keys, r->n);
        check_words(ctx, r, N);
        close_all(ctx, r->n);
        expect_ok(ctx);
        tg_tape_free(t);
        tg_ctx_free(ctx);
    }
}
END_TEST

/* The stream that draws gives the seed and the root. A fork draws by key too, at the next places. */
START_TEST(a_fork_has_its_seed_and_the_same_keys) {
    const uint64_t key = 9;
    double u[3];
    tg_ctx *ctx = new_ctx(1);
    tg_rng_add(ctx, "other", 77);
    tg_key_open(ctx, key);
    tg_read_f64(tg_uniform(ctx, TG_F64, TG_SHAPE(2), 0, 1), u, 2);
    tg_rng_fork(ctx, "other");
    tg_read_f64(tg_uniform(ctx, TG_F64, TG_SHAPE(1), 0, 1), u + 2, 1);
    tg_rng_join(ctx);
    tg_key_close(ctx);
    ck_assert_uint_eq((uint32_t)(u[1] * 0x1p32), word_at(1, 0, 0, &key, 1, 1));
    ck_assert_uint_eq((uint32_t)(u[2] * 0x1p32), word_at(77, 0, 0, &key, 1, 2));
    tg_rng r;
    tg_rng_get(ctx, NULL, &r);
    ck_assert_uint_eq(r.counter, 0); /* keyed draws do not advance a stream */
    tg_rng_set(ctx, NULL, &(tg_rng){.seed = 1, .stream = 5});
    tg_key_open(ctx, key);
    tg_read_f64(tg_uniform(ctx, TG_F64, TG_SHAPE(1), 0, 1), u, 1);
    tg_key_close(ctx);
    uint64_t stream = mixed(mixed(5, 0), key) << 2 >> 2 | UINT64_C(1) << 62;
    ck_assert_uint_eq((uint32_t)(u[0] * 0x1p32), philox(1, 0, stream, 0));
    expect_ok(ctx);
    tg_ctx_free(ctx);
}
END_TEST

/* ---- Order ---- */

START_TEST(order_does_not_matter) {
    enum { N = 40, KEYS = 3 };
    static const int orders[][KEYS] = {{0, 1, 2}, {2, 1, 0}, {1, 2, 0}};
    float first[KEYS][N], again[N];
    for (int i = 0; i < 3; i++) {
        tg_ctx *ctx = new_ctx(4);
        tg_tape *t = tg_tape_new(ctx);
        tg_draws_step(ctx, 6);
        for (int k = 0; k < KEYS; k++) {
            int key = orders[i][k];
            mask_in(t, (uint64_t)key, N, i ? again : first[key]);
            if (i) ck_assert(same(again, first[key], N));
        }
        expect_ok(ctx);
        tg_tape_free(t);
        tg_ctx_free(ctx);
    }
    ck_assert(!same(first[0], first[1], N) && !same(first[1], first[2], N));
}
END_TEST

/* A key goes on where it was after one that it has opened. */
START_TEST(keys_nest) {
    enum { N = 32 };
    float whole[2 * N], part[N], inner[N], other[N];
    tg_ctx *ctx = new_ctx(4);
    tg_tape *t = tg_tape_new(ctx);
    mask_in(t, 1, 2 * N, whole);
    tg_draws_step(ctx, 0);
    tg_key_open(ctx, 1);
    mask(t, N, part);
    ck_assert(same(part, whole, N));
    mask_in(t, 2, N, inner);
    mask(t, N, part);
    ck_assert(same(part, whole + N, N));
    tg_key_close(ctx);
    mask_in(t, 2, N, other);
    ck_assert(!same(inner, other, N));
    expect_ok(ctx);
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(micro_batches_and_steps_draw_other_numbers) {
    enum { N = 64, ALL = 6 };
    float y[ALL][N];
    tg_ctx *ctx = new_ctx(4);
    tg_tape *t = tg_tape_new(ctx);
    for (int i = 0; i < ALL; i++) {
        if (i % 2 == 0) tg_draws_step(ctx, (uint64_t)i);
        tg_tape_key(t, (uint64_t)(i % 2));
        mask_in(t, 3, N, y[i]);
        tg_tape_reset(t);
        for (int k = 0; k < i; k++) ck_assert(!same(y[i], y[k], N));
    }
    tg_draws_step(ctx, 0);
    float again[N];
    mask_in(t, 3, N, again); /* a reset sets the micro-batch to 0 */
    ck_assert(same(again, y[0], N));
    expect_ok(ctx);
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(leaves_of_a_tape_draw_in_its_micro_batch) {
    enum { N = 8 };
    float first[N], second[N], context[N];
    tg_ctx *ctx = new_ctx(4);
    tg_tape *t = tg_tape_new(ctx);
    for (uint64_t micro = 0; micro < 2; micro++) {
        tg_tape_key(t, micro);
        tg_key_open(ctx, 3);
        tg_read(tg_tape_randn(t, TG_F32, TG_SHAPE(N), 1), micro ? second : first, sizeof first);
        tg_key_close(ctx);
        tg_tape_reset(t);
    }
    tg_draws_step(ctx, 0);
    tg_key_open(ctx, 3);
    tg_read(tg_randn(ctx, TG_F32, TG_SHAPE(N), 1), context, sizeof context); /* without a tape: micro-batch 0 */
    tg_key_close(ctx);
    expect_ok(ctx);
    ck_assert(!same(first, second, N) && same(first, context, N));
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

/* ---- Wrong use ---- */

START_TEST(a_key_draws_once_in_a_step) {
    float y[8];
    tg_ctx *ctx = new_ctx(4);
    tg_tape *t = tg_tape_new(ctx);
    mask_in(t, 5, 8, y);
    mask_in(t, 5, 8, y);
    ck_assert(strstr(tg_ctx_message(ctx), "key 5 of micro-batch 0") && strstr(tg_ctx_message(ctx), "in step 0"));
    ck_assert(strstr(tg_ctx_message(ctx), "test_keys") && strstr(tg_ctx_message(ctx), "tg_tape_key"));
    expect_error(ctx, TG_ERR_STATE, "call tg_draws_step before a new step");
    tg_tape_key(t, 1);
    mask_in(t, 5, 8, y);
    expect_ok(ctx);
    tg_key_open(ctx, 2);
    mask_in(t, 5, 8, y); /* another key, because of the one around it */
    expect_ok(ctx);
    mask_in(t, 5, 8, y);
    expect_error(ctx, TG_ERR_STATE, "key 2/5 of micro-batch 1");
    tg_key_close(ctx);
    tg_key_open(ctx, 5);
    mask(t, 0, y); /* draws nothing */
    tg_key_close(ctx);
    expect_ok(ctx);
    tg_draws_step(ctx, 0); /* repeats the step */
    mask_in(t, 5, 8, y);
    expect_ok(ctx);
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(opens_and_closes_match) {
    tg_ctx *ctx = new_ctx(4);
    tg_key_close(ctx);
    expect_error(ctx, TG_ERR_STATE, "no key is open");
    for (int i = 0; i < 17; i++) tg_key_open(ctx, (uint64_t)i);
    expect_error(ctx, TG_ERR_STATE, "16 keys are open, which is the most");
    for (int i = 0; i < 17; i++) tg_key_close(ctx);
    expect_ok(ctx);
    ck_assert_int_eq(ctx->keys.depth, 0);
    tg_key_open(ctx, 1);
    tg_draws_step(ctx, 1);
    expect_error(ctx, TG_ERR_STATE, "1 key is open, expected none");
    tg_ctx_fail(ctx, TG_ERR_DATA, "an error between");
    tg_key_open(ctx, 2); /* counts, so that its close matches */
    tg_key_close(ctx);
    tg_key_close(ctx);
    ck_assert_int_eq(ctx->keys.depth, 0);
    tg_ctx_clear(ctx);
    tg_ctx_free(ctx);
}
END_TEST

/* A failed op gives back what it has taken. */
START_TEST(a_failed_op_draws_nothing) {
    enum { N = 16 };
    float want[N], got[N];
    if (!test_on_host()) return; /* a GPU finds the bad row later */
    for (int fails = 0; fails < 2; fails++) {
        tg_ctx *ctx = new_ctx(4);
        tg_tape *t = tg_tape_new(ctx);
        tg_tensor *x = tg_zeros(ctx, TG_F32, TG_SHAPE(4, 4)), *bad = tg_from_host(ctx, TG_I64, TG_SHAPE(4),
                                                                              (const int64_t[]){0, 1, -2, 3});
        tg_key_open(ctx, 1);
        if (fails) {
            tg_dropout_rows(t, x, 0.5, bad);
            expect_error(ctx, TG_ERR_DATA, "index -2 is out of range");
        }
        mask(t, N, fails ? got : want);
        tg_key_close(ctx);
        expect_ok(ctx);
        tg_tape_free(t);
        tg_ctx_free(ctx);
    }
    ck_assert(same(want, got, N));
}
END_TEST

START_TEST(models_of_one_context_need_keys_of_their_own) {
    const tg_gpt_config *small = TG_GPT(.vocab = 8, .layers = 1, .heads = 1, .hidden = 4, .positions = 4),
                        *other = TG_GPT(.vocab = 8, .layers = 1, .heads = 1, .hidden = 4, .positions = 4, .key = 3);
    tg_ctx *ctx = new_ctx(4);
    tg_module *a = tg_gpt_new(ctx, small), *b = tg_gpt_new(ctx, small);
    expect_error(ctx, TG_ERR_STATE, "key 4294967296 of micro-batch 0");
    tg_module *c = tg_gpt_new(ctx, other);
    expect_ok(ctx);
    float x[16], y[16];
    tg_read(tg_module_param(a, 1, NULL), x, sizeof x);
    tg_read(tg_module_param(c, 1, NULL), y, sizeof y);
    expect_ok(ctx);
    ck_assert(!same(x, y, 16));
    ck_assert_int_eq(ctx->keys.depth, 0);
    tg_module_free(a), tg_module_free(b), tg_module_free(c);
    tg_ctx_free(ctx);
}
END_TEST

/* ---- Second runs ---- */

/* Draws in the key around it and in one of its own. */
static tg_status noisy(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)n_in, (void)n_out;
    tg_ctx *ctx = tg_tape_ctx(t);
    tg_tensor *y = tg_dropout(t, tg_square(t, in[0]), 0.4);
    tg_key_open(ctx, 8);
    y = tg_dropout(t, y, 0.3);
    tg_key_close(ctx);
    out[0] = tg_square(t, tg_dropout(t, y, 0.2));
    return tg_ctx_status(ctx);
}

enum { KEPT, RECOMPUTED, RECORDED, WAYS };

/* Computes the gradient of x in a way, in micro-batch 2 of step 1; another micro-batch is recorded before backward. */
static void gradient_of_noisy(int way, double *g) {
    tg_ctx *ctx =
        tg_ctx_new(TG_CONFIG(.device = test_device(), .threads = 1, .seed = 4, .dtype = TG_F64, .check = true));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = tg_uniform(ctx, TG_F64, TG_SHAPE(6, 5), 1, 2), *y = NULL, *other = NULL, *gx = NULL;
    tg_set_requires_grad(x, true);
    tg_draws_step(ctx, 1);
    tg_tape_key(t, 2);
    tg_key_open(ctx, 6);
    if (way == KEPT)
        noisy(NULL, t, &x, 1, &y, 1);
    else
        tg_recompute(t, noisy, NULL, &x, 1, &y, 1, NULL);
    tg_key_close(ctx);
    tg_tape_key(t, 3);
    tg_key_open(ctx, 6);
    noisy(NULL, t, &x, 1, &other, 1);
    tg_key_close(ctx);
    tg_tensor *root = tg_sum(t, y, TG_ALL_DIMS, false);
    tg_draws_step(ctx, 2); /* the second run still draws in step 1 */
    if (way == RECORDED)
        tg_grad(t, &root, 1, &x, 1, &gx, TG_GRAD(.create_graph = true));
    else
        tg_backward(t, root);
    tg_read_f64(way == RECORDED ? gx : tg_grad_of(x), g, 30);
    expect_ok(ctx);
    ck_assert_int_eq(ctx->keys.depth, 0);
    ck_assert(!ctx->keys.repeats && ctx->keys.step == 2);
    tg_tape_free(t);
    tg_ctx_free(ctx);
}

START_TEST(second_runs_draw_the_same) {
    double g[WAYS][30];
    for (int way = 0; way < WAYS; way++) gradient_of_noisy(way, g[way]);
    for (int i = 0; i < 30; i++) ck_assert(g[KEPT][i] == g[RECOMPUTED][i] && g[KEPT][i] == g[RECORDED][i]);
}
END_TEST

START_TEST(gradcheck_may_repeat_keys) {
    float y[4];
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = test_device(), .threads = 1, .seed = 4, .dtype = TG_F64));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = tg_uniform(ctx, TG_F64, TG_SHAPE(3, 2), 1, 2);
    tg_set_requires_grad(x, true);
    tg_key_open(ctx, 6);
    ck_assert_msg(tg_gradcheck(t, noisy, NULL, &x, 1, 1, NULL, TG_GRADCHECK(.second_order = true)) == TG_OK, "%s",
                  tg_ctx_message(ctx));
    ck_assert(ctx->keys.depth == 1 && ctx->keys.counter == 0 && !ctx->keys.repeats);
    ck_assert_int_eq(tg_gradcheck_op(ctx, tg_op_find("dropout"), 0, NULL, NULL), TG_OK);
    ck_assert_int_eq(ctx->keys.counter, 0);
    mask_in(t, 8, 4, y); /* the check's draws do not count */
    tg_key_close(ctx);
    expect_ok(ctx);
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

static tg_status leaves_open(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in, (void)n_out;
    *(const bool *)state ? tg_key_open(tg_tape_ctx(t), 1) : tg_key_close(tg_tape_ctx(t));
    out[0] = tg_square(t, in[0]);
    return TG_OK;
}

START_TEST(a_recomputed_function_closes_what_it_opens) {
    static const bool opens[] = {true, false};
    tg_ctx *ctx = new_ctx(4);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = tg_randn(ctx, TG_F32, TG_SHAPE(3), 1), *y;
    tg_set_requires_grad(x, true);
    tg_key_open(ctx, 9);
    tg_recompute(t, leaves_open, (void *)&opens[0], &x, 1, &y, 1, TG_RECOMPUTE(.name = "f"));
    expect_error(ctx, TG_ERR_STATE, "f: the function opens keys 1 time more often than it closes them");
    ck_assert_int_eq(ctx->keys.depth, 1);
    tg_recompute(t, leaves_open, (void *)&opens[1], &x, 1, &y, 1, TG_RECOMPUTE(.name = "f"));
    expect_error(ctx, TG_ERR_STATE, "f: the function closes keys 1 time more often than it opens them");
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

/* ---- Rows ---- */

/* Rows of a shuffled tensor drop what they would drop in their places. */
START_TEST(rows_draw_as_rows_of_the_global_tensor) {
    enum { ROWS = 6, WIDTH = 5 };
    static const int64_t order[ROWS] = {4, 0, 5, 5, 1, 3};
    float whole[ROWS][WIDTH], part[ROWS][WIDTH], g[ROWS][WIDTH], later[4], after[4];
    tg_ctx *ctx = new_ctx(4);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = tg_uniform(ctx, TG_F32, TG_SHAPE(ROWS, WIDTH), 1, 1);
    tg_tensor *rows_of = tg_from_host(ctx, TG_I64, TG_SHAPE(ROWS), order);
    tg_set_requires_grad(x, true);
    tg_key_open(ctx, 2);
    tg_read(tg_dropout(t, x, 0.5), whole, sizeof whole);
    tg_key_close(ctx);
    tg_draws_step(ctx, 0);
    tg_key_open(ctx, 2);
    tg_tensor *y = tg_dropout_rows(t, x, 0.5, rows_of);
    tg_read(y, part, sizeof part);
    mask(t, 4, later);
    tg_key_close(ctx);
    tg_backward(t, tg_sum(t, y, TG_ALL_DIMS, false));
    tg_read(tg_grad_of(x), g, sizeof g);
    for (int i = 0; i < ROWS; i++)
        ck_assert(same(part[i], whole[order[i]], WIDTH) && same(g[i], whole[order[i]], WIDTH));
    tg_draws_step(ctx, 0);
    tg_key_open(ctx, 2);
    ctx->keys.counter = (uint64_t)1 << 40; /* how many numbers the call takes, whatever its rows */
    mask(t, 4, after);
    tg_key_close(ctx);
    ck_assert(same(later, after, 4));
    tg_dropout_rows(t, x, 0.5, rows_of);
    expect_error(ctx, TG_ERR_STATE, "no key is open");
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

/* A call by name passes the rows as they are, without tg_contiguous. */
START_TEST(rows_may_have_any_strides) {
    enum { ROWS = 4, WIDTH = 6 };
    static const int64_t order[2 * ROWS] = {2, 9, 0, 8, 3, 7, 2, 6};
    const tg_value p = {.name = "p", .kind = TG_VALUE_DOUBLE, .number = 0.5};
    float want[ROWS][WIDTH], got[ROWS][WIDTH];
    tg_ctx *ctx = new_ctx(4);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = tg_uniform(ctx, TG_F32, TG_SHAPE(ROWS, WIDTH), 1, 1), *y;
    tg_tensor *rows = tg_slice(t, tg_from_host(ctx, TG_I64, TG_SHAPE(2 * ROWS), order), 0, 0, 2 * ROWS, 2);
    tg_key_open(ctx, 2);
    tg_read(tg_dropout_rows(t, x, 0.5, rows), want, sizeof want);
    tg_key_close(ctx);
    tg_draws_step(ctx, 0);
    tg_key_open(ctx, 2);
    tg_op_call(t, "dropout_rows", (tg_tensor *[]){x, rows}, 2, &p, 1, &y, 1);
    tg_read(y, got, sizeof got);
    tg_key_close(ctx);
    expect_ok(ctx);
    ck_assert(same(want[0], got[0], ROWS * WIDTH));
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

/* ---- Memory ---- */

static tg_ctx *counted_ctx(counted *c) {
    return tg_ctx_new(TG_CONFIG(.device = test_device(), .threads = 1, .allocator = {counted_alloc, counted_free, c}));
}

/* Draws in many keys. */
static void one_step(tg_ctx *ctx, tg_tape *t, uint64_t step) {
    float y[4];
    tg_draws_step(ctx, step);
    for (uint64_t key = 0; key < 300; key++) {
        mask_in(t, key, 4, y);
        tg_tape_reset(t);
    }
}

START_TEST(a_steady_step_allocates_nothing) {
    counted c = {0};
    tg_ctx *ctx = counted_ctx(&c);
    tg_tape *t = tg_tape_new(ctx);
    for (uint64_t step = 0; step < 3; step++) one_step(ctx, t, step);
    int64_t before = c.calls;
    one_step(ctx, t, 3);
    expect_ok(ctx);
    ck_assert_int_eq(c.calls, before);
    tg_tape_free(t);
    tg_ctx_free(ctx);
    ck_assert_int_eq(c.held, 0);
}
END_TEST

START_TEST(any_failing_allocation_is_survived) {
    for (int n = 1;; n++) {
        counted c = {0};
        tg_ctx *ctx = counted_ctx(&c);
        tg_tape *t = tg_tape_new(ctx);
        c.fail_at = c.calls + n;
        one_step(ctx, t, 1);
        tg_status s = tg_ctx_status(ctx);
        ck_assert(s == TG_OK || s == TG_ERR_MEMORY);
        ck_assert_int_eq(ctx->keys.depth, 0);
        tg_ctx_clear(ctx);
        c.fail_at = 0;
        one_step(ctx, t, 1);
        expect_ok(ctx);
        tg_tape_free(t);
        tg_ctx_free(ctx);
        ck_assert_int_eq(c.held, 0);
        if (s == TG_OK) break;
        ck_assert_int_lt(n, 100);
    }
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        draws_are_those_of_the_definition,
        a_fork_has_its_seed_and_the_same_keys,
        order_does_not_matter,
        keys_nest,
        micro_batches_and_steps_draw_other_numbers,
        leaves_of_a_tape_draw_in_its_micro_batch,
        a_key_draws_once_in_a_step,
        opens_and_closes_match,
        a_failed_op_draws_nothing,
        models_of_one_context_need_keys_of_their_own,
        second_runs_draw_the_same,
        gradcheck_may_repeat_keys,
        a_recomputed_function_closes_what_it_opens,
        rows_draw_as_rows_of_the_global_tensor,
        rows_may_have_any_strides,
        a_steady_step_allocates_nothing,
        any_failing_allocation_is_survived,
    };
    return tg_check_main("keys", tests, sizeof tests / sizeof *tests);
}
