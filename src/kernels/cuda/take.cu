/* The CUDA device's take slot, and take_job, which it shares with put_add and put. */
#include "kernels/cuda/take.h"

#include "kernels/cuda/slots.h"
#include "kernels/index_position.h"
#include "kernels/order.h"

namespace tg {
namespace {

/* Chooses the compute type and the kernels' dtypes of both sides. Values that are not added are converted as slot apply
 * does. Sums are computed in the wider type of the two, where floats are wider than integers. An element of 8 bytes
 * together with float32 needs double, whose quads can hold both. */
void choose_types(TakeJob &job, const tg_array &a, const tg_array &b, TakeUse use) {
    const tg_array &to = use == TAKE_READS ? a : b, &from = use == TAKE_READS ? b : a;
    bool real = is_real(a.dtype) || is_real(b.dtype);
    bool wide = element_size(a.dtype) == 8 || element_size(b.dtype) == 8;
    tg_dtype compute = use == TAKE_ADDS ? (real ? TG_F32 : TG_I64) : tg_map_type(TG_FN_id, &to, &from, 1, false);
    if (compute == TG_F32 && wide) compute = TG_F64;
    int dtype[2] = {to.dtype, from.dtype};
    if (use != TAKE_ADDS) tg_operand_dtypes(TG_FN_id, compute, &to, &from, 1, dtype);
    job.compute = compute;
    job.a.dtype = use == TAKE_READS ? dtype[0] : dtype[1];
    job.b.dtype = use == TAKE_READS ? dtype[1] : dtype[0];
}

TakeSide side_of(const tg_array &x) {
    TakeSide s = {};
    s.data = (char *)x.data;
    s.size = element_size(x.dtype);
    s.step = 1;
    return s;
}

/* Finds the run and sets its length and steps. Returns how many leading dims remain without those of the run. */
int choose_run(TakeJob &job, const tg_array &a, const tg_array &b, const tg_array &index, int dim) {
    int d = a.ndim;
    job.run = 1;
    for (; d - 1 > dim; d--) {
        int64_t n = a.shape[d - 1], a_step = a.stride[d - 1], b_step = b.stride[d - 1];
        if (n == 1) continue;
        if (index.stride[d - 1] != 0) break;
        if (job.run != 1 && (a_step != job.a.step * job.run || b_step != job.b.step * job.run)) break;
        if (job.run == 1) {
            job.a.step = a_step;
            job.b.step = b_step;
        }
        job.run *= n;
    }
    return d;
}

/* Returns whether quads can be accessed as a whole: runs are contiguous, and begin at multiples of 16 bytes. `more` is
 * the stride along the indexed dim, or 0. */
bool whole_side(const TakeSide &x, const Dims<TAKE_ARRAYS> &m, int side, int64_t more, int64_t run, int quad) {
    bool whole = x.step == 1 && run >= quad && aligned(x.data, 16) && x.size * quad <= 16;
    for (int d = 0; d < m.n; d++) whole = whole && m.stride[side][d] * x.size % 16 == 0;
    return whole && more * x.size % 16 == 0;
}

/* The work of a thread: the offsets of a position, one part of its run, and the value of its index. */
struct TakePlace {
    int64_t at[TAKE_ARRAYS], part, chosen;
};

/* Finds the work of this thread. Returns false if there is none, or if the index is out of range; then the thread of
 * the first part of the run reports the index. */
__device__ inline bool place_of(const TakeJob &job, int64_t n, const Divider &by_parts, TakePlace &p) {
    int64_t i = (int64_t)blockIdx.x * TAKE_THREADS + threadIdx.x;
    if (i >= n) return false;
    int64_t position = quotient(i, by_parts);
    p.part = i - position * by_parts.by;
    offsets(job.walk, position, p.at);
    p.chosen = index_at(job, p.at[TAKE_INDEX]);
    if (in_range(job, p.chosen)) return true;
    if (p.part == 0) report(job, position * job.run);
    return false;
}

template <class T> __global__ void __launch_bounds__(TAKE_THREADS) take_each(TakeJob job, int64_t n, Divider by_run) {
    TakePlace p;
    if (!place_of(job, n, by_run, p)) return;
    int64_t from = p.at[TAKE_B] + p.chosen * job.b_stride + p.part * job.b.step;
    store<T>(job.a.data, job.a.dtype, p.at[TAKE_A] + p.part * job.a.step, load<T>(job.b.data, job.b.dtype, from));
}

/* Copies contiguous runs between arrays of one dtype, 16 bytes for each thread. */
__global__ void __launch_bounds__(TAKE_THREADS) take_runs(TakeJob job, int64_t n, Divider by_chunks) {
    TakePlace p;
    if (!place_of(job, n, by_chunks, p)) return;
    const char *from = job.b.data + (p.at[TAKE_B] + p.chosen * job.b_stride) * job.b.size + p.part * 16;
    *(Raw *)(job.a.data + p.at[TAKE_A] * job.a.size + p.part * 16) = *(const Raw *)from;
}

template <class T> void launch_each(const TakeJob &job, cudaStream_t stream) {
    int64_t n = job.positions * job.run;
    unsigned grid = (unsigned)ceil_div(n, TAKE_THREADS);
    TG_LAUNCH(take_each<T>, grid, TAKE_THREADS, 0, stream, job, n, divider_of(job.run));
}

void launch_runs(const TakeJob &job, cudaStream_t stream) {
    int64_t chunks = job.run * job.a.size / 16, n = job.positions * chunks;
    unsigned grid = (unsigned)ceil_div(n, TAKE_THREADS);
    TG_LAUNCH(take_runs, grid, TAKE_THREADS, 0, stream, job, n, divider_of(chunks));
}

} // namespace

TakeJob take_job(tg_ctx *ctx, tg_array a, tg_array b, const tg_array &index, int dim, TakeUse use, bool reports) {
    static const char *const slots[] = {"take", "put", "put_add"};
    TakeJob job = {};
    tg_move_as_bytes(&a, &b);
    job.a = side_of(a);
    job.b = side_of(b);
    choose_types(job, a, b, use);
    job.index = (const char *)index.data;
    job.narrow = index.dtype == TG_I32;
    job.extent = b.shape[dim];
    job.b_stride = b.stride[dim];
    job.along = a.shape[dim];
    int n = choose_run(job, a, b, index, dim);
    int64_t group = 1, position = 1, stride[TG_MAX_DIMS][TAKE_ARRAYS];
    for (int d = n - 1; d >= 0; d--) {
        int64_t of[TAKE_ARRAYS] = {a.stride[d], index.stride[d], d == dim ? 0 : b.stride[d], d == dim ? 0 : group,
                                   position};
        for (int k = 0; k < TAKE_ARRAYS; k++) stride[d][k] = of[k];
        position *= a.shape[d];
        if (d != dim) group *= a.shape[d];
    }
    Dims<TAKE_ARRAYS> all = {}, others = {};
    all.count = others.count = 1;
    for (int d = 0; d < n; d++) {
        push_dim(all, a.shape[d], stride[d]);
        if (d != dim) push_dim(others, a.shape[d], stride[d]);
    }
    for (int k = 0; k < TAKE_ARRAYS; k++) job.stride[k] = stride[dim][k];
    int quad = job.compute == TG_F32 ? Quad<float>::size : Quad<double>::size;
    job.a.whole = whole_side(job.a, all, TAKE_A, 0, job.run, quad);
    job.b.whole = whole_side(job.b, all, TAKE_B, job.b_stride, job.run, quad);
    merge_dims(all);
    merge_dims(others);
    job.positions = all.count;
    job.groups = others.count;
    job.walk = walk_of(all, all.n);
    job.others = walk_of(others, others.n);
    if (reports) job.fault = tg_cuda_fault_for(ctx, slots[use], tg_index_repeats(&index));
    return job;
}

} // namespace tg

extern "C" tg_status tg_cuda_take(tg_ctx *ctx, tg_array out, tg_array src, tg_array index, int dim, int64_t *bad) {
    using namespace tg;
    if (out.numel == 0) return TG_OK;
    TakeJob job = take_job(ctx, out, src, index, dim, TAKE_READS, bad != NULL);
    cudaStream_t stream = tg_cuda_of(ctx)->compute;
    bool whole = job.a.whole && job.b.whole && job.run * job.a.size % 16 == 0;
    if (whole && out.dtype == src.dtype)
        launch_runs(job, stream);
    else
        TG_TAKE_TYPES(launch_each, job.compute, job, stream);
    return tg_cuda_launched(ctx, "take");
}
