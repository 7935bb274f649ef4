/* The softmax of attention's forward: the running state of the rows of scores, and what is stored from it. */
#ifndef TG_CUDA_ATTENTION_SOFTMAX_H
#define TG_CUDA_ATTENTION_SOFTMAX_H

#include "kernels/cuda/attention.h"

namespace tg {

/* The state, after all keys so far, of rows g and g + 8, of which the lane holds scores. The results of the tiles
 * before the last one must be multiplied by rescale. */
template <class T> struct Running {
    T max[2], sum[2], rescale[2];
};

/* Joins the values of the four lanes that hold the scores of one row; all of them get the result. */
template <class T, class Join> __device__ inline T quad_joined(T v, Join join) {
    v = join(v, __shfl_xor_sync(~0u, v, 1));
    return join(v, __shfl_xor_sync(~0u, v, 2));
}

/* Updates the state by the sink (tg_attention_args), which counts as the score of one more key whose value is 0. */
template <class T> __device__ inline void add_sink(const Attention &a, int64_t h, Running<T> &s) {
    const T sink = load<T>(head_row(a.sink, 0, h, 0), a.sink.dtype, 0);
    for (int r = 0; r < 2; r++) {
        T max = Greatest()(s.max[r], sink), ref = max == -(T)INFINITY ? (T)0 : max;
        s.rescale[r] = tg_m_exp(s.max[r] - ref);
        s.sum[r] = s.sum[r] * s.rescale[r] + tg_m_exp(sink - ref);
        s.max[r] = max;
    }
}

/* Divides the results by the sums, multiplies them by `more`, and stores them. A query that sees no key gets zeros.
 * Also stores the maxima and the sums if they are wanted. If there is a sink, adds it to the state first. */
template <class E, int NF, class T>
__device__ inline void finish(const Attention &a, int64_t b, int64_t h, int64_t first, Running<T> &s,
                              const T (&o)[NF][4], T more = 1) {
    int lane = threadIdx.x % 32;
    T factor[2];
    if (a.sink.data) add_sink(a, h, s);
    for (int r = 0; r < 2; r++) {
        int64_t i = first + lane / 4 + r * 8;
        factor[r] = s.sum[r] == 0 ? (T)0 : (a.sink.data ? s.rescale[r] : (T)1) / s.sum[r] * more;
        if (!a.top.data || lane % 4 || i >= a.sq) continue;
        *(T *)head_row(a.top, b, h, i) = s.max[r];
        *(T *)head_row(a.mass, b, h, i) = s.sum[r];
    }
    rows_put<E, NF, T>(a.out, b, h, first, a.sq, a.dv, false, o, factor);
}

} // namespace tg

#endif
