/* GPT models: GPT-2 and Llama as configs of the language model of lm.h, generation with a cache, and model directories.
 * Include this header to train or to run a GPT-2 or Llama model. */
#ifndef TAPEGRAD_GPT_H
#define TAPEGRAD_GPT_H

#include <tapegrad/lm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- GPT ---- */

typedef enum tg_gpt_arch { TG_GPT2, TG_LLAMA } tg_gpt_arch;

/* The configuration of a GPT.
 *
 * TG_GPT2 (Radford et al., 2019) has LayerNorm, GELU (tanh), learned positions and biases. Its output matrix is the
 * embedding matrix, unless `untied` is set. TG_LLAMA (Touvron et al., arXiv 2307.09288) has RMSNorm, SwiGLU, rotary
 * positions and grouped-query attention, and no biases. Its output matrix is separate from the embedding matrix, unless
 * `tied` is set.
 *
 * A field marked "GPT2 only" must keep its default for TG_LLAMA, and a field marked "LLAMA only" for TG_GPT2. If the
 * default is TG_AUTO, the number for which it stands is allowed too. A field out of its range fails with
 * TG_ERR_ARGUMENT, unless its comment names another error. */
typedef struct tg_gpt_config {
    size_t size;
    tg_gpt_arch arch;
    int64_t vocab, layers, heads, hidden; /* sizes, 1 or more; must be given */
    int64_t kv_heads;                     /* heads of keys and values, a divisor of heads; TG_AUTO: heads; LLAMA only */
    /* Hidden size of the MLP. TG_AUTO means 4 * hidden (GPT2), or 8/3 * hidden rounded up to a multiple of 64
     * (LLAMA). */
    int64_t ffn;
    int64_t positions; /* longest sequence; must be given */
    int64_t head_dim;  /* size of a head; TG_AUTO means hidden / heads; LLAMA only */
    /* Probability in [0, 1) of dropout of the embedding, of attention and of the residual; 0 by default; GPT2 only. */
    double dropout;
    double norm_eps;  /* above 0; TG_AUTO means 1e-5 (GPT2) or 1e-6 (LLAMA) */
    double rope_base; /* above 0; 10000 by default; LLAMA only */
    /* Standard deviation of the initial weights, above 0; 0.02 by default. Projections whose output is added to the
     * residual have init_std / sqrt(2 * layers) instead. */
    double init_std;
    bool untied; /* the output matrix is separate from the embedding matrix; GPT2 only */
    bool tied;   /* the output matrix is the embedding matrix; LLAMA only */
    tg_gpt_recompute recompute; /* which activations backward computes again (lm.h); TG_GPT_KEEP by default */
    tg_gpt_wgrad wgrad;         /* when weight gradients are computed (lm.h); TG_WGRAD_FUSED by default */
    tg_cp_kind cp_kind; /* how the ranks of cp exchange keys and values, as in tg_lm_config */
    int cp_inner;       /* as in tg_lm_config */
    /* The grid of ranks, which must outlive the model. NULL means one rank.
     *
     * The weights are sharded over tp; tg_module_replicate (nn.h) has placed the parameters on the other axes. heads
     * and ffn must be multiples of tp, and kv_heads a multiple or a divisor of tp; otherwise the call fails with
     * TG_ERR_SHAPE. If kv_heads is smaller than tp, every rank computes all keys and values and uses one head of them.
     * With TG_RNG_MEGATRON and tp above 1, the call fails with TG_ERR_STATE unless tg_rng_seed_parallel was called
     * before it. If tp is above 1, the vocabulary is padded internally to a multiple of 128 * tp; the padding does not
     * change results.
     *
     * If pp or vp is above 1, or if `layout` has several parts, the module is one part of the GPT: chunk number `chunk`
     * of this rank's stage. tg_lm_part (lm.h) runs a part. tg_gpt_logits, tg_gpt_loss and generation fail with
     * TG_ERR_STATE for it, because they need a whole model. */
    const tg_parallel *parallel;
    const char *layout; /* how the model is cut into parts, as in tg_lm_config; copied */
    int chunk;          /* as in tg_lm_config */
    uint64_t key;       /* key of the model's random draws, as in tg_lm_config; TG_NONE, the default, means none */
    bool unfilled;      /* weights get their memory when they are loaded, as in tg_lm_config */
} tg_gpt_config;

#define TG_GPT_DEFAULTS                                                                                           \
    .size = sizeof(tg_gpt_config), .kv_heads = TG_AUTO, .ffn = TG_AUTO, .head_dim = TG_AUTO, .norm_eps = TG_AUTO, \
    .rope_base = 10000, .init_std = 0.02, .cp_inner = TG_AUTO, .key = (uint64_t)TG_NONE
#define TG_GPT(...) (&(tg_gpt_config){TG_GPT_DEFAULTS, __VA_ARGS__})

/* Create one module of a GPT from the GPT's config: an attention, an MLP, or a whole transformer layer. The module's
 * forward takes x [s, b, hidden] (s is the sequence, b the batch) and returns a tensor of the same shape. Under
 * sequence or context parallelism s is the number of rows on this rank. config->layers only scales the initial weights
 * of the residual projections (init_std), and pp and vp of config->parallel have no effect.
 *
 * Fail with TG_ERR_ARGUMENT if layout, chunk, key or unfilled does not have its default, or if recompute is neither
 * TG_GPT_KEEP nor, for the MLP and the layer, TG_GPT_SELECTIVE. On an error the functions return an inert module. */
TG_API tg_module *tg_nn_attention(tg_ctx *ctx, const tg_gpt_config *config);
TG_API tg_module *tg_nn_mlp(tg_ctx *ctx, const tg_gpt_config *config);
TG_API tg_module *tg_nn_transformer_layer(tg_ctx *ctx, const tg_gpt_config *config);

/* Creates a GPT with random weights, or without weights if config->unfilled is set. Copies the config. Fails with
 * TG_ERR_ARGUMENT if the config is NULL. Returns an inert module on an error. tg_module_free releases the GPT. A GPT is
 * a language model, so the functions of lm.h take it too. */
TG_API tg_module *tg_gpt_new(tg_ctx *ctx, const tg_gpt_config *config);
/* Returns the config, with kv_heads, head_dim, ffn and norm_eps in place of TG_AUTO; NULL if the module is not a GPT.
 * The config lives as long as the module. */
TG_API const tg_gpt_config *tg_gpt_config_of(const tg_module *gpt);
/* Returns the logits [b, s, vocab] of ids [b, s], int64. This function, tg_gpt_loss and the functions for generation
 * take any whole language model (tg_lm_new); another module fails with TG_ERR_ARGUMENT. The logits are whole on every
 * tp rank, and have no columns of padding. If cp is above 1, ids and logits have only those positions of each sequence
 * that this rank holds, as `parallel` of tg_lm_config says. Fails with TG_ERR_SHAPE if a sequence is longer than the
 * config's positions, and with TG_ERR_DATA if an id is outside [0, vocab).
 *
 * If tp is above 1, ids must be the same on every tp rank. Declare that with tg_place(p, ids, TG_TP, TG_I)
 * (placement.h). */
TG_API tg_tensor *tg_gpt_logits(tg_module *gpt, tg_tape *t, tg_tensor *ids);
/* Returns the cross-entropy of the logits of ids with target; ids and target are [b, s] int64. TG_LOSS_MEAN and
 * TG_LOSS_SUM return a scalar, the mean or the sum over all tokens that count. TG_LOSS_NONE returns the loss of each
 * token, [b, s]. A token whose target is -100 does not count: its loss is 0. If no token counts, the mean is NaN and
 * the gradients are 0. Any other target outside [0, vocab) fails with TG_ERR_DATA. Only the logits of a few tokens are
 * in memory at a time, unless the config has head_bias or logit_softcap (lm.h), or the module of the output matrix was
 * replaced or has hooks.
 *
 * If data-parallel ranks each have a part of the batch, use TG_LOSS_SUM, and pass the number of this rank's tokens that
 * count to tg_grads_finalize. That call divides the gradients by the total number over all ranks. TG_LOSS_MEAN does not
 * give the mean over the whole batch:
 * - If ids or target is placed TG_SHARD(0) on dp (tg_place), or if cp is above 1, TG_LOSS_MEAN fails with
 *   TG_ERR_PLACEMENT.
 * - If neither ids nor target is placed on dp, TG_LOSS_MEAN is the mean over this rank's tokens that count, and the
 *   gradients are those of the sum of the ranks' means. If all ranks have equally many such tokens, these gradients are
 *   dp times those of the mean over the whole batch. Otherwise the tokens of different ranks have different weights. */
TG_API tg_tensor *tg_gpt_loss(tg_module *gpt, tg_tape *t, tg_tensor *ids, tg_tensor *target,
                              tg_loss_reduction reduction);

/* A key-value cache for generation with one model. It holds the keys and values of `batch` sequences of up to
 * `positions` tokens each. Each tensor-parallel rank holds the keys and values of its own heads, and all tp ranks must
 * make the same calls. The model may be freed before its cache, which then can only be freed.
 *
 * tg_gpt_cache_new returns NULL on an error. It fails with TG_ERR_ARGUMENT if batch is below 1, or if positions is not
 * from 1 to the positions of the model's config. It fails with TG_ERR_STATE if the module is one part of several. It
 * also fails with TG_ERR_STATE if the model uses sequence parallelism with tp above 1, or if cp is above 1, because a
 * single token cannot be split over ranks; create the model for generation on a tg_parallel that has neither.
 * tg_gpt_cache_free must be called before tg_ctx_free, and does nothing for NULL. tg_gpt_cache_length returns the
 * number of positions in use; 0 for NULL. */
typedef struct tg_gpt_cache tg_gpt_cache;
TG_API tg_gpt_cache *tg_gpt_cache_new(tg_module *gpt, int64_t batch, int64_t positions);
TG_API void tg_gpt_cache_free(tg_gpt_cache *c);
TG_API int64_t tg_gpt_cache_length(const tg_gpt_cache *c);
/* Runs the model on the next n >= 1 tokens of each sequence, given as ids [b, n] int64, where b is the cache's batch.
 * Appends their keys and values to the cache. Returns the logits [b, vocab] of the last token of each sequence, which
 * are whole on every tp rank and have no columns of padding. ids must be the same on every tp rank and be declared so,
 * as for tg_gpt_logits. Runs without gradients and, unless a module has TG_MODE_TRAIN (tg_module_set_mode), without
 * dropout.
 *
 * Fails with
 * - TG_ERR_ARGUMENT if c is NULL or the cache of another model;
 * - TG_ERR_SHAPE if ids has another shape, or if the cache has no space for n more tokens;
 * - TG_ERR_DATA if an id is outside [0, vocab);
 * - TG_ERR_UNSUPPORTED if a layer or the attention of a layer is not the library's own (tg_module_replace), because
 *   such a module cannot use the cache.
 *
 * After an error the length of the cache is as before. */
TG_API tg_tensor *tg_gpt_next(tg_module *gpt, tg_tape *t, tg_gpt_cache *c, tg_tensor *ids);

/* ---- Model directories ----
 *
 * A model directory has config.json and the weights: model.safetensors, or several files with an index,
 * model.safetensors.index.json. The names and layouts of the tensors and the keys of config.json are those of the
 * published GPT-2 and Llama checkpoints (Hugging Face transformers).
 *
 * tg_gpt_save also writes what a program needs to check that config.json and the weights belong together:
 * - Each file of weights has a copy of the config, as one line of JSON, in its metadata "tapegrad.config".
 * - config.json has a checksum of the weights, in its member "tapegrad_weights_xxh64". If the weights are one file, it
 *   is the value of "tapegrad.xxh64.header" in the metadata of this file (io.h). If they are several files, it is the
 *   checksum (tg_checksum) of the index, which has a checksum of the header of each file.
 *
 * The functions that load check neither. The commands of the program `tapegrad` that use the weights check both, and
 * print a warning if one differs. */

/* Creates the GPT that config.json in dir describes, whole on this rank, and fills it as tg_gpt_load_weights does.
 * Returns an inert module on an error. A model that is no GPT-2 or Llama, or has options that tg_gpt_config lacks,
 * fails with TG_ERR_UNSUPPORTED; tg_lm_load_dir (lm.h) loads other models, and divides a model over ranks. */
TG_API tg_module *tg_gpt_load(tg_ctx *ctx, const char *dir);
/* Creates a GPT with random weights, whole on this rank, from the config.json at path. Fails as tg_gpt_load does. */
TG_API tg_module *tg_gpt_from_config(tg_ctx *ctx, const char *path);
/* Fills gpt from the weights in dir, with the checks of tg_lm_load. Does not read config.json. Every rank reads the
 * files and keeps its part. If pp is above 1, all ranks of pp must make the call. A stage with several chunks needs
 * tg_lm_load instead. Fails with TG_ERR_ARGUMENT if gpt is not a GPT. */
TG_API tg_status tg_gpt_load_weights(tg_module *gpt, const char *dir);
/* Saves gpt into dir, which must exist. All ranks of the model must make the call. The first rank of each stage writes
 * one file of weights, so a model of one stage is saved as one file. A stage with several chunks needs tg_lm_save
 * instead. Fails with TG_ERR_ARGUMENT if gpt is not a GPT. */
TG_API tg_status tg_gpt_save(tg_module *gpt, const char *dir);

/* Convert a model between a model directory and saved state (checkpoint.h). The model is never in memory as a whole:
 * one tensor at a time is read and written, in the dtype that it has. The model may be one of any family that lm.h
 * knows. In the state the keys of the parameters begin with "<prefix>."; they are those of tg_shards_add_module(s,
 * prefix, gpt). prefix may be NULL or "", which both mean that the keys have no prefix. Only one rank makes the call.
 * Names and shapes are checked before anything is written. Keys of config.json that the library does not know are kept.
 * The functions fail with TG_ERR_DEVICE unless ctx is on a device whose memory is host memory, such as "cpu".
 *
 * tg_gpt_to_state writes the state and config.json into the directory `state`, which is created if it is missing. Any
 * number of ranks can load the state. Fails with TG_ERR_STATE if the directory has a state or a config.json already,
 * and as tg_gpt_load_weights does if the files do not fit the config.
 *
 * tg_gpt_from_state writes config.json and the weights into the directory `model`, which is created if it is missing. A
 * model that is in it is replaced. config is the path of the config.json that describes the model. Keys without the
 * prefix, such as those of an optimizer, are left out; if there is no prefix, every key must be one of the model. If no
 * key has the prefix, if a parameter is missing or has another shape, or if the model lacks a key that has the prefix,
 * the call fails with TG_ERR_FORMAT. Before the call writes anything, it reads the files of the state and compares them
 * with their checksums. */
TG_API tg_status tg_gpt_to_state(tg_ctx *ctx, const char *model, const char *state, const char *prefix);
TG_API tg_status tg_gpt_from_state(tg_ctx *ctx, const char *state, const char *prefix, const char *config,
                                   const char *model);

#ifdef __cplusplus
}
#endif

#endif
