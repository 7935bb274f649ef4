/* Adds up partial results along columns. It is the second half of reductions whose bits must not depend on the order of
 * threads. */
#ifndef TG_CUDA_COLUMNS_H
#define TG_CUDA_COLUMNS_H

#include "kernels/cuda/rows.h"

namespace tg {

/* Columns of a block, and threads of a column, each of which adds every COLUMN_THREADS-th part. */
enum { COLUMNS = 32, COLUMN_THREADS = 16 };

/* out[j] (+)= the sum of parts[0..units)[j]. */
template <class T> __global__ void column_sums(Rows out, const T *parts, int64_t units, bool add) {
    __shared__ double sums[COLUMN_THREADS][COLUMNS + 1];
    int first_part = threadIdx.x / COLUMNS, column = threadIdx.x % COLUMNS;
    for (int64_t first = (int64_t)blockIdx.x * COLUMNS; first < out.n; first += (int64_t)gridDim.x * COLUMNS) {
        int64_t j = first + column;
        T sum = 0;
        for (int64_t u = first_part; j < out.n && u < units; u += COLUMN_THREADS) sum += parts[u * out.n + j];
        sums[first_part][column] = (double)sum;
        __syncthreads();
        if (first_part == 0 && j < out.n) {
            for (int l = 1; l < COLUMN_THREADS; l++) sum += (T)sums[l][column];
            T total[1] = {sum};
            chunk_put<T>(out, out.data, j, add, total);
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
