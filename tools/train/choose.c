/* Chooses what the options leave open, for a given time: measures steps of models of growing size, predicts the loss
 * that each reaches in that time (predict.c), and takes the best. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tapegrad/world.h>

#include "common/model_files.h"
#include "common/text.h"
#include "train/choose.h"

/* What is expected of a model in the given time. */
typedef struct candidate {
    train_options o;
    tg_lm_config config;
    int64_t parameters;
    double seconds;              /* of a step */
    double tokens, epochs, loss; /* of the whole run */
    int64_t validations;         /* about how many the run makes */
} candidate;

typedef struct chooser {
    const parsed *p;
    const corpus_options *from;
    const json_t *plan;
    double seconds; /* the given time */
    int64_t tokens; /* for training */
    double speed;   /* FLOP a second of the model that was measured last; 0: none was */
} chooser;

static bool given(const chooser *c, const char *name) { return option_given(&train_command, c->p, name); }

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

/* ---- Models ---- */

static const struct size {
    int64_t layers, hidden, heads, seq_len;
} sizes[] = {
    {2, 64, 2, 128},  {3, 128, 4, 128},   {4, 192, 6, 256},     {6, 256, 8, 256},     {6, 384, 6, 256},
    {8, 512, 8, 512}, {12, 768, 12, 512}, {16, 1024, 16, 1024}, {24, 1536, 24, 1024}, {24, 2048, 32, 1024},
};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* Returns whether the command line leaves the size of the model open. */
static bool is_size_open(const chooser *c, const train_options *o) {
    static const char *const names[] = {"layers", "hidden", "heads", "kv-heads", "ffn"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (given(c, names[i])) return false;
    return !o->init;
}

/* Returns the power of two that is nearest to v. */
static double near_power(double v) { return exp2(round(log2(v))); }

/* Returns the sequences of a step, of which a run of so many tokens should have some thousand steps. Small batches
 * learn more from each token; large ones use a machine better. */
static int64_t choose_batch(const chooser *c, const train_options *o, double tokens) {
    enum { STEPS = 4000, LEAST = 1024, MOST = 1 << 19 };
    double batch = near_power(fmin(fmax(tokens / STEPS, LEAST), MOST)) / (double)o->model.seq_len;
    int64_t unit = o->accumulate * (o->on.ranks / (o->on.tp * o->on.cp * o->on.pp));
    int64_t most = c->tokens / o->model.seq_len;
    int64_t n = (int64_t)fmin(fmax(batch, 1), (double)(most > 0 ? most : 1));
    return n < unit ? unit : n / unit * unit;
}

/* Takes the model of --init. */
static bool take_model(candidate *k, bool seq_len_given) {
    model_files *m = calloc(1, sizeof *m);
    bool good = m ? model_find(m, k->o.init, false) : (fail("no memory"), false);
    if (good) {
        k->config = m->config;
        k->config.recompute = (tg_gpt_recompute)k->o.model.recompute;
        k->o.model.arch = arch_of(m->config.family);
        if (!seq_len_given && k->o.model.seq_len > m->config.positions) k->o.model.seq_len = m->config.positions;
    }
    free(m);
    return good;
}

/* Takes a size, or, if s is NULL, that of the options, and counts the parameters. Sequences are at most a twentieth of
 * the data. */
static bool take_size(const chooser *c, candidate *k, const struct size *s) {
    model_options *m = &k->o.model;
    if (s) {
        m->layers = s->layers, m->hidden = s->hidden, m->heads = s->heads;
        if (!given(c, "arch") && m->dropout == 0) m->arch = ARCH_LLAMA;
        if (!given(c, "seq-len")) m->seq_len = s->seq_len;
    }
    if (k->o.init && !take_model(k, given(c, "seq-len"))) return false;
    while (!given(c, "seq-len") && m->seq_len > 16 && m->seq_len * 20 > c->tokens) m->seq_len /= 2;
    if (!m->vocab) m->vocab = 256;
    if (!k->o.init) k->config = model_config(m);
    k->parameters = count_parameters(&k->config);
    return k->parameters > 0;
}

/* ---- Measuring ---- */

typedef struct probe {
    const chooser *c;
    candidate *k;
} probe;

/* Measures steps on the first sequences of the data. The first step, which allocates, does not count. */
static bool measure_steps(const chooser *c, candidate *k, trainer *r, tg_tokens *tokens) {
    enum { LEAST = 2, MOST = 20 };
    const double enough = 1.5; /* seconds */
    double spent = 0;
    int n = 0;
    int64_t *offsets = calloc((size_t)k->o.batch, sizeof *offsets), last = c->tokens - k->o.model.seq_len - 1;
    if (!offsets) return fail("no memory for a batch"), false;
    for (int64_t i = 0; i < k->o.batch; i++) offsets[i] = last > 0 ? i * k->o.model.seq_len % (last + 1) : 0;
    for (bool done = false; !done && tg_ctx_status(r->ctx) == TG_OK; n++) {
        step_result s = trainer_step(r, n + 1, tokens, offsets, offsets, (n >= LEAST && spent > enough) || n == MOST);
        if (n) spent += s.seconds;
        done = s.interrupted; /* of any rank: all stop after the same step */
    }
    free(offsets);
    if (tg_comm_rank(r->world) == 0) k->seconds = spent / (n - 1);
    return check(r->ctx);
}

static int probe_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    const probe *p = arg;
    corpus data = {0};
    trainer *r = calloc(1, sizeof *r);
    if (!r) return fail("no memory");
    bool good = corpus_open(&data, ctx, p->c->from, p->c->plan);
    if (good) tg_tokens_set_windows(data.tokens, train_windows(&p->k->o));
    good = good && trainer_open(r, &p->k->o, ctx, world, &p->k->config, NULL, NULL) &&
           measure_steps(p->c, p->k, r, data.tokens);
    trainer_close(r);
    corpus_close(&data);
    free(r);
    return good ? 0 : 1;
}

/* ---- What a model reaches ---- */

/* Sets the length of the run for the measured time of a step, with its validations, and the expected loss. A run reads
 * the data at most MOST_EPOCHS times: after that the rest of the time is better saved. Validations take at most a
 * quarter of the time, unless the only one, after the last step, takes more. */
static void plan_run(const chooser *c, candidate *k) {
    enum { MOST_EPOCHS = 16, VALIDATIONS = 20 };
    const double used = 0.95; /* of the time: the rest is for checkpoints */
    double step_tokens = (double)(k->o.batch * k->o.model.seq_len);
    /* A validation of val_batches batches takes a third of the time of as many steps. */
    double check = k->o.val_every ? (double)k->o.val_batches / 3 : 0, most = used * c->seconds / k->seconds;
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

/* Measures a model with the batch that suits the tokens which it is expected to read. */
static bool measure(chooser *c, candidate *k) {
    double tokens = c->speed > 0 ? c->seconds * c->speed / (6 * (double)k->parameters) : 0;
    if (!given(c, "batch")) k->o.batch = choose_batch(c, &k->o, fmin(tokens, 16 * (double)c->tokens));
    probe p = {c, k};
    if (run_on_ranks(&k->o.on, train_config(&k->o), probe_rank, &p) != 0) return false;
    c->speed = 6 * (double)k->parameters * (double)(k->o.batch * k->o.model.seq_len) / k->seconds;
    plan_run(c, k);
    say_candidate(k);
    return true;
}

/* Returns whether a model with its optimizer takes no more than half of the memory; true if that is not known. */
static bool fits(const candidate *k) {
    double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    bool on_cpu = !k->o.device || !strcmp(k->o.device, "cpu");
    return !on_cpu || memory <= 0 || 16 * (double)k->parameters < memory / 2;
}

/* Measures models of growing size until the expected loss rises, and returns the best in *best. */
static bool choose_size(chooser *c, const train_options *o, candidate *best) {
    bool good = true, better = true;
    for (int i = 0; i < SIZES && better && good; i++) {
        candidate k = {.o = *o};
        good = take_size(c, &k, &sizes[i]);
        bool large = i && (!fits(&k) || (double)k.parameters * 6 * 2048 * 5 > c->speed * c->seconds / 20);
        good = good && (large || measure(c, &k));
        better = good && !large && (!i || k.loss <= best->loss);
        free_model_config(better ? &best->config : &k.config);
        if (better) *best = k;
    }
    return good;
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
    bool by_data = k->epochs > 15.9;
    double left = k->tokens / (double)k->parameters;
    say("chosen:");
    if (is_size_open(c, o))
        say(" --arch %s --layers %" PRId64 " --hidden %" PRId64 " --heads %" PRId64,
            arch_text(o->model.arch, arch, sizeof arch), o->model.layers, o->model.hidden, o->model.heads);
    say(" --seq-len %" PRId64 " --batch %" PRId64 " --steps %" PRId64 " --lr %.4g --min-lr %.4g --warmup %" PRId64
        " --beta2 %g\n",
        o->model.seq_len, o->batch, o->steps, o->lr, o->min_lr, o->warmup, o->beta2);
    say("why: the lower the score, the lower the loss that a scaling law expects (Muennighoff et al., 2023). This "
        "model "
        "reads %.3g tokens for each of its parameters, where about 20 are best, and each token of the data %.2g "
        "times.\n",
        left, k->epochs);
    if (by_data)
        say("The run takes only about %s, because reading the data more than 16 times helps little.\n",
            choose_time_text(k->seconds * (double)o->steps, time, sizeof time));
}

static int64_t tokens_for_training(const chooser *c, const train_options *o) {
    corpus data = {0};
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1));
    int64_t n = 0;
    bool val_data = false;
    if (check(ctx) && corpus_open(&data, ctx, c->from, c->plan))
        for (int i = 0; i < data.n; i++) {
            n += data.source[i].validation ? 0 : data.source[i].count;
            val_data |= data.source[i].validation;
        }
    corpus_close(&data);
    tg_ctx_free(ctx);
    return val_data ? n : n - (int64_t)(o->val_fraction * (double)n);
}

bool choose_options(train_options *o, const parsed *p, const corpus_options *from, const json_t *plan) {
    chooser c = {.p = p, .from = from, .plan = plan, .seconds = choose_seconds(o->time)};
    candidate best = {.o = *o};
    char time[32];
    c.tokens = tokens_for_training(&c, o);
    if (c.tokens < 1) return false;
    say("--time %s: measures models on %" PRId64 " tokens of data, for %s\n", o->time, c.tokens,
        choose_time_text(c.seconds, time, sizeof time));
    say("  layers x hidden  parameters    tokens/s   tokens read    epochs per param.    score\n");
    bool good = is_size_open(&c, o) ? choose_size(&c, o, &best) : take_size(&c, &best, NULL) && measure(&c, &best);
    if (good) {
        complete(&c, &best);
        say_choice(&c, &best);
        *o = best.o;
        if (!from->vocab && !o->init) o->model.vocab = best.config.vocab;
    }
    free_model_config(&best.config);
    return good;
}
