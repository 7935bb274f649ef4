/* What the tests of generation share: small models, prompts of different lengths, and samples made without a cache. */
#ifndef TG_TEST_GENERATE_WORLD_H
#define TG_TEST_GENERATE_WORLD_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/generate.h>
#include <tapegrad/gpt.h>
#include <tapegrad/tapegrad.h>

#include "check_main.h"

enum { VOCAB = 50, POSITIONS = 40, PROMPTS = 6 };

static tg_ctx *ctx;

static inline void begin_in(tg_dtype dtype, int threads) {
    ctx = tg_ctx_new(TG_CONFIG(.threads = threads, .dtype = dtype, .seed = 5));
}
static inline void begin(void) { begin_in(TG_F64, 1); }
static inline void end(void) {
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    tg_ctx_free(ctx);
}

/* Ends an error that a test expects. */
static inline void fails(tg_status status, const char *says) {
    ck_assert_int_eq(tg_ctx_status(ctx), status);
    ck_assert_msg(strstr(tg_ctx_message(ctx), says) != NULL, "%s", tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
}

/* Makes a model whose logits differ much, so that rounding changes no choice. */
static inline tg_module *model(tg_gpt_arch arch, int64_t layers, uint64_t number) {
    tg_draws_step(ctx, number); /* so that further models may draw from the same keys */
    return tg_gpt_new(ctx, TG_GPT(.arch = arch, .vocab = VOCAB, .layers = layers, .heads = 4,
                                  .kv_heads = arch == TG_LLAMA ? 2 : TG_AUTO, .hidden = 32, .ffn = 48,
                                  .positions = POSITIONS, .init_std = 0.5));
}

/* Prompts of 1, 4, 7, ... tokens. */
static int64_t prompt_ids[PROMPTS][24];
static tg_prompt prompts[PROMPTS];
static inline void make_prompts(void) {
    for (int i = 0; i < PROMPTS; i++) {
        for (int k = 0; k < 24; k++) prompt_ids[i][k] = (7 * k + 11 * i + i * k * k) % VOCAB;
        prompts[i] = (tg_prompt){prompt_ids[i], 1 + 3 * i};
    }
}

/* Continues ids[n] by n_new tokens without a cache and without a generator: each from the logits of all tokens. */
static inline void continue_plainly(tg_module *lm, int64_t *ids, int64_t n, int64_t n_new, int64_t prompt,
                                    int64_t sample, const tg_sampling_opts *o) {
    tg_tape *t = tg_tape_new(ctx);
    double *x = calloc((size_t)(n + n_new) * VOCAB, sizeof *x), p[VOCAB];
    tg_tape_set_training(t, false);
    for (int64_t i = 0; i < n_new; i++) {
        int64_t count = n + i;
        tg_read_f64(tg_gpt_logits(lm, t, tg_from_host(ctx, TG_I64, TG_SHAPE(1, count), ids)), x, count * VOCAB);
        tg_sampling_probabilities(ctx, x + (count - 1) * VOCAB, VOCAB, ids, count, n, o, p);
        ids[count] = tg_sampling_pick(p, VOCAB, tg_sampling_uniform(o->seed, prompt, sample, i));
        tg_tape_reset(t);
    }
    free(x);
    tg_tape_free(t);
}

#endif
