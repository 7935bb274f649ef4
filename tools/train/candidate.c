/* The models that --time considers: their sizes, the batch, and whether a step fits into the memory. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "common/model_files.h"
#include "train/chooser.h"

/* ---- Sizes ---- */

static const model_size sizes[] = { /* layers, hidden, heads, seq_len */
    {2, 64, 2, 128},  {3, 128, 4, 128},   {4, 192, 6, 256},     {6, 256, 8, 256},     {6, 384, 6, 256},
    {8, 512, 8, 512}, {12, 768, 12, 512}, {16, 1024, 16, 1024}, {24, 1536, 24, 1024}, {24, 2048, 32, 1024},
};

const model_size *size_at(int i) { return i < (int)(sizeof sizes / sizeof *sizes) ? &sizes[i] : NULL; }

bool choose_is_size_open(const train_options *o, const parsed *p) {
    static const char *const names[] = {"layers", "hidden", "heads", "kv-heads", "ffn"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (option_given(&train_command, p, names[i])) return false;
    return !o->init;
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

bool candidate_take_size(const chooser *c, candidate *k, const model_size *s) {
    model_options *m = &k->o.model;
    if (s) {
        m->layers = s->layers, m->hidden = s->hidden, m->heads = s->heads;
        if (!given(c, "arch") && m->dropout == 0) m->arch = ARCH_LLAMA;
        if (!given(c, "seq-len")) m->seq_len = s->seq_len;
    }
    if (k->o.init && !take_model(k, given(c, "seq-len"))) return false;
    while (!given(c, "seq-len") && m->seq_len > 16 && m->seq_len * 20 > c->tokens) m->seq_len /= 2;
    if (!m->vocab) m->vocab = 256;
    if (!k->o.init && !model_config(m, &k->config)) return false;
    k->parameters = count_parameters(&k->config);
    return k->parameters > 0;
}

/* ---- The batch ---- */

static int64_t replicas(const train_options *o) { return o->on.ranks / (o->on.tp * o->on.cp * o->on.pp); }

/* Returns the power of two that is nearest to v. */
static double near_power(double v) { return exp2(round(log2(v))); }

/* A run should have some thousand steps. Small batches learn more from each token; large ones use a machine better. */
void candidate_choose_batch(const chooser *c, candidate *k, double tokens) {
    enum { STEPS = 4000, LEAST = 1024, MOST = 1 << 19 };
    train_options *o = &k->o;
    double batch = near_power(fmin(fmax(tokens / STEPS, LEAST), MOST)) / (double)o->model.seq_len;
    int64_t unit = o->accumulate * replicas(o), most = c->tokens / o->model.seq_len;
    int64_t n = (int64_t)fmin(fmax(batch, 1), (double)(most > 0 ? most : 1));
    if (!given(c, "batch")) o->batch = n < unit ? unit : n / unit * unit;
}

/* Cuts the batch into twice as many micro-batches or, if --batch is given, the next larger number of them that divides
 * it. A batch that was not given becomes smaller if the number does not divide it. Returns false if there is no such
 * number. */
static bool cut_batch(const chooser *c, train_options *o) {
    int64_t n = replicas(o), most = o->batch / n, next = 2 * o->accumulate;
    if (given(c, "micro-batches")) return false;
    while (given(c, "batch") && next <= most && o->batch % (next * n)) next += o->accumulate;
    if (next > most) return false;
    o->accumulate = next;
    o->batch -= o->batch % (next * n);
    return true;
}

verdict candidate_fit(chooser *c, candidate *k) {
    bool open = choose_is_size_open(&k->o, c->p);
    for (;; k->cut = true) {
        if (open) hold_errors(c->refusal, sizeof c->refusal);
        bool good = need_of_step(&k->o, &k->config, &k->need);
        hold_errors(NULL, 0);
        if (!good) return open ? UNDIVIDED : FAILED;
        if (room_holds(&c->room, &k->need)) return MEASURED;
        if (!cut_batch(c, &k->o)) return TOO_LARGE;
    }
}

bool candidate_refuse(const chooser *c, const candidate *k) {
    char room[64], need[32];
    fail("a step of %" PRId64 " x %" PRId64 " tokens in %" PRId64 " micro-batch%s takes %s with a model of %" PRId64
         " layers of %" PRId64 ", more than three quarters of %s; give a smaller model, a shorter --seq-len, or "
         "--recompute full",
         k->o.batch, k->o.model.seq_len, k->o.accumulate, k->o.accumulate > 1 ? "es" : "",
         need_text(&c->room, &k->need, need, sizeof need), k->config.layers, k->config.hidden,
         room_text(&c->room, &k->need, room, sizeof room));
    return false;
}
