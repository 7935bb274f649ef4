/* Language models. A model is a decoder of transformer layers; its config chooses the kinds of norm, activation,
 * positions and attention. A module is the whole model, or one part of it in a pipeline. Include this header to build a
 * model from options, or to train a model in stages. gpt.h has two configs of such models, GPT-2 and Llama.
 *
 * Letters in shapes: b is the batch, s the sequence, h the hidden size, v the vocabulary with its padding. */
#ifndef TAPEGRAD_LM_H
#define TAPEGRAD_LM_H

#include <tapegrad/context_parallel.h>
#include <tapegrad/nn.h>
#include <tapegrad/ops.h>
#include <tapegrad/optim.h>
#include <tapegrad/parallel.h>
#include <tapegrad/pipe.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- The config ---- */

/* Which activations backward computes again instead of keeping them. Unless the value is TG_GPT_KEEP, the module must
 * live until the tape is reset, because backward runs its layers again. */
typedef enum tg_gpt_recompute {
    TG_GPT_KEEP,      /* none: all activations are kept */
    TG_GPT_FULL,      /* all activations of every layer; only the input of each layer is kept */
    TG_GPT_SELECTIVE, /* only the results of norms before attention and MLP, and of the MLP's activation function */
    /* As TG_GPT_FULL, but each tp rank keeps only its own part of the input of a layer. This is TG_GPT_FULL if tp is 1,
     * and with sequence parallelism, where a rank has only a part of the input anyway. */
    TG_GPT_DISTRIBUTED,
} tg_gpt_recompute;

/* When the weight gradients of the attention and MLP projections are computed.
 *
 * TG_WGRAD_FUSED and TG_WGRAD_PLAIN run the same code and give the same bits. Backward adds each weight gradient
 * straight into the gradient of the weight, which is its main gradient if it has one (tg_set_main_grad). If tp is above
 * 1, it does so while ranks communicate the gradient of the input. There are two names for the sake of programs ported
 * from Megatron-Core, where the option gradient_accumulation_fusion selects one of two code paths. */
typedef enum tg_gpt_wgrad {
    TG_WGRAD_FUSED,    /* in backward */
    TG_WGRAD_PLAIN,    /* the same as TG_WGRAD_FUSED */
    TG_WGRAD_DEFERRED, /* when tg_wgrads_drain is called on the model (tensor_parallel.h), also at tp 1 */
} tg_gpt_wgrad;

typedef enum tg_lm_norm {
    TG_LM_RMS_NORM,
    TG_LM_LAYER_NORM,
    TG_LM_PLAIN_LAYER_NORM, /* a layer norm without parameters (OLMo, arXiv 2402.00838) */
} tg_lm_norm;

/* Where a layer has norms. x is the residual, and f attention or the MLP. */
typedef enum tg_lm_norm_place {
    TG_LM_NORM_BEFORE, /* x + f(norm(x)) */
    TG_LM_NORM_AFTER,  /* x + norm(f(x)) (OLMo 2, arXiv 2501.00656) */
    TG_LM_NORM_AROUND, /* x + norm(f(norm(x))) (Gemma 2, arXiv 2408.00118) */
} tg_lm_norm_place;

/* RMS norms of queries and keys, before they are rotated. */
typedef enum tg_lm_qk_norm {
    TG_LM_NO_QK_NORM,
    TG_LM_QK_NORM_OF_HEADS, /* of each head, with one weight [head_dim] for all heads (Qwen3, arXiv 2505.09388) */
    /* of all heads of a token at once, with weights [heads * head_dim] and [kv_heads * head_dim] (OLMo 2). tp must be 1
     * (TG_ERR_UNSUPPORTED). */
    TG_LM_QK_NORM_OF_PROJECTIONS,
} tg_lm_qk_norm;

typedef enum tg_lm_activation {
    TG_LM_SWIGLU,    /* silu(gate) * up */
    TG_LM_GELU_TANH, /* gelu_tanh(up): no gate */
    TG_LM_GEGLU_TANH /* gelu_tanh(gate) * up */
} tg_lm_activation;

typedef enum tg_lm_positions {
    TG_LM_ROTARY,      /* tg_rope_with of queries and keys */
    TG_LM_LEARNED,     /* a table of `positions` rows, added to the embedding of the ids */
    TG_LM_NO_POSITIONS /* none; the causal mask alone tells positions apart */
} tg_lm_positions;

/* How attention is computed. Both ways give the same result within rounding. Dropout drops the same weights in both. */
typedef enum tg_lm_backend {
    TG_LM_FUSED,   /* tg_attention, which never stores the scores as a whole */
    TG_LM_COMPOSED /* products, a mask, softmax and dropout, each an op of its own; stores the scores */
} tg_lm_backend;

/* The configuration of a language model. Sizes are 1 or more. A field that takes TG_AUTO or TG_NONE has it by default;
 * an enum has its first value, and a bool is false. Values that are out of range, or that do not fit together, fail
 * with TG_ERR_ARGUMENT unless another error is named. */
typedef struct tg_lm_config {
    size_t size;
    int64_t vocab, layers, heads, hidden, positions; /* positions: longest sequence. All five must be given */
    int64_t kv_heads; /* heads of keys and values, a divisor of heads; TG_AUTO means heads */
    int64_t head_dim; /* size of a head; TG_AUTO means hidden / heads */
    /* Hidden size of the MLP. TG_AUTO means 4 * hidden with TG_LM_GELU_TANH, and 8/3 * hidden rounded up to a multiple
     * of 64 with TG_LM_SWIGLU and TG_LM_GEGLU_TANH. */
    int64_t ffn;
    /* The family of published models after which the parameters are named. It is the model_type of Hugging Face
     * transformers, one of those that tg_lm_family lists. NULL means "llama". The family changes no other field;
     * tg_lm_family_config and tg_lm_from_config set the other fields of a published model. "gpt2" has q, k and v in one
     * projection, so kv_heads must be heads and head_dim must be hidden / heads. */
    const char *family;
    tg_lm_norm norm;
    tg_lm_norm_place norm_place;
    bool unit_norm; /* the factor of an RMS norm is 1 + weight (Gemma); needs TG_LM_RMS_NORM */
    tg_lm_qk_norm qk_norm;
    tg_lm_activation activation;
    /* A layer computes x + attention(norm(x)) + mlp(norm(x)), with one norm for both (Phi). Needs TG_LM_NORM_BEFORE. */
    bool parallel_residual;
    bool bias;                         /* sets qkv_bias, out_bias and mlp_bias */
    bool qkv_bias, out_bias, mlp_bias; /* biases of queries, keys and values; of attention's output; of the MLP */
    bool head_bias;                    /* bias of the output matrix; needs tied false, and tp 1 (TG_ERR_UNSUPPORTED) */
    bool tied;                         /* the output matrix is the embedding matrix */
    double norm_eps; /* above 0; TG_AUTO means 1e-6 with TG_LM_RMS_NORM and 1e-5 with the other norms */
    /* Probabilities of dropout, in [0, 1). `dropout` is that of the residual, 0 by default. embed_dropout is that of
     * the embedding and attention_dropout that of the attention weights; for both TG_AUTO means the value of
     * `dropout`. */
    double dropout, embed_dropout, attention_dropout;
    /* Factor of the rows of the embedding, finite and not 0; 1 by default. It is rounded to the embedding's dtype. */
    double embed_scale;
    double attention_scale;   /* factor of the scores, above 0; TG_AUTO means 1 / sqrt(head_dim) */
    double attention_softcap; /* soft cap of the scores (tg_attention), above 0; TG_NONE means none */
    double logit_softcap;     /* logits become softcap * tanh(logits / softcap); above 0; TG_NONE means none */
    double clip_qkv;          /* queries, keys and values are clamped to [-clip_qkv, clip_qkv]; TG_NONE: no bound */
    /* Number of tokens to which a query of windowed attention attends, including its own; 1 or more. TG_NONE means that
     * no layer has a window. */
    int64_t window;
    /* The kinds of attention of the layers, one letter for each layer. If there are fewer letters than layers, they are
     * repeated: "wf" alternates. NULL means "w" if `window` is given, and "f" otherwise. Copied.
     * - f: a token attends to itself and to all tokens before it.
     * - w: the same, but only within `window`, which must be given.
     * - F and W: the same as f and w, but without rotary positions; they need TG_LM_ROTARY. */
    const char *attention_kinds;
    tg_lm_positions position_kind;
    /* The options of rope are for TG_LM_ROTARY. With other positions they must keep their defaults. */
    double rope_base;   /* above 0; 10000 by default */
    int64_t rope_dims;  /* elements of a head that are rotated, an even number; TG_AUTO means head_dim */
    /* How frequencies are changed for longer sequences, as `kind`, `factor`, `low`, `high` and `original` of
     * tg_rope_opts say. TG_ROPE_PLAIN by default. An option that the kind does not use must keep its default. */
    tg_rope_kind rope_kind;
    double rope_factor, rope_low, rope_high;
    int64_t rope_original;
    double rope_gain;       /* of TG_ROPE_YARN: above 0; TG_AUTO means 0.1 ln(rope_factor) + 1, at least 1 */
    double rope_local_base; /* base of the plain rope of layers with a window; TG_AUTO means the rope of other layers */
    /* Standard deviation of the initial weights, above 0; 0.02 by default. Projections whose output is added to the
     * residual have init_std / sqrt(2 * layers) instead (Radford et al., 2019). */
    double init_std;
    /* Number of depths of multi-token prediction (DeepSeek-AI, arXiv 2412.19437, section 2.2), 0 to 64, and the weight
     * of their losses. Depth d, from 1, predicts at each position the token d + 1 ahead. Its inputs are the embedding
     * of the token d ahead and the output of depth d - 1 or, for depth 1, of the model's last norm. mtp_weight is above
     * 0; 0.1 by default. */
    int mtp;
    double mtp_weight;
    /* Hidden size, above 0, of the base model of the maximal update parametrization (Yang et al., arXiv 2203.03466).
     * TG_NONE means that the parametrization is not used. With m = hidden / mup_base, the initial weights of the
     * layers' matrices are divided by sqrt(m), the logits by m, and TG_AUTO in attention_scale means 1 / head_dim in
     * place of 1 / sqrt(head_dim). tg_lm_groups divides the learning rate of the layers' matrices by m. */
    double mup_base;
    tg_gpt_recompute recompute;
    tg_gpt_wgrad wgrad;
    tg_lm_backend backend; /* must be TG_LM_FUSED if cp is above 1 (TG_ERR_UNSUPPORTED) */
    /* How the ranks of cp exchange keys and values (context_parallel.h); TG_CP_RING by default. With TG_CP_HIERARCHY
     * cp_inner is the number of ranks of a group, a divisor of cp, and TG_AUTO means all ranks. Other kinds need
     * TG_AUTO. */
    tg_cp_kind cp_kind;
    int cp_inner;
    /* The grid of ranks, which must outlive the model. NULL means one rank. The weights are sharded over tp. heads and
     * ffn must be multiples of tp; kv_heads must be a multiple of tp or divide tp (TG_ERR_SHAPE). If the family has
     * queries, keys and values in one matrix, tp above 1 needs kv_heads = heads (TG_ERR_UNSUPPORTED). With
     * TG_RNG_MEGATRON and tp above 1, call tg_rng_seed_parallel before you create the model (TG_ERR_STATE). If tp is
     * above 1, the vocabulary is padded internally to a multiple of 128 * tp; the padding does not change results.
     *
     * If cp is above 1, each rank has its rows of every sequence: ids and targets [b, s / cp] are zigzag shards, placed
     * TG_SHARD_ZIGZAG(1) on cp (tg_context_cut lists the rows), and so are the results of the model. s is a multiple of
     * 2 cp. */
    const tg_parallel *parallel;
    /* How the model is cut into the parts of a pipeline, such as "E t*3|t*4|t*4|t L". E is the embedding, t a layer,
     * t*3 three layers, m a depth of multi-token prediction, L the last norm, the output matrix and the loss. They
     * stand in the order E, t, m, L, and m is in the part of L. "|" begins the next part. There are pp * vp parts; part
     * i is chunk i / pp of stage i mod pp. Without `parallel` the model may have any number of parts, which are all
     * chunks of this one rank.
     *
     * NULL means pp * vp parts with equal numbers of layers, so `layers` must be a multiple of pp * vp. If it is not,
     * or if the layout is not valid, the call fails with TG_ERR_ARGUMENT, and the message has a valid one if there is
     * one. If pp is 1, a model that is tied or has mtp must be one part (TG_ERR_UNSUPPORTED). Copied. */
    const char *layout;
    int chunk; /* which chunk of this rank's stage the module is, from 0; 0 by default */
    /* A key (tg_key_open) that the model opens around its own keys. TG_NONE means none. The model opens its own keys to
     * draw weights and dropout. They are l for layer l, from 0, 2^32 for the embeddings, 2^32 + 1 for the output
     * matrix, and 2^33 + d for depth d, from 1, of multi-token prediction. Two models of one context would draw the
     * same numbers with the same key. So they need different values of this field, or a tg_draws_step between their
     * draws (TG_ERR_STATE). The chunks of one model need the same value.
     *
     * A program that trains with dropout calls tg_draws_step before each step. If a step has several micro-batches, the
     * program also calls tg_tape_key before it records each of them, except with tg_lm_part, which makes this call. */
    uint64_t key;
    /* Other members of config.json: a JSON object, as text. tg_lm_save writes them back. NULL means none. Copied. */
    const char *extra;
    /* The model is created without initial weights: its matrices have no memory until tg_lm_load or tg_lm_map fills
     * them, so that a model which is loaded is in memory only once. Any other use of the matrices before that fails
     * with TG_ERR_STATE. Norms and biases have their usual values. Has no effect on device "meta". */
    bool unfilled;
} tg_lm_config;

#define TG_LM_DEFAULTS                                                                                            \
    .size = sizeof(tg_lm_config), .kv_heads = TG_AUTO, .head_dim = TG_AUTO, .ffn = TG_AUTO, .norm_eps = TG_AUTO,  \
    .embed_dropout = TG_AUTO, .attention_dropout = TG_AUTO, .embed_scale = 1, .attention_scale = TG_AUTO,         \
    .attention_softcap = TG_NONE, .logit_softcap = TG_NONE, .clip_qkv = TG_NONE, .window = TG_NONE,               \
    .rope_base = 10000, .rope_dims = TG_AUTO, .rope_factor = 1, .rope_low = 1, .rope_high = 4,                    \
    .rope_gain = TG_AUTO, .rope_local_base = TG_AUTO, .init_std = 0.02, .mtp_weight = 0.1, .mup_base = TG_NONE,   \
    .cp_inner = TG_AUTO, .key = (uint64_t)TG_NONE
#define TG_LM(...) (&(tg_lm_config){TG_LM_DEFAULTS, __VA_ARGS__})

/* Creates a language model with random weights, or the part of it that chunk config->chunk of this rank's stage is.
 * Copies the config, which must not be NULL (TG_ERR_ARGUMENT). Returns an inert module on an error. tg_module_free
 * releases the model.
 *
 * A part has only its own layers, but under the names that they have in the whole model: a part that begins with layer
 * 6 has "model.layers.6.mlp.up_proj.weight". So the parts of any layout read and write one checkpoint. If the model is
 * tied or has mtp, and the embedding and the output matrix are in different parts, the last part has a copy of the
 * embedding matrix, under the name that the matrix has in the first part.
 *
 * The forward of a whole model (tg_module_forward) takes ids [b, s] and returns the logits [b, s, vocab]. */
TG_API tg_module *tg_lm_new(tg_ctx *ctx, const tg_lm_config *config);
/* Returns the config; NULL if the module is not a language model. A GPT (gpt.h) is one. In kv_heads, head_dim, ffn,
 * rope_dims, norm_eps and the dropouts TG_AUTO is replaced by its meaning. The config lives as long as the module. */
TG_API const tg_lm_config *tg_lm_config_of(const tg_module *lm);
/* Returns the i-th published family (model_type) whose names and config.json the library knows, from 0; NULL if there
 * is none. */
TG_API const char *tg_lm_family(int i);
/* Turns *c, which TG_LM has initialized, into the config of a new model of a published family. Sets what defines the
 * family, such as the kinds of norms, activation, positions and attention, biases, soft caps and rope, to what is usual
 * in it. Only these fields stay as they are: the sizes, which must be set before the call; the probabilities of
 * dropout; mtp, mtp_weight and mup_base; and the fields that tg_lm_from_config takes from `with`. The layers with
 * windows are those of the published models; a window is half of `positions`, and at most 4096. c->attention_kinds and
 * c->extra are then NULL or texts of the library. For some families c->extra makes config.json say that there is no
 * padding token. Fails with TG_ERR_ARGUMENT if tg_lm_family does not list the family. */
TG_API tg_status tg_lm_family_config(tg_ctx *ctx, const char *family, tg_lm_config *c);

/* Returns the embedding matrix if the part has the embedding, else the output matrix if the part is the last one, else
 * NULL. A tied model whose first and last parts differ has this matrix twice (Megatron-Core's
 * shared_embedding_or_output_weight). Returns NULL if the module is not a language model, and on an error. The module
 * owns the matrix. */
TG_API tg_tensor *tg_lm_embedding_or_output_weight(tg_module *lm);

/* ---- Parts ---- */

/* Runs this part for one micro-batch; a tg_pipe_fn (pipe.h) calls it. ids and targets are arrays of 1 + mtp tensors,
 * each int64 [b, s]. ids[0] are the tokens, and ids[d] the tokens d ahead; targets[0] are the tokens 1 ahead, and
 * targets[d] those d + 1 ahead. If cp is above 1, shift the whole sequence first and then cut it: the next token of a
 * row may be on another rank. A target of -100, for example after the end of the sequence, does not count. ids must be
 * valid tokens even there.
 *
 * - The first part reads ids[0].
 * - positions is NULL if the positions of every sequence are 0, 1, 2 and so on. int64 [s] gives the position of each
 *   column of ids. Only the first part reads it, and the model must have learned positions (TG_ERR_UNSUPPORTED). int64
 *   [b, s] gives the positions of packed documents, as in tg_lm_packed_logits. All parts need it, and any model takes
 *   it. Where ids[d] or targets[d] reaches into the next document, set targets[d] to -100.
 * - All parts but the first take hidden states c->input[0], and all but the last give c->out[0]. Both are [s, b, h],
 *   where s is the number of rows on this rank. A pipe declares them as its one tg_pipe_edge. Parts between the first
 *   and the last read neither ids nor targets, which may then be NULL.
 * - The last part gives the sum of the losses of all tokens (tg_grads_finalize divides), plus the losses of multi-token
 *   prediction, which read ids[1] and so on. If targets is NULL, it gives the logits, [s, b, v]. If tp is above 1, the
 *   logits are sharded over tp along the last dim, as tg_lm_loss takes them.
 *
 * Without a pipe, a program fills in tape, micro, input and out of c itself. */
TG_API tg_status tg_lm_part(tg_module *lm, tg_pipe_call *c, tg_tensor *const *ids, tg_tensor *const *targets,
                            tg_tensor *positions);

/* ---- Packed documents ----
 *
 * A sequence may have several documents, one after the other, each of which attends to itself alone (sequence packing:
 * Krell et al., arXiv 2107.02027). */

/* Returns the logits [b, s, vocab] of ids [b, s], as tg_gpt_logits does (gpt.h), for a whole model. positions [b, s],
 * int64, has the position of each token in its document: 0 where a document begins, and then one more for each token. A
 * sequence whose first position is above 0 begins within a document. A token attends to itself and to the tokens before
 * it that are of its document and within the layer's window. Rotary and learned positions are those given. So each
 * document has, within rounding, the logits that it has alone. A learned position that the model does not have fails
 * with TG_ERR_DATA.
 *
 * positions must be placed like ids. If cp is above 1, each rank has the positions of its chunks (context_parallel.h);
 * documents need not begin where chunks do. Otherwise each rank has those of whole sequences, with sequence parallelism
 * too. Fails with TG_ERR_UNSUPPORTED if a layer or the attention of one is not the library's own
 * (tg_module_replace). */
TG_API tg_tensor *tg_lm_packed_logits(tg_module *lm, tg_tape *t, tg_tensor *ids, tg_tensor *positions);
/* Returns the cross-entropy of the logits of tg_lm_packed_logits with target [b, s], as tg_gpt_loss does. The target of
 * the last token of a document should be -100, because the token after it is of another document. */
TG_API tg_tensor *tg_lm_packed_loss(tg_module *lm, tg_tape *t, tg_tensor *ids, tg_tensor *positions, tg_tensor *target,
                                    tg_loss_reduction reduction);

/* ---- Loss ---- */

/* Returns the cross-entropy of logits for labels [b, s] int64. logits are what tg_lm_part gives without targets: [s, b,
 * vocab] or, if tp is above 1, this rank's contiguous shard of [s, b, v], v being the vocabulary with its padding.
 * TG_LOSS_MEAN and TG_LOSS_SUM return a scalar, the mean or the sum over all tokens that count. TG_LOSS_NONE returns
 * the loss of each token, [b, s]. A token whose label is -100 does not count: its loss is 0. Any other label outside
 * [0, vocab) fails with TG_ERR_DATA. If a part of the batch is on other ranks, tg_gpt_loss (gpt.h) says which reduction
 * to use.
 *
 * If tp is above 1, logits that were gathered fail with TG_ERR_PLACEMENT. Only the vocabulary and the grid of lm
 * matter: the logits may be those of another model, and lm may be any part of a model. Logits of tg_gpt_logits, [b, s,
 * vocab], must be transposed. */
TG_API tg_tensor *tg_lm_loss(tg_module *lm, tg_tape *t, tg_tensor *logits, tg_tensor *labels,
                             tg_loss_reduction reduction);

/* ---- Multi-token prediction ---- */

/* Says how many targets count (are not -100) in each of the next steps, over all micro-batches and ranks. tokens has
 * mtp + 1 elements: tokens[d] is the number in targets[d] of tg_lm_part, 0 or more (TG_ERR_ARGUMENT). The sum of the
 * losses of depth d >= 1 then has the weight mtp_weight / mtp * tokens[0] / tokens[d]. When tg_grads_finalize divides
 * all gradients by tokens[0], each depth has the gradient of its mean loss times mtp_weight / mtp. A depth without
 * tokens weighs 0. The numbers hold until the next call. Until the first call all depths count as having equally many.
 * Has no effect on a part that does not have the output matrix. Call it before the first forward of a step. */
TG_API tg_status tg_lm_set_tokens(tg_module *lm, const int64_t *tokens);

/* ---- Learning rates ---- */

/* Learning rates of the groups of parameters. All rates are finite and 0 or more (TG_ERR_ARGUMENT). */
typedef struct tg_lm_rates {
    size_t size;
    double lr, min_lr;             /* of all parameters but embeddings and the output matrix; lr must be above 0 */
    double embed_lr, embed_min_lr; /* of embeddings and the output matrix; TG_AUTO, the default, means lr or min_lr */
    /* Weight decay of matrices and embeddings, 0 or more; TG_AUTO, the default, means that of the optimizer's group 0.
     * Vectors (norms and biases) have none. */
    double weight_decay;
    /* The warm-up, and the decay of a rate to its minimum. Each group of parameters has a copy of the schedule, in
     * which lr and min_lr are replaced by the group's rate and minimum, and start_lr is scaled by the ratio of the new
     * lr to the old one. NULL means constant rates; both minimums must then be 0 (TG_ERR_ARGUMENT). tg_optim_set_lr
     * never changes the rates of these groups. */
    const tg_schedule *schedule;
} tg_lm_rates;
#define TG_LM_RATES_DEFAULTS                                                                           \
    .size = sizeof(tg_lm_rates), .embed_lr = TG_AUTO, .embed_min_lr = TG_AUTO, .weight_decay = TG_AUTO
#define TG_LM_RATES(...) (&(tg_lm_rates){TG_LM_RATES_DEFAULTS, __VA_ARGS__})

/* Adds groups to o, and moves into them those parameters of o that belong to the n modules lm[n]. There are up to three
 * groups: embeddings and the output matrix with rates of their own, all other matrices, and vectors without weight
 * decay. A group without parameters is not added. With mup_base the rate, its minimum and Adam's eps of the group of
 * other matrices are divided by the m of tg_lm_config.mup_base. If m is not 1, o must be Adam or AdamW
 * (TG_ERR_ARGUMENT). Parameters of o that do not belong to these modules stay in their groups. r, which is copied with
 * its schedule, must not be NULL (TG_ERR_ARGUMENT). */
TG_API tg_status tg_lm_groups(tg_module *const *lm, int n, tg_optim *o, const tg_lm_rates *r);

/* ---- Files ----
 *
 * The weights of a model are in one file, model.safetensors, or in several files and an index of them,
 * model.safetensors.index.json, as Hugging Face transformers writes them. tg_lm_load, tg_lm_map and tg_lm_save take an
 * array lm of all n modules that this rank has of one model: the whole model, or the chunks of its stage. tg_lm_save is
 * collective over the ranks of the model, and tg_lm_load and tg_lm_map over pp if pp is above 1. */

/* Creates the model that the config.json at path describes, with random weights. `with` (may be NULL) gives what a file
 * does not say: recompute, wgrad, backend, cp_kind, cp_inner, parallel, layout, chunk, key and unfilled; its other
 * fields are ignored. Returns an inert module on an error.
 *
 * The families are those of tg_lm_family. Fails with TG_ERR_UNSUPPORTED for another model_type, and for a member that
 * changes numbers in a way that the library does not compute; the message names it. Other members are kept (extra). */
TG_API tg_module *tg_lm_from_config(tg_ctx *ctx, const char *path, const tg_lm_config *with);
/* Creates the model that config.json in dir describes, as tg_lm_from_config does, and fills it as tg_lm_load does. If
 * this rank has several chunks, create each by tg_lm_from_config and fill all of them by one tg_lm_load instead. */
TG_API tg_module *tg_lm_load_dir(tg_ctx *ctx, const char *dir, const tg_lm_config *with);
/* Fills the modules from the weights in dir. Each rank reads the tensors of its own layers, and keeps its part of them.
 * Floats are converted to the dtype of the parameter. If dir has both model.safetensors and an index, reads
 * model.safetensors.
 *
 * Makes these checks before it changes any module. A tensor that is missing, or that no part of the model has, fails
 * with TG_ERR_FORMAT. Constants that published files contain, such as causal masks, are skipped. A tensor whose shape
 * is not that of the parameter fails with TG_ERR_SHAPE. If a file has checksums (io.h), a damaged tensor fails with
 * TG_ERR_DATA. */
TG_API tg_status tg_lm_load(tg_module *const *lm, int n, const char *dir);
/* Does what tg_lm_load does, but maps the files into memory instead of copying them. The system reads a page of a file
 * when the page is first used, can drop it and read it again, and shares it between processes. A page that is written
 * becomes the process's own. Files that have checksums are read once by the call, which compares them; others can be
 * used at once. tg_lm_map is meant for frozen parameters, as with lora.h, and for evaluation.
 *
 * In these cases a parameter is copied nevertheless:
 * - its dtype or the order of its dims differs from the file's, as in the projections of GPT-2;
 * - the file has the tensor at an offset that is not a multiple of its element size;
 * - this rank has only a part of it;
 * - its bytes are pinned or exported (handles.h, dlpack.h), or lie in a larger buffer, such as that of a tg_flat
 *   (flat.h);
 * - the device's memory is not host memory;
 * - the program has file functions of its own (tg_file_ops).
 *
 * The files must stay as they are while the model lives. To change a file, write a new one and rename it, as tg_lm_save
 * does. If a file becomes shorter, the system sends SIGBUS when a missing page is used. The signal ends the program
 * unless a handler calls tg_mapping_fault (io.h). */
TG_API tg_status tg_lm_map(tg_module *const *lm, int n, const char *dir);

/* Returns whether tg_lm_save writes config.json for the model. It does if the format of the model's family can describe
 * the model. Returns false if the module is not a language model. */
TG_API bool tg_lm_has_config(const tg_module *lm);

typedef struct tg_lm_save_opts {
    size_t size;
    /* Limit on the bytes of the tensors in one file, 1 or more; 5e9 by default. A larger tensor gets a file of its
     * own. */
    int64_t file_bytes;
} tg_lm_save_opts;
#define TG_LM_SAVE_DEFAULTS .size = sizeof(tg_lm_save_opts), .file_bytes = 5000000000
#define TG_LM_SAVE(...) (&(tg_lm_save_opts){TG_LM_SAVE_DEFAULTS, __VA_ARGS__})

/* Saves the weights into dir, which must exist, and config.json if the format of the family can describe the model
 * (tg_lm_has_config). It can for every model of tg_lm_from_config. The matrices of adapters (lora.h) are left out.
 * Whole tensors are written, without padding, so any other composition of ranks and stages can load them. A model of
 * one stage whose tensors fit into one file is saved as model.safetensors. Otherwise the first rank of each stage
 * writes the files of the stage, and there is an index.
 *
 * The new files get their names only when all files of all stages are complete. First an old config.json is removed,
 * and an old index too if there are several new files. Then the new files get their names, and the other files of the
 * old model are removed. config.json is written last. So a program that reads dir at any time, or after a failure,
 * finds the old model, the new one, or none. opts may be NULL. */
TG_API tg_status tg_lm_save(tg_module *const *lm, int n, const char *dir, const tg_lm_save_opts *opts);

#ifdef __cplusplus
}
#endif

#endif
