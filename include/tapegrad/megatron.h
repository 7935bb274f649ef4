/* Functions under Megatron-Core's names, for programs that are ported from it: mappings of tensor and sequence
 * parallelism, utilities, attributes of parameters, and layers for inference.
 *
 * I, R, P and V are TG_I, TG_R, TG_P and TG_V of placement.h; V0 is a shard of dim 0. Results belong to the tape; on
 * error they are inert. */
#ifndef TAPEGRAD_MEGATRON_H
#define TAPEGRAD_MEGATRON_H

#include <tapegrad/tensor_parallel.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Mappings (mappings.h says what they have in common) ---- */

/* The ops have Megatron-Core's names, such as CopyToModelParallelRegion. */
TG_API tg_tensor *tg_copy_to_tp(tg_tape *t, tg_tensor *x, tg_comm *c);      /* I -> R            all-reduce */
TG_API tg_tensor *tg_reduce_from_tp(tg_tape *t, tg_tensor *x, tg_comm *c);  /* P -> I            identity */
TG_API tg_tensor *tg_scatter_to_tp(tg_tape *t, tg_tensor *x, tg_comm *c);   /* I -> V last dim   all-gather */
TG_API tg_tensor *tg_gather_from_tp(tg_tape *t, tg_tensor *x, tg_comm *c);  /* V last dim -> I   own part */
TG_API tg_tensor *tg_scatter_to_sp(tg_tape *t, tg_tensor *x, tg_comm *c);   /* I -> V0           all-gather */
typedef struct tg_sp_opts {
    size_t size;
    /* tg_gather_from_sp: true converts V0 -> I, and backward keeps this rank's part. false converts V0 -> R, and
     * backward reduce-scatters. tg_reduce_scatter_to_sp refuses it. */
    bool invariant;
    /* Rows of each rank, as many numbers as c has ranks; NULL: equal parts. The side with these parts is opaque. x may
     * also be a contiguous shard, but not a strided or zigzag one (TG_ERR_PLACEMENT). */
    const int64_t *splits;
    const char *buffer;    /* named buffer for the result (tg_lease); NULL: memory of its own */
} tg_sp_opts;
#define TG_SP(...) (&(tg_sp_opts){.size = sizeof(tg_sp_opts), __VA_ARGS__})
TG_API tg_tensor *tg_gather_from_sp(tg_tape *t, tg_tensor *x, tg_comm *c,
                                    const tg_sp_opts *opts); /* opts may be NULL */
TG_API tg_tensor *tg_reduce_scatter_to_sp(tg_tape *t, tg_tensor *x, tg_comm *c, const tg_sp_opts *opts); /* P -> V0 */
TG_API tg_tensor *tg_all_gather_last_dim(tg_tape *t, tg_tensor *x, tg_comm *c);     /* V last -> R   reduce-scatter */
TG_API tg_tensor *tg_reduce_scatter_last_dim(tg_tape *t, tg_tensor *x, tg_comm *c); /* P -> V last   all-gather */

/* Exchange shards of rows for shards of columns: [n/t, H] V0 -> [n, H/t] V1, and back; t is the size of c. x is viewed
 * as [rows, last dim]. */
TG_API tg_tensor *tg_all_to_all_sp2hp(tg_tape *t, tg_tensor *x, tg_comm *c);
TG_API tg_tensor *tg_all_to_all_hp2sp(tg_tape *t, tg_tensor *x, tg_comm *c);

/* ---- Utilities (Megatron-Core's tensor_parallel/utils.py) ---- */

/* Splits x's last dim in n equal parts and fills out[n] with views, or with contiguous copies. Fails with
 * TG_ERR_SHAPE if the size is not a multiple of n. */
TG_API tg_status tg_split_last_dim(tg_tape *t, tg_tensor *x, int n, bool contiguous, tg_tensor **out);
/* tg_split_1d cuts x, which is the same on every rank, and returns this rank's part of its elements in row-major order:
 * [ceil(numel / n)] on n ranks, less on the last ones if numel is not a multiple of n. tg_gather_1d joins the parts
 * again: [numel], where numel is the number of elements of the whole. */
TG_API tg_tensor *tg_split_1d(tg_tape *t, tg_tensor *x, tg_comm *c);
TG_API tg_tensor *tg_gather_1d(tg_tape *t, tg_tensor *x, int64_t numel, tg_comm *c);
/* Sets [*first, *last) to the rows of a vocabulary that rank `rank` of n ranks has. first and last may be NULL. Fails
 * with TG_ERR_SHAPE if vocab is not a multiple of n. */
TG_API tg_status tg_vocab_range(tg_ctx *ctx, int64_t vocab, int rank, int n, int64_t *first, int64_t *last);

/* Returns Megatron-Core's attribute tensor_model_parallel of x, and sets *dim to partition_dim and *stride to
 * partition_stride, as x's placement gives them. They are false, -1 and 1 if x is not a shard over tp (etp). dim and
 * stride may be NULL. */
TG_API bool tg_tp_attributes(const tg_tensor *x, int *dim, int *stride);
/* Returns whether this rank's x is a copy of that of rank 0 of tp (etp for an expert): false for shards, and on rank
 * 0. */
TG_API bool tg_is_tp_duplicate(const tg_parallel *p, const tg_tensor *x);

/* ---- Layers of a model that only runs forward ---- */

typedef struct tg_inference_opts {
    size_t size;
    double std, norm_eps;     /* standard deviation of the layer's own weight, 0: 0.02; eps of the norm, 0: 1e-6 */
    /* Tied parameters, for example a trained model's. NULL: the layer makes its own. norm and norm_eps are for the
     * column layer only, and std must be 0 with a weight (TG_ERR_ARGUMENT). */
    tg_tensor *weight, *norm;
} tg_inference_opts;
#define TG_INFERENCE(...) (&(tg_inference_opts){.size = sizeof(tg_inference_opts), __VA_ARGS__})

/* Create linear layers for inference, without bias; they keep nothing for backward. Column: x [s/n, b, in] V0 -> RMS
 * norm ("norm" [in]), gather, product -> [s, b, out/n]. Row: product, reduce-scatter -> [s/n, b, out] V0. Fail with
 * TG_ERR_STATE if tp has several ranks but no sequence parallelism. opts may be NULL. Inert on error. */
TG_API tg_module *tg_nn_inference_column(const tg_parallel *p, int64_t in, int64_t out, const tg_inference_opts *opts);
TG_API tg_module *tg_nn_inference_row(const tg_parallel *p, int64_t in, int64_t out, const tg_inference_opts *opts);
/* Goes from the row layer of one block to the column layer of the next: adds row's output to *residual, sets
 * *residual to the sum, and returns column's output for it. The addition and the norm are one op. */
TG_API tg_tensor *tg_inference_next(tg_module *row, tg_module *column, tg_tape *t, tg_tensor *x, tg_tensor **residual);

#ifdef __cplusplus
}
#endif

#endif
