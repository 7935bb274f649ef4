/* The transport between nodes, over a layer of non-blocking messages (tapegrad/p2p.h), which may be MPI.
 *
 * There are two kinds of traffic. Messages are small. A rank that starts a collective sends every member a message
 * with the call's signature, its call site and, if they are few, the bytes that this member takes. Larger data travel
 * in pieces: when all members have arrived and agree, each requests what it needs from the others, piece by piece. The
 * answer to a request is a piece or, if the group has failed, an empty one. Pieces pass through buffers of the
 * transport at both ends. So no message that is still under way touches a tensor after its call is given up, and every
 * piece that arrives was requested and has a buffer. A rank moves only data of calls that it has started itself, and
 * only while it is in a call of the library.
 *
 * Every rank sums its own part, over the ranks in their order, element by element, with the kernels of the
 * shared-memory transport. So all transports give the same bits. */
#ifndef TG_P2P_H
#define TG_P2P_H

#include <pthread.h>

#include <tapegrad/p2p.h>

#include "comm/protocol.h"
#include "comm/shm/region.h"

enum {
    TG_P2P_MESSAGE = 2048, /* bytes of a message at most */
    TG_P2P_RECEIVES = 32,  /* messages that may arrive between two polls */
    TG_P2P_SITE = TG_SITE_TEXT,
    TG_P2P_FAILURE = 1536, /* bytes of an error's text */
    TG_P2P_PIECES = 2,     /* pieces under way from one member to another, for each phase */
    TG_P2P_PHASES = 2,     /* an all-reduce sums its parts, then gathers them */
    TG_P2P_PAIR_CALLS = 32 /* sends from one member to another that have a place, at first */
};

typedef struct tg_p2p_rank tg_p2p_rank;
typedef struct tg_p2p_group tg_p2p_group;
typedef struct tg_p2p_call tg_p2p_call;

/* ---- buffers.c: sending and receiving through the layer ---- */

/* A buffer. While it is in flight, the layer reads or fills it. */
typedef struct tg_p2p_buffer {
    void *data;
    size_t bytes; /* bytes that have arrived */
    bool in_flight;
    struct tg_p2p_buffer *next;
} tg_p2p_buffer;

/* Identifies a group on all its members without an exchange. base: a digest of the parent and the members; ordinal:
 * the number of earlier groups with this digest. */
typedef struct tg_p2p_key {
    uint64_t base, ordinal;
} tg_p2p_key;

typedef enum tg_p2p_kind {
    TG_P2P_CALL,    /* the sender has arrived at a collective */
    TG_P2P_SEND,    /* the sender has arrived at a send to the receiver */
    TG_P2P_TAKEN,   /* a send whose bytes came with its message has met its receive */
    TG_P2P_REQUEST, /* requests the next piece of the receiver's data for the sender */
    TG_P2P_FAIL,    /* the group has failed */
    TG_P2P_LEAVE,   /* the sender has freed its communicator */
    TG_P2P_MISSED,  /* the number of calls that the sender has missed */
    TG_P2P_RECOVER,    /* the sender has come to tg_comm_recover */
    TG_P2P_DECIDE,  /* the members that form the next group */
    TG_P2P_FAILED,  /* the sender's context holds an error */
    TG_P2P_CLEARED, /* it holds none any more */
    TG_P2P_PROBE,   /* asks whether the receiver waits too (deadlock.c) */
    TG_P2P_BYE,     /* the sender's last message */
} tg_p2p_kind;

typedef struct tg_p2p_message {
    uint8_t kind, pair, phase, whole;
    int32_t rank, member;   /* the sender's number in the world and in the group */
    int32_t tag;            /* of the answer */
    int32_t status, cause;  /* of a failure */
    uint32_t text, payload; /* bytes in the body: a text and its 0, then data for the receiver */
    tg_p2p_key group;
    uint64_t sequence;
    tg_signature signature;
    int64_t count, to_you, from_you; /* elements: of the call; of an all-to-all, to and from the receiver */
    uint64_t balance;                /* of an all-to-all: see tg_p2p_call */
    char body[];
} tg_p2p_message;

/* What this rank knows of another. */
typedef struct tg_p2p_peer {
    bool gone;           /* it has sent BYE */
    double since, heard; /* times when its error was first seen, and when its last message came */
    tg_status status;    /* of its context */
    int cause;           /* the rank that caused that failure */
    int tag;             /* of the last piece that was requested from it */
    uint64_t probe;      /* the last probe of its own that this rank has passed on */
    char *failure;       /* TG_P2P_FAILURE bytes; NULL before its first failure. This rank has an entry too */
} tg_p2p_peer;

typedef struct tg_p2p_request {
    tg_p2p_call *call;
    tg_p2p_group *group;
    bool done;
    struct tg_p2p_request *next, *prev;
} tg_p2p_request;

/* A message for a group that this rank has yet to form. */
typedef struct tg_p2p_early {
    struct tg_p2p_early *next;
    size_t bytes; /* with the message, which follows */
    tg_p2p_message *m;
} tg_p2p_early;

/* The number of groups that this rank has made with this base. */
typedef struct tg_p2p_base {
    struct tg_p2p_base *next;
    uint64_t base, made;
} tg_p2p_base;

/* The state of one rank that its communicators share. */
struct tg_p2p_rank {
    tg_listener listener; /* first, as the context holds a pointer to it */
    tg_ctx *ctx;
    tg_comm_ops table; /* of its communicators; its name is the layer's */
    const tg_p2p_ops *layer;
    void *state;      /* of the layer; NULL: closed */
    pthread_t thread; /* the thread that may call the layer */
    int me, size, spins;
    int cause;      /* the rank whose failure this rank's context is recording; -1: its own */
    int open;       /* communicators */
    tg_comm *node;  /* of the ranks of this node, numbered as in the world; NULL: none */
    int64_t *nodes; /* the node of each rank; NULL until the ranks have exchanged them */
    bool broken;    /* a call of the layer has failed */
    bool quiet;     /* no message can come any more */
    bool missed;    /* this rank has missed a call since its last error was cleared */
    tg_recorder *recorder;
    bool announce;                /* another thread has recorded a failure, which the next poll announces */
    tg_p2p_call *waits_for;       /* the call that this rank waits for now; NULL: none */
    uint64_t probes, first_probe; /* probes that it has sent so far; the first one of this wait (deadlock.c) */
    double probed;                /* time of its last probe */
    tg_p2p_peer *peer;
    tg_p2p_group *groups;
    tg_p2p_early *early, **early_end;
    tg_p2p_base *bases;
    tg_p2p_request *first, *last, *free; /* in flight, in the order of their start; and free ones */
    tg_p2p_buffer in[TG_P2P_RECEIVES];
    int next_in;
    tg_p2p_buffer *out, *all_out; /* free buffers, linked by next; all buffers, each in a message_buffer (buffers.c) */
    int n_out;
};

tg_status tg_p2p_open(tg_p2p_rank *self);
void tg_p2p_close(tg_p2p_rank *self);
tg_status tg_p2p_receive(tg_p2p_rank *self, tg_p2p_buffer *buffer, size_t capacity, int source, int tag);
tg_status tg_p2p_send(tg_p2p_rank *self, tg_p2p_buffer *buffer, size_t bytes, int to, int tag);
/* Returns an empty message, or NULL after an error. */
tg_p2p_message *tg_p2p_draft(tg_p2p_rank *self, tg_p2p_kind kind, const tg_p2p_group *g);
/* Writes the text of a draft. */
void tg_p2p_write(tg_p2p_message *m, const char *text);
void tg_p2p_post(tg_p2p_rank *self, tg_p2p_message *m, int to);
/* Answers a request with an empty piece. */
void tg_p2p_refuse(tg_p2p_rank *self, int to, int tag);
/* Polls the layer: buffers that have completed are no longer in flight. */
void tg_p2p_poll(tg_p2p_rank *self);
/* Returns the oldest message that has arrived, or NULL if there is none. tg_p2p_taken releases it. */
const tg_p2p_message *tg_p2p_next(tg_p2p_rank *self);
void tg_p2p_taken(tg_p2p_rank *self);
/* Returns whether the layer has sent everything. */
bool tg_p2p_sent(const tg_p2p_rank *self);

/* ---- Groups (group.c) ---- */

/* A piece that a member sends. It is free when it is not in flight and has no call. */
typedef struct tg_p2p_piece {
    tg_p2p_buffer buffer;
    tg_p2p_call *call; /* the call that requested it; NULL: none, or one that was given up since */
    int64_t index;
} tg_p2p_piece;

/* The sends from one member to another, or the receives. The n-th send meets the n-th receive. */
typedef struct tg_p2p_pair_calls {
    uint64_t next, capacity;
    tg_p2p_call **call; /* `capacity` places, by number; NULL before the first. They double when one is taken */
} tg_p2p_pair_calls;

/* A block of calls for sends and receives. Blocks stay at their address as long as the group exists. */
typedef struct tg_p2p_block {
    struct tg_p2p_block *next;
    tg_p2p_call *calls;
    size_t bytes;
} tg_p2p_block;

typedef struct tg_p2p_member {
    int rank; /* of the world */
    bool left, recovering;
    uint64_t missed_calls; /* calls that it has missed after errors */
    tg_call_entry last;    /* its last call that this rank knows of; sequence 0: none */
    char site[TG_P2P_SITE];
    tg_p2p_piece in[TG_P2P_PHASES][TG_P2P_PIECES];
    tg_p2p_buffer out[TG_P2P_PIECES];
    tg_p2p_pair_calls send, recv;
} tg_p2p_member;

/* Bytes that a call keeps until it is done. */
typedef struct tg_p2p_copy {
    struct tg_p2p_copy *next;
    size_t bytes;
    bool used;
    char data[];
} tg_p2p_copy;

/* A communicator's state. g is its group, which tg_comm_recover replaces. If all members are of one node, inner is its
 * state in that node's transport instead. */
typedef struct tg_p2p_handle {
    tg_p2p_rank *self;
    tg_p2p_group *g;
    void *inner;
} tg_p2p_handle;

struct tg_p2p_group {
    tg_control control; /* first */
    tg_p2p_rank *self;
    tg_p2p_group *next;
    tg_p2p_key key;
    int window;               /* collectives that may be in flight; there are places for twice as many */
    size_t few;               /* bytes of data that travel with a message, at most */
    size_t piece;             /* bytes of a piece */
    uint64_t sequence;        /* of the next collective */
    bool held[TG_P2P_PHASES]; /* an older call could not request all that it needs yet, so younger ones wait */
    bool world;               /* it has all ranks, or those that recovery has left */
    bool closed, failed;
    bool passed_on; /* this rank has passed a disagreement on to the other members */
    tg_status status;
    int culprit, reporter; /* ranks of the world; -1: none */
    uint64_t failed_at;    /* the first collective that is lost; earlier ones go on */
    bool decided;          /* in recovery: the list holds */
    bool *list;            /* in recovery: whether each member is present */
    char name[32], failure[TG_P2P_FAILURE];
    size_t bytes, buffer_bytes, calls_bytes;
    char *buffers; /* of the pieces; NULL before the first */
    tg_p2p_copy *copies;
    tg_p2p_block *blocks;
    tg_p2p_call *calls;
    tg_p2p_member member[];
};

/* Makes the group of these ranks of the world, in this order. parent NULL: it is the world's. Returns NULL after
 * recording the error. */
tg_p2p_group *tg_p2p_group_new(tg_p2p_rank *self, const tg_p2p_key *parent, const int *ranks, int n, int rank,
                               const char *name);
void tg_p2p_group_close(tg_p2p_group *g);
/* Frees the closed groups whose pieces have arrived. Returns whether no closed group is left. */
bool tg_p2p_groups_sweep(tg_p2p_rank *self);
/* Frees all groups and everything that belongs to them, after the layer has closed. */
void tg_p2p_groups_free(tg_p2p_rank *self);
/* Allocates the buffers of the group's pieces, at its first call. */
tg_status tg_p2p_buffers(tg_p2p_group *g);
void *tg_p2p_copy_of(tg_p2p_group *g, const void *data, size_t bytes);
void tg_p2p_copy_end(tg_p2p_group *g, const void *data);
/* Allocates n calls with so many members. Returns NULL after recording the error. */
tg_p2p_call *tg_p2p_calls_new(tg_p2p_group *g, int n, int members, size_t *bytes);
/* Returns the call of a send or a receive, which is reserved until tg_p2p_end_call; NULL after recording the error. */
tg_p2p_call *tg_p2p_pair_place(tg_p2p_group *g, int member, bool send, uint64_t sequence);
/* Returns the group that a message is for. NULL: unknown; the message is kept if the group may yet be formed. */
tg_p2p_group *tg_p2p_find(tg_p2p_rank *self, const tg_p2p_message *m);

/* ---- Calls (calls.c) ---- */

/* One member's part of a call, as far as it is known. */
typedef struct tg_p2p_side {
    bool arrived;
    tg_signature signature;
    int64_t count, to_me, from_me;
    uint64_t balance;
    int64_t requested[TG_P2P_PHASES];      /* pieces that this rank has requested from the member */
    int64_t wanted[TG_P2P_PHASES];         /* pieces that the member has requested from this rank */
    int64_t served[TG_P2P_PHASES];         /* pieces of these that were sent */
    int tag[TG_P2P_PHASES][TG_P2P_PIECES]; /* tags of the pieces that were not */
    char *few;                             /* data that came with its message */
    char site[TG_P2P_SITE];
} tg_p2p_side;

struct tg_p2p_call {
    tg_p2p_group *g;
    tg_p2p_request *request; /* of this rank; NULL: it has not arrived */
    uint64_t sequence;
    uint64_t collectives; /* of a send or a receive: those of the group before it */
    bool ready; /* all have arrived and agree */
    bool pair;  /* a send or a receive */
    bool lost;  /* another rank has given it up */
    int peer;   /* of a send or a receive: the other rank */
    int arrived;
    /* Of an all-to-all: a digest of what this rank sends to each member, minus one of what it expects from each. If all
     * pairs agree, the sum over the ranks is 0. If it is not, members of pairs that agree wait for the report of a pair
     * that does not. */
    uint64_t balance;
    bool disputed; /* a member's call differs; it is reported when all have arrived, or after a while */
    tg_transfer t;
    int64_t *send_at, *recv_at; /* where parts begin: size + 1 numbers, in `begins` */
    int64_t *begins;
    void *copy; /* of src */
    tg_signature signature;
    int64_t in, out;      /* pieces that have yet to arrive, and to be sent */
    int64_t sums, summed; /* pieces of the part that this rank sums; those that it has summed */
    int64_t owed;         /* pieces requested from this rank that it has not sent */
    tg_p2p_side *side;    /* one for each member; a send or a receive has one */
};

static inline tg_p2p_side *tg_p2p_side_of(const tg_p2p_call *c, int member) { return &c->side[c->pair ? 0 : member]; }
static inline tg_p2p_call *tg_p2p_call_at(tg_p2p_group *g, uint64_t sequence) {
    return &g->calls[sequence % (uint64_t)(2 * g->window)];
}
/* Returns the call's number as errors quote it, from 0. A send or a receive has that of the next collective. */
static inline uint64_t tg_p2p_number(const tg_p2p_call *c) { return c->pair ? c->collectives : c->sequence; }
/* Returns the first collective that is lost if the call fails. Sends and receives have numbers of their own. */
static inline uint64_t tg_p2p_lost_from(const tg_p2p_call *c) { return c->pair ? c->g->sequence : c->sequence; }
/* Returns the place of a send or a receive; NULL: none yet. */
static inline tg_p2p_call *tg_p2p_pair_at(const tg_p2p_pair_calls *m, uint64_t sequence) {
    return m->capacity ? m->call[sequence % m->capacity] : NULL;
}

tg_status tg_p2p_start(tg_p2p_group *g, const tg_transfer *t, tg_p2p_request *r);
/* Handles a message for the group. The next three do so for one kind of message. */
void tg_p2p_deliver(tg_p2p_group *g, const tg_p2p_message *m);
void tg_p2p_arrival(tg_p2p_group *g, const tg_p2p_message *m);
void tg_p2p_requested(tg_p2p_rank *self, const tg_p2p_message *m);
void tg_p2p_send_taken(tg_p2p_group *g, const tg_p2p_message *m);
/* Ends the call for this rank and frees its place. */
void tg_p2p_end_call(tg_p2p_call *c);
/* Writes where this rank made a call. */
void tg_p2p_site(const tg_p2p_rank *self, const void *site, char *buf, size_t n);

/* ---- flow.c: the data that each rank sends to each other ---- */

typedef struct tg_p2p_flow {
    char *data;
    int64_t n; /* elements */
} tg_p2p_flow;

size_t tg_p2p_element(const tg_p2p_call *c);
bool tg_p2p_sums(const tg_p2p_call *c);
/* Returns whether an all-reduce is so small that every rank sums all of it. */
bool tg_p2p_whole(const tg_p2p_call *c);
tg_p2p_flow tg_p2p_out(const tg_p2p_call *c, int to, int phase);
/* Returns the place of what the rank receives from `from` in this phase; its data is NULL if it is summed instead of
 * stored. */
tg_p2p_flow tg_p2p_in(const tg_p2p_call *c, int from, int phase);
/* Returns the place of the sum. *own: this rank's own share of it. */
tg_p2p_flow tg_p2p_sum(const tg_p2p_call *c, const char **own);
bool tg_p2p_is_inline(const tg_p2p_call *c, tg_p2p_flow f, int phase);
int64_t tg_p2p_piece_count(const tg_p2p_call *c, tg_p2p_flow f);
tg_p2p_flow tg_p2p_piece_of(const tg_p2p_call *c, tg_p2p_flow f, int64_t index);

/* ---- pieces.c: the pieces ---- */

/* Begins to move the data of a call at which all members have arrived and agree. */
void tg_p2p_begin(tg_p2p_call *c);
/* Does what can be done for the call now. */
void tg_p2p_advance(tg_p2p_call *c);
void tg_p2p_use_pieces(tg_p2p_group *g);

/* ---- node.c ---- */

/* Lets the ranks of each node meet in its memory. *node: their communicator; NULL: they cannot. nodes: has space for
 * one number for each rank. *in_one: whether all ranks have met in one node. */
tg_status tg_p2p_meet(tg_comm *world, tg_comm **node, int64_t *nodes, bool *in_one);

/* ---- progress.c ---- */

void tg_p2p_progress(tg_p2p_rank *self);
/* Removes a call that cannot be finished from those in flight. */
void tg_p2p_forget(tg_p2p_request *r);
/* Pauses this thread, longer with each round. */
void tg_p2p_pause(const tg_p2p_rank *self, int round);
/* Makes progress until there() returns true. Returns false if the context's deadline passes first. */
bool tg_p2p_until(tg_p2p_rank *self, bool (*there)(tg_p2p_rank *self));

/* ---- failure.c ---- */

/* Returns whether the call cannot be finished because its group has failed. A call before the one that failed goes on:
 * a member may have finished it and failed after it. A message whose other half is here goes on too. */
bool tg_p2p_cannot_finish(const tg_p2p_call *c);
/* Ends the group. The first failure is kept; only `from`, the first collective that is lost, may decrease later.
 * reporter: the member that found the failure; if it is this rank, it notifies the others. */
void tg_p2p_fail(tg_p2p_group *g, tg_status status, int culprit, int reporter, const char *text, uint64_t from);
/* Passes disagreements on: sends the reason of every group that has failed for a disagreement to its members. Called
 * before this rank announces its own failure. Otherwise a member could learn of that first, and report it instead of
 * the disagreement, because the message of the rank that found the disagreement may still be on its way. */
void tg_p2p_pass_on(tg_p2p_rank *self);
/* Returns whether the call still waits for that member to arrive. */
bool tg_p2p_awaited(const tg_p2p_call *c, int member);
/* Fills *q with the call of a member that has arrived. peer: the other rank of a send or a receive. */
void tg_p2p_quote(const tg_p2p_call *c, int member, int peer, tg_quoted *q);
/* Ends the group if members disagree about the call. Once all have arrived, all make the same text. */
void tg_p2p_report_dispute(tg_p2p_call *c);
/* Returns whether that member, which has arrived, agrees with this rank. */
bool tg_p2p_agree(const tg_p2p_call *c, int member);
/* Returns the listener that announces the context's errors to the other ranks. */
tg_listener tg_p2p_listener(void);
void tg_p2p_peer_failed(tg_p2p_rank *self, int rank, tg_status status, int cause, const char *text);

/* ---- deadlock.c ---- */

/* Asks the members that the call has awaited since that time whether they wait too. */
void tg_p2p_probe(const tg_p2p_call *c, double since);
void tg_p2p_probed(tg_p2p_group *g, const tg_p2p_message *m);

/* ---- control.c ---- */

extern const tg_control_ops tg_p2p_control;
extern const tg_mover_ops tg_p2p_mover;
static inline tg_p2p_group *tg_p2p_of(tg_control *c) { return (tg_p2p_group *)c; }
void tg_p2p_recovery(tg_p2p_group *g, const tg_p2p_message *m);

extern const tg_comm_ops tg_p2p_transport;

#endif
