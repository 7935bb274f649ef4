/* Communicators over NCCL (2.28 or later), for ranks that have one NVIDIA GPU each. Include it in programs that
 * train on several GPUs. */
#ifndef TAPEGRAD_NCCL_H
#define TAPEGRAD_NCCL_H

#include <tapegrad/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Creates a communicator over NCCL of the ranks of host. Every rank of host must make the call, and later call
 * tg_comm_free. The context of each rank must be on device "cuda", and each rank on a GPU of its own.
 *
 * `host` is a communicator over a transport that moves host memory: threads, processes, MPI or TCP. The caller keeps
 * it, and it must outlive the result. The ranks exchange NCCL's id over host. They also compare each call over host, so
 * calls that differ between ranks fail with the errors of comm.h, over MPI or TCP possibly after data has moved.
 * tg_comm_recover of the result also recovers host, so do not call it for host. For a group split from the result it
 * fails with TG_ERR_UNSUPPORTED. If host has one rank, the result is that of tg_comm_self_new, and NCCL is not needed.
 *
 * A call is queued after the work that the rank's GPU already has, and returns at once. A kernel that reads the result
 * waits on the GPU; the rank's CPU thread does not wait, except in tg_comm_barrier. If a rank never makes the call, the
 * other ranks therefore report it only when their CPU threads wait, for example when a value is read, or at the second
 * reset of a tape after the call. If a call fails, the result and all groups that were split from it end on this rank.
 *
 * NCCL computes the sums. Two runs of one configuration give the same bits. Sums of float16 and bfloat16 may be rounded
 * at each rank. TG_REDUCE_MAX and TG_REDUCE_MIN ignore NaN. Reductions of TG_I16 and TG_U16 fail with
 * TG_ERR_UNSUPPORTED. Sends and receives outside a batch wait for each other in the order of the rank's calls, so a
 * ring of sends needs a batch (tg_comm_batch_open).
 *
 * Each communicator has its own stream. If all ranks split off groups of two or more ranks in one call (tg_comm_split
 * without negative colors), the groups share the resources (channels, buffers, proxy) of their parent. A rank's kernels
 * on these groups then run one after another, in the order of the rank's calls. That order must be the same on all
 * ranks.
 *
 * Fails with TG_ERR_DEVICE on another device or if NCCL reports an error, with TG_ERR_ARGUMENT if host has several
 * ranks and does not move host memory, with TG_ERR_UNSUPPORTED if plugin libtapegrad-nccl.so or NCCL is missing, with
 * TG_ERR_STATE if the environment sets NCCL_COMM_ID, because only this call may create ids, and with the errors of a
 * collective (comm.h) if a rank does not make the call. On error returns an inert communicator (tapegrad.h). */
TG_API tg_comm *tg_comm_nccl_new(tg_comm *host);

/* A function of the caller that copies `bytes` bytes of host memory at `data` on rank 0 to `data` on every rank. Every
 * rank calls it. Returns 0 on success, and any other value on failure (TG_ERR_IO). user is the pointer that was given
 * to tg_comm_nccl_new_by. */
typedef int (*tg_nccl_broadcast_fn)(void *user, void *data, size_t bytes);

/* Creates an NCCL communicator without a host communicator. The ranks share NCCL's id through `broadcast`, which is
 * called once, and not at all if size is 1. The ranks do not compare calls: if they disagree or a rank never calls,
 * only NCCL's own errors and tg_config.deadline reveal it. In tg_comm_split every rank must join a group of two or more
 * ranks; otherwise the ranks of such groups fail with TG_ERR_UNSUPPORTED. tg_comm_recover fails with
 * TG_ERR_UNSUPPORTED. Fails with the errors of tg_comm_nccl_new, and with TG_ERR_ARGUMENT if rank or size is out of
 * range or broadcast is NULL. */
TG_API tg_comm *tg_comm_nccl_new_by(tg_ctx *ctx, int rank, int size, tg_nccl_broadcast_fn broadcast, void *user);

#ifdef __cplusplus
}
#endif

#endif
