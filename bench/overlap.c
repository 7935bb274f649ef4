/* tapegrad-bench-overlap [ROUNDS]: measures how much time is saved if collectives run while their rank computes. Two
 * ranks run steps of GPT-2 124M in three ways, in turn: each collective is waited for as soon as it is started;
 * collectives advance only while a rank waits for one, as in the library; a progress thread of each rank advances
 * them. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <tapegrad/extend.h>

#include "comm/comm.h"
#include "comm/shm/shm.h"
#include "teams.h"

typedef enum way { AT_ONCE, IN_WAITS, BY_THREAD, WAYS } way;
static const char *const way_names[WAYS] = {"waited for at once", "advanced in waits", "by a thread"};

/* A rank's transport: the transport between threads, with a lock, because the rank's progress thread uses it too. */
typedef struct locked_transport {
    way way;                        /* of the current round */
    const tg_comm_ops *unlocked;    /* the transport that is wrapped */
    tg_comm_ops ops;
    tg_shm_rank *rank;
    pthread_mutex_t lock;
    pthread_t thread;
    atomic_bool active, ends; /* active: the progress thread advances calls; ends: it must end */
} locked_transport;

static _Thread_local locked_transport mine;

static void sleep_for(long nanoseconds) { nanosleep(&(struct timespec){.tv_nsec = nanoseconds}, NULL); }

static void *progress_thread(void *arg) {
    enum { IDLE = 2000000, INTERVAL = 20000 }; /* nanoseconds */
    locked_transport *m = arg;
    while (!atomic_load(&m->ends)) {
        if (!atomic_load(&m->active)) {
            sleep_for(IDLE);
            continue;
        }
        pthread_mutex_lock(&m->lock);
        tg_shm_progress(m->rank);
        pthread_mutex_unlock(&m->lock);
        sleep_for(INTERVAL);
    }
    return NULL;
}

static tg_status start(tg_ctx *ctx, void *state, const tg_transfer *call, void **request) {
    pthread_mutex_lock(&mine.lock);
    tg_status s = mine.unlocked->start(ctx, state, call, request);
    if (s == TG_OK && *request && mine.way == AT_ONCE) s = mine.unlocked->wait(ctx, state, *request);
    pthread_mutex_unlock(&mine.lock);
    return s;
}

static bool test(tg_ctx *ctx, void *state, void *request) {
    pthread_mutex_lock(&mine.lock);
    bool done = mine.unlocked->test(ctx, state, request);
    pthread_mutex_unlock(&mine.lock);
    return done;
}

static tg_status wait_for(tg_ctx *ctx, void *state, void *request) {
    pthread_mutex_lock(&mine.lock);
    tg_status s = mine.unlocked->wait(ctx, state, request);
    pthread_mutex_unlock(&mine.lock);
    return s;
}

static void drop(tg_ctx *ctx, void *state, void *request) {
    pthread_mutex_lock(&mine.lock);
    mine.unlocked->drop(ctx, state, request);
    pthread_mutex_unlock(&mine.lock);
}

static void open(tg_comm *world) {
    mine.unlocked = world->ops;
    mine.ops = *world->ops;
    mine.ops.start = start;
    mine.ops.test = test;
    mine.ops.wait = wait_for;
    mine.ops.drop = drop;
    mine.rank = ((tg_shm_group *)world->state)->self;
    world->ops = &mine.ops;
    pthread_mutex_init(&mine.lock, NULL);
    pthread_create(&mine.thread, NULL, progress_thread, &mine);
}

static void before(tg_comm *world, int round) {
    (void)world;
    mine.way = (way)(round % WAYS);
    atomic_store(&mine.active, mine.way == BY_THREAD);
}

static void close_(tg_comm *world) {
    atomic_store(&mine.ends, true);
    pthread_join(mine.thread, NULL);
    world->ops = mine.unlocked;
}

static void report(const team *t, int rounds, int warm) {
    double ms[WAYS][TEAM_ROUNDS], ratio[WAYS][TEAM_ROUNDS];
    for (int i = 0; i < rounds; i++)
        for (int w = 0; w < WAYS; w++) {
            ms[w][i] = t->ms[warm + i * WAYS + w];
            ratio[w][i] = ms[w][i] / t->ms[warm + i * WAYS + IN_WAITS];
        }
    printf("%s\n", t->name);
    for (int w = 0; w < WAYS; w++)
        printf("  %-20s %8.1f ms   %.3f of the step that advances them in waits\n", way_names[w], median(ms[w], rounds),
               median(ratio[w], rounds));
}

int main(int argc, char **argv) {
    static team teams[] = {
        {.name = "tp 2", .ranks = 2, .threads = 1, .tp = 2, .open = open, .before = before, .close = close_},
        {.name = "tp 2 with sp", .ranks = 2, .threads = 1, .tp = 2, .sp = true, .open = open, .before = before,
         .close = close_},
        {.name = "dp 2", .ranks = 2, .threads = 1, .tp = 1, .open = open, .before = before, .close = close_}};
    enum { TEAMS = sizeof teams / sizeof *teams, WARM = WAYS };
    int rounds = argc > 1 ? atoi(argv[1]) : 15;
    if (rounds < 1 || rounds > (TEAM_ROUNDS - 2) / WAYS - 1) rounds = 15;
    printf("GPT-2 124M step, float32, AdamW, %d sequences of %d tokens a dp rank, 2 ranks that are threads, "
           "medians of %d rounds in alternation:\n",
           TEAM_BATCH, TEAM_LENGTH, rounds);
    for (int i = 0; i < TEAMS; i++) {
        bool good = team_start(&teams[i]);
        for (int r = 0; r < WARM + WAYS * rounds && good; r++) good = team_play(&teams[i], r);
        team_end(&teams[i]);
        if (!good) return 1;
        report(&teams[i], rounds, WARM);
    }
    return 0;
}
