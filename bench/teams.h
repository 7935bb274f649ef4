/* Teams of ranks that train the same model, one step each in turn, for benches of parallel steps. */
#ifndef TAPEGRAD_BENCH_TEAMS_H
#define TAPEGRAD_BENCH_TEAMS_H

#include <pthread.h>

#include <tapegrad/parallel.h>

#include "median.h"

enum { TEAM_ROUNDS = MEDIAN_MOST, TEAM_BATCH = 4, TEAM_LENGTH = 64 };

/* The ranks that train one GPT-2 124M in float32 with AdamW, on TEAM_BATCH sequences of TEAM_LENGTH tokens for each dp
 * rank. They wait until the main thread starts a round, and then run one step. */
typedef struct team {
    const char *name;
    int ranks, threads, tp;
    bool sp;
    int zero; /* 1: AdamW's state is divided over the dp ranks (tg_flat) */
    /* Optional callbacks of each rank: before the model is made, after it is freed, and before and after the step of a
     * round. */
    void (*open)(tg_comm *world), (*close)(tg_comm *world);
    void (*before)(tg_comm *world, int round), (*after)(tg_comm *world, int round);

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int given, done; /* number of rounds started and done; given -1: the ranks must end */
    double ms[TEAM_ROUNDS]; /* milliseconds of each round's step on rank 0 */
    double loss;            /* of the first step */
    char message[1024];     /* the error of a rank; "": none */
} team;

/* Starts the ranks. Returns false if the team's thread cannot be created. */
bool team_start(team *t);
/* Runs one round; rounds are numbered from 0. Returns false if a rank has failed. */
bool team_play(team *t, int round);
/* Ends the ranks, and prints the error if one has failed. */
void team_end(team *t);

#endif
