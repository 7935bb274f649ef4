/* The CUDA device's scan slot. A row is cut into chunks of SCAN_CHUNK elements, one for each block, and a chunk into
 * tiles. A thread scans SCAN_EACH adjacent elements of a tile; then the totals of the threads are scanned. If a row has
 * several chunks, there are three launches: the first computes the totals of the chunks, the second scans these totals,
 * and the third scans the elements. Instead, a thread scans a whole row if rows are short, or if many rows are adjacent
 * in memory and a row is at most one chunk. The choice depends on shapes and strides alone. If x or y is a float, sums
 * and products are computed in float64, otherwise in int64. */
#include "kernels/cuda/slots.h"
#include "kernels/cuda/vector.h"
#include "kernels/cuda/walk.h"

namespace tg {
namespace {

enum { SCAN_THREADS = 256, SCAN_EACH = 4, SCAN_TILE = SCAN_THREADS * SCAN_EACH, SCAN_CHUNK = 8 * SCAN_TILE };
enum { SCAN_SHORT = 32, SCAN_ADJACENT = 32 }; /* the longest short row; the fewest rows that count as many */
enum { SCAN_X, SCAN_Y, SCAN_ARRAYS };

struct ScanJob {
    char *x, *y;
    int x_dtype, y_dtype;
    Walk<SCAN_ARRAYS> walk; /* of the rows */
    int64_t rows, n, x_step, y_step;
    bool prod, back, add;
    Divider chunks; /* number of chunks of a row */
    int64_t chunk;  /* elements of a chunk */
};

template <class T> __device__ inline T joined(const ScanJob &job, T a, T b) {
    return job.prod ? multiplied(a, b) : added(a, b);
}
template <> __device__ inline int64_t joined(const ScanJob &job, int64_t a, int64_t b) {
    return job.prod ? product_of(a, b) : sum_of(a, b);
}

/* Load and store element k of a row, counted in the order of the scan. */
template <class T> __device__ inline T scan_load(const ScanJob &job, const int64_t *at, int64_t k) {
    int64_t j = job.back ? job.n - 1 - k : k;
    return load<T>(job.x, job.x_dtype, at[SCAN_X] + j * job.x_step);
}

template <class T> __device__ inline void scan_store(const ScanJob &job, const int64_t *at, int64_t k, T v) {
    int64_t to = at[SCAN_Y] + (job.back ? job.n - 1 - k : k) * job.y_step;
    store<T>(job.y, job.y_dtype, to, job.add ? load<T>(job.y, job.y_dtype, to) + v : v);
}

template <class T> __global__ void __launch_bounds__(SCAN_THREADS) scan_rows(ScanJob job) {
    int64_t r = (int64_t)blockIdx.x * SCAN_THREADS + threadIdx.x, at[SCAN_ARRAYS];
    if (r >= job.rows) return;
    offsets(job.walk, r, at);
    T so_far = (T)job.prod;
    for (int64_t k = 0; k < job.n; k++) {
        so_far = joined(job, so_far, scan_load<T>(job, at, k));
        scan_store(job, at, k, so_far);
    }
}

/* Returns the total of the threads before this one; *all is the total of all threads. */
template <class T> __device__ inline T scan_threads(const ScanJob &job, T mine, T *all) {
    __shared__ T sums[2][SCAN_THREADS];
    int i = threadIdx.x, now = 0;
    sums[0][i] = mine;
    __syncthreads();
    for (int step = 1; step < SCAN_THREADS; step *= 2) {
        sums[!now][i] = i >= step ? joined(job, sums[now][i - step], sums[now][i]) : sums[now][i];
        now = !now;
        __syncthreads();
    }
    T before = i ? sums[now][i - 1] : (T)job.prod;
    *all = sums[now][SCAN_THREADS - 1];
    __syncthreads();
    return before;
}

/* Each block scans one chunk. If totals is not NULL, the block writes only the chunk's total, to totals. Otherwise it
 * writes y; carries then holds, for each chunk, the total of its row up to and including that chunk, or is NULL if rows
 * have one chunk. */
template <class T>
__global__ void __launch_bounds__(SCAN_THREADS) scan_chunks(ScanJob job, T *totals, const T *carries) {
    int64_t r = quotient((int64_t)blockIdx.x, job.chunks), c = (int64_t)blockIdx.x - r * job.chunks.by;
    int64_t first = c * job.chunk, last = first + job.chunk < job.n ? first + job.chunk : job.n, at[SCAN_ARRAYS];
    T so_far = carries && c ? carries[(int64_t)blockIdx.x - 1] : (T)job.prod;
    offsets(job.walk, r, at);
    for (int64_t tile = first; tile < last; tile += SCAN_TILE) {
        int64_t k = tile + (int64_t)threadIdx.x * SCAN_EACH;
        T v[SCAN_EACH], all;
        TG_UNROLL
        for (int e = 0; e < SCAN_EACH; e++) {
            v[e] = k + e < last ? scan_load<T>(job, at, k + e) : (T)job.prod;
            if (e) v[e] = joined(job, v[e - 1], v[e]);
        }
        T before = joined(job, so_far, scan_threads(job, v[SCAN_EACH - 1], &all));
        so_far = joined(job, so_far, all);
        TG_UNROLL
        for (int e = 0; e < SCAN_EACH; e++)
            if (!totals && k + e < last) scan_store(job, at, k + e, joined(job, before, v[e]));
    }
    if (totals && threadIdx.x == 0) totals[blockIdx.x] = so_far;
}

/* Returns the job that scans the totals of chunks in place: one row of totals for each row of x. */
template <class T> ScanJob totals_job(const ScanJob &job, T *totals, int dtype) {
    ScanJob t = {};
    t.x = t.y = (char *)totals;
    t.x_dtype = t.y_dtype = dtype;
    t.rows = job.rows;
    t.chunk = t.n = job.chunks.by;
    t.x_step = t.y_step = 1;
    t.prod = job.prod;
    t.chunks = divider_of(1);
    t.walk.ndim = 1;
    t.walk.by[0] = divider_of(job.rows);
    for (int k = 0; k < SCAN_ARRAYS; k++) t.walk.stride[k][0] = job.chunks.by;
    return t;
}

template <class T> tg_status launch_scan(tg_ctx *ctx, const ScanJob &job, bool by_rows, int dtype) {
    cudaStream_t stream = tg_cuda_of(ctx)->compute;
    unsigned blocks = (unsigned)(by_rows ? ceil_div(job.rows, SCAN_THREADS) : job.rows * job.chunks.by);
    tg_cuda_scratch scratch = {};
    if (by_rows) {
        TG_LAUNCH(scan_rows<T>, blocks, SCAN_THREADS, 0, stream, job);
        return tg_cuda_launched(ctx, "scan, by rows");
    }
    if (job.chunks.by > 1) {
        tg_status status = tg_cuda_scratch_take(ctx, (size_t)blocks * sizeof(T), &scratch);
        if (status != TG_OK) return status;
        T *totals = (T *)scratch.data, *none = NULL;
        ScanJob t = totals_job(job, totals, dtype);
        TG_LAUNCH(scan_chunks<T>, blocks, SCAN_THREADS, 0, stream, job, totals, none);
        TG_LAUNCH(scan_chunks<T>, (unsigned)job.rows, SCAN_THREADS, 0, stream, t, none, none);
    }
    T *none = NULL;
    const T *carries = (const T *)scratch.data;
    TG_LAUNCH(scan_chunks<T>, blocks, SCAN_THREADS, 0, stream, job, none, carries);
    tg_status status = tg_cuda_launched(ctx, "scan");
    tg_cuda_scratch_give(ctx, &scratch);
    return status;
}

int64_t distance(int64_t step) { return step < 0 ? -step : step; }

} // namespace
} // namespace tg

extern "C" tg_status tg_cuda_scan(tg_ctx *ctx, tg_reduction kind, tg_array y, tg_array x, bool back, bool add) {
    using namespace tg;
    if (x.numel == 0) return TG_OK;
    int last = x.ndim - 1;
    Dims<SCAN_ARRAYS> rows = {};
    rows.count = 1;
    for (int d = 0; d < last; d++) {
        int64_t stride[SCAN_ARRAYS] = {x.stride[d], y.stride[d]};
        push_dim(rows, x.shape[d], stride);
    }
    merge_dims(rows);
    ScanJob job = {};
    job.x = (char *)x.data, job.y = (char *)y.data;
    job.x_dtype = x.dtype, job.y_dtype = y.dtype;
    job.walk = walk_of(rows, rows.n);
    job.rows = rows.count, job.n = x.shape[last];
    job.x_step = x.stride[last], job.y_step = y.stride[last];
    job.prod = kind == TG_PROD, job.back = back, job.add = add;
    job.chunk = SCAN_CHUNK;
    job.chunks = divider_of(ceil_div(job.n, SCAN_CHUNK));
    bool adjacent = rows.n && rows.shape[rows.n - 1] >= SCAN_ADJACENT &&
                    distance(rows.stride[SCAN_Y][rows.n - 1]) < distance(job.y_step);
    bool by_rows = job.n <= SCAN_SHORT || (adjacent && job.n <= SCAN_CHUNK);
    bool real = is_real(x.dtype) || is_real(y.dtype);
    return real ? launch_scan<double>(ctx, job, by_rows, TG_F64) : launch_scan<int64_t>(ctx, job, by_rows, TG_I64);
}
