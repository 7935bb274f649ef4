/* A stable radix sort of numbers, by 8-bit digits from the least significant to the most (Knuth, The Art of Computer
 * Programming, volume 3, 5.2.5). Id is uint32_t, or uint64_t for more or greater numbers. */
#ifndef TG_CUDA_SORT_H
#define TG_CUDA_SORT_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/walk.h"

namespace tg {

enum { SORT_THREADS = 64, SORT_EACH = 16, SORT_TILE = SORT_THREADS * SORT_EACH, SORT_BITS = 8, SORT_DIGITS = 256 };

/* Before sort_stably, keys[0] holds n numbers, and `order` needs no contents. Each pass moves the keys, and in `order`
 * their original positions, from one buffer to the other. `starts` is scratch memory for SORT_DIGITS * tiles numbers,
 * where tiles is ceil(n / SORT_TILE). */
template <class Id> struct SortJob {
    Id *keys[2], *order[2], *starts;
    int64_t n, tiles;
};

namespace {

/* Returns the number of bits of the number `most`, the greatest of the numbers to be sorted. */
inline int bits_of(int64_t most) {
    int bits = 0;
    while (bits < 63 && most >> bits) bits++;
    return bits;
}

template <class Id> __device__ inline int digit_of(Id key, int shift) {
    return (int)(key >> shift & (SORT_DIGITS - 1));
}

/* Sets starts[digit][tile] to the number of keys of the tile with this digit. */
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

/* Replaces each count by the sum of all counts before it, which is where the keys of the tile with this digit begin.
 * Each thread handles one digit. */
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

/* Moves the keys of a tile to their places. Each thread has SORT_EACH adjacent keys and its own counts of digits, so
 * keys with equal digits keep their order. If `first` is true, order has no contents yet, and the original position of
 * a key is where the key is now. */
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

/* Sorts keys[from], whose numbers have at most this many bits. If `ordered` is true, order[from] has contents, which
 * move with the keys. Returns the number of the buffer that holds the result. */
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

/* Sorts numbers of this many bits in keys[0]. The result is in keys[i] and order[i], where i is the returned number. */
template <class Id> int sort_stably(const SortJob<Id> &job, int bits, cudaStream_t stream) {
    return sort_from(job, 0, false, bits, stream);
}

/* Sorts again, by other numbers, which the caller has written to keys[from]. order[from], the result of the last sort,
 * moves with them. */
template <class Id> int sort_further(const SortJob<Id> &job, int from, int bits, cudaStream_t stream) {
    return sort_from(job, from, true, bits, stream);
}

} // namespace
} // namespace tg

#endif
