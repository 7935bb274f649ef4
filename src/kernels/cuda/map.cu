/* The CUDA device's apply slot: chooses the compute type and the path through the elements. */
#include "kernels/cuda/map.h"

#include "kernels/cuda/slots.h"
#include "kernels/order.h"

namespace tg {
namespace {

typedef Dims<1 + MAP_INPUTS> MapDims;

/* Returns the dims, at least one, ordered by decreasing stride of the output and merged. Operands that the formula does
 * not have get the output's strides. */
MapDims dims_of_job(const MapJob &job, const tg_array &out, const tg_array *in) {
    const tg_array *a[1 + MAP_INPUTS] = {&out, &out, &out, &out, &out};
    for (int i = 0; i < job.n_in; i++) a[i + 1] = &in[i];
    MapDims m = dims_of(a);
    order_dims(m, 0);
    merge_dims(m);
    if (m.n == 0) {
        m.shape[0] = 1;
        for (int i = 0; i <= MAP_INPUTS; i++) m.stride[i][0] = 1;
        m.n = 1;
    }
    return m;
}

/* Returns the dim along which a transposed input is contiguous in memory; -1 if no input is transposed. */
int transposed_dim(const MapJob &job, const MapDims &m) {
    int last = m.n - 1;
    for (int i = 1; i <= job.n_in; i++)
        for (int d = 0; d < last && m.stride[i][last] > 1; d++)
            if (m.stride[i][d] == 1) return d;
    return -1;
}

/* Plans MAP_TILES, with dim `row` as the rows. */
void plan_tiles(MapJob &job, MapDims &m, int row) {
    for (int d = row; d + 2 < m.n; d++) swap_dims(m, d, d + 1);
    job.path = MAP_TILES;
    job.rows = m.shape[m.n - 2];
    job.cols = m.shape[m.n - 1];
    for (int i = 0; i <= job.n_in; i++) {
        MapOperand &x = job.x[i];
        x.row = m.stride[i][m.n - 2];
        x.col = m.stride[i][m.n - 1];
        x.transposed = i && x.row == 1 && x.col > 1;
    }
    int64_t across = ceil_div(job.cols, MAP_TILE), down = ceil_div(job.rows, MAP_TILE);
    job.across = divider_of(across);
    job.down = divider_of(down);
    job.count = m.count / job.rows / job.cols * across * down;
    job.walk = walk_of(m, m.n - 2);
}

/* Returns whether the quads of this operand are contiguous and begin at multiples of their own size. */
bool whole_quads(const MapOperand &x, const MapDims &m, int i, int quad) {
    bool whole = x.col == 1 && aligned(x.data, 16);
    for (int d = 0; d + 1 < m.n; d++) whole = whole && m.stride[i][d] * x.size % 16 == 0;
    return whole && (x.size * quad <= 16);
}

/* Returns whether all offsets in this operand, and all positions, are from 0 to 2^31 - 1. */
bool short_offsets(const MapDims &m, int i) {
    int64_t last = 0, most = ((int64_t)1 << 31) - 1;
    bool fits = m.count <= most;
    for (int d = 0; d < m.n; d++) {
        int64_t stride = m.stride[i][d];
        fits = fits && stride >= 0 && stride <= most && (last += (m.shape[d] - 1) * stride) <= most;
    }
    return fits;
}

void plan_rows(MapJob &job, const MapDims &m, int quad) {
    enum { WARP = 32 };
    int last = m.n - 1;
    job.path = MAP_ROWS;
    job.cols = m.shape[last];
    job.joined = quad == 4 && job.cols % (2 * quad) == 0;
    for (int i = 0; i <= job.n_in; i++) {
        MapOperand &x = job.x[i];
        x.col = m.stride[i][last];
        x.whole = whole_quads(x, m, i, quad);
        job.joined = job.joined && ((x.size == 2 && x.whole) || (i && x.col == 0)) && short_offsets(m, i);
    }
    job.copies = job.joined && job.f == TG_FN_id && !job.add && job.x[0].dtype == job.x[1].dtype && job.x[1].col == 1;
    int64_t quads = ceil_div(job.cols, quad);
    job.spread = job.joined || quads < 2 * WARP ? 1 : WARP;
    int64_t shares = ceil_div(quads, 2 * job.spread) * job.spread;
    job.across = divider_of(shares);
    job.count = m.count / job.cols * shares;
    job.walk = walk_of(m, last);
}

void plan_flat(MapJob &job, const MapDims &m) {
    job.path = MAP_FLAT;
    job.count = m.count;
    job.walk = walk_of(m, m.n);
}

void choose_path(MapJob &job, MapDims &m, int quad) {
    enum { LEAST_TILE = 8 };
    int last = m.n - 1, row = transposed_dim(job, m);
    if (row >= 0 && m.shape[row] >= LEAST_TILE && m.shape[last] >= LEAST_TILE) {
        plan_tiles(job, m, row);
        return;
    }
    bool rows = m.shape[last] >= 4 * quad || m.n == 1;
    for (int i = 0; i <= job.n_in; i++) rows = rows && job.x[i].size * quad <= 16 && m.stride[i][last] <= 1;
    if (rows)
        plan_rows(job, m, quad);
    else
        plan_flat(job, m);
}

} // namespace
} // namespace tg

extern "C" tg_status tg_cuda_map(tg_ctx *ctx, tg_formula f, tg_array out, const tg_array *in, int n_in,
                                 const double p[2], bool add) {
    if (f < 0 || f >= tg_formula_count() || n_in != tg_formula_inputs(f))
        return tg_ctx_fail(ctx, TG_ERR_ARGUMENT, "apply: formula %d (%s) takes %d inputs, but %d were given", f,
                           tg_formula_name(f), tg_formula_inputs(f), n_in);
    if (out.numel == 0) return TG_OK;
    tg_array moved;
    if (f == TG_FN_id && !add) {
        moved = in[0];
        in = &moved;
        tg_move_as_bytes(&out, &moved);
    }
    tg_dtype compute = tg_map_type(f, &out, in, n_in, add);
    bool whole = compute == TG_I64, wraps = whole && out.dtype == TG_U64;
    int dtype[1 + tg::MAP_INPUTS] = {0};
    tg_operand_dtypes(f, compute, &out, in, n_in, dtype);
    if (add && dtype[0] == TG_U64_RANK)
        return tg_ctx_fail(ctx, TG_ERR_UNSUPPORTED,
                           "apply: formula %s cannot add to an output of u64; overwrite it instead",
                           tg_formula_name(f));
    if (whole && in[0].dtype == TG_U64 && (f == TG_FN_abs || f == TG_FN_relu)) f = TG_FN_id; /* none is negative */
    double p0 = p ? p[0] : 0, p1 = p ? p[1] : 0;
    tg::MapJob job = {};
    job.f = f;
    job.n_in = n_in;
    job.p = wraps ? tg_u64_param(p0) : p0;
    job.q = wraps ? tg_u64_param(p1) : p1;
    job.add = add;
    for (int i = 0; i <= n_in; i++) {
        const tg_array &a = i ? in[i - 1] : out;
        job.x[i].data = (char *)a.data;
        job.x[i].dtype = dtype[i];
        job.x[i].size = tg::element_size(a.dtype);
    }
    tg::MapDims m = tg::dims_of_job(job, out, in);
    tg::choose_path(job, m, compute == TG_F32 ? tg::Quad<float>::size : tg::Quad<double>::size);
    cudaStream_t stream = tg_cuda_of(ctx)->compute;
    if (compute == TG_F32)
        tg::map_f32(job, stream);
    else if (compute == TG_F64)
        tg::map_f64(job, stream);
    else
        tg::map_i64(job, stream);
    return tg_cuda_launched(ctx, "map");
}
