/* Conversions of the 8-bit floats, one element at a time: F8E4M3 (4 bits of exponent and 3 of mantissa, no infinity),
 * F8E5M2 (an IEEE format) and F8E8M0 (an exponent alone: a power of two from 2^-127 to 2^127). The formats are those of
 * the OCP Microscaling specification 1.0. Floats are rounded to nearest even, except to F8E8M0, and NaN stays NaN.
 * There are no branches, so that loops that convert arrays vectorize. */
#ifndef TG_FLOAT8_H
#define TG_FLOAT8_H

#include "kernels/convert.h"

/* Returns the bits of `scale` times the float whose bits are m. `scale` is a power of two that changes the bias of the
 * exponent from that of an 8-bit format to that of float32. The product is exact, also for subnormal numbers. */
TG_KERNEL_FN uint32_t tg_f8_rebased(uint32_t m, float scale) { return tg_bits_f32(tg_f32_bits(m) * scale); }

/* Returns the bits of the magnitude m of a float32 rounded to a format that drops the last `cut` bits of the mantissa
 * and whose exponent is `rebase` lower. `unit` is the number whose unit in the last place is the smallest positive
 * number of the format; adding it rounds results that are subnormal. `normal` is the least normal number. */
TG_KERNEL_FN uint32_t tg_f8_rounded(uint32_t m, int cut, uint32_t rebase, uint32_t normal, float unit) {
    uint32_t above = (m + ((1u << (cut - 1)) - 1) + ((m >> cut) & 1) - (rebase << 23)) >> cut;
    uint32_t below = tg_bits_f32(tg_f32_bits(m) + unit) - tg_bits_f32(unit);
    return m < normal ? below : above;
}

TG_KERNEL_FN float tg_f8e4m3_to_f32(uint8_t h) {
    uint32_t sign = (uint32_t)(h & 0x80) << 24, m = (uint32_t)(h & 0x7f) << 20;
    return tg_f32_bits(sign | ((h & 0x7f) == 0x7f ? 0x7fc00000 : tg_f8_rebased(m, 0x1p120f)));
}

TG_KERNEL_FN float tg_f8e5m2_to_f32(uint8_t h) {
    uint32_t sign = (uint32_t)(h & 0x80) << 24, m = (uint32_t)(h & 0x7f) << 21;
    return tg_f32_bits(sign | ((h & 0x7c) == 0x7c ? m | 0x7f800000 : tg_f8_rebased(m, 0x1p112f)));
}

TG_KERNEL_FN float tg_f8e8m0_to_f32(uint8_t h) {
    return tg_f32_bits(h == 0xff ? 0x7fc00000 : h ? (uint32_t)h << 23 : 0x00400000);
}

/* A magnitude above 448, infinity included, becomes 448. */
TG_KERNEL_FN uint8_t tg_f32_to_f8e4m3(float x) {
    uint32_t u = tg_bits_f32(x), m = u & 0x7fffffff;
    uint32_t h = tg_f8_rounded(m, 20, 120, 121u << 23, 0x1p14f);
    uint32_t special = m > 0x7f800000 ? 0x7f : 0x7e;
    return (uint8_t)((u >> 24 & 0x80) | (m >= 0x43e00000 ? special : h)); /* from 448 on */
}

/* A magnitude that rounds to more than 57344 becomes infinity. */
TG_KERNEL_FN uint8_t tg_f32_to_f8e5m2(float x) {
    uint32_t u = tg_bits_f32(x), m = u & 0x7fffffff;
    uint32_t h = tg_f8_rounded(m, 21, 112, 113u << 23, 0x1p7f), special = m > 0x7f800000 ? 0x7f : 0x7c;
    return (uint8_t)((u >> 24 & 0x80) | (m >= 0x47800000 ? special : h)); /* from 65536 on */
}

/* Rounds to a power of two as PyTorch does. A number between two powers of two becomes the lower one if it is less than
 * 1.5 times that power, and otherwise the higher one; but all numbers between 2^-127 and 2^-126 become 2^-126. Numbers
 * from 0 to 2^-127, the least power, become 2^-127. Negative numbers, which the format lacks, become NaN, and so do
 * numbers from 1.5 * 2^127 on. */
TG_KERNEL_FN uint8_t tg_f32_to_f8e8m0(float x) {
    uint32_t u = tg_bits_f32(x), up = u > 0x00400000 && (u & 0x400000) ? 1u : 0u;
    return (uint8_t)(u >= 0x7f800000 && u != 0x80000000 ? 0xff : ((u & 0x7fffffff) >> 23) + up);
}

#endif
