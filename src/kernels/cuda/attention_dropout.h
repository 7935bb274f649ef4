/* Attention's dropout in the kernels for tensor cores. A block of Philox (kernels/philox.h) has the draws of four
 * adjacent keys, whose scores lie in several lanes. Each lane computes some of the blocks, and the lanes exchange the
 * bits that follow from the draws. */
#ifndef TG_CUDA_ATTENTION_DROPOUT_H
#define TG_CUDA_ATTENTION_DROPOUT_H

#include "kernels/cuda/attention_tensor.h"

namespace tg {

/* Which scores of a head dropout keeps. */
struct Dropout {
    tg_rng rng;
    int64_t head; /* the number of the head's first query among the queries of all heads */
    uint64_t sk;
    uint32_t least; /* a score is kept if the first 24 bits of its draw are at least this */
    bool shared;    /* each block of Philox has the draws of four adjacent keys of one query */

    __device__ Dropout(const Attention &a, int64_t b, int64_t h) {
        rng = rng_now(a.draws.rng, a.draws.captured);
        head = (b * a.heads + h) * a.sq;
        sk = (uint64_t)a.sk;
        least = (uint32_t)ceilf((float)a.dropout * 0x1p24f);
        shared = !a.draws.n && rng.counter % 4 == 0 && sk % 4 == 0;
    }

    /* Returns a bit for each of the four keys from j on: whether dropout keeps the score of query i. */
    __device__ uint32_t four(int i, int j) const {
        uint64_t at = rng.counter + (uint64_t)(head + i) * sk + (uint64_t)j;
        tg_philox_block draws = tg_philox(rng.seed, at / 4, rng.stream);
        uint32_t bits = 0;
        TG_UNROLL
        for (int k = 0; k < 4; k++) bits |= (uint32_t)(draws.w[k] >> 8 >= least) << k;
        return bits;
    }

    /* Returns the bits of the lane's scores of 16 queries, from i on, with 8 N keys, from j on (see kept). Lanes with
     * an even t compute the blocks of row g, and lanes with an odd t those of row g + 8. */
    template <int N> __device__ uint32_t of_queries(int i, int j) const {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, odd = t % 2;
        uint32_t own = 0;
        TG_ROLLED
        for (int n = 0; n < N; n++) own |= four(i + g + odd * 8, j + n * 8 + t / 2 * 4) << 4 * n;
        uint32_t other = __shfl_xor_sync(~0u, own, 1);
        uint32_t low = (odd ? other : own) >> 2 * odd, high = (odd ? own : other) >> 2 * odd;
        return (low & 0x33333333) | (high & 0x33333333) << 2;
    }

    /* Returns the same bits for the transposed matrix: 16 keys from j on, and 8 N queries from i on. The lane with g %
     * 4 = e computes the blocks of element e of each fragment. */
    template <int N> __device__ uint32_t of_keys(int i, int j) const {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, e = g % 4;
        uint32_t own = 0, bits = 0;
        TG_ROLLED
        for (int n = 0; n < N; n++) own |= four(i + n * 8 + 2 * t + e % 2, j + g / 4 * 4 + e / 2 * 8) << 4 * n;
        TG_UNROLL
        for (int k = 0; k < 4; k++) bits |= (__shfl_sync(~0u, own, (lane & ~12) + 4 * k) >> e & 0x11111111) << k;
        return bits;
    }
};

/* Returns which of the lane's scores dropout keeps: bit 4 n + e stands for element e of fragment n. i is the first
 * query and j the first key. */
template <int N, bool BY_KEY>
__device__ inline uint32_t kept_of(const Attention &a, const Dropout &d, int64_t b, int64_t h, int i, int j) {
    if (!d.shared) return kept<N, BY_KEY>(a, b, h, i, j);
    return BY_KEY ? d.of_keys<N>(i, j) : d.of_queries<N>(i, j);
}

} // namespace tg

#endif
