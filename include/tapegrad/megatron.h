/* Functions under Megatron-Core's names: mappings of tensor and sequence parallelism, utilities, attributes of
 * parameters, and layers for inference. Include it in programs that are ported from Megatron-Core.
 *
 * Comments write placements with letters: I, R, P and V are TG_I, TG_R, TG_P and TG_V of placement.h (invariant,
 * replicated, partial and varying), and V0 and V1 are shards of dim 0 and dim 1. The tape owns the results of ops. On
 * error a function that returns a tensor or a module returns an inert one (tapegrad.h). */
#ifndef TAPEGRAD_MEGATRON_H
#define TAPEGRAD_MEGATRON_H

#include <tapegrad/tensor_parallel.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Mappings (mappings.h says what they have in common) ---- */

/* The comments give the conversion, and then what backward does with the gradient. "V last" is a shard of the last dim.
 * The result of tg_copy_to_tp is a view of x. Dumps and errors name the ops as Megatron-Core does, for example
 * CopyToModelParallelRegion. */
TG_API tg_tensor *tg_copy_to_tp(tg_tape *t, tg_tensor *x, tg_comm *c);     /* I -> R; backward all-reduces */
TG_API tg_tensor *tg_reduce_from_tp(tg_tape *t, tg_tensor *x, tg_comm *c); /* P -> I; backward passes it unchanged */
TG_API tg_tensor *tg_scatter_to_tp(tg_tape *t, tg_tensor *x, tg_comm *c);  /* I -> V last; backward all-gathers */
TG_API tg_tensor *tg_gather_from_tp(tg_tape *t, tg_tensor *x, tg_comm *c); /* V last -> I; backward selects own part */
TG_API tg_tensor *tg_scatter_to_sp(tg_tape *t, tg_tensor *x, tg_comm *c);  /* I -> V0; backward all-gathers */
typedef struct tg_sp_opts {
    size_t size;
    bool invariant; /* tg_gather_from_sp only (TG_ERR_ARGUMENT): the result is I instead of R */
    /* The number of rows (slices along dim 0) of each rank: one entry, 0 or more (TG_ERR_ARGUMENT), for each rank of c.
     * The array is read during the call only. NULL means equal parts. A part is x of tg_gather_from_sp, or the result
     * of tg_reduce_scatter_to_sp.
     *
     * Without splits the parts are V0. With splits the result of tg_reduce_scatter_to_sp is V (TG_V), and x of
     * tg_gather_from_sp is V or V0 with layout TG_CONTIGUOUS; TG_STRIDED and TG_ZIGZAG fail with TG_ERR_PLACEMENT.
     * Fails with TG_ERR_SHAPE if the rows of x are not those that splits say. */
    const int64_t *splits;
    const char *buffer; /* name of the scratch buffer for the result (tg_lease); NULL means newly allocated memory */
} tg_sp_opts;
#define TG_SP_DEFAULTS .size = sizeof(tg_sp_opts)
#define TG_SP(...) (&(tg_sp_opts){TG_SP_DEFAULTS, __VA_ARGS__})
/* V0 -> R; backward reduce-scatters. With opts->invariant V0 -> I; backward selects this rank's rows. opts may be
 * NULL. */
TG_API tg_tensor *tg_gather_from_sp(tg_tape *t, tg_tensor *x, tg_comm *c, const tg_sp_opts *opts);
/* P -> V0; backward all-gathers. opts may be NULL. */
TG_API tg_tensor *tg_reduce_scatter_to_sp(tg_tape *t, tg_tensor *x, tg_comm *c, const tg_sp_opts *opts);
/* V last -> R; backward reduce-scatters. */
TG_API tg_tensor *tg_all_gather_last_dim(tg_tape *t, tg_tensor *x, tg_comm *c);
/* P -> V last; backward all-gathers. */
TG_API tg_tensor *tg_reduce_scatter_last_dim(tg_tape *t, tg_tensor *x, tg_comm *c);

/* View x as [rows, columns], where the last dim of x gives the columns, and exchange a shard of rows for a shard of
 * columns, or the reverse. The result has 2 dims. tg_all_to_all_sp2hp converts [s/n, h] V0 to [s, h/n] V1, where n is
 * the number of ranks of c. tg_all_to_all_hp2sp converts [s, h/n] V1 to [s/n, h] V0. */
TG_API tg_tensor *tg_all_to_all_sp2hp(tg_tape *t, tg_tensor *x, tg_comm *c);
TG_API tg_tensor *tg_all_to_all_hp2sp(tg_tape *t, tg_tensor *x, tg_comm *c);

/* ---- Utilities (Megatron-Core's tensor_parallel/utils.py) ---- */

/* Splits x along its last dim into n equal parts, and fills out[n] with them. The parts are views of x, or copies if
 * `contiguous` is true. Fails with TG_ERR_ARGUMENT if n is less than 1 or out is NULL, and with TG_ERR_SHAPE if the
 * size of the last dim is not a multiple of n; out[] is then filled with inert tensors. */
TG_API tg_status tg_split_last_dim(tg_tape *t, tg_tensor *x, int n, bool contiguous, tg_tensor **out);
/* tg_split_1d divides the elements of x, in row-major order, over the n ranks of c, and returns this rank's part as a
 * vector. x must be I. A part has ceil(numel / n) elements, where numel is the number of elements of x. If numel is not
 * a multiple of n, the last parts have fewer elements, or none, and the parts are V instead of V0. tg_gather_1d joins
 * the parts again and returns [numel], which is I. */
TG_API tg_tensor *tg_split_1d(tg_tape *t, tg_tensor *x, tg_comm *c);
TG_API tg_tensor *tg_gather_1d(tg_tape *t, tg_tensor *x, int64_t numel, tg_comm *c);
/* Computes which part of a vocabulary of `vocab` rows belongs to rank `rank` of n ranks. The part is rows *first to
 * *last - 1. first and last may be NULL. Fails with TG_ERR_ARGUMENT if rank is not in [0, n) or vocab is negative, and
 * with TG_ERR_SHAPE if vocab is not a multiple of n. */
TG_API tg_status tg_vocab_range(tg_ctx *ctx, int64_t vocab, int rank, int n, int64_t *first, int64_t *last);

/* Returns whether x is a shard over tp or over etp, which is Megatron-Core's attribute tensor_model_parallel. Sets *dim
 * to the sharded dim (partition_dim) and *stride to the number of chunks per rank (partition_stride). If x is not such
 * a shard, sets *dim to -1 and *stride to 1. dim and stride may be NULL. */
TG_API bool tg_tp_attributes(const tg_tensor *x, int *dim, int *stride);
/* Returns whether the parameter x of this rank is a copy of that of rank 0 of tp (of etp if it is a parameter of an
 * expert). Returns false for shards, and on rank 0 itself. */
TG_API bool tg_is_tp_duplicate(const tg_parallel *p, const tg_tensor *x);

/* ---- Layers of a model that only runs forward ---- */

typedef struct tg_inference_opts {
    size_t size;
    /* std is the standard deviation of the weight that the layer draws, 0 or more; 0.02 by default. norm_eps is the eps
     * of the norm, above 0; 1e-6 by default. std must keep its default if `weight` is given (TG_ERR_ARGUMENT). */
    double std, norm_eps;
    /* Tied parameters with this rank's shapes (TG_ERR_SHAPE), for example those of a trained model. The module owns
     * them, like every parameter (tg_module_add_param). NULL means that the layer makes its own. norm and norm_eps are
     * options of the column layer only (TG_ERR_ARGUMENT). */
    tg_tensor *weight, *norm;
} tg_inference_opts;
#define TG_INFERENCE_DEFAULTS .size = sizeof(tg_inference_opts), .std = 0.02, .norm_eps = 1e-6
#define TG_INFERENCE(...) (&(tg_inference_opts){TG_INFERENCE_DEFAULTS, __VA_ARGS__})

/* Create linear layers for inference. They have no bias, and record nothing for backward. n is the number of tp ranks.
 * - The column layer applies an RMS norm to x [s/n, b, in] V0, gathers the rows of all ranks, and multiplies them by
 *   its weight. The result is [s, b, out/n], sharded on the last dim. Its parameters are "norm" [in], which is R and
 *   starts as 1, and "weight" [out/n, in] V0.
 * - The row layer multiplies x [s, b, in/n], sharded on the last dim, by its weight, and reduce-scatters the product.
 *   The result is [s/n, b, out] V0. Its parameter is "weight" [out, in/n] V1.
 *
 * They fail with TG_ERR_STATE if tp has several ranks but p is not sequence parallel, with TG_ERR_ARGUMENT if in or out
 * is 0 or less, and with TG_ERR_SHAPE if n does not divide out of a column layer or in of a row layer. opts may be
 * NULL. */
TG_API tg_module *tg_nn_inference_column(const tg_parallel *p, int64_t in, int64_t out, const tg_inference_opts *opts);
TG_API tg_module *tg_nn_inference_row(const tg_parallel *p, int64_t in, int64_t out, const tg_inference_opts *opts);
/* Runs the row layer of one block and the column layer of the next block. Computes the output of `row` for x, adds it
 * to *residual, sets *residual to the sum, and returns the output of `column` for the sum. The addition and the norm
 * are one op. On error *residual stays as it is. Fails with TG_ERR_ARGUMENT if residual or *residual is NULL, or if row
 * and column are not an inference row layer and an inference column layer of one context. */
TG_API tg_tensor *tg_inference_next(tg_module *row, tg_module *column, tg_tape *t, tg_tensor *x, tg_tensor **residual);

#ifdef __cplusplus
}
#endif

#endif
