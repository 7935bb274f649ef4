/* Random draws on ranks: in global mode the ranks together draw what one rank draws, and their streams stay in step; in
 * Megatron's mode each has the streams of its formulas. */
#include <tapegrad/extend.h>

#include "on_ranks.h"

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

/* y and the gradient of x of the noise on x; p NULL: on one rank. */
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

/* The columns of a part of the whole that one rank computes. */
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
    EXPECT(ctx, off(tg_keep(tg_grad_of(x)), whole_g, 1, tp, n) == 0);
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

static tg_status megatron_mode(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2, .ep = 2, .etp = 1, .rng = TG_RNG_MEGATRON));
    RUN(tg_rng_seed_parallel(p, 50));
    int tp = tg_parallel_rank(p, TG_TP), ep = tg_parallel_rank(p, TG_EP), etp = tg_parallel_rank(p, TG_ETP);
    RUN(has_seed(ctx, NULL, 50));
    RUN(has_seed(ctx, "data-parallel-rng", 50));
    RUN(has_seed(ctx, "model-parallel-rng", (uint64_t)(50 + 2718 + tp)));
    RUN(has_seed(ctx, "expert-parallel-rng", (uint64_t)(50 + 1024 + 100 * ep + etp)));
    /* A shard draws as a tensor of its own. */
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

int main(void) {
    const TTest *const tests[] = {ranks_together_draw_what_one_rank_draws, megatrons_mode_has_streams_by_rank};
    return tg_check_main("rng", tests, sizeof tests / sizeof *tests);
}
