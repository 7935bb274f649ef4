/* The structs and functions that the files of the GPT share: layers, the model, and model directories. */
#ifndef TG_GPT_PARTS_H
#define TG_GPT_PARTS_H

#include <tapegrad/gpt.h>

#include "nn/module.h"
#include "parallel/tp/layers.h"

/* The keys in which a GPT draws; transformer layer l opens key l. */
#define TG_GPT_KEY_EMBEDDING ((uint64_t)1 << 32)       /* word and position embeddings */
#define TG_GPT_KEY_HEAD      (((uint64_t)1 << 32) + 1) /* the output matrix, unless it is tied */

/* A norm that runs again in backward. The caller may free or replace the norm before that, so it is looked up by its
 * name in the layer. */
typedef struct tg_norm_ref {
    tg_module *layer;
    const char *name;
} tg_norm_ref;

/* The state of an attention, MLP or transformer layer. */
typedef struct tg_layer_state {
    tg_ctx *ctx;
    tg_gpt_config c;
    tg_norm_ref norm[2]; /* used by transformer layers only */
} tg_layer_state;

struct tg_gpt_cache {
    tg_ctx *ctx;
    tg_module *gpt;
    int64_t batch, positions, length, layers; /* length: number of positions that are filled */
    size_t bytes;                             /* size of this struct with kv[] */
    tg_tensor *kv[]; /* the keys of each layer, then its values: [b, kv_heads, positions, head_dim] */
};

/* The cached keys and values of one attention layer, and the position at which it appends the new ones. In training
 * there is no cache, and functions get NULL. */
typedef struct tg_past {
    tg_tensor *k, *v;
    int64_t length;
} tg_past;

/* Returns the number of tensor-parallel ranks. 1 means that plain layers are used. */
static inline int tg_gpt_tp(const tg_gpt_config *c) { return tg_parallel_size(c->parallel, TG_TP); }
static inline tg_comm *tg_gpt_tp_comm(const tg_gpt_config *c) { return tg_parallel_comm(c->parallel, TG_TP); }
/* Returns the number of rows of the embedding and of the output matrix: the vocabulary and its padding. */
int64_t tg_gpt_rows(const tg_gpt_config *c);

/* Checks the config and fills in its defaults. `who` is the call that messages name. */
tg_status tg_gpt_complete(tg_ctx *ctx, tg_gpt_config *c, const char *who);
/* Runs a transformer layer: x [s, b, h] -> [s, b, h]. Returns an inert tensor if m is NULL or not a layer of the
 * library. */
tg_tensor *tg_transformer_layer(tg_module *m, tg_tape *t, tg_tensor *x, const tg_past *past);
/* Runs everything before the output matrix: ids [b, n] -> the output of the last norm, [n, b, h]. The positions begin
 * at the cache's length, or at 0 if cache is NULL. */
tg_tensor *tg_gpt_trunk(tg_module *gpt, tg_tape *t, tg_tensor *ids, tg_gpt_cache *cache);
/* Returns the output matrix. If it is missing, records the error and returns NULL. */
tg_tensor *tg_gpt_head(const tg_module *gpt);
/* Returns the parameter of that name of a child of m; NULL if there is none. */
tg_tensor *tg_module_own_at(const tg_module *m, const char *child, const char *name);

#endif
