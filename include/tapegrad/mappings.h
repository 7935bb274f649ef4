/* Ops and layers that meet in a group: conversions between placements, ops over shards, parallel layers.
 * Included by parallel.h, which has groups and placements. */
#ifndef TAPEGRAD_MAPPINGS_H
#define TAPEGRAD_MAPPINGS_H

#include <tapegrad/nn.h>
#include <tapegrad/parallel.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Mappings (taped) ---- */

/* Each converts the placement on c's axis and leaves every other axis alone; its backward is the conjugate in the right
 * column, itself an op. Communication starts at once and the result is in flight until it is read. A NULL c is an
 * error; on a group of size 1 they return x itself. Any strides; results are contiguous, or, where nothing moves, views
 * of x. d is a dim, negative from the end. */

/* The seeds' ten, under the op names CopyToModelParallelRegion ... AllToAll: */
TG_API tg_tensor *tg_copy_to_tp(tg_tape *t, tg_tensor *x, tg_comm *c);      /* I -> R            all-reduce */
TG_API tg_tensor *tg_reduce_from_tp(tg_tape *t, tg_tensor *x, tg_comm *c);  /* P -> I            identity */
TG_API tg_tensor *tg_scatter_to_tp(tg_tape *t, tg_tensor *x, tg_comm *c);   /* I -> V last dim   all-gather */
TG_API tg_tensor *tg_gather_from_tp(tg_tape *t, tg_tensor *x, tg_comm *c);  /* V last dim -> I   own part */
TG_API tg_tensor *tg_scatter_to_sp(tg_tape *t, tg_tensor *x, tg_comm *c);   /* I -> V0           all-gather */
typedef struct tg_sp_opts {
    size_t size;
    bool invariant;        /* gather: V0 -> I, backward keeps the own part; else V0 -> R, backward reduce-scatters */
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
/* Rows of dim 0: send[r] go to rank r, recv[r] come from it; both NULL: equal parts. V -> V, backward the reverse. */
TG_API tg_tensor *tg_all_to_all(tg_tape *t, tg_tensor *x, const int64_t *recv, const int64_t *send, tg_comm *c);
/* [n/t, H] V0 -> [n, H/t] V1 and back; x is viewed as [rows, last dim]. */
TG_API tg_tensor *tg_all_to_all_sp2hp(tg_tape *t, tg_tensor *x, tg_comm *c);
TG_API tg_tensor *tg_all_to_all_hp2sp(tg_tape *t, tg_tensor *x, tg_comm *c);

/* The rest of the conversions, along any dim: */
TG_API tg_tensor *tg_all_reduce(tg_tape *t, tg_tensor *x, tg_comm *c);            /* P -> R    all-reduce */
TG_API tg_tensor *tg_scatter_to(tg_tape *t, tg_tensor *x, int d, tg_comm *c);     /* I -> Vd   all-gather */
TG_API tg_tensor *tg_shard(tg_tape *t, tg_tensor *x, int d, tg_comm *c);          /* R -> Vd   own part in zeros */
TG_API tg_tensor *tg_gather_from(tg_tape *t, tg_tensor *x, int d, tg_comm *c);    /* Vd -> I   own part */
TG_API tg_tensor *tg_all_gather(tg_tape *t, tg_tensor *x, int d, tg_comm *c);     /* Vd -> R   reduce-scatter */
TG_API tg_tensor *tg_reduce_scatter(tg_tape *t, tg_tensor *x, int d, tg_comm *c); /* P -> Vd   all-gather */
/* Va -> Vb: what was sharded along `cat` becomes whole there and is sharded along `split`. */
TG_API tg_tensor *tg_reshard(tg_tape *t, tg_tensor *x, int cat, int split, tg_comm *c);
TG_API tg_tensor *tg_shift(tg_tape *t, tg_tensor *x, tg_comm *c); /* V -> V, from rank r - 1; backward from r + 1 */
TG_API tg_tensor *tg_broadcast(tg_tape *t, tg_tensor *x, int root, tg_comm *c); /* V -> I   gradient on the root */
TG_API tg_tensor *tg_all_reduce_max(tg_tape *t, tg_tensor *x, tg_comm *c);      /* V -> I, refused with gradient */
TG_API tg_tensor *tg_as_partial(tg_tape *t, tg_tensor *x, tg_comm *c);          /* V -> P */
TG_API tg_tensor *tg_as_opaque(tg_tape *t, tg_tensor *x, tg_comm *c);           /* Vd -> V */
TG_API tg_tensor *tg_as_shard(tg_tape *t, tg_tensor *x, int d, tg_comm *c);     /* V -> Vd, equal local sizes */
TG_API tg_tensor *tg_i_to_p(tg_tape *t, tg_tensor *x, tg_comm *c);              /* I -> P: x / n */
TG_API tg_tensor *tg_r_to_i(tg_tape *t, tg_tensor *x, tg_comm *c);              /* R -> I   g / n */

/* ---- Utilities (Megatron-Core's tensor_parallel.utils) ---- */

/* x's last dim in n equal parts, views (or contiguous copies): out[] has room for n. TG_ERR_SHAPE where n does not
 * divide it. */
TG_API tg_status tg_split_last_dim(tg_tape *t, tg_tensor *x, int n, bool contiguous, tg_tensor **out);
/* This rank's n-th of x's elements in order, 1-D; the last part may be shorter. And back: all of them, 1-D. */
TG_API tg_tensor *tg_split_1d(tg_tape *t, tg_tensor *x, tg_comm *c);
TG_API tg_tensor *tg_gather_1d(tg_tape *t, tg_tensor *x, int64_t numel, tg_comm *c);
/* Rows [first, last) of rank r's part of a vocabulary. TG_ERR_SHAPE where n does not divide it. */
TG_API tg_status tg_vocab_range(tg_ctx *ctx, int64_t vocab, int rank, int n, int64_t *first, int64_t *last);

/* ---- Ops over shards ---- */

/* table [v/n, h] V0, ids [..] the same on every rank -> [.., h] P. An id outside [0, v) is TG_ERR_DATA on all. */
TG_API tg_tensor *tg_vocab_parallel_embedding(tg_tape *t, tg_tensor *table, tg_tensor *ids, tg_comm *c);

typedef struct tg_vocab_opts {
    size_t size;
    int64_t ignore_index; /* 0: -100; TG_NONE is -1 */
    double label_smoothing;
    tg_smoothing smoothing;
    tg_loss_reduction reduction;
    bool in_place; /* the logits' memory becomes their gradient's: they, and a second backward, are refused after */
    int64_t classes; /* columns beyond so many (over all ranks) are padding: left out of everything. 0: none */
} tg_vocab_opts;
#define TG_VOCAB(...) (&(tg_vocab_opts){.size = sizeof(tg_vocab_opts), __VA_ARGS__})

/* logits [.., v/n] sharded on the last dim, target [..] global ids -> [..] or a scalar, float32 (float64), I. At most
 * three all-reduces of [..] elements, one more with smoothing. A target out of range that is not ignore_index is
 * TG_ERR_DATA. */
TG_API tg_tensor *tg_vocab_parallel_cross_entropy(tg_tape *t, tg_tensor *logits, tg_tensor *target, tg_comm *c,
                                                  const tg_vocab_opts *opts);
/* The same of logits x w^T, x [.., h] R and w [v/n, h] V0, of which no rank ever holds its whole part. */
TG_API tg_tensor *tg_vocab_parallel_linear_cross_entropy(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *target,
                                                         tg_comm *c, const tg_vocab_opts *opts);
/* Rank 0's x[] on every rank: x[] become tape-owned tensors, whatever they were on the others; I on c's axes (all of
 * the grid's for its world), and on the other axes as rank 0's lie. Zero sizes and scalars included; TG_ERR_DTYPE on
 * every rank, naming the tensor, when one of rank 0's is not of dtype. */
TG_API tg_status tg_broadcast_data(tg_tape *t, tg_tensor **x, int n, tg_dtype dtype, tg_comm *c);

/* ---- Linear layers whose communication overlaps ---- */

/* Weight gradients that wait for tg_wgrads_run, at most limit of them (TG_NONE: no limit); more are computed at once.
 * Each holds its layer's input and output gradient, which must not be overwritten before (TG_ERR_VERSION). NULL on an
 * error. free loses what waits, and backwards that come later put nothing off. */
typedef struct tg_wgrads tg_wgrads;
TG_API tg_wgrads *tg_wgrads_new(tg_ctx *ctx, int limit);
TG_API void tg_wgrads_free(tg_wgrads *d);
TG_API int tg_wgrads_count(const tg_wgrads *d);
/* Computes them in the order in which backward left them, which is that of its own sums, then runs the weights' hooks
 * (tg_on_accumulated). Collective over the groups of those that gather rows. */
TG_API tg_status tg_wgrads_run(tg_wgrads *d);

typedef struct tg_linear_grad_opts {
    size_t size;
    bool sequence_parallel; /* x are this rank's rows of dim 0, V0; they are gathered, and again in backward */
    bool allreduce_dgrad;   /* the gradient of x, I, is summed over c; not with sequence_parallel */
    bool fused_wgrad;       /* the gradient of w is added straight into its main_grad; w is a leaf */
    tg_wgrads *deferred;    /* where the gradient of w, a leaf, may wait; NULL: it does not */
} tg_linear_grad_opts;
#define TG_LINEAR_GRAD(...) (&(tg_linear_grad_opts){.size = sizeof(tg_linear_grad_opts), __VA_ARGS__})

/* x [.., in], w [out, in] and b [out] or NULL, both V0 on c's axis, -> [.., out] sharded on the last dim: x w^T + b. In
 * backward the gradient of x travels while that of w is computed. Op
 * LinearWithGradAccumulationAndAsyncCommunication (Megatron-Core). c may be NULL where opts (may be NULL) ask for no
 * communication: then x is R, or all is placed as for tg_linear. */
TG_API tg_tensor *tg_linear_with_grad_accumulation(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, tg_comm *c,
                                                   const tg_linear_grad_opts *opts);
/* The same without a gradient of w, which alone is saved; the bias keeps its own. Refuses deferred and fused_wgrad. */
TG_API tg_tensor *tg_linear_with_frozen_weight(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, tg_comm *c,
                                               const tg_linear_grad_opts *opts);

/* ---- Layers ---- */

typedef struct tg_plinear_opts {
    size_t size;
    bool no_bias;
    double std;            /* 0: 0.02 */
    int strides;           /* partition strides: 2 for gate and up, 3 for q, k, v; 0: 1 */
    bool gather_output;    /* column: [.., out] I instead of [.., out/n] V */
    bool input_is_whole;   /* row: x is I and is scattered here; not with sequence parallelism */
    bool skip_bias_add;    /* leave the bias to a fused op: tg_module_find(m, "bias") */
    tg_tensor *weight;     /* tied: [out/n, in] or [out, in/n]; NULL: the layer's own */
    bool no_weight;        /* no weight is made: each call must give one (tg_plinear_apply) */
    bool no_init;          /* zeros; placements and attributes are set all the same */
    bool no_dgrad_reduce;  /* the input's gradient stays PARTIAL: the caller reduces it */
    bool expert;           /* of the expert grid: etp instead of tp */
    bool fused_wgrad;      /* the weight's gradient is added straight into its main_grad */
    int deferred_wgrads;   /* up to so many weight gradients wait for tg_wgrads_drain; 0: none, TG_NONE: no limit */
} tg_plinear_opts;

#define TG_PLINEAR(...) (&(tg_plinear_opts){.size = sizeof(tg_plinear_opts), __VA_ARGS__})

/* Weights [out, in], activations [s, b, h]. Column: weight and bias V0, x I (V0 under sequence parallelism) ->
 * [.., out/n] sharded on the last dim. Row: weight V1, bias I (R under sequence parallelism), x sharded on the last dim
 * -> [.., out] I (V0). The dgrad's communication overlaps the wgrad. out, in or vocab % tp != 0 is TG_ERR_SHAPE. opts
 * may be NULL. */
TG_API tg_module *tg_nn_column_linear(const tg_parallel *p, int64_t in, int64_t out, const tg_plinear_opts *opts);
TG_API tg_module *tg_nn_row_linear(const tg_parallel *p, int64_t in, int64_t out, const tg_plinear_opts *opts);

typedef struct tg_vocab_embedding_opts {
    size_t size;
    int reduce_scatter; /* > 0: the result is V0, < 0: I; 0: V0 under sequence parallelism, else I */
} tg_vocab_embedding_opts;
#define TG_VOCAB_EMBEDDING(...) \
    (&(tg_vocab_embedding_opts){.size = sizeof(tg_vocab_embedding_opts), __VA_ARGS__})

/* ids [b, s] -> [s, b, hidden] I, or V0: this rank's rows of dim 0, to which the sum over tp is scattered. opts may be
 * NULL. */
TG_API tg_module *tg_nn_vocab_embedding(const tg_parallel *p, int64_t vocab, int64_t hidden, double std,
                                        const tg_vocab_embedding_opts *opts);
/* One call with a weight given (NULL: the module's) and gather_output overridden (< 0: as made). */
TG_API tg_tensor *tg_plinear_apply(tg_module *m, tg_tape *t, tg_tensor *x, tg_tensor *weight, int gather_output);
/* Megatron-Core's tensor_model_parallel, partition_dim and partition_stride, read off x's placement: false, -1 and 1
 * where x is no shard over tp (etp). dim and stride may be NULL. */
TG_API bool tg_tp_attributes(const tg_tensor *x, int *dim, int *stride);
/* Whether x on this rank repeats what tp (etp) rank 0 has: false for shards. */
TG_API bool tg_is_tp_duplicate(const tg_parallel *p, const tg_tensor *x);
TG_API tg_status tg_wgrads_drain(tg_module *m); /* tg_wgrads_run of each linear in m */

/* ---- Layers of a model that only runs forward ---- */

typedef struct tg_inference_opts {
    size_t size;
    double std, norm_eps;     /* 0: 0.02, 1e-6 */
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
