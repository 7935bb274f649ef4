/* The keys of a GGUF file that describe the architecture of a model. Models that llama.cpp would compute otherwise are
 * refused. */
#include <math.h>
#include <string.h>

#include "convert/gguf.h"

char gguf_kind_of_layer(const tg_lm_config *c, int64_t layer) {
    if (!c->attention_kinds || !*c->attention_kinds) return c->window == TG_NONE ? 'f' : 'w';
    return c->attention_kinds[(size_t)layer % strlen(c->attention_kinds)];
}

static bool has_window(const tg_lm_config *c, int64_t layer) {
    char kind = gguf_kind_of_layer(c, layer);
    return c->window != TG_NONE && (kind == 'w' || kind == 'W');
}

static bool has_windows(const tg_lm_config *c) {
    for (int64_t i = 0; i < c->layers; i++)
        if (has_window(c, i)) return true;
    return false;
}

int64_t gguf_context(const gguf_family *f, const tg_lm_config *c) {
    bool shorter = !f->window_period && has_windows(c) && c->window < c->positions;
    return shorter ? c->window : c->positions;
}

/* ---- What llama.cpp does not compute ---- */

static tg_status refuse(tg_ctx *ctx, const tg_lm_config *c, const char *what) {
    return tg_ctx_fail(ctx, TG_ERR_UNSUPPORTED,
                       "llama.cpp computes models of the type \"%s\" in another way, so this one has no GGUF file: %s",
                       c->family, what);
}

static tg_status check_biases(tg_ctx *ctx, const gguf_family *f, const tg_lm_config *c) {
    bool has[] = {c->bias || c->qkv_bias, c->bias || c->out_bias, c->bias || c->mlp_bias};
    for (int i = 0; i < 3; i++)
        if (has[i] && !(f->biases >> i & 1))
            return refuse(ctx, c, "its linear layers have biases, of attention or the MLP");
    return TG_OK;
}

static tg_status check_layers(tg_ctx *ctx, const gguf_family *f, const tg_lm_config *c) {
    for (int64_t i = 0; i < c->layers; i++) {
        char kind = gguf_kind_of_layer(c, i);
        bool plain = f->plain_period && (i + 1) % f->plain_period == 0, is_plain = kind == 'F' || kind == 'W';
        bool window = f->window_period && (i + 1) % f->window_period != 0;
        if (plain != is_plain) return refuse(ctx, c, "other layers have no positions (\"no_rope_layers\")");
        if (f->window_period && window != has_window(c, i))
            return refuse(ctx, c, "other layers have windows (\"layer_types\")");
    }
    return TG_OK;
}

/* llama.cpp divides scores by the root of head_dim, except in Gemma 2 and 3 of 27 billion parameters, which it
 * recognizes by their number of layers. There it divides by the root of hidden / heads. */
static tg_status check_scale(tg_ctx *ctx, const tg_lm_config *c) {
    bool large = (strcmp(c->family, "gemma2") == 0 && c->layers == 46) ||
                 (strcmp(c->family, "gemma3_text") == 0 && c->layers == 62);
    double usual = 1 / sqrt((double)(large ? c->hidden / c->heads : c->head_dim));
    if (c->attention_scale == TG_AUTO || fabs(c->attention_scale - usual) <= 1e-6 * usual) return TG_OK;
    return refuse(ctx, c, "the scores of attention have another factor (\"query_pre_attn_scalar\")");
}

static tg_status check_caps(tg_ctx *ctx, const tg_lm_config *c) {
    bool needed = strcmp(c->family, "gemma2") == 0;
    if ((c->attention_softcap != TG_NONE) == needed && (c->logit_softcap != TG_NONE) == needed) return TG_OK;
    return refuse(ctx, c,
                  needed ? "it has no \"attn_logit_softcapping\" or \"final_logit_softcapping\""
                         : "it has \"attn_logit_softcapping\" or \"final_logit_softcapping\"");
}

/* Returns how many elements of a head are rotated. */
static int64_t rotated(const tg_lm_config *c) { return c->rope_dims == TG_AUTO ? c->head_dim : c->rope_dims; }

static tg_status check_model(tg_ctx *ctx, const gguf_family *f, const tg_lm_config *c) {
    tg_status s = check_biases(ctx, f, c);
    if (!s) s = check_layers(ctx, f, c);
    if (!s) s = check_scale(ctx, c);
    if (!s) s = check_caps(ctx, c);
    if (!s && c->unit_norm && !c->tied) s = refuse(ctx, c, "its output matrix is not its embedding matrix");
    if (!s && f->paired && rotated(c) < c->head_dim)
        s = refuse(ctx, c, "only a part of each head is rotated (\"partial_rotary_factor\")");
    if (!s && c->rope_kind == TG_ROPE_LLAMA3 && !f->llama3) s = refuse(ctx, c, "\"rope_type\" is \"llama3\"");
    return s;
}

/* ---- Keys ---- */

static void add_sizes(gguf_head *h, const gguf_family *f, const tg_lm_config *c) {
    gguf_u32(h, ".vocab_size", c->vocab);
    gguf_u32(h, ".context_length", gguf_context(f, c));
    gguf_u32(h, ".embedding_length", c->hidden);
    gguf_u32(h, ".block_count", c->layers);
    gguf_u32(h, ".feed_forward_length", c->ffn);
    gguf_u32(h, ".attention.head_count", c->heads);
    gguf_u32(h, ".attention.head_count_kv", c->kv_heads);
    gguf_u32(h, ".attention.key_length", c->head_dim);
    gguf_u32(h, ".attention.value_length", c->head_dim);
}

static void add_attention(gguf_head *h, const tg_lm_config *c) {
    gguf_f32(h, c->norm == TG_LM_RMS_NORM ? ".attention.layer_norm_rms_epsilon" : ".attention.layer_norm_epsilon",
             c->norm_eps);
    if (has_windows(c)) gguf_u32(h, ".attention.sliding_window", c->window);
    if (c->clip_qkv != TG_NONE) gguf_f32(h, ".attention.clamp_kqv", c->clip_qkv);
    if (c->attention_softcap != TG_NONE) gguf_f32(h, ".attn_logit_softcapping", c->attention_softcap);
    if (c->logit_softcap != TG_NONE) gguf_f32(h, ".final_logit_softcapping", c->logit_softcap);
}

/* llama.cpp multiplies rotated elements by 0.1 ln(factor) + 1 itself, also by less than 1. */
static void add_yarn(gguf_head *h, const tg_lm_config *c) {
    double usual = 0.1 * log(c->rope_factor) + 1, gain = c->rope_gain;
    if (gain == TG_AUTO) gain = usual > 1 ? usual : 1;
    gguf_f32(h, ".rope.scaling.yarn_beta_slow", c->rope_low);
    gguf_f32(h, ".rope.scaling.yarn_beta_fast", c->rope_high);
    if (fabs(gain - usual) > 1e-6 * usual) gguf_f32(h, ".rope.scaling.attn_factor", gain / usual);
}

static void add_rope(gguf_head *h, const tg_lm_config *c) {
    if (c->position_kind != TG_LM_ROTARY) return;
    gguf_u32(h, ".rope.dimension_count", rotated(c));
    gguf_f32(h, ".rope.freq_base", c->rope_base);
    if (c->rope_local_base != TG_AUTO) gguf_f32(h, ".rope.freq_base_swa", c->rope_local_base);
    if (c->rope_kind != TG_ROPE_LINEAR && c->rope_kind != TG_ROPE_YARN) return;
    gguf_text(h, ".rope.scaling.type", c->rope_kind == TG_ROPE_YARN ? "yarn" : "linear");
    gguf_f32(h, ".rope.scaling.factor", c->rope_factor);
    if (c->rope_kind != TG_ROPE_YARN) return;
    gguf_u32(h, ".rope.scaling.original_context_length", c->rope_original);
    add_yarn(h, c);
}

tg_status gguf_add_config(tg_ctx *ctx, gguf_head *h, const gguf_family *f, const tg_lm_config *c) {
    tg_status s = check_model(ctx, f, c);
    if (s) return s;
    add_sizes(h, f, c);
    add_attention(h, c);
    add_rope(h, c);
    return TG_OK;
}
