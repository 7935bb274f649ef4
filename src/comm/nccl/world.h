/* The part of the NCCL transport that needs no headers of CUDA. */
#ifndef TG_NCCL_WORLD_H
#define TG_NCCL_WORLD_H

#include <tapegrad/nccl.h>

#include "comm/comm.h"

extern const tg_comm_ops tg_nccl_transport;

/* Makes the communicator of all ranks. They share NCCL's id over host or, if host is NULL, by calling broadcast(user,
 * ..). Returns NULL after recording an error. */
tg_comm *tg_nccl_world(tg_ctx *ctx, tg_comm *host, int rank, int size, tg_nccl_broadcast_fn broadcast, void *user);

#endif
