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

/* For rows in memory or in the cache: computes maximum and sum together. */
template <class T, int W>
__device__ inline Lse<T> lse_of_row(Share<T, W, 0, 1> &row, const Sources<1> &x, const Group &g) {
    T max = -(T)INFINITY, sum = 0;
    row.read(x, g, [&](int64_t, T(&v)[1][W], int) {
        T m = max;
        TG_UNROLL
        for (int i = 0; i < W; i++) m = v[0][i] > m ? v[0][i] : m;
        if (m > max) sum *= tg_m_exp(max - m);
        max = m;
        T ref = reference(max);
        TG_UNROLL
        for (int i = 0; i < W; i++) sum += tg_m_exp(v[0][i] - ref);
    });
    T ref = reference(joined(g, max, Greatest()));
    if (max != -(T)INFINITY) sum *= tg_m_exp(max - ref);
    return Lse<T>{ref, joined(g, sum, Sum())};
}

/* For rows in registers: computes the maximum, then the sum. */
template <class T, int W, int KEPT>
__device__ inline Lse<T> lse_of_row(Share<T, W, KEPT, 1> &row, const Sources<1> &x, const Group &g) {
    T max = -(T)INFINITY, sum = 0;
    row.read(x, g, [&](int64_t, T(&v)[1][W], int) {
        TG_UNROLL
        for (int i = 0; i < W; i++) max = v[0][i] > max ? v[0][i] : max;
    });
    T ref = reference(joined(g, max, Greatest()));
    row.again(x, g, [&](int64_t, T(&v)[1][W], int) {
        TG_UNROLL
        for (int i = 0; i < W; i++) sum += tg_m_exp(v[0][i] - ref);
    });
    return Lse<T>{ref, joined(g, sum, Sum())};
}

} // namespace tg

#endif
