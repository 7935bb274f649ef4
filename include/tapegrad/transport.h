/* The interface of a transport: the layer below a communicator that moves data between ranks. Include this header to
 * implement a transport of your own. */
#ifndef TAPEGRAD_TRANSPORT_H
#define TAPEGRAD_TRANSPORT_H

#include <tapegrad/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Transports ---- */

/* One collective call. The library has checked it: the group has two or more ranks, dtypes and counts fit this rank's
 * tensors, data are contiguous, and src overlaps dst only in place (comm.h). Counts are in elements.
 *
 * If src and dst are both NULL, this rank moves no data, whatever the counts are. The ranks still compare the call and
 * wait for each other. Such calls are barriers, replays (TG_COLLECTIVES), and calls for which this rank has no
 * elements. The NCCL transport also makes them on its host communicator (nccl.h), to compare each call before its data
 * moves. */
typedef struct tg_transfer {
    size_t size; /* sizeof(tg_transfer) */
    /* TG_COLLECTIVES means that a captured step is replayed. Only a `queued` transport and the host communicator of
     * NCCL get this call. It carries no data, and count must be equal on all ranks. */
    tg_collective kind;
    tg_dtype dtype;
    tg_reduce_op op; /* for TG_ALL_REDUCE and TG_REDUCE_SCATTER only */
    int root;        /* the root rank, or the other rank of a send or receive */
    const void *src; /* NULL if this rank sends nothing, and always in a broadcast, whose root sends dst */
    void *dst;       /* NULL if this rank receives nothing; in a broadcast the memory of the tensor on all ranks */
    /* For an all-gather and a gather, the number of elements of src; for a reduce-scatter and a scatter, that of dst;
     * for an all-to-all, that of one part. For the other kinds, the number of all elements. */
    int64_t count;
    /* NULL if the parts of the ranks are equal. Otherwise these arrays say how long the parts are, and count need not
     * be read: send[r] elements of src go to rank r, and recv[r] elements of dst come from rank r. The parts lie one
     * after another. An all-to-all sets both arrays, an all-gather only recv, and a reduce-scatter only send. The
     * arrays are valid only until start returns. */
    const int64_t *send, *recv;
    const void *site; /* call site, which errors quote; may be NULL */
    uint64_t record;  /* number of this call in this rank's record, for tg_comm_record_end; 0 if it is not recorded */
} tg_transfer;

/* The functions of a transport. `state` is one rank's end of one group of ranks. The context's thread calls every slot.
 * A slot that returns a status returns TG_OK, or records an error with tg_ctx_fail and returns its status. Every wait
 * must end when it has lasted for the context's deadline (tg_ctx_deadline).
 *
 * A call that fails ends its group: later calls on the group fail too, on every rank, until `recover`. */
typedef struct tg_comm_ops {
    size_t size;      /* sizeof(tg_comm_ops) */
    const char *name; /* returned by tg_comm_transport; required */
    /* true: works only with memory that the host can read and write. Calls on tensors of other devices then fail with
     * TG_ERR_DEVICE. */
    bool host;
    /* true: the transport never moves data, for example because the other ranks do not exist (tg_comm_plan_new). With
     * several ranks tg_comm_split fails, as no colors can be exchanged; tg_parallel_new works. tg_comm_recover does
     * nothing. */
    bool silent;
    /* true: calls are queued on the device like kernels. `wait` and `drop` then return as soon as the call is queued,
     * and work that is queued later sees its result. For a barrier, however, `wait` returns only when every rank has
     * made the call. The library does not know when a queued call ends, so the transport calls tg_comm_record_end. */
    bool queued;

    /* ---- Required slots ---- */

    /* Starts the call, and returns without waiting for other ranks. There are two exceptions: start may wait until an
     * older call is done and, if the transport has slot `batch`, for the partner of a send or receive. Several calls
     * may be in flight, and the library waits for them in any order. Sets *request, which is NULL before, to a pointer
     * that identifies the call until drop. Leaves it NULL if the call is already done, or if start fails.
     *
     * The memory of the call stays valid until drop returns. If the ranks make different calls, the call must fail on
     * all of them, here or in `wait`, before data moves. A send and its receive must have equal dtypes and counts.
     * Other calls must have the same kind; the same dtype, op and root if the kind has them; and the same sizes of the
     * parts, or count if there are none. In an all-to-all only send[r] and rank r's recv[this rank] must be equal. */
    tg_status (*start)(tg_ctx *ctx, void *state, const tg_transfer *call, void **request);
    /* Advances the call. Returns true if the call is done or has failed; `wait` then returns its status. */
    bool (*test)(tg_ctx *ctx, void *state, void *request);
    /* Waits until the call is done or has failed, or, if the transport is `queued`, until it is queued. The library may
     * call it again for the same call. */
    tg_status (*wait)(tg_ctx *ctx, void *state, void *request);
    /* Ends a request. The library calls it once for every request, also if the call has failed. If the call is not
     * done, drop waits as `wait` does. If the deadline passes, the call and its group have failed. After drop returns,
     * nothing may access the memory of the call, except work that a `queued` transport has already queued on the
     * device. */
    void (*drop)(tg_ctx *ctx, void *state, void *request);
    /* Creates a group of n ranks of this group: rank i of the new group is rank ranks[i] of this group. This rank is
     * ranks[rank]. Sets *group to this rank's state of the new group. name is for errors, and may be NULL. ranks and
     * name are valid only until split returns. n is 2 or more, because the library itself makes groups of one rank;
     * but if the transport is `silent`, n may be 1.
     *
     * If `all` is false, only the ranks of the new group call split. Ranks that share several new groups create them in
     * the same order. If `all` is true, every rank of this group calls split at this point. The new groups are then
     * disjoint, and each rank passes the group that contains it. */
    tg_status (*split)(tg_ctx *ctx, void *state, const int *ranks, int n, int rank, const char *name, bool all,
                       void **group);
    /* Frees state. The library calls it after the last drop; groups that were split from this one may close later. If
     * other ranks still wait for this rank in a call, that call must fail on those ranks. */
    void (*close)(tg_ctx *ctx, void *state);

    /* ---- Optional slots ---- */

    /* Opens or closes a batch of sends and receives that start together. The batch lets two ranks send to each other
     * without waiting for each other's receive. The library also opens a batch before the TG_COLLECTIVES call of a
     * replay, and closes it after the replay has been queued. May be NULL if start never waits for the partner of a
     * send or receive. */
    tg_status (*batch)(tg_ctx *ctx, void *state, bool open);
    /* Ends the group, because this rank has missed a call after an error, because the group that this one was split
     * from recovers, or because an NCCL communicator over this one (tg_comm_nccl_new) fails. Calls in which other ranks
     * wait for this rank must fail there. `why` is the reason, as text for their errors. If the group has ended before,
     * abort does nothing. If the slot is NULL, the other ranks wait until the deadline. */
    void (*abort)(tg_ctx *ctx, void *state, const char *why);
    /* Restarts a group that has ended. Every rank that goes on calls recover, also a rank that has called abort; ranks
     * whose process has ended do not. Sets *size to the number of ranks that take part and *rank to this rank's number
     * among them. If the slot is NULL, tg_comm_recover fails with TG_ERR_UNSUPPORTED. */
    tg_status (*recover)(tg_ctx *ctx, void *state, int *rank, int *size);
    /* Advances pending calls, and must not block. The library calls poll on the host communicator of an NCCL
     * communicator (tg_comm_nccl_new), while this rank's thread waits for the GPU or for NCCL. `waited` is the number
     * of seconds so far. It is negative in one last call after the wait; if the wait fails, abort may come instead.
     * `request` is the call on this communicator that the awaited work depends on; NULL if there is none. poll fails if
     * the group has failed, or if `request` can no longer finish. May be NULL. */
    tg_status (*poll)(tg_ctx *ctx, void *state, void *request, double waited);
    /* Memory windows. A window is device memory of this rank for fast collectives (tg_symmetric). Set all three slots
     * or none. window_alloc allocates device memory for this rank's window and returns it. It sets *window to a handle
     * of the window, which the other two slots take. If no memory is available, it returns NULL without an error.
     * window_join makes the windows known to all ranks. Every rank calls window_join, with windows of the same size. If
     * window_alloc has returned NULL on any rank, no rank calls window_join. window_free frees a window, whether it was
     * joined or not; the library may call it after close. */
    void *(*window_alloc)(tg_ctx *ctx, void *state, size_t bytes, void **window);
    tg_status (*window_join)(tg_ctx *ctx, void *state, void *window);
    void (*window_free)(tg_ctx *ctx, void *window);
} tg_comm_ops;

/* Creates a communicator over the caller's transport, for rank `rank` of `size`. ops is not copied; it must stay valid
 * until ctx has been freed. The communicator calls ops->close when it is freed. If size is 1, the library never calls
 * start, because a collective of one rank only copies src to dst.
 *
 * Fails with TG_ERR_ARGUMENT if ops is NULL or of another size, if ops lacks the name or a required slot, or if rank is
 * out of range. On error tg_comm_new_on calls ops->close at once, if ctx is not NULL and ops->size includes that slot,
 * and returns an inert communicator (tapegrad.h). */
TG_API tg_comm *tg_comm_new_on(tg_ctx *ctx, const tg_comm_ops *ops, void *state, int rank, int size);
/* A `queued` transport calls this function when the device has run a call. It ends the call in this rank's record
 * (tg_comm_record) as "done", or as "failed" if status is not TG_OK. Until then the record lists the call as "started".
 * The library itself ends calls for which `start` has left *request NULL, or has failed.
 *
 * c is the communicator of tg_comm_new_on, or any group that was split from it. record is the number in the call's
 * tg_transfer; 0, and the number of a call that is no longer among the last 256, are ignored. Returns TG_OK also if the
 * context has an error. Fails with TG_ERR_ARGUMENT if c is NULL or of a transport that is not `queued`, or if no call
 * has that number yet. Only the thread of the context may call it. */
TG_API tg_status tg_comm_record_end(tg_comm *c, uint64_t record, tg_status status);

#ifdef __cplusplus
}
#endif

#endif
