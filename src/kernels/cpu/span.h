/* For templates only: the compute type T, and copies between spans and buffers of T. A span is n elements of any dtype,
 * a constant stride apart.
 *
 * TG_T may be f32, f64 or i64. The code branches on the dtype, and on whether the stride is 1, outside of the loops, so
 * that every loop vectorizes. */
#ifndef TG_SPAN_H
#define TG_SPAN_H

#include <stdbool.h>

#include "kernels/convert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/elements.h"
#include "kernels/float8.h"
#include "kernels/vmath.h"

#define SPAN_CAT_(a, b) a##b
#define SPAN_CAT(a, b)  SPAN_CAT_(a, b)
#define SPAN_TYPE_f32   float
#define SPAN_TYPE_f64   double
#define SPAN_TYPE_i64   int64_t
#define SPAN_DTYPE_f32  TG_F32
#define SPAN_DTYPE_f64  TG_F64
#define SPAN_DTYPE_i64  TG_I64
#define SPAN_DTYPE      SPAN_CAT(SPAN_DTYPE_, TG_T)

typedef SPAN_CAT(SPAN_TYPE_, TG_T) T;

/* Conversions from T to the other dtypes. To an integer, floats saturate and integers wrap. To a 16-bit or 8-bit float,
 * floats and integers are rounded once. */
#define SPAN_TO_BF16_f32    tg_f32_to_bf16
#define SPAN_TO_BF16_f64    tg_f64_to_bf16
#define SPAN_TO_BF16_i64(x) tg_f64_to_bf16(tg_i64_odd(x))
#define SPAN_TO_F16_f32     tg_f32_to_f16
#define SPAN_TO_F16_f64     tg_f64_to_f16
#define SPAN_TO_F16_i64(x)  tg_f64_to_f16(tg_i64_odd(x))
#define SPAN_TO_I64_f32(x)  tg_f64_to_i64(x)
#define SPAN_TO_I64_f64     tg_f64_to_i64
#define SPAN_TO_I64_i64(x)  (x)
#define SPAN_TO_I32_f32(x)  tg_f64_to_i32(x)
#define SPAN_TO_I32_f64     tg_f64_to_i32
#define SPAN_TO_I32_i64(x)  (int32_t)(x)
#define SPAN_TO_U8_f32(x)   tg_f64_to_u8(x)
#define SPAN_TO_U8_f64      tg_f64_to_u8
#define SPAN_TO_U8_i64(x)   (uint8_t)(x)
#define SPAN_TO_I8_f32(x)   tg_f64_to_i8(x)
#define SPAN_TO_I8_f64      tg_f64_to_i8
#define SPAN_TO_I8_i64(x)   (int8_t)(x)
#define SPAN_TO_I16_f32(x)  tg_f64_to_i16(x)
#define SPAN_TO_I16_f64     tg_f64_to_i16
#define SPAN_TO_I16_i64(x)  (int16_t)(x)
#define SPAN_TO_U16_f32(x)  tg_f64_to_u16(x)
#define SPAN_TO_U16_f64     tg_f64_to_u16
#define SPAN_TO_U16_i64(x)  (uint16_t)(x)
#define SPAN_TO_U32_f32(x)  tg_f64_to_u32(x)
#define SPAN_TO_U32_f64     tg_f64_to_u32
#define SPAN_TO_U32_i64(x)  (uint32_t)(x)
#define SPAN_TO_U64_f32(x)  tg_f64_to_u64(x)
#define SPAN_TO_U64_f64     tg_f64_to_u64
#define SPAN_TO_U64_i64(x)  (uint64_t)(x)
#define SPAN_NARROW_f32(x)  (x)
#define SPAN_NARROW_f64(x)  tg_f64_to_f32_odd(x)
#define SPAN_NARROW_i64(x)  tg_f64_to_f32_odd(tg_i64_odd(x))
#define SPAN_NARROW(x)      SPAN_CAT(SPAN_NARROW_, TG_T)(x)

#define SPAN_LOAD_CASE(dtype, type, value)                                                                             \
    case dtype: {                                                                                                      \
        const type *s = src;                                                                                           \
        if (stride == 1)                                                                                               \
            for (int64_t i = 0; i < n; i++) t[i] = (T)value(s[i]);                                                     \
        else                                                                                                           \
            for (int64_t i = 0; i < n; i++) t[i] = (T)value(s[i * stride]);                                            \
        break;                                                                                                         \
    }

#define SPAN_STORE_CASE(dtype, type, value)                                                                            \
    case dtype: {                                                                                                      \
        type *s = dst;                                                                                                 \
        if (stride == 1)                                                                                               \
            for (int64_t i = 0; i < n; i++) s[i] = (type)value(t[i]);                                                  \
        else                                                                                                           \
            for (int64_t i = 0; i < n; i++) s[i * stride] = (type)value(t[i]);                                         \
        break;                                                                                                         \
    }

#define SPAN_SAME(x)      (x)
#define SPAN_TRUTH(x)     ((x) != 0)
#define SPAN_RANK(x)      ((uint64_t)(x) ^ 1ull << 63)
#define SPAN_TO_F8E4M3(x) tg_f32_to_f8e4m3(SPAN_NARROW(x))
#define SPAN_TO_F8E5M2(x) tg_f32_to_f8e5m2(SPAN_NARROW(x))
#define SPAN_TO_F8E8M0(x) tg_f32_to_f8e8m0(SPAN_NARROW(x))

/* Loads t[i] = src[i * stride] for i in [0, n). */
static inline void span_load(T *restrict t, const void *restrict src, tg_dtype dtype, int64_t stride, int64_t n) {
    switch ((int)dtype) {
        SPAN_LOAD_CASE(TG_F32, float, SPAN_SAME)
        SPAN_LOAD_CASE(TG_F64, double, SPAN_SAME)
        SPAN_LOAD_CASE(TG_BF16, uint16_t, tg_bf16_to_f32)
        SPAN_LOAD_CASE(TG_F16, uint16_t, tg_f16_to_f32)
        SPAN_LOAD_CASE(TG_I64, int64_t, SPAN_SAME)
        SPAN_LOAD_CASE(TG_I32, int32_t, SPAN_SAME)
        SPAN_LOAD_CASE(TG_U8, uint8_t, SPAN_SAME)
        SPAN_LOAD_CASE(TG_I8, int8_t, SPAN_SAME)
        SPAN_LOAD_CASE(TG_I16, int16_t, SPAN_SAME)
        SPAN_LOAD_CASE(TG_U16, uint16_t, SPAN_SAME)
        SPAN_LOAD_CASE(TG_U32, uint32_t, SPAN_SAME)
        SPAN_LOAD_CASE(TG_U64, uint64_t, SPAN_SAME)
        SPAN_LOAD_CASE(TG_U64_RANK, uint64_t, SPAN_RANK)
        SPAN_LOAD_CASE(TG_U64_ODD, uint64_t, tg_u64_odd)
        SPAN_LOAD_CASE(TG_F8E4M3, uint8_t, tg_f8e4m3_to_f32)
        SPAN_LOAD_CASE(TG_F8E5M2, uint8_t, tg_f8e5m2_to_f32)
        SPAN_LOAD_CASE(TG_F8E8M0, uint8_t, tg_f8e8m0_to_f32)
        SPAN_LOAD_CASE(TG_BOOL, uint8_t, SPAN_TRUTH)
    default:
        break;
    }
}

/* Stores dst[i * stride] = t[i] for i in [0, n). */
static inline void span_store(void *restrict dst, tg_dtype dtype, int64_t stride, int64_t n, const T *restrict t) {
    switch ((int)dtype) {
        SPAN_STORE_CASE(TG_F32, float, SPAN_SAME)
        SPAN_STORE_CASE(TG_F64, double, SPAN_SAME)
        SPAN_STORE_CASE(TG_BF16, uint16_t, SPAN_CAT(SPAN_TO_BF16_, TG_T))
        SPAN_STORE_CASE(TG_F16, uint16_t, SPAN_CAT(SPAN_TO_F16_, TG_T))
        SPAN_STORE_CASE(TG_I64, int64_t, SPAN_CAT(SPAN_TO_I64_, TG_T))
        SPAN_STORE_CASE(TG_I32, int32_t, SPAN_CAT(SPAN_TO_I32_, TG_T))
        SPAN_STORE_CASE(TG_U8, uint8_t, SPAN_CAT(SPAN_TO_U8_, TG_T))
        SPAN_STORE_CASE(TG_I8, int8_t, SPAN_CAT(SPAN_TO_I8_, TG_T))
        SPAN_STORE_CASE(TG_I16, int16_t, SPAN_CAT(SPAN_TO_I16_, TG_T))
        SPAN_STORE_CASE(TG_U16, uint16_t, SPAN_CAT(SPAN_TO_U16_, TG_T))
        SPAN_STORE_CASE(TG_U32, uint32_t, SPAN_CAT(SPAN_TO_U32_, TG_T))
        SPAN_STORE_CASE(TG_U64, uint64_t, SPAN_CAT(SPAN_TO_U64_, TG_T))
        SPAN_STORE_CASE(TG_U64_RANK, uint64_t, SPAN_RANK)
        SPAN_STORE_CASE(TG_F8E4M3, uint8_t, SPAN_TO_F8E4M3)
        SPAN_STORE_CASE(TG_F8E5M2, uint8_t, SPAN_TO_F8E5M2)
        SPAN_STORE_CASE(TG_F8E8M0, uint8_t, SPAN_TO_F8E8M0)
        SPAN_STORE_CASE(TG_BOOL, uint8_t, SPAN_TRUTH)
    default:
        break;
    }
}

#endif
