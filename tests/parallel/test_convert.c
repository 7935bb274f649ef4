/* tg_gpt_to_state and tg_gpt_from_state: a model's directory becomes a state that any ranks load, and the other way
 * round, bit for bit. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>

#include <tapegrad/checkpoint.h>
#include <tapegrad/gpt.h>
#include <tapegrad/io.h>
#include <tapegrad/parallel.h>
#include <tapegrad/ranks.h>

#include "on_ranks.h"
#include "unit/counted_allocator.h"

static char root[] = "/tmp/tapegrad-convert-XXXXXX";

static const char *in_root(char buf[256], const char *name) {
    snprintf(buf, 256, "%s/%s", root, name);
    return buf;
}

static void shell(const char *format, const char *a, const char *b) {
    char command[1024];
    snprintf(command, sizeof command, format, root, a, root, b);
    ck_assert_msg(system(command) == 0, "%s", command);
}

/* ---- The models ---- */

static const struct {
    const char *name;
    tg_gpt_arch arch;
    tg_dtype dtype;
    bool tied, untied;
} models[] = {
    {"gpt2", TG_GPT2, TG_F32, false, false},
    {"gpt2-untied", TG_GPT2, TG_BF16, false, true},
    {"llama", TG_LLAMA, TG_F32, false, false},
    {"llama-tied", TG_LLAMA, TG_BF16, true, false},
};
enum { MODELS = sizeof models / sizeof *models };

static tg_gpt_config config_of(int i) {
    return *TG_GPT(.arch = models[i].arch, .vocab = 50, .layers = 2, .heads = 2, .hidden = 16, .positions = 8,
                   .tied = models[i].tied, .untied = models[i].untied);
}

static void save_model(int i) {
    char dir[256];
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .seed = 5, .dtype = models[i].dtype));
    tg_gpt_config c = config_of(i);
    tg_module *gpt = tg_gpt_new(ctx, &c);
    shell("mkdir %s/%s && true %s/%s", models[i].name, "");
    tg_gpt_save(gpt, in_root(dir, models[i].name));
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    tg_module_free(gpt);
    tg_ctx_free(ctx);
}

/* Loads the state on ranks, and saves it again. arg: the number of the model. */
static tg_status reload(void *arg, tg_ctx *ctx, tg_comm *world) {
    const int *i = arg;
    char from[256], to[256];
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    tg_gpt_config c = config_of(*i);
    c.parallel = p;
    tg_module *gpt = tg_gpt_new(ctx, &c);
    tg_shards *s = tg_shards_new(p);
    RUN(tg_shards_add_module(s, "model", gpt));
    for (int k = 0; k < tg_shards_count(s); k++) {
        tg_shard_info info = TG_SHARD_INFO();
        RUN(tg_shards_at(s, k, &info));
        bool padded = info.whole.dim[0] > c.vocab &&
                      (strstr(info.key, "wte") || strstr(info.key, "embed_tokens") || strstr(info.key, "lm_head"));
        if (padded) RUN(tg_shards_set_rows(s, info.key, c.vocab));
    }
    RUN(tg_shards_load(s, in_root(from, "state")));
    RUN(tg_shards_save(s, in_root(to, "of-ranks")));
    tg_shards_free(s);
    tg_module_free(gpt);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

static void on_four(int i) {
    char message[1024];
    const tg_config *config = TG_CONFIG(.threads = 1, .dtype = models[i].dtype, .deadline = 60);
    tg_status s =
        tg_ranks_run(4, reload, &i, TG_RANKS(.config = config, .message = message, .message_size = sizeof message));
    ck_assert_msg(s == TG_OK, "%s: %s", models[i].name, message);
}

/* Of the tensors only one was in memory at a time. */
static void check_memory(tg_ctx *ctx, const char *model) {
    char path[300];
    int64_t largest = 0, all = 0;
    snprintf(path, sizeof path, "%s/model.safetensors", model);
    tg_memory_info memory = TG_MEMORY_INFO();
    ck_assert(tg_memory_query(ctx, &memory) == TG_OK);
    tg_safetensors *f = tg_safetensors_open(ctx, path);
    for (int k = 0; k < tg_safetensors_count(f); k++) {
        int64_t bytes = tg_safetensors_at(f, k)->stop - tg_safetensors_at(f, k)->begin;
        largest = bytes > largest ? bytes : largest;
        all += bytes;
    }
    tg_safetensors_close(f);
    ck_assert_msg(memory.peak <= 2 * largest && 4 * largest < all, "a peak of %lld bytes", (long long)memory.peak);
}

START_TEST(models_come_back_bit_for_bit) {
    char model[256], state[256], ranks[256], config[300], back[256];
    in_root(state, "state");
    in_root(ranks, "of-ranks");
    in_root(back, "back");
    for (int i = 0; i < MODELS; i++) {
        save_model(i);
        tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
        ck_assert_msg(tg_gpt_to_state(ctx, in_root(model, models[i].name), state, "model") == TG_OK, "%s: %s",
                      models[i].name, tg_ctx_message(ctx));
        check_memory(ctx, model);
        on_four(i);
        snprintf(config, sizeof config, "%s/config.json", model);
        ck_assert_msg(tg_gpt_from_state(ctx, ranks, "model", config, back) == TG_OK, "%s: %s", models[i].name,
                      tg_ctx_message(ctx));
        shell("cmp %s/%s/model.safetensors %s/%s/model.safetensors", models[i].name, "back");
        shell("cmp %s/%s/config.json %s/%s/config.json", models[i].name, "back");
        tg_ctx_free(ctx);
        shell("rm -r %s/%s %s/%s", "state", "of-ranks");
    }
}
END_TEST

static void refused(tg_ctx *ctx, tg_status got, tg_status want, const char *says) {
    ck_assert_msg(got == want && strstr(tg_ctx_message(ctx), says), "%s: %s", tg_status_name(got), tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
}

START_TEST(what_does_not_fit_is_refused) {
    char gpt2[256], llama[256], state[256], config[300], other[256];
    in_root(gpt2, "gpt2");
    in_root(llama, "llama");
    in_root(state, "state");
    in_root(other, "other");
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    ck_assert(tg_gpt_to_state(ctx, gpt2, state, NULL) == TG_OK);
    refused(ctx, tg_gpt_to_state(ctx, gpt2, state, NULL), TG_ERR_STATE, "has a state already");
    snprintf(config, sizeof config, "%s/config.json", llama);
    refused(ctx, tg_gpt_from_state(ctx, state, NULL, config, other), TG_ERR_FORMAT,
            "'transformer.wte.weight' does not belong to the model that the config describes");
    snprintf(config, sizeof config, "%s/config.json", gpt2);
    refused(ctx, tg_gpt_from_state(ctx, state, "model", config, other), TG_ERR_FORMAT,
            "has no tensor whose key begins with 'model.'; the first one is 'transformer.wte.weight'");
    shell("sed -i 's/n_layer\": 2/n_layer\": 3/' %s/%s/config.json && true %s/%s", "state", "");
    snprintf(config, sizeof config, "%s/config.json", state);
    refused(ctx, tg_gpt_from_state(ctx, state, NULL, config, other), TG_ERR_FORMAT,
            "'transformer.h.2.ln_1.weight' is missing, expected [16]");
    refused(ctx, tg_gpt_to_state(ctx, gpt2, llama, NULL), TG_ERR_STATE, "has a model already");
    snprintf(config, sizeof config, "%s/config.json", gpt2);
    refused(ctx, tg_gpt_from_state(ctx, gpt2, NULL, config, other), TG_ERR_IO, "index.json");
    shell("cp %s/%s/config.json %s/%s/config.json", "llama", "gpt2");
    shell("rm -r %s/%s && true %s/%s", "state", "");
    refused(ctx, tg_gpt_to_state(ctx, gpt2, state, NULL), TG_ERR_FORMAT, "does not belong to the model");
    ck_assert(access(state, F_OK) != 0 && access(other, F_OK) != 0); /* nothing was begun */
    tg_ctx_free(ctx);
}
END_TEST

static tg_status there_and_back(tg_ctx *ctx, const char *model, const char *state, const char *back) {
    char config[300];
    snprintf(config, sizeof config, "%s/config.json", state);
    tg_status s = tg_gpt_to_state(ctx, model, state, "m");
    return s == TG_OK ? tg_gpt_from_state(ctx, state, "m", config, back) : s;
}

START_TEST(any_allocation_may_fail) {
    char llama[256], state[256], back[256];
    int at = 1;
    in_root(llama, "llama");
    in_root(state, "poor");
    in_root(back, "poor-back");
    for (tg_status s = TG_ERR_MEMORY; s != TG_OK; at += getenv("TG_LONG") ? 1 : 7) {
        counted memory = {.fail_at = at};
        shell("rm -rf %s/%s %s/%s", "poor", "poor-back");
        tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .allocator = {counted_alloc, counted_free, &memory}));
        s = there_and_back(ctx, llama, state, back);
        ck_assert_msg(s == TG_OK || s == TG_ERR_MEMORY, "%d: %s", at, tg_ctx_message(ctx));
        tg_ctx_free(ctx);
        ck_assert_msg(memory.held == 0, "%lld blocks after call %d failed", (long long)memory.held, at);
    }
    ck_assert_int_gt(at, 100);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {models_come_back_bit_for_bit, what_does_not_fit_is_refused, any_allocation_may_fail};
    if (!mkdtemp(root)) return EXIT_FAILURE;
    int result = tg_check_main("convert", tests, sizeof tests / sizeof *tests);
    char command[300];
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command) == 0 ? result : EXIT_FAILURE;
}
