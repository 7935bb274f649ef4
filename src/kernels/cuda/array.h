/* Elements of arrays in kernels: loads and stores of any dtype as a compute type T (float, double or int64_t). The
 * dtype is the same for all threads of a launch, so the switch on it does not diverge. */
#ifndef TG_CUDA_ARRAY_H
#define TG_CUDA_ARRAY_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <tapegrad/types.h>

#include "kernels/cuda/launch.h"

/* These macros stand before a loop. TG_UNROLL unrolls a loop of constant length, so that the arrays that it indexes
 * stay in registers. TG_ROLLED keeps the compiler from unrolling a loop. */
#ifdef __CUDACC__
#define TG_UNROLL _Pragma("unroll")
#define TG_ROLLED _Pragma("unroll 1")
#else
#define TG_UNROLL
#define TG_ROLLED
#endif

namespace tg {

__host__ __device__ inline bool is_float(int dtype) { return dtype <= TG_F16; }

template <class T> __device__ inline T load(const char *data, int dtype, int64_t i) {
    switch (dtype) {
    case TG_F32: return (T)((const float *)data)[i];
    case TG_F64: return (T)((const double *)data)[i];
    case TG_BF16: return (T)__bfloat162float(((const __nv_bfloat16 *)data)[i]);
    case TG_F16: return (T)__half2float(((const __half *)data)[i]);
    case TG_I64: return (T)((const int64_t *)data)[i];
    case TG_I32: return (T)((const int32_t *)data)[i];
    case TG_BOOL: return (T)(((const uint8_t *)data)[i] != 0);
    default: return (T)((const uint8_t *)data)[i];
    }
}

/* Converts a float to an integer as everywhere in the library: rounds toward zero, saturates, and turns NaN into 0. */
template <class I> __device__ inline I saturated(double v, double least, double most, I low, I high) {
    return v != v ? (I)0 : v <= least ? low : v >= most ? high : (I)v;
}

template <class T> __device__ inline int64_t as_i64(T v) {
    return saturated<int64_t>((double)v, -0x1p63, 0x1p63, INT64_MIN, INT64_MAX);
}
template <> __device__ inline int64_t as_i64(int64_t v) { return v; }
template <class T> __device__ inline int32_t as_i32(T v) {
    return saturated<int32_t>((double)v, -0x1p31, 0x1p31, INT32_MIN, INT32_MAX);
}
template <> __device__ inline int32_t as_i32(int64_t v) { return (int32_t)v; }
template <class T> __device__ inline uint8_t as_u8(T v) {
    return saturated<uint8_t>((double)v, 0, 255, (uint8_t)0, (uint8_t)255);
}
template <> __device__ inline uint8_t as_u8(int64_t v) { return (uint8_t)v; }

/* Converts a double to float, and rounds it to odd. Rounding the result to a 16-bit float then gives the same as
 * rounding the double once. */
__device__ inline float to_odd(double v) {
    float f = (float)v;
    double back = f;
    if (back == v || v != v) return f;
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if (fabs(back) > fabs(v)) u--;
    u |= 1;
    memcpy(&f, &u, sizeof u);
    return f;
}
__device__ inline float narrowed(float v) { return v; }
__device__ inline float narrowed(double v) { return to_odd(v); }
__device__ inline float narrowed(int64_t v) { return to_odd((double)v); }

template <class T> __device__ inline void store(char *data, int dtype, int64_t i, T v) {
    switch (dtype) {
    case TG_F32: ((float *)data)[i] = (float)v; break;
    case TG_F64: ((double *)data)[i] = (double)v; break;
    case TG_BF16: ((__nv_bfloat16 *)data)[i] = __float2bfloat16_rn(narrowed(v)); break;
    case TG_F16: ((__half *)data)[i] = __float2half_rn(narrowed(v)); break;
    case TG_I64: ((int64_t *)data)[i] = as_i64(v); break;
    case TG_I32: ((int32_t *)data)[i] = as_i32(v); break;
    case TG_BOOL: ((uint8_t *)data)[i] = v != (T)0; break;
    default: ((uint8_t *)data)[i] = as_u8(v);
    }
}

/* A product and a sum that the compiler does not fuse into one operation. They are used where the bits must equal the
 * CPU's or those of another kernel, as the scores in attention's gradients must equal those of its forward. */
#ifdef __CUDA_ARCH__
__device__ inline float multiplied(float a, float b) { return __fmul_rn(a, b); }
__device__ inline double multiplied(double a, double b) { return __dmul_rn(a, b); }
__device__ inline float added(float a, float b) { return __fadd_rn(a, b); }
__device__ inline double added(double a, double b) { return __dadd_rn(a, b); }
#else
__device__ inline float multiplied(float a, float b) { return a * b; }
__device__ inline double multiplied(double a, double b) { return a * b; }
__device__ inline float added(float a, float b) { return a + b; }
__device__ inline double added(double a, double b) { return a + b; }
#endif

} // namespace tg

#endif
