/* The failure protocol of all transports, in two roles. A control knows which members of a group have arrived and which
 * have failed; a mover moves bytes. Shared memory and messages implement both as the two tables below. NCCL is a mover
 * whose control asks the control of its host communicator. The code on top is common to all transports: waiting,
 * checking the peers, the text of every error, deadlocks and recovery. tests/comm/test_failure_texts.c compares the
 * texts.
 *
 * All slots return at once. Only the context's thread calls them. */
#ifndef TG_PROTOCOL_H
#define TG_PROTOCOL_H

#include "comm/comm.h"

typedef struct tg_control tg_control;

enum { TG_FAILURE_TEXT = TG_SHARED_TEXT_WORDS * 8, TG_SITE_BYTES = 192 };

/* What a rank waits for in a group. */
typedef struct tg_wait {
    void *request;     /* this rank's own call; NULL: it waits until an older call frees its slot */
    void *place;       /* slot of the call, or the one it waits for; its type is the transport's */
    uint64_t sequence; /* of the call */
    double since;      /* tg_system_now() when the rank began to check its peers; 0: not yet */
} tg_wait;

/* What a control knows of one member. */
typedef struct tg_member_view {
    int rank;          /* of the world */
    bool returned;     /* its function has returned, or its last communicator is freed */
    bool left;         /* it has freed its communicator of the group */
    bool missed;       /* after errors it has missed more calls of the group than this rank has */
    bool alive;        /* it has shown a sign of life since the wait began */
    tg_status status;  /* of its context */
    int cause;         /* the rank that caused its latest error, even if cleared; -1: itself */
    double failed_for; /* Seconds since this rank first saw the error */
    uint64_t calls;    /* that it has made */
} tg_member_view;

typedef struct tg_control_ops {
    const char *busy, *missing; /* how an absent member is described, with and without a sign of life */
    const char *unfinished;     /* what a deadline says when all members have arrived; NULL: nothing */
    int places;                 /* most calls of a group in flight, quoted when one waits for a slot; 0: not quoted */
    bool one_decides;           /* in recovery only the first member that has come decides; false: any member may */

    /* Facts about a call and the members */
    bool (*awaits)(tg_control *c, const tg_wait *w, int i); /* whether member i has yet to arrive */
    void (*member)(tg_control *c, const tg_wait *w, int i, tg_member_view *view);
    void (*error_of)(tg_control *c, int i, char *buf, size_t n); /* the message of member i's error */
    void (*last_call)(tg_control *c, int i, char *buf, size_t n, size_t *at);
    /* Writes the call of w and where it was made. Returns false if this rank only waits for a slot. */
    bool (*call)(tg_control *c, const tg_wait *w, tg_call_entry *entry, char *site, size_t n);

    /* Whether the group has ended for w; NULL: for all its calls. */
    bool (*ended)(tg_control *c, const tg_wait *w);
    bool (*claim)(tg_control *c); /* whether this rank is the first to end it, and will publish why */
    void (*publish)(tg_control *c, const tg_wait *w, tg_status status, int culprit, const char *text);
    void (*end)(tg_control *c, tg_group_end *end, char *buf, size_t n); /* buf: receives the text */

    /* Waiting */
    void (*prepare)(tg_control *c, int round);          /* optional; before progress is made for the round-th time */
    void (*begin)(tg_control *c, const tg_wait *w);     /* the checks begin: peers may see what this rank waits for */
    void (*over)(tg_control *c, const tg_wait *w);      /* the wait is over */
    void (*rest)(tg_control *c, const tg_wait *w, int round); /* spins, yields or sleeps; w NULL: no call is awaited */
    void (*begin_poll)(tg_control *c, const tg_wait *w); /* in place of begin if the host waits elsewhere; returns */
    const char *(*broken)(tg_control *c); /* optional; the reason why nothing can arrive any more, or NULL */
    void (*settle)(tg_control *c, const tg_wait *w);    /* optional; ends disagreements that are not reported at once */
    void (*check)(tg_control *c, const tg_wait *w);     /* optional; after the members. w NULL: no call is awaited */
    void (*deadlock)(tg_control *c, const tg_wait *w, int i); /* optional; whether member i waits for this rank */

    /* Recovery */
    void (*come)(tg_control *c);                        /* this rank has come */
    bool (*expected)(tg_control *c, int i);             /* member i has not come, and may yet */
    bool (*is_here)(tg_control *c, int i);              /* member i has come, and has not left since */
    bool *(*list)(tg_control *c);                       /* this rank's own list of those that are here */
    void (*decide)(tg_control *c);                      /* proposes that list; the first proposal holds */
    const bool *(*decided)(tg_control *c);              /* the list that holds; NULL: none yet */
} tg_control_ops;

typedef struct tg_mover_ops {
    void (*advance)(tg_control *c);                /* moves what can be moved now, of all calls of this rank */
    bool (*done)(tg_control *c, const tg_wait *w); /* whether w is over: the call is done, or the slot is free */
    void (*quiesce)(tg_control *c); /* optional; of a failed group: returns when no peer touches this rank's memory */
} tg_mover_ops;

/* One rank's end of a group: the first member of a transport's own struct. */
struct tg_control {
    const tg_control_ops *ops;
    const tg_mover_ops *mover;
    tg_ctx *ctx;
    const char *name; /* of the group */
    int me;           /* this rank's number in the world */
    int rank, size;   /* and in the group; members of the group */
    int *cause;       /* the rank whose failure this rank's context is recording; -1: its own */
    int patience;     /* rounds of a wait before the peers are checked */
    bool notified;    /* the context has recorded that the group has failed */
    uint64_t missed;  /* calls that the context had missed when the group was formed */
};

/* Calls of the group that this rank has missed after errors. */
static inline uint64_t tg_control_missed(const tg_control *c) { return c->ctx->run.missed - c->missed; }

/* ---- failure.c ---- */

/* A call of one member, as an error quotes it. */
typedef struct tg_quoted {
    int member, rank; /* in the group, in the world */
    tg_call_entry entry;
    char site[TG_SITE_BYTES];
} tg_quoted;

/* Writes a call as "rank 1 called barrier() from main.c:7". */
void tg_quote(const tg_quoted *q, char *buf, size_t n, size_t *at);

/* Ends the group unless it has failed already. culprit: a rank of the world; -1: none. */
void tg_control_fail(tg_control *c, const tg_wait *w, tg_status status, int culprit, const char *text);
/* Ends the group with member i's error. after: the text that follows "failed". */
void tg_control_fail_by(tg_control *c, const tg_wait *w, int i, const char *after);
/* Ends the group because two members disagree about a call. An entry of sequence 0 stands for a message between the
 * two. */
void tg_control_mismatch(tg_control *c, const tg_wait *w, const tg_quoted *a, const tg_quoted *b);
/* Ends the group because the process of member i has died. */
void tg_control_died(tg_control *c, const tg_wait *w, int i, long long pid);
/* Ends the group because this rank leaves it. The peers receive the error after which this rank has missed calls or,
 * if there is none, `why`. */
void tg_control_abandon(tg_control *c, const char *why);
/* Records the group's failure in the context. arrived: this rank has made its call, perhaps too late. */
tg_status tg_control_failed(tg_control *c, bool arrived);
/* Checks whether the members that w waits for can still arrive, and the deadline. */
void tg_control_check_peers(tg_control *c, const tg_wait *w);

/* ---- wait.c ---- */

/* Waits until the request is done or, with request NULL, until `place` is free for the call `sequence`. Fails when the
 * group does. */
tg_status tg_control_wait(tg_control *c, void *request, void *place, uint64_t sequence);
/* Called while the host waits elsewhere, for example for a device. waited: seconds so far; negative: that wait is
 * over. request NULL: the host waits for no call of the group. Advances calls and reports the group's failure. */
tg_status tg_control_poll(tg_control *c, void *request, double waited);

/* ---- deadlock.c ---- */

/* A rank that waits in a call of a group. */
typedef struct tg_blocked {
    int rank; /* of the world */
    const char *group;
    const char *call; /* as tg_quote writes it */
} tg_blocked;

/* Ends two groups that are deadlocked: this rank (own) waits in `mine`, and peer in `other`. Neither will make the call
 * that the other waits for. */
void tg_control_deadlock(tg_control *mine, const tg_wait *w, const tg_blocked *own, tg_control *other,
                         const tg_wait *w_other, const tg_blocked *peer);

/* ---- recover.c ---- */

/* Ends the group, and agrees with the members that come on who forms the next one. ranks: has space for all members;
 * receives the n ranks of the world in their old order. mine: this rank's index among them. */
tg_status tg_control_regroup(tg_control *c, int *ranks, int *n, int *mine);

#endif
