/* Norms and overflows over a grid: if one rank's gradients overflow, all ranks skip the step, clip by the same
 * factor, and keep the same loss scale. */
#include <tapegrad/ops.h>
#include <tapegrad/optim.h>
#include <tapegrad/backward.h>
#include <tapegrad/flat.h>
#include <tapegrad/ranks.h>

#include "core/context.h"
#include "on_ranks.h"

enum { ROWS = 8, COLS = 3 };

/* w is sharded over tp, v is the same on all; the gradients of both are sums over dp. */
typedef struct model {
    tg_ctx *ctx;
    tg_tape *t;
    tg_parallel *p;
    tg_tensor *param[2];
    tg_flat *flat; /* NULL: there is none */
    tg_optim *o;
    int tp, dp;
} model;

/* zero: the optimizer's state is divided over dp. */
static model model_of(tg_ctx *ctx, tg_comm *world, int tp, bool zero) {
    model m = {.ctx = ctx, .t = tg_tape_new(ctx), .p = tg_parallel_new(world, TG_PARALLEL(.tp = tp)), .tp = tp};
    m.dp = tg_parallel_size(m.p, TG_DP);
    m.param[0] =
        tg_param_new_placed(m.p, "w", TG_F64, TG_SHAPE(ROWS, COLS), 1, TG_PLACES({TG_TP, TG_SHARD(0)}, {TG_DP, TG_R}));
    m.param[1] = tg_param_new_placed(m.p, "v", TG_F64, TG_SHAPE(COLS), 1, TG_PLACES({TG_DP, TG_R}));
    tg_tensor *const *leaves = m.param;
    if (zero) m.flat = tg_flat_new(m.p, m.param, 2, TG_FLAT(.zero = 1));
    if (zero) tg_flat_leaves(m.flat, &leaves);
    m.o = tg_adamw_new(ctx, leaves, 2, TG_ADAMW(.lr = 0.1));
    return m;
}

static void model_free(model *m) {
    tg_optim_free(m->o);
    tg_flat_free(m->flat);
    tg_tape_free(m->t);
    for (int i = 0; i < 2; i++) tg_drop(m->param[i]);
    tg_parallel_free(m->p);
}

/* Each gradient on this rank gets g; the sum is dp g if all ranks give the same. */
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

typedef struct division {
    int tp;
    bool zero;
} division;

/* One rank overflows, each in turn: all ranks have that scale and count, and no parameter changes. */
static tg_status overflow_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    int me = tg_comm_rank(world), n = tg_comm_size(world);
    const division *d = arg;
    model m = model_of(ctx, world, d->tp, d->zero);
    double before[ROWS * COLS], after[ROWS * COLS], scale = 64;
    int64_t mine = tg_numel(m.param[0]), taken = 0;
    tg_optim_set_scale(m.o, TG_LOSS_SCALE(.initial = scale, .interval = 2, .hysteresis = 1));
    tg_optim_set_clip(m.o, 1);
    for (int i = 0; i < 3 * n; i++) {
        bool bad = i % 3 == 1;
        tg_read_f64(m.param[0], before, mine);
        RUN(give(&m, bad && me == i / 3 ? INFINITY : 0.5));
        RUN(tg_optim_step(m.o));
        if (m.flat) RUN(tg_flat_gather(m.flat));
        tg_optim_zero_grad(m.o);
        tg_read_f64(m.param[0], after, mine);
        taken += !bad;
        if (bad) scale /= 2;
        if (i % 3 == 0 && i) scale *= 2; /* two in a row: the last of three and the first of the next three */
        EXPECT(ctx, (memcmp(before, after, (size_t)mine * sizeof *before) == 0) == bad);
        EXPECT(ctx, bad ? !isfinite(tg_optim_norm(m.o)) : near_to(tg_optim_norm(m.o), norm_of(&m, 0.5)));
        EXPECT(ctx, tg_optim_steps(m.o) == taken);
        EXPECT(ctx, tg_optim_scale(m.o) == scale);
    }
    model_free(&m);
    return tg_ctx_status(ctx);
}

START_TEST(all_ranks_skip_alike) {
    for (int zero = 0; zero < 2; zero++) {
        on_ranks(1, overflow_rank, &(division){1, zero});
        on_ranks(2, overflow_rank, &(division){2, zero});
        on_ranks(2, overflow_rank, &(division){1, zero});
        on_ranks(4, overflow_rank, &(division){2, zero});
    }
}
END_TEST

/* Compares the norm that a step measures with the requested one. */
static tg_status norm_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    double v[2][ROWS * COLS];
    for (int set = 0; set < 2; set++) {
        model m = model_of(ctx, world, *(int *)arg, false);
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

START_TEST(a_step_measures_the_requested_norm) {
    on_ranks(2, norm_rank, &(int){2});
    on_ranks(4, norm_rank, &(int){2});
}
END_TEST

/* ---- Pipeline stages ---- */

/* Stage 0 has both parameters, and the others only the second one: stages have other sets of axes. */
static model stage_of(tg_ctx *ctx, tg_comm *world, int tp, int pp) {
    model m = {.ctx = ctx, .t = tg_tape_new(ctx), .tp = tp, .dp = 1};
    m.p = tg_parallel_new(world, TG_PARALLEL(.tp = tp, .pp = pp));
    m.param[0] = tg_param_new_placed(m.p, "w", TG_F64, TG_SHAPE(ROWS, COLS), 1, TG_PLACES({TG_TP, TG_SHARD(0)}));
    m.param[1] = tg_param_new_placed(m.p, "v", TG_F64, TG_SHAPE(COLS), 1, NULL, 0);
    bool first = tg_parallel_rank(m.p, TG_PP) == 0;
    m.o = tg_sgd_new(ctx, first ? m.param : m.param + 1, first ? 2 : 1, TG_SGD(.lr = 1));
    return m;
}

/* The norm is that of all stages, whether a step or tg_optim_clip measures it. An overflow of one stage is one of
 * all. */
static tg_status stages_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    int tp = *(int *)arg, pp = tg_comm_size(world) / tp;
    model m = stage_of(ctx, world, tp, pp);
    bool last = tg_parallel_rank(m.p, TG_PP) == pp - 1;
    double v[COLS], begin[COLS], norm = 0.5 * sqrt(ROWS * COLS + COLS * pp), coefficient = 1 / (norm + 1e-6);
    tg_optim_set_scale(m.o, TG_LOSS_SCALE(.initial = 4, .fixed = true));
    for (int i = 0; i < 4; i++) {
        bool bad = i == 2;
        if (i == 1) tg_optim_set_clip(m.o, 1);
        tg_read_f64(m.param[1], begin, COLS);
        RUN(give(&m, bad && last ? NAN : 0.5));
        if (i == 0) EXPECT(ctx, near_to(tg_optim_clip(m.o, 1), norm));
        RUN(tg_optim_step(m.o));
        tg_zero_grad(m.param[0]);
        tg_optim_zero_grad(m.o);
        tg_read_f64(m.param[1], v, COLS);
        EXPECT(ctx, bad ? isnan(tg_optim_norm(m.o)) : near_to(tg_optim_norm(m.o), norm));
        for (int j = 0; j < COLS; j++)
            EXPECT(ctx, bad ? v[j] == begin[j] : fabs(v[j] - (begin[j] - 0.5 * coefficient)) < 1e-12);
    }
    EXPECT(ctx, tg_optim_steps(m.o) == 3);
    model_free(&m);
    return tg_ctx_status(ctx);
}

START_TEST(stages_have_one_norm) {
    on_ranks(2, stages_rank, &(int){1});
    on_ranks(3, stages_rank, &(int){1});
    on_ranks(4, stages_rank, &(int){2});
}
END_TEST

/* ---- Errors in data that one rank finds ---- */

/* A device on the CPU that finds errors in data late, like a GPU. */
static _Thread_local bool found;
static _Thread_local tg_device_ops late;

static tg_status add_found(tg_ctx *ctx, double *sum) {
    (void)ctx;
    if (found) *sum += NAN;
    return TG_OK;
}

/* A wrong id on this rank, which its device detects. */
static void look_up_wrong_id(tg_ctx *ctx, tg_tape *t) {
    if (tg_ctx_ops(ctx)->host) {
        found = true;
        return;
    }
    tg_tensor *table = tg_zeros(ctx, TG_F64, TG_SHAPE(2, 2));
    tg_tensor *id = tg_from_host(ctx, TG_I64, TG_SHAPE(1), &(int64_t){7});
    tg_embedding(t, table, id);
    tg_drop(table);
    tg_drop(id);
}

/* The rank with the wrong data gets the error when it reads. */
static tg_status read_after(tg_ctx *ctx, tg_tensor *x, double *v, int64_t n, bool wrong) {
    if (wrong && !tg_ctx_ops(ctx)->host) {
        if (tg_read_f64(x, v, n) != TG_ERR_DATA)
            return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "the wrong id was not reported");
        tg_ctx_clear(ctx);
    }
    found = false;
    return tg_read_f64(x, v, n);
}

typedef struct fault_job {
    int tp, pp;
    bool scaled;
} fault_job;

static tg_status fault_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    const fault_job *j = arg;
    int me = tg_comm_rank(world), n = tg_comm_size(world);
    if (ctx->run.ops->host) {
        late = *ctx->run.ops;
        late.fault_sum = add_found;
        ctx->run.ops = &late;
    }
    model m = j->pp > 1 ? stage_of(ctx, world, j->tp, j->pp) : model_of(ctx, world, j->tp, false);
    double before[COLS], after[COLS];
    if (j->scaled) tg_optim_set_scale(m.o, TG_LOSS_SCALE(.initial = 64, .interval = 1000, .hysteresis = 1));
    for (int i = 0; i <= n; i++) {
        bool bad = i < n, mine = i == me;
        tg_read_f64(m.param[1], before, COLS);
        RUN(give(&m, 0.5));
        if (mine) look_up_wrong_id(ctx, m.t);
        RUN(tg_optim_step(m.o));
        RUN(read_after(ctx, m.param[1], after, COLS, mine));
        tg_zero_grad(m.param[0]);
        tg_optim_zero_grad(m.o);
        EXPECT(ctx, (memcmp(before, after, sizeof before) == 0) == bad);
        EXPECT(ctx, tg_optim_steps(m.o) == !bad && (!j->scaled || tg_optim_scale(m.o) == 64));
        tg_tape_reset(m.t);
    }
    model_free(&m);
    return tg_ctx_status(ctx);
}

START_TEST(all_ranks_skip_a_step_of_wrong_data) {
    for (int scaled = 0; scaled < 2; scaled++) {
        on_ranks(2, fault_rank, &(fault_job){1, 1, scaled}); /* dp 2 */
        on_ranks(4, fault_rank, &(fault_job){2, 1, scaled});
        on_ranks(2, fault_rank, &(fault_job){1, 2, scaled});
    }
}
END_TEST

/* A rank that cannot step does not leave the others waiting in the sums of the norm. */
static tg_status missing_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    model m = model_of(ctx, world, *(int *)arg, false);
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
    const TTest *tests[] = {all_ranks_skip_alike, a_step_measures_the_requested_norm, stages_have_one_norm,
                            all_ranks_skip_a_step_of_wrong_data, a_rank_misses_the_norm};
    return tg_check_main("overflow", tests, sizeof tests / sizeof *tests);
}
