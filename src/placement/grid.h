/* The grid of a context: the axes along which its ranks form groups, and this rank's position on each.
 *
 * A context has a grid from its first tg_parallel on. Without a grid, or if every axis has one rank, the library
 * places and checks nothing. src/parallel/groups.c makes the groups and fills the grid in. The layers between that
 * file and this one only read it. */
#ifndef TG_GRID_H
#define TG_GRID_H

#include "core/context.h"

typedef struct tg_grid {
    /* The axes that placements use: those with more than one rank, except pp, and except the axes of experts if both
     * grids are the same (tg_parallel_opts). Bit a stands for axis a. 0 means that nothing is placed or checked. */
    uint32_t axes;
    int size[TG_MAX_AXES], rank[TG_MAX_AXES]; /* 1 and 0 on an axis that is not used */
    tg_comm *comm[TG_MAX_AXES];               /* this rank's group on each axis; NULL if there is no group */
    const tg_comm *world;                     /* all ranks; NULL if there is no tg_parallel */
    const tg_parallel *owner;                 /* the tg_parallel that filled the grid in; NULL after it was freed */
    bool draws_local;                         /* TG_RNG_MEGATRON: elements draw by their position in the local tensor */
    struct tg_placements *places;             /* list of all interned placements */
    struct tg_rules *rules;                   /* of the op being recorded (placement/rule.h); reused for the next */
    size_t rules_bytes;
} tg_grid;

enum { TG_EXPERT_AXES = 1u << TG_ETP | 1u << TG_EP | 1u << TG_EDP }; /* the axes of the expert grid, without pp */
/* The data-parallel axes. Their ranks need not record the same ops, because they communicate only after backward. */
enum { TG_DATA_PARALLEL_AXES = 1u << TG_DP | 1u << TG_EDP };

extern const tg_grid tg_no_grid; /* the grid of a context that has none: every axis has one rank */

enum { TG_PART_PLACEMENT = 1 };

/* Returns the context's own grid, which may be changed; NULL before the first tg_parallel. */
static inline tg_grid *tg_grid_own(const tg_ctx *ctx) { return tg_part_of(ctx, TG_PART_PLACEMENT); }
/* Returns the context's own grid, and creates it if there is none. NULL after recording the error. */
tg_grid *tg_grid_open(tg_ctx *ctx);
static inline const tg_grid *tg_grid_of(const tg_ctx *ctx) {
    const tg_grid *g = tg_grid_own(ctx);
    return g ? g : &tg_no_grid;
}
/* Returns the field `axes` of the grid. Every op calls this, so for a context without peers it reads only one byte of
 * the runtime. */
static inline uint32_t tg_grid_axes(const tg_ctx *ctx) { return ctx->run.has_peers ? tg_grid_own(ctx)->axes : 0; }
/* Sets the grid to one rank on every axis again. The placements of tensors stay as they are. */
void tg_grid_clear(tg_ctx *ctx);

/* Reports to the other ranks that this rank may have left out a collective (tg_ctx_skip), if the context has an error
 * and the grid has other axes than data-parallel ones. Called after an error that may have kept this rank from running
 * a function of the program, such as a module's forward, in which ranks communicate. Data-parallel ranks communicate
 * only after backward, so they do not wait for a rank that left out a micro-batch. */
void tg_ctx_may_skip(tg_ctx *ctx);

/* Replaces sums [n], float64 on the device, by their sums over ranks: element i over the axes of mask[i].
 * Collective: every rank must give the same masks. */
tg_status tg_grid_sum(tg_ctx *ctx, const uint32_t *mask, tg_tensor *sums, int n);
/* Replaces x [1], float64 on the device, by its sum over all ranks of the grid. Collective over them. */
tg_status tg_grid_sum_world(tg_ctx *ctx, tg_tensor *x);

#endif
