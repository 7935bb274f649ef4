/* The table of families (families.h). */
#include "models/files/families.h"

#include <math.h>

/* ---- Names ---- */

#define LLAMA_LAYER                                                                                              \
    .body = "model", .embedding = "embed_tokens", .positions = "embed_positions", .layers = "layers",            \
    .before = {"input_layernorm", "post_attention_layernorm"},                                                   \
    .around = {"input_layernorm", "pre_feedforward_layernorm"},                                                  \
    .after = {"post_attention_layernorm", "post_feedforward_layernorm"}, .attention = "self_attn", .mlp = "mlp", \
    .projection = {"q_proj", "k_proj", "v_proj"}, .qk_norm = {"q_norm", "k_norm"}

static const tg_lm_name_table llama_names = {
    LLAMA_LAYER, .last_norm = "norm", .out = "o_proj", .gate = "gate_proj", .up = "up_proj", .down = "down_proj"};

static const tg_lm_name_table phi_names = {
    LLAMA_LAYER, .last_norm = "final_layernorm", .out = "dense", .gate = "gate", .up = "fc1", .down = "fc2"};

static const tg_lm_name_table phi3_names = {
    LLAMA_LAYER,         .last_norm = "norm",        .qkv = "qkv_proj", .out = "o_proj", .gate_up = "gate_up_proj",
    .gate = "gate_proj", .up = "up_proj", .down = "down_proj"};

/* A child that GPT-2 does not have, such as c_gate, has a name of the same style. */
static const tg_lm_name_table gpt2_names = {
    .body = "transformer",
    .embedding = "wte",
    .positions = "wpe",
    .layers = "h",
    .last_norm = "ln_f",
    .before = {"ln_1", "ln_2"},
    .around = {"ln_1", "ln_2"},
    .after = {"ln_1_out", "ln_2_out"},
    .attention = "attn",
    .mlp = "mlp",
    .qkv = "c_attn",
    .out = "c_proj",
    .qk_norm = {"ln_q", "ln_k"},
    .gate = "c_gate",
    .up = "c_fc",
    .down = "c_proj",
};

/* ---- Members of config.json ---- */

#define AT(field) offsetof(tg_lm_config, field)
#define NEED(name_, field, most_) \
    {.name = name_, .kind = TG_MEMBER_SIZE, .offset = AT(field), .required = true, .most = most_}
#define SIZE(name_, field, usual_) {.name = name_, .kind = TG_MEMBER_SIZE, .offset = AT(field), .usual = usual_}
#define REAL(name_, field, usual_) {.name = name_, .kind = TG_MEMBER_REAL, .offset = AT(field), .usual = usual_}
#define RATE(name_, field)         {.name = name_, .kind = TG_MEMBER_RATE, .offset = AT(field)}
#define BOOL(name_, field, usual_) {.name = name_, .kind = TG_MEMBER_BOOL, .offset = AT(field), .usual = usual_}
#define TEXT(name_, text_, ...)    {.name = name_, .kind = TG_MEMBER_TEXT, .text = text_, .also = {__VA_ARGS__}}
#define MUST(name_, usual_)        {.name = name_, .kind = TG_MEMBER_NUMBER, .usual = usual_}

#define SIZES                                                                                                    \
    NEED("vocab_size", vocab, (int64_t)1 << 31), NEED("hidden_size", hidden, 1 << 24),                           \
        NEED("num_hidden_layers", layers, 1 << 20), NEED("num_attention_heads", heads, 1 << 20),                 \
        NEED("intermediate_size", ffn, 1 << 30), NEED("max_position_embeddings", positions, 0),                  \
        REAL("initializer_range", init_std, 0.02)
#define KV_HEADS(usual_) SIZE("num_key_value_heads", kv_heads, usual_)
#define HEAD_DIM(usual_) SIZE("head_dim", head_dim, usual_)
#define RMS_EPS(usual_)  REAL("rms_norm_eps", norm_eps, usual_)
#define TIED(usual_)     BOOL("tie_word_embeddings", tied, usual_)
#define DROPOUT          RATE("attention_dropout", attention_dropout)
#define SILU             TEXT("hidden_act", "silu", "swish")

static const tg_member llama[] = {SIZES, KV_HEADS(TG_AUTO), HEAD_DIM(TG_AUTO), RMS_EPS(1e-6), TIED(0), DROPOUT, SILU,
                                  BOOL("attention_bias", qkv_bias, 0), BOOL("mlp_bias", mlp_bias, 0)};
static const tg_member mistral[] = {SIZES, KV_HEADS(8), HEAD_DIM(TG_AUTO), RMS_EPS(1e-6), TIED(0), DROPOUT, SILU};
static const tg_member qwen2[] = {SIZES, KV_HEADS(32), HEAD_DIM(TG_AUTO), RMS_EPS(1e-6), TIED(0), DROPOUT, SILU};
static const tg_member qwen3[] = {SIZES, KV_HEADS(32), HEAD_DIM(128), RMS_EPS(1e-6), TIED(0), DROPOUT, SILU,
                                  BOOL("attention_bias", qkv_bias, 0)};
static const tg_member smollm3[] = {SIZES, KV_HEADS(4), HEAD_DIM(TG_AUTO), RMS_EPS(1e-6), TIED(1), DROPOUT, SILU,
                                    BOOL("attention_bias", qkv_bias, 0), BOOL("mlp_bias", mlp_bias, 0)};
/* Files of Gemma's first release say "gelu", and mean the approximation by tanh, with which it was trained. */
static const tg_member gemma[] = {SIZES, KV_HEADS(16), HEAD_DIM(256), RMS_EPS(1e-6), TIED(1), DROPOUT,
                                  TEXT("hidden_act", "gelu_pytorch_tanh", "gelu", "gelu_new"),
                                  TEXT("hidden_activation", "gelu_pytorch_tanh", "gelu", "gelu_new"),
                                  BOOL("attention_bias", qkv_bias, 0), MUST("use_bidirectional_attention", 0)};
#define GEMMA_2(softcap_, logit_softcap_)                                                                          \
    SIZES, KV_HEADS(4), HEAD_DIM(256), RMS_EPS(1e-6), TIED(1), DROPOUT, BOOL("attention_bias", qkv_bias, 0),       \
        TEXT("hidden_activation", "gelu_pytorch_tanh", NULL),                                                      \
        {.name = "query_pre_attn_scalar", .kind = TG_MEMBER_RSQRT, .offset = AT(attention_scale), .usual = 256},   \
        REAL("attn_logit_softcapping", attention_softcap, softcap_),                                               \
        REAL("final_logit_softcapping", logit_softcap, logit_softcap_), MUST("use_bidirectional_attention", 0)
static const tg_member gemma2[] = {GEMMA_2(50, 30)};
static const tg_member gemma3[] = {GEMMA_2(TG_NONE, TG_NONE)};
static const tg_member phi[] = {SIZES, KV_HEADS(TG_AUTO), HEAD_DIM(TG_AUTO), REAL("layer_norm_eps", norm_eps, 1e-5),
                                TIED(0), DROPOUT, RATE("resid_pdrop", dropout), RATE("embd_pdrop", embed_dropout),
                                TEXT("hidden_act", "gelu_new", "gelu_pytorch_tanh"), MUST("qk_layernorm", 0)};
static const tg_member phi3[] = {SIZES, KV_HEADS(TG_AUTO), HEAD_DIM(TG_AUTO), RMS_EPS(1e-5), TIED(0), DROPOUT, SILU,
                                 RATE("resid_pdrop", dropout), RATE("embd_pdrop", embed_dropout)};
static const tg_member olmo[] = {SIZES, KV_HEADS(TG_AUTO), HEAD_DIM(TG_AUTO), TIED(0), DROPOUT, SILU,
                                 BOOL("attention_bias", qkv_bias, 0), REAL("clip_qkv", clip_qkv, TG_NONE)};
static const tg_member olmo2[] = {SIZES, KV_HEADS(TG_AUTO), HEAD_DIM(TG_AUTO), RMS_EPS(1e-5), TIED(0), DROPOUT, SILU,
                                  BOOL("attention_bias", qkv_bias, 0)};
static const tg_member gpt2[] = {NEED("vocab_size", vocab, (int64_t)1 << 31),
                                 NEED("n_positions", positions, 0),
                                 NEED("n_embd", hidden, 1 << 24),
                                 NEED("n_layer", layers, 1 << 20),
                                 NEED("n_head", heads, 1 << 20),
                                 SIZE("n_inner", ffn, TG_AUTO),
                                 REAL("initializer_range", init_std, 0.02),
                                 REAL("layer_norm_epsilon", norm_eps, 1e-5),
                                 RATE("resid_pdrop", dropout),
                                 RATE("embd_pdrop", embed_dropout),
                                 RATE("attn_pdrop", attention_dropout),
                                 TIED(1),
                                 TEXT("activation_function", "gelu_new", "gelu_pytorch_tanh"),
                                 MUST("scale_attn_by_inverse_layer_idx", 0),
                                 MUST("scale_attn_weights", 1),
                                 MUST("add_cross_attention", 0)};
#define MEMBERS(m) .members = (m), .n_members = TG_LEN(m)

/* ---- What follows from other members ---- */

/* One member says whether all four projections of attention have biases. */
static void attention_biases(tg_lm_config *c) { c->out_bias = c->qkv_bias; }

static void gemma_scale(tg_lm_config *c) {
    attention_biases(c);
    c->embed_scale = sqrt((double)c->hidden);
}

/* ---- The table ---- */

#define GEMMA_FIXED .activation = TG_LM_GEGLU_TANH, .unit_norm = true
#define LAYERS(name) \
    .read_layers = tg_##name##_read, .write_layers = tg_##name##_write, .layer_members = tg_##name##_members
#define GEMMA_LAYERS(name) \
    .read_layers = tg_##name##_read, .write_layers = tg_gemma_write, .layer_members = tg_gemma_members

static const tg_lm_family_row families[] = {
    {.type = "llama", .architecture = "LlamaForCausalLM", .names = &llama_names, MEMBERS(llama), .rotated = 1,
     .fixed = {TG_LM_DEFAULTS}, .finish = attention_biases},
    {.type = "gpt2", .architecture = "GPT2LMHeadModel", .names = &gpt2_names, .transposed = true, MEMBERS(gpt2),
     .fixed = {TG_LM_DEFAULTS, .norm = TG_LM_LAYER_NORM, .activation = TG_LM_GELU_TANH,
               .position_kind = TG_LM_LEARNED, .bias = true}},
    {.type = "mistral", .architecture = "MistralForCausalLM", .names = &llama_names, MEMBERS(mistral), .rotated = 1,
     .fixed = {TG_LM_DEFAULTS}, .windowed = true, LAYERS(window)},
    {.type = "qwen2", .architecture = "Qwen2ForCausalLM", .names = &llama_names, MEMBERS(qwen2), .rotated = 1,
     .fixed = {TG_LM_DEFAULTS, .qkv_bias = true}, LAYERS(qwen)},
    {.type = "qwen3", .architecture = "Qwen3ForCausalLM", .names = &llama_names, MEMBERS(qwen3), .rotated = 1,
     .fixed = {TG_LM_DEFAULTS, .qk_norm = TG_LM_QK_NORM_OF_HEADS}, LAYERS(qwen), .finish = attention_biases},
    {.type = "smollm3", .architecture = "SmolLM3ForCausalLM", .names = &llama_names, MEMBERS(smollm3), .rotated = 1,
     .fixed = {TG_LM_DEFAULTS, .rope_base = 2e6}, .kinds = "fffF", .pads = true, LAYERS(smollm3),
     .finish = attention_biases},
    {.type = "gemma", .architecture = "GemmaForCausalLM", .names = &llama_names, MEMBERS(gemma), .rotated = 1,
     .fixed = {TG_LM_DEFAULTS, GEMMA_FIXED}, .pads = true, .finish = gemma_scale},
    {.type = "gemma2", .architecture = "Gemma2ForCausalLM", .names = &llama_names, MEMBERS(gemma2), .rotated = 1,
     .fixed = {TG_LM_DEFAULTS, GEMMA_FIXED, .norm_place = TG_LM_NORM_AROUND}, .kinds = "wf", .windowed = true,
     .pads = true, GEMMA_LAYERS(gemma2), .finish = gemma_scale},
    {.type = "gemma3_text", .architecture = "Gemma3ForCausalLM", .names = &llama_names, MEMBERS(gemma3), .rotated = 1,
     .fixed = {TG_LM_DEFAULTS, GEMMA_FIXED, .norm_place = TG_LM_NORM_AROUND, .qk_norm = TG_LM_QK_NORM_OF_HEADS,
               .rope_base = 1e6, .rope_local_base = 1e4},
     .kinds = "wwwwwf", .windowed = true, .pads = true, GEMMA_LAYERS(gemma3), .finish = gemma_scale},
    {.type = "phi", .architecture = "PhiForCausalLM", .names = &phi_names, MEMBERS(phi), .rotated = 0.5,
     .fixed = {TG_LM_DEFAULTS, .norm = TG_LM_LAYER_NORM, .activation = TG_LM_GELU_TANH, .parallel_residual = true,
               .bias = true, .head_bias = true}},
    {.type = "phi3", .architecture = "Phi3ForCausalLM", .names = &phi3_names, MEMBERS(phi3), .rotated = 1,
     .fixed = {TG_LM_DEFAULTS}, .pads = true, LAYERS(window)},
    {.type = "olmo", .architecture = "OlmoForCausalLM", .names = &llama_names, MEMBERS(olmo), .rotated = 1,
     .fixed = {TG_LM_DEFAULTS, .norm = TG_LM_PLAIN_LAYER_NORM, .norm_eps = 1e-5}, .pads = true,
     .finish = attention_biases},
    {.type = "olmo2", .architecture = "Olmo2ForCausalLM", .names = &llama_names, MEMBERS(olmo2), .rotated = 1,
     .fixed = {TG_LM_DEFAULTS, .norm_place = TG_LM_NORM_AFTER, .qk_norm = TG_LM_QK_NORM_OF_PROJECTIONS},
     .pads = true, .finish = attention_biases},
};

const tg_lm_family_row *tg_lm_family_find(const char *type) {
    for (int i = 0; i < TG_LEN(families); i++)
        if (strcmp(families[i].type, type) == 0) return &families[i];
    return NULL;
}

const char *tg_lm_family(int i) { return i >= 0 && i < TG_LEN(families) ? families[i].type : NULL; }

const tg_lm_name_table *tg_lm_names_of(const tg_lm_config *c) { return tg_lm_family_of(c)->names; }

bool tg_lm_is_transposed(const tg_lm_config *c) { return tg_lm_family_of(c)->transposed; }

const char *tg_lm_norm_before(const tg_lm_config *c, int i) {
    const tg_lm_name_table *n = tg_lm_names_of(c);
    if (c->norm_place == TG_LM_NORM_AFTER || (c->parallel_residual && i)) return NULL;
    return c->norm_place == TG_LM_NORM_AROUND ? n->around[i] : n->before[i];
}

const char *tg_lm_norm_after(const tg_lm_config *c, int i) {
    return c->norm_place == TG_LM_NORM_BEFORE ? NULL : tg_lm_names_of(c)->after[i];
}
