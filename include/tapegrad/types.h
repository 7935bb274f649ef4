/* Types that every part of Tapegrad shares: status codes, dtypes, shapes, placements and the opaque object types. Every
 * header that needs these types includes this one, so a program seldom includes it directly. */
#ifndef TAPEGRAD_TYPES_H
#define TAPEGRAD_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TG_VERSION_MAJOR 0
#define TG_VERSION_MINOR 3
#define TG_VERSION_PATCH 0
#define TG_VERSION "0.3.0"
#if defined(__GNUC__)
#define TG_API __attribute__((visibility("default")))
#define TG_PRINTF(f, a) __attribute__((format(printf, f, a)))
#define TG_SITE __builtin_return_address(0) /* the caller's address, which error messages show; see tg_apply */
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
typedef struct tg_flat tg_flat;
typedef struct tg_optim tg_optim;
typedef struct tg_shards tg_shards;
typedef struct tg_device_ops tg_device_ops;
typedef struct tg_file_ops tg_file_ops;

/* ---- Status ---- */

/* The list of status codes, as X(name, text). The enum below and tg_status_name are generated from it. */
#define TG_STATUS_LIST(X)                                                                      \
    X(OK, "ok")                                                                                \
    X(ERR_ARGUMENT, "invalid argument")      /* NULL, out of range, not finite, overlapping */ \
    X(ERR_SHAPE, "shape mismatch")                                                             \
    X(ERR_DTYPE, "dtype mismatch")                                                             \
    X(ERR_DEVICE, "device mismatch")                                                           \
    X(ERR_PLACEMENT, "placement mismatch")                                                     \
    X(ERR_HANDLE, "dead or foreign handle")  /* freed, reset, garbage, of another context */   \
    X(ERR_STATE, "wrong state")              /* a valid call at the wrong time */              \
    X(ERR_VERSION, "saved tensor was overwritten")                                             \
    X(ERR_DISCARDED, "bytes of the tensor were discarded")                                     \
    X(ERR_DATA, "invalid data")              /* wrong values: an id out of range, a NaN */     \
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

/* Returns the name of a code, such as "TG_ERR_SHAPE"; "?" if the code is unknown. Never returns NULL. */
TG_API const char *tg_status_name(tg_status s);
TG_API const char *tg_version(void); /* Returns the TG_VERSION that the library was built with. */

/* Returns the status of the first error since the last tg_ctx_clear, or TG_OK if there is no error. Returns
 * TG_ERR_ARGUMENT if ctx is NULL. */
TG_API tg_status tg_ctx_status(const tg_ctx *ctx);
/* Returns the message of the first error: what was wrong, what was expected, and where. Returns "" if there is no
 * error, and "context is NULL" if ctx is NULL. The text is valid until the next tg_ctx_clear or tg_ctx_free. */
TG_API const char *tg_ctx_message(const tg_ctx *ctx);
/* Clears the error, so that calls on ctx work again. Does nothing if ctx is NULL or dead (tg_ctx_new). */
TG_API void tg_ctx_clear(tg_ctx *ctx);
/* Records an error of the caller's own, for example from a callback or a data source. format and what follows make the
 * message as in printf; format NULL means the general text of s. If the context already has an error, keeps that error
 * and ignores the new one. If s is TG_OK or an unknown code, records TG_ERR_INTERNAL. Returns the status of the context
 * afterwards, or TG_ERR_ARGUMENT if ctx is NULL. */
TG_API tg_status tg_ctx_fail(tg_ctx *ctx, tg_status s, const char *format, ...) TG_PRINTF(3, 4);

/* ---- Dtypes and shapes ---- */

/* The list of dtypes, as X(NAME, name, bits, kind). kind is f (float), i (integer, signed), u (integer, unsigned), b
 * (boolean) or q (quantized). Ops convert dtypes of kind q with 8 bits (tg_cast) and move their elements, but do not
 * compute with them (ops.h). F8E4M3 has no infinity (PyTorch's float8_e4m3fn), F8E5M2 has one (float8_e5m2), and F8E8M0
 * holds powers of two (float8_e8m0fnu). No tensor has a dtype of 4 bits, because its elements have no addresses. */
#define TG_DTYPE_LIST(X)         \
    X(F32, f32, 32, 'f')         \
    X(F64, f64, 64, 'f')         \
    X(BF16, bf16, 16, 'f')       \
    X(F16, f16, 16, 'f')         \
    X(I64, i64, 64, 'i')         \
    X(I32, i32, 32, 'i')         \
    X(U8, u8, 8, 'u')            \
    X(I8, i8, 8, 'i')            \
    X(I16, i16, 16, 'i')         \
    X(U16, u16, 16, 'u')         \
    X(U32, u32, 32, 'u')         \
    X(U64, u64, 64, 'u')         \
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

/* Returns a name such as "f32"; "default" for TG_DTYPE_DEFAULT, and "?" if the dtype is unknown. */
TG_API const char *tg_dtype_name(tg_dtype d);
/* Returns the bits per element; 0 for TG_DTYPE_DEFAULT and for an unknown dtype. */
TG_API int tg_dtype_bits(tg_dtype d);

/* The scales of a quantized tensor, whose dtype is of kind q. No function takes a tg_quant yet. There is one scale for
 * each block of the tensor. A block has block[i] elements along dim i; block[i] 0 means the whole dim. */
typedef struct tg_quant {
    size_t size;
    tg_dtype scale_dtype; /* dtype of the scales */
    int64_t block[8];
    tg_tensor *scale;     /* the scales */
} tg_quant;

enum { TG_MAX_DIMS = 8 }; /* the greatest number of dims of a tensor */

/* A shape, passed by value. ndim 0 is the shape of a scalar, which has one element. If ndim is negative or above
 * TG_MAX_DIMS, functions that take the shape fail with TG_ERR_SHAPE. */
typedef struct tg_shape {
    int64_t ndim;
    int64_t dim[TG_MAX_DIMS];
} tg_shape;

/* A list of dims, such as those to reduce over. Negative dims count from the end. n 0 means no dims, and n < 0 all
 * dims. */
typedef struct tg_dims {
    int n;
    int dim[TG_MAX_DIMS];
} tg_dims;

/* Make a shape, or a list of dims, from an array of n numbers. If n > TG_MAX_DIMS, or if dims is NULL and n > 0, the
 * result has TG_MAX_DIMS + 1 dims, and functions that take it fail. */
TG_API tg_shape tg_shape_make(size_t n, const int64_t *dims);
TG_API tg_dims tg_dims_make(size_t n, const int64_t *dims);

#ifndef __cplusplus
#define TG_LIST_N_(...) (sizeof((int64_t[]){0, __VA_ARGS__}) / sizeof(int64_t) - 1)
#define TG_LIST_(...) ((const int64_t[]){0, __VA_ARGS__} + 1)
#define TG_SHAPE(...) tg_shape_make(TG_LIST_N_(__VA_ARGS__), TG_LIST_(__VA_ARGS__)) /* TG_SHAPE() is a scalar */
#define TG_DIMS(...) tg_dims_make(TG_LIST_N_(__VA_ARGS__), TG_LIST_(__VA_ARGS__))
#define TG_ALL_DIMS ((tg_dims){.n = -1})
#endif

/* Structs of options begin with the field `size`. So do tables of functions, except tg_allocator, and structs of
 * results that have an initializer (TG_MEMORY_INFO). Each struct of options has a macro, for example TG_CONFIG for
 * tg_config. The macro makes a struct, which lives until the end of the enclosing block, and gives its address. The
 * macro sets the size and all defaults, and the caller's designators replace the defaults that they name:
 * TG_ADAMW(.lr = 0.1). C++ programs use tg_make instead, and bindings tg_struct_fill (fields.h). NULL in place of
 * a struct of options means one with all defaults, unless the comment of the function requires the struct.
 *
 * The value of a field is used as it is: 0 means zero, and a call refuses it, mostly with TG_ERR_ARGUMENT, if the field
 * cannot be zero. A dtype 0 is TG_DTYPE_DEFAULT. If a field is an array, a designator replaces all of its elements, and
 * those that it does not list are 0. Two names, TG_AUTO and TG_NONE, stand for a choice that is no ordinary value of a
 * field. The comment of a field says if the field takes one of them, and what the name means there. If a call does not
 * use a field, the field must keep its default (TG_ERR_ARGUMENT), unless its comment says otherwise. Only the argument
 * of a function that is NULL, such as log_user, may have any value.
 *
 * If the size of a struct of options was never set, or is larger than that of the library's struct, the call that gets
 * the struct fails with TG_ERR_ARGUMENT. If the caller was compiled with an earlier version, whose struct is smaller,
 * the fields that it lacks get their defaults. Tables such as tg_op and tg_device_ops must have exactly the library's
 * size; only tg_module_ops and tg_pack_ops may be those of an earlier version. */
#define TG_AUTO (-1) /* the library chooses the value */
#define TG_NONE (-1) /* no limit, or nothing of the kind */

/* A designator that replaces a default is what these macros are for, but compilers warn of it: gcc with -Wextra, clang
 * always. The warning is turned off for the files that include this header, unless they define
 * TG_KEEP_OVERRIDE_WARNINGS. */
#if !defined(__cplusplus) && !defined(TG_KEEP_OVERRIDE_WARNINGS)
#if defined(__clang__)
#pragma clang diagnostic ignored "-Winitializer-overrides"
#elif defined(__GNUC__)
#pragma GCC diagnostic ignored "-Woverride-init"
#endif
#endif

/* Sets every byte of a struct to 0, and then sets its first field to size. It is for structs that a call fills
 * (tg_memory_info) and for tables of functions; for options see tg_struct_fill. Call it as
 * tg_struct_init(&s, sizeof s). Does nothing if s is NULL, or if size is too small for the field. */
TG_API void tg_struct_init(void *s, size_t size);

/* ---- Placements: how a tensor is distributed over the ranks of an axis (docs/placements.md) ---- */

/* The axes of a grid of ranks (parallel.h):
 * - TG_TP, TG_CP, TG_DP and TG_PP are tensor, context, data and pipeline parallelism.
 * - TG_ETP, TG_EP and TG_EDP are tensor, expert and data parallelism of the layers of experts.
 * - TG_AXIS_USER stands for a group of the caller's own (tg_comm_split). No tensor is placed on it or on TG_PP. */
typedef enum tg_axis { TG_TP, TG_CP, TG_DP, TG_PP, TG_ETP, TG_EP, TG_EDP, TG_AXIS_USER, TG_MAX_AXES } tg_axis;

typedef enum tg_placement_kind {
    TG_INVARIANT,  /* the tensor is the same on every rank, and so is its gradient */
    TG_REPLICATED, /* the tensor is the same on every rank; its gradient is PARTIAL */
    /* Each rank has a part of the tensor (a shard along a dim), or a tensor of its own (opaque). Its gradient is
     * VARYING too. */
    TG_VARYING,
    TG_PARTIAL,    /* the value of the tensor is the sum of the ranks' tensors; its gradient is REPLICATED */
} tg_placement_kind;

/* Says which part of a VARYING tensor lies on rank r of the n ranks of an axis. The sharded dim is divided into equal
 * chunks, which are numbered from 0. k is the field `chunks` of tg_placement. */
typedef enum tg_layout {
    TG_OPAQUE,     /* no part: each rank has a tensor of its own */
    TG_CONTIGUOUS, /* of n chunks, chunk r */
    TG_STRIDED,    /* of k * n chunks, chunks r, n + r, 2 * n + r and so on */
    TG_ZIGZAG      /* of 2 * n chunks, chunks r and 2 * n - 1 - r */
} tg_layout;

typedef struct tg_placement {
    uint8_t kind;   /* tg_placement_kind */
    uint8_t layout; /* tg_layout; used only if kind is TG_VARYING */
    int8_t dim;     /* the sharded dim; not used if layout is TG_OPAQUE */
    uint8_t order;  /* set by the library: the place of this axis among those that shard the dim; 0 is the major axis */
    int32_t chunks; /* number of chunks per rank; used only if layout is TG_STRIDED */
} tg_placement;

/* ---- Callbacks and small types ---- */

/* The caller's allocator, which provides the host memory of a context (tg_config.allocator). Only tokenizers, JSON and
 * a few short-lived buffers use malloc. alloc returns NULL on failure, and need not clear the memory. align is a power
 * of two, at most 2 MiB. free gets the same number of bytes as alloc. Several threads may call both at the same time:
 * those that use a context with this allocator, and the library's threads that read data (data.h) or write checkpoints
 * (checkpoint.h). Both must work until the context has ended. If tensors that were exported by DLPack outlive
 * tg_ctx_free, their release calls free, on any thread. */
typedef struct tg_allocator {
    void *(*alloc)(void *user, size_t bytes, size_t align);
    void (*free)(void *user, void *p, size_t bytes);
    void *user;
} tg_allocator;

/* The body of a parallel loop: processes the indices from begin to end - 1. */
typedef void (*tg_range_fn)(void *arg, int64_t begin, int64_t end);
/* A parallel loop of the caller's own (tg_config.parallel_for). n is 2 or more. The function calls body(arg, begin,
 * end) for disjoint ranges that together cover [0, n), and returns when all calls have returned. The calls may run on
 * any threads. Kernels split their work by shapes and strides alone, so results do not depend on the threads. */
typedef void (*tg_parallel_for_fn)(void *user, int64_t n, tg_range_fn body, void *arg);

typedef enum tg_log_level { TG_LOG_INFO, TG_LOG_WARNING } tg_log_level;
/* Receives a diagnostic (tg_config.log), on the thread that uses the context. message is valid during the call. */
typedef void (*tg_log_fn)(void *user, tg_log_level level, const char *message);

/* How a collective combines the elements of the ranks (comm.h). TG_REDUCE_AVG is the mean. */
typedef enum tg_reduce_op { TG_REDUCE_SUM, TG_REDUCE_MAX, TG_REDUCE_MIN, TG_REDUCE_AVG } tg_reduce_op;

/* The format of a report. TG_DOT is the graph language of Graphviz, and TG_SVG a picture. A function takes the formats
 * that its comment names. */
typedef enum tg_format { TG_TEXT, TG_JSON, TG_DOT, TG_SVG } tg_format;

/* What a piece of memory is used for. */
typedef enum tg_category {
    TG_MEM_PARAMETER,
    TG_MEM_GRADIENT,
    TG_MEM_OPTIMIZER,
    TG_MEM_SAVED,     /* activations that a node saved for backward */
    TG_MEM_TEMPORARY, /* everything else */
    TG_MEM_BUFFER,    /* named scratch buffers, leased or not (tg_lease); symmetric memory (tg_symmetric_new) */
    TG_MEM_GRAPH,     /* memory that captured steps hold (capture.h) */
    TG_MEM_WORKSPACE, /* work memory of kernels on "cuda" and like devices, while a kernel uses it */
    TG_MEM_CATEGORIES,
    TG_MEM_MAX_CATEGORIES = 12 /* size of arrays by category, so that new categories do not change tg_memory_info */
} tg_category;

/* Memory statistics of a context (tg_memory_query), in bytes. */
typedef struct tg_memory_info {
    size_t size;
    /* Bytes in use, as rounded up by the library's allocator: live is the number now, and peak is the largest number
     * since the context was created, or since tg_memory_reset_peak. */
    int64_t live, peak;
    int64_t reserved;  /* bytes obtained from the system or the device, in use or not, without symmetric memory */
    int64_t workspace; /* work memory on the host that kernels keep (tg_workspace); not in live or reserved */
    int64_t by_category[TG_MEM_MAX_CATEGORIES];      /* the bytes of live in each tg_category */
    int64_t peak_by_category[TG_MEM_MAX_CATEGORIES]; /* the same for peak */
    int64_t host_allocations; /* number of host allocations so far; a steady training step adds none */
} tg_memory_info;

#define TG_MEMORY_INFO() ((tg_memory_info){.size = sizeof(tg_memory_info)})

/* A gradient hook, which tg_on_grad (backward.h) explains. */
typedef tg_status (*tg_hook_fn)(void *user, tg_tape *t, tg_tensor *x, tg_tensor **grad);

/* The state of a random stream (Philox4x32-10; Salmon et al., SC 2011). Each draw depends only on these three numbers,
 * so copying this struct saves or restores a stream. */
typedef struct tg_rng {
    uint64_t seed;
    uint64_t stream; /* less than 2^62; draws by key (tg_key_open) have streams from 2^62 to 2^63 - 1 */
    uint64_t counter;
} tg_rng;

#ifdef __cplusplus
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
