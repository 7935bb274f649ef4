/* A call of a generator: checks of arguments, and the loop. */
#include "base/options.h"
#include "base/os.h"
#include "base/text.h"
#include "generate/generator.h"

static const char who[] = "tg_generator_run";

/* ---- Checks ---- */

static tg_status check_stops(const tg_generator *g, const tg_generate_opts *o) {
    if (o->n_stop_ids < 0 || (o->n_stop_ids && !o->stop_ids) || o->n_stop < 0 || (o->n_stop && !o->stop))
        return tg_fail(g->ctx, TG_ERR_ARGUMENT,
                       "%s: n_stop_ids is %lld and n_stop %lld, expected the lengths of arrays", who,
                       (long long)o->n_stop_ids, (long long)o->n_stop);
    if (o->n_stop && !o->tokenizer)
        return tg_fail(g->ctx, TG_ERR_ARGUMENT,
                       "%s: stop strings are given without a tokenizer, but only text can have them; give the "
                       "tokenizer, or stop_ids",
                       who);
    for (int64_t i = 0; i < o->n_stop; i++) {
        size_t n = o->stop[i] ? strlen(o->stop[i]) : 0, wrong = n ? tg_utf8_check(o->stop[i], n) : 0;
        if (!n)
            return tg_fail(g->ctx, TG_ERR_ARGUMENT, "%s: stop[%lld] is %s, expected a string that is not empty", who,
                           (long long)i, o->stop[i] ? "empty" : "NULL");
        if (wrong < n) /* such a string might end a text within a character */
            return tg_fail(g->ctx, TG_ERR_ARGUMENT, "%s: stop[%lld] is not UTF-8 at offset %zu", who, (long long)i,
                           wrong);
    }
    return TG_OK;
}

static tg_status check_call(const tg_generator *g, const tg_generate_opts *o) {
    if (o->tokens < 1 || o->samples < 1 || o->samples > 1000000)
        return tg_fail(g->ctx, TG_ERR_ARGUMENT,
                       "%s: tokens is %lld and samples %lld, expected 1 or more tokens, and 1 to 1000000 samples", who,
                       (long long)o->tokens, (long long)o->samples);
    if (o->top_logprobs < 0 || o->top_logprobs > 1000 || (o->top_logprobs && !o->logprobs))
        return tg_fail(g->ctx, TG_ERR_ARGUMENT,
                       "%s: top_logprobs is %lld%s, expected 0 to 1000, and 0 without logprobs", who,
                       (long long)o->top_logprobs, o->logprobs ? "" : " without logprobs");
    if (o->top_logprobs > g->vocab)
        return tg_fail(g->ctx, TG_ERR_ARGUMENT, "%s: top_logprobs is %lld, but the vocabulary has only %lld ids", who,
                       (long long)o->top_logprobs, (long long)g->vocab);
    TG_TRY(tg_sample_text_check(g, o->tokenizer));
    return check_stops(g, o);
}

static tg_status check_prompt(const tg_generator *g, const tg_prompt *p, int64_t i, bool slide) {
    if (!p->ids || p->count < 1)
        return tg_fail(g->ctx, TG_ERR_ARGUMENT, "%s: prompt %lld has %lld ids, expected 1 or more", who, (long long)i,
                       p->ids ? (long long)p->count : 0);
    if (p->count > g->o.positions && !slide)
        return tg_fail(g->ctx, TG_ERR_SHAPE,
                       "%s: prompt %lld has %lld tokens, but the generator has %lld positions; shorten it, or set "
                       "slide",
                       who, (long long)i, (long long)p->count, (long long)g->o.positions);
    for (int64_t k = 0; k < p->count; k++)
        if (p->ids[k] < 0 || p->ids[k] >= g->vocab)
            return tg_fail(g->ctx, TG_ERR_DATA, "%s: prompt %lld has id %lld at %lld, expected 0 to %lld", who,
                           (long long)i, (long long)p->ids[k], (long long)k, (long long)g->vocab - 1);
    return TG_OK;
}

static tg_status check_prompts(const tg_generator *g, const tg_prompt *prompts, int64_t n, bool slide) {
    if (!prompts || n < 1)
        return tg_fail(g->ctx, TG_ERR_ARGUMENT, "%s: %lld prompts are given, expected 1 or more", who,
                       prompts ? (long long)n : 0);
    for (int64_t i = 0; i < n; i++) TG_TRY(check_prompt(g, &prompts[i], i, slide));
    return TG_OK;
}

static tg_status check(tg_generator *g, const tg_prompt *prompts, int64_t n, const tg_generate_opts *opts,
                       tg_generate_opts *o, tg_sampling_opts *sampling) {
    TG_TRY(tg_options(g->ctx, o, &tg_generate_opts_struct, opts, who));
    TG_TRY(tg_options(g->ctx, sampling, &tg_sampling_opts_struct, o->sampling, who));
    TG_TRY(tg_sampling_check(g->ctx, sampling, who));
    TG_TRY(check_call(g, o));
    return check_prompts(g, prompts, n, o->slide);
}

/* ---- The call ---- */

static bool has_work(const tg_generator *g) {
    for (int64_t i = 0; i < g->o.rows; i++)
        if (g->row[i].sample) return true;
    return g->waiting < g->n_samples;
}

static bool has_prompts(const tg_generator *g) {
    for (int64_t i = 0; i < g->o.rows; i++)
        if (g->row[i].prompting) return true;
    return false;
}

static tg_status generate(tg_generator *g) {
    while (!g->ended && has_work(g)) {
        TG_TRY(tg_rows_assign(g));
        TG_TRY(has_prompts(g) ? tg_generate_prompts(g) : tg_generate_continue(g));
    }
    return TG_OK;
}

/* After an error the contents of the caches are not known. */
static void leave_rows(tg_generator *g, bool failed) {
    for (int64_t i = 0; i < g->o.rows; i++) {
        tg_row_release(g, &g->row[i]);
        if (failed) g->row[i].cached = g->row[i].drafted = g->row[i].exact = 0;
    }
    tg_tape_reset(g->tape);
}

static void begin(tg_generator *g, const tg_generate_opts *o, const tg_sampling_opts *sampling) {
    tg_samples_close(g);
    g->call = *o;
    g->sampling = *sampling;
    g->calls++;
    g->waiting = 0;
    g->ended = false;
    g->stats = (tg_generate_stats){.size = sizeof g->stats};
    g->longest_stop = 0;
    for (int64_t i = 0; i < o->n_stop; i++)
        if (strlen(o->stop[i]) > g->longest_stop) g->longest_stop = strlen(o->stop[i]);
}

tg_status tg_generator_run(tg_generator *g, const tg_prompt *prompts, int64_t n, const tg_generate_opts *opts) {
    tg_generate_opts o;
    tg_sampling_opts sampling;
    double start = tg_system_now();
    if (!g) return TG_ERR_ARGUMENT;
    TG_TRY(g->ctx->run.status);
    if (g->running)
        return tg_fail(g->ctx, TG_ERR_STATE,
                       "%s: the generator is running a call, as in on_token; call it after that one has returned", who);
    TG_TRY(check(g, prompts, n, opts, &o, &sampling));
    begin(g, &o, &sampling);
    g->running = true;
    for (int64_t i = 0; i < n; i++) g->stats.prompt_tokens += prompts[i].count;
    tg_status status = tg_samples_open(g, prompts, n);
    if (status == TG_OK) status = generate(g);
    leave_rows(g, status != TG_OK);
    tg_status finished = tg_samples_finish(g);
    g->stats.seconds = tg_system_now() - start;
    g->running = false;
    return status == TG_OK ? finished : status;
}

/* ---- Results ---- */

const tg_generated *tg_generator_result(const tg_generator *g, int64_t prompt, int64_t sample) {
    if (!g || prompt < 0 || sample < 0 || sample >= g->call.samples) return NULL;
    if (prompt >= g->n_samples / g->call.samples) return NULL;
    const tg_sample *s = &g->sample[prompt * g->call.samples + sample];
    return s->released ? NULL : &s->result;
}

tg_status tg_generator_stats(const tg_generator *g, tg_generate_stats *s) {
    if (!g) return TG_ERR_ARGUMENT;
    TG_TRY(g->ctx->run.status);
    if (!s) return tg_fail(g->ctx, TG_ERR_ARGUMENT, "tg_generator_stats: s is NULL");
    TG_TRY(tg_size_check(g->ctx, s->size, sizeof *s, "tg_generator_stats"));
    tg_options_give(s, &g->stats);
    return TG_OK;
}
