/* The distribution from which a token is drawn: penalties, temperature, top_k, top_p and min_p. */
#include <float.h>
#include <math.h>

#include "base/memory/host_memory.h"
#include "base/options.h"
#include "core/context.h"
#include "generate/sampling.h"

/* ---- Memory ---- */

tg_status tg_sampler_open(tg_sampler *s, tg_ctx *ctx, int64_t vocab) {
    *s = (tg_sampler){.ctx = ctx, .vocab = vocab};
    s->count = tg_host_alloc(ctx, (size_t)vocab * sizeof *s->count);
    s->candidate = tg_host_alloc(ctx, (size_t)vocab * sizeof *s->candidate);
    if (s->count && s->candidate) return TG_OK;
    tg_sampler_close(s);
    return ctx->run.status;
}

void tg_sampler_close(tg_sampler *s) {
    if (s->count) tg_host_free(s->ctx, s->count, (size_t)s->vocab * sizeof *s->count);
    if (s->candidate) tg_host_free(s->ctx, s->candidate, (size_t)s->vocab * sizeof *s->candidate);
    *s = (tg_sampler){0};
}

tg_status tg_distribution_open(tg_ctx *ctx, tg_distribution *d, int64_t vocab) {
    d->id = tg_host_alloc(ctx, (size_t)vocab * sizeof *d->id);
    d->weight = tg_host_alloc(ctx, (size_t)vocab * sizeof *d->weight);
    return ctx->run.status;
}

void tg_distribution_close(tg_ctx *ctx, tg_distribution *d, int64_t vocab) {
    if (d->id) tg_host_free(ctx, d->id, (size_t)vocab * sizeof *d->id);
    if (d->weight) tg_host_free(ctx, d->weight, (size_t)vocab * sizeof *d->weight);
    *d = (tg_distribution){0};
}

/* ---- Checks ---- */

tg_status tg_sampling_check(tg_ctx *ctx, const tg_sampling_opts *o, const char *who) {
    const struct {
        const char *name, *expected;
        double value;
        bool good;
    } row[] = {
        {"temperature", "a finite number, 0 or more", o->temperature, isfinite(o->temperature) && o->temperature >= 0},
        {"top_k", "0 or more", (double)o->top_k, o->top_k >= 0},
        {"top_p", "a number above 0, up to 1", o->top_p, o->top_p > 0 && o->top_p <= 1},
        {"min_p", "a number from 0 to 1", o->min_p, o->min_p >= 0 && o->min_p <= 1},
        {"repetition_penalty", "a finite number above 0; 1 changes nothing", o->repetition_penalty,
         isfinite(o->repetition_penalty) && o->repetition_penalty > 0},
        {"presence_penalty", "a finite number", o->presence_penalty, isfinite(o->presence_penalty)},
        {"frequency_penalty", "a finite number", o->frequency_penalty, isfinite(o->frequency_penalty)},
    };
    for (int i = 0; i < TG_LEN(row); i++)
        if (!row[i].good)
            return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: %s is %g, expected %s", who, row[i].name, row[i].value,
                           row[i].expected);
    return TG_OK;
}

/* Passes over all logits keep this number of partial results in registers, so that no operation waits for the one
 * before it. */
enum { LANES = 8 };
#define TG_UNROLL _Pragma("GCC unroll 8")

/* Returns whether all numbers are finite. The product of any other number with 0 is NaN. */
static bool all_finite(const double *x, int64_t n) {
    double sum[LANES] = {0}, all = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        TG_UNROLL for (int l = 0; l < LANES; l++) sum[l] += x[i + l] * 0;
    for (; i < n; i++) all += x[i] * 0;
    for (int l = 0; l < LANES; l++) all += sum[l];
    return all == 0;
}

tg_status tg_logits_check(tg_ctx *ctx, const double *logits, int64_t vocab, int64_t count, const char *who) {
    if (all_finite(logits, vocab)) return TG_OK;
    for (int64_t i = 0; i < vocab; i++)
        if (!isfinite(logits[i]))
            return tg_fail(ctx, TG_ERR_DATA,
                           "%s: the logit of id %lld after %lld tokens is %s, expected a finite number: the model's "
                           "weights are not finite, or its dtype is too narrow for them",
                           who, (long long)i, (long long)count, isnan(logits[i]) ? "NaN" : "infinite");
    return TG_OK;
}

/* ---- Penalties ---- */

/* Returns x or, if it has overflowed, the greatest finite number of its sign. */
static double bounded(double x) { return x > DBL_MAX ? DBL_MAX : x < -DBL_MAX ? -DBL_MAX : x; }

/* Divides or multiplies the logits of the tokens ids[count] by the penalty. Each id counts once, because its mark is
 * cleared at its first use. */
static void penalize_repetition(tg_sampler *s, double *x, const int64_t *ids, int64_t count, double penalty) {
    if (penalty == 1) return;
    for (int64_t i = 0; i < count; i++) s->count[ids[i]] = 1;
    for (int64_t i = 0; i < count; i++) {
        if (!s->count[ids[i]]) continue;
        s->count[ids[i]] = 0;
        x[ids[i]] = bounded(x[ids[i]] > 0 ? x[ids[i]] / penalty : x[ids[i]] * penalty);
    }
}

/* Subtracts both penalties from the logits of the tokens ids[count], which were generated. */
static void penalize_presence(tg_sampler *s, double *x, const int64_t *ids, int64_t count, const tg_sampling_opts *o) {
    if (o->presence_penalty == 0 && o->frequency_penalty == 0) return;
    for (int64_t i = 0; i < count; i++) s->count[ids[i]]++;
    for (int64_t i = 0; i < count; i++) {
        if (!s->count[ids[i]]) continue;
        double more = o->frequency_penalty * (double)s->count[ids[i]];
        x[ids[i]] = bounded(x[ids[i]] - (o->presence_penalty + more));
        s->count[ids[i]] = 0;
    }
}

/* ---- The distribution ---- */

/* Returns the greatest of the n numbers and `top`. */
static double greatest(const double *x, int64_t n, double top) {
    double most[LANES];
    int64_t i = 0;
    for (int l = 0; l < LANES; l++) most[l] = top;
    for (; i + LANES <= n; i += LANES)
        TG_UNROLL for (int l = 0; l < LANES; l++) most[l] = x[i + l] > most[l] ? x[i + l] : most[l];
    for (; i < n; i++) top = x[i] > top ? x[i] : top;
    for (int l = 0; l < LANES; l++) top = most[l] > top ? most[l] : top;
    return top;
}

/* Returns the index of the greatest of the n > 0 numbers, or of the first one of several. Only the block that has it is
 * searched for its index. */
static int64_t likeliest(const double *x, int64_t n) {
    enum { BLOCK = 512 };
    double top = x[0];
    int64_t best = 0;
    for (int64_t i = 0; i < n; i += BLOCK) {
        double most = greatest(x + i, n - i < BLOCK ? n - i : BLOCK, top);
        if (most > top) best = i;
        top = most;
    }
    while (best < n - 1 && x[best] != top) best++;
    return best;
}

/* Adds a token to the distribution unless its weight is 0 or less than `least`. */
static void add(tg_distribution *d, tg_candidate c, double least) {
    if (c.weight < least || c.weight == 0) return;
    d->id[d->n] = c.id;
    d->weight[d->n++] = c.weight;
    d->sum += c.weight;
}

/* Stores candidates c[n], which may have any order, by rising id. */
static void store(tg_sampler *s, tg_distribution *d, const tg_candidate *c, int64_t n, double least) {
    d->n = 0;
    d->sum = 0;
    for (int64_t i = 0; i < n; i++) s->count[c[i].id] = i + 1;
    for (int64_t id = 0; id < s->vocab; id++) {
        if (!s->count[id]) continue;
        add(d, c[s->count[id] - 1], least);
        s->count[id] = 0;
    }
}

/* Collects the tokens that top_k keeps. Returns their number. */
static int64_t collect(tg_sampler *s, const double *x, int64_t top_k) {
    if (top_k > 0 && top_k < s->vocab) {
        tg_select_likeliest(x, s->vocab, top_k, s->candidate);
        return top_k;
    }
    for (int64_t i = 0; i < s->vocab; i++) s->candidate[i] = (tg_candidate){x[i], i};
    return s->vocab;
}

void tg_sampler_run(tg_sampler *s, double *logits, const int64_t *ids, int64_t count, int64_t prompt,
                    const tg_sampling_opts *o, tg_distribution *d) {
    penalize_repetition(s, logits, ids, count, o->repetition_penalty);
    penalize_presence(s, logits, ids + (count ? prompt : 0), count - prompt, o);
    int64_t best = likeliest(logits, s->vocab);
    if (o->temperature == 0 || o->top_k == 1) {
        d->n = 0;
        d->sum = 0;
        add(d, (tg_candidate){1, best}, 0);
        return;
    }
    tg_candidate *c = s->candidate;
    int64_t n = collect(s, logits, o->top_k);
    double top = logits[best], all = 0;
    for (int64_t i = 0; i < n; i++) all += c[i].weight = exp((c[i].weight - top) / o->temperature);
    if (o->top_p < 1) {
        int64_t kept = tg_select_sum(c, n, o->top_p * all);
        c += n - kept;
        n = kept;
    }
    store(s, d, c, n, o->min_p); /* the likeliest token weighs 1 */
}

/* ---- The public function ---- */

static tg_status check_ids(tg_ctx *ctx, const int64_t *ids, int64_t count, int64_t prompt, int64_t vocab) {
    if (count < 0 || prompt < 0 || prompt > count || (count && !ids))
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_sampling_probabilities: ids are %s, count is %lld and prompt %lld, expected count ids, of "
                       "which the first `prompt` are the prompt",
                       ids ? "given" : "NULL", (long long)count, (long long)prompt);
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return tg_fail(ctx, TG_ERR_DATA, "tg_sampling_probabilities: ids[%lld] is %lld, expected 0 to %lld",
                           (long long)i, (long long)ids[i], (long long)vocab - 1);
    return TG_OK;
}

tg_status tg_sampling_probabilities(tg_ctx *ctx, const double *logits, int64_t vocab, const int64_t *ids, int64_t count,
                                    int64_t prompt, const tg_sampling_opts *opts, double *p) {
    static const char who[] = "tg_sampling_probabilities";
    tg_sampling_opts o;
    tg_sampler s = {0};
    tg_distribution d = {0};
    if (!ctx) return TG_ERR_ARGUMENT;
    TG_TRY(ctx->run.status);
    TG_TRY(tg_options(ctx, &o, &tg_sampling_opts_struct, opts, who));
    TG_TRY(tg_sampling_check(ctx, &o, who));
    if (!logits || !p || vocab <= 0)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: logits are %s, p is %s and vocab is %lld, expected arrays of 1 or "
                       "more numbers", who, logits ? "given" : "NULL", p ? "given" : "NULL", (long long)vocab);
    TG_TRY(check_ids(ctx, ids, count, prompt, vocab));
    TG_TRY(tg_logits_check(ctx, logits, vocab, count, who));
    if (tg_sampler_open(&s, ctx, vocab) == TG_OK && tg_distribution_open(ctx, &d, vocab) == TG_OK) {
        if (p != logits) memcpy(p, logits, (size_t)vocab * sizeof *p);
        tg_sampler_run(&s, p, ids, count, prompt, &o, &d);
        memset(p, 0, (size_t)vocab * sizeof *p);
        for (int64_t i = 0; i < d.n; i++) p[d.id[i]] = d.weight[i] / d.sum;
    }
    tg_distribution_close(ctx, &d, vocab);
    tg_sampler_close(&s);
    return ctx->run.status;
}
