/* Groups: the mixed radix of Megatron-Core's RankGenerator, and tg_parallel on real ranks. */
#include <string.h>
#include <time.h>

#include <tapegrad/capture.h>
#include <tapegrad/mappings.h>
#include <tapegrad/nn.h>
#include <tapegrad/backward.h>
#include <tapegrad/gpt.h>
#include <tapegrad/megatron.h>
#include <tapegrad/op_call.h>
#include <tapegrad/ranks.h>
#include <tapegrad/recompute.h>

#include "core/context.h"
#include "device_ranks.h"

#include "check_main.h"

/* ---- On a plan ---- */

static void expect_groups(const char *order, const int *sizes, const char *axes, int groups, int members,
                          const int *expected) {
    int out[64], size = 0;
    ck_assert_int_eq(tg_rank_groups(order, sizes, axes, out, &size), groups);
    ck_assert_int_eq(size, members);
    ck_assert_mem_eq(out, expected, (size_t)(groups * members) * sizeof *out);
}

/* Expected groups of 8 ranks, computed by hand: tp fastest, then cp, ep, dp, pp. */
START_TEST(groups_are_those_worked_out_by_hand) {
    const char *order = "tp-cp-ep-dp-pp";
    const int sizes[] = {2, 1, 1, 2, 2};
    expect_groups(order, sizes, "tp", 4, 2, (const int[]){0, 1, 2, 3, 4, 5, 6, 7});
    expect_groups(order, sizes, "dp", 4, 2, (const int[]){0, 2, 1, 3, 4, 6, 5, 7});
    expect_groups(order, sizes, "pp", 4, 2, (const int[]){0, 4, 1, 5, 2, 6, 3, 7});
    expect_groups(order, sizes, "tp-pp", 2, 4, (const int[]){0, 1, 4, 5, 2, 3, 6, 7});
    expect_groups(order, sizes, "dp-cp", 4, 2, (const int[]){0, 2, 1, 3, 4, 6, 5, 7});
    const int context[] = {2, 2, 1, 2, 1};
    expect_groups(order, context, "cp", 4, 2, (const int[]){0, 2, 1, 3, 4, 6, 5, 7});
    expect_groups(order, context, "dp", 4, 2, (const int[]){0, 4, 1, 5, 2, 6, 3, 7});
    expect_groups(order, context, "dp-cp", 2, 4, (const int[]){0, 2, 4, 6, 1, 3, 5, 7});
    expect_groups("pp-dp-tp", (const int[]){2, 2, 2}, "tp", 4, 2, (const int[]){0, 4, 1, 5, 2, 6, 3, 7});
}
END_TEST

/* For any order, each rank is in one group, and the members of a group differ only on its axes. */
START_TEST(groups_part_the_world) {
    static const char *const orders[] = {"tp-cp-dp-pp", "pp-tp-dp-cp", "dp-cp-pp-tp"};
    static const char *const axes[] = {"tp", "dp", "tp-cp", "pp-dp", "tp-cp-dp-pp"};
    const int sizes[] = {2, 3, 2, 2};
    for (int o = 0; o < 3; o++)
        for (int a = 0; a < 5; a++) {
            int out[64], members, seen[24] = {0};
            int groups = tg_rank_groups(orders[o], sizes, axes[a], out, &members);
            ck_assert_int_eq(groups * members, 24);
            for (int i = 0; i < 24; i++) seen[out[i]]++;
            for (int i = 0; i < 24; i++) ck_assert_int_eq(seen[i], 1);
            for (int g = 0; g < groups; g++)
                for (int r = 1; r < members; r++) ck_assert_int_gt(out[g * members + r], out[g * members + r - 1]);
        }
}
END_TEST

START_TEST(wrong_orders_have_no_groups) {
    const int sizes[] = {2, 2, 0};
    int n;
    ck_assert_int_eq(tg_rank_groups("tp-dp", sizes, "pp", NULL, &n), -1);
    ck_assert_int_eq(tg_rank_groups("tp-tp", sizes, "tp", NULL, &n), -1);
    ck_assert_int_eq(tg_rank_groups("tp-", sizes, "tp", NULL, &n), -1);
    ck_assert_int_eq(tg_rank_groups("", sizes, "tp", NULL, &n), -1);
    ck_assert_int_eq(tg_rank_groups(NULL, sizes, "tp", NULL, &n), -1);
    ck_assert_int_eq(tg_rank_groups("tp-dp", NULL, "tp", NULL, &n), -1);
    ck_assert_int_eq(tg_rank_groups("tp-dp-pp", sizes, "tp", NULL, &n), -1);
    ck_assert_int_eq(tg_rank_groups("tp-dp", sizes, "dp", NULL, NULL), 2);
}
END_TEST

/* ---- On ranks ---- */

/* Identifies the members of a group by a sum of bits. */
static int64_t members_of(tg_comm *c) {
    int64_t bit = (int64_t)1 << tg_comm_rank(c), all = 0;
    tg_tensor *x = tg_from_host(tg_comm_ctx(c), TG_I64, TG_SHAPE(1), &bit);
    tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM);
    tg_read(x, &all, sizeof all);
    tg_drop(x);
    return all;
}

static tg_status check_grid(void *arg, tg_ctx *ctx, tg_comm *world) {
    const tg_parallel_opts *o = arg;
    tg_parallel *p = tg_parallel_new(world, o);
    int world_rank = tg_comm_rank(world), rank = 0, stride = 1;
    static const tg_axis axes[] = {TG_TP, TG_CP, TG_DP, TG_PP};
    for (int i = 0; i < 4; i++) {
        tg_comm *c = tg_parallel_comm(p, axes[i]);
        int n = tg_parallel_size(p, axes[i]);
        rank += tg_parallel_rank(p, axes[i]) * stride;
        stride *= n;
        if (tg_comm_size(c) != n || members_of(c) != ((int64_t)1 << n) - 1)
            return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "axis %d has another group", i);
    }
    if (rank != world_rank || stride != tg_comm_size(world))
        return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "rank %d counts as %d", world_rank, rank);
    if (tg_comm_size(tg_parallel_dp_cp(p)) != tg_parallel_size(p, TG_DP) * tg_parallel_size(p, TG_CP) ||
        tg_comm_size(tg_parallel_model(p)) != tg_parallel_size(p, TG_TP) * tg_parallel_size(p, TG_PP))
        return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "a product of axes has another size");
    int stage = tg_parallel_rank(p, TG_PP), stages = tg_parallel_size(p, TG_PP);
    bool end = stage == 0 || stage == stages - 1;
    tg_comm *e = tg_parallel_embedding(p);
    if (!e != !end || (e && tg_comm_size(e) != (stages > 1 ? 2 : 1)))
        return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "the embedding group is wrong on stage %d", stage);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

static void on_ranks(int n, tg_rank_fn fn, void *arg) {
    char message[1024] = "";
    tg_status s = run_ranks(n, fn, arg, TG_RANKS(.message = message, .message_size = sizeof message));
    ck_assert_msg(s == TG_OK, "%s", message);
}

START_TEST(every_rank_is_in_its_groups) {
    on_ranks(1, check_grid, NULL);
    on_ranks(4, check_grid, NULL);
    on_ranks(4, check_grid, TG_PARALLEL(.tp = 2));
    on_ranks(4, check_grid, TG_PARALLEL(.tp = 2, .pp = 2));
    on_ranks(6, check_grid, TG_PARALLEL(.pp = 3, .cp = 2));
    on_ranks(8, check_grid, TG_PARALLEL(.tp = 2, .cp = 2, .pp = 2));
}
END_TEST

/* ---- Recovery ---- */

static double sum_over(tg_ctx *ctx, tg_comm *c, double v) {
    tg_tensor *x = tg_from_host(ctx, TG_F64, TG_SHAPE(1), &v);
    tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM);
    double sum = tg_item(x);
    tg_drop(x);
    return sum;
}

/* Rank 1 fails before a collective; all ranks clear the error and continue in the same grid. If rank 1 is late, rank
 * 3 has slept for long in the call that rank 1 misses. The first rank that checks must find this, and not two ranks
 * that wait for each other. */
static tg_status fail_and_go_on(void *arg, tg_ctx *ctx, tg_comm *world) {
    const struct timespec while_others_sleep = {.tv_nsec = 30000000};
    bool late = *(const bool *)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    int rank = tg_comm_rank(world);
    if (rank == 1 && late) nanosleep(&while_others_sleep, NULL);
    if (rank == 1) tg_ctx_fail(ctx, TG_ERR_DATA, "a bad sample");
    sum_over(ctx, tg_parallel_comm(p, TG_TP), 1);
    sum_over(ctx, world, 1);
    if (tg_ctx_status(ctx) != (rank == 1 ? TG_ERR_DATA : TG_ERR_REMOTE) || !strstr(tg_ctx_message(ctx), "a bad sample"))
        return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "unexpected"), TG_ERR_INTERNAL;
    tg_ctx_clear(ctx);
    double sum = sum_over(ctx, tg_parallel_comm(p, TG_DP), 1);
    bool reported = tg_ctx_status(ctx) == TG_ERR_ABORTED || tg_ctx_status(ctx) == TG_ERR_REMOTE;
    /* Rank 2 may have reached the world's call after it failed: then it has missed as many calls as rank 0. */
    if (rank == 3 ? !reported : rank != 1 && !reported && sum != 2)
        return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "rank %d: a sum of %g", rank, sum), TG_ERR_INTERNAL;
    tg_ctx_clear(ctx);
    tg_comm *tp = tg_parallel_comm(p, TG_TP);
    if (tg_parallel_recover(p) != TG_OK) return tg_ctx_status(ctx);
    if (tg_parallel_comm(p, TG_TP) != tp) return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "the group has moved");
    if (sum_over(ctx, world, 1) != 4 || sum_over(ctx, tg_parallel_comm(p, TG_TP), 1) != 2 ||
        sum_over(ctx, tg_parallel_comm(p, TG_DP), rank) != (rank % 2 ? 4 : 2))
        return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "other sums after the recovery");
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(a_grid_recovers_from_a_failure) {
    on_ranks(4, fail_and_go_on, &(bool){false});
    for (int i = 0; i < 5; i++) on_ranks(4, fail_and_go_on, &(bool){true});
}
END_TEST

/* Rank 3 is lost: three ranks do not fill a grid of tp 2, but one of dp 3. */
static tg_status lose_one(void *arg, tg_ctx *ctx, tg_comm *world) {
    int tp = *(const int *)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = tp));
    if (tg_comm_rank(world) == 3) {
        tg_parallel_free(p);
        return TG_OK;
    }
    sum_over(ctx, world, 1);
    if (tg_ctx_status(ctx) != TG_ERR_REMOTE || !strstr(tg_ctx_message(ctx), "rank 3")) return tg_ctx_status(ctx);
    tg_ctx_clear(ctx);
    tg_status s = tg_parallel_recover(p);
    if (tp == 2) {
        bool refused = s == TG_ERR_STATE && strstr(tg_ctx_message(ctx), "has 3 ranks left");
        tg_ctx_clear(ctx);
        tg_parallel_free(p);
        return refused ? TG_OK : tg_ctx_fail(ctx, TG_ERR_INTERNAL, "three ranks filled a grid of tp 2");
    }
    if (s == TG_OK && (tg_parallel_size(p, TG_DP) != 3 || sum_over(ctx, tg_parallel_comm(p, TG_DP), 1) != 3))
        return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "other groups after the loss");
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(a_grid_goes_on_with_the_ranks_that_are_left) {
    on_ranks(4, lose_one, &(int){1});
    on_ranks(4, lose_one, &(int){2});
}
END_TEST

/* ---- Calls that are skipped after an error ---- */

/* Calls in which tp ranks communicate; those from FIRST_OF_SP on under sequence parallelism. */
typedef enum meets {
    FORWARD, APPLY, LOSS, LOGITS, NEXT, RECOMPUTE, REPLAY, DATA, BACKWARD, STEP, DRAIN, INFER, MEETS,
    FIRST_OF_SP = DRAIN
} meets;

typedef struct model {
    tg_ctx *ctx;
    tg_parallel *p;
    tg_comm *tp;
    tg_tape *t;
    tg_module *gpt, *row, *column, *infer_row, *infer_column;
    tg_gpt_cache *cache;
    tg_graph *graph;
    tg_tensor *ids, *part, *shard, *rows, *whole, *root;
} model;

static tg_status step_of(void *state, tg_ctx *ctx) {
    const model *m = state;
    tg_gpt_loss(m->gpt, m->t, m->ids, m->ids, TG_LOSS_SUM);
    return tg_ctx_status(ctx);
}

static void make_model(model *m, tg_ctx *ctx, tg_parallel *p) {
    static const float ones[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    int tp = tg_parallel_size(p, TG_TP);
    bool sp = tg_is_sequence_parallel(p);
    *m = (model){.ctx = ctx, .p = p, .tp = tg_parallel_comm(p, TG_TP), .t = tg_tape_new(ctx)};
    m->gpt = tg_gpt_new(ctx, TG_GPT(.vocab = 40, .layers = 1, .heads = 2, .hidden = 8, .positions = 8, .parallel = p));
    m->row = tg_nn_row_linear(p, 8, 8, NULL);
    m->column = tg_nn_column_linear(p, 8, 8, TG_PARALLEL_LINEAR(.deferred_wgrads = TG_NONE));
    m->ids = tg_zeros(ctx, TG_I64, TG_SHAPE(1, 4));
    m->part = tg_from_host(ctx, TG_F32, TG_SHAPE(2, 8), ones);
    m->shard = tg_from_host(ctx, TG_F32, TG_SHAPE(2, 1, 8 / tp), ones);
    m->rows = tg_from_host(ctx, TG_F32, TG_SHAPE(2 / tp, 1, 8), ones);
    m->whole = tg_from_host(ctx, TG_F32, TG_SHAPE(2, 8), ones);
    tg_place(p, m->ids, TG_TP, TG_I);
    tg_place(p, m->whole, TG_TP, TG_I);
    tg_place(p, m->part, TG_TP, TG_P);
    tg_place(p, m->shard, TG_TP, TG_SHARD(2));
    tg_place(p, m->rows, TG_TP, sp ? TG_SHARD(0) : TG_I);
    if (!sp) m->cache = tg_gpt_cache_new(m->gpt, 1, 8);
    if (sp || tp == 1) {
        m->infer_row = tg_nn_inference_row(p, 8, 8, NULL);
        m->infer_column = tg_nn_inference_column(p, 8, 8, NULL);
    }
    if (sp) tg_backward(m->t, tg_sum(m->t, tg_module_forward(m->column, m->t, m->rows), TG_ALL_DIMS, false));
    m->graph = tg_graph_new(ctx, step_of, m); /* calls the step once */
    tg_set_requires_grad(m->whole, true);
    m->root = tg_sum(m->t, tg_copy_to_tp(m->t, m->whole, m->tp), TG_ALL_DIMS, false);
}

static void free_model(model *m) {
    tg_graph_free(m->graph);
    tg_gpt_cache_free(m->cache);
    tg_module *all[] = {m->gpt, m->row, m->column, m->infer_row, m->infer_column};
    for (int i = 0; i < 5; i++) tg_module_free(all[i]);
    tg_tensor *inputs[] = {m->ids, m->part, m->shard, m->rows, m->whole};
    tg_tape_free(m->t);
    for (int i = 0; i < 5; i++) tg_drop(inputs[i]);
}

static tg_status reduced(void *tp, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in, (void)n_out;
    out[0] = tg_reduce_from_tp(t, tg_scale(t, in[0], 2), tp);
    return tg_ctx_status(tg_tape_ctx(t));
}

static tg_tensor *meet(model *m, meets which) {
    tg_tensor *y = m->part, *residual = m->rows;
    tg_replay *r;
    switch (which) {
    case FORWARD: return tg_module_forward(m->row, m->t, m->shard);
    case APPLY:
        return tg_parallel_linear_apply(m->row, m->t, m->shard, NULL, -1);
    case LOSS: return tg_gpt_loss(m->gpt, m->t, m->ids, m->ids, TG_LOSS_SUM);
    case LOGITS: return tg_gpt_logits(m->gpt, m->t, m->ids);
    case NEXT: return tg_gpt_next(m->gpt, m->t, m->cache, m->ids);
    case RECOMPUTE: tg_recompute(m->t, reduced, m->tp, &m->part, 1, &y, 1, NULL); return y;
    case REPLAY:
        r = tg_replay_open(m->t);
        tg_replay_run(r, reduced, m->tp, &m->part, 1, &y, 1, NULL);
        return y;
    case DATA: tg_broadcast_data(m->t, &y, 1, TG_F32, m->tp); return y;
    case BACKWARD: tg_backward(m->t, m->root); return tg_grad_of(m->whole);
    case STEP: tg_graph_replay(m->graph); return NULL;
    case INFER: return tg_inference_next(m->infer_row, m->infer_column, m->t, m->shard, &residual);
    default: tg_wgrads_drain(m->column); return NULL;
    }
}

static void meet_and_read(model *m, meets which) {
    double room[512];
    tg_tensor *y = meet(m, which);
    if (y) tg_read_f64(y, room, tg_numel(y));
}

/* Rank 1 skips the call, clears its error, and makes the same call, which could be mistaken for its peer's. */
static tg_status leave_out(void *arg, tg_ctx *ctx, tg_comm *world) {
    meets which = *(const meets *)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2, .sequence_parallel = which >= FIRST_OF_SP));
    bool wrong = tg_comm_rank(world) == 1;
    model m;
    make_model(&m, ctx, p);
    tg_comm_barrier(world);
    if (tg_ctx_status(ctx) != TG_OK) return tg_ctx_status(ctx);
    if (wrong) {
        tg_ctx_fail(ctx, TG_ERR_DATA, "a bad sample");
        meet_and_read(&m, which);
        tg_ctx_clear(ctx);
    }
    meet_and_read(&m, which);
    tg_status s = tg_ctx_status(ctx);
    bool reported = s == (wrong ? TG_ERR_ABORTED : TG_ERR_REMOTE) && strstr(tg_ctx_message(ctx), "a bad sample");
    if (reported) tg_ctx_clear(ctx);
    if (!reported) return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "call %d, rank %d went on", which, wrong), TG_ERR_INTERNAL;
    tg_tape_reset(m.t);
    if (tg_parallel_recover(p) == TG_OK && sum_over(ctx, tg_parallel_comm(p, TG_TP), 1) != 2)
        tg_ctx_fail(ctx, TG_ERR_INTERNAL, "another sum after the recovery");
    free_model(&m);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(a_rank_that_skips_a_collective_call_is_out_of_step) {
    for (meets which = 0; which < MEETS; which++) {
        char message[1024] = "";
        const tg_config *config = TG_CONFIG(.threads = 1, .seed = 3, .deadline = 60);
        tg_status s = tg_ranks_run(2, leave_out, &which, TG_RANKS(.config = config, .message = message,
                                                                  .message_size = sizeof message));
        ck_assert_msg(s == TG_OK, "call %d: %s", which, message);
    }
}
END_TEST

/* Returns how often it was out of step after it skipped the call. On a plan no rank needs to be informed, nor for
 * tensors without elements, of which nothing arrives. */
static uint64_t skips_of(meets which, int ranks, const tg_parallel_opts *o) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta", .seed = 3, .threads = 1));
    tg_comm *world = tg_comm_plan_new(ctx, 0, ranks);
    tg_parallel *p = tg_parallel_new(world, o);
    model m;
    make_model(&m, ctx, p);
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    uint64_t before = ctx->run.missed;
    tg_ctx_fail(ctx, TG_ERR_DATA, "a bad sample");
    meet(&m, which);
    ck_assert_int_eq(tg_ctx_status(ctx), TG_ERR_DATA);
    uint64_t skips = ctx->run.missed - before;
    tg_ctx_clear(ctx);
    free_model(&m);
    tg_parallel_free(p);
    tg_comm_free(world);
    tg_ctx_free(ctx);
    return skips;
}

START_TEST(a_data_parallel_rank_may_leave_out_a_micro_batch) {
    for (meets which = 0; which < MEETS; which++) {
        ck_assert_uint_eq(skips_of(which, 1, NULL), 0);
        ck_assert(!skips_of(which, 2, NULL) == (which != STEP)); /* a step sums gradients too */
        ck_assert_uint_gt(skips_of(which, 2, TG_PARALLEL(.tp = 2, .sequence_parallel = which >= FIRST_OF_SP)), 0);
    }
}
END_TEST

static tg_status empty_step(void *state, tg_ctx *ctx) {
    (void)state;
    return tg_ctx_status(ctx);
}

/* How many captured steps were missed after an error: one replay and one capture. */
static uint64_t captured_steps_missed(int ranks, const tg_parallel_opts *o) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1));
    tg_comm *world = tg_comm_plan_new(ctx, 0, ranks);
    tg_parallel *p = tg_parallel_new(world, o);
    tg_graph *g = tg_graph_new(ctx, empty_step, NULL);
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    uint64_t before = ctx->run.missed;
    tg_ctx_fail(ctx, TG_ERR_DATA, "a bad sample");
    tg_graph_replay(g);
    tg_graph_free(tg_graph_new(ctx, empty_step, NULL));
    uint64_t missed = ctx->run.missed - before;
    tg_ctx_clear(ctx);
    tg_graph_free(g);
    tg_parallel_free(p);
    tg_comm_free(world);
    tg_ctx_free(ctx);
    return missed;
}

START_TEST(pipeline_stages_may_meet_in_a_captured_step) {
    ck_assert_uint_eq(captured_steps_missed(1, NULL), 0);
    ck_assert_uint_eq(captured_steps_missed(2, TG_PARALLEL(.pp = 2)), 2);
    ck_assert_uint_eq(captured_steps_missed(2, NULL), 2); /* dp */
}
END_TEST

static void wrong_count(model *m) { tg_gather_1d(m->t, m->whole, -1, m->tp); }
static void wrong_options(model *m) { tg_gather_from_sp(m->t, m->rows, m->tp, &(tg_sp_opts){0}); }
static void wrong_part_options(model *m) { tg_reduce_scatter_to_sp(m->t, m->part, m->tp, &(tg_sp_opts){0}); }
static void no_tape_gather(model *m) { tg_all_gather(NULL, m->rows, 0, m->tp); }
static void no_tape_data(model *m) { tg_broadcast_data(NULL, &(tg_tensor *){m->part}, 1, TG_F32, m->tp); }

static void linear(model *m, tg_tape *t, const tg_linear_grad_opts *opts) {
    tg_linear_with_frozen_weight(t, m->whole, m->whole, NULL, m->tp, opts);
}

static void no_tape_linear(model *m) { linear(m, NULL, TG_LINEAR_GRAD(.allreduce_dgrad = true)); }
static void wrong_linear(model *m) { linear(m, m->t, &(tg_linear_grad_opts){0}); }
static void frozen_fused(model *m) { linear(m, m->t, TG_LINEAR_GRAD(.fused_wgrad = true)); }

static void frozen_waits(model *m) {
    tg_wgrads *later = tg_wgrads_new(m->ctx, TG_NONE);
    linear(m, m->t, TG_LINEAR_GRAD(.deferred = later));
    tg_wgrads_free(later);
}

static void wrong_split(model *m) { tg_comm_free(tg_comm_split(m->tp, 0, 0, "", (tg_axis)77)); }
static void wrong_grid(model *m) { tg_parallel_new(tg_parallel_world(m->p), TG_PARALLEL(.tp = 3)); }
static void second_grid(model *m) { tg_parallel_new(tg_parallel_world(m->p), TG_PARALLEL(.tp = 2)); }

static void wrong_values(model *m) {
    tg_tensor *y;
    tg_op_call(m->t, "all_gather", &m->rows, 1, NULL, TG_OP_VALUES + 1, &y, 1);
}

/* Arguments that are wrong on only one rank, in calls that the others make. */
static void (*const wrong_calls[])(model *m) = {
    wrong_count,  wrong_options, wrong_part_options, no_tape_gather, no_tape_data, no_tape_linear, wrong_linear,
    frozen_fused, frozen_waits,  wrong_split,        wrong_grid,     second_grid,  wrong_values};

START_TEST(a_rank_with_refused_arguments_has_skipped_the_call) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta", .seed = 3, .threads = 1));
    tg_comm *world = tg_comm_plan_new(ctx, 0, 2);
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    model m;
    make_model(&m, ctx, p);
    for (int i = 0; i < (int)(sizeof wrong_calls / sizeof *wrong_calls); i++) {
        ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
        uint64_t before = ctx->run.missed;
        wrong_calls[i](&m);
        ck_assert_msg(tg_ctx_status(ctx) == TG_ERR_ARGUMENT || tg_ctx_status(ctx) == TG_ERR_STATE, "call %d: %s", i,
                      tg_ctx_message(ctx));
        ck_assert_msg(ctx->run.missed > before, "call %d: %s", i, tg_ctx_message(ctx));
        tg_ctx_clear(ctx);
    }
    free_model(&m);
    tg_parallel_free(p);
    tg_comm_free(world);
    tg_ctx_free(ctx);
}
END_TEST

/* ---- Refusals ---- */

START_TEST(grids_that_do_not_fit_are_refused) {
    const struct {
        const tg_parallel_opts *o;
        const char *says;
    } rows[] = {
        {TG_PARALLEL(.tp = 3), "not divisible by tp x cp x pp = 3 x 1 x 1"},
        {TG_PARALLEL(.tp = 5), "tp is 5"},
        {TG_PARALLEL(.ep = 3), "not divisible by etp x ep x pp"},
        {TG_PARALLEL(.tp = -1), "tp is -1"},
        {TG_PARALLEL(.order = "tp-dp-pp", .cp = 2), "cp is 2, but order \"tp-dp-pp\" does not name cp"},
        {TG_PARALLEL(.order = "dp", .etp = 2), "etp is 2, but order \"dp\" does not name tp"},
        {TG_PARALLEL(.order = "tp", .tp = 4, .etp = 1), "edp is 4, but order \"tp\" does not name dp"},
        {TG_PARALLEL(.order = "tp-xp"), "expected a list of"},
        {TG_PARALLEL(.order = "tp-tp"), "expected a list of"},
        {TG_PARALLEL(.order = "tp--dp"), "expected a list of"},
        {TG_PARALLEL(.rng = (tg_rng_mode)7), "rng is 7"},
        {TG_PARALLEL(.order = "dp-pp-tp", .tp = 2, .pp = 2, .etp = 1), "put pp first or last"},
    };
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta"));
    tg_comm *world = tg_comm_plan_new(ctx, 1, 4);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tg_parallel_free(tg_parallel_new(world, rows[i].o));
        ck_assert_msg(strstr(tg_ctx_message(ctx), rows[i].says), "row %zu: %s", i, tg_ctx_message(ctx));
        tg_ctx_clear(ctx);
    }
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    ck_assert_int_eq(tg_parallel_rank(p, TG_TP), 1);
    tg_parallel_free(tg_parallel_new(world, NULL));
    ck_assert_ptr_nonnull(strstr(tg_ctx_message(ctx), "already has a tg_parallel"));
    tg_ctx_clear(ctx);
    tg_parallel_free(p);
    tg_comm_free(world);
    tg_ctx_free(ctx);
}
END_TEST

int main(void) {
    const TTest *tests[] = {groups_are_those_worked_out_by_hand,
                            groups_part_the_world,
                            wrong_orders_have_no_groups,
                            every_rank_is_in_its_groups,
                            grids_that_do_not_fit_are_refused,
                            a_grid_recovers_from_a_failure,
                            a_grid_goes_on_with_the_ranks_that_are_left,
                            a_rank_that_skips_a_collective_call_is_out_of_step,
                            a_data_parallel_rank_may_leave_out_a_micro_batch,
                            pipeline_stages_may_meet_in_a_captured_step,
                            a_rank_with_refused_arguments_has_skipped_the_call};
    return tg_check_main("groups", tests, sizeof tests / sizeof *tests);
}
