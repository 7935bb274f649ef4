/* Communicators: how ranks reach each other, and what they move.
 *
 * A communicator belongs to a context; all its calls are collective: every rank makes the same ones in the same order.
 * A rank that does not is named in an error on all ranks of its node before data moves (TG_ERR_MISMATCH), at the latest
 * at the deadline of the context (TG_ERR_TIMEOUT). After a failure anywhere the peers that wait for the failed rank get
 * TG_ERR_REMOTE with its message; after tg_ctx_clear local calls work again, and collectives answer TG_ERR_ABORTED
 * until tg_comm_recover (of a grid: tg_parallel_recover).
 */
#ifndef TAPEGRAD_COMM_H
#define TAPEGRAD_COMM_H

#include <tapegrad/work.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Communicators ---- */

/* Made before the first tensor of a context, they also give it its arenas, so that in-node collectives copy nothing;
 * made later they work, with copies. A plan is one rank of a group without the others: what it would get is left as it
 * was, so that it goes with device meta. Inert, never NULL, on error (as a context is): calls on it do nothing. */
TG_API tg_comm *tg_comm_self_new(tg_ctx *ctx);                     /* size 1 */
TG_API tg_comm *tg_comm_plan_new(tg_ctx *ctx, int rank, int size); /* counts; nothing arrives */
TG_API tg_comm *tg_comm_launched_new(tg_ctx *ctx); /* a rank of `tapegrad run`; TG_ERR_STATE elsewhere */
TG_API int tg_comm_launched_rank(void);            /* which rank this process is; -1: it is none */
TG_API void tg_comm_free(tg_comm *c);

/* Ranks of equal color form a group, ordered by key, then by rank. name is copied ("tp"); axis says which placement
 * its collectives convert, TG_MAX_AXES: none (statistics, pipelines). color < 0: this rank is in no group, NULL. */
TG_API tg_comm *tg_comm_split(tg_comm *c, int color, int key, const char *name, tg_axis axis);
TG_API tg_ctx *tg_comm_ctx(const tg_comm *c);
TG_API int tg_comm_rank(const tg_comm *c);
TG_API int tg_comm_size(const tg_comm *c);
TG_API const char *tg_comm_name(const tg_comm *c);
TG_API const char *tg_comm_transport(const tg_comm *c); /* "self", "threads", "shm", "mpi", "plan" ... */
TG_API tg_axis tg_comm_axis(const tg_comm *c);
/* Drops what has failed and begins anew with the ranks that are still there, numbered in their old order: collective
 * over those. Groups split from c are ended. tg_parallel_recover does this for a grid. */
TG_API tg_status tg_comm_recover(tg_comm *c);

/* ---- Collectives on tensors, outside the tape ---- */

/* Each starts at once and returns its work (NULL on error). The work belongs to the storage that it fills: whoever
 * reads dst waits, so nobody has to call tg_work_wait. The handle is borrowed and good until dst has been read; of a
 * call without dst, as a send, until 32 more of those. While it runs the work holds src's bytes: src may be dropped or
 * discarded and its tape reset; who changes it through the library waits for the work. dst and src are contiguous, of
 * one dtype (any of the eight); dst == src is in place. Sums are ordered by rank, and 16-bit ones accumulate in
 * float32; AVG needs floats. On a group of size 1 dst receives src and nothing is sent. */
TG_API tg_work *tg_comm_all_reduce(tg_comm *c, tg_tensor *dst, tg_tensor *src, tg_reduce_op op);
TG_API tg_work *tg_comm_all_gather(tg_comm *c, tg_tensor *dst, tg_tensor *src); /* dst numel = n x src, by rank */
TG_API tg_work *tg_comm_reduce_scatter(tg_comm *c, tg_tensor *dst, tg_tensor *src, tg_reduce_op op); /* src = n x dst */
TG_API tg_work *tg_comm_broadcast(tg_comm *c, tg_tensor *x, int root);
/* Counts in elements, one for each rank, laid one after the other; both NULL: equal parts. Also all-gather and
 * reduce-scatter of unequal parts: see tg_comm_all_gather_v. */
TG_API tg_work *tg_comm_all_to_all(tg_comm *c, tg_tensor *dst, const int64_t *recv_counts, tg_tensor *src,
                                   const int64_t *send_counts);
/* counts[r] elements come from (go to) rank r; the same counts on every rank. */
TG_API tg_work *tg_comm_all_gather_v(tg_comm *c, tg_tensor *dst, tg_tensor *src, const int64_t *counts);
TG_API tg_work *tg_comm_reduce_scatter_v(tg_comm *c, tg_tensor *dst, tg_tensor *src, const int64_t *counts,
                                         tg_reduce_op op);
TG_API tg_work *tg_comm_gather(tg_comm *c, tg_tensor *dst, tg_tensor *src, int root);  /* dst NULL but at the root */
TG_API tg_work *tg_comm_scatter(tg_comm *c, tg_tensor *dst, tg_tensor *src, int root); /* src NULL but at the root */
TG_API tg_work *tg_comm_send(tg_comm *c, tg_tensor *src, int to);
TG_API tg_work *tg_comm_recv(tg_comm *c, tg_tensor *dst, int from);
/* Sends and receives between open and close start together, in any order on any rank: rings cannot lock. */
TG_API tg_status tg_comm_batch_open(tg_comm *c);
TG_API tg_status tg_comm_batch_close(tg_comm *c);
TG_API tg_status tg_comm_barrier(tg_comm *c);

/* Memory of one size on all ranks of c, for fused collectives: of ranks that are threads, or, over NCCL, a window of
 * NCCL's, whose collectives it moves best. Collective to make; NULL on an error. take packs n tensors of the tape at
 * multiples of 16 bytes; false, without an error: not available on this transport, too small, or tensors of an earlier
 * take are still open: the caller does without. */
typedef struct tg_symmetric tg_symmetric;
TG_API tg_symmetric *tg_symmetric_new(tg_comm *c, size_t bytes);
TG_API void tg_symmetric_free(tg_symmetric *s);
TG_API bool tg_symmetric_take(tg_symmetric *s, tg_tape *t, const tg_dtype *dtypes, const tg_shape *shapes, int n,
                              tg_tensor **out);

/* ---- The record ---- */

/* The last calls (256 or more) of every rank of this node: sequence, group, kind, dtype, count, reduction, root, call
 * site, state; and what each rank does now. tg_record_dump writes this rank's view into an open file descriptor, from a
 * signal handler too. */
TG_API size_t tg_comm_record(tg_comm *c, tg_format format, char *buf, size_t n);
TG_API void tg_comm_record_dump(const tg_comm *c, int fd);

/* What this rank has sent so far over a communicator and the groups split from it, by kind of collective. */
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
    int64_t calls[16];
    int64_t bytes[16]; /* of payload: all-reduce its vector once, all-gather its result, reduce-scatter its source */
} tg_comm_info;

#define TG_COMM_INFO() ((tg_comm_info){.size = sizeof(tg_comm_info)})
TG_API tg_status tg_comm_query(const tg_comm *c, tg_comm_info *out);
TG_API const char *tg_collective_name(tg_collective k); /* "all_reduce" */

#ifdef __cplusplus
}
#endif

#endif
