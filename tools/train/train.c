/* tapegrad train: settles the options, finds the checkpoint and the data, starts the ranks, and cleans up after
 * them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <tapegrad/world.h>

#include "common/start.h"
#include "data/cache_guard.h"
#include "train/choose.h"
#include "train/run.h"

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

/* ---- Options and data, before the ranks ---- */

/* Gives what --time will choose values that agree with any options given. What is chosen is checked later. */
static void suppose_choice(train_options *o, const parsed *p) {
    if (!option_given(&train_command, p, "batch")) o->batch = o->accumulate;
    if (!option_given(&train_command, p, "lr") && o->lr < o->min_lr) o->lr = o->min_lr;
    o->steps = (int64_t)MANY;
}

/* Checks the options. If the size of the model will be chosen, checks the other ones with a size that the ranks can
 * divide. */
static int check_options(const plan *r) {
    train_options o = r->o;
    if (o.time && choose_is_size_open(&o, &r->p)) o.model.heads = o.on.tp, o.model.hidden = 16 * o.on.tp;
    return train_options_check(&o, &r->p);
}

/* Completes and checks the options. Called after those of a checkpoint, if any, are known. */
static int settle_options(plan *r) {
    int status = r->o.time ? choose_check(&r->o, &r->p) : 0;
    if (r->o.time) suppose_choice(&r->o, &r->p);
    train_options_complete(&r->o, &r->p, r->state != NULL);
    return status ? status : check_options(r);
}

/* Finds the data, and makes token files where that is necessary, before the ranks begin and wait for each other. A run
 * that goes on uses the token files that it has made, unless its options or the files have changed. */
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

/* ---- The command ---- */

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
