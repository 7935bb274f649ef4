/* Checks the config of a language model and chooses what it leaves to the library. */
#include <math.h>

#include "models/files/families.h"

/* Fails unless v is 1 to 2^40 - 1. */
static tg_status positive(tg_ctx *ctx, const char *who, const char *name, int64_t v) {
    const int64_t most = ((int64_t)1 << 40) - 1;
    if (v > 0 && v <= most) return TG_OK;
    return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: %s is %lld, expected 1 to %lld", who, name, (long long)v,
                   (long long)most);
}

tg_status tg_lm_check_sizes(tg_ctx *ctx, const tg_lm_config *c, const char *who) {
    TG_TRY(positive(ctx, who, "vocab", c->vocab));
    TG_TRY(positive(ctx, who, "layers", c->layers));
    TG_TRY(positive(ctx, who, "heads", c->heads));
    TG_TRY(positive(ctx, who, "hidden", c->hidden));
    return positive(ctx, who, "positions", c->positions);
}

/* Fails unless `value`, of an enum, is 0 to `last`. `all` is the names of its values. */
static tg_status in_enum(tg_ctx *ctx, const char *who, const char *name, int value, int last, const char *all) {
    if (value >= 0 && value <= last) return TG_OK;
    return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: %s is %d, expected %s", who, name, value, all);
}

static tg_status check_enums(tg_ctx *ctx, const tg_lm_config *c, const char *who) {
    const struct { const char *name; int value, last; const char *all; } rows[] = {
        {"norm", (int)c->norm, TG_LM_PLAIN_LAYER_NORM, "TG_LM_RMS_NORM to TG_LM_PLAIN_LAYER_NORM"},
        {"norm_place", (int)c->norm_place, TG_LM_NORM_AROUND, "TG_LM_NORM_BEFORE, _AFTER or _AROUND"},
        {"qk_norm", (int)c->qk_norm, TG_LM_QK_NORM_OF_PROJECTIONS,
         "TG_LM_NO_QK_NORM to TG_LM_QK_NORM_OF_PROJECTIONS"},
        {"activation", (int)c->activation, TG_LM_GEGLU_TANH, "TG_LM_SWIGLU to TG_LM_GEGLU_TANH"},
        {"position_kind", (int)c->position_kind, TG_LM_NO_POSITIONS, "TG_LM_ROTARY to TG_LM_NO_POSITIONS"},
        {"rope_kind", (int)c->rope_kind, TG_ROPE_YARN, "TG_ROPE_PLAIN to TG_ROPE_YARN"},
        {"backend", (int)c->backend, TG_LM_COMPOSED, "TG_LM_FUSED or TG_LM_COMPOSED"},
        {"recompute", (int)c->recompute, TG_GPT_DISTRIBUTED, "TG_GPT_KEEP to TG_GPT_DISTRIBUTED"},
        {"wgrad", (int)c->wgrad, TG_WGRAD_DEFERRED, "TG_WGRAD_FUSED, _PLAIN or _DEFERRED"},
    };
    for (size_t i = 0; i < TG_LEN(rows); i++)
        TG_TRY(in_enum(ctx, who, rows[i].name, rows[i].value, rows[i].last, rows[i].all));
    return TG_OK;
}

/* Replaces the family's name by that of its table, which lives as long as the program. */
static tg_status find_family(tg_ctx *ctx, tg_lm_config *c, const char *who) {
    const tg_lm_family_row *row = tg_lm_family_find(c->family ? c->family : "llama");
    if (!row)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: family is \"%.64s\", expected one of those that tg_lm_family lists",
                       who, c->family);
    c->family = row->type;
    return TG_OK;
}

/* Makes the checks that must come before sizes are chosen. */
static tg_status check_given(tg_ctx *ctx, tg_lm_config *c, const char *who) {
    TG_TRY(tg_lm_check_sizes(ctx, c, who));
    TG_TRY(check_enums(ctx, c, who));
    TG_TRY(find_family(ctx, c, who));
    if (c->head_dim == TG_AUTO && c->hidden % c->heads)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "%s: hidden is %lld, which is not a multiple of heads = %lld; set head_dim", who,
                       (long long)c->hidden, (long long)c->heads);
    return TG_OK;
}

void tg_lm_choose(tg_lm_config *c) {
    int64_t ffn = c->activation == TG_LM_GELU_TANH ? 4 * c->hidden : (8 * c->hidden / 3 + 63) / 64 * 64;
    if (c->head_dim == TG_AUTO) c->head_dim = c->hidden / c->heads;
    if (c->kv_heads == TG_AUTO) c->kv_heads = c->heads;
    if (c->ffn == TG_AUTO) c->ffn = ffn;
    if (c->norm_eps == TG_AUTO) c->norm_eps = c->norm == TG_LM_RMS_NORM ? 1e-6 : 1e-5;
    if (c->embed_dropout == TG_AUTO) c->embed_dropout = c->dropout;
    if (c->attention_dropout == TG_AUTO) c->attention_dropout = c->dropout;
    if (c->bias) c->qkv_bias = c->out_bias = c->mlp_bias = true;
    if (c->rope_dims == TG_AUTO) c->rope_dims = c->head_dim;
}

static tg_status check_heads(tg_ctx *ctx, const tg_lm_config *c, const char *who) {
    if (c->head_dim >= ((int64_t)1 << 40) / c->heads)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: heads is %lld and head_dim %lld, expected a product below 2^40", who,
                       (long long)c->heads, (long long)c->head_dim);
    if (c->kv_heads < 1 || c->heads % c->kv_heads)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: kv_heads is %lld, expected a divisor of heads = %lld", who,
                       (long long)c->kv_heads, (long long)c->heads);
    if (tg_lm_is_transposed(c) && (c->kv_heads != c->heads || c->head_dim * c->heads != c->hidden))
        return tg_fail(
            ctx, TG_ERR_ARGUMENT,
            "%s: kv_heads is %lld and head_dim %lld; GPT-2 needs kv_heads = heads = %lld and head_dim = hidden / "
            "heads; leave both TG_AUTO",
            who, (long long)c->kv_heads, (long long)c->head_dim, (long long)c->heads);
    return TG_OK;
}

/* Checks that the grid of ranks belongs to this context, and that heads, kv_heads and ffn can be divided over tp. */
static tg_status check_parallel(tg_ctx *ctx, const tg_lm_config *c, const char *who) {
    int tp = tg_lm_tp(c);
    if (c->parallel && tg_parallel_ctx(c->parallel) != ctx)
        return tg_fail(ctx, TG_ERR_HANDLE, "%s: parallel belongs to another context than the model", who);
    if (c->heads % tp)
        return tg_fail(ctx, TG_ERR_SHAPE, "%s: heads is %lld, expected a multiple of tp = %d", who, (long long)c->heads,
                       tp);
    if (c->kv_heads < tp ? tp % c->kv_heads : c->kv_heads % tp)
        return tg_fail(ctx, TG_ERR_SHAPE,
                       "%s: kv_heads is %lld and tp is %d, expected one to be a multiple of the other", who,
                       (long long)c->kv_heads, tp);
    if (c->ffn % tp)
        return tg_fail(ctx, TG_ERR_SHAPE, "%s: ffn is %lld, expected a multiple of tp = %d", who, (long long)c->ffn,
                       tp);
    return TG_OK;
}

/* Checks how attention is computed if sequences are divided over cp. */
static tg_status check_context(tg_ctx *ctx, const tg_lm_config *c, const char *who) {
    int cp = tg_lm_cp(c);
    if ((unsigned)c->cp_kind > TG_CP_HIERARCHY)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: cp_kind is %d, expected TG_CP_RING to TG_CP_HIERARCHY", who,
                       (int)c->cp_kind);
    if (cp > 1 && c->backend == TG_LM_COMPOSED)
        return tg_fail(ctx, TG_ERR_UNSUPPORTED,
                       "%s: backend is TG_LM_COMPOSED and cp is %d; attention by separate ops needs whole sequences: "
                       "choose TG_LM_FUSED",
                       who, cp);
    bool groups = c->cp_kind == TG_CP_HIERARCHY && c->cp_inner > 0 && cp % c->cp_inner == 0;
    if (c->cp_inner == TG_AUTO || groups) return TG_OK;
    return tg_fail(ctx, TG_ERR_ARGUMENT,
                   "%s: cp_inner is %d and cp is %d; expected a divisor of cp with TG_CP_HIERARCHY, and TG_AUTO with "
                   "other kinds",
                   who, c->cp_inner, cp);
}

static bool positive_or(double v, double none) { return v == none || (v > 0 && isfinite(v)); }
static bool is_probability(double v) { return v >= 0 && v < 1; }

static tg_status check_numbers(tg_ctx *ctx, const tg_lm_config *c, const char *who) {
    if (!is_probability(c->dropout) || !is_probability(c->embed_dropout) || !is_probability(c->attention_dropout) ||
        !(c->norm_eps > 0 && c->init_std > 0 && isfinite(c->norm_eps + c->init_std)))
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "%s: dropout %g, embed_dropout %g, attention_dropout %g, norm_eps %g, init_std %g; expected "
                       "dropouts in [0, 1), the others positive and finite",
                       who, c->dropout, c->embed_dropout, c->attention_dropout, c->norm_eps, c->init_std);
    if (!positive_or(c->attention_scale, TG_AUTO) || !positive_or(c->attention_softcap, TG_NONE) ||
        !positive_or(c->logit_softcap, TG_NONE) || !positive_or(c->clip_qkv, TG_NONE) || c->embed_scale == 0 ||
        !isfinite(c->embed_scale))
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "%s: attention_scale %g, attention_softcap %g, logit_softcap %g, clip_qkv %g, embed_scale %g; "
                       "expected positive and finite numbers, TG_AUTO or TG_NONE, and a scale that is not 0",
                       who, c->attention_scale, c->attention_softcap, c->logit_softcap, c->clip_qkv, c->embed_scale);
    return TG_OK;
}

/* Checks the options of multi-token prediction and of the maximal update parametrization. */
static tg_status check_extras(tg_ctx *ctx, const tg_lm_config *c, const char *who) {
    enum { MOST = 64 };
    if (c->mtp < 0 || c->mtp > MOST)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: mtp is %d, expected 0 to %d", who, c->mtp, MOST);
    if (!(c->mtp_weight > 0) || !isfinite(c->mtp_weight))
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: mtp_weight is %g, expected a finite number above 0", who,
                       c->mtp_weight);
    if (c->mup_base == TG_NONE || (c->mup_base > 0 && isfinite(c->mup_base))) return TG_OK;
    return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: mup_base is %g, expected the hidden size of the base model, or TG_NONE",
                   who, c->mup_base);
}

/* Fails unless `extra` is a JSON object. */
static tg_status check_extra(tg_ctx *ctx, const tg_lm_config *c, const char *who) {
    json_error_t e;
    json_t *root = c->extra ? json_loads(c->extra, 0, &e) : NULL;
    bool good = !c->extra || json_is_object(root), missing = !good && !root && tg_json_lacks_memory(&e);
    json_decref(root);
    if (good) return TG_OK;
    if (missing) return tg_fail(ctx, TG_ERR_MEMORY, "%s: no memory for the JSON tree of extra", who);
    return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: extra is \"%.64s\", expected a JSON object", who, c->extra);
}

/* Fails for combinations of blocks that no layer has, or that ranks of tp cannot divide. */
static tg_status check_blocks(tg_ctx *ctx, const tg_lm_config *c, const char *who) {
    const bool fused = tg_lm_names_of(c)->qkv && c->kv_heads != c->heads;
    int tp = tg_lm_tp(c);
    if (c->parallel_residual && c->norm_place != TG_LM_NORM_BEFORE)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: parallel_residual is set, which needs norm_place TG_LM_NORM_BEFORE",
                       who);
    if (c->head_bias && c->tied)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: head_bias and tied are set, but an embedding has no bias", who);
    if (c->unit_norm && c->norm != TG_LM_RMS_NORM)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: unit_norm is set, which needs norm TG_LM_RMS_NORM", who);
    if (tp > 1 && (c->qk_norm == TG_LM_QK_NORM_OF_PROJECTIONS || c->head_bias || fused))
        return tg_fail(ctx, TG_ERR_UNSUPPORTED, "%s: tp is %d, but %s; use tp 1", who, tp,
                       c->head_bias ? "the bias of the output matrix (head_bias) cannot be divided"
                       : fused      ? "the family has queries, keys and values in one matrix, and fewer heads of keys"
                                    : "qk_norm norms all heads of a token at once");
    return TG_OK;
}

tg_status tg_lm_complete(tg_ctx *ctx, tg_lm_config *c, const char *who) {
    TG_TRY(check_given(ctx, c, who));
    tg_lm_choose(c);
    TG_TRY(positive(ctx, who, "head_dim", c->head_dim));
    TG_TRY(positive(ctx, who, "ffn", c->ffn));
    TG_TRY(check_heads(ctx, c, who));
    TG_TRY(check_parallel(ctx, c, who));
    TG_TRY(check_context(ctx, c, who));
    TG_TRY(check_extras(ctx, c, who));
    TG_TRY(check_numbers(ctx, c, who));
    TG_TRY(tg_lm_check_rope(ctx, c, who));
    TG_TRY(tg_lm_check_layers(ctx, c, who));
    TG_TRY(check_extra(ctx, c, who));
    return check_blocks(ctx, c, who);
}

int64_t tg_lm_rows(const tg_lm_config *c) {
    int64_t unit = 128 * (int64_t)tg_lm_tp(c);
    return tg_lm_tp(c) == 1 ? c->vocab : (c->vocab + unit - 1) / unit * unit;
}
