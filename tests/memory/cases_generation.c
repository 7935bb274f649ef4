/* Generation: several prompts, rows and samples, a draft model, and the key-value cache. */
#include <math.h>

#include <tapegrad/generate.h>
#include <tapegrad/gpt.h>
#include <tapegrad/tokenizer.h>

#include "memory/faults.h"

enum { PROMPTS = 3, SAMPLES = 2, TOKENS = 6, POSITIONS = 12, BYTES = 256 };

typedef struct generation {
    tg_module *lm, *draft;
    tg_generator *g;
    tg_tokenizer *k;
    tg_gpt_cache *cache;
    tg_tensor *ids[2], *logits;
    int64_t shown;
} generation;

static const char *const kinds[] = {"one row", "rows", "slide", "draft", "text"};

static const char *kind_name(int i) { return i < 5 ? kinds[i] : NULL; }

static bool is(const trial *r, const char *name) { return !strcmp(r->name, name); }

static tg_module *model(trial *r, int64_t layers, uint64_t key) {
    return tg_gpt_new(r->ctx, TG_GPT(.arch = layers == 1 ? TG_GPT2 : TG_LLAMA, .vocab = BYTES, .layers = layers,
                                     .heads = 2, .hidden = 8, .ffn = 12, .positions = POSITIONS, .init_std = 0.5,
                                     .key = key));
}

static void open_generator(trial *r) {
    generation *d = r->state;
    d->lm = model(r, 2, 1);
    if (is(r, "draft")) d->draft = model(r, 1, 2);
    if (is(r, "text")) d->k = tg_tokenizer_new_bytes(r->ctx);
    d->g = tg_generator_new(d->lm, TG_GENERATOR(.rows = is(r, "one row") ? 1 : 4, .chunk = 5, .draft = d->draft));
}

static tg_generate_next look(void *state, const tg_token *t) {
    *(int64_t *)state += t->id;
    return t->index == 4 && t->sample == 1 ? TG_GENERATE_END_SAMPLE : TG_GENERATE_CONTINUE;
}

static void step_generator(trial *r) {
    generation *d = r->state;
    static const int64_t ids[] = {72, 105, 33, 10, 65, 66, 67};
    const tg_prompt prompts[PROMPTS] = {{ids, 3}, {ids, 7}, {ids + 2, 1}};
    static const int64_t ends[] = {7};
    static const char *const stop[] = {"\n\n", "never"};
    bool text = is(r, "text");
    d->shown = 0;
    tg_generator_run(d->g, prompts, PROMPTS,
                     TG_GENERATE(.tokens = is(r, "slide") ? 2 * POSITIONS : TOKENS, .samples = SAMPLES,
                                 .sampling = TG_SAMPLING(.top_k = 50, .top_p = 0.9, .seed = 3), .stop_ids = ends,
                                 .n_stop_ids = 1, .stop = text ? stop : NULL, .n_stop = text ? 2 : 0,
                                 .tokenizer = d->k, .logprobs = text, .top_logprobs = text ? 3 : 0,
                                 .slide = is(r, "slide"), .on_token = look, .state = &d->shown));
}

static void note_generator(trial *r) {
    generation *d = r->state;
    for (int i = 0; i < PROMPTS * SAMPLES; i++) {
        const tg_generated *s = tg_generator_result(d->g, i / SAMPLES, i % SAMPLES);
        if (!s) continue;
        note_bytes(r, s->ids, (size_t)s->count * sizeof *s->ids);
        if (s->text) note_bytes(r, s->text, s->n_text);
    }
    note_bytes(r, &d->shown, sizeof d->shown);
}

static void close_generator(trial *r) {
    generation *d = r->state;
    tg_generator_free(d->g);
    tg_gpt_cache_free(d->cache);
    tg_tokenizer_free(d->k);
    tg_tape_reset(r->t);
    tg_module_free(d->draft);
    tg_module_free(d->lm);
    for (int i = 0; i < 2; i++) tg_drop(d->ids[i]);
}

/* ---- The cache ---- */

static void open_cache(trial *r) {
    generation *d = r->state;
    d->lm = model(r, 2, 1);
    d->cache = tg_gpt_cache_new(d->lm, 2, POSITIONS);
    for (int i = 0; i < 2; i++) d->ids[i] = some_ids(r, 2, i ? 1 : 4, BYTES, 60, 7);
}

static void step_cache(trial *r) {
    generation *d = r->state;
    for (int i = 0; i < 2; i++) d->logits = tg_gpt_next(d->lm, r->t, d->cache, d->ids[i]);
}

static void note_cache(trial *r) { note(r, ((generation *)r->state)->logits); }

/* ---- Sampling ---- */

static void step_sampling(trial *r) {
    double *p = r->state, logits[BYTES];
    static const int64_t ids[] = {3, 4, 3};
    for (int i = 0; i < BYTES; i++) logits[i] = sin(i);
    tg_sampling_probabilities(r->ctx, logits, BYTES, ids, 3, 1,
                              TG_SAMPLING(.top_k = 9, .top_p = 0.8, .min_p = 0.01, .repetition_penalty = 1.2), p);
}

static void note_sampling(trial *r) { note_bytes(r, r->state, BYTES * sizeof(double)); }

static const memory_case rows[] = {
    {"generator", kind_name, sizeof(generation), false, false, open_generator, step_generator, note_generator,
     close_generator},
    {"cache", NULL, sizeof(generation), false, true, open_cache, step_cache, note_cache, close_generator},
    {"sampling", NULL, BYTES * sizeof(double), false, false, NULL, step_sampling, note_sampling, NULL},
};
const memory_cases generation_cases = {rows, sizeof rows / sizeof *rows};
