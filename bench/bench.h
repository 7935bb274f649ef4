/* The rows of the program tapegrad-bench, and their options. A row is one thing that is measured, such as a training
 * step or a kernel. */
#ifndef TAPEGRAD_BENCH_H
#define TAPEGRAD_BENCH_H

#include <time.h>

#include <tapegrad/device.h>
#include <tapegrad/context.h>

typedef struct bench_options {
    const char *device, *isa; /* isa: the CPU kernels (tg_config); NULL: the best */
    tg_dtype dtype;
    int threads, repeats; /* repeats 0: one measurement for each line of standard input */
    int calls;            /* number of calls that one measurement queues on the device; it gives their mean time */
    int64_t batch, seq_len, layers, heads, hidden, vocab; /* of GPT-2, and of attention */
    int64_t rows, columns, inner;                         /* of the other kernels */
    int64_t form;                                         /* form of a product: bench_form */
    bool profile;   /* print how the time is spent instead of measuring */
    bool capture;   /* capture the step, and measure its replays */
    bool recompute; /* recompute every layer of GPT-2 */
} bench_options;

/* Which operands of a product are transposed: A [m, k] B [k, n], A B^T, A^T B. */
typedef enum bench_form { FORM_NN, FORM_NT, FORM_TN, FORMS } bench_form;

/* A row. open returns its state. measure makes one measurement, and returns the time of one call in the row's unit.
 * host (may be NULL) returns the milliseconds that the host alone needs for one call, while the device runs
 * asynchronously. profile (may be NULL) prints how the time is spent. Errors are recorded in the context. */
typedef struct bench_row {
    const char *name, *unit, *summary;
    void *(*open)(tg_ctx *ctx, const bench_options *o); /* NULL: the context has an error, or no memory */
    double (*measure)(void *state);
    double (*host)(void *state);
    void (*profile)(void *state);
    void (*close)(void *state);
} bench_row;

extern const bench_row chain_row, tape_row, mlp_row, gpt2_row, floor_row, adamw_row;
/* Single kernels, called directly as the device's slots (device.h): kernels.c and products.c. */
extern const bench_row copy_row, gelu_row, softmax_row, norm_row, norm_grad_row, loss_row, loss_grad_row,
    attention_row, attention_grad_row;
extern const bench_row gemm_row, linear_row, read_row;
extern const bench_row decode_row, prompt_row, forward_row; /* decode.c */

/* The sizes of GPT-2 124M, which are the defaults of the options. */
enum { GPT2_VOCAB = 50257, GPT2_HEADS = 12, GPT2_HIDDEN = 768 };

/* Waits until everything that is queued on the device has run. */
static inline void finish(tg_ctx *ctx) {
    if (tg_ctx_status(ctx) == TG_OK) tg_ctx_ops(ctx)->sync(ctx);
}

static inline double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
