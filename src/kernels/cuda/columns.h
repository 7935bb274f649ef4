/* Adds up partial results along columns. This is the second pass of reductions whose bits must not depend on the order
 * in which threads run. */
#ifndef TG_CUDA_COLUMNS_H
#define TG_CUDA_COLUMNS_H

#include "kernels/cuda/rows.h"

namespace tg {

/* A block adds up COLUMNS columns, each with COLUMN_THREADS threads. Each of these threads adds every COLUMN_THREADS-th
 * part of its column, and loads COLUMN_AHEAD parts before it adds the first. */
enum { COLUMNS = 16, COLUMN_THREADS = 32, COLUMN_AHEAD = 8 };

/* Returns the sum of parts u, u + COLUMN_THREADS, and so on, of column j. */
template <class T> __device__ inline T column_sum(const T *parts, int64_t n, int64_t j, int64_t u, int64_t units) {
    T sum = 0;
    for (; u < units; u += COLUMN_AHEAD * COLUMN_THREADS) {
        T v[COLUMN_AHEAD];
        TG_UNROLL
        for (int a = 0; a < COLUMN_AHEAD; a++) {
            int64_t unit = u + a * COLUMN_THREADS;
            v[a] = unit < units ? parts[unit * n + j] : (T)0;
        }
        TG_UNROLL
        for (int a = 0; a < COLUMN_AHEAD; a++) sum += v[a];
    }
    return sum;
}

/* Computes out[j] (+)= the sum of parts[u][j] over u in [0, units). parts is [units, out.n]. */
template <class T> __global__ void column_sums(Rows out, const T *parts, int64_t units, bool add) {
    __shared__ T sums[COLUMN_THREADS][COLUMNS];
    int first_part = threadIdx.x / COLUMNS, column = threadIdx.x % COLUMNS;
    for (int64_t first = (int64_t)blockIdx.x * COLUMNS; first < out.n; first += (int64_t)gridDim.x * COLUMNS) {
        int64_t j = first + column;
        sums[first_part][column] = j < out.n ? column_sum(parts, out.n, j, first_part, units) : (T)0;
        __syncthreads();
        if (first_part == 0 && j < out.n) {
            T total[1] = {sums[0][column]};
            TG_UNROLL
            for (int l = 1; l < COLUMN_THREADS; l++) total[0] += sums[l][column];
            chunk_put<T, ANY_DTYPE>(out, out.data, j, add, total);
        }
        __syncthreads();
    }
}

template <class T>
inline tg_status sum_columns(tg_ctx *ctx, const tg_array &to, const void *parts, int64_t units, bool add) {
    Rows out = rows_of(to, 1);
    if (!out.data || out.n == 0) return TG_OK;
    int64_t blocks = (out.n + COLUMNS - 1) / COLUMNS;
    TG_LAUNCH((column_sums<T>), (unsigned)(blocks < 1 << 20 ? blocks : 1 << 20), COLUMNS * COLUMN_THREADS, 0,
              tg_cuda_of(ctx)->compute, out, (const T *)parts, units, add);
    return tg_cuda_launched(ctx, "column_sums");
}

} // namespace tg

#endif
