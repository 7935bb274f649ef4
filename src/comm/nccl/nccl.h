/* NCCL as a transport, for ranks that have one GPU each.
 *
 * A call is queued on its communicator's own stream, after the work that the compute stream holds at that time, and an
 * event marks its end. A wait for the call makes the compute stream wait for that event. The host goes on at once, and
 * kernels that are queued between the call and the wait overlap with the call. Only a wait for a barrier also makes the
 * host wait.
 *
 * The host waits for the device only in the functions of kernels/cuda/streams.h. During these waits this transport
 * checks its calls and the context's deadline.
 *
 * A communicator made by tg_comm_nccl_new has a host communicator of the same ranks. Every call is started there too,
 * without data, before NCCL gets it. (Calls of a captured step are compared when the step is replayed.) So the code
 * that serves all transports compares the calls, names the ranks that fail or leave, and writes the flight recorder. A
 * rank that finds a disagreement when it starts a call does not launch its part, so no data moves. Ranks that start the
 * call at the same time, over a host communicator of messages, may find the disagreement only after they have launched
 * their parts; they then abort them. The common code (comm/protocol.h) asks a transport's `control` whether all ranks
 * have arrived, and its `mover` to move the data. Here the mover is NCCL. The control answers that all ranks have
 * arrived, and leaves the checks of ranks to the host communicator, which it polls. Without a host communicator
 * (tg_comm_nccl_new_by) nothing checks them. */
#ifndef TG_NCCL_TRANSPORT_H
#define TG_NCCL_TRANSPORT_H

#include <nccl.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/streams.h"
#include "comm/nccl/world.h"
#include "comm/protocol.h"

typedef struct tg_nccl_rank tg_nccl_rank;
typedef struct tg_nccl_group tg_nccl_group;
typedef struct tg_nccl_window tg_nccl_window;

/* A call, from its start until it has ended and its owner has dropped it. */
typedef struct tg_nccl_call {
    tg_nccl_group *group;
    tg_call_entry entry; /* for errors */
    uint64_t record;     /* its index in the flight recorder */
    /* The request of the same call on the host communicator. NULL: all ranks have made the call, or it is not compared
     * there. */
    void *host_request;
    cudaEvent_t done;
    tg_transfer transfer; /* valid until the call is launched: in a batch, when the batch is closed */
    tg_cuda_scratch scratch; /* a copy of src, for an all-to-all in place */
    bool launched; /* NCCL has the call, and `done` has been recorded after it */
    bool ordered;  /* the compute stream waits for the call */
    bool finished; /* the call has ended: it is done, or was aborted */
    bool dropped;  /* the owner has dropped the request */
    bool captured; /* the call runs when its graph is replayed, not now */
    struct tg_nccl_call *next;
} tg_nccl_call;

/* A communicator's state. */
struct tg_nccl_group {
    tg_control control; /* first */
    tg_nccl_rank *self;
    tg_nccl_group *next;
    tg_comm *host;     /* NULL: there is no host communicator */
    bool borrows_host; /* the caller of tg_comm_nccl_new owns host */
    ncclComm_t comm;   /* NULL: not created yet, aborted or destroyed */
    ncclComm_t part;   /* while the group is split off: where a thread of NCCL writes the communicator (split_all) */
    bool awaits_nccl; /* the host waits until NCCL has taken a call, and not for the device */
    cudaStream_t stream;
    uint64_t sequence;          /* number of collectives so far */
    tg_nccl_call *first, **end; /* calls in flight, in the order of their start */
    bool batch;                 /* a batch of sends and receives is open */
    tg_nccl_window *windows;
    void *token;        /* 8 bytes on the device, which a barrier reduces; NULL if barriers use the host communicator */
    char name[32];      /* in errors */
    char nccl_name[48]; /* in NCCL's own messages */
};

/* The state that the communicators of one rank share. If one of them fails, all are aborted, because the kernel of one
 * may wait for the kernel of another. */
struct tg_nccl_rank {
    tg_cuda_poller poller; /* first, as the device holds a pointer to it */
    tg_listener listener;
    tg_ctx *ctx;
    tg_cuda *cuda;
    tg_recorder *recorder;
    cudaEvent_t ready; /* the end of the work that the compute stream held at the last launch */
    tg_nccl_group *groups;
    tg_nccl_call *free;
    int me;           /* this rank's number in the world */
    int cause;        /* the rank whose failure the context is recording; -1: this rank itself has failed */
    double checked;   /* how many seconds the current wait of the host had lasted when the calls were last checked */
    tg_status status; /* why the communicators have failed; TG_OK: they have not */
    char failure[TG_FAILURE_TEXT];
    bool aborted;     /* the communicators are aborted, or will be when the capture of a step ends */
    bool progressing; /* tg_nccl_progress is on the stack: waits inside it call it again */
};

/* ---- group.c, in addition to world.h ---- */

tg_status tg_nccl_split(tg_ctx *ctx, void *state, const int *ranks, int n, int rank, const char *name, bool all,
                        void **group);
void tg_nccl_close(tg_ctx *ctx, void *state);
tg_status tg_nccl_recover(tg_ctx *ctx, void *state, int *rank, int *size);

/* ---- launch.c ---- */

/* Enqueues a call on the group's stream. The caller has called ncclGroupStart. */
ncclResult_t tg_nccl_enqueue(tg_nccl_group *g, const tg_transfer *t);

/* ---- call.c ---- */

/* Waits until NCCL has finished the operation that a function of NCCL has started. r: what that function returned.
 * call: the name of that function, for errors. Fails at the context's deadline. */
tg_status tg_nccl_await(tg_nccl_group *g, ncclResult_t r, const char *call);
/* Finds the calls of g that are done or aborted, and ends them. */
void tg_nccl_progress(tg_nccl_group *g);
void tg_nccl_calls_free(tg_nccl_rank *self); /* frees the list of free calls */

/* ---- window.c ---- */

void *tg_nccl_window_alloc(tg_ctx *ctx, void *state, size_t bytes, void **window);
tg_status tg_nccl_window_join(tg_ctx *ctx, void *state, void *window);
void tg_nccl_window_free(tg_ctx *ctx, void *window);
/* Deregisters the windows of a communicator that ends. Their memory stays allocated until tg_nccl_window_free. */
void tg_nccl_windows_end(tg_nccl_group *g);

/* ---- control.c ---- */

extern const tg_control_ops tg_nccl_control;
extern const tg_mover_ops tg_nccl_mover;
static inline tg_nccl_group *tg_nccl_of(tg_control *c) { return (tg_nccl_group *)c; }
/* Called by the device's code while the host waits for the device. Advances the calls, and aborts all communicators if
 * one of them fails. waited: seconds so far; negative: the wait is over. */
tg_status tg_nccl_poll(tg_cuda_poller *w, double waited);
/* Does the same for one communicator while the host waits for NCCL. */
tg_status tg_nccl_poll_group(tg_nccl_group *g, double waited);

/* ---- abort.c ---- */

/* Notifies the peers of the context's error, or of `why` if there is none, and aborts all communicators of the rank.
 * While a step is captured, the communicators are only marked as aborted, because NCCL cannot free a communicator that
 * a graph uses. */
void tg_nccl_abort_all(tg_nccl_rank *self, const char *why);
/* Aborts communicators that are only marked as aborted, if no step is being captured. */
void tg_nccl_abort_end(tg_nccl_rank *self);

#endif
