/* Captured steps of attention over a divided sequence, on ranks over NCCL: replays give the bits of steps that run
 * normally, in each way of exchange, with dropout by key, of one sequence and of several that are packed. */
#include <tapegrad/capture.h>

#include "parallel/context_cases.h"

enum { ROUNDS = 4, RANKS = 4, ROWS = 64 };

typedef struct step {
    tg_comm *cp;
    tg_tape *t;
    context_case c;
    context_leaves l;
    tg_tensor *out; /* the result of the step, which outlives it */
} step;

static tg_status run_step(void *state, tg_ctx *ctx) {
    step *s = state;
    tg_key_open(ctx, 5);
    s->c.o.starts = s->l.starts;
    tg_tensor *y = tg_context_attention(s->t, s->l.x[0], s->l.x[1], s->l.x[2], s->cp, &s->c.o);
    tg_key_close(ctx);
    tg_backward_with(s->t, &y, 1, TG_BACKWARD(.seeds = &s->l.seed, .retain = true));
    bool grad = tg_tape_set_grad_mode(s->t, false);
    tg_copy_(s->t, s->out, y);
    tg_tape_set_grad_mode(s->t, grad);
    tg_tape_reset(s->t);
    return tg_ctx_status(ctx);
}

/* Gives q new values, prepares the draws of this round, and makes gradients zeros. */
static tg_status feed(step *s, tg_ctx *ctx, int round) {
    double v[2048];
    int64_t n = tg_numel(s->l.x[0]);
    for (int64_t i = 0; i < n; i++) v[i] = at(20 + round, i);
    RUN(tg_write_f64(s->l.x[0], v, n));
    for (int i = 0; i < 3; i++)
        if (tg_has_grad(s->l.x[i])) tg_zero_grad(s->l.x[i]);
    return tg_draws_step(ctx, (uint64_t)round);
}

/* Reads the result and the gradients. Returns the number of their elements. */
static int64_t read_all(step *s, double *to) {
    int64_t n = tg_numel(s->out);
    tg_read_f64(s->out, to, n);
    for (int i = 0; i < 3; i++) {
        tg_read_f64(tg_grad_of(s->l.x[i]), to + n, tg_numel(s->l.x[i]));
        n += tg_numel(s->l.x[i]);
    }
    return n;
}

typedef struct job {
    tg_cp_kind kind;
    bool packed;
} job;

static tg_status captured_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    const job *j = arg;
    static _Thread_local double want[ROUNDS][8192], got[8192];
    int64_t rows[ROWS];
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.cp = RANKS));
    step s = {.cp = tg_parallel_comm(p, TG_CP), .t = tg_tape_new(ctx), .c = {.o = CASE_OPTS(.causal = true)}};
    if (j->packed) s.c = (context_case){.o = s.c.o, .starts = {0, 5, 41, 48}, .sequences = 3};
    s.c.o.kind = j->kind;
    s.c.o.cut_as_one = true;
    s.c.o.inner = s.c.o.kind == TG_CP_HIERARCHY ? 2 : TG_AUTO;
    s.c.o.dropout = 0.2;
    context_sizes(&s.c);
    tg_context_cut((const int64_t[]){0, s.c.s}, 1, RANKS, tg_comm_rank(s.cp), rows);
    s.l = context_open(ctx, p, &s.c, rows, s.c.s / RANKS);
    s.out = tg_zeros(ctx, TG_F64, tg_shape_of(s.l.seed));
    tg_place(p, s.out, TG_CP, TG_SHARD_ZIGZAG(2));
    for (int round = 0; round < ROUNDS; round++) {
        RUN(feed(&s, ctx, 1 + round));
        RUN(run_step(&s, ctx));
        read_all(&s, want[round]);
    }
    RUN(feed(&s, ctx, 1));
    tg_graph *g = tg_graph_new(ctx, run_step, &s);
    for (int round = 0; round < ROUNDS; round++) {
        if (round) RUN(feed(&s, ctx, 1 + round));
        if (round) RUN(tg_graph_replay(g));
        int64_t n = read_all(&s, got);
        EXPECT(ctx, !memcmp(got, want[round], (size_t)n * sizeof *got));
    }
    tg_graph_free(g);
    tg_tape_free(s.t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(replays_give_the_bits_of_steps) {
    for (int i = 0; i < 8; i++) on_ranks(RANKS, captured_rank, &(job){context_kinds[i / 2], i % 2});
}
END_TEST

int main(void) {
    const TTest *const tests[] = {replays_give_the_bits_of_steps};
    return tg_check_main("context_captured", tests, sizeof tests / sizeof tests[0]);
}
