/* What the kernels of attention's gradients share: the numbers that they need of each query, and the step from a score
 * to its gradient. */
#ifndef TG_CUDA_ATTENTION_SCORES_H
#define TG_CUDA_ATTENTION_SCORES_H

#include "kernels/cuda/attention.h"

namespace tg {

/* Three numbers of a query, from which P and gs of its scores follow (attention_grad.cu): its greatest score, 1 / the
 * sum of exp(score - top), and D. If the row of the query has no score (tg_attention_args), the first two numbers are
 * 0. */
template <class T> struct Terms {
    T top, inverse_mass, delta;
};

/* Returns the terms of query i; zeros if it does not exist. */
template <class T> __device__ inline Terms<T> row_terms(const Attention &a, int64_t b, int64_t h, int64_t i) {
    Terms<T> w = {0, 0, 0};
    if (i >= a.sq) return w;
    T mass = *(const T *)head_row(a.mass, b, h, i);
    if (mass != 0) w.top = *(const T *)head_row(a.top, b, h, i), w.inverse_mass = 1 / mass;
    w.delta = ((const T *)a.delta)[(b * a.heads + h) * a.sq + i];
    return w;
}

/* Turns *s, a product of q and k, into P K, and *gs, an element of gout v', into P (K gs - D) times `scale`. If SCALED
 * is true, *s is already a score: it is scaled, and -inf where hidden. `none` is true if the query does not see the
 * key. keep is K, the dropout factor. */
template <class E, bool SCALED, class T>
__device__ inline void score_grad(const Attention &a, bool none, T keep, const Terms<T> &w, T scale, T *s, T *gs) {
    T p = none ? (T)0 : score_exp<E>((SCALED ? *s : multiplied(*s, (T)a.scale)) - w.top) * w.inverse_mass;
    *s = p * keep;
    *gs = none ? (T)0 : p * (*gs * keep - w.delta) * scale;
}

/* Computes the gradients of keys and values (attention_grad_kv.cu). a.delta, D, must have been computed. */
tg_status attention_grad_keys(tg_ctx *ctx, const Attention &a, ElementKind kind, int most);

} // namespace tg

#endif
