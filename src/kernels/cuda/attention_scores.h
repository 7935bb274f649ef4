/* What the kernels of attention's gradients share: the terms of rows, and scores that are computed again. */
#ifndef TG_CUDA_ATTENTION_SCORES_H
#define TG_CUDA_ATTENTION_SCORES_H

#include "kernels/cuda/attention.h"

namespace tg {

/* What turns the scores of a query into P and gs: its greatest score and 1 / the sum of exp(score - greatest), both
 * 0 if it sees no key, because then every score is -inf; and D. */
template <class T> struct Terms {
    T top, share, delta;
};

/* The terms of query i; zeros if it does not exist. */
template <class T> __device__ inline Terms<T> row_terms(const Attention &a, int64_t b, int64_t h, int64_t i) {
    Terms<T> w = {0, 0, 0};
    if (i >= a.sq) return w;
    T mass = *(const T *)head_row(a.mass, b, h, i);
    if (mass != 0) w.top = *(const T *)head_row(a.top, b, h, i), w.share = 1 / mass;
    w.delta = ((const T *)a.delta)[(b * a.heads + h) * a.sq + i];
    return w;
}

/* Turns a score (SCALED: with its scale, -inf where hidden) into P K, and an element of gout v' into one of gs times
 * scale. */
template <class E, bool SCALED, class T>
__device__ inline void score_grad(const Attention &a, bool none, T keep, const Terms<T> &w, T scale, T *s, T *gs) {
    T p = none ? (T)0 : score_exp<E>((SCALED ? *s : multiplied(*s, (T)a.scale)) - w.top) * w.share;
    *s = p * keep;
    *gs = none ? (T)0 : p * (*gs * keep - w.delta) * scale;
}

/* Kernels of attention_grad_kv.cu: the gradients of keys and values; D has been computed. */
tg_status attention_grad_keys(tg_ctx *ctx, const Attention &a, ElementKind kind, int most);

} // namespace tg

#endif
