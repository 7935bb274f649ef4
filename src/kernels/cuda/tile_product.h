/* Products of tiles in shared memory, each by one warp: the core of attention's kernels.
 *
 * A fragment is a 16 x 8 part of the result. Its sums are distributed over the warp as mma.sync distributes them. With
 * g = lane / 4 and t = lane % 4, a lane holds {(g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)}. 16-bit elements use
 * tensor cores. Float and double use ordinary arithmetic, and so do 16-bit elements where nvcc does not compile. */
#ifndef TG_CUDA_TILE_PRODUCT_H
#define TG_CUDA_TILE_PRODUCT_H

#include "kernels/cuda/rows.h"

namespace tg {

/* An element of a tile: its dtype, its compute type T, and the conversions between the two. */
template <class E> struct Element {
    typedef E T;
    static constexpr int DTYPE = sizeof(E) == 8 ? TG_F64 : TG_F32;
    static __device__ T get(E v) { return v; }
    static __device__ E of(T v) { return v; }
};
template <> struct Element<__nv_bfloat16> {
    typedef float T;
    static constexpr int DTYPE = TG_BF16;
    static __device__ T get(__nv_bfloat16 v) { return __bfloat162float(v); }
    static __device__ __nv_bfloat16 of(T v) { return __float2bfloat16_rn(v); }
};
template <> struct Element<__half> {
    typedef float T;
    static constexpr int DTYPE = TG_F16;
    static __device__ T get(__half v) { return __half2float(v); }
    static __device__ __half of(T v) { return __float2half_rn(v); }
};

/* Returns the distance between the rows of a tile, in elements: 16 bytes more than their length, so that consecutive
 * rows lie in different banks of shared memory. */
template <class E> __device__ constexpr int tile_pitch(int cols) { return cols + (int)(16 / sizeof(E)); }

/* Adds to c the product of the warp's 16 rows of A, a [16, k] tile, and of B. b holds B transposed, [n, k], or with
 * BY_K B itself, [k, n]. n is at most 8 * NF, and NF is even. k and n are multiples of 16; the tiles are filled up with
 * zeros. */
template <bool BY_K, int NF, class E, class T>
__device__ inline void tile_product(T (&c)[NF][4], const E *a, int lda, const E *b, int ldb, int n, int k) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (int i = 0; i < k; i++) {
        T low = Element<E>::get(a[g * lda + i]), high = Element<E>::get(a[(g + 8) * lda + i]);
        TG_UNROLL
        for (int f = 0; f < NF; f++) {
            int j = f * 8 + 2 * t;
            if (f * 8 >= n) break;
            T left = Element<E>::get(BY_K ? b[i * ldb + j] : b[j * ldb + i]);
            T right = Element<E>::get(BY_K ? b[i * ldb + j + 1] : b[(j + 1) * ldb + i]);
            c[f][0] += low * left;
            c[f][1] += low * right;
            c[f][2] += high * left;
            c[f][3] += high * right;
        }
    }
}

#ifdef __CUDACC__

/* Loads four matrices of 8 x 8 16-bit elements, whose 32 rows begin at the lanes' addresses. */
template <bool TRANSPOSED> __device__ inline void load_matrices(uint32_t (&r)[4], const void *row) {
#ifdef __CUDA_ARCH__
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
#endif
}

__device__ inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __nv_bfloat16) {
#ifdef __CUDA_ARCH__
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

__device__ inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __half) {
#ifdef __CUDA_ARCH__
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

/* The same with tensor cores. One load_matrices of B serves two fragments. */
template <bool BY_K, int NF, class E>
__device__ inline void tensor_product(float (&c)[NF][4], const E *a, int lda, const E *b, int ldb, int n, int k) {
    int lane = threadIdx.x % 32, half = lane / 16, eighth = lane / 8 % 2;
    const E *row_a = a + lane % 16 * lda + half * 8;
    const E *row_b = BY_K ? b + lane % 16 * ldb + half * 8 : b + (lane % 8 + half * 8) * ldb + eighth * 8;
    for (int i = 0; i < k; i += 16) {
        uint32_t ra[4], rb[4];
        load_matrices<false>(ra, row_a + i);
        TG_UNROLL
        for (int f = 0; f < NF; f += 2) {
            if (f * 8 >= n) break;
            load_matrices<BY_K>(rb, BY_K ? row_b + i * ldb + f * 8 : row_b + f * 8 * ldb + i);
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
            to[(g + i / 2 * 8) * ld + f * 8 + 2 * t + i % 2] = Element<E>::of(c[f][i]);
    }
}

} // namespace tg

#endif
