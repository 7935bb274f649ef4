/* Placements: how a tensor is distributed over the ranks of an axis, and how a program declares and reads its
 * placements. Include this header in a program that trains on more than one rank. docs/placements.md explains the
 * rules. */
#ifndef TAPEGRAD_PLACEMENT_H
#define TAPEGRAD_PLACEMENT_H

#include <tapegrad/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Placements ---- */

/* The placements, with the letters by which comments and docs/placements.md call them:
 * - TG_I, invariant (I): all ranks hold the same values, and their gradients are the same too.
 * - TG_R, replicated (R): all ranks hold the same values. The sum of the ranks' gradients is the gradient.
 * - TG_P, partial (P): the sum of the ranks' tensors is the value.
 * - TG_V, varying and opaque (V): each rank has a tensor of its own.
 * - TG_SHARD(d), TG_SHARD_STRIDED(d, k) and TG_SHARD_ZIGZAG(d), varying and a shard (V0, V1 ..): each rank has a part
 *   of dim d. tg_layout says which part. k is the number of chunks per rank. */
#ifndef __cplusplus
#define TG_I ((tg_placement){.kind = TG_INVARIANT})
#define TG_R ((tg_placement){.kind = TG_REPLICATED})
#define TG_P ((tg_placement){.kind = TG_PARTIAL})
#define TG_V ((tg_placement){.kind = TG_VARYING, .layout = TG_OPAQUE})
#define TG_SHARD(d) ((tg_placement){.kind = TG_VARYING, .layout = TG_CONTIGUOUS, .dim = (d)})
#define TG_SHARD_STRIDED(d, k) ((tg_placement){.kind = TG_VARYING, .layout = TG_STRIDED, .dim = (d), .chunks = (k)})
#define TG_SHARD_ZIGZAG(d) ((tg_placement){.kind = TG_VARYING, .layout = TG_ZIGZAG, .dim = (d)})
#endif

/* Declares the placement of a leaf on one axis of p. Call it before the first use of the leaf (TG_ERR_STATE). A
 * negative dim of a shard counts from the end. Placing a leaf again on an axis does nothing if the placement is the
 * same, and fails with TG_ERR_STATE if it is another one.
 *
 * If several axes shard one dim, the axis that is placed first is the major one: it divides the dim, and each later
 * axis divides the parts that result. On an axis of one rank a placement is checked, but has no effect. If both grids
 * are the same (tg_parallel_opts), etp is another name of tp, and edp of dp and cp together.
 *
 * The library cannot verify a declaration, except in check mode (see below). Fails with
 * - TG_ERR_ARGUMENT if leaf is NULL, if p is not the tg_parallel of its context, if the axis has no placements (TG_PP,
 *   TG_AXIS_USER), or if the placement is none of those above;
 * - TG_ERR_STATE if the tensor is not a leaf;
 * - TG_ERR_SHAPE if leaf lacks the dim of the shard, or if the size of that dim does not allow the shard;
 * - TG_ERR_PLACEMENT if a parameter would be P or opaque;
 * - TG_ERR_UNSUPPORTED for a zigzag shard over edp if edp is dp and cp together. */
TG_API tg_status tg_place(const tg_parallel *p, tg_tensor *leaf, tg_axis axis, tg_placement placement);

/* A leaf that is not declared has these placements:
 * - Parameters and buffers of modules, whatever is written to them, and tensors that the library has filled, are I.
 * - Bytes that may differ between ranks are V on tp, cp and dp, and I on the axes of the expert grid. Such bytes come
 *   from the caller (for example by tg_from_host, tg_input, tg_wrap or tg_write), from a file (tg_safetensors_load,
 *   tg_safetensors_read), or from tg_comm_scatter, tg_comm_reduce_scatter, tg_comm_all_to_all or tg_comm_recv. Bytes
 *   that a program writes through tg_host_data count as the caller's after tg_touch (handles.h).
 * - Random numbers (tg_randn, tg_uniform) from the default stream are I. tg_config must therefore have the same seed on
 *   all ranks. Random numbers are V on tp, cp and dp if they come from a stream of tg_rng_add, from the default stream
 *   after tg_rng_set has changed its seed or set a stream number other than 0, or from a stream that
 *   tg_rng_seed_parallel seeded by rank.
 *
 * Dropout is no leaf, but draws too. If it draws from a stream that tg_rng_seed_parallel seeded by rank, its result is
 * V on the axes over which the seed differs, or stays a shard where x is one. x must not be P there, and not I if x
 * needs a gradient (TG_ERR_PLACEMENT). Unlike tg_randn, dropout assumes that a stream of tg_rng_add is equal on all
 * ranks. */

/* Check mode (tg_config.check) compares I and R tensors over the ranks, and fails with TG_ERR_PLACEMENT if their bytes
 * differ:
 * - leaves, at their first use; over dp and edp only parameters, in tg_grads_finalize;
 * - the seeds of the default streams, in tg_parallel_new;
 * - on tp and cp, the seeds that a backward is given, and the gradient by which a hook replaces another. A hook must
 *   replace the gradient on all ranks of the axis or on none;
 * - on tp and cp, the results of ops that record a node. If the inputs are equal but the results differ, the ranks
 *   passed different numbers to the op, or drew from streams with different seeds. The comparison is a collective, so
 *   all ranks of an axis must record the same such ops. In no-grad mode each rank may record ops of its own.
 *
 * Check mode does not compare
 * - results of collective ops and mappings, of ops that write in place, and of ops that run in backward, in the second
 *   run of a recomputation or in a recorded derivative;
 * - results of ops on a grid whose expert grid differs from the dense grid;
 * - tensors that are not contiguous, and those of device "meta";
 * - anything in captured steps, or over a communicator of tg_comm_plan_new. */

/* Returns the placement of x on an axis. x may be any tensor; the placements of an op's result follow from those of its
 * inputs. Returns I if axis has one rank or no placements, or if x is not alive. */
TG_API tg_placement tg_placement_of(const tg_tensor *x, tg_axis axis);
/* Returns the shape of the global tensor that the ranks' x form: that of x with each dim multiplied by the number of
 * ranks that shard it. Returns a shape of 0 dims if x is not alive. */
TG_API tg_shape tg_global_shape(const tg_tensor *x);
/* Writes the placements of x other than I, for example "tp V0:s3, dp R" (:s3 means 3 chunks per rank, :z zigzag); "" if
 * all are I or x is not alive. Works like snprintf (tg_memory_report). */
TG_API size_t tg_placement_text(const tg_tensor *x, char *buf, size_t n);
/* Returns a view of x with the placement `to` on an axis, in place of the placement that the library has derived. Use
 * it where the caller knows better than the library. Forward and backward are the identity. Fails with TG_ERR_SHAPE if
 * the local sizes of x do not allow the placement, and with the errors that tg_place gives for p, axis and `to`. The op
 * appears in dumps and errors as assume_placement. */
TG_API tg_tensor *tg_assume_placement(tg_tape *t, tg_tensor *x, const tg_parallel *p, tg_axis axis, tg_placement to);

/* An axis and the placement on it, for tg_param_new_placed. */
typedef struct tg_place_at {
    tg_axis axis;
    tg_placement placement;
} tg_place_at;

/* Expands to the last two arguments (at and n) of tg_param_new_placed. Example:
 * TG_PLACES({TG_TP, TG_SHARD(0)}, {TG_DP, TG_R}). */
#define TG_PLACES(...)                  \
    (const tg_place_at[]){__VA_ARGS__}, \
        (int)(sizeof((const tg_place_at[]){__VA_ARGS__}) / sizeof(tg_place_at))

/* Creates this rank's part of a parameter, as tg_param_new creates a whole one. `global` is the shape of the whole
 * parameter. The local shape follows from `global` and the n placements at[] (0 to TG_MAX_AXES). On axes that at[] does
 * not name the parameter is I. If several axes shard one dim, the first of them in at[] is the major one. On error
 * returns an inert tensor. Fails with TG_ERR_ARGUMENT if at[] names an axis twice, with TG_ERR_SHAPE if a sharded dim
 * is not a multiple of the number of ranks of its axis, or a rank's part of it not a multiple of its chunks, and with
 * the errors of tg_place and tg_param_new.
 *
 * With TG_RNG_GLOBAL the values depend on global coordinates: the joined shards of any grid equal the parameter that
 * one rank would create, bit for bit. With TG_RNG_MEGATRON a shard over tp, etp or ep is drawn from the stream of its
 * rank: from "expert-parallel-rng" if at[] names an axis of the expert grid, else from "model-parallel-rng"
 * (tg_rng_mode). A shard over cp, dp or edp alone is drawn from the default stream, so all ranks draw equal numbers.
 * While a stream is forked (tg_rng_fork), all shards are drawn from that stream. */
TG_API tg_tensor *tg_param_new_placed(const tg_parallel *p, const char *name, tg_dtype dtype, tg_shape global,
                                      double std, const tg_place_at *at, int n);

/* Reshapes like tg_reshape, and states that the sharded dim of x becomes dim `dim` of the result. Needed only where the
 * sizes do not decide this. A sharded dim that does not go into dim `dim` moves as in tg_reshape. A negative `dim`
 * counts from the end. Fails with TG_ERR_PLACEMENT if the sizes of the result cut the parts that the ranks hold.
 * Example: with one head per rank, [s, b, h/n] sharded along dim 2 becomes [s, b, 1, h/n]; dim 2 says that the heads
 * are sharded, and dim 3 would say that the elements of a head are. */
TG_API tg_tensor *tg_reshape_shard(tg_tape *t, tg_tensor *x, tg_shape shape, int dim);

#ifdef __cplusplus
}
#endif

#endif
