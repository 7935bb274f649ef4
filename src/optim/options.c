/* The structs of options of optimizers. */
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
