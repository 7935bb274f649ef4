/* Single failures in a pipeline: every allocation and every message of one stage fails in turn. Every stage ends with
 * an error, none hangs, and nothing leaks. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/data_parallel.h>
#include <tapegrad/ops.h>
#include <tapegrad/optim.h>
#include <tapegrad/pipe.h>
#include <tapegrad/ranks.h>

#include "comm/comm.h"

enum { MICROS = 3, ROWS = 2, HIDDEN = 4 };

/* ---- An allocator and a transport that fail one call of a thread ---- */

static atomic_llong live;
static _Thread_local int64_t allocations, fail_allocation;
static _Thread_local int64_t messages, fail_message;
static _Thread_local const tg_comm_ops *beneath;
static _Thread_local tg_comm_ops wrapped;

static void *take(void *user, size_t bytes, size_t align) {
    (void)user;
    if (++allocations == fail_allocation) return NULL;
    void *p = aligned_alloc(align, (bytes + align - 1) / align * align);
    if (p) atomic_fetch_add(&live, (long long)bytes);
    return p;
}

static void give(void *user, void *p, size_t bytes) {
    (void)user;
    atomic_fetch_sub(&live, (long long)bytes);
    free(p);
}

static tg_status start(tg_ctx *ctx, void *state, const tg_transfer *call, void **request) {
    if (++messages == fail_message) return tg_ctx_fail(ctx, TG_ERR_IO, "the wire is cut");
    return beneath->start(ctx, state, call, request);
}

/* ---- One stage's step ---- */

typedef struct job {
    int64_t allocation, message;   /* number of stage 1's call that fails; 0: none */
    int64_t allocations, messages; /* numbers of calls of a step without failure */
} job;

typedef struct model {
    tg_tensor *x, *w;
} model;

static tg_status part(void *state, tg_pipe_call *c) {
    const model *m = state;
    tg_tensor *h = tg_linear_relu(c->tape, c->part ? c->input[0] : m->x, m->w, NULL);
    c->out[0] = c->part == c->parts - 1 ? tg_sum(c->tape, h, TG_ALL_DIMS, false) : h;
    return tg_ctx_status(tg_tape_ctx(c->tape));
}

static tg_status step(tg_ctx *ctx, tg_comm *world) {
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.pp = 2));
    model m = {tg_randn(ctx, TG_F32, TG_SHAPE(ROWS, HIDDEN), 1),
               tg_param_new(ctx, "w", TG_F32, TG_SHAPE(HIDDEN, HIDDEN), 1)};
    tg_pipe_plan *plan = tg_pipe_plan_new(ctx, TG_PIPE_PLAN(.kind = TG_PIPE_ZB_H1, .stages = 2, .micros = MICROS));
    tg_pipe_edge edge = {.dtype = TG_F32, .shape = TG_SHAPE(ROWS, HIDDEN)};
    tg_share(p, m.w, tg_parallel_embedding(p));
    tg_pipe *x = tg_pipe_new(p, plan, TG_PIPE(.edge = &edge, .n_edge = 1));
    tg_optim *o = tg_adamw_new(ctx, &m.w, 1, NULL);
    tg_pipe_run(x, part, &m);
    tg_grads_finalize(p, &m.w, 1, NULL);
    tg_optim_clip(o, 1);
    tg_optim_step(o);
    tg_optim_free(o);
    tg_pipe_free(x);
    tg_pipe_plan_free(plan);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

static atomic_int ended;

static tg_status run_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    job *j = arg;
    bool victim = tg_comm_rank(world) == 1;
    beneath = world->ops;
    wrapped = *world->ops;
    wrapped.start = start;
    world->ops = &wrapped;
    allocations = messages = 0;
    fail_allocation = victim ? j->allocation : 0;
    fail_message = victim ? j->message : 0;
    tg_status s = step(ctx, world);
    if (victim) {
        j->allocations = allocations;
        j->messages = messages;
    }
    if (s != TG_OK) atomic_fetch_add(&ended, 1);
    fail_allocation = fail_message = 0;
    world->ops = beneath;
    return s;
}

static int passed, failed, refused;

static void verdict(bool good, const job *j, const char *what, const char *message) {
    *(good ? &passed : &failed) += 1;
    if (!good)
        printf("FAIL allocation %lld, message %lld: %s: %s\n", (long long)j->allocation, (long long)j->message, what,
               message);
}

static void try(job *j) {
    char message[1024] = "";
    const tg_config *config = TG_CONFIG(.threads = 1, .seed = 2, .deadline = 20, .allocator = {take, give, NULL});
    atomic_store(&ended, 0);
    tg_status s =
        tg_ranks_run(2, run_rank, j, TG_RANKS(.config = config, .message = message, .message_size = sizeof message));
    /* The number of allocations depends a little on how long a rank waits, so the last of them may not occur. */
    bool refuse = j->allocation ? j->allocations >= j->allocation : j->message > 0;
    refused += refuse;
    verdict((s != TG_OK) == refuse, j, "status", message);
    verdict(!refuse || s != TG_ERR_TIMEOUT, j, "a stage waited to the deadline", message);
    verdict(!refuse || strstr(message, j->allocation ? "out of memory" : "the wire is cut"), j, "message", message);
    verdict(atomic_load(&ended) == (refuse ? 2 : 0), j, "not every stage ended with an error", message);
    verdict(atomic_load(&live) == 0, j, "bytes are left", message);
    atomic_store(&live, 0);
}

int main(void) {
    int64_t stride = getenv("TG_LONG") ? 1 : 3;
    job whole = {0};
    try(&whole);
    for (int64_t i = 1; i <= whole.messages; i++) try(&(job){.message = i});
    for (int64_t i = 1; i <= whole.allocations; i += stride) try(&(job){.allocation = i});
    printf("%d passed, %d failed, %d refused\n", passed, failed, refused);
    return failed || refused < whole.messages;
}
