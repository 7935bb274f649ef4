/* What tapegrad generate prints: text, ids, or one JSON object for each continuation. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "generate/generate.h"

/* ---- Pieces ---- */

static void print_ids(const int64_t *ids, int64_t n, bool first) {
    for (int64_t i = 0; i < n; i++) printf("%s%lld", first && !i ? "" : ",", (long long)ids[i]);
}

static void print_prompt(const generate_output *out, int64_t i) {
    const given_prompt *p = &out->prompts->at[i];
    if (out->ids) print_ids(p->ids.ids, p->ids.count, true);
    else if (p->text) fwrite(p->text, 1, p->n_text, stdout);
}

static void flush(generate_output *out) { out->broken = out->broken || fflush(stdout) != 0; }

/* ---- JSON ---- */

static const char *finish_name(tg_finish finish) {
    static const char *const names[] = {
        [TG_FINISH_NONE] = "none",       [TG_FINISH_LENGTH] = "length",       [TG_FINISH_POSITIONS] = "positions",
        [TG_FINISH_STOP_ID] = "stop_id", [TG_FINISH_STOP_TEXT] = "stop_text", [TG_FINISH_CALLER] = "interrupted",
    };
    return names[finish];
}

static json_t *ids_json(const int64_t *ids, int64_t n) {
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
    return list;
}

static json_t *top_json(const tg_generated *r, int64_t i) {
    json_t *list = json_array();
    for (int64_t k = i * r->n_top; k < (i + 1) * r->n_top; k++)
        json_array_append_new(list, json_pack("{s:I, s:f}", "id", (json_int_t)r->top_id[k], "logprob",
                                              r->top_logprob[k]));
    return list;
}

static json_t *sample_json(const generate_output *out, const tg_generated *r, int64_t prompt, int64_t sample) {
    json_t *j = json_pack("{s:I, s:I, s:s, s:o}", "prompt", (json_int_t)prompt, "sample", (json_int_t)sample, "finish",
                          finish_name(r->finish), "ids", ids_json(r->ids, r->count));
    if (r->text && !out->ids) json_object_set_new(j, "text", json_stringn(r->text, r->n_text));
    if (!r->logprob) return j;
    json_t *list = json_array(), *tops = json_array();
    for (int64_t i = 0; i < r->count; i++) {
        json_array_append_new(list, json_real(r->logprob[i]));
        json_array_append_new(tops, top_json(r, i));
    }
    json_object_set_new(j, "logprobs", list);
    if (r->n_top) json_object_set_new(j, "top_logprobs", tops);
    else json_decref(tops);
    return j;
}

/* ---- Continuations that are printed as a whole ---- */

static void print_json_line(generate_output *out, const tg_generated *r, int64_t prompt, int64_t sample) {
    json_t *j = sample_json(out, r, prompt, sample);
    char *text = json_text(j, JSON_COMPACT);
    json_decref(j);
    if (text) puts(text);
    else if (!out->broken) fail("no memory for a continuation as JSON");
    out->broken = out->broken || !text;
    free(text);
}

static void print_titled(const generate_output *out, const tg_generated *r, int64_t prompt, int64_t sample) {
    if (prompt || sample) putchar('\n');
    printf("--- prompt %lld", (long long)prompt + 1);
    if (out->o->samples > 1) printf(", sample %lld", (long long)sample + 1);
    printf(" ---\n");
    print_prompt(out, prompt);
    if (out->ids) print_ids(r->ids, r->count, false);
    else if (r->text) fwrite(r->text, 1, r->n_text, stdout);
    putchar('\n');
}

/* Prints the continuations that have ended, up to the first one that has not, and frees them. */
static void print_ended(generate_output *out) {
    static const double none = 0;
    const tg_generated empty = {.text = "", .logprob = out->o->logprobs >= 0 ? &none : NULL,
                                .n_top = out->o->logprobs > 0 ? out->o->logprobs : 0, .finish = TG_FINISH_LENGTH};
    for (int64_t all = out->prompts->n * out->o->samples; out->printed < all; out->printed++) {
        int64_t prompt = out->printed / out->o->samples, sample = out->printed % out->o->samples;
        const tg_generated *r = out->o->tokens ? tg_generator_result(out->generator, prompt, sample) : &empty;
        if (!r || r->finish == TG_FINISH_NONE) return;
        if (out->o->json) print_json_line(out, r, prompt, sample);
        else print_titled(out, r, prompt, sample);
        tg_generator_release(out->generator, prompt, sample);
    }
}

/* ---- The interface ---- */

void output_begin(generate_output *out) {
    out->single = !out->o->json && out->prompts->n == 1 && out->o->samples == 1;
    if (!out->chief || !out->single) return;
    print_prompt(out, 0);
    set_line_open(true);
    flush(out);
}

tg_generate_next output_token(void *state, const tg_token *t) {
    generate_output *out = state;
    if (!out->chief || (!out->single && t->finish == TG_FINISH_NONE)) return TG_GENERATE_CONTINUE;
    if (!out->single) print_ended(out);
    else if (out->ids) print_ids(&t->id, 1, false);
    else fwrite(t->text, 1, t->n_text, stdout);
    flush(out);
    return out->broken ? TG_GENERATE_END : TG_GENERATE_CONTINUE; /* main prints why */
}

bool output_end(generate_output *out) {
    if (!out->chief) return true;
    if (out->single) {
        set_line_open(false);
        putchar('\n');
    } else {
        print_ended(out);
    }
    flush(out);
    return !out->broken;
}

void output_stats(const generate_output *out) {
    tg_generate_stats s = {.size = sizeof s};
    if (!out->chief || tg_generator_stats(out->generator, &s) != TG_OK) return;
    double rest = s.seconds - s.prompt_seconds;
    fprintf(stderr, "prompts: %lld tokens, %lld of them cached, in %.2f s (%.0f tokens/s)\n",
            (long long)s.prompt_tokens, (long long)s.cached_tokens, s.prompt_seconds,
            s.prompt_seconds > 0 ? (double)(s.prompt_tokens - s.cached_tokens) / s.prompt_seconds : 0);
    fprintf(stderr, "continuations: %lld tokens in %.2f s (%.1f tokens/s), %lld forwards\n", (long long)s.tokens, rest,
            rest > 0 ? (double)s.tokens / rest : 0, (long long)s.forwards);
    if (s.drafted)
        fprintf(stderr, "draft model: %lld tokens proposed, %lld accepted (%.0f %%)\n", (long long)s.drafted,
                (long long)s.accepted, 100 * (double)s.accepted / (double)s.drafted);
}
