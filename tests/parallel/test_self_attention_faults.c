/* tg_nn_self_attention when something fails: a rank, or an allocation; and that a steady step allocates nothing. */
#include "parallel/self_attention_cases.h"
#include "unit/counted_allocator.h"

static const attention_case all = {.kv = 2, .wide = 1, .causal = 1, .window = 1, .norm = 1, .rope = 1, .bias = 1,
                                   .out_bias = 1, .sink = 1, .cap = 1, .dropout = 1};

/* ---- A rank that fails ---- */

typedef struct failure {
    int tp, cp;
    bool early; /* the call of rank 1 is refused; otherwise rank 1 fails between forward and backward */
} failure;

/* Rank 1 fails. The others must get its error. */
static tg_status failing_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    const failure *f = arg;
    bool fails = tg_comm_rank(world) == 1;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = f->tp, .cp = f->cp));
    attention_rows rows = attention_rows_of(p, &all);
    tg_module *m = attention_new(p, &all, &(attention_grid){0});
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = grad_leaf(attention_place(p, attention_input(ctx, 1, B, rows.row, rows.n), true));
    tg_tensor *seed = attention_place(p, attention_input(ctx, 2, B, rows.row, rows.n), true);
    tg_tensor *y = tg_module_forward(m, t, fails && f->early ? tg_zeros(ctx, TG_F64, TG_SHAPE(2, 2)) : x);
    if (fails && !f->early) tg_ctx_fail(ctx, TG_ERR_SHAPE, "x is f64[2, 2]");
    tg_backward_with(t, &y, 1, TG_BACKWARD(.seeds = &seed));
    bool reported = strstr(tg_ctx_message(ctx), "x is f64[2, 2]") != NULL;
    tg_tape_free(t);
    tg_module_free(m);
    tg_parallel_free(p);
    return reported ? TG_ERR_SHAPE : TG_ERR_INTERNAL;
}

START_TEST(each_rank_gets_the_error_of_one_that_fails) {
    const failure failures[] = {{2, 1, true}, {2, 1, false}, {1, 2, true}, {1, 2, false}, {2, 2, true}, {2, 2, false}};
    for (int i = 0; i < 6; i++) {
        char message[1024];
        const tg_config *config = TG_CONFIG(.threads = 1, .dtype = TG_F64, .seed = 7, .deadline = 60);
        tg_status s = run_ranks(failures[i].tp * failures[i].cp, failing_rank, (void *)&failures[i],
                                TG_RANKS(.config = config, .message = message, .message_size = sizeof message));
        ck_assert_msg(s == TG_ERR_SHAPE, "case %d: %s: %s", i, tg_status_name(s), message);
    }
}
END_TEST

/* ---- Memory ---- */

typedef struct alone_step {
    tg_ctx *ctx;
    tg_comm *world;
    tg_parallel *p;
    tg_module *m;
    tg_tape *t;
    tg_tensor *x, *seed;
} alone_step;

/* Prepares a step of one rank, or of rank 1 of 8 on device meta, without peers. */
static alone_step open_step(counted *memory, int ranks, tg_cp_kind kind) {
    int cp = ranks > 1 ? 2 : 1;
    alone_step s = {.ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64, .seed = 7,
                                                .device = ranks > 1 ? "meta" : "cpu",
                                                .allocator = {counted_alloc, counted_free, memory}))};
    s.world = tg_comm_plan_new(s.ctx, ranks > 1, ranks);
    s.p = tg_parallel_new(s.world, TG_PARALLEL(.tp = ranks / cp, .cp = cp));
    s.m = attention_new(s.p, &all, &(attention_grid){.kind = kind});
    s.t = tg_tape_new(s.ctx);
    attention_rows rows = {.n = S / cp};
    s.x = grad_leaf(attention_place(s.p, attention_input(s.ctx, 1, B, rows.row, rows.n), true));
    s.seed = attention_place(s.p, attention_input(s.ctx, 2, B, rows.row, rows.n), true);
    return s;
}

static void run_step(alone_step *s) {
    tg_tensor *y = tg_module_forward(s->m, s->t, s->x);
    tg_backward_with(s->t, &y, 1, TG_BACKWARD(.seeds = &s->seed));
    tg_tape_reset(s->t);
}

static void close_step(alone_step *s) {
    tg_tape_free(s->t);
    tg_module_free(s->m);
    tg_parallel_free(s->p);
    tg_comm_free(s->world);
    tg_ctx_free(s->ctx);
}

/* Runs a step in memory in which the n-th allocation fails. Returns whether it has failed. */
static bool run_without_memory(int ranks, int n) {
    counted memory = {.fail_at = n};
    alone_step s = open_step(&memory, ranks, TG_CP_RING);
    run_step(&s);
    bool failed = memory.calls >= n;
    ck_assert_msg(tg_ctx_status(s.ctx) == (failed ? TG_ERR_MEMORY : TG_OK), "%d ranks, allocation %d: %s", ranks, n,
                  tg_ctx_message(s.ctx));
    close_step(&s);
    ck_assert_int_eq(memory.held, 0);
    return failed;
}

START_TEST(any_allocation_may_fail) {
    for (int ranks = 1; ranks <= 8; ranks += 7) {
        int n = 1;
        while (run_without_memory(ranks, n)) n++;
        ck_assert_int_gt(n, 20);
    }
}
END_TEST

START_TEST(a_steady_step_allocates_nothing) {
    const tg_cp_kind kinds[] = {TG_CP_RING, TG_CP_RING, TG_CP_GATHER};
    for (int k = 0; k < 3; k++) {
        counted memory = {0};
        alone_step s = open_step(&memory, k ? 8 : 1, kinds[k]);
        for (int i = 0; i < 3; i++) run_step(&s);
        int64_t calls = memory.calls;
        for (int i = 0; i < 3; i++) run_step(&s);
        ck_assert_msg(tg_ctx_status(s.ctx) == TG_OK, "%s", tg_ctx_message(s.ctx));
        ck_assert_int_eq(memory.calls, calls);
        close_step(&s);
    }
}
END_TEST

int main(void) {
    const TTest *const tests[] = {each_rank_gets_the_error_of_one_that_fails, any_allocation_may_fail,
                                  a_steady_step_allocates_nothing};
    return tg_check_main("self_attention_faults", tests, sizeof tests / sizeof *tests);
}
