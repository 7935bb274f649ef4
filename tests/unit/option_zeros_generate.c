/* The probes of the structs of options of generation. */
#include <stdio.h>

#include <tapegrad/generate.h>
#include <tapegrad/gpt.h>

#include "option_zeros.h"

static tg_module *small_model(void) {
    static uint64_t made;
    return tg_gpt_new(ctx, TG_GPT(.arch = TG_LLAMA, .vocab = 3, .layers = 1, .heads = 1, .hidden = 2, .positions = 4,
                                  .key = 900 + made++));
}

static bool likeliest_is_taken(const void *o) {
    double p[3] = {1, 3, 2};
    return tg_sampling_probabilities(ctx, p, 3, NULL, 0, 0, o, p) == TG_OK && p[0] == 0 && p[1] == 1 && p[2] == 0;
}

static bool sampling(const void *o) {
    double p[3] = {1, 3, 2};
    tg_sampling_probabilities(ctx, p, 3, NULL, 0, 0, o, p);
    return false;
}

static bool generator(const void *o) {
    tg_module *m = small_model();
    tg_generator_free(tg_generator_new(m, o));
    tg_module_free(m);
    return false;
}

static bool generate(const void *o) {
    const int64_t id = 0;
    tg_module *m = small_model();
    tg_generator *g = tg_generator_new(m, NULL);
    tg_generator_run(g, &(tg_prompt){&id, 1}, 1, o);
    tg_generator_free(g);
    tg_module_free(m);
    return false;
}

const tg_zero_probe tg_zeros_generate[] = {
    {"tg_sampling_opts", "temperature", likeliest_is_taken, NULL},
    {"tg_sampling_opts", "top_p", sampling, "top_p is 0, expected a number above 0, up to 1"},
    {"tg_sampling_opts", "repetition_penalty", sampling, "repetition_penalty is 0"},
    {"tg_generator_opts", "rows", generator, "rows is 0"},
    {"tg_generator_opts", "positions", generator, "positions is 0, expected 2 to 4"},
    {"tg_generator_opts", "chunk", generator, "chunk 0"},
    {"tg_generator_opts", "draft_tokens", generator, "draft_tokens is 0"},
    {"tg_generate_opts", "tokens", generate, "tokens is 0"},
    {"tg_generate_opts", "samples", generate, "samples 0"},
    {NULL},
};
