/* What plugin "tcp" exports. */
#include "comm/tcp/world.h"

static const tg_tcp_plugin_table table = {.world = tg_tcp_world};

const tg_plugin tg_tcp_plugin = TG_PLUGIN(&table);
