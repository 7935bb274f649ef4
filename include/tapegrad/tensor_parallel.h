/* Layers and ops over shards: linear layers, vocabularies, and gradients of weights that wait. */
#ifndef TAPEGRAD_TENSOR_PARALLEL_H
#define TAPEGRAD_TENSOR_PARALLEL_H

#include <tapegrad/mappings.h>
#include <tapegrad/nn.h>
#include <tapegrad/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Ops over shards ---- */

/* table [v/n, h] V0, ids [..] the same on every rank -> [.., h] P. An id outside [0, v) is TG_ERR_DATA on all. */
TG_API tg_tensor *tg_vocab_parallel_embedding(tg_tape *t, tg_tensor *table, tg_tensor *ids, tg_comm *c);

typedef struct tg_vocab_opts {
    size_t size;
    int64_t ignore_index; /* 0: -100; TG_NONE is -1 */
    double label_smoothing; /* in [0, 1] */
    tg_smoothing smoothing_kind;
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
    double std;            /* 0: 0.02; leave it 0 where no weight is drawn */
    int strides;           /* partition strides: 2 for gate and up, 3 for q, k, v; 0: 1 */
    bool gather_output;    /* column: [.., out] I instead of [.., out/n] V */
    bool input_is_whole;   /* row: x is I and is scattered here; not with sequence parallelism */
    bool skip_bias_add;    /* leave the bias to a fused op: tg_module_find(m, "bias") */
    tg_tensor *weight;     /* tied: [out/n, in] or [out, in/n]; NULL: the layer's own */
    bool no_weight;        /* no weight is made: each call must give one (tg_plinear_apply) */
    bool no_init;          /* zeros; placements and attributes are set all the same */
    bool no_dgrad_reduce;  /* column: the input's gradient stays PARTIAL, and the caller reduces it */
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
TG_API tg_status tg_wgrads_drain(tg_module *m); /* tg_wgrads_run of each linear in m */

#ifdef __cplusplus
}
#endif

#endif
