/* The CUDA device's put_add and put slots. Each element of the destination is computed by one thread. For put_add the
 * thread adds the values in the order of the source, and rounds the sum to the destination's dtype once; for put it
 * writes the last value.
 *
 * If groups (take.h) have few positions, a thread looks through all positions of a group. Otherwise positions are
 * sorted stably by destination, so that those of one destination keep their order. A thread then handles one
 * destination. */
#include "kernels/cuda/slots.h"
#include "kernels/cuda/sort.h"
#include "kernels/cuda/take.h"

namespace tg {
namespace {

enum { FEW = 32, AHEAD = 8 }; /* FEW: the most positions of a group that count as few; AHEAD: quads loaded together */

/* Load and store n elements of the run with offset `at`, from element j on. */
template <class T> __device__ inline void load_run(const TakeSide &x, int64_t at, int64_t j, int n, T *v) {
    Raw r;
    fetch<Quad<T>::size>(r, x.data, x.size, at + j * x.step, x.step, n, x.whole);
    decode<T>(r, x.dtype, v);
}

template <class T> __device__ inline void store_run(const TakeSide &x, int64_t at, int64_t j, int n, const T *v) {
    Raw r;
    encode<T>(r, x.dtype, v);
    put<Quad<T>::size>(r, x.data, x.size, at + j * x.step, x.step, n, x.whole);
}

/* ---- Few positions in a group ---- */

/* Returns whether one of the positions [first, end) of a group has the index `chosen`. `at` is the group's offset in
 * the index. */
__device__ inline bool seen_among(const TakeJob &job, int64_t at, int64_t first, int64_t end, int64_t chosen) {
    bool seen = false;
    for (int64_t e = first; e < end; e++) seen |= index_at(job, at + e * job.stride[TAKE_INDEX]) == chosen;
    return seen;
}

/* A thread has a quad of the runs of one group. At the first position of each destination it adds up all positions of
 * that destination. Without ADD it writes, for each destination, the values of the last position. */
template <class T, bool ADD>
__global__ void __launch_bounds__(TAKE_THREADS) put_few(TakeJob job, int64_t n, Divider by_quads) {
    constexpr int Q = Quad<T>::size;
    int64_t i = (int64_t)blockIdx.x * TAKE_THREADS + threadIdx.x, at[TAKE_ARRAYS];
    if (i >= n) return;
    int64_t group = quotient(i, by_quads), j = (i - group * by_quads.by) * Q;
    int count = job.run - j < Q ? (int)(job.run - j) : Q;
    offsets(job.others, group, at);
    for (int64_t m = 0; m < job.along; m++) {
        int64_t chosen = index_at(job, at[TAKE_INDEX] + m * job.stride[TAKE_INDEX]);
        if (!in_range(job, chosen)) {
            if (j == 0) report(job, (at[TAKE_POSITION] + m * job.stride[TAKE_POSITION]) * job.run);
            continue;
        }
        if (seen_among(job, at[TAKE_INDEX], ADD ? 0 : m + 1, ADD ? m : job.along, chosen)) continue;
        T sum[Q], x[Q];
        int64_t to = at[TAKE_B] + chosen * job.b_stride;
        if (ADD)
            load_run(job.b, to, j, count, sum);
        else
            load_run(job.a, at[TAKE_A] + m * job.stride[TAKE_A], j, count, sum);
        for (int64_t e = m; ADD && e < job.along; e++) {
            if (index_at(job, at[TAKE_INDEX] + e * job.stride[TAKE_INDEX]) != chosen) continue;
            load_run(job.a, at[TAKE_A] + e * job.stride[TAKE_A], j, count, x);
            TG_UNROLL
            for (int k = 0; k < Q; k++) sum[k] = sum_of(sum[k], x[k]);
        }
        store_run(job.b, to, j, count, sum);
    }
}

template <class T> void launch_few(const TakeJob &job, bool add, cudaStream_t stream) {
    int64_t quads = ceil_div(job.run, Quad<T>::size), n = job.groups * quads;
    unsigned grid = (unsigned)ceil_div(n, TAKE_THREADS);
    if (add)
        TG_LAUNCH((put_few<T, true>), grid, TAKE_THREADS, 0, stream, job, n, divider_of(quads));
    else
        TG_LAUNCH((put_few<T, false>), grid, TAKE_THREADS, 0, stream, job, n, divider_of(quads));
}

/* ---- Many positions: sorted by destination ---- */

/* Writes the key of each position, which numbers its destination by group and index. If the index is out of range, the
 * key is greater than all others. */
template <class Id> __global__ void __launch_bounds__(TAKE_THREADS) put_keys(TakeJob job, Id *keys) {
    int64_t position = (int64_t)blockIdx.x * TAKE_THREADS + threadIdx.x, at[TAKE_ARRAYS];
    if (position >= job.positions) return;
    offsets(job.walk, position, at);
    int64_t chosen = index_at(job, at[TAKE_INDEX]);
    bool fits = in_range(job, chosen);
    if (!fits) report(job, position * job.run);
    keys[position] = (Id)(fits ? at[TAKE_GROUP] * job.extent + chosen : job.groups * job.extent);
}

/* A thread has a quad of the run of one sorted position. Only the threads of the first position of a key have work;
 * without ADD, only those of the last position. */
template <class T, class Id, bool ADD>
__global__ void __launch_bounds__(TAKE_THREADS) put_sorted(TakeJob job, const Id *keys, const Id *order, int64_t n,
                                                           Divider by_quads) {
    constexpr int Q = Quad<T>::size;
    int64_t t = (int64_t)blockIdx.x * TAKE_THREADS + threadIdx.x, at[TAKE_ARRAYS];
    if (t >= n) return;
    int64_t i = quotient(t, by_quads), j = (t - i * by_quads.by) * Q, neighbor = ADD ? i - 1 : i + 1;
    int count = job.run - j < Q ? (int)(job.run - j) : Q;
    Id key = keys[i];
    if (key == (Id)(job.groups * job.extent)) return;
    if (neighbor >= 0 && neighbor < job.positions && keys[neighbor] == key) return;
    offsets(job.walk, (int64_t)order[i], at);
    int64_t to = at[TAKE_B] + index_at(job, at[TAKE_INDEX]) * job.b_stride;
    T sum[Q];
    if (ADD)
        load_run(job.b, to, j, count, sum);
    else
        load_run(job.a, at[TAKE_A], j, count, sum);
    for (bool more = ADD; more; i += AHEAD) {
        Raw raw[AHEAD];
        bool same[AHEAD];
        TG_UNROLL
        for (int a = 0; a < AHEAD; a++) {
            same[a] = i + a < job.positions && keys[i + a] == key;
            if (!same[a]) continue;
            offsets(job.walk, (int64_t)order[i + a], at);
            int64_t from = at[TAKE_A] + j * job.a.step;
            fetch<Q>(raw[a], job.a.data, job.a.size, from, job.a.step, count, job.a.whole);
        }
        TG_UNROLL
        for (int a = 0; a < AHEAD; a++) {
            T x[Q];
            if (!same[a]) continue;
            decode<T>(raw[a], job.a.dtype, x);
            TG_UNROLL
            for (int k = 0; k < Q; k++) sum[k] = sum_of(sum[k], x[k]);
        }
        more = same[AHEAD - 1];
    }
    store_run(job.b, to, j, count, sum);
}

template <class T, class Id>
void launch_sorted(const TakeJob &job, bool add, const Id *keys, const Id *order, cudaStream_t stream) {
    int64_t quads = ceil_div(job.run, Quad<T>::size), n = job.positions * quads;
    unsigned grid = (unsigned)ceil_div(n, TAKE_THREADS);
    if (add)
        TG_LAUNCH((put_sorted<T, Id, true>), grid, TAKE_THREADS, 0, stream, job, keys, order, n, divider_of(quads));
    else
        TG_LAUNCH((put_sorted<T, Id, false>), grid, TAKE_THREADS, 0, stream, job, keys, order, n, divider_of(quads));
}

template <class Id> tg_status put_many(tg_ctx *ctx, const TakeJob &job, bool add) {
    int64_t n = job.positions, tiles = ceil_div(n, SORT_TILE), most = job.groups * job.extent;
    cudaStream_t stream = tg_cuda_of(ctx)->compute;
    tg_cuda_scratch scratch;
    tg_status status = tg_cuda_scratch_take(ctx, (size_t)(4 * n + SORT_DIGITS * tiles) * sizeof(Id), &scratch);
    if (status != TG_OK) return status;
    Id *at = (Id *)scratch.data;
    SortJob<Id> sort = {{at, at + n}, {at + 2 * n, at + 3 * n}, at + 4 * n, n, tiles};
    TG_LAUNCH(put_keys<Id>, (unsigned)ceil_div(n, TAKE_THREADS), TAKE_THREADS, 0, stream, job, sort.keys[0]);
    int in = sort_stably(sort, bits_of(most), stream);
    const Id *keys = sort.keys[in], *order = sort.order[in];
    TG_TAKE_TYPES(launch_sorted, job.compute, job, add, keys, order, stream);
    status = tg_cuda_launched(ctx, add ? "put_add, sorted" : "put, sorted");
    tg_cuda_scratch_give(ctx, &scratch);
    return status;
}

tg_status put_by(tg_ctx *ctx, const tg_array &dst, const tg_array &src, const tg_array &index, int dim, bool add,
                 int64_t *bad) {
    if (src.numel == 0) return TG_OK;
    TakeJob job = take_job(ctx, src, dst, index, dim, add ? TAKE_ADDS : TAKE_WRITES, bad != NULL);
    if (job.along > FEW) {
        bool wide = job.positions >> 31 || job.groups * job.extent >> 31;
        return wide ? put_many<uint64_t>(ctx, job, add) : put_many<uint32_t>(ctx, job, add);
    }
    TG_TAKE_TYPES(launch_few, job.compute, job, add, tg_cuda_of(ctx)->compute);
    return tg_cuda_launched(ctx, add ? "put_add" : "put");
}

} // namespace
} // namespace tg

extern "C" tg_status tg_cuda_put_add(tg_ctx *ctx, tg_array dst, tg_array src, tg_array index, int dim, int64_t *bad) {
    return tg::put_by(ctx, dst, src, index, dim, true, bad);
}

extern "C" tg_status tg_cuda_put(tg_ctx *ctx, tg_array dst, tg_array src, tg_array index, int dim, int64_t *bad) {
    return tg::put_by(ctx, dst, src, index, dim, false, bad);
}
