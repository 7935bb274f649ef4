/* The struct of options of mappings. */
#include <tapegrad/megatron.h>

#include "base/options.h"

static const tg_field sp_fields[] = {
    TG_FIELD(tg_sp_opts, invariant, BOOL, "tg_gather_from_sp: the result is I instead of R."),
    TG_FIELD_OF(tg_sp_opts, splits, POINTER, "int64_t", "Number of rows of each rank; NULL: equal parts."),
    TG_FIELD(tg_sp_opts, buffer, TEXT, "Name of the scratch buffer for the result; NULL: newly allocated memory."),
};
const tg_struct tg_sp_opts_struct =
    TG_STRUCT(tg_sp_opts, SP, sp_fields, "Options of mappings of sequence parallelism.");
