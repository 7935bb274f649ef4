/* The parts of `tapegrad train`: options, the training step, data, metrics, the run's directory and its checkpoints. A
 * function that returns bool returns false after printing what is wrong, unless it says otherwise. */
#ifndef TAPEGRAD_TRAIN_H
#define TAPEGRAD_TRAIN_H

#include <stdio.h>

#include <tapegrad/capture.h>
#include <tapegrad/explain.h>
#include <tapegrad/optim.h>
#include <tapegrad/work.h>
#include <tapegrad/checkpoint.h>

#include "ranks.h"

/* ---- Options (train_options.c) ---- */

typedef struct train_options {
    model_options model;
    rank_options on;
    const char *data, *out, *init, *order, *device;
    int data_format, schedule, wsd_decay;
    int64_t batch, accumulate, steps, warmup, wsd_steps, seed, threads;
    int64_t val_every, val_batches, log_every, checkpoint_every, keep, scale_window, hysteresis;
    double loss_scale, initial_scale, min_scale; /* with fp16; loss_scale 0: dynamic loss scaling */
    double lr, min_lr, beta1, beta2, eps, weight_decay, clip, val_fraction;
    int64_t resume_step;
    bool resume, capture, find_nan;
    const char *record; /* a file; NULL: no step is recorded */
    int64_t record_step, record_values;
} train_options;

extern const command train_command;
train_options train_defaults(void);
/* Lowers defaults that are too large for the options given. */
void train_options_complete(train_options *o, const parsed *p);
/* Checks that the options fit each other. Returns 0, or the exit status after printing. */
int train_options_check(const train_options *o, const parsed *p);
tg_schedule train_schedule(const train_options *o);
/* Returns whether the precision needs a scaled loss. */
bool train_scales(const train_options *o);

/* ---- The training step (train_step.c) ---- */

/* The step of one rank. The context and the world are the caller's. */
typedef struct trainer {
    tg_ctx *ctx;
    tg_comm *world;
    tg_parallel *parallel;
    tg_buckets *buckets;    /* the gradients of data-parallel ranks; NULL: there is one replica */
    tg_module *gpt;
    tg_optim *optim;
    tg_tape *tape;
    /* [micro / dp, seq_len] each. While one pair is used, the next sequences are sent to the other. */
    struct { tg_tensor *ids, *target; } in[2];
    int turn;        /* index of the pair that is used next */
    bool sent;       /* its sequences have been sent already */
    int64_t *buffer; /* as many elements on the host */
    double *losses;  /* of the step's micro-batches, as they arrive from the device */
    tg_work **coming;
    tg_tensor *tokens;       /* how many this rank has in a step; NULL: there is one replica */
    tg_tensor **params, **grads;
    int n_params;
    int64_t micro, batch, seq_len; /* sequences of all data-parallel ranks together */
    int dp, dp_rank;
    bool scaled; /* the loss is scaled, as float16 needs it */
    int n_micro;
    /* For --capture: the first step runs normally, the second one is captured, and later ones replay the graph. */
    tg_tensor **all; /* n_micro each: ids, targets, losses, the next step's ids and targets; NULL: no capture */
    bool warm;
    tg_graph *graph;
    tg_schedule schedule;
} trainer;

typedef struct step_result {
    double loss, grad_norm, lr, seconds;
    double loss_scale;  /* after this step; NaN: the loss is not scaled */
    int64_t peak_bytes; /* the most memory in this step, on this rank */
    bool interrupted;   /* a rank was asked to end */
} step_result;

/* Makes groups, model, optimizer and tape; weights (may be NULL) is a model directory to start from. */
bool trainer_open(trainer *r, const train_options *o, tg_ctx *ctx, tg_comm *world, const tg_gpt_config *config,
                  const char *weights);
void trainer_close(trainer *r);
tg_config train_config(const train_options *o);
/* Runs one step on the sequences of the whole batch, which begin at the offsets. On device meta tokens and offsets
 * are NULL. next: the offsets of the next step, whose sequences are sent to the device meanwhile; NULL: there is
 * none. interrupted: this rank was asked to end. Errors are recorded in the context. */
step_result trainer_step(trainer *r, int64_t step, tg_tokens *tokens, const int64_t *offsets, const int64_t *next,
                         bool interrupted);

/* ---- Data (train_data.c) ---- */

typedef struct train_data {
    tg_tokens *tokens;
    int64_t count, train_count; /* tokens; those after train_count are for validation */
    int64_t batch, seq_len, windows;
    uint64_t seed, hash;
    int64_t *order;           /* offsets of all sequences (--order); NULL: they are shuffled */
    int64_t *shuffled, epoch; /* the windows in the order of this epoch */
    int64_t *validation, n_validation;
} train_data;

bool data_open(train_data *d, tg_ctx *ctx, const train_options *o, const tg_gpt_config *config);
void data_close(train_data *d);
/* Writes the offsets of a step's sequences; steps begin at 1. */
void data_offsets(train_data *d, int64_t step, int64_t *out);
/* Returns the checksum of the offsets of --order up to that step. */
uint64_t data_order_sum(const train_data *d, int64_t steps);

/* ---- Metrics, progress and the loss curve (train_metrics.c, train_plot.c) ---- */

typedef struct metrics {
    int fd;
    char *path;
    int64_t end; /* bytes of complete lines */
    int64_t step, steps, first_step;
    int64_t room;            /* elements of the two arrays that follow */
    double *loss, *val_loss; /* of each step; NaN: unknown */
    double started, drawn, last_val;
    bool terminal, escapes; /* progress is one line that is overwritten; escape sequences clear it */
    int drawn_length;
} metrics;

/* Begins metrics.jsonl, or continues it after the step `done`. */
bool metrics_open(metrics *m, tg_ctx *ctx, const char *dir, int64_t steps, int64_t done);
void metrics_close(metrics *m);
/* Writes one line of the file. val_loss NaN: it was not measured. */
bool metrics_write(metrics *m, int64_t step, const step_result *r, double tokens_per_s, double val_loss);
/* Syncs the file to the disk, before a checkpoint that relies on it. */
bool metrics_sync(metrics *m);
/* Prints the progress: on a terminal a line that is written over, else a line every log_every steps and for each
 * validation. */
void metrics_show(metrics *m, const step_result *r, double tokens_per_s, double val_loss, int64_t log_every);
void metrics_end_line(metrics *m);
/* Writes loss.svg. */
bool plot_losses(tg_ctx *ctx, const char *dir, const metrics *m);

/* ---- The directory (train_directory.c) ---- */

typedef struct run_directory {
    const char *path;
    tg_ctx *files; /* for reading checkpoints before the options are known */
    tg_checkpoints *checkpoints;
    int64_t newest; /* step of the newest checkpoint; -1: there is none */
    bool made;      /* it was not there before */
    bool made_checkpoints; /* its directory checkpoints was not */
    bool held;      /* locked by this process */
} run_directory;

/* Makes the directory if it is missing, and locks it. */
bool directory_open(run_directory *d, const char *path);
void directory_close(run_directory *d);
/* Removes what a refused run has created: metrics.jsonl, the directory checkpoints and the directory itself, each
 * only if it is empty. */
void directory_unmake(const run_directory *d);
/* Renames the checkpoints after that step, so that a run which goes on from it can write new ones. */
bool directory_set_aside(const run_directory *d, int64_t done);
/* Returns whether the directory holds no run, so that one may begin in it. */
bool directory_unused(const run_directory *d);
/* Returns whether a run may continue, or begin again, in the directory. A run that has ended and left a model but no
 * checkpoint may not; one that was killed before its first checkpoint may. */
bool directory_resumable(const run_directory *d);

/* ---- Checkpoints (train_checkpoint.c) ---- */

/* Reads a checkpoint's state.json. Its options replace those that were not given; given ones that are fixed for a run
 * must be equal. */
bool checkpoint_read_options(const char *dir, train_options *o, const parsed *p, json_t **state);
/* Returns the step of the newest whole checkpoint in the run's directory, of an earlier step than `before`; 0: there is
 * none. Reads all bytes of the checkpoints, and prints nothing. */
int64_t checkpoint_newest_whole(const char *run, int64_t before);
bool checkpoint_is_whole(const char *dir);
/* Restores the optimizer and the random streams, and checks that the data, and --order up to now, are the same.
 * Collective, as saving is. */
bool checkpoint_restore(const char *dir, const json_t *state, const train_options *o, trainer *r,
                        const train_data *d);
/* Saves a checkpoint. directory: rank 0's; NULL on other ranks. */
bool checkpoint_save(const run_directory *directory, int64_t step, const train_options *o, trainer *r,
                     const train_data *d);
/* Removes all checkpoints but the newest --keep ones. Saving does so too, but a killed run may have left one more. */
bool checkpoint_prune(const run_directory *directory, const train_options *o);

double seconds_now(void);

#endif
