/* The templates of reduce. T is the compute type, and K the kind of reduction. */
#include <math.h>

#include "kernels/cuda/reduce.h"

namespace tg {
namespace {

template <class T> struct Limits {
    static __device__ T lowest() { return (T)-INFINITY; }
    static __device__ T highest() { return (T)INFINITY; }
};
template <> struct Limits<int64_t> {
    static __device__ int64_t lowest() { return INT64_MIN; }
    static __device__ int64_t highest() { return INT64_MAX; }
};

template <class T, int K> __device__ inline T identity() {
    if constexpr (K == TG_PROD) return (T)1;
    if constexpr (K == TG_MAX || K == TG_ARGMAX) return Limits<T>::lowest();
    if constexpr (K == TG_MIN || K == TG_ARGMIN) return Limits<T>::highest();
    return (T)0;
}

/* Combines two results. In maxima and minima NaN wins over any number. */
template <class T, int K> __device__ inline T join(T a, T b) {
    if constexpr (K == TG_PROD) return product_of(a, b);
    if constexpr (K == TG_MAX) return a > b ? a : a <= b ? b : a + b;
    if constexpr (K == TG_MIN) return a < b ? a : a >= b ? b : a + b;
    return sum_of(a, b);
}

/* Combines a result with one more element. */
template <class T, int K> __device__ inline T taken(T a, T x) {
    if constexpr (K == TG_SUMSQ) return sum_of(a, product_of(x, x));
    return join<T, K>(a, x);
}

__device__ inline float scaled(float v, double s) { return s == 1 ? v : (float)(v * s); }
__device__ inline double scaled(double v, double s) { return v * s; }
__device__ inline int64_t scaled(int64_t v, double s) { return s == 1 ? v : as_i64((double)v * s); }

template <class T> __device__ inline void finish(const ReduceJob &job, int64_t at, T v) {
    v = scaled(v, job.scale);
    if (job.add) v = sum_of(v, load<T>(job.out, job.out_dtype, at));
    store<T>(job.out, job.out_dtype, at, v);
}

/* Reduces a lane's elements of [begin, end) into acc[], a quad. Loads four quads before it uses the first. */
template <class T, int K>
__device__ inline void lane_quads(const ReduceJob &job, int64_t base, int64_t begin, int64_t end, int lane, T *acc) {
    constexpr int Q = Quad<T>::size, AHEAD = 4;
    int64_t step = (int64_t)job.lanes * Q;
    for (int64_t i = begin + (int64_t)lane * Q; i < end; i += AHEAD * step) {
        Raw raw[AHEAD];
        int n[AHEAD];
        TG_UNROLL
        for (int j = 0; j < AHEAD; j++) {
            int64_t from = i + j * step, left = end - from;
            n[j] = left < 0 ? 0 : left < Q ? (int)left : Q;
            if (n[j]) fetch<Q>(raw[j], job.in, job.in_size, base + from * job.step, job.step, n[j], job.whole);
        }
        TG_UNROLL
        for (int j = 0; j < AHEAD; j++) {
            T x[Q];
            if (!n[j]) continue;
            decode<T>(raw[j], job.in_dtype, x);
            TG_UNROLL
            for (int k = 0; k < Q; k++)
                if (k < n[j]) acc[k] = taken<T, K>(acc[k], x[k]);
        }
    }
}

/* Does the same as lane_quads, in the same order, for reduced dims that do not merge into one. */
template <class T, int K>
__device__ inline void lane_scattered(const ReduceJob &job, int64_t base, int64_t begin, int64_t end, int lane,
                                      T *acc) {
    constexpr int Q = Quad<T>::size;
    for (int64_t i = begin + (int64_t)lane * Q; i < end; i += (int64_t)job.lanes * Q) {
        TG_UNROLL
        for (int k = 0; k < Q; k++) {
            int64_t at;
            if (i + k >= end) continue;
            offsets(job.reduced, i + k, &at);
            acc[k] = taken<T, K>(acc[k], load<T>(job.in, job.in_dtype, base + at));
        }
    }
}

template <class T, int K>
__device__ inline T lane_result(const ReduceJob &job, int64_t base, int64_t begin, int64_t end, int lane) {
    constexpr int Q = Quad<T>::size;
    T acc[Q];
    TG_UNROLL
    for (int k = 0; k < Q; k++) acc[k] = identity<T, K>();
    if (job.single)
        lane_quads<T, K>(job, base, begin, end, lane, acc);
    else
        lane_scattered<T, K>(job, base, begin, end, lane, acc);
    TG_UNROLL
    for (int half = Q / 2; half; half /= 2) {
        TG_UNROLL
        for (int k = 0; k < half; k++) acc[k] = join<T, K>(acc[k], acc[k + half]);
    }
    return acc[0];
}

template <class T, int K> __device__ inline T join_lanes(T v, int lanes) {
    for (int half = (lanes < 32 ? lanes : 32) / 2; half; half /= 2)
        v = join<T, K>(v, __shfl_xor_sync(0xffffffffu, v, half));
    return v;
}

template <class T, int K> __global__ void __launch_bounds__(REDUCE_THREADS) reduce_rows(ReduceJob job) {
    __shared__ T warp_result[REDUCE_THREADS / 32];
    int rows = REDUCE_THREADS / job.lanes, lane = threadIdx.x % job.lanes;
    int64_t tile = (int64_t)blockIdx.x * rows + threadIdx.x / job.lanes, out = quotient(tile, job.by_parts);
    int64_t part = tile - out * job.parts, begin = part * job.part_len, at[2] = {0, 0};
    int64_t end = begin + job.part_len < job.count ? begin + job.part_len : job.count;
    bool mine = out < job.outputs;
    T v = identity<T, K>();
    if (mine) {
        offsets(job.kept, out, at);
        v = lane_result<T, K>(job, at[0], begin, end, lane);
    }
    v = join_lanes<T, K>(v, job.lanes);
    if (job.lanes > 32) {
        if (lane % 32 == 0) warp_result[lane / 32] = v;
        __syncthreads();
        v = warp_result[0];
        for (int w = 1; w < REDUCE_THREADS / 32; w++) v = join<T, K>(v, warp_result[w]);
    }
    if (mine && lane == 0) finish(job, at[1] + part * job.part_step, v);
}

/* Reduces a thread's quad of columns over every REDUCE_ROWS-th row. n is the number of columns that exist. D is what
 * with_dtype (vector.h) makes of the dtype if the quad is whole and has all its columns, and if the reduced elements
 * are one dim; otherwise D is ANY_QUAD. */
template <class T, int K, int D>
__device__ inline void column_results(const ReduceJob &job, int64_t base, int64_t begin, int64_t end, int n, T *acc) {
    constexpr int Q = Quad<T>::size, AHEAD = D == ANY_QUAD ? 4 : 8;
    for (int64_t i = begin; i < end; i += AHEAD * REDUCE_ROWS) {
        Raw raw[AHEAD];
        TG_UNROLL
        for (int j = 0; j < AHEAD; j++) {
            int64_t row = i + j * REDUCE_ROWS, at = row * job.step;
            if (row >= end) continue;
            if (D == ANY_QUAD && !job.single) offsets(job.reduced, row, &at);
            fetch_of<T, D>(raw[j], job.in, job.in_size, base + at, job.in_col, n, job.whole);
        }
        TG_UNROLL
        for (int j = 0; j < AHEAD; j++) {
            T x[Q];
            if (i + j * REDUCE_ROWS >= end) continue;
            decode_of<T, D>(raw[j], job.in_dtype, x);
            TG_UNROLL
            for (int k = 0; k < Q; k++) acc[k] = taken<T, K>(acc[k], x[k]);
        }
    }
}

template <class T, int K> __global__ void __launch_bounds__(REDUCE_THREADS, 3) reduce_columns(ReduceJob job) {
    constexpr int Q = Quad<T>::size, WIDTH = REDUCE_LANES * Q;
    __shared__ T results[REDUCE_ROWS][WIDTH];
    int lane = threadIdx.x % REDUCE_LANES, row = threadIdx.x / REDUCE_LANES;
    int64_t rest = quotient(blockIdx.x, job.by_parts), part = blockIdx.x - rest * job.parts;
    int64_t outer = quotient(rest, job.by_across), first = (rest - outer * job.by_across.by) * WIDTH, at[2];
    int64_t begin = part * job.part_len, end = begin + job.part_len < job.count ? begin + job.part_len : job.count;
    int64_t left = job.width - first - lane * Q;
    int n = left < 0 ? 0 : left < Q ? (int)left : Q;
    offsets(job.kept, outer, at);
    T acc[Q];
    TG_UNROLL
    for (int k = 0; k < Q; k++) acc[k] = identity<T, K>();
    int64_t base = at[0] + (first + lane * Q) * job.in_col;
    with_dtype<T>(job.whole && job.single && n == Q ? job.in_dtype : ANY_QUAD, [&](auto dtype) {
        if (n) column_results<T, K, decltype(dtype)::value>(job, base, begin + row, end, n, acc);
    });
    TG_UNROLL
    for (int k = 0; k < Q; k++) results[row][lane * Q + k] = acc[k];
    __syncthreads();
    for (int c = threadIdx.x; c < WIDTH && first + c < job.width; c += REDUCE_THREADS) {
        T v = results[0][c];
        TG_UNROLL
        for (int r = 1; r < REDUCE_ROWS; r++) v = join<T, K>(v, results[r][c]);
        finish(job, at[1] + (first + c) * job.out_col + part * job.part_step, v);
    }
}

/* ---- Positions of extrema ---- */

template <class T> struct Extreme {
    T v;
    int64_t at; /* -1: none yet */
};

/* Returns the better of two. NaN is better than any number; among equals the lower position is better. */
template <class T, int K> __device__ inline Extreme<T> better(Extreme<T> a, Extreme<T> b) {
    if (a.at < 0 || b.at < 0) return a.at < 0 ? b : a;
    bool a_nan = a.v != a.v, b_nan = b.v != b.v;
    if (a_nan != b_nan) return a_nan ? a : b;
    bool beats = K == TG_ARGMAX ? a.v > b.v : a.v < b.v, beaten = K == TG_ARGMAX ? a.v < b.v : a.v > b.v;
    return beats ? a : beaten ? b : a.at < b.at ? a : b;
}

template <class T, int K>
__device__ inline Extreme<T> lane_extreme(const ReduceJob &job, int64_t base, int64_t begin, int64_t end, int lane) {
    Extreme<T> best = {identity<T, K>(), -1};
    for (int64_t i = begin + lane; i < end; i += job.lanes) {
        int64_t at = i * job.step;
        if (!job.single) offsets(job.reduced, i, &at);
        Extreme<T> x = {load<T>(job.in, job.in_dtype, base + at), job.positions ? job.positions[base + at] : i};
        best = better<T, K>(best, x);
    }
    return best;
}

template <class T, int K> __device__ inline Extreme<T> join_extremes(Extreme<T> v, int lanes) {
    for (int half = (lanes < 32 ? lanes : 32) / 2; half; half /= 2) {
        Extreme<T> other = {__shfl_xor_sync(0xffffffffu, v.v, half), __shfl_xor_sync(0xffffffffu, v.at, half)};
        v = better<T, K>(v, other);
    }
    return v;
}

template <class T, int K> __global__ void __launch_bounds__(REDUCE_THREADS) reduce_extremes(ReduceJob job) {
    __shared__ T warp_value[REDUCE_THREADS / 32];
    __shared__ int64_t warp_at[REDUCE_THREADS / 32];
    int rows = REDUCE_THREADS / job.lanes, lane = threadIdx.x % job.lanes;
    int64_t tile = (int64_t)blockIdx.x * rows + threadIdx.x / job.lanes, out = quotient(tile, job.by_parts);
    int64_t part = tile - out * job.parts, begin = part * job.part_len, at[2] = {0, 0};
    int64_t end = begin + job.part_len < job.count ? begin + job.part_len : job.count;
    Extreme<T> v = {identity<T, K>(), -1};
    bool mine = out < job.outputs;
    if (mine) {
        offsets(job.kept, out, at);
        v = lane_extreme<T, K>(job, at[0], begin, end, lane);
    }
    v = join_extremes<T, K>(v, job.lanes);
    if (job.lanes > 32) {
        if (lane % 32 == 0) {
            warp_value[lane / 32] = v.v;
            warp_at[lane / 32] = v.at;
        }
        __syncthreads();
        v = Extreme<T>{warp_value[0], warp_at[0]};
        for (int w = 1; w < REDUCE_THREADS / 32; w++) v = better<T, K>(v, Extreme<T>{warp_value[w], warp_at[w]});
    }
    if (!mine || lane) return;
    int64_t to = at[1] + part * job.part_step;
    store<int64_t>(job.out, job.out_dtype, to, v.at < 0 ? 0 : v.at);
    if (job.extremes) ((T *)job.extremes)[to] = v.v;
}

/* ---- Launches ---- */

template <class T, int K> void launch_kind(const ReduceJob &job, cudaStream_t stream) {
    if (job.path == REDUCE_COLUMN) {
        unsigned grid = (unsigned)(job.outputs / job.width * job.by_across.by * job.parts);
        TG_LAUNCH((reduce_columns<T, K>), grid, REDUCE_THREADS, 0, stream, job);
    } else {
        unsigned grid = (unsigned)ceil_div(job.outputs * job.parts, REDUCE_THREADS / job.lanes);
        TG_LAUNCH((reduce_rows<T, K>), grid, REDUCE_THREADS, 0, stream, job);
    }
}

template <class T, int K> void launch_extremes(const ReduceJob &job, cudaStream_t stream) {
    unsigned grid = (unsigned)ceil_div(job.outputs * job.parts, REDUCE_THREADS / job.lanes);
    TG_LAUNCH((reduce_extremes<T, K>), grid, REDUCE_THREADS, 0, stream, job);
}

template <class T> void launch_reduce(const ReduceJob &job, cudaStream_t stream) {
    switch (job.kind) {
    case TG_SUM: launch_kind<T, TG_SUM>(job, stream); break;
    case TG_PROD: launch_kind<T, TG_PROD>(job, stream); break;
    case TG_MAX: launch_kind<T, TG_MAX>(job, stream); break;
    case TG_MIN: launch_kind<T, TG_MIN>(job, stream); break;
    case TG_SUMSQ: launch_kind<T, TG_SUMSQ>(job, stream); break;
    case TG_ARGMAX: launch_extremes<T, TG_ARGMAX>(job, stream); break;
    case TG_ARGMIN: launch_extremes<T, TG_ARGMIN>(job, stream); break;
    }
}

} // namespace
} // namespace tg
