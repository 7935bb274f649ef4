/* Elementary functions of float32 and float64.
 *
 * Most float32 functions are inline arithmetic without branches, so that loops over them vectorize on any instruction
 * set. They use minimax polynomials (relative error of the fit at most 6e-9). Unless a function's comment says
 * otherwise, results are within 2 ulp (erf: 4), and correct for zeros, infinities, NaN and subnormal numbers. The other
 * float32 functions, and those of float64, where accuracy matters more, call libm.
 *
 * Multiply-adds are written as tg_fma_f32, which is one fused instruction where the instruction set has it. In
 * templates that are compiled with -ffp-contract=off, the compiler fuses no other multiply-adds, so the bits of an
 * element do not depend on its position in a loop. */
#ifndef TG_VMATH_H
#define TG_VMATH_H

#include <math.h>

#include "kernels/convert.h"

#ifdef __FMA__
static inline float tg_fma_f32(float a, float b, float c) {
    return __builtin_fmaf(a, b, c);
}
#else
static inline float tg_fma_f32(float a, float b, float c) {
    return a * b + c;
}
#endif

/* Splits x = n ln 2 + r with |r| <= ln 2 / 2, and returns e^r - 1 to full relative accuracy. Returns NaN for NaN, with
 * an arbitrary n. */
static inline float tg_exp_split_f32(float x, uint32_t *n) {
    const float shift = 0x1.8p23f; /* adding it leaves the nearest integer in the low bits */
    float z = tg_fma_f32(x, 1.44269504f, shift), k = z - shift;
    float r = tg_fma_f32(k, 2.12194440e-4f, tg_fma_f32(k, -0.693359375f, x));
    float q = 1.38145941e-3f;
    q = tg_fma_f32(q, r, 8.36871751e-3f);
    q = tg_fma_f32(q, r, 4.16683890e-2f);
    q = tg_fma_f32(q, r, 0.166665211f);
    q = tg_fma_f32(q, r, 0.49999994f);
    *n = tg_bits_f32(z) - tg_bits_f32(shift);
    return tg_fma_f32(q, r * r, r);
}

/* Returns 2^n for n in [-126, 127]; n is an int32 in two's complement. */
static inline float tg_pow2_f32(uint32_t n) {
    return tg_f32_bits((n + 127) << 23);
}

/* Returns e^x. Multiplies by 2^n in two steps of about 2^(n / 2), because 2^n alone may be subnormal or overflow. */
static inline float tg_exp_f32(float x) {
    uint32_t n;
    x = x > 89.0f ? 89.0f : x < -104.0f ? -104.0f : x;
    float e = tg_exp_split_f32(x, &n);
    uint32_t half = (uint32_t)((int32_t)n >> 1);
    float s = tg_pow2_f32(half);
    return tg_fma_f32(e, s, s) * tg_pow2_f32(n - half);
}

/* Returns e^x for x <= 88, and 0 for x below -87. Serves differences from a row's maximum. */
static inline float tg_exp_below_f32(float x) {
    uint32_t n;
    float e = tg_exp_split_f32(x, &n), s = tg_pow2_f32(n);
    return x < -87.0f ? 0.0f : tg_fma_f32(e, s, s);
}
static inline double tg_exp_below_f64(double x) {
    return exp(x);
}

/* Returns e^x - 1 for x <= 88; -0 becomes 0. */
static inline float tg_expm1_small_f32(float x) {
    uint32_t n;
    x = x < -30.0f ? -30.0f : x;
    float e = tg_exp_split_f32(x, &n), s = tg_pow2_f32(n);
    return tg_fma_f32(e, s, s - 1.0f);
}

/* Returns e^x - 1 for any x; -0 stays -0. */
static inline float tg_expm1_f32(float x) {
    uint32_t n;
    int high = x > 88.0f; /* 2^n might not be finite, so half of it is used */
    float z = x < -30.0f ? -30.0f : x > 89.0f ? 89.0f : x;
    float e = tg_exp_split_f32(z, &n), s = tg_pow2_f32(high ? n - 1 : n);
    float y = tg_fma_f32(e, s, s - 1.0f);
    return x == 0 ? x : high ? 2.0f * y : y;
}

/* Returns log(2^k (1 + r)), for r in [sqrt(1/2) - 1, sqrt(2) - 1]. */
static inline float tg_log_join_f32(float k, float r) {
    float q = -7.63449222e-2f;
    q = tg_fma_f32(q, r, 0.12761575f);
    q = tg_fma_f32(q, r, -0.131601825f);
    q = tg_fma_f32(q, r, 0.142017588f);
    q = tg_fma_f32(q, r, -0.166233569f);
    q = tg_fma_f32(q, r, 0.200012267f);
    q = tg_fma_f32(q, r, -0.250008196f);
    q = tg_fma_f32(q, r, 0.333333313f);
    float rr = r * r;
    float tail = tg_fma_f32(k, -2.12194440e-4f, tg_fma_f32(q * r, rr, -0.5f * rr));
    return tg_fma_f32(k, 0.693359375f, r + tail);
}

/* Splits a normal x > 0 into 2^k (1 + r), with r in the range of tg_log_join_f32, and returns r. */
static inline float tg_log_split_f32(float x, float *k) {
    uint32_t u = tg_bits_f32(x), sqrt_half = 0x3f3504f3;
    int32_t n = (int32_t)(u - sqrt_half) >> 23;
    *k = (float)n;
    return tg_f32_bits(u - ((uint32_t)n << 23)) - 1.0f;
}

static inline float tg_log_f32(float x) {
    float k, scaled = x < 0x1p-126f ? x * 0x1p25f : x;
    float r = tg_log_split_f32(scaled, &k);
    float y = tg_log_join_f32(x < 0x1p-126f ? k - 25.0f : k, r);
    y = x == 0 ? -INFINITY : y;
    y = x < 0 ? NAN : y;
    return x < INFINITY ? y : x;
}

/* Returns log(1 + x). Adds `cut`, the part of x that rounding removed from u = 1 + x, to the fraction of u. -0 stays
 * -0. */
static inline float tg_log1p_f32(float x) {
    float u = 1.0f + x, cut = x < 1.0f ? x - (u - 1.0f) : 1.0f - (u - x);
    float k, r = tg_log_split_f32(u, &k);
    float y = tg_log_join_f32(k, r + cut / u * (1.0f + r));
    y = x == -1.0f ? -INFINITY : x == 0 ? x : y;
    y = x < -1.0f ? NAN : y;
    return x < INFINITY ? y : x;
}

/* Returns 1 / (1 + e^-x). The result is 0 for x below about -88.72, where e^-x overflows and the exact
 * value is subnormal. */
static inline float tg_sigmoid_f32(float x) {
    return 1.0f / (1.0f + tg_exp_f32(-x));
}

/* Returns tanh(x); -0 stays -0. */
static inline float tg_tanh_f32(float x) {
    float z = x > 10.0f ? 10.0f : x;
    float e = tg_expm1_small_f32(2 * z);
    return x == 0 ? x : e / (e + 2.0f);
}

/* Returns erf(x) for x >= 0 as 1 - exp(-a G(a)), where a is x but at most 4, and G is one polynomial for all x. This
 * form keeps the relative accuracy near 0. erf(-x) is -erf(x). */
static inline float tg_erf_f32(float x) {
    uint32_t n, sign = tg_bits_f32(x) & 0x80000000u;
    float a = tg_f32_bits(tg_bits_f32(x) ^ sign);
    a = a > 4.0f ? 4.0f : a;
    float g = 9.25629865e-6f; /* -G */
    g = tg_fma_f32(g, a, -1.17641517e-4f);
    g = tg_fma_f32(g, a, 6.32837589e-4f);
    g = tg_fma_f32(g, a, -1.66702864e-3f);
    g = tg_fma_f32(g, a, 1.60397089e-4f);
    g = tg_fma_f32(g, a, 1.91530641e-2f);
    g = tg_fma_f32(g, a, -0.102777831f);
    g = tg_fma_f32(g, a, -0.636619389f);
    g = tg_fma_f32(g, a, -1.12837923f);
    float e = tg_exp_split_f32(a * g, &n), s = tg_pow2_f32(n);
    float y = tg_fma_f32(-e, s, 1.0f - s);
    return tg_f32_bits(tg_bits_f32(y) ^ sign);
}

/* Returns the normal distribution function as 1/2 + x P(x^2) / Q(x^2), within 2.1e-7 for |x| up to 5.6, and exactly 0
 * or 1 for greater |x|. The division costs less than the exponential that erf would need. |x| and x P / Q are limited
 * by comparing their bits as integers, with one instruction each. In these comparisons NaN counts as a large number, so
 * the result for NaN is 0 or 1. GELU and its derivative, which are the only callers, still give NaN. */
static inline float tg_normal_cdf_f32(float x) {
    uint32_t sign = tg_bits_f32(x) & 0x80000000u;
    int32_t a = (int32_t)(tg_bits_f32(x) ^ sign), most = 0x40b33333 /* 5.6 */, half = 0x3f000000 /* 0.5 */;
    float t = tg_f32_bits((uint32_t)(a < most ? a : most)), z = t * t;
    float p = 2.24282104e-8f;
    p = tg_fma_f32(p, z, 6.32379079e-6f);
    p = tg_fma_f32(p, z, 1.69774343e-4f);
    p = tg_fma_f32(p, z, 4.68262238e-3f);
    p = tg_fma_f32(p, z, 3.3981774e-2f);
    p = tg_fma_f32(p, z, 0.398942262f);
    float q = 1.18603066e-6f;
    q = tg_fma_f32(q, z, 7.37674418e-5f);
    q = tg_fma_f32(q, z, 1.89001858e-3f);
    q = tg_fma_f32(q, z, 2.87131052e-2f);
    q = tg_fma_f32(q, z, 0.251845777f);
    q = tg_fma_f32(q, z, 1.0f);
    int32_t r = (int32_t)tg_bits_f32(t * p / q);
    return 0.5f + tg_f32_bits((uint32_t)(r < half ? r : half) | sign);
}

/* Returns cos(2 pi turn / 2^32). The angle is reduced to an eighth of a turn in integers, which is exact. */
static inline float tg_cos_turn_f32(uint32_t turn) {
    uint32_t quarter = (turn + 0x20000000u) >> 30;
    float x = (float)(int32_t)(turn - (quarter << 30)) * 0x1p-30f, z = x * x;
    float s = -4.60165786e-3f;
    s = tg_fma_f32(s, z, 7.96800330e-2f);
    s = tg_fma_f32(s, z, -0.64596349f);
    s = x * tg_fma_f32(s, z, 1.57079637f);
    float c = 9.04021552e-4f;
    c = tg_fma_f32(c, z, -2.08602883e-2f);
    c = tg_fma_f32(c, z, 0.253669232f);
    c = tg_fma_f32(c, z, -1.23370051f);
    c = tg_fma_f32(c, z, 1.0f);
    float y = quarter & 1 ? s : c;
    return quarter == 1 || quarter == 2 ? -y : y;
}

/* Returns the normal number of a draw with these two words (Box-Muller). Where the uniform number u of the first word
 * is near 1, and so the radius near 0, log(u) is computed from 1 - u, because u itself would be rounded to a multiple
 * of 2^-24. */
static inline float tg_normal_f32(uint32_t first, uint32_t second) {
    float k, r = tg_log_split_f32(((float)first + 0.5f) * 0x1p-32f, &k);
    float rest = ((float)~first + 0.5f) * 0x1p-32f;
    int near_one = first >= 0xc0000000u;
    float l = tg_log_join_f32(near_one ? 0.0f : k, near_one ? -rest : r);
    return sqrtf(-2.0f * l) * tg_cos_turn_f32(second);
}

/* Returns the same normal number in float64. Computes log(u) as log1p(-(1 - u)); 1 - u is exact. */
static inline double tg_normal_f64(uint32_t first, uint32_t second) {
    double radius = sqrt(-2 * log1p(-((double)~first + 0.5) * 0x1p-32));
    return radius * cos(6.283185307179586477 * (double)(int32_t)second * 0x1p-32);
}

static inline float tg_abs_f32(float x) {
    return fabsf(x);
}
static inline float tg_sqrt_f32(float x) {
    return sqrtf(x);
}
static inline float tg_sin_f32(float x) {
    return sinf(x);
}
static inline float tg_cos_f32(float x) {
    return cosf(x);
}
static inline float tg_pow_f32(float x, float y) {
    return powf(x, y);
}

/* These, like sin, cos and pow above, call libm for one element at a time, because they are rare in hot loops. */
static inline float tg_tan_f32(float x) {
    return tanf(x);
}
static inline float tg_asin_f32(float x) {
    return asinf(x);
}
static inline float tg_acos_f32(float x) {
    return acosf(x);
}
static inline float tg_atan_f32(float x) {
    return atanf(x);
}
static inline float tg_sinh_f32(float x) {
    return sinhf(x);
}
static inline float tg_cosh_f32(float x) {
    return coshf(x);
}
static inline float tg_asinh_f32(float x) {
    return asinhf(x);
}
static inline float tg_acosh_f32(float x) {
    return acoshf(x);
}
static inline float tg_atanh_f32(float x) {
    return atanhf(x);
}
static inline float tg_log2_f32(float x) {
    return log2f(x);
}
static inline float tg_log10_f32(float x) {
    return log10f(x);
}
static inline float tg_exp2_f32(float x) {
    return exp2f(x);
}
static inline float tg_erfc_f32(float x) {
    return erfcf(x);
}
static inline float tg_atan2_f32(float x, float y) {
    return atan2f(x, y);
}
static inline float tg_fmod_f32(float x, float y) {
    return fmodf(x, y);
}

/* These are one instruction each from SSE4.1 on. */
static inline float tg_floor_f32(float x) {
    return floorf(x);
}
static inline float tg_ceil_f32(float x) {
    return ceilf(x);
}
static inline float tg_trunc_f32(float x) {
    return truncf(x);
}
static inline float tg_rint_f32(float x) {
    return rintf(x);
}

static inline double tg_abs_f64(double x) {
    return fabs(x);
}
static inline double tg_sqrt_f64(double x) {
    return sqrt(x);
}
static inline double tg_exp_f64(double x) {
    return exp(x);
}
static inline double tg_log_f64(double x) {
    return log(x);
}
static inline double tg_sin_f64(double x) {
    return sin(x);
}
static inline double tg_cos_f64(double x) {
    return cos(x);
}
static inline double tg_tanh_f64(double x) {
    return tanh(x);
}
static inline double tg_erf_f64(double x) {
    return erf(x);
}
static inline double tg_normal_cdf_f64(double x) {
    return 0.5 * (1 + erf(x * 0.70710678118654752));
}
static inline double tg_pow_f64(double x, double y) {
    return pow(x, y);
}
static inline double tg_tan_f64(double x) {
    return tan(x);
}
static inline double tg_asin_f64(double x) {
    return asin(x);
}
static inline double tg_acos_f64(double x) {
    return acos(x);
}
static inline double tg_atan_f64(double x) {
    return atan(x);
}
static inline double tg_sinh_f64(double x) {
    return sinh(x);
}
static inline double tg_cosh_f64(double x) {
    return cosh(x);
}
static inline double tg_log1p_f64(double x) {
    return log1p(x);
}
static inline double tg_expm1_f64(double x) {
    return expm1(x);
}
static inline double tg_asinh_f64(double x) {
    return asinh(x);
}
static inline double tg_acosh_f64(double x) {
    return acosh(x);
}
static inline double tg_atanh_f64(double x) {
    return atanh(x);
}
static inline double tg_log2_f64(double x) {
    return log2(x);
}
static inline double tg_log10_f64(double x) {
    return log10(x);
}
static inline double tg_exp2_f64(double x) {
    return exp2(x);
}
static inline double tg_trunc_f64(double x) {
    return trunc(x);
}
static inline double tg_erfc_f64(double x) {
    return erfc(x);
}
static inline double tg_floor_f64(double x) {
    return floor(x);
}
static inline double tg_ceil_f64(double x) {
    return ceil(x);
}
static inline double tg_rint_f64(double x) {
    return rint(x);
}
static inline double tg_atan2_f64(double x, double y) {
    return atan2(x, y);
}
static inline double tg_fmod_f64(double x, double y) {
    return fmod(x, y);
}
static inline double tg_sigmoid_f64(double x) {
    return 1 / (1 + exp(-x));
}

static inline int64_t tg_abs_i64(int64_t x) {
    return x < 0 ? -x : x;
}

#endif
