/* Elements of arrays in kernels: loads and stores of any dtype as a compute type T (float, double or int64_t);
 * TG_U64_ODD (elements.h) is only loaded. The dtype is the same for all threads of a launch, so the switch on it does
 * not diverge. */
#ifndef TG_CUDA_ARRAY_H
#define TG_CUDA_ARRAY_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <tapegrad/types.h>

#include "kernels/cuda/launch.h"
#include "kernels/elements.h"
#include "kernels/float8.h"

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

/* Returns whether the values of a tensor's dtype are real numbers: whether it is a float, or float8. */
__host__ __device__ inline bool is_real(int dtype) { return dtype <= TG_F16 || dtype > TG_BOOL; }

template <class T> __device__ inline T load(const char *data, int dtype, int64_t i) {
    switch (dtype) {
    case TG_F32: return (T)((const float *)data)[i];
    case TG_F64: return (T)((const double *)data)[i];
    case TG_BF16: return (T)__bfloat162float(((const __nv_bfloat16 *)data)[i]);
    case TG_F16: return (T)__half2float(((const __half *)data)[i]);
    case TG_I64: return (T)((const int64_t *)data)[i];
    case TG_I32: return (T)((const int32_t *)data)[i];
    case TG_I16: return (T)((const int16_t *)data)[i];
    case TG_I8: return (T)((const int8_t *)data)[i];
    case TG_U64: return (T)((const uint64_t *)data)[i];
    case TG_U64_RANK: return (T)(((const uint64_t *)data)[i] ^ (uint64_t)1 << 63);
    case TG_U64_ODD: return (T)tg_u64_odd(((const uint64_t *)data)[i]);
    case TG_U32: return (T)((const uint32_t *)data)[i];
    case TG_U16: return (T)((const uint16_t *)data)[i];
    case TG_BOOL: return (T)(((const uint8_t *)data)[i] != 0);
    case TG_F8E4M3: return (T)tg_f8e4m3_to_f32(((const uint8_t *)data)[i]);
    case TG_F8E5M2: return (T)tg_f8e5m2_to_f32(((const uint8_t *)data)[i]);
    case TG_F8E8M0: return (T)tg_f8e8m0_to_f32(((const uint8_t *)data)[i]);
    default: return (T)((const uint8_t *)data)[i];
    }
}

/* Sums and products. Those of int64 wrap around, as on the CPU. */
template <class T> __device__ inline T sum_of(T a, T b) { return a + b; }
template <class T> __device__ inline T product_of(T a, T b) { return a * b; }
template <> __device__ inline int64_t sum_of(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }
template <> __device__ inline int64_t product_of(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }

/* Converts a float to an integer as everywhere in the library: rounds toward zero, saturates, and turns NaN into 0. */
template <class I> __device__ inline I saturated(double v, double least, double most, I low, I high) {
    return v != v ? (I)0 : v <= least ? low : v >= most ? high : (I)v;
}

/* Converts v to the integer type I. A float that is `least` or less becomes `low`, and one that is `most` or more
 * becomes `high`. An int64 wraps around. */
template <class I> __device__ inline I as_integer(double v, double least, double most, I low, I high) {
    return saturated<I>(v, least, most, low, high);
}
template <class I> __device__ inline I as_integer(int64_t v, double, double, I, I) { return (I)v; }
template <class T> __device__ inline int64_t as_i64(T v) {
    return as_integer<int64_t>(v, -0x1p63, 0x1p63, INT64_MIN, INT64_MAX);
}

/* Return the float from which a number is rounded to a 16-bit or 8-bit float. */
__device__ inline float narrowed(float v) { return v; }
__device__ inline float narrowed(double v) { return tg_f64_to_f32_odd(v); }
__device__ inline float narrowed(int64_t v) { return tg_f64_to_f32_odd(tg_i64_odd(v)); }

template <class T> __device__ inline void store(char *data, int dtype, int64_t i, T v) {
    switch (dtype) {
    case TG_F32: ((float *)data)[i] = (float)v; break;
    case TG_F64: ((double *)data)[i] = (double)v; break;
    case TG_BF16: ((__nv_bfloat16 *)data)[i] = __float2bfloat16_rn(narrowed(v)); break;
    case TG_F16: ((__half *)data)[i] = __float2half_rn(narrowed(v)); break;
    case TG_I64: ((int64_t *)data)[i] = as_i64(v); break;
    case TG_I32: ((int32_t *)data)[i] = as_integer<int32_t>(v, -0x1p31, 0x1p31, INT32_MIN, INT32_MAX); break;
    case TG_I16: ((int16_t *)data)[i] = as_integer<int16_t>(v, -32768, 32767, INT16_MIN, INT16_MAX); break;
    case TG_I8: ((int8_t *)data)[i] = as_integer<int8_t>(v, -128, 127, INT8_MIN, INT8_MAX); break;
    case TG_U64: ((uint64_t *)data)[i] = as_integer<uint64_t>(v, 0, 0x1p64, 0, UINT64_MAX); break;
    case TG_U64_RANK: ((uint64_t *)data)[i] = as_integer<uint64_t>(v, 0, 0x1p64, 0, 0) ^ (uint64_t)1 << 63; break;
    case TG_U32: ((uint32_t *)data)[i] = as_integer<uint32_t>(v, 0, 0x1p32, 0, UINT32_MAX); break;
    case TG_U16: ((uint16_t *)data)[i] = as_integer<uint16_t>(v, 0, 65535, 0, UINT16_MAX); break;
    case TG_BOOL: ((uint8_t *)data)[i] = v != (T)0; break;
    case TG_F8E4M3: ((uint8_t *)data)[i] = tg_f32_to_f8e4m3(narrowed(v)); break;
    case TG_F8E5M2: ((uint8_t *)data)[i] = tg_f32_to_f8e5m2(narrowed(v)); break;
    case TG_F8E8M0: ((uint8_t *)data)[i] = tg_f32_to_f8e8m0(narrowed(v)); break;
    default: ((uint8_t *)data)[i] = as_integer<uint8_t>(v, 0, 255, 0, UINT8_MAX);
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
