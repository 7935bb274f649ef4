/* Groups of ranks: the grid of a parallel program, its random streams, and recovery after a failed rank. Include it in
 * a program with several ranks; mappings.h, tensor_parallel.h and data_parallel.h include it.
 *
 * A rank is a context and the thread that uses it. Ranks are threads of one process (tg_ranks_run), processes of one
 * node (`tapegrad run`), or MPI processes. They communicate through a tg_comm (comm.h). */
#ifndef TAPEGRAD_PARALLEL_H
#define TAPEGRAD_PARALLEL_H

#include <tapegrad/comm.h>
#include <tapegrad/placement.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Groups ---- */

typedef enum tg_rng_mode {
    /* Elements draw by their global coordinates, so that every grid draws what one rank draws. */
    TG_RNG_GLOBAL,
    /* Ranks have streams of their own, seeded by Megatron-Core's formulas (tg_rng_seed_parallel). A tensor that varies
     * over tp draws from "model-parallel-rng". One that varies over etp or ep, and a varying parameter of an expert,
     * draws from "expert-parallel-rng". Both draw like a tensor of their own. Every other tensor draws from the default
     * stream, the same on every rank. While a stream is forked (tg_rng_fork), all draws come from it. */
    TG_RNG_MEGATRON,
} tg_rng_mode;

typedef struct tg_parallel_opts {
    size_t size;
    int tp, cp, pp; /* ranks of each axis; 0: 1. dp is the rest of the world: world % (tp cp pp) must be 0 */
    /* The expert grid. 0: etp is tp, ep is 1. edp is the rest of the world: world % (etp ep pp) must be 0. If ep is 1
     * and the groups of etp are those of tp, both grids are one: etp is another name of tp, and edp of dp and cp. */
    int etp, ep;
    const char *order;      /* axes, the fastest varying one first; NULL: "tp-cp-ep-dp-pp" */
    bool sequence_parallel; /* shard activations on dim 0 between tensor-parallel regions; no effect if tp is 1 */
    tg_rng_mode rng;
    /* Stages of layers on each pp rank. 0: 1. Above 1 fails with TG_ERR_UNSUPPORTED; there is no interleaved
     * schedule. */
    int vp;
} tg_parallel_opts;

#define TG_PARALLEL(...) (&(tg_parallel_opts){.size = sizeof(tg_parallel_opts), __VA_ARGS__})

/* Creates this rank's groups, one for each axis, and makes them the grid of the context. Collective over world,
 * which must outlive the groups. opts NULL: data parallelism only. Returns an inert object on error. A context has
 * at most one tg_parallel at a time (TG_ERR_STATE). Placed tensors refer to it, so free it after them. */
TG_API tg_parallel *tg_parallel_new(tg_comm *world, const tg_parallel_opts *opts);
TG_API void tg_parallel_free(tg_parallel *p);
TG_API tg_ctx *tg_parallel_ctx(const tg_parallel *p);
TG_API tg_comm *tg_parallel_world(const tg_parallel *p);              /* borrowed, like every group below */
TG_API tg_comm *tg_parallel_comm(const tg_parallel *p, tg_axis axis); /* of size 1 on an unused axis */
TG_API int tg_parallel_rank(const tg_parallel *p, tg_axis axis);      /* this rank's number in that group; 0 for NULL */
TG_API int tg_parallel_size(const tg_parallel *p, tg_axis axis);      /* 1 for NULL */
TG_API bool tg_is_sequence_parallel(const tg_parallel *p); /* whether tp > 1 and opts asked for it */
TG_API tg_rng_mode tg_parallel_rng(const tg_parallel *p);
TG_API int tg_parallel_vp(const tg_parallel *p); /* 1 if p is NULL */
/* Seeds the streams of this rank, again if they exist: the default stream and "data-parallel-rng" with `seed`,
 * "model-parallel-rng" with seed + 2718 + tp rank, and "expert-parallel-rng" with seed + 1024 + 100 ep rank + etp
 * rank. With TG_RNG_GLOBAL every rank takes the seeds of rank 0, because draws differ by coordinates there. Fails
 * with TG_ERR_ARGUMENT if seed is 0 or if two streams would have the same seed, and with TG_ERR_STATE while a named
 * one is forked. Megatron-Core's trainer adds 100 pp rank to its seed; this function does not. */
TG_API tg_status tg_rng_seed_parallel(const tg_parallel *p, uint64_t seed);
/* Return the group of dp and cp together, over which gradients are summed, and the group of the ranks of one model
 * replica (tp and pp together). */
TG_API tg_comm *tg_parallel_dp_cp(const tg_parallel *p);
TG_API tg_comm *tg_parallel_model(const tg_parallel *p);
/* Returns the group of the first and the last pipeline stage; NULL on the stages between. It serves word
 * embeddings that both stages hold. Position embeddings are on the first stage only, and need no group. */
TG_API tg_comm *tg_parallel_embedding(const tg_parallel *p);
/* Rebuilds every group in place after a failure (TG_ERR_REMOTE, TG_ERR_TIMEOUT or TG_ERR_ABORTED) and tg_ctx_clear.
 * Collective over the remaining ranks. Fails with TG_ERR_STATE if their number is not a multiple of tp cp pp and of
 * etp ep pp. */
TG_API tg_status tg_parallel_recover(tg_parallel *p);

/* Lists the groups of one or several axes ("tp-dp") of a grid, as ranks of the world, one group after the other
 * (Megatron-Core's RankGenerator). `sizes` are in the order of the axes in `order`. Returns the number of groups and
 * sets *group_size. Returns -1 if an argument is NULL or invalid, or if an axis is not in `order`. out needs room
 * for every rank of the world; out and group_size may be NULL. */
TG_API int tg_rank_groups(const char *order, const int *sizes, const char *axes, int *out, int *group_size);

#ifdef __cplusplus
}
#endif

#endif
