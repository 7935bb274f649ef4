/* The dims of several arrays of one shape. The host orders and merges them, and kernels turn positions into offsets in
 * each array. */
#ifndef TG_CUDA_WALK_H
#define TG_CUDA_WALK_H

#include "kernels/cuda/array.h"

#include <tapegrad/device.h>

namespace tg {

/* Divides numbers of 0 or more by a number that is constant in a launch. If dividend and divisor are below 2^31,
 * multiplies instead (Granlund and Montgomery, "Division by invariant integers using multiplication", PLDI 1994). */
struct Divider {
    int64_t by;
    uint32_t factor, shift;
};

inline Divider divider_of(int64_t by) {
    Divider d = {by, 0, 0};
    if (by < 1 || by >= (int64_t)1 << 31) return d;
    while ((int64_t)1 << d.shift < by) d.shift++;
    d.factor = (uint32_t)((((uint64_t)1 << 32) * (((uint64_t)1 << d.shift) - (uint64_t)by)) / (uint64_t)by + 1);
    return d;
}

__device__ inline int64_t quotient(int64_t n, const Divider &d) {
    if (n >> 31 || d.by >> 31) return n / d.by;
    uint32_t low = (uint32_t)n, high = (uint32_t)((uint64_t)low * d.factor >> 32);
    return (low + high) >> d.shift;
}

/* Dims, the outermost first, whose positions are counted in row-major order, and the strides of K arrays along them. */
template <int K> struct Walk {
    int ndim;
    Divider by[TG_MAX_DIMS];
    int64_t stride[K][TG_MAX_DIMS];
};

/* Sets at[k] to the offset of this position in array k, in elements. */
template <int K> __device__ inline void offsets(const Walk<K> &w, int64_t position, int64_t *at) {
    TG_UNROLL
    for (int k = 0; k < K; k++) at[k] = 0;
    for (int d = w.ndim - 1; d >= 0; d--) {
        int64_t outer = d ? quotient(position, w.by[d]) : 0, i = position - outer * w.by[d].by;
        TG_UNROLL
        for (int k = 0; k < K; k++) at[k] += i * w.stride[k][d];
        position = outer;
    }
}

/* ---- On the host ---- */

template <int K> struct Dims {
    int n;
    int64_t count; /* product of shape */
    int64_t shape[TG_MAX_DIMS], stride[K][TG_MAX_DIMS];
};

template <int K> inline void swap_dims(Dims<K> &m, int a, int b) {
    int64_t t = m.shape[a];
    m.shape[a] = m.shape[b];
    m.shape[b] = t;
    for (int k = 0; k < K; k++) {
        t = m.stride[k][a];
        m.stride[k][a] = m.stride[k][b];
        m.stride[k][b] = t;
    }
}

/* Appends a dim unless it has size 1. */
template <int K> inline void push_dim(Dims<K> &m, int64_t size, const int64_t (&stride)[K]) {
    m.count *= size;
    if (size == 1) return;
    m.shape[m.n] = size;
    for (int k = 0; k < K; k++) m.stride[k][m.n] = stride[k];
    m.n++;
}

/* Sorts the dims by decreasing stride in array `by`. Dims with equal strides keep their order. */
template <int K> inline void order_dims(Dims<K> &m, int by) {
    for (int d = 1; d < m.n; d++)
        for (int e = d; e > 0 && m.stride[by][e] > m.stride[by][e - 1]; e--) swap_dims(m, e, e - 1);
}

/* Merges adjacent dims that can be one dim with a single stride in every array. */
template <int K> inline void merge_dims(Dims<K> &m) {
    int top = 0;
    for (int d = 1; d < m.n; d++) {
        bool fits = true;
        for (int k = 0; k < K; k++) fits = fits && m.stride[k][top] == m.stride[k][d] * m.shape[d];
        if (fits)
            m.shape[top] *= m.shape[d];
        else
            m.shape[++top] = m.shape[d];
        for (int k = 0; k < K; k++) m.stride[k][top] = m.stride[k][d];
    }
    m.n = m.n ? top + 1 : 0;
}

/* Returns the dims of K arrays of one shape. */
template <int K> inline Dims<K> dims_of(const tg_array *const (&a)[K]) {
    Dims<K> m = {};
    m.count = 1;
    for (int d = 0; d < a[0]->ndim; d++) {
        int64_t stride[K];
        for (int k = 0; k < K; k++) stride[k] = a[k]->stride[d];
        push_dim(m, a[0]->shape[d], stride);
    }
    return m;
}

/* Returns a walk over the first n dims. */
template <int K> inline Walk<K> walk_of(const Dims<K> &m, int n) {
    Walk<K> w = {};
    w.ndim = n;
    for (int d = 0; d < n; d++) {
        w.by[d] = divider_of(m.shape[d]);
        for (int k = 0; k < K; k++) w.stride[k][d] = m.stride[k][d];
    }
    return w;
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline bool aligned(const void *p, size_t to) { return (uintptr_t)p % to == 0; }

} // namespace tg

#endif
