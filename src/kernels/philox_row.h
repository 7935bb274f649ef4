/* Computes rows of Philox draws on the CPU, many blocks at once. kernels/philox.h explains the blocks, and includes
 * this file.
 *
 * A word occupies the low half of a 64-bit lane. The contents of the high half do not matter, because a round
 * multiplies only low halves. This multiplication is one instruction, for which plain C has no operator: hence
 * TG_PHILOX_MUL. */
#ifndef TG_PHILOX_ROW_H
#define TG_PHILOX_ROW_H

#include <string.h>

#include <tapegrad/device.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#define TG_PHILOX_VEC       64
#define TG_PHILOX_MUL(a, b) (tg_philox_vec) _mm512_mul_epu32((__m512i)(a), (__m512i)(b))
#elif defined(__AVX2__)
#include <immintrin.h>
#define TG_PHILOX_VEC       32
#define TG_PHILOX_MUL(a, b) (tg_philox_vec) _mm256_mul_epu32((__m256i)(a), (__m256i)(b))
#elif defined(__SSE2__)
#include <immintrin.h>
#define TG_PHILOX_VEC       16
#define TG_PHILOX_MUL(a, b) (tg_philox_vec) _mm_mul_epu32((__m128i)(a), (__m128i)(b))
#else
#define TG_PHILOX_VEC       16
#define TG_PHILOX_MUL(a, b) (((a)&0xffffffff) * (b))
#endif

typedef uint64_t tg_philox_vec __attribute__((vector_size(TG_PHILOX_VEC)));
/* Four vectors are processed together, because a round is a chain of dependent operations. */
enum {
    TG_PHILOX_WIDTH = TG_PHILOX_VEC / 8,   /* blocks in a vector */
    TG_PHILOX_LANES = 4 * TG_PHILOX_WIDTH, /* blocks that are computed together */
    TG_PHILOX_WORDS = 4 * TG_PHILOX_LANES
};

/* Writes the words of the blocks of one vector, block after block. c[i] holds word i of every block. */
static inline void tg_philox_store(const tg_philox_vec *c, uint32_t *w) {
    uint64_t low[TG_PHILOX_WIDTH], high[TG_PHILOX_WIDTH], pair[2 * TG_PHILOX_WIDTH];
    tg_philox_vec a = (c[0] & 0xffffffff) | c[1] << 32, b = (c[2] & 0xffffffff) | c[3] << 32;
    memcpy(low, &a, sizeof low);
    memcpy(high, &b, sizeof high);
    for (int l = 0; l < TG_PHILOX_WIDTH; l++) {
        pair[2 * l] = low[l];
        pair[2 * l + 1] = high[l];
    }
    memcpy(w, pair, sizeof pair);
}

/* Writes the TG_PHILOX_WORDS words of the blocks `block`, `block` + 1, ... in order. */
static inline void tg_philox_lanes(uint64_t key, uint64_t block, uint64_t c23, uint32_t *w) {
    const tg_philox_vec none = {0}, m0 = none + 0xD2511F53u, m1 = none + 0xCD9E8D57u;
    tg_philox_vec c[4][4], step;
    for (int l = 0; l < TG_PHILOX_WIDTH; l++) step[l] = (uint64_t)l;
    for (int v = 0; v < 4; v++) {
        tg_philox_vec at = step + (block + (uint64_t)(v * TG_PHILOX_WIDTH));
        c[v][0] = at;
        c[v][1] = at >> 32;
        c[v][2] = none + c23;
        c[v][3] = none + (c23 >> 32);
    }
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        for (int v = 0; v < 4; v++) {
            tg_philox_vec p0 = TG_PHILOX_MUL(c[v][0], m0), p1 = TG_PHILOX_MUL(c[v][2], m1);
            c[v][0] = (p1 >> 32) ^ c[v][1] ^ (none + k0);
            c[v][2] = (p0 >> 32) ^ c[v][3] ^ (none + k1);
            c[v][1] = p1;
            c[v][3] = p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int v = 0; v < 4; v++) tg_philox_store(c[v], w + 4 * TG_PHILOX_WIDTH * v);
}

/* Writes word `plane` of n draws, from number rng->counter + i on. After number 2^64 - 1 comes number 0. */
static inline void tg_philox_row(const tg_rng *rng, uint64_t i, int64_t n, int plane, uint32_t *w) {
    uint64_t at = rng->counter + i, stream = rng->stream | (uint64_t)plane << 63;
    while (n > 0) {
        uint32_t block[TG_PHILOX_WORDS];
        int64_t skip = (int64_t)(at % 4), take = n < TG_PHILOX_WORDS - skip ? n : TG_PHILOX_WORDS - skip;
        uint64_t left = 0 - at; /* draws up to the greatest number; 0 stands for 2^64 */
        if (left && left < (uint64_t)take) take = (int64_t)left;
        bool whole = take == TG_PHILOX_WORDS;
        tg_philox_lanes(rng->seed, at / 4, stream, whole ? w : block);
        if (!whole) memcpy(w, block + skip, (size_t)take * sizeof *w);
        at += (uint64_t)take;
        w += take;
        n -= take;
    }
}

/* Returns a number of elements, from position i on, whose draw numbers are consecutive; INT64_MAX if those of all
 * are. */
static inline int64_t tg_draws_run(const tg_draws *d, int64_t i) {
    int k = d->n - 1;
    if (k < 0) return INT64_MAX;
    if (d->stride[k] != 1 || (d->rows && !k)) return 1;
    return k ? d->extent[k] - i % d->extent[k] : INT64_MAX;
}

/* Writes word `plane` of the draws of n elements, from position i on. */
static inline void tg_draws_row(const tg_draws *d, int64_t i, int64_t n, int plane, uint32_t *w) {
    enum { SHORT = 4 }; /* in runs of up to this number of draws, single draws are cheaper than vectors */
    while (n > 0) {
        int64_t run = tg_draws_run(d, i), take = run < n ? run : n;
        uint64_t at = tg_draws_at(d, i);
        if (run <= SHORT)
            for (int64_t j = 0; j < take; j++) w[j] = tg_philox_word(&d->rng, at + (uint64_t)j, plane);
        else
            tg_philox_row(&d->rng, at, take, plane, w);
        i += take;
        w += take;
        n -= take;
    }
}

/* Writes the draws of n elements, from position i on, as uniform numbers in [0, 1). */
static inline void tg_draws_uniform_row(const tg_draws *d, int64_t i, int64_t n, float *u) {
    while (n > 0) {
        uint32_t w[TG_PHILOX_WORDS];
        int64_t take = n < TG_PHILOX_WORDS ? n : TG_PHILOX_WORDS;
        tg_draws_row(d, i, take, 0, w);
        for (int64_t j = 0; j < take; j++) u[j] = tg_uniform_of_word(w[j]);
        i += take;
        u += take;
        n -= take;
    }
}

#endif
