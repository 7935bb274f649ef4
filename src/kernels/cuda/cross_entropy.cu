/* The CUDA device's slots cross_entropy and cross_entropy_grad. Forward saves each row's greatest logit and sum of
 * exponentials. The gradient needs nothing else from forward. */
#include "kernels/cuda/lse.h"
#include "kernels/cuda/slots.h"

using namespace tg;

namespace {

struct Job {
    Rows logits, target, loss, top, mass, gloss, glogits;
    int64_t ignored, first, classes; /* the target that does not count; the class of column 0; number of all classes */
    double smoothing;
    bool shard, add;
    tg_cuda_fault fault;
};

/* Returns whether row r counts: its target is a class, and not the ignored one. *column receives the column of that
 * class. If logits has no such column, the class is in another shard. */
__device__ inline bool counts(const Job &job, int64_t r, int64_t *column) {
    int64_t t = *(const int64_t *)row_at(job.target, r);
    *column = t - job.first;
    return t != job.ignored && t >= 0 && t < job.classes;
}

/* Writes to the error word if the target of row r is neither a class nor the ignored one. */
__device__ inline void report_bad(const Job &job, int64_t r) {
    int64_t t = *(const int64_t *)row_at(job.target, r);
    if (t != job.ignored && (t < 0 || t >= job.classes))
        atomicMin(job.fault.word, job.fault.call << 40 | (unsigned long long)r);
}

/* Returns the loss of row r. z holds the greatest logit of the row, and the sum of the exponentials relative to it
 * (lse.h). `sum` is the sum of logit - z.ref over the row; only smoothing uses it. If the logits are a shard of the
 * vocabulary, returns the shard's part of the loss (tg_cross_entropy_args). In that part, logits are measured from
 * z.ref, the greatest logit of this shard. The part lacks the logarithm of the sum of exponentials: the caller adds it
 * when it has the sums of all shards. */
template <class T> __device__ inline T row_loss(const Job &job, int64_t r, Lse<T> z, T sum) {
    int64_t t;
    T s = (T)job.smoothing, from = job.shard ? (T)0 : tg_m_log(z.sum), loss = 0;
    if (!counts(job, r, &t)) return 0;
    if (t >= 0 && t < job.logits.n)
        loss = (1 - s) * (from - (load<T>(row_at(job.logits, r), job.logits.dtype, t * job.logits.stride) - z.ref));
    return s == 0 ? loss : loss + s * (from - sum / (T)job.classes);
}

template <class T, int W, int D, int KEPT>
__device__ inline void loss_row(const Job &job, const Group &g, int64_t r, bool row_exists) {
    Share<T, W, D, KEPT, 1> row(nullptr, job.logits.n);
    Source x[1] = {source(job.logits, row_at(job.logits, r))};
    Lse<T> z = lse_of_row(row, x, g);
    T sum = 0;
    if (job.smoothing != 0) {
        row.again(x, g, [&](int64_t, T(&v)[1][W], int) {
            TG_UNROLL
            for (int i = 0; i < W; i++) sum += v[0][i] - z.ref;
        });
        sum = joined(g, sum, Sum());
    }
    if (!row_exists || g.thread != 0) return;
    report_bad(job, r);
    row_set<T>(job.top, r, z.sum == 0 ? -(T)INFINITY : z.ref);
    row_set<T>(job.mass, r, z.sum);
    row_set<T>(job.loss, r, row_loss<T>(job, r, z, sum));
}

template <class T, int W, int D, int KEPT>
TG_ROW_KERNEL cross_entropy(Plan p, Job job) {
    TG_DYN_SHARED(T, shared);
    for (int64_t b = blockIdx.x; b * p.groups < job.logits.count; b += gridDim.x) {
        int64_t r = unit_of(p, b);
        bool row_exists = r < job.logits.count;
        loss_row<T, W, D, KEPT>(job, group_of(p, shared, row_exists ? job.logits.n : 0), r, row_exists);
    }
}

/* Computes glogits (+)= (softmax - (1 - s) onehot - s / classes) gloss, with smoothing s. glogits may be the memory of
 * logits, so each thread writes only elements that it has read itself and that no other thread reads. */
template <class T, int W, int D, int KEPT> __device__ inline void grad_row(const Job &job, const Group &g, int64_t r) {
    int64_t t;
    bool some = counts(job, r, &t);
    char *out = row_at(job.glogits, r);
    T d = some ? row_value<T>(job.gloss, r) : (T)0;
    T top = row_value<T>(job.top, r), scale = 1 / row_value<T>(job.mass, r);
    T uniform = (T)job.smoothing / (T)job.classes, hit = (1 - (T)job.smoothing) * d;
    Share<T, W, D, KEPT, 1> row(nullptr, job.logits.n);
    Source x[1] = {source(job.logits, row_at(job.logits, r))};
    row.start(x, g);
    row.read(x, g, [&](int64_t j, T(&v)[1][W], int) {
        T y[W];
        TG_UNROLL
        for (int i = 0; i < W; i++) y[i] = some ? (exp_of<T, D>(v[0][i] - top) * scale - uniform) * d : (T)0;
        if (some && t >= j && t < j + W) {
            TG_UNROLL
            for (int i = 0; i < W; i++) y[i] -= t == j + i ? hit : (T)0;
        }
        chunk_put<T, D>(job.glogits, out, j, job.add, y);
    });
}

template <class T, int W, int D, int KEPT>
TG_ROW_KERNEL cross_entropy_grad(Plan p, Job job) {
    for (int64_t b = blockIdx.x; b * p.groups < job.logits.count; b += gridDim.x) {
        int64_t r = unit_of(p, b);
        if (r < job.logits.count) grad_row<T, W, D, KEPT>(job, group_of(p, nullptr, job.logits.n), r);
    }
}

Job job_of(const tg_cross_entropy_args *a) {
    Job job = {};
    job.logits = rows_of(a->logits, 1), job.glogits = rows_of(a->glogits, 1);
    job.target = rows_of(a->target, 0), job.loss = rows_of(a->loss, 0);
    job.top = rows_of(a->top, 0), job.mass = rows_of(a->mass, 0), job.gloss = rows_of(a->gloss, 0);
    job.ignored = a->ignore_index, job.first = a->first, job.smoothing = a->smoothing;
    job.classes = a->classes ? a->classes : a->logits.shape[1];
    job.shard = a->classes != 0, job.add = a->add;
    return job;
}

} // namespace

tg_status tg_cuda_cross_entropy(tg_ctx *ctx, const tg_cross_entropy_args *a) {
    Job job = job_of(a);
    if (!job.logits.count) return TG_OK;
    job.fault = tg_cuda_fault_for(ctx, "cross_entropy", 1);
    const Rows *rows[] = {&job.logits};
    if (a->logits.dtype == TG_F64) {
        Plan p = plan_rows<double>(job.logits.count, rows, KEEPS_ROW, 1, false);
        TG_LAUNCH_DOUBLE_ROWS(cross_entropy, KEEPS_ROW, ctx, p, job);
    } else {
        Plan p = plan_rows<float>(job.logits.count, rows, KEEPS_ROW, 1, false);
        TG_LAUNCH_FLOAT_ROWS(cross_entropy, KEEPS_ROW, ctx, p, job);
    }
    return tg_cuda_launched(ctx, "cross_entropy");
}

tg_status tg_cuda_cross_entropy_grad(tg_ctx *ctx, const tg_cross_entropy_args *a) {
    Job job = job_of(a);
    if (!a->logits.numel) return TG_OK;
    const Rows *rows[] = {&job.logits, &job.glogits};
    if (a->logits.dtype == TG_F64) {
        Plan p = plan_rows<double>(job.logits.count, rows, KEEPS_ROW, 1, false);
        TG_LAUNCH_DOUBLE_ROWS(cross_entropy_grad, KEEPS_ROW, ctx, p, job);
    } else {
        Plan p = plan_rows<float>(job.logits.count, rows, KEEPS_ROW, 1, false);
        TG_LAUNCH_FLOAT_ROWS(cross_entropy_grad, KEEPS_ROW, ctx, p, job);
    }
    return tg_cuda_launched(ctx, "cross_entropy_grad");
}
