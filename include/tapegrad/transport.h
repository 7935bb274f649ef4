/* The interface of a transport: the layer that moves data between ranks. Include it to implement one of your own. */
#ifndef TAPEGRAD_TRANSPORT_H
#define TAPEGRAD_TRANSPORT_H

#include <tapegrad/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Transports ---- */

/* One collective call, already checked: the group has two or more ranks, dtypes and counts fit this rank's tensors,
 * data are contiguous, and src equals dst only where comm.h allows it. Counts are in elements. If src and dst are
 * NULL on every rank, the ranks still compare the call and wait for each other, but no data moves; a transport that
 * moves data by other means uses another transport this way. */
typedef struct tg_transfer {
    size_t size;
    tg_collective kind;
    tg_dtype dtype;
    tg_reduce_op op;
    int root;                   /* root rank; for a send or receive, the peer */
    const void *src;            /* NULL if this rank has no source, or it has no bytes */
    void *dst;
    /* elements of one rank's part (src of a gather, dst of a scatter); of the whole if the kind has no parts */
    int64_t count;
    /* Elements for each rank and from each rank; they replace count. NULL: equal parts. Valid only during start. */
    const int64_t *send, *recv;
    const void *site;           /* call site, quoted in errors */
    uint64_t record;            /* number of this call in this rank's record (tg_comm_record) */
} tg_transfer;

/* Operations of a transport. `state` is one rank's end of one group. The context's thread calls every slot. A slot
 * that fails calls tg_ctx_fail. Every wait ends at the context's deadline at the latest (tg_ctx_deadline). */
typedef struct tg_comm_ops {
    size_t size;
    const char *name; /* returned by tg_comm_transport */
    bool host;        /* needs memory that the host can read; device memory is refused */
    bool silent;      /* moves no data; works with any context */
    /* Orders calls on the device: wait and drop return before a call is done, and the transport itself marks the
     * call's end in the record. */
    bool queued;

    /* Required. Posts the call and returns at once, without waiting for other ranks. *request identifies the call
     * until drop. NULL in *request means that the call is done. The transport must detect a disagreement of the
     * ranks, on all of them, before it moves data. */
    tg_status (*start)(tg_ctx *ctx, void *state, const tg_transfer *call, void **request);
    bool (*test)(tg_ctx *ctx, void *state, void *request); /* advances the call; returns true if it is done or failed */
    tg_status (*wait)(tg_ctx *ctx, void *state, void *request); /* returns when the call is done or has failed */
    /* Ends a request, done or not. After it returns, nothing accesses the call's memory. A call that cannot finish
     * is aborted together with the group. Never fails. */
    void (*drop)(tg_ctx *ctx, void *state, void *request);
    /* Creates the group of the given ranks of this group, in the given order; this rank is ranks[rank]. Every member
     * calls it, and ranks that share several new groups create them in the same order. Other ranks need not call it,
     * unless `all` is true: then every rank of this group calls it at this point, each for the one of several
     * disjoint groups that contains it. */
    tg_status (*split)(tg_ctx *ctx, void *state, const int *ranks, int n, int rank, const char *name, bool all,
                       void **group);
    /* Frees state, after the last drop. Ends the calls of peers that still wait. */
    void (*close)(tg_ctx *ctx, void *state);

    /* Optional */
    /* Opens or closes a batch of sends and receives that start together. NULL if start never waits. */
    tg_status (*batch)(tg_ctx *ctx, void *state, bool open);
    /* Reports that this rank will miss a call: peers that wait must fail. */
    void (*abort)(tg_ctx *ctx, void *state, const char *why);
    /* Restarts the group with the remaining ranks, and sets *rank and *size. NULL: an abort is permanent. */
    tg_status (*recover)(tg_ctx *ctx, void *state, int *rank, int *size);
    /* Called while the host waits for something else, such as a device. `waited` is the number of seconds so far; a
     * negative value means that the wait has ended. Advances pending calls. Fails if the group has failed, or if the
     * request (NULL: none) can no longer finish. Never blocks. */
    tg_status (*poll)(tg_ctx *ctx, void *state, void *request, double waited);
    /* Device memory for fast collectives (tg_symmetric). Give all three slots or none. window_alloc allocates this
     * rank's memory; it returns NULL without an error if none is available. window_join makes the windows known to
     * all ranks; every rank calls it, with windows of one size. window_free frees one, even after close. */
    void *(*window_alloc)(tg_ctx *ctx, void *state, size_t bytes, void **window);
    tg_status (*window_join)(tg_ctx *ctx, void *state, void *window);
    void (*window_free)(tg_ctx *ctx, void *window);
} tg_comm_ops;

/* Creates a communicator over the caller's transport, for rank `rank` of `size`. The communicator owns state: it
 * closes state when it is freed, or at once on an error, if the table's size includes the close slot. Returns an
 * inert communicator on error. */
TG_API tg_comm *tg_comm_new_on(tg_ctx *ctx, const tg_comm_ops *ops, void *state, int rank, int size);

#ifdef __cplusplus
}
#endif

#endif
