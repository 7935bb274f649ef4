/* Communicators as the library's own ops see them: starting collectives, splitting groups and captured calls. */
#ifndef TG_COMM_H
#define TG_COMM_H

#include <tapegrad/transport.h>

#include "base/private_api.h"
#include "core/context.h"
#include "comm/flight_recorder.h"

/* One collective call. Fields that its kind does not use are zero. */
typedef struct tg_collective_args {
    tg_collective kind;
    tg_tensor *dst, *src;
    tg_reduce_op op;
    int root; /* the root rank; of a send or receive, the other rank */
    /* Numbers of elements to and from each rank; NULL: equal parts. An all-to-all uses both arrays, an all-gather only
     * recv, and a reduce-scatter only send. */
    const int64_t *send, *recv;
    const void *site; /* where the public function was called */
} tg_collective_args;

/* Checks, records and starts one collective. All public collectives call it. The storage of dst owns the returned work
 * (tapegrad/comm.h); c owns that of a call without dst. Returns NULL after recording an error. */
tg_work *tg_comm_start(tg_comm *c, const tg_collective_args *a);

/* Returns whether collectives move tensors of this dtype: they move those with which ops compute. */
static inline bool tg_comm_moves(tg_dtype dtype) { return tg_is_computed(dtype); }

/* Returns the communicator whose call the work is; NULL if it is no call of a communicator. */
tg_comm *tg_comm_of_work(const tg_work *w);

/* Returns the flight-recorder entry of a call in a group of `size` ranks. */
TG_PRIVATE_API tg_call_entry tg_transfer_entry(const tg_transfer *t, int size);

/* TG_REPLAY is one more kind of call, which moves no data. Each replay of a captured step starts one call of this kind
 * in each group in which the step makes calls that the ranks compare. These are all calls, except sends and receives in
 * a group of more than two ranks. So the replay is recorded and compared. The low TG_REPLAY_BITS bits of the call's
 * count hold the number of compared calls of the group. The bits above hold a digest of these calls. */
enum { TG_REPLAY = TG_COLLECTIVES, TG_REPLAY_BITS = 20 };
/* Returns the number of collectives that the count of a TG_REPLAY call holds. */
static inline int64_t tg_replay_calls(int64_t count) { return count & ((1 << TG_REPLAY_BITS) - 1); }

/* Adds a call to the step that is being captured (captured.c). bytes: what each replay of the step adds for this call
 * to tg_comm_info.bytes. even: the count of the call is the same on all ranks. */
tg_status tg_replay_add(tg_comm *c, const tg_call_entry *entry, int64_t bytes, bool even);
/* Called when c ends or recovers. Frees the recordings of all captured steps that use c; their replays then fail. */
void tg_replays_end(tg_comm *c);
/* The same for every communicator of this transport. */
TG_PRIVATE_API void tg_replays_end_all(tg_ctx *ctx, const tg_comm_ops *ops);
/* Calls fn for each call of the replay that `entry` records, if this context still has the captured step. */
void tg_replay_each(tg_ctx *ctx, const tg_call_entry *entry, void (*fn)(void *user, const tg_call_entry *call),
                    void *user);

/* Forms a group of these n ranks of c, in this order; this rank is one of them. All members know the list, so the ranks
 * exchange nothing. Only the members make this call. Ranks that form several groups with the same list form them in the
 * same order. all: every rank of c forms a group at this point, and either each of these groups has several ranks or
 * each has one. Returns an inert communicator (tapegrad.h) after recording an error. */
TG_PRIVATE_API tg_comm *tg_comm_split_known(tg_comm *c, const int *ranks, int n, const char *name, tg_axis axis,
                                            bool all);
/* Forms a group in the same way, but in the existing communicator g, which ended when its parent recovered. g keeps its
 * address and its axis, so code that has a pointer to g can go on using it. */
tg_status tg_comm_rejoin(tg_comm *g, const int *ranks, int n, const char *name, bool all);

/* A call that was started. The work that the call returned points to it. */
typedef struct tg_comm_request {
    tg_comm *comm;
    void *request; /* the transport's request; NULL: the call is done, and the status is its result */
    tg_work *work;
    uint64_t entry;   /* its index in the flight recorder; 0: none */
    tg_status status; /* result of the transport's start, and then of its wait */
    bool waited;      /* the transport's wait has returned */
    bool ownerless; /* no storage owns the work */
    struct tg_comm_request *next, *prev; /* neighbors in the ring tg_comm.live; next also links tg_comm.free */
} tg_comm_request;

struct tg_comm {
    tg_listener listener; /* first; notifies a transport of tg_comm_new_on of calls that this rank misses */
    bool listens, aborted; /* listener is registered; ops->abort has been called */
    tg_ctx *ctx;
    const tg_comm_ops *ops;
    void *state;
    int rank, size;
    tg_axis axis;
    bool batch; /* a batch is open */
    bool reserved; /* the requests of works that no storage owns have been allocated */
    bool ended; /* tg_comm_recover was called on a communicator from which it was split, directly or not */
    uint64_t sequence; /* number of collectives of this group so far, with splits and replays */
    tg_recorder *recorder;
    char name[32];
    /* The communicator that this one was split from, the newest one split from this one, and the next older one split
     * from the same parent. */
    tg_comm *parent, *child, *sibling;
    tg_comm_info counts;
    tg_comm_request live; /* head of the ring of requests whose works have not ended; some of their calls are done */
    tg_comm_request *free;
    int ownerless; /* number of these works that no storage owns */
};

/* Why a group of a transport has ended. */
typedef struct tg_group_end {
    tg_status status;
    /* The rank that caused the end (-1: none) and the rank that reported it, by their numbers in the world. */
    int culprit, reporter;
    const char *text;
} tg_group_end;

/* Returns whether c can be used: it is not inert, and its context holds no error. */
bool tg_comm_ok(const tg_comm *c);
/* Fails with TG_ERR_ABORTED if c has ended because of a recovery (tg_comm.ended). who: the call, for errors. */
tg_status tg_comm_check_ended(const tg_comm *c, const char *who);
/* Called with the status s of an attempt to start a collective call on c. If s is an error, this rank has missed the
 * call, and its peers are notified so that they do not wait for this rank. Returns s. */
tg_status tg_comm_note_missed(const tg_comm *c, tg_status s);
/* Makes a communicator over the state of a transport. recorder: the function takes over the caller's reference; NULL:
 * the communicator gets a recorder of its own. Returns NULL after recording the error; state is then not closed. */
TG_PRIVATE_API tg_comm *tg_comm_make(tg_ctx *ctx, const tg_comm_ops *ops, void *state, int rank, int size,
                                     tg_recorder *recorder);
tg_comm *tg_comm_or_inert(tg_comm *c); /* c, or the inert communicator if c is NULL */
void tg_comm_free_all(tg_comm *c); /* frees the groups split from c, then c */
/* Makes a collective whose src and dst are plain memory instead of tensors, and waits for it. The transport must be
 * able to move this memory (tg_comm_ops.host). The call is neither recorded nor counted in tg_comm_info. */
TG_PRIVATE_API tg_status tg_comm_exchange(tg_comm *c, tg_transfer *call);
/* Of the calls whose works no storage owns, ends those that are done, and releases the memory that they read. */
void tg_comm_reap(tg_comm *c);
/* Waits for all works of c and ends them. */
void tg_comm_finish_all(tg_comm *c);
/* Returns a new request in the ring c->live, with a new work. Returns NULL after recording the error. */
tg_comm_request *tg_comm_request_new(tg_comm *c);

extern const tg_comm_ops tg_self_transport, tg_plan_transport;

#endif
