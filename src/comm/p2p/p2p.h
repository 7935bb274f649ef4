/* The transport between nodes: over non-blocking messages of a layer (tapegrad/link.h), which may be MPI.
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
#ifndef TG_LINK_H
#define TG_LINK_H

#include <pthread.h>

#include <tapegrad/link.h>

#include "comm/comm.h"
#include "comm/shm/region.h"

enum {
    TG_LINK_MESSAGE = 2048, /* bytes of a message at most */
    TG_LINK_RECEIVES = 32,  /* that may arrive before this rank looks */
    TG_LINK_SITE = TG_SITE_TEXT,
    TG_LINK_FAILURE = 1536, /* bytes of an error's text */
    TG_LINK_PIECES = 2, /* under way from one member to another, of each phase */
    TG_LINK_PHASES = 2, /* an all-reduce sums its parts, then gathers them */
    TG_LINK_MAILS = 32  /* places for messages from one member to another, at first */
};

typedef struct tg_link_rank tg_link_rank;
typedef struct tg_link_group tg_link_group;
typedef struct tg_link_call tg_link_call;

/* ---- link_boxes.c: what the layer sends and receives ---- */

/* A buffer, which the layer reads or fills while it flies. */
typedef struct tg_link_box {
    void *data;
    size_t bytes; /* that have arrived */
    bool flying;
    struct tg_link_box *next;
} tg_link_box;

/* A group's name, which all its members work out alike: what it was split from and its members, and how many such
 * groups there were before. */
typedef struct tg_link_key {
    uint64_t base, ordinal;
} tg_link_key;

typedef enum tg_link_kind {
    TG_LINK_CALL,  /* the sender has arrived at a collective */
    TG_LINK_SEND,  /* ... at a send to the receiver */
    TG_LINK_TAKEN, /* a send whose bytes came with it has met its receive */
    TG_LINK_ASK,   /* for the next piece of what the receiver has for the sender */
    TG_LINK_FAIL,  /* the group has failed */
    TG_LINK_LEAVE, /* the sender has freed its communicator */
    TG_LINK_SKIP,  /* the sender has missed calls */
    TG_LINK_COME,  /* to tg_comm_recover */
    TG_LINK_DECIDE, /* who is still there */
    TG_LINK_FAILED, /* the sender's context holds an error */
    TG_LINK_CLEARED,
    TG_LINK_PROBE, /* whether the receiver waits, too: link_crossed.c */
    TG_LINK_BYE, /* the sender's last message */
} tg_link_kind;

typedef struct tg_link_message {
    uint8_t kind, mail, phase, whole;
    int32_t rank, member;  /* of the sender: in the world, in the group */
    int32_t tag;           /* of the answer */
    int32_t status, cause; /* of a failure */
    uint32_t text, payload; /* bytes in the body: a text with its 0, then what the receiver takes of a call */
    tg_link_key group;
    uint64_t sequence;
    tg_signature signature;
    int64_t count, to_you, from_you; /* elements of a call: in all, and of an all-to-all for and from the receiver */
    uint64_t balance; /* of an all-to-all: see tg_link_call */
    char body[];
} tg_link_message;

/* What this rank knows of another. */
typedef struct tg_link_peer {
    bool gone;        /* has said BYE */
    double since, heard; /* when its error was seen first; when its last message came */
    tg_status status; /* of its context */
    int cause;        /* the rank whose failure that was */
    int tag;          /* of the last piece that was asked of it */
    uint64_t question; /* of its own, the last that this rank has passed on */
    char *failure;    /* TG_LINK_FAILURE bytes, from its first failure on. This rank has its own place */
} tg_link_peer;

typedef struct tg_link_request {
    tg_link_call *call;
    tg_link_group *group;
    bool done;
    struct tg_link_request *next, *prev;
} tg_link_request;

/* A message for a group that this rank has yet to form. */
typedef struct tg_link_early {
    struct tg_link_early *next;
    size_t bytes; /* with the message, which follows */
    tg_link_message *m;
} tg_link_early;

typedef struct tg_link_base {
    struct tg_link_base *next;
    uint64_t base, made;
} tg_link_base;

/* One rank: what its communicators share. */
struct tg_link_rank {
    tg_listener listener; /* first: it is what the context calls */
    tg_ctx *ctx;
    tg_comm_ops table; /* of its communicators: the layer gives the name */
    const tg_link_ops *layer;
    void *state; /* of the layer; NULL: closed */
    pthread_t thread; /* that may call it */
    int me, size, spins;
    int cause;     /* the rank whose failure this one's context has recorded */
    int open;      /* communicators */
    tg_comm *node; /* of the ranks of this node, which have their numbers of the world; NULL: there is none */
    int64_t *nodes; /* of all ranks; NULL before they have said so */
    bool broken;   /* a call of the layer has failed */
    bool quiet;    /* nothing will come any more */
    bool skipped;  /* since the last error was cleared */
    tg_board *board;
    bool announce; /* a failure that another thread has recorded */
    tg_link_call *waits_for; /* now; and this rank's questions about it (link_crossed.c): */
    uint64_t questions, first_question; /* so far; of this wait */
    double asked; /* the last one */
    tg_link_peer *peer;
    tg_link_group *groups;
    tg_link_early *early, **early_end;
    tg_link_base *bases;
    tg_link_request *first, *last, *free; /* in flight, in the order of their start */
    tg_link_box in[TG_LINK_RECEIVES];
    int next_in;
    tg_link_box *out, *all_out; /* free ones, linked by next; and all, each in a tg_link_sheet */
    int n_out;
};

tg_status tg_link_open(tg_link_rank *self);
void tg_link_close(tg_link_rank *self);
tg_status tg_link_receive(tg_link_rank *self, tg_link_box *box, size_t room, int source, int tag);
tg_status tg_link_send(tg_link_rank *self, tg_link_box *box, size_t bytes, int to, int tag);
/* An empty message; NULL after an error. */
tg_link_message *tg_link_draft(tg_link_rank *self, tg_link_kind kind, const tg_link_group *g);
/* Adds text to a draft. */
void tg_link_write(tg_link_message *m, const char *text);
void tg_link_post(tg_link_rank *self, tg_link_message *m, int to);
/* Answers an ask with nothing. */
void tg_link_refuse(tg_link_rank *self, int to, int tag);
/* Finds out what has landed. */
void tg_link_poll(tg_link_rank *self);
/* The oldest message that was not taken; NULL when there is none. tg_link_taken gives its place back. */
const tg_link_message *tg_link_next(tg_link_rank *self);
void tg_link_taken(tg_link_rank *self);
/* Whether everything that was sent has left. */
bool tg_link_sent(const tg_link_rank *self);

/* ---- Groups (link_group.c) ---- */

/* A piece on its way from a member. It is free when it neither flies nor has a call. */
typedef struct tg_link_piece {
    tg_link_box box;
    tg_link_call *call; /* that asked for it; NULL: given up since */
    int64_t index;
} tg_link_piece;

/* Sends from one member to another, or receives; the n-th of the one meets the n-th of the other. */
typedef struct tg_link_mails {
    uint64_t next, room;
    tg_link_call **call; /* `room` places, by number; NULL before the first. There are more when one is taken */
} tg_link_mails;

/* Calls of messages, which stay where they are as long as the group is there. */
typedef struct tg_link_block {
    struct tg_link_block *next;
    tg_link_call *calls;
    size_t bytes;
} tg_link_block;

typedef struct tg_link_member {
    int rank; /* of the world */
    bool left, came;
    uint64_t skips;  /* calls that it has missed after errors */
    tg_note last;    /* the last call that it was seen to make; its sequence is 0 before */
    char site[TG_LINK_SITE];
    tg_link_piece in[TG_LINK_PHASES][TG_LINK_PIECES];
    tg_link_box out[TG_LINK_PIECES];
    tg_link_mails send, recv;
} tg_link_member;

/* Bytes that a call keeps until it is done. */
typedef struct tg_link_copy {
    struct tg_link_copy *next;
    size_t bytes;
    bool used;
    char data[];
} tg_link_copy;

/* A communicator's state: its group, another one after tg_comm_recover; or, where all members are of one node, its
 * state in that node's transport. */
typedef struct tg_link_seat {
    tg_link_rank *self;
    tg_link_group *g;
    void *inner;
} tg_link_seat;

struct tg_link_group {
    tg_link_rank *self;
    tg_link_group *next;
    tg_link_key key;
    int rank, size;
    int window;         /* collectives that may be in flight; twice as many have a place */
    size_t few;         /* bytes that travel with a message */
    size_t piece;       /* bytes */
    uint64_t sequence;  /* of the next collective */
    uint64_t skips;     /* of the context when the group was formed */
    bool held[TG_LINK_PHASES]; /* an older call could not yet ask for all that it needs: younger ones wait */
    bool world; /* of all ranks, or what tg_comm_recover has made of it */
    bool closed, failed, told;
    bool passed_on; /* its disagreement, to the other members */
    tg_status status;
    int culprit, reporter; /* ranks of the world; -1: none */
    uint64_t failed_at;    /* the first collective that is lost: those before it go on */
    bool decided;           /* who is still there after tg_comm_recover: */
    uint8_t *list;          /* 1 for each member that is */
    char name[32], failure[TG_LINK_FAILURE];
    size_t bytes, buffer_bytes, calls_bytes;
    char *buffers; /* of the pieces; NULL before the first */
    tg_link_copy *copies;
    tg_link_block *blocks;
    tg_link_call *calls;
    tg_link_member member[];
};

/* The group of these ranks of the world, in this order. parent NULL: the world's. NULL after recording the error. */
tg_link_group *tg_link_group_new(tg_link_rank *self, const tg_link_key *parent, const int *ranks, int n, int rank,
                               const char *name);
void tg_link_group_close(tg_link_group *g);
/* Frees closed groups whose pieces have landed; false: those of some have not. */
bool tg_link_groups_sweep(tg_link_rank *self);
void tg_link_groups_free(tg_link_rank *self); /* with everything that belongs to them, after the link has closed */
tg_status tg_link_buffers(tg_link_group *g); /* makes them */
void *tg_link_copy_of(tg_link_group *g, const void *data, size_t bytes);
void tg_link_copy_end(tg_link_group *g, const void *data);
/* Room for calls with so many members; NULL after recording the error. */
tg_link_call *tg_link_calls_new(tg_link_group *g, int n, int members, size_t *bytes);
/* The place of a message, which is its own until tg_link_settle; NULL after recording the error. */
tg_link_call *tg_link_mail_place(tg_link_group *g, int member, bool send, uint64_t sequence);
/* The group that a message is for. NULL: unknown; the message was kept if the group may yet be formed. */
tg_link_group *tg_link_find(tg_link_rank *self, const tg_link_message *m);

/* ---- Calls (link_call.c) ---- */

/* What is known of one member's part of a call. */
typedef struct tg_link_side {
    bool arrived;
    tg_signature signature;
    int64_t count, to_me, from_me;
    uint64_t balance;
    int64_t asked[TG_LINK_PHASES];     /* pieces, of this member by us */
    int64_t wanted[TG_LINK_PHASES];    /* pieces, by this member of us; */
    int64_t served[TG_LINK_PHASES];    /* those that it has got, */
    int tag[TG_LINK_PHASES][TG_LINK_PIECES]; /* and how the others go */
    char *few; /* what came with its message */
    char site[TG_LINK_SITE];
} tg_link_side;

struct tg_link_call {
    tg_link_group *g;
    tg_link_request *request; /* this rank's; NULL: it has not arrived */
    uint64_t sequence;
    bool ready; /* all have arrived and agree */
    bool mail;
    bool lost; /* another rank has given it up */
    int peer;  /* of a mail */
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
    tg_link_side *side;      /* by member; of a mail one */
};

static inline tg_link_side *tg_link_side_of(const tg_link_call *c, int member) {
    return &c->side[c->mail ? 0 : member];
}
static inline tg_link_call *tg_link_call_at(tg_link_group *g, uint64_t sequence) {
    return &g->calls[sequence % (uint64_t)(2 * g->window)];
}
/* What is lost with it: messages have numbers of their own. */
static inline uint64_t tg_link_lost_from(const tg_link_call *c) { return c->mail ? c->g->sequence : c->sequence; }
/* NULL: there is none. */
static inline tg_link_call *tg_link_mail_at(const tg_link_mails *m, uint64_t sequence) {
    return m->room ? m->call[sequence % m->room] : NULL;
}

tg_status tg_link_start(tg_link_group *g, const tg_transfer *t, tg_link_request *r);
/* A message for the group. */
void tg_link_deliver(tg_link_group *g, const tg_link_message *m);
void tg_link_arrival(tg_link_group *g, const tg_link_message *m);
void tg_link_asked(tg_link_rank *self, const tg_link_message *m);
void tg_link_mail_taken(tg_link_group *g, const tg_link_message *m);
/* The call is over for this rank: its place is free. */
void tg_link_settle(tg_link_call *c);
/* Where this rank made a call. */
void tg_link_site(const tg_link_rank *self, const void *site, char *buf, size_t n);
bool tg_link_same(const tg_signature *a, const tg_signature *b);
tg_note tg_link_note(const tg_signature *s, int64_t count, int peer, uint64_t sequence);

/* ---- link_flow.c: what goes from whom to whom ---- */

typedef struct tg_link_flow {
    char *data;
    int64_t n; /* elements */
} tg_link_flow;

size_t tg_link_element(const tg_link_call *c);
bool tg_link_sums(const tg_link_call *c);
bool tg_link_whole(const tg_link_call *c); /* an all-reduce so small that everybody sums everything */
tg_link_flow tg_link_out(const tg_link_call *c, int to, int phase);
/* data is NULL where what comes is summed. */
tg_link_flow tg_link_in(const tg_link_call *c, int from, int phase);
/* The sum's place, and this rank's own share of it. */
tg_link_flow tg_link_sum(const tg_link_call *c, const char **own);
bool tg_link_few(const tg_link_call *c, tg_link_flow f, int phase);
int64_t tg_link_piece_count(const tg_link_call *c, tg_link_flow f); /* pieces */
tg_link_flow tg_link_piece_of(const tg_link_call *c, tg_link_flow f, int64_t index);

/* ---- link_move.c: the pieces ---- */

void tg_link_begin(tg_link_call *c); /* all have arrived and agree */
/* What can be done for the call now. */
void tg_link_advance(tg_link_call *c);
void tg_link_land(tg_link_group *g);

/* ---- link_node.c ---- */

/* The ranks of each node meet in its memory, if they can: *node. nodes: room for one for each rank. in_one: all can in
 * one. */
tg_status tg_link_meet(tg_comm *world, tg_comm **node, int64_t *nodes, bool *in_one);

/* ---- link_wait.c: progress, waiting, failure ---- */

void tg_link_progress(tg_link_rank *self);
/* Takes a call that cannot be finished out of what is in flight. */
void tg_link_forget(tg_link_request *r);
/* Until r is done (or, with r NULL, that call has a free place), or the group has failed. */
tg_status tg_link_await(tg_link_group *g, const tg_link_request *r, tg_link_call *place);
/* The slot `look` of a group. */
tg_status tg_link_look_on(tg_link_group *g, tg_link_request *r, double waited);
void tg_link_rest(const tg_link_rank *self, int round); /* longer and longer */
/* Makes progress until there, or the deadline of the context: false. */
bool tg_link_until(tg_link_rank *self, bool (*there)(tg_link_rank *self));

/* ---- link_fail.c ---- */

/* Whether the call will not be finished: its group has failed. A call before the one that failed goes on, as members
 * who have done it already may be the ones who failed; so does a message whose other half is there. */
bool tg_link_over(const tg_link_call *c);
/* The first failure is kept; `from`, the first collective that is lost, may sink. reporter: a member that has found it;
 * where it is this rank the others are told. */
void tg_link_fail(tg_link_group *g, tg_status status, int culprit, int reporter, const char *text, uint64_t from);
/* ... with the words of the rank that failed. */
void tg_link_fail_by(tg_link_group *g, int rank, const char *after, uint64_t from);
/* Records the group's failure in the context; arrived: this rank had made the call that failed. */
tg_status tg_link_failed(tg_link_group *g, bool arrived);
/* Whether the call still waits for that member to arrive. */
bool tg_link_awaited(const tg_link_call *c, int member);
/* "rank 1 called barrier() from ...": what that member, which has arrived, has called; peer: a message's other one. */
void tg_link_quote(const tg_link_call *c, int member, int peer, char *buf, size_t n, size_t *at);
/* Looks whether those for whom the call waits can still come. */
void tg_link_look(tg_link_call *c, double since);
/* Ends the group where members disagree about the call: all of them in the same words, once all have arrived. */
void tg_link_settle_dispute(tg_link_call *c);
bool tg_link_agree(const tg_link_call *c, int member); /* one that has arrived with this rank */
/* What the context's errors mean to the other ranks. */
tg_listener tg_link_listener(void);
void tg_link_peer_failed(tg_link_rank *self, int rank, tg_status status, int cause, const char *text);

/* ---- link_crossed.c ---- */

/* Asks those for whom the call has waited since then whether they wait, too. */
void tg_link_probe(const tg_link_call *c, double since);
void tg_link_probed(tg_link_group *g, const tg_link_message *m);

/* ---- link_recover.c ---- */

tg_status tg_link_recover(tg_link_seat *seat, int *rank, int *size);
void tg_link_came(tg_link_group *g, const tg_link_message *m);
extern const tg_comm_ops tg_link_transport;

#endif
