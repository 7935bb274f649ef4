/* Speculative decoding: greedy tokens and their bits are those of the model alone, and the distribution of drawn tokens
 * is the model's, whatever the draft model is. */
#include "generate_world.h"

enum { TOKENS = 14 };

/* Generates with a draft model, or without one, and stores tokens and log-probabilities. Returns what the call did. */
static tg_generate_stats run(tg_module *lm, tg_module *draft, int64_t draft_tokens, int64_t rows, int64_t tokens,
                             int64_t *ids, double *logprob) {
    tg_generate_stats s = {.size = sizeof s};
    tg_generator *g =
        tg_generator_new(lm, TG_GENERATOR(.rows = rows, .draft = draft, .draft_tokens = draft_tokens));
    tg_generator_run(g, prompts, PROMPTS, TG_GENERATE(.tokens = tokens, .sampling = TG_SAMPLING(.temperature = 0),
                                                      .logprobs = true));
    for (int i = 0; i < PROMPTS; i++) {
        const tg_generated *r = tg_generator_result(g, i, 0);
        ck_assert_int_eq(r->count, tokens);
        memcpy(ids + i * tokens, r->ids, (size_t)tokens * sizeof *ids);
        memcpy(logprob + i * tokens, r->logprob, (size_t)tokens * sizeof *logprob);
    }
    tg_generator_stats(g, &s);
    tg_generator_free(g);
    return s;
}

static void greedy_in(tg_dtype dtype, tg_gpt_arch arch) {
    int64_t ids[PROMPTS * TOKENS], more[PROMPTS * TOKENS];
    double lp[PROMPTS * TOKENS], more_lp[PROMPTS * TOKENS];
    begin_in(dtype, 1);
    tg_module *lm = model(arch, 2, 1), *other = model(arch, 1, 2);
    run(lm, NULL, 4, 1, TOKENS, ids, lp); /* 4: the default */
    for (int draft_tokens = 1; draft_tokens <= 11; draft_tokens += 10)
        for (int rows = 1; rows <= 6; rows += 5)
            for (int same = 0; same < 2; same++) {
                tg_generate_stats s = run(lm, same ? lm : other, draft_tokens, rows, TOKENS, more, more_lp);
                ck_assert_int_eq(memcmp(ids, more, sizeof ids), 0);
                ck_assert_int_eq(memcmp(lp, more_lp, sizeof lp), 0);
                ck_assert_int_gt(s.drafted, 0);
                if (same) ck_assert_int_eq(s.accepted, s.drafted);
                else ck_assert_int_lt(s.accepted, s.drafted);
            }
    tg_module_free(lm);
    tg_module_free(other);
    end();
}

START_TEST(greedy_tokens_are_the_models) {
    make_prompts();
    const tg_dtype dtypes[] = {TG_F64, TG_F32, TG_BF16};
    for (int d = 0; d < 3; d++)
        for (int arch = 0; arch < 2; arch++) greedy_in(dtypes[d], arch ? TG_LLAMA : TG_GPT2);
}
END_TEST

/* Counts how often each pair of first tokens is drawn. draft may be NULL. */
static void count_pairs(tg_module *lm, tg_module *draft, int64_t samples, const tg_sampling_opts *o, int *count) {
    tg_generator_opts options = *TG_GENERATOR(.rows = 4, .draft = draft);
    if (draft) options.draft_tokens = 2;
    tg_generator *g = tg_generator_new(lm, &options);
    ck_assert_msg(g != NULL, "%s", tg_ctx_message(ctx));
    tg_generator_run(g, &prompts[1], 1, TG_GENERATE(.tokens = 3, .samples = samples, .sampling = o));
    for (int64_t s = 0; s < samples; s++) {
        const int64_t *ids = tg_generator_result(g, 0, s)->ids;
        count[ids[1] * VOCAB + ids[2]]++; /* the first token is drawn by the model alone */
    }
    tg_generator_free(g);
}

/* Computes the probability of each pair of second and third tokens by the model alone. */
static void pair_probabilities(tg_module *lm, const tg_sampling_opts *o, double *pair) {
    tg_tape *t = tg_tape_new(ctx);
    int64_t ids[16], n = prompts[1].count;
    double x[16 * VOCAB], first[VOCAB], second[VOCAB], third[VOCAB];
    tg_tape_set_training(t, false);
    memcpy(ids, prompts[1].ids, (size_t)n * sizeof *ids);
    for (int a = -1; a < VOCAB; a++) {
        double *p = a < 0 ? first : second;
        int64_t count = a < 0 ? n : n + 1;
        if (a >= 0 && first[a] == 0) continue;
        ids[n] = a;
        tg_read_f64(tg_gpt_logits(lm, t, tg_from_host(ctx, TG_I64, TG_SHAPE(1, count), ids)), x, count * VOCAB);
        tg_sampling_probabilities(ctx, x + (count - 1) * VOCAB, VOCAB, ids, count, n, o, p);
        tg_tape_reset(t);
        for (int b = 0; a >= 0 && b < VOCAB; b++) {
            if (second[b] == 0) continue;
            ids[n + 1] = b;
            tg_read_f64(tg_gpt_logits(lm, t, tg_from_host(ctx, TG_I64, TG_SHAPE(1, n + 2), ids)), x, (n + 2) * VOCAB);
            tg_sampling_probabilities(ctx, x + (n + 1) * VOCAB, VOCAB, ids, n + 2, n, o, third);
            tg_tape_reset(t);
            for (int c = 0; c < VOCAB; c++) pair[b * VOCAB + c] += first[a] * second[b] * third[c];
        }
    }
    tg_tape_free(t);
}

/* Returns the chi-squared statistic of counts, with pairs of less than five expected counts joined, and sets *freedom
 * to its degrees of freedom. */
static double chi_squared(const int *count, const double *p, int64_t samples, int *freedom) {
    double sum = 0, rest = 0;
    int64_t rest_count = 0;
    *freedom = -1;
    for (int i = 0; i < VOCAB * VOCAB; i++) {
        double want = p[i] * (double)samples;
        if (p[i] == 0) ck_assert_int_eq(count[i], 0);
        if (want < 5) {
            rest += want, rest_count += count[i];
            continue;
        }
        sum += (count[i] - want) * (count[i] - want) / want;
        ++*freedom;
    }
    if (rest < 5) return sum;
    ++*freedom;
    return sum + ((double)rest_count - rest) * ((double)rest_count - rest) / rest;
}

static double z_score(double chi, int freedom) { return (chi - freedom) / sqrt(2.0 * freedom); }

START_TEST(draws_have_the_models_distribution) {
    enum { SAMPLES = 2000 };
    begin();
    make_prompts();
    /* Close models, so that proposals are accepted and refused about equally often. */
    tg_module *lm = model(TG_LLAMA, 1, 1), *draft = model(TG_LLAMA, 1, 2);
    double *pair = calloc(VOCAB * VOCAB, sizeof *pair);
    int *count = calloc(VOCAB * VOCAB, sizeof *count), freedom;
    const tg_sampling_opts *o = TG_SAMPLING(.temperature = 4, .top_k = 5, .repetition_penalty = 1.3, .seed = 11);
    pair_probabilities(lm, o, pair);
    count_pairs(lm, draft, SAMPLES, o, count);
    double chi = chi_squared(count, pair, SAMPLES, &freedom), z = z_score(chi, freedom);
    ck_assert_msg(freedom > 10 && fabs(z) < 4, "z is %g, of %d degrees of freedom", z, freedom);
    memset(count, 0, VOCAB * VOCAB * sizeof *count);
    count_pairs(draft, NULL, SAMPLES, o, count); /* the test sees another distribution */
    double far = 0;
    for (int i = 0; i < VOCAB * VOCAB; i++) far += fabs(count[i] / (double)SAMPLES - pair[i]);
    ck_assert(far > 0.5);
    free(pair), free(count);
    tg_module_free(lm);
    tg_module_free(draft);
    end();
}
END_TEST

START_TEST(drafts_slide_and_end) {
    begin();
    make_prompts();
    tg_module *lm = model(TG_GPT2, 1, 1), *draft = model(TG_GPT2, 1, 2);
    int64_t one[60];
    for (int with = 0; with < 2; with++) {
        tg_generator *g = tg_generator_new(lm, TG_GENERATOR(.positions = 20, .draft = with ? draft : NULL));
        tg_generator_run(g, &prompts[2], 1,
                         TG_GENERATE(.tokens = 60, .slide = true, .sampling = TG_SAMPLING(.temperature = 0)));
        const tg_generated *r = tg_generator_result(g, 0, 0);
        ck_assert_int_eq(r->count, 60);
        if (with) ck_assert_int_eq(memcmp(one, r->ids, sizeof one), 0);
        else memcpy(one, r->ids, sizeof one);
        tg_generator_run(g, &prompts[2], 1, TG_GENERATE(.tokens = 60, .sampling = TG_SAMPLING(.temperature = 0)));
        ck_assert_int_eq(tg_generator_result(g, 0, 0)->finish, TG_FINISH_POSITIONS);
        ck_assert_int_eq(tg_generator_result(g, 0, 0)->count, 21 - prompts[2].count);
        tg_generator_free(g);
    }
    tg_module_free(lm);
    tg_module_free(draft);
    end();
}
END_TEST

int main(void) {
    const TTest *tests[] = {greedy_tokens_are_the_models, draws_have_the_models_distribution, drafts_slide_and_end};
    return tg_check_main("speculative", tests, sizeof tests / sizeof *tests);
}
