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
 * tensors, data are contiguous, and src equals dst only where comm.h allows it. Counts are in elements.
 *
 * A call may carry no data: src and dst are then both NULL, on all ranks. The ranks still compare the call and wait for
 * each other. In this way a transport can let another one compare its calls: before the NCCL transport moves data
 * through the GPUs, it passes the call, without data, to a second transport in host memory, which compares it. */
typedef struct tg_transfer {
    size_t size; /* sizeof(tg_transfer) */
    tg_collective kind;
    tg_dtype dtype;
    tg_reduce_op op;
    int root;        /* the root rank; of a send or receive, the other rank */
    const void *src; /* NULL if this rank sends nothing */
    void *dst;       /* NULL if this rank receives nothing */
    /* Number of elements of one rank's part, for example of src in a gather and of dst in a scatter. If the kind has no
     * parts, number of all elements. */
    int64_t count;
    /* If the parts are not equal: send[r] elements go to rank r, recv[r] come from rank r, and count is not used. NULL
     * if the parts are equal. Valid only until start returns. */
    const int64_t *send, *recv;
    const void *site; /* call site, which errors quote */
    uint64_t record;  /* number of this call in this rank's record (tg_comm_record) */
} tg_transfer;

/* The functions of a transport. `state` is one rank's end of one group of ranks. The context's thread calls every slot.
 * A slot that fails must record its error with tg_ctx_fail. Every wait must end at the context's deadline at the latest
 * (tg_ctx_deadline). */
typedef struct tg_comm_ops {
    size_t size;      /* sizeof(tg_comm_ops) */
    const char *name; /* returned by tg_comm_transport */
    bool host;        /* true: works only with memory that the host can read */
    /* true: the transport never moves data, for example because the other ranks do not exist (tg_comm_plan_new). It
     * then takes memory of any device. */
    bool silent;
    /* true: calls are queued on the device like kernels. `wait` and `drop` then return as soon as the call is queued,
     * and work that is queued later sees its result. The transport itself must mark the end of the call in the
     * record. */
    bool queued;

    /* ---- Required slots ---- */

    /* Starts the call and returns at once, without waiting for other ranks. Exception: a transport that has `batch` may
     * wait here for the partner of a send or receive. Sets *request to a pointer that identifies the call until drop,
     * or to NULL if the call is done already. If the ranks make different calls, the transport must fail on all of them
     * before it moves data. */
    tg_status (*start)(tg_ctx *ctx, void *state, const tg_transfer *call, void **request);
    /* Advances the call. Returns true if the call is done or has failed. */
    bool (*test)(tg_ctx *ctx, void *state, void *request);
    /* Waits until the call is done or has failed; of a `queued` transport, until it is queued. */
    tg_status (*wait)(tg_ctx *ctx, void *state, void *request);
    /* Ends a request. If the call is not done, drop waits for it; if it cannot finish, drop aborts it and the group.
     * After drop returns, nothing may access the memory of the call, except work that a `queued` transport has put on
     * the device before. drop never fails. */
    void (*drop)(tg_ctx *ctx, void *state, void *request);
    /* Creates a group of n ranks of this group: ranks[], in this order. This rank is ranks[rank]. Sets *group to this
     * rank's state of the new group. name is for errors, and may be NULL.
     *
     * If `all` is false, only the ranks of the new group call split. Ranks that share several
     * new groups create them in the same order. If `all` is true, every rank of this group calls split at this point.
     * The new groups are then disjoint, and each rank passes the group that contains it. */
    tg_status (*split)(tg_ctx *ctx, void *state, const int *ranks, int n, int rank, const char *name, bool all,
                       void **group);
    /* Frees state. The library calls it after the last drop. If other ranks still wait for this rank in a call, that
     * call must fail on those ranks. */
    void (*close)(tg_ctx *ctx, void *state);

    /* ---- Optional slots ---- */

    /* Opens or closes a batch of sends and receives that start together. The batch lets two ranks send to each other
     * without waiting for each other's receive. May be NULL if start never waits for the partner of a send or
     * receive. */
    tg_status (*batch)(tg_ctx *ctx, void *state, bool open);
    /* Tells the other ranks of the group that this rank has failed and makes no more calls, until `recover`. Calls in
     * which they wait for this rank must fail there. `why` is the reason, as text for their errors. */
    void (*abort)(tg_ctx *ctx, void *state, const char *why);
    /* Restarts the group with the ranks that still run, also those that called abort; each of them calls recover. Sets
     * *size to their number and *rank to this rank's number among them. If the slot is NULL, an abort is permanent. */
    tg_status (*recover)(tg_ctx *ctx, void *state, int *rank, int *size);
    /* The library calls poll while the host waits for something outside the transport, such as a device. `waited` is
     * the number of seconds so far; a negative number means that the wait has ended. poll advances pending calls, and
     * must not block. It fails if the group has failed, or if `request`, the call for whose result the host waits, can
     * no longer finish. request is NULL if there is no such call. */
    tg_status (*poll)(tg_ctx *ctx, void *state, void *request, double waited);
    /* Memory windows. A window is device memory of this rank for fast collectives (tg_symmetric). Set all three slots
     * or none. window_alloc allocates device memory for this rank's window and returns it. It sets *window to a handle
     * of the window, which the other two slots take. If no memory is available, it returns NULL without an error.
     * window_join makes the windows known to all ranks. Every rank calls window_join, with windows of the same size.
     * window_free frees a window; the library may call it after close. */
    void *(*window_alloc)(tg_ctx *ctx, void *state, size_t bytes, void **window);
    tg_status (*window_join)(tg_ctx *ctx, void *state, void *window);
    void (*window_free)(tg_ctx *ctx, void *window);
} tg_comm_ops;

/* Creates a communicator over the caller's transport, for rank `rank` of `size`. The communicator calls ops->close when
 * it is freed. On error tg_comm_new_on calls ops->close at once, if ops->size includes that slot, and returns an inert
 * communicator (tapegrad.h). */
TG_API tg_comm *tg_comm_new_on(tg_ctx *ctx, const tg_comm_ops *ops, void *state, int rank, int size);

#ifdef __cplusplus
}
#endif

#endif
