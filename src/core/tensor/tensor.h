/* Tensors. A tg_tensor is a handle: it gives the bytes of a storage (storage.h) a shape and a dtype. A context or a
 * tape owns it, or the library makes it for the time of one call (tg_temp). */
#ifndef TG_TENSOR_H
#define TG_TENSOR_H

#include "base/dtype.h"
#include "core/memory/storage.h"

typedef struct tg_ext tg_ext;
typedef struct tg_hook tg_hook;
struct tg_placements; /* placement/placing.h */

enum {
    TG_F_REQUIRES_GRAD = 1,
    TG_F_VIEW = 2, /* the result of an op that shares the bytes of the op's input */
    TG_F_LEAF = 4,
    TG_F_PARAM = 8,
    TG_F_SUPERSEDED = 16, /* an in-place op has overwritten it; the handle that the op returned replaces it */
    TG_F_CONTIGUOUS = 32,
    TG_F_DROPPED = 64,    /* tg_drop or tg_release was called, but nodes still use it */
    /* the values came from the caller: unless the tensor was placed, they may differ between ranks */
    TG_F_GIVEN = 128,
    /* recorded in no-grad mode, but would need a gradient otherwise (first run of a recomputation) */
    TG_F_DIFFERENTIABLE = 256,
    TG_F_COMPARED = 512,       /* check mode: its bytes have been compared between ranks, as its placement requires */
    TG_F_GRADIENT = 1024,      /* what tg_grad_of returned */
    TG_F_UNRECORDED = 2048,    /* it needs a gradient, but an op that recorded no node has used it */
    TG_F_PARTIAL = 4096,       /* a gradient that is one rank's share of a sum, so the host must not read it */
    TG_F_RELEASED = 8192       /* on a tape: tg_release was called, but nodes still use it */
};

/* The first fields of a handle. After a handle of a tape has ended, only these may be read, unless it is held. */
typedef struct tg_tombstone {
    uint64_t serial; /* unique number of the handle; once it has ended, one of the numbers below */
    tg_ctx *ctx;
} tg_tombstone;

/* NONE: the slot has no handle, or its handle was dropped or released. RESET: the handle ended when its tape was reset
 * or freed. HELD is added to either while the program holds the ended handle (tg_hold): the slot is not reused, and all
 * fields of the handle can be read. FIRST: the lowest serial of a live handle. */
enum { TG_SERIAL_NONE, TG_SERIAL_RESET, TG_SERIAL_HELD, TG_SERIAL_FIRST = 4 };

/* The slot of a context-owned handle, which is its memory, stays allocated until the context ends. So a stale pointer
 * can be recognized: after the handle has ended, the serial in its slot is NONE, HELD or that of another handle. In a
 * slot that is free, uses, holds and later.times are 0. */
struct tg_tensor {
    uint64_t serial; /* as in tg_tombstone */
    tg_ctx *ctx;
    tg_tombstone other; /* on a tape: the first fields of the handle that shares this one's memory (tape/tape.h) */
    tg_tape *tape; /* NULL if owned by the context */
    tg_storage *storage;
    int64_t offset, numel; /* in elements */
    const int64_t *shape, *stride;
    tg_node *node; /* the node that made it; NULL for a leaf, whose node is found through the tape */
    tg_ext *ext;   /* fields that only few tensors need */
    /* The placements (placement/placing.h). Equal placements have one pointer. NULL: INVARIANT on every axis. */
    const struct tg_placements *place;
    uint16_t out; /* index of this tensor among the outputs of node */
    uint16_t flags;
    uint8_t ndim, dtype;
    uint32_t uses;  /* number of nodes that use the handle as an input or as their leaf */
    uint32_t holds; /* number of calls of tg_hold without tg_unhold */
    tg_later later; /* drops by other threads (tg_drop_later) */
};

/* A short-lived handle, such as that of a gradient during backward, with its own memory for shape and strides. */
typedef struct tg_temp {
    tg_tensor x;
    int64_t dims[2 * TG_MAX_DIMS];
    struct tg_temp *next;
} tg_temp;

struct tg_hook {
    uint64_t id;
    tg_hook_fn fn;
    void *user;
    bool accumulated; /* of tg_on_accumulated: called with the accumulated gradient, not with that of this backward */
    tg_hook *next;
};

/* Fields that only few tensors need. */
struct tg_ext {
    char *name;
    tg_tensor *grad;      /* a leaf's accumulated gradient, owned by the context */
    tg_ext *grad_of;      /* in a gradient: the tg_ext of its leaf */
    tg_tensor *main_grad; /* the caller's buffer for the gradient */
    uint64_t main_serial; /* serial that main_grad had when it was set; they differ once that handle was dropped */
    tg_ext *next_free;
    bool has_grad;        /* main_grad or else grad holds a value; if not, the next contribution overwrites it */
    bool partial;         /* the gradient is this rank's share of the sum over the axes where the leaf is REPLICATED */
    bool summed;          /* the gradient was partial, and tg_grads_finalize has summed it */
    bool divided;         /* the gradient was summed, and this rank has only its range's elements, in `range` */
    bool unsure;          /* only the device knows, in `used`, whether a rank has contributed to the gradient */
    tg_tensor *used;      /* [1], float32: 1 or, if no rank has, 0. Owned by the context; NULL until it is needed */
    uint32_t placed;      /* bit mask of the axes that tg_place declared */
    tg_hook *hooks;
    int hooks_running;    /* running calls of tg_hooks_run; meanwhile a removed hook stays in the list, with fn NULL */
    int deferred;         /* number of products of linear layers that will be added to the gradient later (tg_wgrads) */
    tg_comm *shared;      /* the group whose ranks hold one parameter (tg_share), or NULL */
    tg_flat *flat;        /* the tg_flat that has the parameter, or NULL */
    tg_tensor *range;     /* the leaf that has this rank's elements of the parameter (tg_flat_leaves), or NULL */
    tg_ref range_of;      /* of such a leaf: the parameter. Empty for other tensors */
    int64_t range_begin;  /* of such a leaf: the number of the parameter's elements before its own */
    /* number of modules that list the tensor, plus 1 if it is the state of an optimizer or an average, or a leaf of a
     * tg_flat; unless 0, tg_drop does nothing */
    int owners;
    int held;         /* number of optimizers that update the tensor */
    bool buffer;      /* a buffer of a module: it keeps its placement, whatever is written into it */
    bool keeps_dtype; /* tg_module_cast leaves it as it is */
    /* leaf_node stands for this leaf on leaf_tape, the tape that used the leaf last. It is valid while leaf_tape is in
     * epoch leaf_epoch (tape/tape.h). Other tapes find their node of the leaf in a hash table. */
    tg_tape *leaf_tape;
    uint64_t leaf_epoch;
    tg_node *leaf_node;
    tg_tensor *next_owned, *prev_owned; /* the list of context-owned handles */
    int64_t dims[2 * TG_MAX_DIMS];      /* shape, then strides */
};

static inline bool tg_living(const tg_tensor *x) {
    return x->serial >= TG_SERIAL_FIRST && !(x->flags & TG_F_SUPERSEDED);
}
static inline bool tg_same_shape(const tg_tensor *a, const tg_tensor *b) {
    if (a->ndim != b->ndim) return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->shape[d] != b->shape[d]) return false;
    return true;
}
/* Fails if x, which a caller passed, is not a live tensor of ctx. The error message begins with `what`. */
tg_status tg_check(tg_ctx *ctx, const tg_tensor *x, const char *what);
/* Returns whether x is a temp that a callback (a hook, an observer or a function of an op) may use during its call. */
static inline bool tg_is_lent(const tg_tensor *x) { return !x->tape && !(x->flags & TG_F_LEAF); }
/* Fails if tg_is_lent(x). `who` is the name of the call that would change x. */
tg_status tg_refuse_lent(const tg_tensor *x, const char *who);
/* If x is a range of a parameter (tg_ext.range_of) that is alive, returns the parameter. Otherwise returns x. */
static inline tg_tensor *tg_range_whole(const tg_tensor *x) {
    const tg_ref *of = x->ext ? &x->ext->range_of : NULL;
    return TG_UNLIKELY(of && of->tensor && of->tensor->serial == of->serial) ? of->tensor : (tg_tensor *)x;
}
/* Fails if x is one rank's share of a sum, whose values `who` would give to the host or to another handle. That is the
 * gradient of a tensor that is REPLICATED on an axis, until tg_grads_finalize. */
tg_status tg_refuse_partial(const tg_tensor *x, const char *who);
/* Makes a tensor of the context on memory that the library does not own, on any device. `data`, the address of element
 * [0, 0, ..], and the strides are as in tg_wrap. release(user) is called once when the memory is not needed any more;
 * after an error it is not called. Returns NULL after recording the error, which begins with `who`. */
tg_tensor *tg_owned_on(tg_ctx *ctx, tg_dtype dtype, const tg_shape *shape, const int64_t *strides, void *data,
                       void (*release)(void *), void *user, const char *who);
/* Makes a context-owned handle. Takes over the caller's reference to s, even on an error. stride NULL means row-major.
 * Returns NULL after recording the error. */
tg_tensor *tg_owned_new(tg_ctx *ctx, tg_dtype dtype, int ndim, const int64_t *shape, const int64_t *stride,
                        tg_storage *s, int64_t offset);
void tg_owned_free(tg_tensor *x);
/* Makes the slot of an ended handle of the context, or of an ended temp, free for a new one. */
void tg_owned_slot_free(tg_tensor *x);
void tg_temp_slot_free(tg_tensor *x);
/* Makes a context-owned handle on a new storage. Returns NULL after recording the error. */
tg_tensor *tg_owned_empty(tg_ctx *ctx, tg_dtype dtype, int ndim, const int64_t *shape, tg_category category);
/* Makes a temp. Takes over the caller's reference to s, even on an error. stride NULL means row-major. Returns NULL
 * after recording the error. */
tg_tensor *tg_temp_new(tg_ctx *ctx, tg_dtype dtype, int ndim, const int64_t *shape, const int64_t *stride,
                       tg_storage *s, int64_t offset);
void tg_temp_free(tg_tensor *x); /* x may be NULL */
tg_tensor *tg_temp_empty(tg_ctx *ctx, tg_dtype dtype, int ndim, const int64_t *shape, tg_category category);
tg_ext *tg_ext_of(tg_tensor *x); /* the first call creates it; NULL after recording the error */
void tg_ext_free(tg_ctx *ctx, tg_ext *e);
tg_hook *tg_hook_new(tg_ctx *ctx); /* NULL after recording the error */
void tg_hook_free(tg_ctx *ctx, tg_hook *h);
void tg_hooks_free(tg_ctx *ctx);
/* Fails if the shape or the dtype cannot be that of a tensor. The error message begins with `what`. */
tg_status tg_shape_check(tg_ctx *ctx, const tg_shape *s, tg_dtype dtype, const char *what);
/* Writes the row-major strides, unless `stride` is NULL, and returns the number of elements, or -1 on overflow. */
int64_t tg_row_major(int ndim, const int64_t *shape, int64_t *stride);
static inline int64_t tg_shape_numel(const tg_shape *s) { return tg_row_major((int)s->ndim, s->dim, NULL); }
bool tg_is_row_major(int ndim, const int64_t *shape, const int64_t *stride);
/* Returns whether two elements share memory: a dim is expanded, or two indices have the same address. */
bool tg_shares_elements(const tg_tensor *x);
/* Fails if tg_shares_elements(x), because the elements cannot be written one by one. `who` is the name of the call that
 * would write them. */
tg_status tg_refuse_shared_elements(const tg_tensor *x, const char *who);
/* Notes that bytes were written to x that may differ between ranks, because they do not follow from compared bytes but
 * come from a file, for example. x gets a new version (tg_storage_wrote), and check mode compares it again. */
static inline void tg_tensor_wrote(tg_tensor *x, const char *by, const void *site) {
    tg_storage_wrote(x->storage, by, site);
    x->flags &= (uint16_t)~TG_F_COMPARED;
}
/* Notes that the values of x now come from the caller (TG_F_GIVEN). Parameters, gradients, buffers of modules, results
 * of ops and leaves that tg_place has declared keep their placement, so they are not marked. */
void tg_tensor_given(tg_tensor *x);
size_t tg_shape_text(int ndim, const int64_t *shape, char *buf, size_t n); /* "[2, 3]" */
/* Returns the address of the first element; NULL on device meta, and if the bytes are discarded. */
static inline void *tg_data(const tg_tensor *x) {
    if (TG_UNLIKELY(tg_runtime_of(x->storage->ctx)->recording)) tg_capture_uses(x->storage);
    return x->storage->data ? (char *)x->storage->data + (size_t)x->offset * tg_dtype_size(x->dtype) : NULL;
}
/* Returns element i of x, which is contiguous, expanded to the shape of `like`. */
static inline tg_array tg_array_spread(const tg_tensor *x, int64_t i, const tg_array *like) {
    static const int64_t still[TG_MAX_DIMS];
    tg_array a = *like;
    a.data = tg_data(x) ? (char *)tg_data(x) + (size_t)i * tg_dtype_size((tg_dtype)x->dtype) : NULL;
    a.dtype = x->dtype;
    a.stride = still;
    a.contiguous = a.numel == 1;
    return a;
}
/* Fails unless numbers of the dtype can be drawn from [lo, hi). The error message begins with `who`. */
tg_status tg_interval_check(tg_ctx *ctx, tg_dtype t, double lo, double hi, const char *who);
/* Fills x with draws from the current stream, of micro-batch 0 if they are by key. */
tg_status tg_fill_random(tg_tensor *x, tg_random kind, double a, double b);
/* Returns whether x is a parameter that was made without bytes (tg_ctx.unfilled) and has none yet. */
bool tg_param_is_unfilled(const tg_tensor *x);
tg_status tg_param_fill(tg_tensor *x); /* gives such a parameter bytes, which are undefined; does nothing otherwise */
/* Fills x with draws from any stream of the context, and of any micro-batch. Draws by order advance the stream by the
 * number of elements of x. */
tg_status tg_fill_random_from(tg_tensor *x, tg_rng *from, uint64_t micro, tg_random kind, double a, double b);

/* Returns the handle that the storage was made for, or NULL if that handle has ended. */
static inline const tg_tensor *tg_storage_maker(const tg_storage *s) {
    return s->maker && s->maker->serial == s->birth ? s->maker : NULL;
}
/* Returns whether tape t may release the bytes of s: it may if t owns the handle that s was made for, or if that handle
 * has ended. */
static inline bool tg_storage_is_of(const tg_storage *s, const tg_tape *t) {
    const tg_tensor *maker = tg_storage_maker(s);
    return !maker || maker->tape == t;
}

#endif
