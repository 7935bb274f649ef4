/* The CUDA device's reduce slot: divides the dims into kept and reduced ones, and chooses between rows and columns, and
 * the number of parts (reduce.h). The two choices depend on the kind of reduction and on shapes, strides and dtypes
 * alone, so that a sum has the same bits every time. */
#include "kernels/cuda/reduce.h"

#include "kernels/cuda/slots.h"

namespace tg {
namespace {

/* Returns the compute type. As on the CPU, 16-bit floats are reduced in float32, and integers in int64 or, if the
 * output is a float, in float64. */
int compute_type(int in, int out) {
    if (in == TG_F64 || out == TG_F64 || (!is_real(in) && is_real(out))) return TG_F64;
    return is_real(in) ? TG_F32 : TG_I64;
}

/* The kept and the reduced dims, with the strides of in and out. */
struct Sides {
    Dims<2> kept, reduced;
};

Sides sides_of(const tg_array &out, const tg_array &in) {
    Sides s = {};
    s.kept.count = s.reduced.count = 1;
    for (int d = 0; d < in.ndim; d++) {
        bool reduced = out.shape[d] == 1 || out.stride[d] == 0;
        int64_t stride[2] = {in.stride[d], reduced ? 0 : out.stride[d]};
        push_dim(reduced ? s.reduced : s.kept, in.shape[d], stride);
    }
    order_dims(s.kept, 0);
    order_dims(s.reduced, 0);
    merge_dims(s.kept);
    merge_dims(s.reduced);
    return s;
}

/* Returns whether to reduce along columns: there are at least 16 adjacent outputs, and the elements of adjacent outputs
 * are closer together in memory than the elements of one output. */
bool by_columns(const Sides &s) {
    const Dims<2> &k = s.kept, &r = s.reduced;
    if (k.n == 0 || r.n == 0) return false;
    return k.shape[k.n - 1] >= 16 && k.stride[0][k.n - 1] < r.stride[0][r.n - 1];
}

/* Returns whether the strides of the input along the first n dims of m are multiples of 16 bytes. size: bytes of an
 * element. */
bool whole_strides(const Dims<2> &m, int n, int size) {
    bool whole = true;
    for (int d = 0; d < n; d++) whole = whole && m.stride[0][d] * size % 16 == 0;
    return whole;
}

/* Returns the number of threads that share an output of `count` elements. Below 2048 elements it is the least power of
 * two that gives each thread at most 8 of them, but no more than a warp. From 2048 on it is a whole block. */
int lanes_for(int64_t count) {
    int lanes = 1;
    while (lanes < 32 && lanes * 8 < count) lanes *= 2;
    return count >= 2048 ? REDUCE_THREADS : lanes;
}

/* Cuts the reduced elements of an output into parts of equal length, at most `parts` of them. The length is a multiple
 * of `multiple`; the last part may have fewer elements. If an output has no elements, there is one part without any. */
void cut(ReduceJob &job, int64_t parts, int64_t multiple) {
    job.part_len = ceil_div(ceil_div(job.count, parts > 1 ? parts : 1), multiple) * multiple;
    if (job.part_len == 0) job.part_len = multiple;
    job.parts = job.count ? ceil_div(job.count, job.part_len) : 1;
    job.by_parts = divider_of(job.parts);
}

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* A reduction that would start too few blocks for the GPU is cut into parts, each with blocks of its own: about as many
 * as make BLOCKS blocks in all, but so few that a part, except the last, has at least PART elements along rows, or
 * PART_ROWS along columns. Rows are cut only if a whole block reduces each output, and if the outputs are fewer than
 * BLOCKS / 2. */
enum { BLOCKS = 2048, PART = 8192, PART_ROWS = 64 };

void plan_rows(ReduceJob &job, const Sides &s, bool arg) {
    job.path = arg ? REDUCE_ARG : REDUCE_ROW;
    job.kept = walk_of(s.kept, s.kept.n);
    job.lanes = lanes_for(job.count);
    bool few = job.outputs < BLOCKS / 2 && job.lanes > 32;
    cut(job, few ? least(job.count / PART, ceil_div(BLOCKS, job.outputs)) : 1, 1024);
    job.whole = job.single && job.step == 1 && aligned(job.in, 16) && whole_strides(s.kept, s.kept.n, job.in_size);
}

void plan_columns(ReduceJob &job, const Sides &s, int quad) {
    int last = s.kept.n - 1;
    job.path = REDUCE_COLUMN;
    job.width = s.kept.shape[last];
    job.in_col = s.kept.stride[0][last];
    job.out_col = s.kept.stride[1][last];
    job.kept = walk_of(s.kept, last);
    int64_t across = ceil_div(job.width, REDUCE_LANES * quad), blocks = job.outputs / job.width * across;
    job.by_across = divider_of(across);
    cut(job, least(job.count / PART_ROWS, ceil_div(BLOCKS, blocks)), 1);
    job.whole = job.in_col == 1 && aligned(job.in, 16) && whole_strides(s.kept, last, job.in_size) &&
                whole_strides(s.reduced, s.reduced.n, job.in_size);
}

/* Sets all fields of the job that depend on the dims. A reduced dim of size 0 has no divider: nothing is read then, so
 * no position is divided. */
void plan(ReduceJob &job, const Sides &s, int quad, bool arg) {
    int last = s.reduced.n - 1;
    job.outputs = s.kept.count;
    job.count = s.reduced.count;
    job.single = s.reduced.n <= 1;
    job.step = last < 0 ? 0 : s.reduced.stride[0][last];
    for (int d = 0; d <= last; d++) {
        job.reduced.by[d] = divider_of(s.reduced.shape[d]);
        job.reduced.stride[0][d] = s.reduced.stride[0][d];
    }
    job.reduced.ndim = s.reduced.n;
    job.part_step = 0;
    if (!arg && by_columns(s))
        plan_columns(job, s, quad);
    else
        plan_rows(job, s, arg);
}

void launch(const ReduceJob &job, int compute, cudaStream_t stream) {
    if (compute == TG_F32)
        reduce_f32(job, stream);
    else if (compute == TG_F64)
        reduce_f64(job, stream);
    else
        reduce_i64(job, stream);
}

/* Returns the distance, in elements, between the results of neighboring outputs in scratch memory. The results of the
 * parts of one output are adjacent there, as a row that is then reduced. A row begins at a whole quad of any compute
 * type, because quads have 2 or 4 elements. */
int64_t pitch_of(const ReduceJob &job) { return ceil_div(job.parts, 4) * 4; }

/* Splits a job in two. `job` is changed: it writes the result of each part to the scratch memory `results`. For argmax
 * and argmin it also writes the position of that result to `positions`. `rest` reduces the results into the output that
 * job had. */
void split(ReduceJob &job, ReduceJob &rest, const Sides &s, void *results, void *positions, int compute, int quad) {
    bool arg = job.path == REDUCE_ARG;
    int64_t step = pitch_of(job), out_step[TG_MAX_DIMS] = {};
    Sides t = s;
    for (int d = s.kept.n - 1; d >= 0; d--) {
        t.kept.stride[0][d] = out_step[d] = step;
        step *= s.kept.shape[d];
    }
    t.reduced = {};
    t.reduced.count = 1;
    push_dim(t.reduced, job.parts, {1, 0});
    rest = job;
    rest.kind = job.kind == TG_SUMSQ ? TG_SUM : job.kind;
    rest.in = (char *)results;
    rest.in_dtype = compute;
    rest.in_size = element_size(compute);
    rest.positions = (const int64_t *)positions;
    plan(rest, t, quad, arg);
    cut(rest, 1, 1024);
    job.scale = 1;
    job.add = false;
    job.out = (char *)(arg ? positions : results);
    job.out_dtype = arg ? (int)TG_I64 : compute;
    job.extremes = arg ? (char *)results : nullptr;
    job.part_step = 1;
    for (int d = 0; d < job.kept.ndim; d++) job.kept.stride[1][d] = out_step[d];
    job.out_col = pitch_of(job);
}

/* Reduces the parts, and then their results. */
tg_status reduce_parts(tg_ctx *ctx, ReduceJob &job, const Sides &s, int compute, int quad) {
    size_t results = (size_t)(pitch_of(job) * job.outputs), bytes = results * (size_t)element_size(compute);
    bool arg = job.path == REDUCE_ARG;
    size_t aligned_bytes = (bytes + 255) / 256 * 256; /* where the positions begin */
    tg_cuda_scratch scratch;
    ReduceJob rest;
    tg_status status = tg_cuda_scratch_take(ctx, aligned_bytes + (arg ? results * sizeof(int64_t) : 0), &scratch);
    if (status != TG_OK) return status;
    split(job, rest, s, scratch.data, arg ? (char *)scratch.data + aligned_bytes : nullptr, compute, quad);
    launch(job, compute, tg_cuda_of(ctx)->compute);
    status = tg_cuda_launched(ctx, "reduce, parts");
    if (status == TG_OK) {
        launch(rest, compute, tg_cuda_of(ctx)->compute);
        status = tg_cuda_launched(ctx, "reduce");
    }
    tg_cuda_scratch_give(ctx, &scratch);
    return status;
}

} // namespace
} // namespace tg

extern "C" tg_status tg_cuda_reduce(tg_ctx *ctx, tg_reduction kind, tg_array out, tg_array in, double scale,
                                    bool add) {
    using namespace tg;
    bool arg = kind == TG_ARGMAX || kind == TG_ARGMIN;
    if (arg && out.dtype != TG_I64 && out.dtype != TG_I32)
        return tg_ctx_fail(ctx, TG_ERR_DTYPE, "reduce: out is %s; for the positions of extrema it must be i64 or i32",
                           tg_dtype_name((tg_dtype)out.dtype));
    int compute = compute_type(in.dtype, arg ? in.dtype : out.dtype);
    int quad = compute == TG_F32 ? Quad<float>::size : Quad<double>::size;
    ReduceJob job = {};
    job.kind = kind;
    job.scale = scale;
    job.add = add;
    job.in = (char *)in.data;
    job.out = (char *)out.data;
    bool ranked = compute == TG_I64 && tg_ranks_elements(kind);
    job.in_dtype = ranked ? tg_rank_dtype(in.dtype) : in.dtype;
    job.in_size = element_size(in.dtype);
    job.out_dtype = ranked ? tg_rank_dtype(out.dtype) : out.dtype;
    Sides s = sides_of(out, in);
    if (s.kept.count == 0) return TG_OK;
    plan(job, s, quad, arg);
    if (job.parts > 1) return reduce_parts(ctx, job, s, compute, quad);
    launch(job, compute, tg_cuda_of(ctx)->compute);
    return tg_cuda_launched(ctx, "reduce");
}
