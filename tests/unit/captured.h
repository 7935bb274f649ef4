/* Shared by tests of captured steps: a GPT's training step with dropout, recomputation and accumulation, on the device
 * that TG_TEST_DEVICE names, run op by op or captured. */
#ifndef TG_TEST_CAPTURED_H
#define TG_TEST_CAPTURED_H

#include <stdlib.h>
#include <string.h>

#include <tapegrad/average.h>
#include <tapegrad/capture.h>
#include <tapegrad/nn.h>
#include <tapegrad/optim.h>
#include <tapegrad/backward.h>
#include <tapegrad/gpt.h>

#include "check_main.h"
#include "core/context.h"
#include "kernels/scalar.h"
#include "on_device.h"

enum { MICRO = 2, BATCH = 2, SEQ = 8, VOCAB = 19, PARAMS = 40, LOSSES = 256 };

typedef struct world {
    tg_ctx *ctx;
    tg_module *gpt;
    tg_tensor *p[PARAMS];
    int n;
    tg_tape *t;
    tg_tensor *ids[MICRO], *target[MICRO]; /* static inputs */
    tg_tensor *loss[MICRO];                /* static too, of the last step */
    tg_optim *adamw;     /* or another optimizer; NULL: gradient descent */
    tg_average *average; /* NULL: none */
    int steps;
    double losses[LOSSES];
} world;

#define ck_fine(ctx) ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx))

static inline bool on_device(void) { return test_device() != NULL; }

static inline world *world_new(void) {
    world *w = calloc(1, sizeof *w);
    w->ctx = tg_ctx_new(TG_CONFIG(.device = test_device(), .seed = 11, .threads = 1));
    w->gpt = tg_gpt_new(w->ctx, TG_GPT(.arch = TG_GPT2, .vocab = VOCAB, .layers = 2, .heads = 2, .hidden = 16,
                                       .positions = SEQ, .dropout = 0.1, .recompute = TG_GPT_FULL));
    w->n = tg_module_params(w->gpt, w->p, PARAMS);
    w->t = tg_tape_new(w->ctx);
    for (int m = 0; m < MICRO; m++) {
        w->ids[m] = tg_zeros(w->ctx, TG_I64, TG_SHAPE(BATCH, SEQ));
        w->target[m] = tg_zeros(w->ctx, TG_I64, TG_SHAPE(BATCH, SEQ));
        w->loss[m] = tg_zeros(w->ctx, TG_F32, TG_SHAPE());
    }
    ck_fine(w->ctx);
    return w;
}

/* AdamW with clipping and a learning rate that changes with every step. */
static inline void with_adamw(world *w, bool scaled) {
    w->adamw = tg_adamw_new(w->ctx, w->p, w->n, TG_ADAMW(.lr = 1e-2));
    tg_optim_set_clip(w->adamw, 1);
    if (scaled) tg_optim_set_scale(w->adamw, TG_LOSS_SCALE(.initial = 64, .interval = 3));
}

static inline void world_free(world *w) {
    tg_average_free(w->average);
    tg_optim_free(w->adamw);
    tg_module_free(w->gpt);
    tg_tape_free(w->t);
    tg_ctx_free(w->ctx);
    free(w);
}

/* Prepares the batch of the next step. */
static inline void feed(world *w) {
    int64_t ids[BATCH * SEQ], target[BATCH * SEQ];
    if (w->adamw) tg_optim_set_lr(w->adamw, 1e-2 / (1 + w->steps));
    tg_draws_step(w->ctx, 1 + (uint64_t)w->steps);
    for (int m = 0; m < MICRO; m++) {
        for (int i = 0; i < BATCH * SEQ; i++) {
            ids[i] = (i * 5 + 3 * w->steps + m) % VOCAB;
            target[i] = (ids[i] + 5) % VOCAB;
        }
        tg_write(w->ids[m], ids, sizeof ids);
        tg_write(w->target[m], target, sizeof target);
    }
}

/* Computes to = from or to += from on the device. */
static inline tg_status put(tg_tensor *to, tg_tensor *from, bool add) {
    const double none[2] = {0, 0};
    tg_ctx *ctx = tg_ctx_of(to);
    if (tg_ctx_status(ctx) != TG_OK) return tg_ctx_status(ctx);
    tg_array out = tg_array_of(to), in = tg_array_of(from);
    tg_storage_wrote(to->storage, "put", NULL);
    return tg_ctx_ops(ctx)->apply(ctx, TG_FN_id, out, &in, 1, none, add);
}

/* Computes p -= rate grad on the device only. */
static inline tg_status descend(world *w, double rate) {
    tg_tape_set_grad_mode(w->t, false);
    for (int i = 0; i < w->n && tg_ctx_status(w->ctx) == TG_OK; i++) {
        put(w->p[i], tg_scale(w->t, tg_grad_of(w->p[i]), -rate), true);
        tg_zero_grad(w->p[i]);
    }
    tg_tape_set_grad_mode(w->t, true);
    return tg_ctx_status(w->ctx);
}

/* One training step, as a function for tg_graph_new. */
static inline tg_status step_of(void *state, tg_ctx *ctx) {
    world *w = state;
    for (int m = 0; m < MICRO; m++) {
        tg_tape_key(w->t, (uint64_t)m);
        tg_tensor *loss = tg_gpt_loss(w->gpt, w->t, w->ids[m], w->target[m], TG_LOSS_MEAN);
        tg_backward(w->t, w->adamw ? tg_scale_loss(w->t, loss, w->adamw) : loss);
        put(w->loss[m], loss, false);
    }
    if (w->adamw) {
        tg_optim_step(w->adamw);
        tg_optim_zero_grad(w->adamw);
        if (w->average) tg_average_update(w->average);
    } else {
        descend(w, 0.1);
    }
    tg_tape_reset(w->t);
    return tg_ctx_status(ctx);
}

static inline void note_losses(world *w) {
    ck_assert(w->steps * MICRO < LOSSES);
    for (int m = 0; m < MICRO; m++) w->losses[w->steps * MICRO + m] = tg_item(w->loss[m]);
    w->steps++;
    ck_fine(w->ctx);
}

static inline void eager(world *w, int n) {
    for (int i = 0; i < n; i++) {
        feed(w);
        step_of(w, w->ctx);
        note_losses(w);
    }
}

static inline tg_graph *captured(world *w) {
    feed(w);
    tg_graph *g = tg_graph_new(w->ctx, step_of, w);
    note_losses(w);
    return g;
}

static inline void replay(world *w, tg_graph *g, int n) {
    for (int i = 0; i < n; i++) {
        feed(w);
        ck_assert(tg_graph_replay(g) == TG_OK || tg_ctx_status(w->ctx) != TG_OK);
        note_losses(w);
    }
}

static inline uint64_t bits_of(world *w) {
    uint64_t h = 1469598103934665603u;
    for (int i = 0; i < w->n; i++) {
        size_t bytes = (size_t)tg_numel(w->p[i]) * tg_dtype_size(tg_dtype_of(w->p[i]));
        unsigned char *data = malloc(bytes);
        tg_read(w->p[i], data, bytes);
        for (size_t k = 0; k < bytes; k++) h = (h ^ data[k]) * 1099511628211u;
        free(data);
    }
    ck_fine(w->ctx);
    return h;
}

/* State that two runs with the same number of steps must have in common. */
static inline void ck_same_run(world *a, world *b) {
    tg_rng ra, rb;
    ck_assert_int_eq(a->steps, b->steps);
    for (int i = 0; i < a->steps * MICRO; i++)
        ck_assert_msg(a->losses[i] == b->losses[i], "step %d: loss %.17g and %.17g", i / MICRO, a->losses[i],
                      b->losses[i]);
    ck_assert(bits_of(a) == bits_of(b));
    tg_rng_get(a->ctx, NULL, &ra);
    tg_rng_get(b->ctx, NULL, &rb);
    ck_assert(ra.seed == rb.seed && ra.stream == rb.stream && ra.counter == rb.counter);
}

static inline tg_memory_info memory_of(tg_ctx *ctx) {
    tg_memory_info m = TG_MEMORY_INFO();
    tg_memory_query(ctx, &m);
    return m;
}

/* Replays, expects that the replay is refused with a message that contains `says`, and clears the error. */
static inline void cannot_replay(tg_graph *g, tg_ctx *ctx, const char *says) {
    ck_assert_int_eq(tg_graph_replay(g), TG_ERR_STATE);
    ck_assert_msg(strstr(tg_ctx_message(ctx), says), "%s", tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
}

#endif
