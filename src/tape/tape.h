/* The tape, its nodes, and the recorder. */
#ifndef TG_RECORD_H
#define TG_RECORD_H

#include <tapegrad/explain.h>
#include <tapegrad/op.h>

#include "core/context.h"

/* A room has two places for a handle, which take turns at each reset of the tape: at its beginning, and one head
 * further. So the handle of the last step is at another address than this step's, and there, in bytes that this step's
 * leaves alone, its head says that it has ended:
 *
 *     this handle is in place 0:   head | other | the rest     |
 *     this handle is in place 1:   -    | head  | - | the rest |     (-: kept from place 0's last one; not used)
 */
enum { TG_SLAB_HANDLES = 128 };

typedef struct tg_room {
    tg_tensor first;
    tg_head more;
} tg_room;
_Static_assert(offsetof(tg_tensor, other) == sizeof(tg_head), "the head of place 1 is other of place 0");

typedef struct tg_slab {
    struct tg_slab *next;
    tg_room room[TG_SLAB_HANDLES];
} tg_slab;

/* A run of handles in one slab list: where the next one goes. */
typedef struct tg_cursor {
    tg_slab *slab;
    int used; /* of slab */
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

/* Contributions whose bytes a work still fills. */
typedef struct tg_pending {
    struct tg_pending *next;
    tg_tensor *g;
} tg_pending;

/* The gradient of one output of one node, while a backward runs. */
typedef struct tg_slot {
    tg_tensor *g; /* a temp; NULL: nothing came yet */
    tg_pending *pending;
} tg_slot;

typedef struct tg_scope {
    struct tg_scope *parent;
    const char *name;
    tg_cursor from;
    uint64_t serial; /* of the last handle made before it */
} tg_scope;

enum { TG_N_CONSUMED = 1, TG_N_LEAF = 2, TG_N_STATE = 4, TG_N_TIMED = 8 };
enum { TG_N_BUSY = 16, TG_N_REACHED = 32, TG_N_DUE = 64, TG_N_OBSERVED = 128 };

struct tg_node {
    const tg_op *op;
    tg_node *prev, *next;
    const void *site;
    tg_scope *scope;
    uint32_t pass;  /* the last backward that needed it */
    uint32_t needs; /* inputs that need a gradient */
    uint32_t saves_in, saves_out;
    uint16_t n_in, n_out, n_saved;
    uint16_t flags;
    void *tail[]; /* inputs, their nodes, outputs, slots, params, saved, then versions, state and times */
};

static inline tg_tensor **tg_node_in(const tg_node *n) { return (tg_tensor **)n->tail; }
/* The node whose gradient slot input i's gradient goes to; NULL: it needs none. */
static inline tg_node **tg_node_src(const tg_node *n) { return (tg_node **)n->tail + n->n_in; }
static inline tg_tensor **tg_node_out(const tg_node *n) { return (tg_tensor **)n->tail + 2 * n->n_in; }
static inline tg_slot *tg_node_slots(const tg_node *n) { return (tg_slot *)(n->tail + 2 * n->n_in + n->n_out); }
/* Where the pointer to them is, if the op has any. */
static inline int tg_node_params_at(const tg_node *n) { return 2 * n->n_in + 3 * n->n_out; }
static inline void *tg_node_params_of(const tg_node *n) {
    return n->op->params_size ? n->tail[tg_node_params_at(n)] : NULL;
}
static inline tg_tensor **tg_node_kept(const tg_node *n) {
    return (tg_tensor **)(n->tail + tg_node_params_at(n) + (n->op->params_size != 0));
}
/* Versions when they were saved: of all inputs, where any was, and of all outputs, where any was. */
static inline uint32_t *tg_node_versions(const tg_node *n) { return (uint32_t *)(tg_node_kept(n) + n->n_saved); }
static inline int tg_node_n_versions(const tg_node *n) {
    return (n->saves_in ? n->n_in : 0) + (n->saves_out ? n->n_out : 0);
}
typedef struct tg_node_extra {
    void *state;
    void (*destroy)(void *state);
    double forward_s, backward_s;
    int64_t number; /* tg_op_event's */
} tg_node_extra;
static inline tg_node_extra *tg_node_extra_of(const tg_node *n) {
    return (tg_node_extra *)(tg_node_versions(n) + ((tg_node_n_versions(n) + 1) & ~1));
}
static inline bool tg_bit(uint32_t mask, int i) { return mask >> (i < 31 ? i : 31) & 1; }

typedef struct tg_leaf_entry {
    const tg_tensor *leaf;
    tg_node *node;
} tg_leaf_entry;

/* Who looks at the ops that run. */
typedef struct tg_observing {
    int kinds; /* tg_tape_find_nan */
    tg_observe_fn fn;
    void *user;
    int64_t seen; /* since the reset */
} tg_observing;

struct tg_tape {
    uint64_t epoch; /* of the last reset; 0: freed */
    tg_ctx *ctx;
    tg_tape *next, *prev; /* of the context's list */
    bool training, grad, timed;
    bool watched; /* watch has something to look for */
    bool in_backward;
    int busy; /* functions of the caller's that run on it, besides those that at_work and in_backward tell of */
    struct tg_pass *taped; /* the reverse pass whose derivatives are being recorded, the innermost */
    uint32_t tangents;     /* the pass of the tg_jvp that runs; 0: none */
    bool derives;          /* an op's vjp or jvp is at work: placements are looser (src/placement/rule.h) */
    bool collects; /* a first run of a recomputation: leaves used are noted, nothing else */
    bool grad_off; /* ... and the second run will record this part without grad */
    bool again;    /* a second run: what an op writes besides its outputs stays as the first has made it */
    bool collectives; /* a node that ranks meet in was recorded since the last reset */
    int turn; /* the place of handles in their rooms: 0 or 1 */
    tg_slab *slabs;
    tg_cursor at;
    tg_arena_chunk *chunks;
    tg_mark mark;
    tg_node *first, *last;
    int64_t n_nodes;
    uint32_t pass;
    const tg_call *at_work; /* the op that records or runs backward now, the innermost */
    tg_scope *scope;
    int scopes_missed; /* opened under an error */
    tg_leaf_entry *leaves; /* open addressing; capacity a power of two */
    int64_t n_leaves, leaf_capacity;
    int64_t cursor_index; /* of tg_tape_node */
    tg_node *cursor;
    void *scratch; /* of backward, for ops of many inputs */
    size_t scratch_bytes;
    tg_observing watch;
    struct tg_replay_room *replays, *replay; /* all; the last one taken since the reset, NULL: none */
    tg_packer packer; /* pack NULL: none */
    struct tg_packed *packed; /* what it has packed, and nobody has dropped */
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
void tg_tape_free_replays(tg_tape *t); /* replay.c: their memory */
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

/* ---- record.c ---- */

/* Records an op with one output. The site is the return address of the public function. */
tg_tensor *tg_record(tg_tape *t, const tg_op *op, const void *params, tg_tensor *const *in, int n_in, const void *site);
extern const tg_op tg_leaf_op;

/* What impl of a tg_call points to while an op records or runs backward. */
typedef struct tg_call_impl {
    const void *site;
    tg_tensor *temps; /* of this call, linked through their node */
    uint64_t before, made; /* in a forward: the context's serial before infer and behind it */
    tg_node *node;    /* in backward */
    struct tg_pass *pass;
    struct tg_rules *rules; /* what infer stated for the placements; NULL: nothing */
    bool placed;            /* infer gave the outputs their placements */
} tg_call_impl;

void tg_call_temps_free(tg_call *c);
/* Who called the public function that records, or recorded, the op. */
static inline const void *tg_call_site(const tg_call *c) { return ((const tg_call_impl *)c->impl)->site; }

/* ---- writes.c ---- */

/* Whether input 0 may be overwritten by the call's output. */
tg_status tg_call_check_inplace(tg_call *c);
/* What forward writes besides its outputs: nothing that is absent, and nothing in a second run. */
void tg_call_open_writes(tg_call *c);
/* Before the node notes the versions of what it saves; and before forward, which may fail half way. */
tg_status tg_call_begin_writes(tg_call *c);

/* ---- watch.c ---- */

/* Looks at what the op's forward has made. */
tg_status tg_observe_forward(tg_call *c);
/* A tape within another one, for a part of its ops, is watched as that is. */
static inline void tg_observe_share(tg_tape *inner, const tg_tape *t) {
    inner->watched = t->watched;
    inner->watch = t->watch;
    inner->watch.seen = 0;
}

/* ---- pack.c ---- */

/* Of a scope that closes: what its nodes have saved, but for what is marked as its output. */
tg_status tg_pack_since(tg_tape *t, uint64_t serial, const void *site);
/* Nobody will unpack these bytes any more. */
void tg_pack_drop(tg_storage *s);
/* The tape's handles have ended: what others read is unpacked, as the packer may end with the step. */
void tg_pack_end(tg_tape *t);
/* A backward that may run again has read them: what is packed goes again. */
void tg_pack_again(const tg_node *n);

/* ---- backward.c ---- */

/* A leaf or result whose gradient goes to the caller instead of being accumulated. */
typedef struct tg_target {
    tg_tensor *x;
    tg_tensor *g;   /* given: written or added into; else made, and the caller's to free */
    uint8_t mode;   /* of g, when given */
    bool reached;
    bool accumulates; /* what is put into g is accumulated in the leaf itself */
    tg_tensor *given; /* what tg_grad's caller gets */
    tg_node *node;
} tg_target;

typedef struct tg_pass_opts {
    tg_tensor *const *seeds;
    tg_target *targets; /* NULL: accumulate into every leaf */
    int n_targets;
    tg_tensor *const *only; /* accumulate into these leaves alone; NULL: all */
    int n_only;
    bool retain, create_graph;
    bool inner; /* of a recomputation: leaves' hooks wait for the outer tape, which has the whole gradient */
} tg_pass_opts;

/* In a backward: input i has no gradient after all, as nothing that the roots depend on has used it, or as it will be
 * added later. */
void tg_call_decline(tg_call *c, int i);
/* In a backward: it may run again, as what the nodes saved is kept. */
bool tg_call_retains(const tg_call *c);
/* In a backward: input i is a leaf, to whose accumulated gradient this call adds, now or later. */
bool tg_call_accumulates(const tg_call *c, int i);

tg_status tg_backward_run(tg_tape *t, tg_tensor *const *roots, int n, const tg_pass_opts *opts, const char *who);

#endif
