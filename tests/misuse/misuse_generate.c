/* Sampling and the generator. */
#include <tapegrad/generate.h>
#include <tapegrad/gpt.h>
#include <tapegrad/tokenizer.h>

#include "misuse/misuse.h"

static void sampling(misuse_world *b) {
    double x[3] = {1, 2, 3}, bad[3] = {1, NAN, 3}, p[3];
    const int64_t ids[2] = {0, 3};
    tg_sampling_opts size = {0};
#define PROBABILITIES(code, says, ...) \
    FAILS(tg_sampling_probabilities, code, says, tg_sampling_probabilities(b->ctx, __VA_ARGS__))
#define OPTION(says, ...) PROBABILITIES(ARGUMENT, says, x, 3, NULL, 0, 0, TG_SAMPLING(__VA_ARGS__), p)
    QUIET(tg_sampling_probabilities, tg_sampling_probabilities(NULL, x, 3, NULL, 0, 0, NULL, p) == TG_ERR_ARGUMENT);
    PROBABILITIES(ARGUMENT, "size is 0", x, 3, NULL, 0, 0, &size, p);
    PROBABILITIES(ARGUMENT, "logits are NULL", NULL, 3, NULL, 0, 0, NULL, p);
    PROBABILITIES(ARGUMENT, "p is NULL", x, 3, NULL, 0, 0, NULL, NULL);
    PROBABILITIES(ARGUMENT, "vocab is 0", x, 0, NULL, 0, 0, NULL, p);
    PROBABILITIES(ARGUMENT, "ids are NULL, count is 1", x, 3, NULL, 1, 0, NULL, p);
    PROBABILITIES(ARGUMENT, "count is -1", x, 3, ids, -1, 0, NULL, p);
    PROBABILITIES(ARGUMENT, "prompt 2", x, 3, ids, 1, 2, NULL, p);
    PROBABILITIES(DATA, "ids[1] is 3, expected 0 to 2", x, 3, ids, 2, 0, NULL, p);
    PROBABILITIES(DATA, "the logit of id 1 after 0 tokens is NaN", bad, 3, NULL, 0, 0, NULL, p);
    OPTION("temperature is -1", .temperature = -1);
    OPTION("temperature is inf", .temperature = INFINITY);
    OPTION("top_k is -1", .top_k = -1);
    OPTION("top_p is 0, expected a number above 0, up to 1", .top_p = 0);
    OPTION("top_p is 1.5", .top_p = 1.5);
    OPTION("min_p is 2", .min_p = 2);
    OPTION("repetition_penalty is 0", .repetition_penalty = 0);
    OPTION("presence_penalty is nan", .presence_penalty = NAN);
    OPTION("frequency_penalty is inf", .frequency_penalty = INFINITY);
    QUIET(tg_sampling_pick, tg_sampling_pick((double[]){0, 0}, 2, 0.5) == -1 && tg_sampling_pick(NULL, 0, 0.5) == -1);
    QUIET(tg_sampling_uniform, tg_sampling_uniform(0, 0, 0, 0) < 1);
}

static tg_module *model(tg_ctx *ctx, int64_t vocab, uint64_t key) {
    return tg_gpt_new(ctx, TG_GPT(.arch = TG_LLAMA, .vocab = vocab, .layers = 1, .heads = 1, .hidden = 4,
                                  .positions = 8, .key = key));
}

static void generators(misuse_world *b, tg_module *m) {
    tg_module *linear = tg_nn_linear(b->ctx, 3, 2, true, 1), *wide = model(b->ctx, 6, 22), *far = model(b->far, 5, 23);
    tg_generator_opts size = {0};
#define NO_GENERATOR(says, ...) \
    GIVES(tg_generator_new, ARGUMENT, says, !tg_generator_new(m, TG_GENERATOR(__VA_ARGS__)))
    QUIET(tg_generator_new, !tg_generator_new(NULL, NULL));
    GIVES(tg_generator_new, ARGUMENT, "size is 0", !tg_generator_new(m, &size));
    GIVES(tg_generator_new, ARGUMENT, "the module is a \"linear\"", !tg_generator_new(linear, NULL));
    NO_GENERATOR("rows is 0", .rows = 0);
    NO_GENERATOR("rows is 9223372036854775807", .rows = INT64_MAX);
    NO_GENERATOR("chunk 0", .chunk = 0);
    NO_GENERATOR("positions is 9, expected 2 to 8", .positions = 9);
    NO_GENERATOR("positions is 1", .positions = 1);
    NO_GENERATOR("draft_tokens is 12, expected 1 to 11", .draft_tokens = 12);
    NO_GENERATOR("draft_tokens is 0", .draft_tokens = 0);
    NO_GENERATOR("draft_tokens is 2, but draft, the model that proposes them, is NULL", .draft_tokens = 2);
    NO_GENERATOR("draft is a \"linear\"", .draft = linear);
    NO_GENERATOR("of another context", .draft = far);
    NO_GENERATOR("a vocabulary of 6 ids and the model of 5", .draft = wide);
    QUIET(tg_generator_free, (tg_generator_free(NULL), true));
    tg_module_free(linear);
    tg_module_free(wide);
    tg_module_free(far);
}

static void calls(misuse_world *b, tg_module *m) {
    const int64_t ids[9] = {0, 5}, long_ids[9] = {0};
    const tg_prompt good = {ids, 1}, none = {ids, 0}, null = {NULL, 3}, outside = {ids, 2}, far = {long_ids, 9};
    const char *const empty[] = {""}, *const missing[] = {NULL}, *const text[] = {"a"}, *const half[] = {"\xa9"};
    tg_generator *g = tg_generator_new(m, NULL);
    tg_ctx *broken = tg_ctx_new(TG_CONFIG(.threads = 1));
    tg_tokenizer *bytes = tg_tokenizer_new_bytes(b->ctx), *of_broken = tg_tokenizer_new_bytes(broken);
    tg_generate_opts size = {0};
    tg_generate_stats stats = {.size = sizeof stats};
#define RUN_FAILS(code, says, p, n, ...) \
    FAILS(tg_generator_run, code, says, tg_generator_run(g, p, n, TG_GENERATE(__VA_ARGS__)))
    QUIET(tg_generator_run, tg_generator_run(NULL, &good, 1, NULL) == TG_ERR_ARGUMENT);
    FAILS(tg_generator_run, ARGUMENT, "size is 0", tg_generator_run(g, &good, 1, &size));
    RUN_FAILS(ARGUMENT, "0 prompts are given", &good, 0, .tokens = 1);
    RUN_FAILS(ARGUMENT, "0 prompts are given", NULL, 2, .tokens = 1);
    RUN_FAILS(ARGUMENT, "prompt 0 has 0 ids", &none, 1, .tokens = 1);
    RUN_FAILS(ARGUMENT, "prompt 0 has 0 ids", &null, 1, .tokens = 1);
    RUN_FAILS(DATA, "prompt 0 has id 5 at 1, expected 0 to 4", &outside, 1, .tokens = 1);
    RUN_FAILS(SHAPE, "prompt 0 has 9 tokens, but the generator has 8 positions", &far, 1, .tokens = 1);
    RUN_FAILS(ARGUMENT, "tokens is 0", &good, 1, .tokens = 0);
    RUN_FAILS(ARGUMENT, "samples 0", &good, 1, .samples = 0);
    RUN_FAILS(ARGUMENT, "samples 1000001", &good, 1, .samples = 1000001);
    RUN_FAILS(ARGUMENT, "top_logprobs is -1", &good, 1, .logprobs = true, .top_logprobs = -1);
    RUN_FAILS(ARGUMENT, "top_logprobs is 1 without logprobs", &good, 1, .top_logprobs = 1);
    RUN_FAILS(ARGUMENT, "the vocabulary has only 5 ids", &good, 1, .logprobs = true, .top_logprobs = 6);
    RUN_FAILS(ARGUMENT, "n_stop_ids is 1", &good, 1, .n_stop_ids = 1);
    RUN_FAILS(ARGUMENT, "n_stop -1", &good, 1, .n_stop = -1);
    RUN_FAILS(ARGUMENT, "without a tokenizer", &good, 1, .stop = text, .n_stop = 1);
    RUN_FAILS(ARGUMENT, "stop[0] is empty", &good, 1, .stop = empty, .n_stop = 1, .tokenizer = bytes);
    RUN_FAILS(ARGUMENT, "stop[0] is not UTF-8 at offset 0", &good, 1, .stop = half, .n_stop = 1, .tokenizer = bytes);
    RUN_FAILS(ARGUMENT, "stop[0] is NULL", &good, 1, .stop = missing, .n_stop = 1, .tokenizer = bytes);
    tg_ctx_fail(broken, TG_ERR_IO, "it is broken");
    RUN_FAILS(IO, "the context of opts.tokenizer has an error; call tg_ctx_clear for it. The error is: it is broken",
              &good, 1, .tokenizer = of_broken);
    RUN_FAILS(ARGUMENT, "tg_generator_run: top_p is 2", &good, 1, .sampling = TG_SAMPLING(.top_p = 2));
    QUIET(tg_generator_result, !tg_generator_result(NULL, 0, 0) && !tg_generator_result(g, 0, 0) &&
                                   !tg_generator_result(g, -1, 0) && !tg_generator_result(g, 0, 7));
    QUIET(tg_generator_release, (tg_generator_release(NULL, 0, 0), tg_generator_release(g, 0, 0),
                                 tg_generator_release(g, -1, 9), true));
    QUIET(tg_generator_stats, tg_generator_stats(NULL, &stats) == TG_ERR_ARGUMENT);
    FAILS(tg_generator_stats, ARGUMENT, "s is NULL", tg_generator_stats(g, NULL));
    FAILS(tg_generator_stats, ARGUMENT, "size is 0", tg_generator_stats(g, &(tg_generate_stats){0}));
    tg_generator_free(g);
    tg_tokenizer_free(bytes);
    tg_tokenizer_free(of_broken);
    tg_ctx_free(broken);
}

void misuse_generate(misuse_world *b) {
    sampling(b);
    tg_module *m = model(b->ctx, 5, 21);
    generators(b, m);
    calls(b, m);
    tg_module_free(m);
}
