/* Ranks, groups, placements, and the ops and layers that meet in them.
 *
 * A rank is a context and the thread that uses it; ranks are threads of one process (tg_ranks_run), processes of one
 * node (`tapegrad run`), or MPI's. comm.h has what they meet through.
 */
#ifndef TAPEGRAD_PARALLEL_H
#define TAPEGRAD_PARALLEL_H

#include <tapegrad/comm.h>
#include <tapegrad/placement.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Groups ---- */

typedef enum tg_rng_mode {
    TG_RNG_GLOBAL,   /* an element draws by its global coordinates: every composition draws what one rank draws */
    TG_RNG_MEGATRON, /* streams seeded per rank by Megatron-Core's formulas: what varies over tp (or over etp or ep)
                        draws, as a tensor of its own, from "model-parallel-rng" ("expert-parallel-rng") unless the
                        caller has forked a stream; all else from the default one, alike on every rank */
} tg_rng_mode;

typedef struct tg_parallel_opts {
    size_t size;
    int tp, cp, pp;    /* 0: 1. dp is what is left of the world: world % (tp cp pp) must be 0 */
    int etp, ep; /* of the expert grid; 0: tp, and 1. world % (etp ep pp) must be 0. Where ep is 1 and etp's groups
                    are tp's, the two grids are one: etp is tp there, and edp is dp and cp */
    const char *order; /* the leftmost axis varies fastest; NULL: "tp-cp-ep-dp-pp" */
    bool sequence_parallel; /* activations between tensor-parallel regions are sharded on dim 0 */
    tg_rng_mode rng;
    /* Stages of layers on each pp rank. 0: 1. Above 1: TG_ERR_UNSUPPORTED, until a schedule interleaves them. */
    int vp;
} tg_parallel_opts;

#define TG_PARALLEL(...) (&(tg_parallel_opts){.size = sizeof(tg_parallel_opts), __VA_ARGS__})

/* This rank's groups, by axis; collective over world, which must outlive it. A context has one at a time. NULL opts:
 * data parallel only. Inert on error. Placed tensors refer to it: free it after them, before world. */
TG_API tg_parallel *tg_parallel_new(tg_comm *world, const tg_parallel_opts *opts);
TG_API void tg_parallel_free(tg_parallel *p);
TG_API tg_ctx *tg_parallel_ctx(const tg_parallel *p);
TG_API tg_comm *tg_parallel_world(const tg_parallel *p);
TG_API tg_comm *tg_parallel_comm(const tg_parallel *p, tg_axis axis); /* borrowed; of size 1 where the axis is unused */
TG_API int tg_parallel_rank(const tg_parallel *p, tg_axis axis);
TG_API int tg_parallel_size(const tg_parallel *p, tg_axis axis);
TG_API bool tg_is_sequence_parallel(const tg_parallel *p); /* sequence parallelism is on: tp > 1 and asked for */
TG_API tg_rng_mode tg_parallel_rng(const tg_parallel *p);
TG_API int tg_parallel_vp(const tg_parallel *p); /* 1 for NULL */
/* (Re)seeds the default stream and "data-parallel-rng" with S = seed, "model-parallel-rng" and "expert-parallel-rng".
 * TG_RNG_MEGATRON: with S + 2718 + tp rank and S + 1024 + 100 ep rank + etp rank (Megatron-Core's trainer takes
 * 100 pp rank more than its seed for S). TG_RNG_GLOBAL: with rank 0's, as ranks then draw apart by coordinates.
 * TG_ERR_ARGUMENT for seed 0 and where two streams would have one seed. */
TG_API tg_status tg_rng_seed_parallel(const tg_parallel *p, uint64_t seed);
/* dp x cp together, over which gradients are summed; and the ranks of one model replica, tp x pp. */
TG_API tg_comm *tg_parallel_dp_cp(const tg_parallel *p);
TG_API tg_comm *tg_parallel_model(const tg_parallel *p);
/* First and last pipeline stage (the one where there is only one); NULL on the ranks between. Position embeddings are
 * the first stage's alone, and need no group. */
TG_API tg_comm *tg_parallel_embedding(const tg_parallel *p);
/* After TG_ERR_REMOTE, TG_ERR_TIMEOUT or TG_ERR_ABORTED, and tg_ctx_clear: collective over the ranks still there;
 * rebuilds every group in place. TG_ERR_STATE where those do not fill the grid. */
TG_API tg_status tg_parallel_recover(tg_parallel *p);

/* RankGenerator (Megatron-Core): the groups of one axis or several ("tp-dp") in a grid, as ranks of the world, group
 * after group. sizes are in the order of `order`; returns the number of groups, -1 for an axis that is not there. out
 * may be NULL; it has room for the whole world. */
TG_API int tg_rank_groups(const char *order, const int *sizes, const char *axes, int *out, int *group_size);

#ifdef __cplusplus
}
#endif

#endif
