/* Rows of the bench: each measures one thing, one measurement at a time. */
#ifndef TAPEGRAD_BENCH_H
#define TAPEGRAD_BENCH_H

#include <time.h>

#include <tapegrad/device.h>
#include <tapegrad/context.h>

typedef struct bench_options {
    const char *device;
    tg_dtype dtype;
    int threads, repeats; /* repeats 0: one measurement for each line of standard input */
    int calls;            /* of what a row measures, queued on the device one after the other in each measurement */
    int64_t batch, seq_len, layers, heads, hidden, vocab; /* of GPT-2, and of attention */
    int64_t rows, columns, inner;                         /* of the other kernels */
    int64_t form;                                         /* of a product: bench_form */
    bool profile, capture; /* capture: the step is recorded, and what is measured are replays */
    bool recompute;        /* every layer of GPT-2 */
} bench_options;

/* Which operands of a product lie transposed: A [m, k] B [k, n], A B^T, A^T B. */
typedef enum bench_form { FORM_NN, FORM_NT, FORM_TN, FORMS } bench_form;

/* measure returns one time in the row's unit; host the milliseconds of the host alone that one call takes while the
 * device runs behind it, NULL where nobody asks. profile prints where the time goes. Errors are the context's. */
typedef struct bench_row {
    const char *name, *unit, *summary;
    void *(*open)(tg_ctx *ctx, const bench_options *o); /* NULL: no memory, unless the context says more */
    double (*measure)(void *state);
    double (*host)(void *state);
    void (*profile)(void *state);
    void (*close)(void *state);
} bench_row;

extern const bench_row chain_row, tape_row, mlp_row, gpt2_row, floor_row, adamw_row;
/* Kernels by themselves, on the device's slots: kernels.c, and products.c. */
extern const bench_row copy_row, gelu_row, softmax_row, norm_row, norm_grad_row, loss_row, loss_grad_row,
    attention_row, attention_grad_row;
extern const bench_row gemm_row, linear_row, read_row;

/* GPT-2 124M: what the options give where they say nothing else. */
enum { GPT2_VOCAB = 50257, GPT2_HEADS = 12, GPT2_HIDDEN = 768 };

/* All that is queued on the device has run. */
static inline void finish(tg_ctx *ctx) {
    if (tg_ctx_status(ctx) == TG_OK) tg_ctx_ops(ctx)->sync(ctx);
}

static inline double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
