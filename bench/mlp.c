/* A very small training step: an MLP 16-16-16-1 on a single sample, forward, backward, AdamW. */
#include <stdlib.h>

#include <tapegrad/nn.h>
#include <tapegrad/optim.h>
#include <tapegrad/backward.h>
#include <tapegrad/ops.h>

#include "bench.h"

enum { WIDTH = 16, LAYERS = 3, STEPS = 400 };

typedef struct mlp {
    tg_ctx *ctx;
    tg_tensor *w[LAYERS], *b[LAYERS], *x, *y;
    tg_optim *optim;
    tg_tape *t;
} mlp;

static void *mlp_open(tg_ctx *ctx, const bench_options *o) {
    (void)o;
    mlp *m = malloc(sizeof *m);
    if (!m) return NULL;
    *m = (mlp){.ctx = ctx, .t = tg_tape_new(ctx), .x = tg_randn(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(1, WIDTH), 1),
               .y = tg_randn(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(1, 1), 1)};
    tg_tensor *params[2 * LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        int64_t out = i + 1 < LAYERS ? WIDTH : 1;
        params[2 * i] = m->w[i] = tg_param_new(ctx, "w", TG_DTYPE_DEFAULT, TG_SHAPE(out, WIDTH), 0.25);
        params[2 * i + 1] = m->b[i] = tg_param_new(ctx, "b", TG_DTYPE_DEFAULT, TG_SHAPE(out), 0);
    }
    m->optim = tg_adamw_new(ctx, params, 2 * LAYERS, TG_ADAMW(.lr = 1e-3));
    return m;
}

static void step(mlp *m) {
    tg_tensor *h = tg_linear_relu(m->t, m->x, m->w[0], m->b[0]);
    h = tg_linear_relu(m->t, h, m->w[1], m->b[1]);
    tg_backward(m->t, tg_mse(m->t, tg_linear(m->t, h, m->w[2], m->b[2]), m->y));
    tg_optim_step(m->optim);
    tg_optim_zero_grad(m->optim);
    tg_tape_reset(m->t);
}

static double mlp_measure(void *state) {
    mlp *m = state;
    finish(m->ctx);
    double begun = seconds_now();
    for (int i = 0; i < STEPS; i++) step(m);
    finish(m->ctx);
    return 1e6 * (seconds_now() - begun) / STEPS;
}

static void mlp_close(void *state) {
    mlp *m = state;
    tg_optim_free(m->optim);
    tg_tape_free(m->t);
    for (int i = 0; i < LAYERS; i++) {
        tg_drop(m->w[i]);
        tg_drop(m->b[i]);
    }
    tg_drop(m->x);
    tg_drop(m->y);
    free(m);
}

const bench_row mlp_row = {
    .name = "mlp",
    .unit = "us a step",
    .summary = "a training step of an MLP 16-16-16-1, one sample",
    .open = mlp_open,
    .measure = mlp_measure,
    .close = mlp_close,
};
