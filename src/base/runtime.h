/* The part of a context that every layer may use: its status, its memory, its threads, and what it runs now.
 *
 * tg_runtime is the first member of tg_ctx, so the files of src/base and src/kernels, which know no more of a context,
 * reach it by tg_runtime_of. Errors are reported here too: tg_fail is the only function that writes a status.
 */
#ifndef TG_RUNTIME_H
#define TG_RUNTIME_H

#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>

#include <tapegrad/device.h>

#include "base/heap.h"

/* Returns from the calling function unless the expression is TG_OK. */
#define TG_TRY(expr)                                \
    do {                                            \
        tg_status try_ = (expr);                    \
        if (__builtin_expect(try_ != TG_OK, 0)) return try_; \
    } while (0)
#define TG_LIKELY(x) __builtin_expect(!!(x), 1)
#define TG_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define TG_LEN(a) ((int)(sizeof(a) / sizeof((a)[0])))

/* Callbacks of a communicator, or of anything else that must follow the state of a context. Each may be NULL. */
typedef struct tg_listener {
    void (*failed)(struct tg_listener *l);  /* the context has recorded an error */
    void (*cleared)(struct tg_listener *l); /* tg_ctx_clear has removed the error */
    void (*skipped)(struct tg_listener *l); /* this rank has missed a call in which ranks meet (tg_ctx_skip) */
    void (*idle)(struct tg_listener *l);    /* the context's thread waits for other ranks */
    struct tg_listener *next;
} tg_listener;

typedef struct tg_runtime {
    tg_status status;
    bool dead; /* the context could not be made: its error stays */
    int cpu_level;
    int device_index; /* of "cuda:2"; -1: none was given */
    int threads;
    const tg_device_ops *ops;
    void *device_state;
    /* The op whose forward or backward runs, and the call site that recorded it. Devices that find errors later quote
     * them. NULL: none runs. */
    const char *running;
    const void *running_site;
    tg_heap *heap;        /* of the device's bytes */
    int64_t memory_limit; /* of live bytes and workspaces together; 0: no limit */
    tg_allocator allocator; /* of host memory */
    int64_t host_allocations;
    struct {
        void *p;
        size_t bytes;
    } workspace[TG_WORKSPACES];
    struct tg_pool *pool; /* NULL: one thread, or the caller's parallel_for */
    tg_parallel_for_fn parallel_for;
    void *parallel_user;
    double deadline;             /* seconds that a wait for other ranks may last */
    _Atomic uint64_t *heartbeat; /* grows with every op that is recorded; other ranks may see it. Never NULL */
    _Atomic uint64_t own_heartbeat;
    tg_listener *listeners;
    uint64_t missed; /* calls in which ranks meet that an error kept this rank from */
    char message[2048];
} tg_runtime;

static inline tg_runtime *tg_runtime_of(const tg_ctx *ctx) { return (tg_runtime *)ctx; }

#endif
