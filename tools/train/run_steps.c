/* The steps of a rank's run, what follows each of them, such as validation and checkpoints, and how the run ends. */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <string.h>

#include "common/companions.h"
#include "common/interrupts.h"
#include "train/run.h"

/* ---- Interrupts ---- */

/* Called in the handler of a signal that ends the run after its step. */
static void on_interrupt(int number) {
    if (number == SIGTERM) dump_record();
}

void catch_interrupts(void) {
    interrupts_catch(SA_RESTART, on_interrupt);
    signal(SIGPIPE, SIG_IGN); /* a closed pipe does not end the run: flush_or_go_on handles the error */
}

/* ---- Steps ---- */

/* Returns whether something is due after this step that is due after every `every` steps and after the last one. */
static bool is_due(const run *r, int64_t every, int64_t step) {
    return every && (step % every == 0 || step == r->o.steps);
}

/* Returns the validation loss; NaN after an error, and if no validation is due after this step or there are no data for
 * it. Each data-parallel rank computes the losses of a part of the windows. */
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

/* Counts consecutive steps whose loss or gradient is not finite; overflows that dynamic loss scaling handles neither
 * count nor end the row. Returns false if there are too many: a step whose gradients are not finite changes no weight,
 * so the next step will hardly be better. */
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

/* Runs one step, and what follows it: validation, metrics, progress, samples and a checkpoint. Sets *stop to whether
 * the run was interrupted, or ends by --patience. */
static bool run_step(run *r, int64_t step, bool *stop) {
    int64_t *next = step < r->o.steps ? r->offsets + r->o.batch : NULL;
    if (!r->trainer.sent) data_offsets(&r->data, step, r->offsets);
    if (next) data_offsets(&r->data, step + 1, next);
    bool recorded = r->recorder && step == r->o.record_step;
    if (recorded) recorder_begin(r->recorder, r->trainer.tape, step);
    look_before_step(&r->look, &r->trainer, step);
    step_result s = trainer_step(&r->trainer, step, r->data.tokens, r->offsets, next, interrupted_by() != 0);
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

/* Ends the run after a step: saves the loss curve, the model and, if the run was interrupted before its end, a
 * checkpoint. */
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
    int signal = interrupted_by(); /* 0: another rank got the signal */
    if (!whole && r->chief) r->plan->ended_by = signal ? signal : SIGINT;
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

bool run_steps(run *r) {
    int64_t step = r->plan->done;
    bool stop = false;
    while (step < r->o.steps && !stop) {
        if (!run_step(r, step + 1, &stop)) return r->chief ? metrics_end_line(&r->metrics) : (void)0, false;
        step++;
    }
    return finish(r, step);
}
