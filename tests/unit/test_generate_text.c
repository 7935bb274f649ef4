/* The text of samples: stop strings, what is held back, whole characters, and log-probabilities of tokens. */
#include <tapegrad/tokenizer.h>

#include "generate_world.h"

enum { TOKENS = 24, BYTES = 256 };

static tg_module *byte_model(void) {
    tg_draws_step(ctx, 1);
    return tg_gpt_new(ctx, TG_GPT(.arch = TG_LLAMA, .vocab = BYTES, .layers = 1, .heads = 2, .hidden = 16,
                                  .positions = 64, .init_std = 0.5));
}

typedef struct shown {
    char text[4096];
    size_t n;
    int64_t tokens;
    tg_finish finish;
} shown;

static tg_generate_next show(void *state, const tg_token *t) {
    shown *s = state;
    memcpy(s->text + s->n, t->text, t->n_text);
    s->n += t->n_text;
    s->tokens++;
    s->finish = t->finish;
    return TG_GENERATE_CONTINUE;
}

static bool is_ascii(const char *three) {
    for (int i = 0; i < 3; i++)
        if (three[i] <= 0) return false;
    return true;
}

/* Continues a prompt of text, and stores what is shown. */
static const tg_generated *run(tg_generator *g, const tg_tokenizer *k, uint64_t seed, const char *const *stop,
                               int64_t n_stop, shown *s) {
    static const int64_t ids[] = {'o', 'n', 'c', 'e'};
    *s = (shown){.n = 0};
    tg_generator_run(g, &(tg_prompt){ids, 4}, 1,
                     TG_GENERATE(.tokens = TOKENS, .tokenizer = k, .stop = stop, .n_stop = n_stop, .on_token = show,
                                 .state = s, .sampling = TG_SAMPLING(.temperature = 3, .seed = seed)));
    return tg_generator_result(g, 0, 0);
}

START_TEST(a_stop_string_ends_the_text_before_it) {
    begin();
    shown s, whole;
    tg_module *lm = byte_model();
    tg_tokenizer *k = tg_tokenizer_new_bytes(ctx);
    tg_generator *g = tg_generator_new(lm, NULL);
    int stopped = 0;
    for (uint64_t seed = 0; seed < 150; seed++) {
        const tg_generated *r = run(g, k, seed, NULL, 0, &whole);
        ck_assert_uint_eq(r->n_text, whole.n);
        ck_assert_int_eq(memcmp(r->text, whole.text, whole.n), 0);
        whole.text[whole.n] = 0;
        char stop[4] = {0};
        memcpy(stop, whole.text + 3 + seed % 5, 3);
        if (!is_ascii(stop)) continue; /* a part of a character is no stop string */
        const char *const stops[] = {"never in it", stop};
        r = run(g, k, seed, stops, 2, &s);
        ck_assert_int_eq(r->finish, TG_FINISH_STOP_TEXT);
        ck_assert_int_eq(s.finish, TG_FINISH_STOP_TEXT);
        ck_assert_int_eq(r->count, s.tokens);
        ck_assert_uint_eq(r->n_text, (size_t)(strstr(whole.text, stop) - whole.text));
        ck_assert_uint_eq(s.n, r->n_text);
        ck_assert_int_eq(memcmp(s.text, whole.text, s.n), 0);
        stopped++;
    }
    ck_assert_int_gt(stopped, 5);
    tg_generator_free(g);
    tg_tokenizer_free(k);
    tg_module_free(lm);
    end();
}
END_TEST

START_TEST(what_may_be_a_stop_string_is_shown_if_it_is_none) {
    begin();
    shown s, whole;
    tg_module *lm = byte_model();
    tg_tokenizer *k = tg_tokenizer_new_bytes(ctx);
    tg_generator *g = tg_generator_new(lm, NULL);
    for (uint64_t seed = 0; seed < 20; seed++) {
        run(g, k, seed, NULL, 0, &whole);
        char almost[32];
        size_t n = whole.n > 8 ? 8 : whole.n;
        while (n && n < whole.n && (whole.text[n] & 0xC0) == 0x80) n--; /* whole characters */
        snprintf(almost, sizeof almost, "%.*s never", (int)n, whole.text);
        const char *const stops[] = {almost};
        if (memchr(whole.text, 0, whole.n)) continue;
        run(g, k, seed, stops, 1, &s);
        ck_assert_uint_eq(s.n, whole.n);
        ck_assert_int_eq(memcmp(s.text, whole.text, s.n), 0);
    }
    tg_generator_free(g);
    tg_tokenizer_free(k);
    tg_module_free(lm);
    end();
}
END_TEST

/* Checks that each piece that is shown is UTF-8 by itself. */
static tg_generate_next is_utf8(void *state, const tg_token *t) {
    const unsigned char *p = (const unsigned char *)t->text, *last = p + t->n_text;
    (void)state;
    while (p < last) {
        int n = *p < 0x80 ? 1 : *p >= 0xF0 ? 4 : *p >= 0xE0 ? 3 : *p >= 0xC2 ? 2 : 0;
        ck_assert(n > 0 && last - p >= n);
        for (int i = 1; i < n; i++) ck_assert((p[i] & 0xC0) == 0x80);
        p += n;
    }
    return TG_GENERATE_CONTINUE;
}

START_TEST(pieces_are_whole_characters) {
    begin();
    tg_module *lm = byte_model();
    tg_tokenizer *k = tg_tokenizer_new_bytes(ctx);
    tg_generator *g = tg_generator_new(lm, TG_GENERATOR(.rows = 4));
    const int64_t ids[] = {0xE2, 0x82};
    tg_generator_run(g, &(tg_prompt){ids, 2}, 1,
                     TG_GENERATE(.tokens = 60, .samples = 20, .tokenizer = k, .on_token = is_utf8,
                                 .sampling = TG_SAMPLING(.temperature = 5)));
    tg_generator_free(g);
    tg_tokenizer_free(k);
    tg_module_free(lm);
    end();
}
END_TEST

/* Returns *state after a byte that begins a character of several bytes. */
static tg_generate_next end_in_character(void *state, const tg_token *t) {
    return t->id >= 0xC2 && t->id <= 0xF4 ? *(const tg_generate_next *)state : TG_GENERATE_CONTINUE;
}

/* Checks that the text of a sample is all that the decoder makes of its tokens. */
static void has_whole_text(const tg_tokenizer *k, int64_t prompt, const tg_generated *r) {
    tg_decoder *d = tg_decoder_new(k, true);
    size_t n, at = 0;
    tg_decoder_push(d, prompt, NULL);
    for (int64_t i = 0; i <= r->count; i++) {
        const char *text = i < r->count ? tg_decoder_push(d, r->ids[i], &n) : tg_decoder_finish(d, &n);
        ck_assert_uint_le(at + n, r->n_text);
        ck_assert_int_eq(memcmp(r->text + at, text, n), 0);
        at += n;
    }
    ck_assert_uint_eq(at, r->n_text);
    tg_decoder_free(d);
}

START_TEST(a_sample_has_its_whole_text_however_it_ends) {
    enum { SAMPLES = 20 };
    begin();
    tg_module *lm = byte_model();
    tg_tokenizer *k = tg_tokenizer_new_bytes(ctx);
    tg_generator *g = tg_generator_new(lm, TG_GENERATOR(.rows = 4));
    static const int64_t ids[] = {'a'};
    for (tg_generate_next next = TG_GENERATE_CONTINUE; next <= TG_GENERATE_END; next++) {
        int ended = 0;
        tg_generator_run(g, &(tg_prompt){ids, 1}, 1,
                         TG_GENERATE(.tokens = 40, .samples = SAMPLES, .tokenizer = k, .on_token = end_in_character,
                                     .state = &next, .sampling = TG_SAMPLING(.temperature = 5)));
        for (int i = 0; i < SAMPLES; i++) {
            const tg_generated *r = tg_generator_result(g, 0, i);
            has_whole_text(k, *ids, r);
            ended += r->finish == TG_FINISH_CALLER && r->count;
        }
        ck_assert_int_ge(ended, next == TG_GENERATE_CONTINUE ? 0 : next == TG_GENERATE_END_SAMPLE ? 10 : 1);
    }
    tg_generator_free(g);
    tg_tokenizer_free(k);
    tg_module_free(lm);
    end();
}
END_TEST

static tg_generate_next break_context(void *state, const tg_token *t) {
    (void)t;
    tg_ctx_fail(state, TG_ERR_IO, "the tokenizer's context is broken");
    return TG_GENERATE_CONTINUE;
}

/* The second sample needs a decoder after the callback of the first one has recorded an error in the other context. */
START_TEST(an_error_of_the_tokenizers_context_is_passed_on) {
    begin();
    tg_module *lm = byte_model();
    tg_ctx *other = tg_ctx_new(TG_CONFIG(.threads = 1));
    tg_tokenizer *k = tg_tokenizer_new_bytes(other);
    tg_generator *g = tg_generator_new(lm, TG_GENERATOR(.rows = 1));
    const int64_t ids[] = {'a'};
    ck_assert_int_eq(tg_generator_run(g, &(tg_prompt){ids, 1}, 1,
                                      TG_GENERATE(.tokens = 2, .samples = 2, .tokenizer = k, .state = other,
                                                  .on_token = break_context)),
                     TG_ERR_IO);
    fails(TG_ERR_IO, "the tokenizer's context is broken");
    tg_generator_free(g);
    tg_tokenizer_free(k);
    tg_ctx_free(other);
    tg_module_free(lm);
    end();
}
END_TEST

START_TEST(log_probabilities_are_the_models) {
    begin();
    make_prompts();
    tg_module *lm = model(TG_LLAMA, 2, 1);
    tg_generator *g = tg_generator_new(lm, NULL);
    tg_generator_run(g, &prompts[4], 1,
                     TG_GENERATE(.tokens = 8, .logprobs = true, .top_logprobs = VOCAB,
                                 .sampling = TG_SAMPLING(.temperature = 2, .top_k = 5, .repetition_penalty = 2)));
    const tg_generated *r = tg_generator_result(g, 0, 0);
    int64_t ids[64], n = prompts[4].count;
    double x[64 * VOCAB];
    memcpy(ids, prompts[4].ids, (size_t)n * sizeof *ids);
    memcpy(ids + n, r->ids, 8 * sizeof *ids);
    tg_tape *t = tg_tape_new(ctx);
    tg_read_f64(tg_log_softmax(t, tg_gpt_logits(lm, t, tg_from_host(ctx, TG_I64, TG_SHAPE(1, n + 8), ids)), 2), x,
                (n + 8) * VOCAB);
    for (int i = 0; i < 8; i++) {
        const double *row = x + (n + i - 1) * VOCAB;
        ck_assert_double_eq_tol(r->logprob[i], row[r->ids[i]], 1e-9);
        for (int k = 0; k < VOCAB; k++) {
            ck_assert_double_eq_tol(r->top_logprob[i * VOCAB + k], row[r->top_id[i * VOCAB + k]], 1e-9);
            if (k) ck_assert(r->top_logprob[i * VOCAB + k] <= r->top_logprob[i * VOCAB + k - 1]);
        }
    }
    tg_tape_free(t);
    tg_generator_free(g);
    tg_module_free(lm);
    end();
}
END_TEST

int main(void) {
    const TTest *tests[] = {a_stop_string_ends_the_text_before_it,
                            what_may_be_a_stop_string_is_shown_if_it_is_none,
                            pieces_are_whole_characters,
                            an_error_of_the_tokenizers_context_is_passed_on,
                            a_sample_has_its_whole_text_however_it_ends,
                            log_probabilities_are_the_models};
    return tg_check_main("generate_text", tests, sizeof tests / sizeof *tests);
}
