/* The network of the tutorial's steps 3 to 5, which predicts the next character from the last few, and its
 * validation. */
#ifndef TUTORIAL_MODEL_H
#define TUTORIAL_MODEL_H

#include <tapegrad/optim.h>
#include <tapegrad/tapegrad.h>

#include "tutorial.h"

enum { WIDTH = 16, HIDDEN = 128 };
enum { EMBEDDING, W1, B1, W2, B2, PARAMS };

static inline void make_params(tg_ctx *ctx, tg_tensor *p[PARAMS]) {
    p[EMBEDDING] = tg_param_new(ctx, "embedding", TG_F32, TG_SHAPE(VOCABULARY, WIDTH), 1);
    p[W1] = tg_param_new(ctx, "fc1.weight", TG_F32, TG_SHAPE(HIDDEN, CONTEXT * WIDTH), 0.09);
    p[B1] = tg_param_new(ctx, "fc1.bias", TG_F32, TG_SHAPE(HIDDEN), 0);
    p[W2] = tg_param_new(ctx, "fc2.weight", TG_F32, TG_SHAPE(VOCABULARY, HIDDEN), 0.09);
    p[B2] = tg_param_new(ctx, "fc2.bias", TG_F32, TG_SHAPE(VOCABULARY), 0);
}

/* ids [n, CONTEXT] -> logits [n, VOCABULARY] */
static inline tg_tensor *model(tg_tape *t, tg_tensor *const p[PARAMS], tg_tensor *ids) {
    tg_tensor *x = tg_embedding(t, p[EMBEDDING], ids);   /* [n, CONTEXT, WIDTH] */
    x = tg_reshape(t, x, TG_SHAPE(-1, CONTEXT * WIDTH)); /* [n, CONTEXT * WIDTH] */
    tg_tensor *h = tg_linear_relu(t, x, p[W1], p[B1]);   /* [n, HIDDEN] */
    return tg_linear(t, h, p[W2], p[B2]);
}

typedef struct batch {
    tg_tensor *ids, *next;
} batch;

/* Fills the batch with windows of bytes [from, to) of the text. */
static inline void load(const text *s, long from, long to, uint32_t *seed, batch *b) {
    int32_t ids[BATCH][CONTEXT];
    int64_t next[BATCH];
    fill_batch(s, from, to, seed, ids, next);
    tg_write(b->ids, ids, sizeof ids);
    tg_write(b->next, next, sizeof next);
}

/* Returns the mean loss of 20 batches of the last tenth of the text, on which the network is never trained. */
static inline double validate(tg_tape *t, tg_tensor *const p[PARAMS], const text *s, batch *b) {
    uint32_t seed = 2;
    double sum = 0;
    tg_tape_set_grad_mode(t, false); /* nothing is kept for backward */
    for (int i = 0; i < 20; i++) {
        load(s, s->size / 10 * 9, s->size, &seed, b);
        sum += tg_item(tg_cross_entropy(t, model(t, p, b->ids), b->next, NULL));
        tg_tape_reset(t);
    }
    tg_tape_set_grad_mode(t, true);
    return sum / 20;
}

#endif
