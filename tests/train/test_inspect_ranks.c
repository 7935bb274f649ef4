/* `tapegrad inspect --ranks N --tp T` gives the figures of the trainer's step on ranks: memory by category at the peak,
 * parameters, and every collective with its bytes, of a step and of a layer; and what each stage of a pipeline holds
 * and sends. */
#include <stdio.h>
#include <string.h>
#include <tapegrad/gpt.h>
#include <tapegrad/io.h>
#include <tapegrad/ranks.h>

#include "train/train.h" /* before Check's own macro `fail` */

#include "check_main.h"
#include "inspected.h"

#define MODEL "--hidden 32 --heads 4 --seq-len 16 --batch 8"

static const char *const compositions[] = {
    "--ranks 2 --tp 2",
    "--ranks 2 --tp 2 --sp",
    "--ranks 2",
    "--ranks 2 --tp 2 --recompute selective",
    "--ranks 2 --tp 2 --recompute full",
    "--ranks 4 --tp 4 --recompute distributed",
    "--ranks 4 --tp 4 --sp --recompute selective",
    "--ranks 4 --tp 2 --sp --accumulate 2",
    "--ranks 4 --tp 2 --accumulate 2 --recompute full",
    "--ranks 2 --zero 1",
    "--ranks 4 --tp 2 --zero 1 --wire bf16",
    "--ranks 2 --zero 2",
    "--ranks 4 --tp 2 --zero 2 --accumulate 2",
    "--ranks 2 --zero 3",
    "--ranks 4 --tp 2 --zero 3 --accumulate 2 --recompute full",
    "--ranks 2 --tp 2 --no-attend-across",
    "--ranks 4 --tp 2 --sp --accumulate 2 --recompute selective --no-attend-across",
    "--ranks 2 --zero 3 --recompute full --no-attend-across",
    "--ranks 2 --no-attend-across --pad-documents",
    "--ranks 2 --cp 2",
    "--ranks 2 --cp 2 --no-attend-across",
    "--ranks 4 --cp 2 --tp 2 --sp --no-attend-across --cp-kind ulysses",
    "--ranks 2 --cp 2 --no-attend-across --cp-kind gather --recompute full --accumulate 2",
};
static const char *const pipelines[] = {
    "--ranks 2 --pp 2 --micro-batches 4",
    "--ranks 4 --pp 2 --tp 2 --micro-batches 4 --schedule zb-h1",
    "--ranks 4 --pp 2 --tp 2 --sp --vp 2 --micro-batches 4 --schedule interleaved",
    "--ranks 4 --pp 2 --micro-batches 2 --schedule gpipe --recompute full",
    "--ranks 4 --pp 4 --micro-batches 8 --schedule zb-h1 --recompute selective",
    "--ranks 4 --pp 2 --micro-batches 2 --zero 1",
    "--ranks 4 --pp 2 --micro-batches 2 --zero 3",
    "--ranks 2 --pp 2 --micro-batches 4 --no-attend-across",
    "--ranks 4 --pp 2 --tp 2 --sp --vp 2 --micro-batches 4 --schedule interleaved --no-attend-across",
};
static const char *const models[] = {"--arch gpt2 --dropout 0.1", "--arch llama --kv-heads 2 --ffn 64",
                                     "--arch gpt2 --vocab 300 --precision bf16"};

/* ---- On ranks ---- */

enum { STEPS = 2, STAGES = 4 };

/* Results of a rank. */
typedef struct figures {
    int64_t parameters;
    tg_memory_info memory[STEPS];
    tg_comm_info sent[STEPS];
} figures;

/* Results of the first rank of each stage; of rank 0 without a pipeline. */
typedef struct real {
    train_options o;
    figures of[STAGES];
} real;

static void steps(real *out, trainer *r, tg_tokens *tokens) {
    int64_t offsets[64];
    bool first = !tg_parallel_rank(r->parallel, TG_TP) && !tg_parallel_rank(r->parallel, TG_DP);
    figures *mine = &out->of[tg_parallel_rank(r->parallel, TG_PP)];
    int64_t document = tg_tokens_count(tokens) / 2;
    for (int i = 0; i < r->batch; i++) offsets[i] = document - 5 * i; /* some sequences have parts of both documents */
    for (int step = 0; step < STEPS; step++) {
        tg_comm_info before = TG_COMM_INFO(), after = TG_COMM_INFO();
        tg_memory_info memory = TG_MEMORY_INFO();
        tg_comm_query(r->world, &before);
        trainer_step(r, step + 1, tokens, offsets, offsets, false);
        tg_comm_query(r->world, &after);
        tg_memory_query(r->ctx, &memory);
        for (int k = 0; k < TG_COLLECTIVES; k++) {
            after.calls[k] -= before.calls[k];
            after.bytes[k] -= before.bytes[k];
        }
        if (!first) continue;
        mine->memory[step] = memory;
        mine->sent[step] = after;
        mine->parameters = stage_numel(&r->stage);
    }
}

/* Returns a stream of two equal documents. */
static tg_tokens *open_documents(tg_ctx *ctx, int64_t vocab) {
    tg_tokens *part[2];
    for (int i = 0; i < 2; i++) part[i] = tg_tokens_open(ctx, "LICENSE", TG_TOKENS_TEXT, vocab);
    return tg_tokens_join(ctx, part, 2);
}

static tg_status train_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    real *out = arg;
    trainer r;
    tg_lm_config config;
    if (!model_config(&out->o.model, &config)) return TG_ERR_MEMORY;
    tg_tokens *tokens = open_documents(ctx, config.vocab);
    tg_tokens_set_windows(tokens, train_windows(&out->o));
    if (trainer_open(&r, &out->o, ctx, world, &config, NULL, NULL)) steps(out, &r, tokens);
    trainer_close(&r);
    tg_tokens_close(tokens);
    return tg_ctx_status(ctx);
}

/* The options as the program takes them. */
static void parse(train_options *o, const char *options) {
    char words[1024], *argv[64];
    int argc = 0;
    parsed p;
    snprintf(words, sizeof words, "%s", options);
    for (char *w = strtok(words, " "); w; w = strtok(NULL, " ")) argv[argc++] = w;
    *o = train_defaults();
    ck_assert(options_parse(&train_command, o, &p, argc, argv));
    if (!o->model.vocab) o->model.vocab = 256;
    o->threads = 1;
    o->masked = !o->attend_across;
}

static void trained(real *out, const char *options) {
    char message[1024] = "";
    *out = (real){0};
    parse(&out->o, options);
    tg_config config = train_config(&out->o);
    tg_status s = tg_ranks_run((int)out->o.on.ranks, train_rank, out,
                               TG_RANKS(.config = &config, .message = message, .message_size = sizeof message));
    ck_assert_msg(s == TG_OK, "%s: %s", options, message);
}

/* ---- Comparison ---- */

static void compare_sent(const char *options, const json_t *all, const tg_comm_info *step, const tg_comm_info *layer) {
    size_t i, found = 0;
    json_t *row;
    json_array_foreach(json_object_get(all, "collectives"), i, row) {
        int k = 0;
        const char *name = json_string_value(json_object_get(row, "collective"));
        while (k < TG_COLLECTIVES && strcmp(name, tg_collective_name((tg_collective)k)) != 0) k++;
        ck_assert_int_lt(k, TG_COLLECTIVES);
        int64_t said[] = {value_of(row, "calls"), value_of(row, "bytes"), value_of(row, "calls_per_layer"),
                          value_of(row, "bytes_per_layer")};
        int64_t real[] = {step->calls[k], step->bytes[k], layer->calls[k], layer->bytes[k]};
        for (int j = 0; j < 4; j++)
            ck_assert_msg(said[j] == real[j], "%s: %s: figure %d is %lld on paper, %lld on ranks", options, name, j,
                          (long long)said[j], (long long)real[j]);
    }
    for (int k = 0; k < TG_COLLECTIVES; k++) found += step->calls[k] > 0;
    ck_assert_int_eq(json_array_size(json_object_get(all, "collectives")), found);
}

static void compare_memory(const char *options, const json_t *all, const tg_memory_info *m) {
    static const char *const categories[] = {"parameters", "gradients", "optimizer", "saved", "temporaries", "buffers",
                                             "captured", "kernels"};
    const json_t *said = json_object_get(all, "memory");
    ck_assert_msg(value_of(said, "peak_bytes") == m->peak, "%s: peak %lld on paper, %lld on ranks", options,
                  (long long)value_of(said, "peak_bytes"), (long long)m->peak);
    for (int c = 0; c < TG_MEM_CATEGORIES; c++)
        ck_assert_msg(value_of(said, categories[c]) == m->peak_by_category[c], "%s: %s: %lld on paper, %lld on ranks",
                      options, categories[c], (long long)value_of(said, categories[c]),
                      (long long)m->peak_by_category[c]);
}

/* Tests one composition: a step with three layers, and the communication of the third. */
static void compare(const char *model, const char *composition) {
    char options[2][512];
    static real three, two;
    tg_comm_info layer = TG_COMM_INFO();
    for (int i = 0; i < 2; i++)
        snprintf(options[i], sizeof options[i], MODEL " --layers %d %s %s", 2 + i, model, composition);
    trained(&two, options[0]);
    trained(&three, options[1]);
    for (int k = 0; k < TG_COLLECTIVES; k++) {
        layer.calls[k] = three.of[0].sent[0].calls[k] - two.of[0].sent[0].calls[k];
        layer.bytes[k] = three.of[0].sent[0].bytes[k] - two.of[0].sent[0].bytes[k];
    }
    json_t *all = inspected(options[1], "");
    ck_assert_int_eq(value_of(all, "ranks"), three.o.on.ranks);
    ck_assert_int_eq(value_of(all, "parameters"), three.of[0].parameters);
    for (int step = 0; step < STEPS; step++) {
        compare_sent(options[1], all, &three.of[0].sent[step], &layer);
        compare_memory(options[1], all, &three.of[0].memory[step]);
    }
    json_decref(all);
}

START_TEST(inspect_predicts_a_step_on_ranks) {
    for (size_t i = 0; i < sizeof compositions / sizeof *compositions; i++)
        for (size_t k = 0; k < sizeof models / sizeof *models; k++) compare(models[k], compositions[i]);
}
END_TEST

/* Checks the peak of a stage. A message keeps its bytes until its receiver has taken them. That depends on time and is
 * not counted on paper: at most the messages that the stage sends in a step. With them the peak may come at another
 * time than on paper, so the difference need not be a number of whole messages. */
static void compare_peak(const char *options, const json_t *row, int64_t peak) {
    int64_t said = value_of(row, "peak_bytes"), sent = value_of(row, "sent_bytes");
    ck_assert_msg(peak >= said && peak <= said + sent,
                  "%s: stage %lld: its peak is %lld on paper, %lld on ranks, which send %lld bytes", options,
                  (long long)value_of(row, "stage"), (long long)said, (long long)peak, (long long)sent);
}

static void compare_stage(const char *options, const json_t *row, const figures *f) {
    static const char *const keys[] = {"parameters", "sends", "sent_bytes", "receives", "received_bytes"};
    for (int step = 0; step < STEPS; step++) {
        const tg_comm_info *sent = &f->sent[step];
        int64_t found[] = {f->parameters, sent->calls[TG_SEND], sent->bytes[TG_SEND], sent->calls[TG_RECV],
                           sent->bytes[TG_RECV]};
        for (int i = 0; i < (int)(sizeof keys / sizeof *keys); i++)
            ck_assert_msg(value_of(row, keys[i]) == found[i], "%s: stage %lld: %s is %lld on paper, %lld on ranks",
                          options, (long long)value_of(row, "stage"), keys[i], (long long)value_of(row, keys[i]),
                          (long long)found[i]);
        compare_peak(options, row, f->memory[step].peak);
    }
}

START_TEST(inspect_predicts_each_stage_of_a_pipeline) {
    static real r;
    for (size_t i = 0; i < sizeof pipelines / sizeof *pipelines; i++)
        for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
            char options[512];
            snprintf(options, sizeof options, MODEL " --layers 4 %s %s", models[k], pipelines[i]);
            trained(&r, options);
            json_t *all = inspected(options, ""), *stages = json_object_get(all, "stages");
            ck_assert_int_eq(json_array_size(stages), r.o.on.pp);
            for (int s = 0; s < r.o.on.pp; s++) compare_stage(options, json_array_get(stages, (size_t)s), &r.of[s]);
            json_decref(all);
        }
}
END_TEST

int main(void) {
    const TTest *tests[] = {inspect_predicts_a_step_on_ranks, inspect_predicts_each_stage_of_a_pipeline};
    return tg_check_main("inspect_ranks", tests, sizeof tests / sizeof *tests);
}
