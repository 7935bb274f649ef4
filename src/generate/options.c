/* The structs of options of generation. */
#include <tapegrad/generate.h>

#include "base/options.h"

static const tg_field sampling_fields[] = {
    TG_FIELD(tg_sampling_opts, temperature, DOUBLE, "Divides the logits, 0 or more; 0: the likeliest token."),
    TG_FIELD(tg_sampling_opts, top_k, INT64, "Only so many of the likeliest tokens are kept; 0: all."),
    TG_FIELD(tg_sampling_opts, top_p, DOUBLE, "Only the likeliest tokens that sum to this probability; 1: all."),
    TG_FIELD(tg_sampling_opts, min_p, DOUBLE, "Least probability relative to that of the likeliest token; 0: all."),
    TG_FIELD(tg_sampling_opts, repetition_penalty, DOUBLE, "Factor against tokens that were there; 1: none."),
    TG_FIELD(tg_sampling_opts, presence_penalty, DOUBLE, "Subtracted from the logit of tokens that were generated."),
    TG_FIELD(tg_sampling_opts, frequency_penalty, DOUBLE, "Subtracted for each time that a token was generated."),
    TG_FIELD(tg_sampling_opts, seed, UINT64, "Seed of the draws."),
};
const tg_struct tg_sampling_opts_struct =
    TG_STRUCT(tg_sampling_opts, SAMPLING, sampling_fields, "How a token is drawn.");

static const tg_field generator_fields[] = {
    TG_FIELD(tg_generator_opts, rows, INT64, "Most samples that are computed at the same time, 1 to 2^20."),
    TG_FIELD(tg_generator_opts, positions, INT64, "Most tokens of a sequence, 2 or more; TG_AUTO: the model's."),
    TG_FIELD(tg_generator_opts, chunk, INT64, "Most tokens of prompts in one forward, 1 to 2^20."),
    TG_FIELD_OF(tg_generator_opts, draft, POINTER, "tg_module", "A smaller model that proposes tokens; NULL: none."),
    TG_FIELD(tg_generator_opts, draft_tokens, INT64, "Most tokens that it proposes at a time, 1 to 11."),
};
const tg_struct tg_generator_opts_struct =
    TG_STRUCT(tg_generator_opts, GENERATOR, generator_fields, "Options of a generator.");

static const tg_field generate_fields[] = {
    TG_FIELD(tg_generate_opts, tokens, INT64, "Most tokens that are added to a prompt, 1 or more."),
    TG_FIELD(tg_generate_opts, samples, INT64, "Continuations of each prompt, 1 to 1000000."),
    TG_FIELD_OF(tg_generate_opts, sampling, POINTER, "tg_sampling_opts", "How tokens are drawn; NULL: the defaults."),
    TG_FIELD_OF(tg_generate_opts, stop_ids, POINTER, "int64_t", "Ids that end a sample; NULL: none."),
    TG_FIELD(tg_generate_opts, n_stop_ids, INT64, "Number of stop_ids."),
    TG_FIELD_OF(tg_generate_opts, stop, POINTER, "char*", "Strings that end a sample; NULL: none."),
    TG_FIELD(tg_generate_opts, n_stop, INT64, "Number of strings in stop."),
    TG_FIELD_OF(tg_generate_opts, tokenizer, POINTER, "tg_tokenizer", "Makes the samples' text; NULL: no text."),
    TG_FIELD(tg_generate_opts, logprobs, BOOL, "Compute the log-probability of each token."),
    TG_FIELD(tg_generate_opts, top_logprobs, INT64,
             "Number of likeliest tokens whose log-probabilities are also computed, 0 to 1000."),
    TG_FIELD(tg_generate_opts, slide, BOOL, "Go on from the newest half of the tokens when positions are used up."),
    TG_FIELD(tg_generate_opts, on_token, FUNCTION, "Called for each token; NULL: none."),
    TG_FIELD_OF(tg_generate_opts, state, POINTER, "void", "For on_token."),
};
const tg_struct tg_generate_opts_struct =
    TG_STRUCT(tg_generate_opts, GENERATE, generate_fields, "Options of a call of a generator.");
