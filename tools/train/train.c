/* tapegrad train: carries out a run. Finds the checkpoint to continue from, starts the ranks, runs the steps, and
 * writes the files. */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tapegrad/world.h>

#include "common/companions.h"
#include "common/model_files.h"
#include "common/record.h"
#include "common/spawn.h"
#include "common/start.h"
#include "common/text.h"
#include "data/cache_guard.h"
#include "train/train_choose.h"
#include "train/train_tune.h"

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
    bool begun;              /* metrics.jsonl has a line */
    json_t *corpus;          /* the plan of the data (corpus.h); made by the process of rank 0 */
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
    model_files model; /* of --init */
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
    int bad_steps;      /* consecutive steps whose loss or gradient was not finite */
} run;

/* ---- Interrupts ---- */

static volatile sig_atomic_t interrupted;

/* Handles a signal. The first one ends the run after its step. The second one ends the program, because the handler
 * is reset. */
static void on_interrupt(int number) {
    interrupted = number;
    if (number == SIGTERM) dump_record();
}

static void catch_interrupts(void) {
    struct sigaction a = {.sa_handler = on_interrupt, .sa_flags = (int)(SA_RESETHAND | SA_RESTART)};
    sigemptyset(&a.sa_mask);
    catch_signal(SIGINT, &a);
    catch_signal(SIGTERM, &a);
    catch_signal(SIGHUP, &a);
    signal(SIGPIPE, SIG_IGN); /* a closed pipe does not end the run: flush_or_go_on handles the error */
}

/* ---- The checkpoint to continue from ---- */

/* Prints why a checkpoint cannot be used. If it is damaged, the message also names the newest one that is whole. */
static bool refuse_checkpoint(const plan *r) {
    char remedy[256] = "";
    hold_errors(NULL, 0);
    if (r->chief && !checkpoint_is_whole(r->from)) {
        int64_t step = checkpoint_newest_whole(r->o.out, r->done);
        if (step)
            snprintf(remedy, sizeof remedy,
                     "; the newest whole checkpoint is that of step %" PRId64 ": add --resume-step %" PRId64
                     " to go on from it",
                     step, step);
        else
            snprintf(remedy, sizeof remedy, "; no checkpoint of this run is whole");
    }
    return fail("%s%s", r->held, remedy), false;
}

/* Returns the step given by --resume-step if the run has a checkpoint of it; else -1 after printing an error. */
static int64_t find_given_step(const plan *r) {
    int64_t newest = newest_checkpoint(r->o.out);
    for (int64_t step = newest; step > 0; step = newest_checkpoint_before(r->o.out, step))
        if (step == r->o.resume_step) return step;
    fail("--resume-step %" PRId64 ": '%s' has no checkpoint of that step%s", r->o.resume_step, r->o.out,
         newest ? "" : ", nor any other");
    return -1;
}

/* Returns the step of the checkpoint to continue from. Returns 0 if there is none and the run begins at its first step,
 * which a run that was killed before its first checkpoint does too. Returns -1 after printing why the run cannot
 * begin. */
static int64_t look_for_checkpoint(plan *r) {
    run_directory *d = &r->directory;
    if (!r->chief && r->o.resume_step) return r->o.resume_step;
    if (!r->chief) return r->o.resume ? newest_checkpoint(r->o.out) : 0;
    if (!directory_open(d, r->o.out)) return -1;
    if (!r->o.resume) return directory_unused(d) ? 0 : -1;
    if (!directory_resumable(d)) return -1;
    if (r->o.resume_step) return find_given_step(r);
    if (d->newest >= 0) return d->newest;
    if (!r->o.data)
        return fail("there is no checkpoint in '%s': give the --out of a run that has one, or --data FILE and the "
                    "run's other options, to begin at its first step",
                    r->o.out),
               -1;
    say("no checkpoint in '%s': the run begins at its first step\n", r->o.out);
    return 0;
}

/* Finds the checkpoint to continue from, if there is one, and takes over its options. */
static bool find_checkpoint(plan *r) {
    r->done = look_for_checkpoint(r);
    if (r->done <= 0) return r->done == 0;
    if (snprintf(r->from, sizeof r->from, "%s/checkpoints/step-%010" PRId64, r->o.out, r->done) >= (int)sizeof r->from)
        return fail("the path of '%s' is too long", r->o.out), false;
    hold_errors(r->held, sizeof r->held);
    bool good = checkpoint_read_options(r->from, &r->o, &r->p, &r->state);
    hold_errors(NULL, 0);
    return good || refuse_checkpoint(r);
}

/* ---- Model ---- */

/* Sets the options of the model to those of the config of --init. */
static void take_config(run *r, const tg_lm_config *c) {
    const parsed *p = &r->plan->p;
    model_options *m = &r->o.model;
    m->arch = arch_of(c->family);
    m->layers = c->layers;
    m->heads = c->heads;
    m->kv_heads = c->kv_heads;
    m->hidden = c->hidden;
    m->ffn = c->ffn;
    m->vocab = c->vocab;
    if (!option_given(&train_command, p, "seq-len") && m->seq_len > c->positions) m->seq_len = c->positions;
    if (!option_given(&train_command, p, "dropout")) m->dropout = c->dropout;
}

/* Chooses the config, and the directory that the weights come from: the checkpoint's, that of --init, or none (NULL).
 * The weights of a model with adapters are always those of --init. */
static bool choose_model(run *r, tg_lm_config *config, const char **weights) {
    *weights = r->plan->state && !r->o.lora ? r->plan->from : r->o.init;
    if (!*weights) {
        if (!r->o.model.vocab) r->o.model.vocab = 256;
        *config = r->model.config = model_config(&r->o.model);
        return true;
    }
    if (!model_find(&r->model, *weights, !r->plan->state || r->o.lora)) return false;
    char word[4096];
    if (*r->model.adapter)
        return fail("--init '%s' has adapters, not a model; merge them first: %s convert --adapter %s --to DIR",
                    *weights, program_word(), text_shell_word(word, sizeof word, *weights)),
               false;
    *weights = r->model.dir;
    *config = r->model.config;
    if (!r->plan->state) take_config(r, config);
    if (!check_seq_len(r->o.model.seq_len, config)) return false;
    if (config->dropout != r->o.model.dropout) {
        config->dropout = r->o.model.dropout;
        config->embed_dropout = config->attention_dropout = TG_AUTO;
    }
    config->recompute = (tg_gpt_recompute)r->o.model.recompute;
    return true;
}

/* Prints how the ranks divide the model and the batch. */
static void print_ranks(const run *r) {
    const trainer *t = &r->trainer;
    char pipeline[96] = "";
    if (t->pipe) {
        tg_pipe_report costs = TG_PIPE_REPORT();
        tg_pipe_plan_query(t->plan, TG_NONE, &costs);
        int n = snprintf(pipeline, sizeof pipeline, ", pp %d", tg_parallel_size(t->parallel, TG_PP));
        if (t->stage.n > 1) n += snprintf(pipeline + n, sizeof pipeline - (size_t)n, " x %d chunks", t->stage.n);
        char schedule[16];
        option_text(&train_command.options[option_find(&train_command, "schedule")], &r->o, schedule, sizeof schedule);
        snprintf(pipeline + n, sizeof pipeline - (size_t)n, " (%s, bubble %.4f)", schedule, costs.bubble);
    }
    char context[48] = "";
    if (t->cp > 1) {
        char kind[16];
        option_text(&train_command.options[option_find(&train_command, "cp-kind")], &r->o, kind, sizeof kind);
        snprintf(context, sizeof context, ", cp %d (%s)", t->cp, kind);
    }
    say("%d ranks (%s): tp %d%s%s, dp %d%s; %s has %" PRId64 " parameters\n", tg_comm_size(r->world),
        tg_comm_transport(r->world), tg_parallel_size(t->parallel, TG_TP),
        tg_is_sequence_parallel(t->parallel) ? " with sequence parallelism" : "", context, t->dp, pipeline,
        t->pipe ? "a rank of the first stage" : "each", stage_numel(&t->stage));
}

/* Prints how the launcher has started the ranks, if one has. */
static void print_launcher(void) {
    tg_world_info w = TG_WORLD_INFO();
    char text[512];
    if (tg_world_query(&w, NULL, 0) != TG_OK || w.launcher == TG_LAUNCHER_NONE) return;
    tg_world_text(&w, text, sizeof text);
    say("%s\n", text);
}

static bool print_run(const run *r) {
    const tg_lm_config *c = tg_lm_config_of(r->trainer.stage.chunk[0]);
    int64_t parameters = r->chief ? count_parameters(c) : 0;
    if (parameters < 0) return false;
    char precision[16];
    option_text(&train_command.options[option_find(&train_command, "precision")], &r->o, precision, sizeof precision);
    say("model: %s, %" PRId64 " layer%s, %" PRId64 " head%s, hidden %" PRId64 ", vocabulary %" PRId64 ": %" PRId64
        " parameters (%s)\n",
        c->family, c->layers, plural(c->layers), c->heads, plural(c->heads), c->hidden,
        c->vocab, parameters, precision);
    data_say(&r->data, &r->o, parameters);
    int threads = tg_ctx_threads(r->ctx);
    say("%" PRId64 " step%s of %" PRId64 " x %" PRId64 " tokens, %d thread%s, %s kernels\n", r->o.steps,
        plural(r->o.steps), r->o.batch, r->o.model.seq_len, threads, plural(threads), tg_ctx_isa(r->ctx));
    tune_print(&r->trainer, &r->o);
    if (tg_comm_size(r->world) > 1) print_ranks(r);
    print_launcher();
    if (r->plan->state) say("resumed after step %" PRId64 "\n", r->plan->done);
    flush_or_go_on();
    return true;
}

static bool open_recorder(run *r) {
    int64_t done = r->plan->done;
    if (!r->o.record) return true;
    if (!r->o.record_step) r->o.record_step = done + 1;
    if (r->o.record_step <= done || r->o.record_step > r->o.steps)
        return fail("--record-step %" PRId64 ": the run goes on after step %" PRId64 ", to step %" PRId64,
                    r->o.record_step, done, r->o.steps),
               false;
    return (r->recorder = recorder_open(r->o.record, r->o.record_values, r->ctx, r->world)) != NULL;
}

/* Checks that all ranks read the same tokens, and the same --order. */
static bool same_data(run *r) {
    start_facts f = {0};
    facts_add_sum(&f, FACT_FILE, "the number of tokens in --data, in hexadecimal,", (uint64_t)r->data.count);
    facts_add_sum(&f, FACT_FILE, "the checksum of --data", r->data.hash);
    if (r->data.order) facts_add_sum(&f, FACT_FILE, "the checksum of --order", data_order_sum(&r->data, r->o.steps));
    return facts_agree(&f, r->ctx, r->world);
}

/* Makes the model and the optimizer, and restores a checkpoint's state if there is one to continue from. */
static bool open_trainer(run *r, const tg_lm_config *config, const char *weights) {
    plan *p = r->plan;
    if (p->state && r->chief) hold_errors(p->held, sizeof p->held);
    bool good = trainer_open(&r->trainer, &r->o, r->ctx, r->world, config, weights, p->state ? p->from : NULL) &&
                (!p->state || checkpoint_restore(p->from, p->state, &r->o, &r->trainer, &r->data));
    if (!p->state || !r->chief) return good;
    hold_errors(NULL, 0);
    return good || refuse_checkpoint(p);
}

/* Checks that what is trained can be saved: only some families know dropout. */
static bool can_be_saved(const run *r, const tg_lm_config *config) {
    if (tg_lm_has_config(r->trainer.stage.chunk[0])) return true;
    return fail("--dropout %g: the config.json of a %s cannot say that; leave --dropout out", config->dropout,
                config->family),
           false;
}

/* Opens the data by the plan. A process that has no rank 0 finds the plan that rank 0 has saved, or, if all files are
 * read in place, makes its own. */
static bool open_data(run *r, const tg_lm_config *config) {
    plan *p = r->plan;
    corpus_options from = train_corpus(&r->o, p->cache, config->vocab);
    bool mine = !p->corpus;
    if (mine) p->corpus = corpus_saved_plan(&from);
    corpus_options in_place = from;
    in_place.cache = NULL; /* the token files there are rank 0's */
    if (!p->corpus && mine) p->corpus = corpus_plan(r->ctx, &in_place);
    bool bytes = p->corpus && corpus_is_bytes(p->corpus);
    if (bytes && r->o.init && !p->state && !model_takes_data(&r->model, DATA_TEXT)) return false;
    return p->corpus && data_open(&r->data, r->ctx, &r->o, &from, p->corpus);
}

static bool open_run(run *r) {
    tg_lm_config config;
    const char *weights;
    if (!choose_model(r, &config, &weights)) return false;
    if (!open_data(r, &config) || !same_data(r)) return false; /* before a model is allocated */
    r->o.masked = r->data.masked;
    if (!open_trainer(r, &config, weights) || !can_be_saved(r, &config)) return false;
    const plan *p = r->plan;
    r->offsets = calloc(2 * (size_t)r->o.batch, sizeof *r->offsets);
    if (!r->offsets) return fail("no memory for a batch of %" PRId64 " sequences", r->o.batch), false;
    if (!open_recorder(r)) return false;
    if (r->chief && !directory_set_aside(&p->directory, p->done)) return false;
    if (r->chief && !metrics_open(&r->metrics, r->ctx, r->o.out, &r->o, p->done)) return false;
    if (!best_open(&r->best, &r->trainer, &r->o, r->chief ? &r->metrics : NULL, p->done)) return false;
    if (!look_open(&r->look, &r->o, r->ctx, r->world, p->done)) return false;
    if (!samples_open(&r->samples, r->ctx, &r->o, &r->data, config.vocab)) return false;
    if (r->chief && !samples_begin_file(&r->samples, r->o.out, p->done)) return false;
    return print_run(r);
}

/* ---- Steps ---- */

/* Returns whether something is due after this step that is due after every `every` steps and after the last one. */
static bool is_due(const run *r, int64_t every, int64_t step) {
    return every && (step % every == 0 || step == r->o.steps);
}

/* Returns the validation loss; NaN after an error, and if no validation is due after this step. Each data-parallel rank
 * computes the losses of a part of the windows. */
static double validate(run *r, int64_t step) {
    const train_data *d = &r->data;
    if (!is_due(r, r->o.val_every, step) || !d->n_validation) return NAN;
    trainer *t = &r->trainer;
    double began = seconds_now();
    int64_t first = d->n_validation * t->dp_rank / t->dp, end = d->n_validation * (t->dp_rank + 1) / t->dp;
    double sum = 0;
    int64_t n = end - first, micro = t->micro / t->dp;
    trainer_set_whole(t, true); /* the parts may differ in length */
    if (n > 0 && t->pipe) sum = stage_sum_of_losses(&t->stage, d->tokens, d->validation + first, n, d->seq_len, micro);
    if (n > 0 && !t->pipe)
        sum = sum_of_losses(t->stage.chunk[0], t->tape, d->tokens, d->validation + first, n, d->seq_len, micro);
    trainer_set_whole(t, false);
    if (tg_parallel_rank(t->parallel, TG_TP) > 0) sum = 0;
    if (tg_ctx_status(r->ctx) == TG_OK) sum_over_ranks(r->ctx, r->world, &sum, 1);
    progress_add(&r->metrics.progress.val, seconds_now() - began);
    return tg_ctx_status(r->ctx) == TG_OK ? sum / (double)d->val_targets : NAN;
}

/* Makes the samples of a validation, and writes them if this rank has the file. */
static void make_samples(run *r, int64_t step) {
    samples *s = &r->samples;
    double began = seconds_now();
    s->step = step;
    if (r->chief) metrics_end_line(&r->metrics);
    samples_make(&r->trainer, &r->o, s);
    if (tg_ctx_status(r->ctx) == TG_OK) samples_save(s, r->ctx);
    progress_add(&r->metrics.progress.sampling, seconds_now() - began);
}

/* Returns whether the step is an overflow that dynamic loss scaling handles: the loss is finite, and the scale can
 * still fall. */
static bool is_overflow(const run *r, const step_result *s) {
    return r->trainer.scaled && r->o.loss_scale == 0 && s->loss_scale > r->o.min_scale && isfinite(s->loss);
}

/* Returns advice for steps whose loss or gradient is not finite. A fixed loss scale can be the cause. */
static const char *remedy(const run *r) {
    bool fixed = r->trainer.scaled && r->o.loss_scale != 0;
    return fixed ? "a lower --loss-scale, or none; else a lower --lr or a longer --warmup"
                 : "a lower --lr or a longer --warmup";
}

/* Counts consecutive steps whose loss or gradient is not finite. Returns false if there are too many: a step whose
 * gradients are not finite changes no weight, so the next step will hardly be better. */
static bool note_bad_step(run *r, int64_t step, const step_result *s) {
    enum { PATIENCE = 10 };
    if (isfinite(s->loss) && isfinite(s->grad_norm)) {
        r->bad_steps = 0;
        return true;
    }
    if (is_overflow(r, s)) return true;
    r->bad_steps++;
    if (!r->chief) return r->bad_steps < PATIENCE; /* all ranks have the same numbers */
    metrics_end_line(&r->metrics);
    fail("step %" PRId64 ": the %s is not finite%s", step, isfinite(s->grad_norm) ? "loss" : "gradient norm",
         isfinite(s->grad_norm) ? "" : ": the step was skipped");
    if (r->bad_steps < PATIENCE) return true;
    return fail("%d such steps in a row; try %s", PATIENCE, remedy(r)), false;
}

/* Copies the files of --tokenizer to the run's directory, so that the model can be used alone. */
static bool keep_tokenizer(run *r) {
    if (!r->o.tokenizer || r->kept) return true;
    return r->kept = tokenizer_copy(r->ctx, r->o.tokenizer, r->o.out);
}

/* Saves the checkpoint of a step, unless it was saved before. */
static bool save_checkpoint(run *r, int64_t step) {
    if (r->saved == step) return true;
    r->saved = step;
    double began = seconds_now();
    if (r->chief) metrics_end_line(&r->metrics); /* a message may follow */
    if (r->chief && (!metrics_sync(&r->metrics) || !keep_tokenizer(r))) return false;
    if (!checkpoint_save(r->chief ? &r->plan->directory : NULL, step, &r->o, &r->trainer, &r->data)) return false;
    bool good = !r->chief || (plot_losses(r->ctx, r->o.out, &r->metrics) && look_save_page(&r->look));
    progress_add(&r->metrics.progress.save, seconds_now() - began);
    return good;
}

static bool finish_checkpoint(run *r) {
    return checkpoint_finish(r->chief ? &r->plan->directory : NULL, &r->o, &r->trainer, &r->data);
}

/* Writes the metrics of a step, and shows the progress. */
static bool write_step(run *r, int64_t step, const step_result *s, double val_loss) {
    progress_add_step(&r->metrics.progress, s->seconds);
    if (!metrics_write(&r->metrics, step, s, val_loss)) return false;
    if (!look_at_metrics(&r->look, &r->metrics, step, s, val_loss)) return false;
    if (!r->plan->begun) corpus_end_aside(r->plan->cache, true); /* the data have been accepted */
    r->plan->begun = true;
    metrics_show(&r->metrics, s, val_loss, r->o.log_every);
    return true;
}

/* Runs one step, and what follows it: validation, metrics, progress and a checkpoint. Sets *stop to whether the run was
 * interrupted. */
static bool run_step(run *r, int64_t step, bool *stop) {
    int64_t *next = step < r->o.steps ? r->offsets + r->o.batch : NULL;
    if (!r->trainer.sent) data_offsets(&r->data, step, r->offsets);
    if (next) data_offsets(&r->data, step + 1, next);
    bool recorded = r->recorder && step == r->o.record_step;
    if (recorded) recorder_begin(r->recorder, r->trainer.tape, step);
    look_before_step(&r->look, &r->trainer, step);
    step_result s = trainer_step(&r->trainer, step, r->data.tokens, r->offsets, next, interrupted != 0);
    if (recorded && tg_ctx_status(r->ctx) == TG_OK && !recorder_end(r->recorder, r->trainer.tape)) return false;
    if (!look_after_step(&r->look, &r->trainer, step)) return false;
    if (next) memcpy(r->offsets, next, (size_t)r->o.batch * sizeof *next);
    double val_loss = tg_ctx_status(r->ctx) == TG_OK ? validate(r, step) : NAN;
    if (tg_ctx_status(r->ctx) != TG_OK && r->chief) metrics_end_line(&r->metrics);
    if (!check(r->ctx)) return false;
    *stop = s.interrupted;
    if (r->chief && !write_step(r, step, &s, val_loss)) return false;
    if (!note_bad_step(r, step, &s)) return false;
    if (!best_note(&r->best, &r->trainer, &r->o, r->chief, step, val_loss, stop)) return false;
    if (r->samples.prompt.count && is_due(r, r->o.val_every, step)) make_samples(r, step);
    if (!check(r->ctx)) return false;
    if (s.written && !finish_checkpoint(r)) return false;
    bool due = is_due(r, r->o.checkpoint_every, step) || (r->o.checkpoint_every && r->best.ended);
    return !due || save_checkpoint(r, step);
}

/* Ends the run after a step: saves the loss curve, the model and, if the run was interrupted, a checkpoint. */
static bool finish(run *r, int64_t step) {
    bool whole = step == r->o.steps || r->best.ended;
    if (r->chief) metrics_end_line(&r->metrics);
    if (!whole && !save_checkpoint(r, step)) return false;
    if (!finish_checkpoint(r)) return false;
    if (r->chief && !checkpoint_prune(&r->plan->directory, &r->o)) return false;
    if (r->chief && !plot_losses(r->ctx, r->o.out, &r->metrics)) return false;
    if (r->chief && !keep_tokenizer(r)) return false;
    trainer_save(&r->trainer, r->o.out); /* writes config.json last: it marks a run that has ended */
    if (!check(r->ctx)) return false;
    if (!whole && r->chief) r->plan->ended_by = interrupted ? interrupted : SIGINT; /* 0: another rank got the signal */
    const ending end = {&r->o, &r->plan->p, r->world, r->saved, r->samples.text};
    if (!whole) say_how_to_go_on(&end, step);
    if (r->chief && !look_save_page(&r->look)) return false; /* after config.json, which it describes */
    best_print(&r->best, &r->o);
    say("the %s in %s, %s loss curve in %s/loss.svg\n", r->o.lora ? "adapters are" : "model is", r->o.out,
        r->o.lora ? "their" : "its", r->o.out);
    if (r->o.html) say("the page of the run is %s/run.html\n", r->o.out);
    if (whole) say_what_next(&end);
    return true;
}

static bool run_steps(run *r) {
    int64_t step = r->plan->done;
    bool stop = false;
    while (step < r->o.steps && !stop) {
        if (!run_step(r, step + 1, &stop)) return r->chief ? metrics_end_line(&r->metrics) : (void)0, false;
        step++;
    }
    return finish(r, step);
}

/* ---- Ranks ---- */

/* Checks that the ranks were started with the same facts (start.h), and have found the same checkpoint. Each rank that
 * is a process has its own command line, and has read the directory itself. */
static bool same_start(run *r) {
    start_facts f = {0};
    int64_t done = r->plan->done;
    facts_add_start(&f, &train_command, &r->o, r->ctx);
    if (!facts_agree(&f, r->ctx, r->world)) return false;
    if (!broadcast_from_rank_0(r->ctx, r->world, &done, 1)) return false;
    if (done == r->plan->done) return true;
    fail("the newest checkpoint in --out is of step %" PRId64 " on this rank, but of step %" PRId64
         " on rank 0; all ranks must see the same directory",
         r->plan->done, done);
    return false;
}

static int train_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    plan *p = arg;
    run *r = calloc(1, sizeof *r);
    if (!r) return fail("no memory");
    *r = (run){.plan = p, .o = p->o, .ctx = ctx, .world = world, .chief = is_chief(world), .saved = p->done};
    bool good = same_start(r) && open_run(r) && run_steps(r);
    metrics_close(&r->metrics);
    samples_close(&r->samples);
    look_close(&r->look);
    recorder_free(r->recorder);
    data_close(&r->data);
    free_model_config(&r->model.config);
    trainer_close(&r->trainer);
    if (r->chief) flush_or_go_on();
    free(r->offsets);
    free(r);
    return good ? 0 : 1;
}

/* Completes and checks the options. Called after those of a checkpoint, if any, are known. */
static int settle_options(plan *r) {
    int status = r->o.time ? choose_check(&r->o, &r->p) : 0;
    train_options_complete(&r->o, &r->p, r->state != NULL);
    return status ? status : train_options_check(&r->o, &r->p);
}

/* Finds the data, and makes token files where that is necessary, before the ranks begin and wait for each other. A run
 * that goes on uses the token files that it has made. */
static bool plan_data(plan *r) {
    int64_t vocab = train_vocab(&r->o, r->state ? r->from : r->o.init);
    if (vocab < 0) return false;
    if (r->o.tokenizer && !r->o.model.vocab) r->o.model.vocab = vocab;
    corpus_options from = train_corpus(&r->o, r->cache, vocab);
    if (r->o.resume) corpus_end_aside(r->cache, false); /* of a call that was killed */
    r->corpus = r->o.resume ? corpus_saved_plan(&from) : NULL;
    if (!r->corpus && r->o.resume && !corpus_set_aside(r->cache)) return false;
    tg_ctx *ctx = r->corpus ? NULL : tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1));
    if (!r->corpus && check(ctx) && guard_begin(r->cache)) r->corpus = corpus_plan(ctx, &from);
    guard_end();
    tg_ctx_free(ctx);
    return r->corpus && (!r->o.time || choose_options(&r->o, &r->p, &from, r->corpus));
}

static int train(plan *r) {
    int status = r->o.resume ? comm_option_check(&train_command, &r->o.on) : settle_options(r);
    if (status) return status;
    ranks_begin(&r->chief);
    if (!find_checkpoint(r)) return 1;
    if (r->o.resume && (status = settle_options(r))) return status;
    if (r->done > r->o.steps)
        return fail("the run in '%s' has done %" PRId64 " steps, more than --steps %" PRId64, r->o.out, r->done,
                    r->o.steps);
    if (r->chief && !plan_data(r)) return 1;
    if (r->o.time && (status = train_options_check(&r->o, &r->p))) return status; /* of what was chosen */
    catch_interrupts();
    return run_on_ranks(&r->o.on, train_config(&r->o), train_rank, r);
}

/* Names the directory of a run whose --out was not given: run, run-2 and so on, the first that does not exist.
 * Processes of a job might choose different ones, so they need --out. */
static void name_directory(plan *r) {
    tg_world_info w = TG_WORLD_INFO();
    if (tg_world_query(&w, NULL, 0) != TG_OK || w.ranks > 1) return;
    for (int i = 1; i < 10000 && !r->o.out; i++) {
        snprintf(r->out, sizeof r->out, i > 1 ? "run-%d" : "run", i);
        if (access(r->out, F_OK) != 0) r->o.out = r->out;
    }
}

int run_train(int argc, char **argv) {
    plan *r = calloc(1, sizeof *r);
    if (!r) return fail("no memory");
    r->o = train_defaults();
    int status;
    bool parsed = options_parse(&train_command, &r->o, &r->p, argc, argv);
    if (parsed && !r->o.out && r->o.data && !r->o.resume) name_directory(r);
    if (parsed && r->o.out) snprintf(r->cache, sizeof r->cache, "%s/data", r->o.out);
    if (!parsed)
        status = r->p.status;
    else
        status = r->o.out                     ? train(r)
                 : r->o.data || r->o.resume ? usage_error(&train_command, "--out DIR is missing")
                                            : usage_error(&train_command, "--data FILE, what to train on, is missing");
    if (r->chief) {
        if (r->directory.held) corpus_end_aside(r->cache, status == 0 || r->begun);
        if (status != 0 && !r->begun) { /* failed before the first step */
            if (r->directory.made) corpus_remove_cache(r->cache);
            directory_remove_created(&r->directory);
        }
        directory_close(&r->directory);
    }
    if (status == 0 && r->ended_by) status = 128 + r->ended_by;
    json_decref(r->state);
    json_decref(r->corpus);
    free(r);
    return status;
}
