/* A run, while it is carried out: what is decided before the ranks begin, and what each rank has. */
#ifndef TAPEGRAD_TRAIN_RUN_H
#define TAPEGRAD_TRAIN_RUN_H

#include "common/model_files.h"
#include "common/record.h"
#include "train/tune.h"

/* What is decided before the ranks begin. All ranks of this process share it. */
typedef struct plan {
    train_options o;
    parsed p;
    bool chief;              /* this process has rank 0, which writes the run's files */
    run_directory directory; /* open if chief */
    json_t *state;           /* of the checkpoint to continue from; NULL: a new run */
    char from[4096];         /* directory of that checkpoint */
    char held[4096];         /* the error that says why it cannot be used, until refuse_checkpoint prints it */
    int64_t done;            /* number of steps that the checkpoint has done; 0: a new run */
    bool begun;              /* this call of the program has written a line of metrics.jsonl */
    json_t *corpus;          /* the plan of the data (corpus.h); a process without rank 0 gets it in open_run */
    char cache[4096];        /* the directory of token files */
    char out[32];            /* the directory of the run, if it was not given */
    int ended_by;            /* the signal that ended the run before its last step; 0: none */
} plan;

/* One rank's run. */
typedef struct run {
    plan *plan;
    train_options o;
    tg_ctx *ctx;
    tg_comm *world;
    bool chief;
    model_files model; /* of --init or the checkpoint; of a new model only the config is set */
    trainer trainer;
    train_data data;
    metrics metrics;
    samples samples;
    look look;
    recorder *recorder; /* of --record; NULL: not given */
    int64_t *offsets;   /* of the step's sequences, followed by those of the next step's */
    best_model best;
    int64_t saved;      /* the step of the newest checkpoint */
    bool kept;          /* the tokenizer's files have been copied */
    int bad_steps;      /* consecutive steps whose loss or gradient was not finite (note_bad_step) */
} run;

/* ---- The checkpoint to continue from (resume.c) ---- */

/* Finds the checkpoint to continue from, if there is one, and takes over its options. Returns false after printing an
 * error. */
bool find_checkpoint(plan *r);

/* Prints why a checkpoint cannot be used, and returns false. If it is damaged, the message of rank 0's process also
 * names the newest one of the run that is whole, or says that there is none. */
bool refuse_checkpoint(const plan *r);

/* ---- The start of a rank's run (run_open.c) ---- */

/* Opens the data, makes or loads the model and the optimizer, opens the files of the run, and prints what will be done.
 * Returns false after an error, which may be printed or left in the context. */
bool open_run(run *r);

/* ---- The steps of a rank's run (run_steps.c) ---- */

/* Lets SIGINT, SIGTERM and SIGHUP end the run after its step. */
void catch_interrupts(void);

/* Runs the steps and what follows each of them, and ends the run. Returns false after printing an error. */
bool run_steps(run *r);

#endif
