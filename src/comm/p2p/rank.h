/* The state of one rank of the transport between nodes, which its communicators share, and its waits. */
#ifndef TG_P2P_RANK_H
#define TG_P2P_RANK_H

#include <pthread.h>

#include <tapegrad/p2p.h>

#include "comm/p2p/message.h"

enum { TG_P2P_RECEIVES = 32 }; /* receives of messages that are posted at a time */

typedef struct tg_p2p_rank tg_p2p_rank;
typedef struct tg_p2p_group tg_p2p_group;
typedef struct tg_p2p_call tg_p2p_call;

/* A buffer. While it is in flight, the layer reads or fills it. */
typedef struct tg_p2p_buffer {
    void *data;
    size_t bytes; /* bytes that have arrived */
    bool in_flight;
    struct tg_p2p_buffer *next;
} tg_p2p_buffer;

/* What this rank knows of one rank of the world. This rank itself has an entry too. */
typedef struct tg_p2p_peer {
    bool gone;           /* it has sent TG_P2P_BYE */
    int64_t pid;         /* its process, even if on another node; 0 until the ranks have exchanged them */
    double since, heard; /* times when its error was first seen, and when its last message came */
    tg_status status;    /* of its context */
    int cause;           /* the rank that caused its error; -1: itself */
    int tag;             /* of the last piece that was requested from it */
    uint64_t probe;      /* number of its last probe that this rank has passed on */
    char *failure;       /* text of its latest error, TG_P2P_FAILURE bytes; NULL: none yet */
} tg_p2p_peer;

/* A call of this rank, from its start to its drop. */
typedef struct tg_p2p_request {
    tg_p2p_call *call;
    tg_p2p_group *group;
    bool done;
    struct tg_p2p_request *next, *prev;
} tg_p2p_request;

/* A message for a group that this rank has yet to form. */
typedef struct tg_p2p_early {
    struct tg_p2p_early *next;
    size_t bytes; /* of this struct and the message, which follows it */
    tg_p2p_message *m;
} tg_p2p_early;

/* The number of groups that this rank has made with this base (tg_p2p_key). */
typedef struct tg_p2p_base {
    struct tg_p2p_base *next;
    uint64_t base, made;
} tg_p2p_base;

/* The state of one rank that its communicators share. */
struct tg_p2p_rank {
    tg_listener listener; /* first, as the context holds a pointer to it */
    tg_ctx *ctx;
    tg_comm_ops table; /* of its communicators: tg_p2p_transport with the layer's name */
    const tg_p2p_ops *layer;
    void *state;      /* of the layer */
    pthread_t thread; /* the thread that may call the layer */
    int me, size, spins; /* spins: rounds of a wait that spin before the thread sleeps */
    int cause;      /* the rank whose failure this rank's context is recording; -1: its own */
    int open;       /* number of communicators that are not closed */
    tg_comm *node;  /* connects the ranks of this node, by their numbers in the world; NULL: none */
    int64_t *nodes; /* the node of each rank, valid if `node` is not NULL */
    bool broken;    /* a call of the layer has failed, or the layer has ended */
    bool quiet;     /* no more messages can arrive */
    bool missed;    /* this rank has missed a call since its last error was cleared */
    tg_recorder *recorder;
    bool announce;                /* another thread has recorded a failure, which the next poll announces */
    tg_p2p_call *waits_for;       /* the call that this rank waits for now; NULL: none */
    uint64_t probes, first_probe; /* number of probes sent so far; number of the first one of this wait (deadlock.c) */
    double probed;                /* time of the last probe */
    tg_p2p_peer *peer;
    tg_p2p_group *groups;
    tg_p2p_early *early, **early_end;
    tg_p2p_base *bases;
    tg_p2p_request *first, *last, *free; /* requests in flight, in the order of their start; free requests */
    tg_p2p_buffer in[TG_P2P_RECEIVES]; /* receive the incoming messages, in circular order */
    int next_in;                       /* index of the buffer of the next message */
    tg_p2p_buffer *out, *all_out; /* buffers for messages to send: free ones, linked by next; all (buffers.c) */
};

/* ---- progress.c ---- */

/* Handles the messages and pieces that have arrived, and advances this rank's calls. */
void tg_p2p_progress(tg_p2p_rank *self);
/* Removes a call that cannot be finished from those in flight, and refuses the pieces that members have requested. */
void tg_p2p_forget(tg_p2p_request *r);
/* Pauses this thread in a wait. round: number of earlier pauses. The first rounds spin, the others sleep. */
void tg_p2p_pause(const tg_p2p_rank *self, int round);
/* Makes progress until done() returns true. Returns false if the layer fails or the context's deadline passes first. */
bool tg_p2p_until(tg_p2p_rank *self, bool (*done)(tg_p2p_rank *self));

#endif
