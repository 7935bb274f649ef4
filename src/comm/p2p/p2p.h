/* The transport between nodes: over non-blocking messages of a layer (tapegrad/p2p.h), which may be MPI.
 *
 * Two kinds of traffic. Messages are small: a rank that starts a collective tells every member so, with its signature,
 * its call site and, where they are few, the bytes that this member takes. Pieces are what is larger: when all members
 * have arrived and agree, each asks the others for what it needs, piece by piece, and whoever is asked answers, with a
 * piece or, if the group has failed, with nothing. Pieces pass through buffers of the transport at both ends: nobody's
 * tensors are touched by a message still under way when a call is given up, and what arrives has been asked for, so
 * that there is room for it. Only what a rank itself has started, and only while it is in a call of the library, moves.
 *
 * Every rank does the sums of its own part, over the ranks in their order, element by element with the kernels of the
 * shared-memory transport: so all transports give the same bits. */
#ifndef TG_P2P_H
#define TG_P2P_H

#include <pthread.h>

#include <tapegrad/p2p.h>

#include "comm/protocol.h"
#include "comm/shm/region.h"

enum {
    TG_P2P_MESSAGE = 2048, /* bytes of a message at most */
    TG_P2P_RECEIVES = 32,  /* that may arrive before this rank looks */
    TG_P2P_SITE = TG_SITE_TEXT,
    TG_P2P_FAILURE = 1536, /* bytes of an error's text */
    TG_P2P_PIECES = 2,     /* under way from one member to another, of each phase */
    TG_P2P_PHASES = 2,     /* an all-reduce sums its parts, then gathers them */
    TG_P2P_PAIR_CALLS = 32 /* places for messages from one member to another, at first */
};

typedef struct tg_p2p_rank tg_p2p_rank;
typedef struct tg_p2p_group tg_p2p_group;
typedef struct tg_p2p_call tg_p2p_call;

/* ---- buffers.c: what the layer sends and receives ---- */

/* A buffer, which the layer reads or fills while it flies. */
typedef struct tg_p2p_buffer {
    void *data;
    size_t bytes; /* that have arrived */
    bool flying;
    struct tg_p2p_buffer *next;
} tg_p2p_buffer;

/* A group's name, which all its members work out alike: what it was split from and its members, and how many such
 * groups there were before. */
typedef struct tg_p2p_key {
    uint64_t base, ordinal;
} tg_p2p_key;

typedef enum tg_p2p_kind {
    TG_P2P_CALL,    /* the sender has arrived at a collective */
    TG_P2P_SEND,    /* ... at a send to the receiver */
    TG_P2P_TAKEN,   /* a send whose bytes came with it has met its receive */
    TG_P2P_REQUEST, /* for the next piece of what the receiver has for the sender */
    TG_P2P_FAIL,    /* the group has failed */
    TG_P2P_LEAVE,   /* the sender has freed its communicator */
    TG_P2P_MISSED,  /* the sender has missed calls */
    TG_P2P_COME,    /* to tg_comm_recover */
    TG_P2P_DECIDE,  /* who is still there */
    TG_P2P_FAILED,  /* the sender's context holds an error */
    TG_P2P_CLEARED,
    TG_P2P_PROBE, /* whether the receiver waits, too: deadlock.c */
    TG_P2P_BYE,   /* the sender's last message */
} tg_p2p_kind;

typedef struct tg_p2p_message {
    uint8_t kind, pair, phase, whole;
    int32_t rank, member;  /* of the sender: in the world, in the group */
    int32_t tag;           /* of the answer */
    int32_t status, cause; /* of a failure */
    uint32_t text, payload; /* bytes in the body: a text with its 0, then what the receiver takes of a call */
    tg_p2p_key group;
    uint64_t sequence;
    tg_signature signature;
    int64_t count, to_you, from_you; /* elements of a call: in all, and of an all-to-all for and from the receiver */
    uint64_t balance; /* of an all-to-all: see tg_p2p_call */
    char body[];
} tg_p2p_message;

/* What this rank knows of another. */
typedef struct tg_p2p_peer {
    bool gone;        /* has said BYE */
    double since, heard; /* when its error was seen first; when its last message came */
    tg_status status; /* of its context */
    int cause;        /* the rank whose failure that was */
    int tag;          /* of the last piece that was asked of it */
    uint64_t probe;   /* of its own, the last that this rank has passed on */
    char *failure;    /* TG_P2P_FAILURE bytes, from its first failure on. This rank has its own place */
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

typedef struct tg_p2p_base {
    struct tg_p2p_base *next;
    uint64_t base, made;
} tg_p2p_base;

/* One rank: what its communicators share. */
struct tg_p2p_rank {
    tg_listener listener; /* first: it is what the context calls */
    tg_ctx *ctx;
    tg_comm_ops table; /* of its communicators: the layer gives the name */
    const tg_p2p_ops *layer;
    void *state; /* of the layer; NULL: closed */
    pthread_t thread; /* that may call it */
    int me, size, spins;
    int cause;     /* the rank whose failure this one's context has recorded */
    int open;      /* communicators */
    tg_comm *node; /* of the ranks of this node, which have their numbers of the world; NULL: there is none */
    int64_t *nodes; /* of all ranks; NULL before they have said so */
    bool broken;   /* a call of the layer has failed */
    bool quiet;    /* nothing will come any more */
    bool missed;   /* since the last error was cleared */
    tg_recorder *recorder;
    bool announce; /* a failure that another thread has recorded */
    tg_p2p_call *waits_for; /* now; and this rank's questions about it (deadlock.c): */
    uint64_t probes, first_probe; /* so far; of this wait */
    double probed;                /* the last one */
    tg_p2p_peer *peer;
    tg_p2p_group *groups;
    tg_p2p_early *early, **early_end;
    tg_p2p_base *bases;
    tg_p2p_request *first, *last, *free; /* in flight, in the order of their start */
    tg_p2p_buffer in[TG_P2P_RECEIVES];
    int next_in;
    tg_p2p_buffer *out, *all_out; /* free ones, linked by next; and all, each in a tg_p2p_sheet */
    int n_out;
};

tg_status tg_p2p_open(tg_p2p_rank *self);
void tg_p2p_close(tg_p2p_rank *self);
tg_status tg_p2p_receive(tg_p2p_rank *self, tg_p2p_buffer *buffer, size_t capacity, int source, int tag);
tg_status tg_p2p_send(tg_p2p_rank *self, tg_p2p_buffer *buffer, size_t bytes, int to, int tag);
/* An empty message; NULL after an error. */
tg_p2p_message *tg_p2p_draft(tg_p2p_rank *self, tg_p2p_kind kind, const tg_p2p_group *g);
/* Adds text to a draft. */
void tg_p2p_write(tg_p2p_message *m, const char *text);
void tg_p2p_post(tg_p2p_rank *self, tg_p2p_message *m, int to);
/* Answers an ask with nothing. */
void tg_p2p_refuse(tg_p2p_rank *self, int to, int tag);
/* Finds out what has landed. */
void tg_p2p_poll(tg_p2p_rank *self);
/* The oldest message that was not taken; NULL when there is none. tg_p2p_taken gives its place back. */
const tg_p2p_message *tg_p2p_next(tg_p2p_rank *self);
void tg_p2p_taken(tg_p2p_rank *self);
/* Whether everything that was sent has left. */
bool tg_p2p_sent(const tg_p2p_rank *self);

/* ---- Groups (group.c) ---- */

/* A piece on its way from a member. It is free when it neither flies nor has a call. */
typedef struct tg_p2p_piece {
    tg_p2p_buffer buffer;
    tg_p2p_call *call; /* that asked for it; NULL: given up since */
    int64_t index;
} tg_p2p_piece;

/* Sends from one member to another, or receives; the n-th of the one meets the n-th of the other. */
typedef struct tg_p2p_pair_calls {
    uint64_t next, capacity;
    tg_p2p_call **call; /* `capacity` places, by number; NULL before the first. There are more when one is taken */
} tg_p2p_pair_calls;

/* Calls of messages, which stay where they are as long as the group is there. */
typedef struct tg_p2p_block {
    struct tg_p2p_block *next;
    tg_p2p_call *calls;
    size_t bytes;
} tg_p2p_block;

typedef struct tg_p2p_member {
    int rank; /* of the world */
    bool left, came;
    uint64_t missed_calls; /* calls that it has missed after errors */
    tg_call_entry last;    /* the last call that it was seen to make; its sequence is 0 before */
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

/* A communicator's state: its group, another one after tg_comm_recover; or, where all members are of one node, its
 * state in that node's transport. */
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
    int window;         /* collectives that may be in flight; twice as many have a place */
    size_t few;         /* bytes that travel with a message */
    size_t piece;       /* bytes */
    uint64_t sequence;  /* of the next collective */
    bool held[TG_P2P_PHASES]; /* an older call could not yet ask for all that it needs: younger ones wait */
    bool world; /* of all ranks, or what tg_comm_recover has made of it */
    bool closed, failed;
    bool passed_on; /* its disagreement, to the other members */
    tg_status status;
    int culprit, reporter; /* ranks of the world; -1: none */
    uint64_t failed_at;    /* the first collective that is lost: those before it go on */
    bool decided;           /* who is still there after tg_comm_recover: */
    bool *list;             /* of the members that are */
    char name[32], failure[TG_P2P_FAILURE];
    size_t bytes, buffer_bytes, calls_bytes;
    char *buffers; /* of the pieces; NULL before the first */
    tg_p2p_copy *copies;
    tg_p2p_block *blocks;
    tg_p2p_call *calls;
    tg_p2p_member member[];
};

/* The group of these ranks of the world, in this order. parent NULL: the world's. NULL after recording the error. */
tg_p2p_group *tg_p2p_group_new(tg_p2p_rank *self, const tg_p2p_key *parent, const int *ranks, int n, int rank,
                               const char *name);
void tg_p2p_group_close(tg_p2p_group *g);
/* Frees closed groups whose pieces have landed; false: those of some have not. */
bool tg_p2p_groups_sweep(tg_p2p_rank *self);
void tg_p2p_groups_free(tg_p2p_rank *self); /* with everything that belongs to them, after the layer has closed */
tg_status tg_p2p_buffers(tg_p2p_group *g); /* makes them */
void *tg_p2p_copy_of(tg_p2p_group *g, const void *data, size_t bytes);
void tg_p2p_copy_end(tg_p2p_group *g, const void *data);
/* Room for calls with so many members; NULL after recording the error. */
tg_p2p_call *tg_p2p_calls_new(tg_p2p_group *g, int n, int members, size_t *bytes);
/* The place of a message, which is its own until tg_p2p_settle; NULL after recording the error. */
tg_p2p_call *tg_p2p_pair_place(tg_p2p_group *g, int member, bool send, uint64_t sequence);
/* The group that a message is for. NULL: unknown; the message was kept if the group may yet be formed. */
tg_p2p_group *tg_p2p_find(tg_p2p_rank *self, const tg_p2p_message *m);

/* ---- Calls (calls.c) ---- */

/* What is known of one member's part of a call. */
typedef struct tg_p2p_side {
    bool arrived;
    tg_signature signature;
    int64_t count, to_me, from_me;
    uint64_t balance;
    int64_t requested[TG_P2P_PHASES]; /* pieces, of this member by us */
    int64_t wanted[TG_P2P_PHASES];    /* pieces, by this member of us; */
    int64_t served[TG_P2P_PHASES];    /* those that it has got, */
    int tag[TG_P2P_PHASES][TG_P2P_PIECES]; /* and how the others go */
    char *few; /* what came with its message */
    char site[TG_P2P_SITE];
} tg_p2p_side;

struct tg_p2p_call {
    tg_p2p_group *g;
    tg_p2p_request *request; /* this rank's; NULL: it has not arrived */
    uint64_t sequence;
    bool ready; /* all have arrived and agree */
    bool pair;  /* a send or a receive */
    bool lost; /* another rank has given it up */
    int peer;  /* of a send or a receive: the other rank */
    int arrived;
    /* A digest of what this rank sends less one of what it expects to receive, by pairs. If all pairs agree the sum
     * over the ranks is 0; so those who have no part in a pair that does not, wait for its word. */
    uint64_t balance;
    bool disputed; /* a member says something else; who, is quoted when all have arrived, or have had their time */
    tg_transfer t;
    int64_t *send_at, *recv_at; /* where parts begin: size + 1 numbers, in `begins` */
    int64_t *begins;
    void *copy; /* of src */
    tg_signature signature;
    int64_t in, out;        /* pieces that have yet to come, and to go */
    int64_t sums, summed;   /* pieces of the part that this rank sums */
    int64_t owed;           /* pieces asked of us that have not gone */
    tg_p2p_side *side;      /* by member; of a send or a receive one */
};

static inline tg_p2p_side *tg_p2p_side_of(const tg_p2p_call *c, int member) { return &c->side[c->pair ? 0 : member]; }
static inline tg_p2p_call *tg_p2p_call_at(tg_p2p_group *g, uint64_t sequence) {
    return &g->calls[sequence % (uint64_t)(2 * g->window)];
}
/* What is lost with it: messages have numbers of their own. */
static inline uint64_t tg_p2p_lost_from(const tg_p2p_call *c) { return c->pair ? c->g->sequence : c->sequence; }
/* NULL: there is none. */
static inline tg_p2p_call *tg_p2p_pair_at(const tg_p2p_pair_calls *m, uint64_t sequence) {
    return m->capacity ? m->call[sequence % m->capacity] : NULL;
}

tg_status tg_p2p_start(tg_p2p_group *g, const tg_transfer *t, tg_p2p_request *r);
/* A message for the group. */
void tg_p2p_deliver(tg_p2p_group *g, const tg_p2p_message *m);
void tg_p2p_arrival(tg_p2p_group *g, const tg_p2p_message *m);
void tg_p2p_requested(tg_p2p_rank *self, const tg_p2p_message *m);
void tg_p2p_send_taken(tg_p2p_group *g, const tg_p2p_message *m);
/* The call is over for this rank: its place is free. */
void tg_p2p_settle(tg_p2p_call *c);
/* Where this rank made a call. */
void tg_p2p_site(const tg_p2p_rank *self, const void *site, char *buf, size_t n);

/* ---- flow.c: what goes from whom to whom ---- */

typedef struct tg_p2p_flow {
    char *data;
    int64_t n; /* elements */
} tg_p2p_flow;

size_t tg_p2p_element(const tg_p2p_call *c);
bool tg_p2p_sums(const tg_p2p_call *c);
bool tg_p2p_whole(const tg_p2p_call *c); /* an all-reduce so small that everybody sums everything */
tg_p2p_flow tg_p2p_out(const tg_p2p_call *c, int to, int phase);
/* data is NULL where what comes is summed. */
tg_p2p_flow tg_p2p_in(const tg_p2p_call *c, int from, int phase);
/* The sum's place, and this rank's own share of it. */
tg_p2p_flow tg_p2p_sum(const tg_p2p_call *c, const char **own);
bool tg_p2p_few(const tg_p2p_call *c, tg_p2p_flow f, int phase);
int64_t tg_p2p_piece_count(const tg_p2p_call *c, tg_p2p_flow f); /* pieces */
tg_p2p_flow tg_p2p_piece_of(const tg_p2p_call *c, tg_p2p_flow f, int64_t index);

/* ---- pieces.c: the pieces ---- */

void tg_p2p_begin(tg_p2p_call *c); /* all have arrived and agree */
/* What can be done for the call now. */
void tg_p2p_advance(tg_p2p_call *c);
void tg_p2p_land(tg_p2p_group *g);

/* ---- node.c ---- */

/* The ranks of each node meet in its memory, if they can: *node. nodes: room for one for each rank. in_one: all can in
 * one. */
tg_status tg_p2p_meet(tg_comm *world, tg_comm **node, int64_t *nodes, bool *in_one);

/* ---- progress.c ---- */

void tg_p2p_progress(tg_p2p_rank *self);
/* Takes a call that cannot be finished out of what is in flight. */
void tg_p2p_forget(tg_p2p_request *r);
void tg_p2p_rest(const tg_p2p_rank *self, int round); /* longer and longer */
/* Makes progress until there, or the deadline of the context: false. */
bool tg_p2p_until(tg_p2p_rank *self, bool (*there)(tg_p2p_rank *self));

/* ---- failure.c ---- */

/* Whether the call will not be finished: its group has failed. A call before the one that failed goes on, as members
 * who have done it already may be the ones who failed; so does a message whose other half is there. */
bool tg_p2p_over(const tg_p2p_call *c);
/* The first failure is kept; `from`, the first collective that is lost, may sink. reporter: a member that has found it;
 * where it is this rank the others are told. */
void tg_p2p_fail(tg_p2p_group *g, tg_status status, int culprit, int reporter, const char *text, uint64_t from);
/* Tells the members of every group that has failed for a disagreement why, before they can hear that this rank has
 * failed for it: from the rank that found it they may hear later. It may be one of two groups. */
void tg_p2p_pass_on(tg_p2p_rank *self);
/* Whether the call still waits for that member to arrive. */
bool tg_p2p_awaited(const tg_p2p_call *c, int member);
/* What that member, which has arrived, has called; peer: a message's other rank. */
void tg_p2p_quote(const tg_p2p_call *c, int member, int peer, tg_quoted *q);
/* Ends the group where members disagree about the call: all of them in the same words, once all have arrived. */
void tg_p2p_settle_dispute(tg_p2p_call *c);
bool tg_p2p_agree(const tg_p2p_call *c, int member); /* one that has arrived with this rank */
/* What the context's errors mean to the other ranks. */
tg_listener tg_p2p_listener(void);
void tg_p2p_peer_failed(tg_p2p_rank *self, int rank, tg_status status, int cause, const char *text);

/* ---- deadlock.c ---- */

/* Asks those for whom the call has waited since then whether they wait, too. */
void tg_p2p_probe(const tg_p2p_call *c, double since);
void tg_p2p_probed(tg_p2p_group *g, const tg_p2p_message *m);

/* ---- control.c ---- */

extern const tg_control_ops tg_p2p_control;
extern const tg_mover_ops tg_p2p_mover;
static inline tg_p2p_group *tg_p2p_of(tg_control *c) { return (tg_p2p_group *)c; }
void tg_p2p_came(tg_p2p_group *g, const tg_p2p_message *m);

extern const tg_comm_ops tg_p2p_transport;

#endif
