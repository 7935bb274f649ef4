/* The region: the memory that the ranks of one node share. It holds a slot for each rank, and the groups with the calls
 * that their members have posted. Threads share it by address; processes map one file. References within the region,
 * and to the bytes of tensors, are therefore of type tg_shared: among threads an address, among processes an offset
 * into the file. */
#ifndef TG_REGION_H
#define TG_REGION_H

#include <pthread.h>

#include "comm/flight_recorder.h"
#include "comm/signature.h"

enum {
    TG_MAX_RANKS = 1024,
    TG_CALLS = 32,        /* collectives of one group in flight; a rank that starts one more waits for the oldest */
    TG_MESSAGE_SLOTS = 64 /* message slots of one rank in one group, each for a send or a receive */
};

typedef uint64_t tg_shared; /* 0: no reference */

/* ---- Groups ---- */

/* One member's part of one call. The member writes the other fields, except `next`, before it sets `posted`. */
typedef struct tg_post {
    alignas(TG_LINE) _Atomic uint64_t posted; /* 1 + the sequence number */
    tg_shared src, dst, send_at, recv_at; /* send_at, recv_at: where parts begin, size + 1 numbers; 0: equal parts */
    int64_t count;
    uint64_t site;
    tg_signature signature;
    _Atomic int64_t next; /* the first piece, counted within this member's share, that no rank has taken yet */
} tg_post;

/* The slot of a collective. The members post their parts in it. A rank that waits takes pieces of the work, first those
 * of its own share, whose data is likely to be in its cache. The call is done when all pieces are done. The last member
 * to notice that prepares the slot for the call whose number is TG_CALLS higher. */
typedef struct tg_slot {
    alignas(TG_LINE) _Atomic uint64_t generation; /* call s may use the slot when this is s / TG_CALLS */
    _Atomic uint64_t ready;       /* 1 + the sequence number, once all have arrived and agree */
    _Atomic int first;            /* 1 + the member with which the others compare their calls; 0: none yet */
    _Atomic int arrived, left;    /* members that have posted; members that have seen the end of the call */
    int64_t parts, pieces, piece; /* number of parts; pieces in each part; elements of a piece */
    alignas(TG_LINE) _Atomic int64_t done; /* number of pieces that are done */
    alignas(TG_LINE) tg_post post[];
} tg_slot;

/* A message slot: a send or a receive that waits for its other half. */
typedef struct tg_message_slot {
    _Atomic uint64_t state; /* low 2 bits: TG_MESSAGE_FREE etc. The other bits count the uses of the slot */
    _Atomic uint64_t key;   /* identifies the half among all halves of this member; 0: none */
    /* A reader may read these fields before it knows that they belong to this use. If it then finds another state, it
     * discards them. */
    _Atomic tg_shared data;
    _Atomic int64_t count;
    _Atomic uint64_t site;
    _Atomic uint8_t dtype;
} tg_message_slot;

enum { TG_MESSAGE_FREE, TG_MESSAGE_POSTED, TG_MESSAGE_TAKEN, TG_MESSAGE_DONE };

typedef struct tg_group {
    uint64_t id;
    tg_shared next;  /* the next group in the region's list */
    uint64_t origin; /* what it was formed from (tg_group_join) */
    size_t bytes, slot_bytes;
    int size; /* number of members */
    _Atomic int failed;     /* TG_GROUP_WHOLE etc. */
    tg_status status;       /* why the group has failed, together with culprit, reporter and failure */
    int culprit, reporter;  /* numbers in the world; -1: none */
    tg_shared_text failure;
    char name[32];
    _Atomic int decided; /* in recovery: 1 + the member whose list is valid; 0: none yet */
    size_t at_slots, at_message_slots, at_members, at_lists; /* offsets in bytes */
} tg_group;

/* TG_GROUP_FAILING: a rank has claimed the group, and is publishing the reason. */
enum { TG_GROUP_WHOLE, TG_GROUP_FAILING, TG_GROUP_FAILED };

typedef struct tg_member {
    int rank; /* its number in the world */
    bool joined;
    _Atomic bool left; /* it has freed its communicator, or has replaced the group by the next one after a recovery */
    _Atomic bool recovering; /* it has called tg_comm_recover */
    _Atomic uint64_t missed_calls; /* 1 + number of calls that its context had missed when it joined; 0: not yet */
    _Atomic int unposted;   /* number of its messages in flight that have no message slot yet */
    _Atomic uint64_t posts; /* number of messages that it has posted in a slot so far */
} tg_member;

typedef struct tg_region {
    uint64_t magic, layout; /* layout: digest of this version's structs */
    size_t bytes; /* size of the region */
    int size;     /* number of ranks */
    pthread_mutex_t lock; /* protects the list of groups, the `joined` of their members, and the heap */
    tg_shared groups; /* the newest group, first in the list */
    uint64_t group_ids; /* id of the newest group */
    _Atomic uint64_t failures; /* number of failures of ranks so far (tg_rank_slot.order) */
    tg_allocator allocator;    /* used by threads */
    /* The memory that processes share, after the rank slots: a heap for groups, then an arena for each rank. */
    tg_shared heap_next, heap_end, heap_free; /* begin and end of the heap's unused part; list of free blocks */
    tg_shared arenas; /* the first arena; the others follow it. A page takes memory only once it is touched */
    size_t arena_bytes;
    tg_rank_slot rank_slot[];
} tg_region;

/* One rank's view of the region. */
typedef struct tg_region_view {
    tg_region *region;
    uintptr_t base; /* for processes: address of the region; for threads: 0. base + a tg_shared is an address */
    int me, fd;     /* number of the rank in the world; the file, -1 for threads */
} tg_region_view;

static inline bool tg_of_processes(const tg_region_view *v) { return v->base != 0; }
static inline void *tg_at(const tg_region_view *v, tg_shared r) { return r ? (void *)(v->base + r) : NULL; }
static inline tg_slot *tg_group_slot(tg_group *g, uint64_t sequence) {
    return (tg_slot *)((char *)g + g->at_slots + (sequence % TG_CALLS) * g->slot_bytes);
}
static inline tg_message_slot *tg_group_message_slots(tg_group *g, int member) {
    return (tg_message_slot *)((char *)g + g->at_message_slots) + (size_t)member * TG_MESSAGE_SLOTS;
}
static inline tg_member *tg_group_member(tg_group *g, int i) {
    return (tg_member *)((char *)g + g->at_members) + i;
}
/* Returns the list that member i proposes in recovery: for each member, whether it takes part. */
static inline bool *tg_group_list(tg_group *g, int i) {
    return (bool *)((char *)g + g->at_lists) + (size_t)i * (size_t)g->size;
}

/* Makes the region of n threads. Returns NULL if memory is short. */
tg_region *tg_region_new(int n, const tg_allocator *allocator);
void tg_region_free(tg_region *r);
/* Makes an unnamed file that is the region of n processes. Returns its descriptor, or -1 with errno set. */
int tg_region_file(int n);
/* Maps the file. whole: maps the arenas too. On failure returns NULL, and *why is the reason, a static string. */
tg_region *tg_region_map(int fd, bool whole, const char **why);
void tg_region_unmap(tg_region *r, bool whole);
/* A flag that makes an origin of a group's id: the new group replaces that group after a recovery. Without the flag,
 * the new group could be taken for one of the same ranks that was split from the old group, and that a rank has never
 * joined. */
#define TG_ORIGIN_RECOVERY ((uint64_t)1 << 63)
/* A flag that makes an origin of any number: the new group is split from a group of another transport, which all
 * members identify by that number. */
#define TG_ORIGIN_OTHER ((uint64_t)1 << 62)
/* Joins the group of these n ranks of the world, in which this rank is number `mine`. The first of them to arrive
 * creates the group. origin: the id of the group that it is split from, an origin made with one of the flags above, or
 * 0 for the world. Returns NULL after recording the error. */
tg_group *tg_group_join(tg_ctx *ctx, const tg_region_view *v, uint64_t origin, const int *ranks, int n, int mine,
                        const char *name);
/* Leaves the group. Frees its memory if all other members have left it or died. A member that has yet to join has not
 * left. */
void tg_group_leave(const tg_region_view *v, tg_group *g, int mine);

#endif
