/* The parts of a GPT, as its own files see them. */
#ifndef TG_GPT_PARTS_H
#define TG_GPT_PARTS_H

#include <tapegrad/gpt.h>

#include "nn/module.h"
#include "parallel/tp/layers.h"

/* A norm that runs again in backward: by its name, for the layer's owner may free it before. */
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
    tg_tensor *kv[]; /* a layer's keys, then its values: [b, kv_heads, positions, head_dim] */
};

/* Where attention finds the past, and leaves the present; NULL while training. */
typedef struct tg_past {
    tg_tensor *k, *v;
    int64_t length;
} tg_past;

/* Whether tensor-parallel layers are used, and over how many ranks. */
static inline int tg_gpt_tp(const tg_gpt_config *c) { return tg_parallel_size(c->parallel, TG_TP); }
static inline tg_comm *tg_gpt_tp_comm(const tg_gpt_config *c) { return tg_parallel_comm(c->parallel, TG_TP); }
/* The rows of the embedding and of the output matrix: the vocabulary and its padding. */
int64_t tg_gpt_rows(const tg_gpt_config *c);

/* The config with its defaults filled in, or refused. */
tg_status tg_gpt_complete(tg_ctx *ctx, tg_gpt_config *c);
/* x [s, b, h] -> [s, b, h]; m NULL, or not the library's layer: inert */
tg_tensor *tg_transformer_layer(tg_module *m, tg_tape *t, tg_tensor *x, const tg_past *past);
/* ids [b, n] at positions from `offset` on -> the last norm's output [n, b, h] */
tg_tensor *tg_gpt_trunk(tg_module *gpt, tg_tape *t, tg_tensor *ids, tg_gpt_cache *cache);
tg_tensor *tg_gpt_head(const tg_module *gpt); /* the output matrix; NULL after recording that it has gone */
tg_tensor *tg_module_own_at(const tg_module *m, const char *child, const char *name);

#endif
