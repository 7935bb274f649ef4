/* Checks the config of a language model and chooses what it leaves to the library. */
#include <math.h>

#include "models/lm.h"

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

/* Fails unless `value`, of an enum that has only the values 0 and 1, is one of them. `both` is the names of the two. */
static tg_status one_of_two(tg_ctx *ctx, const char *who, const char *name, int value, const char *both) {
    if (value == 0 || value == 1) return TG_OK;
    return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: %s is %d, expected %s", who, name, value, both);
}

static tg_status check_enums(tg_ctx *ctx, const tg_lm_config *c, const char *who) {
    TG_TRY(one_of_two(ctx, who, "names", (int)c->names, "TG_LM_NAMES_LLAMA or _GPT2"));
    TG_TRY(one_of_two(ctx, who, "norm", (int)c->norm, "TG_LM_RMS_NORM or TG_LM_LAYER_NORM"));
    TG_TRY(one_of_two(ctx, who, "activation", (int)c->activation, "TG_LM_SWIGLU or TG_LM_GELU_TANH"));
    TG_TRY(one_of_two(ctx, who, "position_kind", (int)c->position_kind, "TG_LM_ROTARY or TG_LM_LEARNED"));
    TG_TRY(one_of_two(ctx, who, "backend", (int)c->backend, "TG_LM_FUSED or TG_LM_COMPOSED"));
    if ((unsigned)c->recompute > TG_GPT_DISTRIBUTED)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: recompute is %d, expected TG_GPT_KEEP to TG_GPT_DISTRIBUTED", who,
                       (int)c->recompute);
    if ((unsigned)c->wgrad > TG_WGRAD_DEFERRED)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: wgrad is %d, expected TG_WGRAD_FUSED, _PLAIN or _DEFERRED", who,
                       (int)c->wgrad);
    return TG_OK;
}

/* Makes the checks that must come before sizes are chosen. */
static tg_status check_given(tg_ctx *ctx, const tg_lm_config *c, const char *who) {
    const tg_lm_config usual = {TG_LM_DEFAULTS};
    TG_TRY(tg_lm_check_sizes(ctx, c, who));
    TG_TRY(check_enums(ctx, c, who));
    if (c->position_kind == TG_LM_LEARNED && c->rope_base != usual.rope_base)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "%s: rope_base is %g, but the positions are learned; leave rope_base at its default", who,
                       c->rope_base);
    if (c->head_dim == TG_AUTO && c->hidden % c->heads)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "%s: hidden is %lld, which is not a multiple of heads = %lld; set head_dim", who,
                       (long long)c->hidden, (long long)c->heads);
    return TG_OK;
}

/* Chooses the fields that are TG_AUTO. */
static void choose(tg_lm_config *c) {
    int64_t ffn = c->activation == TG_LM_GELU_TANH ? 4 * c->hidden : (8 * c->hidden / 3 + 63) / 64 * 64;
    if (c->head_dim == TG_AUTO) c->head_dim = c->hidden / c->heads;
    if (c->kv_heads == TG_AUTO) c->kv_heads = c->heads;
    if (c->ffn == TG_AUTO) c->ffn = ffn;
    if (c->norm_eps == TG_AUTO) c->norm_eps = c->norm == TG_LM_LAYER_NORM ? 1e-5 : 1e-6;
}

static tg_status check_heads(tg_ctx *ctx, const tg_lm_config *c, const char *who) {
    if (c->head_dim >= ((int64_t)1 << 40) / c->heads)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: heads is %lld and head_dim %lld, expected a product below 2^40", who,
                       (long long)c->heads, (long long)c->head_dim);
    if (c->kv_heads < 1 || c->heads % c->kv_heads)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: kv_heads is %lld, expected a divisor of heads = %lld", who,
                       (long long)c->kv_heads, (long long)c->heads);
    if (c->names == TG_LM_NAMES_GPT2 && (c->kv_heads != c->heads || c->head_dim * c->heads != c->hidden))
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

static tg_status check_numbers(tg_ctx *ctx, const tg_lm_config *c, const char *who) {
    if (c->dropout >= 0 && c->dropout < 1 && c->norm_eps > 0 && c->init_std > 0 && c->rope_base > 0 &&
        isfinite(c->norm_eps + c->init_std + c->rope_base))
        return TG_OK;
    return tg_fail(ctx, TG_ERR_ARGUMENT,
                   "%s: dropout %g, norm_eps %g, init_std %g, rope_base %g; expected dropout in [0, 1), the others "
                   "positive and finite",
                   who, c->dropout, c->norm_eps, c->init_std, c->rope_base);
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

tg_status tg_lm_complete(tg_ctx *ctx, tg_lm_config *c, const char *who) {
    TG_TRY(check_given(ctx, c, who));
    choose(c);
    TG_TRY(positive(ctx, who, "head_dim", c->head_dim));
    TG_TRY(positive(ctx, who, "ffn", c->ffn));
    TG_TRY(check_heads(ctx, c, who));
    TG_TRY(check_parallel(ctx, c, who));
    TG_TRY(check_context(ctx, c, who));
    TG_TRY(check_extras(ctx, c, who));
    if (c->position_kind == TG_LM_ROTARY && c->head_dim % 2)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "%s: head_dim is %lld, expected an even number, because rotary positions use pairs", who,
                       (long long)c->head_dim);
    return check_numbers(ctx, c, who);
}

int64_t tg_lm_rows(const tg_lm_config *c) {
    int64_t unit = 128 * (int64_t)tg_lm_tp(c);
    return tg_lm_tp(c) == 1 ? c->vocab : (c->vocab + unit - 1) / unit * unit;
}
