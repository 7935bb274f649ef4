/* The parts of `tapegrad train`. A function that returns bool returns false after printing what is wrong, unless it
 * says otherwise. */
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
    double loss_scale, initial_scale, min_scale; /* with fp16; loss_scale 0: it moves */
    double lr, min_lr, beta1, beta2, eps, weight_decay, clip, val_fraction;
    int64_t resume_step;
    bool resume, capture, find_nan;
    const char *record; /* a file; NULL: no step is recorded */
    int64_t record_step, record_values;
} train_options;

extern const command train_command;
train_options train_defaults(void);
/* Defaults that other options would contradict give way to them. */
void train_options_complete(train_options *o, const parsed *p);
/* Checks what belongs together; 0, or the exit status after printing. */
int train_options_check(const train_options *o, const parsed *p);
tg_schedule train_schedule(const train_options *o);
bool train_scales(const train_options *o); /* the precision needs a scaled loss */

/* ---- The training step (train_step.c) ---- */

/* One rank's. The context and the world are the caller's. */
typedef struct trainer {
    tg_ctx *ctx;
    tg_comm *world;
    tg_parallel *parallel;
    tg_buckets *buckets;    /* of data-parallel ranks */
    tg_module *gpt;
    tg_optim *optim;
    tg_tape *tape;
    /* [micro / dp, seq_len]; while one pair is used, what comes next is sent into the other. */
    struct { tg_tensor *ids, *target; } in[2];
    int turn;        /* the pair that is used next */
    bool sent;       /* it has been sent already */
    int64_t *buffer; /* as many on the host */
    double *losses;  /* of the step's micro-batches, as they come from the device */
    tg_work **coming;
    tg_tensor *tokens;       /* of this rank in a step; NULL: there are no data-parallel ranks */
    tg_tensor **params, **grads;
    int n_params;
    int64_t micro, batch, seq_len; /* of all data-parallel ranks together */
    int dp, dp_rank;
    bool scaled; /* the loss is, as float16 needs it */
    int n_micro;
    /* Of a step that is captured (--capture): its micro-batches' inputs and losses, and what is replayed from the third
     * step on; the first one is called. */
    tg_tensor **all; /* n_micro each: ids, targets, losses, the next step's ids and targets; NULL: not captured */
    bool warm;
    tg_graph *graph;
    tg_schedule schedule;
} trainer;

typedef struct step_result {
    double loss, grad_norm, lr, seconds;
    double loss_scale;  /* behind this step; NaN: the loss is not scaled */
    int64_t peak_bytes; /* of this step, on this rank */
    bool interrupted;   /* some rank was asked to end */
} step_result;

/* Makes groups, model, optimiser and tape; weights (may be NULL) is a model directory to start from. */
bool trainer_open(trainer *r, const train_options *o, tg_ctx *ctx, tg_comm *world, const tg_gpt_config *config,
                  const char *weights);
void trainer_close(trainer *r);
tg_config train_config(const train_options *o);
/* One step on the sequences that begin at the offsets, of the whole batch; on device meta they and the tokens are NULL.
 * next: those of the step to come, which are sent to the device meanwhile; NULL: there is none. interrupted: this rank
 * was asked to end. Errors are the context's. */
step_result trainer_step(trainer *r, int64_t step, tg_tokens *tokens, const int64_t *offsets, const int64_t *next,
                         bool interrupted);

/* ---- Data (train_data.c) ---- */

typedef struct train_data {
    tg_tokens *tokens;
    int64_t count, train_count; /* tokens; the rest validates */
    int64_t batch, seq_len, windows;
    uint64_t seed, hash;
    int64_t *order;           /* offsets of every sample; NULL: the shuffle */
    int64_t *shuffled, epoch; /* windows of this epoch */
    int64_t *validation, n_validation;
} train_data;

bool data_open(train_data *d, tg_ctx *ctx, const train_options *o, const tg_gpt_config *config);
void data_close(train_data *d);
/* The offsets of step's sequences, from step 1 on. */
void data_offsets(train_data *d, int64_t step, int64_t *out);
/* Of an order: the checksum of its first steps' offsets. */
uint64_t data_order_sum(const train_data *d, int64_t steps);

/* ---- What a run writes (train_metrics.c, train_plot.c) ---- */

typedef struct metrics {
    int fd;
    char *path;
    int64_t end; /* bytes of whole lines */
    int64_t step, steps, first_step;
    int64_t room;            /* of the two that follow */
    double *loss, *val_loss; /* of every step; NaN where there is none */
    double started, drawn, last_val;
    bool terminal, escapes; /* progress is one line that is written over; by escape sequences */
    int drawn_length;
} metrics;

/* Begins metrics.jsonl, or goes on behind the given step. */
bool metrics_open(metrics *m, tg_ctx *ctx, const char *dir, int64_t steps, int64_t done);
void metrics_close(metrics *m);
/* One line of the file; val_loss NaN: not measured. */
bool metrics_write(metrics *m, int64_t step, const step_result *r, double tokens_per_s, double val_loss);
/* On the disk, before a checkpoint that counts on it. */
bool metrics_sync(metrics *m);
/* The progress line of a terminal, or a plain line where log_every or val_loss asks for it. */
void metrics_show(metrics *m, const step_result *r, double tokens_per_s, double val_loss, int64_t log_every);
void metrics_end_line(metrics *m);
/* loss.svg */
bool plot_losses(tg_ctx *ctx, const char *dir, const metrics *m);

/* ---- The directory (train_directory.c) ---- */

typedef struct run_directory {
    const char *path;
    tg_ctx *files; /* of the checkpoints: they are looked at before the options are known */
    tg_checkpoints *checkpoints;
    int64_t newest; /* step of the checkpoint found; -1: none */
    bool made;      /* it was not there before */
    bool made_checkpoints; /* its directory checkpoints was not */
    bool held;      /* locked by this process */
} run_directory;

/* Makes the directory where it is missing, and locks it. */
bool directory_open(run_directory *d, const char *path);
void directory_close(run_directory *d);
/* Of one that is held: removes metrics without a line, and the directory where it was made and holds nothing else. */
void directory_unmake(const run_directory *d);
/* Renames the checkpoints after that step, so that a run which goes on from it can write new ones. */
bool directory_set_aside(const run_directory *d, int64_t done);
bool directory_unused(const run_directory *d);
/* A whole model without checkpoints is a finished run, which must not begin again; one that was killed before may. */
bool directory_resumable(const run_directory *d);

/* ---- Checkpoints (train_checkpoint.c) ---- */

/* Reads a checkpoint's state.json into the options that were not given; refuses fixed ones that differ. */
bool checkpoint_read_options(const char *dir, train_options *o, const parsed *p, json_t **state);
/* Returns the step of the newest checkpoint in the run's directory that is whole, of those before a step; 0: there is
 * none. Reads all of their bytes, and prints nothing. */
int64_t checkpoint_newest_whole(const char *run, int64_t before);
bool checkpoint_is_whole(const char *dir);
/* The optimiser, the random streams; checks that the data, and an order so far, are the same. Collective, as
 * saving is. */
bool checkpoint_restore(const char *dir, const json_t *state, const train_options *o, trainer *r,
                        const train_data *d);
/* directory: the chief's; NULL on other ranks. */
bool checkpoint_save(const run_directory *directory, int64_t step, const train_options *o, trainer *r,
                     const train_data *d);
/* Removes all but the newest --keep, as saving does: a killed run may have left one more. The chief's. */
bool checkpoint_prune(const run_directory *directory, const train_options *o);

double seconds_now(void);

#endif
