/* Ranks with an NVIDIA GPU each, which meet through NCCL (2.28 or later). */
#ifndef TAPEGRAD_NCCL_H
#define TAPEGRAD_NCCL_H

#include <tapegrad/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The communicator of host's ranks over NCCL; collective over them, as is tg_comm_free. Their contexts are on device
 * "cuda", each on a GPU of its own. host (threads', processes' or MPI's) stays the caller's, and must outlive it:
 * NCCL's id goes through it, and every call is compared there before it moves anything, so that errors are those of
 * comm.h.
 *
 * A call is queued behind what its rank's GPU has to do and returns; who reads its result makes the GPU wait, not the
 * host. Where ranks never come is therefore told by the wait of a host, at an explicit read or two resets of a tape
 * later. Sums are NCCL's: two runs of one configuration have the same bits; 16-bit sums are rounded at each rank, and
 * MAX and MIN pass over NaN. Sends and receives outside of a batch wait for each other in the order in which a rank has
 * called them: rings need a batch. Each communicator has a stream of its own. Groups that all ranks split off at once
 * share the resources of the communicator that they come from (channels, buffers, the proxy): a rank's kernels of these
 * run one after the other, in the order in which it has called them, which must be that of the other ranks.
 *
 * TG_ERR_DEVICE on other devices, TG_ERR_UNSUPPORTED in a library built without CUDA or NCCL, TG_ERR_STATE where the
 * environment sets NCCL_COMM_ID (ids come from here alone). Inert on error. */
TG_API tg_comm *tg_comm_nccl_new(tg_comm *host);

/* Gives every rank the bytes of rank 0, in their place; collective. Not 0: it failed. */
typedef int (*tg_nccl_broadcast_fn)(void *user, void *data, size_t bytes);

/* The same without a host communicator, by the caller's own means to share NCCL's id. Calls are not compared: ranks
 * that disagree or do not come are known by NCCL's own errors and at the deadline; groups need all ranks at once
 * (tg_comm_split without negative colors); there is no tg_comm_recover. */
TG_API tg_comm *tg_comm_nccl_new_by(tg_ctx *ctx, int rank, int size, tg_nccl_broadcast_fn broadcast, void *user);

#ifdef __cplusplus
}
#endif

#endif
