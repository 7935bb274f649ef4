/* Sums partial results over rows: the second half of reductions whose bits must not depend on the order of threads. */
#ifndef TG_CUDA_COLUMNS_H
#define TG_CUDA_COLUMNS_H

#include "kernels/cuda/rows.h"

namespace tg {

enum { COLUMNS = 32, LANES = 16 }; /* of a block: each thread sums every LANES-th part of its column */

/* out[j] (+)= the sum of parts[0..units)[j]. */
template <class T> __global__ void column_sums(Rows out, const T *parts, int64_t units, bool add) {
    __shared__ double sums[LANES][COLUMNS + 1];
    int lane = threadIdx.x / COLUMNS, column = threadIdx.x % COLUMNS;
    for (int64_t first = (int64_t)blockIdx.x * COLUMNS; first < out.n; first += (int64_t)gridDim.x * COLUMNS) {
        int64_t j = first + column;
        T sum = 0;
        for (int64_t u = lane; j < out.n && u < units; u += LANES) sum += parts[u * out.n + j];
        sums[lane][column] = (double)sum;
        __syncthreads();
        if (lane == 0 && j < out.n) {
            for (int l = 1; l < LANES; l++) sum += (T)sums[l][column];
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
    TG_LAUNCH((column_sums<T>), (unsigned)(blocks < 1 << 20 ? blocks : 1 << 20), COLUMNS * LANES, 0,
              tg_cuda_of(ctx)->compute, out, (const T *)parts, units, add);
    return tg_cuda_launched(ctx, "column_sums");
}

} // namespace tg

#endif
