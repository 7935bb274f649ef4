/* The least and the greatest number of a dtype that a uniform draw from [lo, hi) can give, for CPU and GPU. */
#ifndef TG_UNIFORM_H
#define TG_UNIFORM_H

#include <math.h>

#include <tapegrad/types.h>

#include "kernels/convert.h"

/* Returns the dtype's number nearest to x; infinite if x is out of range. Integers are drawn as float64, so for integer
 * dtypes the result is x. */
static inline double tg_uniform_nearest(tg_dtype t, double x) {
    if (t == TG_BF16) return tg_bf16_to_f32(tg_f64_to_bf16(x));
    if (t == TG_F16) return tg_f16_to_f32(tg_f64_to_f16(x));
    return t == TG_F32 ? (double)(float)x : x;
}

/* Returns the bits of the next 16-bit float above or below the one with the bits h. */
static inline uint16_t tg_uniform_adjacent_16(uint16_t h, bool up) {
    if ((h & 0x7fff) == 0) return up ? 0x0001 : 0x8001;
    return (uint16_t)((h >> 15) == (uint16_t)up ? h - 1 : h + 1);
}

/* Returns the dtype's next number above or below x. x must be a number of the dtype. */
static inline double tg_uniform_adjacent(tg_dtype t, double x, bool up) {
    double to = up ? INFINITY : -INFINITY;
    if (t == TG_BF16) return tg_bf16_to_f32(tg_uniform_adjacent_16(tg_f64_to_bf16(x), up));
    if (t == TG_F16) return tg_f16_to_f32(tg_uniform_adjacent_16(tg_f64_to_f16(x), up));
    return t == TG_F32 ? (double)nextafterf((float)x, (float)to) : nextafter(x, to);
}

/* Finds the bounds of the draw, which rounding must not cross. *least is the least number of the dtype in [lo, hi).
 * *below is the greatest, with one exception: if hi rounds down to a float32, *below is the next float32 below the
 * rounded hi. If lo equals hi, *least and *below are the number nearest to lo. If [lo, hi) contains no number of the
 * dtype, *least is hi or more. */
static inline void tg_uniform_ends(tg_dtype t, double lo, double hi, double *least, double *below) {
    double l = tg_uniform_nearest(t, lo), h = tg_uniform_nearest(t, hi);
    bool narrow = t == TG_BF16 || t == TG_F16;
    *least = lo < hi && l < lo ? tg_uniform_adjacent(t, l, true) : l;
    *below = lo == hi || (narrow && h < hi) ? h : tg_uniform_adjacent(t, h, false);
    if (*below < *least) *below = *least;
}

#endif
