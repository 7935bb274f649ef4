/* The structs of options of tensor parallelism. */
#include <tapegrad/megatron.h>
#include <tapegrad/tensor_parallel.h>

#include "base/options.h"

static const tg_enum_value axis_values[] = {TG_ENUM_VALUE(TG_TP),  TG_ENUM_VALUE(TG_CP),       TG_ENUM_VALUE(TG_DP),
                                            TG_ENUM_VALUE(TG_PP),  TG_ENUM_VALUE(TG_ETP),      TG_ENUM_VALUE(TG_EP),
                                            TG_ENUM_VALUE(TG_EDP), TG_ENUM_VALUE(TG_AXIS_USER)};
const tg_enum tg_axis_enum = TG_ENUM(tg_axis, "TG_", axis_values);

static const tg_field vocab_fields[] = {
    TG_FIELD(tg_vocab_opts, ignore_index, INT64, "Rows with this target are ignored."),
    TG_FIELD(tg_vocab_opts, label_smoothing, DOUBLE, "Amount of label smoothing, in [0, 1]."),
    TG_FIELD_OF(tg_vocab_opts, smoothing_kind, ENUM, "tg_smoothing",
                "How label smoothing distributes the target over the classes."),
    TG_FIELD_OF(tg_vocab_opts, reduction, ENUM, "tg_loss_reduction", "Mean, sum, or one loss for each row."),
    TG_FIELD(tg_vocab_opts, in_place, BOOL, "Backward writes the gradient of the logits over the logits."),
    TG_FIELD(tg_vocab_opts, classes, INT64, "Number of real classes over all ranks, 1 or more; TG_AUTO: all columns."),
};
const tg_struct tg_vocab_opts_struct =
    TG_STRUCT(tg_vocab_opts, VOCAB, vocab_fields, "Options of cross-entropies over a sharded vocabulary.");

static const tg_field linear_grad_fields[] = {
    TG_FIELD(tg_linear_grad_opts, sequence_parallel, BOOL, "x has this rank's rows, which the op gathers."),
    TG_FIELD(tg_linear_grad_opts, allreduce_dgrad, BOOL, "Backward sums the gradient of x over the ranks."),
    TG_FIELD(tg_linear_grad_opts, fused_wgrad, BOOL, "Refuses a weight that needs a gradient and is not a leaf."),
    TG_FIELD_OF(tg_linear_grad_opts, deferred, POINTER, "tg_wgrads",
                "The list that takes the gradient of the weight; NULL: backward computes it."),
    TG_FIELD(tg_linear_grad_opts, chunks, INT, "Number of messages that carry a rank's rows, 1 to 16."),
};
const tg_struct tg_linear_grad_opts_struct =
    TG_STRUCT(tg_linear_grad_opts, LINEAR_GRAD, linear_grad_fields, "Options of linear ops that communicate.");

static const tg_field norm_linear_fields[] = {
    TG_FIELD(tg_norm_linear_opts, rms, BOOL, "The norm is an RMS norm."),
    TG_FIELD(tg_norm_linear_opts, eps, DOUBLE, "Eps of the norm, finite, and 0 or more."),
    TG_FIELD(tg_norm_linear_opts, zero_centered, BOOL, "The norm multiplies by 1 + norm_weight."),
    TG_FIELD(tg_norm_linear_opts, sequence_parallel, BOOL, "x has this rank's rows, which the op gathers."),
    TG_FIELD(tg_norm_linear_opts, allreduce_dgrad, BOOL,
             "Backward sums the gradient of the norm's result over the ranks."),
    TG_FIELD(tg_norm_linear_opts, fused_wgrad, BOOL, "Refuses a weight that needs a gradient and is not a leaf."),
    TG_FIELD_OF(tg_norm_linear_opts, deferred, POINTER, "tg_wgrads",
                "The list that takes the gradient of the weight; NULL: backward computes it."),
    TG_FIELD(tg_norm_linear_opts, chunks, INT, "Number of messages that carry a rank's rows, 1 to 16."),
};
const tg_struct tg_norm_linear_opts_struct =
    TG_STRUCT(tg_norm_linear_opts, NORM_LINEAR, norm_linear_fields, "Options of tg_norm_linear.");

static const tg_enum_value symmetric_values[] = {TG_ENUM_VALUE(TG_AR_NONE), TG_ENUM_VALUE(TG_AR_TWO_SHOT),
                                                 TG_ENUM_VALUE(TG_AR_ONE_SHOT), TG_ENUM_VALUE(TG_AR_MULTIMEM)};
const tg_enum tg_symmetric_ar_enum = TG_ENUM(tg_symmetric_ar, "TG_AR_", symmetric_values);

static const tg_field linear_all_reduce_fields[] = {
    TG_FIELD_OF(tg_linear_all_reduce_opts, kind, ENUM, "tg_symmetric_ar", "How the addends of the ranks are summed."),
    TG_FIELD_OF(tg_linear_all_reduce_opts, buffer, POINTER, "tg_symmetric",
                "Symmetric memory for this rank's addend; NULL: none."),
};
const tg_struct tg_linear_all_reduce_opts_struct = TG_STRUCT(
    tg_linear_all_reduce_opts, LINEAR_ALL_REDUCE, linear_all_reduce_fields, "Options of tg_linear_all_reduce.");

static const tg_field parallel_linear_fields[] = {
    TG_FIELD(tg_parallel_linear_opts, no_bias, BOOL, "The layer has no bias."),
    TG_FIELD(tg_parallel_linear_opts, std, DOUBLE, "Standard deviation of the weight that the layer draws, 0 or more."),
    TG_FIELD(tg_parallel_linear_opts, strides, INT, "Number of blocks along the sharded dim, 1 or more."),
    TG_FIELD(tg_parallel_linear_opts, gather_output, BOOL, "Column layer: the output is whole."),
    TG_FIELD(tg_parallel_linear_opts, input_is_whole, BOOL, "Row layer: x is whole."),
    TG_FIELD(tg_parallel_linear_opts, skip_bias_add, BOOL, "The caller adds the bias."),
    TG_FIELD_OF(tg_parallel_linear_opts, axis, ENUM, "tg_axis", "The axis whose ranks divide the layer."),
    TG_FIELD(tg_parallel_linear_opts, sequence_parallel, INT,
             "Sequence parallelism: 1 on, 0 off; TG_AUTO: the setting of the tg_parallel."),
    TG_FIELD(tg_parallel_linear_opts, weight, TENSOR, "A tied weight; NULL: the layer makes its own."),
    TG_FIELD(tg_parallel_linear_opts, no_weight, BOOL, "Each call passes a weight."),
    TG_FIELD(tg_parallel_linear_opts, no_init, BOOL, "The weight stays 0."),
    TG_FIELD(tg_parallel_linear_opts, no_dgrad_reduce, BOOL, "Column layer: the caller reduces the gradient of x."),
    TG_FIELD(tg_parallel_linear_opts, expert, BOOL, "A layer of an expert, on the expert grid."),
    TG_FIELD(tg_parallel_linear_opts, fused_wgrad, BOOL, "Refuses a weight that needs a gradient and is not a leaf."),
    TG_FIELD(tg_parallel_linear_opts, deferred_wgrads, INT,
             "Number of weight gradients that may be deferred; TG_NONE: no limit."),
    TG_FIELD_OF(tg_parallel_linear_opts, init, POINTER, "tg_init",
                "Initial values of the weight; NULL: normal with std."),
    TG_FIELD_OF(tg_parallel_linear_opts, bias_init, POINTER, "tg_init", "Initial values of the bias; NULL: 0."),
    TG_FIELD(tg_parallel_linear_opts, dtype, DTYPE, "Dtype of the parameters; TG_DTYPE_DEFAULT: the context's."),
    TG_FIELD(tg_parallel_linear_opts, rms_norm, BOOL, "Layer with a norm: it is an RMS norm."),
    TG_FIELD(tg_parallel_linear_opts, zero_centered, BOOL, "Layer with a norm: it multiplies by 1 + its weight."),
    TG_FIELD(tg_parallel_linear_opts, norm_eps, DOUBLE, "Layer with a norm: its eps, finite, and 0 or more."),
    TG_FIELD(tg_parallel_linear_opts, chunks, INT,
             "Column and row layer: number of messages that carry a rank's rows, 1 to 16."),
};
const tg_struct tg_parallel_linear_opts_struct = TG_STRUCT(
    tg_parallel_linear_opts, PARALLEL_LINEAR, parallel_linear_fields, "Options of linear layers over shards.");

static const tg_enum_value mlp_activation_values[] = {TG_ENUM_VALUE(TG_MLP_GELU), TG_ENUM_VALUE(TG_MLP_GELU_TANH),
                                                      TG_ENUM_VALUE(TG_MLP_RELU), TG_ENUM_VALUE(TG_MLP_SILU),
                                                      TG_ENUM_VALUE(TG_MLP_SWIGLU)};
const tg_enum tg_mlp_activation_enum = TG_ENUM(tg_mlp_activation, "TG_MLP_", mlp_activation_values);

static const tg_field norm_mlp_fields[] = {
    TG_FIELD_OF(tg_norm_mlp_opts, activation, ENUM, "tg_mlp_activation", "The activation between the two layers."),
    TG_FIELD(tg_norm_mlp_opts, no_bias, BOOL, "The linear layers have no bias."),
    TG_FIELD(tg_norm_mlp_opts, rms_norm, BOOL, "The norm is an RMS norm."),
    TG_FIELD(tg_norm_mlp_opts, zero_centered, BOOL, "The norm multiplies by 1 + its weight."),
    TG_FIELD(tg_norm_mlp_opts, norm_eps, DOUBLE, "Eps of the norm, finite, and 0 or more."),
    TG_FIELD(tg_norm_mlp_opts, std, DOUBLE, "Standard deviation of the first weight, 0 or more."),
    TG_FIELD(tg_norm_mlp_opts, out_std, DOUBLE, "Standard deviation of the second weight, 0 or more."),
    TG_FIELD(tg_norm_mlp_opts, sequence_parallel, INT,
             "Sequence parallelism: 1 on, 0 off; TG_AUTO: the setting of the tg_parallel."),
    TG_FIELD(tg_norm_mlp_opts, fused_wgrad, BOOL, "Refuses a weight that needs a gradient and is not a leaf."),
    TG_FIELD(tg_norm_mlp_opts, deferred_wgrads, INT,
             "Number of weight gradients that each layer may defer; TG_NONE: no limit."),
    TG_FIELD(tg_norm_mlp_opts, dtype, DTYPE, "Dtype of the parameters; TG_DTYPE_DEFAULT: the context's."),
    TG_FIELD(tg_norm_mlp_opts, chunks, INT, "Number of messages that carry a rank's rows, 1 to 16."),
};
const tg_struct tg_norm_mlp_opts_struct =
    TG_STRUCT(tg_norm_mlp_opts, NORM_MLP, norm_mlp_fields, "Options of tg_nn_norm_mlp.");

static const tg_field vocab_embedding_fields[] = {
    TG_FIELD(tg_vocab_embedding_opts, reduce_scatter, INT,
             "1: the result is a shard, 0: it is whole; TG_AUTO: a shard under sequence parallelism."),
    TG_FIELD_OF(tg_vocab_embedding_opts, axis, ENUM, "tg_axis", "The axis whose ranks divide the vocabulary."),
    TG_FIELD(tg_vocab_embedding_opts, batch_first, BOOL, "ids [b, s] give [b, s, hidden]."),
    TG_FIELD_OF(tg_vocab_embedding_opts, init, POINTER, "tg_init",
                "Initial values of the weight; NULL: normal with std."),
    TG_FIELD(tg_vocab_embedding_opts, dtype, DTYPE, "Dtype of the weight; TG_DTYPE_DEFAULT: the context's."),
};
const tg_struct tg_vocab_embedding_opts_struct =
    TG_STRUCT(tg_vocab_embedding_opts, VOCAB_EMBEDDING, vocab_embedding_fields, "Options of tg_nn_vocab_embedding.");

static const tg_field inference_fields[] = {
    TG_FIELD(tg_inference_opts, std, DOUBLE, "Standard deviation of the weight that the layer draws, 0 or more."),
    TG_FIELD(tg_inference_opts, norm_eps, DOUBLE, "Eps of the norm, above 0."),
    TG_FIELD(tg_inference_opts, weight, TENSOR, "A tied weight; NULL: the layer makes its own."),
    TG_FIELD(tg_inference_opts, norm, TENSOR, "A tied weight of the norm; NULL: the layer makes its own."),
};
const tg_struct tg_inference_opts_struct =
    TG_STRUCT(tg_inference_opts, INFERENCE, inference_fields, "Options of linear layers for inference.");
