/* The network of offload.c and pack_bf16.c. Each of its blocks is a scope. The two programs store the tensors that the
 * network saves for backward in different ways. */
#ifndef PACKED_NETWORK_H
#define PACKED_NETWORK_H

#include <stdio.h>

#include <tapegrad/extend.h>
#include <tapegrad/tapegrad.h>

/* EACH: number of elements of a weight. */
enum { BLOCKS = 8, ROWS = 512, WIDTH = 64, WEIGHTS = 2 * BLOCKS, EACH = 4 * WIDTH * WIDTH };

static tg_tensor *block(tg_tape *t, tg_tensor *x, tg_tensor *const *w) {
    tg_scope_open(t, "block");
    tg_tensor *y = tg_add(t, x, tg_linear(t, tg_gelu(t, tg_linear(t, x, w[0], NULL)), w[1], NULL));
    tg_scope_close(t, &y, 1); /* the tensors that the block's ops saved are packed here */
    return y;
}

/* Runs one step. packer packs the saved tensors; if it is NULL, they stay as they are. Fills grads with the gradients
 * of the weights, and sets *peak to the most bytes of device memory that were in use at once. Returns false after
 * printing an error. */
static bool packed_step(const char *device, const tg_pack_ops *packer, float *grads, int64_t *peak) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = device, .seed = 3));
    tg_tensor *w[WEIGHTS], *x = tg_randn(ctx, TG_F32, TG_SHAPE(ROWS, WIDTH), 1);
    for (int i = 0; i < WEIGHTS; i++)
        w[i] = tg_param_new(ctx, "w", TG_F32, i % 2 ? TG_SHAPE(WIDTH, 4 * WIDTH) : TG_SHAPE(4 * WIDTH, WIDTH), 0.1);
    tg_tape *t = tg_tape_new(ctx);
    tg_tape_pack(t, packer);
    tg_memory_reset_peak(ctx);
    for (int i = 0; i < BLOCKS; i++) {
        tg_tensor *y = block(t, x, w + 2 * i);
        tg_pack(x); /* the output of the block before: nothing reads it again until backward */
        x = y;
    }
    tg_backward(t, tg_mean(t, tg_square(t, x), TG_ALL_DIMS, false));
    for (int i = 0; i < WEIGHTS; i++) tg_read(tg_grad_of(w[i]), grads + (size_t)i * EACH, EACH * sizeof *grads);
    tg_memory_info m = TG_MEMORY_INFO();
    tg_memory_query(ctx, &m);
    *peak = m.peak;
    bool good = tg_ctx_status(ctx) == TG_OK;
    if (!good) fprintf(stderr, "%s\n", tg_ctx_message(ctx));
    tg_tape_free(t);
    tg_ctx_free(ctx);
    return good;
}

#endif
