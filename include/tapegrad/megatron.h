/* Megatron-Core's names: mappings, utilities, attributes, inference layers. */
#ifndef TAPEGRAD_MEGATRON_H
#define TAPEGRAD_MEGATRON_H

#include <tapegrad/tensor_parallel.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Mappings ---- */

/* Under the op names CopyToModelParallelRegion ..: */
TG_API tg_tensor *tg_copy_to_tp(tg_tape *t, tg_tensor *x, tg_comm *c);      /* I -> R            all-reduce */
TG_API tg_tensor *tg_reduce_from_tp(tg_tape *t, tg_tensor *x, tg_comm *c);  /* P -> I            identity */
TG_API tg_tensor *tg_scatter_to_tp(tg_tape *t, tg_tensor *x, tg_comm *c);   /* I -> V last dim   all-gather */
TG_API tg_tensor *tg_gather_from_tp(tg_tape *t, tg_tensor *x, tg_comm *c);  /* V last dim -> I   own part */
TG_API tg_tensor *tg_scatter_to_sp(tg_tape *t, tg_tensor *x, tg_comm *c);   /* I -> V0           all-gather */
typedef struct tg_sp_opts {
    size_t size;
    bool invariant;        /* tg_gather_from_sp: V0 -> I, and backward keeps this rank's part. false: V0 -> R, and
                              backward reduce-scatters. tg_reduce_scatter_to_sp refuses it. */
    const int64_t *splits; /* rows of each rank, c's size of them; NULL: equal. The result, or x, is then opaque; x may
                              be a contiguous shard, too, but no strided or zigzag one (TG_ERR_PLACEMENT) */
    const char *buffer;    /* the result lies in the named buffer (tg_lease); NULL: its own memory */
} tg_sp_opts;
#define TG_SP(...) (&(tg_sp_opts){.size = sizeof(tg_sp_opts), __VA_ARGS__})
TG_API tg_tensor *tg_gather_from_sp(tg_tape *t, tg_tensor *x, tg_comm *c,
                                    const tg_sp_opts *opts); /* opts may be NULL */
TG_API tg_tensor *tg_reduce_scatter_to_sp(tg_tape *t, tg_tensor *x, tg_comm *c, const tg_sp_opts *opts); /* P -> V0 */
TG_API tg_tensor *tg_all_gather_last_dim(tg_tape *t, tg_tensor *x, tg_comm *c);     /* V last -> R   reduce-scatter */
TG_API tg_tensor *tg_reduce_scatter_last_dim(tg_tape *t, tg_tensor *x, tg_comm *c); /* P -> V last   all-gather */

/* [n/t, H] V0 -> [n, H/t] V1 and back; x is viewed as [rows, last dim]. */
TG_API tg_tensor *tg_all_to_all_sp2hp(tg_tape *t, tg_tensor *x, tg_comm *c);
TG_API tg_tensor *tg_all_to_all_hp2sp(tg_tape *t, tg_tensor *x, tg_comm *c);

/* ---- Utilities (Megatron-Core's tensor_parallel.utils) ---- */

/* x's last dim in n equal parts, views (or contiguous copies): out[] has room for n. TG_ERR_SHAPE where n does not
 * divide it. */
TG_API tg_status tg_split_last_dim(tg_tape *t, tg_tensor *x, int n, bool contiguous, tg_tensor **out);
/* This rank's n-th of x's elements in order, 1-D; the last part may be shorter. And back: all of them, 1-D. */
TG_API tg_tensor *tg_split_1d(tg_tape *t, tg_tensor *x, tg_comm *c);
TG_API tg_tensor *tg_gather_1d(tg_tape *t, tg_tensor *x, int64_t numel, tg_comm *c);
/* Rows [first, last) of rank r's part of a vocabulary. TG_ERR_SHAPE where n does not divide it. */
TG_API tg_status tg_vocab_range(tg_ctx *ctx, int64_t vocab, int rank, int n, int64_t *first, int64_t *last);

/* Megatron-Core's tensor_model_parallel, partition_dim and partition_stride, read off x's placement: false, -1 and 1
 * where x is no shard over tp (etp). dim and stride may be NULL. */
TG_API bool tg_tp_attributes(const tg_tensor *x, int *dim, int *stride);
/* Whether x on this rank repeats what tp (etp) rank 0 has: false for shards. */
TG_API bool tg_is_tp_duplicate(const tg_parallel *p, const tg_tensor *x);

/* ---- Layers of a model that only runs forward ---- */

typedef struct tg_inference_opts {
    size_t size;
    double std, norm_eps;     /* 0: 0.02, 1e-6; norm_eps: of the column layer; std: only without weight */
    tg_tensor *weight, *norm; /* tied, such as a trained model's; NULL: the layer's own. norm: of the column layer */
} tg_inference_opts;
#define TG_INFERENCE(...) (&(tg_inference_opts){.size = sizeof(tg_inference_opts), __VA_ARGS__})

/* Without bias, and without keeping anything for backward. Column: x [s/n, b, in] V0, RMS norm ("norm" [in]), gather,
 * product -> [s, b, out/n]. Row: product, reduce-scatter -> [s/n, b, out] V0. TG_ERR_STATE where tp has several ranks
 * and no sequence parallelism. opts may be NULL. */
TG_API tg_module *tg_nn_inference_column(const tg_parallel *p, int64_t in, int64_t out, const tg_inference_opts *opts);
TG_API tg_module *tg_nn_inference_row(const tg_parallel *p, int64_t in, int64_t out, const tg_inference_opts *opts);
/* From one block to the next: row's output is added to *residual, which becomes the sum, and the result is column's of
 * it; addition and norm are one op. */
TG_API tg_tensor *tg_inference_next(tg_module *row, tg_module *column, tg_tape *t, tg_tensor *x, tg_tensor **residual);

#ifdef __cplusplus
}
#endif

#endif
