/* The shared-memory transport: ranks are threads of one process, or processes of one node.
 *
 * A rank that starts a collective posts the addresses of its data and goes on. When all members have posted, any rank
 * that waits or tests takes pieces of the work and does them directly in the members' memory. So the data need not wait
 * for a rank that is busy computing. The resulting bits do not depend on which rank did which piece. */
#ifndef TG_SHM_H
#define TG_SHM_H

#include "comm/protocol.h"
#include "comm/shm/region.h"

typedef struct tg_shm_request tg_shm_request;
typedef struct tg_shm_group tg_shm_group;

/* A process's mapping of the region's file (process.c). */
typedef struct tg_process tg_process;

/* The state that the communicators of one rank on one region share. */
typedef struct tg_shm_rank {
    tg_listener listener; /* first, as the context holds a pointer to it */
    tg_ctx *ctx;
    tg_region_view view;
    tg_recorder *recorder;
    tg_process *process; /* NULL: the rank is a thread */
    double polled;       /* time when the processes of peers were last checked */
    tg_shm_group *group; /* list of the states of its communicators */
    int spins;           /* rounds of a wait that spin before the rank sleeps */
    uint32_t wakeups; /* value of the rank slot's `wakeups` before progress was last made */
    int cause; /* the rank that caused the failure now being recorded; -1: this rank itself */
    tg_shm_request *first, *last; /* requests in flight, in the order of their start */
    tg_shm_request *free;         /* list of unused requests */
} tg_shm_rank;

/* A communicator's state. */
struct tg_shm_group {
    tg_control control; /* first */
    tg_shm_rank *self;
    tg_group *g;
    uint64_t next;     /* sequence number of the next collective */
    uint64_t messages; /* number of sends and receives that this rank has posted in a message slot so far */
    int slots_used;    /* number of this rank's message slots in use */
    /* The call on which the device depends while the host waits for the device (tg_control_poll); NULL: none. */
    const tg_shm_request *watched;
    size_t pairs_bytes;
    /* pairs[2 i]: number of receives from member i so far; pairs[2 i + 1]: number of sends to it so far;
     * pairs[2 size + i]: its heartbeat when this rank began to check its peers; pairs[3 size + i]: the time
     * (tg_recorder_now) when this wait first saw that it holds an error, 0 if it holds none. */
    uint64_t *pairs;
    tg_shm_group *sibling;
    int64_t *begins;   /* for the calls in flight: where parts begin. NULL: no call has had unequal parts yet */
    size_t begins_bytes;
    tg_block *begins_block; /* the memory of begins, for processes */
};

struct tg_shm_request {
    tg_shm_group *s;
    tg_shm_request *next, *prev;
    uint64_t sequence;
    tg_collective kind;
    int peer;
    tg_call_entry entry; /* for errors */
    uint64_t record; /* its index in the flight recorder */
    tg_slot *slot;  /* of a collective */
    tg_message_slot *message; /* of a send or receive; NULL: it waits for a free message slot */
    tg_shared data;       /* of a send or receive: its src or dst */
    uint64_t key, match;  /* of a send or receive: the keys of its own half and of the peer's half of the message */
    uint64_t searched;    /* value of the peer's tg_member.posts when the peer's half was last searched in vain */
    bool unposted, moved; /* of a send or receive: it is counted in tg_member.unposted; this rank has moved it */
    bool done;
    tg_block *staged_src, *staged_dst; /* replace a src and a dst that lie outside the shared memory */
    void *dst; /* the caller's dst, to which staged_dst is copied in the end */
    size_t dst_bytes;
};

extern const tg_comm_ops tg_threads_transport, tg_processes_transport;

/* Makes the communicator of all ranks of a region. Takes over `process` (NULL: the rank is a thread). Returns NULL
 * after recording the error. */
tg_comm *tg_shm_world(tg_ctx *ctx, const tg_region_view *view, tg_process *process);
/* Does the work of `split` of tg_comm_ops. The new group may be split from another group than that of `state`, such as
 * a group of another transport: origin says from which (tg_group_join). ranks are numbers in the group of `state`. */
tg_status tg_shm_split(tg_ctx *ctx, void *state, uint64_t origin, const int *ranks, int n, int rank, const char *name,
                       void **group);

/* ---- reduce.c ---- */

/* Cuts a call that all members have posted into parts and pieces. */
void tg_shm_cut(tg_shm_group *s, tg_slot *slot);
/* Takes and does pieces until every piece has been taken, by this rank or another, or the group has failed. */
void tg_shm_run(tg_shm_group *s, tg_slot *slot);
/* Begin and end work in the memory of the group's members. tg_shm_enter returns false if the group has failed; then
 * no memory may be touched. */
bool tg_shm_enter(tg_shm_group *s);
void tg_shm_exit(tg_shm_group *s);

/* ---- messages.c ---- */

enum { TG_MESSAGE_NUMBER = 16 }; /* the bit of a key at which the message's number begins */

static inline bool tg_shm_is_message(const tg_shm_request *r) { return r->kind == TG_SEND || r->kind == TG_RECV; }
/* Posts this rank's half of a message, or counts it as unposted if no message slot is free. */
void tg_shm_post_message(tg_shm_group *s, const tg_transfer *t, tg_shm_request *r);
/* Moves the message if the peer has posted its half. Returns whether the message has been moved. */
bool tg_shm_try_message(tg_shm_request *r);
bool tg_shm_message_done(const tg_shm_request *r);
/* Returns whether the peer has made its half of the message, or may have made it without a free message slot. */
bool tg_shm_message_answered(const tg_shm_request *r);
/* Waits while the peer compares the two halves of a message, for 1 s at most. For messages without data: the caller
 * (NCCL) moves the data by other means, and must not do so if the halves disagree. */
void tg_shm_settle_message(const tg_shm_request *r);
void tg_shm_end_message(tg_shm_request *r); /* frees the message slot */

/* ---- progress.c ---- */

/* Advances every call of this rank. */
void tg_shm_progress(tg_shm_rank *self);
bool tg_shm_check(tg_shm_request *r); /* ends the call if it is done; returns whether it is */
void tg_shm_wake(tg_shm_group *s);    /* wakes the members that sleep */
static inline tg_rank_slot *tg_shm_rank_slot(const tg_shm_group *s, int member) {
    return &s->self->view.region->rank_slot[tg_group_member(s->g, member)->rank];
}
static inline tg_rank_slot *tg_shm_own_rank_slot(const tg_shm_rank *self) {
    return &self->view.region->rank_slot[self->view.me];
}
static inline bool tg_shm_has_failed(const tg_shm_group *s) {
    return atomic_load_explicit(&s->g->failed, memory_order_acquire) != TG_GROUP_WHOLE;
}

/* ---- control.c ---- */

extern const tg_control_ops tg_shm_control;
extern const tg_mover_ops tg_shm_mover;
static inline tg_shm_group *tg_shm_of(tg_control *c) { return (tg_shm_group *)c; }
int tg_shm_patience(const tg_shm_rank *self); /* rounds of a wait before the peers are checked */
/* Ends the group because two members disagree about a call, or about a message between them. */
void tg_shm_mismatch(tg_shm_group *s, int a, int b, const tg_call_entry *of_a, const tg_call_entry *of_b);
/* Returns the call of a post, for errors. */
tg_call_entry tg_shm_post_entry(const tg_post *p, uint64_t sequence);
/* Fills *q with a call of a member, for errors. */
void tg_shm_quote(const tg_shm_group *s, int member, const tg_call_entry *entry, tg_quoted *q);
/* Returns whether member a has missed more calls after errors than member b, each since it joined the group. */
bool tg_shm_has_missed_more(const tg_shm_group *s, int a, int b);
/* Returns whether the member has made its part of the call that r waits for. For a message, members other than the peer
 * have. r NULL: returns false. */
bool tg_shm_has_arrived(const tg_shm_request *r, int member);

/* ---- process.c ---- */

/* Attaches this process as `rank` of the region in the file fd, which a launcher or p2p/node.c has made. own_fd: fd is
 * closed when the last communicator of the region is freed, and by this call on an error. Returns an inert communicator
 * (tapegrad.h) on error. */
tg_comm *tg_comm_attach(tg_ctx *ctx, int fd, int rank, bool own_fd);
/* Returns false if the process of the rank has died after it attached and before it returned. Returns true for
 * threads. */
bool tg_process_alive(const tg_region_view *v, int rank);
int64_t tg_process_pid(const tg_region_view *v, int rank);
void tg_process_close(tg_process *p);
/* Allocates memory that all ranks can see. Returns NULL when there is none left. */
tg_block *tg_process_alloc(tg_process *p, size_t bytes);
void tg_process_free(tg_process *p, tg_block *b);
/* Replaces src and dst of t, if other ranks cannot see them, by copies in shared memory. The bytes of src, and of x at
 * the root of a broadcast, are copied at once; those of dst come back at the end (tg_shm_unstage). */
tg_status tg_shm_stage(tg_shm_group *s, tg_transfer *t, tg_shm_request *r);
/* Releases the copies that tg_shm_stage made. done: first copies the received data to the caller's dst. */
void tg_shm_unstage(tg_shm_request *r, bool done);

/* ---- deadlock.c ---- */

uint64_t tg_shm_blocked_in(const tg_shm_request *r); /* returns the call as the word `blocked` of a rank slot */
/* Implements `deadlock` of tg_control_ops. */
void tg_shm_check_deadlock(tg_control *c, const tg_wait *w, int member);

#endif
