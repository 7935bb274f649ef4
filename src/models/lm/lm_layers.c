/* What a language model's layers do not share: windows, positions, and the kind of their rotation. The config of one
 * layer has these resolved, so that attention itself knows no list of layers. */
#include <ctype.h>
#include <math.h>

#include "base/options.h"
#include "models/lm/lm.h"

/* Returns the letter of a layer (tg_lm_config.attention_kinds). */
static char kind_of(const tg_lm_config *c, int64_t layer) {
    const char *kinds = c->attention_kinds;
    if (!kinds || !*kinds) return c->window == TG_NONE ? 'f' : 'w';
    return kinds[layer % (int64_t)strlen(kinds)];
}

bool tg_lm_layer_has_window(const tg_lm_config *c, int64_t layer) { return tolower(kind_of(c, layer)) == 'w'; }
bool tg_lm_layer_has_positions(const tg_lm_config *c, int64_t layer) { return islower(kind_of(c, layer)); }

void tg_lm_set_plain_rope(tg_lm_config *c) {
    const tg_lm_config usual = {TG_LM_DEFAULTS};
    c->rope_kind = TG_ROPE_PLAIN;
    c->rope_factor = usual.rope_factor;
    c->rope_low = usual.rope_low;
    c->rope_high = usual.rope_high;
    c->rope_original = usual.rope_original;
    c->rope_gain = usual.rope_gain;
}

tg_lm_config tg_lm_config_of_layer(const tg_lm_config *c, int64_t layer) {
    tg_lm_config own = *c;
    bool window = tg_lm_layer_has_window(c, layer);
    if (!window) own.window = TG_NONE;
    if (c->position_kind == TG_LM_ROTARY && !tg_lm_layer_has_positions(c, layer))
        own.position_kind = TG_LM_NO_POSITIONS;
    if (window && c->rope_local_base != TG_AUTO) {
        own.rope_base = c->rope_local_base;
        tg_lm_set_plain_rope(&own);
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

/* Fails if an option of rope is set that the positions or the kind of rope do not use. */
static tg_status check_unused_rope(tg_ctx *ctx, const tg_lm_config *c, const char *who) {
    enum {
        YARN = 1 << TG_ROPE_YARN,
        TURNS = 1 << TG_ROPE_LLAMA3 | YARN,
        SCALED = 1 << TG_ROPE_LINEAR | TURNS,
        ANY = 1 << TG_ROPE_PLAIN | SCALED,
    };
    const tg_lm_config usual = {TG_LM_DEFAULTS};
    const struct { const char *name; double value, usual; unsigned kinds; } rows[] = {
        {"rope_base", c->rope_base, usual.rope_base, ANY},
        {"rope_dims", (double)c->rope_dims, (double)c->head_dim, ANY},
        {"rope_kind", (double)c->rope_kind, (double)usual.rope_kind, ANY},
        {"rope_local_base", c->rope_local_base, usual.rope_local_base, ANY},
        {"rope_factor", c->rope_factor, usual.rope_factor, SCALED},
        {"rope_low", c->rope_low, usual.rope_low, TURNS},
        {"rope_high", c->rope_high, usual.rope_high, TURNS},
        {"rope_original", (double)c->rope_original, (double)usual.rope_original, TURNS},
        {"rope_gain", c->rope_gain, usual.rope_gain, YARN},
    };
    bool rotary = c->position_kind == TG_LM_ROTARY;
    const char *why = rotary ? "it is not used with " : "the positions are ";
    const char *what = c->position_kind == TG_LM_LEARNED ? "learned" : "none";
    if (rotary) what = tg_rope_kind_enum.values[c->rope_kind].name;
    for (size_t i = 0; i < TG_LEN(rows); i++) {
        if (rows[i].value == rows[i].usual || (rotary && rows[i].kinds >> c->rope_kind & 1)) continue;
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: %s is %.10g, but %s%s; leave %s at its default", who, rows[i].name,
                       rows[i].value, why, what, rows[i].name);
    }
    return TG_OK;
}

tg_status tg_lm_check_rope(tg_ctx *ctx, const tg_lm_config *c, const char *who) {
    bool turns = c->rope_kind == TG_ROPE_LLAMA3 || c->rope_kind == TG_ROPE_YARN;
    if (!(c->rope_base > 0 && isfinite(c->rope_base)) ||
        (c->rope_local_base != TG_AUTO && !(c->rope_local_base > 0 && isfinite(c->rope_local_base))))
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: rope_base %g, rope_local_base %g; expected positive, finite numbers",
                       who, c->rope_base, c->rope_local_base);
    TG_TRY(check_unused_rope(ctx, c, who));
    if (c->position_kind != TG_LM_ROTARY) return TG_OK;
    if (c->rope_dims == c->head_dim && c->head_dim % 2)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "%s: head_dim is %lld, expected an even number, because rotary positions use pairs", who,
                       (long long)c->head_dim);
    if (c->rope_dims < 2 || c->rope_dims > c->head_dim || c->rope_dims % 2)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: rope_dims is %lld, expected an even number from 2 to head_dim = %lld",
                       who, (long long)c->rope_dims, (long long)c->head_dim);
    if (!(c->rope_factor > 0 && isfinite(c->rope_factor)))
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: rope_factor is %g, expected a positive, finite number", who,
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
