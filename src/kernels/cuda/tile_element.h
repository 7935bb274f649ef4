/* Elements of tiles in shared memory: their dtypes, the types that compute with them, and the distance between the rows
 * of a tile. */
#ifndef TG_CUDA_TILE_ELEMENT_H
#define TG_CUDA_TILE_ELEMENT_H

#include <string.h>

#include "kernels/cuda/array.h"

namespace tg {

/* An element of a tile: its dtype, its compute type T, and the conversions between the two. */
template <class E> struct TileElement {
    typedef E T;
    static constexpr int DTYPE = sizeof(E) == 8 ? TG_F64 : TG_F32;
    static __device__ T get(E v) { return v; }
    static __device__ E of(T v) { return v; }
};
template <> struct TileElement<__nv_bfloat16> {
    typedef float T;
    static constexpr int DTYPE = TG_BF16;
    static __device__ T get(__nv_bfloat16 v) { return __bfloat162float(v); }
    static __device__ __nv_bfloat16 of(T v) { return __float2bfloat16_rn(v); }
};
template <> struct TileElement<__half> {
    typedef float T;
    static constexpr int DTYPE = TG_F16;
    static __device__ T get(__half v) { return __half2float(v); }
    static __device__ __half of(T v) { return __float2half_rn(v); }
};

/* Two adjacent elements of a row, which are loaded or stored in one access. */
template <class E> struct alignas(2 * sizeof(E)) Two {
    E e[2];
};

/* Returns two 16-bit elements as one word; `low` comes first in memory. */
template <class E> __device__ inline uint32_t packed(float low, float high) {
    Two<E> pair = {{TileElement<E>::of(low), TileElement<E>::of(high)}};
    uint32_t word;
    memcpy(&word, &pair, sizeof word);
    return word;
}
#ifdef __CUDA_ARCH__
template <> __device__ inline uint32_t packed<__nv_bfloat16>(float low, float high) {
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}
template <> __device__ inline uint32_t packed<__half>(float low, float high) {
    uint32_t word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}
#endif

/* Returns the distance between the rows of a tile, in elements: 16 bytes more than their length, so that consecutive
 * rows lie in different banks of shared memory. */
template <class E> __device__ constexpr int tile_pitch(int cols) { return cols + (int)(16 / sizeof(E)); }

} // namespace tg

#endif
