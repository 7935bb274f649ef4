/* Random draws on ranks: in global mode the ranks together draw what one rank draws, and their streams stay in step; in
 * Megatron's mode each has the streams of its formulas. */
#include <tapegrad/extend.h>
#include <tapegrad/nn.h>

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

/* ---- A GPT in Megatron's mode ---- */

enum { BATCH = 2, LENGTH = 8, HIDDEN = 16, LAYERS = 2, HEADS = 4 };

typedef struct gpt_setup {
    bool sp;
    tg_gpt_recompute recompute;
    double sums[2][2]; /* of each rank: loss and gradients */
} gpt_setup;

static tg_status sums_of(tg_module *gpt, tg_tensor *loss, double out[2]) {
    out[0] = tg_item(loss);
    out[1] = 0;
    for (int i = 0, n = tg_module_param_count(gpt); i < n; i++) {
        double g[4096];
        tg_tensor *p = tg_module_param(gpt, i, NULL);
        RUN(tg_read_f64(tg_grad_of(p), g, tg_numel(p)));
        for (int64_t k = 0; k < tg_numel(p); k++) out[1] += g[k] * (double)(1 + (k + i) % 5);
    }
    return TG_OK;
}

/* Outside the tensor-parallel region the ranks draw alike from the default stream, inside from their own; with sequence
 * parallelism all is inside. */
static tg_status gpt_streams(tg_ctx *ctx, tg_comm *world, bool sp, uint64_t before) {
    tg_rng outer, inner;
    RUN(in_step(ctx, world, NULL));
    RUN(tg_rng_get(ctx, NULL, &outer));
    RUN(tg_rng_get(ctx, "model-parallel-rng", &inner));
    int64_t rows = BATCH * LENGTH * HIDDEN * (1 + 2 * LAYERS), scores = BATCH * HEADS / 2 * LENGTH * LENGTH * LAYERS;
    EXPECT(ctx, outer.counter - before == (uint64_t)(sp ? 0 : rows));
    EXPECT(ctx, inner.counter == (uint64_t)(scores + (sp ? rows / 2 : 0)));
    return TG_OK;
}

static tg_status run_gpt(void *arg, tg_ctx *ctx, tg_comm *world) {
    gpt_setup *s = arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2, .sequence_parallel = s->sp, .rng = TG_RNG_MEGATRON));
    RUN(tg_rng_seed_parallel(p, 50));
    tg_module *gpt = tg_gpt_new(ctx, TG_GPT(.vocab = 256, .layers = LAYERS, .heads = HEADS, .hidden = HIDDEN,
                                            .positions = LENGTH, .dropout = 0.4, .recompute = s->recompute,
                                            .init_std = 0.2, .parallel = p));
    int64_t ids[BATCH * LENGTH];
    for (int i = 0; i < BATCH * LENGTH; i++) ids[i] = 7 * i;
    tg_tensor *x = tg_from_host(ctx, TG_I64, TG_SHAPE(BATCH, LENGTH), ids);
    RUN(tg_place(p, x, TG_TP, TG_I));
    tg_rng before;
    RUN(tg_rng_get(ctx, NULL, &before));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *loss = tg_gpt_loss(gpt, t, x, x, TG_LOSS_SUM);
    RUN(tg_backward(t, loss));
    RUN(gpt_streams(ctx, world, s->sp, before.counter));
    tg_tensor *params[64];
    RUN(tg_grads_finalize(p, params, tg_module_params(gpt, params, 64), NULL));
    RUN(sums_of(gpt, loss, s->sums[tg_comm_rank(world)]));
    tg_set_training(t, false); /* evaluation draws nothing */
    tg_gpt_loss(gpt, t, x, x, TG_LOSS_SUM);
    RUN(gpt_streams(ctx, world, s->sp, before.counter));
    tg_tape_free(t);
    tg_module_free(gpt);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(a_gpt_in_megatrons_mode_draws_inside_and_outside) {
    for (int sp = 0; sp < 2; sp++) {
        gpt_setup keep = {.sp = sp};
        on_ranks(2, run_gpt, &keep);
        ck_assert(keep.sums[0][0] == keep.sums[1][0]);
        for (int r = TG_GPT_FULL; r <= TG_GPT_DISTRIBUTED; r++) {
            gpt_setup again = {.sp = sp, .recompute = (tg_gpt_recompute)r};
            on_ranks(2, run_gpt, &again);
            for (int i = 0; i < 4; i++) {
                double want = keep.sums[i / 2][i % 2], got = again.sums[i / 2][i % 2];
                ck_assert_msg(fabs(got - want) <= 1e-10 * fabs(want), "sp %d recompute %d: %.17g, expected %.17g",
                              sp, r, got, want);
            }
        }
    }
}
END_TEST

int main(void) {
    const TTest *const tests[] = {ranks_together_draw_what_one_rank_draws, megatrons_mode_has_streams_by_rank,
                                  a_gpt_in_megatrons_mode_draws_inside_and_outside};
    return tg_check_main("rng", tests, sizeof tests / sizeof *tests);
}
