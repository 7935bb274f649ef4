/* What the fuzz targets share. A target is a file fuzz_NAME.c with the functions below; libFuzzer runs it, or
 * fuzz_main.c, which needs no more than a C compiler: it runs the seeds, and a fixed number of mutations of them, the
 * same every time. */
#ifndef TG_TEST_FUZZ_H
#define TG_TEST_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/tapegrad.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* ---- Functions of a target ---- */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
/* Mutates data of at most max bytes. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed);
/* Writes seed number i of at most max bytes and returns its size; 0: there are no more. */
size_t fuzz_seed(int i, uint8_t *out, size_t max);
/* Words that occur in files of this kind, up to a NULL. */
extern const char *const fuzz_words[];

/* ---- Functions of libFuzzer, or of fuzz_main.c ---- */

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);

/* ---- Shared ---- */

enum { FUZZ_MAX = 4096 }; /* bytes of an input */

/* Returns the next random number of a stream: splitmix64 (Steele et al., OOPSLA 2014). */
static inline uint64_t fuzz_random(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static inline size_t fuzz_below(uint64_t *state, size_t n) { return n ? (size_t)(fuzz_random(state) % n) : 0; }

/* Makes one mutation of bytes: flips bits, changes numbers, inserts words of the target, moves, doubles or cuts
 * pieces. */
size_t fuzz_mutate(uint8_t *data, size_t size, size_t max, uint64_t *state);

/* Fails unless the condition holds, as it must for every input. */
#define fuzz_must(holds, ...) ((holds) ? (void)0 : fuzz_fail(__FILE__, __LINE__, #holds, __VA_ARGS__))
_Noreturn void fuzz_fail(const char *file, int line, const char *what, const char *format, ...) TG_PRINTF(4, 5);

/* Checks that a refusal has one of these statuses and a message, and clears it so that the context can be used
 * again. */
static inline void fuzz_refused(tg_ctx *ctx, const tg_status *allowed, size_t n) {
    tg_status s = tg_ctx_status(ctx);
    bool known = false;
    for (size_t i = 0; i < n; i++) known |= s == allowed[i];
    fuzz_must(known, "%s: %s", tg_status_name(s), tg_ctx_message(ctx));
    fuzz_must(*tg_ctx_message(ctx), "%s without a message", tg_status_name(s));
    tg_ctx_clear(ctx);
}

#endif
