/* The struct of options of tg_ranks_run. */
#include <tapegrad/ranks.h>

#include "base/options.h"

static const tg_field ranks_fields[] = {
    TG_FIELD_OF(tg_ranks_opts, config, POINTER, "tg_config",
                "Configuration of every rank's context; NULL: all defaults."),
    TG_FIELD_OF(tg_ranks_opts, message, POINTER, "char",
                "Buffer for the error of the rank that failed first; NULL: none."),
    TG_FIELD(tg_ranks_opts, message_size, SIZE, "Bytes of message."),
};
const tg_struct tg_ranks_opts_struct = TG_STRUCT(tg_ranks_opts, RANKS, ranks_fields, "Options of tg_ranks_run.");
