/* Named values (tg_value), and how they become members of the params of an op. */
#ifndef TG_VALUES_H
#define TG_VALUES_H

#include <tapegrad/op_call.h>

#include "core/context.h"

/* Returns the enum with this name that an argument of an op has; NULL if there is none. */
const tg_enum *tg_argument_enum(const char *name);
/* Stores v in the member of `params` that f describes. If v is not a value that f takes, records an error that begins
 * with the name of the op. */
tg_status tg_value_store(tg_ctx *ctx, const tg_op *op, const tg_field *f, const tg_value *v, void *params);
/* Records that argument `name` does not take v. The text `expected` says what it takes. */
tg_status tg_value_refuse(tg_ctx *ctx, const tg_op *op, const char *name, const tg_value *v, const char *expected);

#endif
