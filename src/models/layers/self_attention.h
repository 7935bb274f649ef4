/* The layer of tg_nn_self_attention: its state, which its constructor (self_attention_new.c) and its call
 * (self_attention.c) share. */
#ifndef TG_SELF_ATTENTION_H
#define TG_SELF_ATTENTION_H

#include <tapegrad/attention.h>

#include "nn/layer.h"

typedef struct tg_self_attention {
    tg_ctx *ctx;
    const tg_parallel *p;
    int64_t hidden;
    tg_self_attention_opts o; /* with the defaults of sizes filled in; linear and out_linear are NULL */
} tg_self_attention;

extern const tg_module_ops tg_self_attention_ops;

/* Returns whether there are fewer heads of keys than tp ranks, so that the ranks gather all of them. */
static inline bool tg_self_attention_gathers(const tg_self_attention *s) {
    return s->o.kv_heads < tg_parallel_size(s->p, TG_TP);
}

#endif
