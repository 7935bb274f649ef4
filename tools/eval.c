/* tapegrad eval: the loss of a model on a file. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "program.h"

typedef struct eval_options {
    const char *model, *data;
    int data_format, precision;
    int64_t seq_len, batch, threads;
    bool json;
} eval_options;

#define AT(field) offsetof(eval_options, field)

static const option rows[] = {
    {"model", OPTION_TEXT, AT(model), "DIR", "config.json and model.safetensors", .fixed = false},
    {"data", OPTION_TEXT, AT(data), "FILE", "what to predict", .fixed = false},
    {"data-format", OPTION_CHOICE, AT(data_format), DATA_FORMATS, "text: a token is a byte; u16, u32: raw token ids",
     .fixed = false},
    {"seq-len", OPTION_INT, AT(seq_len), "N", "tokens of a window; 0: the model's positions", 0, MANY, false},
    {"batch", OPTION_INT, AT(batch), "N", "windows at once", 1, MANY, false},
    {"threads", OPTION_INT, AT(threads), "N", "0: one for each core", 0, 1024, false},
    {"precision", OPTION_CHOICE, AT(precision), PRECISIONS, "of the arithmetic", .fixed = false},
    {"json", OPTION_FLAG, AT(json), "", "as JSON", .fixed = false},
};

static const command eval_command = {
    .name = "eval",
    .usage = "--model DIR --data FILE [OPTION...]",
    .summary = "Prints the mean loss in nats a token, the perplexity, and the bits a token (a byte, of text). The\n"
               "file is cut into windows that do not overlap; every token but the first is predicted once.",
    .options = rows,
    .n_options = sizeof rows / sizeof rows[0],
};

/* The sum over all windows, the last of which may be short. */
static double sum_over_file(const eval_options *o, tg_module *gpt, tg_tape *t, tg_tokens *tokens) {
    int64_t n = tg_tokens_count(tokens) - 1, positions = tg_gpt_config_of(gpt)->positions;
    int64_t seq_len = o->seq_len ? o->seq_len : positions, windows = n / seq_len, rest = n % seq_len;
    int64_t *offsets = malloc((size_t)(windows + 1) * sizeof *offsets);
    if (!offsets) return fail("no memory for %lld windows", (long long)windows), NAN;
    for (int64_t i = 0; i <= windows; i++) offsets[i] = i * seq_len;
    double sum = windows ? sum_of_losses(gpt, t, tokens, offsets, windows, seq_len, o->batch) : 0;
    if (rest) sum += sum_of_losses(gpt, t, tokens, offsets + windows, 1, rest, 1);
    free(offsets);
    return sum;
}

static int report(const eval_options *o, int64_t tokens, double sum) {
    double loss = sum / (double)tokens, bits = loss / log(2);
    const char *unit = o->data_format == TG_TOKENS_TEXT ? "byte" : "token";
    if (!isfinite(loss)) return fail("the loss is %g", loss);
    if (o->json)
        return print_json(json_pack("{s:I, s:f, s:f, s:f}", "tokens", (json_int_t)tokens, "loss", loss, "perplexity",
                                    exp(loss), o->data_format == TG_TOKENS_TEXT ? "bits_per_byte" : "bits_per_token",
                                    bits));
    printf("tokens      %lld\nloss        %.6f\nperplexity  %.4f\nbits/%-6s %.6f\n", (long long)tokens, loss, exp(loss),
           unit, bits);
    return 0;
}

static int evaluate(const eval_options *o, tg_ctx *ctx, tg_module *gpt, tg_tape *t) {
    if (!check(ctx) || !check_seq_len(o->seq_len, tg_gpt_config_of(gpt))) return 1;
    tg_tokens *tokens = tg_tokens_open(ctx, o->data, (tg_token_format)o->data_format, tg_gpt_config_of(gpt)->vocab);
    int64_t predicted = tg_tokens_count(tokens) - 1;
    double sum = tokens && predicted > 0 ? sum_over_file(o, gpt, t, tokens) : NAN;
    tg_tokens_close(tokens);
    if (!check(ctx)) return 1;
    if (predicted < 1) return fail("'%s' has one token; there is nothing to predict", o->data);
    return report(o, predicted, sum);
}

int run_eval(int argc, char **argv) {
    eval_options o = {.batch = 8};
    parsed p;
    if (!options_parse(&eval_command, &o, &p, argc, argv)) return p.status;
    if (!o.model) return usage_error(&eval_command, "--model DIR is missing");
    if (!o.data) return usage_error(&eval_command, "--data FILE is missing");
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = (int)o.threads, .dtype = dtype_of_precision(o.precision)));
    tg_module *gpt = tg_gpt_load(ctx, o.model);
    tg_tape *t = tg_tape_new(ctx);
    int status = evaluate(&o, ctx, gpt, t);
    tg_tape_free(t);
    tg_module_free(gpt);
    tg_ctx_free(ctx);
    return status;
}
