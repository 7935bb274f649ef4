/* Writes the config of a GPT to config.json, with the keys of the published GPT-2 and Llama models. */
#include "models/model_files.h"

static json_t *gpt2_json(const tg_gpt_config *c) {
    return json_pack("{s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:f, s:f, s:f, s:f, s:f, s:b}", "architectures",
                     "GPT2LMHeadModel", "model_type", "gpt2", "vocab_size", (json_int_t)c->vocab, "n_positions",
                     (json_int_t)c->positions, "n_embd", (json_int_t)c->hidden, "n_layer", (json_int_t)c->layers,
                     "n_head", (json_int_t)c->heads, "n_inner", (json_int_t)c->ffn, "activation_function", "gelu_new",
                     "resid_pdrop", c->dropout, "embd_pdrop", c->dropout, "attn_pdrop", c->dropout,
                     "layer_norm_epsilon", c->norm_eps, "initializer_range", c->init_std, "tie_word_embeddings",
                     !c->untied);
}

static json_t *llama_json(const tg_gpt_config *c) {
    return json_pack("{s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:f, s:f, s:f, s:b, s:b, s:b}",
                     "architectures", "LlamaForCausalLM", "model_type", "llama", "vocab_size", (json_int_t)c->vocab,
                     "max_position_embeddings", (json_int_t)c->positions, "hidden_size", (json_int_t)c->hidden,
                     "num_hidden_layers", (json_int_t)c->layers, "num_attention_heads", (json_int_t)c->heads,
                     "num_key_value_heads", (json_int_t)c->kv_heads, "head_dim", (json_int_t)c->head_dim,
                     "intermediate_size", (json_int_t)c->ffn, "hidden_act", "silu", "rms_norm_eps", c->norm_eps,
                     "rope_theta", c->rope_base, "initializer_range", c->init_std, "tie_word_embeddings", (int)c->tied,
                     "attention_bias", 0, "mlp_bias", 0);
}

/* Returns the name that PyTorch gives to a dtype. */
static const char *torch_name(tg_dtype d) {
    return d == TG_F64 ? "float64" : d == TG_BF16 ? "bfloat16" : d == TG_F16 ? "float16" : "float32";
}

static tg_status no_memory_for_config(tg_ctx *ctx) {
    return tg_fail(ctx, TG_ERR_MEMORY, "tg_gpt_save: no memory for the config");
}

json_t *tg_gpt_config_json(tg_module *gpt) {
    const tg_gpt_config *c = tg_gpt_config_of(gpt);
    json_t *root = c->arch == TG_GPT2 ? gpt2_json(c) : llama_json(c);
    if (root &&
        !json_object_set_new(root, "torch_dtype", json_string(torch_name(tg_module_param(gpt, 0, NULL)->dtype))))
        return root;
    json_decref(root);
    no_memory_for_config(gpt->ctx);
    return NULL;
}

char *tg_gpt_config_line(tg_ctx *ctx, const json_t *root) {
    enum { FLAGS = JSON_COMPACT | JSON_SORT_KEYS };
    size_t n = json_dumpb(root, NULL, 0, FLAGS | JSON_REAL_PRECISION(17));
    char *text = n ? tg_host_alloc(ctx, n + 1) : NULL;
    if (text) json_dumpb(root, text, n, FLAGS | JSON_REAL_PRECISION(17));
    char *copy = text ? tg_host_strdup(ctx, text) : NULL;
    if (text) tg_host_free(ctx, text, n + 1);
    if (!n) no_memory_for_config(ctx);
    return copy;
}

tg_status tg_gpt_save_config(tg_ctx *ctx, const char *path, json_t *root, const char *weights_sum) {
    if (json_object_set_new(root, TG_CONFIG_SUM, json_string(weights_sum)))
        return no_memory_for_config(ctx);
    return tg_json_save(ctx, path, root);
}
