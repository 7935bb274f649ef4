/* What plugin "mpi" exports: libtapegrad-mpi is loaded by tg_comm_world_new, unless the program is linked with it. */
#include "comm/world/world.h"

tg_comm *tg_mpi_world(tg_ctx *ctx, int rank, int ranks);

static const tg_mpi_plugin_table table = {.world = tg_mpi_world};

const tg_plugin tg_mpi_plugin = TG_PLUGIN(&table);
