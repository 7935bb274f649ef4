/* The struct of options of tg_grads_finalize. */
#include <tapegrad/data_parallel.h>

#include "base/options.h"

static const tg_field finalize_fields[] = {
    TG_FIELD(tg_finalize_opts, tokens, TENSOR,
             "Number of tokens of this rank, by whose sum gradients are divided; NULL: they are not divided."),
};
const tg_struct tg_finalize_opts_struct =
    TG_STRUCT(tg_finalize_opts, FINALIZE, finalize_fields, "Options of tg_grads_finalize.");
