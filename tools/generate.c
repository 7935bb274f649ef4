/* tapegrad generate: continues a prompt, one token at a time. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program.h"

typedef struct generate_options {
    const char *model, *prompt, *prompt_ids;
    int64_t tokens, top_k, seed, threads;
    double temperature, top_p;
    int precision;
} generate_options;

#define AT(field) offsetof(generate_options, field)

static const option rows[] = {
    {"model", OPTION_TEXT, AT(model), "DIR", "config.json and model.safetensors", .fixed = false},
    {"prompt", OPTION_TEXT, AT(prompt), "TEXT", "for a model whose vocabulary is the 256 bytes", .fixed = false},
    {"prompt-ids", OPTION_TEXT, AT(prompt_ids), "1,2,3", "token ids, for any model", .fixed = false},
    {"tokens", OPTION_INT, AT(tokens), "N", "how many to add", 0, MANY, false},
    {"temperature", OPTION_REAL, AT(temperature), "X", "0: always the likeliest token", 0, 1e6, false},
    {"top-k", OPTION_INT, AT(top_k), "N", "draw from the N likeliest; 0: from all", 0, MANY, false},
    {"top-p", OPTION_REAL, AT(top_p), "X", "draw from the likeliest that reach this probability together", 1e-9, 1,
     false},
    {"seed", OPTION_INT, AT(seed), "N", "of the draws", 0, 9.2e18, false},
    {"threads", OPTION_INT, AT(threads), "N", "0: one for each core", 0, 1024, false},
    {"precision", OPTION_CHOICE, AT(precision), PRECISIONS, "of the arithmetic", .fixed = false},
};

static const command generate_command = {
    .name = "generate",
    .usage = "--model DIR --prompt TEXT | --prompt-ids IDS [OPTION...]",
    .summary = "Continues a prompt. Behind the model's last position it goes on from the newest half of the positions.",
    .options = rows,
    .n_options = sizeof rows / sizeof rows[0],
};

typedef struct candidate {
    double weight; /* a logit, then a probability */
    int64_t id;
} candidate;

typedef struct generator {
    const generate_options *o;
    tg_ctx *ctx;
    tg_module *gpt;
    tg_tape *tape;
    tg_gpt_cache *cache;
    int64_t vocab, positions;
    int64_t *ids, count; /* the prompt and what was added */
    int64_t fed;         /* of ids: those that the cache has seen */
    double *logits;
    candidate *candidates;
} generator;

/* ---- The prompt ---- */

static int64_t count_ids(const char *text) {
    int64_t n = 1;
    for (; *text; text++) n += *text == ',';
    return n;
}

/* 0, or the exit status after printing. */
static int parse_ids(generator *g, const char *text) {
    const char *at = text;
    for (g->count = 0;; at++) {
        char *end;
        errno = 0;
        long long id = strtoll(at, &end, 10);
        if (errno || end == at || id < 0 || id >= g->vocab || (*end && *end != ','))
            return usage_error(&generate_command,
                               "--prompt-ids '%s': id %lld, at character %lld, is not a number from 0 to %lld", text,
                               (long long)g->count + 1, (long long)(at - text) + 1, (long long)g->vocab - 1);
        g->ids[g->count++] = id;
        if (!*end) return 0;
        at = end;
    }
}

static int read_prompt(generator *g) {
    const generate_options *o = g->o;
    int64_t n = o->prompt ? (int64_t)strlen(o->prompt) : count_ids(o->prompt_ids);
    g->ids = calloc((size_t)(n + o->tokens), sizeof *g->ids);
    g->logits = calloc((size_t)g->vocab, sizeof *g->logits);
    g->candidates = calloc((size_t)g->vocab, sizeof *g->candidates);
    if (!g->ids || !g->logits || !g->candidates) return fail("no memory for the tokens");
    if (!o->prompt) return parse_ids(g, o->prompt_ids);
    for (g->count = 0; g->count < n; g->count++) g->ids[g->count] = (unsigned char)o->prompt[g->count];
    return 0;
}

/* ---- The model ---- */

/* An empty cache, that is fed from the newest ids on: all that fit at first, half of the positions later. */
static bool restart(generator *g) {
    int64_t most = g->fed ? (g->positions + 1) / 2 : g->positions;
    tg_gpt_cache_free(g->cache);
    g->cache = tg_gpt_cache_new(g->gpt, 1, g->positions);
    g->fed = g->count > most ? g->count - most : 0;
    return check(g->ctx);
}

/* The logits behind the last id. */
static bool predict(generator *g) {
    if (!g->cache || tg_gpt_cache_length(g->cache) + g->count - g->fed > g->positions)
        if (!restart(g)) return false;
    int64_t n = g->count - g->fed;
    tg_tensor *ids = tg_from_host(g->ctx, TG_I64, TG_SHAPE(1, n), g->ids + g->fed);
    tg_read_f64(tg_gpt_next(g->gpt, g->tape, g->cache, ids), g->logits, g->vocab);
    tg_tape_reset(g->tape);
    tg_drop(ids);
    g->fed = g->count;
    return check(g->ctx);
}

/* ---- Draws ---- */

static int by_weight(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    if (x->weight != y->weight) return x->weight < y->weight ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static int64_t likeliest(const generator *g) {
    int64_t best = 0;
    for (int64_t i = 1; i < g->vocab; i++)
        if (g->logits[i] > g->logits[best]) best = i;
    return best;
}

/* Candidates in falling order, cut at top-k and top-p; their probabilities' sum. */
static double cut(generator *g, int64_t *n) {
    const generate_options *o = g->o;
    for (int64_t i = 0; i < g->vocab; i++) g->candidates[i] = (candidate){g->logits[i], i};
    qsort(g->candidates, (size_t)g->vocab, sizeof *g->candidates, by_weight);
    double top = g->candidates[0].weight, all = 0, sum = 0;
    int64_t most = o->top_k && o->top_k < g->vocab ? o->top_k : g->vocab;
    for (int64_t i = 0; i < most; i++) all += g->candidates[i].weight = exp((g->candidates[i].weight - top) / o->temperature);
    for (*n = 0; *n < most && (*n == 0 || sum < o->top_p * all); ++*n) sum += g->candidates[*n].weight;
    return sum;
}

static int64_t draw(generator *g, int64_t index) {
    if (g->o->temperature == 0) return likeliest(g);
    int64_t n;
    double sum = cut(g, &n);
    double left = (double)(random_at((uint64_t)g->o->seed, (uint64_t)index) >> 11) * 0x1p-53 * sum;
    for (int64_t i = 0; i < n; i++)
        if ((left -= g->candidates[i].weight) < 0) return g->candidates[i].id;
    return g->candidates[n - 1].id;
}

/* ---- The program ---- */

static void print_token(const generator *g, int64_t i) {
    if (g->o->prompt)
        putchar((int)g->ids[i]);
    else
        printf("%s%lld", i ? "," : "", (long long)g->ids[i]);
}

static bool continue_prompt(generator *g) {
    for (int64_t i = 0; i < g->count; i++) print_token(g, i);
    for (int64_t i = 0; i < g->o->tokens; i++) {
        if (!predict(g)) return false;
        g->ids[g->count] = draw(g, i);
        print_token(g, g->count++);
        if (fflush(stdout) != 0) return false; /* main says so */
    }
    printf("\n");
    return true;
}

static int open_and_run(generator *g) {
    const generate_options *o = g->o;
    g->ctx = tg_ctx_new(TG_CONFIG(.threads = (int)o->threads, .dtype = dtype_of_precision(o->precision)));
    g->gpt = tg_gpt_load(g->ctx, o->model);
    g->tape = tg_tape_new(g->ctx);
    if (!check(g->ctx)) return 1;
    g->vocab = tg_gpt_config_of(g->gpt)->vocab;
    g->positions = tg_gpt_config_of(g->gpt)->positions;
    if (o->prompt && g->vocab != 256)
        return usage_error(&generate_command, "'%s' has a vocabulary of %lld ids, not the 256 bytes: give --prompt-ids",
                           o->model, (long long)g->vocab);
    int status = read_prompt(g);
    return status ? status : continue_prompt(g) ? 0 : 1;
}

int run_generate(int argc, char **argv) {
    generate_options o = {.tokens = 256, .temperature = 0.8, .top_p = 1, .seed = 1};
    parsed p;
    if (!options_parse(&generate_command, &o, &p, argc, argv)) return p.status;
    if (!o.model) return usage_error(&generate_command, "--model DIR is missing");
    if (!o.prompt == !o.prompt_ids) return usage_error(&generate_command, "expected one of --prompt and --prompt-ids");
    generator g = {.o = &o};
    int status = open_and_run(&g);
    tg_gpt_cache_free(g.cache);
    tg_tape_free(g.tape);
    tg_module_free(g.gpt);
    tg_ctx_free(g.ctx);
    free(g.ids);
    free(g.logits);
    free(g.candidates);
    return status;
}
