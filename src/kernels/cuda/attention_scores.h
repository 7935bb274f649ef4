/* What the kernels of attention's gradients share: of rows, and of scores made again. */
#ifndef TG_CUDA_ATTENTION_SCORES_H
#define TG_CUDA_ATTENTION_SCORES_H

#include "kernels/cuda/attention.h"

namespace tg {

/* Of query i: its log-sum-exp (0 where no key is seen: every score is -inf there) and D; zeros where there is none. */
template <class T>
__device__ inline void row_terms(const Attention &a, int64_t b, int64_t h, int64_t i, T *lse, T *delta) {
    T z = i < a.sq ? *(const T *)head_row(a.lse, b, h, i) : (T)0;
    *lse = z == -(T)INFINITY ? (T)0 : z;
    *delta = i < a.sq ? ((const T *)a.delta)[(b * a.heads + h) * a.sq + i] : (T)0;
}

/* From a score (SCALED: with its scale, -inf where hidden) to P K, and from an element of gout v' to one of gs,
 * times scale. */
template <class E, bool SCALED, class T>
__device__ inline void score_grad(const Attention &a, bool none, T keep, T lse, T delta, T scale, T *s, T *gs) {
    T p = none ? (T)0 : score_exp<E>((SCALED ? *s : *s * (T)a.scale) - lse);
    *s = p * keep;
    *gs = none ? (T)0 : p * (*gs * keep - delta) * scale;
}

/* Kernels of attention_grad_kv.cu: the gradients of keys and values, D being there. */
tg_status attention_grad_keys(tg_ctx *ctx, const Attention &a, ElementKind kind, int most);

} // namespace tg

#endif
