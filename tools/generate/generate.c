/* tapegrad generate: continues prompts token by token. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mapped.h"
#include "generate/generate.h"
#include "generate/sampling_options.h"

#define AT(field) offsetof(generate_options, field)

static const option rows[] = {
    {"model", OPTION_TEXT, AT(model), "DIR", "a model directory, or that of a training run; required", .fixed = false},
    {"adapter", OPTION_TEXT, AT(adapter), "DIR", ADAPTER_HELP, .fixed = false},
    {"tokenizer", OPTION_TEXT, AT(tokenizer), "PATH", TOKENIZER_HELP, .fixed = false},
    {"prompt", OPTION_TEXT, AT(prompt), "TEXT",
     "text to continue; the model has a tokenizer, or its vocabulary is the 256 bytes", .fixed = false},
    {"prompt-ids", OPTION_TEXT, AT(prompt_ids), "1,2,3", "token ids to continue, by any model; ids are printed",
     .fixed = false},
    {"prompt-file", OPTION_TEXT, AT(prompt_file), "FILE",
     "a prompt on each line: text, or JSON with \"prompt\" or \"ids\"; -: standard input", .fixed = false},
    {"tokens", OPTION_INT, AT(tokens), "N", "most tokens to add", 0, MANY, false},
    {"samples", OPTION_INT, AT(samples), "N", "continuations of each prompt", 1, 1e6, false},
    {"stop", OPTION_TEXT, AT(stop), "TEXT",
     "text that ends a continuation, which stops before it, or a JSON array of several", .fixed = false},
    {"ignore-end", OPTION_FLAG, AT(ignore_end), NULL, "go on after the tokenizer's end of a text", .fixed = false},
    {"temperature", OPTION_REAL, AT(temperature), "X",
     "temperature of the draws; 0: always take the likeliest token", 0, 1e6, false},
    {"top-k", OPTION_INT, AT(top_k), "N", "draw from the N likeliest tokens; 0: from all", 0, MANY, false},
    {"top-p", OPTION_REAL, AT(top_p), "X", "draw from the fewest tokens whose probabilities sum to X", 1e-9, 1,
     false},
    {"min-p", OPTION_REAL, AT(min_p), "X", "draw from tokens with X times the probability of the likeliest one", 0, 1,
     false},
    {"repetition-penalty", OPTION_REAL, AT(repetition_penalty), "X",
     "divide the logits of tokens that were there by X; 1: do not", 1e-6, 1e6, false},
    {"presence-penalty", OPTION_REAL, AT(presence_penalty), "X",
     "subtract X from the logits of tokens that were generated", -1e6, 1e6, false},
    {"frequency-penalty", OPTION_REAL, AT(frequency_penalty), "X", "the same, as often as they were", -1e6, 1e6,
     false},
    {"seed", OPTION_INT, AT(seed), "N", "seed of the draws", 0, LARGEST, false},
    {"draft", OPTION_TEXT, AT(draft), "DIR",
     "a smaller model of the same vocabulary, which proposes tokens; it changes the speed alone", .fixed = false},
    {"draft-tokens", OPTION_INT, AT(draft_tokens), "N", "tokens that it proposes at a time", 1, 11, false},
    {"rows", OPTION_INT, AT(rows), "N",
     "continuations to compute at once; above 12, rounding depends on their number", 1, 4096, false},
    {"chunk", OPTION_INT, AT(chunk), "N", "tokens of prompts to compute at once", 1, 1e6, false},
    {"json", OPTION_FLAG, AT(json), NULL, "print a JSON object for each continuation", .fixed = false},
    {"logprobs", OPTION_INT, AT(logprobs), "N",
     "with --json: log-probabilities of each token, and of the N likeliest ones; -1: none", -1, 1000, false},
    {"stats", OPTION_FLAG, AT(stats), NULL, "print numbers of tokens and speeds to standard error", .fixed = false},
    RANK_ROWS(generate_options),
    {"pp", OPTION_INT, AT(on.pp), "N",
     "must be 1: each rank generates with all layers, also of a model that was trained in a pipeline", 1, 1024, false},
    COMM_ROWS(generate_options),
    {"device", OPTION_DEVICE, AT(device), DEVICES, "where tensors lie and kernels run", .fixed = false},
    {"threads", OPTION_INT, AT(threads), "N",
     "threads of each rank; 0: the cores, divided among the ranks", 0, 1024, false},
    {"precision", OPTION_CHOICE, AT(precision), PRECISIONS, "dtype of parameters and arithmetic", .fixed = false},
};

const command generate_command = {
    .name = "generate",
    .usage = "--model DIR --prompt TEXT|--prompt-ids IDS [OPTION...]",
    .summary = "Prints prompts and their continuations. When the model's positions are used up, it\n"
               "starts again from the newest half of the tokens. The model of a training run that\n"
               "has not ended is its newest checkpoint.",
    .options = rows,
    .n_options = sizeof rows / sizeof rows[0],
};

/* What all ranks share. */
typedef struct work {
    generate_options o;
    model_files model, draft;
    given_prompts prompts;
    char **stop;
    int64_t n_stop;
} work;

/* ---- One rank ---- */

/* What one rank opens. */
typedef struct rank_state {
    tg_parallel *parallel;
    tg_module *gpt, *draft;
    tg_tokenizer *tokenizer;
    tg_generator *generator;
    given_prompts prompts; /* with ids of this rank's tokenizer */
    tg_prompt *list;
} rank_state;

/* Copies the prompts, because each rank makes their ids. */
static bool copy_prompts(given_prompts *to, const given_prompts *from) {
    to->at = calloc((size_t)from->n, sizeof *to->at);
    if (!to->at) return !fail("no memory for the prompts");
    to->n = to->capacity = from->n;
    for (int64_t i = 0; i < from->n; i++) {
        const given_prompt *p = &from->at[i];
        given_prompt *q = &to->at[i];
        *q = (given_prompt){.text = p->text ? malloc(p->n_text + 1) : NULL, .n_text = p->n_text};
        size_t bytes = (size_t)p->ids.count * sizeof *p->ids.ids;
        q->ids = (tg_ids){.ids = bytes ? malloc(bytes) : NULL, .count = p->ids.count, .capacity = p->ids.count};
        if ((p->text && !q->text) || (bytes && !q->ids.ids)) return !fail("no memory for the prompts");
        if (p->text) memcpy(q->text, p->text, p->n_text + 1);
        if (bytes) memcpy(q->ids.ids, p->ids.ids, bytes);
    }
    return true;
}

/* Makes the list of prompts. Returns the longest length; 0 after printing what is wrong. */
static int64_t list_prompts(rank_state *r) {
    int64_t longest = 0;
    r->list = calloc((size_t)r->prompts.n, sizeof *r->list);
    for (int64_t i = 0; r->list && i < r->prompts.n; i++) {
        const tg_ids *ids = &r->prompts.at[i].ids;
        r->list[i] = (tg_prompt){ids->ids, ids->count};
        if (ids->count > longest) longest = ids->count;
    }
    if (!r->list) fail("no memory for the prompts");
    return longest;
}

static bool open_rank(rank_state *r, const work *w, tg_ctx *ctx) {
    const generate_options *o = &w->o;
    r->tokenizer = model_open_tokenizer(&w->model, ctx); /* before the model, because it takes less time */
    if (!r->tokenizer && model_has_tokenizer(&w->model)) return false;
    r->gpt = load_on_ranks(ctx, r->parallel, &w->model.config, w->model.dir, true);
    model_adapt(&w->model, r->gpt);
    if (o->draft) {
        tg_draws_step(ctx, 1); /* both models draw initial weights from the same keys */
        r->draft = load_on_ranks(ctx, r->parallel, &w->draft.config, w->draft.dir, true);
        model_adapt(&w->draft, r->draft);
    }
    if (!check(ctx) || !copy_prompts(&r->prompts, &w->prompts) || !prompts_encode(&r->prompts, ctx, r->tokenizer))
        return false;
    int64_t positions = list_prompts(r), all = r->prompts.n * o->samples;
    if (!positions) return false;
    positions = positions + o->tokens < w->model.config.positions ? positions + o->tokens : w->model.config.positions;
    r->generator = tg_generator_new(
        r->gpt, TG_GENERATOR(.rows = all < o->rows ? all : o->rows, .positions = positions < 2 ? TG_AUTO : positions,
                             .chunk = o->chunk, .draft = r->draft, .draft_tokens = o->draft_tokens));
    return check(ctx);
}

static void close_rank(rank_state *r) {
    tg_generator_free(r->generator);
    tg_module_free(r->gpt);
    tg_module_free(r->draft);
    tg_tokenizer_free(r->tokenizer);
    tg_parallel_free(r->parallel);
    prompts_free(&r->prompts);
    free(r->list);
}

static bool continue_prompts(rank_state *r, const work *w, tg_ctx *ctx, bool chief) {
    const generate_options *o = &w->o;
    int64_t ends[64];
    int n_ends = o->ignore_end ? 0 : tg_tokenizer_ends(r->tokenizer, ends, 64);
    generate_output out = {.o = o, .prompts = &r->prompts, .generator = r->generator, .chief = chief,
                           .ids = o->prompt_ids || !r->tokenizer};
    output_begin(&out);
    if (o->tokens)
        tg_generator_run(
            r->generator, r->list, r->prompts.n,
            TG_GENERATE(.tokens = o->tokens, .samples = o->samples, .stop_ids = ends,
                        .n_stop_ids = n_ends < 64 ? n_ends : 64, .stop = (const char *const *)w->stop,
                        .n_stop = w->n_stop, .tokenizer = r->tokenizer, .logprobs = o->logprobs >= 0,
                        .top_logprobs = o->logprobs > 0 ? o->logprobs : 0, .slide = true, .on_token = output_token,
                        .state = &out,
                        .sampling = TG_SAMPLING(.temperature = o->temperature, .top_k = o->top_k, .top_p = o->top_p,
                                                .min_p = o->min_p, .repetition_penalty = o->repetition_penalty,
                                                .presence_penalty = o->presence_penalty,
                                                .frequency_penalty = o->frequency_penalty,
                                                .seed = (uint64_t)o->seed)));
    bool good = check(ctx) && output_end(&out);
    if (good && o->stats) output_stats(&out);
    return good;
}

static int generate_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    const work *w = arg;
    rank_state r = {0};
    start_facts f = {0};
    facts_add_start(&f, &generate_command, &w->o, ctx);
    if (!facts_agree(&f, ctx, world)) return 1;
    r.parallel = groups_of_ranks(&w->o.on, world);
    int replicas = tg_parallel_size(r.parallel, TG_DP);
    bool good = check(ctx);
    if (good && replicas > 1)
        good = !fail("%d ranks with --tp %lld are %d replicas of the model, but one text is generated by one replica: "
                     "give --tp %d",
                     tg_comm_size(world), (long long)w->o.on.tp, replicas, tg_comm_size(world));
    mapped_watch(ctx);
    good = good && open_rank(&r, w, ctx) && continue_prompts(&r, w, ctx, is_chief(world));
    close_rank(&r);
    mapped_unwatch(ctx);
    return good ? 0 : 1;
}

/* ---- The command ---- */

static bool find_models(work *w) {
    const generate_options *o = &w->o;
    if (!model_find(&w->model, o->model, true) || !model_find_adapter(&w->model, o->adapter)) return false;
    model_find_tokenizer(&w->model, o->tokenizer, o->model);
    if (o->logprobs > w->model.config.vocab)
        return !fail("--logprobs %lld: the vocabulary of the model in '%s' has only %lld ids; give at most that many",
                     (long long)o->logprobs, w->model.dir, (long long)w->model.config.vocab);
    if (o->stop && !model_has_tokenizer(&w->model))
        return !fail("--stop is text, but '%s' has no tokenizer.json to make text from ids; give --tokenizer",
                     w->model.dir);
    if (!o->draft) return true;
    if (!model_find(&w->draft, o->draft, true)) return false;
    return w->draft.config.vocab == w->model.config.vocab ||
           !fail("the model in '%s' has a vocabulary of %lld ids and the one in '%s' of %lld; a draft model needs the "
                 "same vocabulary",
                 o->draft, (long long)w->draft.config.vocab, o->model, (long long)w->model.config.vocab);
}

static int generate_on_ranks(work *w) {
    const generate_options *o = &w->o;
    if (!find_models(w)) return 1;
    int status = prompts_read(&w->prompts, o);
    if (!status) status = prompts_check(&w->prompts, o, &w->model);
    if (status) return status;
    tg_config config = *TG_CONFIG(.device = o->device, .threads = (int)auto_if_zero(o->threads),
                                   .dtype = dtype_of_precision(o->precision));
    return run_on_ranks(&o->on, config, generate_rank, w);
}

static int check_prompt_options(const generate_options *o) {
    const command *c = &generate_command;
    int n = (o->prompt != NULL) + (o->prompt_ids != NULL) + (o->prompt_file != NULL);
    if (n == 0) return usage_error(c, "--prompt TEXT or --prompt-ids IDS is missing, or --prompt-file FILE");
    if (n > 1) return usage_error(c, "expected one of --prompt and --prompt-ids and --prompt-file, not several");
    if (o->logprobs >= 0 && !o->json) return usage_error(c, "--logprobs is printed with --json alone: give both");
    return 0;
}

static int check_options(const generate_options *o, const parsed *p) {
    const command *c = &generate_command;
    if (!o->model) return usage_error(c, "--model DIR, the model, is missing");
    int status = check_prompt_options(o);
    if (status) return status;
    if (!o->draft && option_given(c, p, "draft-tokens"))
        return usage_error(c, "--draft-tokens is for --draft DIR, which is missing");
    if (sampling_options_check(c, p, o->temperature)) return 2;
    if (o->on.pp > 1)
        return usage_error(c, "--pp %lld: a pipeline cannot generate, because each token needs the one before; leave "
                              "--pp out, and give --tp N to divide the model",
                           (long long)o->on.pp);
    status = rank_options_check(c, p, &o->on);
    if (!status && o->on.ranks > o->on.tp)
        return usage_error(c,
                           "--ranks %lld with --tp %lld are replicas of the model, but one text is generated by one "
                           "replica: give --tp %lld",
                           (long long)o->on.ranks, (long long)o->on.tp, (long long)o->on.ranks);
    return status;
}

int run_generate(int argc, char **argv) {
    work w = {.o = {.tokens = 256, .samples = 1, .temperature = 0.8, .top_p = 1, .repetition_penalty = 1, .seed = 1,
                    .rows = 12, .chunk = 512, .logprobs = -1, .draft_tokens = 4, .on = RANK_DEFAULTS}};
    parsed p;
    bool chief;
    if (!options_parse(&generate_command, &w.o, &p, argc, argv)) return p.status;
    int status = check_options(&w.o, &p);
    if (status) return status;
    if (w.o.stop && !(w.stop = stops_parse(w.o.stop, &w.n_stop))) return 2;
    ranks_begin(&chief);
    status = generate_on_ranks(&w);
    prompts_free(&w.prompts);
    free(w.stop);
    free_model_config(&w.model.config);
    free_model_config(&w.draft.config);
    return status;
}
