/* tapegrad-bench-ranks: what tensor-parallel ranks cost. One GPT-2 124M step (float32, AdamW) by three teams in
 * alternation: one rank with two threads, two ranks with one thread each, four ranks with one thread each. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/mappings.h>
#include <tapegrad/nn.h>
#include <tapegrad/optim.h>

#include "bench.h"

enum { LAYERS = 12, BATCH = 4, LENGTH = 64, MAX_ROUNDS = 256 };

/* A team's ranks wait until main gives them a round. */
typedef struct team {
    const char *name;
    int ranks, threads;
    bool sp;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int given, done; /* rounds; -1: no more */
    double ms[MAX_ROUNDS], loss;
    char message[1024];
} team;

static void lock_step(team *t, int round, bool *more) {
    pthread_mutex_lock(&t->lock);
    while (t->given == round) pthread_cond_wait(&t->changed, &t->lock);
    *more = t->given > 0;
    pthread_mutex_unlock(&t->lock);
}

static void report(team *t, int round, double ms) {
    pthread_mutex_lock(&t->lock);
    t->ms[round] = ms;
    t->done = round + 1;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

static tg_status run_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    team *team = arg;
    int n_ranks = tg_comm_size(world);
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = n_ranks, .sequence_parallel = team->sp));
    tg_module *gpt = tg_gpt_new(ctx, TG_GPT(.vocab = GPT2_VOCAB, .layers = LAYERS, .heads = GPT2_HEADS,
                                            .hidden = GPT2_HIDDEN, .positions = 1024, .parallel = p));
    int n = tg_module_param_count(gpt);
    tg_tensor **params = calloc((size_t)n, sizeof *params);
    tg_module_params(gpt, params, n);
    tg_optim *o = tg_adamw_new(ctx, params, n, TG_ADAMW(.lr = 1e-4));
    tg_tape *t = tg_tape_new(ctx);
    int64_t ids[BATCH * LENGTH];
    for (int i = 0; i < BATCH * LENGTH; i++) ids[i] = (i * 7919) % GPT2_VOCAB;
    tg_tensor *x = tg_from_host(ctx, TG_I64, TG_SHAPE(BATCH, LENGTH), ids);
    tg_place(p, x, TG_TP, TG_I);
    bool more = true;
    for (int round = 0; tg_ctx_status(ctx) == TG_OK; round++) {
        if (tg_comm_rank(world) == 0) lock_step(team, round, &more);
        int64_t go = more;
        tg_tensor *word = tg_from_host(ctx, TG_I64, TG_SHAPE(1), &go);
        tg_comm_broadcast(world, word, 0);
        tg_read(word, &go, sizeof go);
        tg_drop(word);
        if (!go || tg_ctx_status(ctx) != TG_OK) break;
        double begun = seconds_now();
        tg_tensor *loss = tg_gpt_loss(gpt, t, x, x, TG_LOSS_MEAN);
        tg_backward(t, loss);
        tg_grads_finalize(p, params, n, NULL);
        tg_optim_step(o);
        tg_optim_zero_grad(o);
        if (round == 0 && tg_comm_rank(world) == 0) team->loss = tg_item(loss);
        tg_tape_reset(t);
        if (tg_comm_rank(world) == 0) report(team, round, 1e3 * (seconds_now() - begun));
    }
    tg_optim_free(o);
    tg_tape_free(t);
    tg_module_free(gpt);
    tg_parallel_free(p);
    free(params);
    return tg_ctx_status(ctx);
}

static void *run_team(void *arg) {
    team *t = arg;
    tg_ranks_run(t->ranks, run_rank, t, TG_RANKS(.config = TG_CONFIG(.threads = t->threads, .seed = 1),
                                                 .message = t->message, .message_size = sizeof t->message));
    report(t, MAX_ROUNDS - 1, 0); /* so that nobody waits for a team that failed */
    return NULL;
}

static bool play(team *t, int round) {
    pthread_mutex_lock(&t->lock);
    t->given = round + 1;
    pthread_cond_broadcast(&t->changed);
    while (t->done <= round) pthread_cond_wait(&t->changed, &t->lock);
    pthread_mutex_unlock(&t->lock);
    return !*t->message;
}

static int by_value(const void *a, const void *b) {
    double d = *(const double *)a - *(const double *)b;
    return d > 0 ? 1 : d < 0 ? -1 : 0;
}

static double median(const double *v, int n) {
    double sorted[MAX_ROUNDS];
    memcpy(sorted, v, (size_t)n * sizeof *v);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    return sorted[n / 2];
}

int main(int argc, char **argv) {
    static team teams[] = {{.name = "1 rank, 2 threads", .ranks = 1, .threads = 2},
                           {.name = "tp 2, 1 thread each", .ranks = 2, .threads = 1},
                           {.name = "tp 2 with sp", .ranks = 2, .threads = 1, .sp = true},
                           {.name = "tp 4, 1 thread each", .ranks = 4, .threads = 1}};
    enum { TEAMS = sizeof teams / sizeof *teams, WARM = 3 };
    int rounds = argc > 1 ? atoi(argv[1]) : 15;
    if (rounds < 1 || rounds > MAX_ROUNDS - WARM - 2) rounds = 15;
    for (int i = 0; i < TEAMS; i++) {
        pthread_mutex_init(&teams[i].lock, NULL);
        pthread_cond_init(&teams[i].changed, NULL);
        if (pthread_create(&teams[i].thread, NULL, run_team, &teams[i])) return 1;
    }
    bool good = true;
    for (int r = 0; r < WARM + rounds && good; r++)
        for (int i = 0; i < TEAMS && good; i++) good = play(&teams[i], r);
    for (int i = 0; i < TEAMS; i++) {
        pthread_mutex_lock(&teams[i].lock);
        teams[i].given = -1;
        pthread_cond_broadcast(&teams[i].changed);
        pthread_mutex_unlock(&teams[i].lock);
        pthread_join(teams[i].thread, NULL);
        if (*teams[i].message) fprintf(stderr, "%s: %s\n", teams[i].name, teams[i].message);
    }
    if (!good) return 1;
    double m[TEAMS];
    printf("GPT-2 124M step, float32, AdamW, batch %d of %d tokens, medians of %d rounds in alternation:\n", BATCH, LENGTH,
           rounds);
    for (int i = 0; i < TEAMS; i++) {
        m[i] = median(teams[i].ms + WARM, rounds);
        printf("  %-20s %8.1f ms   first loss %.6f\n", teams[i].name, m[i], teams[i].loss);
    }
    printf("tp 2 / 1 rank with 2 threads   %.3f   (bar: at most 1.05)\n", m[1] / m[0]);
    printf("tp 2 with sp / the same        %.3f\n", m[2] / m[0]);
    printf("4 ranks / 2 ranks, on 2 cores  %.3f   (bar: at most 1.25)\n", m[3] / m[1]);
    return 0;
}
