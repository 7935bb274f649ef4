/* A stable radix sort of numbers over 8-bit digits from the last to the first (Knuth, The Art of Computer
 * Programming, volume 3, 5.2.5). Id is uint32_t, or uint64_t for more or greater numbers. */
#ifndef TG_CUDA_SORT_H
#define TG_CUDA_SORT_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/walk.h"

namespace tg {

enum { SORT_THREADS = 64, SORT_EACH = 16, SORT_TILE = SORT_THREADS * SORT_EACH, SORT_BITS = 8, SORT_DIGITS = 256 };

/* keys[0] holds n numbers in their original order; order[] needs no contents. starts: scratch of SORT_DIGITS *
 * ceil(n / SORT_TILE). */
template <class Id> struct SortJob {
    Id *keys[2], *order[2], *starts;
    int64_t n, tiles;
};

namespace {

template <class Id> __device__ inline int digit_of(Id key, int shift) {
    return (int)(key >> shift & (SORT_DIGITS - 1));
}

/* starts[digit][tile]: how often the tile contains the digit. */
template <class Id>
__global__ void __launch_bounds__(SORT_THREADS) sort_count(const Id *keys, Id *starts, int64_t n, int64_t tiles,
                                                           int shift) {
    __shared__ int counts[SORT_DIGITS];
    int64_t first = (int64_t)blockIdx.x * SORT_TILE;
    for (int d = threadIdx.x; d < SORT_DIGITS; d += SORT_THREADS) counts[d] = 0;
    __syncthreads();
    for (int k = 0; k < SORT_EACH; k++) {
        int64_t i = first + k * SORT_THREADS + threadIdx.x;
        if (i < n) atomicAdd(&counts[digit_of(keys[i], shift)], 1);
    }
    __syncthreads();
    for (int d = threadIdx.x; d < SORT_DIGITS; d += SORT_THREADS) starts[d * tiles + blockIdx.x] = (Id)counts[d];
}

/* Turns counts into the sums of all before them. Each thread handles one digit. */
template <class Id> __global__ void __launch_bounds__(SORT_DIGITS) sort_sums(Id *starts, int64_t tiles) {
    __shared__ Id sums[2][SORT_DIGITS];
    int d = threadIdx.x, now = 0;
    Id mine = 0;
    for (int64_t t = 0; t < tiles; t++) mine += starts[d * tiles + t];
    sums[0][d] = mine;
    __syncthreads();
    for (int step = 1; step < SORT_DIGITS; step *= 2) {
        sums[!now][d] = sums[now][d] + (d >= step ? sums[now][d - step] : 0);
        now = !now;
        __syncthreads();
    }
    Id before = sums[now][d] - mine;
    for (int64_t t = 0; t < tiles; t++) {
        Id count = starts[d * tiles + t];
        starts[d * tiles + t] = before;
        before += count;
    }
}

/* Every thread has SORT_EACH neighbors and counts its digits separately, so equal digits keep their order. */
template <class Id>
__global__ void __launch_bounds__(SORT_THREADS) sort_place(SortJob<Id> job, int from, int shift, bool first) {
    __shared__ uint16_t counts[SORT_THREADS][SORT_DIGITS];
    const Id *keys = job.keys[from], *order = job.order[from];
    int64_t begin = (int64_t)blockIdx.x * SORT_TILE + threadIdx.x * SORT_EACH;
    Id key[SORT_EACH];
    for (int t = 0; t < SORT_THREADS; t++)
        for (int d = threadIdx.x; d < SORT_DIGITS; d += SORT_THREADS) counts[t][d] = 0;
    __syncthreads();
    TG_UNROLL
    for (int k = 0; k < SORT_EACH; k++) {
        if (begin + k >= job.n) continue;
        key[k] = keys[begin + k];
        counts[threadIdx.x][digit_of(key[k], shift)]++;
    }
    __syncthreads();
    for (int d = threadIdx.x; d < SORT_DIGITS; d += SORT_THREADS) {
        uint16_t before = 0;
        for (int t = 0; t < SORT_THREADS; t++) {
            uint16_t count = counts[t][d];
            counts[t][d] = before;
            before = (uint16_t)(before + count);
        }
    }
    __syncthreads();
    TG_UNROLL
    for (int k = 0; k < SORT_EACH; k++) {
        if (begin + k >= job.n) continue;
        int d = digit_of(key[k], shift);
        Id to = job.starts[d * job.tiles + blockIdx.x] + counts[threadIdx.x][d]++;
        job.keys[!from][to] = key[k];
        job.order[!from][to] = first ? (Id)(begin + k) : order[begin + k];
    }
}

/* From keys[from] on; ordered: order[from] gives what they stand for. */
template <class Id> int sort_from(const SortJob<Id> &job, int from, bool ordered, int bits, cudaStream_t stream) {
    for (int shift = 0; shift == 0 || shift < bits; shift += SORT_BITS, from = !from) {
        unsigned grid = (unsigned)job.tiles;
        const Id *keys = job.keys[from];
        TG_LAUNCH(sort_count<Id>, grid, SORT_THREADS, 0, stream, keys, job.starts, job.n, job.tiles, shift);
        TG_LAUNCH(sort_sums<Id>, 1, SORT_DIGITS, 0, stream, job.starts, job.tiles);
        TG_LAUNCH(sort_place<Id>, grid, SORT_THREADS, 0, stream, job, from, shift, shift == 0 && !ordered);
    }
    return from;
}

/* Sorts numbers with this many bits; the result is in keys[i] and order[i] for the returned i. */
template <class Id> int sort_stably(const SortJob<Id> &job, int bits, cudaStream_t stream) {
    return sort_from(job, 0, false, bits, stream);
}

/* The same for other numbers, in keys[from], which stand for what order[from] gives. */
template <class Id> int sort_further(const SortJob<Id> &job, int from, int bits, cudaStream_t stream) {
    return sort_from(job, from, true, bits, stream);
}

} // namespace
} // namespace tg

#endif
