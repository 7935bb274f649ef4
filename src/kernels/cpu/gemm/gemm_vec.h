/* Vectors of the compute type for the GEMM's templates: loads that convert, stores that round, and the sum of the
 * lanes. TG_T (f32 or f64) must be defined. */
#ifndef TG_GEMM_VEC_H
#define TG_GEMM_VEC_H

#include <stdint.h>
#include <string.h>
#include <tapegrad/types.h>

#include "kernels/cpu/lanes.h"

/* The size of a tile. A tile has MR rows of NV vectors. Its sums, NV vectors of B and one of A fit the registers. NEAR
 * is near_bytes of tg_gemm_kernels: half of the second-level cache where that was measured to be faster than one panel
 * of A at a time, else 0. */
#if defined(__AVX512F__)
enum { MR = 8, NV = 3, NEAR = 0 };
#elif defined(__AVX2__)
enum { MR = 6, NV = 2, NEAR = 256 << 10 };
#else
enum { MR = 4, NV = 2, NEAR = 0 };
#endif

#if TG_F64_HERE
typedef double real;
typedef uint64_t bits;
#else
typedef float real;
typedef uint32_t bits;
#endif

enum { LANES = TG_VEC_LANES, NR = NV * LANES };

typedef real vec __attribute__((vector_size(TG_VEC_BYTES)));
typedef bits vec_bits __attribute__((vector_size(TG_VEC_BYTES)));
typedef vec vec_anywhere __attribute__((aligned(1), may_alias));
typedef uint16_t vec_half __attribute__((vector_size(LANES * 2)));

#define TG_INLINE static inline __attribute__((always_inline))

/* Unrolls the loop that follows. Serves loops over registers. */
#define TG_UNROLL _Pragma("GCC unroll 16")

TG_INLINE vec get(const real *p) { return *(const vec_anywhere *)p; }
TG_INLINE void put(real *p, vec v) { *(vec_anywhere *)p = v; }

/* Transposes a square of LANES rows. */
TG_INLINE void transpose(vec r[LANES]) { TG_TRANSPOSE(r) }

/* Returns the sum of the lanes. Adds halves of the vector, so the order is fixed. */
#define TG_FLIP(s, j) ((j) ^ (s))
TG_INLINE real sum_lanes(vec v) {
#if TG_VEC_LANES > 8
    v += __builtin_shufflevector(v, v, TG_LIST(TG_FLIP, 8));
#endif
#if TG_VEC_LANES > 4
    v += __builtin_shufflevector(v, v, TG_LIST(TG_FLIP, 4));
#endif
#if TG_VEC_LANES > 2
    v += __builtin_shufflevector(v, v, TG_LIST(TG_FLIP, 2));
#endif
    return v[0] + v[1];
}

TG_INLINE int64_t dtype_bytes(tg_dtype d) { return d == TG_F64 ? 8 : d == TG_F32 ? 4 : 2; }

/* Returns the address of element i. */
TG_INLINE const void *at(const void *p, int64_t i, tg_dtype d) { return (const char *)p + i * dtype_bytes(d); }

#if !TG_F64_HERE
/* Widens float16 in integer lanes: shifts the bits into place and scales by 2^112, which is exact and also normalizes
 * subnormal numbers. Infinities and NaN are widened separately. */
TG_INLINE vec widen_f16(vec_half h) {
    vec_bits w = __builtin_convertvector(h, vec_bits);
    vec_bits magnitude = (w & 0x7fff) << 13, top = (vec_bits)(magnitude >= 0x0f800000);
    vec_bits finite = (vec_bits)((vec)magnitude * 0x1p112f);
    return (vec)((top & (magnitude | 0x7f800000)) | (~top & finite) | ((w & 0x8000) << 16));
}

TG_INLINE vec widen_bf16(vec_half h) { return (vec)(__builtin_convertvector(h, vec_bits) << 16); }

/* Rounds to nearest even; a NaN stays NaN. */
TG_INLINE vec_half narrow_bf16(vec v) {
    vec_bits b = (vec_bits)v, nan = (vec_bits)((b & 0x7fffffff) > 0x7f800000);
    vec_bits rounded = b + 0x7fff + ((b >> 16) & 1);
    return __builtin_convertvector(((nan & (b | 0x400000)) | (~nan & rounded)) >> 16, vec_half);
}

/* Rounds to nearest even. Results that are normal are rounded as integers after their exponent is rebased. Subnormal
 * results are rounded by adding 1/2, which leaves the wanted bits at the bottom of the mantissa. */
TG_INLINE vec_half narrow_f16(vec v) {
    vec_bits b = (vec_bits)v, magnitude = b & 0x7fffffff;
    vec_bits nan = (vec_bits)(magnitude > 0x7f800000), over = (vec_bits)(magnitude >= 0x477ff000);
    vec_bits under = (vec_bits)(magnitude < 0x38800000);
    vec_bits normal = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    vec_bits small = (vec_bits)((vec)magnitude + 0.5f) - 0x3f000000;
    vec_bits r = (under & small) | (~under & normal);
    r = (over & 0x7c00) | (~over & r);
    r = (nan & (0x7e00 | ((magnitude >> 13) & 0x3ff))) | (~nan & r);
    return __builtin_convertvector(r | ((b >> 16) & 0x8000), vec_half);
}
#endif

/* Loads LANES contiguous elements of dtype d. */
TG_INLINE vec load(const void *p, tg_dtype d) {
#if !TG_F64_HERE
    if (d != TG_F32) {
        vec_half h;
        memcpy(&h, p, sizeof h);
        return d == TG_BF16 ? widen_bf16(h) : widen_f16(h);
    }
#else
    (void)d;
#endif
    return get(p);
}

TG_INLINE void store(void *p, vec v, tg_dtype d) {
#if !TG_F64_HERE
    if (d != TG_F32) {
        vec_half h = d == TG_BF16 ? narrow_bf16(v) : narrow_f16(v);
        memcpy(p, &h, sizeof h);
        return;
    }
#else
    (void)d;
#endif
    put(p, v);
}

/* Loads n <= LANES elements, `stride` apart; the other lanes are 0. */
TG_INLINE vec load_some(const void *p, int64_t stride, int64_t n, tg_dtype d) {
    uint64_t buffer[TG_VEC_BYTES / 8] = {0};
    int64_t size = dtype_bytes(d);
    for (int64_t i = 0; i < n; i++)
        memcpy((char *)buffer + i * size, (const char *)p + i * stride * size, (size_t)size);
    return load(buffer, d);
}

TG_INLINE void store_some(void *p, int64_t stride, int64_t n, vec v, tg_dtype d) {
    uint64_t buffer[TG_VEC_BYTES / 8];
    int64_t size = dtype_bytes(d);
    store(buffer, v, d);
    for (int64_t i = 0; i < n; i++) memcpy((char *)p + i * stride * size, (char *)buffer + i * size, (size_t)size);
}

/* Loads n <= LANES elements, `stride` apart. The common case is fast. */
TG_INLINE vec load_n(const void *p, int64_t stride, int64_t n, tg_dtype d) {
    return stride == 1 && n == LANES ? load(p, d) : load_some(p, stride, n, d);
}

TG_INLINE void store_n(void *p, int64_t stride, int64_t n, vec v, tg_dtype d) {
    if (stride == 1 && n == LANES) store(p, v, d);
    else store_some(p, stride, n, v, d);
}

TG_INLINE int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }

#endif
