/* NCCL as a transport: ranks with a GPU each.
 *
 * A call goes onto its communicator's own stream, after what the compute stream has queued, and an event follows it.
 * Waiting for the call is the compute stream's waiting for that event: the host goes on at once, and products that are
 * queued in between run beside it. The host meets the device in its own waits (kernels/cuda/order.h) alone; there this
 * transport looks after its calls, with the context's deadline.
 *
 * Beside each communicator stands a group of the same ranks on a host transport, the control: every call is made there,
 * too, without bytes, before NCCL gets it. So calls are compared, ranks that fail or leave are named, and the record is
 * the same, by the code that does this for every other transport; and a rank that finds a disagreement has not launched
 * its part, so that nothing moves. */
#ifndef TG_NCCL_TRANSPORT_H
#define TG_NCCL_TRANSPORT_H

#include <nccl.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/streams.h"
#include "comm/nccl/world.h"

typedef struct tg_nccl_rank tg_nccl_rank;
typedef struct tg_nccl_group tg_nccl_group;
typedef struct tg_nccl_window tg_nccl_window;

/* A call on its way: from its start until it is done on all ranks, and its owner has dropped it. */
typedef struct tg_nccl_call {
    tg_nccl_group *group;
    tg_call_entry entry; /* for errors */
    uint64_t record;  /* its number in the record */
    void *control;    /* its request there; NULL: all ranks have made the call */
    cudaEvent_t done;
    tg_transfer transfer; /* good until it is launched: of an open batch, at its end */
    tg_cuda_scratch scratch;
    bool launched;    /* done has been recorded */
    bool ordered;     /* the compute stream waits for it */
    bool finished, dropped;
    bool captured;    /* it runs when its graph is replayed, not now */
    struct tg_nccl_call *next;
} tg_nccl_call;

/* A communicator's state. */
struct tg_nccl_group {
    tg_nccl_rank *self;
    tg_nccl_group *next;
    tg_comm *control; /* NULL: there is none */
    bool world;       /* control is the caller's */
    ncclComm_t comm;  /* NULL: aborted */
    cudaStream_t stream;
    int rank, size;
    tg_nccl_call *first, **end; /* in the order of their start */
    bool batch;
    tg_nccl_window *windows;
    void *token; /* 8 bytes on the device, for a barrier without control */
    char name[48];
};

/* What the communicators of one rank share. */
struct tg_nccl_rank {
    tg_cuda_watch watch; /* first: it is what the device calls */
    tg_listener listener;
    tg_ctx *ctx;
    tg_cuda *cuda;
    tg_recorder *recorder;
    cudaEvent_t ready; /* what the compute stream had queued at the last start */
    tg_nccl_group *groups;
    tg_nccl_call *free;
    double looked; /* how long the host had waited at the last look */
    bool failed;   /* all communicators have been aborted */
    bool progressing; /* waits within it lead back to it */
};

/* ---- group.c, besides world.h ---- */

tg_status tg_nccl_split(tg_ctx *ctx, void *state, const int *ranks, int n, int rank, const char *name, bool all,
                        void **group);
void tg_nccl_close(tg_ctx *ctx, void *state);
tg_status tg_nccl_recover(tg_ctx *ctx, void *state, int *rank, int *size);

/* ---- ask.c ---- */

/* Asks NCCL for a collective, within a group of its calls. */
ncclResult_t tg_nccl_enqueue(tg_nccl_group *g, const tg_transfer *t);

/* ---- call.c ---- */

/* Waits until what NCCL was asked for has been done; records an error. */
tg_status tg_nccl_settle(tg_nccl_group *g, ncclResult_t r, const char *call);
/* Finds out which calls are over. */
void tg_nccl_progress(tg_nccl_group *g);
void tg_nccl_calls_free(tg_nccl_rank *self);

/* ---- window.c ---- */

void *tg_nccl_window_alloc(tg_ctx *ctx, void *state, size_t bytes, void **window);
tg_status tg_nccl_window_join(tg_ctx *ctx, void *state, void *window);
void tg_nccl_window_free(tg_ctx *ctx, void *window);
void tg_nccl_windows_end(tg_nccl_group *g); /* the communicator is about to end, or has: their memory stays */

/* ---- fail.c ---- */

/* The peers are told of the context's error; every communicator is marked, then they are freed, but not while a step is
 * recorded: NCCL frees none that a graph knows. */
void tg_nccl_abort_all(tg_nccl_rank *self);
void tg_nccl_abort_end(tg_nccl_rank *self); /* that freeing, where it is still to be done */
/* Records that the group was aborted before. */
tg_status tg_nccl_aborted(tg_nccl_group *g);
tg_status tg_nccl_look(tg_cuda_watch *w, double waited);
/* Looks after one group while the host waits for NCCL to do what it was asked. */
tg_status tg_nccl_look_at(tg_nccl_group *g, double waited);

#endif
