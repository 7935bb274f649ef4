/* What plugin "nccl" exports. */
#include "comm/nccl/world.h"

static const tg_nccl_plugin_table table = {.world = tg_nccl_world};

const tg_plugin tg_nccl_plugin = TG_PLUGIN(&table);
