/* Tensor parallelism (Shoeybi et al., arXiv 1909.08053; sequence parallelism: Korthikanti et al., arXiv 2205.05198):
 * linear layers and vocabularies that are sharded over ranks, and deferred weight gradients. Include it to build
 * layers of a tensor-parallel model; megatron.h includes it.
 *
 * I, R, P and V are TG_I, TG_R, TG_P and TG_V of placement.h; V0 is a shard of dim 0. n is the number of ranks that
 * divide a tensor. */
#ifndef TAPEGRAD_TENSOR_PARALLEL_H
#define TAPEGRAD_TENSOR_PARALLEL_H

#include <tapegrad/mappings.h>
#include <tapegrad/nn.h>
#include <tapegrad/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Ops over shards. Their results belong to the tape; inert on error ---- */

/* Looks up rows of a sharded table: table [v/n, h] V0 and ids [..] int64 or int32, the same on every rank -> [.., h]
 * P. An id outside [0, v) fails with TG_ERR_DATA on every rank. */
TG_API tg_tensor *tg_vocab_parallel_embedding(tg_tape *t, tg_tensor *table, tg_tensor *ids, tg_comm *c);

typedef struct tg_vocab_opts {
    size_t size;
    int64_t ignore_index; /* rows with this target do not count. 0: -100; TG_IGNORE_ZERO: class 0 */
    double label_smoothing; /* in [0, 1] */
    tg_smoothing smoothing_kind; /* must be 0 if label_smoothing is 0 (TG_ERR_ARGUMENT) */
    tg_loss_reduction reduction; /* TG_LOSS_MEAN: over the rows that count */
    /* Backward writes the gradient over the logits, which are then discarded, so a second backward fails. The logits
     * must be a contiguous result of an op that no other handle shares (TG_ERR_STATE). */
    bool in_place;
    int64_t classes; /* columns from this one on (over all ranks) are padding and do not count. 0: no padding */
} tg_vocab_opts;
#define TG_VOCAB(...) (&(tg_vocab_opts){.size = sizeof(tg_vocab_opts), __VA_ARGS__})

/* Computes the cross-entropy of logits [.., v/n], sharded on the last dim, for target [..], int64: class numbers of the
 * whole vocabulary, the same on every rank. The result is a scalar, or [..] with TG_LOSS_NONE; it is I and float32
 * (float64 for float64 logits), or V with TG_SMOOTHING_MEGATRON_PARTITION. Forward runs two all-reduces, of one and of
 * two numbers per row. opts may be NULL. A target that is neither a class nor ignore_index fails with TG_ERR_DATA. */
TG_API tg_tensor *tg_vocab_parallel_cross_entropy(tg_tape *t, tg_tensor *logits, tg_tensor *target, tg_comm *c,
                                                  const tg_vocab_opts *opts);
/* Computes the same loss of logits x w^T, with x [.., h] R and w [v/n, h] V0. Logits exist for a few rows at a time.
 * in_place fails with TG_ERR_ARGUMENT. */
TG_API tg_tensor *tg_vocab_parallel_linear_cross_entropy(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *target,
                                                         tg_comm *c, const tg_vocab_opts *opts);

/* ---- Linear layers whose communication overlaps their products ---- */

/* A list of deferred weight gradients: their products run in tg_wgrads_run instead of backward, for example in the
 * bubble of a pipeline (Megatron-Core's defer_embedding_wgrad_compute). A list holds at most `limit` of them (0 or
 * more; TG_NONE: no limit); further ones are computed in backward. Each holds the input and the output gradient of its
 * layer. tg_wgrads_run fails with TG_ERR_VERSION if one of them was overwritten, and with TG_ERR_HANDLE if the weight
 * was dropped.
 *
 * tg_wgrads_new returns NULL on error. tg_wgrads_free discards the gradients in the list; later backwards compute
 * theirs at once. tg_wgrads_count returns how many are in the list; 0 if d is NULL. */
typedef struct tg_wgrads tg_wgrads;
TG_API tg_wgrads *tg_wgrads_new(tg_ctx *ctx, int limit);
TG_API void tg_wgrads_free(tg_wgrads *d);
TG_API int tg_wgrads_count(const tg_wgrads *d);
/* Computes the deferred gradients in the order in which backward left them, so that the sums have the same bits as
 * without deferring. Then runs the hooks of the weights (tg_on_accumulated). Collective over the groups of entries
 * that gather rows. */
TG_API tg_status tg_wgrads_run(tg_wgrads *d);

typedef struct tg_linear_grad_opts {
    size_t size;
    bool sequence_parallel; /* x is V0, this rank's rows of dim 0: gather them, and again in backward */
    bool allreduce_dgrad;   /* x is I: sum its gradient over c; not with sequence_parallel (TG_ERR_ARGUMENT) */
    bool fused_wgrad;       /* only a check: w must be a leaf if it needs a gradient (TG_ERR_STATE). The gradient of a
                               leaf adds straight into its main gradient (tg_set_main_grad) without it too. */
    tg_wgrads *deferred;    /* list that takes the gradient of w if w is a leaf (see tg_wgrads); NULL: none */
} tg_linear_grad_opts;
#define TG_LINEAR_GRAD(...) (&(tg_linear_grad_opts){.size = sizeof(tg_linear_grad_opts), __VA_ARGS__})

/* Computes x w^T + b: x [.., in], this rank's rows of the weight, w [out, in], and of the bias, b [out] or NULL, both
 * V0 on c's axis -> [.., out], sharded on the last dim. In backward the gradient of x is communicated while the
 * gradient of w is computed. The op is named LinearWithGradAccumulationAndAsyncCommunication, as in Megatron-Core. opts
 * may be NULL. If opts ask for no communication, c may be NULL and placements are those of tg_linear. */
TG_API tg_tensor *tg_linear_with_grad_accumulation(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, tg_comm *c,
                                                   const tg_linear_grad_opts *opts);
/* Computes the same without a gradient of w. Only w is saved for backward; x and the bias get their gradients.
 * opts.deferred and opts.fused_wgrad fail with TG_ERR_ARGUMENT. */
TG_API tg_tensor *tg_linear_with_frozen_weight(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, tg_comm *c,
                                               const tg_linear_grad_opts *opts);

/* ---- Layers ---- */

typedef struct tg_parallel_linear_opts {
    size_t size;
    bool no_bias;
    double std;            /* standard deviation of the weight that the layer draws. 0: 0.02. No draw: must be 0 */
    int strides;           /* blocks of the sharded dim, each divided over all ranks: 2 for gate and up, 3 for q, k, v.
                              0: 1 */
    bool gather_output;    /* column: the output is [.., out] I instead of [.., out/n] V */
    bool input_is_whole;   /* row: x is I, and the layer scatters it; not with sequence parallelism (TG_ERR_STATE) */
    bool skip_bias_add;    /* do not add the bias: the caller does (tg_parallel_linear_pair); with no_bias:
                              TG_ERR_ARGUMENT */
    /* The axis whose ranks divide the layer: TG_TP (0), or TG_CP or TG_DP for a layer of another group; TG_ETP with
     * expert. Under TG_RNG_MEGATRON, whose streams differ over tp only, a layer of TG_CP or TG_DP that would draw a
     * weight fails with TG_ERR_ARGUMENT. */
    tg_axis axis;
    int sequence_parallel; /* over axis. > 0: on; < 0: off; 0: as p's for TG_TP, else off. No effect with one rank */
    tg_tensor *weight;     /* tied weight, [out/n, in] (column) or [out, in/n] (row); NULL: the layer makes its own */
    bool no_weight;        /* make no weight: each call passes one to tg_parallel_linear_apply */
    bool no_init;          /* leave the weight 0; it is placed all the same */
    bool no_dgrad_reduce;  /* column only: x is R, and its gradient stays PARTIAL; the caller reduces it. Under sequence
                              parallelism, and in a row layer: TG_ERR_ARGUMENT */
    bool expert;           /* a layer of the expert grid; axis must be 0 or TG_ETP, which mean the same. On several
                              ranks a row layer needs skip_bias_add or no_bias (TG_ERR_STATE) */
    bool fused_wgrad;      /* as in tg_linear_grad_opts */
    int deferred_wgrads;   /* how many weight gradients may wait for tg_wgrads_drain. 0: none; TG_NONE: no limit */
} tg_parallel_linear_opts;

#define TG_PARALLEL_LINEAR(...) (&(tg_parallel_linear_opts){.size = sizeof(tg_parallel_linear_opts), __VA_ARGS__})

/* Create the layers that Megatron-Core calls ColumnParallelLinear and RowParallelLinear. weight is [out, in],
 * activations are [s, b, h]. Column: weight and bias V0, x I -> [.., out/n], sharded on the last dim. Under sequence
 * parallelism x is V0. Row: weight V1, bias I, x sharded on the last dim -> [.., out] I. Under sequence parallelism the
 * bias is R and the output V0. Biases start as 0.
 *
 * opts may be NULL. On error return an inert module. A sharded size (out, in) that is not a multiple of the ranks
 * fails with TG_ERR_SHAPE. If p uses the expert grid, only `expert` layers run on it; the token dispatch outside of
 * them communicates. */
TG_API tg_module *tg_nn_column_linear(const tg_parallel *p, int64_t in, int64_t out,
                                      const tg_parallel_linear_opts *opts);
TG_API tg_module *tg_nn_row_linear(const tg_parallel *p, int64_t in, int64_t out, const tg_parallel_linear_opts *opts);

typedef struct tg_vocab_embedding_opts {
    size_t size;
    int reduce_scatter; /* > 0: the result is V0; < 0: I; 0: V0 if axis is TG_TP and p is sequence parallel, else I */
    tg_axis axis;       /* whose ranks divide the vocabulary, as in tg_parallel_linear_opts */
    bool batch_first;   /* [b, s] gives [b, s, hidden]. With a result that is V0 the ranks divide the batch, dim 0 */
} tg_vocab_embedding_opts;
#define TG_VOCAB_EMBEDDING(...) \
    (&(tg_vocab_embedding_opts){.size = sizeof(tg_vocab_embedding_opts), __VA_ARGS__})

/* Creates the layer that Megatron-Core calls VocabParallelEmbedding: ids [b, s] -> [s, b, hidden], and ids [n] ->
 * [n, hidden]; I or V0 (this rank's rows of dim 0). weight [vocab, hidden] is V0, drawn with standard deviation std. A
 * vocab that is not a multiple of the ranks of axis fails with TG_ERR_SHAPE. opts may be NULL. Inert on error. */
TG_API tg_module *tg_nn_vocab_embedding(const tg_parallel *p, int64_t vocab, int64_t hidden, double std,
                                        const tg_vocab_embedding_opts *opts);
/* Runs a column or row layer once, with this weight, [out/n, in] or [out, in/n] (NULL: the module's own). gather_output
 * sets that option of a column layer for this call: > 0 true, 0 false, < 0 as the layer was made. A row layer refuses
 * > 0 (TG_ERR_ARGUMENT). Other modules fail with TG_ERR_ARGUMENT. */
TG_API tg_tensor *tg_parallel_linear_apply(tg_module *m, tg_tape *t, tg_tensor *x, tg_tensor *weight,
                                           int gather_output);
/* Runs any layer once. If the layer is a column or row layer made with skip_bias_add, returns its output without the
 * bias and sets *bias to the bias, for a fused op of the caller: the pair (output, bias) of Megatron-Core. Otherwise
 * *bias is NULL, because the layer has no bias or has added it; so a caller treats a replaced layer alike. The module
 * owns *bias, or the tape does if the layer gathers its output and so the bias too. tg_add(t, output, *bias) equals the
 * layer without skip_bias_add. On error returns an inert tensor, and *bias is NULL. */
TG_API tg_tensor *tg_parallel_linear_pair(tg_module *m, tg_tape *t, tg_tensor *x, tg_tensor **bias);
/* Runs tg_wgrads_run for the list of every linear layer in m, also of layers that a GPT made with TG_WGRAD_DEFERRED. */
TG_API tg_status tg_wgrads_drain(tg_module *m);

#ifdef __cplusplus
}
#endif

#endif
