/* Chooses what the options leave open, for a given time: measures steps of models of growing size that fit into the
 * memory (fit.c, measure.c), predicts the loss that each reaches in that time (predict.c), and takes the best. */
#include <inttypes.h>
#include <math.h>

#include <tapegrad/world.h>

#include "train/chooser.h"

int choose_check(const train_options *o, const parsed *p) {
    const command *c = &train_command;
    if (!choose_seconds(o->time))
        return usage_error(c, "--time is '%s', expected a time such as 90s, 30m, 1.5h or 2d", o->time);
    if (option_given(c, p, "steps"))
        return usage_error(c, "--time chooses the number of steps, and --steps gives it; leave one of them out");
    if (o->resume)
        return usage_error(c, "--time chooses the options of a new run; leave it out with --resume, or give --steps");
    tg_world_info w = TG_WORLD_INFO();
    tg_world_query(&w, NULL, 0);
    if (w.ranks > 1)
        return usage_error(c,
                           "--time measures steps of one process, but a launcher has started %d; give --steps, or "
                           "let one process have the ranks (--ranks)",
                           w.ranks);
    if (o->order)
        return usage_error(c, "--time chooses the number of steps, but --order has the sequences of a given number");
    return 0;
}

/* ---- What a model reaches ---- */

/* Sets the length of the run for the measured time of a step, with its validations, and the expected loss. A run reads
 * the data at most MOST_EPOCHS times: after that the rest of the time is better saved. Validations take at most a
 * quarter of the time, unless the only one, after the last step, takes more. */
static void plan_run(const chooser *c, candidate *k) {
    enum { MOST_EPOCHS = 16, VALIDATIONS = 20 };
    const double used = 0.95; /* of the time: the rest is for checkpoints */
    double step_tokens = (double)(k->o.batch * k->o.model.seq_len);
    /* A validation takes a third of the time of as many steps as it has batches. */
    double batches = k->o.val_batches ? (double)k->o.val_batches : (double)c->val_tokens / step_tokens;
    double check = k->o.val_every ? batches / 3 : 0, most = used * c->seconds / k->seconds;
    k->validations = (int64_t)fmax(1, fmin(VALIDATIONS, most / 4 / fmax(check, 1e-9)));
    double steps = fmin(most - (double)k->validations * check, MOST_EPOCHS * (double)c->tokens / step_tokens);
    k->o.steps = steps < 1 ? 1 : (int64_t)steps;
    k->tokens = (double)k->o.steps * step_tokens;
    k->epochs = k->tokens / (double)c->tokens;
    k->loss = predict_loss((double)k->parameters, k->tokens, (double)c->tokens);
}

static void say_candidate(const candidate *k) {
    double rate = (double)(k->o.batch * k->o.model.seq_len) / k->seconds;
    say("  %3" PRId64 " x %-5" PRId64 "%12" PRId64 "%12.0f%14.0f%10.2f%10.1f%9.3f\n", k->config.layers,
        k->config.hidden, k->parameters, rate, k->tokens, k->epochs, k->tokens / (double)k->parameters, k->loss);
    flush_or_go_on();
}

/* ---- The size ---- */

/* Measures a model, if it fits, with the batch that suits the tokens which it is expected to read. */
static verdict try_model(chooser *c, candidate *k) {
    double tokens = c->speed > 0 ? c->seconds * c->speed / (6 * (double)k->parameters) : 0;
    candidate_choose_batch(c, k, fmin(tokens, 16 * (double)c->tokens));
    k->o.masked = c->masked;
    verdict v = candidate_fit(c, k);
    if (v != MEASURED) return v;
    if (!measure_model(&k->o, &k->config, c->from, c->plan, c->tokens, &k->seconds)) return FAILED;
    c->speed = 6 * (double)k->parameters * (double)(k->o.batch * k->o.model.seq_len) / k->seconds;
    plan_run(c, k);
    say_candidate(k);
    return MEASURED;
}

static verdict try_size(chooser *c, candidate *k, const model_size *s) {
    if (!candidate_take_size(c, k, s)) return FAILED;
    /* At the speed of the last model, five steps of 2048 tokens would take more than a twentieth of the time. */
    bool too_long = c->speed > 0 && (double)k->parameters * 6 * 2048 * 5 > c->speed * c->seconds / 20;
    return too_long ? TOO_LONG : try_model(c, k);
}

/* Measures models of growing size until the expected loss rises or the next one takes too much time or memory, and
 * returns the best in *best. */
static bool choose_size(chooser *c, const train_options *o, candidate *best) {
    verdict v = MEASURED;
    bool found = false, better = true;
    const model_size *size;
    for (int i = 0; (size = size_at(i)) && better && (v == MEASURED || v == UNDIVIDED); i++) {
        candidate k = {.o = *o};
        v = try_size(c, &k, size);
        better = v != MEASURED || !found || k.loss <= best->loss;
        if (v == TOO_LARGE) c->large = k;
        bool taken = v == MEASURED && better;
        free_model_config(taken ? &best->config : &k.config);
        if (taken) *best = k;
        found |= taken;
    }
    if (v == TOO_LARGE && !found) return candidate_refuse(c, &c->large);
    if (v == UNDIVIDED && !found)
        return fail("none of the sizes that --time tries can be divided over the ranks (%s); give --layers, --heads "
                    "and --hidden", c->refusal),
               false;
    return found && v != FAILED;
}

/* Measures the model that the options give. */
static bool take_given(chooser *c, candidate *best) {
    if (!candidate_take_size(c, best, NULL)) return false;
    verdict v = try_model(c, best);
    return v == TOO_LARGE ? candidate_refuse(c, best) : v == MEASURED;
}

/* ---- The other options ---- */

/* Sets the options that follow from the model and the number of steps. The rates are those with which GPT-2's sizes are
 * trained: 3e-3 for 128 elements, and inverse to the width, which gives 5e-4 for 768. */
static void complete(const chooser *c, candidate *k) {
    train_options *o = &k->o;
    double lr = fmin(3e-3 * 128 / (double)k->config.hidden, 4e-3);
    if (o->init) lr /= 10; /* weights that are trained already */
    double unit = pow(10, floor(log10(lr)) - 1);
    if (!given(c, "lr")) o->lr = round(lr / unit) * unit;
    if (!given(c, "min-lr")) o->min_lr = o->lr / 10;
    if (!given(c, "warmup")) o->warmup = o->steps / 20;
    if (!given(c, "beta2") && o->batch * o->model.seq_len < 1 << 15) o->beta2 = 0.99;
    if (!given(c, "val-every") && o->val_every) o->val_every = o->steps / k->validations + 1;
    if (!given(c, "checkpoint-every")) o->checkpoint_every = o->steps / 10 + 1;
    if (!given(c, "log-every")) o->log_every = o->steps / 40 + 1;
}

/* Prints what the choice is, as options that give the same run again, and why. */
static void say_choice(const chooser *c, const candidate *k) {
    const train_options *o = &k->o;
    char time[32], arch[32];
    bool by_data = k->epochs > 15.9; /* plan_run's MOST_EPOCHS has limited the run */
    double left = k->tokens / (double)k->parameters;
    say("chosen:");
    if (choose_is_size_open(o, c->p))
        say(" --arch %s --layers %" PRId64 " --hidden %" PRId64 " --heads %" PRId64,
            arch_text(o->model.arch, arch, sizeof arch), o->model.layers, o->model.hidden, o->model.heads);
    say(" --seq-len %" PRId64 " --batch %" PRId64, o->model.seq_len, o->batch);
    if (k->cut) say(" --micro-batches %" PRId64, o->accumulate);
    say(" --steps %" PRId64 " --lr %.4g", o->steps, o->lr);
    if (o->lr_schedule != TG_DECAY_CONSTANT) say(" --min-lr %.4g", o->min_lr);
    say(" --warmup %" PRId64 " --beta2 %g\n", o->warmup, o->beta2);
    say("why: the lower the score, the lower the loss that a scaling law expects (Muennighoff et al., 2023). This "
        "model reads %.3g tokens for each of its parameters, where about 20 are best, and each token of the data %.2g "
        "times.\n",
        left, k->epochs);
    if (by_data)
        say("The run takes only about %s, because reading the data more than 16 times helps little.\n",
            choose_time_text(k->seconds * (double)o->steps, time, sizeof time));
}

/* Prints what was not chosen because of the memory. */
static void say_memory(const chooser *c, const candidate *k) {
    char room[64], need[32];
    if (k->cut)
        say("The batch is cut into %" PRId64 " micro-batches because of %s.\n", k->o.accumulate,
            room_text(&c->room, &k->need, room, sizeof room));
    const candidate *large = &c->large;
    if (large->config.layers)
        say("Models from %" PRId64 " x %" PRId64 " on were left out because of %s: a step takes %s, and may take three "
            "quarters.\n",
            large->config.layers, large->config.hidden, room_text(&c->room, &large->need, room, sizeof room),
            need_text(&c->room, &large->need, need, sizeof need));
}

/* Prints what will be done. */
static void say_start(const chooser *c, const train_options *o) {
    const rank_bytes *room = &c->room;
    char time[32], bytes[32];
    bool each = room->one != TG_NONE && (room->all == TG_NONE || room->one < room->all / o->on.ranks);
    say("--time %s: measures models on %" PRId64 " tokens of data, for %s", o->time, c->tokens,
        choose_time_text(c->seconds, time, sizeof time));
    text_bytes(bytes, sizeof bytes, (double)(each ? room->one : room->all));
    if (each || room->all != TG_NONE)
        say(" and %s of memory%s", bytes, each && o->on.ranks > 1 ? " for each rank" : "");
    say("\n  layers x hidden  parameters    tokens/s   tokens read    epochs per param.    score\n");
}

/* Counts the tokens for training and for validation, and finds out whether all are predicted. Returns false after
 * printing what is wrong. */
static bool look_at_data(chooser *c, const train_options *o) {
    corpus data = {0};
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1));
    int64_t n = 0, val = 0;
    if (check(ctx) && corpus_open(&data, ctx, c->from, c->plan)) {
        c->masked = train_windows(o) != TG_WINDOWS_ACROSS || tg_tokens_has_context(data.tokens);
        for (int i = 0; i < data.n; i++) *(data.source[i].validation ? &val : &n) += data.source[i].count;
    }
    corpus_close(&data);
    tg_ctx_free(ctx);
    int64_t tail = o->val_data ? 0 : (int64_t)(o->val_fraction * (double)n);
    c->tokens = n - tail;
    c->val_tokens = val + tail;
    return c->tokens > 0;
}

bool choose_options(train_options *o, const parsed *p, const corpus_options *from, const json_t *plan) {
    chooser c = {.p = p, .from = from, .plan = plan, .seconds = choose_seconds(o->time)};
    candidate best = {.o = *o};
    if (!look_at_data(&c, o) || !room_of_ranks(o, &c.room)) return false;
    say_start(&c, o);
    bool good = choose_is_size_open(o, p) ? choose_size(&c, o, &best) : take_given(&c, &best);
    if (good) {
        complete(&c, &best);
        say_choice(&c, &best);
        say_memory(&c, &best);
        *o = best.o;
        if (!from->vocab && !o->init) o->model.vocab = best.config.vocab;
    }
    free_model_config(&best.config);
    return good;
}
