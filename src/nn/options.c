/* The structs of options of modules. */
#include <tapegrad/nn.h>

#include "base/options.h"

static const tg_enum_value init_kind_values[] = {TG_ENUM_VALUE(TG_INIT_NORMAL),    TG_ENUM_VALUE(TG_INIT_UNIFORM),
                                                 TG_ENUM_VALUE(TG_INIT_TRUNCATED), TG_ENUM_VALUE(TG_INIT_CONSTANT),
                                                 TG_ENUM_VALUE(TG_INIT_CALL),      TG_ENUM_VALUE(TG_INIT_ORTHOGONAL),
                                                 TG_ENUM_VALUE(TG_INIT_EYE)};
const tg_enum tg_init_kind_enum = TG_ENUM(tg_init_kind, "TG_INIT_", init_kind_values);

static const tg_enum_value init_fan_values[] = {TG_ENUM_VALUE(TG_FAN_NONE), TG_ENUM_VALUE(TG_FAN_IN),
                                                TG_ENUM_VALUE(TG_FAN_OUT), TG_ENUM_VALUE(TG_FAN_MEAN)};
const tg_enum tg_init_fan_enum = TG_ENUM(tg_init_fan, "TG_FAN_", init_fan_values);

static const tg_field buffer_fields[] = {
    TG_FIELD(tg_buffer_opts, transient, BOOL, "The buffer is in no checkpoint."),
    TG_FIELD(tg_buffer_opts, keep_f32, BOOL, "tg_module_cast leaves the buffer as it is."),
};
const tg_struct tg_buffer_opts_struct =
    TG_STRUCT(tg_buffer_opts, BUFFER, buffer_fields, "Options of tg_module_add_buffer.");

static const tg_field init_fields[] = {
    TG_FIELD_OF(tg_init, kind, ENUM, "tg_init_kind", "The distribution."),
    TG_FIELD(tg_init, a, DOUBLE, "Mean, lower bound, constant, or the diagonal."),
    TG_FIELD(tg_init, b, DOUBLE, "Standard deviation or gain, 0 or more, or upper bound."),
    TG_FIELD(tg_init, fill, FUNCTION, "TG_INIT_CALL: writes the values."),
    TG_FIELD_OF(tg_init, user, POINTER, "void", "First argument of fill."),
    TG_FIELD_OF(tg_init, fan, ENUM, "tg_init_fan", "With a fan, b is a gain, divided by the root of the fan."),
};
const tg_struct tg_init_struct = TG_STRUCT(tg_init, INIT, init_fields, "The initial values of a parameter.");

static const tg_field rnn_fields[] = {
    TG_FIELD(tg_rnn_opts, bidirectional, BOOL, "A second set of parameters reads the sequence from its end."),
    TG_FIELD(tg_rnn_opts, no_bias, BOOL, "The products have no biases."),
    TG_FIELD(tg_rnn_opts, dropout, DOUBLE, "Probability of dropout between layers, in [0, 1)."),
};
const tg_struct tg_rnn_opts_struct = TG_STRUCT(tg_rnn_opts, RNN, rnn_fields, "Options of tg_nn_gru and tg_nn_lstm.");
