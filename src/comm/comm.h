/* A communicator as the library's own ops see it. */
#ifndef TG_COMM_H
#define TG_COMM_H

#include <tapegrad/transport.h>

#include "core/context.h"
#include "comm/flight_recorder.h"

/* One collective. What a kind does not use is zero. */
typedef struct tg_collective_args {
    tg_collective kind;
    tg_tensor *dst, *src;
    tg_reduce_op op;
    int root;                   /* or the peer of a send or receive */
    const int64_t *send, *recv; /* elements for, and from, each rank; NULL: equal parts. All-gather reads recv,
                                   reduce-scatter send */
    const void *site;           /* of the public function's caller */
} tg_collective_args;

/* The one door: checks, signs, posts and starts. dst's storage owns the work, as tapegrad/comm.h says of the public
 * functions, which are one line over this; NULL after recording the error. */
tg_work *tg_comm_start(tg_comm *c, const tg_collective_args *a);

/* A call as the record has it, in a group of so many ranks. */
tg_note tg_transfer_note(const tg_transfer *t, int size);

/* A captured step's replay, as the record has it and as ranks compare it: no collective of its own. count: how many of
 * the group it holds, and above that a digest of them. */
enum { TG_REPLAY = TG_COLLECTIVES, TG_REPLAY_BITS = 20 };
static inline int64_t tg_replay_calls(int64_t count) { return count & ((1 << TG_REPLAY_BITS) - 1); }

/* replay.c: the step that is captured makes this call, which each replay will make. even: its count is every rank's. */
tg_status tg_replay_note(tg_comm *c, const tg_note *note, int64_t bytes, bool even);
/* c ends, or begins anew: what was recorded with it is freed, and refused from now on. */
void tg_replays_end(tg_comm *c);
void tg_replays_end_all(tg_ctx *ctx, const tg_comm_ops *ops); /* with any of this transport */
/* Writes the calls of the replay that note is, where this context's graph is still there: fn of each. */
void tg_replay_each(tg_ctx *ctx, const tg_note *note, void (*fn)(void *user, const tg_note *call), void *user);

/* The group of those n ranks of c, in this order, among them this one: without asking the others, as all members know
 * the list. Collective over the members alone, who form groups of one list in one order; all: every rank of c forms
 * one at this point, each of them of more than one rank or each of one. */
tg_comm *tg_comm_split_known(tg_comm *c, const int *ranks, int n, const char *name, tg_axis axis, bool all);
/* The same for a group that ended when its parent began anew: g stays where it is, for those who hold it. */
tg_status tg_comm_rejoin(tg_comm *g, const int *ranks, int n, bool all);

/* A call that was started: what the work of a tg_comm is. */
typedef struct tg_comm_request {
    tg_comm *comm;
    void *request; /* of the transport */
    tg_work *work;
    uint64_t note;  /* in the record; 0: none */
    tg_status status; /* of the wait */
    bool waited;
    bool ownerless; /* no storage owns the work */
    struct tg_comm_request *next, *prev; /* of the communicator's list, or the next free one */
} tg_comm_request;

struct tg_comm {
    tg_listener listener; /* first: of a caller's transport, which hears of calls that this rank misses */
    bool listens, aborted;
    tg_ctx *ctx;
    const tg_comm_ops *ops;
    void *state;
    int rank, size;
    tg_axis axis;
    bool batch; /* one is open */
    bool reserved; /* room for works that no storage owns */
    bool ended; /* with what it was split from, which has begun anew */
    uint64_t sequence; /* collectives of this group so far */
    tg_board *board;
    char name[32];
    tg_comm *parent, *child, *sibling; /* what it was split from, its first split, the next of its parent */
    tg_comm_info counts;
    tg_comm_request live; /* the ring of those in flight */
    tg_comm_request *free;
    int ownerless; /* works in flight that no storage owns */
};

/* What ended a group of a transport. */
typedef struct tg_group_end {
    tg_status status;
    int culprit, reporter; /* ranks of the world; culprit -1: none */
    const char *text;
} tg_group_end;

/* Whether c can be used: or records why not where there is a context. */
bool tg_comm_ok(const tg_comm *c);
/* s, which kept this rank from a call of c unless it is TG_OK: its peers must not wait for it. */
tg_status tg_comm_missed(const tg_comm *c, tg_status s);
/* Takes over its reference to the board; NULL: one of its own. */
tg_comm *tg_comm_make(tg_ctx *ctx, const tg_comm_ops *ops, void *state, int rank, int size, tg_board *board);
tg_comm *tg_comm_or_inert(tg_comm *c); /* what a constructor returns */
void tg_comm_free_all(tg_comm *c); /* the groups that were split from it, and then c */
/* A call over host memory, without a tensor, that is waited for. */
tg_status tg_comm_exchange(tg_comm *c, tg_transfer *call);
/* Ends finished works that no storage owns; the memory that they read is let go. */
void tg_comm_reap(tg_comm *c);
void tg_comm_finish_all(tg_comm *c);
tg_comm_request *tg_comm_request_new(tg_comm *c);

extern const tg_comm_ops tg_self_transport, tg_plan_transport;

#endif
