/* tapegrad eval: computes the loss of a model on a file of tokens. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mapped.h"
#include "common/model_files.h"
#include "common/stage.h"
#include "common/start.h"
#include "data/cache_guard.h"
#include "data/corpus.h"
#include "data/kind.h"
#include "data/sequences.h"

typedef struct eval_options {
    const char *model, *adapter, *data, *tokenizer, *device;
    int data_format, precision;
    int64_t seq_len, batch, threads;
    rank_options on;
    bool json, attend_across, pad_documents;
} eval_options;

#define AT(field) offsetof(eval_options, field)

static const option rows[] = {
    {"model", OPTION_TEXT, AT(model), "DIR", "a model directory, or that of a training run; required", .fixed = false},
    {"adapter", OPTION_TEXT, AT(adapter), "DIR", ADAPTER_HELP, .fixed = false},
    {"data", OPTION_LIST, AT(data), "FILE...",
     "the tokens to predict: files, directories, patterns, - for standard input, .gz and .zst; required",
     .fixed = false},
    {"data-format", OPTION_CHOICE, AT(data_format), CORPUS_FORMATS, CORPUS_FORMATS_HELP, .fixed = false},
    {"tokenizer", OPTION_TEXT, AT(tokenizer), "PATH", TOKENIZER_HELP, .fixed = false},
    {"attend-across", OPTION_FLAG, AT(attend_across), "",
     "a token attends to all before it in its window, also to those of other documents [yes]; no: attention stays "
     "within each document, with positions from 0 on", .fixed = false},
    {"pad-documents", OPTION_FLAG, AT(pad_documents), "",
     "with --no-attend-across: each document begins a window, and short ones are padded", .fixed = false},
    {"seq-len", OPTION_INT, AT(seq_len), "N", "tokens in a window; 0: the model's positions", 0, MANY, false},
    {"batch", OPTION_INT, AT(batch), "N", "windows to compute at once", 1, MANY, false},
    RANK_ROWS(eval_options),
    PP_ROWS(eval_options),
    COMM_ROWS(eval_options),
    {"device", OPTION_DEVICE, AT(device), DEVICES, "where tensors lie and kernels run", .fixed = false},
    {"threads", OPTION_INT, AT(threads), "N",
     "threads of each rank; 0: the cores, divided among the ranks", 0, 1024, false},
    {"precision", OPTION_CHOICE, AT(precision), PRECISIONS, "dtype of parameters and arithmetic", .fixed = false},
    {"json", OPTION_FLAG, AT(json), "", "print JSON", .fixed = false},
};

static const command eval_command = {
    .name = "eval",
    .usage = "--model DIR --data FILE [OPTION...]",
    .summary = "Prints the mean loss in nats per token, the perplexity, and the bits per token, or\n"
               "per byte of text. The data are cut into windows that do not overlap; every token\n"
               "but the first is predicted once. The model of a training run that has not ended\n"
               "is its newest checkpoint.",
    .options = rows,
    .n_options = sizeof rows / sizeof rows[0],
};

/* The options and the model's files, which all ranks share. */
typedef struct evaluation {
    eval_options o;
    model_files model;
    json_t *plan;     /* of the data (corpus.h) */
    char cache[4096]; /* the directory of token files */
} evaluation;

static tg_token_windows windows_of(const eval_options *o) {
    return o->attend_across ? TG_WINDOWS_ACROSS : o->pad_documents ? TG_WINDOWS_PADDED : TG_WINDOWS_PACKED;
}

/* Returns the sum of the losses of n windows. All tp ranks of this replica's last stage return the same sum, and other
 * stages 0. */
static double sum_over_windows(const eval_options *o, const stage *s, tg_tape *t, tg_tokens *tokens,
                               const int64_t *offsets, int64_t n, int64_t seq_len) {
    if (stage_of_pipeline(s)) return stage_sum_of_losses(s, tokens, offsets, n, seq_len, o->batch);
    return sum_of_losses(s->chunk[0], t, tokens, offsets, n, seq_len, o->batch);
}

/* Returns the sum of this rank's losses. Each data-parallel rank has a part of the windows; the last one also has the
 * rest of documents that are not padded, which is shorter than a window. In each replica only the first tp rank returns
 * the sum; the others return 0. */
static double sum_over_data(const eval_options *o, const stage *s, tg_tape *t, tg_tokens *tokens,
                            const sequence_pool *all) {
    const tg_parallel *p = s->parallel;
    int64_t n = tg_tokens_count(tokens) - 1, seq_len = all->seq_len, windows = all->windows;
    int64_t rest = windows_of(o) == TG_WINDOWS_PADDED ? 0 : n % seq_len;
    int64_t rank = tg_parallel_rank(p, TG_DP), size = tg_parallel_size(p, TG_DP);
    int64_t first = windows * rank / size, mine = windows * (rank + 1) / size - first;
    int64_t *offsets = malloc((size_t)(windows + 1) * sizeof *offsets);
    if (!offsets) return fail("no memory for %lld windows", (long long)windows), NAN;
    for (int64_t i = 0; i < windows; i++) offsets[i] = pool_at(all, i);
    offsets[windows] = windows * seq_len;
    double sum = mine ? sum_over_windows(o, s, t, tokens, offsets + first, mine, seq_len) : 0;
    if (rest && rank == size - 1) sum += sum_over_windows(o, s, t, tokens, offsets + windows, 1, rest);
    free(offsets);
    return tg_parallel_rank(p, TG_TP) ? 0 : sum;
}

/* Returns the number of tokens that are predicted. */
static int64_t count_predicted(const eval_options *o, tg_tokens *tokens, const sequence_pool *all) {
    int64_t n = 0, count = tg_tokens_count(tokens);
    if (windows_of(o) != TG_WINDOWS_PADDED) return count > 1 ? tg_tokens_count_targets(tokens, 0, count - 1) : 0;
    for (int64_t i = 0; i < all->windows; i++) n += tg_tokens_count_targets(tokens, pool_at(all, i), all->seq_len);
    return n;
}

static int report(const eval_options *o, bool bytes, int64_t tokens, double sum) {
    double loss = sum / (double)tokens, bits = loss / log(2);
    const char *unit = bytes ? "byte" : "token";
    if (!isfinite(loss))
        return fail("the loss is %g, expected a finite number: the weights are not finite, or --precision is too "
                    "narrow for them",
                    loss);
    if (o->json)
        return print_json(json_pack("{s:I, s:f, s:o, s:f}", "tokens", (json_int_t)tokens, "loss", loss, "perplexity",
                                    isfinite(exp(loss)) ? json_real(exp(loss)) : json_null(), /* JSON has no inf */
                                    bytes ? "bits_per_byte" : "bits_per_token", bits));
    printf("tokens      %lld\nloss        %.6f\nperplexity  %.4f\nbits/%-6s %.6f\n", (long long)tokens, loss, exp(loss),
           unit, bits);
    return 0;
}

/* Checks that all ranks read the same tokens. */
static bool same_tokens(tg_ctx *ctx, tg_comm *world, tg_tokens *tokens) {
    start_facts f = {0};
    facts_add_sum(&f, FACT_FILE, "the checksum of --data", tokens_sum(tokens));
    return facts_agree(&f, ctx, world);
}

static corpus_options data_of(const evaluation *e) {
    const eval_options *o = &e->o;
    return (corpus_options){.data = o->data,
                            .format = (data_format)o->data_format,
                            .tokenizer = e->model.tokenizer,
                            .cache = e->cache,
                            .vocab = e->model.config.vocab};
}

/* Computes the losses of the data, and prints their mean. */
static int evaluate_on(const evaluation *e, tg_ctx *ctx, tg_comm *world, const stage *s, tg_tape *t, const corpus *c) {
    const eval_options *o = &e->o;
    sequence_pool all = {0};
    int64_t positions = tg_lm_config_of(s->chunk[0])->positions;
    tg_tokens_set_windows(c->tokens, windows_of(o));
    bool good = same_tokens(ctx, world, c->tokens) &&
                pool_open(&all, c->tokens, 0, tg_tokens_count(c->tokens), o->seq_len ? o->seq_len : positions,
                          windows_of(o));
    int64_t predicted = good ? count_predicted(o, c->tokens, &all) : 0;
    double sum = predicted > 0 ? sum_over_data(o, s, t, c->tokens, &all) : NAN;
    pool_close(&all);
    if (!good || !check(ctx)) return 1;
    if (tg_tokens_count(c->tokens) < 2)
        return fail("--data '%s' has one token, expected two or more: the first is not predicted", o->data);
    if (predicted < 1) return fail("--data '%s': no token is predicted, because all are context", o->data);
    sum_over_ranks(ctx, world, &sum, 1);
    if (!check(ctx)) return 1;
    return is_chief(world) ? report(o, c->is_bytes, predicted, sum) : 0;
}

static int evaluate(const evaluation *e, tg_ctx *ctx, tg_comm *world, const stage *s, tg_tape *t) {
    if (!check(ctx)) return 1;
    corpus_options from = data_of(e);
    corpus c = {0};
    int status = corpus_open(&c, ctx, &from, e->plan) ? evaluate_on(e, ctx, world, s, t, &c) : 1;
    corpus_close(&c);
    return status;
}

static int eval_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    const evaluation *e = arg;
    start_facts f = {0};
    facts_add_start(&f, &eval_command, &e->o, ctx);
    if (!facts_agree(&f, ctx, world)) return 1;
    tg_parallel *p = groups_of_ranks(&e->o.on, world);
    tg_tape *t = tg_tape_new(ctx);
    stage s = {0};
    mapped_watch(ctx);
    bool good = check(ctx) && stage_open(&s, ctx, p, &e->o.on, &e->model.config, e->model.dir, true);
    if (good) model_adapt(&e->model, s.chunk[0]);
    good = good && check(ctx);
    int status = good ? evaluate(e, ctx, world, &s, t) : 1;
    tg_tape_free(t);
    stage_close(&s);
    tg_parallel_free(p);
    mapped_unwatch(ctx);
    return status;
}

/* Makes a directory for token files, which each process of a job has for itself. */
static bool make_cache(evaluation *e) {
    const char *base = getenv("TMPDIR"), *dir = base && *base ? base : "/tmp";
    snprintf(e->cache, sizeof e->cache, "%s/tapegrad-eval-XXXXXX", dir);
    if (mkdtemp(e->cache)) return true;
    *e->cache = 0;
    return fail("cannot make a directory in '%s': %s; name another one in TMPDIR", dir, strerror(errno)), false;
}

static bool plan_data(evaluation *e) {
    corpus_options from = data_of(e);
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1));
    e->plan = check(ctx) ? corpus_plan(ctx, &from) : NULL;
    tg_ctx_free(ctx);
    if (e->plan && e->o.tokenizer && !corpus_has_encoded(e->plan))
        return fail("--tokenizer is for text, but --data '%s' holds token ids; leave --tokenizer out", e->o.data),
               false;
    return e->plan && (!corpus_is_bytes(e->plan) || model_takes_data(&e->model, DATA_TEXT));
}

static int eval_on_ranks(evaluation *e) {
    const eval_options *o = &e->o;
    if (!model_find(&e->model, o->model, true) || !model_find_adapter(&e->model, o->adapter) ||
        !check_seq_len(o->seq_len, &e->model.config))
        return 1;
    model_find_tokenizer(&e->model, o->tokenizer, o->model);
    if (*e->model.adapter && o->on.pp > 1)
        return fail("--pp %lld: low-rank adapters need a whole model; leave --pp out, or add them to the model first "
                    "(tapegrad convert --adapter)",
                    (long long)o->on.pp);
    tg_config config = *TG_CONFIG(.device = o->device, .threads = (int)auto_if_zero(o->threads),
                                   .dtype = dtype_of_precision(o->precision));
    bool good = make_cache(e) && guard_begin(e->cache) && plan_data(e);
    int status = good ? run_on_ranks(&o->on, config, eval_rank, e) : 1;
    if (*e->cache) corpus_remove_cache(e->cache);
    guard_end();
    json_decref(e->plan);
    return status;
}

int run_eval(int argc, char **argv) {
    evaluation e = {.o = {.data_format = DATA_AUTO, .attend_across = true, .batch = 8, .on = RANK_DEFAULTS}};
    eval_options *o = &e.o;
    parsed p;
    bool chief;
    if (!options_parse(&eval_command, o, &p, argc, argv)) return p.status;
    if (!o->model) return usage_error(&eval_command, "--model DIR, the model, is missing");
    if (!o->data) return usage_error(&eval_command, "--data FILE, the tokens to predict, is missing");
    if (o->attend_across && o->pad_documents)
        return usage_error(&eval_command, "--pad-documents is for --no-attend-across; add that, or leave "
                           "--pad-documents out");
    bool ids = o->data_format == DATA_U16 || o->data_format == DATA_U32 || o->data_format == DATA_MEGATRON;
    if (ids && o->tokenizer)
        return usage_error(&eval_command, "--tokenizer is for text, but --data-format says that --data holds token "
                           "ids; leave one of them out");
    int status = rank_options_check(&eval_command, &p, &o->on);
    if (!status) status = pipeline_options_check(&eval_command, &p, &o->on);
    if (status) return status;
    ranks_begin(&chief);
    status = eval_on_ranks(&e);
    free_model_config(&e.model.config);
    return status;
}
