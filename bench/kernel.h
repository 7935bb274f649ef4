/* The state of a row that calls a kernel directly, as a slot of the device (device.h), with random values. */
#ifndef TAPEGRAD_BENCH_KERNEL_H
#define TAPEGRAD_BENCH_KERNEL_H

#include <stdlib.h>
#include <tapegrad/tensor.h>

#include "bench.h"

enum { MAX_TENSORS = 128 };

typedef struct kernel kernel;
struct kernel {
    tg_ctx *ctx;
    const tg_device_ops *ops;
    tg_status (*once)(kernel *k); /* calls the kernel */
    int calls;                    /* number of calls in a measurement */
    int n;                        /* number of tensors in `made`, which live as long as the row */
    tg_tensor *made[MAX_TENSORS];
    tg_array from, to; /* this field and those below: arguments, of which each kernel uses some */
    tg_gemm gemm;
    int64_t products; /* number of products that differ only in B */
    tg_norm_args norm;
    tg_cross_entropy_args loss;
    tg_attention_args attention;
    int64_t bad; /* the kernels write it; its value is not used */
};

static inline void kernel_close(void *state) {
    kernel *k = state;
    for (int i = 0; i < k->n; i++) tg_drop(k->made[i]);
    free(k);
}

static inline double kernel_measure(void *state) {
    kernel *k = state;
    finish(k->ctx);
    double begun = seconds_now();
    for (int i = 0; i < k->calls && tg_ctx_status(k->ctx) == TG_OK; i++) k->once(k);
    finish(k->ctx);
    return 1e3 * (seconds_now() - begun) / k->calls;
}

static inline kernel *kernel_new(tg_ctx *ctx, const bench_options *o, tg_status (*once)(kernel *k)) {
    kernel *k = calloc(1, sizeof *k);
    if (!k) return NULL;
    *k = (kernel){.ctx = ctx, .ops = tg_ctx_ops(ctx), .once = once, .calls = o->calls};
    return k;
}

/* Keeps x until the row is closed. Returns its array. */
static inline tg_array keep(kernel *k, tg_tensor *x) {
    k->made[k->n++] = x;
    return tg_array_of(x);
}

/* Return a new tensor of random numbers, or of zeros. */
static inline tg_array normal(kernel *k, tg_shape s) { return keep(k, tg_randn(k->ctx, TG_DTYPE_DEFAULT, s, 1)); }
static inline tg_array zeros(kernel *k, tg_dtype dtype, tg_shape s) { return keep(k, tg_zeros(k->ctx, dtype, s)); }

#define KERNEL_ROW(kernel_, name_, summary_)                                                                 \
    const bench_row kernel_##_row = {.name = name_, .unit = "ms a call", .summary = summary_,                \
                                     .open = kernel_##_open, .measure = kernel_measure, .close = kernel_close}

#endif
