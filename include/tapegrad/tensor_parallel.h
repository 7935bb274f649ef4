/* Tensor parallelism (Shoeybi et al., arXiv 1909.08053): linear layers and vocabularies that are sharded over ranks,
 * and deferred weight gradients. Include it to build layers of a tensor-parallel model; megatron.h includes it.
 *
 * Under sequence parallelism (Korthikanti et al., arXiv 2205.05198) the ranks also divide the activations between
 * layers: each rank has some of the rows, which are the slices along dim 0.
 *
 * Comments give a tensor as "w [v/n, h] V0": its name, its shape, and its placement on c's axis. I, R, P and V are
 * TG_I, TG_R, TG_P and TG_V of placement.h (invariant, replicated, partial and varying), and V0 and V1 are shards of
 * dim 0 and dim 1. n is the number of ranks of c, so [v/n, h] is one rank's part of [v, h], a tensor of v rows. x @ w^T
 * is the matrix product of x and the transpose of w.
 *
 * Every rank of c calls the functions that have a parameter c, and runs their backward; every rank of a layer's axis
 * runs the layer. The tape owns the results of ops. Ops fail with TG_ERR_PLACEMENT if an input has another placement
 * than the comment says. On error a function that returns a tensor or a module returns an inert one (tapegrad.h), which
 * is never NULL. */
#ifndef TAPEGRAD_TENSOR_PARALLEL_H
#define TAPEGRAD_TENSOR_PARALLEL_H

#include <tapegrad/mappings.h>
#include <tapegrad/nn.h>
#include <tapegrad/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Ops over a sharded vocabulary. c must not be NULL (TG_ERR_ARGUMENT). ---- */

/* Looks up rows of a sharded table. table is [v/n, h] V0. ids [..] is int64 or int32, and the same on every rank of c.
 * The result is [.., h] P. An id outside [0, v) fails with TG_ERR_DATA on every rank. */
TG_API tg_tensor *tg_vocab_parallel_embedding(tg_tape *t, tg_tensor *table, tg_tensor *ids, tg_comm *c);

typedef struct tg_vocab_opts {
    size_t size;
    /* A row is the logits of one target. Rows whose target is this number are ignored: their loss is 0, and
     * TG_LOSS_MEAN does not count them. The default is -100, which is no class. */
    int64_t ignore_index;
    double label_smoothing; /* in [0, 1]; 0 by default */
    /* TG_SMOOTHING_TORCH (ops.h) by default. Must keep its default if label_smoothing is 0 (TG_ERR_ARGUMENT). */
    tg_smoothing smoothing_kind;
    /* TG_LOSS_MEAN by default: the mean of the rows that are not ignored, or NaN if all are ignored. TG_LOSS_BATCH_MEAN
     * fails with TG_ERR_ARGUMENT. */
    tg_loss_reduction reduction;
    /* Backward stores the gradient of the logits in the memory of the logits. The logits then have no values any more,
     * so a second backward fails. Logits that are pinned (tg_pin) when backward runs keep their values.
     *
     * If the logits need a gradient, they must be contiguous, the result of an op, and neither a view nor a scratch
     * buffer (tg_lease), and no other handle may share their bytes; otherwise the call fails with TG_ERR_STATE. */
    bool in_place;
    /* Number of real classes, 1 to the number of columns of all ranks. Later columns are padding: they do not count,
     * and their gradient is 0. TG_AUTO, the default, means that there is no padding. */
    int64_t classes;
} tg_vocab_opts;
#define TG_VOCAB_DEFAULTS .size = sizeof(tg_vocab_opts), .ignore_index = -100, .classes = TG_AUTO
#define TG_VOCAB(...) (&(tg_vocab_opts){TG_VOCAB_DEFAULTS, __VA_ARGS__})

/* Computes the cross-entropy of logits for target. logits are [.., v/n], sharded on the last dim. target [..] is int64,
 * and the same on every rank of c; it contains class numbers of the whole vocabulary. A target that is neither a class
 * nor ignore_index fails with TG_ERR_DATA.
 *
 * The result is a scalar, or [..] with TG_LOSS_NONE. Its dtype is float32, or float64 for float64 logits. Its
 * placement is I, or V with TG_SMOOTHING_MEGATRON_PARTITION. Forward runs two all-reduces: one of one number per row,
 * and one of two numbers per row. Backward runs none. opts may be NULL. */
TG_API tg_tensor *tg_vocab_parallel_cross_entropy(tg_tape *t, tg_tensor *logits, tg_tensor *target, tg_comm *c,
                                                  const tg_vocab_opts *opts);
/* Computes the same loss for the logits x @ w^T, where x is [.., h] and R, and w is [v/n, h] and V0. Only the logits of
 * a few rows are in memory at a time. in_place fails with TG_ERR_ARGUMENT. */
TG_API tg_tensor *tg_vocab_parallel_linear_cross_entropy(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *target,
                                                         tg_comm *c, const tg_vocab_opts *opts);

/* ---- Linear layers that communicate during their matrix products ---- */

/* A list of deferred weight gradients. Instead of computing such a gradient, backward adds an entry to the list, and
 * tg_wgrads_run computes the gradient later, for example in the bubble of a pipeline (Megatron-Core's
 * defer_embedding_wgrad_compute). An entry keeps in memory the input of its layer, and the gradient of the layer's
 * output. */
typedef struct tg_wgrads tg_wgrads;
/* Creates a list of at most `limit` entries. While the list is full, backward computes further gradients itself. limit
 * is 0 or more, or TG_NONE for no limit. Returns NULL on error. */
TG_API tg_wgrads *tg_wgrads_new(tg_ctx *ctx, int limit);
/* Frees a list and discards the gradients in it. Layers that used the list compute later gradients in backward. In a
 * hook that tg_wgrads_run calls for this list, records TG_ERR_STATE and frees nothing. d may be NULL. */
TG_API void tg_wgrads_free(tg_wgrads *d);
/* Returns the number of entries in the list; 0 if d is NULL. */
TG_API int tg_wgrads_count(const tg_wgrads *d);
/* Computes the gradients of all entries, in the order in which backward added the entries to the list, and removes the
 * entries. The gradients have the same bits as without deferring, unless backward has itself added to the gradient of
 * the same weight, for example because the list was full: the sum then has another order. Runs the hooks of a weight
 * (tg_on_accumulated) when no list holds an entry for that weight any more.
 *
 * A step that has failed may leave entries. Before the step is repeated, run the list, and then zero the gradients.
 *
 * Fails with TG_ERR_ARGUMENT if d is NULL, and with TG_ERR_STATE in a hook that it calls for this list. Fails with
 * TG_ERR_VERSION if the input or the output gradient of an entry was overwritten, and with TG_ERR_HANDLE if the weight
 * of an entry was dropped; no entry is then computed. If the list has an entry whose layer gathers rows over a
 * communicator, every rank of that communicator must call tg_wgrads_run. */
TG_API tg_status tg_wgrads_run(tg_wgrads *d);
/* With these functions a caller computes a part of the list, such as the entries of one micro-batch. tg_wgrads_mark
 * returns how many entries have been added to the list since its creation; 0 if d is NULL. tg_wgrads_run_to computes
 * the entries that were added before a mark and still wait, in the same way as tg_wgrads_run. A mark that
 * tg_wgrads_mark has not returned yet fails with TG_ERR_ARGUMENT. */
TG_API int64_t tg_wgrads_mark(const tg_wgrads *d);
TG_API tg_status tg_wgrads_run_to(tg_wgrads *d, int64_t mark);
/* Defers the weight gradients of all linear layers on a tape. Backward of t then adds an entry to the list d for each
 * weight that is a leaf. That holds for tg_linear and its variants with an activation, for
 * tg_linear_with_grad_accumulation, for tg_linear_reduce_scatter, for the product of tg_norm_linear (the list then
 * keeps the norm's result), and for every layer made of these, also if it is recomputed. Layers that have a list of
 * their own use d instead. Backward still computes gradients of biases and of weights with hooks (tg_on_grad).
 *
 * tg_linear_cross_entropy and tg_vocab_parallel_linear_cross_entropy defer too, if all logits of the call fit into one
 * chunk. A chunk has at most 8 MiB of logits on this rank, or 512 rows if that is more (1024 with 16-bit weights). The
 * list then keeps the gradient of the logits. Larger calls never store all logits, and backward computes their weight
 * gradients.
 *
 * The mode lasts until the next tg_tape_defer; tg_tape_reset does not end it. d NULL, the initial state, means that the
 * tape has no list: backward computes the gradients, except those of layers that have a list of their own. d may be
 * freed before t; backward then computes all gradients. d and t must be of one context (TG_ERR_ARGUMENT). */
TG_API tg_status tg_tape_defer(tg_tape *t, tg_wgrads *d);

typedef struct tg_linear_grad_opts {
    size_t size;
    /* x is V0: it has this rank's rows of dim 0. The op gathers the rows of all ranks, and gathers them again in
     * backward for the gradient of w. Backward reduce-scatters the gradient of x. */
    bool sequence_parallel;
    /* x is I. Backward sums the gradient of x over the ranks of c. Must not be set together with sequence_parallel
     * (TG_ERR_ARGUMENT). */
    bool allreduce_dgrad;
    /* If w needs a gradient but is not a leaf, the call fails with TG_ERR_STATE. The option has no other effect: if a
     * leaf has a main gradient (tg_set_main_grad), its gradient is always added straight into that. */
    bool fused_wgrad;
    /* The list that takes the gradient of w if w is a leaf without hooks (tg_on_grad). NULL means that backward
     * computes this gradient. If the tape has a list (tg_tape_defer), that list is used instead. The list must be of
     * the context of the tape (TG_ERR_ARGUMENT). It may be freed before backward. */
    tg_wgrads *deferred;
    /* Number of messages, 1 to 16, that carry a rank's rows under sequence parallelism; 1 by default. Above 1, a ring
     * takes the place of the gather in forward and of the reduce-scatter in backward: each rank sends its chunks of
     * rows, and then those that it receives, to the next rank, and multiplies each chunk when it has arrived. Each rank
     * sends chunks * (n - 1) messages. Sums are added in the order of the ring, in float32 (float64 for float64), and
     * also travel in this dtype. The gather for the gradient of w stays one collective.
     *
     * Must divide the rows of a rank (TG_ERR_SHAPE). Without sequence_parallel it must be 1 (TG_ERR_ARGUMENT), except
     * in tg_linear_reduce_scatter. The method is that of Wang et al., ASPLOS 2023 (doi 10.1145/3567955.3567959). */
    int chunks;
} tg_linear_grad_opts;
#define TG_LINEAR_GRAD_DEFAULTS .size = sizeof(tg_linear_grad_opts), .chunks = 1
#define TG_LINEAR_GRAD(...) (&(tg_linear_grad_opts){TG_LINEAR_GRAD_DEFAULTS, __VA_ARGS__})

/* Computes x @ w^T + b. x is [.., in]. w [out, in] and b [out] (or NULL) are this rank's rows of the weight and the
 * bias; both are V0. The result is [.., out], sharded on the last dim. With sequence_parallel dim 0 of the result has
 * the rows of all ranks. In backward the gradient of x is communicated while the gradient of w is computed.
 *
 * The op is named LinearWithGradAccumulationAndAsyncCommunication, as in Megatron-Core. opts may be NULL. If opts set
 * neither sequence_parallel nor allreduce_dgrad, c may be NULL, and w, b and x may have any placements that tg_linear
 * accepts. Otherwise c NULL fails with TG_ERR_ARGUMENT. If c has one rank, sequence_parallel, allreduce_dgrad and
 * chunks have no effect. */
TG_API tg_tensor *tg_linear_with_grad_accumulation(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, tg_comm *c,
                                                   const tg_linear_grad_opts *opts);
/* Computes the same result, but backward computes no gradient of w, only those of x and b. Saves w, but not x, for
 * backward. opts->deferred and opts->fused_wgrad fail with TG_ERR_ARGUMENT. */
TG_API tg_tensor *tg_linear_with_frozen_weight(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, tg_comm *c,
                                               const tg_linear_grad_opts *opts);
/* Computes x @ w^T and reduce-scatters it, as a row layer (TG_LINEAR_ROW) does under sequence parallelism with
 * tg_reduce_scatter_to_sp (megatron.h). x [s, .., in/n] is sharded on its last dim, and w [out, in/n] is V1. The result
 * [s/n, .., out] is V0. Backward gathers the gradient of the result.
 *
 * If opts->chunks is above 1, a ring that runs during the product takes the place of the reduce-scatter. In backward, a
 * ring that runs during the product for the gradient of x takes the place of the gather. opts->chunks must divide the
 * number of rows of the result on a rank (TG_ERR_SHAPE). If c has one rank, chunks has no effect. sequence_parallel
 * and allreduce_dgrad fail with TG_ERR_ARGUMENT. opts may be NULL; c may not (TG_ERR_ARGUMENT). */
TG_API tg_tensor *tg_linear_reduce_scatter(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_comm *c,
                                           const tg_linear_grad_opts *opts);

/* How the addends of the ranks are summed in symmetric memory (tg_symmetric in comm.h), which all ranks can read. */
typedef enum tg_symmetric_ar {
    TG_AR_NONE,     /* by an ordinary all-reduce, without symmetric memory */
    TG_AR_TWO_SHOT, /* each rank sums 1/n of the elements, and then gathers the others */
    TG_AR_ONE_SHOT, /* each rank reads and sums all addends; if they have more than 256 KiB each, as TG_AR_TWO_SHOT */
    TG_AR_MULTIMEM, /* by an all-reduce in the symmetric memory; NCCL lets the network switch sum if it can */
} tg_symmetric_ar;

typedef struct tg_linear_all_reduce_opts {
    size_t size;
    tg_symmetric_ar kind; /* TG_AR_NONE by default */
    tg_symmetric *buffer; /* symmetric memory of c. NULL means none; kind has then no effect */
} tg_linear_all_reduce_opts;
#define TG_LINEAR_ALL_REDUCE_DEFAULTS .size = sizeof(tg_linear_all_reduce_opts)
#define TG_LINEAR_ALL_REDUCE(...) (&(tg_linear_all_reduce_opts){TG_LINEAR_ALL_REDUCE_DEFAULTS, __VA_ARGS__})

/* Computes x @ w^T, summed over the ranks of c, as a row layer does, but has no backward. x [.., in/n] is sharded on
 * its last dim, and w [out, in/n] is V1. The result [.., out] is I. If gradients are recorded and x or w needs one,
 * fails with TG_ERR_STATE.
 *
 * For every kind the result has the bits of tg_reduce_from_tp(tg_linear(x, w)), on transports that sum in the order of
 * ranks (comm.h). If the buffer has no memory (tg_symmetric_new), or too little, or is in use, the sum is an ordinary
 * all-reduce. If n does not divide the number of elements, TG_AR_TWO_SHOT is as TG_AR_MULTIMEM. The methods are those
 * of TensorRT-LLM and of PyTorch's symmetric memory. opts may be NULL; c may not (TG_ERR_ARGUMENT). */
TG_API tg_tensor *tg_linear_all_reduce(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_comm *c,
                                       const tg_linear_all_reduce_opts *opts);

typedef struct tg_norm_linear_opts {
    size_t size;
    bool rms;   /* true: tg_rms_norm, and norm_bias must be NULL (TG_ERR_ARGUMENT); false: tg_layer_norm */
    double eps; /* eps of the norm: finite, and 0 or more; 1e-5 by default */
    /* The norm multiplies by 1 + norm_weight, a sum in the dtype of norm_weight, so that weight decay pulls the factor
     * to 1. Needs norm_weight (TG_ERR_ARGUMENT). */
    bool zero_centered;
    bool sequence_parallel, allreduce_dgrad, fused_wgrad; /* as in tg_linear_grad_opts */
    tg_wgrads *deferred;                                  /* as in tg_linear_grad_opts */
    int chunks;                                           /* as in tg_linear_grad_opts; 1 by default */
} tg_norm_linear_opts;
#define TG_NORM_LINEAR_DEFAULTS .size = sizeof(tg_norm_linear_opts), .eps = 1e-5, .chunks = 1
#define TG_NORM_LINEAR(...) (&(tg_norm_linear_opts){TG_NORM_LINEAR_DEFAULTS, __VA_ARGS__})

/* Computes norm(x) @ w^T + b in one op: a norm over the last dim, and tg_linear_with_grad_accumulation of its result,
 * whose comment describes x, w, b, c and the result. norm_weight and norm_bias are [in] or NULL. They are R with
 * sequence_parallel, because each rank normalizes other rows, and I with allreduce_dgrad. With sequence_parallel the
 * rows are gathered after the norm.
 *
 * Values and gradients are those of the two ops, bit for bit, except that the gradient of a zero-centered norm_weight
 * of 16 bits is rounded once less. For backward the op keeps x, and the mean and reciprocal standard deviation of each
 * row (with rms only the latter). It does not keep the norm's result, which is as large as x: backward computes the
 * norm again for the gradient of w. Transformer Engine's LayerNormLinear is the same layer. opts may be NULL. */
TG_API tg_tensor *tg_norm_linear(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, tg_tensor *norm_weight,
                                 tg_tensor *norm_bias, tg_comm *c, const tg_norm_linear_opts *opts);

/* ---- Layers ---- */

/* How a linear layer is divided over the ranks of its axis. */
typedef enum tg_linear_mode {
    TG_LINEAR_COLUMN,     /* each rank has out/n of the outputs */
    TG_LINEAR_ROW,        /* each rank has in/n of the inputs, and computes an addend of every output */
    TG_LINEAR_DUPLICATED, /* each rank has the whole layer */
} tg_linear_mode;

/* An option whose comment says that only some layers have it must keep its default in the others (TG_ERR_ARGUMENT). */
typedef struct tg_parallel_linear_opts {
    size_t size;
    bool no_bias;
    /* Standard deviation of the weight that the layer draws, 0 or more; 0.02 by default. Must keep its default if one
     * of the options weight, no_weight, no_init and init is set, because the layer then does not use std
     * (TG_ERR_ARGUMENT). */
    double std;
    /* Column and row layer only: number of blocks along the sharded dim, for example 2 for gate and up in one weight, 3
     * for q, k and v. Each block is divided over all ranks. 1 by default. Must divide this rank's size of that dim
     * (TG_ERR_SHAPE). */
    int strides;
    bool gather_output; /* column layer only: the output is [.., out] I, instead of a shard on the last dim */
    /* Row layer only: x is I instead of a shard, and the layer takes this rank's part of it. Must not be set under
     * sequence parallelism (TG_ERR_STATE). */
    bool input_is_whole;
    /* The layer does not add its bias; the caller adds it (tg_parallel_linear_pair). Must not be set together with
     * no_bias (TG_ERR_ARGUMENT). */
    bool skip_bias_add;
    /* Column and row layer only: the axis whose ranks divide the layer: TG_TP (0), TG_CP or TG_DP; if `expert` is set,
     * TG_ETP. The random streams of TG_RNG_MEGATRON differ over tp only, so with TG_RNG_MEGATRON a layer on TG_CP or
     * TG_DP must not draw its weight (TG_ERR_ARGUMENT), except with TG_INIT_ORTHOGONAL. */
    tg_axis axis;
    /* Sequence parallelism over `axis`: 1 means on, 0 off. TG_AUTO, the default, means the setting of the layer's
     * tg_parallel if axis is TG_TP, and off otherwise. A layer with `expert` has no sequence parallelism, so 1 then
     * fails with TG_ERR_ARGUMENT. No effect if axis has one rank. */
    int sequence_parallel;
    /* An existing weight, such as that of another module (a tied weight): [out/n, in] for a column layer, [out, in/n]
     * for a row layer, [out, in] for a duplicated layer, with the placement that the layer's own would have. The module
     * owns it, like every parameter (tg_module_add_param). NULL means that the layer makes its own. */
    tg_tensor *weight;
    bool no_weight; /* the layer has no weight; each call passes one to tg_parallel_linear_apply */
    bool no_init;   /* the weight that the layer makes stays 0; not with weight or no_weight (TG_ERR_ARGUMENT) */
    /* Column layer only: x is R, and the layer does not sum the gradient of x over the ranks. This gradient stays P,
     * and the caller reduces it. Must not be set under sequence parallelism (TG_ERR_ARGUMENT). */
    bool no_dgrad_reduce;
    /* Column and row layer only: a layer of an expert, on the expert grid. axis must be 0 or TG_ETP; both mean TG_ETP.
     * If ep or etp has several ranks, a row layer needs skip_bias_add or no_bias (TG_ERR_STATE). */
    bool expert;
    bool fused_wgrad; /* as in tg_linear_grad_opts */
    /* How many weight gradients the layer may defer until tg_wgrads_drain. 0, the default, means none; TG_NONE means no
     * limit. */
    int deferred_wgrads;
    /* Initial values of the weight and of the bias that the layer makes. They are read during the call only. NULL means
     * a normal distribution with std for the weight, and 0 for the bias. Must be NULL if the layer makes no such
     * parameter, and with no_init (TG_ERR_ARGUMENT). */
    const tg_init *init, *bias_init;
    tg_dtype dtype; /* of the parameters that the layer makes; 0 means the context's default dtype */
    /* tg_nn_norm_linear only: its norm. norm_eps is finite, and 0 or more; 1e-5 by default. rms_norm and zero_centered
     * are rms and zero_centered of tg_norm_linear_opts. */
    bool rms_norm, zero_centered;
    double norm_eps;
    /* Column and row layer only: number of messages that carry a rank's rows, as in tg_linear_grad_opts; a row layer
     * uses tg_linear_reduce_scatter. 1 by default. Must be 1 without sequence parallelism (TG_ERR_ARGUMENT). */
    int chunks;
} tg_parallel_linear_opts;

#define TG_PARALLEL_LINEAR_DEFAULTS                                                                   \
    .size = sizeof(tg_parallel_linear_opts), .std = 0.02, .strides = 1, .sequence_parallel = TG_AUTO, \
    .norm_eps = 1e-5, .chunks = 1
#define TG_PARALLEL_LINEAR(...) (&(tg_parallel_linear_opts){TG_PARALLEL_LINEAR_DEFAULTS, __VA_ARGS__})

/* Creates a linear layer that computes x @ weight^T + bias. weight is [out, in] and bias is [out] over all ranks.
 * Placements are those on opts->axis. x is usually [s, b, in], with the sequence as dim 0.
 * - TG_LINEAR_COLUMN (Megatron-Core's ColumnParallelLinear): weight and bias are V0. x is I; under sequence parallelism
 *   it is V0, this rank's rows. The output is [.., out/n], sharded on the last dim.
 * - TG_LINEAR_ROW (Megatron-Core's RowParallelLinear): weight is V1, x is [.., in/n], sharded on the last dim. The bias
 *   and the output [.., out] are I; under sequence parallelism the bias is R, and the output is V0.
 * - TG_LINEAR_DUPLICATED (Transformer Engine's Linear with parallel_mode "duplicated"): x, the output, weight and bias
 *   are I. Under sequence parallelism x and the output are V0, and weight and bias are R, so that tg_grads_finalize
 *   sums their gradients. The layer communicates nothing.
 *
 * If opts->expert is set and etp or ep has several ranks, the layer neither gathers x nor reduces its output or the
 * gradient of x over ranks: the caller's token dispatch does so.
 *
 * opts may be NULL. Fails with TG_ERR_ARGUMENT if in or out is 0 or less, and with TG_ERR_SHAPE if the sharded size
 * (out of a column layer, in of a row layer) is not a multiple of the number of ranks. */
TG_API tg_module *tg_nn_parallel_linear(const tg_parallel *p, tg_linear_mode mode, int64_t in, int64_t out,
                                        const tg_parallel_linear_opts *opts);
/* Short forms of tg_nn_parallel_linear for TG_LINEAR_COLUMN and TG_LINEAR_ROW. */
TG_API tg_module *tg_nn_column_linear(const tg_parallel *p, int64_t in, int64_t out,
                                      const tg_parallel_linear_opts *opts);
TG_API tg_module *tg_nn_row_linear(const tg_parallel *p, int64_t in, int64_t out, const tg_parallel_linear_opts *opts);

/* Creates a norm and a column layer in one module (Megatron-Core's TELayerNormColumnParallelLinear). It runs
 * tg_norm_linear with the parameters layer_norm_weight [in], layer_norm_bias [in] (not with rms_norm), weight and bias.
 * Placements are those of a column layer. layer_norm_weight starts as 1, or as 0 with zero_centered, and
 * layer_norm_bias as 0; both are I, or R under sequence parallelism or with no_dgrad_reduce. Options and errors are
 * those of a column layer of tg_nn_parallel_linear, but `expert` fails with TG_ERR_ARGUMENT. */
TG_API tg_module *tg_nn_norm_linear(const tg_parallel *p, int64_t in, int64_t out, const tg_parallel_linear_opts *opts);
/* Creates two modules that compute what `fused`, a module of tg_nn_norm_linear, computes: *norm, a norm with the
 * parameters weight and bias, and *linear, a column layer with weight and bias. Their parameters are copies of those of
 * `fused`, which stays as it is. The output of *linear for the output of *norm equals the output of `fused` bit for
 * bit. The caller owns both modules. If `fused` was made with no_weight, *linear has no weight either. On error both
 * are inert modules. Fails with TG_ERR_ARGUMENT if `fused` is another kind of module, or if a pointer is NULL. */
TG_API tg_status tg_norm_linear_split(tg_module *fused, tg_module **norm, tg_module **linear);

/* The activation of an MLP. */
typedef enum tg_mlp_activation {
    TG_MLP_GELU,      /* tg_gelu */
    TG_MLP_GELU_TANH, /* tg_gelu_tanh */
    TG_MLP_RELU,      /* tg_relu */
    TG_MLP_SILU,      /* tg_silu */
    TG_MLP_SWIGLU,    /* tg_swiglu(gate, up), where gate and up are the halves of the output of fc1 */
} tg_mlp_activation;

typedef struct tg_norm_mlp_opts {
    size_t size;
    tg_mlp_activation activation; /* TG_MLP_GELU by default */
    bool no_bias;                 /* neither linear layer has a bias */
    bool rms_norm, zero_centered; /* as in tg_parallel_linear_opts */
    double norm_eps;              /* as in tg_parallel_linear_opts; 1e-5 by default */
    double std, out_std;          /* standard deviations of the weights of fc1 and fc2, 0 or more; 0.02 by default */
    int sequence_parallel;        /* as in tg_parallel_linear_opts */
    bool fused_wgrad;             /* as in tg_parallel_linear_opts */
    int deferred_wgrads;          /* as in tg_parallel_linear_opts, for each of the two linear layers */
    tg_dtype dtype;               /* of all parameters; 0 means the context's default dtype */
    int chunks;                   /* as in tg_parallel_linear_opts; 1 by default */
} tg_norm_mlp_opts;
#define TG_NORM_MLP_DEFAULTS                                                          \
    .size = sizeof(tg_norm_mlp_opts), .norm_eps = 1e-5, .std = 0.02, .out_std = 0.02, \
    .sequence_parallel = TG_AUTO, .chunks = 1
#define TG_NORM_MLP(...) (&(tg_norm_mlp_opts){TG_NORM_MLP_DEFAULTS, __VA_ARGS__})

/* Creates a norm and an MLP in one module (Transformer Engine's LayerNormMLP): fc2(activation(fc1(norm(x)))). Its
 * children are linear_fc1, a layer of tg_nn_norm_linear from hidden to ffn (2 * ffn with TG_MLP_SWIGLU), and
 * linear_fc2, a row layer from ffn to hidden. Both are on axis tp. x and the output are [s, b, hidden]: I, or V0 under
 * sequence parallelism. opts may be NULL. Fails with TG_ERR_ARGUMENT if hidden or ffn is 0 or less, and with
 * TG_ERR_SHAPE if ffn is not a multiple of the number of tp ranks. */
TG_API tg_module *tg_nn_norm_mlp(const tg_parallel *p, int64_t hidden, int64_t ffn, const tg_norm_mlp_opts *opts);

typedef struct tg_vocab_embedding_opts {
    size_t size;
    /* 1 means that the result is V0, 0 that it is I. TG_AUTO, the default, means V0 if axis is TG_TP and p is sequence
     * parallel, and I otherwise. */
    int reduce_scatter;
    tg_axis axis; /* the axis whose ranks divide the vocabulary, as in tg_parallel_linear_opts without `expert` */
    /* ids [b, s] give [b, s, hidden] instead of [s, b, hidden]. If the result is V0, its dim 0, the batch, is divided
     * over the ranks. */
    bool batch_first;
    /* Initial values of the weight, read during the call only; the argument std of tg_nn_vocab_embedding must then be 0
     * (TG_ERR_ARGUMENT). NULL means a normal distribution with that std. */
    const tg_init *init;
    tg_dtype dtype; /* of the weight; 0 means the context's default dtype */
} tg_vocab_embedding_opts;
#define TG_VOCAB_EMBEDDING_DEFAULTS .size = sizeof(tg_vocab_embedding_opts), .reduce_scatter = TG_AUTO
#define TG_VOCAB_EMBEDDING(...) (&(tg_vocab_embedding_opts){TG_VOCAB_EMBEDDING_DEFAULTS, __VA_ARGS__})

/* Creates the layer that Megatron-Core calls VocabParallelEmbedding. ids [b, s] give [s, b, hidden], and ids [k] give
 * [k, hidden]; other numbers of dims fail with TG_ERR_SHAPE. The result is I, or V0 (this rank's rows of dim 0). weight
 * [vocab, hidden] is V0, drawn with standard deviation std, which is 0 or more. opts may be NULL. Fails with
 * TG_ERR_ARGUMENT if vocab or hidden is 0 or less, and with TG_ERR_SHAPE if vocab is not a multiple of the number of
 * ranks of opts->axis. A forward with an id outside [0, vocab) fails with TG_ERR_DATA. */
TG_API tg_module *tg_nn_vocab_embedding(const tg_parallel *p, int64_t vocab, int64_t hidden, double std,
                                        const tg_vocab_embedding_opts *opts);
/* Runs a layer of tg_nn_parallel_linear or tg_nn_norm_linear once with the given weight, which must have the shape of
 * this rank's part of the layer's weight (TG_ERR_SHAPE). weight NULL means the layer's own. gather_output overrides the
 * option of that name of a column layer for this call: > 0 means true, 0 means false, and a negative number leaves the
 * option as it is. Fails with TG_ERR_ARGUMENT if gather_output is > 0 for a row or duplicated layer, if weight is NULL
 * and the layer has none (no_weight), or if m is another kind of module. A wrapper that holds such a layer, for example
 * after tg_lora_apply, is another kind: run it by tg_module_forward or tg_parallel_linear_pair. */
TG_API tg_tensor *tg_parallel_linear_apply(tg_module *m, tg_tape *t, tg_tensor *x, tg_tensor *weight,
                                           int gather_output);
/* Runs any module once, and gives the caller a bias that the module has not added, for a fused op (Megatron-Core's pair
 * of output and bias). If m is a linear layer of this header that was made with skip_bias_add, or holds one because of
 * tg_lora_apply, tg_captured_new or tg_float16_new, returns its output without the bias, and sets *bias to the bias.
 * tg_add(t, output, *bias) then equals, up to rounding, the output of the layer without skip_bias_add. For any other
 * module *bias is NULL, so a caller can use the same code if another module has replaced the linear layer.
 *
 * The module owns *bias. If the layer gathers its output, it gathers the bias too, and the tape owns *bias. bias NULL
 * fails with TG_ERR_ARGUMENT. On error *bias is NULL. */
TG_API tg_tensor *tg_parallel_linear_pair(tg_module *m, tg_tape *t, tg_tensor *x, tg_tensor **bias);
/* Makes the row layers in m sum over ranks by tg_linear_all_reduce where no gradient is recorded, as in generation: in
 * no-grad mode, and if neither the input nor the weight needs a gradient. That holds for layers without sequence
 * parallelism and without `expert`, on an axis of several ranks; all others stay as they are. TG_AR_NONE, the initial
 * setting, ends the mode. Results keep their bits where tg_linear_all_reduce does.
 *
 * The row layers of m that have one communicator share one block of symmetric memory. Its size is that of the largest
 * output so far: the ranks make it together (tg_symmetric_new) in the first forward, and again in a forward with a
 * larger output. So run a forward of the largest size before you capture a step. All ranks of the layers' axes must
 * make the same call. Fails with TG_ERR_ARGUMENT if m is NULL or kind is not in the enum. */
TG_API tg_status tg_module_set_symmetric(tg_module *m, tg_symmetric_ar kind);
/* Calls tg_wgrads_run on the list of each linear layer in m and its children: layers with deferred_wgrads, and those of
 * a GPT whose config has TG_WGRAD_DEFERRED. Fails with TG_ERR_ARGUMENT if m is NULL. */
TG_API tg_status tg_wgrads_drain(tg_module *m);

#ifdef __cplusplus
}
#endif

#endif
