/* Draws in kernels, by cuRAND's Philox4x32-10; kernels/philox.h says which word of which block a draw is. A thread
 * draws for four adjacent elements. If their draws are consecutive, one or two blocks serve all four. */
#ifndef TG_CUDA_DRAWS_H
#define TG_CUDA_DRAWS_H

#include "kernels/cuda/draw_state.h"
#include "kernels/cuda/walk.h"

#include <curand_philox4x32_x.h>

#include "kernels/philox.h"

namespace tg {

enum { DRAWS = 4 };

/* A tg_draws with dividers. If n is 0, lead is the position of the first draw in its block, 0 to 3, and the first
 * thread begins `lead` elements before the array. So the four draws of each thread are one block. In a replay, which
 * has another counter, they may lie in two blocks. If n is above 0, lead is 0. */
struct Draws {
    tg_rng rng;
    const tg_rng *captured; /* for a captured step: see tg_draws */
    const int64_t *rows;    /* see tg_draws */
    int n, lead;
    Divider extent[TG_DRAW_DIGITS];
    uint64_t stride[TG_DRAW_DIGITS];
};

inline Draws draws_of(const tg_draws &d) {
    Draws r = {};
    r.rng = d.rng;
    r.captured = d.captured;
    r.rows = d.rows;
    r.n = d.n;
    r.lead = d.n ? 0 : (int)(d.rng.counter % DRAWS);
    for (int k = 0; k < d.n; k++) {
        r.extent[k] = divider_of(d.extent[k]);
        r.stride[k] = (uint64_t)d.stride[k];
    }
    return r;
}

/* Returns the number of threads that draw n elements. */
inline int64_t draw_threads(const Draws &d, int64_t n) { return ceil_div(n + d.lead, DRAWS); }

/* Returns the number of the draw of an element, in a stream whose counter is `at`. */
__device__ inline uint64_t draw_number(const Draws &d, uint64_t at, int64_t position) {
    for (int k = d.n - 1; k > 0; k--) {
        int64_t outer = quotient(position, d.extent[k]);
        at += (uint64_t)(position - outer * d.extent[k].by) * d.stride[k];
        position = outer;
    }
    if (d.rows) position = d.rows[position];
    return at + (uint64_t)position * (d.n ? d.stride[0] : 1);
}

__device__ inline uint4 draw_block(const tg_rng &rng, uint64_t block, int plane) {
    uint64_t stream = rng.stream | (uint64_t)plane << 63;
    uint4 counter = {(unsigned)block, (unsigned)(block >> 32), (unsigned)stream, (unsigned)(stream >> 32)};
    uint2 key = {(unsigned)rng.seed, (unsigned)(rng.seed >> 32)};
    return curand_Philox4x32_10(counter, key);
}

__device__ inline uint32_t word_of(uint4 block, unsigned i) {
    return i == 0 ? block.x : i == 1 ? block.y : i == 2 ? block.z : block.w;
}

/* Sets w[plane][k] to the word of position first + k if that position lies in [0, end). */
template <int PLANES>
__device__ inline void draw(const Draws &d, int64_t first, int64_t end, uint32_t (&w)[PLANES][DRAWS]) {
    const tg_rng rng = rng_now(d.rng, d.captured);
    uint4 block[PLANES] = {};
    uint64_t have = ~(uint64_t)0;
    TG_UNROLL
    for (int k = 0; k < DRAWS; k++) {
        int64_t position = first + k;
        if (position < 0 || position >= end) continue;
        uint64_t at = draw_number(d, rng.counter, position);
        if (at / DRAWS != have) {
            have = at / DRAWS;
            TG_UNROLL
            for (int p = 0; p < PLANES; p++) block[p] = draw_block(rng, have, p);
        }
        TG_UNROLL
        for (int p = 0; p < PLANES; p++) w[p][k] = word_of(block[p], (unsigned)(at % DRAWS));
    }
}

} // namespace tg

#endif
