/* tapegrad eval: computes the loss of a model on a file of tokens. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "data_kind.h"
#include "model_files.h"
#include "stage.h"
#include "start.h"

typedef struct eval_options {
    const char *model, *data, *device;
    int data_format, precision;
    int64_t seq_len, batch, threads;
    rank_options on;
    bool json;
} eval_options;

#define AT(field) offsetof(eval_options, field)

static const option rows[] = {
    {"model", OPTION_TEXT, AT(model), "DIR", "a model directory, or that of a training run; required", .fixed = false},
    {"data", OPTION_TEXT, AT(data), "FILE", "the tokens to predict; required", .fixed = false},
    {"data-format", OPTION_CHOICE, AT(data_format), DATA_FORMATS, DATA_FORMATS_HELP,
     .fixed = false},
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
} evaluation;

/* Returns the sum of the losses of n windows. All tp ranks of this replica's last stage return the same sum, and other
 * stages 0. */
static double sum_over_windows(const eval_options *o, const stage *s, tg_tape *t, tg_tokens *tokens,
                               const int64_t *offsets, int64_t n, int64_t seq_len) {
    if (stage_of_pipeline(s)) return stage_sum_of_losses(s, tokens, offsets, n, seq_len, o->batch);
    return sum_of_losses(s->chunk[0], t, tokens, offsets, n, seq_len, o->batch);
}

/* Returns the sum of this rank's losses. Each data-parallel rank has a part of the windows; the last one also has the
 * rest of the file, which is shorter than a window. In each replica only the first tp rank returns the sum; the others
 * return 0. */
static double sum_over_file(const eval_options *o, const stage *s, tg_tape *t, tg_tokens *tokens) {
    const tg_parallel *p = s->parallel;
    int64_t n = tg_tokens_count(tokens) - 1, positions = tg_gpt_config_of(s->chunk[0])->positions;
    int64_t seq_len = o->seq_len ? o->seq_len : positions, windows = n / seq_len, rest = n % seq_len;
    int64_t rank = tg_parallel_rank(p, TG_DP), size = tg_parallel_size(p, TG_DP);
    int64_t first = windows * rank / size, mine = windows * (rank + 1) / size - first;
    int64_t *offsets = malloc((size_t)(windows + 1) * sizeof *offsets);
    if (!offsets) return fail("no memory for %lld windows", (long long)windows), NAN;
    for (int64_t i = 0; i <= windows; i++) offsets[i] = i * seq_len;
    double sum = mine ? sum_over_windows(o, s, t, tokens, offsets + first, mine, seq_len) : 0;
    if (rest && rank == size - 1) sum += sum_over_windows(o, s, t, tokens, offsets + windows, 1, rest);
    free(offsets);
    return tg_parallel_rank(p, TG_TP) ? 0 : sum;
}

static int report(const eval_options *o, int64_t tokens, double sum) {
    double loss = sum / (double)tokens, bits = loss / log(2);
    const char *unit = o->data_format == TG_TOKENS_TEXT ? "byte" : "token";
    if (!isfinite(loss))
        return fail("the loss is %g, expected a finite number: the weights are not finite, or --precision is too "
                    "narrow for them",
                    loss);
    if (o->json)
        return print_json(json_pack("{s:I, s:f, s:o, s:f}", "tokens", (json_int_t)tokens, "loss", loss, "perplexity",
                                    isfinite(exp(loss)) ? json_real(exp(loss)) : json_null(), /* JSON has no inf */
                                    o->data_format == TG_TOKENS_TEXT ? "bits_per_byte" : "bits_per_token", bits));
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

static int evaluate(const evaluation *e, tg_ctx *ctx, tg_comm *world, const stage *s, tg_tape *t) {
    const eval_options *o = &e->o;
    if (!check(ctx)) return 1;
    tg_tokens *tokens = tg_tokens_open(ctx, o->data, (tg_token_format)o->data_format, e->model.config.vocab);
    int64_t predicted = tg_tokens_count(tokens) - 1;
    bool good = check(ctx) && same_tokens(ctx, world, tokens);
    double sum = good && predicted > 0 ? sum_over_file(o, s, t, tokens) : NAN;
    tg_tokens_close(tokens);
    if (!good || !check(ctx)) return 1;
    if (predicted < 1)
        return fail("--data '%s' has one token, expected two or more: the first is not predicted", o->data);
    sum_over_ranks(ctx, world, &sum, 1);
    if (!check(ctx)) return 1;
    return is_chief(world) ? report(o, predicted, sum) : 0;
}

static int eval_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    const evaluation *e = arg;
    start_facts f = {0};
    facts_add_start(&f, &eval_command, &e->o, ctx);
    if (!facts_agree(&f, ctx, world)) return 1;
    tg_parallel *p = groups_of_ranks(&e->o.on, world);
    tg_tape *t = tg_tape_new(ctx);
    stage s = {0};
    bool good = check(ctx) && stage_open(&s, ctx, p, &e->o.on, &e->model.config, e->model.dir);
    int status = good ? evaluate(e, ctx, world, &s, t) : 1;
    tg_tape_free(t);
    stage_close(&s);
    tg_parallel_free(p);
    return status;
}

static int eval_on_ranks(evaluation *e) {
    const eval_options *o = &e->o;
    if (!model_find(&e->model, o->model, true) || !check_seq_len(o->seq_len, &e->model.config) ||
        !model_takes_data(&e->model, o->data_format))
        return 1;
    warn_of_data(o->data, o->data_format);
    tg_config config = *TG_CONFIG(.device = o->device, .threads = (int)auto_if_zero(o->threads),
                                   .dtype = dtype_of_precision(o->precision));
    return run_on_ranks(&o->on, config, eval_rank, e);
}

int run_eval(int argc, char **argv) {
    evaluation e = {.o = {.batch = 8, .on = RANK_DEFAULTS}};
    eval_options *o = &e.o;
    parsed p;
    bool chief;
    if (!options_parse(&eval_command, o, &p, argc, argv)) return p.status;
    if (!o->model) return usage_error(&eval_command, "--model DIR, the model, is missing");
    if (!o->data) return usage_error(&eval_command, "--data FILE, the tokens to predict, is missing");
    int status = rank_options_check(&eval_command, &p, &o->on);
    if (!status) status = pipeline_options_check(&eval_command, &p, &o->on);
    if (status) return status;
    ranks_begin(&chief);
    return eval_on_ranks(&e);
}
