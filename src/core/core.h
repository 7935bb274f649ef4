/* The core's objects, as the library's own files see them. Nothing here is installed. */
#ifndef TG_CORE_H
#define TG_CORE_H

#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>

#include <tapegrad/capture.h>
#include <tapegrad/tensor.h>

#include "base/runtime.h"
#include "placement/placing.h"

typedef struct tg_graph tg_graph;
typedef struct tg_ext tg_ext;
typedef struct tg_hook tg_hook;

/* What few storages have: a work that fills them, the caller's release, a refill after a discard. */
typedef struct tg_storage_extra {
    tg_work *work;
    struct tg_storage_extra *next_free;
    void (*release)(void *user);
    tg_status (*refill)(void *user, tg_ctx *ctx, void *dst, size_t bytes);
    uint32_t version; /* of the bytes that refill makes: once they have changed, it is none of theirs */
    void *user;
    /* Makes the bytes of a discarded storage present by itself; where it has not, they are gone. */
    tg_status (*restore)(void *user, tg_storage *s);
    struct tg_buffer *buffer; /* a named buffer, where the bytes go back to */
    bool shared;              /* the block is another storage's, held */
} tg_storage_extra;

/* Bytes on a device. Handles hold references; the bytes may go before the last of them (TG_DISCARDED). */
struct tg_storage {
    atomic_int refs;
    int32_t saves;    /* nodes, of any tape, that keep it for backward */
    uint32_t version; /* writes so far */
    uint8_t state;    /* tg_storage_state */
    uint8_t category; /* tg_category */
    bool temporary;   /* made by a tape: scopes, backward and tg_discard may take its bytes */
    bool marked;      /* scratch of scope_close */
    tg_ctx *ctx;
    void *data;       /* the next free storage, while on the free list */
    size_t bytes;
    tg_block *block;  /* of the caching allocator; NULL: the caller's bytes, or discarded */
    tg_tensor *maker; /* the handle that it was made for, as long as maker->serial is birth */
    uint64_t birth;
    const char *by;   /* the op or function that wrote it last in place, or discarded it */
    const void *by_site;
    tg_storage_extra *extra;
};

enum {
    TG_F_REQUIRES_GRAD = 1,
    TG_F_VIEW = 2,
    TG_F_LEAF = 4,
    TG_F_PARAM = 8,
    TG_F_SUPERSEDED = 16,
    TG_F_CONTIGUOUS = 32,
    TG_F_DROPPED = 64,
    TG_F_GIVEN = 128,          /* the caller's bytes: where it was not placed, each rank may have others */
    TG_F_DIFFERENTIABLE = 256, /* recorded without grad, and would need one with it (a recomputation's first run) */
    TG_F_COMPARED = 512,       /* check mode: its placement has been compared with the other ranks' bytes */
    TG_F_GRADIENT = 1024,      /* what tg_grad_of returned */
    TG_F_UNRECORDED = 2048     /* it needs a gradient, and an op that kept no node has used it */
};

/* What a tape's handle that has ended still says: nothing else of it may be read. */
typedef struct tg_head {
    uint64_t serial; /* or one of: */
    tg_ctx *ctx;
} tg_head;

/* Dropped: what its nodes need is there until they have ended. Ended with its tape's step. The first that lives. */
enum { TG_SERIAL_NONE, TG_SERIAL_RESET, TG_SERIAL_FIRST };

/* A handle. Its slot is never given back to the system before the context ends, so that a stale pointer can be
 * recognised: serial is none or another's once the handle has ended. */
struct tg_tensor {
    uint64_t serial; /* as tg_head */
    tg_ctx *ctx;
    tg_head other; /* on a tape: the head of the handle that shares this one's room (record.h) */
    tg_tape *tape; /* NULL: owned by the context */
    tg_storage *storage;
    int64_t offset, numel; /* in elements */
    const int64_t *shape, *stride;
    tg_node *node; /* that made it; NULL for a leaf, whose node is found through the tape */
    tg_ext *ext;   /* what few tensors have */
    const tg_placing *place; /* interned; NULL: the same on every rank, INVARIANT */
    uint16_t out; /* which output of node */
    uint16_t flags;
    uint8_t ndim, dtype;
};

/* A short-lived handle of the executor (a gradient, a temporary), with its own room for shape and strides. */
typedef struct tg_temp {
    tg_tensor x;
    int64_t dims[2 * TG_MAX_DIMS];
    struct tg_temp *next;
} tg_temp;

/* A piece of memory that is kept until the context ends: slots are cut from it. */
typedef struct tg_host_chunk {
    struct tg_host_chunk *next;
    size_t bytes;
    max_align_t slots[];
} tg_host_chunk;

struct tg_hook {
    uint64_t id;
    tg_hook_fn fn;
    void *user;
    bool accumulated;
    tg_hook *next;
};

struct tg_ext {
    char *name;
    tg_tensor *grad;      /* a leaf's accumulated gradient, context-owned */
    tg_ext *grad_of;      /* of a gradient: its leaf's */
    tg_tensor *main_grad; /* the caller's buffer for it */
    uint64_t main_serial; /* of main_grad: another one once it was dropped */
    uint32_t pins;        /* by nodes: as an input, or as the leaf, that this context-owned handle is */
    tg_ext *next_free;
    bool has_grad;        /* grad holds a value; else the next contribution overwrites */
    bool partial;         /* it is this rank's share of the sum over the axes where the leaf is R */
    bool summed;          /* it was partial, and tg_grads_finalize has summed it */
    uint32_t placed;      /* the axes that tg_place declared */
    tg_hook *hooks;
    int hooks_running;    /* while they do, a removed one stays in the list, without its function */
    int deferred;         /* products of linears that wait and will be added to it (tg_wgrads) */
    int owners;           /* modules that list it, or the optimiser whose state it is: tg_drop leaves it to them */
    /* The leaf's node on the tape that used it last; others are found by the tape's own map. */
    tg_tape *leaf_tape;
    uint64_t leaf_epoch;
    tg_node *leaf_node;
    tg_tensor *next_owned, *prev_owned; /* of a context-owned handle */
    int64_t dims[2 * TG_MAX_DIMS];      /* its shape and strides */
};

/* Memory that the ranks of a node share, from which the heap of a context on the CPU takes what it can. */
typedef struct tg_arena {
    void *(*take)(struct tg_arena *a, size_t bytes, size_t align); /* NULL: full */
    bool (*owns)(const struct tg_arena *a, const void *p);
    void (*end)(struct tg_arena *a); /* the context has ended */
} tg_arena;

struct tg_ctx {
    tg_runtime run; /* first: src/base and src/kernels know nothing else */
    tg_tensor inert;
    bool meta, host, check, ending;
    tg_dtype dtype;
    int busy; /* functions of the caller's that run, but those of ops and tapes, which say so themselves */
    uint64_t serial; /* of handles; only grows */
    uint64_t epochs; /* of tape resets */
    uint64_t hook_ids;
    uint64_t recomputing; /* serial when the recomputed function that runs was called, the innermost; 0: none */
    uint64_t backwards, finalized; /* that accumulated gradients; how many there were at the last tg_grads_finalize */
    tg_rng rng;                    /* of the stream that draws: the default one, but between a fork and its join */
    struct {
        struct tg_named_rng *first, *current; /* current NULL: the default stream draws */
        struct tg_named_rng **below;          /* what drew before each fork */
        tg_rng base;                          /* the default stream, while it does not draw */
        tg_rng outside;                       /* the default stream at the outermost fork that is open */
        uint64_t ids;
        int forks, room, forks_missed;
    } streams;
    bool draws_local; /* TG_RNG_MEGATRON: an element draws by its place in the local tensor */
    const tg_file_ops *files; /* NULL: the system's calls */
    tg_log_fn log;
    void *log_user;
    tg_grid grid;                     /* the axes of the one tg_parallel of this context */
    const tg_parallel *parallel;      /* that made the grid */
    tg_arena *arena; /* NULL: all comes from the device */
    /* Slots of handles and storages, kept until the context ends. */
    tg_host_chunk *chunks;
    tg_tensor *free_first, *free_last; /* first in, first out: a stale handle stays recognisable for long */
    tg_temp *free_temps;
    tg_ext *free_exts;
    tg_storage *free_storages;
    tg_storage_extra *free_extras;
    tg_work *free_works;
    void *free_parts; /* of inputs that recomputations distribute */
    tg_hook *free_hooks;
    tg_work *readers;          /* works in flight that hold what they read */
    tg_work *works;            /* all that have not ended */
    struct tg_copies *copies;  /* beside the device's work; NULL: none so far */
    tg_graph *graphs, *capture; /* alive; the one that is being recorded now */
    struct tg_buffer *buffers; /* named ones */
    tg_tensor *owned;    /* alive, linked through their ext */
    tg_tape *tapes;      /* alive */
    tg_tape *free_tapes; /* freed; their structs answer stale handles */
    tg_tape *inert_tape; /* what tg_tape_new returns when it fails */
    struct tg_trace *trace; /* of the memory report */
};

/* ---- status.c ---- */

/* The one writer of a context's status. Returns s; keeps the first error. Safe on the const dead context. */
tg_status tg_fail(tg_ctx *ctx, tg_status s, const char *format, ...) TG_PRINTF(3, 4);
tg_status tg_failv(tg_ctx *ctx, tg_status s, const char *format, va_list ap);
/* Adds to the message of an error that is there already: where it happened. Returns the status. */
tg_status tg_fail_note(tg_ctx *ctx, const char *format, ...) TG_PRINTF(2, 3);
size_t tg_describe_site(const void *site, char *buf, size_t n);
size_t tg_describe_symbol(const void *site, char *buf, size_t n); /* cheaper: without file and line */
/* Ranks would have met here, had there been no error: those of the peers for whom there was none must not wait. */
void tg_ctx_skip(tg_ctx *ctx);
/* After an error that may have kept this rank from a function of somebody else's: ranks may have met there, over any
 * axis of the grid but the data-parallel ones. Those meet when backward has ended, and a rank that has left out a
 * micro-batch is still in step with them. */
void tg_ctx_may_skip(tg_ctx *ctx);
/* This thread waits for other ranks: those who listen may use the time. */
static inline void tg_ctx_idle(tg_ctx *ctx) {
    for (tg_listener *l = ctx->run.listeners; l; l = l->next)
        if (l->idle) l->idle(l);
}
void tg_ctx_listen(tg_ctx *ctx, tg_listener *l); /* l hears of it until tg_ctx_unlisten; the caller's memory */
void tg_ctx_unlisten(tg_ctx *ctx, tg_listener *l);
extern const tg_ctx tg_dead_ctx;
/* The size that a struct of the caller begins with: set, and of no later version. A table must be whole besides. */
tg_status tg_size_check(tg_ctx *ctx, size_t size, size_t known, const char *who);
tg_status tg_table_check(tg_ctx *ctx, size_t size, size_t known, const char *who);
/* Copies options from the caller's struct, which may be of an earlier version, or NULL; the rest is zero. */
tg_status tg_options(tg_ctx *ctx, void *to, size_t known, const void *from, const char *who);

static inline bool tg_ok(const tg_ctx *ctx) { return ctx && ctx->run.status == TG_OK; }
static inline tg_tensor *tg_inert(const tg_ctx *ctx) { return (tg_tensor *)&ctx->inert; }

/* ---- host memory: every byte of the library's own objects, by the context's allocator (context.c) ---- */

void *tg_host_alloc(tg_ctx *ctx, size_t bytes);  /* zeroed; NULL after recording TG_ERR_MEMORY */
void tg_host_free(tg_ctx *ctx, void *p, size_t bytes);
/* Room in *items for one more than n things of size bytes; false after the error, when nothing has changed. */
bool tg_host_grow(tg_ctx *ctx, void **items, int n, int *room, size_t size);
int64_t tg_workspace_bytes(const tg_ctx *ctx); /* of all slots of tg_workspace */
char *tg_host_strdup(tg_ctx *ctx, const char *s);
void tg_host_strfree(tg_ctx *ctx, char *s);

/* ---- storage.c ---- */

/* What the caller's limit leaves beside what lives and the kernels' workspaces; SIZE_MAX: there is none. */
size_t tg_memory_room(const tg_ctx *ctx);
/* Records that bytes could not be had, with what is held; what: a word behind "bytes", or "". */
tg_status tg_memory_fail(tg_ctx *ctx, size_t bytes, const char *what);
/* From the context's heap, within the caller's limit; NULL: there are none. */
tg_block *tg_take_block(tg_ctx *ctx, size_t bytes, tg_category category);
tg_storage *tg_storage_new(tg_ctx *ctx, size_t bytes, tg_category category);
tg_storage *tg_storage_wrap(tg_ctx *ctx, void *data, size_t bytes, void (*release)(void *), void *user);
static inline tg_storage *tg_storage_ref(tg_storage *s) {
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    return s;
}
void tg_storage_unref(tg_storage *s);
void tg_storage_discard(tg_storage *s, const char *by, const void *site);
/* A new storage, temporary, that takes over s's bytes, which are present; s is discarded. NULL after recording the
 * error. */
tg_storage *tg_storage_take(tg_storage *s, const char *by, const void *site);
/* Makes the bytes present: waits for the work, or refills; or fails with who discarded them. */
tg_status tg_storage_need_slow(tg_storage *s, const tg_tensor *x);
static inline tg_status tg_storage_need(tg_storage *s, const tg_tensor *x) {
    return TG_LIKELY(s->state == TG_PRESENT) ? TG_OK : tg_storage_need_slow(s, x);
}
/* Bytes of its own, undefined, whatever became of the last ones: a work that was to fill them is abandoned. */
tg_status tg_storage_renew(tg_storage *s);
/* For a restore: bytes of its own again, undefined; or those of another one of its size, which stay as long as either
 * needs them. */
tg_status tg_storage_bytes_again(tg_storage *s);
tg_status tg_storage_share(tg_storage *s, tg_storage *from);
void tg_storage_categorize(tg_storage *s, tg_category c);

tg_storage_extra *tg_storage_extra_of(tg_storage *s); /* makes it; NULL after recording the error */
void tg_storage_extras_free(tg_ctx *ctx);
/* The handle that it was made for, while that lives; else NULL. */
static inline const tg_tensor *tg_storage_maker(const tg_storage *s) {
    return s->maker && s->maker->serial == s->birth ? s->maker : NULL;
}
/* Whether t may take the bytes: another tape's are that one's to take. */
static inline bool tg_storage_is_of(const tg_storage *s, const tg_tape *t) {
    const tg_tensor *maker = tg_storage_maker(s);
    return !maker || maker->tape == t;
}
/* Nobody else reads or will read these bytes: no other handle, no work in flight. */
static inline bool tg_storage_is_own(const tg_storage *s) {
    return atomic_load_explicit(&s->refs, memory_order_relaxed) == 1 && !(s->block && tg_block_held(s->block));
}
/* Before bytes change in place: works in flight have read them. */
tg_status tg_storage_await_readers(tg_storage *s);
/* Before x changes from what it is: it has come, and works in flight have read it. */
tg_status tg_storage_may_change(const tg_tensor *x);
/* capture.c: the step that is being captured uses, or changes, these bytes. */
void tg_capture_uses(tg_storage *s);
void tg_capture_writes(tg_storage *s);
/* The bytes change in place: later uses of what was saved before are refused, naming `by`. */
static inline void tg_storage_wrote(tg_storage *s, const char *by, const void *site) {
    s->version++;
    s->by = by;
    s->by_site = site;
    if (TG_UNLIKELY(s->ctx->capture != NULL)) tg_capture_writes(s);
}

/* ---- tensor.c ---- */

static inline bool tg_living(const tg_tensor *x) {
    return x->serial >= TG_SERIAL_FIRST && !(x->flags & TG_F_SUPERSEDED);
}
/* Checks a handle that a caller gave; the error names `what`. */
tg_status tg_check(tg_ctx *ctx, const tg_tensor *x, const char *what);
/* A gradient in the hands of a hook or a watch is the pass's own. */
static inline bool tg_is_lent(const tg_tensor *x) { return !x->tape && !(x->flags & TG_F_LEAF); }
tg_status tg_refuse_lent(const tg_tensor *x, const char *who);
/* Context-owned handle; takes over the reference to s. */
tg_tensor *tg_owned_new(tg_ctx *ctx, tg_dtype dtype, int ndim, const int64_t *shape, const int64_t *stride,
                        tg_storage *s, int64_t offset);
void tg_owned_free(tg_tensor *x);
tg_tensor *tg_owned_empty(tg_ctx *ctx, tg_dtype dtype, int ndim, const int64_t *shape, tg_category category);
/* Takes over the reference to s. stride NULL: row-major. */
tg_tensor *tg_temp_new(tg_ctx *ctx, tg_dtype dtype, int ndim, const int64_t *shape, const int64_t *stride,
                       tg_storage *s, int64_t offset);
void tg_temp_free(tg_tensor *x);
tg_tensor *tg_temp_empty(tg_ctx *ctx, tg_dtype dtype, int ndim, const int64_t *shape, tg_category category);
void tg_ext_free(tg_ctx *ctx, tg_ext *e);
tg_hook *tg_hook_new(tg_ctx *ctx); /* NULL after recording the error */
void tg_hook_free(tg_ctx *ctx, tg_hook *h);
void tg_hooks_free(tg_ctx *ctx);
tg_ext *tg_ext_of(tg_tensor *x); /* makes it; NULL after recording the error */
tg_status tg_shape_check(tg_ctx *ctx, const tg_shape *s, tg_dtype dtype, const char *what);
/* numel and row-major strides; -1 on overflow. */
int64_t tg_row_major(int ndim, const int64_t *shape, int64_t *stride);
bool tg_is_row_major(int ndim, const int64_t *shape, const int64_t *stride);
/* Whether elements share memory: a dim is expanded, or the strides of several lead to one place. */
bool tg_shares_elements(const tg_tensor *x);
static inline size_t tg_dtype_size(tg_dtype d) {
    static const uint8_t size[TG_DTYPE_COUNT] = {0, 4, 8, 2, 2, 8, 4, 1, 1, 1, 1, 1, 0};
    return size[d];
}
static inline bool tg_is_float(tg_dtype d) { return d >= TG_F32 && d <= TG_F16; }
static inline tg_dtype tg_accumulate_dtype(tg_dtype d) { return d == TG_F64 ? TG_F64 : tg_is_float(d) ? TG_F32 : d; }
static inline void *tg_data(const tg_tensor *x) {
    if (TG_UNLIKELY(x->storage->ctx->capture != NULL)) tg_capture_uses(x->storage);
    return x->storage->data ? (char *)x->storage->data + (size_t)x->offset * tg_dtype_size(x->dtype) : NULL;
}
/* Element i of x, as an array of like's shape. */
static inline tg_array tg_array_spread(const tg_tensor *x, int64_t i, const tg_array *like) {
    static const int64_t still[TG_MAX_DIMS];
    tg_array a = *like;
    a.data = tg_data(x) ? (char *)tg_data(x) + (size_t)i * tg_dtype_size((tg_dtype)x->dtype) : NULL;
    a.dtype = x->dtype;
    a.stride = still;
    a.contiguous = a.numel == 1;
    return a;
}
size_t tg_shape_text(int ndim, const int64_t *shape, char *buf, size_t n); /* "[2, 3]" */
/* Offset of the first byte that is not UTF-8 (RFC 3629: no overlong forms, no surrogates); n: there is none. */
size_t tg_utf8_check(const char *s, size_t n);
/* snprintf at a running position: *at grows by the whole length. */
void tg_text(char *buf, size_t n, size_t *at, const char *format, ...) TG_PRINTF(4, 5);
tg_status tg_fill_random(tg_tensor *x, tg_random kind, double a, double b); /* draws from the default stream */

#endif
