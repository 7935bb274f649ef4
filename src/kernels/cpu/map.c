/* The CPU's map slot: chooses the compute type and the row function, and divides the elements into tiles. */
#include "kernels/cpu/map.h"

#include "base/dtype.h"
#include "kernels/cpu/required.h"
#include "kernels/order.h"

enum { PARALLEL_FROM = 65536 }; /* the least number of elements for which several threads are used */

TG_CPU_COPIES(tg_map_kernels, map_kernels, f32)
TG_CPU_COPIES(tg_map_kernels, map_kernels, f64)
TG_CPU_COPIES(tg_map_kernels, map_kernels, i64)

const tg_map_kernels *tg_map_kernels_of(const tg_ctx *ctx, tg_dtype compute) {
    static const tg_map_kernels *const f32[] = TG_CPU_TABLE(map_kernels, f32);
    static const tg_map_kernels *const f64[] = TG_CPU_TABLE(map_kernels, f64);
    static const tg_map_kernels *const i64[] = TG_CPU_TABLE(map_kernels, i64);
    tg_cpu_level_t level = tg_cpu_level(ctx);
    return compute == TG_F32 ? f32[level] : compute == TG_F64 ? f64[level] : i64[level];
}

/* Returns whether all arrays are contiguous and of the same dtype, float32 or float64. tg_cpu_map then computes small
 * arrays by one call of the row function, so that small tensors have almost no overhead. */
static bool same_layout(const tg_array *out, const tg_array *in, int n_in) {
    bool ok = out->contiguous && (out->dtype == TG_F32 || out->dtype == TG_F64);
    for (int i = 0; i < n_in; i++) ok = ok && in[i].contiguous && in[i].dtype == out->dtype;
    return ok;
}

static void swap_dims(tg_map_plan *m, int a, int b) {
    int64_t t = m->shape[a];
    m->shape[a] = m->shape[b];
    m->shape[b] = t;
    for (int i = 0; i <= m->n_in; i++) {
        int64_t *s = m->x[i].stride;
        t = s[a];
        s[a] = s[b];
        s[b] = t;
    }
}

/* Collects the dims whose size is not 1, sorted by decreasing stride of the output. a[0] is the output. */
static void order_dims(tg_map_plan *m, const tg_array *const *a) {
    m->ndim = 0;
    for (int d = 0; d < a[0]->ndim; d++) {
        if (a[0]->shape[d] == 1) continue;
        m->shape[m->ndim] = a[0]->shape[d];
        for (int i = 0; i <= m->n_in; i++) m->x[i].stride[m->ndim] = a[i]->stride[d];
        for (int e = m->ndim++; e > 0 && m->x[0].stride[e] > m->x[0].stride[e - 1]; e--) swap_dims(m, e, e - 1);
    }
}

/* Returns whether two adjacent dims can be merged into one in all operands. */
static bool mergeable(const tg_map_plan *m, int outer, int inner) {
    for (int i = 0; i <= m->n_in; i++)
        if (m->x[i].stride[outer] != m->x[i].stride[inner] * m->shape[inner]) return false;
    return true;
}

static void merge_dims(tg_map_plan *m) {
    int top = 0;
    for (int d = 1; d < m->ndim; d++) {
        if (mergeable(m, top, d))
            m->shape[top] *= m->shape[d];
        else
            m->shape[++top] = m->shape[d];
        for (int i = 0; i <= m->n_in; i++) m->x[i].stride[top] = m->x[i].stride[d];
    }
    m->ndim = m->ndim ? top + 1 : 0;
}

/* Adds leading dims of size 1 until there are the two dims that a tile has. */
static void pad_dims(tg_map_plan *m) {
    while (m->ndim < 2) {
        m->shape[m->ndim] = 1;
        for (int i = 0; i <= m->n_in; i++) m->x[i].stride[m->ndim] = m->ndim ? 0 : 1;
        if (m->ndim++) swap_dims(m, 0, 1);
    }
}

/* Returns the dim along which a transposed input is contiguous in memory; -1 if no input is transposed. */
static int transposed_dim(const tg_map_plan *m) {
    int last = m->ndim - 1;
    for (int i = 1; i <= m->n_in; i++)
        for (int d = 0; d < last && m->x[i].stride[last] > 1; d++)
            if (m->x[i].stride[d] == 1) return d;
    return -1;
}

/* Chooses the shape of a tile: a run of the last dim, or several runs if that dim is short. If an input is transposed,
 * a tile is a block of up to 16 rows and 32 columns, so that rows and columns fill whole cache lines. */
static void choose_tile(tg_map_plan *m) {
    int last = m->ndim - 1, row = transposed_dim(m);
    bool block = row >= 0;
    for (int d = 0; d < last && !block; d++)
        if (row < 0 || m->shape[d] > m->shape[row]) row = d;
    swap_dims(m, row, last - 1);
    int64_t most = block ? 32 : TG_MAP_TILE;
    m->cols = m->shape[last] < most ? m->shape[last] : most;
    m->rows = block || m->cols <= TG_MAP_TILE / 2 ? TG_MAP_TILE / m->cols : 1;
    if (block && m->rows > 16) m->rows = 16;
    if (m->rows > m->shape[last - 1]) m->rows = m->shape[last - 1];
}

/* Returns whether every tile of x is a contiguous run of the compute type. */
static bool gapless(const tg_map_plan *m, const tg_map_operand *x, tg_dtype compute) {
    int last = m->ndim - 1;
    return x->dtype == compute && (x->stride[last] == 1 || m->shape[last] == 1) &&
           (m->rows == 1 || (m->cols == m->shape[last] && x->stride[last - 1] == m->cols));
}

/* Chooses for each operand how its tiles are accessed, and divides the tiles into units of parallel work. If all
 * operands are used in place and a tile is one row, tiles become longer. */
static void choose_access(tg_map_plan *m, tg_dtype compute) {
    int last = m->ndim - 1;
    bool all = true;
    for (int i = 0; i <= m->n_in; i++) {
        tg_map_operand *x = &m->x[i];
        x->direct = gapless(m, x, compute);
        x->column_major = x->stride[last - 1] == 1 && x->stride[last] > 1;
        all &= x->direct;
    }
    if (all && m->rows == 1) m->cols = m->shape[last] < TG_MAP_CHUNK ? m->shape[last] : TG_MAP_CHUNK;
    m->tiles = (m->shape[last] + m->cols - 1) / m->cols * ((m->shape[last - 1] + m->rows - 1) / m->rows);
    for (int d = 0; d < last - 1; d++) m->tiles *= m->shape[d];
    m->per_unit = TG_MAP_CHUNK / (m->rows * m->cols) > 1 ? TG_MAP_CHUNK / (m->rows * m->cols) : 1;
}

static void map_planned(tg_ctx *ctx, const tg_map_kernels *k, tg_map_plan *m, tg_dtype compute, const int *dtype,
                        const tg_array *out, const tg_array *in) {
    const tg_array *a[1 + TG_MAP_INPUTS] = {out};
    for (int i = 0; i < m->n_in; i++) a[i + 1] = &in[i];
    for (int i = 0; i <= m->n_in; i++) {
        m->x[i].data = a[i]->data;
        m->x[i].dtype = (tg_dtype)dtype[i];
        m->x[i].size = (int64_t)tg_dtype_size(a[i]->dtype);
    }
    order_dims(m, a);
    merge_dims(m);
    pad_dims(m);
    choose_tile(m);
    choose_access(m, compute);
    int64_t units = (m->tiles + m->per_unit - 1) / m->per_unit;
    if (out->numel >= PARALLEL_FROM)
        tg_parallel_run(ctx, units, k->tiles, m);
    else
        k->tiles(m, 0, units);
}

static tg_status wrong_formula(tg_ctx *ctx, tg_formula f, int n_in) {
    return tg_ctx_fail(ctx, TG_ERR_ARGUMENT, "apply: formula %d (%s) takes %d inputs, but %d were given", f,
                       tg_formula_name(f), tg_formula_inputs(f), n_in);
}

tg_status tg_cpu_map(tg_ctx *ctx, tg_formula f, tg_array out, const tg_array *in, int n_in, const double p[2],
                     bool add) {
    static const uint8_t inputs[] = {
#define TG_X(name, n, value) n,
        TG_FORMULAS(TG_X)
#undef TG_X
    };
    if (f < 0 || f >= TG_FN_COUNT || n_in != inputs[f]) return wrong_formula(ctx, f, n_in);
    double p0 = p ? p[0] : 0, p1 = p ? p[1] : 0;
    if (out.numel < PARALLEL_FROM && same_layout(&out, in, n_in)) {
        const void *data[TG_MAP_INPUTS];
        for (int i = 0; i < n_in; i++) data[i] = in[i].data;
        tg_map_kernels_of(ctx, (tg_dtype)out.dtype)->row[f](out.numel, out.data, data, p0, p1, add);
        return TG_OK;
    }
    if (out.numel == 0) return TG_OK;
    tg_array moved;
    if (f == TG_FN_id && !add) {
        moved = in[0];
        in = &moved;
        tg_move_as_bytes(&out, &moved);
    }
    tg_dtype compute = tg_map_type(f, &out, in, n_in, add);
    bool whole = compute == TG_I64, wraps = whole && out.dtype == TG_U64;
    if (whole && in[0].dtype == TG_U64 && (f == TG_FN_abs || f == TG_FN_relu)) f = TG_FN_id; /* none is negative */
    int dtype[1 + TG_MAP_INPUTS] = {0};
    tg_operand_dtypes(f, compute, &out, in, n_in, dtype);
    if (add && dtype[0] == TG_U64_RANK)
        return tg_ctx_fail(ctx, TG_ERR_UNSUPPORTED,
                           "apply: formula %s cannot add to an output of u64; overwrite it instead",
                           tg_formula_name(f));
    const tg_map_kernels *k = tg_map_kernels_of(ctx, compute);
    tg_map_plan m;
    m.row = k->row[f];
    m.p = wraps ? tg_u64_param(p0) : p0;
    m.q = wraps ? tg_u64_param(p1) : p1;
    m.add = add;
    m.n_in = n_in;
    map_planned(ctx, k, &m, compute, dtype, &out, in);
    return TG_OK;
}
