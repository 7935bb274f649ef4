/* Teams of ranks that train the same model, one step each in turn, for benches of parallel steps. */
#ifndef TAPEGRAD_BENCH_TEAMS_H
#define TAPEGRAD_BENCH_TEAMS_H

#include <pthread.h>

#include <tapegrad/parallel.h>

enum { TEAM_ROUNDS = 256, TEAM_BATCH = 4, TEAM_LENGTH = 64 };

/* GPT-2 124M, float32, AdamW, TEAM_BATCH sequences of TEAM_LENGTH tokens on each dp rank. Its ranks wait until main
 * gives them a round. */
typedef struct team {
    const char *name;
    int ranks, threads, tp;
    bool sp;
    /* Optional callbacks of each rank: before the model is made, after it is freed, and before the step of a round. */
    void (*open)(tg_comm *world), (*close)(tg_comm *world);
    void (*before)(tg_comm *world, int round);

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int given, done; /* number of rounds; given -1: no more */
    double ms[TEAM_ROUNDS], loss; /* ms of each round's step on rank 0; loss of the first */
    char message[1024];
} team;

bool team_start(team *t);
bool team_play(team *t, int round); /* plays one round; false if a rank has failed */
void team_end(team *t);             /* prints errors of ranks */
double median(const double *v, int n);

#endif
