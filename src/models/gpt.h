/* The structs and functions that the files of the GPT share: layers, the model, and model directories. */
#ifndef TG_GPT_PARTS_H
#define TG_GPT_PARTS_H

#include <tapegrad/gpt.h>

#include "nn/module.h"
#include "parallel/tp/layers.h"

/* A norm that runs again in backward. The caller may free or replace the layer before that, so the norm is found by
 * its name. */
typedef struct tg_layer_norm_of {
    tg_module *layer;
    const char *name;
} tg_layer_norm_of;

/* The state of an attention, MLP or transformer layer. */
typedef struct tg_layer_state {
    tg_ctx *ctx;
    tg_gpt_config c;
    tg_layer_norm_of norm[2]; /* of a transformer layer */
} tg_layer_state;

struct tg_gpt_cache {
    tg_ctx *ctx;
    tg_module *gpt;
    int64_t batch, positions, length, layers;
    size_t bytes;
    tg_tensor *kv[]; /* the keys of each layer, then its values: [b, kv_heads, positions, head_dim] */
};

/* The cached keys and values of one attention, and the position at which it appends the new ones. Functions get NULL
 * in training. */
typedef struct tg_past {
    tg_tensor *k, *v;
    int64_t length;
} tg_past;

/* Returns the number of tensor-parallel ranks; 1: plain layers are used. */
static inline int tg_gpt_tp(const tg_gpt_config *c) { return tg_parallel_size(c->parallel, TG_TP); }
static inline tg_comm *tg_gpt_tp_comm(const tg_gpt_config *c) { return tg_parallel_comm(c->parallel, TG_TP); }
/* Returns the number of rows of the embedding and of the output matrix: the vocabulary and its padding. */
int64_t tg_gpt_rows(const tg_gpt_config *c);

/* Checks the config and fills in its defaults. `who` is the call that messages name. */
tg_status tg_gpt_complete(tg_ctx *ctx, tg_gpt_config *c, const char *who);
/* x [s, b, h] -> [s, b, h]. Inert if m is NULL or not a layer of the library. */
tg_tensor *tg_transformer_layer(tg_module *m, tg_tape *t, tg_tensor *x, const tg_past *past);
/* ids [b, n] at positions from `offset` on -> the output of the last norm, [n, b, h]. */
tg_tensor *tg_gpt_trunk(tg_module *gpt, tg_tape *t, tg_tensor *ids, tg_gpt_cache *cache);
tg_tensor *tg_gpt_head(const tg_module *gpt); /* the output matrix; NULL after recording that it is missing */
tg_tensor *tg_module_own_at(const tg_module *m, const char *child, const char *name);

#endif
