/* The element-wise formulas, forward and derivative, shared by every device: one row each.
 *
 * X(name, inputs, value): value is an expression in the inputs a, b, c, d and the parameters p, q, all of type T. A new
 * formula is a new row; its number is TG_FN_name. Derivatives end in _d (_da, _db: by the first or second argument),
 * take the output's gradient first, and then what their forward saved: x, or y where that is enough.
 *
 * Who wants the numbers alone just includes this file. A C file that expands the rows first defines T (float, double,
 * int64_t) and TG_M(f), which names the elementary function f for T; with TG_SCALAR_INT only TG_FORMULAS_ANY compiles.
 * In C++ and CUDA the helpers are templates, for T float or double.
 */
#ifndef TG_SCALAR_H
#define TG_SCALAR_H

/* For float, double and int64. */
#define TG_FORMULAS_ANY(X)                                               \
    X(id, 1, a)                                                          \
    X(neg, 1, -a)                                                        \
    X(abs, 1, TG_M(abs)(a))                                              \
    X(square, 1, a * a)                                                  \
    X(relu, 1, a <= 0 ? (T)0 : a)                                        \
    X(relu_d, 2, b > 0 ? a : (T)0)                       /* g, x or y */ \
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
    X(tanh, 1, TG_M(tanh)(a))                                                     \
    X(tanh_d, 2, a * ((T)1 - b * b))                              /* g, y */      \
    X(sigmoid, 1, TG_M(sigmoid)(a))                                               \
    X(sigmoid_d, 2, a * b * ((T)1 - b))                           /* g, y */      \
    X(erf, 1, TG_M(erf)(a))                                                       \
    X(erf_d, 2, a * (T)1.1283791670955126 * TG_M(exp)(-b * b))    /* g, x */      \
    X(silu, 1, a * TG_M(sigmoid)(a))                                              \
    X(silu_d, 2, a * tg_silu_slope(b))                            /* g, x */      \
    X(gelu_tanh, 1, tg_gelu_tanh_of(a))                                           \
    X(gelu_tanh_d, 2, a * tg_gelu_tanh_slope(b))                  /* g, x */      \
    X(gelu, 1, tg_gelu_of(a))                                                     \
    X(gelu_d, 2, a * tg_gelu_slope(b))                            /* g, x */      \
    X(pow_scalar, 1, TG_M(pow)(a, p))                                             \
    X(pow_scalar_d, 2, tg_pow_da_of(a, b, p))                     /* g, x */      \
    X(div, 2, a / b)                                              /* _da: div */  \
    X(div_db, 3, -a * (b / c) / c)                                /* g, a, b */   \
    X(pow, 2, TG_M(pow)(a, b))                                                    \
    X(pow_da, 3, tg_pow_da_of(a, b, c))                           /* g, a, b */   \
    X(pow_db, 3, tg_pow_db_of(a, b, c))                           /* g, a, b */   \
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
TG_M_FLOATS(tanh, TG_M_X, tanhf(x), tanh(x))
TG_M_FLOATS(erf, TG_M_X, erff(x), erf(x))
TG_M_FLOATS(sigmoid, TG_M_X, 1.0f / (1.0f + expf(-x)), 1.0 / (1.0 + exp(-x)))
TG_M_FLOATS(pow, TG_M_XY, powf(x, y), pow(x, y))
TG_SCALAR_FN int64_t tg_m_abs(int64_t x) { return x < 0 ? -x : x; }
#else
#define TG_SCALAR static inline T
#endif

TG_SCALAR tg_clamp_of(T x, T lo, T hi) {
    T y = x < lo ? lo : x;
    return y > hi ? hi : y;
}

/* NaN wins. */
TG_SCALAR tg_max_of(T a, T b) {
    return a > b ? a : a <= b ? b : a + b;
}

TG_SCALAR tg_min_of(T a, T b) {
    return a < b ? a : a >= b ? b : a + b;
}

#ifndef TG_SCALAR_INT

TG_SCALAR tg_sign_of(T x) {
    return (T)((x > 0) - (x < 0));
}

/* Of the gradient of max(a, b), the share of a: half where they tie. */
TG_SCALAR tg_greater_share(T a, T b) {
    return a > b ? (T)1 : a == b ? (T)0.5 : (T)0;
}

TG_SCALAR tg_silu_slope(T x) {
    T s = TG_M(sigmoid)(x);
    return s * ((T)1 + x * ((T)1 - s));
}

/* (1 + tanh(u)) / 2 is sigmoid(2 u), without its cancellation. */
TG_SCALAR tg_gelu_tanh_of(T x) {
    T u = (T)1.5957691216057308 * (x + (T)0.044715 * x * x * x);
    return x * TG_M(sigmoid)(u);
}

TG_SCALAR tg_gelu_tanh_slope(T x) {
    T u = (T)1.5957691216057308 * (x + (T)0.044715 * x * x * x);
    T du = (T)1.5957691216057308 * ((T)1 + (T)0.134145 * x * x);
    T s = TG_M(sigmoid)(u);
    return s + x * s * ((T)1 - s) * du;
}

TG_SCALAR tg_gelu_of(T x) {
    return (T)0.5 * x * ((T)1 + TG_M(erf)(x * (T)0.70710678118654752));
}

TG_SCALAR tg_gelu_slope(T x) {
    T phi = (T)0.39894228040143268 * TG_M(exp)((T)-0.5 * x * x);
    return (T)0.5 * ((T)1 + TG_M(erf)(x * (T)0.70710678118654752)) + x * phi;
}

/* A zero exponent has slope 0 also at a = 0. */
TG_SCALAR tg_pow_da_of(T g, T a, T b) {
    return b == 0 ? (T)0 : g * b * TG_M(pow)(a, b - (T)1);
}

/* 0^b has slope 0 for b >= 0. */
TG_SCALAR tg_pow_db_of(T g, T a, T b) {
    return ((a == 0) & (b >= 0)) ? (T)0 : g * TG_M(pow)(a, b) * TG_M(log)(a);
}

#endif
#endif
#endif
