/* Generation with GPT-2 of random weights. Row "decode": one token of `batch` samples at the same time. Row "prompt":
 * seq_len tokens of one prompt. Row "forward": the forward of a training step with as many tokens, for comparison. */
#include <stdlib.h>

#include <tapegrad/generate.h>
#include <tapegrad/gpt.h>
#include <tapegrad/tapegrad.h>

#include "bench.h"

typedef struct decode {
    tg_ctx *ctx;
    tg_module *gpt;
    tg_generator *generator;
    tg_tape *t;
    tg_prompt *prompts;
    int64_t *ids;
    int64_t batch, seq_len, tokens;
} decode;

static void decode_close(void *state) {
    decode *d = state;
    tg_generator_free(d->generator);
    tg_tape_free(d->t);
    tg_module_free(d->gpt);
    free(d->prompts);
    free(d->ids);
    free(d);
}

static decode *decode_new(tg_ctx *ctx, const bench_options *o, int64_t batch, int64_t seq_len, int64_t tokens) {
    decode *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    int64_t positions = seq_len + tokens > 1024 ? seq_len + tokens : 1024;
    d->ctx = ctx;
    d->batch = batch, d->seq_len = seq_len, d->tokens = tokens;
    d->gpt = tg_gpt_new(ctx, TG_GPT(.vocab = o->vocab, .layers = o->layers, .heads = o->heads, .hidden = o->hidden,
                                    .positions = positions));
    d->t = tg_tape_new(ctx);
    d->ids = calloc((size_t)(batch * seq_len), sizeof *d->ids);
    d->prompts = calloc((size_t)batch, sizeof *d->prompts);
    d->generator = tg_generator_new(d->gpt, TG_GENERATOR(.rows = batch, .positions = seq_len + tokens));
    if (d->ids && d->prompts && d->generator) return d;
    decode_close(d);
    return NULL;
}

/* Makes prompts that no call had before, so that nothing of them is in the cache. */
static void new_prompts(decode *d, int64_t vocab) {
    static uint32_t x = 1;
    for (int64_t i = 0; i < d->batch * d->seq_len; i++) {
        x = x * 1664525u + 1013904223u;
        d->ids[i] = (x >> 8) % (uint32_t)vocab;
    }
    for (int64_t i = 0; i < d->batch; i++) d->prompts[i] = (tg_prompt){d->ids + i * d->seq_len, d->seq_len};
}

/* Generates, and returns what the call did. */
static tg_generate_stats generate(decode *d) {
    tg_generate_stats s = {.size = sizeof s};
    new_prompts(d, tg_gpt_config_of(d->gpt)->vocab);
    tg_generator_run(d->generator, d->prompts, d->batch,
                     TG_GENERATE(.tokens = d->tokens, .sampling = TG_SAMPLING(.temperature = 0)));
    tg_generator_stats(d->generator, &s);
    return s;
}

/* ---- Row "decode" ---- */

static void *decode_open(tg_ctx *ctx, const bench_options *o) {
    enum { PROMPT = 16 };
    return decode_new(ctx, o, o->batch, PROMPT, 1 + o->calls);
}

/* Each prompt gives its first token by itself, and the others take a forward each. */
static double decode_measure(void *state) {
    decode *d = state;
    tg_generate_stats s = generate(d);
    return s.forwards ? 1e3 * (s.seconds - s.prompt_seconds) / (double)s.forwards : 0;
}

const bench_row decode_row = {
    .name = "decode",
    .unit = "ms a token",
    .summary = "GPT-2: a token of each of `batch` samples, of `calls` tokens",
    .open = decode_open,
    .measure = decode_measure,
    .close = decode_close,
};

/* ---- Row "prompt" ---- */

static void *prompt_open(tg_ctx *ctx, const bench_options *o) { return decode_new(ctx, o, 1, o->seq_len, 1); }

static double prompt_measure(void *state) { return 1e3 * generate(state).prompt_seconds; }

const bench_row prompt_row = {
    .name = "prompt",
    .unit = "ms",
    .summary = "GPT-2: a prompt of `seq-len` tokens",
    .open = prompt_open,
    .measure = prompt_measure,
    .close = decode_close,
};

/* ---- Row "forward" ---- */

static double forward_measure(void *state) {
    decode *d = state;
    new_prompts(d, tg_gpt_config_of(d->gpt)->vocab);
    tg_tensor *ids = tg_from_host(d->ctx, TG_I64, TG_SHAPE(1, d->seq_len), d->ids);
    finish(d->ctx);
    double begun = seconds_now();
    tg_gpt_loss(d->gpt, d->t, ids, ids, TG_LOSS_MEAN);
    finish(d->ctx);
    double time = seconds_now() - begun;
    tg_tape_reset(d->t);
    tg_drop(ids);
    return 1e3 * time;
}

const bench_row forward_row = {
    .name = "forward",
    .unit = "ms",
    .summary = "GPT-2: the forward of a training step of a sequence of `seq-len` tokens",
    .open = prompt_open,
    .measure = forward_measure,
    .close = decode_close,
};
