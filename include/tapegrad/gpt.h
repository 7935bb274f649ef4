/* GPT models: the layers, the model, generation, and model directories. */
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

/* What is computed again in backward instead of being kept. The module then lives until the tape's reset. */
typedef enum tg_gpt_recompute {
    TG_GPT_KEEP,        /* nothing */
    TG_GPT_FULL,        /* every layer */
    TG_GPT_SELECTIVE,   /* the results of norms and of the MLP's activation */
    TG_GPT_DISTRIBUTED, /* every layer, whose input is kept as this tp rank's part */
} tg_gpt_recompute;

/* How tensor-parallel layers make their weights' gradients. */
typedef enum tg_gpt_wgrad {
    TG_WGRAD_FUSED,    /* added straight into the weight's main gradient, while the input's is on its way */
    TG_WGRAD_PLAIN,    /* as every op's */
    TG_WGRAD_DEFERRED, /* when tg_wgrads_drain is called */
} tg_gpt_wgrad;

/* GPT2: LayerNorm, GELU (tanh), learned positions, biases, tied output. LLAMA: RMSNorm, SwiGLU, RoPE, grouped-query,
 * no biases, untied output. */
typedef struct tg_gpt_config {
    size_t size;
    tg_gpt_arch arch;
    int64_t vocab, layers, heads, hidden; /* must be given */
    int64_t kv_heads;  /* 0: heads; LLAMA only */
    int64_t ffn;       /* 0: 4 hidden (GPT2), 8/3 hidden rounded up to 64 (LLAMA) */
    int64_t positions; /* the longest sequence; must be given */
    int64_t head_dim;  /* 0: hidden / heads; LLAMA only */
    double dropout;    /* embedding, attention and residual; GPT2 only; TG_RNG_MEGATRON: seed ranks before */
    double norm_eps;   /* 0: 1e-5 (GPT2), 1e-6 (LLAMA) */
    double rope_base;  /* 0: 10000; LLAMA only */
    double init_std;   /* 0: 0.02; residual projections get std / sqrt(2 layers) */
    bool untied;       /* GPT2 with an output matrix of its own; GPT2 only */
    bool tied;         /* LLAMA with the embedding as output; LLAMA only */
    tg_gpt_recompute recompute;
    tg_gpt_wgrad wgrad;
    /* Shards the model over its tp, and places its parameters on every axis; heads and ffn are divisible by tp. The
     * vocabulary is padded to a multiple of 128 tp inside, so that every tp gives one rank's numbers; where kv_heads is
     * smaller than tp, which it then divides, keys and values are replicated. tg_gpt_new fails with TG_ERR_UNSUPPORTED
     * if pp is above 1. */
    const tg_parallel *parallel;
} tg_gpt_config;

#define TG_GPT(...) (&(tg_gpt_config){.size = sizeof(tg_gpt_config), __VA_ARGS__})

/* One layer's parts, of a GPT's config (layers scales the residual projections): x [s, b, h] -> [s, b, h]. */
TG_API tg_module *tg_nn_attention(tg_ctx *ctx, const tg_gpt_config *config);
TG_API tg_module *tg_nn_mlp(tg_ctx *ctx, const tg_gpt_config *config);
TG_API tg_module *tg_nn_transformer_layer(tg_ctx *ctx, const tg_gpt_config *config);

TG_API tg_module *tg_gpt_new(tg_ctx *ctx, const tg_gpt_config *config);
TG_API const tg_gpt_config *tg_gpt_config_of(const tg_module *gpt); /* completed; NULL for another module */
/* ids [b, s] int64 -> logits [b, s, vocab], whole on every tp rank, without the columns of padding. An id outside
 * [0, vocab) is TG_ERR_DATA, whatever tp. ids are the same on every tp rank, and so declared: tg_place(p, ids, TG_TP,
 * TG_I). */
TG_API tg_tensor *tg_gpt_logits(tg_module *gpt, tg_tape *t, tg_tensor *ids);
/* ids and target [b, s] -> the sum or mean of the cross-entropy over all tokens, a scalar; with TG_LOSS_NONE that of
 * each token, [s, b]: the transpose of ids. Logits exist in chunks only. A target that is neither in [0, vocab) nor
 * -100, which is left out, is TG_ERR_DATA. With data-parallel ranks, each of which has its part of the batch, use the
 * sum, of which tg_grads_finalize makes a mean by the tokens of all ranks. The mean of a batch declared TG_SHARD(0) on
 * dp is refused (TG_ERR_PLACEMENT); of an undeclared one it is each rank's own, and the root of backward the sum of
 * these: gradients are then dp times those of one rank where all ranks have as many tokens, and weighted unevenly
 * where they do not. */
TG_API tg_tensor *tg_gpt_loss(tg_module *gpt, tg_tape *t, tg_tensor *ids, tg_tensor *target,
                              tg_loss_reduction reduction);

/* Generation with a key-value cache: one for each sequence batch, of 1 to the model's positions. On tensor-parallel
 * ranks each holds its heads, and all make the same calls. Sequence parallelism is refused (TG_ERR_STATE): one token
 * has no parts. Make such a model's groups without it. */
typedef struct tg_gpt_cache tg_gpt_cache;
TG_API tg_gpt_cache *tg_gpt_cache_new(tg_module *gpt, int64_t batch, int64_t positions);
TG_API void tg_gpt_cache_free(tg_gpt_cache *c);
TG_API int64_t tg_gpt_cache_length(const tg_gpt_cache *c);
/* ids [b, n]: the next n tokens, placed as those of tg_gpt_logits -> logits [b, vocab] of the last, whole on every rank
 * and without the columns of padding; no gradients. More than the cache has room for is TG_ERR_SHAPE. */
TG_API tg_tensor *tg_gpt_next(tg_module *gpt, tg_tape *t, tg_gpt_cache *c, tg_tensor *ids);

/* A model directory: config.json and model.safetensors with the names, layouts and keys of the published GPT-2 and
 * Llama checkpoints (Hugging Face transformers). Loading refuses missing, unknown and misshapen tensors, and damaged
 * ones where there are checksums (io.h), before it changes the model.
 *
 * What tg_gpt_save writes names its other half, for a program that wants to know whether the two belong together: the
 * weights' metadata "tapegrad.config" is the config as one line of JSON, and config.json's "tapegrad_weights_xxh64" is
 * the weights' "tapegrad.xxh64.header" (io.h). Loading compares neither; `tapegrad` warns where they differ. */
TG_API tg_module *tg_gpt_load(tg_ctx *ctx, const char *dir);
TG_API tg_module *tg_gpt_from_config(tg_ctx *ctx, const char *path); /* random weights; a config.json */
/* Fills gpt, of the same shapes, from such a directory; its config.json is not read. */
TG_API tg_status tg_gpt_load_weights(tg_module *gpt, const char *dir);
/* With ranks loading and saving are collective: every rank reads, the first of each replica writes. */
TG_API tg_status tg_gpt_save(tg_module *gpt, const char *dir);

#ifdef __cplusplus
}
#endif

#endif
