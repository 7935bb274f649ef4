/* The overhead of an op: forward and backward of a chain of adds and muls of one element. Row "chain" has 1,000 ops,
 * row "tape" as many as --rows says. */
#include <stdio.h>
#include <stdlib.h>
#include <tapegrad/backward.h>
#include <tapegrad/ops.h>

#include "bench.h"

enum { OPS = 1000, MEASURED = 400000 }; /* MEASURED: least number of ops in one measurement */

typedef struct chain {
    tg_tensor *x, *a, *b;
    tg_tape *t;
    int64_t ops;
} chain;

static chain *chain_new(tg_ctx *ctx, int64_t ops) {
    chain *c = malloc(sizeof *c);
    if (!c) return NULL;
    *c = (chain){tg_param_new(ctx, "x", TG_DTYPE_DEFAULT, TG_SHAPE(1), 1), tg_zeros(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(1)),
                 tg_zeros(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(1)), tg_tape_new(ctx), ops};
    tg_write_f64(c->a, &(double){0.999}, 1);
    tg_write_f64(c->b, &(double){0.001}, 1);
    return c;
}

static void *chain_open(tg_ctx *ctx, const bench_options *o) {
    (void)o;
    return chain_new(ctx, OPS);
}

static void *tape_open(tg_ctx *ctx, const bench_options *o) { return chain_new(ctx, o->rows); }

/* Runs one chain. Adds the seconds of forward to *forward, and those of backward and of the tape's reset to
 * *backward. */
static void chain_times(chain *c, double *forward, double *backward) {
    double begun = seconds_now();
    tg_tensor *y = c->x;
    for (int64_t i = 0; i < c->ops; i += 2) y = tg_add(c->t, tg_mul(c->t, y, c->a), c->b);
    double middle = seconds_now();
    tg_backward(c->t, y);
    tg_zero_grad(c->x);
    tg_tape_reset(c->t);
    *forward += middle - begun;
    *backward += seconds_now() - middle;
}

static double chain_measure(void *state) {
    chain *c = state;
    double forward = 0, backward = 0;
    int64_t ops = 0;
    for (; ops < MEASURED; ops += c->ops) chain_times(c, &forward, &backward);
    return (forward + backward) * 1e9 / (double)ops;
}

static void chain_profile(void *state) {
    chain *c = state;
    double forward = 0, backward = 0;
    int64_t ops = 0;
    for (; ops < MEASURED; ops += c->ops) chain_times(c, &forward, &backward);
    printf("forward %.1f ns an op, backward with reset %.1f\n", forward * 1e9 / (double)ops,
           backward * 1e9 / (double)ops);
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

const bench_row tape_row = {
    .name = "tape",
    .unit = "ns an op",
    .summary = "a chain of `rows` adds and muls of one element",
    .open = tape_open,
    .measure = chain_measure,
    .profile = chain_profile,
    .close = chain_close,
};
