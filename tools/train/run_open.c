/* The start of a rank's run: model, data, optimizer and files are opened, and what will be done is printed. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/world.h>

#include "common/start.h"
#include "common/text.h"
#include "train/run.h"

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
        if (!model_config(&r->o.model, &r->model.config)) return false;
        *config = r->model.config;
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

bool open_run(run *r) {
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
