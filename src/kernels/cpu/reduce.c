/* The CPU's reduce slot: divides the dims into kept and reduced ones, and chooses between rows and columns (reduce.h).
 * Also chooses the number of parts. */
#include "kernels/cpu/reduce.h"

#include "base/dtype.h"
#include "kernels/cpu/required.h"
#include "kernels/elements.h"

/* PARALLEL_FROM is the least number of input elements for which several threads are used. PART is the greatest number
 * of input elements of a tile (reduce.h) of the first pass, except in argmax and argmin, which have one pass. UNIT is
 * about the number of input elements that a unit of parallel work has, if its tiles are smaller. */
enum { PARALLEL_FROM = 65536, PART = 65536, UNIT = 16384 };

TG_CPU_COPIES(tg_reduce_kernels, reduce_kernels, f32)
TG_CPU_COPIES(tg_reduce_kernels, reduce_kernels, f64)
TG_CPU_COPIES(tg_reduce_kernels, reduce_kernels, i64)

static const tg_reduce_kernels *kernels_of(const tg_ctx *ctx, tg_dtype compute) {
    static const tg_reduce_kernels *const f32[] = TG_CPU_TABLE(reduce_kernels, f32);
    static const tg_reduce_kernels *const f64[] = TG_CPU_TABLE(reduce_kernels, f64);
    static const tg_reduce_kernels *const i64[] = TG_CPU_TABLE(reduce_kernels, i64);
    tg_cpu_level_t level = tg_cpu_level(ctx);
    return compute == TG_F32 ? f32[level] : compute == TG_F64 ? f64[level] : i64[level];
}

/* Returns the dtype in which a reduction runs: int64 if input and output are integers; float64 if one of them is
 * float64, or if the input is an integer and the output a float; otherwise float32. */
static tg_dtype compute_type(tg_dtype in, tg_dtype out) {
    if (in == TG_F64 || out == TG_F64 || (!tg_is_float(in) && tg_is_float(out))) return TG_F64;
    return tg_is_float(in) ? TG_F32 : TG_I64;
}

/* Adds a dim. Keeps the dims sorted by decreasing stride of the input, so that the walk follows memory. */
static void insert_dim(tg_reduce_dims *d, int64_t shape, int64_t in, int64_t out) {
    int at = d->n++;
    for (; at > 0 && d->in[at - 1] < in; at--) {
        d->shape[at] = d->shape[at - 1];
        d->in[at] = d->in[at - 1];
        d->out[at] = d->out[at - 1];
    }
    d->shape[at] = shape;
    d->in[at] = in;
    d->out[at] = out;
    d->count *= shape;
}

static void merge_dims(tg_reduce_dims *d) {
    int top = 0;
    for (int k = 1; k < d->n; k++) {
        bool fits = d->in[top] == d->in[k] * d->shape[k] && d->out[top] == d->out[k] * d->shape[k];
        if (fits)
            d->shape[top] *= d->shape[k];
        else
            d->shape[++top] = d->shape[k];
        d->in[top] = d->in[k];
        d->out[top] = d->out[k];
    }
    d->n = d->n ? top + 1 : 0;
}

/* Divides the dims of the input into kept and reduced ones. Leaves out dims of size 1. */
static void divide_dims(tg_reduce_plan *m, const tg_array *out, const tg_array *in) {
    m->kept = m->reduced = (tg_reduce_dims){.count = 1};
    for (int d = 0; d < in->ndim; d++) {
        bool reduced = out->shape[d] == 1 || out->stride[d] == 0;
        if (in->shape[d] == 1) continue;
        if (reduced)
            insert_dim(&m->reduced, in->shape[d], in->stride[d], 0);
        else
            insert_dim(&m->kept, in->shape[d], in->stride[d], out->stride[d]);
    }
    merge_dims(&m->kept);
    merge_dims(&m->reduced);
}

/* Returns whether to reduce along columns. This is so if there are enough neighboring outputs, and if the input
 * elements of two neighboring outputs are closer together in memory than two successive input elements of one output.
 * It is also so if no dim is reduced, unless there is only one element. */
static bool by_columns(const tg_reduce_plan *m) {
    const tg_reduce_dims *k = &m->kept, *r = &m->reduced;
    if (k->n == 0 || r->n == 0) return k->n > 0;
    return k->shape[k->n - 1] >= 16 && k->in[k->n - 1] < r->in[r->n - 1];
}

static int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/* Divides the reduced elements of an output into parts. A tile is one part of an output or, by columns, of up to
 * TG_REDUCE_RUN neighboring outputs. It has at most `most` input elements, or one of each output. A unit of parallel
 * work is one or more tiles. */
static void choose_parts(tg_reduce_plan *m, bool columns, int64_t most) {
    int64_t width = columns ? m->kept.shape[m->kept.n - 1] : 1, across = ceil_div(width, TG_REDUCE_RUN);
    int64_t tile_width = width < TG_REDUCE_RUN ? width : TG_REDUCE_RUN;
    m->part_len = most / tile_width > 0 ? most / tile_width : 1;
    if (m->part_len > m->reduced.count) m->part_len = m->reduced.count > 0 ? m->reduced.count : 1;
    m->parts = m->reduced.count ? ceil_div(m->reduced.count, m->part_len) : 1;
    m->part_step = 0;
    m->tiles = m->kept.count / width * across * m->parts;
    m->per_unit = UNIT / (m->part_len * tile_width) > 1 ? UNIT / (m->part_len * tile_width) : 1;
}

static void run(tg_ctx *ctx, const tg_reduce_plan *m, tg_range_fn body) {
    int64_t units = ceil_div(m->tiles, m->per_unit);
    if (m->kept.count * m->reduced.count >= PARALLEL_FROM)
        tg_parallel_run(ctx, units, body, (void *)m);
    else
        body((void *)m, 0, units);
}

/* Changes a plan with several parts into two passes. In the first pass, each part writes its results to its own row of
 * `partial`, in row-major order. The second pass combines these rows element by element, applies scale and add, and
 * writes the output. */
static void split_passes(tg_reduce_plan *parts, tg_reduce_plan *second, void *partial, tg_dtype compute) {
    *second = *parts;
    second->kind = parts->kind == TG_SUMSQ ? TG_SUM : parts->kind;
    second->in = partial;
    second->in_dtype = compute;
    second->in_size = (int64_t)tg_dtype_size(compute);
    second->reduced =
        (tg_reduce_dims){.n = 1, .count = parts->parts, .shape = {parts->parts}, .in = {parts->kept.count}};
    parts->scale = 1;
    parts->add = false;
    parts->out = partial;
    parts->out_dtype = compute;
    parts->out_size = second->in_size;
    parts->part_step = parts->kept.count;
    for (int64_t d = parts->kept.n - 1, step = 1; d >= 0; step *= parts->kept.shape[d--])
        parts->kept.out[d] = second->kept.in[d] = step;
    choose_parts(second, second->kept.n > 0, INT64_MAX);
}

tg_status tg_cpu_reduce(tg_ctx *ctx, tg_reduction kind, tg_array out, tg_array in, double scale, bool add) {
    bool arg = kind == TG_ARGMAX || kind == TG_ARGMIN;
    if (arg && out.dtype != TG_I64 && out.dtype != TG_I32)
        return tg_ctx_fail(ctx, TG_ERR_DTYPE, "reduce: out is %s; for the positions of extrema it must be i64 or i32",
                           tg_dtype_name(out.dtype));
    tg_dtype compute = arg ? compute_type(in.dtype, in.dtype) : compute_type(in.dtype, out.dtype);
    const tg_reduce_kernels *k = kernels_of(ctx, compute);
    tg_reduce_plan m = {.kind = kind, .scale = scale, .add = add, .in = in.data, .out = out.data};
    bool ranked = compute == TG_I64 && tg_ranks_elements(kind);
    m.in_dtype = ranked ? (tg_dtype)tg_rank_dtype(in.dtype) : in.dtype;
    m.out_dtype = ranked ? (tg_dtype)tg_rank_dtype(out.dtype) : out.dtype;
    m.in_size = (int64_t)tg_dtype_size(in.dtype);
    m.out_size = (int64_t)tg_dtype_size(out.dtype);
    divide_dims(&m, &out, &in);
    if (m.kept.count == 0) return TG_OK;
    bool columns = !arg && by_columns(&m);
    choose_parts(&m, columns, arg ? INT64_MAX : PART);
    tg_range_fn body = arg ? k->arg : columns ? k->cols : k->rows;
    if (m.parts == 1) {
        run(ctx, &m, body);
        return TG_OK;
    }
    void *partial = tg_workspace(ctx, TG_WS_REDUCE, (size_t)(m.parts * m.kept.count) * tg_dtype_size(compute));
    if (!partial) return TG_ERR_MEMORY;
    tg_reduce_plan second;
    split_passes(&m, &second, partial, compute);
    run(ctx, &m, body);
    run(ctx, &second, second.kept.n ? k->cols : k->rows);
    return TG_OK;
}
