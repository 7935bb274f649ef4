/* Rows of the bench: what is measured, one measurement at a time. */
#ifndef TAPEGRAD_BENCH_H
#define TAPEGRAD_BENCH_H

#include <time.h>

#include <tapegrad/tapegrad.h>

typedef struct bench_options {
    tg_dtype dtype;
    int threads, repeats; /* repeats 0: one measurement for each line of standard input */
    int64_t batch, seq_len, layers;
    bool profile;
} bench_options;

/* measure returns one time in the row's unit. profile prints where the time goes. Errors are the context's. */
typedef struct bench_row {
    const char *name, *unit, *summary;
    void *(*open)(tg_ctx *ctx, const bench_options *o); /* NULL: no memory */
    double (*measure)(void *state);
    void (*profile)(void *state);
    void (*close)(void *state);
} bench_row;

extern const bench_row chain_row, gpt2_row, floor_row;

/* GPT-2 124M, but for the layers and positions that the options give. */
enum { GPT2_VOCAB = 50257, GPT2_HEADS = 12, GPT2_HIDDEN = 768 };

static inline double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
