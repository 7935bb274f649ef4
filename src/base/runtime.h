/* The part of a context that every layer may use: its status, its memory, its threads, and the op that is running.
 *
 * tg_runtime is the first member of tg_ctx. The files of src/base and src/kernels know nothing else of a context, and
 * get it with tg_runtime_of. Errors are recorded here too: only tg_fail and its variant tg_failv set an error. */
#ifndef TG_RUNTIME_H
#define TG_RUNTIME_H

#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>

#include <tapegrad/device.h>

#include "base/memory/heap.h"
#include "base/private_api.h"
#include "base/recording.h"

/* Returns the status from the calling function unless it is TG_OK. */
#define TG_TRY(expr)                                \
    do {                                            \
        tg_status try_ = (expr);                    \
        if (__builtin_expect(try_ != TG_OK, 0)) return try_; \
    } while (0)
#define TG_LIKELY(x) __builtin_expect(!!(x), 1)
#define TG_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define TG_LEN(a) ((int)(sizeof(a) / sizeof((a)[0])))

/* Callbacks of a communicator, or of any other object that must follow the state of a context. Each may be NULL. */
typedef struct tg_listener {
    void (*failed)(struct tg_listener *l);  /* the context has just recorded an error */
    void (*cleared)(struct tg_listener *l); /* tg_ctx_clear has removed the error */
    void (*skipped)(struct tg_listener *l); /* an error made this rank skip a collective call (tg_ctx_skip) */
    void (*idle)(struct tg_listener *l);    /* the context's thread is waiting for other ranks */
    struct tg_listener *next;
} tg_listener;

typedef struct tg_runtime {
    tg_status status;
    bool dead; /* creation of the context failed: its error is permanent */
    int cpu_level;    /* a tg_cpu_level_t: the instruction set of the CPU kernels */
    int device_index; /* number of the GPU; -1 for "cuda", until the device is open */
    int threads;
    const tg_device_ops *ops;
    void *device_state; /* what ops->open returned */
    /* The op whose forward or backward is running, and the call site that recorded it. Devices quote them in errors
     * that they detect asynchronously. NULL: no op is running. */
    const char *running;
    const void *running_site;
    /* What records other ops now: the outermost op without a forward of its own, or embedding_bag; NULL: none. */
    const char *composer;
    tg_recording *recording;  /* the step that is being recorded (tg_graph_new); NULL: none */
    tg_heap *heap;            /* the heap of the device's memory */
    int64_t memory_limit;     /* limit on live bytes plus workspaces; 0: no limit */
    tg_allocator allocator;   /* the allocator of host memory */
    int64_t host_allocations; /* number of allocations so far, of segments of the heap too, for tg_memory_query */
    struct {
        void *p;
        size_t bytes;
    } workspace[TG_WORKSPACES];
    struct tg_pool *pool; /* NULL: one thread, or the caller's parallel_for */
    tg_parallel_for_fn parallel_for;
    void *parallel_user;
    double deadline;             /* seconds that a wait for other ranks may take */
    _Atomic uint64_t *heartbeat; /* incremented by every recorded op and collective; peers may read it. Never NULL */
    _Atomic uint64_t own_heartbeat;
    tg_listener *listeners;
    bool has_peers;  /* pp or another axis of the grid has several ranks, so other ranks may wait for this one */
    struct Dwfl *debug_lines; /* libdw's debug information of the program (debug_lines.c); NULL: not opened */
    /* How many times libraries had been loaded or unloaded when debug_lines last listed what is loaded. */
    unsigned long long debug_changes;
    uint64_t missed; /* number of collective calls that this rank skipped because of an error */
    char message[2048];
} tg_runtime;

static inline tg_runtime *tg_runtime_of(const tg_ctx *ctx) { return (tg_runtime *)ctx; }
static inline bool tg_ok(const tg_ctx *ctx) { return ctx && tg_runtime_of(ctx)->status == TG_OK; }

/* ---- Errors (status.c) ---- */

/* Records an error unless the context already has one: the first error is kept. Returns s, or the status that was
 * already set. format NULL: the message is the general text of s. Safe on NULL and on the constant context that
 * tg_ctx_new returns when it is out of memory. */
TG_PRIVATE_API tg_status tg_fail(tg_ctx *ctx, tg_status s, const char *format, ...) TG_PRINTF(3, 4);
tg_status tg_failv(tg_ctx *ctx, tg_status s, const char *format, va_list ap);
/* Appends text, such as where the error happened, to the message of the recorded error. Does nothing if there is no
 * error, or if the creation of the context failed. Returns the status of the context. */
tg_status tg_fail_note(tg_ctx *ctx, const char *format, ...) TG_PRINTF(2, 3);
/* A number with its noun, for messages. */
typedef struct tg_counted {
    char text[64];
} tg_counted;
/* Returns "1 dim" or "3 dims": for other numbers than 1 the noun gets an "s", and after "ch" an "es". */
tg_counted tg_count(int64_t n, const char *noun);
/* Checks the size field at the start of a caller's struct: it must have been set and must not exceed `known`, the
 * struct's size in this version of the library. The error message begins with `who`. */
tg_status tg_size_check(tg_ctx *ctx, size_t size, size_t known, const char *who);
/* Checks the size field of a caller's table of functions, which must equal `known`. */
tg_status tg_table_check(tg_ctx *ctx, size_t size, size_t known, const char *who);

/* ---- Listeners (status.c) ---- */

/* Calls the functions of l from now on, until tg_ctx_unlisten. The caller owns l. */
TG_PRIVATE_API void tg_ctx_listen(tg_ctx *ctx, tg_listener *l);
TG_PRIVATE_API void tg_ctx_unlisten(tg_ctx *ctx, tg_listener *l);
/* Reports that an error made this rank skip a collective call, so that its peers do not wait for it. Does nothing if
 * ctx is NULL or its creation failed. */
void tg_ctx_skip(tg_ctx *ctx);
/* Calls the idle function of each listener. To be called again and again while this thread waits for other ranks. */
static inline void tg_ctx_idle(tg_ctx *ctx) {
    for (tg_listener *l = tg_runtime_of(ctx)->listeners; l; l = l->next)
        if (l->idle) l->idle(l);
}

/* ---- Call sites (call_site.c) ---- */

/* Returns whether a return address lies in the file that this library is linked into. In a program that is linked
 * statically, that is true for the program's own code too. */
bool tg_site_is_own(const void *site);
/* Describes a return address or a named site as "file.c:12". Describes an address without debug information as
 * tg_describe_symbol does. Returns the length of the whole text, even if it did not fit into the n bytes of buf. The
 * context keeps the debug information open for its next messages. ctx may be NULL; then no debug information is
 * read. */
TG_PRIVATE_API size_t tg_describe_site(tg_ctx *ctx, const void *site, char *buf, size_t n);
/* Describes a return address as "symbol+0x12 (program)", without debug information. This is cheaper than
 * tg_describe_site. */
size_t tg_describe_symbol(const void *site, char *buf, size_t n);

#endif
