/* Norms and overflows over a grid: if one rank's gradients overflow, all ranks skip the step, and they clip alike and
 * keep one loss scale. */
#include <tapegrad/ops.h>
#include <tapegrad/optim.h>
#include <tapegrad/backward.h>
#include <tapegrad/data_parallel.h>
#include <tapegrad/ranks.h>

#include "on_ranks.h"

enum { ROWS = 8, COLS = 3 };

/* w is sharded over tp, v is the same on all; the gradients of both are sums over dp. */
typedef struct model {
    tg_ctx *ctx;
    tg_tape *t;
    tg_parallel *p;
    tg_tensor *param[2];
    tg_optim *o;
    int tp, dp;
} model;

static model model_of(tg_ctx *ctx, tg_comm *world, int tp) {
    model m = {.ctx = ctx, .t = tg_tape_new(ctx), .p = tg_parallel_new(world, TG_PARALLEL(.tp = tp)), .tp = tp};
    m.dp = tg_parallel_size(m.p, TG_DP);
    m.param[0] = tg_param_placed(m.p, "w", TG_F64, TG_SHAPE(ROWS, COLS), 1,
                                 TG_PLACES({TG_TP, TG_SHARD(0)}, {TG_DP, TG_R}));
    m.param[1] = tg_param_placed(m.p, "v", TG_F64, TG_SHAPE(COLS), 1, TG_PLACES({TG_DP, TG_R}));
    m.o = tg_adamw_new(ctx, m.param, 2, TG_ADAMW(.lr = 0.1));
    return m;
}

static void model_free(model *m) {
    tg_optim_free(m->o);
    tg_tape_free(m->t);
    for (int i = 0; i < 2; i++) tg_drop(m->param[i]);
    tg_parallel_free(m->p);
}

/* On this rank each gradient gets g; the whole one is dp g where all give the same. */
static tg_status give(model *m, double g) {
    double values[ROWS * COLS];
    for (int i = 0; i < ROWS * COLS; i++) values[i] = g;
    for (int i = 0; i < 2; i++) {
        tg_tensor *c = tg_from_host(m->ctx, TG_F64, tg_shape_of(m->param[i]), values);
        tg_place(m->p, c, TG_TP, i ? TG_I : TG_SHARD(0));
        tg_tensor *sum = tg_sum(m->t, tg_mul(m->t, m->param[i], c), TG_ALL_DIMS, false);
        tg_backward(m->t, tg_scale_loss(m->t, sum, m->o));
        tg_tape_reset(m->t);
        tg_drop(c);
    }
    return tg_grads_finalize(m->p, m->param, 2, NULL);
}

static double norm_of(const model *m, double g) { return m->dp * g * sqrt(ROWS * COLS + COLS); }

static bool near_to(double a, double b) { return fabs(a - b) <= 1e-12 * fabs(b); }

/* Overflows of one rank, in turn: on that scale and count, with no parameter changed, are all. */
static tg_status overflow_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    int me = tg_comm_rank(world), n = tg_comm_size(world);
    model m = model_of(ctx, world, *(int *)arg);
    double before[ROWS * COLS], after[ROWS * COLS], scale = 64;
    int64_t mine = tg_numel(m.param[0]), taken = 0;
    tg_optim_set_scale(m.o, TG_LOSS_SCALE(.initial = scale, .interval = 2, .hysteresis = 1));
    tg_optim_set_clip(m.o, 1);
    for (int i = 0; i < 3 * n; i++) {
        bool bad = i % 3 == 1;
        tg_read_f64(m.param[0], before, mine);
        RUN(give(&m, bad && me == i / 3 ? INFINITY : 0.5));
        RUN(tg_optim_step(m.o));
        tg_optim_zero_grad(m.o);
        tg_read_f64(m.param[0], after, mine);
        taken += !bad;
        if (bad) scale /= 2;
        if (i % 3 == 0 && i) scale *= 2; /* two in a row: the last of three, and the first of the next */
        EXPECT(ctx, (memcmp(before, after, (size_t)mine * sizeof *before) == 0) == bad);
        EXPECT(ctx, bad ? !isfinite(tg_optim_norm(m.o)) : near_to(tg_optim_norm(m.o), norm_of(&m, 0.5)));
        EXPECT(ctx, tg_optim_steps(m.o) == taken);
        EXPECT(ctx, tg_optim_scale(m.o) == scale);
    }
    model_free(&m);
    return tg_ctx_status(ctx);
}

START_TEST(all_ranks_skip_alike) {
    on_ranks(1, overflow_rank, &(int){1});
    on_ranks(2, overflow_rank, &(int){2});
    on_ranks(2, overflow_rank, &(int){1});
    on_ranks(4, overflow_rank, &(int){2});
}
END_TEST

/* The norm that a step measures, and the one that is asked for. */
static tg_status norm_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    double v[2][ROWS * COLS];
    for (int set = 0; set < 2; set++) {
        model m = model_of(ctx, world, *(int *)arg);
        tg_optim_set_scale(m.o, TG_LOSS_SCALE(.initial = 16, .fixed = true));
        if (set) tg_optim_set_clip(m.o, 2);
        tg_tensor *w = m.param[0];
        double start[ROWS * COLS];
        for (int i = 0; i < ROWS * COLS; i++) start[i] = i;
        tg_write_f64(w, start, tg_numel(w));
        for (int i = 0; i < 3; i++) {
            RUN(give(&m, 1 + i));
            double norm = set ? 0 : tg_optim_clip(m.o, 2);
            RUN(tg_optim_step(m.o));
            tg_optim_zero_grad(m.o);
            EXPECT(ctx, near_to(tg_optim_norm(m.o), norm_of(&m, 1 + i)));
            EXPECT(ctx, set || near_to(norm, norm_of(&m, 1 + i)));
        }
        tg_read_f64(w, v[set], tg_numel(w));
        if (set) EXPECT(ctx, memcmp(v[0], v[1], (size_t)tg_numel(w) * sizeof(double)) == 0);
        model_free(&m);
    }
    return tg_ctx_status(ctx);
}

START_TEST(a_step_measures_what_is_asked_for) {
    on_ranks(2, norm_rank, &(int){2});
    on_ranks(4, norm_rank, &(int){2});
}
END_TEST

/* A rank that cannot step leaves nobody in the norm's sums. */
static tg_status missing_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    model m = model_of(ctx, world, *(int *)arg);
    tg_optim_set_clip(m.o, 1);
    RUN(give(&m, 1));
    if (tg_comm_rank(world) == 1) tg_discard(tg_grad_of(m.param[0]));
    tg_status s = tg_optim_step(m.o);
    model_free(&m);
    return s;
}

START_TEST(a_rank_misses_the_norm) {
    char message[1024];
    const tg_config *config = TG_CONFIG(.threads = 1, .dtype = TG_F64, .seed = 7, .deadline = 60);
    tg_status s = run_ranks(2, missing_rank, &(int){2},
                            TG_RANKS(.config = config, .message = message, .message_size = sizeof message));
    ck_assert_msg(s == TG_ERR_DISCARDED && strstr(message, "rank 1: "), "%s: %s", tg_status_name(s), message);
}
END_TEST

int main(void) {
    const TTest *tests[] = {all_ranks_skip_alike, a_step_measures_what_is_asked_for, a_rank_misses_the_norm};
    return tg_check_main("overflow", tests, sizeof tests / sizeof *tests);
}
