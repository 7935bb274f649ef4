/* Ranks, groups, placements, and the ops and layers that meet in them.
 *
 * A rank is a context and the thread that uses it; ranks are threads of one process (tg_ranks_run), processes of one
 * node (`tapegrad run`), or MPI's. comm.h has what they meet through.
 */
#ifndef TAPEGRAD_PARALLEL_H
#define TAPEGRAD_PARALLEL_H

#include <tapegrad/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Ranks ---- */

/* The body of one rank: ctx and world are its own, both freed after it returns. */
typedef tg_status (*tg_rank_fn)(void *arg, tg_ctx *ctx, tg_comm *world);

typedef struct tg_ranks_opts {
    size_t size;
    const tg_config *config; /* of every rank's context; NULL: defaults. threads 0: the cores shared out evenly; device
                                "cuda": rank r gets GPU r */
    char *message;           /* receives the error of the rank that failed first, of those alike the lowest: ... */
    size_t message_size;     /* ... "rank 2: ...", cut to so many bytes */
} tg_ranks_opts;

#define TG_RANKS(...) (&(tg_ranks_opts){.size = sizeof(tg_ranks_opts), __VA_ARGS__})

/* Runs fn on n threads (1 to 1024), a rank each, and joins them. Returns the status of the rank that failed first, not
 * the TG_ERR_REMOTE of its peers. opts may be NULL. */
TG_API tg_status tg_ranks_run(int n, tg_rank_fn fn, void *arg, const tg_ranks_opts *opts);

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
    int vp; /* 0: 1. Stages of layers on each pp rank, for schedules that interleave them: above 1 needs pp above 1 */
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

/* ---- Placements ---- */

/* By value; the names of docs/placements.md. */
#ifndef __cplusplus
#define TG_I ((tg_placement){.kind = TG_INVARIANT})
#define TG_R ((tg_placement){.kind = TG_REPLICATED})
#define TG_P ((tg_placement){.kind = TG_PARTIAL})
#define TG_V ((tg_placement){.kind = TG_VARYING, .layout = TG_OPAQUE})
#define TG_SHARD(d) ((tg_placement){.kind = TG_VARYING, .layout = TG_CONTIGUOUS, .dim = (d)})
#define TG_SHARD_STRIDED(d, k) ((tg_placement){.kind = TG_VARYING, .layout = TG_STRIDED, .dim = (d), .chunks = (k)})
#define TG_SHARD_ZIGZAG(d) ((tg_placement){.kind = TG_VARYING, .layout = TG_ZIGZAG, .dim = (d)})
#endif

/* Declares how a leaf lies on one axis of p, before its first use: a claim that the library cannot see (check mode
 * compares I and R leaves over the axis: on tp and cp at their first use, on dp by tg_grads_finalize). Undeclared:
 * parameters and what the library made are I, the caller's bytes (tg_from_host, tg_wrap, tg_write) V on tp, cp and dp,
 * and I on the expert grid's axes; pp places nothing. Parameters are never P, nor V without a layout. Where several
 * axes shard one dim, the axis placed first is the major one, whose chunks the others may cut. An axis of one rank
 * takes any placement and keeps none. A leaf is placed once on an axis (TG_ERR_STATE), which etp and tp may share
 * (tg_parallel_opts). */
TG_API tg_status tg_place(const tg_parallel *p, tg_tensor *leaf, tg_axis axis, tg_placement placement);
/* What can be read off any tensor; an op's result has what the one rule gave. I where x was never placed. */
TG_API tg_placement tg_placement_of(const tg_tensor *x, tg_axis axis);
TG_API tg_shape tg_global_shape(const tg_tensor *x);
TG_API size_t tg_placement_text(const tg_tensor *x, char *buf, size_t n); /* "dp R, tp V0:s3"; "" when all are I */
/* The escape hatch: x with another placement on an axis, identity both ways, nothing checked. The name says it in
 * dumps and errors. */
TG_API tg_tensor *tg_assume_placement(tg_tape *t, tg_tensor *x, const tg_parallel *p, tg_axis axis, tg_placement to);

/* tg_reshape that says which dim of the result x's shard becomes, where the sizes leave that open: one head a rank,
 * [s, b, h/n] V2 to [s, b, 1, h/n] V2, not V3. */
TG_API tg_tensor *tg_reshape_shard(tg_tape *t, tg_tensor *x, tg_shape shape, int dim);

/* A parameter of this rank: of the global shape, placed; its local shape follows. Drawn by global coordinates, so
 * that shards of any tp put together are the parameter of one rank, bit for bit; with TG_RNG_MEGATRON each shard from
 * its rank's stream, an expert's one where at[] names an axis of that grid. Where several axes shard one dim the order
 * in at[] is the order of the axes, major first. */
typedef struct tg_place_at {
    tg_axis axis;
    tg_placement placement;
} tg_place_at;

/* TG_PLACES({TG_TP, TG_SHARD(0)}, {TG_DP, TG_R}): the last two arguments in one. */
#define TG_PLACES(...)                  \
    (const tg_place_at[]){__VA_ARGS__}, \
        (int)(sizeof((const tg_place_at[]){__VA_ARGS__}) / sizeof(tg_place_at))

TG_API tg_tensor *tg_param_placed(const tg_parallel *p, const char *name, tg_dtype dtype, tg_shape global, double std,
                                  const tg_place_at *at, int n);

typedef struct tg_finalize_opts {
    size_t size;
    /* Scalar, this rank's own count over its micro-batches: gradients are divided by the sum over dp and cp, at least
     * 1. TG_ERR_PLACEMENT where a declaration or an op has placed it as the same on ranks of dp or cp (I, R), which a
     * count that was summed already is, and where it is P on another axis. NULL: not divided. */
    tg_tensor *tokens;
} tg_finalize_opts;

#define TG_FINALIZE(...) (&(tg_finalize_opts){.size = sizeof(tg_finalize_opts), __VA_ARGS__})

/* Once after the last backward of a step: waits for bucket works, sums what is still PARTIAL over the axes where its
 * parameter is R, coalesced by axis set. Before it, norm, clip, step and reading a PARTIAL gradient as a number are
 * TG_ERR_STATE; so is a second call before the gradients are zeroed. Collective over those axes; a rank that had no
 * micro-batch calls it too (its tokens are 0), and gets what the others have summed. A parameter given twice is
 * TG_ERR_ARGUMENT; one that is in buckets and not given TG_ERR_STATE, unless it is frozen. opts may be NULL. */
TG_API tg_status tg_grads_finalize(const tg_parallel *p, tg_tensor *const *params, int n, const tg_finalize_opts *opts);

/* Data-parallel buckets: the main gradients of params in flat buffers, by dtype, in reverse order, cut where a bucket
 * has `elements` (0: max(40e6, 1e6 dp); TG_NONE: one). A bucket's sum over dp starts when its last gradient of a
 * backward is ready; tg_grads_finalize waits for it. Of several tg_buckets the newest's start first, each object's
 * when all of the newer ones have: every rank makes them in the same order, and none within a step (TG_ERR_STATE once
 * its sums have begun). */
typedef struct tg_buckets tg_buckets;
TG_API tg_buckets *tg_buckets_new(const tg_parallel *p, tg_tensor *const *params, int n, int64_t elements);
TG_API void tg_buckets_free(tg_buckets *b);
/* Returns what was set before. Off (on is the default): backward only accumulates, for all but the last micro-batch. */
TG_API bool tg_buckets_set_reduce(tg_buckets *b, bool on);

#ifdef __cplusplus
}
#endif

#include <tapegrad/mappings.h>

#endif
