/* Tapegrad: an autograd tensor runtime with an explicit tape.
 *
 * Umbrella header: status, dtypes, context, tensors, tape, backward, recomputation, random streams.
 * The ops are in ops.h, which this header includes at its end.
 *
 * Errors are sticky. A failed call records the first error in its context (given no tape, in that of the first tensor;
 * given neither, as by tg_full(NULL, ...), nowhere: whoever takes what it returns refuses it) and returns an inert
 * tensor; every later call on that context does nothing until tg_ctx_clear, but for free, drop, reset, status, message
 * and clear. Check once, at the end: tg_ctx_status.
 *
 * Ownership in three words: what *_new returns is released by *_free; what tg_keep returns is released by tg_drop;
 * all else is borrowed. A tensor made on a context lives until tg_drop or tg_ctx_free; a tensor made by an op lives
 * until its tape is reset.
 *
 * Threads: a context and everything made on it is used by one thread at a time. Different contexts are independent.
 */
#ifndef TAPEGRAD_H
#define TAPEGRAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TG_VERSION_MAJOR 0
#define TG_VERSION_MINOR 1
#define TG_VERSION_PATCH 0
#define TG_VERSION "0.1.0"
#if defined(__GNUC__)
#define TG_API __attribute__((visibility("default")))
#define TG_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define TG_API
#define TG_PRINTF(f, a)
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tg_ctx tg_ctx;
typedef struct tg_tensor tg_tensor;
typedef struct tg_tape tg_tape;
typedef struct tg_node tg_node;
typedef struct tg_op tg_op;
typedef struct tg_storage tg_storage;
typedef struct tg_work tg_work;
typedef struct tg_comm tg_comm;
typedef struct tg_parallel tg_parallel;
typedef struct tg_module tg_module;
typedef struct tg_optim tg_optim;
typedef struct tg_file_ops tg_file_ops;

/* ---- Status ---- */

/* X(name, text): the one list of which the enum and tg_status_name are made. */
#define TG_STATUS_LIST(X)                                                                      \
    X(OK, "ok")                                                                                \
    X(ERR_ARGUMENT, "invalid argument")      /* NULL, out of range, not finite, overlapping */ \
    X(ERR_SHAPE, "shape mismatch")                                                             \
    X(ERR_DTYPE, "dtype mismatch")                                                             \
    X(ERR_DEVICE, "device mismatch")                                                           \
    X(ERR_PLACEMENT, "placement mismatch")                                                     \
    X(ERR_HANDLE, "dead or foreign handle")  /* freed, reset, superseded, of another context */ \
    X(ERR_STATE, "wrong state")              /* right call, wrong moment */                    \
    X(ERR_VERSION, "saved tensor was overwritten")                                             \
    X(ERR_DISCARDED, "bytes were discarded")                                                   \
    X(ERR_DATA, "invalid data")              /* values, not shapes: ids out of range, NaN */   \
    X(ERR_MEMORY, "out of memory")                                                             \
    X(ERR_IO, "input/output error")                                                            \
    X(ERR_FORMAT, "malformed file")                                                            \
    X(ERR_UNSUPPORTED, "unsupported")                                                          \
    X(ERR_CALLBACK, "a callback failed")                                                       \
    X(ERR_GRADIENT, "gradient check failed")                                                   \
    X(ERR_MISMATCH, "ranks disagree")                                                          \
    X(ERR_REMOTE, "another rank failed")                                                       \
    X(ERR_ABORTED, "communicator aborted")                                                     \
    X(ERR_TIMEOUT, "deadline passed")                                                          \
    X(ERR_INTERNAL, "internal error")

typedef enum tg_status {
#define TG_X(name, text) TG_##name,
    TG_STATUS_LIST(TG_X)
#undef TG_X
} tg_status;

TG_API const char *tg_status_name(tg_status s); /* "TG_ERR_SHAPE"; never NULL */
TG_API const char *tg_version(void);            /* the library's TG_VERSION */

/* ---- Dtypes, shapes ---- */

/* X(NAME, name, bits, kind): kind f (float), i (integer), b (boolean), q (quantised: a tg_quant gives the scale).
 * The 8- and 4-bit formats have their numbers now so that files and bindings keep them; no op takes them yet. */
#define TG_DTYPE_LIST(X)         \
    X(F32, f32, 32, 'f')         \
    X(F64, f64, 64, 'f')         \
    X(BF16, bf16, 16, 'f')       \
    X(F16, f16, 16, 'f')         \
    X(I64, i64, 64, 'i')         \
    X(I32, i32, 32, 'i')         \
    X(U8, u8, 8, 'i')            \
    X(BOOL, bool, 8, 'b')        \
    X(F8E4M3, f8e4m3, 8, 'q')    \
    X(F8E5M2, f8e5m2, 8, 'q')    \
    X(F8E8M0, f8e8m0, 8, 'q')    \
    X(F4E2M1, f4e2m1, 4, 'q')

typedef enum tg_dtype {
    TG_DTYPE_DEFAULT = 0, /* the context's default dtype */
#define TG_X(NAME, name, bits, kind) TG_##NAME,
    TG_DTYPE_LIST(TG_X)
#undef TG_X
    TG_DTYPE_COUNT
} tg_dtype;

TG_API const char *tg_dtype_name(tg_dtype d); /* "f32"; "?" for an unknown one */
TG_API int tg_dtype_bits(tg_dtype d);         /* 0 for an unknown one */

/* How a quantised tensor's scales lie: one scale of scale_dtype for every block of block[i] elements along dim i
 * (0: the whole dim). Carried by a tensor of kind q; unused by the dtypes that ops take today. */
typedef struct tg_quant {
    size_t size;
    tg_dtype scale_dtype;
    int64_t block[8];
    tg_tensor *scale;
} tg_quant;

enum { TG_MAX_DIMS = 8 };

/* A shape by value. ndim > TG_MAX_DIMS marks one that was given too many dims: every function refuses it. */
typedef struct tg_shape {
    int64_t ndim;
    int64_t dim[TG_MAX_DIMS];
} tg_shape;

/* A list of dims to reduce over; negative ones count from the end. n < 0: all of them. */
typedef struct tg_dims {
    int n;
    int dim[TG_MAX_DIMS];
} tg_dims;

/* More than TG_MAX_DIMS dims, or NULL for some, make a shape and a list that every function refuses. */
TG_API tg_shape tg_shape_make(size_t n, const int64_t *dims);
TG_API tg_dims tg_dims_make(size_t n, const int64_t *dims);

#ifndef __cplusplus
#define TG_LIST_N_(...) (sizeof((int64_t[]){0, __VA_ARGS__}) / sizeof(int64_t) - 1)
#define TG_LIST_(...) ((const int64_t[]){0, __VA_ARGS__} + 1)
#define TG_SHAPE(...) tg_shape_make(TG_LIST_N_(__VA_ARGS__), TG_LIST_(__VA_ARGS__)) /* TG_SHAPE(): a scalar */
#define TG_DIMS(...) tg_dims_make(TG_LIST_N_(__VA_ARGS__), TG_LIST_(__VA_ARGS__))
#define TG_ALL_DIMS ((tg_dims){.n = -1})
#endif

/* Every struct that a caller fills begins with its size. The TG_* macros set it; C++ and bindings call
 * tg_struct_init(&s, sizeof s), which zeroes the struct and sets it. A size that was never set, and one that is larger
 * than the library knows, is TG_ERR_ARGUMENT. A zero field means its default; TG_NONE (for
 * numbers) stands where a zero itself is wanted. */
#define TG_NONE (-1)
TG_API void tg_struct_init(void *s, size_t size);

/* ---- Placements (how a tensor lies over the ranks of a group axis; docs/placements.md) ---- */

typedef enum tg_axis { TG_TP, TG_CP, TG_DP, TG_PP, TG_ETP, TG_EP, TG_EDP, TG_AXIS_USER, TG_MAX_AXES } tg_axis;

typedef enum tg_placement_kind {
    TG_INVARIANT,  /* the same on every rank; so is its gradient */
    TG_REPLICATED, /* the same on every rank; its gradient is PARTIAL */
    TG_VARYING,    /* each rank its own: a shard along dim, or opaque */
    TG_PARTIAL,    /* the sum over the ranks; its gradient is REPLICATED */
} tg_placement_kind;

typedef enum tg_layout { TG_OPAQUE, TG_CONTIGUOUS, TG_STRIDED, TG_ZIGZAG } tg_layout;

typedef struct tg_placement {
    uint8_t kind;   /* tg_placement_kind */
    uint8_t layout; /* tg_layout, of VARYING */
    int8_t dim;     /* the sharded dim, unless opaque */
    uint8_t order;  /* where several axes shard one dim: 0 is the major one */
    int32_t chunks; /* of a strided layout: chunks of the dim per rank */
} tg_placement;

/* How a collective combines the elements of the ranks (comm.h). */
typedef enum tg_reduce_op { TG_REDUCE_SUM, TG_REDUCE_MAX, TG_REDUCE_MIN, TG_REDUCE_AVG } tg_reduce_op;

/* ---- Context ---- */

/* The caller's memory for all of a context. alloc returns NULL when it cannot; align is a power of two up to 2 MiB. */
typedef struct tg_allocator {
    void *(*alloc)(void *user, size_t bytes, size_t align);
    void (*free)(void *user, void *p, size_t bytes);
    void *user;
} tg_allocator;

/* Runs body(arg, begin, end) so that [0, n) is covered in disjoint ranges; returns when all have run. Which thread
 * runs what must not matter to the result: kernels cut work by shape alone. */
typedef void (*tg_range_fn)(void *arg, int64_t begin, int64_t end);
typedef void (*tg_parallel_for_fn)(void *user, int64_t n, tg_range_fn body, void *arg);

typedef enum tg_log_level { TG_LOG_INFO, TG_LOG_WARNING } tg_log_level;
typedef void (*tg_log_fn)(void *user, tg_log_level level, const char *message);

typedef struct tg_config {
    size_t size;
    const char *device; /* "cpu" (default), "cuda", "cuda:N", "meta" (shapes only: nothing runs); or tg_ctx_new_on */
    uint64_t seed;      /* of the default random stream */
    int threads;        /* of this context; 0: the cores that this process may use */
    tg_dtype dtype;     /* of creations that name none: TG_F32 (default), TG_F64, TG_BF16 or TG_F16 */
    const char *isa;    /* CPU kernels: NULL (the best here), "portable", "avx2", "avx512", "avx512_bf16" */
    bool check;         /* check mode: recomputation must give the same bits, gradients begin as NaN */
    tg_allocator allocator;
    tg_parallel_for_fn parallel_for; /* instead of the context's own thread pool */
    void *parallel_user;
    tg_log_fn log; /* for diagnostics; NULL: silent, as the library never prints */
    void *log_user;
    double deadline; /* seconds that a collective may wait; 0: 300 */
    const tg_file_ops *files; /* instead of the system's calls (io.h) */
    int64_t
        memory; /* so many bytes live and of workspace at most (tg_memory_info), more is TG_ERR_MEMORY; 0: no limit */
} tg_config;

#define TG_CONFIG(...) (&(tg_config){.size = sizeof(tg_config), __VA_ARGS__})

/* Never NULL: a context that could not be made is dead (tg_ctx_status says why) and everything made on it inert.
 * config may be NULL. */
TG_API tg_ctx *tg_ctx_new(const tg_config *config);
/* Ends every tensor and tape made on the context; modules, optimisers and files are freed before it. No handle of it
 * may be used afterwards, not even to drop or free it: an object that holds one holds the context too. While a function
 * that a call has been given runs (a hook, an op's) its context, and tape, cannot end: an error, nothing is freed. */
TG_API void tg_ctx_free(tg_ctx *ctx);

TG_API tg_status tg_ctx_status(const tg_ctx *ctx);
/* The first error: what was wrong, what was expected, where. "" when there is none. Valid until the next clear. */
TG_API const char *tg_ctx_message(const tg_ctx *ctx);
TG_API void tg_ctx_clear(tg_ctx *ctx);
/* Records an error of the caller's own (a callback, a data source) unless one is there already; returns s. */
TG_API tg_status tg_ctx_fail(tg_ctx *ctx, tg_status s, const char *format, ...) TG_PRINTF(3, 4);

TG_API int tg_ctx_threads(const tg_ctx *ctx);
TG_API const char *tg_ctx_device(const tg_ctx *ctx);
TG_API const char *tg_ctx_isa(const tg_ctx *ctx);

/* ---- Memory ---- */

typedef enum tg_category {
    TG_MEM_PARAMETER,
    TG_MEM_GRADIENT,
    TG_MEM_OPTIMIZER,
    TG_MEM_SAVED,     /* activations that a node saved for backward */
    TG_MEM_TEMPORARY, /* everything else */
    TG_MEM_BUFFER,    /* named buffers, leased or not */
    TG_MEM_GRAPH,     /* what captured steps took (capture.h) */
    TG_MEM_CATEGORIES,
    TG_MEM_MAX_CATEGORIES = 8 /* so that tg_memory_info keeps its layout when one is added */
} tg_category;

typedef struct tg_memory_info {
    size_t size;
    int64_t live, peak;           /* bytes handed out, rounded as the allocator rounds */
    int64_t reserved;             /* bytes taken from the system for them */
    int64_t workspace;            /* of kernels, besides */
    int64_t by_category[TG_MEM_MAX_CATEGORIES];
    int64_t peak_by_category[TG_MEM_MAX_CATEGORIES]; /* at the moment of the peak */
    int64_t host_allocations;     /* calls of the allocator so far: constant in a steady training step */
} tg_memory_info;

#define TG_MEMORY_INFO() ((tg_memory_info){.size = sizeof(tg_memory_info)})
TG_API tg_status tg_memory_query(tg_ctx *ctx, tg_memory_info *out);
TG_API void tg_memory_reset_peak(tg_ctx *ctx);
/* With on, the report names what was alive at the peak: tensor, node, call site. Costs time: off by default. */
TG_API void tg_memory_set_trace(tg_ctx *ctx, bool on);

/* Functions that write text do it as snprintf does: at most n bytes with the terminating zero, and they return the
 * length of the whole text; with buf NULL they write nothing. */
TG_API size_t tg_memory_report(tg_ctx *ctx, char *buf, size_t n);

/* ---- Random streams ---- */

/* Philox4x32-10 (Salmon et al., SC 2011): draws are a pure function of these words. Saving and restoring a stream
 * is a copy of this struct. */
typedef struct tg_rng {
    uint64_t seed;
    uint64_t stream; /* less than 2^63 */
    uint64_t counter;
} tg_rng;

/* Streams by name, besides the default one. Names and seeds are unique among them (TG_ERR_ARGUMENT), as their draws
 * would be equal otherwise: one with the default one's seed draws its numbers. Unknown names are TG_ERR_ARGUMENT. */
TG_API tg_status tg_rng_add(tg_ctx *ctx, const char *name, uint64_t seed);
TG_API tg_status tg_rng_remove(tg_ctx *ctx, const char *name);
TG_API const char *tg_rng_name(const tg_ctx *ctx, int i); /* the i-th to come; NULL past the last */
/* The state by value; name NULL: of the stream that draws now, the default one but between a fork and its join. */
TG_API tg_status tg_rng_get(tg_ctx *ctx, const char *name, tg_rng *out);
TG_API tg_status tg_rng_set(tg_ctx *ctx, const char *name, const tg_rng *s);
/* From fork to join the named stream draws, going on where it was left; a default stream seeded anew meanwhile is
 * logged. Forks nest, also of one name; every fork, a failed one too, has its join; a join alone is TG_ERR_STATE. */
TG_API tg_status tg_rng_fork(tg_ctx *ctx, const char *name);
TG_API tg_status tg_rng_join(tg_ctx *ctx);

/* ---- Tensors on a context ---- */

TG_API tg_tensor *tg_zeros(tg_ctx *ctx, tg_dtype dtype, tg_shape shape);
/* Copies prod(shape) elements from host memory, row-major. */
TG_API tg_tensor *tg_from_host(tg_ctx *ctx, tg_dtype dtype, tg_shape shape, const void *data);
/* Over the caller's memory (NULL: no elements), without a copy. strides in elements, NULL: row-major. release(user) is
 * called when the last reference has gone (never, if NULL); on an error it is called at once. CPU contexts only. */
TG_API tg_tensor *tg_wrap(tg_ctx *ctx, tg_dtype dtype, tg_shape shape, const int64_t *strides, void *data,
                          void (*release)(void *user), void *user);
TG_API tg_tensor *tg_randn(tg_ctx *ctx, tg_shape shape, double std);              /* normal, mean 0, default dtype */
TG_API tg_tensor *tg_uniform(tg_ctx *ctx, tg_shape shape, double lo, double hi); /* in [lo, hi), default dtype */
/* A leaf that needs a gradient: normal with standard deviation std, 0: zeros. Its gradient is accumulated in
 * float32, or in the parameter's dtype where that is wider. name is copied. */
TG_API tg_tensor *tg_param(tg_ctx *ctx, const char *name, tg_shape shape, double std);
TG_API tg_tensor *tg_param_of(tg_ctx *ctx, const char *name, tg_dtype dtype, tg_shape shape, double std);

/* A context-owned handle on the same bytes, that outlives its tape; no gradient flows through it. */
TG_API tg_tensor *tg_keep(tg_tensor *x);
/* Ends a context-owned handle. Ignored: NULL, dead, inert and tape-owned ones, what belongs to a module or an
 * optimiser, and a leaf's gradient. */
TG_API void tg_drop(tg_tensor *x);

/* ---- What a tensor is (safe on any handle that came from this library: dead ones answer as empty) ---- */

TG_API bool tg_is_alive(const tg_tensor *x); /* false: inert, dropped, of an ended tape, superseded in place */
TG_API tg_ctx *tg_ctx_of(const tg_tensor *x);
TG_API int tg_ndim(const tg_tensor *x);
TG_API int64_t tg_dim(const tg_tensor *x, int i);    /* negative i from the end; -1 when out of range */
TG_API int64_t tg_stride(const tg_tensor *x, int i); /* in elements */
TG_API int64_t tg_numel(const tg_tensor *x);
TG_API tg_shape tg_shape_of(const tg_tensor *x);
TG_API tg_dtype tg_dtype_of(const tg_tensor *x);
TG_API bool tg_is_contiguous(const tg_tensor *x);
TG_API bool tg_requires_grad(const tg_tensor *x);
TG_API const char *tg_name(const tg_tensor *x); /* "" when it has none */
TG_API tg_status tg_set_name(tg_tensor *x, const char *name);
/* Leaves only: whether what is recorded from now on gives x a gradient. */
TG_API tg_status tg_set_requires_grad(tg_tensor *x, bool on);
TG_API size_t tg_describe(const tg_tensor *x, char *buf, size_t n); /* "fc1.weight f32[32, 8]" */

/* A reference that a binding may hold for ever: it knows when its tensor has gone. */
typedef struct tg_ref {
    tg_tensor *tensor;
    uint64_t serial;
} tg_ref;

TG_API tg_ref tg_ref_of(const tg_tensor *x);
/* The tensor; or an inert one, without an error, when it has gone or is of another context (which must be alive). */
TG_API tg_tensor *tg_ref_get(tg_ctx *ctx, tg_ref r);

/* ---- Values: explicit reads and writes of the host ---- */

TG_API double tg_item(tg_tensor *x); /* of a tensor with one element; NaN on error */
/* Row-major copies of all elements in x's dtype; bytes must be exactly numel * size. */
TG_API tg_status tg_read(tg_tensor *x, void *dst, size_t bytes);
TG_API tg_status tg_write(tg_tensor *x, const void *src, size_t bytes);
TG_API tg_status tg_read_f64(tg_tensor *x, double *dst, int64_t n); /* converted */
TG_API tg_status tg_write_f64(tg_tensor *x, const double *src, int64_t n);
/* The bytes themselves, CPU only, NULL on error. Valid until the next call that takes x's tape or context. */
TG_API void *tg_host_data(tg_tensor *x);

/* ---- Tape ---- */

TG_API tg_tape *tg_tape_new(tg_ctx *ctx); /* never NULL: one that could not be made refuses every op */
TG_API void tg_tape_free(tg_tape *t);     /* a freed tape is refused, until a later tg_tape_new uses its memory */
/* Ends every handle and node of the tape and keeps the memory for the next step. */
TG_API void tg_tape_reset(tg_tape *t);
TG_API tg_ctx *tg_tape_ctx(tg_tape *t);
/* Both return what was set before. Training (default) or evaluation: dropout reads it. Grad (default) or no-grad:
 * results are still owned by the tape, but nothing is kept for backward. */
TG_API bool tg_tape_set_training(tg_tape *t, bool on);
TG_API bool tg_tape_set_grad_mode(tg_tape *t, bool on);
TG_API bool tg_is_training(const tg_tape *t);
TG_API bool tg_is_grad_on(const tg_tape *t);

/* A leaf of this tape on x's bytes, where x is a result of this or another tape, or of the context. It needs a gradient
 * where x does, or by tg_set_requires_grad; the gradient is this tape's: read it by tg_grad_of until the next reset. */
TG_API tg_tensor *tg_tape_input(tg_tape *t, tg_tensor *x);

/* Discards at close what was made since open, but for what a node saved and for the outputs. Scopes nest; each open has
 * its close, also where either fails. name (copied, may be NULL) is part of the path in call sites and reports. */
TG_API tg_status tg_scope_open(tg_tape *t, const char *name);
TG_API tg_status tg_scope_close(tg_tape *t, tg_tensor *const *outputs, int n);
/* Gives x's bytes back now; who reads them later gets an error that says so. The handle and its shape stay. */
TG_API tg_status tg_discard(tg_tensor *x);

/* A tape-owned tensor, contents undefined, on bytes that stay with the context under (name, dtype) when its last
 * reference goes, and only grow. Asking again waits for the works that still use them; while a lease is open on the
 * same tape, alive and not discarded, it is TG_ERR_STATE, naming both. What another tape holds, as the one outside a
 * recomputation, is let alone: the lease is then an instance of its own. tg_memory_report counts them all. */
TG_API tg_tensor *tg_lease(tg_tape *t, const char *name, tg_dtype dtype, tg_shape shape);

/* ---- Backward ---- */

typedef struct tg_backward_opts {
    size_t size;
    tg_tensor *const *seeds;  /* one cotangent per root, NULL entries: ones (a scalar root) */
    tg_tensor *const *inputs; /* gradients of these leaves only; NULL: of every leaf */
    int n_inputs;
    bool retain; /* keep what backward needs, so that it can run again */
} tg_backward_opts;

#define TG_BACKWARD(...) (&(tg_backward_opts){.size = sizeof(tg_backward_opts), __VA_ARGS__})

/* Adds d root / d leaf into the gradient of every leaf that needs one. Nodes run in the reverse of the recorded
 * order; a leaf's hooks run after its last contribution. Consumes what the nodes saved, unless told to retain: results
 * that an op saved (a hidden state, a loss by tg_sqrt ..) go with it, so read or tg_keep them before, or retain. */
TG_API tg_status tg_backward(tg_tape *t, tg_tensor *root); /* a scalar, seeded 1 */
TG_API tg_status tg_backward_with(tg_tape *t, tg_tensor *const *roots, int n, const tg_backward_opts *opts);

typedef struct tg_grad_opts {
    size_t size;
    tg_tensor *const *seeds;
    bool retain;
    bool create_graph; /* record the gradients' own computation, for second derivatives */
    bool allow_unused; /* an input that no root depends on gives zeros instead of an error */
} tg_grad_opts;

#define TG_GRAD(...) (&(tg_grad_opts){.size = sizeof(tg_grad_opts), __VA_ARGS__})

/* grads[i] = d (sum of roots) / d inputs[i], tensors of the tape in the inputs' dtypes. Accumulates nowhere. Inputs
 * may be leaves or results; one given twice has one gradient, twice. On an error grads[] are inert. */
TG_API tg_status tg_grad(tg_tape *t, tg_tensor *const *roots, int n_roots, tg_tensor *const *inputs, int n_inputs,
                         tg_tensor **grads, const tg_grad_opts *opts);

TG_API bool tg_has_grad(const tg_tensor *x);
TG_API tg_tensor *tg_grad_of(tg_tensor *x); /* the leaf's accumulated gradient, borrowed; an error where none is */
TG_API tg_status tg_zero_grad(tg_tensor *x); /* the next contribution overwrites; nothing is freed */
/* Accumulate into buf (same shape; float32, or x's dtype where wider), a view of a flat buffer say; NULL: the
 * library's own again. buf must outlive its use here. */
TG_API tg_status tg_set_main_grad(tg_tensor *x, tg_tensor *buf);

/* Hooks. fn may read *grad, which is lent, record no-grad ops on t and put their result into *grad (same shape and
 * dtype; copied), and may fail, which ends the backward. on_grad: of any tensor, when its gradient is complete.
 * on_accumulated: of a leaf, after this backward's has been added (*grad is the accumulated one and stays). They run in
 * the order of adding; a hook may add (for the next backward) and remove hooks: what it removes no longer runs. */
typedef tg_status (*tg_hook_fn)(void *user, tg_tape *t, tg_tensor *x, tg_tensor **grad);
TG_API uint64_t tg_on_grad(tg_tensor *x, tg_hook_fn fn, void *user); /* an id; 0 on error */
TG_API uint64_t tg_on_accumulated(tg_tensor *x, tg_hook_fn fn, void *user);
TG_API tg_status tg_remove_hook(tg_tensor *x, uint64_t id);

/* ---- Functions of tensors, recomputation ---- */

/* Records on t; in[] and out[] are the caller's arrays. The same type serves gradcheck.h. */
typedef tg_status (*tg_fn)(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out);

typedef struct tg_recompute_opts {
    size_t size;
    const char *name; /* in errors; copied */
    bool keep_rng;    /* do not restore the random streams in the second run */
    void (*destroy)(void *state); /* ends state when the node ends, also on failure; NULL: the caller keeps it */
    /* in[0], which is the same on all ranks (check mode looks), is kept as this rank's part of its elements and
     * gathered again in backward, where it is a result of the tape that nobody else has saved. Collective. Where there
     * is a grid, one of its axes: else TG_ERR_PLACEMENT. */
    tg_comm *distribute;
} tg_recompute_opts;

#define TG_RECOMPUTE(...) (&(tg_recompute_opts){.size = sizeof(tg_recompute_opts), __VA_ARGS__})

/* Runs fn now without keeping what its ops save, and again in backward (Chen et al., arXiv 1604.06174). Parameters that
 * it uses become inputs of the node, so frozen inputs and shared weights get the right gradients. The second run sees
 * the same random streams; its shapes, in check mode its bits, are held to the first's. state must live until the
 * reset, unless destroy is given. Nests; opts may be NULL. fn needs an input or a parameter; what it writes in place it
 * writes twice. It may hook its own tensors alone (an input's sees this call's share), and not call tg_jvp. */
TG_API tg_status tg_recompute(tg_tape *t, tg_fn fn, void *state, tg_tensor *const *in, int n_in, tg_tensor **out,
                              int n_out, const tg_recompute_opts *opts);

/* Recomputations without output, that replay together, in forward order. Borrowed: it ends with its tape's step, and
 * is refused in the next (TG_ERR_HANDLE). NULL on an error, which the other two take. */
typedef struct tg_replay tg_replay;
TG_API tg_replay *tg_replay_open(tg_tape *t);
/* As tg_recompute; tg_replay_close discards the outputs' bytes, unless an input shares them or they have changed. */
TG_API tg_status tg_replay_run(tg_replay *r, tg_fn fn, void *state, tg_tensor *const *in, int n_in, tg_tensor **out,
                               int n_out, const tg_recompute_opts *opts);
/* To be called after the last forward use of the outputs. They come back, under every view of them, when the gradient
 * of hook, a tensor of the tape, is complete, or earlier when somebody reads them; hook NULL: when read. All that r ran
 * come back at once. */
TG_API tg_status tg_replay_close(tg_replay *r, tg_tensor *hook);

/* ---- Looking at a tape ---- */

typedef enum tg_format { TG_TEXT, TG_JSON, TG_DOT } tg_format;
/* One row a node: op, shapes, saved bytes, FLOPs, times, call site (JSON: by tensors' ids what feeds what); or DOT. */
TG_API size_t tg_tape_dump(tg_tape *t, tg_format format, char *buf, size_t n);
TG_API void tg_tape_set_timing(tg_tape *t, bool on); /* measure nodes from now on */

#ifdef __cplusplus
}
/* In C++17 the structs that C fills by macro are made so: auto c = tg_make<tg_config>(); c.seed = 1; tg_ctx_new(&c). */
template <class S> inline S tg_make() {
    S s;
    tg_struct_init(&s, sizeof s);
    return s;
}
template <class... I> inline tg_shape TG_SHAPE(I... dims) {
    const int64_t d[] = {static_cast<int64_t>(dims)..., 0};
    return tg_shape_make(sizeof...(dims), d);
}
template <class... I> inline tg_dims TG_DIMS(I... dims) {
    const int64_t d[] = {static_cast<int64_t>(dims)..., 0};
    return tg_dims_make(sizeof...(dims), d);
}
#define TG_ALL_DIMS (tg_dims{-1, {}})
#endif
#ifndef TG_NO_OPS /* kernels do without: a new op does not compile them again */
#include <tapegrad/ops.h>
#endif

#endif
