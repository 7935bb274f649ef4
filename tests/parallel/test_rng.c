/* Random draws on ranks. In global mode the ranks together draw what one rank draws, and their streams stay equal; in
 * Megatron's mode each rank has the streams of Megatron-Core's formulas. */
#include <tapegrad/extend.h>
#include <tapegrad/data_parallel.h>
#include <tapegrad/gpt.h>
#include <tapegrad/megatron.h>

#include "core/context.h"
#include "on_ranks.h"
#include "parallel/tp/layers.h"

enum { ROWS = 8, COLUMNS = 24 };

typedef struct setup {
    int tp;
    bool recompute;
} setup;

static tg_status noise(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)n_in, (void)n_out;
    tg_ctx *ctx = tg_tape_ctx(t);
    tg_tensor *y = tg_dropout(t, in[0], 0.4);
    tg_rng_fork(ctx, "model-parallel-rng");
    y = tg_dropout(t, y, 0.3);
    tg_rng_join(ctx);
    out[0] = tg_square(t, tg_dropout(t, y, 0.2));
    return tg_ctx_status(ctx);
}

/* Computes y, and the gradient of x from noise on x; p NULL: on one rank. */
static tg_status run_noise(tg_ctx *ctx, const setup *s, const tg_parallel *p, tg_tensor *x, tg_tape *t, tg_tensor **y) {
    tg_set_requires_grad(x, true);
    if (s->recompute)
        tg_recompute(t, noise, NULL, &x, 1, y, 1, NULL);
    else
        RUN(noise(NULL, t, &x, 1, y, 1));
    tg_tensor *seed = tg_zeros(ctx, TG_F64, tg_shape_of(*y));
    tg_ctx_ops(ctx)->fill(ctx, tg_array_of(seed), 1);
    if (p) RUN(tg_place(p, seed, TG_TP, TG_SHARD(1)));
    if (p) RUN(tg_place(p, seed, TG_DP, TG_P));
    RUN(tg_backward_with(t, y, 1, TG_BACKWARD(.seeds = &seed)));
    return tg_ctx_status(ctx);
}

/* The columns of a part of the tensor that one rank computes. */
static tg_status one_rank(const setup *s, tg_tensor **y, tg_tensor **g, tg_ctx **alone, tg_tape **t) {
    *alone = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64, .seed = 1));
    *t = tg_tape_new(*alone);
    tg_rng_set(*alone, NULL, &(tg_rng){.seed = 50});
    tg_rng_add(*alone, "model-parallel-rng", 50 + 2718);
    tg_tensor *x = made(*alone, 1, TG_SHAPE(ROWS, COLUMNS));
    RUN(run_noise(*alone, s, NULL, x, *t, y));
    *g = tg_grad_of(x);
    return tg_ctx_status(*alone);
}

static tg_status in_step(tg_ctx *ctx, tg_comm *world, const char *name) {
    tg_rng s;
    RUN(tg_rng_get(ctx, name, &s));
    int64_t mine[2] = {(int64_t)s.seed, (int64_t)s.counter}, least[2];
    tg_tensor *x = tg_from_host(ctx, TG_I64, TG_SHAPE(2), mine);
    tg_comm_all_reduce(world, x, x, TG_REDUCE_MIN);
    RUN(tg_read(x, least, sizeof least));
    EXPECT(ctx, least[0] == mine[0] && least[1] == mine[1]);
    return TG_OK;
}

static tg_status global_mode(void *arg, tg_ctx *ctx, tg_comm *world) {
    const setup *s = arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = s->tp));
    RUN(tg_rng_seed_parallel(p, 50));
    int tp = tg_parallel_rank(p, TG_TP), n = s->tp;
    tg_tensor *x = part(ctx, 1, TG_SHAPE(ROWS, COLUMNS), 1, tp, n), *y, *whole, *whole_g;
    RUN(tg_place(p, x, TG_TP, TG_SHARD(1)));
    RUN(tg_place(p, x, TG_DP, TG_R));
    tg_tape *t = tg_tape_new(ctx), *t1;
    tg_ctx *alone;
    RUN(run_noise(ctx, s, p, x, t, &y));
    RUN(one_rank(s, &whole, &whole_g, &alone, &t1));
    EXPECT(ctx, off(y, whole, 1, tp, n) == 0);
    EXPECT(ctx, off(tg_grad_share(x), whole_g, 1, tp, n) == 0);
    RUN(in_step(ctx, world, NULL));
    RUN(in_step(ctx, world, "model-parallel-rng"));
    tg_tape_free(t1);
    tg_ctx_free(alone);
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(ranks_together_draw_what_one_rank_draws) {
    static const int ranks[][2] = {{1, 1}, {2, 2}, {2, 1}, {4, 2}, {4, 4}, {3, 3}};
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
        for (int recompute = 0; recompute < 2; recompute++)
            on_ranks(ranks[i][0], global_mode, &(setup){ranks[i][1], recompute});
}
END_TEST

static tg_status has_seed(tg_ctx *ctx, const char *name, uint64_t seed) {
    tg_rng s;
    RUN(tg_rng_get(ctx, name, &s));
    EXPECT(ctx, s.seed == seed);
    return TG_OK;
}

/* A key changes nothing: the stream advances, and a key that was closed draws again. */
static tg_status draws_by_order(tg_ctx *ctx) {
    for (int i = 1; i <= 2; i++) {
        tg_rng s;
        RUN(tg_key_open(ctx, 3));
        tg_drop(tg_uniform(ctx, TG_F64, TG_SHAPE(16), 0, 1));
        RUN(tg_key_close(ctx));
        RUN(tg_rng_get(ctx, NULL, &s));
        EXPECT(ctx, s.counter == 16 * (uint64_t)i);
    }
    return TG_OK;
}

static tg_status megatron_mode(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2, .ep = 2, .etp = 1, .rng = TG_RNG_MEGATRON));
    RUN(tg_rng_seed_parallel(p, 50));
    int tp = tg_parallel_rank(p, TG_TP), ep = tg_parallel_rank(p, TG_EP), etp = tg_parallel_rank(p, TG_ETP);
    RUN(has_seed(ctx, NULL, 50));
    RUN(has_seed(ctx, "data-parallel-rng", 50));
    RUN(has_seed(ctx, "model-parallel-rng", (uint64_t)(50 + 2718 + tp)));
    RUN(has_seed(ctx, "expert-parallel-rng", (uint64_t)(50 + 1024 + 100 * ep + etp)));
    RUN(draws_by_order(ctx));
    /* A shard draws like a tensor of its own. */
    tg_tensor *x = part(ctx, 1, TG_SHAPE(ROWS, COLUMNS), 1, tp, 2);
    RUN(tg_place(p, x, TG_TP, TG_SHARD(1)));
    tg_tape *t = tg_tape_new(ctx);
    tg_rng_fork(ctx, "model-parallel-rng");
    tg_tensor *y = tg_dropout(t, x, 0.5);
    tg_rng_join(ctx);
    tg_ctx *alone = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64, .seed = (uint64_t)(50 + 2718 + tp)));
    tg_tape *t1 = tg_tape_new(alone);
    tg_tensor *z = tg_dropout(t1, part(alone, 1, TG_SHAPE(ROWS, COLUMNS), 1, tp, 2), 0.5);
    EXPECT(ctx, off(y, z, -1, 0, 1) == 0);
    tg_rng s;
    RUN(tg_rng_get(ctx, "model-parallel-rng", &s));
    EXPECT(ctx, s.counter == ROWS * COLUMNS / 2);
    tg_tape_free(t1);
    tg_ctx_free(alone);
    REFUSED(ctx, TG_ERR_ARGUMENT, "the seed is 0", tg_rng_seed_parallel(p, 0));
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(megatrons_mode_has_streams_by_rank) { on_ranks(4, megatron_mode, NULL); }
END_TEST

static tg_status draw_and_fail(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out,
                               const void *site) {
    (void)params, (void)site;
    out[0] = tg_dropout(t, in[0], 0.5);
    return tg_is_alive(out[0]) ? TG_ERR_DATA : tg_ctx_status(tg_ctx_of(in[0]));
}

/* A shard draws from the stream of its rank, which is not the selected one. */
START_TEST(a_failed_op_leaves_the_stream_of_its_rank_as_it_is) {
    enum { NUMBERS = 1 << 20 };
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .memory = 6 << 20)); /* too little for two tensors of 4 MiB */
    tg_comm *world = tg_comm_plan_new(ctx, 0, 2);
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2, .rng = TG_RNG_MEGATRON));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = tg_zeros(ctx, TG_F32, TG_SHAPE(NUMBERS)), *y = tg_zeros(ctx, TG_F32, TG_SHAPE(3));
    tg_rng before, after;
    tg_place(p, x, TG_TP, TG_SHARD(0));
    tg_place(p, y, TG_TP, TG_SHARD(0));
    tg_rng_seed_parallel(p, 50);
    ck_assert(tg_rng_get(ctx, "model-parallel-rng", &before) == TG_OK);
    tg_dropout(t, x, 0.5);
    ck_assert(tg_ctx_status(ctx) == TG_ERR_MEMORY);
    tg_ctx_clear(ctx);
    ck_assert(tg_rng_get(ctx, "model-parallel-rng", &after) == TG_OK && after.counter == before.counter);
    tg_dropout(t, y, 0.5);
    ck_assert(tg_rng_get(ctx, "model-parallel-rng", &after) == TG_OK && after.counter == before.counter + 3);
    const tg_op composed = {.size = sizeof composed, .name = "composed", .n_in = 1, .n_out = 1,
                            .compose = draw_and_fail};
    tg_tensor *z;
    ck_assert(tg_apply(t, &composed, NULL, &y, 1, &z, 1, NULL, NULL, TG_SITE) == TG_ERR_DATA);
    tg_ctx_clear(ctx);
    ck_assert(tg_rng_get(ctx, "model-parallel-rng", &after) == TG_OK && after.counter == before.counter + 3);
    tg_tape_free(t);
    tg_parallel_free(p);
    tg_comm_free(world);
    tg_ctx_free(ctx);
}
END_TEST

/* ---- Megatron's mode: equal outside the tensor-parallel region, different inside ---- */

/* Returns the share of x's elements that differ between the ranks of c. NaN on an error. */
static double apart(tg_comm *c, tg_tensor *x) {
    double most[8192], least[8192], n = (double)tg_numel(x), other = 0;
    tg_tensor *a = tg_zeros(tg_ctx_of(x), TG_F64, tg_shape_of(x)), *b = tg_zeros(tg_ctx_of(x), TG_F64, tg_shape_of(x));
    tg_read_f64(x, most, tg_numel(x));
    tg_write_f64(a, most, tg_numel(x));
    tg_comm_all_reduce(c, b, a, TG_REDUCE_MIN);
    tg_comm_all_reduce(c, a, a, TG_REDUCE_MAX);
    if (tg_read_f64(a, most, tg_numel(x)) != TG_OK || tg_read_f64(b, least, tg_numel(x)) != TG_OK) return NAN;
    for (int64_t i = 0; i < tg_numel(x); i++) other += most[i] != least[i];
    tg_drop(a), tg_drop(b);
    return other / n;
}

static int64_t drawn(tg_ctx *ctx, const char *name) {
    tg_rng s = {0};
    tg_rng_get(ctx, name, &s);
    return (int64_t)s.counter;
}

/* Layers of a region: another shard on each tp (etp) rank, the same on each dp rank. They do not use the default
 * stream. */
static tg_status shards_differ(tg_ctx *ctx, const tg_parallel *p) {
    const tg_parallel_linear_opts dense = {TG_PARALLEL_LINEAR_DEFAULTS, .no_bias = true},
                                  expert = {TG_PARALLEL_LINEAR_DEFAULTS, .no_bias = true, .expert = true};
    int64_t before = drawn(ctx, NULL), model = drawn(ctx, "model-parallel-rng"),
            experts = drawn(ctx, "expert-parallel-rng");
    tg_module *m[] = {tg_nn_column_linear(p, 6, 8, &dense), tg_nn_row_linear(p, 8, 6, &dense),
                      tg_nn_vocab_embedding(p, 8, 6, 1, NULL), tg_nn_column_linear(p, 6, 8, &expert),
                      tg_nn_row_linear(p, 8, 6, &expert)};
    for (int i = 0; i < 5; i++) {
        tg_tensor *w = tg_module_find(m[i], "weight");
        EXPECT(ctx, apart(tg_parallel_comm(p, i < 3 ? TG_TP : TG_ETP), w) == 1);
        EXPECT(ctx, apart(tg_parallel_comm(p, i < 3 ? TG_DP : TG_EDP), w) == 0);
        if (i < 3) model += tg_numel(w);
        if (i >= 3) experts += tg_numel(w);
        if (i >= 3 && tg_parallel_size(p, TG_EP) > 1) EXPECT(ctx, apart(tg_parallel_comm(p, TG_EP), w) == 1);
    }
    EXPECT(ctx, drawn(ctx, NULL) == before && drawn(ctx, "model-parallel-rng") == model &&
                    drawn(ctx, "expert-parallel-rng") == experts);
    tg_rng first = {.seed = 50 + 2718 + (uint64_t)tg_parallel_rank(p, TG_TP)};
    tg_ctx *alone = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64, .seed = first.seed));
    tg_tensor *w = tg_module_find(m[0], "weight"),
              *same = tg_param_new(alone, "w", TG_DTYPE_DEFAULT, tg_shape_of(w), 0.02);
    EXPECT(ctx, off(w, same, -1, 0, 1) == 0);
    tg_ctx_free(alone);
    for (int i = 0; i < 5; i++) tg_module_free(m[i]);
    return tg_ctx_status(ctx);
}

/* Tensors that are equal on every tp rank stay so, and draw from the default stream. */
static tg_status wholes_are_equal(tg_ctx *ctx, const tg_parallel *p) {
    tg_comm *tp = tg_parallel_comm(p, TG_TP);
    int64_t model = drawn(ctx, "model-parallel-rng"), before = drawn(ctx, NULL);
    tg_tensor *w = tg_param_new_placed(p, "w", TG_F64, TG_SHAPE(5, 5), 1, TG_PLACES({TG_TP, TG_R}, {TG_DP, TG_R})),
              *x = tg_randn(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(30), 1);
    tg_tape *t = tg_tape_new(ctx);
    EXPECT(ctx, apart(tp, w) == 0 && apart(tp, x) == 0 && apart(tp, tg_dropout(t, x, 0.5)) == 0);
    EXPECT(ctx, drawn(ctx, "model-parallel-rng") == model && drawn(ctx, NULL) == before + 25 + 30 + 30);
    tg_tape_free(t);
    tg_drop(w), tg_drop(x);
    return tg_ctx_status(ctx);
}

/* Heads of attention, rows of sequence parallelism, and an op with an explicit fork. */
static tg_status dropout_differs(tg_ctx *ctx, const tg_parallel *p) {
    tg_comm *tp = tg_parallel_comm(p, TG_TP);
    int64_t before = drawn(ctx, NULL);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = tg_zeros(ctx, TG_F64, TG_SHAPE(16, 8)), *q = tg_zeros(ctx, TG_F64, TG_SHAPE(2, 2, 8, 4)),
              *v = tg_zeros(ctx, TG_F64, TG_SHAPE(2, 2, 8, 4));
    tg_ctx_ops(ctx)->fill(ctx, tg_array_of(x), 1);
    tg_ctx_ops(ctx)->fill(ctx, tg_array_of(v), 1);
    tg_place(p, x, TG_TP, TG_SHARD(0));
    tg_place(p, q, TG_TP, TG_SHARD(1));
    tg_place(p, v, TG_TP, TG_SHARD(1));
    EXPECT(ctx, apart(tp, tg_dropout(t, x, 0.5)) > 0.2);
    EXPECT(ctx, apart(tp, tg_attention(t, q, q, v, TG_ATTENTION(.dropout = 0.5))) > 0.2);
    EXPECT(ctx, apart(tg_parallel_comm(p, TG_DP), tg_dropout(t, x, 0.5)) == 0 && drawn(ctx, NULL) == before);
    tg_rng_add(ctx, "own", 9);
    tg_rng_fork(ctx, "own");
    EXPECT(ctx, apart(tp, tg_dropout(t, x, 0.5)) == 0 && drawn(ctx, "own") == 16 * 8);
    tg_rng_join(ctx);
    tg_tape_free(t);
    tg_drop(x), tg_drop(q), tg_drop(v);
    return tg_ctx_status(ctx);
}

/* Padding takes no draws: from a rank's own stream only its elements are drawn, from the common one all elements. */
static tg_status padding_takes_none(tg_ctx *ctx, const tg_parallel *p) {
    const char *name = tg_parallel_rng(p) == TG_RNG_MEGATRON ? "model-parallel-rng" : NULL;
    int r = tg_parallel_rank(p, TG_TP), rows = name ? r == 0 ? 4 : 1 : 5; /* rows 5, 6 and 7 of 8 are padding */
    int64_t before = drawn(ctx, name), idle = drawn(ctx, NULL);
    tg_module *m = tg_nn_padded_embedding(p, 5, 8, 3, 1, NULL);
    EXPECT(ctx, drawn(ctx, name) == before + rows * 3 && (!name || drawn(ctx, NULL) == idle));
    tg_module_free(m);
    m = tg_nn_padded_embedding(p, 5, 8, 3, 0, NULL);
    EXPECT(ctx, drawn(ctx, name) == before + rows * 3);
    double v[12];
    RUN(tg_read_f64(tg_module_find(m, "weight"), v, 12));
    for (int i = 0; i < 12; i++) EXPECT(ctx, v[i] == 0);
    tg_module_free(m);
    return tg_ctx_status(ctx);
}

static tg_status apart_inside(void *arg, tg_ctx *ctx, tg_comm *world) {
    const tg_parallel_opts *o = arg;
    tg_parallel *p = tg_parallel_new(world, o);
    if (o->rng == TG_RNG_MEGATRON) {
        REFUSED(ctx, TG_ERR_STATE, "\"model-parallel-rng\", which does not exist; call tg_rng_seed_parallel first",
                tg_nn_column_linear(p, 6, 8, NULL));
        REFUSED(ctx, TG_ERR_STATE, "\"expert-parallel-rng\", which does not exist",
                tg_nn_column_linear(p, 6, 8, TG_PARALLEL_LINEAR(.expert = true)));
        RUN(tg_rng_seed_parallel(p, 50));
        RUN(shards_differ(ctx, p));
        RUN(wholes_are_equal(ctx, p));
        RUN(dropout_differs(ctx, p));
    }
    RUN(padding_takes_none(ctx, p));
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(megatrons_mode_draws_apart_inside_the_region) {
    on_ranks(2, apart_inside, TG_PARALLEL(.tp = 2, .rng = TG_RNG_MEGATRON));
    on_ranks(4, apart_inside, TG_PARALLEL(.tp = 2, .rng = TG_RNG_MEGATRON));
    on_ranks(4, apart_inside, TG_PARALLEL(.tp = 2, .ep = 2, .rng = TG_RNG_MEGATRON));
    on_ranks(2, apart_inside, TG_PARALLEL(.tp = 2));
}
END_TEST

/* ---- Rows that have left their places ---- */

/* Fills want with what one rank drops of a tensor of ones, in key 5 of step 2. */
static tg_status whole_mask(double *want) {
    tg_ctx *alone = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64, .seed = 7));
    tg_tape *t = tg_tape_new(alone);
    tg_draws_step(alone, 2);
    tg_key_open(alone, 5);
    tg_tensor *y = tg_dropout(t, tg_full(t, TG_F64, TG_SHAPE(ROWS, COLUMNS), 1), 0.5);
    tg_key_close(alone);
    tg_status s = tg_read_f64(y, want, ROWS * COLUMNS);
    tg_tape_free(t);
    tg_ctx_free(alone);
    return s;
}

/* Each rank has other rows of one tensor, some of them twice: opaque. */
static tg_status given_rows(void *arg, tg_ctx *ctx, tg_comm *world) {
    enum { MINE = 3 };
    double want[ROWS * COLUMNS], got[MINE * COLUMNS], ones[MINE * COLUMNS];
    int64_t rows[MINE], n = tg_comm_size(world), me = tg_comm_rank(world);
    (void)arg;
    for (int i = 0; i < MINE; i++) rows[i] = (3 * me + 5 * i * i) % ROWS;
    for (int i = 0; i < MINE * COLUMNS; i++) ones[i] = 1;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = (int)n));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = tg_from_host(ctx, TG_F64, TG_SHAPE(MINE, COLUMNS), ones);
    tg_tensor *of = tg_from_host(ctx, TG_I64, TG_SHAPE(MINE), rows);
    tg_place(p, x, TG_TP, TG_V);
    tg_place(p, of, TG_TP, TG_V);
    tg_draws_step(ctx, 2);
    tg_key_open(ctx, 5);
    REFUSED(ctx, TG_ERR_PLACEMENT, "its elements have no place in a global tensor", tg_dropout(t, x, 0.5));
    REFUSED(ctx, TG_ERR_PLACEMENT, "use tg_dropout_rows", tg_gumbel(t, x));
    tg_tensor *y = tg_dropout_rows(t, x, 0.5, of);
    tg_key_close(ctx);
    RUN(tg_read_f64(y, got, MINE * COLUMNS));
    RUN(whole_mask(want));
    for (int i = 0; i < MINE * COLUMNS; i++) EXPECT(ctx, got[i] == want[rows[i / COLUMNS] * COLUMNS + i % COLUMNS]);
    EXPECT(ctx, tg_placement_of(y, TG_TP).kind == TG_VARYING);
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

/* All ranks have the same rows, and each its columns. */
static tg_status given_rows_of_columns(void *arg, tg_ctx *ctx, tg_comm *world) {
    enum { MINE = 4 };
    static const int64_t rows[MINE] = {6, 1, 1, 4};
    double want[ROWS * COLUMNS], got[MINE * COLUMNS], ones[MINE * COLUMNS];
    int64_t n = tg_comm_size(world), me = tg_comm_rank(world), width = COLUMNS / n;
    (void)arg;
    for (int i = 0; i < MINE * COLUMNS; i++) ones[i] = 1;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = (int)n));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = tg_from_host(ctx, TG_F64, TG_SHAPE(MINE, width), ones);
    tg_tensor *of = tg_from_host(ctx, TG_I64, TG_SHAPE(MINE), rows);
    tg_place(p, x, TG_TP, TG_SHARD(1));
    tg_place(p, of, TG_TP, TG_I);
    tg_draws_step(ctx, 2);
    tg_key_open(ctx, 5);
    tg_tensor *y = tg_dropout_rows(t, x, 0.5, of);
    tg_key_close(ctx);
    RUN(tg_read_f64(y, got, MINE * width));
    RUN(whole_mask(want));
    for (int64_t i = 0; i < MINE * width; i++)
        EXPECT(ctx, got[i] == want[rows[i / width] * COLUMNS + me * width + i % width]);
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(given_rows_draw_as_in_their_places) {
    for (int n = 2; n <= 4; n++) {
        on_ranks(n, given_rows, NULL);
        on_ranks(n, given_rows_of_columns, NULL);
    }
}
END_TEST

/* ---- Stages in that mode ---- */

/* Fails unless x has the values that `alone` draws next, as initial weights of a model of two layers. */
static tg_status draws_next(tg_tensor *x, tg_ctx *alone) {
    double v[1024], w[1024];
    tg_tensor *y = tg_param_new(alone, "y", TG_F64, tg_shape_of(x), 1);
    RUN(tg_read_f64(x, v, tg_numel(x)));
    RUN(tg_read_f64(y, w, tg_numel(x)));
    double std = fabs(v[0]) > 0.015 * fabs(w[0]) ? 0.02 : 0.02 / sqrt(4); /* of residual outputs */
    for (int64_t i = 0; i < tg_numel(x); i++) EXPECT(tg_ctx_of(x), fabs(v[i] - std * w[i]) < 1e-12);
    tg_drop(y);
    return TG_OK;
}

/* Each stage draws its own weights in order, from the seed of the stage; the last one its copy of the embedding last,
 * which the first one's values then replace. */
static tg_status stages(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.pp = 2, .rng = TG_RNG_MEGATRON));
    int stage = tg_parallel_rank(p, TG_PP);
    uint64_t seed = 50 + 100 * (uint64_t)stage;
    RUN(tg_rng_seed_parallel(p, seed));
    tg_ctx *alone = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64, .seed = seed));
    tg_module *gpt = tg_gpt_new(ctx, TG_GPT(.arch = TG_GPT2, .vocab = 17, .layers = 2, .heads = 4, .hidden = 16,
                                            .positions = 8, .parallel = p));
    tg_rng mine, its;
    for (int i = 0, n = tg_module_param_count(gpt); i < n; i++) {
        const char *path;
        tg_tensor *w = tg_module_param(gpt, i, &path);
        bool words = strstr(path, "wte.weight");
        if (words) EXPECT(ctx, apart(tg_parallel_embedding(p), w) == 0);
        if (words) EXPECT(ctx, i == (stage ? n - 1 : 0));
        if (words && stage)
            tg_drop(tg_param_new(alone, "copy", TG_F64, tg_shape_of(w), 1)); /* drawn, and replaced */
        else if (tg_ndim(w) == 2)
            RUN(draws_next(w, alone));
    }
    RUN(tg_rng_get(ctx, NULL, &mine));
    RUN(tg_rng_get(alone, NULL, &its));
    EXPECT(ctx, mine.counter == its.counter && mine.seed == seed);
    tg_module_free(gpt);
    tg_ctx_free(alone);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(stages_draw_from_seeds_of_their_own) { on_ranks(2, stages, NULL); }
END_TEST

/* ---- A model in that mode ---- */

/* Computes the loss of a model with dropout, and a sum over the gradients of its whole parameters, which is the same
 * on all tp ranks although shards and masks differ. */
static tg_status model_once(tg_ctx *ctx, const tg_parallel *p, tg_gpt_recompute how, double *loss, double *sum) {
    enum { LENGTH = 8, VOCAB = 17 };
    int64_t ids[2 * LENGTH];
    tg_comm *tp = tg_parallel_comm(p, TG_TP);
    RUN(tg_rng_seed_parallel(p, 50));
    tg_module *gpt = tg_gpt_new(ctx, TG_GPT(.arch = TG_GPT2, .vocab = VOCAB, .layers = 1, .heads = 4, .hidden = 16,
                                            .positions = LENGTH, .dropout = 0.2, .recompute = how, .parallel = p));
    for (int i = 0; i < 2 * LENGTH; i++) ids[i] = (7 * i + i * i) % VOCAB;
    tg_tensor *x = tg_from_host(ctx, TG_I64, TG_SHAPE(2, LENGTH), ids), *params[32];
    RUN(tg_place(p, x, TG_TP, TG_I));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *l = tg_gpt_loss(gpt, t, x, x, TG_LOSS_SUM);
    EXPECT(ctx, apart(tp, l) == 0);
    *loss = tg_item(l);
    *sum = 0;
    RUN(tg_backward(t, l));
    int n = tg_module_params(gpt, params, 32);
    RUN(tg_wgrads_drain(gpt));
    RUN(tg_grads_finalize(p, params, n, NULL));
    for (int i = 0; i < n; i++) {
        const char *path;
        double g[8192];
        tg_tensor *w = tg_module_param(gpt, i, &path);
        bool shard = tg_tp_attributes(w, NULL, NULL), linear = strstr(path, "c_") && strstr(path, "weight");
        EXPECT(ctx, !linear || (shard && apart(tp, w) == 1));
        if (shard) continue;
        EXPECT(ctx, apart(tp, w) == 0 && apart(tp, tg_grad_of(w)) == 0);
        RUN(tg_read_f64(tg_grad_of(w), g, tg_numel(w)));
        for (int64_t k = 0; k < tg_numel(w); k++) *sum += g[k] * (double)(1 + k % 5);
    }
    tg_tape_free(t);
    tg_module_free(gpt);
    tg_drop(x);
    return tg_ctx_status(ctx);
}

static tg_status a_model(void *arg, tg_ctx *ctx, tg_comm *world) {
    const bool *sp = arg;
    double loss[2], sum[2];
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2, .sequence_parallel = *sp, .rng = TG_RNG_MEGATRON));
    RUN(model_once(ctx, p, TG_GPT_KEEP, &loss[0], &sum[0]));
    RUN(model_once(ctx, p, TG_GPT_FULL, &loss[1], &sum[1])); /* the second run draws the masks of the first */
    EXPECT(ctx, loss[0] > 0 && loss[0] == loss[1] && sum[0] != 0 && fabs(sum[0] - sum[1]) < 1e-10 * fabs(sum[0]));
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(a_model_of_megatrons_mode_is_one_model) {
    for (int sp = 0; sp < 2; sp++) on_ranks(2, a_model, &(bool){sp});
}
END_TEST

int main(void) {
    const TTest *const tests[] = {ranks_together_draw_what_one_rank_draws,      megatrons_mode_has_streams_by_rank,
                                  megatrons_mode_draws_apart_inside_the_region, given_rows_draw_as_in_their_places,
                                  stages_draw_from_seeds_of_their_own,          a_model_of_megatrons_mode_is_one_model,
                                  a_failed_op_leaves_the_stream_of_its_rank_as_it_is};
    return tg_check_main("rng", tests, sizeof tests / sizeof *tests);
}
