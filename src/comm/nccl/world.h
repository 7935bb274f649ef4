/* What the library sees of NCCL as a transport: without the headers of CUDA. */
#ifndef TG_NCCL_WORLD_H
#define TG_NCCL_WORLD_H

#include <tapegrad/nccl.h>

#include "comm/comm.h"

extern const tg_comm_ops tg_nccl_transport;

/* The world of a rank; control or broadcast, the other is NULL. NULL after recording the error. */
tg_comm *tg_nccl_world(tg_ctx *ctx, tg_comm *control, int rank, int size, tg_nccl_broadcast_fn broadcast, void *user);

#endif
