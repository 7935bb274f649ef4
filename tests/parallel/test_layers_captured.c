/* Captured steps of linear layers with a norm, on ranks over NCCL: replays give the bits of steps that run normally,
 * with and without sequence parallelism, and with communication in chunks. */
#include <tapegrad/capture.h>

#include "one_rank.h"

enum { ROUNDS = 4, RANKS = 2, MOST = 8192 };

typedef struct plan {
    bool sp;
    int chunks;
} plan;

typedef struct step {
    tg_tape *t;
    tg_module *m;
    tg_tensor *x, *out; /* out: the result of the step, which outlives it */
} step;

static tg_status run_step(void *state, tg_ctx *ctx) {
    step *s = state;
    tg_tensor *y = tg_module_forward(s->m, s->t, s->x);
    tg_tensor *loss = tg_sum(s->t, tg_mul(s->t, y, tg_tanh(s->t, y)), TG_ALL_DIMS, false);
    tg_backward_with(s->t, &loss, 1, TG_BACKWARD(.retain = true));
    bool grad = tg_tape_set_grad_mode(s->t, false);
    tg_copy_(s->t, s->out, y);
    tg_tape_set_grad_mode(s->t, grad);
    tg_tape_reset(s->t);
    return tg_ctx_status(ctx);
}

/* Gives x the values of this round, and drops the gradients. */
static tg_status feed(step *s, int round) {
    double v[MOST];
    for (int64_t i = 0; i < tg_numel(s->x); i++) v[i] = at(20 + round, i);
    RUN(tg_write_f64(s->x, v, tg_numel(s->x)));
    if (tg_has_grad(s->x)) tg_zero_grad(s->x);
    for (int i = 0; i < tg_module_param_count(s->m); i++) tg_zero_grad(tg_module_param(s->m, i, NULL));
    return TG_OK;
}

/* Appends the elements of x to `to`. */
static tg_status append(double *to, int64_t *n, tg_tensor *x) {
    RUN(tg_read_f64(x, to + *n, tg_numel(x)));
    *n += tg_numel(x);
    return TG_OK;
}

/* Reads the result, and the gradients of x and the parameters. */
static tg_status read_all(step *s, double *to, int64_t *n) {
    *n = 0;
    RUN(append(to, n, s->out));
    RUN(append(to, n, tg_grad_of(s->x)));
    for (int i = 0; i < tg_module_param_count(s->m); i++) {
        tg_tensor *g = tg_grad_share(tg_module_param(s->m, i, NULL));
        RUN(append(to, n, g));
        tg_drop(g);
    }
    return TG_OK;
}

static tg_status captured(void *arg, tg_ctx *ctx, tg_comm *world) {
    static _Thread_local double want[ROUNDS][MOST], got[MOST];
    const plan *l = arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = RANKS, .sequence_parallel = l->sp));
    tg_placement at_ = l->sp ? TG_SHARD(0) : TG_I;
    tg_shape shape = TG_SHAPE(l->sp ? S / RANKS : S, B, H);
    step s = {.t = tg_tape_new(ctx),
              .m = tg_nn_norm_mlp(p, H, F, TG_NORM_MLP(.activation = TG_MLP_SWIGLU, .chunks = l->chunks))};
    int64_t n;
    s.x = grad_leaf(tg_zeros(ctx, TG_F64, shape));
    s.out = tg_zeros(ctx, TG_F64, shape);
    tg_place(p, s.x, TG_TP, at_);
    tg_place(p, s.out, TG_TP, at_);
    for (int round = 0; round < ROUNDS; round++) {
        RUN(feed(&s, round));
        RUN(run_step(&s, ctx));
        RUN(read_all(&s, want[round], &n));
    }
    RUN(feed(&s, 0));
    tg_graph *g = tg_graph_new(ctx, run_step, &s);
    for (int round = 0; round < ROUNDS; round++) {
        if (round) RUN(feed(&s, round));
        if (round) RUN(tg_graph_replay(g));
        RUN(read_all(&s, got, &n));
        EXPECT(ctx, !memcmp(got, want[round], (size_t)n * sizeof *got));
    }
    tg_graph_free(g);
    tg_module_free(s.m);
    tg_tape_free(s.t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(replays_give_the_bits_of_steps) {
    static const plan plans[] = {{false, 1}, {true, 1}, {true, 2}};
    for (int i = 0; i < 3; i++) on_ranks(RANKS, captured, (void *)&plans[i]);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {replays_give_the_bits_of_steps};
    return tg_check_main("layers_captured", tests, sizeof tests / sizeof tests[0]);
}
