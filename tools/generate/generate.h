/* The parts of tapegrad generate: its options, the prompts, and what is printed of the continuations. */
#ifndef TAPEGRAD_TOOL_GENERATE_H
#define TAPEGRAD_TOOL_GENERATE_H

#include <tapegrad/generate.h>
#include <tapegrad/tokenizer.h>

#include "common/model_files.h"
#include "common/start.h"

typedef struct generate_options {
    const char *model, *adapter, *tokenizer, *prompt, *prompt_ids, *prompt_file, *stop, *draft, *device;
    int64_t tokens, samples, rows, chunk, top_k, seed, logprobs, draft_tokens, threads;
    double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    int precision;
    bool json, ignore_end, stats;
    rank_options on;
} generate_options;

extern const command generate_command;

/* ---- generate_prompts.c ---- */

/* A prompt as it was given: as text, or as ids. */
typedef struct given_prompt {
    char *text;
    size_t n_text;
    tg_ids ids; /* of a text: after prompts_encode */
} given_prompt;

typedef struct given_prompts {
    given_prompt *at;
    int64_t n, capacity;
} given_prompts;

/* Reads the prompts that the options name. Returns 0, or the exit status after printing what is wrong. */
int prompts_read(given_prompts *p, const generate_options *o);
/* Checks ids against the vocabulary, and that texts can become ids. Returns as prompts_read does. */
int prompts_check(const given_prompts *p, const generate_options *o, const model_files *m);
/* Makes the ids of texts. Returns false after printing what is wrong. */
bool prompts_encode(given_prompts *p, tg_ctx *ctx, const tg_tokenizer *tokenizer);
void prompts_free(given_prompts *p);

/* Parses --stop: a string, or a JSON array of strings. Returns an array of *n strings, one block of memory that the
 * caller frees; NULL after printing what is wrong. */
char **stops_parse(const char *text, int64_t *n);

/* ---- generate_output.c ---- */

/* What is printed. With one continuation its text is printed as it comes; of several each is printed when it and those
 * before it are complete. */
typedef struct generate_output {
    const generate_options *o;
    const given_prompts *prompts;
    tg_generator *generator;
    bool chief, ids;     /* chief: this rank prints. ids: ids are printed, not text */
    bool single, broken; /* single: one continuation is printed as it comes. broken: it cannot be made or written */
    int64_t printed;     /* number of continuations that were printed, unless it is a single one */
} generate_output;

/* Prints what comes before the first token. */
void output_begin(generate_output *out);
/* The callback of the generator; state is a generate_output. */
tg_generate_next output_token(void *state, const tg_token *t);
/* Prints what comes after the last token. Returns false if the output cannot be written. */
bool output_end(generate_output *out);
/* Prints what the generator did, to standard error. */
void output_stats(const generate_output *out);

#endif
