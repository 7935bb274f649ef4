/* The draws of a GPT with dropout: in embedding, attention and residuals, over every composition of ranks, kinds of
 * recomputation and orders of micro-batches, the ranks together draw the numbers that one rank draws, bit for bit, and
 * each of them once. The loss shows that they draw them in the same places. */
#include <stdlib.h>

#include <tapegrad/backward.h>
#include <tapegrad/data_parallel.h>
#include <tapegrad/gpt.h>

#include "core/context.h"
#include "kernels/cpu/cpu.h"
#include "on_ranks.h"

enum { BATCH = 4, LENGTH = 8, VOCAB = 50, LAYERS = 2, HEADS = 4, HIDDEN = 16, MICRO = 3, STEP = 9, RANKS = 8 };
/* The draws of a step: dropout after the embedding and after the two halves of each layer, and of each probability. */
enum { DRAWS = MICRO * BATCH * LENGTH * (HIDDEN * (1 + 2 * LAYERS) + LAYERS * HEADS * LENGTH) };

/* ---- A device that records draws: the CPU ---- */

typedef struct drawn {
    uint64_t seed, stream, number;
} drawn;

typedef struct record {
    drawn *all;
    int64_t n, capacity;
} record;

static _Thread_local record *recorder; /* of this rank */

static void note(const tg_draws *d, int64_t n) {
    record *r = recorder;
    if (r->n + n > r->capacity) {
        r->capacity = 2 * (r->n + n);
        r->all = realloc(r->all, (size_t)r->capacity * sizeof *r->all);
    }
    for (int64_t i = 0; i < n; i++) r->all[r->n++] = (drawn){d->rng.seed, d->rng.stream, tg_draw_number(d, i)};
}

static tg_status dropout(tg_ctx *ctx, tg_array y, tg_array x, double p, const tg_draws *draws, bool add) {
    note(draws, x.numel);
    return tg_cpu_device.dropout(ctx, y, x, p, draws, add);
}

static void note_attention(const tg_attention_args *a) {
    if (a->dropout > 0) note(&a->draws, a->q.shape[0] * a->q.shape[1] * a->q.shape[2] * a->k.shape[2]);
}

static tg_status attention(tg_ctx *ctx, const tg_attention_args *a) {
    note_attention(a);
    return tg_cpu_device.attention(ctx, a);
}

static tg_status attention_grad(tg_ctx *ctx, const tg_attention_args *a) {
    note_attention(a);
    return tg_cpu_device.attention_grad(ctx, a);
}

static tg_device_ops recording; /* filled by main */

static int by_number(const void *a, const void *b) { return memcmp(a, b, sizeof(drawn)); }

/* Sorts the draws and removes those that occur again. */
static void make_set(record *r) {
    int64_t n = 0;
    qsort(r->all, (size_t)r->n, sizeof *r->all, by_number);
    for (int64_t i = 0; i < r->n; i++)
        if (!i || memcmp(&r->all[i], &r->all[n - 1], sizeof *r->all)) r->all[n++] = r->all[i];
    r->n = n;
}

/* ---- One step ---- */

typedef struct composition {
    int tp, dp;
    bool sp, backwards; /* backwards: the last micro-batch first */
    tg_gpt_recompute recompute;
} composition;

typedef struct job {
    composition c;
    record drawn[RANKS];
    double loss[RANKS];
} job;

static tg_tensor *batch(tg_ctx *ctx, const tg_parallel *p, const composition *c, int64_t m, int64_t step) {
    int64_t ids[BATCH * LENGTH], mine = BATCH / c->dp;
    for (int64_t i = 0; i < BATCH * LENGTH; i++) ids[i] = (step * i + i * i + m) % VOCAB;
    tg_tensor *x = tg_from_host(ctx, TG_I64, TG_SHAPE(mine, LENGTH), ids + tg_parallel_rank(p, TG_DP) * mine * LENGTH);
    tg_place(p, x, TG_TP, TG_I);
    tg_place(p, x, TG_DP, TG_SHARD(0));
    return x;
}

static tg_status micro_batch(job *j, tg_ctx *ctx, const tg_parallel *p, tg_module *gpt, tg_tape *t, int m) {
    tg_tensor *x = batch(ctx, p, &j->c, m, 7), *y = batch(ctx, p, &j->c, m, 11);
    tg_tape_key(t, (uint64_t)m);
    tg_tensor *loss = tg_gpt_loss(gpt, t, x, y, TG_LOSS_SUM);
    RUN(tg_backward(t, loss));
    double sum = tg_item(loss);
    tg_tensor *all = tg_from_host(ctx, TG_F64, TG_SHAPE(1), &sum);
    if (j->c.dp > 1) tg_comm_all_reduce(tg_parallel_comm(p, TG_DP), all, all, TG_REDUCE_SUM);
    j->loss[tg_comm_rank(tg_parallel_world(p))] += tg_item(all);
    tg_tape_reset(t);
    tg_drop(x), tg_drop(y), tg_drop(all);
    return tg_ctx_status(ctx);
}

static tg_status run_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    job *j = arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = j->c.tp, .sequence_parallel = j->c.sp));
    tg_module *gpt = tg_gpt_new(ctx, TG_GPT(.vocab = VOCAB, .layers = LAYERS, .heads = HEADS, .hidden = HIDDEN,
                                            .positions = LENGTH, .dropout = 0.3, .recompute = j->c.recompute,
                                            .init_std = 0.2, .parallel = p));
    tg_tape *t = tg_tape_new(ctx);
    recorder = &j->drawn[tg_comm_rank(world)];
    ctx->run.ops = &recording;
    RUN(tg_draws_step(ctx, STEP));
    for (int i = 0; i < MICRO; i++) RUN(micro_batch(j, ctx, p, gpt, t, j->c.backwards ? MICRO - 1 - i : i));
    ctx->run.ops = &tg_cpu_device;
    tg_rng s;
    RUN(tg_rng_get(ctx, NULL, &s));
    EXPECT(ctx, s.counter == 0 && ctx->keys.depth == 0);
    tg_tape_free(t);
    tg_module_free(gpt);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

/* Runs the step. Leaves the draws of all ranks in drawn[0]. */
static void run(job *j) {
    int n = j->c.tp * j->c.dp;
    on_ranks(n, run_rank, j);
    record all = {0};
    for (int r = 0; r < n; r++) {
        recorder = &all;
        all.capacity += j->drawn[r].n;
        all.all = realloc(all.all, (size_t)all.capacity * sizeof *all.all);
        memcpy(all.all + all.n, j->drawn[r].all, (size_t)j->drawn[r].n * sizeof *all.all);
        all.n += j->drawn[r].n;
        free(j->drawn[r].all);
    }
    j->drawn[0] = all;
    make_set(&j->drawn[0]);
}

static void compare(const job *want, composition c) {
    job j = {.c = c};
    run(&j);
    for (int r = 0; r < c.tp * c.dp; r++)
        ck_assert_msg(fabs(j.loss[r] - want->loss[0]) <= 1e-12 * want->loss[0], "tp %d dp %d: loss %.17g and %.17g",
                      c.tp, c.dp, j.loss[r], want->loss[0]);
    ck_assert_int_eq(j.drawn[0].n, want->drawn[0].n);
    ck_assert_mem_eq(j.drawn[0].all, want->drawn[0].all, (size_t)want->drawn[0].n * sizeof(drawn));
    free(j.drawn[0].all);
}

START_TEST(any_composition_draws_what_one_rank_draws) {
    static const int ranks[][2] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 1}, {4, 2}, {2, 4}};
    job want = {.c = {.tp = 1, .dp = 1}};
    run(&want);
    ck_assert_int_eq(want.drawn[0].n, DRAWS); /* no number is drawn twice */
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
        for (int how = 0; how < 4 * 2 * 2; how++) {
            composition c = {.tp = ranks[i][0], .dp = ranks[i][1], .sp = how / 4 % 2, .backwards = how / 8,
                             .recompute = (tg_gpt_recompute)(how % 4)};
            if (c.sp && c.tp == 1) continue;
            if (!getenv("TG_LONG") && (size_t)how % 5 != i % 5) continue;
            compare(&want, c);
        }
    free(want.drawn[0].all);
}
END_TEST

int main(void) {
    recording = tg_cpu_device;
    recording.dropout = dropout;
    recording.attention = attention;
    recording.attention_grad = attention_grad;
    const TTest *const tests[] = {any_composition_draws_what_one_rank_draws};
    return tg_check_main("keyed_gpt", tests, sizeof tests / sizeof *tests);
}
