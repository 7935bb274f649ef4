/* The structs of options of optimizers. */
#include <tapegrad/lbfgs.h>
#include <tapegrad/optim.h>

#include "base/options.h"

static const tg_enum_value decay_values[] = {TG_ENUM_VALUE(TG_DECAY_CONSTANT), TG_ENUM_VALUE(TG_DECAY_LINEAR),
                                             TG_ENUM_VALUE(TG_DECAY_COSINE), TG_ENUM_VALUE(TG_DECAY_INVERSE_SQRT),
                                             TG_ENUM_VALUE(TG_DECAY_WSD)};
const tg_enum tg_decay_enum = TG_ENUM(tg_decay, "TG_DECAY_", decay_values);

static const tg_enum_value wsd_values[] = {TG_ENUM_VALUE(TG_WSD_LINEAR), TG_ENUM_VALUE(TG_WSD_COSINE),
                                           TG_ENUM_VALUE(TG_WSD_EXPONENTIAL), TG_ENUM_VALUE(TG_WSD_MINUS_SQRT)};
const tg_enum tg_wsd_enum = TG_ENUM(tg_wsd, "TG_WSD_", wsd_values);

static const tg_field sgd_fields[] = {
    TG_FIELD(tg_sgd_opts, lr, DOUBLE, "Learning rate, 0 or more."),
    TG_FIELD(tg_sgd_opts, momentum, DOUBLE, "In [0, 1)."),
    TG_FIELD(tg_sgd_opts, dampening, DOUBLE, "In [0, 1]; 0 without momentum."),
    TG_FIELD(tg_sgd_opts, weight_decay, DOUBLE, "0 or more."),
    TG_FIELD(tg_sgd_opts, nesterov, BOOL, "Nesterov momentum."),
};
const tg_struct tg_sgd_opts_struct = TG_STRUCT(tg_sgd_opts, SGD, sgd_fields, "Options of SGD.");

static const tg_field adamw_fields[] = {
    TG_FIELD(tg_adamw_opts, lr, DOUBLE, "Learning rate, 0 or more."),
    TG_FIELD(tg_adamw_opts, beta1, DOUBLE, "In [0, 1)."),
    TG_FIELD(tg_adamw_opts, beta2, DOUBLE, "In [0, 1)."),
    TG_FIELD(tg_adamw_opts, eps, DOUBLE, "0 or more."),
    TG_FIELD(tg_adamw_opts, weight_decay, DOUBLE, "0 or more; TG_AUTO: 0.01 for AdamW, 0 for Adam."),
};
const tg_struct tg_adamw_opts_struct = TG_STRUCT(tg_adamw_opts, ADAMW, adamw_fields, "Options of Adam and AdamW.");

static const tg_field rmsprop_fields[] = {
    TG_FIELD(tg_rmsprop_opts, lr, DOUBLE, "Learning rate, 0 or more."),
    TG_FIELD(tg_rmsprop_opts, alpha, DOUBLE, "In [0, 1): how much of the mean square each step keeps."),
    TG_FIELD(tg_rmsprop_opts, eps, DOUBLE, "0 or more: added to the root of the mean square."),
    TG_FIELD(tg_rmsprop_opts, momentum, DOUBLE, "In [0, 1)."),
    TG_FIELD(tg_rmsprop_opts, weight_decay, DOUBLE, "0 or more."),
    TG_FIELD(tg_rmsprop_opts, centered, BOOL, "Divides by the deviation of the gradients."),
};
const tg_struct tg_rmsprop_opts_struct =
    TG_STRUCT(tg_rmsprop_opts, RMSPROP, rmsprop_fields, "Options of RMSprop.");

static const tg_field adagrad_fields[] = {
    TG_FIELD(tg_adagrad_opts, lr, DOUBLE, "Learning rate, 0 or more."),
    TG_FIELD(tg_adagrad_opts, initial, DOUBLE, "Initial value of the sums of squares, 0 or more."),
    TG_FIELD(tg_adagrad_opts, eps, DOUBLE, "0 or more: added to the root of the sums."),
    TG_FIELD(tg_adagrad_opts, weight_decay, DOUBLE, "0 or more."),
};
const tg_struct tg_adagrad_opts_struct =
    TG_STRUCT(tg_adagrad_opts, ADAGRAD, adagrad_fields, "Options of Adagrad.");

static const tg_field lion_fields[] = {
    TG_FIELD(tg_lion_opts, lr, DOUBLE, "Learning rate, 0 or more."),
    TG_FIELD(tg_lion_opts, beta1, DOUBLE, "In [0, 1)."),
    TG_FIELD(tg_lion_opts, beta2, DOUBLE, "In [0, 1)."),
    TG_FIELD(tg_lion_opts, weight_decay, DOUBLE, "0 or more."),
};
const tg_struct tg_lion_opts_struct = TG_STRUCT(tg_lion_opts, LION, lion_fields, "Options of Lion.");

static const tg_enum_value muon_scale_values[] = {TG_ENUM_VALUE(TG_MUON_ROWS), TG_ENUM_VALUE(TG_MUON_RMS)};
const tg_enum tg_muon_scale_enum = TG_ENUM(tg_muon_scale, "TG_MUON_", muon_scale_values);

static const tg_field muon_fields[] = {
    TG_FIELD(tg_muon_opts, lr, DOUBLE, "Learning rate of matrices, above 0."),
    TG_FIELD(tg_muon_opts, momentum, DOUBLE, "In [0, 1)."),
    TG_FIELD(tg_muon_opts, nesterov, BOOL, "Nesterov momentum."),
    TG_FIELD(tg_muon_opts, weight_decay, DOUBLE, "Of matrices, 0 or more."),
    TG_FIELD(tg_muon_opts, iterations, INT, "Newton-Schulz iterations, 1 or more."),
    TG_FIELD(tg_muon_opts, eps, DOUBLE, "The least norm by which a matrix is divided, above 0."),
    TG_FIELD_OF(tg_muon_opts, scale, ENUM, "tg_muon_scale", "The factor of the step of a matrix."),
    TG_FIELD_OF(tg_muon_opts, others, POINTER, "tg_tensor*", "Matrices that AdamW steps."),
    TG_FIELD(tg_muon_opts, n_others, INT, "Number of these matrices."),
    TG_FIELD_OF(tg_muon_opts, adamw, POINTER, "tg_adamw_opts", "Options of AdamW for all other parameters."),
};
const tg_struct tg_muon_opts_struct = TG_STRUCT(tg_muon_opts, MUON, muon_fields, "Options of Muon.");

static const tg_field lbfgs_fields[] = {
    TG_FIELD(tg_lbfgs_opts, lr, DOUBLE, "Length of step that each line search tries first, above 0."),
    TG_FIELD(tg_lbfgs_opts, iterations, INT, "Iterations of one step, 1 or more."),
    TG_FIELD(tg_lbfgs_opts, evaluations, INT, "Evaluations after which a step ends, 1 or more."),
    TG_FIELD(tg_lbfgs_opts, history, INT, "Pairs of vectors that are kept, 1 or more."),
    TG_FIELD(tg_lbfgs_opts, gradient_tolerance, DOUBLE, "A step ends if no element of the gradient is greater."),
    TG_FIELD(tg_lbfgs_opts, change_tolerance, DOUBLE, "A step ends if the loss or the parameters change by less."),
};
const tg_struct tg_lbfgs_opts_struct = TG_STRUCT(tg_lbfgs_opts, LBFGS, lbfgs_fields, "Options of L-BFGS.");

static const tg_field group_fields[] = {
    TG_FIELD(tg_group_opts, lr_scale, DOUBLE, "Factor of the learning rate, 0 or more."),
    TG_FIELD(tg_group_opts, weight_decay, DOUBLE, "0 or more; TG_AUTO: that of group 0."),
    TG_FIELD(tg_group_opts, beta1, DOUBLE, "In [0, 1); TG_AUTO: that of group 0."),
    TG_FIELD(tg_group_opts, beta2, DOUBLE, "In [0, 1); TG_AUTO: that of group 0."),
    TG_FIELD(tg_group_opts, eps, DOUBLE, "0 or more; TG_AUTO: that of group 0."),
    TG_FIELD_OF(tg_group_opts, schedule, POINTER, "tg_schedule",
                "Gives the learning rate of each step; NULL: the rate that was set."),
};
const tg_struct tg_group_opts_struct =
    TG_STRUCT(tg_group_opts, GROUP, group_fields, "Options of a group of parameters.");

static const tg_field loss_scale_fields[] = {
    TG_FIELD(tg_loss_scale, initial, DOUBLE, "First scale, above 0."),
    TG_FIELD(tg_loss_scale, fixed, BOOL, "The scale never changes."),
    TG_FIELD(tg_loss_scale, growth, DOUBLE, "Factor after `interval` steps without an overflow, above 1."),
    TG_FIELD(tg_loss_scale, backoff, DOUBLE, "Factor after overflows, in (0, 1)."),
    TG_FIELD(tg_loss_scale, min, DOUBLE, "The least scale, above 0 and at most initial."),
    TG_FIELD(tg_loss_scale, interval, INT64, "Number of steps, 1 or more."),
    TG_FIELD(tg_loss_scale, hysteresis, INT64, "Number of overflows, 1 or more."),
};
const tg_struct tg_loss_scale_struct =
    TG_STRUCT(tg_loss_scale, LOSS_SCALE, loss_scale_fields, "Options of loss scaling.");

static const tg_field schedule_fields[] = {
    TG_FIELD(tg_schedule, lr, DOUBLE, "Rate after the warm-up."),
    TG_FIELD(tg_schedule, min_lr, DOUBLE, "Rate after the decay, at most lr."),
    TG_FIELD(tg_schedule, start_lr, DOUBLE, "Rate at step 0."),
    TG_FIELD(tg_schedule, warmup, INT64, "Steps of the warm-up."),
    TG_FIELD(tg_schedule, steps, INT64, "The step at which the decay ends."),
    TG_FIELD_OF(tg_schedule, decay, ENUM, "tg_decay", "How the rate falls."),
    TG_FIELD_OF(tg_schedule, wsd, ENUM, "tg_wsd", "TG_DECAY_WSD: how the rate falls at the end."),
    TG_FIELD(tg_schedule, wsd_steps, INT64, "TG_DECAY_WSD: steps of the final decay."),
};
const tg_struct tg_schedule_struct =
    TG_STRUCT(tg_schedule, SCHEDULE, schedule_fields, "A schedule of the learning rate.");
