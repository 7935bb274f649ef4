/* The transport between nodes, over a layer of non-blocking messages (tapegrad/p2p.h), which may be MPI.
 *
 * There are two kinds of traffic: messages and pieces. Messages are small. A rank that starts a collective sends every
 * member a message with the call's signature and call site. If the data for that member is small, the message contains
 * it too (inline data). Larger data travels in pieces: when all members have arrived and agree, each requests what it
 * needs from the others, piece by piece. The answer to a request is a piece or, if the group has failed, an empty one.
 * Pieces pass through buffers of the transport at both ends. So a piece that is still in flight when its call is given
 * up never touches a tensor. Every piece that arrives was requested, so there is a buffer for it. A rank moves only
 * data of calls that it has started itself, and only while it is in a call of the library.
 *
 * Every rank sums its own part, over the ranks in their order, element by element, with the kernels of the
 * shared-memory transport. So both transports give the same bits. */
#ifndef TG_P2P_H
#define TG_P2P_H

#include <pthread.h>

#include <tapegrad/p2p.h>

#include "comm/protocol.h"
#include "comm/shm/region.h"

enum {
    TG_P2P_MESSAGE = 2048, /* most bytes of a message */
    TG_P2P_RECEIVES = 32,  /* receives of messages that are posted at a time */
    TG_P2P_SITE = TG_SITE_TEXT,
    TG_P2P_FAILURE = 1536, /* most bytes of an error's text, with the terminating 0 */
    TG_P2P_PIECES = 2,     /* most pieces in flight from one member to another, for each phase */
    TG_P2P_PHASES = 2,     /* an all-reduce sums its parts in phase 0, then gathers them in phase 1 */
    TG_P2P_PAIR_CALLS = 32 /* first capacity of tg_p2p_pair_calls */
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

/* The end of a group: its key, and the first collective that is lost. */
typedef struct tg_p2p_end {
    tg_p2p_key group;
    uint64_t from;
} tg_p2p_end;

/* Kinds of messages. The sender and the receiver are those of the message. */
typedef enum tg_p2p_kind {
    TG_P2P_CALL,    /* the sender has arrived at a collective */
    TG_P2P_SEND,    /* the sender has arrived at a send (tg_comm_send) to the receiver */
    TG_P2P_TAKEN,   /* the sender has stored the inline data of a TG_P2P_SEND that it got from the receiver */
    TG_P2P_REQUEST, /* the sender requests the next piece of the data that the receiver has for it */
    TG_P2P_FAIL,    /* the group has failed; the payload of a deadlock is the end of the other group (tg_p2p_end) */
    TG_P2P_LEAVE,   /* the sender has freed its communicator of the group */
    TG_P2P_MISSED,  /* states how many calls the sender has missed */
    TG_P2P_RECOVER, /* the sender has called tg_comm_recover */
    TG_P2P_DECIDE,  /* lists the members that form the next group */
    TG_P2P_FAILED,  /* the sender's context holds an error */
    TG_P2P_CLEARED, /* the sender's context no longer holds an error */
    TG_P2P_PROBE,   /* the sender waits for the receiver; serves to find deadlocks (deadlock.c) */
    TG_P2P_BYE,     /* the sender's last message */
} tg_p2p_kind;

/* A message. Fields that a kind does not use are 0. */
typedef struct tg_p2p_message {
    /* pair: the call is a send or receive. phase: of a request, the phase of the piece; of a probe, 1 if the sender
     * waits in a receive. */
    uint8_t kind, pair, phase, unused;
    int32_t rank, member;   /* the sender's number in the world and in the group */
    int32_t tag;            /* of a request: the tag that its answer must have */
    int32_t status, cause;  /* of a failure. cause: the rank that caused it; of a probe, the rank that sent it first */
    uint32_t text, payload; /* bytes in the body: a text with its terminating 0, then data for the receiver */
    tg_p2p_key group;
    uint64_t sequence; /* of the call; of FAIL: the first collective that is lost; of MISSED: the number of calls */
    tg_signature signature;
    /* count: number of elements of the call; of a probe, the number of the probe. to_you, from_you: of an all-to-all,
     * numbers of elements that the sender sends to the receiver and expects from it. */
    int64_t count, to_you, from_you;
    uint64_t balance; /* of an all-to-all: see tg_p2p_call */
    char body[];
} tg_p2p_message;

/* What this rank knows of one rank of the world. This rank itself has an entry too. */
typedef struct tg_p2p_peer {
    bool gone;           /* it has sent TG_P2P_BYE */
    int64_t pid;         /* its process, of another node too; 0 until the ranks have exchanged them */
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
    int64_t *nodes; /* the node of each rank; NULL until the ranks have exchanged them */
    bool broken;    /* a call of the layer has failed */
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

/* Allocates the buffers for messages, and posts the receives. */
tg_status tg_p2p_open(tg_p2p_rank *self);
/* Closes the layer, and frees the buffers. */
void tg_p2p_close(tg_p2p_rank *self);
/* Start to receive into the buffer from rank `source`, or to send from it. The buffer is then in flight. */
tg_status tg_p2p_receive(tg_p2p_rank *self, tg_p2p_buffer *buffer, size_t capacity, int source, int tag);
tg_status tg_p2p_send(tg_p2p_rank *self, tg_p2p_buffer *buffer, size_t bytes, int to, int tag);
/* Returns an empty message, or NULL after an error. */
tg_p2p_message *tg_p2p_draft(tg_p2p_rank *self, tg_p2p_kind kind, const tg_p2p_group *g);
/* Writes the text of a draft. */
void tg_p2p_write(tg_p2p_message *m, const char *text);
/* Sends a draft; m NULL: does nothing. */
void tg_p2p_post(tg_p2p_rank *self, tg_p2p_message *m, int to);
/* Answers a request with an empty piece. */
void tg_p2p_refuse(tg_p2p_rank *self, int to, int tag);
/* Polls the layer: buffers that have completed are no longer in flight. */
void tg_p2p_poll(tg_p2p_rank *self);
/* Returns the oldest message that has arrived; NULL: none. tg_p2p_taken releases it. */
const tg_p2p_message *tg_p2p_next(tg_p2p_rank *self);
void tg_p2p_taken(tg_p2p_rank *self);
/* Returns whether the layer has sent all messages. */
bool tg_p2p_sent(const tg_p2p_rank *self);

/* ---- Groups (group.c) ---- */

/* The buffer for a piece that a member sends. It is free if it is not in flight and has no call. */
typedef struct tg_p2p_piece {
    tg_p2p_buffer buffer;
    tg_p2p_call *call; /* the call that requested it; NULL: none, or one that was given up since */
    int64_t index;     /* number of the piece among those of the member and phase */
} tg_p2p_piece;

/* The sends to a member, or the receives from it, that are in flight. The n-th send of one rank belongs to the n-th
 * receive of the other. */
typedef struct tg_p2p_pair_calls {
    uint64_t next, capacity; /* number of the next send or receive; number of places */
    tg_p2p_call **call; /* the places: call n is in place n % capacity. NULL before the first call */
} tg_p2p_pair_calls;

/* A block of calls for sends and receives. Blocks stay at their address as long as the group exists. */
typedef struct tg_p2p_block {
    struct tg_p2p_block *next;
    tg_p2p_call *calls;
    size_t bytes;
} tg_p2p_block;

typedef struct tg_p2p_member {
    int rank; /* its number in the world */
    bool left, recovering; /* it has freed its communicator; it has called tg_comm_recover */
    uint64_t missed_calls; /* calls that it has missed after errors */
    tg_call_entry last;    /* its last call that this rank knows of; sequence 0: none */
    char site[TG_P2P_SITE];
    tg_p2p_piece in[TG_P2P_PHASES][TG_P2P_PIECES];
    tg_p2p_buffer out[TG_P2P_PIECES];
    tg_p2p_pair_calls send, recv;
} tg_p2p_member;

/* A copy of data that a call keeps until it is done. */
typedef struct tg_p2p_copy {
    struct tg_p2p_copy *next;
    size_t bytes;
    bool used;
    char data[];
} tg_p2p_copy;

/* A communicator's state. If its members share memory on one node, inner is its state in that node's transport, and g
 * is NULL. Otherwise g is its group, which tg_comm_recover replaces, and inner is NULL. */
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
    int window;               /* most collectives in flight; there are places for twice as many */
    size_t inline_bytes;      /* most bytes of data that a message contains */
    size_t piece;             /* bytes of a piece */
    uint64_t sequence;        /* of the next collective */
    bool held[TG_P2P_PHASES]; /* an older call could not yet request all that it needs, so younger calls wait */
    bool world;               /* it has all ranks, or all that recovery has left */
    bool closed, failed;
    bool passed_on; /* this rank has passed the disagreement on (tg_p2p_pass_on) */
    bool deadlocked;      /* it ends because of a deadlock, together with another group */
    tg_p2p_end other_end; /* of that group */
    tg_status status;
    int culprit, reporter; /* numbers in the world; -1: none */
    uint64_t failed_at;    /* the first collective that is lost; earlier ones go on */
    bool decided;          /* in recovery: the list is valid */
    bool *list;            /* in recovery: whether each member has joined */
    char name[32], failure[TG_P2P_FAILURE];
    size_t bytes, buffer_bytes, calls_bytes;
    char *buffers; /* of the pieces; NULL before the first */
    tg_p2p_copy *copies;
    tg_p2p_block *blocks;
    tg_p2p_call *calls;
    tg_p2p_member member[];
};

uint64_t tg_p2p_digest(const tg_p2p_key *key);
/* Makes the group of these n ranks of the world, in this order; this rank is number `rank`. parent: key of the group
 * that it is split from; NULL: it is the world. Returns NULL after recording the error. */
tg_p2p_group *tg_p2p_group_new(tg_p2p_rank *self, const tg_p2p_key *parent, const int *ranks, int n, int rank,
                               const char *name);
/* Notifies the members that this rank leaves the group, and marks the group as closed. */
void tg_p2p_group_close(tg_p2p_group *g);
/* Frees the closed groups that have no piece in flight. Returns whether no closed group is left. */
bool tg_p2p_groups_sweep(tg_p2p_rank *self);
/* Frees all groups and everything that belongs to them, after the layer has closed. */
void tg_p2p_groups_free(tg_p2p_rank *self);
/* Allocates the buffers of the group's pieces if they are not allocated yet. */
tg_status tg_p2p_buffers(tg_p2p_group *g);
/* Returns a copy of the data, which tg_p2p_copy_end releases; NULL after recording the error. */
void *tg_p2p_copy_of(tg_p2p_group *g, const void *data, size_t bytes);
void tg_p2p_copy_end(tg_p2p_group *g, const void *data);
/* Allocates n calls, each with a tg_p2p_side for each of `members` members, and sets *bytes to the size of the block.
 * Returns NULL after recording the error. */
tg_p2p_call *tg_p2p_calls_new(tg_p2p_group *g, int n, int members, size_t *bytes);
/* Returns the call in the place of send number `sequence` to the member or, if `send` is false, of the receive of that
 * number from the member. The place is taken until tg_p2p_end_call. Returns NULL after recording the error. */
tg_p2p_call *tg_p2p_pair_place(tg_p2p_group *g, int member, bool send, uint64_t sequence);
/* Returns the group that a message is for. Returns NULL if this rank has no such open group. If it may yet form the
 * group, the message is then kept for the group, except a request or a probe. */
tg_p2p_group *tg_p2p_find(tg_p2p_rank *self, const tg_p2p_message *m);
/* Returns this rank's group with this key, which may be closed; NULL: it has none. */
tg_p2p_group *tg_p2p_with_key(const tg_p2p_rank *self, const tg_p2p_key *key);

/* ---- Calls (calls.c) ---- */

/* What this rank knows of one member's part of a call. */
typedef struct tg_p2p_side {
    bool arrived;
    tg_signature signature;
    int64_t count, to_me, from_me; /* the fields count, to_you and from_you of the member's message */
    uint64_t balance;
    int64_t requested[TG_P2P_PHASES];      /* number of pieces that this rank has requested from the member */
    int64_t wanted[TG_P2P_PHASES];         /* number of pieces that the member has requested from this rank */
    int64_t served[TG_P2P_PHASES];         /* number of the wanted pieces that this rank has sent */
    int tag[TG_P2P_PHASES][TG_P2P_PIECES]; /* tags of the wanted pieces that this rank has yet to send */
    char *inline_data;                     /* the data that the member's message contained */
    char site[TG_P2P_SITE];
} tg_p2p_side;

struct tg_p2p_call {
    tg_p2p_group *g;
    tg_p2p_request *request; /* of this rank; NULL: it has not arrived */
    uint64_t sequence;
    uint64_t collectives; /* of a send or a receive: number of the group's collectives before it */
    bool ready; /* all members have arrived and agree */
    bool pair;  /* a send or a receive */
    bool lost;  /* it cannot be finished, even if it precedes failed_at or its peer has arrived */
    int peer;   /* of a send or a receive: the other member */
    int arrived; /* number of members that have arrived; of a send or a receive: 1 if the peer has */
    /* Of an all-to-all: the sum of digests of the counts that this rank sends to each member, minus those of the counts
     * that it expects from each. If every two members agree, the sum of the balances of all ranks is 0. If this sum is
     * not 0, a rank that agrees with all members waits for the report of two members that disagree. */
    uint64_t balance;
    bool disputed; /* a member's call differs from this rank's; reported when all have arrived, or after 0.1 s */
    tg_transfer t;
    int64_t *send_at, *recv_at; /* where parts begin: size + 1 numbers, in `begins` */
    int64_t *begins;
    void *copy; /* a copy of src, for an all-to-all in place; NULL: none */
    tg_signature signature;
    int64_t in, out;      /* number of pieces that have yet to arrive, and that have yet to be sent */
    int64_t sums, summed; /* number of pieces of the part that this rank sums; number of those that it has summed */
    int64_t owed;         /* number of pieces requested from this rank that it has not sent */
    tg_p2p_side *side;    /* one for each member; a send or a receive has one */
};

static inline tg_p2p_side *tg_p2p_side_of(const tg_p2p_call *c, int member) { return &c->side[c->pair ? 0 : member]; }
static inline tg_p2p_call *tg_p2p_call_at(tg_p2p_group *g, uint64_t sequence) {
    return &g->calls[sequence % (uint64_t)(2 * g->window)];
}
/* Returns the call's number, from 0, for tg_signature_entry. A send or receive has that of the next collective. */
static inline uint64_t tg_p2p_number(const tg_p2p_call *c) { return c->pair ? c->collectives : c->sequence; }
/* Returns the number of the first collective that is lost if the call fails. If the call is a send or a receive, that
 * is the next collective. */
static inline uint64_t tg_p2p_lost_from(const tg_p2p_call *c) { return c->pair ? c->g->sequence : c->sequence; }
/* Returns the call in the place of send or receive number `sequence`; NULL: there are no places yet. */
static inline tg_p2p_call *tg_p2p_pair_at(const tg_p2p_pair_calls *m, uint64_t sequence) {
    return m->capacity ? m->call[sequence % m->capacity] : NULL;
}

/* Starts a call: notifies the members that this rank has arrived, and compares the call with theirs. */
tg_status tg_p2p_start(tg_p2p_group *g, const tg_transfer *t, tg_p2p_request *r);
/* Handles a message for the group. */
void tg_p2p_deliver(tg_p2p_group *g, const tg_p2p_message *m);
/* The handlers of TG_P2P_CALL and TG_P2P_SEND, of TG_P2P_REQUEST, and of TG_P2P_TAKEN. */
void tg_p2p_arrival(tg_p2p_group *g, const tg_p2p_message *m);
void tg_p2p_requested(tg_p2p_rank *self, const tg_p2p_message *m);
void tg_p2p_send_taken(tg_p2p_group *g, const tg_p2p_message *m);
/* Ends the call for this rank and frees its place. */
void tg_p2p_end_call(tg_p2p_call *c);
/* Writes where this rank made a call. */
void tg_p2p_site(const tg_p2p_rank *self, const void *site, char *buf, size_t n);

/* ---- flow.c: the data that each rank sends to each other rank ---- */

/* The data that one rank sends to another in one phase of a call, or a piece of this data. */
typedef struct tg_p2p_flow {
    char *data;
    int64_t n; /* number of elements */
} tg_p2p_flow;

size_t tg_p2p_element(const tg_p2p_call *c); /* bytes of an element */
bool tg_p2p_sums(const tg_p2p_call *c);      /* whether the call sums over ranks */
/* Returns whether the call is an all-reduce so small that every rank sums all of it. */
bool tg_p2p_whole(const tg_p2p_call *c);
/* Returns what this rank sends to member `to` in this phase. */
tg_p2p_flow tg_p2p_out(const tg_p2p_call *c, int to, int phase);
/* Returns where this rank stores what it receives from member `from` in this phase. The result's data is NULL if this
 * rank does not store what it receives, but sums it. */
tg_p2p_flow tg_p2p_in(const tg_p2p_call *c, int from, int phase);
/* Returns where this rank stores its sum. *own: this rank's own addend. */
tg_p2p_flow tg_p2p_sum(const tg_p2p_call *c, const char **own);
/* Returns whether the data f is so small that it is inline: contained in the message with which its sender arrives. */
bool tg_p2p_is_inline(const tg_p2p_call *c, tg_p2p_flow f, int phase);
/* Return the number of pieces into which the data f is cut, and piece number `index`. */
int64_t tg_p2p_piece_count(const tg_p2p_call *c, tg_p2p_flow f);
tg_p2p_flow tg_p2p_piece_of(const tg_p2p_call *c, tg_p2p_flow f, int64_t index);

/* ---- pieces.c: moving the data ---- */

/* Begins to move the data of a call at which all members have arrived and agree. */
void tg_p2p_begin(tg_p2p_call *c);
/* Does what can be done for the call now, and ends it if it is done. */
void tg_p2p_advance(tg_p2p_call *c);
/* Stores the pieces that have arrived for the group, except those that are to be summed. */
void tg_p2p_use_pieces(tg_p2p_group *g);

/* ---- node.c ---- */

/* Connects the ranks of each node through shared memory. Collective over world. *node: the communicator of the ranks of
 * this node; NULL: they cannot share memory. *in_one: whether all ranks are connected in one node. Stores the node and
 * the process of each rank in self. */
tg_status tg_p2p_meet(tg_p2p_rank *self, tg_comm *world, tg_comm **node, bool *in_one);

/* ---- progress.c ---- */

/* Handles the messages and pieces that have arrived, and advances this rank's calls. */
void tg_p2p_progress(tg_p2p_rank *self);
/* Removes a call that cannot be finished from those in flight, and refuses the pieces that were requested from it. */
void tg_p2p_forget(tg_p2p_request *r);
/* Pauses this thread in a wait. round: number of earlier pauses. The first rounds spin, the others sleep. */
void tg_p2p_pause(const tg_p2p_rank *self, int round);
/* Makes progress until done() returns true. Returns false if the layer fails or the context's deadline passes first. */
bool tg_p2p_until(tg_p2p_rank *self, bool (*done)(tg_p2p_rank *self));

/* ---- failure.c ---- */

/* Returns whether the call cannot be finished because its group has failed. A collective before the first lost one goes
 * on: a member may have finished it and failed afterward. A send or a receive whose peer has arrived goes on too. */
bool tg_p2p_cannot_finish(const tg_p2p_call *c);
/* Answers with empty pieces the requests for pieces of the call that were not answered yet. */
void tg_p2p_refuse_all(tg_p2p_call *c);
/* Ends the group. The first failure is kept; only `from`, the first collective that is lost, may decrease later.
 * reporter: the rank that found the failure; if it is this rank, the function notifies the other members. */
void tg_p2p_fail(tg_p2p_group *g, tg_status status, int culprit, int reporter, const char *text, uint64_t from);
/* Handles TG_P2P_FAIL. */
void tg_p2p_failed(tg_p2p_group *g, const tg_p2p_message *m);
/* Notes that g and another group end because of a deadlock. Every message about the end of g then contains the end of
 * the other group, so that a rank learns of both at once. Otherwise it could announce its own failure while it knows of
 * one end only, and members of the other group would report that failure. */
void tg_p2p_end_with(tg_p2p_group *g, tg_p2p_end other);
/* Passes disagreements on: for every group that has failed because of a disagreement, sends the reason to its members.
 * Called before this rank announces its own failure. Otherwise a member could receive that announcement first, and
 * report it instead of the disagreement, because the message of the rank that found the disagreement may still be in
 * flight. */
void tg_p2p_pass_on(tg_p2p_rank *self);
/* Returns why nothing can come from that rank any more, though it has not sent TG_P2P_BYE: "" if its process has ended,
 * otherwise the layer's words. NULL: it is not so, or the layer cannot tell. */
const char *tg_p2p_lost(const tg_p2p_rank *self, int rank);
/* Returns whether nothing more is to be expected of that rank, and nothing need be sent to it. */
bool tg_p2p_is_gone(const tg_p2p_rank *self, int rank);
/* Returns whether the call still waits for that member to arrive. */
bool tg_p2p_awaited(const tg_p2p_call *c, int member);
/* Fills *q with the call of a member that has arrived. peer: the other member of a send or a receive. */
void tg_p2p_quote(const tg_p2p_call *c, int member, int peer, tg_quoted *q);
/* Ends the group if members that have arrived disagree about the call. Once all members have arrived, every rank writes
 * the same text. */
void tg_p2p_report_dispute(tg_p2p_call *c);
/* Returns whether that member, which has arrived, agrees with this rank. */
bool tg_p2p_agree(const tg_p2p_call *c, int member);
/* Returns the listener that announces the context's errors to the other ranks. */
tg_listener tg_p2p_listener(void);
/* Notes that the context of a rank (which may be this one) holds an error. */
void tg_p2p_peer_failed(tg_p2p_rank *self, int rank, tg_status status, int cause, const char *text);

/* ---- deadlock.c ---- */

/* Sends a probe to the members that have not arrived at the call, if a probe is due. since: when this rank began to
 * wait. */
void tg_p2p_probe(const tg_p2p_call *c, double since);
/* Handles a probe. */
void tg_p2p_probed(tg_p2p_group *g, const tg_p2p_message *m);

/* ---- control.c ---- */

extern const tg_control_ops tg_p2p_control;
extern const tg_mover_ops tg_p2p_mover;
static inline tg_p2p_group *tg_p2p_of(tg_control *c) { return (tg_p2p_group *)c; }
/* Handles TG_P2P_RECOVER and TG_P2P_DECIDE. */
void tg_p2p_recovery(tg_p2p_group *g, const tg_p2p_message *m);

extern const tg_comm_ops tg_p2p_transport;

#endif
