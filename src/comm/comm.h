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
    const int64_t *send, *recv; /* elements to and from each rank; NULL: equal parts */
    const void *site;           /* where the public function was called */
} tg_collective_args;

/* Checks, records, posts and starts one collective. All public collectives call it. The storage of dst owns the
 * work, as tapegrad/comm.h says. Returns NULL after recording an error. */
tg_work *tg_comm_start(tg_comm *c, const tg_collective_args *a);

/* Returns the flight-recorder entry of a call in a group of `size` ranks. */
tg_call_entry tg_transfer_entry(const tg_transfer *t, int size);

/* The kind of the call by which ranks record and compare the replay of a captured step; it is not a collective of
 * its own. Its count holds the number of the group's collectives in the low bits and a digest of them above. */
enum { TG_REPLAY = TG_COLLECTIVES, TG_REPLAY_BITS = 20 };
static inline int64_t tg_replay_calls(int64_t count) { return count & ((1 << TG_REPLAY_BITS) - 1); }

/* captured.c: adds a call to the step that is being captured; each replay will make it. even: all ranks have the
 * same count. */
tg_status tg_replay_add(tg_comm *c, const tg_call_entry *entry, int64_t bytes, bool even);
/* Called when c ends or recovers: frees the calls that were recorded with it; replaying them is refused from then
 * on. */
void tg_replays_end(tg_comm *c);
void tg_replays_end_all(tg_ctx *ctx, const tg_comm_ops *ops); /* for every communicator of this transport */
/* Calls fn for each call of the replay that `entry` stands for, if this context still has its graph. */
void tg_replay_each(tg_ctx *ctx, const tg_call_entry *entry, void (*fn)(void *user, const tg_call_entry *call),
                    void *user);

/* Forms a group of these n ranks of c, in this order; this rank is one of them. The ranks exchange nothing, as all
 * members know the list. Collective over the members only, which form groups of the same list in the same order.
 * all: every rank of c forms a group at this point, and either all groups have more than one rank or all have one. */
tg_comm *tg_comm_split_known(tg_comm *c, const int *ranks, int n, const char *name, tg_axis axis, bool all);
/* Forms a group in the same way, but in g, which ended when its parent recovered. g keeps its address, so that its
 * holders can go on using it. */
tg_status tg_comm_rejoin(tg_comm *g, const int *ranks, int n, bool all);

/* A call that was started: the object of a communicator's work. */
typedef struct tg_comm_request {
    tg_comm *comm;
    void *request; /* of the transport */
    tg_work *work;
    uint64_t entry;   /* its index in the flight recorder; 0: none */
    tg_status status; /* result of the wait */
    bool waited;
    bool ownerless; /* no storage owns the work */
    struct tg_comm_request *next, *prev; /* neighbors in the communicator's list; next also links free ones */
} tg_comm_request;

struct tg_comm {
    tg_listener listener; /* first; for a caller's transport, which is notified of calls that this rank misses */
    bool listens, aborted;
    tg_ctx *ctx;
    const tg_comm_ops *ops;
    void *state;
    int rank, size;
    tg_axis axis;
    bool batch; /* a batch is open */
    bool reserved; /* requests for works that no storage owns are allocated */
    bool ended; /* it ended when the communicator that it was split from recovered */
    uint64_t sequence; /* collectives of this group so far */
    tg_recorder *recorder;
    char name[32];
    tg_comm *parent, *child, *sibling; /* what it was split from; its first split; the parent's next split */
    tg_comm_info counts;
    tg_comm_request live; /* head of the ring of requests in flight */
    tg_comm_request *free;
    int ownerless; /* works in flight that no storage owns */
};

/* Why a group of a transport has ended. */
typedef struct tg_group_end {
    tg_status status;
    int culprit, reporter; /* ranks of the world; culprit -1: none */
    const char *text;
} tg_group_end;

/* Returns whether c can be used. If not, and if it has a context, the reason is recorded there. */
bool tg_comm_ok(const tg_comm *c);
/* Called with the status s of an attempt to call c. If s is an error, this rank has missed the call, and its peers
 * are notified so that they do not wait for it. Returns s. */
tg_status tg_comm_missed(const tg_comm *c, tg_status s);
/* Takes over the caller's reference to the recorder; NULL: makes a recorder of its own. */
tg_comm *tg_comm_make(tg_ctx *ctx, const tg_comm_ops *ops, void *state, int rank, int size, tg_recorder *recorder);
tg_comm *tg_comm_or_inert(tg_comm *c); /* c, or the inert communicator if c is NULL */
void tg_comm_free_all(tg_comm *c); /* frees the groups split from c, then c */
/* Makes a call over host memory, without tensors, and waits for it. */
tg_status tg_comm_exchange(tg_comm *c, tg_transfer *call);
/* Ends finished works that no storage owns and releases the memory that they read. */
void tg_comm_reap(tg_comm *c);
void tg_comm_finish_all(tg_comm *c);
tg_comm_request *tg_comm_request_new(tg_comm *c);

extern const tg_comm_ops tg_self_transport, tg_plan_transport;

#endif
