/* Captured pipelines: the whole step of a stage, with its messages, the sums over stages and the optimizer, is one
 * graph, or each of its layers has graphs. Both give the bits of called steps, with dropout. On the CPU, which records
 * nothing, the same calls run op by op. */
#include <stdlib.h>
#include <tapegrad/capture.h>
#include <tapegrad/flat.h>
#include <tapegrad/pipe.h>

#include "lm_cases.h"

enum { MICROS = 4, PARAMS = 256, STEPS = 6, MOST_RANKS = 4, MOST_VALUES = 40000 };

typedef struct composition {
    int pp, tp, dp;
    bool sp, tied, buckets;
    int zero; /* of the buckets */
    tg_pipe_kind kind;
    tg_gpt_recompute recompute;
} composition;

/* What a rank has after the steps. */
typedef struct outcome {
    double losses[STEPS][MICROS], norm[STEPS], values[MOST_VALUES];
    int64_t n;
    tg_rng rng;
    bool recorded;
} outcome;

typedef struct job {
    const composition *c;
    enum { NOTHING, STEP, EACH_LAYER } captured;
    outcome *out; /* of each rank */
} job;

typedef struct stage {
    const composition *c;
    tg_parallel *p;
    tg_module *lm;
    lm_batch batch[MICROS]; /* static */
    tg_tensor *tokens;
    tg_tensor *params[PARAMS];
    int n;
    tg_optim *o;
    tg_flat *buckets;
    tg_pipe_plan *plan;
    tg_pipe *pipe;
} stage;

static tg_status run_part(void *state, tg_pipe_call *c) {
    stage *s = state;
    return tg_lm_part(s->lm, c, s->batch[c->micro].ids, s->batch[c->micro].targets, NULL);
}

static void open_pipe(tg_ctx *ctx, stage *s) {
    const composition *c = s->c;
    const tg_place_at at[] = {{TG_TP, c->sp ? TG_SHARD(0) : TG_I}, {TG_DP, TG_SHARD(1)}};
    const tg_pipe_edge edge = {.dtype = TG_F64,
                               .shape = TG_SHAPE(c->sp ? LM_LENGTH / c->tp : LM_LENGTH, LM_BATCH / c->dp, LM_HIDDEN),
                               .at = at,
                               .n_at = 2};
    s->plan = tg_pipe_plan_new(ctx, TG_PIPE_PLAN(.kind = c->kind, .stages = c->pp, .micros = MICROS));
    s->pipe = tg_pipe_new(s->p, s->plan, TG_PIPE(.edge = &edge, .n_edge = 1));
}

static tg_status open_stage(tg_ctx *ctx, tg_comm *world, const composition *c, stage *s) {
    tg_lm_config part = *TG_LM(LM_GPT2, .tied = c->tied, .dropout = 0.1, .recompute = c->recompute);
    *s = (stage){.c = c};
    s->p = tg_parallel_new(world, TG_PARALLEL(.tp = c->tp, .pp = c->pp, .sequence_parallel = c->sp));
    part.parallel = s->p;
    s->lm = tg_lm_new(ctx, &part);
    s->n = tg_module_params(s->lm, s->params, PARAMS);
    tg_tensor *const *leaves = s->params;
    if (c->buckets) s->buckets = tg_flat_new(s->p, s->params, s->n, TG_FLAT(.bucket = 300, .zero = c->zero));
    if (c->buckets) tg_flat_leaves(s->buckets, &leaves);
    s->o = tg_adamw_new(ctx, leaves, s->n, TG_ADAMW(.lr = 1e-2));
    tg_optim_set_clip(s->o, 0.5);
    for (int i = 0; i < MICROS; i++) s->batch[i] = lm_batch_new(ctx, s->p, i);
    bool last = tg_parallel_rank(s->p, TG_PP) == c->pp - 1;
    int64_t tokens = MICROS * LM_BATCH * (LM_LENGTH - 1), mine = last ? tokens / c->dp : 0;
    tg_lm_set_tokens(s->lm, (int64_t[1 + LM_DEPTHS]){tokens, tokens, tokens});
    s->tokens = tg_from_host(ctx, TG_I64, TG_SHAPE(1), &mine);
    open_pipe(ctx, s);
    return tg_ctx_status(ctx);
}

/* Captures the layers of the stage, with a slot for each micro-batch that may be in flight. */
static tg_status capture_layers(tg_ctx *ctx, const stage *s) {
    const composition *c = s->c;
    const tg_shape x = TG_SHAPE(c->sp ? LM_LENGTH / c->tp : LM_LENGTH, LM_BATCH / c->dp, LM_HIDDEN);
    const tg_dtype f64 = TG_F64;
    tg_module *layers = tg_module_child(tg_module_child(s->lm, "transformer"), "h");
    int n = 0;
    for (int i = 0; i < LM_LAYERS; i++) {
        char name[4];
        snprintf(name, sizeof name, "%d", i);
        tg_module *layer = tg_module_child(layers, name);
        if (layer) tg_captured_new(layer, &x, &f64, 1, c->kind == TG_PIPE_GPIPE ? MICROS : c->pp), n++;
    }
    EXPECT(ctx, n == LM_LAYERS / c->pp);
    return TG_OK;
}

static void close_stage(stage *s) {
    tg_pipe_free(s->pipe);
    tg_pipe_plan_free(s->plan);
    tg_optim_free(s->o);
    tg_flat_free(s->buckets);
    tg_module_free(s->lm);
    for (int i = 0; i < MICROS; i++) lm_batch_drop(&s->batch[i]);
    tg_drop(s->tokens);
    tg_parallel_free(s->p);
}

static tg_status step_of(void *state, tg_ctx *ctx) {
    stage *s = state;
    if (s->buckets) RUN(tg_flat_gather(s->buckets)); /* while the first layers run */
    RUN(tg_pipe_run(s->pipe, run_part, s));
    RUN(tg_grads_finalize(s->p, s->params, s->n, TG_FINALIZE(.tokens = s->tokens)));
    RUN(tg_optim_step(s->o));
    RUN(tg_optim_zero_grad(s->o));
    return tg_ctx_status(ctx);
}

/* Writes the tokens of a step into the static inputs. */
static void feed(stage *s, int step) {
    for (int m = 0; m < MICROS; m++) {
        lm_batch b = lm_batch_new(tg_module_ctx(s->lm), s->p, m + 17 * step);
        int64_t v[LM_BATCH * LM_LENGTH];
        size_t bytes = (size_t)tg_numel(b.ids[0]) * sizeof *v;
        tg_read(b.ids[0], v, bytes), tg_write(s->batch[m].ids[0], v, bytes);
        tg_read(b.targets[0], v, bytes), tg_write(s->batch[m].targets[0], v, bytes);
        lm_batch_drop(&b);
    }
}

static tg_status read_params(tg_ctx *ctx, const stage *s, outcome *out) {
    for (int i = 0; i < s->n; i++) {
        int64_t n = tg_numel(s->params[i]);
        EXPECT(ctx, out->n + n <= MOST_VALUES);
        RUN(tg_read_f64(s->params[i], out->values + out->n, n));
        out->n += n;
    }
    return TG_OK;
}

/* The first step is called, the second one is captured, and the others are replayed but for the fifth. */
static tg_status train(void *arg, tg_ctx *ctx, tg_comm *world) {
    const job *j = arg;
    outcome *out = &j->out[tg_comm_rank(world)];
    stage s;
    tg_graph *g = NULL;
    tg_graph_info info = TG_GRAPH_INFO();
    RUN(open_stage(ctx, world, j->c, &s));
    if (j->captured == EACH_LAYER) RUN(capture_layers(ctx, &s));
    for (int i = 0; i < STEPS; i++) {
        feed(&s, i);
        tg_optim_set_lr(s.o, 1e-2 / (1 + i));
        RUN(tg_draws_step(ctx, (uint64_t)i + 1));
        if (j->captured != STEP || i == 0 || i == 4)
            RUN(step_of(&s, ctx));
        else if (!g)
            g = tg_graph_new(ctx, step_of, &s);
        else
            RUN(tg_graph_replay(g));
        RUN(tg_read_f64(tg_pipe_losses(s.pipe), out->losses[i], MICROS));
        out->norm[i] = tg_optim_norm(s.o);
    }
    if (g) RUN(tg_graph_query(g, &info));
    out->recorded = info.nodes > 0;
    if (s.buckets) RUN(tg_flat_gather(s.buckets));
    RUN(read_params(ctx, &s, out));
    RUN(tg_rng_get(ctx, NULL, &out->rng));
    tg_graph_free(g);
    close_stage(&s);
    return tg_ctx_status(ctx);
}

static void compare(const composition *given, int captured) {
    static outcome out[2][MOST_RANKS];
    composition c = *given;
    memset(out, 0, sizeof out);
    if (!c.tp) c.tp = 1;
    if (!c.dp) c.dp = 1;
    int n = c.pp * c.tp * c.dp;
    for (int i = 0; i < 2; i++) on_ranks(n, train, &(job){.c = &c, .captured = i ? captured : NOTHING, .out = out[i]});
    for (int r = 0; r < n; r++) {
        const outcome *a = &out[0][r], *b = &out[1][r];
        ck_assert(a->n > 0 && a->n == b->n && b->recorded == (captured == STEP && ranks_on_gpus()));
        for (int i = 0; i < STEPS; i++)
            ck_assert_msg(!memcmp(a->losses[i], b->losses[i], sizeof a->losses[i]) && a->norm[i] == b->norm[i] &&
                              a->norm[i] > 0,
                          "rank %d of %d, step %d: losses %.17g and %.17g, norms %.17g and %.17g", r, n, i,
                          a->losses[i][0], b->losses[i][0], a->norm[i], b->norm[i]);
        ck_assert_msg(!memcmp(a->values, b->values, (size_t)a->n * sizeof *a->values), "rank %d: the parameters", r);
        ck_assert(!memcmp(&a->rng, &b->rng, sizeof a->rng));
    }
    ck_assert(out[0][n - 1].losses[0][0] != out[0][n - 1].losses[1][0]);
}

START_TEST(a_captured_stage_replays_its_step) {
    static const composition rows[] = {
        {.pp = 2, .kind = TG_PIPE_1F1B, .tied = true},
        {.pp = 2, .kind = TG_PIPE_ZB_H1},
        {.pp = 4, .kind = TG_PIPE_1F1B, .recompute = TG_GPT_FULL},
        {.pp = 4, .kind = TG_PIPE_ZB_H1, .tied = true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) compare(&rows[i], STEP);
}
END_TEST

START_TEST(other_axes_are_in_the_graph) {
    static const composition rows[] = {
        {.pp = 2, .tp = 2, .sp = true, .kind = TG_PIPE_1F1B, .tied = true},
        {.pp = 2, .dp = 2, .kind = TG_PIPE_ZB_H1, .tied = true},
        {.pp = 2, .dp = 2, .kind = TG_PIPE_1F1B, .tied = true, .buckets = true, .zero = 1},
        {.pp = 2, .dp = 2, .kind = TG_PIPE_1F1B, .tied = true, .buckets = true, .zero = 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) compare(&rows[i], STEP);
}
END_TEST

START_TEST(layers_of_a_stage_are_captured) {
    static const composition rows[] = {
        {.pp = 2, .kind = TG_PIPE_1F1B, .tied = true},
        {.pp = 2, .tp = 2, .sp = true, .kind = TG_PIPE_GPIPE},
        {.pp = 1, .dp = 2, .kind = TG_PIPE_1F1B, .buckets = true},
        {.pp = 1, .dp = 2, .kind = TG_PIPE_1F1B, .buckets = true, .zero = 1},
        {.pp = 2, .kind = TG_PIPE_1F1B, .recompute = TG_GPT_FULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) compare(&rows[i], EACH_LAYER);
}
END_TEST

int main(void) {
    const TTest *tests[] = {a_captured_stage_replays_its_step, other_axes_are_in_the_graph,
                            layers_of_a_stage_are_captured};
    return tg_check_main("pipe_captured", tests, sizeof tests / sizeof *tests);
}
