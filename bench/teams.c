/* Teams of ranks on threads: their training step, how they wait for a round, and how its time is measured. */
#include "teams.h"

#include <stdio.h>
#include <stdlib.h>

#include <tapegrad/mappings.h>
#include <tapegrad/nn.h>
#include <tapegrad/optim.h>
#include <tapegrad/backward.h>
#include <tapegrad/flat.h>
#include <tapegrad/gpt.h>
#include <tapegrad/ranks.h>

#include "bench.h"

enum { LAYERS = 12, POSITIONS = 1024 };

/* Waits until round number `round` is started, or the ranks must end. *more says whether it is a round. */
static void wait_for_round(team *t, int round, bool *more) {
    pthread_mutex_lock(&t->lock);
    while (t->given == round) pthread_cond_wait(&t->changed, &t->lock);
    *more = t->given > 0;
    pthread_mutex_unlock(&t->lock);
}

/* Stores the time of a round, and wakes the main thread. */
static void report(team *t, int round, double ms) {
    pthread_mutex_lock(&t->lock);
    t->ms[round] = ms;
    t->done = round + 1;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

static tg_status run_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    team *team = arg;
    if (team->open) team->open(world);
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = team->tp, .sequence_parallel = team->sp));
    tg_module *gpt = tg_gpt_new(ctx, TG_GPT(.vocab = GPT2_VOCAB, .layers = LAYERS, .heads = GPT2_HEADS,
                                            .hidden = GPT2_HIDDEN, .positions = POSITIONS, .parallel = p));
    int n = tg_module_param_count(gpt);
    tg_tensor **params = calloc((size_t)n, sizeof *params);
    tg_module_params(gpt, params, n);
    tg_tensor *const *leaves = params;
    tg_flat *flat = team->ranks > team->tp ? tg_flat_new(p, params, n, TG_FLAT(.zero = team->zero)) : NULL;
    if (flat) tg_flat_leaves(flat, &leaves);
    tg_optim *o = tg_adamw_new(ctx, leaves, n, TG_ADAMW(.lr = 1e-4));
    tg_tape *t = tg_tape_new(ctx);
    int64_t ids[TEAM_BATCH * TEAM_LENGTH];
    for (int i = 0; i < TEAM_BATCH * TEAM_LENGTH; i++) ids[i] = (i * 7919) % GPT2_VOCAB;
    tg_tensor *x = tg_from_host(ctx, TG_I64, TG_SHAPE(TEAM_BATCH, TEAM_LENGTH), ids);
    tg_place(p, x, TG_TP, TG_I);
    bool more = true;
    for (int round = 0; tg_ctx_status(ctx) == TG_OK; round++) {
        if (tg_comm_rank(world) == 0) wait_for_round(team, round, &more);
        int64_t go = more;
        tg_tensor *word = tg_from_host(ctx, TG_I64, TG_SHAPE(1), &go);
        tg_comm_broadcast(world, word, 0);
        tg_read(word, &go, sizeof go);
        tg_drop(word);
        if (!go || tg_ctx_status(ctx) != TG_OK) break;
        if (team->before) team->before(world, round);
        double begun = seconds_now();
        tg_tensor *loss = tg_gpt_loss(gpt, t, x, x, TG_LOSS_MEAN);
        tg_backward(t, loss);
        tg_grads_finalize(p, params, n, NULL);
        tg_optim_step(o);
        if (flat) tg_flat_gather(flat);
        tg_optim_zero_grad(o);
        if (round == 0 && tg_comm_rank(world) == 0) team->loss = tg_item(loss);
        tg_tape_reset(t);
        double ms = 1e3 * (seconds_now() - begun);
        if (team->after) team->after(world, round);
        if (tg_comm_rank(world) == 0) report(team, round, ms);
    }
    tg_optim_free(o);
    tg_flat_free(flat);
    tg_tape_free(t);
    tg_module_free(gpt);
    tg_parallel_free(p);
    free(params);
    if (team->close) team->close(world);
    return tg_ctx_status(ctx);
}

static void *run_team(void *arg) {
    team *t = arg;
    tg_ranks_run(t->ranks, run_rank, t, TG_RANKS(.config = TG_CONFIG(.threads = t->threads, .seed = 1),
                                                 .message = t->message, .message_size = sizeof t->message));
    report(t, TEAM_ROUNDS - 1, 0); /* so that team_play does not wait for a team that has failed */
    return NULL;
}

bool team_start(team *t) {
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, NULL);
    return pthread_create(&t->thread, NULL, run_team, t) == 0;
}

bool team_play(team *t, int round) {
    pthread_mutex_lock(&t->lock);
    t->given = round + 1;
    pthread_cond_broadcast(&t->changed);
    while (t->done <= round) pthread_cond_wait(&t->changed, &t->lock);
    pthread_mutex_unlock(&t->lock);
    return !*t->message;
}

void team_end(team *t) {
    pthread_mutex_lock(&t->lock);
    t->given = -1;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->thread, NULL);
    if (*t->message) fprintf(stderr, "%s: %s\n", t->name, t->message);
}
