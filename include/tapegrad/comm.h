/* Communicators: how ranks reach each other, and the collectives that move data between them. Include it in every
 * program with several ranks; parallel.h includes it. A rank is a context and the thread that uses it. A transport is
 * the layer below a communicator that moves the data (threads, shared memory, MPI, NCCL).
 *
 * A communicator belongs to one context. All its calls but queries are collective: every rank makes the same calls in
 * the same order. Only the two ranks of a send and its receive make those. If a rank makes a different call, all ranks
 * of its node report that rank in an error (TG_ERR_MISMATCH) before data moves, or at the latest at the context's
 * deadline (TG_ERR_TIMEOUT). After a failure, peers that wait for the failed rank get TG_ERR_REMOTE with its message.
 * After tg_ctx_clear local calls work again, and collectives fail with TG_ERR_ABORTED until tg_comm_recover (for a
 * grid: tg_parallel_recover).
 */
#ifndef TAPEGRAD_COMM_H
#define TAPEGRAD_COMM_H

#include <tapegrad/work.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Communicators ---- */

/* tg_comm_self_new creates a communicator of one rank, tg_comm_plan_new one of a rank whose peers do not exist, and
 * tg_comm_launched_new one of the processes that `tapegrad run` started. If a communicator is created before the
 * context's first tensor, it also provides the context's memory arenas, and collectives within a node copy nothing. If
 * it is created later, collectives work but copy. On a plan results keep their old contents, so a plan suits device
 * "meta"; tg_comm_split refuses one of several ranks (TG_ERR_UNSUPPORTED), tg_parallel_new accepts it. Each returns an
 * inert communicator, never NULL, on error; calls on it do nothing. */
TG_API tg_comm *tg_comm_self_new(tg_ctx *ctx);                     /* size 1 */
TG_API tg_comm *tg_comm_plan_new(tg_ctx *ctx, int rank, int size); /* counts calls and bytes; receives nothing */
TG_API tg_comm *tg_comm_launched_new(tg_ctx *ctx); /* a rank of `tapegrad run`; elsewhere TG_ERR_STATE */
TG_API int tg_comm_launched_rank(void);            /* this process's rank; -1: not started by `tapegrad run` */
TG_API void tg_comm_free(tg_comm *c);

/* Splits c into groups, and returns this rank's group, which tg_comm_free releases. Collective over c. Ranks with equal
 * color form a group, ordered by key, then by rank. `name`, such as "tp", is copied and may be NULL. `axis` is the axis
 * whose placement the group's collectives convert; TG_MAX_AXES: none (statistics, pipelines). Returns NULL if color is
 * negative: this rank is in no group. On error returns an inert communicator. */
TG_API tg_comm *tg_comm_split(tg_comm *c, int color, int key, const char *name, tg_axis axis);
TG_API tg_ctx *tg_comm_ctx(const tg_comm *c);
TG_API int tg_comm_rank(const tg_comm *c); /* 0 to size - 1 */
TG_API int tg_comm_size(const tg_comm *c);
TG_API const char *tg_comm_name(const tg_comm *c); /* that of tg_comm_split */
TG_API const char *tg_comm_transport(const tg_comm *c); /* "self", "threads", "shm", "mpi", "plan" ... */
TG_API tg_axis tg_comm_axis(const tg_comm *c);
/* Drops the failed ranks and restarts c with the remaining ranks, renumbered in their old order. Collective over the
 * remaining ranks. Groups split from c end. Use tg_parallel_recover for a grid. */
TG_API tg_status tg_comm_recover(tg_comm *c);

/* ---- Collectives on tensors, outside the tape ---- */

/* Each starts at once and returns its work (NULL on error). The work belongs to the tensor that it fills: reading dst
 * waits for it, so tg_work_wait is not required. The handle is borrowed. It is valid until dst has been read; for a
 * call without dst, such as a send, until 32 more such calls. The work keeps src's bytes while it runs: src may be
 * dropped or discarded, and its tape reset; a library call that changes src waits for the work. dst and src are
 * contiguous and have one dtype, which may be any; dst may equal src. An n below is the size of c. Sums are added in
 * the order of ranks, and 16-bit sums accumulate in float32 (nccl.h has exceptions). AVG needs floats. On a group of
 * size 1, src is copied to dst and nothing is sent. A leaf that was not placed is VARYING after a reduce-scatter,
 * all-to-all, scatter or receive into it, as after tg_write: ranks may have other bytes there (tg_place). */
/* dst has as many elements as src */
TG_API tg_work *tg_comm_all_reduce(tg_comm *c, tg_tensor *dst, tg_tensor *src, tg_reduce_op op);
/* dst has n times src's elements, ordered by rank */
TG_API tg_work *tg_comm_all_gather(tg_comm *c, tg_tensor *dst, tg_tensor *src);
/* src has n times dst's elements; rank r gets part r of the combined elements */
TG_API tg_work *tg_comm_reduce_scatter(tg_comm *c, tg_tensor *dst, tg_tensor *src, tg_reduce_op op);
/* copies x of rank root to x of every rank */
TG_API tg_work *tg_comm_broadcast(tg_comm *c, tg_tensor *x, int root);
/* Sends part r of src to rank r and receives part r of dst from it. Part r of src has send_counts[r] elements and part
 * r of dst recv_counts[r]; the parts lie one after another. Both counts NULL: equal parts. For unequal parts of an
 * all-gather or a reduce-scatter see the next two functions. */
TG_API tg_work *tg_comm_all_to_all(tg_comm *c, tg_tensor *dst, tg_tensor *src, const int64_t *send_counts,
                                   const int64_t *recv_counts);
/* All-gather and reduce-scatter of unequal parts: counts[r] elements come from (go to) rank r. Every rank passes the
 * same counts. */
TG_API tg_work *tg_comm_all_gather_v(tg_comm *c, tg_tensor *dst, tg_tensor *src, const int64_t *counts);
TG_API tg_work *tg_comm_reduce_scatter_v(tg_comm *c, tg_tensor *dst, tg_tensor *src, const int64_t *counts,
                                         tg_reduce_op op);
/* at the root, dst has n times src's elements, ordered by rank; on other ranks dst is NULL */
TG_API tg_work *tg_comm_gather(tg_comm *c, tg_tensor *dst, tg_tensor *src, int root);
/* at the root, src has n times dst's elements, ordered by rank; on other ranks src is NULL */
TG_API tg_work *tg_comm_scatter(tg_comm *c, tg_tensor *dst, tg_tensor *src, int root);
/* A send to rank `to` and the receive of that rank `from` this one have the same dtype and number of elements. */
TG_API tg_work *tg_comm_send(tg_comm *c, tg_tensor *src, int to);
TG_API tg_work *tg_comm_recv(tg_comm *c, tg_tensor *dst, int from);
/* Open and close a batch. The sends and receives between them start together, in any order on any rank, so a ring
 * cannot deadlock. */
TG_API tg_status tg_comm_batch_open(tg_comm *c);
TG_API tg_status tg_comm_batch_close(tg_comm *c);
TG_API tg_status tg_comm_barrier(tg_comm *c); /* waits until every rank has called it */

/* Memory of one size on all ranks of c, for fused collectives. It is available to ranks that are threads and, as an
 * NCCL window, over NCCL.
 *
 * tg_symmetric_new is collective and returns NULL on error. tg_symmetric_take packs n tensors of the tape at
 * multiples of 16 bytes. It returns false without an error if the memory is too small or not available on this
 * transport, or if tensors of an earlier take are still open; the caller then uses other memory.
 */
typedef struct tg_symmetric tg_symmetric;
TG_API tg_symmetric *tg_symmetric_new(tg_comm *c, size_t bytes);
TG_API void tg_symmetric_free(tg_symmetric *s);
TG_API bool tg_symmetric_take(tg_symmetric *s, tg_tape *t, const tg_dtype *dtypes, const tg_shape *shapes, int n,
                              tg_tensor **out);

/* ---- The record ---- */

/* tg_comm_record writes the last calls (256 or more) of every rank of this node as text or JSON, to find the cause of a
 * deadlock: sequence number, group, kind, dtype, count, reduction, root, call site, state, and each rank's present
 * activity. The number counts the collectives of a group from 1; a send or a receive has the number of the next
 * collective. tg_comm_record_dump writes this rank's view to an open file descriptor; it may be called from a signal
 * handler. */
TG_API size_t tg_comm_record(tg_comm *c, tg_format format, char *buf, size_t n);
TG_API void tg_comm_record_dump(const tg_comm *c, int fd);

/* Kinds of collectives. tg_comm_query counts what this rank has sent by kind, over a communicator and the groups
 * split from it. */
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
    TG_COLLECTIVES
} tg_collective;

typedef struct tg_comm_info {
    size_t size;
    int64_t calls[16]; /* by tg_collective */
    /* Payload bytes, by tg_collective. An all-reduce counts its vector once, an all-gather its result, a reduce-scatter
     * its source. */
    int64_t bytes[16];
} tg_comm_info;

#define TG_COMM_INFO() ((tg_comm_info){.size = sizeof(tg_comm_info)})
TG_API tg_status tg_comm_query(const tg_comm *c, tg_comm_info *out);
TG_API const char *tg_collective_name(tg_collective k); /* "all_reduce" */

#ifdef __cplusplus
}
#endif

#endif
