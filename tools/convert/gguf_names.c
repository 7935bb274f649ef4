/* Tables of the families that llama.cpp knows: the names of their tensors, and which variants of a family llama.cpp
 * computes. The names are those of the Python package `gguf` (gguf.TensorNameMap). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert/gguf.h"

/* ---- Names ---- */

static const char *const whole_names[][2] = {
    {"model.embed_tokens", "token_embd"},     {"model.norm", "output_norm"},
    {"model.final_layernorm", "output_norm"}, {"lm_head", "output"},
    {"transformer.wte", "token_embd"},        {"transformer.wpe", "position_embd"},
    {"transformer.ln_f", "output_norm"},      {NULL, NULL},
};

#define ATTENTION                                                                                                      \
    {"self_attn.q_proj", "attn_q"}, {"self_attn.k_proj", "attn_k"}, {"self_attn.v_proj", "attn_v"},                    \
        {"self_attn.o_proj", "attn_output"}, {"self_attn.q_norm", "attn_q_norm"}, {                                    \
        "self_attn.k_norm", "attn_k_norm"                                                                              \
    }
#define MLP                                                                                                            \
    {"mlp.gate_proj", "ffn_gate"}, {"mlp.up_proj", "ffn_up"}, { "mlp.down_proj", "ffn_down" }

static const char *const llama_names[][2] = {
    ATTENTION, MLP, {"input_layernorm", "attn_norm"}, {"post_attention_layernorm", "ffn_norm"}, {NULL, NULL}};

/* Families with norms after attention and the MLP, and perhaps before them too. */
static const char *const around_names[][2] = {
    ATTENTION,
    MLP,
    {"input_layernorm", "attn_norm"},
    {"post_attention_layernorm", "post_attention_norm"},
    {"pre_feedforward_layernorm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
    {NULL, NULL},
};

static const char *const phi_names[][2] = {ATTENTION,
                                           {"self_attn.dense", "attn_output"},
                                           {"mlp.fc1", "ffn_up"},
                                           {"mlp.fc2", "ffn_down"},
                                           {"input_layernorm", "attn_norm"},
                                           {NULL, NULL}};

static const char *const phi3_names[][2] = {{"self_attn.qkv_proj", "attn_qkv"},
                                            {"self_attn.o_proj", "attn_output"},
                                            {"mlp.gate_up_proj", "ffn_up"},
                                            {"mlp.down_proj", "ffn_down"},
                                            {"input_layernorm", "attn_norm"},
                                            {"post_attention_layernorm", "ffn_norm"},
                                            {NULL, NULL}};

static const char *const gpt2_names[][2] = {{"ln_1", "attn_norm"},
                                            {"ln_2", "ffn_norm"},
                                            {"attn.c_attn", "attn_qkv"},
                                            {"attn.c_proj", "attn_output"},
                                            {"mlp.c_fc", "ffn_up"},
                                            {"mlp.c_proj", "ffn_down"},
                                            {NULL, NULL}};

/* ---- Families ---- */

#define ALL_BIASES (GGUF_QKV_BIAS | GGUF_OUT_BIAS | GGUF_MLP_BIAS)

static const gguf_family families[] = {
    {.type = "llama", .arch = "llama", .names = llama_names, .paired = true, .llama3 = true, .biases = ALL_BIASES},
    {.type = "mistral", .arch = "llama", .names = llama_names, .paired = true, .llama3 = true},
    {.type = "qwen2", .arch = "qwen2", .names = llama_names, .biases = GGUF_QKV_BIAS},
    {.type = "qwen3", .arch = "qwen3", .names = llama_names},
    {.type = "smollm3", .arch = "smollm3", .names = llama_names, .paired = true, .plain_period = 4},
    {.type = "gemma", .arch = "gemma", .names = llama_names},
    {.type = "gemma2", .arch = "gemma2", .names = around_names, .window_period = 2},
    {.type = "gemma3_text", .arch = "gemma3", .names = around_names, .window_period = 6},
    {.type = "phi", .arch = "phi2", .names = phi_names, .biases = ALL_BIASES},
    {.type = "phi3", .arch = "phi3", .names = phi3_names},
    {.type = "olmo", .arch = "olmo", .names = llama_names, .paired = true},
    {.type = "olmo2", .arch = "olmo2", .names = around_names, .output = true},
    {.type = "gpt2", .arch = "gpt2", .names = gpt2_names, .biases = ALL_BIASES},
};

const gguf_family *gguf_family_of(tg_ctx *ctx, const tg_lm_config *c) {
    const char *type = c->family ? c->family : "llama";
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i].type, type) == 0) return &families[i];
    tg_ctx_fail(ctx, TG_ERR_UNSUPPORTED, "llama.cpp does not know models of the type \"%s\", so they have no GGUF file",
                type);
    return NULL;
}

/* ---- The name of a parameter ---- */

/* Returns what follows "model.layers.N." or "transformer.h.N.", and sets *layer to N; NULL if the path is not one of a
 * layer. */
static const char *in_layer(const char *path, long *layer) {
    static const char *const starts[] = {"model.layers.", "transformer.h."};
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(starts[i]);
        if (strncmp(path, starts[i], n) != 0) continue;
        char *end;
        *layer = strtol(path + n, &end, 10);
        return *end == '.' ? end + 1 : NULL;
    }
    return NULL;
}

/* Returns the other format's name of the module `path`, which has n characters; NULL if the table has none. */
static const char *look_up(const char *const (*names)[2], const char *path, size_t n) {
    for (; (*names)[0]; names++)
        if (strncmp((*names)[0], path, n) == 0 && !(*names)[0][n]) return (*names)[1];
    return NULL;
}

/* Returns how the values of a parameter of the module (llama.cpp's name) change. layer: the module is in a layer. GPT-2
 * has its linear layers as [in, out]. */
static gguf_change change_of(const gguf_family *f, const tg_lm_config *c, const char *module, bool layer) {
    size_t n = strlen(module);
    bool norm = n > 5 && strcmp(module + n - 5, "_norm") == 0;
    if (f->paired && (strcmp(module, "attn_q") == 0 || strcmp(module, "attn_k") == 0)) return GGUF_PAIRED;
    if (norm && c->unit_norm) return GGUF_PLUS_ONE;
    return layer && f->names == gpt2_names && !norm ? GGUF_TRANSPOSED : GGUF_SAME;
}

bool gguf_name(const gguf_family *f, const tg_lm_config *c, const char *path, char *name, size_t n,
               gguf_change *change) {
    long layer = 0;
    const char *rest = in_layer(path, &layer), *whole = rest ? rest : path, *dot = strrchr(whole, '.');
    const char *module = dot ? look_up(rest ? f->names : whole_names, whole, (size_t)(dot - whole)) : NULL;
    if (!module) return false;
    *change = change_of(f, c, module, rest != NULL);
    if (*change == GGUF_TRANSPOSED && strcmp(dot, ".weight") != 0) *change = GGUF_SAME;
    if (rest)
        snprintf(name, n, "blk.%ld.%s%s", layer, module, dot);
    else
        snprintf(name, n, "%s%s", module, dot);
    return true;
}
