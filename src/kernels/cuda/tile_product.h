/* Products of tiles in shared memory, each by one warp: the core of attention's kernels.
 *
 * A fragment is a 16 x 8 part of the result. Its sums are distributed over the warp as mma.sync distributes them. With
 * g = lane / 4 and t = lane % 4, a lane holds {(g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)}. 16-bit elements use
 * tensor cores. Float and double use ordinary arithmetic, and so do 16-bit elements if the compiler is not nvcc. */
#ifndef TG_CUDA_TILE_PRODUCT_H
#define TG_CUDA_TILE_PRODUCT_H

#include "kernels/cuda/rows.h"
#include "kernels/cuda/tensor_core.h"

namespace tg {

/* Adds to c the product of the warp's 16 rows of A, a [16, k] tile, and of B. b holds B transposed, [n, k], or with
 * BY_K B itself, [k, n]. n is at most 8 * NF, and NF is even. k and n are multiples of 16; the tiles are filled up with
 * zeros. */
template <bool BY_K, int NF, class E, class T>
__device__ inline void tile_product(T (&c)[NF][4], const E *a, int lda, const E *b, int ldb, int n, int k) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (int i = 0; i < k; i++) {
        T low = TileElement<E>::get(a[g * lda + i]), high = TileElement<E>::get(a[(g + 8) * lda + i]);
        TG_UNROLL
        for (int f = 0; f < NF; f++) {
            int j = f * 8 + 2 * t;
            if (f * 8 >= n) break;
            T left = TileElement<E>::get(BY_K ? b[i * ldb + j] : b[j * ldb + i]);
            T right = TileElement<E>::get(BY_K ? b[i * ldb + j + 1] : b[(j + 1) * ldb + i]);
            c[f][0] += low * left;
            c[f][1] += low * right;
            c[f][2] += high * left;
            c[f][3] += high * right;
        }
    }
}

#ifdef __CUDACC__

/* Does the same as tile_product, with tensor cores. One load_matrices of B serves two fragments. */
template <bool BY_K, int NF, class E>
__device__ inline void tensor_product(float (&c)[NF][4], const E *a, int lda, const E *b, int ldb, int n, int k) {
    int lane = threadIdx.x % 32, half = lane / 16, eighth = lane / 8 % 2;
    const E *from = BY_K ? b + lane % 16 * ldb + half * 8 : b + (lane % 8 + half * 8) * ldb + eighth * 8;
    const SharedAt row_a = shared_at(a + lane % 16 * lda + half * 8), row_b = shared_at(from);
    for (int i = 0; i < k; i += 16) {
        uint32_t ra[4], rb[4];
        load_matrices<false>(ra, row_a + i * sizeof(E));
        TG_UNROLL
        for (int f = 0; f < NF; f += 2) {
            if (f * 8 >= n) break;
            load_matrices<BY_K>(rb, row_b + (BY_K ? i * ldb + f * 8 : f * 8 * ldb + i) * sizeof(E));
            multiply(c[f], ra, rb[0], rb[1], E());
            multiply(c[f + 1], ra, rb[2], rb[3], E());
        }
    }
}

template <bool BY_K, int NF>
__device__ inline void tile_product(float (&c)[NF][4], const __nv_bfloat16 *a, int lda, const __nv_bfloat16 *b, int ldb,
                                    int n, int k) {
    tensor_product<BY_K, NF>(c, a, lda, b, ldb, n, k);
}
template <bool BY_K, int NF>
__device__ inline void tile_product(float (&c)[NF][4], const __half *a, int lda, const __half *b, int ldb, int n,
                                    int k) {
    tensor_product<BY_K, NF>(c, a, lda, b, ldb, n, k);
}

#endif

template <int NF, class T> __device__ inline void clear(T (&c)[NF][4]) {
    TG_UNROLL
    for (int f = 0; f < NF; f++) c[f][0] = c[f][1] = c[f][2] = c[f][3] = 0;
}

/* Stores the warp's fragments to the 16 rows of a tile that begin at `to`. */
template <int NF, class E, class T> __device__ inline void tile_set(E *to, int ld, const T (&c)[NF][4]) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    TG_UNROLL
    for (int f = 0; f < NF; f++) {
        TG_UNROLL
        for (int i = 0; i < 4; i++)
            to[(g + i / 2 * 8) * ld + f * 8 + 2 * t + i % 2] = TileElement<E>::of(c[f][i]);
    }
}

} // namespace tg

#endif
