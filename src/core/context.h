/* The context: the runtime, and the state that core keeps for handles, storages, works, random streams and captured
 * steps. The state of the layers above is kept in parts (parts.h). */
#ifndef TG_CONTEXT_H
#define TG_CONTEXT_H

#include "core/parts.h"

#include <tapegrad/capture.h>

#include "core/random/keys.h"
#include "core/tensor/tensor.h"

typedef struct tg_graph tg_graph;

/* A piece of host memory that is kept until the context ends. Handles and storages are cut from it. */
typedef struct tg_host_chunk {
    struct tg_host_chunk *next;
    size_t bytes;
    max_align_t slots[];
} tg_host_chunk;

/* Memory that the ranks of one machine share. The heap of a context on the CPU takes its segments (base/memory/heap.h)
 * from here, and from the device's slot alloc when this memory is full. It is not the arena of a captured step. */
typedef struct tg_arena {
    void *(*take)(struct tg_arena *a, size_t bytes, size_t align); /* returns NULL if it is full */
    bool (*owns)(const struct tg_arena *a, const void *p);
    void (*end)(struct tg_arena *a); /* called when the context has ended */
} tg_arena;

struct tg_ctx {
    tg_runtime run; /* must be first: tg_runtime_of */
    tg_tensor inert; /* returned by functions after an error */
    bool meta;   /* device meta: kernels compute nothing */
    bool host;   /* the host can read and write the device's memory */
    bool check;  /* check mode (tg_config.check) */
    bool ending; /* tg_ctx_free is running */
    tg_dtype dtype; /* dtype of tensors that are created without one */
    /* Number of the caller's functions that are running now. A tape counts those that it runs in its own field. */
    int busy;
    uint64_t serial; /* serial of the newest handle, hook or module; only increases */
    tg_rng rng; /* state of the current stream: the default one, except between forks and their joins */
    struct {
        struct tg_named_rng *first, *current; /* current is NULL for the default stream */
        struct tg_open_fork *fork;            /* the open forks, except those for which memory ran out */
        int n_held, capacity;                 /* length and capacity of `fork` */
        int forks;                            /* number of all open forks */
        tg_rng base;                          /* state of the default stream while another one is current */
        tg_rng outside;                       /* state of the default stream when the outermost open fork began */
        uint64_t seed; /* the seed that the library gave to the default stream, on every rank */
        uint64_t ids;  /* number of ids assigned to streams so far */
        bool by_order; /* TG_RNG_MEGATRON: draws come from the streams by order, whatever keys are open */
    } streams;
    tg_keys keys;           /* the open keys of random draws */
    tg_key_notes key_notes; /* the keys that have drawn in this step */
    const tg_file_ops *files; /* NULL for the system's calls */
    tg_log_fn log;
    void *log_user;
    tg_arena *arena; /* NULL if all memory comes from the device */
    /* Memory of handles and storages, kept until the context ends. */
    tg_host_chunk *chunks;
    /* The queue of free slots of handles. The slot that was freed first is reused first, so that a stale handle is
     * recognized for as long as possible. */
    tg_tensor *free_first, *free_last;
    tg_temp *free_temps;
    tg_ext *free_exts;
    tg_storage *free_storages;
    tg_storage_extra *free_extras;
    tg_work *free_works;
    tg_hook *free_hooks;
    tg_work *readers;           /* works in flight that hold the block that they read */
    tg_work *works;             /* all works that have not ended */
    struct tg_copies *copies;   /* copies that run concurrently with the device's work; NULL if none yet */
    tg_graph *graphs, *capture; /* all captured steps; the one that is being recorded now, or NULL */
    struct tg_buffer *buffers;  /* named scratch buffers */
    tg_tensor *owned;           /* the context-owned handles, linked through their ext */
    _Atomic(tg_later *) later;  /* the requests of other threads (later.h) */
    void (*do_request)(tg_later *e, unsigned times); /* does what an entry of that list asks for */
    tg_part part[TG_PARTS];
    struct tg_trace *trace; /* trace of the memory report; NULL before tg_memory_set_trace */
    tg_storage_extra *pinned; /* the pinned storages */
    _Atomic(struct tg_mapping *) mappings; /* the mapped files (mapping.h) */
    /* Parameters with 2 dims or more are made without bytes (tg_param_fill), except on device meta. */
    bool unfilled;
    atomic_int users; /* number of users of the memory: the program, until tg_ctx_free, and each export (dlpack.h) */
    atomic_bool settling; /* a thread may process `later`: until tg_ctx_free the context's own, then one of its users */
};

/* The result of tg_ctx_new if there is no memory for a context. Nothing writes to it: tg_fail keeps the first error. */
extern const tg_ctx tg_dead_ctx;

static inline tg_tensor *tg_inert(const tg_ctx *ctx) { return (tg_tensor *)&ctx->inert; }
/* Returns the state that a layer keeps in its slot, or NULL if the layer has not set any. */
static inline void *tg_part_of(const tg_ctx *ctx, int slot) { return ctx->part[slot].state; }
/* Does what other threads have asked for. Called where the program may end tensors. */
static inline void tg_later_settle(tg_ctx *ctx) {
    if (TG_UNLIKELY(atomic_load_explicit(&ctx->later, memory_order_relaxed) != NULL)) tg_later_run(ctx);
}
/* Ends the use of the context's memory by one of its users. The last one frees the memory and the context. From any
 * thread. */
void tg_ctx_leave(tg_ctx *ctx);
static inline void tg_part_set(tg_ctx *ctx, int slot, const tg_part_ops *ops, void *state) {
    ctx->part[slot] = (tg_part){ops, state};
}

#endif
