/* The transport between nodes: MPI's non-blocking messages from one rank to another, and nothing else of MPI.
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
#ifndef TG_MPI_TRANSPORT_H
#define TG_MPI_TRANSPORT_H

#include <mpi.h>
#include <pthread.h>

#include "parallel/comm.h"
#include "parallel/region.h"

enum {
    TG_MPI_MESSAGE = 2048, /* bytes of a message at most */
    TG_MPI_RECEIVES = 32,  /* that may arrive before this rank looks */
    TG_MPI_SITE = TG_SITE_TEXT,
    TG_MPI_FAILURE = 1536, /* bytes of an error's text */
    TG_MPI_PIECES = 2, /* under way from one member to another, of each phase */
    TG_MPI_PHASES = 2, /* an all-reduce sums its parts, then gathers them */
    TG_MPI_MAILS = 32  /* sends from one member to another that may be in flight */
};

typedef struct tg_mpi_rank tg_mpi_rank;
typedef struct tg_mpi_group tg_mpi_group;
typedef struct tg_mpi_call tg_mpi_call;

/* ---- mpi_link.c: what MPI sends and receives ---- */

/* A buffer, and the MPI request that reads or fills it while it flies. */
typedef struct tg_mpi_box {
    void *data;
    int bytes; /* that have arrived */
    bool flying, incoming;
    struct tg_mpi_box *next;
} tg_mpi_box;

/* A group's name, which all its members work out alike: what it was split from and its members, and how many such
 * groups there were before. */
typedef struct tg_mpi_key {
    uint64_t base, ordinal;
} tg_mpi_key;

typedef enum tg_mpi_kind {
    TG_MPI_CALL,  /* the sender has arrived at a collective */
    TG_MPI_SEND,  /* ... at a send to the receiver */
    TG_MPI_TAKEN, /* a send whose bytes came with it has met its receive */
    TG_MPI_ASK,   /* for the next piece of what the receiver has for the sender */
    TG_MPI_FAIL,  /* the group has failed */
    TG_MPI_LEAVE, /* the sender has freed its communicator */
    TG_MPI_SKIP,  /* the sender has missed calls */
    TG_MPI_COME,  /* to tg_comm_recover */
    TG_MPI_DECIDE, /* who is still there */
    TG_MPI_FAILED, /* the sender's context holds an error */
    TG_MPI_CLEARED,
    TG_MPI_BYE, /* the sender's last message */
} tg_mpi_kind;

typedef struct tg_mpi_message {
    uint8_t kind, mail, phase, whole;
    int32_t rank, member;  /* of the sender: in the world, in the group */
    int32_t tag;           /* of the answer */
    int32_t status, cause; /* of a failure */
    uint32_t text, payload; /* bytes in the body: a text with its 0, then what the receiver takes of a call */
    tg_mpi_key group;
    uint64_t sequence;
    tg_signature signature;
    int64_t count, to_you, from_you; /* elements of a call: in all, and of an all-to-all for and from the receiver */
    uint64_t balance; /* of an all-to-all: see tg_mpi_call */
    char body[];
} tg_mpi_message;

/* What this rank knows of another. */
typedef struct tg_mpi_peer {
    bool gone;        /* has said BYE */
    double since, heard; /* when its error was seen first; when its last message came */
    tg_status status; /* of its context */
    int cause;        /* the rank whose failure that was */
    int tag;          /* of the last piece that was asked of it */
    char *failure;    /* TG_MPI_FAILURE bytes, from its first failure on. This rank has its own place */
} tg_mpi_peer;

typedef struct tg_mpi_request {
    tg_mpi_call *call;
    tg_mpi_group *group;
    bool done;
    struct tg_mpi_request *next, *prev;
} tg_mpi_request;

/* A message for a group that this rank has yet to form. */
typedef struct tg_mpi_early {
    struct tg_mpi_early *next;
    size_t bytes; /* with the message, which follows */
    tg_mpi_message *m;
} tg_mpi_early;

typedef struct tg_mpi_base {
    struct tg_mpi_base *next;
    uint64_t base, made;
} tg_mpi_base;

/* One rank: what its communicators share. */
struct tg_mpi_rank {
    tg_listener listener; /* first: it is what the context calls */
    tg_ctx *ctx;
    MPI_Comm comm;
    pthread_t thread; /* that may call MPI */
    int me, size, spins;
    int cause;     /* the rank whose failure this one's context has recorded */
    int open;      /* communicators */
    tg_comm *node; /* of the ranks of this node, which have their numbers of the world; NULL: there is none */
    int64_t *nodes; /* of all ranks; NULL before they have said so */
    bool broken;   /* an MPI call has failed */
    bool skipped;  /* since the last error was cleared */
    tg_board *board;
    bool announce; /* a failure that another thread has recorded */
    tg_mpi_peer *peer;
    tg_mpi_group *groups;
    tg_mpi_early *early, **early_end;
    tg_mpi_base *bases;
    tg_mpi_request *first, *last, *free; /* in flight, in the order of their start */
    /* What flies: request i of box i. */
    int flying, room;
    MPI_Request *requests;
    MPI_Status *statuses;
    int *landed;
    tg_mpi_box **boxes;
    tg_mpi_box in[TG_MPI_RECEIVES];
    int next_in;
    tg_mpi_box *out, *all_out; /* free ones, linked by next; and all, each in a tg_mpi_sheet */
    int n_out;
};

tg_status tg_mpi_link_open(tg_mpi_rank *self);
void tg_mpi_link_close(tg_mpi_rank *self);
tg_status tg_mpi_receive(tg_mpi_rank *self, tg_mpi_box *box, size_t room, int source, int tag);
tg_status tg_mpi_send(tg_mpi_rank *self, tg_mpi_box *box, size_t bytes, int to, int tag);
/* An empty message; NULL after an error. */
tg_mpi_message *tg_mpi_draft(tg_mpi_rank *self, tg_mpi_kind kind, const tg_mpi_group *g);
/* Adds text to a draft. */
void tg_mpi_write(tg_mpi_message *m, const char *text);
void tg_mpi_post(tg_mpi_rank *self, tg_mpi_message *m, int to);
/* Answers an ask with nothing. */
void tg_mpi_refuse(tg_mpi_rank *self, int to, int tag);
/* Finds out what has landed. */
void tg_mpi_poll(tg_mpi_rank *self);
/* The oldest message that was not taken; NULL when there is none. tg_mpi_taken gives its place back. */
const tg_mpi_message *tg_mpi_next(tg_mpi_rank *self);
void tg_mpi_taken(tg_mpi_rank *self);
/* Whether everything that was sent has left. */
bool tg_mpi_sent(const tg_mpi_rank *self);

/* ---- Groups (mpi_group.c) ---- */

/* A piece on its way from a member. It is free when it neither flies nor has a call. */
typedef struct tg_mpi_piece {
    tg_mpi_box box;
    tg_mpi_call *call; /* that asked for it; NULL: given up since */
    int64_t index;
} tg_mpi_piece;

/* Sends from one member to another, or receives; the n-th of the one meets the n-th of the other. */
typedef struct tg_mpi_mails {
    uint64_t next;
    tg_mpi_call *call; /* 2 TG_MPI_MAILS; NULL before the first */
} tg_mpi_mails;

typedef struct tg_mpi_member {
    int rank; /* of the world */
    bool left, came;
    uint64_t skips;  /* calls that it has missed after errors */
    tg_note last;    /* the last call that it was seen to make; its sequence is 0 before */
    char site[TG_MPI_SITE];
    tg_mpi_piece in[TG_MPI_PHASES][TG_MPI_PIECES];
    tg_mpi_box out[TG_MPI_PIECES];
    tg_mpi_mails send, recv;
} tg_mpi_member;

/* Bytes that a call keeps until it is done. */
typedef struct tg_mpi_copy {
    struct tg_mpi_copy *next;
    size_t bytes;
    bool used;
    char data[];
} tg_mpi_copy;

/* A communicator's state: its group, another one after tg_comm_recover; or, where all members are of one node, its
 * state in that node's transport. */
typedef struct tg_mpi_seat {
    tg_mpi_rank *self;
    tg_mpi_group *g;
    void *inner;
} tg_mpi_seat;

struct tg_mpi_group {
    tg_mpi_rank *self;
    tg_mpi_group *next;
    tg_mpi_key key;
    int rank, size;
    int window;         /* collectives that may be in flight; twice as many have a place */
    size_t few;         /* bytes that travel with a message */
    size_t piece;       /* bytes */
    uint64_t sequence;  /* of the next collective */
    uint64_t skips;     /* of the context when the group was formed */
    bool held[TG_MPI_PHASES]; /* an older call could not yet ask for all that it needs: younger ones wait */
    bool world; /* of all ranks, or what tg_comm_recover has made of it */
    bool closed, failed, told;
    tg_status status;
    int culprit, reporter; /* ranks of the world; -1: none */
    uint64_t failed_at;    /* the first collective that is lost: those before it go on */
    bool decided;           /* who is still there after tg_comm_recover: */
    uint8_t *list;          /* 1 for each member that is */
    char name[32], failure[TG_MPI_FAILURE];
    size_t bytes, buffer_bytes, calls_bytes;
    char *buffers; /* of the pieces; NULL before the first */
    tg_mpi_copy *copies;
    tg_mpi_call *calls;
    tg_mpi_member member[];
};

/* The group of these ranks of the world, in this order. parent NULL: the world's. NULL after recording the error. */
tg_mpi_group *tg_mpi_group_new(tg_mpi_rank *self, const tg_mpi_key *parent, const int *ranks, int n, int rank,
                               const char *name);
void tg_mpi_group_close(tg_mpi_group *g);
/* Frees closed groups whose pieces have landed; false: those of some have not. */
bool tg_mpi_groups_sweep(tg_mpi_rank *self);
void tg_mpi_groups_free(tg_mpi_rank *self); /* with everything that belongs to them, after the link has closed */
tg_status tg_mpi_buffers(tg_mpi_group *g); /* makes them */
void *tg_mpi_copy_of(tg_mpi_group *g, const void *data, size_t bytes);
void tg_mpi_copy_end(tg_mpi_group *g, const void *data);
/* Room for calls with so many members; NULL after recording the error. */
tg_mpi_call *tg_mpi_calls_new(tg_mpi_group *g, int n, int members, size_t *bytes);
tg_mpi_mails *tg_mpi_mails_of(tg_mpi_group *g, int member, bool send); /* NULL after recording the error */
/* The group that a message is for. NULL: unknown; the message was kept if the group may yet be formed. */
tg_mpi_group *tg_mpi_find(tg_mpi_rank *self, const tg_mpi_message *m);

/* ---- Calls (mpi_call.c) ---- */

/* What is known of one member's part of a call. */
typedef struct tg_mpi_side {
    bool arrived;
    tg_signature signature;
    int64_t count, to_me, from_me;
    uint64_t balance;
    int64_t asked[TG_MPI_PHASES];     /* pieces, of this member by us */
    int64_t wanted[TG_MPI_PHASES];    /* pieces, by this member of us; */
    int64_t served[TG_MPI_PHASES];    /* those that it has got, */
    int tag[TG_MPI_PHASES][TG_MPI_PIECES]; /* and how the others go */
    char *few; /* what came with its message */
    char site[TG_MPI_SITE];
} tg_mpi_side;

struct tg_mpi_call {
    tg_mpi_group *g;
    tg_mpi_request *request; /* this rank's; NULL: it has not arrived */
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
    tg_mpi_side *side;      /* by member; of a mail one */
};

static inline tg_mpi_side *tg_mpi_side_of(const tg_mpi_call *c, int member) {
    return &c->side[c->mail ? 0 : member];
}
static inline tg_mpi_call *tg_mpi_call_at(tg_mpi_group *g, uint64_t sequence) {
    return &g->calls[sequence % (uint64_t)(2 * g->window)];
}
static inline tg_mpi_call *tg_mpi_mail_at(tg_mpi_mails *m, uint64_t sequence) {
    return &m->call[sequence % (2 * TG_MPI_MAILS)];
}

tg_status tg_mpi_start(tg_mpi_group *g, const tg_transfer *t, tg_mpi_request *r);
/* A message for the group. */
void tg_mpi_deliver(tg_mpi_group *g, const tg_mpi_message *m);
void tg_mpi_arrival(tg_mpi_group *g, const tg_mpi_message *m);
void tg_mpi_asked(tg_mpi_rank *self, const tg_mpi_message *m);
void tg_mpi_mail_taken(tg_mpi_group *g, const tg_mpi_message *m);
/* The call is over for this rank: its place is free. */
void tg_mpi_settle(tg_mpi_call *c);
/* Where this rank made a call. */
void tg_mpi_site(const tg_mpi_rank *self, const void *site, char *buf, size_t n);
bool tg_mpi_same(const tg_signature *a, const tg_signature *b);
tg_note tg_mpi_note(const tg_signature *s, int64_t count, int peer, uint64_t sequence);

/* ---- mpi_flow.c: what goes from whom to whom ---- */

typedef struct tg_mpi_flow {
    char *data;
    int64_t n; /* elements */
} tg_mpi_flow;

size_t tg_mpi_element(const tg_mpi_call *c);
bool tg_mpi_sums(const tg_mpi_call *c);
bool tg_mpi_whole(const tg_mpi_call *c); /* an all-reduce so small that everybody sums everything */
tg_mpi_flow tg_mpi_out(const tg_mpi_call *c, int to, int phase);
/* data is NULL where what comes is summed. */
tg_mpi_flow tg_mpi_in(const tg_mpi_call *c, int from, int phase);
/* The sum's place, and this rank's own share of it. */
tg_mpi_flow tg_mpi_sum(const tg_mpi_call *c, const char **own);
bool tg_mpi_few(const tg_mpi_call *c, tg_mpi_flow f, int phase);
int64_t tg_mpi_piece_count(const tg_mpi_call *c, tg_mpi_flow f); /* pieces */
tg_mpi_flow tg_mpi_piece_of(const tg_mpi_call *c, tg_mpi_flow f, int64_t index);

/* ---- mpi_move.c: the pieces ---- */

void tg_mpi_begin(tg_mpi_call *c); /* all have arrived and agree */
/* What can be done for the call now. */
void tg_mpi_advance(tg_mpi_call *c);
void tg_mpi_land(tg_mpi_group *g);

/* ---- mpi_node.c ---- */

/* The ranks of each node meet in its memory, if they can: *node. nodes: room for one for each rank. in_one: all can in
 * one. */
tg_status tg_mpi_meet(tg_comm *world, tg_comm **node, int64_t *nodes, bool *in_one);

/* ---- mpi_wait.c: progress, waiting, failure ---- */

void tg_mpi_progress(tg_mpi_rank *self);
/* Takes a call that cannot be finished out of what is in flight. */
void tg_mpi_forget(tg_mpi_request *r);
/* Until r is done (or, with r NULL, that call has a free place), or the group has failed. */
tg_status tg_mpi_await(tg_mpi_group *g, const tg_mpi_request *r, tg_mpi_call *place);
void tg_mpi_rest(const tg_mpi_rank *self, int round); /* longer and longer */
/* Makes progress until there, or the deadline of the context: false. */
bool tg_mpi_until(tg_mpi_rank *self, bool (*there)(tg_mpi_rank *self));

/* ---- mpi_fail.c ---- */

/* Whether the call will not be finished: its group has failed. A call before the one that failed goes on, as members
 * who have done it already may be the ones who failed; so does a message whose other half is there. */
bool tg_mpi_over(const tg_mpi_call *c);
/* The first failure is kept; `from`, the first collective that is lost, may sink. reporter: a member that has found it;
 * where it is this rank the others are told. */
void tg_mpi_fail(tg_mpi_group *g, tg_status status, int culprit, int reporter, const char *text, uint64_t from);
/* ... in a call, with the words of the rank that failed. */
void tg_mpi_fail_by(const tg_mpi_call *c, int rank, const char *after);
/* Records the group's failure in the context; arrived: this rank had made the call that failed. */
tg_status tg_mpi_failed(tg_mpi_group *g, bool arrived);
/* Looks whether those for whom the call waits can still come. */
void tg_mpi_look(tg_mpi_call *c, double since);
/* Ends the group where members disagree about the call: all of them in the same words, once all have arrived. */
void tg_mpi_settle_dispute(tg_mpi_call *c);
bool tg_mpi_agree(const tg_mpi_call *c, int member); /* one that has arrived with this rank */
/* What the context's errors mean to the other ranks. */
tg_listener tg_mpi_listener(tg_listener *next);
void tg_mpi_peer_failed(tg_mpi_rank *self, int rank, tg_status status, int cause, const char *text);

/* ---- mpi_recover.c ---- */

tg_status tg_mpi_recover(tg_mpi_seat *seat, int *rank, int *size);
void tg_mpi_came(tg_mpi_group *g, const tg_mpi_message *m);
extern const tg_comm_ops tg_mpi_transport;

#endif
