/* Reads the config of a GPT from config.json, with the keys of the published GPT-2 and Llama models. Refuses values
 * for which this library has no computation. */
#include "io/json.h"
#include "models/model_files.h"

static tg_status optional_real(const tg_json *j, const char *key, double *out) {
    return tg_json_has(j, key) ? tg_json_real(j, key, out) : TG_OK;
}

/* Reads a number above 0. If the key is absent, *out is unchanged. */
static tg_status optional_positive(const tg_json *j, const char *key, double *out) {
    if (!tg_json_has(j, key)) return TG_OK;
    TG_TRY(tg_json_real(j, key, out));
    if (*out > 0) return TG_OK;
    return tg_fail(j->ctx, TG_ERR_UNSUPPORTED, "'%s': \"%s\" is %g, expected a number above 0", j->path, key, *out);
}

/* Reads an integer from 1 to 2^40. If the key is absent, *out is unchanged. */
static tg_status optional_int(const tg_json *j, const char *key, int64_t *out) {
    return tg_json_has(j, key) ? tg_json_int(j, key, 1, (int64_t)1 << 40, out) : TG_OK;
}

static tg_status optional_bool(const tg_json *j, const char *key, bool *out) {
    return tg_json_has(j, key) ? tg_json_bool(j, key, out) : TG_OK;
}

/* Fails unless the key is absent, or has the value `value` or `or_value` (which may be NULL). This library computes no
 * others, and ignoring the key would give wrong logits. */
static tg_status must_be(const tg_json *j, const char *key, const char *value, const char *or_value) {
    const char *s;
    if (!tg_json_has(j, key)) return TG_OK;
    TG_TRY(tg_json_string(j, key, &s));
    if (strcmp(s, value) == 0 || (or_value && strcmp(s, or_value) == 0)) return TG_OK;
    return tg_fail(j->ctx, TG_ERR_UNSUPPORTED, "'%s': \"%s\" is \"%s\", but only \"%s\" is supported", j->path, key, s,
                   value);
}

static tg_status must_be_bool(const tg_json *j, const char *key, bool value) {
    bool on = value;
    TG_TRY(optional_bool(j, key, &on));
    if (on == value) return TG_OK;
    return tg_fail(j->ctx, TG_ERR_UNSUPPORTED, "'%s': \"%s\" is %s, which is not supported", j->path, key,
                   on ? "true" : "false");
}

static tg_status read_gpt2(const tg_json *j, tg_gpt_config *c) {
    double attn = 0, embd = 0;
    bool tied = true;
    TG_TRY(tg_json_int(j, "n_embd", 1, 1 << 24, &c->hidden));
    TG_TRY(tg_json_int(j, "n_layer", 1, 1 << 20, &c->layers));
    TG_TRY(tg_json_int(j, "n_head", 1, 1 << 20, &c->heads));
    TG_TRY(tg_json_int(j, "n_positions", 1, (int64_t)1 << 40, &c->positions));
    TG_TRY(optional_int(j, "n_inner", &c->ffn));
    TG_TRY(optional_positive(j, "layer_norm_epsilon", &c->norm_eps));
    TG_TRY(optional_real(j, "resid_pdrop", &c->dropout));
    TG_TRY(optional_real(j, "attn_pdrop", &attn));
    TG_TRY(optional_real(j, "embd_pdrop", &embd));
    TG_TRY(optional_bool(j, "tie_word_embeddings", &tied));
    TG_TRY(must_be(j, "activation_function", "gelu_new", "gelu_pytorch_tanh"));
    TG_TRY(must_be_bool(j, "scale_attn_by_inverse_layer_idx", false));
    TG_TRY(must_be_bool(j, "scale_attn_weights", true));
    TG_TRY(must_be_bool(j, "add_cross_attention", false));
    c->untied = !tied;
    if (attn == c->dropout && embd == c->dropout) return TG_OK;
    return tg_fail(j->ctx, TG_ERR_UNSUPPORTED,
                   "'%s': resid_pdrop %g, attn_pdrop %g and embd_pdrop %g differ, but only one dropout is supported",
                   j->path, c->dropout, attn, embd);
}

/* Reads the options in the object `key`, if there is one. */
static tg_status read_rope_of(const tg_json *j, const char *key, tg_gpt_config *c) {
    tg_json rope;
    if (!tg_json_has(j, key)) return TG_OK;
    TG_TRY(tg_json_object(j, key, &rope));
    TG_TRY(must_be(&rope, "rope_type", "default", NULL));
    TG_TRY(must_be(&rope, "type", "default", NULL)); /* the older name of rope_type */
    return optional_positive(&rope, "rope_theta", &c->rope_base);
}

/* Reads the options of rotary positions. If a file has both rope_parameters and the older rope_scaling, rope_scaling
 * takes precedence, as in Hugging Face transformers. */
static tg_status read_rope(const tg_json *j, tg_gpt_config *c) {
    TG_TRY(optional_positive(j, "rope_theta", &c->rope_base));
    TG_TRY(read_rope_of(j, "rope_parameters", c));
    return read_rope_of(j, "rope_scaling", c);
}

static tg_status read_llama(const tg_json *j, tg_gpt_config *c) {
    TG_TRY(tg_json_int(j, "hidden_size", 1, 1 << 24, &c->hidden));
    TG_TRY(tg_json_int(j, "num_hidden_layers", 1, 1 << 20, &c->layers));
    TG_TRY(tg_json_int(j, "num_attention_heads", 1, 1 << 20, &c->heads));
    TG_TRY(tg_json_int(j, "intermediate_size", 1, (int64_t)1 << 30, &c->ffn));
    TG_TRY(tg_json_int(j, "max_position_embeddings", 1, (int64_t)1 << 40, &c->positions));
    TG_TRY(optional_int(j, "num_key_value_heads", &c->kv_heads));
    TG_TRY(optional_int(j, "head_dim", &c->head_dim));
    TG_TRY(optional_positive(j, "rms_norm_eps", &c->norm_eps));
    TG_TRY(optional_bool(j, "tie_word_embeddings", &c->tied));
    TG_TRY(must_be(j, "hidden_act", "silu", NULL));
    TG_TRY(must_be_bool(j, "attention_bias", false));
    TG_TRY(must_be_bool(j, "mlp_bias", false));
    return read_rope(j, c);
}

tg_status tg_gpt_read_config(tg_ctx *ctx, const char *path, tg_gpt_config *c) {
    tg_json j;
    const char *type = "";
    TG_TRY(tg_json_load(&j, ctx, path));
    tg_status s = tg_json_string(&j, "model_type", &type);
    if (s == TG_OK) s = tg_json_int(&j, "vocab_size", 1, (int64_t)1 << 31, &c->vocab);
    if (s == TG_OK) s = optional_positive(&j, "initializer_range", &c->init_std);
    bool gpt2 = strcmp(type, "gpt2") == 0;
    c->arch = gpt2 ? TG_GPT2 : TG_LLAMA;
    if (s == TG_OK && !gpt2 && strcmp(type, "llama") != 0)
        s = tg_fail(ctx, TG_ERR_UNSUPPORTED,
                    "'%s': model_type is \"%s\", but only \"gpt2\" and \"llama\" are supported", path, type);
    if (s == TG_OK) s = gpt2 ? read_gpt2(&j, c) : read_llama(&j, c);
    tg_json_free(&j);
    return s;
}
