/* Communication and memory of a GPT layer on tensor-parallel ranks: collectives are counted, and bytes in the
 * allocator are compared with the formulas of docs/parallel.md (after Korthikanti et al., arXiv 2205.05198). A step
 * recorded on device meta must give the same numbers as a run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/mappings.h>
#include <tapegrad/nn.h>
#include <tapegrad/parallel.h>
#include <tapegrad/backward.h>
#include <tapegrad/gpt.h>
#include <tapegrad/ranks.h>

#include "device_ranks.h"

enum { BATCH = 2, LENGTH = 64, HIDDEN = 128, HEADS = 8, VOCAB = 256 };

typedef struct row {
    int tp;
    bool sp;
    tg_gpt_recompute recompute;
    double whole, split; /* bytes that a layer keeps, in units of s b h: whole + split / tp */
} row;

/* 16-bit activations, without masks, which are drawn again, and without s x s terms, which are never stored. */
static const row rows[] = {
    {1, false, TG_GPT_KEEP, 34, 0},         {2, false, TG_GPT_KEEP, 8, 26},
    {4, false, TG_GPT_KEEP, 8, 26},         {2, true, TG_GPT_KEEP, 0, 34},
    {4, true, TG_GPT_KEEP, 0, 34},          {2, false, TG_GPT_SELECTIVE, 4, 18},
    {4, true, TG_GPT_SELECTIVE, 0, 22},     {2, false, TG_GPT_FULL, 2, 0},
    {2, true, TG_GPT_FULL, 0, 2},           {4, false, TG_GPT_DISTRIBUTED, 0, 2},
};

typedef struct sent {
    tg_comm_info forward, all;
    int64_t saved, parameters, peak;
} sent;

typedef struct job {
    const row *r;
    int layers;
    sent *out; /* counts of rank 0 */
} job;

static int passed, failed;

static void verdict(bool good, const row *r, const char *what, double got, double want) {
    *(good ? &passed : &failed) += 1;
    if (!good)
        printf("FAIL tp %d%s recompute %d: %s is %.10g, expected %.10g\n", r->tp, r->sp ? " sp" : "", r->recompute,
               what, got, want);
}

/* Runs forward and backward of a step; on device meta nothing is computed. */
static tg_status run_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    const job *j = arg;
    const row *r = j->r;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = r->tp, .sequence_parallel = r->sp));
    tg_module *gpt = tg_gpt_new(ctx, TG_GPT(.vocab = VOCAB, .layers = j->layers, .heads = HEADS, .hidden = HIDDEN,
                                            .positions = LENGTH, .recompute = r->recompute, .parallel = p));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *ids = tg_zeros(ctx, TG_I64, TG_SHAPE(BATCH, LENGTH));
    sent s = {.forward = TG_COMM_INFO(), .all = TG_COMM_INFO(), .parameters = tg_module_numel(gpt)};
    tg_memory_info m = TG_MEMORY_INFO();
    tg_memory_reset_peak(ctx);
    tg_tensor *loss = tg_gpt_loss(gpt, t, ids, ids, TG_LOSS_SUM);
    tg_comm_query(world, &s.forward);
    tg_memory_query(ctx, &m);
    s.saved = m.by_category[TG_MEM_SAVED];
    tg_backward(t, loss);
    tg_comm_query(world, &s.all);
    tg_memory_query(ctx, &m);
    s.peak = m.peak;
    if (tg_comm_rank(world) == 0) *j->out = s;
    tg_tape_free(t);
    tg_module_free(gpt);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

static sent run(const row *r, int layers) {
    sent s = {0};
    job j = {r, layers, &s};
    char message[1024] = "";
    tg_status status =
        run_ranks(r->tp, run_rank, &j, TG_RANKS(.config = TG_CONFIG(.dtype = TG_BF16, .threads = 1),
                                                   .message = message, .message_size = sizeof message));
    if (status != TG_OK) printf("FAIL tp %d: %s\n", r->tp, message), failed++;
    return s;
}

static sent on_paper(const row *r, int layers) {
    sent s = {0};
    job j = {r, layers, &s};
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta", .dtype = TG_BF16, .threads = 1));
    tg_comm *world = tg_comm_plan_new(ctx, 0, r->tp);
    if (run_rank(&j, ctx, world) != TG_OK) printf("FAIL on paper: %s\n", tg_ctx_message(ctx)), failed++;
    tg_comm_free(world);
    tg_ctx_free(ctx);
    return s;
}

static int64_t calls(const tg_comm_info *a, const tg_comm_info *b, tg_collective k) {
    return a->calls[k] - b->calls[k];
}

/* Two all-reduces in each direction. With sequence parallelism each is an all-gather and a reduce-scatter, and both
 * column-parallel layers gather their input once more in backward. */
static void check_collectives(const row *r, const sent *three, const sent *two) {
    bool whole = r->recompute == TG_GPT_FULL || r->recompute == TG_GPT_DISTRIBUTED;
    int64_t n = r->tp > 1;
    int64_t reduces = calls(&three->forward, &two->forward, TG_ALL_REDUCE),
            gathers = calls(&three->forward, &two->forward, TG_ALL_GATHER),
            scatters = calls(&three->forward, &two->forward, TG_REDUCE_SCATTER);
    verdict(reduces == (r->sp ? 0 : 2 * n), r, "forward all-reduces a layer", (double)reduces,
            r->sp ? 0 : 2.0 * (double)n);
    verdict(gathers == (r->sp ? 2 : 0), r, "forward all-gathers a layer", (double)gathers, r->sp ? 2 : 0);
    verdict(scatters == (r->sp ? 2 : 0), r, "forward reduce-scatters a layer", (double)scatters, r->sp ? 2 : 0);
    if (whole || r->recompute == TG_GPT_SELECTIVE) return; /* backward runs a part of forward again */
    reduces = calls(&three->all, &two->all, TG_ALL_REDUCE) - reduces;
    gathers = calls(&three->all, &two->all, TG_ALL_GATHER) - gathers;
    scatters = calls(&three->all, &two->all, TG_REDUCE_SCATTER) - scatters;
    verdict(reduces == (r->sp ? 0 : 2 * n), r, "backward all-reduces a layer", (double)reduces,
            r->sp ? 0 : 2.0 * (double)n);
    verdict(gathers == (r->sp ? 4 : 0), r, "backward all-gathers a layer", (double)gathers, r->sp ? 4 : 0);
    verdict(scatters == (r->sp ? 2 : 0), r, "backward reduce-scatters a layer", (double)scatters, r->sp ? 2 : 0);
}

int main(void) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const row *r = &rows[i];
        sent two = run(r, 2), three = run(r, 3), paper = on_paper(r, 3);
        check_collectives(r, &three, &two);
        double sbh = (double)LENGTH * BATCH * HIDDEN, bytes = (double)(three.saved - two.saved),
               theory = sbh * (r->whole + r->split / r->tp);
        printf("tp %d%s recompute %d: a layer keeps %.2f s b h bytes, the formula says %.2f\n", r->tp,
               r->sp ? " sp" : "", r->recompute, bytes / sbh, theory / sbh);
        /* Statistics of norms and of attention, a few numbers for each row, are extra. */
        verdict(bytes >= theory && bytes <= 1.05 * theory, r, "bytes kept a layer", bytes, theory);
        verdict(!memcmp(&paper.all, &three.all, sizeof paper.all), r, "calls on paper", (double)paper.all.calls[0],
                (double)three.all.calls[0]);
        verdict(paper.saved == three.saved, r, "bytes kept on paper", (double)paper.saved, (double)three.saved);
        verdict(paper.peak == three.peak, r, "peak bytes on paper", (double)paper.peak, (double)three.peak);
        verdict(paper.parameters == three.parameters, r, "parameters on paper", (double)paper.parameters,
                (double)three.parameters);
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
