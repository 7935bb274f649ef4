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
    if (t->flat) RUN(tg_flat_gather(t->flat));
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
    compose_training t;
    compose_train(&t, &s, l->buckets, l->zero);
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
    tg_flat_free(t.flat);
    tg_pipe_free(x);
    tg_pipe_plan_free(plan);
    compose_close(&s);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

static void on_plan(tg_rank_fn fn, void *arg, int rank, int n) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64, .device = "meta"));
    tg_comm *world = tg_comm_plan_new(ctx, rank, n);
    tg_status s = fn(arg, ctx, world);
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
                on_plan(count, &j, r, j.layout.pp);
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

/* With replicas, a stage sends each of its buckets once as gradients and once as parameters, and the flags of its
 * parameters; the plan says so, and a steady step allocates nothing. */
START_TEST(replicas_of_a_stage_send_their_buckets) {
    costs run[4], plan[4];
    for (int zero = 0; zero < 3; zero++) {
        job j = {{.layers = 4, .micros = 3, .rows = 2, .length = 4},
                 {.tp = 1, .dp = 2, .pp = 2, .vp = 1, .kind = TG_PIPE_ZB_H1, .buckets = true, .zero = zero},
                 run};
        on_ranks(4, count, &j);
        j.out = plan;
        for (int r = 0; r < 4; r++) {
            const tg_comm_info *sent = &run[r].sent;
            on_plan(count, &j, r, 4);
            ck_assert_mem_eq(plan[r].sent.calls, sent->calls, sizeof sent->calls);
            ck_assert_mem_eq(plan[r].sent.bytes, sent->bytes, sizeof sent->bytes);
            ck_assert_int_eq(run[r].allocations, 0);
            ck_assert_int_eq(sent->calls[TG_REDUCE_SCATTER], zero ? sent->calls[TG_ALL_GATHER] : 0);
            ck_assert_int_eq(sent->bytes[TG_REDUCE_SCATTER], zero ? sent->bytes[TG_ALL_GATHER] : 0);
            ck_assert(!zero || sent->calls[TG_ALL_GATHER] > 1);
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

/* ---- Weight gradients that wait ---- */

/* A stage that compares its memory before each F with its list. */
typedef struct waiting {
    compose_stack s;
    const tg_pipe_plan *plan;
    int stage, at;       /* at: index of the item that runs */
    int64_t saved, base; /* bytes that F saves; temporary bytes before the step */
    int most;            /* most parts at one time whose F has run and whose W has not */
} waiting;

/* Returns how many items of an act the stage has run. */
static int ran(const waiting *w, tg_pipe_act act) {
    int n = 0;
    for (int i = 0; i < w->at; i++) n += tg_pipe_items(w->plan, w->stage)[i].act == act;
    return n;
}

static int64_t activation_bytes(const waiting *w, int columns) {
    return (int64_t)w->s.o.rows * w->s.o.length * columns * (int64_t)sizeof(double);
}

/* Until its W, a B without W holds by reference the input x and the output gradient gy of each linear layer, and
 * nothing else. The list of deferred products owns gy alone, and shares x, which the node had saved, until the tape is
 * reset. */
static void held(const waiting *w, int64_t *x, int64_t *gy) {
    const struct compose_range *r = &w->s.range[w->stage];
    int64_t hidden = activation_bytes(w, COMPOSE_HIDDEN), ffn = activation_bytes(w, COMPOSE_FFN);
    *x = *gy = (r->to - r->from) * (hidden + ffn); /* of a column linear, from hidden to ffn, and a row linear back */
    if (!w->s.head) return;
    *x += hidden;
    *gy += activation_bytes(w, COMPOSE_VOCAB);
}

/* Returns how many messages are temporaries of the stage while its item begins: what the item and the next one receive,
 * and the last activation that was sent, which is held until the next one is. Gradients that are sent are those of
 * leaves, which are no temporaries. */
static int messages(const waiting *w) {
    const tg_pipe_item *item = tg_pipe_items(w->plan, w->stage);
    int n = 0;
    for (int i = w->at; i <= w->at + 1 && i < tg_pipe_item_count(w->plan, w->stage); i++)
        n += item[i].act != TG_PIPE_W && tg_pipe_source(w->plan, w->stage, item[i]) >= 0;
    return n + (ran(w, TG_PIPE_F) && tg_pipe_target(w->plan, w->stage, (tg_pipe_item){.act = TG_PIPE_F}) >= 0);
}

static tg_status expect_bytes(const waiting *w, const char *what, int64_t is, int64_t expected) {
    if (is == expected) return TG_OK;
    return tg_ctx_fail(w->s.ctx, TG_ERR_INTERNAL, "stage %d, item %d: %lld bytes of %s, expected %lld", w->stage, w->at,
                       (long long)is, what, (long long)expected);
}

/* Checks the memory of the stage while F of its item begins. How long messages take is known on device meta only. */
static tg_status check_held(waiting *w, int64_t *saved) {
    int64_t x, gy, waits = ran(w, TG_PIPE_B) - ran(w, TG_PIPE_W);
    int64_t message = activation_bytes(w, COMPOSE_HIDDEN) * messages(w);
    tg_memory_info m = TG_MEMORY_INFO();
    RUN(tg_memory_query(w->s.ctx, &m));
    held(w, &x, &gy);
    *saved = (ran(w, TG_PIPE_F) - ran(w, TG_PIPE_B)) * w->saved + waits * x;
    RUN(expect_bytes(w, "saved activations", m.by_category[TG_MEM_SAVED], *saved));
    if (!ran(w, TG_PIPE_F)) w->base = m.by_category[TG_MEM_TEMPORARY] - message;
    if (!w->s.ctx->meta) return TG_OK;
    return expect_bytes(w, "temporaries", m.by_category[TG_MEM_TEMPORARY], w->base + message + waits * gy);
}

static tg_status watching(void *state, tg_pipe_call *c) {
    waiting *w = state;
    int64_t before;
    tg_memory_info m = TG_MEMORY_INFO();
    while (tg_pipe_items(w->plan, w->stage)[w->at].act != TG_PIPE_F) w->at++;
    RUN(check_held(w, &before));
    RUN(compose_fn(&w->s, c));
    RUN(tg_memory_query(w->s.ctx, &m));
    if (!w->saved) w->saved = m.by_category[TG_MEM_SAVED];
    w->at++;
    if (ran(w, TG_PIPE_F) - ran(w, TG_PIPE_W) > w->most) w->most = ran(w, TG_PIPE_F) - ran(w, TG_PIPE_W);
    return expect_bytes(w, "activations after F", m.by_category[TG_MEM_SAVED], before + w->saved);
}

static tg_status wait_for_weights(void *arg, tg_ctx *ctx, tg_comm *world) {
    const compose_job *j = arg;
    waiting w = {.most = 0};
    tg_pipe_plan *plan;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.pp = j->layout.pp));
    w.stage = tg_parallel_rank(p, TG_PP);
    RUN(compose_open(&w.s, p, &j->program, w.stage, j->layout.pp, 1));
    compose_load(&w.s, 0);
    tg_pipe *x = compose_pipe(&w.s, &j->layout, NULL, &plan);
    w.plan = plan;
    RUN(tg_pipe_run(x, watching, &w));
    tg_memory_info m = TG_MEMORY_INFO();
    tg_pipe_report r = TG_PIPE_REPORT();
    RUN(tg_memory_query(ctx, &m));
    RUN(tg_pipe_plan_query(plan, w.stage, &r));
    EXPECT(ctx, w.saved > 0 && m.by_category[TG_MEM_SAVED] == 0 && w.most == r.peak);
    tg_pipe_free(x);
    tg_pipe_plan_free(plan);
    compose_close(&w.s);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(weight_gradients_that_wait_hold_inputs_and_output_gradients) {
    for (int pp = 2; pp <= 4; pp *= 2) {
        compose_job j = {{.layers = 8, .micros = 8, .rows = 2, .length = 4},
                         {.tp = 1, .dp = 1, .pp = pp, .vp = 1, .kind = TG_PIPE_ZB_H1}};
        on_ranks(pp, wait_for_weights, &j);
        for (int rank = 0; rank < pp; rank++) on_plan(wait_for_weights, &j, rank, pp);
    }
}
END_TEST

int main(void) {
    const TTest *const tests[] = {messages_and_bytes_are_those_of_the_plan, sequence_parallel_ranks_send_their_rows,
                                  replicas_of_a_stage_send_their_buckets,
                                  a_stage_keeps_the_activations_of_the_plan,
                                  weight_gradients_that_wait_hold_inputs_and_output_gradients};
    return tg_check_main("pipe_costs", tests, sizeof tests / sizeof *tests);
}
