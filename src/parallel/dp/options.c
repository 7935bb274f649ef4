/* The structs of options of data parallelism. */
#include <tapegrad/flat.h>

#include "base/options.h"

static const tg_field finalize_fields[] = {
    TG_FIELD(tg_finalize_opts, tokens, TENSOR,
             "Number of tokens of this rank, whose sum over ranks divides gradients; NULL everywhere: not divided."),
};
const tg_struct tg_finalize_opts_struct =
    TG_STRUCT(tg_finalize_opts, FINALIZE, finalize_fields, "Options of tg_grads_finalize.");

static const tg_field flat_fields[] = {
    TG_FIELD(tg_flat_opts, bucket, INT64,
             "Elements from which on a bucket is full, 1 or more; TG_AUTO: max(40e6, 1e6 n) for n ranks."),
    TG_FIELD(tg_flat_opts, zero, INT,
             "1: each rank has 1/n of the optimizer's state; 2: and of gradients; 3: and of parameters; 0: all of it."),
    TG_FIELD(tg_flat_opts, wire, DTYPE, "The dtype in which gradients travel, TG_BF16; 0: that of the gradients."),
};
const tg_struct tg_flat_opts_struct = TG_STRUCT(tg_flat_opts, FLAT, flat_fields, "Options of tg_flat_new.");
