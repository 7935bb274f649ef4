/* Communicators over NCCL (2.28 or later), for ranks that have one NVIDIA GPU each. Include it in programs that
 * train on several GPUs. */
#ifndef TAPEGRAD_NCCL_H
#define TAPEGRAD_NCCL_H

#include <tapegrad/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Creates a communicator of host's ranks over NCCL. It is collective over these ranks, and so is tg_comm_free. Every
 * rank's context is on device "cuda", each on a GPU of its own. The caller keeps `host`, a communicator of
 * threads, processes or MPI, which must outlive the result. It carries NCCL's id. Before data moves, the ranks compare
 * every call over it, so errors are those of comm.h.
 *
 * A call is queued after the work already given to the rank's GPU, and returns at once. A kernel that reads a result
 * waits on the GPU, not the host. A rank that never makes the call is therefore reported when a host waits: when a
 * value is read, or two resets of a tape later. NCCL computes the sums. Two runs of one configuration give the same
 * bits. 16-bit sums are rounded at each rank, and MAX and MIN ignore NaN. Sends and receives outside a batch wait for
 * each other in the order of the rank's calls, so a ring of sends needs a batch. Each communicator has its own stream.
 * Groups that all ranks split off at once share the resources (channels, buffers, proxy) of their parent: a rank's
 * kernels on these groups run one after another, in the order of its calls, which must be the same on all ranks.
 *
 * Fails with TG_ERR_DEVICE on another device, with TG_ERR_UNSUPPORTED if the library was built without CUDA or NCCL,
 * and with TG_ERR_STATE if the environment sets NCCL_COMM_ID, because only this call may create ids. Returns an
 * inert communicator on error.
 */
TG_API tg_comm *tg_comm_nccl_new(tg_comm *host);

/* Copies rank 0's bytes into `data` on every rank. Collective. Returns 0 on success and any other value on failure. */
typedef int (*tg_nccl_broadcast_fn)(void *user, void *data, size_t bytes);

/* Creates an NCCL communicator without a host communicator; `broadcast` shares NCCL's id. Calls are not compared:
 * ranks that disagree or never call are found only through NCCL's own errors and at the deadline. All ranks must
 * make a group at once (tg_comm_split without negative colors). tg_comm_recover is not available. */
TG_API tg_comm *tg_comm_nccl_new_by(tg_ctx *ctx, int rank, int size, tg_nccl_broadcast_fn broadcast, void *user);

#ifdef __cplusplus
}
#endif

#endif
