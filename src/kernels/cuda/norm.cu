/* The CUDA device's norm slot: layer norm and RMS norm of rows. */
#include "kernels/cuda/rows.h"
#include "kernels/cuda/slots.h"
#include "kernels/scalar.h"

using namespace tg;

namespace {

struct Job {
    Rows x, w, b, y, mean, rstd;
    double eps;
    bool rms;
};

/* Computes the mean of a row and 1 / its standard deviation. The first pass computes the mean. The second pass adds
 * squared differences from it; the mean of the squares minus the square of the mean would lose digits. The second pass
 * also adds the differences themselves. Their mean is a rounding error of the first mean and corrects it, so that the
 * mean of equal elements is exactly their value. RMS norm takes 0 for the mean. */
template <class T, int W, int D, int KEPT>
__device__ inline void moments(Share<T, W, D, KEPT, 1> &row, const Source (&x)[1], const Job &job, const Group &g,
                               T *mean, T *rstd) {
    T sum = 0, moment[2] = {}, n = (T)job.x.n;
    row.start(x, g);
    row.read(x, g, [&](int64_t, T(&v)[1][W], int) {
        TG_UNROLL
        for (int i = 0; i < W; i++) sum += v[0][i];
    });
    T m = job.rms ? (T)0 : joined(g, sum, Sum()) / n;
    row.again(x, g, [&](int64_t, T(&v)[1][W], int) {
        TG_UNROLL
        for (int i = 0; i < W; i++) {
            moment[0] += v[0][i] - m;
            moment[1] += (v[0][i] - m) * (v[0][i] - m);
        }
    });
    join(g, moment, Sum());
    T rest = job.rms ? (T)0 : moment[0] / n, squares = moment[1] / n - rest * rest;
    *mean = m + rest;
    *rstd = 1 / tg_m_sqrt((squares < 0 ? (T)0 : squares) + (T)job.eps);
}

template <class T, int W, int D, int KEPT>
__device__ inline void norm_row(const Job &job, const Group &g, T *cache, int64_t r, bool row_exists) {
    Share<T, W, D, KEPT, 1> row(cache, job.x.n);
    Source x[1] = {source(job.x, row_at(job.x, r))};
    char *y = row_at(job.y, r);
    T mean, rstd;
    moments<T, W, D, KEPT>(row, x, job, g, &mean, &rstd);
    if (row_exists && g.thread == 0) {
        if (job.mean.data && !job.rms) row_set<T>(job.mean, r, mean);
        if (job.rstd.data) row_set<T>(job.rstd, r, rstd);
    }
    row.again(x, g, [&](int64_t j, T(&v)[1][W], int) {
        T out[W], w[W], b[W];
        chunk_or<T, D>(job.w, j, (T)1, w);
        chunk_or<T, D>(job.b, j, (T)0, b);
        TG_UNROLL
        for (int i = 0; i < W; i++) out[i] = (v[0][i] - mean) * rstd * w[i] + b[i];
        chunk_store<T, D>(job.y, y, j, out);
    });
}

template <class T, int W, int D, int KEPT>
TG_ROW_KERNEL norm(Plan p, Job job) {
    TG_DYN_SHARED(T, shared);
    for (int64_t b = blockIdx.x; b * p.groups < job.x.count; b += gridDim.x) {
        int64_t r = unit_of(p, b);
        bool row_exists = r < job.x.count;
        norm_row<T, W, D, KEPT>(job, group_of(p, shared, row_exists ? job.x.n : 0), cache_of(p, shared), r, row_exists);
    }
}

} // namespace

tg_status tg_cuda_norm(tg_ctx *ctx, const tg_norm_args *a) {
    Job job = {rows_of(a->x, 1),    rows_of(a->w, 1),    rows_of(a->b, 1), rows_of(a->y, 1),
               rows_of(a->mean, 0), rows_of(a->rstd, 0), a->eps,           a->rms};
    if (!job.x.count) return TG_OK;
    const Rows *rows[] = {&job.x, &job.w, &job.b, &job.y};
    if (a->x.dtype == TG_F64) {
        Plan p = plan_rows<double>(job.x.count, rows, KEEPS_ROW, 1, true);
        TG_LAUNCH_DOUBLE_ROWS(norm, KEEPS_ROW, ctx, p, job);
    } else {
        Plan p = plan_rows<float>(job.x.count, rows, KEEPS_ROW, 1, true);
        TG_LAUNCH_FLOAT_ROWS(norm, KEEPS_ROW, ctx, p, job);
    }
    return tg_cuda_launched(ctx, "norm");
}
