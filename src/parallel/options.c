/* The struct of options of tg_parallel_new. */
#include <tapegrad/parallel.h>

#include "base/options.h"

static const tg_enum_value rng_mode_values[] = {TG_ENUM_VALUE(TG_RNG_GLOBAL), TG_ENUM_VALUE(TG_RNG_MEGATRON)};
const tg_enum tg_rng_mode_enum = TG_ENUM(tg_rng_mode, "TG_RNG_", rng_mode_values);

static const tg_field parallel_fields[] = {
    TG_FIELD(tg_parallel_opts, tp, INT, "Ranks of tensor parallelism, 1 or more."),
    TG_FIELD(tg_parallel_opts, cp, INT, "Ranks of context parallelism, 1 or more."),
    TG_FIELD(tg_parallel_opts, pp, INT, "Ranks of pipeline parallelism, 1 or more."),
    TG_FIELD(tg_parallel_opts, etp, INT, "Ranks of tensor parallelism of experts; TG_AUTO: tp."),
    TG_FIELD(tg_parallel_opts, ep, INT, "Ranks of expert parallelism, 1 or more."),
    TG_FIELD(tg_parallel_opts, order, TEXT, "The names of the axes, joined by \"-\"; NULL: \"tp-cp-ep-dp-pp\"."),
    TG_FIELD(tg_parallel_opts, sequence_parallel, BOOL, "Shards activations between tensor-parallel regions."),
    TG_FIELD_OF(tg_parallel_opts, rng, ENUM, "tg_rng_mode", "Which numbers the ranks draw."),
    TG_FIELD(tg_parallel_opts, vp, INT, "Chunks of layers on each rank of a pipeline, 1 or more."),
};
const tg_struct tg_parallel_opts_struct = TG_STRUCT(tg_parallel_opts, PARALLEL, parallel_fields, "The grid of ranks.");
