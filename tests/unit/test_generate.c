/* The generator: what a prompt gives is what the model alone gives, token by token, whatever else is computed at the
 * same time. */
#include "generate_world.h"

enum { TOKENS = 12 };

static const tg_sampling_opts *drawn(void) {
    static tg_sampling_opts o;
    o = *TG_SAMPLING(.temperature = 0.9, .top_k = 20, .top_p = 0.95, .min_p = 0.01, .repetition_penalty = 1.2,
                     .presence_penalty = 0.1, .frequency_penalty = 0.2, .seed = 3);
    return &o;
}

static void equals(const tg_generated *r, const int64_t *ids, int64_t n) {
    ck_assert_ptr_nonnull(r);
    ck_assert_int_eq(r->count, n);
    for (int64_t i = 0; i < n; i++) ck_assert_int_eq(r->ids[i], ids[i]);
}

/* ---- Equal to the model alone ---- */

/* Makes the samples of all prompts without a generator. */
static void make_plainly(tg_module *lm, const tg_sampling_opts *o, int64_t ids[PROMPTS][2][64]) {
    for (int i = 0; i < PROMPTS; i++)
        for (int s = 0; s < 2; s++) {
            memcpy(ids[i][s], prompts[i].ids, (size_t)prompts[i].count * sizeof(int64_t));
            continue_plainly(lm, ids[i][s], prompts[i].count, TOKENS, i, s, o);
        }
}

static void against_the_model(tg_gpt_arch arch, const tg_sampling_opts *o) {
    static const int64_t rows[] = {1, 3, 13, 5}, chunk[] = {512, 7, 64, 1};
    int64_t ids[PROMPTS][2][64];
    tg_module *lm = model(arch, 2, 1);
    make_plainly(lm, o, ids);
    for (int k = 0; k < 4; k++) {
        tg_generator *g = tg_generator_new(lm, TG_GENERATOR(.rows = rows[k], .chunk = chunk[k]));
        tg_generator_run(g, prompts, PROMPTS, TG_GENERATE(.tokens = TOKENS, .samples = 2, .sampling = o));
        for (int i = 0; i < PROMPTS; i++)
            for (int s = 0; s < 2; s++) {
                equals(tg_generator_result(g, i, s), ids[i][s] + prompts[i].count, TOKENS);
                ck_assert_int_eq(tg_generator_result(g, i, s)->finish, TG_FINISH_LENGTH);
            }
        ck_assert_ptr_null(tg_generator_result(g, PROMPTS, 0));
        ck_assert_ptr_null(tg_generator_result(g, INT64_MAX, 0)); /* the number of the sample would overflow */
        tg_generator_free(g);
    }
    tg_module_free(lm);
}

START_TEST(a_prompt_gives_what_the_model_gives) {
    begin();
    make_prompts();
    for (int arch = 0; arch < 2; arch++) {
        against_the_model(arch ? TG_LLAMA : TG_GPT2, drawn());
        against_the_model(arch ? TG_LLAMA : TG_GPT2, TG_SAMPLING(.temperature = 0));
    }
    end();
}
END_TEST

/* ---- Bits do not depend on what else is computed ---- */

/* Generates with log-probabilities, which show every bit of the logits, and stores them. */
static void all_logprobs(tg_module *lm, const tg_prompt *p, int64_t n, int64_t rows, int64_t chunk, double *out) {
    tg_generator *g = tg_generator_new(lm, TG_GENERATOR(.rows = rows, .chunk = chunk));
    tg_generator_run(g, p, n, TG_GENERATE(.tokens = TOKENS, .sampling = TG_SAMPLING(.temperature = 0),
                                          .logprobs = true, .top_logprobs = 3));
    for (int64_t i = 0; i < n; i++) {
        const tg_generated *r = tg_generator_result(g, i, 0);
        ck_assert_int_eq(r->count, TOKENS);
        memcpy(out + i * TOKENS * 4, r->logprob, TOKENS * sizeof *out);
        memcpy(out + i * TOKENS * 4 + TOKENS, r->top_logprob, 3 * TOKENS * sizeof *out);
    }
    tg_generator_free(g);
}

static void bits_in(tg_dtype dtype, tg_gpt_arch arch) {
    double one[PROMPTS * TOKENS * 4], many[PROMPTS * TOKENS * 4];
    for (int threads = 1; threads <= 2; threads++) {
        begin_in(dtype, threads);
        tg_module *lm = model(arch, 2, 1);
        for (int i = 0; i < PROMPTS && threads == 1; i++) {
            const tg_prompt p = prompts[i];
            all_logprobs(lm, &p, 1, 1, 512, one + i * TOKENS * 4);
        }
        for (int rows = 2 * threads; rows <= 6; rows += 4) {
            all_logprobs(lm, prompts, PROMPTS, rows, 512, many);
            ck_assert_int_eq(memcmp(one, many, sizeof one), 0);
            all_logprobs(lm, prompts, PROMPTS, rows, 5, many);
            ck_assert_int_eq(memcmp(one, many, sizeof one), 0);
        }
        tg_module_free(lm);
        end();
    }
}

START_TEST(bits_do_not_depend_on_the_batch) {
    make_prompts();
    const tg_dtype dtypes[] = {TG_F64, TG_F32, TG_BF16, TG_F16};
    for (int d = 0; d < 4; d++)
        for (int arch = 0; arch < 2; arch++) bits_in(dtypes[d], arch ? TG_LLAMA : TG_GPT2);
}
END_TEST

/* ---- Ends ---- */

START_TEST(a_stop_id_ends_a_sample) {
    begin();
    make_prompts();
    tg_module *lm = model(TG_LLAMA, 2, 1);
    tg_generator *g = tg_generator_new(lm, TG_GENERATOR(.rows = 2));
    int64_t ids[64];
    memcpy(ids, prompts[3].ids, (size_t)prompts[3].count * sizeof *ids);
    continue_plainly(lm, ids, prompts[3].count, TOKENS, 3, 0, drawn());
    const int64_t *own = ids + prompts[3].count, stop[] = {49, own[6]};
    int64_t n = 0;
    while (own[n] != stop[0] && own[n] != stop[1]) n++;
    tg_generator_run(g, prompts, PROMPTS,
                     TG_GENERATE(.tokens = TOKENS, .sampling = drawn(), .stop_ids = stop, .n_stop_ids = 2));
    equals(tg_generator_result(g, 3, 0), own, n + 1);
    ck_assert_int_eq(tg_generator_result(g, 3, 0)->finish, TG_FINISH_STOP_ID);
    tg_generator_free(g);
    tg_module_free(lm);
    end();
}
END_TEST

START_TEST(positions_end_a_sample_or_slide) {
    begin();
    make_prompts();
    tg_module *lm = model(TG_GPT2, 1, 1);
    tg_generator *g = tg_generator_new(lm, TG_GENERATOR(.rows = 2, .positions = 20));
    tg_generator_run(g, prompts, PROMPTS, TG_GENERATE(.tokens = 30, .sampling = TG_SAMPLING(.temperature = 0)));
    for (int i = 0; i < PROMPTS; i++) {
        const tg_generated *r = tg_generator_result(g, i, 0);
        ck_assert_int_eq(r->finish, TG_FINISH_POSITIONS);
        ck_assert_int_eq(r->count, 21 - prompts[i].count);
    }
    tg_generator_run(g, prompts, 2,
                     TG_GENERATE(.tokens = 50, .sampling = TG_SAMPLING(.temperature = 0), .slide = true));
    const tg_generated *r = tg_generator_result(g, 1, 0);
    ck_assert_int_eq(r->count, 50);
    int64_t ids[128], n = prompts[1].count; /* at 21 tokens the newest 10 are a new sequence */
    memcpy(ids, prompts[1].ids, (size_t)n * sizeof *ids);
    continue_plainly(lm, ids, n, 21 - n, 1, 0, TG_SAMPLING(.temperature = 0));
    continue_plainly(lm, ids + 11, 10, 11, 1, 0, TG_SAMPLING(.temperature = 0));
    equals(&(tg_generated){.count = 32 - n, .ids = r->ids}, ids + n, 32 - n);
    tg_generator_run(g, &(tg_prompt){prompt_ids[2], 24}, 1,
                     TG_GENERATE(.tokens = 1, .sampling = TG_SAMPLING(.temperature = 0), .slide = true));
    memcpy(ids, prompt_ids[2] + 4, 20 * sizeof *ids);
    continue_plainly(lm, ids, 20, 1, 0, 0, TG_SAMPLING(.temperature = 0));
    equals(tg_generator_result(g, 0, 0), ids + 20, 1);
    tg_generator_run(g, &(tg_prompt){prompt_ids[2], 24}, 1, NULL);
    fails(TG_ERR_SHAPE, "prompt 0 has 24 tokens, but the generator has 20 positions; shorten it, or set slide");
    tg_generator_free(g);
    tg_module_free(lm);
    end();
}
END_TEST

/* A prompt that fills all positions slides with its first token, before further samples have taken over its row. */
START_TEST(samples_of_a_full_prompt_slide) {
    begin();
    make_prompts();
    tg_module *lm = model(TG_GPT2, 1, 1);
    int64_t ids[8];
    for (int rows = 1; rows <= 2; rows++) {
        tg_generator *g = tg_generator_new(lm, TG_GENERATOR(.rows = rows, .positions = prompts[1].count));
        tg_generator_run(g, prompts + 1, 1, TG_GENERATE(.tokens = 8, .samples = 2, .sampling = drawn(), .slide = true));
        const tg_generated *r = tg_generator_result(g, 0, 1);
        if (rows == 2) equals(r, ids, 8);
        else memcpy(ids, r->ids, sizeof ids);
        tg_generator_free(g);
    }
    tg_module_free(lm);
    end();
}
END_TEST

/* ---- Callbacks ---- */

typedef struct seen {
    int64_t next[PROMPTS], ids[PROMPTS][64], calls;
    tg_generate_next answer;
    int64_t at; /* the call that gets the answer */
} seen;

static tg_generate_next see(void *state, const tg_token *t) {
    seen *s = state;
    ck_assert_int_eq(t->index, s->next[t->prompt]);
    ck_assert(isnan(t->logprob));
    s->ids[t->prompt][s->next[t->prompt]++] = t->id;
    return ++s->calls == s->at ? s->answer : TG_GENERATE_CONTINUE;
}

START_TEST(the_callback_sees_each_token_and_ends_samples) {
    begin();
    make_prompts();
    tg_module *lm = model(TG_LLAMA, 1, 1);
    tg_generator *g = tg_generator_new(lm, TG_GENERATOR(.rows = 3));
    seen all = {.at = 0}, one = {.answer = TG_GENERATE_END_SAMPLE, .at = 1};
    seen none = {.answer = TG_GENERATE_END, .at = 9}, first = {.answer = TG_GENERATE_END, .at = 1};
    tg_generator_run(g, prompts, PROMPTS, TG_GENERATE(.tokens = TOKENS, .on_token = see, .state = &all));
    for (int i = 0; i < PROMPTS; i++) equals(tg_generator_result(g, i, 0), all.ids[i], TOKENS);
    tg_generator_run(g, prompts, PROMPTS, TG_GENERATE(.tokens = TOKENS, .on_token = see, .state = &one));
    int ended = 0;
    for (int i = 0; i < PROMPTS; i++) {
        const tg_generated *r = tg_generator_result(g, i, 0);
        ended += r->finish == TG_FINISH_CALLER;
        equals(r, all.ids[i], r->finish == TG_FINISH_CALLER ? 1 : TOKENS);
    }
    ck_assert_int_eq(ended, 1);
    tg_generator_run(g, prompts, PROMPTS, TG_GENERATE(.tokens = TOKENS, .on_token = see, .state = &none));
    ck_assert_int_eq(none.calls, 9);
    for (int i = 0; i < PROMPTS; i++) ck_assert_int_eq(tg_generator_result(g, i, 0)->finish, TG_FINISH_CALLER);
    tg_generator_run(g, prompts, PROMPTS, TG_GENERATE(.tokens = TOKENS, .on_token = see, .state = &first));
    ck_assert_int_eq(first.calls, 1); /* the other prompts of the same forward get no token */
    tg_generator_free(g);
    tg_module_free(lm);
    end();
}
END_TEST

/* The sample that the first call ends, and the id of its token. */
typedef struct ended {
    const tg_generator *g;
    int64_t calls, prompt, id;
} ended;

static tg_generate_next end_first(void *state, const tg_token *t) {
    ended *e = state;
    if (e->calls++ == 0) {
        e->prompt = t->prompt, e->id = t->id;
        return TG_GENERATE_END_SAMPLE;
    }
    equals(tg_generator_result(e->g, e->prompt, 0), &e->id, 1);
    ck_assert_int_eq(tg_generator_result(e->g, e->prompt, 0)->finish, TG_FINISH_CALLER);
    return TG_GENERATE_CONTINUE;
}

START_TEST(later_callbacks_see_the_result_of_a_sample_that_one_ended) {
    begin();
    make_prompts();
    tg_module *lm = model(TG_LLAMA, 1, 1);
    tg_generator *g = tg_generator_new(lm, TG_GENERATOR(.rows = 3));
    ended e = {.g = g};
    tg_generator_run(g, prompts, PROMPTS, TG_GENERATE(.tokens = TOKENS, .on_token = end_first, .state = &e));
    ck_assert_int_eq(e.calls, 1 + (PROMPTS - 1) * TOKENS);
    tg_generator_free(g);
    tg_module_free(lm);
    end();
}
END_TEST

typedef struct inner_call {
    tg_generator *g;
    bool frees;
} inner_call;

static tg_generate_next call_again(void *state, const tg_token *t) {
    const inner_call *c = state;
    (void)t;
    if (c->frees)
        tg_generator_free(c->g);
    else
        tg_generator_run(c->g, prompts, 1, NULL);
    return TG_GENERATE_CONTINUE;
}

START_TEST(a_generator_runs_one_call_at_a_time) {
    begin();
    make_prompts();
    tg_module *lm = model(TG_LLAMA, 1, 1);
    inner_call c = {.g = tg_generator_new(lm, TG_GENERATOR(.rows = 3))};
    for (int i = 0; i < 2; i++) {
        c.frees = i;
        tg_generator_run(c.g, prompts, PROMPTS, TG_GENERATE(.tokens = TOKENS, .on_token = call_again, .state = &c));
        fails(TG_ERR_STATE, c.frees ? "tg_generator_free: the generator is running a call, as in on_token"
                                    : "tg_generator_run: the generator is running a call, as in on_token");
        ck_assert_int_eq(tg_generator_run(c.g, prompts, PROMPTS, NULL), TG_OK);
    }
    tg_generator_free(c.g);
    tg_module_free(lm);
    end();
}
END_TEST

/* ---- The cache ---- */

static tg_generate_stats stats(const tg_generator *g) {
    tg_generate_stats s = {.size = sizeof s};
    ck_assert_int_eq(tg_generator_stats(g, &s), TG_OK);
    return s;
}

START_TEST(a_prompt_is_computed_once) {
    begin();
    make_prompts();
    tg_module *lm = model(TG_LLAMA, 2, 1);
    tg_generator *g = tg_generator_new(lm, TG_GENERATOR(.rows = 2));
    const tg_sampling_opts *greedy = TG_SAMPLING(.temperature = 0);
    tg_generator_run(g, &prompts[5], 1, TG_GENERATE(.tokens = 5, .sampling = greedy));
    ck_assert_int_eq(stats(g).cached_tokens, 0);
    int64_t ids[64], n = prompts[5].count + 3; /* the next turn: the answer, and more */
    memcpy(ids, prompts[5].ids, (size_t)prompts[5].count * sizeof *ids);
    memcpy(ids + prompts[5].count, tg_generator_result(g, 0, 0)->ids, 3 * sizeof *ids);
    ids[n++] = 7, ids[n++] = 8;
    tg_generator_run(g, &(tg_prompt){ids, n}, 1, TG_GENERATE(.tokens = TOKENS, .sampling = greedy));
    ck_assert_int_eq(stats(g).cached_tokens, n - 2);
    ck_assert_int_eq(stats(g).prompt_tokens, n);
    int64_t want[64];
    memcpy(want, ids, sizeof want);
    continue_plainly(lm, want, n, TOKENS, 0, 0, greedy);
    equals(tg_generator_result(g, 0, 0), want + n, TOKENS);
    tg_generator_free(g);
    tg_module_free(lm);
    end();
}
END_TEST

int main(void) {
    const TTest *tests[] = {a_prompt_gives_what_the_model_gives,
                            bits_do_not_depend_on_the_batch,
                            a_stop_id_ends_a_sample,
                            positions_end_a_sample_or_slide,
                            samples_of_a_full_prompt_slide,
                            the_callback_sees_each_token_and_ends_samples,
                            later_callbacks_see_the_result_of_a_sample_that_one_ended,
                            a_generator_runs_one_call_at_a_time,
                            a_prompt_is_computed_once};
    return tg_check_main("generate", tests, sizeof tests / sizeof *tests);
}
