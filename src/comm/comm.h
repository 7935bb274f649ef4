/* Communicators as the library's own ops see them: starting collectives, splitting groups and captured calls. */
#ifndef TG_COMM_H
#define TG_COMM_H

#include <tapegrad/transport.h>

#include "core/context.h"
#include "comm/flight_recorder.h"

/* One collective. Fields that a kind does not use are zero. Of recv and send below, an all-gather uses only recv and
 * a reduce-scatter only send. */
typedef struct tg_collective_args {
    tg_collective kind;
    tg_tensor *dst, *src;
    tg_reduce_op op;
    int root;                   /* or the peer of a send or receive */
    const int64_t *send, *recv; /* numbers of elements to and from each rank; NULL: equal parts */
    const void *site;           /* where the public function was called */
} tg_collective_args;

/* Checks, records and starts one collective. All public collectives call it. The storage of dst owns the returned
 * work (tapegrad/comm.h). Returns NULL after recording an error. */
tg_work *tg_comm_start(tg_comm *c, const tg_collective_args *a);

/* Returns the communicator whose call the work is; NULL if it is no call of a communicator. */
tg_comm *tg_comm_of_work(const tg_work *w);

/* Returns the flight-recorder entry of a call in a group of `size` ranks. */
tg_call_entry tg_transfer_entry(const tg_transfer *t, int size);

/* The kind of the call with which the ranks of a group record and compare a replay of a captured step. It is not a
 * collective of its own. The low TG_REPLAY_BITS bits of its count hold the number of the group's collectives in the
 * step; the bits above hold a digest of them. */
enum { TG_REPLAY = TG_COLLECTIVES, TG_REPLAY_BITS = 20 };
/* Returns the number of collectives in the count of such a call. */
static inline int64_t tg_replay_calls(int64_t count) { return count & ((1 << TG_REPLAY_BITS) - 1); }

/* Adds a call to the step that is being captured (captured.c); each replay will make it. bytes: counted in
 * tg_comm_info at each replay. even: all ranks give the same count. */
tg_status tg_replay_add(tg_comm *c, const tg_call_entry *entry, int64_t bytes, bool even);
/* Called when c ends or recovers. Frees the recordings of all captured steps that use c; their replays then fail. */
void tg_replays_end(tg_comm *c);
void tg_replays_end_all(tg_ctx *ctx, const tg_comm_ops *ops); /* the same for every communicator of this transport */
/* Calls fn for each call of the replay that `entry` records, if this context still has the captured step. */
void tg_replay_each(tg_ctx *ctx, const tg_call_entry *entry, void (*fn)(void *user, const tg_call_entry *call),
                    void *user);

/* Forms a group of these n ranks of c, in this order; this rank is one of them. All members know the list, so the ranks
 * exchange nothing. Only the members call it. If they form several groups of the same list, they form them in the same
 * order. all: every rank of c forms a group at this point, and either all groups have more than one rank or all have
 * one. Returns an inert communicator after recording an error. */
tg_comm *tg_comm_split_known(tg_comm *c, const int *ranks, int n, const char *name, tg_axis axis, bool all);
/* Forms a group in the same way, but in the existing communicator g, which ended when its parent recovered. g keeps its
 * address, so that its holders can go on using it. */
tg_status tg_comm_rejoin(tg_comm *g, const int *ranks, int n, bool all);

/* A call that was started. It is the object of a communicator's work. */
typedef struct tg_comm_request {
    tg_comm *comm;
    void *request; /* the transport's request; NULL: the call is done */
    tg_work *work;
    uint64_t entry;   /* its index in the flight recorder; 0: none */
    tg_status status; /* result of the wait */
    bool waited;
    bool ownerless; /* no storage owns the work */
    struct tg_comm_request *next, *prev; /* neighbors in the communicator's list; next also links free ones */
} tg_comm_request;

struct tg_comm {
    tg_listener listener; /* first; notifies a caller's transport of calls that this rank misses */
    bool listens, aborted;
    tg_ctx *ctx;
    const tg_comm_ops *ops;
    void *state;
    int rank, size;
    tg_axis axis;
    bool batch; /* a batch is open */
    bool reserved; /* the requests of works that no storage owns have been allocated */
    bool ended; /* the communicator that it was split from has recovered */
    uint64_t sequence; /* collectives of this group so far */
    tg_recorder *recorder;
    char name[32];
    /* The communicator that it was split from, the newest one split from it, and the next one split from its parent. */
    tg_comm *parent, *child, *sibling;
    tg_comm_info counts;
    tg_comm_request live; /* head of the ring of requests in flight */
    tg_comm_request *free;
    int ownerless; /* number of works in flight that no storage owns */
};

/* Why a group of a transport has ended. */
typedef struct tg_group_end {
    tg_status status;
    int culprit, reporter; /* ranks of the world; culprit -1: none */
    const char *text;
} tg_group_end;

/* Returns whether c can be used: it is not inert, and its context holds no error. */
bool tg_comm_ok(const tg_comm *c);
/* Called with the status s of an attempt to call c. If s is an error, this rank has missed the call, and its peers
 * are notified so that they do not wait for it. Returns s. */
tg_status tg_comm_missed(const tg_comm *c, tg_status s);
/* Makes a communicator over the state of a transport. Takes over the caller's reference to the recorder; NULL: makes a
 * recorder of its own. Returns NULL after recording the error; state is then not closed. */
tg_comm *tg_comm_make(tg_ctx *ctx, const tg_comm_ops *ops, void *state, int rank, int size, tg_recorder *recorder);
tg_comm *tg_comm_or_inert(tg_comm *c); /* c, or the inert communicator if c is NULL */
void tg_comm_free_all(tg_comm *c); /* frees the groups split from c, then c */
/* Makes a call over host memory, without tensors, and waits for it. */
tg_status tg_comm_exchange(tg_comm *c, tg_transfer *call);
/* Ends the calls that are done and whose works no storage owns, and releases the memory that they read. */
void tg_comm_reap(tg_comm *c);
/* Waits for all works of c and ends them. */
void tg_comm_finish_all(tg_comm *c);
/* Returns a request with a new work, in flight; NULL after recording the error. */
tg_comm_request *tg_comm_request_new(tg_comm *c);

extern const tg_comm_ops tg_self_transport, tg_plan_transport;

#endif
