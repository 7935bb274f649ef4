/* Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011), for CPU and GPU.
 *
 * Philox computes a block of four 32-bit words from a key and a counter, which has four words too. Here the key is the
 * seed. Draw number i of a stream is a pure function of (seed, stream, i), so a range of draws can start at any i.
 * Words 0 and 1 of the counter are i / 4 (low, high), and words 2 and 3 are the stream (low, high), which is less than
 * 2^63. The first word of the draw is word i % 4 of the block. The second word is computed only if one word is not
 * enough. It is word i % 4 of the block whose counter also has the top bit of word 3 set. `plane` selects the first
 * word (0) or the second (1).
 *
 * float32 uniforms use 24 bits of the first word. float64 uniforms use the first word and 21 bits of the second, so
 * they agree with the float32 uniforms up to rounding. Normals use the first word for the radius and the second for the
 * angle of the Box-Muller method. */
#ifndef TG_PHILOX_H
#define TG_PHILOX_H

#include <tapegrad/device.h>

#if defined(__CUDACC__)
#define TG_PHILOX_FN static __host__ __device__ inline
#else
#define TG_PHILOX_FN static inline
#endif

typedef struct tg_philox_block {
    uint32_t w[4];
} tg_philox_block;

/* Returns the block of this key (the seed) and counter: c01 is its words 0 and 1, c23 its words 2 and 3. */
TG_PHILOX_FN tg_philox_block tg_philox(uint64_t key, uint64_t c01, uint64_t c23) {
    uint32_t c0 = (uint32_t)c01, c1 = (uint32_t)(c01 >> 32), c2 = (uint32_t)c23, c3 = (uint32_t)(c23 >> 32);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    tg_philox_block b = {{c0, c1, c2, c3}};
    return b;
}

/* Returns word `plane` (0 or 1) of draw number rng->counter + i. */
TG_PHILOX_FN uint32_t tg_philox_word(const tg_rng *rng, uint64_t i, int plane) {
    uint64_t at = rng->counter + i;
    return tg_philox(rng->seed, at / 4, rng->stream | (uint64_t)plane << 63).w[at % 4];
}

/* Returns the uniform number in [0, 1) of a draw with this first word. */
TG_PHILOX_FN float tg_uniform_of_word(uint32_t first) {
    return (float)(int32_t)(first >> 8) * 0x1p-24f;
}

TG_PHILOX_FN double tg_uniform_of_words(uint32_t first, uint32_t second) {
    return (double)((uint64_t)first << 21 | second >> 11) * 0x1p-53;
}

/* Returns draw number rng->counter + i as a uniform number in [0, 1). */
TG_PHILOX_FN float tg_philox_uniform(const tg_rng *rng, uint64_t i) {
    return tg_uniform_of_word(tg_philox_word(rng, i, 0));
}

/* Returns the number that is added to rng.counter for the element at this row-major position; see tg_draws. */
TG_PHILOX_FN uint64_t tg_draws_at(const tg_draws *d, int64_t position) {
    uint64_t at = 0;
    for (int k = d->n - 1; k > 0; k--) {
        at += (uint64_t)(position % d->extent[k]) * (uint64_t)d->stride[k];
        position /= d->extent[k];
    }
    if (d->rows) position = d->rows[position];
    return at + (uint64_t)position * (uint64_t)(d->n ? d->stride[0] : 1);
}

#ifndef __cplusplus
#include "kernels/philox_row.h"
#endif

#endif
