/* What a language model's layers do not share: windows, positions, and the kind of their rotation. The config of one
 * layer has these resolved, so that attention itself knows no list of layers. */
#include <ctype.h>
#include <math.h>

#include "models/lm.h"

/* Returns the letter of a layer (tg_lm_config.attention_kinds). */
static char kind_of(const tg_lm_config *c, int64_t layer) {
    const char *kinds = c->attention_kinds;
    if (!kinds || !*kinds) return c->window == TG_NONE ? 'f' : 'w';
    return kinds[layer % (int64_t)strlen(kinds)];
}

bool tg_lm_layer_has_window(const tg_lm_config *c, int64_t layer) { return tolower(kind_of(c, layer)) == 'w'; }
bool tg_lm_layer_has_positions(const tg_lm_config *c, int64_t layer) { return islower(kind_of(c, layer)); }

tg_lm_config tg_lm_config_of_layer(const tg_lm_config *c, int64_t layer) {
    const tg_lm_config usual = {TG_LM_DEFAULTS};
    tg_lm_config own = *c;
    bool window = tg_lm_layer_has_window(c, layer);
    if (!window) own.window = TG_NONE;
    if (c->position_kind == TG_LM_ROTARY && !tg_lm_layer_has_positions(c, layer))
        own.position_kind = TG_LM_NO_POSITIONS;
    if (window && c->rope_local_base != TG_AUTO) {
        own.rope_base = c->rope_local_base;
        own.rope_kind = TG_ROPE_PLAIN;
        own.rope_factor = usual.rope_factor;
    }
    own.layout = own.attention_kinds = own.extra = NULL; /* these texts may be freed before the layer */
    return own;
}

tg_rope_opts tg_lm_rope_of(const tg_lm_config *c) {
    double gain = c->rope_gain == TG_AUTO ? 0.1 * log(fmax(c->rope_factor, 1)) + 1 : c->rope_gain;
    return *TG_ROPE(.base = c->rope_base, .dims = c->rope_dims == c->head_dim ? TG_AUTO : c->rope_dims,
                    .kind = c->rope_kind, .factor = c->rope_factor, .low = c->rope_low, .high = c->rope_high,
                    .original = c->rope_original, .gain = c->rope_kind == TG_ROPE_YARN ? gain : 1);
}

/* ---- Checks ---- */

tg_status tg_lm_check_layers(tg_ctx *ctx, const tg_lm_config *c, const char *who) {
    const char *kinds = c->attention_kinds ? c->attention_kinds : "f";
    size_t known = strspn(kinds, "fwFW");
    if (c->window != TG_NONE && c->window < 1)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: window is %lld, expected 1 or more, or TG_NONE", who,
                       (long long)c->window);
    if (!*kinds || kinds[known])
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: attention_kinds is \"%.64s\", expected letters f, w, F and W", who,
                       kinds);
    if (c->window == TG_NONE && strpbrk(kinds, "wW"))
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "%s: attention_kinds is \"%.64s\", with windows, but window is TG_NONE; set the window", who,
                       kinds);
    if (c->position_kind != TG_LM_ROTARY && strpbrk(kinds, "FW"))
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "%s: attention_kinds is \"%.64s\", with layers without positions, but only rotary positions "
                       "belong to layers",
                       who, kinds);
    return TG_OK;
}

/* Fails if an option of rope is set without rotary positions. */
static tg_status check_no_rope(tg_ctx *ctx, const tg_lm_config *c, const char *who) {
    const tg_lm_config usual = {TG_LM_DEFAULTS};
    if (c->rope_base != usual.rope_base)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "%s: rope_base is %g, but the positions are %s; leave rope_base at its default", who,
                       c->rope_base, c->position_kind == TG_LM_LEARNED ? "learned" : "none");
    if (c->rope_kind != usual.rope_kind || c->rope_local_base != usual.rope_local_base ||
        c->rope_dims != c->head_dim)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "%s: rope_kind, rope_local_base or rope_dims is set, but the positions are not rotary", who);
    return TG_OK;
}

tg_status tg_lm_check_rope(tg_ctx *ctx, const tg_lm_config *c, const char *who) {
    bool turns = c->rope_kind == TG_ROPE_LLAMA3 || c->rope_kind == TG_ROPE_YARN;
    if (!(c->rope_base > 0 && isfinite(c->rope_base)) ||
        (c->rope_local_base != TG_AUTO && !(c->rope_local_base > 0 && isfinite(c->rope_local_base))))
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: rope_base %g, rope_local_base %g; expected positive, finite numbers",
                       who, c->rope_base, c->rope_local_base);
    if (c->position_kind != TG_LM_ROTARY) return check_no_rope(ctx, c, who);
    if (c->rope_dims == c->head_dim && c->head_dim % 2)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "%s: head_dim is %lld, expected an even number, because rotary positions use pairs", who,
                       (long long)c->head_dim);
    if (c->rope_dims < 2 || c->rope_dims > c->head_dim || c->rope_dims % 2)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: rope_dims is %lld, expected an even number from 2 to head_dim = %lld",
                       who, (long long)c->rope_dims, (long long)c->head_dim);
    if (!(c->rope_factor > 0 && isfinite(c->rope_factor)) || (c->rope_kind == TG_ROPE_PLAIN && c->rope_factor != 1))
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "%s: rope_factor is %g, expected a positive, finite number, and 1 with TG_ROPE_PLAIN", who,
                       c->rope_factor);
    if (c->rope_gain != TG_AUTO && !(c->rope_gain > 0 && isfinite(c->rope_gain)))
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: rope_gain is %g, expected a positive, finite number, or TG_AUTO",
                       who, c->rope_gain);
    if (turns && !(c->rope_low > 0 && c->rope_low < c->rope_high && isfinite(c->rope_high) && c->rope_original > 0))
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "%s: rope_low %g, rope_high %g, rope_original %lld; expected 0 < rope_low < rope_high, and "
                       "rope_original above 0",
                       who, c->rope_low, c->rope_high, (long long)c->rope_original);
    return TG_OK;
}
