/* The names of a model's children: those of the published GPT-2 and Llama checkpoints. A child that these models do not
 * have, such as GPT-2's c_gate, has a name of the same style. */
#include "models/lm.h"

static const tg_lm_name_table llama = {
    .body = "model",
    .embedding = "embed_tokens",
    .positions = "embed_positions",
    .layers = "layers",
    .last_norm = "norm",
    .norm = {"input_layernorm", "post_attention_layernorm"},
    .attention = "self_attn",
    .mlp = "mlp",
    .projection = {"q_proj", "k_proj", "v_proj"},
    .out = "o_proj",
    .gate = "gate_proj",
    .up = "up_proj",
    .down = "down_proj",
};

static const tg_lm_name_table gpt2 = {
    .body = "transformer",
    .embedding = "wte",
    .positions = "wpe",
    .layers = "h",
    .last_norm = "ln_f",
    .norm = {"ln_1", "ln_2"},
    .attention = "attn",
    .mlp = "mlp",
    .qkv = "c_attn",
    .out = "c_proj",
    .gate = "c_gate",
    .up = "c_fc",
    .down = "c_proj",
};

const tg_lm_name_table *tg_lm_names_of(const tg_lm_config *c) { return c->names == TG_LM_NAMES_GPT2 ? &gpt2 : &llama; }
