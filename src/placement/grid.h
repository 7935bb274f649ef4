/* The grid of a context: the axes along which its ranks form groups, and this rank's place on each.
 *
 * A context has a grid from its first tg_parallel on; before, and where every axis has one rank, nothing is placed and
 * nothing is checked. src/parallel/groups.c makes the groups and fills the grid in; the layers between only read it.
 */
#ifndef TG_GRID_H
#define TG_GRID_H

#include "core/context.h"

typedef struct tg_grid {
    uint32_t axes; /* bit a: axis a has more than one rank. 0: nothing is placed, nothing is checked */
    int size[TG_MAX_AXES], rank[TG_MAX_AXES]; /* of unused axes: 1 and 0 */
    tg_comm *comm[TG_MAX_AXES];               /* this rank's group on each axis. NULL where there is none */
    const tg_comm *world;                     /* all ranks. NULL: there is no tg_parallel */
    const tg_parallel *owner;                 /* the tg_parallel that filled the grid in. NULL: none is alive */
    bool draws_local;                         /* TG_RNG_MEGATRON: an element draws by its place in the local tensor */
    struct tg_placements *places;                /* all placements that were interned */
    struct tg_rules *rules;                   /* of the op that runs (src/placement/rule.h), kept for the next one */
    size_t rules_bytes;
} tg_grid;

extern const tg_grid tg_no_grid; /* of a context that has none: every axis has one rank */

enum { TG_PART_PLACEMENT = 1 };

/* The context's own grid, which may be changed. NULL: there has been no tg_parallel. */
static inline tg_grid *tg_grid_own(const tg_ctx *ctx) { return tg_part_of(ctx, TG_PART_PLACEMENT); }
/* Makes it if there is none. NULL after recording the error. */
tg_grid *tg_grid_open(tg_ctx *ctx);
static inline const tg_grid *tg_grid_of(const tg_ctx *ctx) {
    const tg_grid *g = tg_grid_own(ctx);
    return g ? g : &tg_no_grid;
}
/* The axes that have more than one rank, as bits. Every op asks, so a context without peers is answered by one byte of
 * its runtime. */
static inline uint32_t tg_grid_axes(const tg_ctx *ctx) { return ctx->run.has_peers ? tg_grid_own(ctx)->axes : 0; }
/* Whether the grid has more than one rank, on any axis or in pipeline stages alone. */
static inline bool tg_grid_has_peers(const tg_ctx *ctx) {
    return tg_grid_axes(ctx) || tg_grid_of(ctx)->size[TG_PP] > 1;
}
/* Every axis has one rank again. Placements of tensors stay as they are. */
void tg_grid_clear(tg_ctx *ctx);

/* After an error that may have kept this rank from a function of the caller's: ranks may have met there, over any axis
 * but the data-parallel ones. Those meet when backward has ended, and a rank that has left out a micro-batch is still
 * in step with them. */
void tg_ctx_may_skip(tg_ctx *ctx);

/* Replaces sums [n] by their sums over ranks, on the device: element i over the axes of mask[i]. Collective: every rank
 * gives the same masks. */
tg_status tg_grid_sum(tg_ctx *ctx, const uint32_t *mask, tg_tensor *sums, int n);
/* Replaces x [1] by its sum over all ranks of the grid, on the device. Collective over them. */
tg_status tg_grid_sum_world(tg_ctx *ctx, tg_tensor *x);

#endif
