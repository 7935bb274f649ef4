/* tapegrad-bench-pipeline [ROUNDS]: measures how long the two stages of a pipeline are idle, next to what the plan of
 * the schedule says with the measured times of its items, and whether receives that are posted ahead hide the time that
 * messages take. The stages are ranks with a thread each, and messages may have an artificial hop (delay.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/backward.h>
#include <tapegrad/lm.h>
#include <tapegrad/ranks.h>
#include <tapegrad/tensor_parallel.h>

#include "bench.h"
#include "delay.h"
#include "median.h"

enum { STAGES = 2, CHUNKS = 2, PARTS = STAGES * CHUNKS, MICROS = 8, STEPS = 3, ACTS = 3 };
enum { VOCAB = 256, LAYERS = 8, HEADS = 4, HIDDEN = 128, LENGTH = 128 };

typedef struct schedule {
    const char *name;
    tg_pipe_kind kind;
    int chunks;
    const char *layout;
} schedule;

/* How receives are posted. */
typedef struct way {
    const char *name;
    bool at_need;
    int ahead;
} way;

/* One measurement: a schedule, a hop in units of the mean time of a part's F, and a way. */
typedef struct run {
    const schedule *schedule;
    const way *way;
    double hop;
    delay_wire wire[DELAY_WIRES];
    double cost[ACTS][PARTS]; /* seconds of F, B without W, and W of each part */
    double begun[STEPS][STAGES], ended[STEPS][STAGES], waited[STEPS][STAGES];
    double planned; /* the idle share that the plan gives with these costs */
    char message[1024];
} run;

/* ---- A stage ---- */

typedef struct stage {
    run *r;
    tg_ctx *ctx;
    tg_parallel *p;
    tg_module *lm[CHUNKS];
    tg_tensor *ids, *targets, *h; /* of every micro-batch; h: the hidden states of parts that are timed alone */
    tg_pipe_plan *plan;
    tg_pipe *pipe;
    int rank;
} stage;

static tg_status run_part(void *state, tg_pipe_call *c) {
    stage *s = state;
    return tg_lm_part(s->lm[c->chunk], c, &s->ids, &s->targets, NULL);
}

static tg_tensor *tokens(tg_ctx *ctx, int step) {
    int64_t v[LENGTH];
    for (int i = 0; i < LENGTH; i++) v[i] = step * i % VOCAB;
    return tg_from_host(ctx, TG_I64, TG_SHAPE(1, LENGTH), v);
}

static void stage_open(stage *s, run *r, tg_ctx *ctx, tg_comm *world) {
    const schedule *of = r->schedule;
    *s = (stage){.r = r, .ctx = ctx, .rank = tg_comm_rank(world)};
    s->p = tg_parallel_new(world, TG_PARALLEL(.pp = STAGES, .vp = of->chunks));
    for (int i = 0; i < of->chunks; i++)
        s->lm[i] = tg_lm_new(ctx, TG_LM(.vocab = VOCAB, .layers = LAYERS, .heads = HEADS, .hidden = HIDDEN,
                                        .positions = LENGTH, .layout = of->layout, .chunk = i, .parallel = s->p));
    s->ids = tokens(ctx, 7919);
    s->targets = tokens(ctx, 7901);
    s->h = tg_randn(ctx, TG_F32, TG_SHAPE(LENGTH, 1, HIDDEN), 1);
    tg_set_requires_grad(s->h, true);
    s->plan =
        tg_pipe_plan_new(ctx, TG_PIPE_PLAN(.kind = of->kind, .stages = STAGES, .chunks = of->chunks, .micros = MICROS));
    tg_pipe_edge edge = {.dtype = TG_F32, .shape = TG_SHAPE(LENGTH, 1, HIDDEN)};
    s->pipe = tg_pipe_new(s->p, s->plan, TG_PIPE(.edge = &edge, .n_edge = 1, .ahead = r->way->ahead));
}

static void stage_close(stage *s) {
    tg_pipe_free(s->pipe);
    tg_pipe_plan_free(s->plan);
    for (int i = 0; i < s->r->schedule->chunks; i++) tg_module_free(s->lm[i]);
    tg_parallel_free(s->p);
}

static void zero_gradients(stage *s) {
    for (int c = 0; c < s->r->schedule->chunks; c++)
        for (int i = 0; i < tg_module_param_count(s->lm[c]); i++) tg_zero_grad(tg_module_param(s->lm[c], i, NULL));
}

/* ---- The times of items ---- */

/* Runs F, B and W of a part, and stores their seconds. d: the list into which t defers. */
static void time_part(stage *s, int chunk, tg_tape *t, tg_wgrads *d, double seconds[ACTS]) {
    int part = chunk * STAGES + s->rank, parts = STAGES * s->r->schedule->chunks;
    tg_tensor *in = part ? tg_tape_input(t, s->h) : NULL, *out = NULL;
    tg_pipe_call c = {
        .size = sizeof c, .tape = t, .chunk = chunk, .part = part, .parts = parts, .input = &in, .out = &out};
    double at[ACTS + 1] = {seconds_now()};
    run_part(s, &c);
    at[1] = seconds_now();
    tg_backward_with(t, &out, 1, part < parts - 1 ? TG_BACKWARD(.seeds = (tg_tensor *const[]){s->h}) : NULL);
    tg_tape_reset(t);
    at[2] = seconds_now();
    tg_wgrads_run(d);
    at[3] = seconds_now();
    for (int a = 0; a < ACTS; a++) seconds[a] = at[a + 1] - at[a];
}

/* Stores the medians of the times of this stage's items, while the other stage computes too. */
static void time_parts(stage *s, tg_comm *world) {
    enum { WARM = 2, REPEATS = 9 };
    tg_tape *t = tg_tape_new(s->ctx);
    tg_wgrads *d = tg_wgrads_new(s->ctx, TG_NONE);
    tg_tape_defer(t, d);
    for (int chunk = 0; chunk < s->r->schedule->chunks; chunk++) {
        double seconds[ACTS], all[ACTS][REPEATS];
        tg_comm_barrier(world);
        for (int i = 0; i < WARM + REPEATS; i++) {
            time_part(s, chunk, t, d, seconds);
            for (int a = 0; a < ACTS && i >= WARM; a++) all[a][i - WARM] = seconds[a];
        }
        for (int a = 0; a < ACTS; a++) s->r->cost[a][chunk * STAGES + s->rank] = median(all[a], REPEATS);
    }
    tg_wgrads_free(d);
    tg_tape_free(t);
    zero_gradients(s);
    tg_comm_barrier(world);
}

static double hop_seconds(const run *r) {
    int parts = STAGES * r->schedule->chunks;
    double sum = 0;
    for (int i = 0; i < parts; i++) sum += r->cost[TG_PIPE_F][i];
    return r->hop * sum / parts;
}

/* Returns the idle share of a plan of the schedule, with the measured times of items and the hop if r is not NULL. */
static double planned_share(tg_ctx *ctx, const schedule *of, const run *r) {
    tg_pipe_report report = TG_PIPE_REPORT();
    tg_pipe_plan_opts o =
        *TG_PIPE_PLAN(.kind = of->kind, .stages = STAGES, .chunks = of->chunks, .micros = MICROS);
    if (r) o.f = r->cost[0], o.b = r->cost[1], o.w = r->cost[2], o.hop = hop_seconds(r);
    tg_pipe_plan *plan = tg_pipe_plan_new(ctx, &o);
    tg_pipe_plan_query(plan, TG_NONE, &report);
    tg_pipe_plan_free(plan);
    return report.bubble;
}

/* ---- Steps ---- */

static tg_status run_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    enum { WARM = 1 };
    run *r = arg;
    stage s;
    delay_open(world, r->wire);
    stage_open(&s, r, ctx, world);
    time_parts(&s, world);
    delay_set(hop_seconds(r), r->way->at_need);
    for (int i = -WARM; i < STEPS && tg_ctx_status(ctx) == TG_OK; i++) {
        tg_comm_barrier(world);
        delay_waited();
        double begun = seconds_now();
        tg_pipe_run(s.pipe, run_part, &s);
        double ended = seconds_now();
        if (i >= 0) r->begun[i][s.rank] = begun, r->ended[i][s.rank] = ended, r->waited[i][s.rank] = delay_waited();
        zero_gradients(&s);
    }
    if (s.rank == 0) r->planned = planned_share(ctx, r->schedule, r);
    stage_close(&s);
    tg_comm_barrier(world);
    delay_close(world);
    return tg_ctx_status(ctx);
}

/* Returns the part of a step's time in which the stages are idle: it is over when the last one has ended. */
static double idle_share(const run *r, int step) {
    const double *begun = r->begun[step], *ended = r->ended[step];
    double from = begun[0] < begun[1] ? begun[0] : begun[1], to = ended[0] > ended[1] ? ended[0] : ended[1], busy = 0;
    for (int s = 0; s < STAGES; s++) busy += ended[s] - begun[s] - r->waited[step][s];
    return 1 - busy / (STAGES * (to - from));
}

/* Makes a measurement. Returns the idle share, the median of some steps; negative if it fails. */
static double measure(run *r) {
    double share[STEPS];
    tg_status s = tg_ranks_run(STAGES, run_rank, r,
                               TG_RANKS(.config = TG_CONFIG(.threads = 1, .seed = 1), .message = r->message,
                                        .message_size = sizeof r->message));
    if (s != TG_OK) fprintf(stderr, "%s: %s\n", r->schedule->name, r->message);
    for (int i = 0; i < STEPS; i++) share[i] = idle_share(r, i);
    return s == TG_OK ? median(share, STEPS) : -1;
}

/* ---- The table ---- */

static const schedule schedules[] = {
    {"1f1b", TG_PIPE_1F1B, 1, "E t*4|t*4 L"},
    {"interleaved", TG_PIPE_INTERLEAVED, 2, "E t*2|t*2|t*2|t*2 L"},
    {"zb-h1", TG_PIPE_ZB_H1, 1, "E t*4|t*4 L"},
    {"gpipe", TG_PIPE_GPIPE, 1, "E t*4|t*4 L"},
};
static const double hops[] = {0, 0.5, 1, 2};
static const way ways[] = {{"at need", true, 1}, {"1 ahead", false, 1}, {"4 ahead", false, 4}};

enum { SCHEDULES = sizeof schedules / sizeof *schedules, HOPS = sizeof hops / sizeof *hops };
enum { WAYS = sizeof ways / sizeof *ways, CASES = SCHEDULES * HOPS * WAYS };

static const schedule *schedule_of(int i) { return &schedules[i / (HOPS * WAYS)]; }

/* What the rounds have given for one case. */
typedef struct results {
    double idle[MEDIAN_MOST], planned[MEDIAN_MOST], backward[MEDIAN_MOST], weights[MEDIAN_MOST];
} results;

/* Sums the times of an act over all parts, in units of those of F. */
static double relative(const run *r, tg_pipe_act act) {
    double sum[2] = {0, 0};
    for (int i = 0; i < STAGES * r->schedule->chunks; i++) sum[0] += r->cost[TG_PIPE_F][i], sum[1] += r->cost[act][i];
    return sum[1] / sum[0];
}

static bool measure_case(int i, int round, results *out) {
    static run r; /* 18 KiB */
    r = (run){.schedule = schedule_of(i), .hop = hops[i / WAYS % HOPS], .way = &ways[i % WAYS]};
    out->idle[round] = measure(&r);
    out->planned[round] = r.planned;
    out->backward[round] = relative(&r, TG_PIPE_B);
    out->weights[round] = relative(&r, TG_PIPE_W);
    return out->idle[round] >= 0;
}

/* Prints the idle shares of a schedule and a hop, of which all[WAYS] are the results. */
static void print_row(tg_ctx *ctx, int i, const results *all, int rounds) {
    double planned[MEDIAN_MOST], of_ways[WAYS];
    for (int w = 0; w < WAYS; w++) of_ways[w] = median(all[w].planned, rounds);
    memcpy(planned, of_ways, sizeof of_ways);
    double hop = hops[i / WAYS % HOPS];
    printf("%-12s %5.2f ", schedule_of(i)->name, hop);
    if (hop > 0)
        printf("%10s", "");
    else
        printf("%10.3f", planned_share(ctx, schedule_of(i), NULL));
    printf(" %10.3f  ", median(planned, WAYS));
    for (int w = 0; w < WAYS; w++) printf(" %8.3f", median(all[w].idle, rounds));
    printf("\n");
}

static void print_table(const results *all, int rounds) {
    tg_ctx *ctx = tg_ctx_new(NULL);
    printf("idle share of %d stages, %d micro-batches, medians of %d rounds in alternation\n", STAGES, MICROS, rounds);
    printf("hop in units of F of a part; B takes %.2f F, W %.2f F\n\n", median(all[0].backward, rounds),
           median(all[0].weights, rounds));
    printf("%-12s %5s %10s %10s  ", "schedule", "hop", "plan, unit", "plan");
    for (int w = 0; w < WAYS; w++) printf(" %8s", ways[w].name);
    printf("\n");
    for (int i = 0; i < CASES; i += WAYS) print_row(ctx, i, &all[i], rounds);
    tg_ctx_free(ctx);
}

int main(int argc, char **argv) {
    static results all[CASES];
    int rounds = argc > 1 ? atoi(argv[1]) : 7;
    if (rounds < 1 || rounds > MEDIAN_MOST) rounds = 7;
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < CASES; i++)
            if (!measure_case(i, round, &all[i])) return 1;
    print_table(all, rounds);
    return 0;
}
