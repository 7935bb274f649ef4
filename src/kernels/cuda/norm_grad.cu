/* The CUDA device's norm_grad slot. With h = (x - mean) rstd and e = gy w, where w is 1 if there is no weight, the
 * gradient of a row of x is
 *     gx = rstd (e - mean(e) - h mean(e h)).
 * For RMS norm, h = x rstd, and the term mean(e) is left out.
 *
 * The weight's gradient is the sum of gy h over all rows, and the bias's is the sum of gy. The rows are divided into
 * units. The division depends only on the number of rows and on which gradients are wanted, so that the bits of the
 * sums are the same on every GPU. Each group of threads adds up the rows of a unit while it computes their gx. Then
 * column_sums adds up the sums of the units. If registers keep the rows, a group begins to load its next row before it
 * has finished the current one. Any of the gradients may be unwanted. */
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

/* More threads share a row than in other kernels, because each also keeps the weights and sums of its columns. */
constexpr Keeps KEEPS_GRAD = {8, 2, 1, 512};

/* One thread's columns: their weights, and their sums over a unit's rows. If registers keep the row (KEPT > 0), they
 * also keep the weights and the sums, and finish() stores the sums in the unit's row of gw and gb. If they do not (KEPT
 * 0), the weights are loaded at each use, and add() adds to the unit's row of gw and gb, which are in global memory. */
template <class T, int W, int D, int KEPT> struct Columns {
    Chunk<T, W, D> w[KEPT];
    T gw[KEPT][W], gb[KEPT][W];
    __device__ Columns(const Job &job, int64_t, const Group &g) {
        TG_UNROLL
        for (int i = 0; i < KEPT; i++) {
            int64_t j = ((int64_t)i * g.threads + g.thread) * W;
            if (job.w.data && j < g.n) fetch<T, W, D>(source(job.w, job.w.data), j, w[i]);
            TG_UNROLL
            for (int k = 0; k < W; k++) gw[i][k] = gb[i][k] = 0;
        }
    }
    __device__ void weights(const Job &job, int64_t, int i, T (&v)[W]) {
        veil<T, W, D>(w[i]);
        decode<T, W, D>(w[i], v);
        TG_UNROLL
        for (int k = 0; k < W; k++) v[k] = job.w.data ? v[k] : (T)1;
    }
    __device__ void add(int64_t, int k, int i, T to_w, T to_b) {
        gw[i][k] += to_w;
        gb[i][k] += to_b;
    }
    __device__ void finish(const Job &job, int64_t u, const Group &g) {
        store_sums(job.gw, gw, u * job.x.n, g);
        store_sums(job.gb, gb, u * job.x.n, g);
    }

  private:
    __device__ void store_sums(void *parts, const T (&sum)[KEPT][W], int64_t at, const Group &g) {
        TG_UNROLL
        for (int i = 0; i < KEPT; i++) {
            int64_t j = ((int64_t)i * g.threads + g.thread) * W;
            TG_UNROLL
            for (int k = 0; k < W; k++)
                if (parts && j < g.n) ((T *)parts)[at + j + k] = sum[i][k];
        }
    }
};

template <class T, int W, int D> struct Columns<T, W, D, 0> {
    T *gw, *gb;
    __device__ Columns(const Job &job, int64_t u, const Group &g) {
        gw = job.gw ? (T *)job.gw + u * job.x.n : nullptr;
        gb = job.gb ? (T *)job.gb + u * job.x.n : nullptr;
        for (int64_t j = (int64_t)g.thread * W; j < g.n; j += (int64_t)g.threads * W)
            for (int k = 0; k < W; k++) {
                if (gw) gw[j + k] = 0;
                if (gb) gb[j + k] = 0;
            }
    }
    __device__ void weights(const Job &job, int64_t j, int, T (&v)[W]) { chunk_or<T, D>(job.w, j, (T)1, v); }
    __device__ void add(int64_t j, int k, int, T to_w, T to_b) {
        if (gw) gw[j + k] += to_w;
        if (gb) gb[j + k] += to_b;
    }
    __device__ void finish(const Job &, int64_t, const Group &) {}
};

/* What the gradient of a row is computed from. The sources are x, gy, and, if the kernel adds to gx, the old gx. */
template <class T> struct Row {
    Source in[3];
    T mean, rstd;
};

template <class T> __device__ inline Row<T> row_of(const Job &job, int64_t r, bool exists) {
    Row<T> row = {};
    if (!exists) return row;
    row.in[0] = source(job.x, row_at(job.x, r)), row.in[1] = source(job.gy, row_at(job.gy, r));
    row.in[2] = source(job.gx, job.gx.data && job.add_x ? row_at(job.gx, r) : nullptr);
    if (job.mean.data && !job.rms) row.mean = row_value<T>(job.mean, r);
    row.rstd = row_value<T>(job.rstd, r);
    return row;
}

/* Adds row r, whose loads have started, to the sums of its columns, starts to load the row `next`, and computes gx of
 * row r if it is wanted. All threads of a block call this function together, because join() synchronizes the block. A
 * group without a row takes part with a row of length 0. */
template <class T, int W, int D, int KEPT>
__device__ inline void grad_row(const Job &job, const Group &g, Share<T, W, D, KEPT, 3> &share, const Row<T> &row,
                                int64_t r, const Row<T> &next, const Group &g_next, Columns<T, W, D, KEPT> &columns) {
    T sums[2] = {}, n = (T)job.x.n; /* the sum of e, and that of e h (the head of this file) */
    share.read(row.in, g, [&](int64_t j, T(&v)[3][W], int i) {
        T w[W];
        columns.weights(job, j, i, w);
        TG_UNROLL
        for (int k = 0; k < W; k++) {
            T h = (v[0][k] - row.mean) * row.rstd;
            columns.add(j, k, i, v[1][k] * h, v[1][k]);
            sums[0] += v[1][k] * w[k];
            sums[1] += v[1][k] * w[k] * h;
        }
    });
    share.start(next.in, g_next);
    if (!job.gx.data) return;
    join(g, sums, Sum());
    T mean_e = job.rms ? (T)0 : sums[0] / n, mean_eh = sums[1] / n;
    if (!g.n) return;
    char *gx = row_at(job.gx, r);
    share.again(row.in, g, [&](int64_t j, T(&v)[3][W], int i) {
        T w[W], out[W];
        columns.weights(job, j, i, w);
        TG_UNROLL
        for (int k = 0; k < W; k++) {
            out[k] = row.rstd * (v[1][k] * w[k] - mean_e - (v[0][k] - row.mean) * row.rstd * mean_eh);
            if (job.add_x) out[k] += v[2][k];
        }
        chunk_store<T, D>(job.gx, gx, j, out);
    });
}

/* Computes the gradients of the rows of unit u, which may not exist. All units run `per` iterations, also those with
 * fewer rows, because the threads of a block synchronize in each. */
template <class T, int W, int D, int KEPT>
__device__ inline void grad_unit(const Plan &p, const Job &job, T *shared, int64_t u) {
    Group unit = group_of(p, shared, u < job.units ? job.x.n : 0), none = group_of(p, shared, 0);
    Columns<T, W, D, KEPT> columns(job, u, unit);
    Share<T, W, D, KEPT, 3> share(cache_of(p, shared), job.x.n);
    int64_t first = u * job.per, last = job.x.count - 1;
    bool some = u < job.units && first <= last;
    Row<T> row = row_of<T>(job, first, some);
    share.start(row.in, some ? unit : none);
    for (int64_t i = 0; i < job.per; i++) {
        bool here = some && first + i <= last, more = some && i + 1 < job.per && first + i < last;
        Row<T> next = row_of<T>(job, first + i + 1, more);
        grad_row<T, W, D, KEPT>(job, here ? unit : none, share, row, first + i, next, more ? unit : none,
                                columns);
        row = next;
    }
    columns.finish(job, u, unit);
}

template <class T, int W, int D, int KEPT>
__global__ void __launch_bounds__(KEEPS_GRAD.threads) norm_grad(Plan p, Job job) {
    TG_DYN_SHARED(T, shared);
    for (int64_t b = blockIdx.x; b * p.groups < job.units; b += gridDim.x)
        grad_unit<T, W, D, KEPT>(p, job, shared, unit_of(p, b));
}

/* Divides the rows into units. `columns` says whether the gradient of the weight or of the bias is wanted. If it is
 * not, a unit is one row. If it is, a unit has 8 rows or more, except that the last may have fewer. So the sums take
 * little memory compared with the rows. And there are at most 1024 units, about as many as run at once. Without any
 * rows there is still one unit: it writes zeros, the sum over no rows. */
void cut_into_units(Job *job, bool columns) {
    const int64_t least = 8, most_units = 1024, count = job->x.count, per = (count + most_units - 1) / most_units;
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
    const Rows *rows[] = {&job->x, &job->w, &job->gy, &job->gx};
    Plan p = plan_rows<T>(job->units, rows, KEEPS_GRAD, 3, true);
    if constexpr (sizeof(T) == 8)
        TG_LAUNCH_DOUBLE_ROWS(norm_grad, KEEPS_GRAD, ctx, p, *job);
    else
        TG_LAUNCH_FLOAT_ROWS(norm_grad, KEEPS_GRAD, ctx, p, *job);
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
