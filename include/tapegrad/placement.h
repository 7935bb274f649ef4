/* Placements: how a tensor is distributed over the ranks of an axis, and how a program declares and reads that. A
 * program that trains on more than one rank includes this header; docs/placements.md explains the rules. */
#ifndef TAPEGRAD_PLACEMENT_H
#define TAPEGRAD_PLACEMENT_H

#include <tapegrad/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Placements ---- */

/* The placements by their names in docs/placements.md: invariant, replicated, partial, varying, and the shards of dim
 * d. */
#ifndef __cplusplus
#define TG_I ((tg_placement){.kind = TG_INVARIANT})
#define TG_R ((tg_placement){.kind = TG_REPLICATED})
#define TG_P ((tg_placement){.kind = TG_PARTIAL})
#define TG_V ((tg_placement){.kind = TG_VARYING, .layout = TG_OPAQUE})
#define TG_SHARD(d) ((tg_placement){.kind = TG_VARYING, .layout = TG_CONTIGUOUS, .dim = (d)})
#define TG_SHARD_STRIDED(d, k) ((tg_placement){.kind = TG_VARYING, .layout = TG_STRIDED, .dim = (d), .chunks = (k)})
#define TG_SHARD_ZIGZAG(d) ((tg_placement){.kind = TG_VARYING, .layout = TG_ZIGZAG, .dim = (d)})
#endif

/* Declares how a leaf is distributed over one axis of p. Call it before the first use of the leaf.
 *
 * The library cannot verify the claim, except in check mode (tg_config.check). There it compares I and R leaves over
 * the axis: on tp and cp at their first use, on dp in tg_grads_finalize. On tp and cp it also compares
 * - a seed, and what a gradient hook returned, where the gradient is I or R. A hook must replace the gradient on all
 *   ranks of the axis or on none;
 * - the results of ops that record a node, where inputs and results are I or R. If only the results differ, ranks gave
 *   the op different numbers. Ranks of an axis must record the same such ops; without grad each may record its own.
 *   It leaves out collective ops and mappings, ops that write in place, ops that run in backward or in a recorded
 *   derivative, captured steps, tensors that are not contiguous, and grids with axes of experts.
 * tg_parallel_new compares the seeds of the default streams, on dp too. A communicator of a plan compares nothing.
 *
 * Without a declaration, parameters and tensors that the library filled are I. Bytes that may differ between ranks are
 * V on tp, cp and dp, and I on the axes of the expert grid:
 * - those of the caller (tg_from_host, tg_wrap, tg_write) and of a file (tg_safetensors_load, tg_safetensors_read);
 * - those that tg_comm_scatter, tg_comm_reduce_scatter, tg_comm_all_to_all and tg_comm_recv deliver;
 * - random numbers (tg_randn, tg_uniform) from a stream whose seed the caller has chosen on each rank: one that
 *   tg_rng_add made, the default stream after tg_rng_set with another seed, and the streams that tg_rng_seed_parallel
 *   seeds by rank. Numbers from the default stream are I, so tg_config must have one seed on all ranks
 *   (check mode compares it).
 * Dropout with a stream that tg_rng_seed_parallel seeded by rank gives V on the axes of the seed, keeps a shard, and
 * is refused for P, and for I with gradient. A stream of the caller's is taken as equal on all ranks there.
 * Bytes written through tg_host_data are not noticed: declare such a leaf.
 *
 * pp has no placements. A parameter must not be P, nor V without a layout. If several axes shard one dim, the axis
 * placed first is the major one, and the others may divide its chunks. On an axis of one rank any placement is accepted
 * and ignored. Placing a leaf again on an axis has no effect if the placement is the same, and fails with
 * TG_ERR_STATE if it is another; etp and tp may be the same axis (tg_parallel_opts).
 */
TG_API tg_status tg_place(const tg_parallel *p, tg_tensor *leaf, tg_axis axis, tg_placement placement);
/* Return the placement of x on an axis, and the shape of the global tensor. They work on any tensor: the result of an
 * op has the placement that the placement rule gave. I if x was never placed, or is dead. */
TG_API tg_placement tg_placement_of(const tg_tensor *x, tg_axis axis);
TG_API tg_shape tg_global_shape(const tg_tensor *x);
TG_API size_t tg_placement_text(const tg_tensor *x, char *buf, size_t n); /* writes "dp R, tp V0:s3"; "" if all are I */
/* Returns x with another placement on an axis, where the caller knows better than the rule. Forward and backward are
 * the identity; only the local sizes of x are checked (TG_ERR_SHAPE). The op's name appears in dumps and errors. */
TG_API tg_tensor *tg_assume_placement(tg_tape *t, tg_tensor *x, const tg_parallel *p, tg_axis axis, tg_placement to);

/* One entry of the last arguments of tg_param_new_placed: an axis and the placement on it. */
typedef struct tg_place_at {
    tg_axis axis;
    tg_placement placement;
} tg_place_at;

/* Gives the last two arguments of tg_param_new_placed: TG_PLACES({TG_TP, TG_SHARD(0)}, {TG_DP, TG_R}). */
#define TG_PLACES(...)                  \
    (const tg_place_at[]){__VA_ARGS__}, \
        (int)(sizeof((const tg_place_at[]){__VA_ARGS__}) / sizeof(tg_place_at))

/* Creates this rank's part of a parameter, as tg_param_new does, with the given global shape and the n placements at[];
 * the local shape follows from them. Values are drawn by global coordinates: the shards of any tp, joined, equal the
 * parameter of one rank bit for bit. With TG_RNG_MEGATRON each shard is drawn from the stream of its rank, or from the
 * expert stream if at[] names an axis of the expert grid. If several axes shard one dim, the first of them in at[] is
 * the major one. Fails with TG_ERR_SHAPE if a sharded dim is not a multiple of the axis's ranks. */
TG_API tg_tensor *tg_param_new_placed(const tg_parallel *p, const char *name, tg_dtype dtype, tg_shape global,
                                      double std, const tg_place_at *at, int n);

/* Reshapes like tg_reshape, and states which dim of the result x's shard becomes. Needed where the sizes leave that
 * open: with one head per rank, [s, b, h/n] sharded along dim 2 becomes [s, b, 1, h/n] sharded along dim 2, not 3. */
TG_API tg_tensor *tg_reshape_shard(tg_tape *t, tg_tensor *x, tg_shape shape, int dim);

#ifdef __cplusplus
}
#endif

#endif
