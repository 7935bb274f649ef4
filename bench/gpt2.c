/* Row "gpt2": a training step of GPT-2 (124M unless options say otherwise), which is forward, backward and AdamW,
 * written like a user's program. With --capture, measures replays of the captured step. Row "adamw": AdamW alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/capture.h>
#include <tapegrad/nn.h>
#include <tapegrad/optim.h>
#include <tapegrad/backward.h>
#include <tapegrad/explain.h>
#include <tapegrad/gpt.h>

#include "bench.h"

typedef struct gpt2 {
    tg_ctx *ctx;
    tg_module *gpt;
    tg_optim *optim;
    tg_tape *t;
    tg_tensor *ids, *target;
    int calls;
    bool capture;
    tg_graph *graph; /* captured step; NULL: the step is called */
} gpt2;

static tg_optim *optimizer(tg_ctx *ctx, tg_module *gpt) {
    int n = tg_module_param_count(gpt);
    tg_tensor **params = malloc((size_t)n * sizeof(tg_tensor *));
    if (!params) return NULL;
    tg_module_params(gpt, params, n);
    tg_optim *optim = tg_adamw_new(ctx, params, n, TG_ADAMW(.lr = 1e-4));
    free(params);
    return optim;
}

/* Returns pseudorandom token ids [batch, seq_len]; x is the seed. */
static tg_tensor *random_ids(tg_ctx *ctx, const bench_options *o, uint32_t x) {
    int64_t n = o->batch * o->seq_len, *ids = malloc((size_t)n * sizeof *ids);
    if (!ids) return NULL;
    for (int64_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        ids[i] = (x >> 8) % (uint32_t)o->vocab;
    }
    tg_tensor *t = tg_from_host(ctx, TG_I64, TG_SHAPE(o->batch, o->seq_len), ids);
    free(ids);
    return t;
}

static void gpt2_close(void *state) {
    gpt2 *g = state;
    tg_graph_free(g->graph);
    tg_optim_free(g->optim);
    tg_tape_free(g->t);
    tg_module_free(g->gpt);
    tg_drop(g->ids);
    tg_drop(g->target);
    free(g);
}

static void *gpt2_open(tg_ctx *ctx, const bench_options *o) {
    gpt2 *g = malloc(sizeof *g);
    if (!g) return NULL;
    int64_t positions = o->seq_len > 1024 ? o->seq_len : 1024;
    *g = (gpt2){.ctx = ctx,
                .gpt = tg_gpt_new(ctx, TG_GPT(.vocab = o->vocab, .layers = o->layers, .heads = o->heads,
                                              .hidden = o->hidden, .positions = positions,
                                              .recompute = o->recompute ? TG_GPT_FULL : TG_GPT_KEEP)),
                .t = tg_tape_new(ctx),
                .ids = random_ids(ctx, o, 1),
                .target = random_ids(ctx, o, 2),
                .calls = o->calls,
                .capture = o->capture};
    g->optim = optimizer(ctx, g->gpt);
    if (g->ids && g->target && g->optim) return g;
    gpt2_close(g);
    return NULL;
}

static void call_step(gpt2 *g) {
    tg_backward(g->t, tg_gpt_loss(g->gpt, g->t, g->ids, g->target, TG_LOSS_MEAN));
    tg_optim_step(g->optim);
    tg_optim_zero_grad(g->optim);
    tg_tape_reset(g->t);
}

static tg_status captured_step(void *state, tg_ctx *ctx) {
    call_step(state);
    return tg_ctx_status(ctx);
}

/* Runs a step. With --capture, the first call runs the step normally, which allocates what lives longer than a step,
 * and then captures it. Later calls replay the captured step. */
static void step(gpt2 *g) {
    if (g->graph)
        tg_graph_replay(g->graph);
    else
        call_step(g);
    if (g->capture && !g->graph) g->graph = tg_graph_new(g->ctx, captured_step, g);
}

static double gpt2_measure(void *state) {
    gpt2 *g = state;
    finish(g->ctx);
    double begun = seconds_now();
    for (int i = 0; i < g->calls; i++) step(g);
    finish(g->ctx);
    return 1e3 * (seconds_now() - begun) / g->calls;
}

/* Measures the time that the host takes to queue one step. The device is idle before, and the measurement does not wait
 * for the device at the end. */
static double gpt2_host(void *state) {
    gpt2 *g = state;
    finish(g->ctx);
    double begun = seconds_now();
    step(g);
    return 1e3 * (seconds_now() - begun);
}

/* ---- AdamW alone, with the gradients of one step ---- */

static void *adamw_open(tg_ctx *ctx, const bench_options *o) {
    gpt2 *g = gpt2_open(ctx, o);
    if (g) tg_backward(g->t, tg_gpt_loss(g->gpt, g->t, g->ids, g->target, TG_LOSS_MEAN));
    return g;
}

static double adamw_measure(void *state) {
    gpt2 *g = state;
    finish(g->ctx);
    double begun = seconds_now();
    for (int i = 0; i < g->calls; i++) tg_optim_step(g->optim);
    finish(g->ctx);
    return 1e3 * (seconds_now() - begun) / g->calls;
}

/* ---- Profile ---- */

typedef struct op_time {
    char name[32];
    int calls;
    double flops, forward, backward; /* times in microseconds */
} op_time;

enum { MAX_OPS = 64 };

static int slower_first(const void *a, const void *b) {
    const op_time *x = a, *y = b;
    double d = (y->forward + y->backward) - (x->forward + x->backward);
    return d > 0 ? 1 : d < 0 ? -1 : 0;
}

/* Adds up the rows of each op in the table that tg_tape_dump wrote. Returns the number of ops. */
static int sum_by_op(char *table, op_time *ops) {
    int n = 0;
    char *rest = NULL;
    for (char *line = strtok_r(table, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        op_time row = {.calls = 1};
        if (sscanf(line, "%*d %31s %*d %lf %lf %lf", row.name, &row.flops, &row.forward, &row.backward) != 4) continue;
        int i = 0;
        while (i < n && strcmp(ops[i].name, row.name) != 0) i++;
        if (i == MAX_OPS) continue;
        if (i == n)
            ops[n++] = row;
        else
            ops[i] = (op_time){.calls = ops[i].calls + 1, .flops = ops[i].flops + row.flops,
                               .forward = ops[i].forward + row.forward, .backward = ops[i].backward + row.backward};
        memcpy(ops[i].name, row.name, sizeof row.name);
    }
    qsort(ops, (size_t)n, sizeof *ops, slower_first);
    return n;
}

static void print_ops(tg_tape *t) {
    size_t size = tg_tape_dump(t, TG_TEXT, NULL, 0) + 1;
    char *table = malloc(size);
    op_time ops[MAX_OPS];
    if (!table) return;
    tg_tape_dump(t, TG_TEXT, table, size);
    int n = sum_by_op(table, ops);
    free(table);
    printf("%-24s %6s %10s %12s %14s\n", "op", "nodes", "forward ms", "backward ms", "forward GF/s");
    for (int i = 0; i < n; i++)
        printf("%-24s %6d %10.2f %12.2f %14.1f\n", ops[i].name, ops[i].calls, 1e-3 * ops[i].forward,
               1e-3 * ops[i].backward, ops[i].forward > 0 ? 1e-3 * ops[i].flops / ops[i].forward : 0);
}

static void gpt2_profile(void *state) {
    gpt2 *g = state;
    tg_tape_set_timing(g->t, true);
    double at[5];
    at[0] = seconds_now();
    tg_tensor *loss = tg_gpt_loss(g->gpt, g->t, g->ids, g->target, TG_LOSS_MEAN);
    at[1] = seconds_now();
    tg_backward(g->t, loss);
    at[2] = seconds_now();
    tg_optim_step(g->optim);
    tg_optim_zero_grad(g->optim);
    at[3] = seconds_now();
    print_ops(g->t);
    at[4] = seconds_now();
    tg_tape_set_timing(g->t, false);
    tg_tape_reset(g->t);
    printf("\nforward %.2f ms, backward %.2f, AdamW %.2f, together %.2f; reset %.2f\n", 1e3 * (at[1] - at[0]),
           1e3 * (at[2] - at[1]), 1e3 * (at[3] - at[2]), 1e3 * (at[3] - at[0]), 1e3 * (seconds_now() - at[4]));
}

const bench_row gpt2_row = {
    .name = "gpt2",
    .unit = "ms a step",
    .summary = "a GPT-2 124M training step",
    .open = gpt2_open,
    .measure = gpt2_measure,
    .host = gpt2_host,
    .profile = gpt2_profile,
    .close = gpt2_close,
};

const bench_row adamw_row = {
    .name = "adamw",
    .unit = "ms a step",
    .summary = "AdamW of all of GPT-2's parameters",
    .open = adamw_open,
    .measure = adamw_measure,
    .close = gpt2_close,
};
