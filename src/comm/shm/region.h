/* The memory that the ranks of one node share: a board with a place for each rank, and the groups with the calls that
 * their members have posted. Threads share it by address, processes map one file; so what lies in it refers to other
 * parts of it, and to tensors' bytes, by a tg_shared: an address, or for processes an offset into the file. */
#ifndef TG_REGION_H
#define TG_REGION_H

#include <pthread.h>

#include "comm/flight_recorder.h"
#include "comm/signature.h"

enum {
    TG_MAX_RANKS = 1024,
    TG_CALLS = 32, /* of one group that may be in flight at once: whoever starts one more waits for the oldest */
    TG_MAILS = 64  /* sends and receives of one rank in one group */
};

typedef uint64_t tg_shared; /* 0: nothing */

/* ---- Groups ---- */

/* One member's part of one call. Written before `posted`, or before it arrives. */
typedef struct tg_post {
    alignas(TG_LINE) _Atomic uint64_t posted; /* 1 + the sequence number */
    tg_shared src, dst, send_at, recv_at; /* where parts begin: size + 1 numbers; 0: equal parts of count */
    int64_t count;
    uint64_t site;
    tg_signature signature;
    _Atomic int64_t next; /* the first piece of this member's share that nobody has taken yet */
} tg_post;

/* A call that members arrive at. Whoever waits takes pieces of it, its own share first, which is likely to lie in its
 * cache; it is done when all are. The last member to see that readies it for the call TG_CALLS later. */
typedef struct tg_slot {
    alignas(TG_LINE) _Atomic uint64_t turn; /* how often it was used: call s may enter when it is s / TG_CALLS */
    _Atomic uint64_t ready;                 /* 1 + the sequence number, when all have arrived and agree */
    _Atomic int first;                      /* 1 + the member with whom the others compare */
    _Atomic int arrived, left;
    int64_t parts, pieces, piece; /* pieces of so many elements in each part */
    alignas(TG_LINE) _Atomic int64_t done;
    alignas(TG_LINE) tg_post post[];
} tg_slot;

/* A send or a receive that waits for its other half. */
typedef struct tg_mail {
    _Atomic uint64_t state; /* its use so far and a tg_mail_state: no use looks like another's */
    _Atomic uint64_t key;   /* which of a pair's messages it is; 0: none */
    /* Read before it is known whether they are still this use's: who finds another state then forgets them. */
    _Atomic tg_shared data;
    _Atomic int64_t count;
    _Atomic uint64_t site;
    _Atomic uint8_t dtype;
} tg_mail;

enum { TG_MAIL_FREE, TG_MAIL_POSTED, TG_MAIL_TAKEN, TG_MAIL_DONE };

typedef struct tg_group {
    uint64_t id;
    tg_shared next, parent; /* of the region's list; the group it was split from */
    size_t bytes, slot_bytes;
    int size, joined, left, lost; /* members who have it; who have given it back; who died with it */
    _Atomic int failed;     /* a tg_group_state */
    tg_status status;
    int culprit, reporter; /* ranks of the world; -1: none */
    tg_text_box failure;
    char name[32];
    _Atomic int decided; /* 1 + the member whose list of the ranks still there is the one that holds */
    size_t at_slots, at_mails, at_members, at_lists; /* where they begin, in bytes */
} tg_group;

enum { TG_GROUP_WHOLE, TG_GROUP_FAILING, TG_GROUP_FAILED };

typedef struct tg_member {
    int rank; /* of the world */
    bool joined;
    _Atomic bool gone;  /* has freed its communicator */
    _Atomic bool came;  /* to tg_comm_recover */
    _Atomic uint64_t skips; /* 1 + its context's, when it joined; 0: it has not joined yet */
    _Atomic int unposted;   /* messages that it has started and that found no room in its box */
    _Atomic uint64_t posts; /* messages that have been in its box */
} tg_member;

typedef struct tg_region {
    uint64_t magic, layout; /* of this version's structs */
    size_t bytes; /* of the whole */
    int size;     /* ranks */
    pthread_mutex_t lock; /* of the groups' list and what is in it */
    tg_shared groups, world;
    uint64_t group_ids;
    _Atomic uint64_t failures;
    tg_allocator allocator; /* of threads; those of processes share what follows the cards: */
    tg_shared heap_next, heap_end, heap_free;
    tg_shared arenas; /* of each rank, one after the other; pages are there once they are touched */
    size_t arena_bytes;
    tg_card card[];
} tg_region;

/* One rank's view of the region. */
typedef struct tg_vantage {
    tg_region *region;
    uintptr_t base; /* of references; 0 among threads */
    int me, fd;     /* of the file; threads have none */
} tg_vantage;

static inline bool tg_of_processes(const tg_vantage *v) { return v->base != 0; }
static inline void *tg_at(const tg_vantage *v, tg_shared r) { return r ? (void *)(v->base + r) : NULL; }
static inline tg_slot *tg_group_slot(tg_group *g, uint64_t sequence) {
    return (tg_slot *)((char *)g + g->at_slots + (sequence % TG_CALLS) * g->slot_bytes);
}
static inline tg_mail *tg_group_mails(tg_group *g, int member) {
    return (tg_mail *)((char *)g + g->at_mails) + (size_t)member * TG_MAILS;
}
static inline tg_member *tg_group_member(tg_group *g, int i) {
    return (tg_member *)((char *)g + g->at_members) + i;
}
/* Member i's list of the ranks still there: a flag for each member. */
static inline bool *tg_group_list(tg_group *g, int i) {
    return (bool *)((char *)g + g->at_lists) + (size_t)i * (size_t)g->size;
}

/* The region of n threads; NULL when there is no memory. */
tg_region *tg_region_new(int n, const tg_allocator *allocator);
void tg_region_free(tg_region *r);
/* A file that is the region of n processes; -1 with errno. */
int tg_region_file(int n);
/* Maps it; NULL after writing why. whole: with the arenas. */
tg_region *tg_region_map(int fd, bool whole, const char **why);
void tg_region_unmap(tg_region *r, bool whole);
/* Joins the group of those ranks of the world, which the first of them makes. parent NULL: the world itself. */
tg_group *tg_group_join(tg_ctx *ctx, const tg_vantage *v, const tg_group *parent, const int *ranks, int n, int mine,
                        const char *name);
/* So many members have died without leaving, and never will. */
void tg_group_lost(const tg_vantage *v, tg_group *g, int n);
void tg_group_leave(const tg_vantage *v, tg_group *g, int mine);

#endif
