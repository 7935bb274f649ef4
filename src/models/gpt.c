/* GPT-2 and Llama as configs of the language model (lm.h), and the public functions of GPTs, which create and run this
 * model. */
#include <stdio.h>

#include "base/options.h"
#include "models/files/model_files.h"
#include "tape/tape.h"

/* ---- Configs ---- */

/* Fails if an option is set that the architecture does not use. */
static tg_status check_unused(tg_ctx *ctx, const tg_gpt_config *c, const char *who) {
    const tg_gpt_config usual = {TG_GPT_DEFAULTS};
    bool gpt2 = c->arch == TG_GPT2;
    if (c->arch != TG_GPT2 && c->arch != TG_LLAMA)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: arch is %d, expected TG_GPT2 or TG_LLAMA", who, (int)c->arch);
    if (gpt2 ? c->tied : c->untied)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: %s is set, but %s; leave it false", who, gpt2 ? "tied" : "untied",
                       gpt2 ? "the output of a GPT-2 is tied unless untied is set"
                            : "a Llama has an output matrix of its own unless tied is set");
    if (gpt2 && c->rope_base != usual.rope_base)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "%s: rope_base is %g, but GPT-2 learns its positions; leave rope_base at its default", who,
                       c->rope_base);
    if (!gpt2 && c->dropout > 0)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: dropout is %g, expected 0, because a Llama model has none", who,
                       c->dropout);
    return TG_OK;
}

/* Converts the config of a GPT to the config of the language model. */
static tg_lm_config to_lm(const tg_gpt_config *c) {
    bool gpt2 = c->arch == TG_GPT2;
    return (tg_lm_config){
        TG_LM_DEFAULTS,
        .vocab = c->vocab,
        .layers = c->layers,
        .heads = c->heads,
        .hidden = c->hidden,
        .positions = c->positions,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .ffn = c->ffn,
        .family = gpt2 ? "gpt2" : "llama",
        .norm = gpt2 ? TG_LM_LAYER_NORM : TG_LM_RMS_NORM,
        .activation = gpt2 ? TG_LM_GELU_TANH : TG_LM_SWIGLU,
        .position_kind = gpt2 ? TG_LM_LEARNED : TG_LM_ROTARY,
        .bias = gpt2,
        .tied = gpt2 ? !c->untied : c->tied,
        .norm_eps = c->norm_eps,
        .rope_base = c->rope_base,
        .dropout = c->dropout,
        .init_std = c->init_std,
        .recompute = c->recompute,
        .wgrad = c->wgrad,
        .cp_kind = c->cp_kind,
        .cp_inner = c->cp_inner,
        .parallel = c->parallel,
        .key = c->key,
        .layout = c->layout,
        .chunk = c->chunk,
        .unfilled = c->unfilled,
    };
}

/* Checks a GPT's config, fills in its defaults, and sets *lm to the config of its language model. */
static tg_status complete(tg_ctx *ctx, tg_gpt_config *c, const char *who, tg_lm_config *lm) {
    TG_TRY(ctx->run.status);
    *lm = to_lm(c);
    TG_TRY(tg_lm_check_sizes(ctx, lm, who));
    TG_TRY(check_unused(ctx, c, who));
    TG_TRY(tg_lm_complete(ctx, lm, who));
    c->kv_heads = lm->kv_heads;
    c->head_dim = lm->head_dim;
    c->ffn = lm->ffn;
    c->norm_eps = lm->norm_eps;
    return TG_OK;
}

/* Sets *out to the config of a GPT that is nearest to that of a language model. */
static void from_lm(const tg_lm_config *lm, tg_gpt_config *out) {
    bool gpt2 = strcmp(lm->family, "gpt2") == 0;
    *out = *TG_GPT(.arch = gpt2 ? TG_GPT2 : TG_LLAMA, .vocab = lm->vocab, .layers = lm->layers, .heads = lm->heads,
                   .hidden = lm->hidden, .kv_heads = lm->kv_heads, .ffn = lm->ffn, .positions = lm->positions,
                   .head_dim = lm->head_dim, .dropout = lm->dropout, .norm_eps = lm->norm_eps,
                   .rope_base = lm->rope_base, .init_std = lm->init_std, .untied = gpt2 && !lm->tied,
                   .tied = !gpt2 && lm->tied);
}

tg_status tg_gpt_of_lm(tg_ctx *ctx, const tg_lm_config *lm, const char *path, const char *who, tg_gpt_config *out) {
    bool gpt2 = strcmp(lm->family, "gpt2") == 0;
    if (!gpt2 && strcmp(lm->family, "llama") != 0)
        return tg_fail(ctx, TG_ERR_UNSUPPORTED,
                       "'%s': model_type is \"%s\", but a GPT is a \"gpt2\" or a \"llama\"; call tg_lm_load_dir or "
                       "tg_lm_from_config",
                       path, lm->family);
    tg_lm_config given = *lm;
    TG_TRY(tg_lm_complete(ctx, &given, who));
    from_lm(&given, out);
    tg_lm_config back = to_lm(out);
    TG_TRY(tg_lm_complete(ctx, &back, who));
    if (tg_lm_same(&given, &back)) return TG_OK;
    return tg_fail(ctx, TG_ERR_UNSUPPORTED,
                   "'%s' has options that a GPT does not have, such as scaled rotary positions, biases or several "
                   "dropouts; call tg_lm_load_dir or tg_lm_from_config",
                   path);
}

const tg_gpt_config *tg_gpt_config_of(const tg_module *gpt) {
    return gpt && gpt->ops == &tg_lm_gpt_ops ? &tg_lm_of(gpt)->gpt : NULL;
}

/* ---- Creation ---- */

tg_module *tg_gpt_new(tg_ctx *ctx, const tg_gpt_config *given) {
    tg_gpt_config c;
    tg_lm_config lm;
    if (!tg_ok(ctx)) return tg_module_new(NULL, NULL, NULL);
    if (!given) tg_fail(ctx, TG_ERR_ARGUMENT, "tg_gpt_new: the config is NULL");
    tg_options(ctx, &c, &tg_gpt_config_struct, given, "tg_gpt_new: the config");
    if (complete(ctx, &c, "tg_gpt_new", &lm) != TG_OK) return tg_module_new(NULL, NULL, NULL);
    return tg_lm_make(ctx, &lm, &c, "tg_gpt_new", TG_SITE);
}

/* Fails if an option is set that only whole GPTs use. A GPT recomputes its layers as a whole; within them, the norms of
 * a layer and the activation of an MLP can be recomputed alone (TG_GPT_SELECTIVE), but nothing of attention. */
static tg_status check_unused_by_module(tg_ctx *ctx, const tg_gpt_config *c, const char *who, bool recomputes) {
    const char *set = c->layout                     ? "layout"
                      : c->chunk                    ? "chunk"
                      : c->key != (uint64_t)TG_NONE ? "key"
                      : c->unfilled                 ? "unfilled"
                                                    : NULL;
    if (set)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: %s is set, but only a whole GPT uses it; leave it at its default",
                       who, set);
    if (c->recompute == TG_GPT_KEEP || (recomputes && c->recompute == TG_GPT_SELECTIVE)) return TG_OK;
    return tg_fail(ctx, TG_ERR_ARGUMENT,
                   "%s: recompute is %s, expected TG_GPT_KEEP%s; to recompute all of the module, call tg_recompute",
                   who, tg_gpt_recompute_enum.values[c->recompute].name, recomputes ? " or TG_GPT_SELECTIVE" : "");
}

/* Creates a module of a GPT by `make` from the config of the GPT. */
static tg_module *module(tg_ctx *ctx, const tg_gpt_config *given, const char *who, bool recomputes,
                         tg_module *(*make)(tg_ctx *ctx, const tg_lm_config *c)) {
    tg_gpt_config c;
    tg_lm_config lm;
    if (!tg_ok(ctx)) return tg_module_new(NULL, NULL, NULL);
    tg_options(ctx, &c, &tg_gpt_config_struct, given, who);
    if (!given) tg_fail(ctx, TG_ERR_ARGUMENT, "%s: the config is NULL", who);
    bool good = complete(ctx, &c, who, &lm) == TG_OK && check_unused_by_module(ctx, &c, who, recomputes) == TG_OK;
    return good ? make(ctx, &lm) : tg_module_new(NULL, NULL, NULL);
}

tg_module *tg_nn_attention(tg_ctx *ctx, const tg_gpt_config *config) {
    return module(ctx, config, "tg_nn_attention", false, tg_lm_attention_new);
}
tg_module *tg_nn_mlp(tg_ctx *ctx, const tg_gpt_config *config) {
    return module(ctx, config, "tg_nn_mlp", true, tg_lm_mlp_new);
}
tg_module *tg_nn_transformer_layer(tg_ctx *ctx, const tg_gpt_config *config) {
    return module(ctx, config, "tg_nn_transformer_layer", true, tg_lm_layer_new);
}

/* ---- Logits and loss ---- */

tg_tensor *tg_gpt_logits(tg_module *gpt, tg_tape *t, tg_tensor *ids) {
    return tg_lm_logits_of_ids(gpt, t, ids, NULL, "tg_gpt_logits", TG_SITE);
}

tg_tensor *tg_gpt_loss(tg_module *gpt, tg_tape *t, tg_tensor *ids, tg_tensor *target, tg_loss_reduction reduction) {
    return tg_lm_loss_of_ids(gpt, t, ids, NULL, target, reduction, "tg_gpt_loss", TG_SITE);
}
