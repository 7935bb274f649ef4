/* tapegrad generate: continues a prompt token by token. Draws each token from the model's prediction. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model_files.h"
#include "start.h"

typedef struct generate_options {
    const char *model, *adapter, *prompt, *prompt_ids, *device;
    int64_t tokens, top_k, seed, threads;
    double temperature, top_p;
    int precision;
    rank_options on;
} generate_options;

#define AT(field) offsetof(generate_options, field)

static const option rows[] = {
    {"model", OPTION_TEXT, AT(model), "DIR", "a model directory, or that of a training run; required", .fixed = false},
    {"adapter", OPTION_TEXT, AT(adapter), "DIR", ADAPTER_HELP, .fixed = false},
    {"prompt", OPTION_TEXT, AT(prompt), "TEXT",
     "text to continue, by a model whose vocabulary is the 256 bytes", .fixed = false},
    {"prompt-ids", OPTION_TEXT, AT(prompt_ids), "1,2,3", "token ids to continue, by any model", .fixed = false},
    {"tokens", OPTION_INT, AT(tokens), "N", "tokens to add", 0, MANY, false},
    {"temperature", OPTION_REAL, AT(temperature), "X",
     "temperature of the draws; 0: always take the likeliest token", 0, 1e6, false},
    {"top-k", OPTION_INT, AT(top_k), "N", "draw from the N likeliest tokens; 0: from all", 0, MANY, false},
    {"top-p", OPTION_REAL, AT(top_p), "X", "draw from the fewest tokens whose probabilities sum to X", 1e-9, 1,
     false},
    {"seed", OPTION_INT, AT(seed), "N", "seed of the draws", 0, LARGEST, false},
    RANK_ROWS(generate_options),
    {"pp", OPTION_INT, AT(on.pp), "N",
     "must be 1: each rank generates with all layers, also of a model that was trained in a pipeline", 1, 1024, false},
    COMM_ROWS(generate_options),
    {"device", OPTION_DEVICE, AT(device), DEVICES, "where tensors lie and kernels run", .fixed = false},
    {"threads", OPTION_INT, AT(threads), "N",
     "threads of each rank; 0: the cores, divided among the ranks", 0, 1024, false},
    {"precision", OPTION_CHOICE, AT(precision), PRECISIONS, "dtype of parameters and arithmetic", .fixed = false},
};

static const command generate_command = {
    .name = "generate",
    .usage = "--model DIR --prompt TEXT|--prompt-ids IDS [OPTION...]",
    .summary = "Prints a prompt and its continuation. When the model's positions are used up, it\n"
               "starts again from the newest half of the tokens. The model of a training run that\n"
               "has not ended is its newest checkpoint.",
    .options = rows,
    .n_options = sizeof rows / sizeof rows[0],
};

typedef struct candidate {
    double weight; /* at first the logit of the id, then the probability of the id up to a common factor */
    int64_t id;
} candidate;

/* The options, the model's files and the prompt, which all ranks share. */
typedef struct prompt {
    generate_options o;
    model_files model;
    int64_t *ids, count;
} prompt;

/* The state of one rank. All ranks draw the same tokens from the same logits. */
typedef struct generator {
    const generate_options *o;
    bool chief; /* this rank prints */
    tg_ctx *ctx;
    tg_parallel *parallel;
    tg_module *gpt;
    tg_tape *tape;
    tg_gpt_cache *cache;
    int64_t vocab, positions;
    int64_t *ids, count; /* the prompt and the tokens added to it */
    int64_t fed;         /* index of the first id that the model has not processed yet */
    double *logits;
    candidate *candidates;
} generator;

/* ---- The prompt ---- */

static int64_t count_ids(const char *text) {
    int64_t n = 1;
    for (; *text; text++) n += *text == ',';
    return n;
}

/* Parses the ids, which are separated by commas. Returns 0, or the exit status after printing an error. */
static int parse_ids(prompt *p, const char *text) {
    const char *at = text;
    for (p->count = 0;; at++) {
        char *end;
        errno = 0;
        long long id = strtoll(at, &end, 10);
        if (errno || end == at || id < 0 || id >= p->model.config.vocab || (*end && *end != ','))
            return usage_error(
                &generate_command,
                "--prompt-ids '%s': id %lld, at character %lld, is not a whole number from 0 to %lld", text,
                (long long)p->count + 1, (long long)(at - text) + 1, (long long)p->model.config.vocab - 1);
        p->ids[p->count++] = id;
        if (!*end) return 0;
        at = end;
    }
}

static int read_prompt(prompt *p) {
    const generate_options *o = &p->o;
    if (o->prompt && p->model.config.vocab != 256)
        return usage_error(&generate_command,
                           "the model in '%s' has a vocabulary of %lld ids, and --prompt gives the 256 bytes: give "
                           "--prompt-ids",
                           o->model, (long long)p->model.config.vocab);
    int64_t n = o->prompt ? (int64_t)strlen(o->prompt) : count_ids(o->prompt_ids);
    p->ids = calloc((size_t)n + 1, sizeof *p->ids);
    if (!p->ids) return fail("no memory for the tokens of the prompt");
    if (!o->prompt) return parse_ids(p, o->prompt_ids);
    for (p->count = 0; p->count < n; p->count++) p->ids[p->count] = (unsigned char)o->prompt[p->count];
    return 0;
}

/* ---- The model ---- */

/* Replaces the cache by an empty one, and sets g->fed back so that the model processes the newest ids again. On the
 * first call these are at most as many as the model has positions; later at most half as many, so that new ids fit. */
static bool restart(generator *g) {
    int64_t most = g->fed ? (g->positions + 1) / 2 : g->positions;
    tg_gpt_cache_free(g->cache);
    g->cache = tg_gpt_cache_new(g->gpt, 1, g->positions);
    g->fed = g->count > most ? g->count - most : 0;
    return check(g->ctx);
}

/* Checks that the logits are finite. Otherwise no token can be drawn. */
static bool check_logits(const generator *g) {
    for (int64_t i = 0; i < g->vocab; i++)
        if (!isfinite(g->logits[i]))
            return fail("the logit of id %lld after %lld tokens is %s, expected a finite number: the model's weights "
                        "are not finite, or --precision is too narrow for them",
                        (long long)i, (long long)g->count, isnan(g->logits[i]) ? "NaN" : "infinite"),
                   false;
    return true;
}

/* Computes the logits of the token after the last one. */
static bool predict(generator *g) {
    if (!g->cache || tg_gpt_cache_length(g->cache) + g->count - g->fed > g->positions)
        if (!restart(g)) return false;
    int64_t n = g->count - g->fed;
    tg_tensor *ids = tg_from_host(g->ctx, TG_I64, TG_SHAPE(1, n), g->ids + g->fed);
    place_batch(g->parallel, ids, false);
    tg_read_f64(tg_gpt_next(g->gpt, g->tape, g->cache, ids), g->logits, g->vocab);
    tg_tape_reset(g->tape);
    tg_drop(ids);
    g->fed = g->count;
    return check(g->ctx) && check_logits(g);
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

/* Sorts the candidates by falling probability, and sets *n to the number of them that --top-k and --top-p leave.
 * Returns the sum of the weights of these n. */
static double select_candidates(generator *g, int64_t *n) {
    const generate_options *o = g->o;
    for (int64_t i = 0; i < g->vocab; i++) g->candidates[i] = (candidate){g->logits[i], i};
    qsort(g->candidates, (size_t)g->vocab, sizeof *g->candidates, by_weight);
    double top = g->candidates[0].weight, all = 0, sum = 0;
    int64_t most = o->top_k && o->top_k < g->vocab ? o->top_k : g->vocab;
    for (int64_t i = 0; i < most; i++)
        all += g->candidates[i].weight = exp((g->candidates[i].weight - top) / o->temperature);
    for (*n = 0; *n < most && (*n == 0 || sum < o->top_p * all); ++*n) sum += g->candidates[*n].weight;
    return sum;
}

/* Returns the id drawn as token number `index` of the continuation. */
static int64_t draw(generator *g, int64_t index) {
    if (g->o->temperature == 0) return likeliest(g);
    int64_t n;
    double sum = select_candidates(g, &n);
    double left = (double)(random_at((uint64_t)g->o->seed, (uint64_t)index) >> 11) * 0x1p-53 * sum;
    for (int64_t i = 0; i < n; i++)
        if ((left -= g->candidates[i].weight) < 0) return g->candidates[i].id;
    return g->candidates[n - 1].id;
}

/* ---- The program ---- */

static void print_token(const generator *g, int64_t i) {
    if (!g->chief) return;
    if (g->o->prompt)
        putchar((int)g->ids[i]);
    else
        printf("%s%lld", i ? "," : "", (long long)g->ids[i]);
}

static bool continue_prompt(generator *g) {
    for (int64_t i = 0; i < g->count; i++) print_token(g, i);
    if (g->chief) set_line_open(true);
    for (int64_t i = 0; i < g->o->tokens; i++) {
        if (!predict(g)) return false;
        g->ids[g->count] = draw(g, i);
        print_token(g, g->count++);
        if (fflush(stdout) != 0) return false; /* main prints why */
    }
    if (g->chief) set_line_open(false);
    say("\n");
    return true;
}

static bool open_generator(generator *g, const prompt *p) {
    const generate_options *o = &p->o;
    g->gpt = load_on_ranks(g->ctx, g->parallel, &p->model.config, p->model.dir);
    model_adapt(&p->model, g->gpt);
    g->tape = tg_tape_new(g->ctx);
    g->vocab = p->model.config.vocab;
    g->positions = p->model.config.positions;
    g->ids = calloc((size_t)(p->count + o->tokens) + 1, sizeof *g->ids);
    g->logits = calloc((size_t)g->vocab, sizeof *g->logits);
    g->candidates = calloc((size_t)g->vocab, sizeof *g->candidates);
    if (!g->ids || !g->logits || !g->candidates) return fail("no memory for the tokens of the prompt"), false;
    memcpy(g->ids, p->ids, (size_t)p->count * sizeof *g->ids);
    g->count = p->count;
    return check(g->ctx);
}

static int generate_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    const prompt *p = arg;
    generator g = {.o = &p->o, .chief = is_chief(world), .ctx = ctx};
    start_facts f = {0};
    facts_add_start(&f, &generate_command, &p->o, ctx);
    if (!facts_agree(&f, ctx, world)) return 1;
    g.parallel = groups_of_ranks(&p->o.on, world);
    int replicas = tg_parallel_size(g.parallel, TG_DP);
    bool good = check(ctx);
    if (good && replicas > 1)
        good = !fail("%d ranks with --tp %lld are %d replicas of the model, but one text is generated by one replica: "
                     "give --tp %d",
                     tg_comm_size(world), (long long)p->o.on.tp, replicas, tg_comm_size(world));
    good = good && open_generator(&g, p) && continue_prompt(&g);
    tg_gpt_cache_free(g.cache);
    tg_tape_free(g.tape);
    tg_module_free(g.gpt);
    tg_parallel_free(g.parallel);
    free(g.ids);
    free(g.logits);
    free(g.candidates);
    return good ? 0 : 1;
}

static int generate_on_ranks(prompt *p) {
    const generate_options *o = &p->o;
    if (!model_find(&p->model, o->model, true) || !model_find_adapter(&p->model, o->adapter)) return 1;
    int status = read_prompt(p);
    if (status) return status;
    tg_config config = *TG_CONFIG(.device = o->device, .threads = (int)auto_if_zero(o->threads),
                                   .dtype = dtype_of_precision(o->precision));
    return run_on_ranks(&o->on, config, generate_rank, p);
}

static int check_options(const generate_options *o, const parsed *p) {
    const command *c = &generate_command;
    if (!o->model) return usage_error(c, "--model DIR, the model, is missing");
    if (!o->prompt && !o->prompt_ids) return usage_error(c, "--prompt TEXT or --prompt-ids IDS is missing");
    if (o->prompt && o->prompt_ids) return usage_error(c, "expected one of --prompt and --prompt-ids, not both");
    if (o->on.pp > 1)
        return usage_error(c, "--pp %lld: a pipeline cannot generate, because each token needs the one before; leave "
                              "--pp out, and give --tp N to divide the model",
                           (long long)o->on.pp);
    int status = rank_options_check(c, p, &o->on);
    if (!status && o->on.ranks > o->on.tp)
        return usage_error(c,
                           "--ranks %lld with --tp %lld are replicas of the model, but one text is generated by one "
                           "replica: "
                           "give --tp %lld",
                           (long long)o->on.ranks, (long long)o->on.tp, (long long)o->on.ranks);
    return status;
}

int run_generate(int argc, char **argv) {
    prompt of = {.o = {.tokens = 256, .temperature = 0.8, .top_p = 1, .seed = 1, .on = RANK_DEFAULTS}};
    parsed p;
    bool chief;
    if (!options_parse(&generate_command, &of.o, &p, argc, argv)) return p.status;
    int status = check_options(&of.o, &p);
    if (status) return status;
    ranks_begin(&chief);
    status = generate_on_ranks(&of);
    free(of.ids);
    free_model_config(&of.model.config);
    return status;
}
