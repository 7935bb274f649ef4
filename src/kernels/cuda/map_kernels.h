/* The templates of map. T is the compute type, and NI the number of inputs of the formula. Each time a thread looks up
 * the formula, it computes several elements. */
#include <math.h>

#include "kernels/cuda/map.h"
#include "kernels/scalar.h"

namespace tg {
namespace {

template <class T> __device__ inline T parameter(double p) { return (T)p; }
template <> __device__ inline int64_t parameter(double p) { return as_i64(p); }

/* Formulas come in two sets. SIMPLE are those before abs_d, the first one that needs a float. They take few registers
 * and little time, so a thread loads more elements before it computes. int64 has only SIMPLE formulas. */
enum MapSet { SIMPLE, REAL };
constexpr MapSet set_of(int f) { return f < TG_FN_abs_d ? SIMPLE : REAL; }

/* Returns the number of pairs of quads of a thread. If quads are joined (MapJob), the thread loads all its pairs before
 * it computes the first. */
template <int NI, MapSet SET> constexpr int pairs_of_thread() { return SET == REAL || NI > 2 ? 1 : NI == 2 ? 2 : 4; }

/* Computes y = f(x...) for N elements. f must be in SET. */
template <class T, int NI, MapSet SET, int N>
__device__ inline void apply(tg_formula f, const T (&x)[NI][N], double p_, double q_, T (&y)[N]) {
    const T p = parameter<T>(p_), q = parameter<T>(q_);
    (void)p, (void)q;
    switch (f) {
#define TG_X(name, n, value)                                                                        \
    case TG_FN_##name:                                                                              \
        if constexpr (n == NI && set_of(TG_FN_##name) == SET) {                                      \
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

/* A pair of quads of a row: the columns at which they begin, and how many elements they have, 0 to Q each. */
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

/* Fetch and store a pair of quads. The row of the pair begins at element `base`. */
template <int Q>
__device__ inline void fetch_share(const MapOperand &x, int64_t base, const Share &s, Raw (&r)[2]) {
    fetch<Q>(r[0], x.data, x.size, base + s.first * x.col, x.col, s.n[0], x.whole);
    fetch<Q>(r[1], x.data, x.size, base + s.second * x.col, x.col, s.n[1], x.whole);
}

template <int Q>
__device__ inline void put_share(const MapOperand &x, int64_t base, const Share &s, const Raw (&r)[2]) {
    put<Q>(r[0], x.data, x.size, base + s.first * x.col, x.col, s.n[0], x.whole);
    put<Q>(r[1], x.data, x.size, base + s.second * x.col, x.col, s.n[1], x.whole);
}

/* Loads a pair of joined quads, which is one Raw of eight 16-bit elements. If the operand repeats one element along the
 * row (col is 0), returns one quad of that element, which serves as both quads. */
__device__ inline Raw fetch_joined(const MapOperand &x, int64_t at) {
    if (x.col) return *(const Raw *)(x.data + at * 2);
    Raw r;
    fetch<4>(r, x.data, x.size, at, 0, 4, false);
    return r;
}

/* Separates the two quads of a pair that fetch_joined has returned. */
__device__ inline void cut_in_two(const MapOperand &x, const Raw &both, Raw (&r)[2]) {
    r[0] = r[1] = both;
    if (x.col) r[1].w[0] = both.w[2], r[1].w[1] = both.w[3];
}

__device__ inline Raw joined(const Raw (&r)[2]) { return Raw{{r[0].w[0], r[0].w[1], r[1].w[0], r[1].w[1]}}; }

template <class T> __device__ inline void decode_pair(const Raw (&r)[2], int dtype, T *v) {
    decode<T>(r[0], dtype, v);
    decode<T>(r[1], dtype, v + Quad<T>::size);
}

/* Computes a pair of quads. raw[k] holds the pair of operand k. The results go to raw[0]. */
template <class T, int NI, MapSet SET> __device__ inline void map_pair(const MapJob &job, Raw (&raw)[1 + NI][2]) {
    constexpr int Q = Quad<T>::size;
    T v[NI][2 * Q], y[2 * Q];
    TG_UNROLL
    for (int k = 0; k < NI; k++) decode_pair<T>(raw[k + 1], job.x[k + 1].dtype, v[k]);
    apply<T, NI, SET, 2 * Q>(job.f, v, job.p, job.q, y);
    if (job.add) {
        T old[2 * Q];
        decode_pair<T>(raw[0], job.x[0].dtype, old);
        TG_UNROLL
        for (int k = 0; k < 2 * Q; k++) y[k] += old[k];
    }
    encode<T>(raw[0][0], job.x[0].dtype, y);
    encode<T>(raw[0][1], job.x[0].dtype, y + Q);
}

/* Divides as quotient does; both numbers are below 2^31. */
__device__ inline uint32_t small_quotient(uint32_t n, const Divider &d) {
    return (n + (uint32_t)((uint64_t)n * d.factor >> 32)) >> d.shift;
}

/* Finds where pair number i of joined quads begins in operands 0 to NI. */
template <int NI, int Q> __device__ inline void joined_offsets(const MapJob &job, uint32_t i, uint32_t (&at)[1 + NI]) {
    uint32_t row = small_quotient(i, job.across), first = (i - row * (uint32_t)job.across.by) * (2 * Q);
    TG_UNROLL
    for (int k = 0; k <= NI; k++) at[k] = job.x[k].col ? first : 0;
    for (int d = job.walk.ndim - 1; d >= 0; d--) {
        uint32_t outer = d ? small_quotient(row, job.walk.by[d]) : 0, index = row - outer * (uint32_t)job.walk.by[d].by;
        TG_UNROLL
        for (int k = 0; k <= NI; k++) at[k] += index * (uint32_t)job.walk.stride[k][d];
        row = outer;
    }
}

/* Computes pairs first, first + MAP_THREADS, and so on, of joined quads. */
template <class T, int NI, MapSet SET> __device__ inline void map_joined(const MapJob &job, uint32_t first) {
    constexpr int Q = Quad<T>::size, EACH = pairs_of_thread<NI, SET>();
    uint32_t out[EACH];
    Raw both[EACH][1 + NI];
    TG_UNROLL
    for (int e = 0; e < EACH; e++) {
        uint32_t at[1 + NI];
        if (first + e * MAP_THREADS >= job.count) continue;
        joined_offsets<NI, Q>(job, first + e * MAP_THREADS, at);
        out[e] = at[0];
        TG_UNROLL
        for (int k = 0; k <= NI; k++)
            if (k || job.add) both[e][k] = fetch_joined(job.x[k], at[k]);
    }
    TG_UNROLL
    for (int e = 0; e < EACH; e++) {
        if (first + e * MAP_THREADS >= job.count) continue;
        if (!job.copies) {
            Raw raw[1 + NI][2];
            TG_UNROLL
            for (int k = 0; k <= NI; k++) cut_in_two(job.x[k], both[e][k], raw[k]);
            map_pair<T, NI, SET>(job, raw);
            both[e][1] = joined(raw[0]);
        }
        *(Raw *)(job.x[0].data + (int64_t)out[e] * 2) = both[e][1];
    }
}

template <class T, int NI, MapSet SET>
__global__ void __launch_bounds__(MAP_THREADS, SET == SIMPLE ? 3 : 5) map_rows(MapJob job) {
    constexpr int Q = Quad<T>::size, EACH = pairs_of_thread<NI, SET>();
    int64_t first = (int64_t)blockIdx.x * (MAP_THREADS * EACH) + threadIdx.x;
    if constexpr (Q == 4) {
        if (job.joined) return map_joined<T, NI, SET>(job, (uint32_t)first);
    }
    TG_ROLLED
    for (int e = 0; e < EACH; e++) {
        int64_t i = first + e * MAP_THREADS, offset[1 + MAP_INPUTS];
        if (i >= job.count) return;
        Share share = share_of<Q>(job, i);
        if (!share.n[0]) continue;
        offsets(job.walk, share.row, offset);
        Raw raw[1 + NI][2];
        TG_UNROLL
        for (int k = 0; k <= NI; k++)
            if (k || job.add) fetch_share<Q>(job.x[k], offset[k], share, raw[k]);
        map_pair<T, NI, SET>(job, raw);
        put_share<Q>(job.x[0], offset[0], share, raw[0]);
    }
}

/* The elements of a thread are MAP_THREADS apart, so that the threads of a warp have adjacent elements. */
template <class T, int NI, MapSet SET> __global__ void __launch_bounds__(MAP_THREADS) map_flat(MapJob job) {
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
    apply<T, NI, SET, MAP_EACH>(job.f, v, job.p, job.q, y);
    TG_UNROLL
    for (int k = 0; k < MAP_EACH; k++) {
        if (first + (int64_t)k * MAP_THREADS >= job.count) continue;
        T r = job.add ? (T)(y[k] + value_of<T>(raw[0][k], job.x[0].dtype)) : y[k];
        store<T>(job.x[0].data, job.x[0].dtype, out_at[k], r);
    }
}

/* A block computes a tile. Transposed inputs are read along the columns, where they are contiguous, and transposed in
 * shared memory; MAP_TILE + 1 avoids bank conflicts. */
template <class T, int NI, MapSet SET>
__global__ void __launch_bounds__(MAP_TILE * MAP_TILE_ROWS) map_tiles(MapJob job) {
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
    apply<T, NI, SET, EACH>(job.f, v, job.p, job.q, y);
    const MapOperand &out = job.x[0];
    TG_UNROLL
    for (int k = 0; k < EACH; k++) {
        int64_t row = row0 + ty + k * MAP_TILE_ROWS, col = col0 + tx;
        if (row >= job.rows || col >= job.cols) continue;
        int64_t at = offset[0] + row * out.row + col * out.col;
        store<T>(out.data, out.dtype, at, job.add ? (T)(y[k] + load<T>(out.data, out.dtype, at)) : y[k]);
    }
}

template <class T, int NI, MapSet SET> void launch_set(const MapJob &job, cudaStream_t stream) {
    int64_t each = MAP_THREADS * (job.path == MAP_ROWS ? pairs_of_thread<NI, SET>() : MAP_EACH);
    unsigned grid = (unsigned)(job.path == MAP_TILES ? job.count : ceil_div(job.count, each));
    if (job.path == MAP_ROWS)
        TG_LAUNCH((map_rows<T, NI, SET>), grid, MAP_THREADS, 0, stream, job);
    else if (job.path == MAP_FLAT)
        TG_LAUNCH((map_flat<T, NI, SET>), grid, MAP_THREADS, 0, stream, job);
    else
        TG_LAUNCH((map_tiles<T, NI, SET>), grid, MAP_TILE * MAP_TILE_ROWS, 0, stream, job);
}

template <class T, int NI> void launch_inputs(const MapJob &job, cudaStream_t stream) {
    constexpr bool integer = T(1) / T(2) == T(0);
    if (integer || set_of(job.f) == SIMPLE)
        launch_set<T, NI, SIMPLE>(job, stream);
    else if constexpr (!integer)
        launch_set<T, NI, REAL>(job, stream);
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
