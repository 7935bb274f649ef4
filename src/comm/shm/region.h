/* The memory that the ranks of one node share: a slot for each rank, and the groups with the calls that their
 * members have posted. Threads share it by address; processes map one file. References within it, and to tensors'
 * bytes, are therefore of type tg_shared: an address, or for processes an offset into the file. */
#ifndef TG_REGION_H
#define TG_REGION_H

#include <pthread.h>

#include "comm/flight_recorder.h"
#include "comm/signature.h"

enum {
    TG_MAX_RANKS = 1024,
    TG_CALLS = 32,        /* calls of one group in flight; a rank that starts one more waits for the oldest */
    TG_MESSAGE_SLOTS = 64 /* message slots: sends and receives of one rank in one group */
};

typedef uint64_t tg_shared; /* 0: nothing */

/* ---- Groups ---- */

/* One member's part of one call. It is written before `posted` is set or the member arrives. */
typedef struct tg_post {
    alignas(TG_LINE) _Atomic uint64_t posted; /* 1 + the sequence number */
    tg_shared src, dst, send_at, recv_at; /* where parts begin: size + 1 numbers; 0: equal parts of count */
    int64_t count;
    uint64_t site;
    tg_signature signature;
    _Atomic int64_t next; /* the first piece of this member's share that no rank has taken yet */
} tg_post;

/* A call at which members arrive. A rank that waits takes pieces of it, its own share first, which is likely to be
 * in its cache. The call is done when all pieces are. The last member to see that prepares the slot for the call
 * TG_CALLS later. */
typedef struct tg_slot {
    alignas(TG_LINE) _Atomic uint64_t generation; /* generation: call s may use the slot when this is s / TG_CALLS */
    _Atomic uint64_t ready;                 /* 1 + the sequence number, once all have arrived and agree */
    _Atomic int first;                      /* 1 + the member with whom the others compare */
    _Atomic int arrived, left;
    int64_t parts, pieces, piece; /* piece: elements of a piece; a part has `pieces` of them */
    alignas(TG_LINE) _Atomic int64_t done;
    alignas(TG_LINE) tg_post post[];
} tg_slot;

/* A message slot: a send or a receive that waits for its other half. */
typedef struct tg_message_slot {
    _Atomic uint64_t state; /* counts the uses and holds a tg_message_state, so no two uses have equal values */
    _Atomic uint64_t key;   /* identifies the message of the pair; 0: none */
    /* These may be read before it is known that they belong to this use. A reader that then finds another state
     * discards them. */
    _Atomic tg_shared data;
    _Atomic int64_t count;
    _Atomic uint64_t site;
    _Atomic uint8_t dtype;
} tg_message_slot;

enum { TG_MESSAGE_FREE, TG_MESSAGE_POSTED, TG_MESSAGE_TAKEN, TG_MESSAGE_DONE };

typedef struct tg_group {
    uint64_t id;
    tg_shared next, parent; /* next in the region's list; the group it was split from */
    size_t bytes, slot_bytes;
    int size, joined, left, lost; /* members in all, that have joined, left, died */
    _Atomic int failed;     /* a tg_group_state */
    tg_status status;
    int culprit, reporter; /* ranks of the world; -1: none */
    tg_shared_text failure;
    char name[32];
    _Atomic int decided; /* 1 + the member whose list of present ranks is valid */
    size_t at_slots, at_message_slots, at_members, at_lists; /* offsets in bytes */
} tg_group;

enum { TG_GROUP_WHOLE, TG_GROUP_FAILING, TG_GROUP_FAILED };

typedef struct tg_member {
    int rank; /* of the world */
    bool joined;
    _Atomic bool left;  /* it has freed its communicator */
    _Atomic bool recovering;  /* it has called tg_comm_recover */
    _Atomic uint64_t missed_calls; /* 1 + its context's missed calls when it joined; 0: not joined yet */
    _Atomic int unposted;   /* messages that it has started and that found no message slot */
    _Atomic uint64_t posts; /* messages that it has posted in a slot so far */
} tg_member;

typedef struct tg_region {
    uint64_t magic, layout; /* layout: digest of this version's structs */
    size_t bytes; /* size of the region */
    int size;     /* ranks */
    pthread_mutex_t lock; /* protects the list of groups and their contents */
    tg_shared groups, world;
    uint64_t group_ids;
    _Atomic uint64_t failures;
    tg_allocator allocator; /* for threads; processes share the memory after the rank slots: */
    tg_shared heap_next, heap_end, heap_free;
    tg_shared arenas; /* one for each rank, consecutive; pages exist once they are touched */
    size_t arena_bytes;
    tg_rank_slot rank_slot[];
} tg_region;

/* One rank's view of the region. */
typedef struct tg_region_view {
    tg_region *region;
    uintptr_t base; /* base address of references; 0 among threads */
    int me, fd;     /* fd: the file; unused by threads */
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
/* Returns member i's list of the present ranks: a flag for each member. */
static inline bool *tg_group_list(tg_group *g, int i) {
    return (bool *)((char *)g + g->at_lists) + (size_t)i * (size_t)g->size;
}

/* Makes the region of n threads; NULL when memory is short. */
tg_region *tg_region_new(int n, const tg_allocator *allocator);
void tg_region_free(tg_region *r);
/* Makes a file that is the region of n processes. Returns its descriptor, or -1 with errno. */
int tg_region_file(int n);
/* Maps the file. Returns NULL and sets *why on failure. whole: maps the arenas too. */
tg_region *tg_region_map(int fd, bool whole, const char **why);
void tg_region_unmap(tg_region *r, bool whole);
/* Joins the group of these ranks of the world; the first of them to arrive creates it. parent NULL: the world
 * itself. */
tg_group *tg_group_join(tg_ctx *ctx, const tg_region_view *v, const tg_group *parent, const int *ranks, int n, int mine,
                        const char *name);
/* Notes that n members in all have died without leaving the group; they will never leave it. */
void tg_group_lost(const tg_region_view *v, tg_group *g, int n);
void tg_group_leave(const tg_region_view *v, tg_group *g, int mine);

#endif
