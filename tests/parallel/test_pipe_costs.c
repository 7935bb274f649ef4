/* What a pipeline costs: its messages and their bytes, the activations that a stage keeps, and host allocations. A plan
 * communicator gives the same counts as a run. */
#include <stdlib.h>

#include "parallel/compose.h"
#include "parallel/pp/plan.h"

typedef struct costs {
    tg_comm_info sent;   /* in the last step */
    int64_t allocations; /* the fewest of a step: pools grow a little more if a stage is slow once */
    tg_pipe_report report;
} costs;

typedef struct job {
    compose_program program;
    compose_layout layout;
    costs *out; /* of each rank */
} job;

/* Makes a step, and the calls that follow it. */
static tg_status step(compose_stack *s, tg_pipe *x, compose_training *t, tg_tensor *tokens) {
    RUN(tg_draws_step(s->ctx, 1));
    RUN(tg_pipe_run(x, compose_fn, s));
    RUN(tg_grads_finalize(s->p, t->params, t->n, TG_FINALIZE(.tokens = tokens)));
    RUN(tg_optim_step(t->optim));
    return tg_optim_zero_grad(t->optim);
}

/* Counts the calls and allocations of equal steps. */
static tg_status count(void *arg, tg_ctx *ctx, tg_comm *world) {
    const job *j = arg;
    const compose_layout *l = &j->layout;
    enum { STEPS = 4 };
    costs *out = &j->out[tg_comm_rank(world)];
    compose_stack s;
    tg_pipe_plan *plan;
    tg_comm_info before = TG_COMM_INFO(), after = TG_COMM_INFO();
    tg_memory_info m = TG_MEMORY_INFO();
    tg_parallel *p =
        tg_parallel_new(world, TG_PARALLEL(.tp = l->tp, .pp = l->pp, .vp = l->vp, .sequence_parallel = l->sp));
    int stage = tg_parallel_rank(p, TG_PP);
    RUN(compose_open(&s, p, &j->program, stage, l->pp, l->vp));
    compose_load(&s, 0);
    tg_pipe *x = compose_pipe(&s, l, NULL, &plan);
    compose_training t = compose_train(&s);
    tg_tensor *tokens = compose_tokens(&s);
    for (int i = 0; i < STEPS; i++) {
        tg_comm_query(world, &before);
        tg_memory_query(ctx, &m);
        int64_t allocations = m.host_allocations;
        RUN(step(&s, x, &t, tokens));
        tg_memory_query(ctx, &m);
        if (!i || m.host_allocations - allocations < out->allocations)
            out->allocations = m.host_allocations - allocations;
    }
    tg_comm_query(world, &after);
    out->sent = after;
    for (int k = 0; k < TG_COLLECTIVES; k++) {
        out->sent.calls[k] -= before.calls[k];
        out->sent.bytes[k] -= before.bytes[k];
    }
    out->report = TG_PIPE_REPORT();
    RUN(tg_pipe_plan_query(plan, stage, &out->report));
    tg_drop(tokens);
    tg_optim_free(t.optim);
    tg_pipe_free(x);
    tg_pipe_plan_free(plan);
    compose_close(&s);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

static void on_plan(job *j, int rank, int n) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64, .device = "meta"));
    tg_comm *world = tg_comm_plan_new(ctx, rank, n);
    tg_status s = count(j, ctx, world);
    ck_assert_msg(s == TG_OK, "plan of rank %d: %s", rank, tg_ctx_message(ctx));
    tg_comm_free(world);
    tg_ctx_free(ctx);
}

/* Checks the counts of a rank: on one pipeline without other axes. */
static void check_messages(const job *j, int rank, const costs *c) {
    const compose_layout *l = &j->layout;
    int parts = l->pp * l->vp, m = j->program.micros;
    int64_t bytes = (int64_t)j->program.length * j->program.rows * COMPOSE_HIDDEN * (int64_t)sizeof(double);
    bool end = rank == 0 || rank == l->pp - 1;
    int64_t sends = 0, receives = 0;
    for (int part = rank; part < parts; part += l->pp) {
        sends += m * ((part < parts - 1) + (part > 0));
        receives += m * ((part > 0) + (part < parts - 1));
    }
    int64_t table = j->program.tied && end ? COMPOSE_VOCAB * COMPOSE_HIDDEN * (int64_t)sizeof(double) : 0;
    ck_assert_int_eq(c->sent.calls[TG_SEND], sends);
    ck_assert_int_eq(c->sent.calls[TG_RECV], receives);
    ck_assert_int_eq(c->report.sends, sends);
    ck_assert_int_eq(c->report.receives, receives);
    ck_assert_int_eq(c->sent.bytes[TG_SEND], sends * bytes);
    ck_assert_int_eq(c->sent.bytes[TG_RECV], receives * bytes);
    ck_assert_int_eq(c->sent.calls[TG_ALL_REDUCE], 2 + (table > 0)); /* tokens, norm, and the shared table */
    ck_assert_int_eq(c->sent.bytes[TG_ALL_REDUCE], 16 + table);
    for (int k = 0; k < TG_COLLECTIVES; k++)
        if (k != TG_SEND && k != TG_RECV && k != TG_ALL_REDUCE) ck_assert_int_eq(c->sent.calls[k], 0);
    ck_assert_int_eq(c->allocations, 0);
}

static const compose_layout layouts[] = {
    {.tp = 1, .dp = 1, .pp = 2, .vp = 1, .kind = TG_PIPE_GPIPE},
    {.tp = 1, .dp = 1, .pp = 4, .vp = 1, .kind = TG_PIPE_1F1B},
    {.tp = 1, .dp = 1, .pp = 4, .vp = 1, .kind = TG_PIPE_ZB_H1},
    {.tp = 1, .dp = 1, .pp = 2, .vp = 3, .kind = TG_PIPE_INTERLEAVED},
};

START_TEST(messages_and_bytes_are_those_of_the_plan) {
    costs run[4], plan[4];
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        for (int tied = 0; tied < 2; tied++) {
            job j = {{.layers = 6, .micros = 6, .rows = 2, .length = 4, .tied = tied}, layouts[i], run};
            on_ranks(j.layout.pp, count, &j);
            j.out = plan;
            for (int r = 0; r < j.layout.pp; r++) {
                check_messages(&j, r, &run[r]);
                on_plan(&j, r, j.layout.pp);
                ck_assert_mem_eq(plan[r].sent.calls, run[r].sent.calls, sizeof run[r].sent.calls);
                ck_assert_mem_eq(plan[r].sent.bytes, run[r].sent.bytes, sizeof run[r].sent.bytes);
                ck_assert_int_eq(plan[r].allocations, 0);
            }
        }
}
END_TEST

/* Under sequence parallelism each rank of tp sends its rows; without it, each sends all. */
START_TEST(sequence_parallel_ranks_send_their_rows) {
    costs run[4];
    int64_t whole = 3 * 4 * 2 * COMPOSE_HIDDEN * (int64_t)sizeof(double);
    for (int sp = 0; sp < 2; sp++) {
        job j = {{.layers = 4, .micros = 3, .rows = 2, .length = 4},
                 {.tp = 2, .dp = 1, .pp = 2, .vp = 1, .sp = sp, .kind = TG_PIPE_1F1B},
                 run};
        on_ranks(4, count, &j);
        for (int r = 0; r < 4; r++) {
            ck_assert_int_eq(run[r].sent.calls[TG_SEND], 3);
            ck_assert_int_eq(run[r].sent.bytes[TG_SEND], whole / (sp ? 2 : 1));
        }
    }
}
END_TEST

/* ---- Activations ---- */

typedef struct kept {
    compose_stack s;
    int64_t saved[4], most; /* of the first micro-batch of each chunk; the most of all that are kept at one time */
} kept;

static tg_status keeping(void *state, tg_pipe_call *c) {
    kept *k = state;
    tg_memory_info m = TG_MEMORY_INFO();
    tg_memory_query(k->s.ctx, &m);
    int64_t before = m.by_category[TG_MEM_SAVED];
    RUN(compose_fn(&k->s, c));
    tg_memory_query(k->s.ctx, &m);
    if (c->micro == 0) k->saved[c->chunk] = m.by_category[TG_MEM_SAVED] - before;
    if (m.by_category[TG_MEM_SAVED] > k->most) k->most = m.by_category[TG_MEM_SAVED];
    return tg_ctx_status(k->s.ctx);
}

/* Returns the most bytes that the items of a stage keep at one time. */
static int64_t most_kept(const tg_pipe_plan *plan, int stage, const int64_t *saved) {
    int64_t now = 0, most = 0;
    const tg_pipe_item *item = tg_pipe_items(plan, stage);
    for (int i = 0; i < tg_pipe_item_count(plan, stage); i++) {
        if (item[i].act == TG_PIPE_F) now += saved[item[i].chunk];
        if (item[i].act == TG_PIPE_B) now -= saved[item[i].chunk];
        if (now > most) most = now;
    }
    return most;
}

static tg_status keep(void *arg, tg_ctx *ctx, tg_comm *world) {
    const compose_job *j = arg;
    const compose_layout *l = &j->layout;
    kept k = {.most = 0};
    tg_pipe_plan *plan;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.pp = l->pp, .vp = l->vp));
    int stage = tg_parallel_rank(p, TG_PP);
    RUN(compose_open(&k.s, p, &j->program, stage, l->pp, l->vp));
    compose_load(&k.s, 0);
    tg_pipe *x = compose_pipe(&k.s, l, NULL, &plan);
    RUN(tg_pipe_run(x, keeping, &k));
    tg_memory_info m = TG_MEMORY_INFO();
    tg_memory_query(ctx, &m);
    EXPECT(ctx, k.saved[0] > 0 && m.by_category[TG_MEM_SAVED] == 0);
    int64_t want = most_kept(plan, stage, k.saved);
    if (k.most != want)
        return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "stage %d keeps %lld bytes, expected %lld", stage, (long long)k.most,
                           (long long)want);
    tg_pipe_free(x);
    tg_pipe_plan_free(plan);
    compose_close(&k.s);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

/* A stage keeps exactly the activations that the plan says. */
START_TEST(a_stage_keeps_the_activations_of_the_plan) {
    compose_job j = {{.layers = 8, .micros = 8, .rows = 2, .length = 4}, {0}};
    static const int stages[] = {2, 4};
    for (int i = 0; i < 2; i++) {
        j.layout = (compose_layout){.tp = 1, .dp = 1, .pp = stages[i], .vp = 1, .kind = TG_PIPE_GPIPE};
        on_ranks(stages[i], keep, &j);
        j.layout.kind = TG_PIPE_1F1B;
        on_ranks(stages[i], keep, &j);
        j.layout.kind = TG_PIPE_INTERLEAVED;
        j.layout.vp = 2;
        on_ranks(stages[i], keep, &j);
    }
}
END_TEST

int main(void) {
    const TTest *const tests[] = {messages_and_bytes_are_those_of_the_plan, sequence_parallel_ranks_send_their_rows,
                                  a_stage_keeps_the_activations_of_the_plan};
    return tg_check_main("pipe_costs", tests, sizeof tests / sizeof *tests);
}
