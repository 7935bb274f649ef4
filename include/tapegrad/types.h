/* Types that every part of Tapegrad shares: status, dtypes, shapes, placements, and the names of handles. */
#ifndef TAPEGRAD_TYPES_H
#define TAPEGRAD_TYPES_H

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
#define TG_SITE __builtin_return_address(0) /* the call site that errors quote (tg_apply) */
#else
#define TG_API
#define TG_PRINTF(f, a)
#define TG_SITE ((void *)0)
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
typedef struct tg_buckets tg_buckets;
typedef struct tg_optim tg_optim;
typedef struct tg_device_ops tg_device_ops;
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

TG_API tg_status tg_ctx_status(const tg_ctx *ctx);
/* The first error: what was wrong, what was expected, where. "" when there is none. Valid until the next clear. */
TG_API const char *tg_ctx_message(const tg_ctx *ctx);
TG_API void tg_ctx_clear(tg_ctx *ctx);
/* Records an error of the caller's own (a callback, a data source) unless one is there already; returns s. */
TG_API tg_status tg_ctx_fail(tg_ctx *ctx, tg_status s, const char *format, ...) TG_PRINTF(3, 4);

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

/* How a collective combines the elements of the ranks (comm.h). */
typedef enum tg_reduce_op { TG_REDUCE_SUM, TG_REDUCE_MAX, TG_REDUCE_MIN, TG_REDUCE_AVG } tg_reduce_op;

typedef enum tg_format { TG_TEXT, TG_JSON, TG_DOT } tg_format;

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

/* A hook of a tensor (backward.h). */
typedef tg_status (*tg_hook_fn)(void *user, tg_tape *t, tg_tensor *x, tg_tensor **grad);

/* Philox4x32-10 (Salmon et al., SC 2011): draws are a pure function of these words. Saving and restoring a stream
 * is a copy of this struct. */
typedef struct tg_rng {
    uint64_t seed;
    uint64_t stream; /* less than 2^63 */
    uint64_t counter;
} tg_rng;

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

#endif
