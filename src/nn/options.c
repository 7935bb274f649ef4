/* The structs of options of modules. */
#include <tapegrad/nn.h>

#include "base/options.h"

static const tg_enum_value init_kind_values[] = {TG_ENUM_VALUE(TG_INIT_NORMAL), TG_ENUM_VALUE(TG_INIT_UNIFORM),
                                                 TG_ENUM_VALUE(TG_INIT_TRUNCATED), TG_ENUM_VALUE(TG_INIT_CONSTANT),
                                                 TG_ENUM_VALUE(TG_INIT_CALL)};
const tg_enum tg_init_kind_enum = TG_ENUM(tg_init_kind, "TG_INIT_", init_kind_values);

static const tg_field buffer_fields[] = {
    TG_FIELD(tg_buffer_opts, transient, BOOL, "The buffer is in no checkpoint."),
    TG_FIELD(tg_buffer_opts, keep_f32, BOOL, "tg_module_cast leaves the buffer as it is."),
};
const tg_struct tg_buffer_opts_struct =
    TG_STRUCT(tg_buffer_opts, BUFFER, buffer_fields, "Options of tg_module_add_buffer.");

static const tg_field init_fields[] = {
    TG_FIELD_OF(tg_init, kind, ENUM, "tg_init_kind", "The distribution."),
    TG_FIELD(tg_init, a, DOUBLE, "Mean, lower bound or constant."),
    TG_FIELD(tg_init, b, DOUBLE, "Standard deviation, 0 or more, or upper bound."),
    TG_FIELD(tg_init, fill, FUNCTION, "TG_INIT_CALL: writes the values."),
    TG_FIELD_OF(tg_init, user, POINTER, "void", "First argument of fill."),
};
const tg_struct tg_init_struct = TG_STRUCT(tg_init, INIT, init_fields, "The initial values of a parameter.");
