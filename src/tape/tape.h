/* The tape: its memory, its scopes, its leaves, and the callbacks of the layers above. */
#ifndef TG_TAPE_H
#define TG_TAPE_H

#include "core/context.h"
#include "tape/node.h"

/* ---- Memory ---- */

/* A slot has two positions for a handle, which are used alternately: each reset of the tape switches to the other.
 * Position 0 is at the start of the slot. Position 1 is one tombstone (core/tensor/tensor.h) further. So a handle of
 * the previous step has another address than any handle of this step. The tombstone of the ended handle says that it
 * has ended, and lies in bytes that this step's handle does not use:
 *
 *     offset in tombstones:       0         | 1         | 2     | 3 ..
 *     this handle at position 0:  tombstone | other     | the rest ..
 *     this handle at position 1:            | tombstone | other | the rest ..
 *
 * At position 0, `other` is the tombstone of the previous step's handle at position 1. At position 1, the tombstone of
 * the previous step's handle at position 0 is the start of the slot.
 *
 * A slot with an ended handle that the program holds (tg_hold) is not used: one of its two tombstones has
 * TG_SERIAL_HELD. A handle that ends before the reset gives its slot to a queue, from which later handles of the step
 * take theirs.
 */
enum { TG_SLAB_HANDLES = 128 };

typedef struct tg_handle_slot {
    tg_tensor first;
    tg_tombstone more;
} tg_handle_slot;
_Static_assert(offsetof(tg_tensor, other) == sizeof(tg_tombstone), "other, at position 0, is where position 1 begins");

typedef struct tg_slab {
    struct tg_slab *next;
    tg_handle_slot slot[TG_SLAB_HANDLES];
} tg_slab;

/* A position in a list of slabs: the slot for the next handle. */
typedef struct tg_cursor {
    tg_slab *slab;
    int used; /* number of slots of slab that this step has used, or skipped because of a held handle */
} tg_cursor;

/* A chunk of memory for nodes, shapes, params, scopes and lists. It is handed out from start to end. A reset frees all
 * of it at once and keeps the chunk for the next step. A piece that is freed before the reset (tg_tape_give) is handed
 * out again for a request of its size. */
typedef struct tg_arena_chunk {
    struct tg_arena_chunk *next;
    size_t bytes; /* size of data */
    char *data;   /* aligned */
} tg_arena_chunk;

/* A position in the list of chunks: where the next allocation begins. */
typedef struct tg_mark {
    tg_arena_chunk *chunk;
    size_t used; /* bytes of chunk that are in use */
} tg_mark;

/* A piece of a chunk that was freed before the reset. */
typedef struct tg_free_piece {
    struct tg_free_piece *next;
    size_t bytes;
} tg_free_piece;

/* The shape and the strides of handles: `dims` has the sizes of the dims, then the strides. Handles of the same shape
 * may share them. */
typedef struct tg_tape_dims {
    int64_t uses; /* number of handles */
    int64_t dims[];
} tg_tape_dims;

/* Free pieces of fewer than 8 times this many bytes have a list for each size. Larger ones share a list. */
enum { TG_PIECE_SIZES = 48 };

struct tg_scope {
    struct tg_scope *parent;
    uint32_t uses; /* number of nodes and scopes in it and of buffers last leased in it, plus 1 while it is open */
    bool locked; /* tg_scope_close refuses it: tg_site_open has opened it, or it is being closed */
    const char *name; /* may be NULL */
    const void *site; /* call site of the public function that opened the scope */
    tg_cursor from;   /* the slot of the first handle that was made in the scope */
    uint64_t serial; /* serial of the last handle made before the scope */
};

typedef struct tg_leaf_entry {
    const tg_tensor *leaf;
    tg_node *node;
} tg_leaf_entry;

/* ---- Listeners and the observer: callbacks of the layers above ---- */

struct tg_tape_listener_ops;

/* A listener: what a layer above keeps with a tape. It is the first member of a larger struct of that layer, whose
 * other members are the layer's state. */
typedef struct tg_tape_listener {
    const struct tg_tape_listener_ops *ops;
    struct tg_tape_listener *next;
    tg_tape *tape;
} tg_tape_listener;

typedef struct tg_tape_listener_ops {
    size_t size; /* size of the struct whose first member is the listener */
    /* Called when tg_scope_close closes a scope, with the serial of the last handle made before the scope. Storages of
     * the scope's outputs are marked (tg_storage.marked). After the call, the bytes of the scope's other tensors are
     * discarded, unless a node has saved them. May be NULL. */
    void (*scope_closed)(tg_tape_listener *l, uint64_t serial, const void *site);
    /* Called when the tape's nodes and handles have ended: by tg_tape_reset, or, with freed true, by tg_tape_free. May
     * be NULL. */
    void (*reset)(tg_tape_listener *l, bool freed);
    /* Called when the context ends and releases the memory of the tape. Must free what the listener has allocated. May
     * be NULL. */
    void (*released)(tg_tape_listener *l);
} tg_tape_listener_ops;

/* Called around each op of a tape that is observed (src/debug/observe.c). */
typedef struct tg_observer_ops {
    tg_status (*forward)(tg_call *c);         /* the forward has filled the outputs */
    tg_status (*before_backward)(tg_call *c); /* the destinations of the call's gradients are set */
    tg_status (*after_backward)(tg_call *c);  /* all gradients of the call have been delivered */
} tg_observer_ops;

struct tg_op_event;

typedef struct tg_observer {
    const tg_observer_ops *ops; /* NULL if the tape is not observed */
    int kinds;                  /* what tg_tape_find_nan looks for, a bit mask; 0 for nothing */
    tg_status (*fn)(void *user, tg_tape *t, const struct tg_op_event *event); /* set by tg_tape_observe, or NULL */
    void *user;
    int64_t count; /* number of forward calls observed since the reset */
} tg_observer;

/* The deferral of a tape: a list of products, each of which gives the gradient of a weight. Backward of the tape's
 * linear layers adds products to the list, and they are computed later (src/parallel/tp/tape_defer.c). */
typedef struct tg_deferral {
    /* Adds the product gy^T x to the list. It is the gradient of input w of the call, the weight. Returns false if
     * backward must compute the product now. take is NULL if the tape defers nothing. */
    bool (*take)(void *list, tg_call *c, int w, tg_tensor *x, tg_tensor *gy);
    void *list;
} tg_deferral;

/* ---- The tape ---- */

struct tg_tape {
    /* Unique number of the current step, which began at the creation or the last reset; 0 if the tape was freed. */
    uint64_t epoch;
    tg_ctx *ctx;
    tg_tape *next, *prev; /* neighbors in the context's list */
    bool training, grad, timed;
    bool in_backward;
    /* Number of running functions of the caller that use the tape. Some of those that run while at_work or in_backward
     * is set are not counted. */
    int busy;
    struct tg_pass *grad_graph; /* the innermost reverse pass whose derivatives are being recorded */
    uint32_t tangents;     /* pass number of the running tg_jvp; 0 if none */
    bool derives;          /* the vjp or jvp of an op is running: placements are less strict (src/placement/rule.h) */
    bool collects;    /* in the first run of a recomputation: ops record nothing but the leaves that they use */
    bool grad_off;    /* in such a run: the second run will be in no-grad mode at this point */
    /* in the second run of a recomputation: buffers that an op writes in addition to its outputs keep their values */
    bool again;
    uint64_t micro;   /* the micro-batch that the tape records (tg_tape_key) */
    bool collectives; /* since the last reset a collective op has run, with or without a node */
    int generation;   /* position of this step's handles in their slots: 0 or 1 */
    tg_slab *slabs;
    tg_cursor at; /* the slot for the next handle */
    tg_arena_chunk *chunks;
    tg_mark mark; /* where the next allocation begins */
    bool recycles; /* some memory was freed since the reset: pieces, or slots of handles */
    tg_free_piece *pieces[TG_PIECE_SIZES + 1]; /* by size in multiples of 8 bytes; the last list is of larger ones */
    /* The queue of slots of handles that ended before the reset, linked through their node pointers. The slot that was
     * freed first is used first. */
    tg_tensor *slots_first, *slots_last;
    uint64_t reused; /* serial of the last handle whose slot came from the queue; 0 if none did since the reset */
    tg_node *first, *last; /* the nodes, in the order in which they were recorded */
    int64_t n_nodes;
    uint32_t pass;          /* number of the last pass over the nodes */
    const tg_call *at_work; /* the innermost op that is recording or running backward */
    tg_scope *scope;
    int scopes_missed;     /* number of scopes that failed to open and have not been closed */
    tg_leaf_entry *leaves; /* hash table with open addressing; its capacity is a power of two */
    int64_t n_leaves, leaf_capacity;
    int64_t cursor_index; /* index of the node that tg_tape_node looked up last */
    tg_node *cursor;      /* that node, or NULL */
    void *scratch;        /* memory of backward for ops with many inputs or outputs */
    size_t scratch_bytes;
    tg_observer observer;
    tg_deferral deferral;
    tg_tape_listener *listeners;
    /* Stands for the call site of later ops; NULL if not set. Set by tg_tape_set_site, or by an op while it composes
     * others. */
    const void *site;
};

/* The tapes of a context: its part number TG_PART_TAPE. */
enum { TG_PART_TAPE = 0 };
typedef struct tg_tapes {
    tg_tape *alive;
    tg_tape *freed;       /* freed tapes, whose structs are kept to recognize stale handles */
    tg_tape inert;        /* the result of tg_tape_new when it fails */
    uint64_t epochs;      /* number of epochs assigned to tapes so far */
    /* the context's serial when the innermost running function of a recomputation was called; 0 if none runs */
    uint64_t recomputing;
    uint64_t backwards;   /* number of passes that accumulate gradients, those that failed included */
    uint64_t finalized;   /* value of `backwards` at the last tg_grads_finalize */
} tg_tapes;
/* Returns NULL before the context's first tape. */
static inline tg_tapes *tg_tapes_of(const tg_ctx *ctx) { return tg_part_of(ctx, TG_PART_TAPE); }

/* Returns the reason why, at this moment, the tape cannot be reset or freed, nor its context freed. Returns NULL if
 * there is no reason. */
static inline const char *tg_tape_held(const tg_tape *t) {
    return t->in_backward          ? "a backward of this tape is running"
           : t->at_work || t->busy ? "a function that a call of this tape runs has not returned"
                                   : NULL;
}

/* ---- memory.c ---- */

/* Returns memory that lasts until the next reset, 8-byte aligned and not zeroed, or NULL after recording the error. */
void *tg_tape_alloc(tg_tape *t, size_t bytes);
/* Frees memory of tg_tape_alloc, of this many bytes, before the reset. p may be NULL. */
void tg_tape_give(tg_tape *t, void *p, size_t bytes);
/* Returns a copy of text in memory of tg_tape_alloc, or NULL after recording the error. */
const char *tg_tape_text(tg_tape *t, const char *text);
/* Returns a zeroed handle whose serial, ctx and tape are set, or NULL after recording the error. */
tg_tensor *tg_tape_handle(tg_tape *t);
/* Sets shape, strides, numel and ndim of a handle. Strides are row-major. Fails if there is no memory. */
tg_status tg_tape_set_dims(tg_tape *t, tg_tensor *x, int ndim, const int64_t *shape);
/* Makes x share the shape and the row-major strides of `of`, a handle of the same tape. */
static inline void tg_tape_share_dims(tg_tensor *x, const tg_tensor *of) {
    ((tg_tape_dims *)((int64_t *)of->shape - 1))->uses++;
    x->shape = of->shape;
    x->stride = of->stride;
    x->numel = of->numel;
    x->ndim = of->ndim;
}
/* Ends all handles of the tape. Their slots keep the tombstones. */
void tg_tape_end_handles(tg_tape *t);
/* Ends a handle before the reset. Frees its shape and, unless the handle is held, its slot. */
void tg_tape_give_handle(tg_tensor *x);
/* Called when the last hold of an ended handle of a tape was removed. */
void tg_tape_unheld(tg_tensor *x);
/* Ends the handles of the tape whose serial is larger than `serial`. */
void tg_tape_rollback(tg_tape *t, uint64_t serial);
/* Makes all memory of the tape free for the next step. All handles of the tape must have ended. */
void tg_tape_memory_reset(tg_tape *t);
/* Frees the memory of the tape. */
void tg_tape_memory_free(tg_tape *t);

/* A walk over the tape's handles that have not ended, in the order of their slots, since a cursor. tg_walk_next returns
 * NULL at the end. The storage of a superseded handle (TG_F_SUPERSEDED) is NULL. */
typedef struct tg_handle_walk {
    const tg_tape *t;
    tg_slab *slab;
    int i;
} tg_handle_walk;
tg_handle_walk tg_walk_from(const tg_tape *t, tg_cursor from);
tg_tensor *tg_walk_next(tg_handle_walk *w);

/* ---- release.c ---- */

/* Does what other threads have asked for (core/later.h), unless a function is running that may still use the objects
 * concerned. */
static inline void tg_tape_settle(tg_tape *t) {
    if (TG_UNLIKELY(atomic_load_explicit(&t->ctx->later, memory_order_relaxed) != NULL) && !tg_tape_held(t))
        tg_later_run(t->ctx);
}

/* Called when the program has given up x (tg_part_ops.given_up). */
void tg_tape_given_up(tg_tensor *x);
/* Calls the caller's function that frees a state, unless the state or the function is NULL. The function cannot end the
 * tape, which may be NULL or freed. */
void tg_tape_end_state(tg_tape *t, void *state, void (*destroy)(void *state));
/* Notes that a tensor of the context has one user less, such as a node that has ended. Frees x if tg_drop was called
 * and nothing else uses it. Does nothing if x is NULL or belongs to a tape. */
void tg_owned_unuse(tg_tensor *x);
/* Ends what a node has: its state, what it saved, and its uses of tensors of the context. */
void tg_node_end(tg_node *n);
/* Called when an op that records others (tg_op.compose) has failed. Ends what it has recorded: the results whose
 * serials are larger than `serial`, and the nodes after `last`. A node for an older leaf of the tape itself stays. */
void tg_tape_undo(tg_tape *t, uint64_t serial, const tg_node *last);
/* Notes that a scope has one user less, and frees it after the last one. s may be NULL. */
void tg_scope_unref(tg_tape *t, tg_scope *s);

/* ---- tape.c ---- */

void tg_tape_append(tg_tape *t, tg_node *n); /* makes n the last node */
/* Removes the leaf of this leaf node from the table that finds such nodes. */
void tg_tape_forget_leaf(tg_tape *t, const tg_node *n);
/* Fails if the tape is not alive or its context has an error. Error messages begin with `who`. */
tg_status tg_tape_check(tg_tape *t, const char *who);
/* Makes the same check for a call that has tensor arguments. If t is NULL, the error is recorded in the context of the
 * first tensor that has one. */
tg_status tg_tape_check_with(tg_tape *t, tg_tensor *const *in, int n, const char *who);
/* Returns the result of a call that failed: the inert tensor of the tape's context, or, without a tape, of the context
 * in which tg_tape_check_with recorded the error. */
tg_tensor *tg_tape_inert(const tg_tape *t, tg_tensor *const *in, int n);
/* Makes a handle of the tape on a storage. Takes over the caller's reference to the storage, even on an error. Returns
 * NULL after recording the error. */
tg_tensor *tg_tape_tensor(tg_tape *t, tg_dtype dtype, int ndim, const int64_t *shape, const int64_t *stride,
                          tg_storage *s, int64_t offset);
/* Makes a handle of the tape on the bytes of x, with its dtype, shape and strides, and without a placement. x may be a
 * saved buffer. Returns NULL after recording the error. */
tg_tensor *tg_tape_alias(tg_tape *t, const tg_tensor *x);
tg_node *tg_tape_find_leaf(const tg_tape *t, const tg_tensor *x); /* NULL if the tape has not used leaf x */
/* Returns the node of leaf x on this tape, which the first call creates, or NULL after recording the error. */
tg_node *tg_tape_leaf(tg_tape *t, tg_tensor *x);
/* Does the same as tg_tape_input without its checks: x may be a tensor that was dropped but that a node of another tape
 * keeps. */
tg_tensor *tg_tape_enter(tg_tape *t, const tg_tensor *x);
/* Writes the names of the scope and those around it as "outer.inner". s may be NULL. Returns the length of the text. */
size_t tg_scope_path(const tg_scope *s, char *buf, size_t n);
/* Opens a scope, as tg_scope_open does, for a public function that was called from `site`. */
tg_status tg_scope_open_at(tg_tape *t, const char *name, const void *site);
/* Opens a scope without a name, so that errors and reports quote `site`, the call site of a layer, for the ops that the
 * layer records. Closing it discards nothing. tg_site_open returns NULL after recording an error. tg_site_close does
 * nothing if s is NULL or has ended with a reset of the tape. */
tg_scope *tg_site_open(tg_tape *t, const void *site);
void tg_site_close(tg_tape *t, tg_scope *s);
/* Returns the call site outside of this library that led to a call: `site`, or, if that lies in this library because a
 * layer made the call, the site of the innermost scope that was opened from outside. Returns `site` if there is no such
 * scope. */
const void *tg_scope_site(const tg_scope *s, const void *site);
/* Returns the tape's listener of this kind, or NULL if it has none. */
tg_tape_listener *tg_tape_listener_of(const tg_tape *t, const tg_tape_listener_ops *ops);
/* Returns the tape's listener of this kind, which the first call creates, with zeros after its head, or NULL after
 * recording the error. */
tg_tape_listener *tg_tape_listen(tg_tape *t, const tg_tape_listener_ops *ops);
/* Copies the place in the program's source, the observer and the deferral of t to `inner`, a tape that runs ops on
 * behalf of t. */
static inline void tg_tape_act_for(tg_tape *inner, const tg_tape *t) {
    inner->site = t->site;
    inner->observer = t->observer;
    inner->observer.count = 0;
    inner->deferral = t->deferral;
}

#endif
