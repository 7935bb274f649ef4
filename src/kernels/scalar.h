/* The element-wise formulas of all devices, forward and derivative, one row for each.
 *
 * X(name, inputs, value): `inputs` is the number of inputs. value is an expression in the inputs a, b, c, d and the
 * parameters p, q, all of type T. A new formula is a new row; its number is TG_FN_name. The names of derivatives end in
 * _d, or in _da and _db for the first and the second argument that has a gradient. Most derivatives take the gradient
 * of the output first, and then what forward saved: the input x, or the output y if that is enough. A note after a row
 * may list the row's inputs in order by what they are: g is the gradient of the output, x the input, y the output or a
 * second input, a and b the two arguments of forward, c, mask and skip conditions, u a uniform draw, v a second moment.
 * Or the note names the formula that serves as the row's derivative ("_d: mul").
 *
 * A file that needs only the numbers just includes this header. A C file that expands the rows first defines T (float,
 * double, int64_t) and TG_M(f), which names the elementary function f for T. If T is an integer, the file also defines
 * TG_SCALAR_INT and expands only TG_FORMULAS_ANY. In C++ and CUDA the helpers are templates over T. */
#ifndef TG_SCALAR_H
#define TG_SCALAR_H

#include <tapegrad/types.h>

/* For float, double and int64. */
#define TG_FORMULAS_ANY(X)                                               \
    X(id, 1, a)                                                          \
    X(neg, 1, -a)                                                        \
    X(abs, 1, TG_M(abs)(a))                                              \
    X(sign, 1, tg_sign_of(a))                                            \
    X(square, 1, a * a)                                                  \
    X(relu, 1, a < 0 ? (T)0 : a)                         /* -0 stays -0 */  \
    X(relu_d, 2, b <= 0 ? (T)0 : a)                      /* g, x or y */ \
    X(clamp, 1, tg_clamp_of(a, p, q))                    /* to [p, q] */ \
    X(clamp_d, 2, ((b >= p) & (b <= q)) ? a : (T)0)      /* g, x */      \
    X(affine, 1, a * p + q)                                              \
    X(add, 2, a + b)                                                     \
    X(sub, 2, a - b)                                                     \
    X(mul, 2, a * b)                                                     \
    X(maximum, 2, tg_max_of(a, b))                                       \
    X(minimum, 2, tg_min_of(a, b))                                       \
    X(eq, 2, (T)(a == b))                                                \
    X(ne, 2, (T)(a != b))                                                \
    X(lt, 2, (T)(a < b))                                                 \
    X(le, 2, (T)(a <= b))                                                \
    X(gt, 2, (T)(a > b))                                                 \
    X(ge, 2, (T)(a >= b))                                                \
    X(logical_not, 1, (T)(a == 0))                                       \
    X(logical_and, 2, (T)((a != 0) & (b != 0)))                          \
    X(logical_or, 2, (T)((a != 0) | (b != 0)))                           \
    X(logical_xor, 2, (T)((a != 0) != (b != 0)))                         \
    X(bitwise_and, 2, (T)((int64_t)a & (int64_t)b))                      \
    X(bitwise_or, 2, (T)((int64_t)a | (int64_t)b))                       \
    X(bitwise_xor, 2, (T)((int64_t)a ^ (int64_t)b))                      \
    X(bitwise_not, 1, (T)~(int64_t)a)                                    \
    X(wrap_index, 1, tg_wrap_index_of(a, p))             /* size p */    \
    X(join_index, 2, tg_join_index_of(a, b, p))          /* size p */    \
    X(where, 3, a != 0 ? b : c)                                          \
    X(where_da, 2, a != 0 ? b : (T)0)                    /* c, g */      \
    X(where_db, 2, a != 0 ? (T)0 : b)                    /* c, g */      \
    X(masked_fill, 2, b != 0 ? p : a)                    /* x, mask */   \
    X(linear_sum, 2, p * a + q * b)                                      \
    X(sum_unless, 3, a != 0 ? b : p * b + q * c)         /* skip, x, y */ \
    X(mul_add, 3, a * b + c)                                             \
    X(mul3, 3, a * b * c)                                                \
    X(sub_mul, 3, (a - b) * c)                                           \
    X(sub_square, 2, (a - b) * (a - b))                                  \
    X(mul_mul_add, 4, a * b + c * d)                     /* rotations */ \
    X(mul_mul_sub, 4, a * b - c * d)

/* For float and double. */
#define TG_FORMULAS_REAL(X)                                                       \
    X(abs_d, 2, a * tg_sign_of(b))                                /* g, x */      \
    X(exp, 1, TG_M(exp)(a))                                       /* _d: mul */   \
    X(log, 1, TG_M(log)(a))                                       /* _d: div */   \
    X(sqrt, 1, TG_M(sqrt)(a))                                                     \
    X(sqrt_d, 2, a * (T)0.5 / b)                                  /* g, y */      \
    X(rsqrt, 1, (T)1 / TG_M(sqrt)(a))                                             \
    X(rsqrt_d, 2, (T)-0.5 * a * b * b * b)                        /* g, y */      \
    X(reciprocal, 1, (T)1 / a)                                                    \
    X(reciprocal_d, 2, -a * b * b)                                /* g, y */      \
    X(square_d, 2, (T)2 * a * b)                                  /* g, x */      \
    X(sin, 1, TG_M(sin)(a))                                                       \
    X(sin_d, 2, a * TG_M(cos)(b))                                 /* g, x */      \
    X(cos, 1, TG_M(cos)(a))                                                       \
    X(cos_d, 2, -a * TG_M(sin)(b))                                /* g, x */      \
    X(tan, 1, TG_M(tan)(a))                                                       \
    X(tan_d, 2, a * ((T)1 + b * b))                               /* g, y */      \
    X(asin, 1, TG_M(asin)(a))                                                     \
    X(asin_d, 2, a / tg_unit_leg(b))                              /* g, x */      \
    X(acos, 1, TG_M(acos)(a))                                                     \
    X(acos_d, 2, -a / tg_unit_leg(b))                             /* g, x */      \
    X(atan, 1, TG_M(atan)(a))                                                     \
    X(atan_d, 2, a / ((T)1 + b * b))                              /* g, x */      \
    X(asinh, 1, TG_M(asinh)(a))                                                   \
    X(asinh_d, 2, a / TG_M(sqrt)(b * b + (T)1))                   /* g, x */      \
    X(acosh, 1, TG_M(acosh)(a))                                                   \
    X(acosh_d, 2, a / TG_M(sqrt)((b - (T)1) * (b + (T)1)))        /* g, x */      \
    X(atanh, 1, TG_M(atanh)(a))                                                   \
    X(atanh_d, 2, a / (((T)1 - b) * ((T)1 + b)))                  /* g, x */      \
    X(sinh, 1, TG_M(sinh)(a))                                                     \
    X(sinh_d, 2, a * TG_M(cosh)(b))                               /* g, x */      \
    X(cosh, 1, TG_M(cosh)(a))                                                     \
    X(cosh_d, 2, a * TG_M(sinh)(b))                               /* g, x */      \
    X(log1p, 1, TG_M(log1p)(a))                                                   \
    X(log1p_d, 2, a / ((T)1 + b))                                 /* g, x */      \
    X(expm1, 1, TG_M(expm1)(a))                                                   \
    X(expm1_d, 2, a * TG_M(exp)(b))                               /* g, x */      \
    X(log2, 1, TG_M(log2)(a))                                                     \
    X(log2_d, 2, a / (b * (T)0.69314718055994531))                /* g, x */      \
    X(log10, 1, TG_M(log10)(a))                                                   \
    X(log10_d, 2, a / (b * (T)2.3025850929940457))                /* g, x */      \
    X(exp2, 1, TG_M(exp2)(a))                                                     \
    X(exp2_d, 2, a * b * (T)0.69314718055994531)                  /* g, y */      \
    X(floor, 1, TG_M(floor)(a))                                                   \
    X(ceil, 1, TG_M(ceil)(a))                                                     \
    X(round, 1, TG_M(rint)(a))                                    /* to even */   \
    X(trunc, 1, TG_M(trunc)(a))                                                   \
    X(isnan, 1, (T)(a != a))                                                      \
    X(isinf, 1, (T)((a == a) & (a - a != 0)))                                     \
    X(isfinite, 1, (T)(a - a == 0))                                               \
    X(tanh, 1, TG_M(tanh)(a))                                                     \
    X(tanh_d, 2, a * ((T)1 - b * b))                              /* g, y */      \
    X(sigmoid, 1, TG_M(sigmoid)(a))                                               \
    X(sigmoid_d, 2, a * b * ((T)1 - b))                           /* g, y */      \
    X(erf, 1, TG_M(erf)(a))                                                       \
    X(erf_d, 2, a * (T)1.1283791670955126 * TG_M(exp)(-b * b))    /* g, x */      \
    X(erfc, 1, TG_M(erfc)(a))                                                     \
    X(erfc_d, 2, a * (T)-1.1283791670955126 * TG_M(exp)(-b * b))  /* g, x */      \
    X(silu, 1, a * TG_M(sigmoid)(a))                                              \
    X(silu_d, 2, a * tg_silu_slope(b))                            /* g, x */      \
    X(gelu_tanh, 1, tg_gelu_tanh_of(a))                                           \
    X(gelu_tanh_d, 2, a * tg_gelu_tanh_slope(b))                  /* g, x */      \
    X(gelu, 1, tg_gelu_of(a))                                                     \
    X(gelu_d, 2, a * tg_gelu_d(b))                            /* g, x */          \
    X(hardtanh, 1, tg_clamp_of(a, p, q))                          /* to [p, q] */ \
    X(hardtanh_d, 2, ((b > p) & (b < q)) ? a : (T)0)              /* g, x */      \
    X(hardsigmoid, 1, tg_clamp_of(a + (T)3, (T)0, (T)6) / (T)6)                   \
    X(hardsigmoid_d, 2, ((b > -3) & (b < 3)) ? a / (T)6 : (T)0)   /* g, x */      \
    X(hardswish, 1, a * tg_clamp_of(a + (T)3, (T)0, (T)6) / (T)6)                 \
    X(hardswish_d, 2, a * tg_hardswish_slope(b))                  /* g, x */      \
    X(mish, 1, a * TG_M(tanh)(tg_softplus_of(a, (T)1, (T)INFINITY)))              \
    X(mish_d, 2, a * tg_mish_slope(b))                            /* g, x */      \
    X(log_sigmoid, 1, -tg_softplus_of(-a, (T)1, (T)INFINITY))                     \
    X(log_sigmoid_d, 2, a * TG_M(sigmoid)(-b))                    /* g, x */      \
    X(softsign, 1, a / ((T)1 + TG_M(abs)(a)))                                     \
    X(softsign_d, 2, a * tg_softsign_slope(b))                    /* g, x */      \
    X(leaky_relu, 1, a > 0 ? a : a * p)                                           \
    X(leaky_relu_d, 2, b > 0 ? a : a * p)                         /* g, x */      \
    X(elu, 1, a > 0 ? a : p * TG_M(expm1)(a))                                     \
    X(elu_d, 2, b > 0 ? a : a * p * TG_M(exp)(b))                 /* g, x */      \
    X(softplus, 1, tg_softplus_of(a, p, q))        /* beta p, threshold q */  \
    X(softplus_d, 2, b * p > q ? a : a * TG_M(sigmoid)(b * p))    /* g, x */      \
    X(pow_scalar, 1, tg_power_of(a, p))                                           \
    X(pow_scalar_d, 2, tg_power_slope(a, b, p))                   /* g, x */      \
    X(div, 2, a / b)                                              /* _da: div */  \
    X(div_db, 3, -a * (b / c) / c)                                /* g, a, b */   \
    X(pow, 2, TG_M(pow)(a, b))                                                    \
    X(pow_da, 3, tg_pow_da_of(a, b, c))                           /* g, a, b */   \
    X(pow_db, 3, tg_pow_db_of(a, b, c))                           /* g, a, b */   \
    X(atan2, 2, TG_M(atan2)(a, b))                                                \
    X(atan2_da, 3, a * tg_atan2_da_of(b, c))                      /* g, a, b */   \
    X(atan2_db, 3, a * tg_atan2_db_of(b, c))                      /* g, a, b */   \
    X(fmod, 2, TG_M(fmod)(a, b))                                                  \
    X(fmod_db, 3, -a * TG_M(rint)((b - TG_M(fmod)(b, c)) / c))    /* g, a, b */   \
    X(remainder, 2, tg_remainder_of(a, b))                                        \
    X(remainder_db, 3, -a * tg_floor_divide_of(b, c))             /* g, a, b */   \
    X(floor_divide, 2, tg_floor_divide_of(a, b))                                  \
    X(trunc_divide, 2, tg_trunc_divide_of(a, b))                                  \
    X(lerp, 3, tg_lerp_of(a, b, c))                                               \
    X(lerp_number, 2, tg_lerp_of(a, b, p))                                        \
    X(one_minus_mul, 2, a * ((T)1 - b))                                           \
    X(maximum_da, 3, a * tg_greater_share(b, c))                  /* g, a, b */   \
    X(maximum_db, 3, a * tg_greater_share(c, b))                  /* g, a, b */   \
    X(minimum_da, 3, a * tg_greater_share(c, b))                  /* g, a, b */   \
    X(minimum_db, 3, a * tg_greater_share(b, c))                  /* g, a, b */   \
    X(swiglu, 2, a * TG_M(sigmoid)(a) * b)                        /* silu(a) b */ \
    X(swiglu_da, 3, a * c * tg_silu_slope(b))                     /* g, a, b */   \
    X(swiglu_db, 2, a * b * TG_M(sigmoid)(b))                     /* g, a */      \
    X(sub_scaled, 3, (a - b) * c * p)                             /* x, y, g */   \
    X(sub_mul_add, 4, (a - b) * c + d)                                            \
    X(exp_sub, 2, TG_M(exp)(a - b))                                               \
    X(exp_sub_mul, 3, TG_M(exp)(a - b) * c)                                       \
    X(sub_exp_mul, 3, a - TG_M(exp)(b) * c)                                       \
    X(log_add, 2, TG_M(log)(a) + b)                                               \
    X(rsqrt_affine, 1, (T)1 / TG_M(sqrt)(a * p + q))                              \
    X(keep, 2, b >= p ? a * q : (T)0)                             /* x, u */      \
    X(square_sum, 2, p * a + q * b * b)                           /* v, g */      \
    X(sqrt_div, 2, TG_M(sqrt)(a / b) + p)                                         \
    X(div_div, 3, a / b / c)

#define TG_FORMULAS(X) TG_FORMULAS_ANY(X) TG_FORMULAS_REAL(X)

enum {
#define TG_X(name, n, value) TG_FN_##name,
    TG_FORMULAS(TG_X)
#undef TG_X
    TG_FN_COUNT
};

enum { TG_FN_INPUTS = 4 };

#if defined(__cplusplus) || defined(TG_M)

#ifdef __cplusplus
#if defined(__CUDACC__)
#define TG_SCALAR_FN static __host__ __device__ inline
#else
#define TG_SCALAR_FN static inline
#endif
#define TG_SCALAR template <class T> TG_SCALAR_FN T
#define TG_M(f) tg_m_##f
#define TG_M_FLOATS(name, args, f, d)                        \
    TG_SCALAR_FN float tg_m_##name args(float) { return f; } \
    TG_SCALAR_FN double tg_m_##name args(double) { return d; }
#define TG_M_X(R) (R x)
#define TG_M_XY(R) (R x, R y)
TG_M_FLOATS(abs, TG_M_X, fabsf(x), fabs(x))
TG_M_FLOATS(sqrt, TG_M_X, sqrtf(x), sqrt(x))
TG_M_FLOATS(exp, TG_M_X, expf(x), exp(x))
TG_M_FLOATS(log, TG_M_X, logf(x), log(x))
TG_M_FLOATS(sin, TG_M_X, sinf(x), sin(x))
TG_M_FLOATS(cos, TG_M_X, cosf(x), cos(x))
TG_M_FLOATS(tan, TG_M_X, tanf(x), tan(x))
TG_M_FLOATS(asin, TG_M_X, asinf(x), asin(x))
TG_M_FLOATS(acos, TG_M_X, acosf(x), acos(x))
TG_M_FLOATS(atan, TG_M_X, atanf(x), atan(x))
TG_M_FLOATS(asinh, TG_M_X, asinhf(x), asinh(x))
TG_M_FLOATS(acosh, TG_M_X, acoshf(x), acosh(x))
TG_M_FLOATS(atanh, TG_M_X, atanhf(x), atanh(x))
TG_M_FLOATS(log2, TG_M_X, log2f(x), log2(x))
TG_M_FLOATS(log10, TG_M_X, log10f(x), log10(x))
TG_M_FLOATS(exp2, TG_M_X, exp2f(x), exp2(x))
TG_M_FLOATS(trunc, TG_M_X, truncf(x), trunc(x))
TG_M_FLOATS(sinh, TG_M_X, sinhf(x), sinh(x))
TG_M_FLOATS(cosh, TG_M_X, coshf(x), cosh(x))
TG_M_FLOATS(log1p, TG_M_X, log1pf(x), log1p(x))
TG_M_FLOATS(expm1, TG_M_X, expm1f(x), expm1(x))
TG_M_FLOATS(floor, TG_M_X, floorf(x), floor(x))
TG_M_FLOATS(ceil, TG_M_X, ceilf(x), ceil(x))
TG_M_FLOATS(rint, TG_M_X, rintf(x), rint(x))
TG_M_FLOATS(tanh, TG_M_X, tanhf(x), tanh(x))
TG_M_FLOATS(erf, TG_M_X, erff(x), erf(x))
TG_M_FLOATS(erfc, TG_M_X, erfcf(x), erfc(x))
TG_M_FLOATS(normal_cdf, TG_M_X, 0.5f * (1.0f + erff(x * 0.70710678f)), 0.5 * (1.0 + erf(x * 0.70710678118654752)))
TG_M_FLOATS(sigmoid, TG_M_X, 1.0f / (1.0f + expf(-x)), 1.0 / (1.0 + exp(-x)))
TG_M_FLOATS(pow, TG_M_XY, powf(x, y), pow(x, y))
TG_M_FLOATS(atan2, TG_M_XY, atan2f(x, y), atan2(x, y))
TG_M_FLOATS(fmod, TG_M_XY, fmodf(x, y), fmod(x, y))
TG_SCALAR_FN int64_t tg_m_abs(int64_t x) { return x < 0 ? -x : x; }
#else
#define TG_SCALAR static inline T
#endif

TG_SCALAR tg_clamp_of(T x, T lo, T hi) {
    T y = x < lo ? lo : x;
    return y > hi ? hi : y;
}

/* Maximum and minimum are NaN if an argument is NaN. */
TG_SCALAR tg_max_of(T a, T b) {
    return a > b ? a : a <= b ? b : a + b;
}

TG_SCALAR tg_min_of(T a, T b) {
    return a < b ? a : a >= b ? b : a + b;
}

/* Returns -1, 0 or 1; 0 for NaN. */
TG_SCALAR tg_sign_of(T x) {
    return (T)((x > 0) - (x < 0));
}

/* Returns index i into n elements, counted from the front; -1 if it is out of range. A negative i counts from the
 * end. */
TG_SCALAR tg_wrap_index_of(T i, T n) {
    T at = i < 0 ? i + n : i;
    return ((at >= 0) & (at < n)) ? at : (T)-1;
}

/* Returns the position in row-major order of the element at [row, i] in rows of n elements; -1 if row is negative or i
 * is out of range. A negative i counts from the end. */
TG_SCALAR tg_join_index_of(T row, T i, T n) {
    T at = tg_wrap_index_of(i, n);
    return ((row >= 0) & (at >= 0)) ? row * n + at : (T)-1;
}

#ifndef TG_SCALAR_INT

/* Returns the derivative of max(a, b) with respect to a: 1, 0, or 0.5 if a equals b; NaN if a or b is NaN. */
TG_SCALAR tg_greater_share(T a, T b) {
    return a > b ? (T)1 : a == b ? (T)0.5 : a < b ? (T)0 : a + b;
}

TG_SCALAR tg_silu_slope(T x) {
    T s = TG_M(sigmoid)(x);
    return s * ((T)1 + x * ((T)1 - s));
}

/* Computes the factor (1 + tanh(u / 2)) / 2 of GELU as sigmoid(u), which has no cancellation. */
TG_SCALAR tg_gelu_tanh_of(T x) {
    T u = (T)1.5957691216057308 * (x + (T)0.044715 * x * x * x);
    return x * TG_M(sigmoid)(u);
}

/* Clamps x to [-100, 100], because x^3 could overflow. Outside that range the slope is 0 or 1 to the last bit. */
TG_SCALAR tg_gelu_tanh_slope(T given) {
    T x = tg_clamp_of(given, (T)-100, (T)100);
    T u = (T)1.5957691216057308 * (x + (T)0.044715 * x * x * x);
    T du = (T)1.5957691216057308 * ((T)1 + (T)0.134145 * x * x);
    T s = TG_M(sigmoid)(u);
    return s + x * s * ((T)1 - s) * du;
}

TG_SCALAR tg_gelu_of(T x) {
    return x * TG_M(normal_cdf)(x);
}

TG_SCALAR tg_gelu_d(T x) {
    T phi = (T)0.39894228040143268 * TG_M(exp)((T)-0.5 * x * x);
    return TG_M(normal_cdf)(x) + x * phi;
}

/* Returns sqrt(1 - x^2), without cancellation where |x| is near 1. It is one leg of a right triangle with hypotenuse 1
 * whose other leg is x. */
TG_SCALAR tg_unit_leg(T x) {
    return TG_M(sqrt)(((T)1 - x) * ((T)1 + x));
}

/* Returns ln(1 + e^(beta x)) / beta, and x itself where beta x is above the threshold. Cannot overflow for any
 * threshold. */
TG_SCALAR tg_softplus_of(T x, T beta, T threshold) {
    T z = x * beta;
    T y = (z > 0 ? z : (T)0) + TG_M(log1p)(TG_M(exp)(z > 0 ? -z : z));
    return z > threshold ? x : y / beta;
}

/* Returns the derivative of hardswish: 0 up to -3, 1 from 3 on, and x / 3 + 1/2 between. */
TG_SCALAR tg_hardswish_slope(T x) {
    return x <= -3 ? (T)0 : x < 3 ? x / (T)3 + (T)0.5 : x >= 3 ? (T)1 : x;
}

/* Returns the derivative of x tanh(s) with s = ln(1 + e^x): tanh(s) + x (1 - tanh(s)^2) sigmoid(x). */
TG_SCALAR tg_mish_slope(T x) {
    T y = TG_M(tanh)(tg_softplus_of(x, (T)1, (T)INFINITY));
    return y + x * ((T)1 - y * y) * TG_M(sigmoid)(x);
}

/* Returns the derivative of x / (1 + |x|). */
TG_SCALAR tg_softsign_slope(T x) {
    T r = (T)1 / ((T)1 + TG_M(abs)(x));
    return r * r;
}

/* Returns the remainder of a / b that is 0 or has the sign of b. */
TG_SCALAR tg_remainder_of(T a, T b) {
    T r = TG_M(fmod)(a, b);
    return ((r != 0) & ((r < 0) != (b < 0))) ? r + b : r;
}

/* Returns a / b without its fraction. It is computed from the remainder, which is exact, because the rounded a / b may
 * be the next integer. A result of 0 has the sign of a / b. */
TG_SCALAR tg_trunc_divide_of(T a, T b) {
    T q = TG_M(rint)((a - TG_M(fmod)(a, b)) / b);
    return ((b == 0) | (a - a != 0)) ? a / b : q == 0 ? a / b * (T)0 : q;
}

/* Returns the greatest integer that is at most a / b. It is computed from the remainder, which is exact, because the
 * floor of the rounded a / b is wrong where that rounds up to an integer. A result of 0 has the sign of a / b. */
TG_SCALAR tg_floor_divide_of(T a, T b) {
    T r = TG_M(fmod)(a, b), q = TG_M(rint)((a - r) / b) - (T)((r != 0) & ((r < 0) != (b < 0)));
    return b == 0 ? a / b : q == 0 ? a / b * (T)0 : q;
}

/* These two return b / (a^2 + b^2) and -a / (a^2 + b^2), the derivatives of atan2(a, b). They divide the argument of
 * smaller magnitude by the other one, so that no square overflows. If a and b are 0, the result is 0. */
TG_SCALAR tg_atan2_da_of(T a, T b) {
    bool steep = TG_M(abs)(a) > TG_M(abs)(b);
    T most = steep ? a : b, r = (steep ? b : a) / most;
    return most == 0 ? a : (steep ? r : (T)1) / (most * ((T)1 + r * r));
}

TG_SCALAR tg_atan2_db_of(T a, T b) {
    bool steep = TG_M(abs)(a) > TG_M(abs)(b);
    T most = steep ? a : b, r = (steep ? b : a) / most;
    return most == 0 ? a : (steep ? (T)-1 : -r) / (most * ((T)1 + r * r));
}

/* Returns a + w (b - a). It is exact for w = 0, for w = 1, and if a equals b. */
TG_SCALAR tg_lerp_of(T a, T b, T w) {
    T d = b - a;
    return TG_M(abs)(w) < (T)0.5 ? a + w * d : b - d * ((T)1 - w);
}

/* Returns x^p for a number p. If p is 0.5 or -0.5, the result is NaN for every negative x, -infinity included. C's pow
 * differs there: it returns no NaN for -infinity. */
TG_SCALAR tg_power_of(T x, T p) {
    return ((TG_M(abs)(p) == (T)0.5) & (x < 0)) ? TG_M(sqrt)(x) : TG_M(pow)(x, p);
}

TG_SCALAR tg_power_slope(T g, T x, T p) {
    return p == 0 ? (T)0 : g * p * tg_power_of(x, p - (T)1);
}

/* Returns g times the derivative of a^b with respect to a. It is 0 for b = 0, also where a is 0. */
TG_SCALAR tg_pow_da_of(T g, T a, T b) {
    return b == 0 ? (T)0 : g * b * TG_M(pow)(a, b - (T)1);
}

/* Returns g times the derivative of a^b with respect to b. The derivative of 0^b is 0 for b >= 0. */
TG_SCALAR tg_pow_db_of(T g, T a, T b) {
    return ((a == 0) & (b >= 0)) ? (T)0 : g * TG_M(pow)(a, b) * TG_M(log)(a);
}

#endif
#endif
#endif
