/* The context: the runtime, and what core keeps for handles, storages, works, random streams and captured steps. What
 * the layers above keep in a context are its parts (parts.h). */
#ifndef TG_CONTEXT_H
#define TG_CONTEXT_H

#include "core/parts.h"

#include <tapegrad/capture.h>

#include "core/tensor.h"

typedef struct tg_graph tg_graph;

/* A piece of memory that is kept until the context ends. Slots are cut from it. */
typedef struct tg_host_chunk {
    struct tg_host_chunk *next;
    size_t bytes;
    max_align_t slots[];
} tg_host_chunk;

/* Memory that the ranks of a node share. The heap of a context on the CPU takes its segments from it first. */
typedef struct tg_arena {
    void *(*take)(struct tg_arena *a, size_t bytes, size_t align); /* NULL: it is full */
    bool (*owns)(const struct tg_arena *a, const void *p);
    void (*end)(struct tg_arena *a); /* the context has ended */
} tg_arena;

struct tg_ctx {
    tg_runtime run; /* must be first: tg_runtime_of */
    tg_tensor inert; /* what functions return after an error */
    bool meta;   /* the device computes nothing */
    bool host;   /* the host can read and write the device's memory */
    bool check;  /* check mode (tg_config.check) */
    bool ending; /* tg_ctx_free is at work */
    tg_dtype dtype; /* of tensors that are made without one */
    int busy;        /* functions of the caller that run; those of ops and tapes are counted there */
    uint64_t serial; /* the last that a handle got; only grows */
    tg_rng rng;      /* of the stream that draws: the default stream, except between a fork and its join */
    struct {
        struct tg_named_rng *first, *current; /* current NULL: the default stream draws */
        struct tg_named_rng **below;          /* the stream that drew before each open fork */
        tg_rng base;                          /* the default stream, while another one draws */
        tg_rng outside;                       /* the default stream when the outermost open fork began */
        uint64_t ids;                         /* given to streams so far */
        int forks, room, forks_missed;        /* open; capacity of below; opened under an error */
    } streams;
    const tg_file_ops *files; /* NULL: the system's calls */
    tg_log_fn log;
    void *log_user;
    tg_arena *arena; /* NULL: all memory comes from the device */
    /* Memory of handles and storages, kept until the context ends. */
    tg_host_chunk *chunks;
    tg_tensor *free_first, *free_last; /* a queue, so that a slot is reused late and a stale handle is recognized */
    tg_temp *free_temps;
    tg_ext *free_exts;
    tg_storage *free_storages;
    tg_storage_extra *free_extras;
    tg_work *free_works;
    tg_hook *free_hooks;
    tg_work *readers;           /* works in flight that hold what they read */
    tg_work *works;             /* all works that have not ended */
    struct tg_copies *copies;   /* copies that run next to the device's work; NULL: none so far */
    tg_graph *graphs, *capture; /* all captured steps; the one that is being recorded now, or NULL */
    struct tg_buffer *buffers;  /* named scratch buffers */
    tg_tensor *owned;           /* handles that are alive, linked through their ext */
    tg_part part[TG_PARTS];
    struct tg_trace *trace; /* of the memory report; NULL: tg_memory_trace is off */
};

/* What tg_ctx_new returns if there is no memory for a context. Nothing writes to it: tg_fail keeps a first error. */
extern const tg_ctx tg_dead_ctx;

static inline tg_tensor *tg_inert(const tg_ctx *ctx) { return (tg_tensor *)&ctx->inert; }
/* The state that a layer keeps in its slot; NULL: it has not set any. */
static inline void *tg_part_of(const tg_ctx *ctx, int slot) { return ctx->part[slot].state; }
static inline void tg_part_set(tg_ctx *ctx, int slot, const tg_part_ops *ops, void *state) {
    ctx->part[slot] = (tg_part){ops, state};
}

#endif
