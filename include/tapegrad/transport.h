/* For writers of transports: how ranks reach each other. */
#ifndef TAPEGRAD_TRANSPORT_H
#define TAPEGRAD_TRANSPORT_H

#include <tapegrad/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Transports ---- */

/* One collective, checked: a group of two ranks or more, dtypes and counts that fit this rank's tensors, contiguous
 * data, in place only where comm.h allows it. Counts are elements. Where src and dst are NULL on every rank the ranks
 * compare and wait as ever, and nothing moves: a transport that moves data by other means calls another one so. */
typedef struct tg_transfer {
    size_t size;
    tg_collective kind;
    tg_dtype dtype;
    tg_reduce_op op;
    int root;                   /* or the peer of a send or receive */
    const void *src;            /* NULL where this rank has none, or no bytes */
    void *dst;
    int64_t count;              /* of a rank's part: src of a gather, dst of a scatter; of all without parts */
    const int64_t *send, *recv; /* elements for, and from, each rank, which replace count; NULL: equal parts. Good
                                   during start alone */
    const void *site;           /* of the call, for errors */
    uint64_t record;            /* the number of the call in this rank's record */
} tg_transfer;

/* How ranks reach each other. state is one rank's end of one group. All slots are called by the thread of the context;
 * those that fail call tg_ctx_fail. Every wait has the context's deadline. */
typedef struct tg_comm_ops {
    size_t size;
    const char *name; /* tg_comm_transport */
    bool host;        /* moves what the host can read: device memory is refused */
    bool silent;      /* moves nothing: any context will do */
    bool queued;      /* orders calls on the device: wait and drop return before the call is done, and the transport
                         itself tells the record of its end */

    /* Required. start posts the call and returns at once, whatever the others do; *request stands for it from then on,
     * until drop. A NULL request is a call that is done. A disagreement of the ranks is for the transport to find, on
     * all of them, before it moves data. */
    tg_status (*start)(tg_ctx *ctx, void *state, const tg_transfer *call, void **request);
    bool (*test)(tg_ctx *ctx, void *state, void *request); /* done or failed; helps it along */
    tg_status (*wait)(tg_ctx *ctx, void *state, void *request);
    /* Ends a request, done or not: when it returns nobody touches the call's memory any more. What cannot be finished
     * is aborted, and with it the group. Never fails. */
    void (*drop)(tg_ctx *ctx, void *state, void *request);
    /* The group of those ranks of this one, in this order; this rank is ranks[rank]. Every one of them calls it, for
     * several groups of theirs in the same order; the others need not, but where `all` is set: then every rank of this
     * group calls it at this point, for the one of several disjoint groups that it is in. */
    tg_status (*split)(tg_ctx *ctx, void *state, const int *ranks, int n, int rank, const char *name, bool all,
                       void **group);
    void (*close)(tg_ctx *ctx, void *state); /* frees state, after the last drop; ends the calls of peers that wait */

    /* Optional */
    tg_status (*batch)(tg_ctx *ctx, void *state, bool open); /* sends and receives that start together: NULL where
                                                                 start never waits */
    void (*abort)(tg_ctx *ctx, void *state, const char *why); /* this rank misses a call: peers that wait must fail */
    tg_status (*recover)(tg_ctx *ctx, void *state, int *rank, int *size); /* NULL: an abort is for good */
    /* For who waits elsewhere, as for a device, and has waited so many seconds: helps calls along, and tells whether
     * the group has failed, or a request (NULL: none) cannot be finished any more. waited < 0: no longer. Never
     * blocks. */
    tg_status (*look)(tg_ctx *ctx, void *state, void *request, double waited);
    /* Device memory that the group moves best (tg_symmetric): all three, or none. alloc: this rank's own; NULL without
     * an error: none is to be had. window: every rank makes what it has taken, of one size, known to the others. free
     * ends it, also behind close. */
    void *(*window_alloc)(tg_ctx *ctx, void *state, size_t bytes, void **window);
    tg_status (*window_join)(tg_ctx *ctx, void *state, void *window);
    void (*window_free)(tg_ctx *ctx, void *window);
} tg_comm_ops;

/* A communicator on the caller's own transport: of this rank among size. Closes state when it is freed, and at once on
 * an error, if the table's size reaches that slot. Inert on error. */
TG_API tg_comm *tg_comm_new_on(tg_ctx *ctx, const tg_comm_ops *ops, void *state, int rank, int size);

#ifdef __cplusplus
}
#endif

#endif
