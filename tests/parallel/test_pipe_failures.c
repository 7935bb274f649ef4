/* Pipelines that go wrong: wrong edges and wrong parts are refused; a stage that fails is named by the others, and the
 * step can then be repeated. */
#include <stdlib.h>

#include "parallel/compose.h"

static const compose_program program = {.layers = 5, .micros = 4, .steps = 1, .rows = 2, .length = 4};

/* ---- Wrong edges and plans ---- */

typedef struct wrong_edge {
    const char *says;
    int n_edge, micros, ahead, stages, chunks;
    int64_t hidden; /* of stage 1 */
    tg_dtype dtype;
    tg_placement tp;
    tg_status status;
} wrong_edge;

static tg_status open_wrong(void *arg, tg_ctx *ctx, tg_comm *world) {
    const wrong_edge *w = arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.pp = 2));
    bool second = tg_parallel_rank(p, TG_PP) == 1;
    tg_pipe_plan *plan =
        tg_pipe_plan_new(ctx, TG_PIPE_PLAN(.kind = TG_PIPE_GPIPE, .stages = w->stages ? w->stages : 2,
                                           .chunks = w->chunks ? w->chunks : 1,
                                           .micros = second && w->micros ? w->micros : 2));
    const tg_place_at at[] = {{TG_DP, second ? w->tp : TG_I}};
    tg_pipe_edge edge[2] = {
        {second && w->dtype ? w->dtype : TG_F64, TG_SHAPE(4, second && w->hidden ? w->hidden : 8), at, 1}};
    edge[1] = edge[0];
    int n = second && w->n_edge ? w->n_edge : 1;
    tg_pipe *x = tg_pipe_new(p, plan, TG_PIPE(.edge = edge, .n_edge = n, .ahead = w->ahead ? w->ahead : 1));
    if (x || tg_ctx_status(ctx) != w->status || !strstr(tg_ctx_message(ctx), w->says)) {
        char is[600];
        snprintf(is, sizeof is, "%s", tg_ctx_message(ctx));
        tg_ctx_clear(ctx);
        return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "expected \"%s\", got \"%s\"", w->says, is);
    }
    tg_ctx_clear(ctx);
    tg_pipe_plan_free(plan);
    tg_parallel_free(p);
    return TG_OK;
}

START_TEST(stages_must_declare_the_same_edges_and_plan) {
    static const wrong_edge rows[] = {
        {.says = "edge tensor 0 differs between stages 0 and 1", .hidden = 6, .status = TG_ERR_MISMATCH},
        {.says = "edge tensor 0 differs between stages 0 and 1", .dtype = TG_F32, .status = TG_ERR_MISMATCH},
        {.says = "n_edge, the number of tensors of an edge, differs", .n_edge = 2, .status = TG_ERR_MISMATCH},
        {.says = "the plan differs between stages 0 and 1", .micros = 3, .status = TG_ERR_MISMATCH},
        {.says = "the plan has 4 stages of 1 chunk, but the tg_parallel has pp 2 and vp 1",
         .stages = 4,
         .status = TG_ERR_ARGUMENT},
        {.says = "the plan has 2 stages of 2 chunks, but the tg_parallel has pp 2 and vp 1",
         .chunks = 2,
         .status = TG_ERR_ARGUMENT},
        {.says = "ahead is -1, expected 1 or more", .ahead = -1, .status = TG_ERR_ARGUMENT},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) on_ranks(2, open_wrong, (void *)&rows[i]);
}
END_TEST

/* ---- Wrong parts ---- */

typedef enum wrong {
    NONE,
    UNSET,
    OTHER_SHAPE,
    OTHER_DTYPE,
    OTHER_PLACEMENT,
    OF_CONTEXT,
    NO_REASON,
    LOSS_UNSET,
    LOSS_OF_TWO,
    CONSTANT_LOSS,
    AUX_OF_TWO,
    AGAIN,
    KILLED_F,
    KILLED_B,
    KILLED_W,
    WRONGS
} wrong;

static const struct refusal {
    int stage; /* where it happens */
    tg_status status;
    const char *says;
} refusals[WRONGS] = {
    [UNSET] = {0, TG_ERR_ARGUMENT, "fn has not set out[0]"},
    [OTHER_SHAPE] = {0, TG_ERR_SHAPE, "out[0] is f64[2, 1, 8], but the edge of the pipe is declared as f64[2, 2, 8]"},
    [OTHER_DTYPE] = {0, TG_ERR_SHAPE, "out[0] is f32[2, 2, 8], but the edge of the pipe is declared as f64[2, 2, 8]"},
    [OTHER_PLACEMENT] = {0, TG_ERR_PLACEMENT,
                         "out[0] is placed as \"tp R\", but the edge of the pipe is declared as \"tp V0\""},
    [OF_CONTEXT] = {0, TG_ERR_HANDLE, "fn has set out[0] to a tensor of the context, expected one of its tape"},
    [NO_REASON] = {1, TG_ERR_CALLBACK, "fn failed with TG_ERR_IO"},
    [LOSS_UNSET] = {1, TG_ERR_ARGUMENT, "fn has not set the loss (out[0])"},
    [LOSS_OF_TWO] = {1, TG_ERR_SHAPE, "the loss (out[0]) is f64[2], expected a float of one element"},
    [CONSTANT_LOSS] = {1, TG_ERR_STATE, "depends on nothing that needs a gradient"},
    [AUX_OF_TWO] = {0, TG_ERR_SHAPE, "aux is f64[2], expected a float of one element"},
    [AGAIN] = {0, TG_ERR_STATE, "the pipe is running already"},
    [KILLED_F] = {0, TG_ERR_DATA, "the stage dies"},
    [KILLED_B] = {0, TG_ERR_DATA, "the stage dies"},
    [KILLED_W] = {0, TG_ERR_DATA, "the stage dies"},
};

typedef struct broken {
    compose_stack s;
    tg_pipe *pipe;
    wrong wrong;
    int stage;
} broken;

static tg_status die(void *user, tg_tape *t, tg_tensor *x, tg_tensor **grad) {
    (void)user, (void)x, (void)grad;
    return tg_ctx_fail(tg_tape_ctx(t), TG_ERR_DATA, "the stage dies");
}

static tg_status fn(void *state, tg_pipe_call *c) {
    broken *b = state;
    tg_ctx *ctx = b->s.ctx;
    tg_tape *t = c->tape;
    RUN(compose_fn(&b->s, c));
    if (c->micro != 2 || tg_parallel_rank(b->s.p, TG_PP) != b->stage) return TG_OK;
    tg_tensor *y = c->out[0];
    switch (b->wrong) {
    case UNSET:
    case LOSS_UNSET:
        c->out[0] = NULL;
        break;
    case OTHER_SHAPE:
        c->out[0] = tg_slice(t, y, 1, 0, 1, 1);
        break;
    case OTHER_DTYPE:
        c->out[0] = tg_cast(t, y, TG_F32);
        break;
    case OTHER_PLACEMENT:
        c->out[0] = tg_assume_placement(t, y, b->s.p, TG_TP, TG_R);
        break;
    case OF_CONTEXT:
        c->out[0] = tg_module_param(b->s.all, 0, NULL);
        break;
    case NO_REASON:
        return TG_ERR_IO;
    case LOSS_OF_TWO:
        c->out[0] = tg_expand(t, y, TG_SHAPE(2));
        break;
    case CONSTANT_LOSS:
        c->out[0] = tg_detach(t, y);
        break;
    case AUX_OF_TWO:
        c->aux = tg_full(t, TG_F64, TG_SHAPE(2), 1);
        break;
    case AGAIN:
        return tg_pipe_run(b->pipe, fn, state);
    case KILLED_F:
        return tg_ctx_fail(ctx, TG_ERR_DATA, "the stage dies");
    case KILLED_B:
        tg_on_grad(y, die, NULL);
        break;
    default:
        break;
    }
    return tg_ctx_status(ctx);
}

typedef struct results {
    double loss[COMPOSE_MICROS], grad[64][128];
} results;

/* Runs a step, and reads what it gives on this rank. */
static tg_status step(broken *b, tg_tensor **params, int n, results *out) {
    tg_tensor *tokens = compose_tokens(&b->s);
    tg_draws_step(b->s.ctx, 1);
    tg_status s = tg_pipe_run(b->pipe, fn, b);
    if (s == TG_OK) s = tg_grads_finalize(b->s.p, params, n, TG_FINALIZE(.tokens = tokens));
    tg_drop(tokens);
    RUN(s);
    *out = (results){0};
    RUN(tg_read_f64(tg_pipe_losses(b->pipe), out->loss, program.micros));
    for (int i = 0; i < n; i++) {
        RUN(tg_read_f64(tg_grad_of(params[i]), out->grad[i], tg_numel(params[i])));
        tg_zero_grad(params[i]);
    }
    return TG_OK;
}

/* Checks the error of this rank: its own, which names the item, or that of the rank which failed. */
static tg_status check_error(const broken *b, const struct refusal *r) {
    tg_ctx *ctx = b->s.ctx;
    char is[900], name[16];
    int world = tg_comm_rank(tg_parallel_world(b->s.p)), failed = 0;
    bool mine = tg_parallel_rank(b->s.p, TG_PP) == b->stage;
    snprintf(is, sizeof is, "%s", tg_ctx_message(ctx));
    tg_status s = tg_ctx_status(ctx);
    tg_ctx_clear(ctx);
    for (int i = 0; i < 16 && !failed; i++) {
        snprintf(name, sizeof name, "rank %d failed", i);
        failed = strstr(is, name) != NULL;
    }
    bool reported =
        mine ? (s == r->status || s == TG_ERR_REMOTE) && strstr(is, " of tg_pipe_run)") : s == TG_ERR_REMOTE && failed;
    if (!reported || !strstr(is, r->says))
        return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "rank %d, wrong %d: %s \"%s\", expected \"%s\"", world, b->wrong,
                           tg_status_name(s), is, r->says);
    return TG_OK;
}

typedef struct failing {
    compose_layout layout;
    wrong from, to;
    int stage; /* -1: that of the refusal */
} failing;

/* Returns a weight of a linear layer, whose gradient is complete in W: the last matrix. */
static tg_tensor *last_weight(tg_tensor *const *params, int n) {
    while (tg_ndim(params[--n]) != 2) continue;
    return params[n];
}

/* Fails a step in each way, and repeats it: the results have the same bits as before. */
static tg_status fail_and_repeat(void *arg, tg_ctx *ctx, tg_comm *world) {
    const failing *f = arg;
    const compose_layout *l = &f->layout;
    tg_pipe_plan *plan;
    broken b = {.wrong = NONE};
    static _Thread_local results before, after;
    tg_tensor *params[64];
    tg_parallel *p =
        tg_parallel_new(world, TG_PARALLEL(.tp = l->tp, .pp = l->pp, .vp = l->vp, .sequence_parallel = l->sp));
    RUN(compose_open(&b.s, p, &program, tg_parallel_rank(p, TG_PP), l->pp, l->vp));
    int n = tg_module_params(b.s.all, params, 64);
    compose_load(&b.s, 0);
    b.pipe = compose_pipe(&b.s, l, NULL, &plan);
    RUN(step(&b, params, n, &before));
    for (wrong w = f->from; w <= f->to; w++) {
        b.wrong = w;
        b.stage = f->stage < 0 ? refusals[w].stage : f->stage;
        bool mine = tg_parallel_rank(p, TG_PP) == b.stage;
        tg_tensor *weight = last_weight(params, n);
        uint64_t hook = w == KILLED_W && mine ? tg_on_accumulated(weight, die, NULL) : 0;
        if (step(&b, params, n, &after) == TG_OK)
            return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "wrong %d was accepted on rank %d", w, tg_comm_rank(world));
        RUN(check_error(&b, &refusals[w]));
        RUN(tg_parallel_recover(p));
        if (hook) tg_remove_hook(weight, hook);
        for (int i = 0; i < n; i++) tg_zero_grad(params[i]);
        b.wrong = NONE;
        RUN(step(&b, params, n, &after));
        EXPECT(ctx, !memcmp(&before, &after, sizeof before));
    }
    tg_pipe_free(b.pipe);
    tg_pipe_plan_free(plan);
    compose_close(&b.s);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(wrong_parts_are_refused_and_the_step_can_be_repeated) {
    on_ranks(4, fail_and_repeat,
             &(failing){{.tp = 2, .sp = true, .dp = 1, .pp = 2, .vp = 1, .kind = TG_PIPE_1F1B}, UNSET, AGAIN, -1});
}
END_TEST

START_TEST(a_stage_that_dies_is_named_and_the_step_can_be_repeated) {
    for (int stage = 0; stage < 4; stage++)
        on_ranks(4, fail_and_repeat,
                 &(failing){{.tp = 1, .dp = 1, .pp = 4, .vp = 1, .kind = TG_PIPE_ZB_H1}, KILLED_F, KILLED_W, stage});
    on_ranks(2, fail_and_repeat,
             &(failing){{.tp = 1, .dp = 1, .pp = 2, .vp = 2, .kind = TG_PIPE_INTERLEAVED}, KILLED_F, KILLED_B, 1});
}
END_TEST

/* ---- A pipe within itself ---- */

typedef struct within {
    tg_parallel *p;
    tg_pipe *pipe;
    tg_tensor *w;
    int calls[2], wrong; /* calls for each micro-batch; errors that are not the expected ones */
    struct within *other;
} within;

/* In the first micro-batch tries to run and to free the pipe that runs it, and to recover its groups. */
static tg_status within_fn(void *state, tg_pipe_call *c) {
    within *s = state;
    tg_ctx *ctx = tg_tape_ctx(c->tape);
    s->calls[c->micro]++;
    for (int i = 0; i < 3 && c->micro == 0; i++) {
        if (i == 0) tg_pipe_run(s->pipe, within_fn, s->other);
        if (i == 1) tg_pipe_free(s->pipe);
        if (i == 2) tg_parallel_recover(s->p);
        s->wrong += tg_ctx_status(ctx) != TG_ERR_STATE || !strstr(tg_ctx_message(ctx), "is running");
        tg_ctx_clear(ctx);
    }
    if (!s->other) tg_parallel_free(s->p);
    c->out[0] = tg_sum(c->tape, tg_square(c->tape, s->w), TG_ALL_DIMS, false);
    return tg_ctx_status(ctx);
}

START_TEST(a_run_goes_on_after_a_refused_call_within_it) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    tg_comm *world = tg_comm_self_new(ctx);
    tg_parallel *p = tg_parallel_new(world, NULL);
    tg_pipe_plan *plan = tg_pipe_plan_new(ctx, TG_PIPE_PLAN(.stages = 1, .micros = 2));
    within other = {NULL}, s = {p, tg_pipe_new(p, plan, NULL), tg_param_new(ctx, "w", TG_F32, TG_SHAPE(3), 1),
                                .other = &other};
    ck_assert_msg(tg_pipe_run(s.pipe, within_fn, &s) == TG_OK, "%s", tg_ctx_message(ctx));
    ck_assert(s.calls[0] == 1 && s.calls[1] == 1 && s.wrong == 0 && other.calls[1] == 0);
    s.other = NULL; /* the function frees the tg_parallel */
    ck_assert(tg_pipe_run(s.pipe, within_fn, &s) == TG_ERR_STATE && s.calls[0] == 2 && s.calls[1] == 1);
    ck_assert_msg(strstr(tg_ctx_message(ctx), "was freed while the pipe ran"), "%s", tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    tg_pipe_free(s.pipe);
    tg_pipe_plan_free(plan);
    tg_comm_free(world);
    tg_ctx_free(ctx);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {stages_must_declare_the_same_edges_and_plan,
                                  wrong_parts_are_refused_and_the_step_can_be_repeated,
                                  a_stage_that_dies_is_named_and_the_step_can_be_repeated,
                                  a_run_goes_on_after_a_refused_call_within_it};
    return tg_check_main("pipe_failures", tests, sizeof tests / sizeof *tests);
}
