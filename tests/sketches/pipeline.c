/* Four pipeline stages, one forward one backward (1F1B): every micro-batch has a tape of its own, and up to four are
 * alive on a stage at once. */
#include <stdio.h>
#include <tapegrad/ranks.h>

#include "planned.h"

enum { STAGES = 4, MICRO = 8, ROWS = 16, WIDTH = 64, STEPS = 20 };

typedef struct stage {
    tg_parallel *par;
    tg_comm *pp;
    int rank;
    bool first, last;
    tg_tensor *w, *b, *x, *y;
    tg_tape *tape[STAGES]; /* of the micro-batches alive, used in turn */
    tg_tensor *in[STAGES], *out[STAGES];
    double loss;
} stage;

static tg_tensor *from(stage *s, tg_tape *t, int rank) {
    return tg_recv(t, s->pp, TG_F32, TG_SHAPE(ROWS, WIDTH), rank);
}

static void forward(stage *s, int micro) {
    int i = micro % STAGES;
    tg_tape *t = s->tape[i];
    s->in[i] = s->first ? s->x : from(s, t, s->rank - 1);
    tg_tensor *h = tg_gelu(t, tg_linear(t, s->in[i], s->w, s->b));
    if (s->last) {
        s->out[i] = tg_scale(t, tg_mse(t, h, s->y), 1.0 / MICRO);
    } else {
        s->out[i] = h;
        tg_comm_send(s->pp, h, s->rank + 1);
        tg_discard(h); /* goes when it has been sent: backward needs only its shape */
    }
}

static void backward(stage *s, int micro) {
    int i = micro % STAGES;
    tg_tape *t = s->tape[i];
    if (s->last) {
        tg_backward(t, s->out[i]);
        s->loss += tg_item(s->out[i]);
    } else {
        tg_tensor *seed = from(s, t, s->rank + 1);
        tg_backward_with(t, &s->out[i], 1, TG_BACKWARD(.seeds = &seed));
    }
    if (!s->first) tg_comm_send(s->pp, tg_grad_of(s->in[i]), s->rank - 1);
    tg_tape_reset(t); /* the send holds the gradient's bytes */
}

static void step(stage *s) {
    int warmup = STAGES - 1 - s->rank;
    for (int m = 0; m < warmup; m++) forward(s, m);
    for (int m = warmup; m < MICRO; m++) {
        forward(s, m);
        backward(s, m - warmup);
    }
    for (int m = MICRO - warmup; m < MICRO; m++) backward(s, m);
}

static tg_status train(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    stage s = {.par = tg_parallel_new(world, TG_PARALLEL(.pp = STAGES))};
    s.pp = tg_parallel_comm(s.par, TG_PP);
    s.rank = tg_comm_rank(s.pp);
    s.first = s.rank == 0;
    s.last = s.rank == STAGES - 1;
    s.x = tg_randn(ctx, TG_SHAPE(ROWS, WIDTH), 1.0);
    s.y = tg_randn(ctx, TG_SHAPE(ROWS, WIDTH), 1.0);
    s.w = tg_param(ctx, "weight", TG_SHAPE(WIDTH, WIDTH), 0.125);
    s.b = tg_param(ctx, "bias", TG_SHAPE(WIDTH), 0);
    for (int i = 0; i < STAGES; i++) s.tape[i] = tg_tape_new(ctx);

    tg_tensor *params[] = {s.w, s.b};
    tg_optim *opt = tg_adamw_new(ctx, params, 2, TG_ADAMW(.lr = 1e-3));
    for (int i = 0; i < STEPS; i++) {
        s.loss = 0;
        step(&s);
        tg_optim_step(opt);
        tg_optim_zero_grad(opt);
        if (s.last) printf("%3d  %.5f\n", i, s.loss);
    }

    tg_optim_free(opt);
    for (int i = 0; i < STAGES; i++) tg_tape_free(s.tape[i]);
    tg_parallel_free(s.par);
    return tg_ctx_status(ctx);
}

int main(void) {
    char why[512] = "";
    tg_status s = tg_ranks_run(STAGES, train, NULL, TG_RANKS(.message = why, .message_size = sizeof why));
    if (s != TG_OK) fprintf(stderr, "%s\n", why);
    return s != TG_OK;
}
