/* The structs of options of language models and of their layers. */
#include <tapegrad/attention.h>
#include <tapegrad/gpt.h>
#include <tapegrad/lm.h>
#include <tapegrad/lora.h>

#include "base/options.h"

static const tg_enum_value gpt_arch_values[] = {TG_ENUM_VALUE(TG_GPT2), TG_ENUM_VALUE(TG_LLAMA)};
const tg_enum tg_gpt_arch_enum = TG_ENUM(tg_gpt_arch, "TG_", gpt_arch_values);

static const tg_enum_value gpt_recompute_values[] = {TG_ENUM_VALUE(TG_GPT_KEEP), TG_ENUM_VALUE(TG_GPT_FULL),
                                                     TG_ENUM_VALUE(TG_GPT_SELECTIVE),
                                                     TG_ENUM_VALUE(TG_GPT_DISTRIBUTED)};
const tg_enum tg_gpt_recompute_enum = TG_ENUM(tg_gpt_recompute, "TG_GPT_", gpt_recompute_values);

static const tg_enum_value gpt_wgrad_values[] = {TG_ENUM_VALUE(TG_WGRAD_FUSED), TG_ENUM_VALUE(TG_WGRAD_PLAIN),
                                                 TG_ENUM_VALUE(TG_WGRAD_DEFERRED)};
const tg_enum tg_gpt_wgrad_enum = TG_ENUM(tg_gpt_wgrad, "TG_WGRAD_", gpt_wgrad_values);

static const tg_enum_value lm_norm_values[] = {TG_ENUM_VALUE(TG_LM_RMS_NORM), TG_ENUM_VALUE(TG_LM_LAYER_NORM),
                                               TG_ENUM_VALUE(TG_LM_PLAIN_LAYER_NORM)};
const tg_enum tg_lm_norm_enum = TG_ENUM(tg_lm_norm, "TG_LM_", lm_norm_values);

static const tg_enum_value lm_norm_place_values[] = {
    TG_ENUM_VALUE(TG_LM_NORM_BEFORE), TG_ENUM_VALUE(TG_LM_NORM_AFTER), TG_ENUM_VALUE(TG_LM_NORM_AROUND)};
const tg_enum tg_lm_norm_place_enum = TG_ENUM(tg_lm_norm_place, "TG_LM_NORM_", lm_norm_place_values);

static const tg_enum_value lm_qk_norm_values[] = {TG_ENUM_VALUE(TG_LM_NO_QK_NORM),
                                                  TG_ENUM_VALUE(TG_LM_QK_NORM_OF_HEADS),
                                                  TG_ENUM_VALUE(TG_LM_QK_NORM_OF_PROJECTIONS)};
const tg_enum tg_lm_qk_norm_enum = TG_ENUM(tg_lm_qk_norm, "TG_LM_", lm_qk_norm_values);

static const tg_enum_value lm_activation_values[] = {TG_ENUM_VALUE(TG_LM_SWIGLU), TG_ENUM_VALUE(TG_LM_GELU_TANH),
                                                     TG_ENUM_VALUE(TG_LM_GEGLU_TANH)};
const tg_enum tg_lm_activation_enum = TG_ENUM(tg_lm_activation, "TG_LM_", lm_activation_values);

static const tg_enum_value lm_positions_values[] = {TG_ENUM_VALUE(TG_LM_ROTARY), TG_ENUM_VALUE(TG_LM_LEARNED),
                                                    TG_ENUM_VALUE(TG_LM_NO_POSITIONS)};
const tg_enum tg_lm_positions_enum = TG_ENUM(tg_lm_positions, "TG_LM_", lm_positions_values);

static const tg_enum_value lm_backend_values[] = {TG_ENUM_VALUE(TG_LM_FUSED), TG_ENUM_VALUE(TG_LM_COMPOSED)};
const tg_enum tg_lm_backend_enum = TG_ENUM(tg_lm_backend, "TG_LM_", lm_backend_values);

static const tg_field gpt_config_fields[] = {
    TG_FIELD_OF(tg_gpt_config, arch, ENUM, "tg_gpt_arch", "GPT-2 or Llama."),
    TG_FIELD(tg_gpt_config, vocab, INT64, "Size of the vocabulary, 1 or more."),
    TG_FIELD(tg_gpt_config, layers, INT64, "Number of layers, 1 or more."),
    TG_FIELD(tg_gpt_config, heads, INT64, "Number of heads, 1 or more."),
    TG_FIELD(tg_gpt_config, hidden, INT64, "Hidden size, 1 or more."),
    TG_FIELD(tg_gpt_config, kv_heads, INT64, "Heads of keys and values; TG_AUTO: heads."),
    TG_FIELD(tg_gpt_config, ffn, INT64, "Hidden size of the MLP; TG_AUTO: by the architecture."),
    TG_FIELD(tg_gpt_config, positions, INT64, "Longest sequence, 1 or more."),
    TG_FIELD(tg_gpt_config, head_dim, INT64, "Size of a head; TG_AUTO: hidden / heads."),
    TG_FIELD(tg_gpt_config, dropout, DOUBLE, "Probability of dropout, in [0, 1)."),
    TG_FIELD(tg_gpt_config, norm_eps, DOUBLE, "Eps of norms, above 0; TG_AUTO: by the architecture."),
    TG_FIELD(tg_gpt_config, rope_base, DOUBLE, "Base of rotary positions, above 0."),
    TG_FIELD(tg_gpt_config, init_std, DOUBLE, "Standard deviation of the initial weights, above 0."),
    TG_FIELD(tg_gpt_config, untied, BOOL, "GPT-2: the output matrix is separate from the embedding matrix."),
    TG_FIELD(tg_gpt_config, tied, BOOL, "Llama: the output matrix is the embedding matrix."),
    TG_FIELD_OF(tg_gpt_config, recompute, ENUM, "tg_gpt_recompute", "Which activations are recomputed."),
    TG_FIELD_OF(tg_gpt_config, wgrad, ENUM, "tg_gpt_wgrad", "When weight gradients are computed."),
    TG_FIELD_OF(tg_gpt_config, cp_kind, ENUM, "tg_cp_kind", "How ranks of cp exchange keys and values."),
    TG_FIELD(tg_gpt_config, cp_inner, INT, "TG_CP_HIERARCHY: number of ranks that exchange heads; TG_AUTO: all."),
    TG_FIELD_OF(tg_gpt_config, parallel, POINTER, "tg_parallel", "The grid of ranks; NULL: one rank."),
    TG_FIELD(tg_gpt_config, layout, TEXT, "How the model is cut into parts; NULL: equal numbers of layers."),
    TG_FIELD(tg_gpt_config, chunk, INT, "Which chunk of this rank's stage the module is, from 0."),
    TG_FIELD(tg_gpt_config, key, UINT64, "A key that the model opens around its own; TG_NONE: none."),
    TG_FIELD(tg_gpt_config, unfilled, BOOL, "Matrices have no memory until they are loaded."),
};
const tg_struct tg_gpt_config_struct = TG_STRUCT(tg_gpt_config, GPT, gpt_config_fields, "The configuration of a GPT.");

static const tg_field lm_config_fields[] = {
    TG_FIELD(tg_lm_config, vocab, INT64, "Size of the vocabulary, 1 or more."),
    TG_FIELD(tg_lm_config, layers, INT64, "Number of layers, 1 or more."),
    TG_FIELD(tg_lm_config, heads, INT64, "Number of heads, 1 or more."),
    TG_FIELD(tg_lm_config, hidden, INT64, "Hidden size, 1 or more."),
    TG_FIELD(tg_lm_config, positions, INT64, "Longest sequence, 1 or more."),
    TG_FIELD(tg_lm_config, kv_heads, INT64, "Heads of keys and values; TG_AUTO: heads."),
    TG_FIELD(tg_lm_config, head_dim, INT64, "Size of a head; TG_AUTO: hidden / heads."),
    TG_FIELD(tg_lm_config, ffn, INT64, "Hidden size of the MLP; TG_AUTO: by the activation."),
    TG_FIELD(tg_lm_config, family, TEXT, "Published checkpoints whose names parameters have; NULL: llama."),
    TG_FIELD_OF(tg_lm_config, norm, ENUM, "tg_lm_norm", "The norm."),
    TG_FIELD_OF(tg_lm_config, norm_place, ENUM, "tg_lm_norm_place", "Where layers have norms."),
    TG_FIELD(tg_lm_config, unit_norm, BOOL, "The factor of an RMS norm is 1 + weight."),
    TG_FIELD_OF(tg_lm_config, qk_norm, ENUM, "tg_lm_qk_norm", "Norms of queries and keys."),
    TG_FIELD_OF(tg_lm_config, activation, ENUM, "tg_lm_activation", "The activation of the MLP."),
    TG_FIELD(tg_lm_config, parallel_residual, BOOL, "Attention and the MLP have the same input."),
    TG_FIELD(tg_lm_config, bias, BOOL, "Linear layers have biases."),
    TG_FIELD(tg_lm_config, qkv_bias, BOOL, "Queries, keys and values have biases."),
    TG_FIELD(tg_lm_config, out_bias, BOOL, "The output of attention has a bias."),
    TG_FIELD(tg_lm_config, mlp_bias, BOOL, "The MLP has biases."),
    TG_FIELD(tg_lm_config, head_bias, BOOL, "The output matrix has a bias."),
    TG_FIELD(tg_lm_config, tied, BOOL, "The output matrix is the embedding matrix."),
    TG_FIELD(tg_lm_config, norm_eps, DOUBLE, "Eps of norms, above 0; TG_AUTO: by the norm."),
    TG_FIELD(tg_lm_config, dropout, DOUBLE, "Probability of dropout of the residual, in [0, 1)."),
    TG_FIELD(tg_lm_config, embed_dropout, DOUBLE, "The same of the embedding; TG_AUTO: dropout."),
    TG_FIELD(tg_lm_config, attention_dropout, DOUBLE, "The same of attention; TG_AUTO: dropout."),
    TG_FIELD(tg_lm_config, embed_scale, DOUBLE, "Factor of the embedding, not 0."),
    TG_FIELD(tg_lm_config, attention_scale, DOUBLE, "Factor of the scores, above 0; TG_AUTO: 1 / sqrt(head_dim)."),
    TG_FIELD(tg_lm_config, attention_softcap, DOUBLE, "Smooth bound of the scores, above 0; TG_NONE: none."),
    TG_FIELD(tg_lm_config, logit_softcap, DOUBLE, "Smooth bound of the logits, above 0; TG_NONE: none."),
    TG_FIELD(tg_lm_config, clip_qkv, DOUBLE, "Bound of queries, keys and values, above 0; TG_NONE: none."),
    TG_FIELD(tg_lm_config, window, INT64, "Tokens to which windowed attention attends, 1 or more; TG_NONE: no window."),
    TG_FIELD(tg_lm_config, attention_kinds, TEXT, "A letter for each layer: f, w, F or W; NULL: all are alike."),
    TG_FIELD_OF(tg_lm_config, position_kind, ENUM, "tg_lm_positions", "Rotary, learned or no positions."),
    TG_FIELD(tg_lm_config, rope_base, DOUBLE, "Base of rotary positions, above 0."),
    TG_FIELD(tg_lm_config, rope_dims, INT64, "Rotated elements of a head, even; TG_AUTO: head_dim."),
    TG_FIELD_OF(tg_lm_config, rope_kind, ENUM, "tg_rope_kind", "How frequencies are changed for longer sequences."),
    TG_FIELD(tg_lm_config, rope_factor, DOUBLE, "Divisor of the changed frequencies, above 0."),
    TG_FIELD(tg_lm_config, rope_low, DOUBLE, "Turns up to which frequencies are divided, above 0."),
    TG_FIELD(tg_lm_config, rope_high, DOUBLE, "Turns from which on frequencies are kept, above rope_low."),
    TG_FIELD(tg_lm_config, rope_original, INT64, "Positions with which the model was trained first, 1 or more."),
    TG_FIELD(tg_lm_config, rope_gain, DOUBLE, "Factor of rotated elements of YaRN; TG_AUTO: by rope_factor."),
    TG_FIELD(tg_lm_config, rope_local_base, DOUBLE, "Base of rope of layers with windows; TG_AUTO: as the others."),
    TG_FIELD(tg_lm_config, init_std, DOUBLE, "Standard deviation of the initial weights, above 0."),
    TG_FIELD(tg_lm_config, mtp, INT, "Number of depths of multi-token prediction."),
    TG_FIELD(tg_lm_config, mtp_weight, DOUBLE, "Weight of their losses, above 0."),
    TG_FIELD(tg_lm_config, mup_base, DOUBLE,
             "Hidden size of the base model of the maximal update parametrization; TG_NONE: it is not used."),
    TG_FIELD_OF(tg_lm_config, recompute, ENUM, "tg_gpt_recompute", "Which activations are recomputed."),
    TG_FIELD_OF(tg_lm_config, wgrad, ENUM, "tg_gpt_wgrad", "When weight gradients are computed."),
    TG_FIELD_OF(tg_lm_config, backend, ENUM, "tg_lm_backend", "How attention is computed."),
    TG_FIELD_OF(tg_lm_config, cp_kind, ENUM, "tg_cp_kind", "How ranks of cp exchange keys and values."),
    TG_FIELD(tg_lm_config, cp_inner, INT, "TG_CP_HIERARCHY: number of ranks that exchange heads; TG_AUTO: all."),
    TG_FIELD_OF(tg_lm_config, parallel, POINTER, "tg_parallel", "The grid of ranks; NULL: one rank."),
    TG_FIELD(tg_lm_config, layout, TEXT, "How the model is cut into parts; NULL: equal numbers of layers."),
    TG_FIELD(tg_lm_config, chunk, INT, "Which chunk of this rank's stage the module is, from 0."),
    TG_FIELD(tg_lm_config, key, UINT64, "A key that the model opens around its own; TG_NONE: none."),
    TG_FIELD(tg_lm_config, extra, TEXT, "Other members of config.json, as a JSON object; NULL: none."),
    TG_FIELD(tg_lm_config, unfilled, BOOL, "Matrices have no memory until they are loaded."),
};
const tg_struct tg_lm_config_struct =
    TG_STRUCT(tg_lm_config, LM, lm_config_fields, "The configuration of a language model.");

static const tg_field lm_rates_fields[] = {
    TG_FIELD(tg_lm_rates, lr, DOUBLE, "Rate, above 0."),
    TG_FIELD(tg_lm_rates, min_lr, DOUBLE, "Least rate, 0 or more."),
    TG_FIELD(tg_lm_rates, embed_lr, DOUBLE, "Rate of embeddings and the output matrix; TG_AUTO: lr."),
    TG_FIELD(tg_lm_rates, embed_min_lr, DOUBLE, "Least rate of embeddings and the output matrix; TG_AUTO: min_lr."),
    TG_FIELD(tg_lm_rates, weight_decay, DOUBLE, "Decay of matrices; TG_AUTO: that of group 0."),
    TG_FIELD_OF(tg_lm_rates, schedule, POINTER, "tg_schedule", "Warm-up and decay; NULL: constant rates."),
};
const tg_struct tg_lm_rates_struct =
    TG_STRUCT(tg_lm_rates, LM_RATES, lm_rates_fields, "Learning rates of groups of parameters.");

static const tg_field lm_save_fields[] = {
    TG_FIELD(tg_lm_save_opts, file_bytes, INT64, "Limit on the bytes of the tensors in one file, 1 or more."),
};
const tg_struct tg_lm_save_opts_struct = TG_STRUCT(tg_lm_save_opts, LM_SAVE, lm_save_fields, "Options of tg_lm_save.");

static const tg_field lora_fields[] = {
    TG_FIELD(tg_lora_opts, rank, INT64, "Rows of A and columns of B, 1 or more."),
    TG_FIELD(tg_lora_opts, alpha, DOUBLE, "Above 0; TG_AUTO: 2 * rank."),
    TG_FIELD(tg_lora_opts, dropout, DOUBLE, "Probability of dropout of the input of A, in [0, 1)."),
    TG_FIELD(tg_lora_opts, rslora, BOOL, "The product is multiplied by alpha / sqrt(rank)."),
    TG_FIELD(tg_lora_opts, targets, TEXT, "Patterns of the layers to adapt; NULL: all linear layers."),
};
const tg_struct tg_lora_opts_struct = TG_STRUCT(tg_lora_opts, LORA, lora_fields, "Options of tg_lora_apply.");

static const tg_field self_attention_fields[] = {
    TG_FIELD(tg_self_attention_opts, heads, INT64, "Heads of queries, 1 or more."),
    TG_FIELD(tg_self_attention_opts, kv_heads, INT64, "Heads of keys and values, 1 or more; TG_AUTO: heads."),
    TG_FIELD(tg_self_attention_opts, head_dim, INT64,
             "Size of a head of queries and keys, 1 or more; TG_AUTO: hidden / heads."),
    TG_FIELD(tg_self_attention_opts, v_dim, INT64, "Size of a head of values, 1 or more; TG_AUTO: head_dim."),
    TG_FIELD(tg_self_attention_opts, cross, BOOL, "Keys and values come from a second input."),
    TG_FIELD(tg_self_attention_opts, causal, BOOL, "Query i attends only to keys up to its own position."),
    TG_FIELD(tg_self_attention_opts, left, INT64,
             "Keys before its own position to which a query attends, 0 or more; TG_NONE: all."),
    TG_FIELD(tg_self_attention_opts, scale, DOUBLE, "Factor of the scores, 0 or more; TG_AUTO: 1 / sqrt(head_dim)."),
    TG_FIELD(tg_self_attention_opts, dropout, DOUBLE, "Probability of dropout of the attention weights, in [0, 1)."),
    TG_FIELD(tg_self_attention_opts, softcap, DOUBLE, "Smooth bound of the scores, greater than 0; TG_NONE: none."),
    TG_FIELD(tg_self_attention_opts, rope_base, DOUBLE, "Base of rotary positions, above 0; TG_NONE: no positions."),
    TG_FIELD(tg_self_attention_opts, qk_norm, BOOL, "Heads of queries and keys have RMS norms."),
    TG_FIELD(tg_self_attention_opts, norm_eps, DOUBLE, "Eps of these norms, 0 or more."),
    TG_FIELD(tg_self_attention_opts, bias, BOOL, "The projections of queries, keys and values have a bias."),
    TG_FIELD(tg_self_attention_opts, out_bias, BOOL, "The projection back has a bias."),
    TG_FIELD(tg_self_attention_opts, sink, BOOL, "Each head has a trained logit in the denominator of its softmax."),
    TG_FIELD_OF(tg_self_attention_opts, cp_kind, ENUM, "tg_cp_kind", "How ranks of cp exchange keys and values."),
    TG_FIELD(tg_self_attention_opts, cp_inner, INT,
             "TG_CP_HIERARCHY: number of ranks that exchange heads; TG_AUTO: all."),
    TG_FIELD_OF(tg_self_attention_opts, linear, POINTER, "tg_parallel_linear_opts",
                "Options of the projections of queries, keys and values; NULL: the defaults."),
    TG_FIELD_OF(tg_self_attention_opts, out_linear, POINTER, "tg_parallel_linear_opts",
                "Options of the projection back; NULL: the defaults."),
};
const tg_struct tg_self_attention_opts_struct =
    TG_STRUCT(tg_self_attention_opts, SELF_ATTENTION, self_attention_fields, "Options of tg_nn_self_attention.");
