/* The structs of options of ops. */
#include <tapegrad/ops.h>

#include "base/options.h"

static const tg_enum_value loss_reduction_values[] = {TG_ENUM_VALUE(TG_LOSS_MEAN), TG_ENUM_VALUE(TG_LOSS_SUM),
                                                      TG_ENUM_VALUE(TG_LOSS_NONE), TG_ENUM_VALUE(TG_LOSS_BATCH_MEAN)};
const tg_enum tg_loss_reduction_enum = TG_ENUM(tg_loss_reduction, "TG_LOSS_", loss_reduction_values);

static const tg_enum_value smoothing_values[] = {TG_ENUM_VALUE(TG_SMOOTHING_TORCH),
                                                 TG_ENUM_VALUE(TG_SMOOTHING_MEGATRON),
                                                 TG_ENUM_VALUE(TG_SMOOTHING_MEGATRON_PARTITION)};
const tg_enum tg_smoothing_enum = TG_ENUM(tg_smoothing, "TG_SMOOTHING_", smoothing_values);

static const tg_field solve_fields[] = {
    TG_FIELD(tg_solve_opts, upper, BOOL, "Reads the upper triangle of a instead of the lower one."),
    TG_FIELD(tg_solve_opts, transpose, BOOL, "Solves a^T @ x = b."),
    TG_FIELD(tg_solve_opts, unit, BOOL, "Takes every element on the diagonal of a as 1."),
};
const tg_struct tg_solve_opts_struct = TG_STRUCT(tg_solve_opts, SOLVE, solve_fields, "Options of tg_triangular_solve.");

static const tg_field attention_fields[] = {
    TG_FIELD(tg_attention_opts, causal, BOOL, "Query i attends only to keys up to its own position."),
    TG_FIELD(tg_attention_opts, scale, DOUBLE, "Factor of the scores, 0 or more; TG_AUTO: 1 / sqrt(dk)."),
    TG_FIELD(tg_attention_opts, dropout, DOUBLE, "Probability of dropout of the attention weights, in [0, 1)."),
    TG_FIELD(tg_attention_opts, softcap, DOUBLE, "Smooth bound of the scores, greater than 0; TG_NONE: none."),
    TG_FIELD(tg_attention_opts, left, INT64,
             "Keys before its own position to which a query attends, 0 or more; TG_NONE: all."),
    TG_FIELD(tg_attention_opts, right, INT64,
             "Keys after its own position to which a query attends, 0 or more; TG_NONE: all."),
    TG_FIELD(tg_attention_opts, mask, TENSOR, "Bool: hides keys where it is false. Float: is added to the scores."),
    TG_FIELD(tg_attention_opts, sink, TENSOR, "One more logit for each head in the denominator of each softmax."),
    TG_FIELD(tg_attention_opts, lengths, TENSOR, "Number of keys of each batch element that are not padding."),
    TG_FIELD(tg_attention_opts, starts_q, TENSOR, "First rows of the sequences that are packed along the queries."),
    TG_FIELD(tg_attention_opts, starts_k, TENSOR, "The same along the keys."),
};
const tg_struct tg_attention_opts_struct =
    TG_STRUCT(tg_attention_opts, ATTENTION, attention_fields, "Options of tg_attention.");

static const tg_enum_value rope_kind_values[] = {TG_ENUM_VALUE(TG_ROPE_PLAIN), TG_ENUM_VALUE(TG_ROPE_LINEAR),
                                                 TG_ENUM_VALUE(TG_ROPE_LLAMA3), TG_ENUM_VALUE(TG_ROPE_YARN)};
const tg_enum tg_rope_kind_enum = TG_ENUM(tg_rope_kind, "TG_ROPE_", rope_kind_values);

static const tg_field rope_fields[] = {
    TG_FIELD(tg_rope_opts, base, DOUBLE, "Base of the angles, greater than 0."),
    TG_FIELD(tg_rope_opts, offset, INT64, "Position of row 0."),
    TG_FIELD(tg_rope_opts, positions, TENSOR, "Position of each row; NULL: they count from offset."),
    TG_FIELD(tg_rope_opts, dims, INT64, "Number of rotated elements of a row, even; TG_AUTO: all."),
    TG_FIELD_OF(tg_rope_opts, kind, ENUM, "tg_rope_kind", "How the frequencies are changed."),
    TG_FIELD(tg_rope_opts, factor, DOUBLE, "Divisor of the changed frequencies, greater than 0."),
    TG_FIELD(tg_rope_opts, low, DOUBLE,
             "Turns over the original positions below which frequencies are divided, greater than 0."),
    TG_FIELD(tg_rope_opts, high, DOUBLE,
             "Turns over the original positions above which frequencies are kept, greater than low."),
    TG_FIELD(tg_rope_opts, original, INT64, "Number of positions with which the model was trained first, 1 or more."),
    TG_FIELD(tg_rope_opts, gain, DOUBLE, "Factor of the rotated elements."),
};
const tg_struct tg_rope_opts_struct = TG_STRUCT(tg_rope_opts, ROPE, rope_fields, "Options of tg_rope_with.");

static const tg_field conv_fields[] = {
    TG_FIELD_ARRAY(tg_conv_opts, stride, INT64, "Distances between the starts of windows, 1 or more."),
    TG_FIELD_ARRAY(tg_conv_opts, padding, INT64,
                   "Numbers of zeros that are added at each end of x, or of elements that a transposed one removes."),
    TG_FIELD_ARRAY(tg_conv_opts, dilation, INT64, "Distances between the elements of a window, 1 or more."),
    TG_FIELD(tg_conv_opts, groups, INT64, "Number of groups of channels that are convolved separately, 1 or more."),
    TG_FIELD_ARRAY(tg_conv_opts, output_padding, INT64,
                   "Transposed convolutions: numbers of added elements at the end, below the stride or the dilation."),
};
const tg_struct tg_conv_opts_struct = TG_STRUCT(tg_conv_opts, CONV, conv_fields, "Options of convolutions.");

static const tg_field pool_fields[] = {
    TG_FIELD_ARRAY(tg_pool_opts, stride, INT64,
                   "Distances between the starts of windows, 1 or more; TG_AUTO: the size of the window."),
    TG_FIELD_ARRAY(tg_pool_opts, padding, INT64, "Numbers of elements that are added at each end."),
    TG_FIELD_ARRAY(tg_pool_opts, dilation, INT64, "Max pools: distances between the elements of a window, 1 or more."),
    TG_FIELD(tg_pool_opts, ceil_mode, BOOL, "Keeps a window that reaches beyond the padding after x."),
    TG_FIELD(tg_pool_opts, exclude_padding, BOOL, "Mean pools: divides by the number of elements of x in the window."),
    TG_FIELD(tg_pool_opts, divisor, INT64, "Mean pools: divides by this number; TG_AUTO: the size of the window."),
};
const tg_struct tg_pool_opts_struct = TG_STRUCT(tg_pool_opts, POOL, pool_fields, "Options of pools.");

static const tg_field upsample_fields[] = {
    TG_FIELD(tg_upsample_opts, scale0, DOUBLE, "Factor from x to the result along dim 2. TG_AUTO: ratio of sizes."),
    TG_FIELD(tg_upsample_opts, scale1, DOUBLE, "Factor from x to the result along dim 3. TG_AUTO: ratio of sizes."),
    TG_FIELD(tg_upsample_opts, scale2, DOUBLE, "Factor from x to the result along dim 4. TG_AUTO: ratio of sizes."),
    TG_FIELD(tg_upsample_opts, align_corners, BOOL,
             "tg_upsample_linear: the first and last elements of the result lie at those of x."),
};
const tg_struct tg_upsample_opts_struct =
    TG_STRUCT(tg_upsample_opts, UPSAMPLE, upsample_fields, "Options of tg_upsample_nearest and tg_upsample_linear.");

static const tg_enum_value grid_mode_values[] = {TG_ENUM_VALUE(TG_GRID_BILINEAR), TG_ENUM_VALUE(TG_GRID_NEAREST),
                                                TG_ENUM_VALUE(TG_GRID_BICUBIC)};
const tg_enum tg_grid_mode_enum = TG_ENUM(tg_grid_mode, "TG_GRID_", grid_mode_values);
static const tg_enum_value grid_padding_values[] = {TG_ENUM_VALUE(TG_GRID_ZEROS), TG_ENUM_VALUE(TG_GRID_BORDER),
                                                    TG_ENUM_VALUE(TG_GRID_REFLECTION)};
const tg_enum tg_grid_padding_enum = TG_ENUM(tg_grid_padding, "TG_GRID_", grid_padding_values);
static const tg_field grid_fields[] = {
    TG_FIELD_OF(tg_grid_opts, mode, ENUM, "tg_grid_mode",
                "Bilinear or bicubic interpolation, or the nearest element."),
    TG_FIELD_OF(tg_grid_opts, padding, ENUM, "tg_grid_padding",
                "Elements outside x: zeros, those at the border, or those of x mirrored."),
    TG_FIELD(tg_grid_opts, align_corners, BOOL, "-1 and 1 are the middles of the first and the last element."),
};
const tg_struct tg_grid_opts_struct = TG_STRUCT(tg_grid_opts, GRID, grid_fields, "Options of tg_grid_sampler_2d.");

static const tg_enum_value bag_mode_values[] = {TG_ENUM_VALUE(TG_BAG_SUM), TG_ENUM_VALUE(TG_BAG_MEAN),
                                                TG_ENUM_VALUE(TG_BAG_MAX)};
const tg_enum tg_bag_mode_enum = TG_ENUM(tg_bag_mode, "TG_BAG_", bag_mode_values);
static const tg_field bag_fields[] = {
    TG_FIELD_OF(tg_bag_opts, mode, ENUM, "tg_bag_mode", "Sum, mean or maximum of the rows of a bag."),
    TG_FIELD(tg_bag_opts, ignore_index, INT64, "Ids with this value do not count; TG_NONE: all count."),
    TG_FIELD(tg_bag_opts, include_last_offset, BOOL, "offsets has one number more, the end of the last bag."),
};
const tg_struct tg_bag_opts_struct = TG_STRUCT(tg_bag_opts, BAG, bag_fields, "Options of tg_embedding_bag.");

static const tg_field cross_entropy_fields[] = {
    TG_FIELD(tg_cross_entropy_opts, ignore_index, INT64, "Rows with this target are ignored."),
    TG_FIELD(tg_cross_entropy_opts, label_smoothing, DOUBLE, "Amount of label smoothing, in [0, 1]."),
    TG_FIELD_OF(tg_cross_entropy_opts, reduction, ENUM, "tg_loss_reduction", "Mean, sum, or one loss for each row."),
    TG_FIELD_OF(tg_cross_entropy_opts, smoothing_kind, ENUM, "tg_smoothing",
                "How label smoothing distributes the target over the classes."),
    TG_FIELD(tg_cross_entropy_opts, weight, TENSOR, "The weight of each class; NULL: 1."),
};
const tg_struct tg_cross_entropy_opts_struct =
    TG_STRUCT(tg_cross_entropy_opts, CROSS_ENTROPY, cross_entropy_fields, "Options of cross-entropies.");

static const tg_field loss_fields[] = {
    TG_FIELD_OF(tg_loss_opts, reduction, ENUM, "tg_loss_reduction",
                "Mean, sum, one loss for each element, or, for tg_kl_div, the sum divided by the size of dim 0."),
    TG_FIELD(tg_loss_opts, ignore_index, INT64, "tg_nll: rows with this target are ignored."),
    TG_FIELD(tg_loss_opts, log_target, BOOL, "tg_kl_div: y contains logarithms."),
};
const tg_struct tg_loss_opts_struct = TG_STRUCT(tg_loss_opts, LOSS, loss_fields, "Options of the other losses.");
