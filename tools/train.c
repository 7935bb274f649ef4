/* tapegrad train: a run from its options to its files. */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train.h"

typedef struct run {
    train_options o;
    parsed p;
    run_directory directory;
    json_t *state; /* of the checkpoint resumed; NULL: a new run */
    char from[4096];
    int64_t done; /* steps */
    trainer trainer;
    train_data data;
    metrics metrics;
    int64_t *offsets;
    int bad_steps; /* in a row: with a loss or gradient that is not finite */
} run;

/* ---- Interrupts ---- */

static volatile sig_atomic_t interrupted;

/* The first one ends the run after its step, the second one the program: the handler is reset. */
static void on_interrupt(int number) {
    interrupted = number;
}

static void catch_interrupts(void) {
    struct sigaction a = {.sa_handler = on_interrupt, .sa_flags = (int)(SA_RESETHAND | SA_RESTART)};
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
}

/* ---- What was there before ---- */

/* A run that was killed before its first checkpoint begins again. */
static bool find_checkpoint(run *r) {
    run_directory *d = &r->directory;
    if (!r->o.resume) return directory_unused(d);
    if (!directory_resumable(d)) return false;
    if (d->newest < 0) {
        if (r->o.data) printf("no checkpoint in '%s': the run begins at its first step\n", r->o.out);
        return true;
    }
    r->done = d->newest;
    if (tg_checkpoints_path(d->checkpoints, r->done, r->from, sizeof r->from) >= sizeof r->from)
        return fail("the path of '%s' is too long", r->o.out), false;
    return checkpoint_read_options(r->from, &r->o, &r->p, &r->state);
}

/* ---- Model ---- */

static void take_config(run *r, const tg_gpt_config *c) {
    model_options *m = &r->o.model;
    m->arch = c->arch == TG_LLAMA;
    m->layers = c->layers;
    m->heads = c->heads;
    m->kv_heads = c->kv_heads;
    m->hidden = c->hidden;
    m->ffn = c->ffn;
    m->vocab = c->vocab;
    if (!option_given(&train_command, &r->p, "seq-len") && m->seq_len > c->positions) m->seq_len = c->positions;
    if (!option_given(&train_command, &r->p, "dropout")) m->dropout = c->dropout;
}

/* The config, and the directory that its weights come from: a checkpoint's, --init's, or none. */
static bool choose_model(run *r, tg_gpt_config *config, const char **weights) {
    *weights = r->state ? r->from : r->o.init;
    if (!*weights) {
        if (!r->o.model.vocab) r->o.model.vocab = 256;
        *config = model_config(&r->o.model);
        return true;
    }
    char *path = path_in(*weights, "config.json");
    bool good = path && read_model_config(path, config);
    free(path);
    if (!good) return false;
    if (!r->state) take_config(r, config);
    if (!check_seq_len(r->o.model.seq_len, config)) return false;
    config->dropout = r->o.model.dropout;
    config->recompute = r->o.model.recompute;
    return true;
}

static void print_run(const run *r) {
    const tg_gpt_config *c = tg_gpt_config_of(r->trainer.gpt);
    char precision[16];
    option_text(&train_command.options[option_find(&train_command, "precision")], &r->o, precision, sizeof precision);
    printf("model: %s, %" PRId64 " layers, %" PRId64 " heads, hidden %" PRId64 ", vocabulary %" PRId64 ": %" PRId64
           " parameters (%s)\n",
           c->arch == TG_GPT2 ? "gpt2" : "llama", c->layers, c->heads, c->hidden, c->vocab,
           tg_module_numel(r->trainer.gpt), precision);
    printf("data: %s, %" PRId64 " tokens, of which %" PRId64 " validate\n", r->o.data, r->data.count,
           r->data.count - r->data.train_count);
    printf("%" PRId64 " steps of %" PRId64 " x %" PRId64 " tokens, %d threads, %s kernels\n", r->o.steps, r->o.batch,
           r->o.model.seq_len, tg_ctx_threads(r->trainer.ctx), tg_ctx_isa(r->trainer.ctx));
    if (r->state) printf("resumed behind step %" PRId64 "\n", r->done);
    fflush(stdout);
}

static bool open_run(run *r) {
    tg_gpt_config config;
    const char *weights;
    if (!choose_model(r, &config, &weights)) return false;
    if (!trainer_open(&r->trainer, &r->o, "cpu", &config, weights)) return false;
    if (!data_open(&r->data, r->trainer.ctx, &r->o, &config)) return false;
    if (r->state && !checkpoint_restore(r->from, r->state, &r->trainer, &r->data)) return false;
    r->offsets = calloc((size_t)r->o.batch, sizeof *r->offsets);
    if (!r->offsets) return fail("no memory for a batch"), false;
    if (!metrics_open(&r->metrics, r->o.out, r->o.steps, r->done)) return false;
    print_run(r);
    return true;
}

/* ---- Steps ---- */

static double validate(run *r, int64_t step) {
    const train_data *d = &r->data;
    bool due = r->o.val_every && (step % r->o.val_every == 0 || step == r->o.steps);
    if (!due || !d->n_validation) return NAN;
    trainer *t = &r->trainer;
    double sum = sum_of_losses(t->gpt, t->tape, d->tokens, d->validation, d->n_validation, d->seq_len, t->micro);
    return sum / (double)(d->n_validation * d->seq_len);
}

/* A step whose gradients are not finite changes nothing; a run of them will not end by itself. */
static bool note_bad_step(run *r, int64_t step, const step_result *s) {
    enum { PATIENCE = 10 };
    if (isfinite(s->loss) && isfinite(s->grad_norm)) {
        r->bad_steps = 0;
        return true;
    }
    metrics_end_line(&r->metrics);
    fail("step %" PRId64 ": the %s is not finite%s", step, isfinite(s->grad_norm) ? "loss" : "gradient norm",
         isfinite(s->grad_norm) ? "" : ": the step was skipped");
    if (++r->bad_steps < PATIENCE) return true;
    return fail("%d such steps in a row; try a lower --lr or a longer --warmup", PATIENCE), false;
}

static bool save_checkpoint(run *r, int64_t step) {
    return metrics_sync(&r->metrics) && checkpoint_save(&r->directory, step, &r->o, &r->trainer, &r->data) &&
           plot_losses(r->trainer.ctx, r->o.out, &r->metrics);
}

static bool run_step(run *r, int64_t step) {
    data_offsets(&r->data, step, r->offsets);
    step_result s = trainer_step(&r->trainer, step, r->data.tokens, r->offsets);
    double tokens_per_s = (double)(r->o.batch * r->o.model.seq_len) / s.seconds;
    double val_loss = tg_ctx_status(r->trainer.ctx) == TG_OK ? validate(r, step) : NAN;
    if (tg_ctx_status(r->trainer.ctx) != TG_OK) metrics_end_line(&r->metrics);
    if (!check(r->trainer.ctx) || !metrics_write(&r->metrics, step, &s, tokens_per_s, val_loss)) return false;
    metrics_show(&r->metrics, &s, tokens_per_s, val_loss, r->o.log_every);
    if (!note_bad_step(r, step, &s)) return false;
    bool due = r->o.checkpoint_every && (step % r->o.checkpoint_every == 0 || step == r->o.steps);
    return !due || save_checkpoint(r, step);
}

static bool finish(run *r, int64_t step) {
    bool whole = step == r->o.steps;
    metrics_end_line(&r->metrics);
    if (!whole && !save_checkpoint(r, step)) return false;
    tg_gpt_save(r->trainer.gpt, r->o.out);
    if (!check(r->trainer.ctx) || !plot_losses(r->trainer.ctx, r->o.out, &r->metrics)) return false;
    if (!whole)
        printf("interrupted behind step %" PRId64 "; to go on: tapegrad train --resume --out %s\n", step, r->o.out);
    printf("the model is in %s, its loss curve in %s/loss.svg\n", r->o.out, r->o.out);
    return true;
}

static bool run_steps(run *r) {
    int64_t step = r->done;
    catch_interrupts();
    while (step < r->o.steps && !interrupted) {
        if (!run_step(r, step + 1)) return metrics_end_line(&r->metrics), false;
        step++;
    }
    return finish(r, step);
}

static int settle_options(run *r) {
    if (!r->state) train_options_complete(&r->o, &r->p);
    return train_options_check(&r->o, &r->p);
}

static int train(run *r) {
    int status = r->o.resume ? 0 : settle_options(r);
    if (status) return status;
    if (!directory_open(&r->directory, r->o.out) || !find_checkpoint(r)) return 1;
    if (r->o.resume && (status = settle_options(r))) return status;
    if (r->done > r->o.steps)
        return fail("the run in '%s' has done %" PRId64 " steps, more than --steps %" PRId64, r->o.out, r->done,
                    r->o.steps);
    return open_run(r) && run_steps(r) ? 0 : 1;
}

static void close_run(run *r, int status) {
    if (status != 0 && !r->metrics.path) directory_unmake(&r->directory); /* it failed before its first step */
    metrics_close(&r->metrics);
    data_close(&r->data);
    trainer_close(&r->trainer);
    directory_close(&r->directory);
    json_decref(r->state);
    free(r->offsets);
    free(r);
}

int run_train(int argc, char **argv) {
    run *r = calloc(1, sizeof *r);
    if (!r) return fail("no memory");
    r->o = train_defaults();
    int status;
    if (!options_parse(&train_command, &r->o, &r->p, argc, argv))
        status = r->p.status;
    else
        status = r->o.out ? train(r) : usage_error(&train_command, "--out DIR is missing");
    close_run(r, status);
    return status;
}
