/* The stable sum of a row's exponentials, in one pass over memory. The result is two numbers, a reference and a sum
 * relative to it. Their combination, ref + log(sum), would be rounded, and lose digits where the row's values are
 * large. */
#ifndef TG_CUDA_LSE_H
#define TG_CUDA_LSE_H

#include <math.h>

#include "kernels/cuda/rows.h"
#include "kernels/scalar.h"

namespace tg {

/* The sum of exp(x) over a row is sum * exp(ref). ref is the row's maximum. It is 0 for a row of -inf, which avoids
 * -inf - -inf; the sum of such a row is 0. */
template <class T> struct Lse {
    T ref, sum;
};

template <class T> __device__ inline T reference(T max) { return max == -(T)INFINITY ? (T)0 : max; }

/* Returns exp(x) for a term of a row of dtype D. For 16-bit dtypes it is an approximation whose relative error grows
 * with |x|, up to 5e-6 where the result underflows. That is much less than the rounding of such a row. */
template <class T, int D> __device__ inline T exp_of(T x) {
#ifdef __CUDA_ARCH__
    if constexpr (D == TG_BF16 || D == TG_F16) {
        T y;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
        return y;
    }
#endif
    return tg_m_exp(x);
}

/* Returns the greater of max and v, or max if v is NaN. max must not be NaN. */
template <class T> __device__ inline T greater(T max, T v) {
#ifdef __CUDA_ARCH__
    return sizeof(T) == 8 ? (T)fmax((double)max, (double)v) : (T)fmaxf((float)max, (float)v);
#else
    return v > max ? v : max;
#endif
}

/* Returns the Lse of a row that registers do not keep. Computes maximum and sum together. */
template <class T, int W, int D>
__device__ inline Lse<T> lse_of_row(Share<T, W, D, 0, 1> &row, const Source (&x)[1], const Group &g) {
    T max = -(T)INFINITY, sum = 0;
    row.start(x, g);
    row.read(x, g, [&](int64_t, T(&v)[1][W], int) {
        T m = max;
        TG_UNROLL
        for (int i = 0; i < W; i++) m = greater(m, v[0][i]);
        if (m > max) sum *= tg_m_exp(max - m);
        max = m;
        T ref = reference(max);
        TG_UNROLL
        for (int i = 0; i < W; i++) sum += exp_of<T, D>(v[0][i] - ref);
    });
    T ref = reference(joined(g, max, Greatest()));
    if (max != -(T)INFINITY) sum *= tg_m_exp(max - ref);
    return Lse<T>{ref, joined(g, sum, Sum())};
}

/* Returns the Lse of a row in registers. Computes the maximum, then the sum. */
template <class T, int W, int D, int KEPT>
__device__ inline Lse<T> lse_of_row(Share<T, W, D, KEPT, 1> &row, const Source (&x)[1], const Group &g) {
    T max = -(T)INFINITY, sum = 0;
    row.start(x, g);
    row.read(x, g, [&](int64_t, T(&v)[1][W], int) {
        TG_UNROLL
        for (int i = 0; i < W; i++) max = greater(max, v[0][i]);
    });
    T ref = reference(joined(g, max, Greatest()));
    row.again(x, g, [&](int64_t, T(&v)[1][W], int) {
        TG_UNROLL
        for (int i = 0; i < W; i++) sum += exp_of<T, D>(v[0][i] - ref);
    });
    return Lse<T>{ref, joined(g, sum, Sum())};
}

} // namespace tg

#endif
