/* The parts of `tapegrad train`: options, the training step, data, metrics, the run's directory and its checkpoints. A
 * function that returns bool returns false after printing what is wrong, unless it says otherwise. */
#ifndef TAPEGRAD_TRAIN_H
#define TAPEGRAD_TRAIN_H

#include <stdio.h>

#include <tapegrad/capture.h>
#include <tapegrad/checkpoint.h>
#include <tapegrad/explain.h>
#include <tapegrad/optim.h>
#include <tapegrad/tokenizer.h>
#include <tapegrad/work.h>

#include "common/stage.h"
#include "data/corpus.h"
#include "data/sequences.h"
#include "look/profile.h"

/* ---- Options (options.c) ---- */

typedef struct train_options {
    model_options model;
    rank_options on;
    const char *time;   /* NULL: nothing is chosen */
    const char *memory; /* NULL: no limit */
    const char *data, *val_data, *tokenizer, *out, *init, *order, *device;
    const char *origin; /* not an option: the directory to which relative words of --data belong; NULL: this one */
    int data_format, lr_schedule, wsd_decay;
    int64_t batch, accumulate, steps, warmup, wsd_steps, seed, threads;
    int64_t val_every, val_batches, log_every, checkpoint_every, keep, scale_window, hysteresis;
    const char *lora, *freeze, *lr_of; /* fine-tuning (tune.h); NULL: not given */
    int64_t patience;
    bool keep_best;
    double loss_scale, initial_scale, min_scale; /* with fp16; loss_scale 0: dynamic loss scaling */
    double lr, min_lr, beta1, beta2, eps, weight_decay, clip, val_fraction;
    int64_t resume_step;
    bool resume, capture, find_nan, async_save;
    bool attend_across, pad_documents;
    bool masked; /* not an option: some tokens are not predicted, so the tokens of a step are counted */
    const char *sample_prompt; /* NULL: tokens of the validation data */
    int64_t samples, sample_tokens; /* samples 0: none are printed */
    const char *record; /* a file; NULL: no step is recorded */
    int64_t record_step, record_values;
    bool html, live;
    const char *trace, *tensorboard; /* a file, and a directory; NULL: none */
} train_options;

extern const command train_command;
train_options train_defaults(void);
/* Sets the options that depend on others. Completes the options of a pipeline. Unless `resumed` is true, which means
 * that the options are those of a checkpoint, also lowers the defaults of --warmup and --min-lr if they are too large
 * for the options given. */
void train_options_complete(train_options *o, const parsed *p, bool resumed);
/* Checks that the options agree with each other. Returns 0, or the exit status after printing what is wrong. */
int train_options_check(const train_options *o, const parsed *p);
/* Returns what follows a document in the sequences of a run. */
tg_token_windows train_windows(const train_options *o);
tg_schedule train_schedule(const train_options *o);
/* Returns the limit of --memory in bytes; TG_NONE: there is none. */
int64_t train_memory(const train_options *o);
/* Returns whether the precision needs loss scaling, as fp16 does. */
bool train_scales(const train_options *o);

/* ---- The training step (step.c) ---- */

/* The inputs of a micro-batch, [micro / dp, seq_len / cp] each, by token_kind. One that is not needed is NULL. */
typedef struct micro_inputs {
    tg_tensor *of[TOKEN_KINDS];
} micro_inputs;

/* What one rank needs to run training steps. The caller owns the context and the world. */
typedef struct trainer {
    tg_ctx *ctx;
    tg_comm *world;
    tg_parallel *parallel;
    tg_flat *flat;          /* gradients that dp and cp sum, and divided parameters; NULL: there is nothing to sum */
    bool rounds;            /* gradients are summed over the replicas in each micro-batch (tg_grads_reduce) */
    stage stage;            /* what this rank holds of the model */
    tg_optim *optim;
    tg_tape *tape;
    tg_pipe_plan *plan; /* of a pipeline; NULL: the model is not divided over stages */
    tg_pipe *pipe;
    int find_nan; /* what --find-nan searches for (tg_tape_find_nan) */
    profile *profile; /* watches the tapes of the pipeline; the caller owns it; NULL: none */
    micro_inputs input[2];   /* while the model reads one, the next micro-batch is copied to the other */
    int turn;                /* index of the one that is used next */
    bool sent;               /* the next inputs (of a micro-batch, or of a step) have been sent to the device */
    int64_t *buffer;         /* host memory for one of the input tensors */
    double *losses;          /* of the step's micro-batches, as they arrive from the device */
    tg_work **downloads;     /* the works that copy the losses to the host */
    tg_tensor *tokens;       /* this rank's part of the tokens of a step; NULL: not needed (count_tokens) */
    tg_tensor **params, **grads; /* of the parameters that are trained */
    int n_params;
    bool lora;            /* low-rank adapters are trained, and saved in place of the model */
    const char *base;     /* with `lora`: the directory of the model that they adapt */
    int64_t micro, batch; /* sequences of a micro-batch and of a step, over all data-parallel ranks */
    int64_t seq_len;
    int dp, dp_rank, cp;
    bool scaled; /* the loss is scaled, as --precision fp16 needs */
    bool packed; /* documents are packed, and attention is kept within each */
    bool masked; /* some tokens are not predicted: `predicted` is the number of those that are, of the step */
    int64_t predicted;
    int n_micro;
    /* With --capture, and in a pipeline, all inputs of a step are on the device before the step begins. They are this
     * array: n_micro tensors of each token_kind for this step, and as many for the next one. A tensor that this stage
     * does not need is NULL. Otherwise the array is NULL, and the inputs of each micro-batch are sent by themselves. */
    tg_tensor **inputs;
    tg_tensor **kept_losses; /* of the micro-batches, with --capture; NULL: not needed */
    /* With --capture the first step runs normally, the second one is captured, and later ones replay the graph. */
    bool capture, warm; /* warm: the first step has run */
    tg_graph *graph;
    tg_schedule schedule;
    /* The checkpoint that has begun: its directory, and what writes the state of the optimizer and the random streams.
     * save NULL: there is none. */
    struct {
        tg_save *save;
        int64_t step;
        char dir[4096];
    } saving;
} trainer;

typedef struct step_result {
    double loss, grad_norm, lr, seconds;
    double loss_scale;  /* after this step; NaN: the loss is not scaled */
    int64_t peak_bytes; /* the most memory that was in use during this step, on this rank */
    bool interrupted;   /* a rank has received a signal that ends the run */
    bool written;       /* all ranks have written their files of the checkpoint that has begun */
} step_result;

/* Makes the groups of ranks, the model, the optimizer and the tape. weights: the model directory to load weights from;
 * NULL: random weights. adapter: with --lora, the directory to load adapters from; NULL: new ones. */
bool trainer_open(trainer *r, const train_options *o, tg_ctx *ctx, tg_comm *world, const tg_lm_config *config,
                  const char *weights, const char *adapter);
/* Makes all parameters present on each rank, or lets them be divided again (--zero 3). Collective. */
void trainer_set_whole(trainer *r, bool on);
/* Saves the whole model to dir, or the adapters of --lora. Collective. Errors are recorded in the context. */
void trainer_save(trainer *r, const char *dir);
void trainer_close(trainer *r);
tg_config train_config(const train_options *o);
/* Runs one step. offsets: where the sequences of the whole batch, of all ranks, begin in the tokens. On device meta,
 * tokens and offsets are NULL. next: the offsets of the next step, whose sequences are sent to the device during this
 * step; NULL: there is no next step. interrupted: whether this rank has received a signal that ends the run. Errors are
 * recorded in the context. */
step_result trainer_step(trainer *r, int64_t step, tg_tokens *tokens, const int64_t *offsets, const int64_t *next,
                         bool interrupted);

/* Runs the forward of a micro-batch, without a pipeline. Returns the sum of its losses. positions: those of packed
 * documents, or NULL. */
tg_tensor *trainer_loss(trainer *r, tg_tensor *ids, tg_tensor *target, tg_tensor *positions);

/* ---- The inputs of a step (inputs.c) ---- */

/* Allocates the inputs of two micro-batches or, if `whole` is true, of all micro-batches of a step and of the next
 * step. */
bool inputs_open(trainer *r, bool whole);
void inputs_close(trainer *r);
/* Sends the inputs of a micro-batch to the device, unless they were sent before, and returns them. Also sends the
 * inputs of the next micro-batch, whose offsets are `next` (NULL: there is none), so that they arrive while this
 * micro-batch runs. On device meta, tokens is NULL. */
const micro_inputs *inputs_of_micro_batch(trainer *r, tg_tokens *tokens, const int64_t *offsets, const int64_t *next);
/* Provides all inputs of a step, and sends those of the next step to the device. */
void inputs_of_step(trainer *r, tg_tokens *tokens, const int64_t *offsets, const int64_t *next);
/* Return the ids and the targets of a micro-batch of a step whose inputs are all on the device: arrays of one tensor,
 * or NULL if this stage does not need them. */
tg_tensor *const *trainer_ids(const trainer *r, int micro);
tg_tensor *const *trainer_targets(const trainer *r, int micro);
/* Returns the positions of a micro-batch of such a step; NULL unless documents are packed. */
tg_tensor *trainer_positions(const trainer *r, int micro);

/* ---- Pipelines (pipeline.c) ---- */

/* Makes the plan and the pipe of a trainer whose model is divided over stages. */
bool pipeline_open(trainer *r, const train_options *o);
void pipeline_close(trainer *r);
/* Queues the forwards and backwards of a step on this stage. */
void pipeline_run(trainer *r);
/* Computes a part of the model for a micro-batch. It is a tg_pipe_fn (pipe.h) whose state is the trainer. */
tg_status pipeline_part(void *state, tg_pipe_call *c);

/* ---- Data (data.c) ---- */

typedef struct train_data {
    tg_ctx *ctx;
    corpus corpus;
    tg_tokens *tokens;          /* the corpus' */
    int64_t count, train_count; /* numbers of tokens, and of those for training */
    int64_t batch, seq_len;
    tg_token_windows windows; /* what follows a document in a sequence */
    bool masked;              /* some tokens are not predicted */
    uint64_t seed, hash;
    int64_t *order;                    /* offsets of the sequences of all steps (--order); NULL: they are shuffled */
    sequence_pool *pool, *tail;        /* the sequences for training, and for validation, of each source */
    int n_pools, n_tails;
    int64_t at;                        /* the number of the next sequence of a blend */
    int64_t *validation, n_validation; /* offsets of the sequences for validation */
    int64_t val_targets;               /* tokens that they predict */
} train_data;

/* Returns the vocabulary of the run's model; 0: it is not known yet. weights: the model's directory; NULL: a new model.
 * -1 after printing what is wrong. */
int64_t train_vocab(const train_options *o, const char *weights);
/* Returns what the options say about the data. cache: the directory for token files. */
corpus_options train_corpus(const train_options *o, const char *cache, int64_t vocab);
/* Opens the data of a plan, which must outlive them. */
bool data_open(train_data *d, tg_ctx *ctx, const train_options *o, const corpus_options *from, const json_t *plan);
/* Prints what the data are and, unless --order says it, how much of them the run reads. parameters: of the model. */
void data_say(const train_data *d, const train_options *o, int64_t parameters);
void data_close(train_data *d);
/* Writes the offsets of the `batch` sequences of a step to out. The first step is number 1. */
void data_offsets(train_data *d, int64_t step, int64_t *out);
/* Returns the checksum of the offsets of --order for the steps 1 to `steps`. */
uint64_t data_order_sum(const train_data *d, int64_t steps);

/* ---- Samples (samples.c) ---- */

typedef struct samples {
    tg_ids prompt;           /* the ids that samples begin with; count 0: no samples are made */
    bool text;               /* the model's ids have a text */
    tg_tokenizer *tokenizer; /* of samples; NULL: ids are printed as numbers */
    int64_t step;            /* of the samples that are made now */
    char *path;              /* of samples.jsonl */
    FILE *file;              /* writes to `lines`; NULL: this rank writes no file */
    char *lines;
    size_t length;
    bool failed;             /* there was no memory for a sample of the file */
} samples;

/* Sets the prompt. Returns false after printing why samples cannot be made. */
bool samples_open(samples *s, tg_ctx *ctx, const train_options *o, const train_data *d, int64_t vocab);
/* Lets this rank write samples.jsonl in dir. Keeps the samples of steps up to `done`. */
bool samples_begin_file(samples *s, const char *dir, int64_t done);
void samples_close(samples *s);
/* Continues the prompt by the model as it is, --samples times, prints the samples, each on a line, and adds them to the
 * file. If the model's logits are not finite, prints that instead. Collective: all ranks compute all samples. Errors
 * are recorded in the context. */
void samples_make(trainer *r, const train_options *o, samples *s);
/* Writes the file. Errors are recorded in the context. */
void samples_save(samples *s, tg_ctx *ctx);

/* ---- Progress (progress.c) ---- */

/* The mean time that something takes, with weights that fall exponentially, so that it follows the present rate. */
typedef struct mean_time {
    double window; /* about how many of the newest times count */
    double sum, weight;
    int64_t count;
    bool unknown; /* the clock went backward */
} mean_time;

typedef struct progress {
    mean_time step, val, sampling, save; /* times of a step, a validation, its samples, and a checkpoint */
    int64_t val_every, save_every;
    bool warm;               /* the time of the first step was discarded */
    double drawn;            /* time when the line of progress was last drawn */
    bool terminal, escapes;  /* terminal: one line of progress is overwritten; escapes: escape sequences clear it */
    int drawn_length;        /* length of that line */
    bool live;               /* the live view takes the place of that line */
    int drawn_lines, drawn_columns, drawn_rows; /* of the live view: its lines, and the size of the terminal */
    int64_t messages; /* message_count at the last draw: lines that were printed later lie below the live view */
} progress;

void progress_open(progress *p, const train_options *o);
/* Adds a time to a mean. Does nothing if progress_open has not set the window, as on ranks that show no progress. */
void progress_add(mean_time *t, double seconds);
void progress_add_step(progress *p, double seconds); /* without the time of the first step, which takes longer */
/* Returns the seconds that the run will still take after this step: its steps, validations and checkpoints at their
 * mean times so far. A kind that has not been timed yet counts 0. NaN: unknown. */
double progress_left(const progress *p, int64_t step, int64_t steps);
/* Returns the mean time of the newest steps; NaN: unknown. */
double progress_step_seconds(const progress *p);
void terminal_size(int *columns, int *rows); /* of the terminal at standard output; what is unknown is 80 or 24 */
/* Write a duration, such as "1h05" or "2:30" (minutes and seconds; "?" if it is NaN or negative), and a size, such as
 * "1.2 GiB". */
void text_duration(char *buf, size_t n, double seconds);
void text_bytes(char *buf, size_t n, double bytes);

/* ---- Metrics and the loss curve (metrics.c, plot.c) ---- */

typedef struct metrics {
    int fd;
    char *path;
    int64_t end; /* number of bytes in complete lines */
    int64_t step, steps;     /* the newest step, and the number of steps of the whole run */
    int64_t first_step;      /* number of steps done before this call of the program */
    int64_t step_tokens;     /* tokens of a step, over all ranks */
    int64_t capacity;        /* elements of the two arrays that follow */
    double *loss, *val_loss; /* of each step; NaN: unknown */
    double started;          /* time when the file was opened */
    double earlier_seconds;  /* seconds that the steps before this call of the program took */
    double last_val;         /* the newest validation loss; NaN: none */
    progress progress;
} metrics;

/* Opens metrics.jsonl in dir. With done 0 the file begins empty. Otherwise it keeps the lines of steps 1 to `done`, and
 * a warning is printed if some are missing or damaged. */
bool metrics_open(metrics *m, tg_ctx *ctx, const char *dir, const train_options *o, int64_t done);
void metrics_close(metrics *m);
/* Returns the tokens per second of a step; NaN: unknown. */
double metrics_rate(const metrics *m, const step_result *r);
/* Returns the seconds since the run began, without the time between two calls of the program. */
double metrics_seconds(const metrics *m);
/* Appends the line of a step to the file. val_loss NaN: it was not measured. */
bool metrics_write(metrics *m, int64_t step, const step_result *r, double val_loss);
/* Syncs the file to the disk. Call it before a checkpoint is saved: a resumed run expects the lines of all steps that
 * the checkpoint has done. */
bool metrics_sync(metrics *m);
/* Prints the progress. On a terminal this is one line, or the live view, which the next call overwrites. Elsewhere
 * prints a line for the first step of this call of the program, the last step, every log_every steps, and each
 * validation. */
void metrics_show(metrics *m, const step_result *r, double val_loss, int64_t log_every);
/* Ends the line of progress on a terminal, so that other output does not overwrite it. */
void metrics_end_line(metrics *m);
/* Draws the live view (live.c), over the last one. */
void live_draw(metrics *m, const step_result *r);
/* Writes loss.svg. Does nothing before the first step. */
bool plot_losses(tg_ctx *ctx, const char *dir, const metrics *m);

/* ---- Event files of TensorBoard (tensorboard.c) ---- */

typedef struct event_file event_file;

/* Begins an event file in dir, which is made if it is missing. done: number of steps done before. NULL after printing
 * what is wrong. */
event_file *event_file_open(const char *dir, int64_t done);
/* Appends the values of a step. val_loss NaN: it was not measured. Returns false after printing what is wrong. */
bool event_file_add(event_file *f, int64_t step, const step_result *r, double tokens_per_s, double val_loss);
void event_file_close(event_file *f); /* NULL is ignored */

/* ---- What a run shows in addition to its progress (look.c) ---- */

typedef struct look {
    const train_options *o;
    tg_ctx *ctx;
    bool chief;
    profile *profile;     /* of a step, until the run ends; NULL: none is wanted */
    int64_t timed, noted; /* the steps in which times and memory are noted; 0: none */
    json_t *step;         /* what the profile found, on the chief; NULL: nothing yet */
    event_file *events;   /* NULL: none are written */
} look;

/* done: number of steps done before. Returns false after printing what is wrong. */
bool look_open(look *l, const train_options *o, tg_ctx *ctx, tg_comm *world, int64_t done);
void look_close(look *l);
/* Call them before and after each step of the trainer. look_after_step is collective. Errors are recorded in the
 * context, or printed by the chief. */
void look_before_step(look *l, trainer *r, int64_t step);
bool look_after_step(look *l, trainer *r, int64_t step);
/* On the chief: adds a step's values to the event file. */
bool look_at_metrics(look *l, const metrics *m, int64_t step, const step_result *r, double val_loss);
/* On the chief: writes run.html, if it is wanted. The lines of the steps done must be in metrics.jsonl. */
bool look_save_page(look *l);

/* ---- The best model (best.c; its functions are in tune.h) ---- */

/* Rank 0 sends the fields before `ended`, of 8 bytes each, to the other ranks. */
typedef struct best_model {
    double loss;          /* the lowest validation loss; NaN: there was no validation */
    int64_t step, waited; /* its step, and how many validations have followed */
    double kept;          /* the validation loss of the model in the folder best; NaN: it has none */
    int64_t kept_step;
    bool ended;           /* --patience ends the run */
} best_model;

/* ---- The end of a run (ending.c) ---- */

typedef struct ending {
    const train_options *o;
    const parsed *p;
    tg_comm *world;
    int64_t saved; /* the step of the newest checkpoint */
    bool text;     /* prompts are text, not ids */
} ending;

/* Prints the command that goes on after an interruption. */
void say_how_to_go_on(const ending *e, int64_t step);
/* Prints the commands that use the model and, if there is a checkpoint of the last step, the one that trains it
 * further, to twice as many steps if --steps takes that number. */
void say_what_next(const ending *e);

/* ---- The directory (directory.c) ---- */

typedef struct run_directory {
    const char *path;
    tg_ctx *files; /* the context of `checkpoints`; it is made before the options of the run are known */
    tg_checkpoints *checkpoints;
    int64_t newest; /* step of the newest checkpoint; -1: there is none */
    bool made;             /* this call of the program created the directory */
    bool made_checkpoints; /* this call of the program created the folder checkpoints in it */
    bool held;             /* this process has locked the directory */
} run_directory;

/* Creates the directory if it is missing, locks it, and removes temporary files that a killed run has left. */
bool directory_open(run_directory *d, const char *path);
void directory_close(run_directory *d);
/* Removes what a run that failed before its first step has created: metrics.jsonl, the folder checkpoints and the
 * directory itself, each only if it is empty. */
void directory_remove_created(const run_directory *d);
/* Renames the checkpoints of steps after `done`, so that a run that continues from step `done` can write new ones. */
bool directory_set_aside(const run_directory *d, int64_t done);
/* Returns whether the directory holds no run, so that a new one may begin in it; prints why not. */
bool directory_unused(const run_directory *d);
/* Returns whether --resume may continue the run in the directory, or begin it again; prints why not. A run that was
 * killed before its first checkpoint begins again. A run that has ended, with a model but no checkpoint, cannot be
 * resumed. */
bool directory_resumable(const run_directory *d);

/* ---- Checkpoints (checkpoint.c) ---- */

/* Reads a checkpoint's state.json into *state. Its options replace those that were not given on the command line.
 * Options that were given and are fixed for a run must equal those of the checkpoint. */
bool checkpoint_read_options(const char *dir, train_options *o, const parsed *p, json_t **state);
/* Returns the path that leads now to what `path`, which may be a pattern, led to in the directory `origin`. The caller
 * frees it. NULL: that is `path` itself. This is also so if nothing of that name is in origin any more, because a
 * directory tree may have been moved as a whole. */
char *path_from(const char *origin, const char *path);
/* Returns the step of the newest checkpoint in the run's directory that is whole and of an earlier step than `before`;
 * 0: there is none. Reads all bytes of the checkpoints, and prints nothing. */
int64_t checkpoint_newest_whole(const char *run, int64_t before);
/* Returns whether state.json, and the headers of all files that it has checksums of, are undamaged. Prints what is
 * wrong. */
bool checkpoint_headers_are_whole(const char *dir);
/* Returns whether no file of the checkpoint is missing or damaged. Reads all its bytes, and prints nothing. */
bool checkpoint_is_whole(const char *dir);
/* Checks that the data, and the offsets of --order for the steps done, are those that the run began with, then restores
 * the optimizer and the random streams. Data of a single source may have become longer: more tokens may follow those
 * that the run began with. Collective, as checkpoint_save is. */
bool checkpoint_restore(const char *dir, const json_t *state, const train_options *o, trainer *r,
                        const train_data *d);
/* Saves a checkpoint. With --async-save it has only begun then: the bytes of the optimizer's state are held, and a
 * thread of each rank writes them. directory: rank 0's; NULL on other ranks. */
bool checkpoint_save(const run_directory *directory, int64_t step, const train_options *o, trainer *r,
                     const train_data *d);
/* Completes the checkpoint that has begun, if any; waits for its files. Collective. */
bool checkpoint_finish(const run_directory *directory, const train_options *o, trainer *r, const train_data *d);
/* Removes all checkpoints except the newest --keep ones. Saving does this too, but a killed run may have left one
 * more. */
bool checkpoint_prune(const run_directory *directory, const train_options *o);

#endif
