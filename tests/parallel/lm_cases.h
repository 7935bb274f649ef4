/* What the tests of language models share: configs, batches, and comparisons of a model over ranks or of its parts with
 * the whole model. */
#ifndef TG_TEST_LM_CASES_H
#define TG_TEST_LM_CASES_H

#include <tapegrad/backward.h>
#include <tapegrad/context_parallel.h>
#include <tapegrad/lm.h>
#include <tapegrad/pipe.h>

#include "one_rank.h"

enum { LM_BATCH = 2, LM_LENGTH = 8, LM_VOCAB = 256, LM_HIDDEN = 16, LM_LAYERS = 4, LM_DEPTHS = 2 };

#define LM_SIZES(v, n)                                                                                                 \
    .vocab = (v), .layers = (n), .heads = 4, .hidden = LM_HIDDEN, .ffn = 24, .positions = LM_LENGTH, .init_std = 0.2
#define LM_SMALL LM_SIZES(LM_VOCAB, LM_LAYERS)
#define LM_GPT2                                                                                                        \
    LM_SMALL, .family = "gpt2", .norm = TG_LM_LAYER_NORM, .activation = TG_LM_GELU_TANH,                               \
              .position_kind = TG_LM_LEARNED, .bias = true

/* This rank's part of a batch, whose sequences are divided over dp, and their tokens over cp: ids[d] are the tokens d
 * ahead, targets[d] those d + 1 ahead. The last d + 1 of the targets of a sequence are beyond its end, and do not
 * count. Each micro-batch has other tokens. */
typedef struct lm_batch {
    tg_tensor *ids[1 + LM_DEPTHS], *targets[1 + LM_DEPTHS];
} lm_batch;

static inline tg_tensor *lm_tokens(tg_ctx *ctx, const tg_parallel *p, int micro, int ahead, int64_t beyond) {
    int64_t v[LM_BATCH * LM_LENGTH], of[LM_LENGTH];
    int rows = LM_BATCH / tg_parallel_size(p, TG_DP), first = tg_parallel_rank(p, TG_DP) * rows;
    int length = LM_LENGTH / tg_parallel_size(p, TG_CP);
    tg_context_cut((const int64_t[]){0, LM_LENGTH}, 1, tg_parallel_size(p, TG_CP), tg_parallel_rank(p, TG_CP), of);
    for (int i = 0; i < rows * length; i++) {
        int at = (int)of[i % length] + ahead, row = first + i / length + 3 * micro;
        v[i] = at < LM_LENGTH ? (7 * at + 31 * row + at * at) % LM_VOCAB : beyond;
    }
    tg_tensor *x = tg_from_host(ctx, TG_I64, TG_SHAPE(rows, length), v);
    if (!p) return x;
    tg_place(p, x, TG_TP, TG_I);
    tg_place(p, x, TG_CP, TG_SHARD_ZIGZAG(1));
    tg_place(p, x, TG_DP, TG_SHARD(0));
    return x;
}

static inline lm_batch lm_batch_new(tg_ctx *ctx, const tg_parallel *p, int micro) {
    lm_batch b;
    for (int d = 0; d <= LM_DEPTHS; d++) {
        b.ids[d] = lm_tokens(ctx, p, micro, d, 0);
        b.targets[d] = lm_tokens(ctx, p, micro, d + 1, -100);
    }
    return b;
}

static inline void lm_batch_drop(lm_batch *b) {
    for (int d = 0; d <= LM_DEPTHS; d++) tg_drop(b->ids[d]), tg_drop(b->targets[d]);
}

/* Adds up what the stages of a pipeline have computed over the ranks: the gradients of n parameters, divided by the
 * `tokens` of all ranks, and the losses of the micro-batches, over dp and cp. */
static inline tg_status lm_finish_step(tg_ctx *ctx, tg_parallel *p, tg_pipe *pipe, tg_tensor **params, int n,
                                       int64_t tokens, double *loss, int micros) {
    tg_tensor *count = tg_from_host(ctx, TG_I64, TG_SHAPE(1), &tokens), *sum = tg_zeros(ctx, TG_F64, TG_SHAPE(micros));
    RUN(tg_grads_finalize(p, params, n, TG_FINALIZE(.tokens = count)));
    tg_comm_all_reduce(tg_parallel_dp_cp(p), sum, tg_pipe_losses(pipe), TG_REDUCE_SUM);
    RUN(tg_read_f64(sum, loss, micros));
    tg_drop(count), tg_drop(sum);
    return tg_ctx_status(ctx);
}

#endif
