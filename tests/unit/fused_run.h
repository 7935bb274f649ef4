/* Runs cases of the optional slots on every instruction set, thread count, dtype and layout, and composed. */
#ifndef TG_TEST_FUSED_RUN_H
#define TG_TEST_FUSED_RUN_H

#include "fused_arrays.h"
#include "kernels/composed.h"

static const tg_device_ops composed = {
    .size = sizeof composed,
    .name = "composed",
    .softmax = tg_composed_softmax,
    .softmax_grad = tg_composed_softmax_grad,
    .norm = tg_composed_norm,
    .norm_grad = tg_composed_norm_grad,
    .cross_entropy = tg_composed_cross_entropy,
    .cross_entropy_grad = tg_composed_cross_entropy_grad,
    .attention = tg_composed_attention,
    .attention_grad = tg_composed_attention_grad,
    .dropout = tg_composed_dropout,
    .prepare = tg_composed_prepare,
    .adamw = tg_composed_adamw,
};

static inline uint64_t run_on(tg_ctx *ctx, const tg_device_ops *ops, void (*cases)(bench *t)) {
    static const tg_dtype dtypes[] = {TG_F32, TG_F64, TG_BF16, TG_F16};
    bench t = {.ctx = ctx, .ops = ops, .slack = 1, .digest = 1469598103934665603u};
    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++)
        for (int l = 0; l < LAYOUTS; l++) {
            t.dtype = dtypes[d];
            t.layout = (layout)l;
            cases(&t);
        }
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    return t.digest;
}

/* Runs every case on every instruction set of this machine, with 1 and 2 threads, and composed. */
static inline void run(void (*cases)(bench *t)) {
    static const char *const isas[] = {"portable", "avx2", "avx512"};
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
        uint64_t digest[2][2];
        tg_status s = TG_OK;
        for (int threads = 1; threads <= 2 && s == TG_OK; threads++) {
            tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "cpu", .threads = threads, .isa = isas[i]));
            s = tg_ctx_status(ctx);
            if (s == TG_OK) {
                digest[0][threads - 1] = run_on(ctx, tg_ctx_ops(ctx), cases);
                digest[1][threads - 1] = run_on(ctx, &composed, cases);
            }
            tg_ctx_free(ctx);
        }
        bool lacks = i > 0 && s == TG_ERR_UNSUPPORTED; /* this machine has no such instructions */
        ck_assert_msg(s == TG_OK || lacks, "%s: %s", isas[i], tg_status_name(s));
        if (lacks) continue;
        ck_assert_msg(digest[0][0] == digest[0][1], "%s: bits depend on threads", isas[i]);
        ck_assert_msg(digest[1][0] == digest[1][1], "%s: composed: bits depend on threads", isas[i]);
    }
}

/* The elements of an output to which a slot adds. If the slot does not add, they are NaN before it runs. */
enum { BEFORE = 3 };

static inline array *output(const bench *t, bool add, tg_dtype d, const array *like) {
    array *x = array_new(d, t->layout, like->a.ndim, like->shape);
    return add ? fill_with(x, BEFORE) : x;
}

/* Returns n zeros, where a test sums the expected values. */
static inline double *doubles(int64_t n) {
    return calloc((size_t)n + 1, sizeof(double));
}

#endif
