/* The shared-memory transport: ranks that are threads of one process, or processes of one node.
 *
 * A rank that starts a collective posts where its data lie and goes on. When all members have, whoever waits (or tests)
 * takes pieces of the work and does them directly in the members' memory: so nobody's data wait for a rank that is busy
 * computing, and bits do not depend on who did what. */
#ifndef TG_SHM_H
#define TG_SHM_H

#include "comm/protocol.h"
#include "comm/shm/region.h"

typedef struct tg_shm_request tg_shm_request;
typedef struct tg_shm_group tg_shm_group;

/* One rank: what its communicators on one region share. */
typedef struct tg_process tg_process;

typedef struct tg_shm_rank {
    tg_listener listener; /* first: it is what the context calls */
    tg_ctx *ctx;
    tg_vantage view;
    tg_board *board;
    tg_process *process; /* NULL: a thread */
    double polled;       /* when peers' processes were last looked at */
    tg_shm_group *group; /* all of its communicators' states */
    int spins;
    uint32_t bell; /* as it was before progress was made last */
    int cause; /* the rank whose failure is being recorded as this one's; -1 */
    tg_shm_request *first, *last; /* in flight, in the order of their start */
    tg_shm_request *free;
} tg_shm_rank;

/* A communicator's state. */
struct tg_shm_group {
    tg_control control; /* first */
    tg_shm_rank *self;
    tg_group *g;
    uint64_t next;     /* sequence number of the next collective */
    uint64_t mails;    /* sends and receives posted so far */
    int boxed;         /* those that are in the box */
    double failed_since; /* when this wait first saw a peer that holds an error; 0: it has seen none */
    const tg_shm_request *watched; /* the call that a wait elsewhere is for */
    size_t pairs_bytes;
    uint64_t *pairs;   /* messages so far to, and from, each member; then their heartbeats when a wait began */
    tg_shm_group *sibling;
    int64_t *begins;   /* of the calls in flight: where parts begin */
    size_t begins_bytes;
    tg_block *begins_block; /* of processes */
};

struct tg_shm_request {
    tg_shm_group *s;
    tg_shm_request *next, *prev;
    uint64_t sequence;
    tg_collective kind;
    int peer;
    tg_note note;   /* for errors */
    uint64_t record; /* its number in the record */
    tg_slot *slot;  /* of a collective */
    tg_mail *mail;  /* of a send or receive; NULL: its rank's box is full, and it waits for a place there */
    tg_shared data; /* of a send or receive, and the key of its own half and of the other */
    uint64_t key, match;
    uint64_t missed; /* of the peer's posts: those among which the other half was not */
    bool unposted, moved; /* a message: not in the box; by this rank */
    bool done;
    tg_block *staged_src, *staged_dst; /* copies in shared memory, of what lies elsewhere */
    void *dst;
    size_t dst_bytes;
};

extern const tg_comm_ops tg_threads_transport, tg_processes_transport;

/* The communicator of all ranks of a region. Takes over process. NULL after recording the error. */
tg_comm *tg_shm_world(tg_ctx *ctx, const tg_vantage *view, tg_process *process);

/* ---- reduce.c ---- */

/* Cuts a call that all have posted: parts and pieces. */
void tg_shm_cut(tg_shm_group *s, tg_slot *slot);
/* Does what pieces nobody has taken yet. */
void tg_shm_run(tg_shm_group *s, tg_slot *slot);
/* Between them this rank may work in the memory of the group's members; false: the group has failed. */
bool tg_shm_enter(tg_shm_group *s);
void tg_shm_exit(tg_shm_group *s);

/* ---- messages.c ---- */

enum { TG_MAIL_NUMBER = 16 }; /* from this bit on a key is the number of the message between its two ranks */

static inline bool tg_shm_is_mail(const tg_shm_request *r) { return r->kind == TG_SEND || r->kind == TG_RECV; }
void tg_shm_post_mail(tg_shm_group *s, const tg_transfer *t, tg_shm_request *r);
/* Moves the message if both halves are there. True when it has been moved. */
bool tg_shm_try_mail(tg_shm_request *r);
bool tg_shm_mail_done(const tg_shm_request *r);
/* Whether the peer has made its half. */
bool tg_shm_mail_answered(const tg_shm_request *r);
void tg_shm_end_mail(tg_shm_request *r);

/* ---- progress.c ---- */

/* Advances every call of this rank. */
void tg_shm_progress(tg_shm_rank *self);
bool tg_shm_check(tg_shm_request *r); /* finds out whether it is done */
void tg_shm_ring(tg_shm_group *s);    /* wakes the members that sleep */
static inline tg_card *tg_shm_card(const tg_shm_group *s, int member) {
    return &s->self->view.region->card[tg_group_member(s->g, member)->rank];
}
static inline tg_card *tg_shm_own_card(const tg_shm_rank *self) { return &self->view.region->card[self->view.me]; }
static inline bool tg_shm_has_failed(const tg_shm_group *s) {
    return atomic_load_explicit(&s->g->failed, memory_order_acquire) != TG_GROUP_WHOLE;
}

/* ---- control.c ---- */

extern const tg_control_ops tg_shm_control;
extern const tg_mover_ops tg_shm_mover;
static inline tg_shm_group *tg_shm_of(tg_control *c) { return (tg_shm_group *)c; }
int tg_shm_patience(const tg_shm_rank *self);
/* Two members disagree about a call, or about a message between them. */
void tg_shm_mismatch(tg_shm_group *s, int a, int b, const tg_note *of_a, const tg_note *of_b);
tg_note tg_shm_post_note(const tg_post *p, uint64_t sequence);
void tg_shm_quote(const tg_shm_group *s, int member, const tg_note *note, tg_quoted *q);
/* Whether member a has missed more of the group's calls, after errors, than b has. */
bool tg_shm_has_missed_more(const tg_shm_group *s, int a, int b);
/* Whether the member has made its part of what r waits for. */
bool tg_shm_has_arrived(const tg_shm_request *r, int member);

/* ---- process.c ---- */

/* This process as that rank of the region in a launcher's file; own_fd: to be closed at the end. Inert on error. */
tg_comm *tg_comm_attach(tg_ctx *ctx, int fd, int rank, bool own_fd);
bool tg_process_alive(const tg_vantage *v, int rank); /* false: it has died as a rank. Of threads: true */
int64_t tg_process_pid(const tg_vantage *v, int rank);
void tg_process_close(tg_process *p);
/* Memory that all ranks see. NULL when there is none left. */
tg_block *tg_process_alloc(tg_process *p, size_t bytes);
void tg_process_free(tg_process *p, tg_block *b);
/* Puts shared memory in the place of what others cannot see; src is copied. */
tg_status tg_shm_stage(tg_shm_group *s, tg_transfer *t, tg_shm_request *r);
/* After the call: what has arrived is copied to where it belongs (done), and the shared memory let go. */
void tg_shm_unstage(tg_shm_request *r, bool done);

/* ---- deadlock.c ---- */

uint64_t tg_shm_blocked_in(const tg_shm_request *r); /* as it stands on the card */
void tg_shm_check_deadlock(tg_control *c, const tg_wait *w, int member);

#endif
