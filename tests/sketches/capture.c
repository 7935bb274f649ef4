/* A training step captured once and replayed: forward, backward, clipping and the optimiser in one launch. What changes
 * from step to step (batch, learning rate, random counter, step number) lies on the device. */
#include <stdio.h>

#include <tapegrad/capture.h>

#include "planned.h"

enum { ROWS = 64, WIDTH = 256, STEPS = 100 };

typedef struct trainer {
    tg_tape *tape;
    tg_tensor *x, *y; /* static inputs */
    tg_tensor *p[4];
    tg_tensor *loss;  /* kept: there after every replay */
    tg_optim *opt;
} trainer;

static tg_status step(void *state, tg_ctx *ctx) {
    trainer *s = state;
    tg_tape *t = s->tape;
    tg_tensor *h = tg_dropout(t, tg_linear_gelu(t, s->x, s->p[0], s->p[1]), 0.1);
    tg_tensor *loss = tg_mse(t, tg_linear(t, h, s->p[2], s->p[3]), s->y);
    tg_backward(t, loss);
    tg_optim_step(s->opt);
    tg_optim_zero_grad(s->opt);
    s->loss = tg_keep(loss); /* once: fn is called once */
    tg_tape_reset(t);
    return tg_ctx_status(ctx);
}

static void fill(tg_tensor *x, int seed) {
    static float data[ROWS * WIDTH];
    for (int i = 0; i < ROWS * WIDTH; i++) data[i] = (float)((i * 31 + seed * 17) % 101) / 101;
    tg_write(x, data, sizeof data);
}

int main(void) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "cuda", .seed = 1));
    trainer s = {
        .tape = tg_tape_new(ctx),
        .x = tg_zeros(ctx, TG_F32, TG_SHAPE(ROWS, WIDTH)),
        .y = tg_zeros(ctx, TG_F32, TG_SHAPE(ROWS, WIDTH)),
        .p = {tg_param(ctx, "fc1.weight", TG_SHAPE(WIDTH, WIDTH), 0.06), tg_param(ctx, "fc1.bias", TG_SHAPE(WIDTH), 0),
              tg_param(ctx, "fc2.weight", TG_SHAPE(WIDTH, WIDTH), 0.06), tg_param(ctx, "fc2.bias", TG_SHAPE(WIDTH), 0)},
    };
    s.opt = tg_adamw_new(ctx, s.p, 4, TG_ADAMW(.lr = 1e-3));
    tg_optim_set_clip(s.opt, 1.0);

    const tg_schedule *cosine = TG_SCHEDULE(.lr = 1e-3, .warmup = 10, .steps = STEPS, .decay = TG_DECAY_COSINE);
    tg_graph *graph = NULL;
    for (int i = 1; i <= STEPS; i++) {
        fill(s.x, i);
        fill(s.y, i + 1);
        tg_optim_set_lr(s.opt, tg_schedule_lr(cosine, i));
        if (i == 1)
            graph = tg_graph_new(ctx, step, &s);
        else
            tg_graph_replay(graph);
        if (i % 10 == 0) printf("%4d  %.5f  norm %.4f\n", i, tg_item(s.loss), tg_optim_norm(s.opt));
    }

    tg_status status = tg_ctx_status(ctx);
    if (status != TG_OK) fprintf(stderr, "%s\n", tg_ctx_message(ctx));
    tg_graph_free(graph);
    tg_optim_free(s.opt);
    tg_tape_free(s.tape);
    tg_ctx_free(ctx);
    return status != TG_OK;
}
