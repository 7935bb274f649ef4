/* The CUDA device's norm_grad slot. With h = (x - mean) rstd and g = gy w, the gradient of a row is
 *     gx = rstd (g - mean(g) - h mean(g h)), for RMS norm without mean(g).
 *
 * The weight's gradient is the sum of gy h over all rows, and the bias's is the sum of gy. Each group of threads adds
 * up the rows of a unit while it computes gx, and column_sums adds up the units. The shape alone determines the
 * units. */
#include "kernels/cuda/columns.h"
#include "kernels/cuda/slots.h"

using namespace tg;

namespace {

struct Job {
    Rows x, w, mean, rstd, gy, gx;
    bool rms, add_x;
    int64_t per, units; /* rows of a unit; number of units */
    void *gw, *gb;      /* [units, n] of the compute type; NULL: not wanted */
};

/* One thread's sums of its columns over a unit's rows. If registers keep the row they also keep the sums, which
 * finish() stores; otherwise the sums are in the unit's part of global memory all the time. */
template <class T, int W, int KEPT> struct Totals {
    T *to, sum[KEPT][W];
    __device__ Totals(void *parts, int64_t at, const Group &) : to(parts ? (T *)parts + at : nullptr) {
        TG_UNROLL
        for (int i = 0; i < KEPT * W; i++) sum[i / W][i % W] = 0;
    }
    __device__ void add(int64_t, int w, int i, T v) { sum[i][w] += v; }
    __device__ void finish(const Group &g) {
        TG_UNROLL
        for (int i = 0; i < KEPT; i++) {
            int64_t j = ((int64_t)i * g.threads + g.thread) * W;
            TG_UNROLL
            for (int w = 0; w < W; w++)
                if (to && j < g.n) to[j + w] = sum[i][w];
        }
    }
};

template <class T, int W> struct Totals<T, W, 0> {
    T *to;
    __device__ Totals(void *parts, int64_t at, const Group &g) : to(parts ? (T *)parts + at : nullptr) {
        for (int64_t j = (int64_t)g.thread * W; to && j < g.n; j += (int64_t)g.threads * W)
            for (int w = 0; w < W; w++) to[j + w] = 0;
    }
    __device__ void add(int64_t j, int w, int, T v) {
        if (to) to[j + w] += v;
    }
    __device__ void finish(const Group &) {}
};

template <class T, int W, int KEPT>
__device__ inline void grad_row(const Job &job, const Group &g, T *cache, int64_t r, Totals<T, W, KEPT> &gw,
                                Totals<T, W, KEPT> &gb) {
    Share<T, W, KEPT, 2> row(cache, job.x.n);
    Sources<2> in = {{&job.x, &job.gy}, {row_at(job.x, r), row_at(job.gy, r)}};
    T mean = g.n && !job.rms ? row_value<T>(job.mean, r) : (T)0, rstd = g.n ? row_value<T>(job.rstd, r) : (T)0;
    T sum = 0, dot = 0, n = (T)job.x.n;
    row.read(in, g, [&](int64_t j, T(&v)[2][W], int i) {
        T w[W];
        chunk_or<T>(job.w, j, (T)1, w);
        TG_UNROLL
        for (int k = 0; k < W; k++) {
            T h = (v[0][k] - mean) * rstd;
            gw.add(j, k, i, v[1][k] * h);
            gb.add(j, k, i, v[1][k]);
            sum += v[1][k] * w[k];
            dot += v[1][k] * w[k] * h;
        }
    });
    if (!job.gx.data) return;
    T mean_g = job.rms ? (T)0 : joined(g, sum, Sum()) / n, mean_gh = joined(g, dot, Sum()) / n;
    char *gx = row_at(job.gx, r);
    row.again(in, g, [&](int64_t j, T(&v)[2][W], int) {
        T w[W], out[W];
        chunk_or<T>(job.w, j, (T)1, w);
        TG_UNROLL
        for (int k = 0; k < W; k++) out[k] = rstd * (v[1][k] * w[k] - mean_g - (v[0][k] - mean) * rstd * mean_gh);
        chunk_put<T>(job.gx, gx, j, job.add_x, out);
    });
}

template <class T, int W, int KEPT> __global__ void norm_grad(Plan p, Job job) {
    TG_DYN_SHARED(T, shared);
    for (int64_t b = blockIdx.x; b * p.groups < job.units; b += gridDim.x) {
        int64_t u = unit_of(p, b);
        Group unit = group_of(p, shared, u < job.units ? job.x.n : 0);
        Totals<T, W, KEPT> gw(job.gw, u * job.x.n, unit), gb(job.gb, u * job.x.n, unit);
        for (int64_t i = 0; i < job.per; i++) {
            int64_t r = u * job.per + i;
            Group g = group_of(p, shared, r < job.x.count ? unit.n : 0);
            grad_row<T, W, KEPT>(job, g, cache_of(p, shared), r, gw, gb);
        }
        gw.finish(unit);
        gb.finish(unit);
    }
}

/* columns: the gradient of the weight or the bias is wanted. Then a unit has at least 8 rows, so that its sums take
 * little memory compared with its rows, and there are at most 2048 units. There is one unit even without rows: it
 * writes the zeros that are their sum. Without columns a unit is a row. */
void cut_into_units(Job *job, bool columns) {
    const int64_t least = 8, most_units = 2048, count = job->x.count, per = (count + most_units - 1) / most_units;
    job->per = !columns ? 1 : per > least ? per : least;
    job->units = (count + job->per - 1) / job->per;
    if (columns && !job->units) job->units = 1;
}

template <class T> tg_status run(tg_ctx *ctx, const tg_norm_args *a, Job *job) {
    size_t part = (size_t)(job->units * job->x.n) * sizeof(T);
    tg_cuda_scratch s;
    tg_status status = tg_cuda_scratch_take(ctx, part * ((a->gw.data != NULL) + (a->gb.data != NULL)), &s);
    if (status != TG_OK) return status;
    job->gw = a->gw.data ? s.data : NULL;
    job->gb = a->gb.data ? (char *)s.data + (a->gw.data ? part : 0) : NULL;
    bool wide = wide_rows(job->x) && wide_rows(job->w) && wide_rows(job->gy) && wide_rows(job->gx);
    Plan p = plan_rows(job->units, job->x.n, wide, sizeof(T), 2);
    TG_LAUNCH_ROWS(norm_grad, T, ctx, p, *job);
    status = tg_cuda_launched(ctx, "norm_grad");
    if (status == TG_OK && job->gw) status = sum_columns<T>(ctx, a->gw, job->gw, job->units, a->add_w);
    if (status == TG_OK && job->gb) status = sum_columns<T>(ctx, a->gb, job->gb, job->units, a->add_b);
    tg_cuda_scratch_give(ctx, &s);
    return status;
}

} // namespace

tg_status tg_cuda_norm_grad(tg_ctx *ctx, const tg_norm_args *a) {
    Job job = {};
    job.x = rows_of(a->x, 1), job.w = rows_of(a->w, 1), job.gy = rows_of(a->gy, 1), job.gx = rows_of(a->gx, 1);
    job.mean = rows_of(a->mean, 0), job.rstd = rows_of(a->rstd, 0);
    job.rms = a->rms, job.add_x = a->add_x;
    cut_into_units(&job, a->gw.data || a->gb.data);
    if (!job.units || !job.x.n) return TG_OK;
    return a->x.dtype == TG_F64 ? run<double>(ctx, a, &job) : run<float>(ctx, a, &job);
}
