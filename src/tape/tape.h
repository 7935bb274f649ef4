/* The tape: its memory, its scopes, its leaves, and the layers above that listen to it. */
#ifndef TG_TAPE_H
#define TG_TAPE_H

#include "core/context.h"
#include "tape/node.h"

/* ---- Memory ---- */

/* A slot has two places for a handle, which take turns at each reset of the tape: at its beginning, and one tombstone
 * further. So the handle of the last step is at another address than this step's. Its tombstone lies in bytes that this
 * step's handle leaves alone, and says that it has ended:
 *
 *     this handle is in place 0:   tombstone | other     | the rest     |
 *     this handle is in place 1:   -         | tombstone | - | the rest |     (-: kept from place 0's last; not used)
 */
enum { TG_SLAB_HANDLES = 128 };

typedef struct tg_handle_slot {
    tg_tensor first;
    tg_head more;
} tg_handle_slot;
_Static_assert(offsetof(tg_tensor, other) == sizeof(tg_head), "the tombstone of place 1 is other of place 0");

typedef struct tg_slab {
    struct tg_slab *next;
    tg_handle_slot slot[TG_SLAB_HANDLES];
} tg_slab;

/* A position in a list of slabs: the slot that the next handle takes. */
typedef struct tg_cursor {
    tg_slab *slab;
    int used; /* slots of slab */
} tg_cursor;

/* Bump memory for nodes, shapes and params, kept over resets. */
typedef struct tg_arena_chunk {
    struct tg_arena_chunk *next;
    size_t bytes; /* of data */
    char *data;   /* aligned */
} tg_arena_chunk;

typedef struct tg_mark {
    tg_arena_chunk *chunk;
    size_t used;
} tg_mark;

struct tg_scope {
    struct tg_scope *parent;
    const char *name;
    tg_cursor from;
    uint64_t serial; /* of the last handle made before it */
};

typedef struct tg_leaf_entry {
    const tg_tensor *leaf;
    tg_node *node;
} tg_leaf_entry;

/* ---- Listeners and the observer: functions of layers above ---- */

struct tg_tape_listener_ops;

/* What a layer above keeps with a tape, and learns of it. It stands first in a struct of that layer. */
typedef struct tg_tape_listener {
    const struct tg_tape_listener_ops *ops;
    struct tg_tape_listener *next;
    tg_tape *tape;
} tg_tape_listener;

typedef struct tg_tape_listener_ops {
    size_t size; /* of the struct that begins with the listener */
    /* A scope closes. What was made since is marked as its output, or about to be discarded. NULL: nothing to do. */
    void (*scope_closed)(tg_tape_listener *l, uint64_t serial, const void *site);
    /* The tape's nodes and handles have ended, by tg_tape_reset or, with `freed`, by tg_tape_free. */
    void (*reset)(tg_tape_listener *l, bool freed);
    /* The memory of the tape is released: what the listener has allocated goes as well. NULL: nothing. */
    void (*released)(tg_tape_listener *l);
} tg_tape_listener_ops;

/* Called around each op of a tape that is observed (src/debug/observe.c). */
typedef struct tg_observer_ops {
    tg_status (*forward)(tg_call *c);         /* forward has filled the outputs */
    tg_status (*before_backward)(tg_call *c); /* its sinks are open */
    tg_status (*after_backward)(tg_call *c);  /* its gradients are where they belong */
} tg_observer_ops;

struct tg_op_event;

typedef struct tg_observer {
    const tg_observer_ops *ops; /* NULL: the tape is not observed */
    int kinds;                  /* of tg_tape_find_nan */
    tg_status (*fn)(void *user, tg_tape *t, const struct tg_op_event *seen); /* of tg_tape_observe; NULL: none */
    void *user;
    int64_t count; /* ops observed forward since the reset */
} tg_observer;

/* ---- The tape ---- */

struct tg_tape {
    uint64_t epoch; /* of the last reset; 0: freed */
    tg_ctx *ctx;
    tg_tape *next, *prev; /* of the context's list */
    bool training, grad, timed;
    bool in_backward;
    int busy; /* functions of the caller that run on it, besides those that at_work and in_backward tell of */
    struct tg_pass *taped; /* the reverse pass whose derivatives are being recorded, the innermost */
    uint32_t tangents;     /* the pass of the tg_jvp that runs; 0: none */
    bool derives;          /* an op's vjp or jvp is at work: placements are looser (src/placement/rule.h) */
    bool collects;    /* a first run of a recomputation: the leaves that it uses are noted, nothing else */
    bool grad_off;    /* ... and the second run will record this part without grad */
    bool again;       /* a second run: what an op writes besides its outputs stays as the first has made it */
    bool collectives; /* a node that ranks meet in was recorded since the last reset */
    int generation;   /* the place of this step's handles in their slots: 0 or 1 */
    tg_slab *slabs;
    tg_cursor at;
    tg_arena_chunk *chunks;
    tg_mark mark;
    tg_node *first, *last;
    int64_t n_nodes;
    uint32_t pass;          /* the number of the last pass over the nodes */
    const tg_call *at_work; /* the op that records or runs backward now, the innermost */
    tg_scope *scope;
    int scopes_missed;     /* opened under an error */
    tg_leaf_entry *leaves; /* open addressing; capacity a power of two */
    int64_t n_leaves, leaf_capacity;
    int64_t cursor_index; /* of tg_tape_node */
    tg_node *cursor;
    void *scratch; /* of backward, for ops of many inputs */
    size_t scratch_bytes;
    tg_observer observer;
    tg_tape_listener *listeners;
};

/* The tapes of a context: its part of number TG_PART_TAPE. */
enum { TG_PART_TAPE = 0 };
typedef struct tg_tapes {
    tg_tape *alive;
    tg_tape *freed;       /* their structs answer stale handles */
    tg_tape inert;        /* what tg_tape_new returns when it fails */
    uint64_t epochs;      /* resets of all tapes */
    uint64_t recomputing; /* serial when the innermost recomputed function that runs was called; 0: none runs */
    uint64_t backwards;   /* passes that accumulated gradients */
    uint64_t finalized;   /* how many there were at the last tg_grads_finalize */
} tg_tapes;
/* NULL before the first tape. */
static inline tg_tapes *tg_tapes_of(const tg_ctx *ctx) { return tg_part_of(ctx, TG_PART_TAPE); }

/* ---- tape.c ---- */

void tg_tape_append(tg_tape *t, tg_node *n);
void *tg_tape_alloc(tg_tape *t, size_t bytes); /* 8-byte aligned, not zeroed; NULL after recording the error */
const char *tg_tape_text(tg_tape *t, const char *text); /* a copy; likewise */
tg_tensor *tg_tape_handle(tg_tape *t);         /* a zeroed handle with serial, ctx and tape */
tg_status tg_tape_check(tg_tape *t, const char *who);
/* The same of a call that has been given tensors: without a tape the first one's context takes the error. */
tg_status tg_tape_check_with(tg_tape *t, tg_tensor *const *in, int n, const char *who);
/* Where a call without a tape puts its results: the inert tensor of the context that has the error. */
tg_tensor *tg_tape_inert(const tg_tape *t, tg_tensor *const *in, int n);
/* Why the tape cannot be reset now, nor its context end; NULL: it can. */
static inline const char *tg_tape_held(const tg_tape *t) {
    return t->in_backward          ? "a backward of this tape is running"
           : t->at_work || t->busy ? "a function that a call of this tape runs has not returned"
                                   : NULL;
}
void tg_tape_rollback(tg_tape *t, tg_cursor at); /* ends the handles made since */
/* A tape's handle on a storage, whose reference it takes over. */
tg_tensor *tg_tape_tensor(tg_tape *t, tg_dtype dtype, int ndim, const int64_t *shape, const int64_t *stride,
                          tg_storage *s, int64_t offset);
tg_node *tg_tape_find_leaf(const tg_tape *t, const tg_tensor *x); /* NULL: not used on this tape */
/* The leaf's node on this tape, made at its first use. NULL after recording the error. */
tg_node *tg_tape_leaf(tg_tape *t, tg_tensor *x);
/* tg_tape_input without its checks: of a tensor that a node of another tape keeps, dropped or not. */
tg_tensor *tg_tape_enter(tg_tape *t, const tg_tensor *x);
size_t tg_scope_path(const tg_scope *s, char *buf, size_t n);
/* The tape's listener of this kind. NULL: it has none. */
tg_tape_listener *tg_tape_listener_of(const tg_tape *t, const tg_tape_listener_ops *ops);
/* The same, made at the first call, with zeros after the listener. NULL after recording the error. */
tg_tape_listener *tg_tape_listen(tg_tape *t, const tg_tape_listener_ops *ops);
/* A tape inside another one, for a part of its ops, is observed as that is. */
static inline void tg_tape_observe_as(tg_tape *inner, const tg_tape *t) {
    inner->observer = t->observer;
    inner->observer.count = 0;
}

#endif
