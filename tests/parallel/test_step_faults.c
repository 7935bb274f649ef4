/* Single failures: every allocation and every collective of one rank of a training step fails in turn, with tensor
 * parallelism and with an optimizer that is divided over replicas. Every rank ends with an error, no rank hangs, and
 * nothing leaks. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/mappings.h>
#include <tapegrad/nn.h>
#include <tapegrad/optim.h>
#include <tapegrad/backward.h>
#include <tapegrad/flat.h>
#include <tapegrad/gpt.h>
#include <tapegrad/ranks.h>

#include "comm/comm.h"

enum { VOCAB = 40, LENGTH = 8, BATCH = 2 };

/* ---- An allocator and a transport that fail one call of a thread ---- */

static atomic_llong live;
static _Thread_local int64_t allocations, fail_allocation;
static _Thread_local int64_t collectives, fail_collective;
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
    if (++collectives == fail_collective) return tg_ctx_fail(ctx, TG_ERR_IO, "the wire is cut");
    return beneath->start(ctx, state, call, request);
}

/* ---- One rank's step ---- */

typedef struct job {
    int64_t allocation, collective; /* number of rank 1's call that fails; 0: none */
    int64_t allocations, collectives; /* numbers of calls of a step without failure */
    int ended; /* ranks that ended with an error */
    /* BF16: gradients travel in it. DIVIDED: so are gradients and parameters, and there are two micro-batches. */
    enum { TP, SP, REPLICAS, REPLICAS_BF16, DIVIDED, KINDS } kind;
} job;

static tg_status step(tg_ctx *ctx, tg_comm *world, const job *j) {
    bool sp = j->kind == SP, replicas = j->kind >= REPLICAS, divided = j->kind == DIVIDED;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = replicas ? 1 : 2, .sequence_parallel = sp));
    tg_module *gpt = tg_gpt_new(ctx, TG_GPT(.vocab = VOCAB, .layers = 1, .heads = 2, .hidden = 8, .positions = LENGTH,
                                            .recompute = sp ? TG_GPT_SELECTIVE : TG_GPT_KEEP, .parallel = p));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *ids = tg_zeros(ctx, TG_I64, TG_SHAPE(BATCH, LENGTH)), *params[64];
    tg_tensor *const *leaves = params;
    int n = tg_module_params(gpt, params, 64);
    const tg_flat_opts *opts =
        TG_FLAT(.bucket = divided ? 400 : TG_AUTO, .zero = divided ? 3 : 1,
                .wire = j->kind == REPLICAS_BF16 ? TG_BF16 : TG_DTYPE_DEFAULT);
    tg_flat *f = replicas ? tg_flat_new(p, params, n, opts) : NULL;
    if (f) tg_flat_leaves(f, &leaves);
    tg_optim *o = tg_adamw_new(ctx, leaves, n, NULL);
    if (divided) {
        tg_module *layers = tg_module_child(tg_module_child(gpt, "transformer"), "h");
        tg_flat_watch(f, (tg_module *[]){tg_module_child(layers, "0")}, 1);
        tg_backward(t, tg_gpt_loss(gpt, t, ids, ids, TG_LOSS_SUM));
        tg_grads_reduce(p);
    }
    tg_backward(t, tg_gpt_loss(gpt, t, ids, ids, TG_LOSS_SUM));
    tg_grads_finalize(p, params, n, NULL);
    tg_optim_clip(o, 1);
    tg_optim_step(o);
    if (replicas) tg_flat_gather(f);
    tg_optim_free(o);
    tg_flat_free(f);
    tg_tape_free(t);
    tg_module_free(gpt);
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
    allocations = collectives = 0;
    fail_allocation = victim ? j->allocation : 0;
    fail_collective = victim ? j->collective : 0;
    tg_status s = step(ctx, world, j);
    if (victim) {
        j->allocations = allocations;
        j->collectives = collectives;
    }
    if (s != TG_OK) atomic_fetch_add(&ended, 1);
    fail_allocation = fail_collective = 0;
    world->ops = beneath;
    return s;
}

static int passed, failed, refused;

static void verdict(bool good, const job *j, const char *what, const char *message) {
    *(good ? &passed : &failed) += 1;
    if (!good)
        printf("FAIL allocation %lld, collective %lld: %s: %s\n", (long long)j->allocation, (long long)j->collective,
               what, message);
}

static void try(job *j) {
    char message[1024] = "";
    const tg_config *config = TG_CONFIG(.threads = 1, .seed = 2, .deadline = 20, .allocator = {take, give, NULL});
    atomic_store(&ended, 0);
    tg_status s = tg_ranks_run(2, run_rank, j, TG_RANKS(.config = config, .message = message,
                                                        .message_size = sizeof message));
    /* The number of allocations depends a little on how long a rank waits, so the last of them may not occur. */
    bool refuse = j->allocation ? j->allocations >= j->allocation : j->collective > 0;
    refused += refuse;
    verdict((s != TG_OK) == refuse, j, "status", message);
    verdict(!refuse || s != TG_ERR_TIMEOUT, j, "a rank waited to the deadline", message);
    verdict(!refuse || strstr(message, j->allocation ? "out of memory" : "the wire is cut"), j, "message", message);
    verdict(atomic_load(&ended) == (refuse ? 2 : 0), j, "not every rank ended with an error", message);
    verdict(atomic_load(&live) == 0, j, "bytes are left", message);
    atomic_store(&live, 0);
}

int main(void) {
    int64_t stride = getenv("TG_LONG") ? 1 : 7, tries = 0;
    for (int kind = 0; kind < KINDS; kind++) {
        job whole = {.kind = kind};
        try(&whole);
        for (int64_t i = 1; i <= whole.collectives; i += stride > 1 ? 3 : 1) {
            job j = {.collective = i, .kind = kind};
            try(&j), tries++;
        }
        for (int64_t i = 1; i <= whole.allocations; i += stride) {
            job j = {.allocation = i, .kind = kind};
            try(&j), tries++;
        }
        printf("%lld allocations and %lld collectives of a step\n", (long long)whole.allocations,
               (long long)whole.collectives);
    }
    if (refused < tries * 9 / 10)
        printf("FAIL only %d of %lld calls were refused\n", refused, (long long)tries), failed++;
    printf("%d passed, %d failed\n", passed, failed);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
