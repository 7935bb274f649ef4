/* The struct of a captured step, which core/capture/capture.c records and core/capture/replay.c runs. */
#ifndef TG_GRAPH_H
#define TG_GRAPH_H

#include "core/capture/capture.h"
#include "core/capture/captured_draws.h"

/* A block of memory that the step uses. It lies outside the graph's arena (base/memory/heap.h), or lies inside it and
 * is still live after the step. */
typedef struct tg_graph_use {
    tg_block *block;
    bool written; /* a replay writes it, so no node may have saved it for a later backward */
} tg_graph_use;

/* What the host knows of a leaf's gradient. */
typedef struct tg_gradient_state {
    bool has, partial, summed, divided, unsure;
    bool awaits; /* the leaf's bytes are part of a storage that awaits tg_flat_gather */
} tg_gradient_state;

/* A leaf whose gradient the step uses. */
typedef struct tg_graph_leaf {
    tg_ref ref;
    bool read;                       /* the recording depends on whether the leaf had a gradient */
    tg_gradient_state before, after; /* before and after the step */
} tg_graph_leaf;

/* A function of the step, and its recording. */
typedef struct tg_graph_part {
    tg_graph_fn fn;
    void *recorded; /* the device's recording; NULL if replays call fn, or if `ended` is set */
    int64_t nodes;
    tg_replay_hooks *hooks; /* callbacks at each replay; NULL means none */
} tg_graph_part;

struct tg_graph {
    tg_ctx *ctx;
    tg_graph *next, *prev; /* in the context's list */
    tg_graph_part part[TG_GRAPH_PARTS];
    int n_parts;
    int current; /* the part that is being recorded */
    void *state; /* for the functions */
    tg_recording recording;
    const char *ended; /* why the graph can no longer be replayed; NULL if it can */
    int arena;
    int running; /* calls of a function by a replay that have not returned */
    int64_t bytes; /* of the arena's segments */
    int64_t steps; /* number of times that the step has run */
    tg_graph_use *uses;
    tg_graph_leaf *leaves;
    int n_uses, uses_capacity, n_leaves, leaves_capacity;
    tg_captured_draws draws;
};

/* Calls a function of the step. An error quotes `who`. */
tg_status tg_graph_call(tg_graph *g, int part, const char *who);
/* Runs a recorded part. Before the first part, sends what the draws depend on to the device. On an error, forgets that
 * the keys of the part have drawn. If `first` is true, the draws continue from the states before the recording. */
tg_status tg_graph_launch(tg_graph *g, int part, uint64_t micro, bool first, const void *site);
/* Sets what the host knows of the gradient of each leaf that still exists to the state before or after the step. */
void tg_graph_set_gradients(const tg_graph *g, bool after);

#endif
