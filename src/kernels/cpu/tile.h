/* For templates only: the compute type `real`, and access to rows of any dtype and stride as tiles of that type.
 *
 * A tile is at most TILE elements of a row. If a row is contiguous and has the compute type, its tiles are its own
 * memory; otherwise they are converted through a small buffer on the caller's stack. */
#ifndef TG_TILE_H
#define TG_TILE_H

#include <math.h>

#include "kernels/convert.h"
#include "kernels/cpu/fused.h"
#include "kernels/vmath.h"

#define TILE_CAT_(a, b) a##b
#define TILE_CAT(a, b) TILE_CAT_(a, b)
#define TILE_REAL_f32 float
#define TILE_REAL_f64 double
#define TILE_DTYPE_f32 TG_F32
#define TILE_DTYPE_f64 TG_F64
#define TILE_DTYPE TILE_CAT(TILE_DTYPE_, TG_T)
#define TILE_SQRT_f32 sqrtf
#define TILE_SQRT_f64 sqrt
#define TILE_BF16_f32 tg_f32_to_bf16
#define TILE_BF16_f64 tg_f64_to_bf16
#define TILE_F16_f32 tg_f32_to_f16
#define TILE_F16_f64 tg_f64_to_f16
#define real_to_bf16 TILE_CAT(TILE_BF16_, TG_T)
#define real_to_f16 TILE_CAT(TILE_F16_, TG_T)
#define real_sqrt TILE_CAT(TILE_SQRT_, TG_T)
#define real_exp TILE_CAT(tg_exp_below_, TG_T) /* for differences from a row's maximum or log-sum-exp */
#define real_tanh TILE_CAT(tg_tanh_, TG_T)

typedef TILE_CAT(TILE_REAL_, TG_T) real;

enum { TILE = TG_TILE };

/* Returns the length of the tile that begins at j in a row of n elements. */
static inline int64_t tile_len(int64_t n, int64_t j) {
    return n - j < TILE ? n - j : TILE;
}

/* Returns whether the tiles of x are its own memory. */
static inline bool tile_direct(const tg_rows *x) {
    return x->dtype == TILE_DTYPE && (x->stride == 1 || x->n == 1);
}

/* Loads n elements of a float dtype, `stride` elements apart, and converts them to real. */
static inline void tile_load(real *restrict t, const char *restrict src, tg_dtype dtype, int64_t stride, int64_t n) {
    switch (dtype) {
    case TG_BF16:
        for (int64_t i = 0; i < n; i++)
            t[i] = tg_bf16_to_f32(((const uint16_t *)src)[i * stride]);
        break;
    case TG_F16:
        for (int64_t i = 0; i < n; i++)
            t[i] = tg_f16_to_f32(((const uint16_t *)src)[i * stride]);
        break;
    case TG_F64:
        for (int64_t i = 0; i < n; i++)
            t[i] = (real)((const double *)src)[i * stride];
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            t[i] = ((const float *)src)[i * stride];
    }
}

/* Converts n elements and stores them `stride` elements apart. */
static inline void tile_store(char *restrict dst, tg_dtype dtype, int64_t stride, int64_t n, const real *restrict t) {
    switch (dtype) {
    case TG_BF16:
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)dst)[i * stride] = real_to_bf16(t[i]);
        break;
    case TG_F16:
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)dst)[i * stride] = real_to_f16(t[i]);
        break;
    case TG_F64:
        for (int64_t i = 0; i < n; i++)
            ((double *)dst)[i * stride] = t[i];
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            ((float *)dst)[i * stride] = (float)t[i];
    }
}

/* Adds t to n elements of dst, with the sum in the compute type. */
static inline void tile_add(char *dst, tg_dtype dtype, int64_t stride, int64_t n, const real *t) {
    real sum[TILE];
    tile_load(sum, dst, dtype, stride, n);
    for (int64_t i = 0; i < n; i++)
        sum[i] += t[i];
    tile_store(dst, dtype, stride, n, sum);
}

/* Returns elements [j, j + n) of row r: in place, or converted into buf. */
static inline const real *tile_in(const tg_rows *x, int64_t r, int64_t j, int64_t n, real *buf) {
    const char *at = tg_row_at(x, r, j);
    if (tile_direct(x))
        return (const real *)at;
    tile_load(buf, at, x->dtype, x->stride, n);
    return buf;
}

/* Returns where to compute the elements of row r from j on: in place, or in buf, from which tile_put stores them. */
static inline real *tile_out(const tg_rows *y, int64_t r, int64_t j, bool add, real *buf) {
    return tile_direct(y) && !add ? (real *)tg_row_at(y, r, j) : buf;
}

/* Stores the tile t, which is what tile_out returned. Does nothing if t is the memory of y. */
static inline void tile_put(const tg_rows *y, int64_t r, int64_t j, int64_t n, bool add, const real *t) {
    if (tile_direct(y) && !add)
        return;
    char *at = tg_row_at(y, r, j);
    if (add)
        tile_add(at, y->dtype, y->stride, n, t);
    else
        tile_store(at, y->dtype, y->stride, n, t);
}

/* Returns the next tile, in this row or at the beginning of row r + 1; returns `tile` itself if there is no next tile,
 * or if tiles are converted. A pass over a tile prefetches the next one line by line, because the hardware prefetches
 * only up to the end of a page, where many rows end. */
static inline const real *tile_next(const tg_rows *x, int64_t r, int64_t j, const real *tile) {
    bool last = j + TILE >= x->n;
    if (!tile_direct(x) || (last && r + 1 >= x->count))
        return tile;
    return (const real *)(last ? tg_row_at(x, r + 1, 0) : tg_row_at(x, r, j + TILE));
}

/* Returns the value of row r of an array that holds one value per row. */
static inline real row_value(const tg_rows *x, int64_t r) {
    real v;
    tile_load(&v, tg_row_at(x, r, 0), x->dtype, 1, 1);
    return v;
}

/* Stores v as the value of row r. */
static inline void row_set(const tg_rows *x, int64_t r, real v) {
    tile_store(tg_row_at(x, r, 0), x->dtype, 1, 1, &v);
}

/* The attributes and result type of functions that reduce a tile to one number. They are not inlined: if they were, gcc
 * 12 would compile a scalar loop for tiles that are in place. Most of them sum in LANES explicit lanes, which are four
 * vectors, so that no addition waits for the one before. */
#define TILE_REDUCTION static __attribute__((noinline, unused)) real

#if defined(__AVX512F__)
#define TILE_VECTOR 64
#elif defined(__AVX__)
#define TILE_VECTOR 32
#else
#define TILE_VECTOR 16
#endif
enum { LANES = 4 * TILE_VECTOR / sizeof(real) };

/* Prefetches LANES elements. */
static inline void lanes_fetch(const real *next) {
    for (int l = 0; l < LANES; l += (int)(64 / sizeof(real)))
        __builtin_prefetch(next + l);
}

/* Returns the sum of LANES elements. */
static inline real lanes_sum(const real *lane) {
    real s = 0;
#pragma omp simd reduction(+ : s)
    for (int l = 0; l < LANES; l++)
        s += lane[l];
    return s;
}

TILE_REDUCTION tile_sum(const real *t, int64_t n) {
    real lane[LANES] = {0}, s = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] += t[i + l];
#pragma omp simd reduction(+ : s)
    for (int64_t k = i; k < n; k++)
        s += t[k];
    return s + lanes_sum(lane);
}

TILE_REDUCTION tile_dot(const real *a, const real *b, int64_t n) {
    real lane[LANES] = {0}, s = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] += a[i + l] * b[i + l];
#pragma omp simd reduction(+ : s)
    for (int64_t k = i; k < n; k++)
        s += a[k] * b[k];
    return s + lanes_sum(lane);
}

#endif
