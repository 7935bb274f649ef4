/* The struct of options of tg_recompute. */
#include <tapegrad/recompute.h>

#include "base/options.h"

static const tg_field recompute_fields[] = {
    TG_FIELD(tg_recompute_opts, name, TEXT, "Name in error messages."),
    TG_FIELD(tg_recompute_opts, keep_rng, BOOL,
             "The second run continues the random streams instead of restoring them."),
    TG_FIELD(tg_recompute_opts, destroy, FUNCTION,
             "Frees the state with the node, or on error; NULL: the caller frees it."),
    TG_FIELD_OF(tg_recompute_opts, distribute, POINTER, "tg_comm",
                "Each rank of it keeps a part of in[0]; NULL: in[0] is kept whole."),
};
const tg_struct tg_recompute_opts_struct =
    TG_STRUCT(tg_recompute_opts, RECOMPUTE, recompute_fields, "Options of tg_recompute.");
