/* Takes any text as a config.json. It is refused with a reason, or it makes a model on device meta, and a step of it
 * is recorded. A small model is also made on the CPU: it has a loss and gradients, and can be saved and loaded
 * again. Also takes any text as JSON: what can be read can be written and read again as the same. */
#define _GNU_SOURCE
#include <float.h>
#include <math.h>

#include <tapegrad/nn.h>
#include <tapegrad/gpt.h>

#include "files.h"
#include "io/json.h"

#define GPT2(sizes, more)                                                                                             \
    "{\"model_type\":\"gpt2\"," sizes ",\"activation_function\":\"gelu_new\",\"layer_norm_epsilon\":1e-05" more "}"
#define LLAMA(sizes, more) "{\"model_type\":\"llama\"," sizes ",\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-06" more "}"
#define OTHER(type, more) "{\"model_type\":\"" type "\"," SMALL_LLAMA "," more "}"
#define SMALL_GPT2 "\"vocab_size\":7,\"n_positions\":4,\"n_embd\":4,\"n_layer\":1,\"n_head\":2"
#define SMALL_LLAMA                                                                                                   \
    "\"vocab_size\":7,\"max_position_embeddings\":4,\"hidden_size\":4,\"num_hidden_layers\":1,"                       \
    "\"num_attention_heads\":2,\"intermediate_size\":6"

const char *const fuzz_words[] = {
    "\"model_type\"", "\"gpt2\"", "\"llama\"", "\"vocab_size\":", "\"initializer_range\":", "\"n_embd\":",
    "\"n_layer\":", "\"n_head\":", "\"n_positions\":", ",\"n_inner\":", "\"resid_pdrop\":0.1", ",\"attn_pdrop\":0.1",
    ",\"embd_pdrop\":0.1",
    ",\"tie_word_embeddings\":", "\"hidden_size\":", "\"num_hidden_layers\":", "\"num_attention_heads\":",
    "\"intermediate_size\":", "\"max_position_embeddings\":", ",\"num_key_value_heads\":1", ",\"head_dim\":",
    "\"mistral\"", "\"qwen2\"", "\"qwen3\"", "\"smollm3\"", "\"gemma\"", "\"gemma2\"", "\"gemma3_text\"", "\"phi\"",
    "\"phi3\"", "\"olmo\"", "\"olmo2\"", ",\"sliding_window\":3", ",\"use_sliding_window\":true",
    ",\"max_window_layers\":0", ",\"layer_types\":[", "\"full_attention\"", "\"sliding_attention\"",
    ",\"sliding_window_pattern\":", ",\"no_rope_layers\":[0]", ",\"query_pre_attn_scalar\":4",
    ",\"attn_logit_softcapping\":5", ",\"final_logit_softcapping\":3", ",\"clip_qkv\":0.5",
    ",\"partial_rotary_factor\":0.5", ",\"rope_local_base_freq\":100", ",\"mlp_bias\":true", "\"factor\":2",
    "\"low_freq_factor\":1", "\"high_freq_factor\":4", "\"original_max_position_embeddings\":2",
    "\"rope_type\":\"llama3\"", "\"rope_type\":\"yarn\"", "\"rope_type\":\"linear\"", ",\"quantization_config\":",
    ",\"rope_theta\":", ",\"rope_parameters\":{", "\"rope_type\":\"default\"", ",\"attention_bias\":false", "true",
    "false", "null", "{", "}", "[", "]", ",", ":", "\"", "1e-5", "1e308", "-0.0", "1048576", "16777216", "2147483648",
    "1099511627776", NULL};

size_t fuzz_seed(int i, uint8_t *out, size_t max) {
    static const char *const seeds[] = {
        GPT2(SMALL_GPT2, ""),
        GPT2(SMALL_GPT2, ",\"n_inner\":5,\"resid_pdrop\":0.1,\"attn_pdrop\":0.1,\"embd_pdrop\":0.1,"
                         "\"tie_word_embeddings\":false,\"initializer_range\":0.5"),
        GPT2("\"vocab_size\":50257,\"n_positions\":1024,\"n_embd\":768,\"n_layer\":2,\"n_head\":12", ""),
        LLAMA(SMALL_LLAMA, ""),
        LLAMA(SMALL_LLAMA, ",\"num_key_value_heads\":1,\"head_dim\":4,\"rope_theta\":100,\"tie_word_embeddings\":true"),
        LLAMA(SMALL_LLAMA, ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1e4},"
                           "\"attention_bias\":false"),
        LLAMA(SMALL_LLAMA, ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
                           "\"high_freq_factor\":4,\"original_max_position_embeddings\":2},\"mlp_bias\":true"),
        LLAMA(SMALL_LLAMA, ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"beta_fast\":9},\"pad_token_id\":null"),
        OTHER("mistral", "\"num_key_value_heads\":1,\"sliding_window\":2"),
        OTHER("qwen2", "\"num_key_value_heads\":2,\"use_sliding_window\":true,\"max_window_layers\":0"),
        OTHER("qwen3", "\"num_key_value_heads\":1,\"head_dim\":4,\"layer_types\":[\"full_attention\"]"),
        OTHER("smollm3", "\"num_key_value_heads\":1,\"no_rope_layers\":[0]"),
        OTHER("gemma", "\"num_key_value_heads\":1,\"head_dim\":4"),
        OTHER("gemma2", "\"num_key_value_heads\":1,\"head_dim\":4,\"query_pre_attn_scalar\":7.5,\"sliding_window\":2"),
        OTHER("gemma3_text", "\"num_key_value_heads\":1,\"head_dim\":4,\"sliding_window\":2,"
                             "\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e6},"
                             "\"sliding_attention\":{\"rope_theta\":1e4}}"),
        OTHER("phi", "\"head_dim\":4,\"partial_rotary_factor\":0.5,\"resid_pdrop\":0.1"),
        OTHER("phi3", "\"original_max_position_embeddings\":4"),
        OTHER("olmo", "\"clip_qkv\":0.5"),
        OTHER("olmo2", "\"attention_bias\":true"),
        "{\"a\":[1,-2,3.5,1e-300,null,true,false,\"\\u00e9\\ud83d\\ude00\",{\"b\":{}}],\"c\":0.1,\"d\":1e22}",
    };
    if (i >= (int)COUNT(seeds) || strlen(seeds[i]) > max) return 0;
    memcpy(out, seeds[i], strlen(seeds[i]));
    return strlen(seeds[i]);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed) {
    uint64_t state = seed;
    return fuzz_below(&state, 2) ? fuzz_mutate(data, size, max, &state) : LLVMFuzzerMutate(data, size, max);
}

/* ---- JSON ---- */

static void check_json(tg_ctx *ctx, const uint8_t *text, size_t size) {
    static const tg_status reasons[] = {TG_ERR_FORMAT};
    tg_json j, again;
    if (tg_json_load(&j, ctx, "a.json") != TG_OK) {
        fuzz_refused(ctx, reasons, COUNT(reasons));
        return;
    }
    fuzz_must(!memchr(text, 0, size), "a byte of zero is accepted");
    tg_json_save(ctx, "b.json", j.object);
    fuzz_must(tg_json_load(&again, ctx, "b.json") == TG_OK, "cannot be read again: %s", tg_ctx_message(ctx));
    fuzz_must(json_equal(j.object, again.object), "it was changed");
    tg_json_free(&j);
    tg_json_free(&again);
}

/* ---- Models ---- */

/* Statuses of a config that is wrong as a file, as a model, or too large. */
static const tg_status reasons[] = {TG_ERR_FORMAT, TG_ERR_UNSUPPORTED, TG_ERR_ARGUMENT, TG_ERR_SHAPE, TG_ERR_MEMORY};

static void check_config(const tg_lm_config *c) {
    fuzz_must(c && c->vocab > 0 && c->layers > 0 && c->heads > 0 && c->hidden > 0 && c->positions > 0 && c->ffn > 0 &&
                  c->head_dim > 0 && c->kv_heads > 0 && c->heads % c->kv_heads == 0, "the config is not complete");
    fuzz_must(c->dropout >= 0 && c->dropout < 1 && c->norm_eps > 0 && isfinite(c->norm_eps) && c->init_std > 0 &&
                  isfinite(c->init_std) && c->rope_base > 0 && isfinite(c->rope_base), "the config has bad numbers");
}

/* Computes loss and gradients of two tokens; false: refused. */
static bool step(tg_ctx *ctx, tg_module *gpt, double *loss) {
    int64_t n = tg_lm_config_of(gpt)->positions < 2 ? 1 : 2, zeros[2] = {0};
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *ids = tg_from_host(ctx, TG_I64, TG_SHAPE(1, n), zeros);
    tg_draws_step(ctx, 1);
    tg_tensor *y = tg_gpt_loss(gpt, t, ids, ids, TG_LOSS_MEAN);
    tg_backward(t, y);
    bool good = tg_ctx_status(ctx) == TG_OK;
    if (good) *loss = tg_item(y);
    tg_tape_free(t);
    tg_drop(ids);
    return good;
}

/* Whether all numbers are of a size with which float32 does not overflow, nor loses the epsilon of a norm, without
 * which a row of equal elements is divided by zero. */
static bool is_tame(const tg_lm_config *c) {
    const double least[] = {c->attention_softcap == TG_NONE ? 1 : c->attention_softcap,
                            c->logit_softcap == TG_NONE ? 1 : c->logit_softcap, c->rope_factor, c->rope_base};
    const double most[] = {c->init_std, c->attention_scale, c->rope_gain, fabs(c->embed_scale)};
    bool tame = c->norm_eps >= FLT_MIN;
    for (size_t i = 0; i < COUNT(least); i++) tame = tame && least[i] > 1e-3;
    for (size_t i = 0; i < COUNT(most); i++) tame = tame && most[i] < 1e3;
    return tame;
}

/* Saves and loads the model; the parameters must be the same. */
static void save_and_load(tg_ctx *ctx, tg_module *gpt) {
    float was[4096], is[4096];
    tg_lm_save(&gpt, 1, "m", NULL);
    tg_module *again = tg_lm_load_dir(ctx, "m", NULL);
    fuzz_must(tg_ctx_status(ctx) == TG_OK, "cannot be saved and loaded: %s", tg_ctx_message(ctx));
    fuzz_must(tg_module_param_count(gpt) == tg_module_param_count(again), "parameters were lost");
    for (int i = 0; i < tg_module_param_count(gpt); i++) {
        tg_tensor *x = tg_module_param(gpt, i, NULL), *y = tg_module_param(again, i, NULL);
        size_t bytes = (size_t)tg_numel(x) * sizeof *was;
        tg_read(x, was, bytes);
        tg_read(y, is, bytes);
        fuzz_must(tg_ctx_status(ctx) == TG_OK && !memcmp(was, is, bytes), "parameter %d was changed", i);
    }
    tg_module_free(again);
}

static void check_small(files *disk) {
    budget memory = {.limit = (size_t)64 << 20};
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .files = FILES_OPS(disk), .allocator = BUDGET(&memory)));
    tg_module *gpt = tg_lm_from_config(ctx, "a.json", NULL);
    double loss = NAN;
    fuzz_must(step(ctx, gpt, &loss), "what was right on device meta is refused: %s", tg_ctx_message(ctx));
    fuzz_must(isfinite(loss) || !is_tame(tg_lm_config_of(gpt)), "the loss is %g", loss);
    save_and_load(ctx, gpt);
    tg_module_free(gpt);
    tg_ctx_free(ctx);
    fuzz_must(!memory.held, "%zu bytes are left", memory.held);
}

/* A config of a few bytes can name a million layers. There is no memory for them here, which is a valid reason to
 * refuse. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static files disk;
    if (size > FUZZ_MAX) return 0;
    if (!disk.at[0].fd) files_start(&disk);
    budget memory = {.limit = (size_t)1 << 20};
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1, .files = FILES_OPS(&disk),
                                       .allocator = BUDGET(&memory)));
    file_put(&disk, "a.json", data, size);
    check_json(ctx, data, size);
    double loss;
    tg_module *gpt = tg_lm_from_config(ctx, "a.json", NULL);
    bool good = tg_ctx_status(ctx) == TG_OK, small = good && tg_module_numel(gpt) <= 4096;
    if (good) check_config(tg_lm_config_of(gpt));
    if (good && !step(ctx, gpt, &loss)) good = small = false;
    if (!good) fuzz_refused(ctx, reasons, COUNT(reasons));
    tg_module_free(gpt);
    tg_ctx_clear(ctx);
    tg_draws_step(ctx, 2);
    gpt = tg_gpt_from_config(ctx, "a.json");
    if (tg_ctx_status(ctx) != TG_OK) fuzz_refused(ctx, reasons, COUNT(reasons));
    tg_module_free(gpt);
    tg_ctx_free(ctx);
    fuzz_must(!memory.held && !disk.open, "%zu bytes and %d files are left", memory.held, disk.open);
    if (small) check_small(&disk);
    files_clear(&disk);
    return 0;
}
