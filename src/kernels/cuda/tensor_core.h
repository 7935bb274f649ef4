/* The instructions with which a warp multiplies matrices on tensor cores, and those of asynchronous copies to shared
 * memory. Each has a replacement with the same meaning for the emulator. There the lanes exchange their parts of the
 * matrices by shuffles, and copies are made immediately. */
#ifndef TG_CUDA_TENSOR_CORE_H
#define TG_CUDA_TENSOR_CORE_H

#include "kernels/cuda/tile_element.h"

namespace tg {

/* An address in shared memory, in bytes. */
#ifdef __CUDA_ARCH__
typedef uint32_t SharedAt;
#else
typedef uintptr_t SharedAt;
#endif

__device__ inline SharedAt shared_at(const void *p) {
#ifdef __CUDA_ARCH__
    return (uint32_t)__cvta_generic_to_shared(p);
#else
    return (uintptr_t)p;
#endif
}

/* Loads four matrices of 8 x 8 16-bit elements. Row i of the 32 rows begins at the address `row` of lane i. With g =
 * lane / 4 and t = lane % 4, a lane gets elements (g, 2t) and (g, 2t + 1) of each matrix, or of the transposed
 * matrix. */
template <bool TRANSPOSED> __device__ inline void load_matrices(uint32_t (&r)[4], SharedAt row) {
#ifdef __CUDA_ARCH__
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(row)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(row)
                     : "memory");
#else
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (int m = 0; m < 4; m++) {
        uint16_t e[2];
        for (int i = 0; i < 2; i++) {
            SharedAt from = __shfl_sync(~0u, row, m * 8 + (TRANSPOSED ? 2 * t + i : g));
            e[i] = ((const uint16_t *)from)[TRANSPOSED ? g : 2 * t + i];
        }
        memcpy(&r[m], e, sizeof e);
    }
#endif
}

#ifdef __CUDA_ARCH__
#define TG_MMA(type)                                                                                               \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, " \
                 "{%8, %9}, {%0, %1, %2, %3};"                                                                     \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
#endif

/* Adds to c, a fragment of 16 x 8 sums, the product of a, 16 x 16, and b, 16 x 8. A lane holds elements of rows g and
 * g + 8 of a and c, and of column g of b; tile_product.h says which elements of c. */
template <class E>
__device__ inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, E) {
#ifdef __CUDA_ARCH__
    if (TileElement<E>::DTYPE == TG_BF16)
        TG_MMA("bf16");
    else
        TG_MMA("f16");
#else
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint64_t own[3] = {a[0] | (uint64_t)a[1] << 32, a[2] | (uint64_t)a[3] << 32, b0 | (uint64_t)b1 << 32};
    for (int i = 0; i < 4; i++) {
        uint64_t word[4];
        for (int k = 0; k < 2; k++) word[k] = __shfl_sync(~0u, own[k], 4 * g + i);
        for (int n = 0; n < 2; n++) word[2 + n] = __shfl_sync(~0u, own[2], 4 * (2 * t + n) + i);
        E e[4][4]; /* words 0 and 1: two elements of row g, then two of row g + 8; 2 and 3: a column along k */
        memcpy(e, word, sizeof e);
        for (int k = 0; k < 4; k++)
            for (int n = 0; n < 4; n++)
                c[n] += TileElement<E>::get(e[k / 2][n / 2 * 2 + k % 2]) * TileElement<E>::get(e[2 + n % 2][k]);
    }
#endif
}

/* Starts to copy BYTES bytes, 8 or 16, to shared memory. If `there` is false, reads nothing and writes zeros. */
template <int BYTES> __device__ inline void copy_async(SharedAt to, const void *from, bool there) {
#ifdef __CUDA_ARCH__
    const int bytes = there ? BYTES : 0;
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
#else
    if (there)
        memcpy((void *)to, from, BYTES);
    else
        memset((void *)to, 0, BYTES);
#endif
}

/* Waits until the thread's own copies have arrived. */
__device__ inline void copies_wait() {
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/* Returns 2^x, with an error of at most two units in the last place. */
__device__ inline float fast_exp2(float x) {
#ifdef __CUDA_ARCH__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

} // namespace tg

#endif
