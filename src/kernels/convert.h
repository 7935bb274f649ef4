/* Conversions between the dtypes, one element at a time. Between floats they round to nearest even, and NaN stays NaN.
 * Only those whose name ends in _odd round to odd. From floats to integers they round toward zero as C does, but
 * saturate, and NaN becomes 0. They have no branches, so that loops that convert arrays vectorize. */
#ifndef TG_CONVERT_H
#define TG_CONVERT_H

#include <stdint.h>
#include <string.h>

/* Begins a function that kernels of every device call. */
#ifdef __CUDACC__
#define TG_KERNEL_FN static __host__ __device__ inline
#else
#define TG_KERNEL_FN static inline
#endif

/* Returns the bits of x. */
TG_KERNEL_FN uint32_t tg_bits_f32(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* Returns the float whose bits are u. */
TG_KERNEL_FN float tg_f32_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float tg_bf16_to_f32(uint16_t h) {
    return tg_f32_bits((uint32_t)h << 16);
}

static inline uint16_t tg_f32_to_bf16(float x) {
    uint32_t u = tg_bits_f32(x);
    uint32_t rounded = u + 0x7fff + ((u >> 16) & 1), quiet = u | 0x400000;
    return (uint16_t)(((u & 0x7fffffff) > 0x7f800000 ? quiet : rounded) >> 16);
}

/* Rebases the exponent by a multiplication, which is exact and also normalizes subnormal numbers. */
static inline float tg_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, m = (uint32_t)(h & 0x7fff) << 13;
    uint32_t finite = tg_bits_f32(tg_f32_bits(m) * 0x1p112f);
    return tg_f32_bits(sign | (m >= 0x0f800000 ? m | 0x7f800000 : finite));
}

/* Results that are subnormal float16 numbers are rounded by adding 0.5, because the unit in the last place of 0.5 in
 * float32 is the smallest positive float16. */
static inline uint16_t tg_f32_to_f16(float x) {
    uint32_t u = tg_bits_f32(x), m = u & 0x7fffffff;
    uint32_t normal = (m + 0xfff + ((m >> 13) & 1) - (112u << 23)) >> 13;
    uint32_t subnormal = tg_bits_f32(tg_f32_bits(m) + 0.5f) - 0x3f000000;
    uint32_t special = m > 0x7f800000 ? 0x7e00 | ((m >> 13) & 0x3ff) : 0x7c00;
    uint32_t h = m < 0x38800000 ? subnormal : m < 0x47800000 ? normal : special;
    return (uint16_t)(((u >> 16) & 0x8000) | h);
}

/* Rounds x to odd (Boldo and Melquiond, Emulation of a FMA and correctly rounded sums: proved algorithms using rounding
 * to odd, 2008). Rounding the result again, to a 16-bit or 8-bit float, gives the same as rounding x once to that
 * type. */
TG_KERNEL_FN float tg_f64_to_f32_odd(double x) {
    float f = (float)x;
    uint32_t u = tg_bits_f32(f);
    double back = f, size = x < 0 ? -x : x, size_back = back < 0 ? -back : back;
    uint32_t toward_zero = size_back > size ? u - 1 : u;
    return tg_f32_bits(back != x && x == x ? toward_zero | 1 : u);
}

/* These two functions convert an integer to float64. An integer of more than 53 bits is rounded to odd: bit 11 becomes
 * 1 if any of the last 12 bits is 1, and the bits below it become 0. float64 holds the result exactly, also from 2^63
 * on. */
TG_KERNEL_FN double tg_u64_odd(uint64_t x) {
    uint64_t few = (x & ~(uint64_t)4095) | (x & 4095 ? 2048 : 0);
    return (double)(x >> 53 ? few : x);
}

TG_KERNEL_FN double tg_i64_odd(int64_t x) {
    double size = tg_u64_odd(x < 0 ? 0 - (uint64_t)x : (uint64_t)x);
    return x < 0 ? -size : size;
}

static inline uint16_t tg_f64_to_bf16(double x) {
    return tg_f32_to_bf16(tg_f64_to_f32_odd(x));
}

static inline uint16_t tg_f64_to_f16(double x) {
    return tg_f32_to_f16(tg_f64_to_f32_odd(x));
}

static inline int64_t tg_f64_to_i64(double x) {
    return x >= 0x1p63 ? INT64_MAX : x <= -0x1p63 ? INT64_MIN : x == x ? (int64_t)x : 0;
}

static inline int32_t tg_f64_to_i32(double x) {
    return x >= 0x1p31 ? INT32_MAX : x <= -0x1p31 ? INT32_MIN : x == x ? (int32_t)x : 0;
}

static inline uint8_t tg_f64_to_u8(double x) {
    return x >= 255 ? 255 : x > 0 ? (uint8_t)x : 0;
}

static inline int8_t tg_f64_to_i8(double x) {
    return x >= 127 ? 127 : x <= -128 ? -128 : x == x ? (int8_t)x : 0;
}

static inline int16_t tg_f64_to_i16(double x) {
    return x >= 32767 ? 32767 : x <= -32768 ? -32768 : x == x ? (int16_t)x : 0;
}

static inline uint16_t tg_f64_to_u16(double x) {
    return x >= 65535 ? 65535 : x > 0 ? (uint16_t)x : 0;
}

static inline uint32_t tg_f64_to_u32(double x) {
    return x >= 0x1p32 ? UINT32_MAX : x > 0 ? (uint32_t)x : 0;
}

static inline uint64_t tg_f64_to_u64(double x) {
    return x >= 0x1p64 ? UINT64_MAX : x > 0 ? (uint64_t)x : 0;
}

#endif
