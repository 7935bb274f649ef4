/* The tape: its memory, its scopes, its leaves, and the listeners of the layers above. */
#ifndef TG_TAPE_H
#define TG_TAPE_H

#include "core/context.h"
#include "tape/node.h"

/* ---- Memory ---- */

/* A slot has two positions for a handle, used alternately: each reset of the tape switches to the other. One is at the
 * start of the slot, the other one tombstone further. So a handle of the last step has a different address from those
 * of this step. Its tombstone says that it has ended, and lies in bytes that this step's handle does not use:
 *
 *     this handle is in place 0:   tombstone | other     | the rest     |
 *     this handle is in place 1:   -         | tombstone | - | the rest |     (-: kept from place 0's last; not used)
 */
enum { TG_SLAB_HANDLES = 128 };

typedef struct tg_handle_slot {
    tg_tensor first;
    tg_tombstone more;
} tg_handle_slot;
_Static_assert(offsetof(tg_tensor, other) == sizeof(tg_tombstone), "the tombstone of place 1 is other of place 0");

typedef struct tg_slab {
    struct tg_slab *next;
    tg_handle_slot slot[TG_SLAB_HANDLES];
} tg_slab;

/* A position in a list of slabs: the slot for the next handle. */
typedef struct tg_cursor {
    tg_slab *slab;
    int used; /* number of slots of slab that are in use */
} tg_cursor;

/* Bump memory for nodes, shapes and params, kept over resets. */
typedef struct tg_arena_chunk {
    struct tg_arena_chunk *next;
    size_t bytes; /* size of data */
    char *data;   /* aligned */
} tg_arena_chunk;

typedef struct tg_mark {
    tg_arena_chunk *chunk;
    size_t used;
} tg_mark;

struct tg_scope {
    struct tg_scope *parent;
    const char *name;
    const void *site; /* of the public function that opened it */
    tg_cursor from;
    uint64_t serial; /* serial of the last handle made before the scope */
};

typedef struct tg_leaf_entry {
    const tg_tensor *leaf;
    tg_node *node;
} tg_leaf_entry;

/* ---- Listeners and the observer: callbacks of the layers above ---- */

struct tg_tape_listener_ops;

/* The state that a layer above keeps with a tape, and its callbacks. It is the first member of a struct of that
 * layer. */
typedef struct tg_tape_listener {
    const struct tg_tape_listener_ops *ops;
    struct tg_tape_listener *next;
    tg_tape *tape;
} tg_tape_listener;

typedef struct tg_tape_listener_ops {
    size_t size; /* size of the struct whose first member is the listener */
    /* Called when a scope closes. Tensors made since it was opened are marked as its outputs or are about to be
     * discarded. May be NULL. */
    void (*scope_closed)(tg_tape_listener *l, uint64_t serial, const void *site);
    /* Called when the tape's nodes and handles have ended: by tg_tape_reset, or, with `freed`, by tg_tape_free. */
    void (*reset)(tg_tape_listener *l, bool freed);
    /* Called when the memory of the tape is released: frees what the listener has allocated. May be NULL. */
    void (*released)(tg_tape_listener *l);
} tg_tape_listener_ops;

/* Called around each op of a tape that is observed (src/debug/observe.c). */
typedef struct tg_observer_ops {
    tg_status (*forward)(tg_call *c);         /* forward has filled the outputs */
    tg_status (*before_backward)(tg_call *c); /* the gradient sinks of the call are open */
    tg_status (*after_backward)(tg_call *c);  /* all of its gradients have been delivered */
} tg_observer_ops;

struct tg_op_event;

typedef struct tg_observer {
    const tg_observer_ops *ops; /* NULL: the tape is not observed */
    int kinds;                  /* bit mask of tg_tape_find_nan */
    tg_status (*fn)(void *user, tg_tape *t, const struct tg_op_event *event); /* of tg_tape_observe; NULL: none */
    void *user;
    int64_t count; /* number of forward calls observed since the reset */
} tg_observer;

/* ---- The tape ---- */

struct tg_tape {
    uint64_t epoch; /* number of the last reset; 0: freed */
    tg_ctx *ctx;
    tg_tape *next, *prev; /* neighbors in the context's list */
    bool training, grad, timed;
    bool in_backward;
    /* number of running functions of the caller that use it, not counting those implied by at_work and in_backward */
    int busy;
    struct tg_pass *grad_graph; /* the innermost reverse pass whose derivatives are being recorded */
    uint32_t tangents;     /* pass number of the running tg_jvp; 0: none */
    bool derives;          /* the vjp or jvp of an op is running: placements are less strict (src/placement/rule.h) */
    bool collects;    /* first run of a recomputation: only the leaves that it uses are recorded */
    bool grad_off;    /* in such a run: the second run will record this part without grad */
    /* second run of a recomputation: what an op writes besides its outputs keeps the values of the first run */
    bool again;
    bool collectives; /* a node in which ranks meet was recorded since the last reset */
    int generation;   /* position of this step's handles in their slots: 0 or 1 */
    tg_slab *slabs;
    tg_cursor at;
    tg_arena_chunk *chunks;
    tg_mark mark;
    tg_node *first, *last;
    int64_t n_nodes;
    uint32_t pass;          /* number of the last pass over the nodes */
    const tg_call *at_work; /* the innermost op that is recording or running backward */
    tg_scope *scope;
    int scopes_missed;     /* number of scopes opened under an error */
    tg_leaf_entry *leaves; /* hash table with open addressing; its capacity is a power of two */
    int64_t n_leaves, leaf_capacity;
    int64_t cursor_index; /* index that tg_tape_node looked up last */
    tg_node *cursor;
    void *scratch; /* memory of backward for ops with many inputs */
    size_t scratch_bytes;
    tg_observer observer;
    tg_tape_listener *listeners;
};

/* The tapes of a context: its part number TG_PART_TAPE. */
enum { TG_PART_TAPE = 0 };
typedef struct tg_tapes {
    tg_tape *alive;
    tg_tape *freed;       /* freed tapes, whose structs are kept to recognize stale handles */
    tg_tape inert;        /* the result of tg_tape_new when it fails */
    uint64_t epochs;      /* number of resets of all tapes */
    uint64_t recomputing; /* serial when the innermost running recomputed function was called; 0: none is running */
    uint64_t backwards;   /* number of passes that accumulated gradients */
    uint64_t finalized;   /* value of `backwards` at the last tg_grads_finalize */
} tg_tapes;
/* Returns NULL before the context's first tape. */
static inline tg_tapes *tg_tapes_of(const tg_ctx *ctx) { return tg_part_of(ctx, TG_PART_TAPE); }

/* ---- tape.c ---- */

void tg_tape_append(tg_tape *t, tg_node *n);
void *tg_tape_alloc(tg_tape *t, size_t bytes); /* 8-byte aligned, not zeroed; NULL after recording the error */
const char *tg_tape_text(tg_tape *t, const char *text); /* a copy of text; otherwise the same */
tg_tensor *tg_tape_handle(tg_tape *t);         /* a zeroed handle whose serial, ctx and tape are set */
tg_status tg_tape_check(tg_tape *t, const char *who);
/* The same check for a call that has tensor arguments: without a tape, the error goes to the context of the first
 * one. */
tg_status tg_tape_check_with(tg_tape *t, tg_tensor *const *in, int n, const char *who);
/* Returns the result of a call without a tape: the inert tensor of the context that has the error. */
tg_tensor *tg_tape_inert(const tg_tape *t, tg_tensor *const *in, int n);
/* Returns why the tape cannot be reset, and its context not freed, or NULL if they can. */
static inline const char *tg_tape_held(const tg_tape *t) {
    return t->in_backward          ? "a backward of this tape is running"
           : t->at_work || t->busy ? "a function that a call of this tape runs has not returned"
                                   : NULL;
}
void tg_tape_rollback(tg_tape *t, tg_cursor at); /* ends the handles made since then */
/* Makes a handle of the tape on a storage. Takes over the reference to the storage. */
tg_tensor *tg_tape_tensor(tg_tape *t, tg_dtype dtype, int ndim, const int64_t *shape, const int64_t *stride,
                          tg_storage *s, int64_t offset);
tg_node *tg_tape_find_leaf(const tg_tape *t, const tg_tensor *x); /* NULL: this tape has not used it */
/* Returns the leaf's node on this tape, which its first use creates. NULL after recording the error. */
tg_node *tg_tape_leaf(tg_tape *t, tg_tensor *x);
/* tg_tape_input without its checks, for a tensor that a node of another tape keeps, even if the tensor was dropped. */
tg_tensor *tg_tape_enter(tg_tape *t, const tg_tensor *x);
size_t tg_scope_path(const tg_scope *s, char *buf, size_t n);
/* tg_scope_open with the call site of the public function that opens the scope. */
tg_status tg_scope_open_at(tg_tape *t, const char *name, const void *site);
/* Remember the caller's line while a layer runs that opens no scope of its own. open returns NULL after recording an
 * error, and close takes that. */
tg_scope *tg_site_open(tg_tape *t, const void *site);
void tg_site_close(tg_tape *t, const tg_scope *s);
/* Returns the caller's line that led to a call: its site, or, where that lies in this library because a layer made the
 * call, the site of the innermost scope that was opened from outside. */
const void *tg_scope_site(const tg_scope *s, const void *site);
/* Returns the tape's listener of this kind, or NULL if it has none. */
tg_tape_listener *tg_tape_listener_of(const tg_tape *t, const tg_tape_listener_ops *ops);
/* The same, but the first call creates the listener, with zeros after its header. NULL after recording the error. */
tg_tape_listener *tg_tape_listen(tg_tape *t, const tg_tape_listener_ops *ops);
/* Gives a tape that runs part of the ops of another tape the same observer. */
static inline void tg_tape_observe_as(tg_tape *inner, const tg_tape *t) {
    inner->observer = t->observer;
    inner->observer.count = 0;
}

#endif
