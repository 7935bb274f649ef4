/* The groups of a rank, and what is known of their members. */
#ifndef TG_P2P_GROUP_H
#define TG_P2P_GROUP_H

#include "comm/p2p/rank.h"

enum {
    TG_P2P_PIECES = 2,     /* buffers for pieces from a member, for each phase; and those to it, for all phases */
    TG_P2P_PHASES = 2,     /* an all-reduce sums its parts in phase 0, then gathers them in phase 1 */
    TG_P2P_PAIR_CALLS = 32 /* first capacity of tg_p2p_pair_calls */
};

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
    bool left, recovering; /* it has sent TG_P2P_LEAVE; it has called tg_comm_recover */
    uint64_t missed_calls; /* calls that it has missed after errors */
    tg_call_entry last;    /* its last collective that this rank knows of; sequence 0: none */
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

struct tg_p2p_group {
    tg_control control; /* first */
    tg_p2p_rank *self;
    tg_p2p_group *next;
    tg_p2p_key key;
    int window;               /* most collectives in flight; there are places for twice as many */
    size_t inline_bytes;      /* most bytes of data that a message contains */
    size_t piece;             /* bytes of a piece */
    uint64_t sequence;        /* of the next collective */
    bool held[TG_P2P_PHASES]; /* a collective could not yet request all that it needs, so younger ones wait */
    bool world;               /* it has all ranks, or all that recovery has left */
    bool closed, failed;
    bool passed_on; /* this rank has passed the disagreement on (tg_p2p_pass_on) */
    bool deadlocked;      /* it ends because of a deadlock, together with another group */
    tg_p2p_end other_end; /* of that group */
    tg_status status;
    int culprit, reporter; /* numbers in the world; -1: none */
    uint64_t failed_at;    /* the first collective that is lost; earlier ones go on */
    bool decided;          /* in recovery: the list is valid */
    bool *list;            /* in recovery: whether each member is to be in the next group */
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
 * that it is split from or, in recovery, a key made from that of the old group; NULL: it is the world. Returns NULL
 * after recording the error. */
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

#endif
