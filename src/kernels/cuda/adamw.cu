/* The CUDA device's slots of an optimizer's step: fault_sum, prepare and adamw. The first two run in a single thread.
 * adamw passes once over parameters, gradients and moments. A launch steps as many parameters of one compute type as
 * fit into its arguments. */
#include <math.h>

#include "kernels/cuda/slots.h"
#include "kernels/cuda/vector.h"
#include "kernels/cuda/walk.h"
#include "kernels/prepare.h"

namespace tg {
namespace {

enum { ADAMW_THREADS = 256, ADAMW_QUADS = 2 };
/* The greatest number of parameters in a launch. The arguments of a launch may have 32764 bytes. The number is small if
 * a host compiler compiles the kernels, because then each thread copies the arguments. */
#ifdef __CUDACC__
enum { ADAMW_MANY = 256 };
#else
enum { ADAMW_MANY = 16 };
#endif
enum { ADAMW_PARAM, ADAMW_GRAD, ADAMW_M, ADAMW_V, ADAMW_MASTER, ADAMW_ARRAYS };

/* A parameter and its step. */
struct AdamwItem {
    char *data[ADAMW_ARRAYS]; /* NULL for the master copy if there is none */
    uint8_t dtype[ADAMW_ARRAYS];
    bool whole, decoupled; /* whole: quads of all arrays are aligned; decoupled: weight decay of AdamW, not of Adam */
    unsigned first;        /* the first block that works on it */
    int64_t n;             /* number of elements */
    double beta1, beta2, eps, decay;
    const double *step;
    const float *used;
};

template <int MOST> struct AdamwList {
    int n;
    const unsigned long long *fault; /* the device's error word; if it holds an error, nothing is changed */
    AdamwItem item[MOST];
};
static_assert(sizeof(AdamwList<ADAMW_MANY>) <= 32764, "the arguments of a launch");

template <class T> struct Coefficients {
    T beta1, beta2, gain1, gain2; /* gain1 and gain2 are 1 - beta1 and 1 - beta2, computed in double */
    T eps, clip, rate, keep, decay, unbias;
};

template <class T> __device__ inline Coefficients<T> coefficients_of(const AdamwItem &p) {
    double lr = p.step[TG_SCALAR_LR];
    Coefficients<T> c;
    c.beta1 = (T)p.beta1;
    c.beta2 = (T)p.beta2;
    c.gain1 = (T)(1 - p.beta1);
    c.gain2 = (T)(1 - p.beta2);
    c.eps = (T)p.eps;
    c.clip = (T)p.step[TG_SCALAR_COEFFICIENT];
    c.rate = (T)(lr / p.step[TG_SCALAR_UNBIAS1]);
    c.keep = p.decoupled ? (T)(1 - lr * p.decay) : (T)1;
    c.decay = p.decoupled ? (T)0 : (T)p.decay;
    c.unbias = (T)(1 / sqrt(p.step[TG_SCALAR_UNBIAS2]));
    return c;
}

__device__ inline float root(float x) { return sqrtf(x); }
__device__ inline double root(double x) { return sqrt(x); }

template <class T> __device__ inline void step_one(const Coefficients<T> &c, T grad, T &p, T &m, T &v) {
    T g = grad * c.clip + c.decay * p;
    m = c.beta1 * m + c.gain1 * g;
    v = c.beta2 * v + c.gain2 * (g * g);
    p = c.keep * p - c.rate * m / (root(v) * c.unbias + c.eps);
}

__device__ inline int size_of(const AdamwItem &p, int k) { return element_size(p.dtype[k]); }

/* Returns the item on which this block works: the last item whose first block is this block or an earlier one. */
template <int MOST> __device__ inline int item_of(const AdamwList<MOST> &list, unsigned block) {
    int low = 0, high = list.n;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (list.item[middle].first <= block)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Makes the step of one quad (vector.h). raw has the quads of the master copy (of the parameter if there is none), of
 * the gradient, and of the moments. */
template <class T>
__device__ inline void step_quad(const AdamwItem &p, const Coefficients<T> &c, const Raw *raw, int64_t at, int n) {
    constexpr int Q = Quad<T>::size;
    int from = p.data[ADAMW_MASTER] ? ADAMW_MASTER : ADAMW_PARAM;
    T x[Q], g[Q], m[Q], v[Q];
    decode<T>(raw[ADAMW_PARAM], p.dtype[from], x);
    decode<T>(raw[ADAMW_GRAD], p.dtype[ADAMW_GRAD], g);
    decode<T>(raw[ADAMW_M], p.dtype[ADAMW_M], m);
    decode<T>(raw[ADAMW_V], p.dtype[ADAMW_V], v);
    TG_UNROLL
    for (int k = 0; k < Q; k++) step_one(c, g[k], x[k], m[k], v[k]);
    const T *result[ADAMW_ARRAYS] = {x, nullptr, m, v, x};
    TG_UNROLL
    for (int k = 0; k < ADAMW_ARRAYS; k++) {
        Raw r;
        if (k == ADAMW_GRAD || !p.data[k]) continue;
        encode<T>(r, p.dtype[k], result[k]);
        put<Q>(r, p.data[k], size_of(p, k), at, 1, n, p.whole);
    }
}

template <class T, int MOST>
__global__ void __launch_bounds__(ADAMW_THREADS) adamw_step(const __grid_constant__ AdamwList<MOST> list) {
    constexpr int Q = Quad<T>::size;
    __shared__ Coefficients<T> shared;
    const AdamwItem &p = list.item[item_of(list, blockIdx.x)];
    if (p.step[TG_SCALAR_SKIP] != 0 || *list.fault != ~0ull || (p.used && *p.used == 0)) return;
    int64_t begin = (int64_t)(blockIdx.x - p.first) * (ADAMW_THREADS * ADAMW_QUADS * Q) + threadIdx.x * Q;
    int from = p.data[ADAMW_MASTER] ? ADAMW_MASTER : ADAMW_PARAM;
    Raw raw[ADAMW_QUADS][4];
    int n[ADAMW_QUADS];
    TG_UNROLL
    for (int q = 0; q < ADAMW_QUADS; q++) {
        int64_t at = begin + q * ADAMW_THREADS * Q, left = p.n - at;
        n[q] = left < 0 ? 0 : left < Q ? (int)left : Q;
        if (!n[q]) continue;
        TG_UNROLL
        for (int k = 0; k < 4; k++) {
            int of = k == ADAMW_PARAM ? from : k;
            fetch<Q>(raw[q][k], p.data[of], size_of(p, of), at, 1, n[q], p.whole);
        }
    }
    if (threadIdx.x == 0) shared = coefficients_of<T>(p);
    __syncthreads();
    const Coefficients<T> c = shared;
    TG_UNROLL
    for (int q = 0; q < ADAMW_QUADS; q++)
        if (n[q]) step_quad<T>(p, c, raw[q], begin + q * ADAMW_THREADS * Q, n[q]);
}

AdamwItem item_for(const tg_adamw_args &a) {
    const tg_array *arrays[ADAMW_ARRAYS] = {&a.param, &a.grad, &a.m, &a.v, &a.master};
    AdamwItem p = {};
    p.whole = true;
    for (int k = 0; k < ADAMW_ARRAYS; k++) {
        p.data[k] = (char *)arrays[k]->data;
        p.dtype[k] = arrays[k]->dtype;
        p.whole = p.whole && aligned(p.data[k], 16);
    }
    p.n = a.param.numel;
    p.beta1 = a.beta1;
    p.beta2 = a.beta2;
    p.eps = a.eps;
    p.decay = a.weight_decay;
    p.decoupled = a.decoupled;
    p.step = a.step;
    p.used = a.used;
    return p;
}

bool is_wide(const tg_adamw_args &a) {
    return a.param.dtype == TG_F64 || a.grad.dtype == TG_F64 || a.m.dtype == TG_F64 || a.v.dtype == TG_F64 ||
           (a.master.data && a.master.dtype == TG_F64);
}

/* Launches one kernel for the next parameters of compute type T from *i on, as many as fit; none if there are no more
 * of these. Moves *i past them. */
template <class T, int MOST> tg_status launch_some(tg_ctx *ctx, const tg_adamw_args *a, int n, int *i) {
    const int64_t each = ADAMW_THREADS * ADAMW_QUADS * Quad<T>::size;
    AdamwList<MOST> list;
    int64_t blocks = 0;
    list.n = 0;
    list.fault = tg_cuda_of(ctx)->fault;
    for (; *i < n && list.n < MOST; ++*i) {
        int64_t more = ceil_div(a[*i].param.numel, each);
        if (is_wide(a[*i]) != (sizeof(T) == 8) || !more) continue;
        if (list.n && (blocks + more) >> 31) break;
        list.item[list.n] = item_for(a[*i]);
        list.item[list.n++].first = (unsigned)blocks;
        blocks += more;
    }
    if (!list.n) return TG_OK;
    TG_LAUNCH((adamw_step<T, MOST>), (unsigned)blocks, ADAMW_THREADS, 0, tg_cuda_of(ctx)->compute, list);
    return tg_cuda_launched(ctx, "adamw");
}

template <class T> tg_status step_list(tg_ctx *ctx, const tg_adamw_args *a, int n) {
    for (int i = 0; i < n;) {
        tg_status s = n == 1 ? launch_some<T, 1>(ctx, a, n, &i) : launch_some<T, ADAMW_MANY>(ctx, a, n, &i);
        if (s != TG_OK) return s;
    }
    return TG_OK;
}

/* Runs once a step. One thread is enough, as the work is a few numbers for each group of parameters. */
__global__ void prepare_step(const __grid_constant__ tg_prepare_args a, const unsigned long long *fault) {
    if (threadIdx.x == 0) tg_prepare_step(&a, *fault != ~0ull);
}

__global__ void add_fault(double *sum, const unsigned long long *fault) {
    if (threadIdx.x == 0 && *fault != ~0ull) *sum += (double)NAN;
}

} // namespace
} // namespace tg

extern "C" tg_status tg_cuda_fault_sum(tg_ctx *ctx, double *sum) {
    TG_LAUNCH(tg::add_fault, 1, 1, 0, tg_cuda_of(ctx)->compute, sum, tg_cuda_of(ctx)->fault);
    return tg_cuda_launched(ctx, "fault_sum");
}

extern "C" tg_status tg_cuda_prepare(tg_ctx *ctx, const tg_prepare_args *a) {
    TG_LAUNCH(tg::prepare_step, 1, 1, 0, tg_cuda_of(ctx)->compute, *a, tg_cuda_of(ctx)->fault);
    return tg_cuda_launched(ctx, "prepare");
}

extern "C" tg_status tg_cuda_adamw(tg_ctx *ctx, const tg_adamw_args *a, int n) {
    tg_status s = tg::step_list<float>(ctx, a, n);
    return s == TG_OK ? tg::step_list<double>(ctx, a, n) : s;
}
