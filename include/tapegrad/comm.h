/* Communicators: how ranks reach each other, and the collectives that move data between them. Include it in every
 * program with several ranks; parallel.h includes it. A rank is a context and the thread that uses it. A transport is
 * the layer below a communicator that moves the data (threads, shared memory, MPI, NCCL).
 *
 * A communicator belongs to one context. The collectives below, tg_comm_split, tg_symmetric_new and tg_comm_recover are
 * calls of all its ranks, which make the same calls in the same order. A send or a receive is a call of two ranks. If
 * the calls of the ranks differ, all ranks of the communicator fail with TG_ERR_MISMATCH before data moves. If a rank
 * does not make the call, the ranks that wait for it fail with TG_ERR_TIMEOUT at the context's deadline
 * (tg_config.deadline). The messages name the ranks.
 *
 * If a rank never makes the call because it has failed, has ended or has freed the communicator, the ranks that wait
 * for it fail with TG_ERR_REMOTE. Their message quotes the error of that rank or, if it had none, its last call.
 *
 * Each of these errors ends the communicator. After tg_ctx_clear, local calls work again, but collectives over it fail
 * with TG_ERR_ABORTED until tg_comm_recover (for a grid: tg_parallel_recover). */
#ifndef TAPEGRAD_COMM_H
#define TAPEGRAD_COMM_H

#include <tapegrad/work.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Communicators ---- */

/* Create a communicator. On an error these functions return an inert communicator, never NULL, on which calls do
 * nothing.
 *
 * If ranks are processes, create the communicator before the first tensor of its context. It then provides the memory
 * of the context, and the ranks of a node read and write each other's tensors directly. Collectives on tensors that are
 * older work too, but copy them to shared memory and back.
 *
 * tg_comm_plan_new creates the communicator of rank `rank`, 0 to size - 1 (TG_ERR_ARGUMENT), whose peers do not exist.
 * It serves to plan a run on device "meta". If size is above 1, its collectives are counted (tg_comm_query) and leave
 * dst unchanged, and tg_comm_split refuses it (TG_ERR_UNSUPPORTED); tg_parallel_new accepts it. */
TG_API tg_comm *tg_comm_self_new(tg_ctx *ctx);                     /* one rank */
TG_API tg_comm *tg_comm_plan_new(tg_ctx *ctx, int rank, int size); /* a rank without peers */
/* Creates the communicator of the processes that `tapegrad run` has started. Each of them can create it once. Fails
 * with TG_ERR_STATE in any other process and at a second call, and with TG_ERR_DEVICE on device "meta". */
TG_API tg_comm *tg_comm_launched_new(tg_ctx *ctx);
/* Returns the rank of this process; -1 if `tapegrad run` has not started it. */
TG_API int tg_comm_launched_rank(void);
/* Waits for the works of c, and frees c. The groups that were split from c stay valid, and are freed on their own. Free
 * all communicators of a context before the context. */
TG_API void tg_comm_free(tg_comm *c);

/* Splits c into groups, and returns the group of this rank, which tg_comm_free releases. Collective over c. Ranks with
 * the same color form a group. In the group they are in the order of their keys, and ranks with equal keys keep their
 * order. A rank with a negative color is in no group and gets NULL. On an error returns an inert communicator.
 *
 * name, such as "tp", may be NULL; its first 31 bytes are copied. axis is the axis of the grid that the group stands
 * for: ops that communicate over the group convert placements on this axis (mappings.h). TG_MAX_AXES means no axis, for
 * groups that sum statistics or connect pipeline stages. */
TG_API tg_comm *tg_comm_split(tg_comm *c, int color, int key, const char *name, tg_axis axis);
/* These queries accept NULL, and then return NULL, 0, 1, "", "" and TG_MAX_AXES. */
TG_API tg_ctx *tg_comm_ctx(const tg_comm *c);
TG_API int tg_comm_rank(const tg_comm *c); /* Returns 0 to size - 1. */
TG_API int tg_comm_size(const tg_comm *c);
TG_API const char *tg_comm_name(const tg_comm *c); /* Returns the name given to tg_comm_split; "" if there is none. */
TG_API const char *tg_comm_transport(const tg_comm *c); /* Returns "self", "threads", "shm", "mpi", "plan" ... */
TG_API tg_axis tg_comm_axis(const tg_comm *c); /* Returns the axis given to tg_comm_split; TG_MAX_AXES if none. */
/* Restarts c after a failure, without the ranks that have ended or do not call tg_comm_recover within the deadline.
 * Call tg_ctx_clear first. Collective over the remaining ranks, which are renumbered and keep their order. Groups that
 * were split from c end: their calls fail with TG_ERR_ABORTED, and the caller frees them. If c has one rank, does
 * nothing. For a grid use tg_parallel_recover.
 *
 * Fails with TG_ERR_UNSUPPORTED if the transport cannot recover (for NCCL see nccl.h), and with TG_ERR_ABORTED if this
 * rank calls it so late that the others have recovered without it, or if c itself has ended because tg_comm_recover was
 * called on a communicator from which it was split. One rank chooses the members of the new group. The call fails with
 * TG_ERR_REMOTE if that rank ends meanwhile, and with TG_ERR_TIMEOUT if it does not send its choice within two
 * deadlines. After any of these errors the caller must create (or split) a new communicator. */
TG_API tg_status tg_comm_recover(tg_comm *c);

/* ---- Collectives on tensors, outside the tape ----
 *
 * Each call that returns a work (work.h) starts at once; on an error it returns NULL. The work fills dst, and reading
 * dst waits for it, so tg_work_wait is not necessary. The caller does not own the work. Its handle is valid until a
 * call uses dst, dst ends, or tg_work_wait has returned. The handle of a call without dst, such as a send, is valid
 * until tg_work_wait has returned, 32 more calls without dst have started on c, or c is freed.
 *
 * The work keeps the bytes of src until it has ended. In the meantime src may be dropped or discarded, and its tape
 * reset. A library call that changes src waits for the work, except tg_comm_recv: do not receive into a tensor that an
 * earlier call still sends.
 *
 * dst and src are contiguous and have the sizes given below (TG_ERR_SHAPE). They have the same dtype, any but float8
 * (TG_ERR_DTYPE). They do not overlap (TG_ERR_ARGUMENT), unless the call is in place: dst and src are then the same
 * memory, or the smaller one is this rank's part of the larger one. Threads, shared memory, MPI and TCP move host
 * memory only; on another device their calls fail with TG_ERR_DEVICE.
 *
 * A sum adds the values in rank order; it adds 16-bit floats in float32, and rounds once. Sums of integers wrap, and
 * the sum of bools is their OR. In a maximum or a minimum NaN wins over any number. NCCL does otherwise (nccl.h).
 * TG_REDUCE_AVG, the sum divided by the number of ranks, needs floats (TG_ERR_DTYPE). On a communicator of one rank src
 * is copied to dst.
 *
 * A reduce-scatter, an all-to-all, a scatter and a receive may write different bytes on each rank. A leaf that one of
 * them fills is therefore VARYING (placement.h), as after tg_write, unless it was placed (tg_place).
 *
 * Below, n is the size of c. */

/* Reduces src over all ranks into dst on every rank. dst has as many elements as src. */
TG_API tg_work *tg_comm_all_reduce(tg_comm *c, tg_tensor *dst, tg_tensor *src, tg_reduce_op op);
/* Gathers src of every rank, ordered by rank, into dst on every rank. dst has n times as many elements as src. */
TG_API tg_work *tg_comm_all_gather(tg_comm *c, tg_tensor *dst, tg_tensor *src);
/* Reduces src over all ranks, and writes part r of n equal parts of the result to dst of rank r. src has n times as
 * many elements as dst. */
TG_API tg_work *tg_comm_reduce_scatter(tg_comm *c, tg_tensor *dst, tg_tensor *src, tg_reduce_op op);
/* Copies x of rank root to x of every rank. */
TG_API tg_work *tg_comm_broadcast(tg_comm *c, tg_tensor *x, int root);
/* Sends part r of src to rank r, and receives part r of dst from rank r. Part r of src has send_counts[r] elements, and
 * part r of dst has recv_counts[r], 0 or more. send_counts[r] of this rank equals recv_counts[this rank] of rank r. The
 * parts lie one after another. If both counts are NULL, the n parts are equal; one alone must not be NULL
 * (TG_ERR_ARGUMENT). The counts are read during the call. If the call is in place, send_counts[r] must equal
 * recv_counts[r] for every r (TG_ERR_ARGUMENT). */
TG_API tg_work *tg_comm_all_to_all(tg_comm *c, tg_tensor *dst, tg_tensor *src, const int64_t *send_counts,
                                   const int64_t *recv_counts);
/* Like tg_comm_all_gather and tg_comm_reduce_scatter, but the part of rank r has counts[r] elements, 0 or more. Every
 * rank passes the same counts, which are read during the call. NULL means that the parts are equal. */
TG_API tg_work *tg_comm_all_gather_v(tg_comm *c, tg_tensor *dst, tg_tensor *src, const int64_t *counts);
TG_API tg_work *tg_comm_reduce_scatter_v(tg_comm *c, tg_tensor *dst, tg_tensor *src, const int64_t *counts,
                                         tg_reduce_op op);
/* Gathers src of every rank, ordered by rank, into dst of rank root. dst has n times as many elements as src at the
 * root, and is NULL on the other ranks. */
TG_API tg_work *tg_comm_gather(tg_comm *c, tg_tensor *dst, tg_tensor *src, int root);
/* Writes part r of n equal parts of src of rank root to dst of rank r. src has n times as many elements as dst at the
 * root, and is NULL on the other ranks. */
TG_API tg_work *tg_comm_scatter(tg_comm *c, tg_tensor *dst, tg_tensor *src, int root);
/* Send src to rank `to`, or receive dst from rank `from`, which must be another rank (TG_ERR_ARGUMENT). The k-th send
 * of a rank to another belongs to the k-th receive of that rank from it; the two have the same dtype and number of
 * elements. */
TG_API tg_work *tg_comm_send(tg_comm *c, tg_tensor *src, int to);
TG_API tg_work *tg_comm_recv(tg_comm *c, tg_tensor *dst, int from);
/* Open and close a batch of sends and receives. Those of a batch start together, and a rank may make calls with
 * different partners in any order. A ring in which every rank sends and receives therefore cannot deadlock. While a
 * batch is open, collectives of c fail with TG_ERR_STATE, and no work of the batch may be waited for. A second
 * tg_comm_batch_open, and a tg_comm_batch_close without a batch, fail with TG_ERR_STATE. */
TG_API tg_status tg_comm_batch_open(tg_comm *c);
TG_API tg_status tg_comm_batch_close(tg_comm *c);
/* Waits until every rank of c has called it. Fails with TG_ERR_UNSUPPORTED while a step is recorded (capture.h), unless
 * c has one rank. */
TG_API tg_status tg_comm_barrier(tg_comm *c);

/* Memory that has the same size on all ranks of c, for fused collectives. It is available over transports "threads" (on
 * a device that works in host memory) and "self", and over transports with windows (transport.h), such as NCCL; never
 * on device "meta".
 *
 * tg_symmetric_new is collective over c. The memory has the smallest number of bytes that a rank passes; as a window it
 * is rounded up to a multiple of 64. It has 0 bytes if such memory is not available, or if a window would exceed the
 * limit (tg_config.memory) on a rank. The call returns NULL on an error; tg_symmetric_free releases the result.
 *
 * tg_symmetric_take creates n tensors of tape t in this memory, each at a multiple of 16 bytes, and stores them in
 * out[]. It returns false without an error if the memory is too small, if s is NULL, or if tensors of an earlier call
 * are still in use. The caller then uses other memory. Whenever it returns false, also after an error, each out[i] is
 * an inert tensor. */
typedef struct tg_symmetric tg_symmetric;
TG_API tg_symmetric *tg_symmetric_new(tg_comm *c, size_t bytes);
TG_API void tg_symmetric_free(tg_symmetric *s);
TG_API bool tg_symmetric_take(tg_symmetric *s, tg_tape *t, const tg_dtype *dtypes, const tg_shape *shapes, int n,
                              tg_tensor **out);

/* ---- The record ---- */

/* Write the record of collectives, to find the cause of a deadlock. It has the last 256 calls of each rank over c, the
 * communicators that c was split from and all groups of these, and what the rank is doing now. Calls over one rank are
 * not recorded. If the ranks do not share memory (mpi or tcp between nodes, tg_comm_new_on, tg_comm_nccl_new_by), the
 * record has only this rank. A call has its sequence number, group, kind, dtype, count, reduction, root, call site and
 * state. Sequence numbers count the collectives of a group from 1. A send or a receive has the number of the next
 * collective.
 *
 * tg_comm_record writes text (TG_TEXT) or JSON (TG_JSON) to buf as snprintf does: at most n bytes with the terminating
 * 0. It returns the length of the whole text; 0 if c is NULL, and on another format (TG_ERR_ARGUMENT). buf may be NULL.
 * tg_comm_record_dump writes the text to an open file descriptor. A signal handler may call it. Both also work after an
 * error. */
TG_API size_t tg_comm_record(tg_comm *c, tg_format format, char *buf, size_t n);
TG_API void tg_comm_record_dump(const tg_comm *c, int fd);

/* The kinds of collectives. */
typedef enum tg_collective {
    TG_ALL_REDUCE,
    TG_ALL_GATHER,
    TG_REDUCE_SCATTER,
    TG_BROADCAST,
    TG_ALL_TO_ALL,
    TG_GATHER,
    TG_SCATTER,
    TG_SEND,
    TG_RECV,
    TG_BARRIER,
    TG_COLLECTIVES /* number of kinds; in the record, a replay of a captured step */
} tg_collective;

/* The calls that this rank has started over a communicator and over the groups that were split from it (tg_comm_query),
 * from its creation on. Calls over one rank are not counted. A replay counts the calls of its step. */
typedef struct tg_comm_info {
    size_t size;
    int64_t calls[16]; /* number of calls, by tg_collective */
    /* Payload in bytes, by tg_collective: the size of dst on this rank for an all-gather, a scatter and a receive, that
     * of x for a broadcast, and that of src for the others. */
    int64_t bytes[16];
} tg_comm_info;

#define TG_COMM_INFO() ((tg_comm_info){.size = sizeof(tg_comm_info)})
/* Fills *out, which TG_COMM_INFO() initializes. Fails with TG_ERR_ARGUMENT if c or out is NULL. */
TG_API tg_status tg_comm_query(const tg_comm *c, tg_comm_info *out);
/* Returns "all_reduce" ..., "replay" for TG_COLLECTIVES, and "?" if k is out of range. */
TG_API const char *tg_collective_name(tg_collective k);

#ifdef __cplusplus
}
#endif

#endif
