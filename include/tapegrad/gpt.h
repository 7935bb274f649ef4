/* GPT models: transformer layers, the language model, generation, and model directories. Include it to train or to
 * run a GPT-2 or Llama model. */
#ifndef TAPEGRAD_GPT_H
#define TAPEGRAD_GPT_H

#include <tapegrad/nn.h>
#include <tapegrad/ops.h>
#include <tapegrad/parallel.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- GPT ---- */

typedef enum tg_gpt_arch { TG_GPT2, TG_LLAMA } tg_gpt_arch;

/* Activations that backward computes again instead of keeping them. The module must then live until the tape is
 * reset. */
typedef enum tg_gpt_recompute {
    TG_GPT_KEEP,        /* none */
    TG_GPT_FULL,        /* those of every layer */
    TG_GPT_SELECTIVE,   /* the results of norms and of the MLP's activation */
    TG_GPT_DISTRIBUTED, /* those of every layer, whose input is kept as this tp rank's part */
} tg_gpt_recompute;

/* When the weight gradients of the attention and MLP projections are computed.
 *
 * FUSED and PLAIN run the same code and give the same bits: backward adds each weight gradient straight into the main
 * gradient of the weight (tg_set_main_grad), while ranks communicate the gradient of the input. Both exist so that a
 * program ported from Megatron-Core, which has two code paths (gradient_accumulation_fusion), keeps its option. */
typedef enum tg_gpt_wgrad {
    TG_WGRAD_FUSED,    /* in backward */
    TG_WGRAD_PLAIN,    /* the same as TG_WGRAD_FUSED */
    TG_WGRAD_DEFERRED, /* when tg_wgrads_drain is called on the GPT (tensor_parallel.h), also at tp 1 */
} tg_gpt_wgrad;

/* GPT2: LayerNorm, GELU (tanh), learned positions, biases, tied output matrix (Radford et al., 2019). LLAMA:
 * RMSNorm, SwiGLU, rotary positions, grouped-query attention, no biases, output matrix of its own (Touvron et al.,
 * arXiv 2307.09288). A field that is for the other architecture only must be 0 (TG_ERR_ARGUMENT). */
typedef struct tg_gpt_config {
    size_t size;
    tg_gpt_arch arch;
    int64_t vocab, layers, heads, hidden; /* sizes, 1 or more; must be given */
    int64_t kv_heads;  /* 0: heads; LLAMA only */
    int64_t ffn;       /* 0: 4 hidden (GPT2), 8/3 hidden rounded up to 64 (LLAMA) */
    int64_t positions; /* longest sequence; must be given */
    int64_t head_dim;  /* 0: hidden / heads; LLAMA only */
    double dropout;    /* in [0, 1), of embedding, attention and residual; GPT2 only. With TG_RNG_MEGATRON first call
                          tg_rng_seed_parallel */
    double norm_eps;   /* 0: 1e-5 (GPT2), 1e-6 (LLAMA) */
    double rope_base;  /* 0: 10000; LLAMA only */
    double init_std;   /* 0: 0.02; residual projections have std / sqrt(2 layers) */
    bool untied;       /* an output matrix of its own; GPT2 only */
    bool tied;         /* the embedding is the output matrix; LLAMA only */
    tg_gpt_recompute recompute;
    tg_gpt_wgrad wgrad;
    /* The grid of ranks, which must outlive the model; NULL: one rank. The model is sharded over tp, and its parameters
     * are placed on every axis. heads and ffn must be multiples of tp (TG_ERR_SHAPE). The vocabulary is padded to a
     * multiple of 128 tp inside; results are those of one rank. If kv_heads is smaller than tp it must divide tp, and
     * keys and values are replicated. tg_gpt_new fails with TG_ERR_UNSUPPORTED if pp is above 1. */
    const tg_parallel *parallel;
} tg_gpt_config;

#define TG_GPT(...) (&(tg_gpt_config){.size = sizeof(tg_gpt_config), __VA_ARGS__})

/* Create the parts of one layer from a GPT's config: x [s, b, hidden] -> the same shape, for sequence s and batch b.
 * config->layers scales the standard deviation of the residual projections. Inert on error. */
TG_API tg_module *tg_nn_attention(tg_ctx *ctx, const tg_gpt_config *config);
TG_API tg_module *tg_nn_mlp(tg_ctx *ctx, const tg_gpt_config *config);
TG_API tg_module *tg_nn_transformer_layer(tg_ctx *ctx, const tg_gpt_config *config);

/* Creates a GPT with random weights; the config is copied. Inert on error. tg_module_free releases it. */
TG_API tg_module *tg_gpt_new(tg_ctx *ctx, const tg_gpt_config *config);
/* Returns the config with its defaults filled in; NULL if the module is not a GPT. */
TG_API const tg_gpt_config *tg_gpt_config_of(const tg_module *gpt);
/* Computes ids [b, s] int64, s <= positions, -> logits [b, s, vocab], whole on every tp rank and without the columns of
 * padding. An id outside [0, vocab) fails with TG_ERR_DATA. ids must be the same on every tp rank, and be declared so:
 * tg_place(p, ids, TG_TP, TG_I). */
TG_API tg_tensor *tg_gpt_logits(tg_module *gpt, tg_tape *t, tg_tensor *ids);
/* Computes the cross-entropy for ids and target, both [b, s] int64: the sum or the mean over all tokens, a scalar; with
 * TG_LOSS_NONE the loss of each token, [s, b], the transpose of ids. The logits of a few tokens at a time are in
 * memory. A target -100 does not count. Any other target outside [0, vocab) fails with TG_ERR_DATA.
 *
 * On data-parallel ranks, each of which has a part of the batch, use the sum, and give tg_grads_finalize the number
 * of tokens, so that it divides by that of all ranks. The mean of a batch that is declared TG_SHARD(0) on dp fails
 * with TG_ERR_PLACEMENT. The mean of an undeclared batch is each rank's own, and backward takes the sum of these
 * means. Its gradients are dp times those of one rank if all ranks have equally many tokens, and unevenly weighted
 * otherwise. */
TG_API tg_tensor *tg_gpt_loss(tg_module *gpt, tg_tape *t, tg_tensor *ids, tg_tensor *target,
                              tg_loss_reduction reduction);

/* A key-value cache for generation: for one batch of sequences, with room for `positions` tokens each, from 1 to the
 * model's number of positions.
 * Tensor-parallel ranks each hold their heads, and all must make the same calls. tg_gpt_cache_new returns NULL on
 * error. It fails with TG_ERR_STATE under sequence parallelism, because a single token cannot be split: make the
 * groups of the model without it. tg_gpt_cache_length returns the number of positions in use. */
typedef struct tg_gpt_cache tg_gpt_cache;
TG_API tg_gpt_cache *tg_gpt_cache_new(tg_module *gpt, int64_t batch, int64_t positions);
TG_API void tg_gpt_cache_free(tg_gpt_cache *c);
TG_API int64_t tg_gpt_cache_length(const tg_gpt_cache *c);
/* Appends the next n tokens, ids [b, n], which are placed as those of tg_gpt_logits. Returns the logits [b, vocab]
 * of the last one, whole on every rank and without the columns of padding. Runs without gradients and dropout. More
 * tokens than the cache has room for fail with TG_ERR_SHAPE. */
TG_API tg_tensor *tg_gpt_next(tg_module *gpt, tg_tape *t, tg_gpt_cache *c, tg_tensor *ids);

/* Load or save a model directory: config.json and model.safetensors with the names, layouts and keys of the published
 * GPT-2 and Llama checkpoints (Hugging Face transformers). Loading refuses missing, unknown and misshapen tensors
 * before it changes the model, and also damaged ones if the file has checksums (io.h).
 *
 * The two files that tg_gpt_save writes name each other, for programs that check whether they belong together. The
 * metadata "tapegrad.config" of the weights is the config as one line of JSON. "tapegrad_weights_xxh64" in
 * config.json is "tapegrad.xxh64.header" of the weights (io.h). Loading compares neither; the program `tapegrad`
 * warns if they differ. */
TG_API tg_module *tg_gpt_load(tg_ctx *ctx, const char *dir);
/* Creates a GPT of the given config.json with random weights. Both return an inert module on error. */
TG_API tg_module *tg_gpt_from_config(tg_ctx *ctx, const char *path);
/* Fills gpt from the weights of such a directory, whose tensors have the same shapes. Does not read its config.json.
 * Every rank reads the file and keeps its part. */
TG_API tg_status tg_gpt_load_weights(tg_module *gpt, const char *dir);
/* Collective over the ranks of the model. The first rank writes. */
TG_API tg_status tg_gpt_save(tg_module *gpt, const char *dir);

#ifdef __cplusplus
}
#endif

#endif
