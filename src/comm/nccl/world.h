/* The part of the NCCL transport that needs no headers of CUDA. */
#ifndef TG_NCCL_WORLD_H
#define TG_NCCL_WORLD_H

#include <tapegrad/nccl.h>

#include "base/plugin.h"
#include "comm/comm.h"

extern const tg_comm_ops tg_nccl_transport;

/* Makes the communicator of all ranks. They share NCCL's id over host or, if host is NULL, by calling broadcast(user,
 * ..). Returns NULL after recording an error. */
typedef tg_comm *tg_nccl_world_fn(tg_ctx *ctx, tg_comm *host, int rank, int size, tg_nccl_broadcast_fn broadcast,
                                  void *user);
tg_nccl_world_fn tg_nccl_world;

/* What plugin "nccl" offers (base/plugin.h). */
typedef struct tg_nccl_plugin_table {
    tg_nccl_world_fn *world;
} tg_nccl_plugin_table;
extern TG_PRIVATE_API const tg_plugin tg_nccl_plugin;

#endif
