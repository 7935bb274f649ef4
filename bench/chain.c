/* What an op costs beside its arithmetic: a chain of adds and muls of one element, forward and backward. */
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"

enum { OPS = 1000, CHAINS = 400 };

typedef struct chain {
    tg_tensor *x, *a, *b;
    tg_tape *t;
} chain;

static void *chain_open(tg_ctx *ctx, const bench_options *o) {
    (void)o;
    chain *c = malloc(sizeof *c);
    if (!c) return NULL;
    *c = (chain){tg_param(ctx, "x", TG_SHAPE(1), 1), tg_zeros(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(1)),
                 tg_zeros(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(1)), tg_tape_new(ctx)};
    tg_write_f64(c->a, &(double){0.999}, 1);
    tg_write_f64(c->b, &(double){0.001}, 1);
    return c;
}

/* The times of forward and backward, of one chain. */
static void chain_times(chain *c, double *forward, double *backward) {
    double begun = seconds_now();
    tg_tensor *y = c->x;
    for (int i = 0; i < OPS; i += 2) y = tg_add(c->t, tg_mul(c->t, y, c->a), c->b);
    double turned = seconds_now();
    tg_backward(c->t, y);
    tg_zero_grad(c->x);
    tg_tape_reset(c->t);
    *forward += turned - begun;
    *backward += seconds_now() - turned;
}

static double chain_measure(void *state) {
    double forward = 0, backward = 0;
    for (int i = 0; i < CHAINS; i++) chain_times(state, &forward, &backward);
    return (forward + backward) * 1e9 / (OPS * CHAINS);
}

static void chain_profile(void *state) {
    double forward = 0, backward = 0;
    for (int i = 0; i < CHAINS; i++) chain_times(state, &forward, &backward);
    printf("forward %.1f ns an op, backward with reset %.1f\n", forward * 1e9 / (OPS * CHAINS),
           backward * 1e9 / (OPS * CHAINS));
}

static void chain_close(void *state) {
    chain *c = state;
    tg_tape_free(c->t);
    tg_drop(c->x);
    tg_drop(c->a);
    tg_drop(c->b);
    free(c);
}

const bench_row chain_row = {
    .name = "chain",
    .unit = "ns an op",
    .summary = "1,000 adds and muls of one element, forward and backward",
    .open = chain_open,
    .measure = chain_measure,
    .profile = chain_profile,
    .close = chain_close,
};
