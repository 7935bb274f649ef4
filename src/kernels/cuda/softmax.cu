/* The CUDA device's slots softmax and softmax_grad, for softmax and log-softmax of rows. */
#include "kernels/cuda/lse.h"
#include "kernels/cuda/slots.h"

using namespace tg;

namespace {

struct Job {
    Rows y, x, gy, gx; /* softmax uses y and x; its gradient uses y, gy and gx */
    bool log, add;
};

template <class T, int W, int D, int KEPT>
__device__ void softmax_row(const Job &job, const Group &g, T *cache, int64_t r) {
    Share<T, W, D, KEPT, 1> row(cache, job.x.n);
    Source x[1] = {source(job.x, row_at(job.x, r))};
    char *y = row_at(job.y, r);
    Lse<T> s = lse_of_row(row, x, g);
    T z = tg_m_log(s.sum), scale = 1 / s.sum;
    row.again(x, g, [&](int64_t j, T(&v)[1][W], int) {
        T out[W];
        TG_UNROLL
        for (int i = 0; i < W; i++) out[i] = job.log ? (v[0][i] - s.ref) - z : exp_of<T, D>(v[0][i] - s.ref) * scale;
        chunk_store<T, D>(job.y, y, j, out);
    });
}

template <class T, int W, int D, int KEPT>
TG_ROW_KERNEL softmax(Plan p, Job job) {
    TG_DYN_SHARED(T, shared);
    for (int64_t b = blockIdx.x; b * p.groups < job.x.count; b += gridDim.x) {
        int64_t r = unit_of(p, b);
        softmax_row<T, W, D, KEPT>(job, group_of(p, shared, r < job.x.count ? job.x.n : 0), cache_of(p, shared), r);
    }
}

/* Computes gx (+)= y (gy - sum(gy y)), or for log-softmax gx (+)= gy - exp(y) sum(gy). */
template <class T, int W, int D, int KEPT>
__device__ void grad_row(const Job &job, const Group &g, T *cache, int64_t r) {
    Share<T, W, D, KEPT, 2> row(cache, job.y.n);
    Source in[2] = {source(job.gy, row_at(job.gy, r)), source(job.y, row_at(job.y, r))};
    char *gx = row_at(job.gx, r);
    T sum = 0;
    row.start(in, g);
    row.read(in, g, [&](int64_t, T(&v)[2][W], int) {
        TG_UNROLL
        for (int i = 0; i < W; i++) sum += job.log ? v[0][i] : v[0][i] * v[1][i];
    });
    sum = joined(g, sum, Sum());
    row.again(in, g, [&](int64_t j, T(&v)[2][W], int) {
        T out[W];
        TG_UNROLL
        for (int i = 0; i < W; i++)
            out[i] = job.log ? v[0][i] - exp_of<T, D>(v[1][i]) * sum : v[1][i] * (v[0][i] - sum);
        chunk_put<T, D>(job.gx, gx, j, job.add, out);
    });
}

template <class T, int W, int D, int KEPT>
TG_ROW_KERNEL softmax_grad(Plan p, Job job) {
    TG_DYN_SHARED(T, shared);
    for (int64_t b = blockIdx.x; b * p.groups < job.y.count; b += gridDim.x) {
        int64_t r = unit_of(p, b);
        grad_row<T, W, D, KEPT>(job, group_of(p, shared, r < job.y.count ? job.y.n : 0), cache_of(p, shared), r);
    }
}

} // namespace

tg_status tg_cuda_softmax(tg_ctx *ctx, tg_array y, tg_array x, bool log) {
    Job job = {};
    job.y = rows_of(y, 1), job.x = rows_of(x, 1), job.log = log;
    if (!x.numel) return TG_OK;
    const Rows *rows[] = {&job.x, &job.y};
    if (x.dtype == TG_F64) {
        Plan p = plan_rows<double>(job.x.count, rows, KEEPS_ROW, 1, true);
        TG_LAUNCH_DOUBLE_ROWS(softmax, KEEPS_ROW, ctx, p, job);
    } else {
        Plan p = plan_rows<float>(job.x.count, rows, KEEPS_ROW, 1, true);
        TG_LAUNCH_FLOAT_ROWS(softmax, KEEPS_ROW, ctx, p, job);
    }
    return tg_cuda_launched(ctx, "softmax");
}

tg_status tg_cuda_softmax_grad(tg_ctx *ctx, tg_array gx, tg_array gy, tg_array y, bool log, bool add) {
    Job job = {};
    job.y = rows_of(y, 1), job.gy = rows_of(gy, 1), job.gx = rows_of(gx, 1), job.log = log, job.add = add;
    if (!y.numel) return TG_OK;
    const Rows *rows[] = {&job.y, &job.gy, &job.gx};
    if (y.dtype == TG_F64) {
        Plan p = plan_rows<double>(job.y.count, rows, KEEPS_ROW, 2, true);
        TG_LAUNCH_DOUBLE_ROWS(softmax_grad, KEEPS_ROW, ctx, p, job);
    } else {
        Plan p = plan_rows<float>(job.y.count, rows, KEEPS_ROW, 2, true);
        TG_LAUNCH_FLOAT_ROWS(softmax_grad, KEEPS_ROW, ctx, p, job);
    }
    return tg_cuda_launched(ctx, "softmax_grad");
}
