/* The failure protocol of all transports. It separates two roles. The control of a group knows which members (ranks of
 * the group) have arrived at a call, that is, have made it, and which have failed. The mover of a group moves the
 * bytes. Each role is a table of functions below. The transports over shared memory and over messages implement both
 * tables. For NCCL, the mover is NCCL, and the control asks the control of a host communicator. The code that calls the
 * tables is common to all transports: waiting, checking the peers, the text of every error, deadlocks and recovery.
 * tests/comm/test_failure_texts.c compares the texts of the transports.
 *
 * The functions of the tables return at once, unless their comment says that they wait. Only the context's thread calls
 * them. */
#ifndef TG_PROTOCOL_H
#define TG_PROTOCOL_H

#include "base/private_api.h"
#include "comm/comm.h"

typedef struct tg_control tg_control;

enum { TG_FAILURE_TEXT = TG_SHARED_TEXT_WORDS * 8, TG_SITE_BYTES = 192 };

/* What a rank waits for in a group. */
typedef struct tg_wait {
    /* The transport's request of the call that the rank waits for. NULL: all slots for calls in flight are taken, and
     * the rank waits until an older call frees the slot that its next call needs. */
    void *request;
    void *place;       /* if request is NULL: that slot; its type is the transport's */
    uint64_t sequence; /* if request is NULL: the number of that next call */
    /* tg_system_now() when the rank began to check its peers or, in tg_control_poll, when the host began to wait. 0:
     * the rank has not begun to check. */
    double since;
} tg_wait;

/* What a control knows of one member. */
typedef struct tg_member_view {
    int rank;          /* its number in the world */
    bool returned;     /* its function (tg_ranks_run) has returned, or it has freed its last communicator */
    bool left;         /* it has freed its communicator of the group */
    bool missed;       /* since the group was formed, it has missed more calls after errors than this rank */
    bool alive;        /* it has shown a sign of life since this rank began to check its peers */
    tg_status status;  /* of its context */
    int cause;         /* the rank that caused its latest error, even if cleared; -1: itself */
    double failed_for; /* seconds since this rank first saw the error */
} tg_member_view;

typedef struct tg_control_ops {
    const char *busy, *missing; /* describe a member that has not arrived, with and without a sign of life (alive) */
    const char *unfinished;     /* what the error of a deadline adds if all members have arrived; NULL: nothing */
    int max_calls; /* most calls of a group in flight, quoted if `call` returns false; 0 if `call` never does */
    bool first_decides; /* in recovery only the lowest member that has joined proposes a list; false: any member may */

    /* Facts about a call and the members */
    bool (*awaits)(tg_control *c, const tg_wait *w, int i); /* whether member i has yet to arrive */
    void (*member)(tg_control *c, const tg_wait *w, int i, tg_member_view *view); /* fills *view for member i */
    void (*error_of)(tg_control *c, int i, char *buf, size_t n); /* member i's latest error, even if cleared */
    uint64_t (*calls)(tg_control *c, int i); /* number of collective calls of the group that member i has started */
    void (*last_call)(tg_control *c, int i, char *buf, size_t n, size_t *at); /* the last call of member i */
    /* Writes the call of w and where it was made. Returns false if this rank only waits for a slot. */
    bool (*call)(tg_control *c, const tg_wait *w, tg_call_entry *entry, char *site, size_t n);

    /* The end of the group */
    bool (*ended)(tg_control *c, const tg_wait *w); /* whether it has ended for the call of w; w NULL: for new calls */
    /* Called before publish. Returns false if the group has ended already; publish is then not called. If the
     * transport's publish keeps the first of several reasons, claim may always return true. */
    bool (*claim)(tg_control *c);
    /* Ends the group, and stores the reason. */
    void (*publish)(tg_control *c, const tg_wait *w, tg_status status, int culprit, const char *text);
    void (*end)(tg_control *c, tg_group_end *end, char *buf, size_t n); /* fills *end; buf receives the text */

    /* Waiting */
    /* Optional. Called before round number `round` (from 0) of tg_control_wait makes progress. */
    void (*prepare)(tg_control *c, int round);
    /* Called before a wait checks the peers for the first time. From then on until end_wait, the peers may see what
     * this rank waits for. */
    void (*begin_checks)(tg_control *c, const tg_wait *w);
    void (*end_wait)(tg_control *c, const tg_wait *w);
    void (*pause)(tg_control *c, const tg_wait *w, int round); /* spins, yields or sleeps. w NULL: no call is awaited */
    /* Replaces begin_checks while the host waits for something else, such as a device (tg_control_poll). May be called
     * repeatedly. w NULL: no call is awaited. */
    void (*begin_poll)(tg_control *c, const tg_wait *w);
    const char *(*broken)(tg_control *c); /* optional; the name of a layer that can deliver nothing any more, or NULL */
    /* Optional. Reports a disagreement about the call of w that was found earlier, if its report was delayed. */
    void (*report_disagreement)(tg_control *c, const tg_wait *w);
    /* Optional. Makes the transport's own checks, after those of the members. w NULL: no call is awaited. */
    void (*check)(tg_control *c, const tg_wait *w);
    /* Optional. Called for a member i that has not arrived. If this rank and member i wait for each other, ends the
     * groups in which they wait. */
    void (*deadlock)(tg_control *c, const tg_wait *w, int i);

    /* Recovery. A member joins it when it calls tg_comm_recover. */
    void (*join_recovery)(tg_control *c);          /* notifies the members that this rank has joined */
    bool (*is_expected)(tg_control *c, int i);     /* whether member i has not joined, but still may */
    bool (*has_joined)(tg_control *c, int i);      /* whether member i has joined, and has not left the group since */
    /* Optional. Why nothing can come from member i any more: "" if its process has ended, otherwise the layer's words;
     * NULL: it is not so, or the layer cannot tell. */
    const char *(*lost)(tg_control *c, int i);
    bool *(*own_list)(tg_control *c);              /* the list that this rank would propose: a flag for each member */
    void (*propose)(tg_control *c);                /* proposes own_list; the first proposal is valid for all members */
    const bool *(*decided_list)(tg_control *c);    /* the valid list; NULL: none yet */
} tg_control_ops;

typedef struct tg_mover_ops {
    void (*advance)(tg_control *c);                /* moves what can be moved now, for all calls of this rank */
    bool (*done)(tg_control *c, const tg_wait *w); /* whether w is over: the call is done, or the slot is free */
    /* Optional. Called after the group has failed. Waits, for a limited time, until no peer uses this rank's memory for
     * calls of the group. */
    void (*quiesce)(tg_control *c);
} tg_mover_ops;

/* One rank's side of a group: the first member of a transport's own struct. */
struct tg_control {
    const tg_control_ops *ops;
    const tg_mover_ops *mover;
    tg_ctx *ctx;
    const char *name; /* of the group */
    int me;           /* this rank's number in the world */
    int rank, size;   /* this rank's number in the group; number of members */
    int *cause;       /* the rank whose failure this rank's context is recording; -1: its own */
    int patience;     /* rounds of a wait before the peers are checked */
    bool notified;    /* the context has recorded that the group has failed */
    uint64_t missed;  /* number of calls that the context had missed when the group was formed */
};

/* Returns the number of calls, of any group, that this rank has missed after errors since this group was formed. */
static inline uint64_t tg_control_missed(const tg_control *c) { return c->ctx->run.missed - c->missed; }

/* ---- failure.c ---- */

/* A call of one member, as an error quotes it. */
typedef struct tg_quoted {
    int member, rank; /* its numbers in the group and in the world */
    tg_call_entry entry;
    char site[TG_SITE_BYTES];
} tg_quoted;

/* Writes a call as "rank 1 called barrier() from main.c:7". */
void tg_quote(const tg_quoted *q, char *buf, size_t n, size_t *at);

/* Ends the group unless it has ended already. culprit: number in the world of the rank that caused this; -1: none. */
TG_PRIVATE_API void tg_control_fail(tg_control *c, const tg_wait *w, tg_status status, int culprit, const char *text);
/* Ends the group with member i's error. after: the text that follows "failed" in the message; not used if another rank
 * has caused the error. */
void tg_control_fail_by(tg_control *c, const tg_wait *w, int i, const char *after);
/* Ends the group because two members disagree about a call, or about a message between them (then a->entry.sequence
 * is 0). */
void tg_control_mismatch(tg_control *c, const tg_wait *w, const tg_quoted *a, const tg_quoted *b);
/* Ends the group because member i has gone: its process has died or, if `unreachable` is not "", cannot be reached for
 * that reason. If the member's context holds an error, the group ends with that error instead. */
void tg_control_died(tg_control *c, const tg_wait *w, int i, long long pid, const char *unreachable);
/* Ends the group because this rank leaves it. As the reason the peers receive this rank's error. If it has none now,
 * they receive its latest error if it has missed calls, and otherwise `why`. */
void tg_control_abandon(tg_control *c, const char *why);
/* Records the group's failure in the context, and returns its status. arrived: this rank has made its call, perhaps
 * too late. */
TG_PRIVATE_API tg_status tg_control_failed(tg_control *c, bool arrived);
/* Ends the group if a member that w waits for can no longer arrive, or if the deadline has passed. */
void tg_control_check_peers(tg_control *c, const tg_wait *w);

/* ---- wait.c ---- */

/* Fails with TG_ERR_ABORTED if the message layer of c's group has failed. */
tg_status tg_control_check_layer(tg_control *c);
/* Waits until the request is done or, if request is NULL, until the slot `place` is free for call number `sequence`.
 * Fails if this cannot happen any more, because the group or its message layer has failed. */
TG_PRIVATE_API tg_status tg_control_wait(tg_control *c, void *request, void *place, uint64_t sequence);
/* Called while the host waits for something else, for example a device. Advances calls and reports the group's failure.
 * waited: seconds so far; negative: that wait is over. request: the call of the group on which the device depends;
 * NULL: none. */
TG_PRIVATE_API tg_status tg_control_poll(tg_control *c, void *request, double waited);

/* ---- deadlock.c ---- */

/* A rank that waits in a call of a group. */
typedef struct tg_blocked {
    int rank; /* its number in the world */
    const char *group;
    const char *call; /* as tg_quote writes it */
} tg_blocked;

/* Ends two groups that are deadlocked: this rank (own) waits in `mine`, and another rank (peer) waits in `other`.
 * Neither will make the call that the other waits for. */
void tg_control_deadlock(tg_control *mine, const tg_wait *w, const tg_blocked *own, tg_control *other,
                         const tg_wait *w_other, const tg_blocked *peer);

/* ---- recover.c ---- */

/* Ends the group, and agrees with the members that join the recovery which of them form the next group. ranks: has
 * space for all members; receives the *n ranks of the world that form it, in their old order. *mine: this rank's index
 * among them. */
tg_status tg_control_regroup(tg_control *c, int *ranks, int *n, int *mine);

#endif
