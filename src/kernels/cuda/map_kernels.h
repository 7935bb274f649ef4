/* The templates of map. T is the compute type, and NI the number of inputs of the formula. A thread computes several
 * elements after it has looked up the formula once. */
#include <math.h>

#include "kernels/cuda/map.h"
#include "kernels/scalar.h"

namespace tg {
namespace {

template <class T> __device__ inline T parameter(double p) { return (T)p; }
template <> __device__ inline int64_t parameter(double p) { return as_i64(p); }

/* Whether formula F exists for T. int64 has only the formulas before abs_d, the first that needs a float. */
template <class T, int F> constexpr bool exists = F < TG_FN_abs_d || T(1) / T(2) != T(0);

/* Computes y = f(x...) for N elements. */
template <class T, int NI, int N>
__device__ inline void apply(tg_formula f, const T (&x)[NI][N], double p_, double q_, T (&y)[N]) {
    const T p = parameter<T>(p_), q = parameter<T>(q_);
    (void)p, (void)q;
    switch (f) {
#define TG_X(name, n, value)                                                                        \
    case TG_FN_##name:                                                                              \
        if constexpr (n == NI && exists<T, TG_FN_##name>) {                                           \
            TG_UNROLL                                                                               \
            for (int k = 0; k < N; k++) {                                                           \
                const T a = x[0][k], b = x[NI > 1 ? 1 : 0][k];                                      \
                const T c = x[NI > 2 ? 2 : 0][k], d = x[NI > 3 ? 3 : 0][k];                         \
                (void)a, (void)b, (void)c, (void)d;                                                 \
                y[k] = value;                                                                       \
            }                                                                                       \
        }                                                                                            \
        break;
        TG_FORMULAS(TG_X)
#undef TG_X
    }
}

/* A thread's two quads of a row: the columns at which they begin, and how many elements they have, 0 to Q each. */
struct Share {
    int64_t row, first, second;
    int n[2];
};

template <int Q> __device__ inline Share share_of(const MapJob &job, int64_t i) {
    int64_t row = quotient(i, job.across), at = i - row * job.across.by;
    int64_t run = job.spread == 1 ? at : at / job.spread, lane = job.spread == 1 ? 0 : at % job.spread;
    Share s = {row, (run * 2 * job.spread + lane) * Q, 0, {0, 0}};
    s.second = s.first + (int64_t)job.spread * Q;
    int64_t left = job.cols - s.first, rest = job.cols - s.second;
    s.n[0] = left < 0 ? 0 : left < Q ? (int)left : Q;
    s.n[1] = rest < 0 ? 0 : rest < Q ? (int)rest : Q;
    return s;
}

/* Fetch and store both quads of a row that begins at element `base`. If the quads are joined, this is one access. */
template <int Q>
__device__ inline void fetch_share(const MapJob &job, const MapOperand &x, int64_t base, const Share &s, Raw (&r)[2]) {
    if (Q == 4 && job.joined && x.whole && s.n[1] == Q) {
        Raw both = *(const Raw *)(x.data + (base + s.first) * 2);
        r[0].w[0] = both.w[0], r[0].w[1] = both.w[1];
        r[1].w[0] = both.w[2], r[1].w[1] = both.w[3];
    } else {
        fetch<Q>(r[0], x.data, x.size, base + s.first * x.col, x.col, s.n[0], x.whole);
        fetch<Q>(r[1], x.data, x.size, base + s.second * x.col, x.col, s.n[1], x.whole);
    }
}

template <int Q>
__device__ inline void put_share(const MapJob &job, const MapOperand &x, int64_t base, const Share &s,
                                 const Raw (&r)[2]) {
    if (Q == 4 && job.joined && x.whole && s.n[1] == Q) {
        Raw both = {{r[0].w[0], r[0].w[1], r[1].w[0], r[1].w[1]}};
        *(Raw *)(x.data + (base + s.first) * 2) = both;
    } else {
        put<Q>(r[0], x.data, x.size, base + s.first * x.col, x.col, s.n[0], x.whole);
        put<Q>(r[1], x.data, x.size, base + s.second * x.col, x.col, s.n[1], x.whole);
    }
}

template <class T> __device__ inline void decode_pair(const Raw (&r)[2], int dtype, T *v) {
    decode<T>(r[0], dtype, v);
    decode<T>(r[1], dtype, v + Quad<T>::size);
}

template <class T, int NI> __global__ void __launch_bounds__(MAP_THREADS) map_rows(MapJob job) {
    constexpr int Q = Quad<T>::size;
    int64_t i = (int64_t)blockIdx.x * MAP_THREADS + threadIdx.x, offset[1 + MAP_INPUTS];
    if (i >= job.count) return;
    Share share = share_of<Q>(job, i);
    if (!share.n[0]) return;
    offsets(job.walk, share.row, offset);
    Raw raw[1 + NI][2];
    TG_UNROLL
    for (int k = 0; k <= NI; k++)
        if (k || job.add) fetch_share<Q>(job, job.x[k], offset[k], share, raw[k]);
    T v[NI][2 * Q], y[2 * Q];
    TG_UNROLL
    for (int k = 0; k < NI; k++) decode_pair<T>(raw[k + 1], job.x[k + 1].dtype, v[k]);
    apply<T, NI, 2 * Q>(job.f, v, job.p, job.q, y);
    if (job.add) {
        T old[2 * Q];
        decode_pair<T>(raw[0], job.x[0].dtype, old);
        TG_UNROLL
        for (int k = 0; k < 2 * Q; k++) y[k] += old[k];
    }
    encode<T>(raw[0][0], job.x[0].dtype, y);
    encode<T>(raw[0][1], job.x[0].dtype, y + Q);
    put_share<Q>(job, job.x[0], offset[0], share, raw[0]);
}

/* The elements of a thread are MAP_THREADS apart, so that the threads of a warp have adjacent elements. */
template <class T, int NI> __global__ void __launch_bounds__(MAP_THREADS) map_flat(MapJob job) {
    int64_t first = (int64_t)blockIdx.x * (MAP_THREADS * MAP_EACH) + threadIdx.x;
    int64_t out_at[MAP_EACH];
    uint64_t raw[1 + NI][MAP_EACH] = {};
    TG_UNROLL
    for (int k = 0; k < MAP_EACH; k++) {
        int64_t i = first + (int64_t)k * MAP_THREADS, offset[1 + MAP_INPUTS];
        if (i >= job.count) continue;
        offsets(job.walk, i, offset);
        out_at[k] = offset[0];
        TG_UNROLL
        for (int j = 0; j <= NI; j++)
            if (j || job.add) raw[j][k] = fetch_one(job.x[j].data, job.x[j].size, offset[j]);
    }
    T v[NI][MAP_EACH], y[MAP_EACH];
    TG_UNROLL
    for (int j = 0; j < NI; j++) {
        TG_UNROLL
        for (int k = 0; k < MAP_EACH; k++) v[j][k] = value_of<T>(raw[j + 1][k], job.x[j + 1].dtype);
    }
    apply<T, NI, MAP_EACH>(job.f, v, job.p, job.q, y);
    TG_UNROLL
    for (int k = 0; k < MAP_EACH; k++) {
        if (first + (int64_t)k * MAP_THREADS >= job.count) continue;
        T r = job.add ? (T)(y[k] + value_of<T>(raw[0][k], job.x[0].dtype)) : y[k];
        store<T>(job.x[0].data, job.x[0].dtype, out_at[k], r);
    }
}

/* A block computes a tile. Transposed inputs are read along the columns, where they are contiguous, and transposed in
 * shared memory; MAP_TILE + 1 avoids bank conflicts. */
template <class T, int NI> __global__ void __launch_bounds__(MAP_TILE * MAP_TILE_ROWS) map_tiles(MapJob job) {
    constexpr int EACH = MAP_TILE / MAP_TILE_ROWS;
    __shared__ T tile[NI][MAP_TILE][MAP_TILE + 1];
    int tx = threadIdx.x % MAP_TILE, ty = threadIdx.x / MAP_TILE;
    int64_t rest = quotient(blockIdx.x, job.across), outer = quotient(rest, job.down);
    int64_t col0 = (blockIdx.x - rest * job.across.by) * MAP_TILE, row0 = (rest - outer * job.down.by) * MAP_TILE;
    int64_t offset[1 + MAP_INPUTS];
    offsets(job.walk, outer, offset);
    T v[NI][EACH] = {}, y[EACH];
    TG_UNROLL
    for (int i = 0; i < NI; i++) {
        const MapOperand &x = job.x[i + 1];
        TG_UNROLL
        for (int k = 0; k < EACH; k++) {
            int along = ty + k * MAP_TILE_ROWS;
            int64_t row = row0 + (x.transposed ? tx : along), col = col0 + (x.transposed ? along : tx);
            if (row >= job.rows || col >= job.cols) continue;
            T e = value_of<T>(fetch_one(x.data, x.size, offset[i + 1] + row * x.row + col * x.col), x.dtype);
            v[i][k] = e;
            if (x.transposed) tile[i][along][tx] = e;
        }
    }
    __syncthreads();
    TG_UNROLL
    for (int i = 0; i < NI; i++) {
        TG_UNROLL
        for (int k = 0; k < EACH; k++) {
            int along = ty + k * MAP_TILE_ROWS;
            bool inside = row0 + along < job.rows && col0 + tx < job.cols;
            if (job.x[i + 1].transposed && inside) v[i][k] = tile[i][tx][along];
        }
    }
    apply<T, NI, EACH>(job.f, v, job.p, job.q, y);
    const MapOperand &out = job.x[0];
    TG_UNROLL
    for (int k = 0; k < EACH; k++) {
        int64_t row = row0 + ty + k * MAP_TILE_ROWS, col = col0 + tx;
        if (row >= job.rows || col >= job.cols) continue;
        int64_t at = offset[0] + row * out.row + col * out.col;
        store<T>(out.data, out.dtype, at, job.add ? (T)(y[k] + load<T>(out.data, out.dtype, at)) : y[k]);
    }
}

template <class T, int NI> void launch_inputs(const MapJob &job, cudaStream_t stream) {
    int64_t each = job.path == MAP_ROWS ? MAP_THREADS : MAP_THREADS * MAP_EACH;
    unsigned grid = (unsigned)(job.path == MAP_TILES ? job.count : ceil_div(job.count, each));
    if (job.path == MAP_ROWS)
        TG_LAUNCH((map_rows<T, NI>), grid, MAP_THREADS, 0, stream, job);
    else if (job.path == MAP_FLAT)
        TG_LAUNCH((map_flat<T, NI>), grid, MAP_THREADS, 0, stream, job);
    else
        TG_LAUNCH((map_tiles<T, NI>), grid, MAP_TILE * MAP_TILE_ROWS, 0, stream, job);
}

template <class T> void launch_map(const MapJob &job, cudaStream_t stream) {
    switch (job.n_in) {
    case 1: launch_inputs<T, 1>(job, stream); break;
    case 2: launch_inputs<T, 2>(job, stream); break;
    case 3: launch_inputs<T, 3>(job, stream); break;
    default: launch_inputs<T, 4>(job, stream);
    }
}

} // namespace
} // namespace tg
