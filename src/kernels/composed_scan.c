/* Cumulative sums and products, and writes at indices, composed of required slots. */
#include "kernels/composed_parts.h"

/* The dtype in which a scan runs. */
static tg_dtype compute_both(const tg_array *x, const tg_array *y) {
    return tg_is_float((tg_dtype)x->dtype) || tg_is_float((tg_dtype)y->dtype) ? TG_F64 : TG_I64;
}

/* ---- Scan ---- */

/* n elements of each row of x, from start on, `step` apart. */
static void view_part(view *v, const tg_array *x, int64_t start, int64_t n, int64_t step) {
    int last = x->ndim - 1;
    v->a = *x;
    memcpy(v->shape, x->shape, x->ndim * sizeof *x->shape);
    memcpy(v->stride, x->stride, x->ndim * sizeof *x->stride);
    v->a.data = (char *)x->data + start * x->stride[last] * (int64_t)tg_dtype_size((tg_dtype)x->dtype);
    v->a.numel = x->numel / x->shape[last] * n;
    v->a.contiguous = false;
    v->a.shape = v->shape;
    v->a.stride = v->stride;
    v->shape[last] = n;
    v->stride[last] *= step;
}

/* Combines every element from `to` on, `step` apart, with the one `by` positions before it; with `back`, counted
 * from the end. */
static tg_status take_in(tg_ctx *ctx, tg_reduction kind, tg_array x, int64_t to, int64_t by, int64_t step, bool back) {
    int64_t size = x.shape[x.ndim - 1], n = to < size ? (size - 1 - to) / step + 1 : 0;
    int64_t start = back ? size - 1 - to - (n - 1) * step : to;
    view a, b;
    if (n == 0) return TG_OK;
    view_part(&a, &x, start, n, step);
    view_part(&b, &x, back ? start + by : start - by, n, step);
    if (kind == TG_SUM)
        MAP(add, a.a, a.a, b.a);
    else
        MAP(mul, a.a, a.a, b.a);
    return TG_OK;
}

/* 2 n operations in 2 log n maps (Brent and Kung, A Regular Layout for Parallel Adders, 1982). */
tg_status tg_composed_scan(tg_ctx *ctx, tg_reduction kind, tg_array y, tg_array x, bool back, bool add) {
    tg_dtype d = compute_both(&x, &y);
    int64_t by = 1;
    arena m;
    view w;
    if (!x.numel) return TG_OK;
    TG_TRY(arena_open(ctx, &m, COMPOSED_ROWS, taken(x.numel, d)));
    view_dense(&w, take(&m, x.numel, d), d, x.ndim, x.shape);
    MAP(id, w.a, x);
    for (; by < x.shape[x.ndim - 1]; by *= 2) TG_TRY(take_in(ctx, kind, w.a, 2 * by - 1, by, 2 * by, back));
    for (; by >= 1; by /= 2) TG_TRY(take_in(ctx, kind, w.a, 3 * by - 1, by, 2 * by, back));
    MAP_P(id, y, 0, 0, add, w.a);
    return TG_OK;
}

/* ---- Put ---- */

typedef struct put_parts {
    view place, last, hits, mine; /* mine is per element of src, last and hits per element of dst */
} put_parts;

/* Finds the greatest position that is written to each element, bit by bit from the highest: the next bit is 1 if a
 * position with at least that value writes there. */
static tg_status find_last(tg_ctx *ctx, put_parts *p, tg_array index, int dim, int64_t *bad) {
    const tg_device_ops *ops = tg_ctx_ops(ctx);
    int64_t bit = 1;
    while (2 * bit < index.shape[dim]) bit *= 2;
    TG_TRY(ops->fill(ctx, p->last.a, 0));
    TG_TRY(ops->take(ctx, p->mine.a, p->last.a, index, dim, bad));
    for (; bit >= 1; bit /= 2) {
        TG_TRY(ops->take(ctx, p->mine.a, p->last.a, index, dim, NULL));
        MAP_P(affine, p->mine.a, 1, (double)bit, false, p->mine.a);
        MAP(ge, p->mine.a, p->place.a, p->mine.a);
        TG_TRY(ops->fill(ctx, p->hits.a, 0));
        TG_TRY(ops->put_add(ctx, p->hits.a, p->mine.a, index, dim, NULL));
        MAP_P(clamp, p->hits.a, 0, 1, false, p->hits.a);
        MAP_P(affine, p->last.a, (double)bit, 0, true, p->hits.a);
    }
    return TG_OK;
}

/* Elements that are written become -0, which does not change what is added to it. All writes to one element except
 * the last get an index that is skipped. */
tg_status tg_composed_put(tg_ctx *ctx, tg_array dst, tg_array src, tg_array index, int dim, int64_t *bad) {
    const tg_device_ops *ops = tg_ctx_ops(ctx);
    int64_t along[TG_MAX_DIMS];
    view numbers, chosen;
    put_parts p;
    arena m;
    if (!src.numel) return TG_OK;
    for (int d = 0; d < src.ndim; d++) along[d] = d == dim ? src.shape[d] : 1;
    TG_TRY(arena_open(ctx, &m, COMPOSED_ROWS,
                      taken(along[dim], TG_I64) + 2 * taken(dst.numel, TG_I64) + 2 * taken(src.numel, TG_I64)));
    view_dense(&numbers, take(&m, along[dim], TG_I64), TG_I64, src.ndim, along);
    view_dense(&p.last, take(&m, dst.numel, TG_I64), TG_I64, dst.ndim, dst.shape);
    view_dense(&p.hits, take(&m, dst.numel, TG_I64), TG_I64, dst.ndim, dst.shape);
    view_dense(&p.mine, take(&m, src.numel, TG_I64), TG_I64, src.ndim, src.shape);
    view_dense(&chosen, take(&m, src.numel, TG_I64), TG_I64, src.ndim, src.shape);
    view_expand(&p.place, &numbers.a, src.ndim, src.shape);
    TG_TRY(ops->iota(ctx, numbers.a, 0, 1));
    TG_TRY(ops->fill(ctx, p.mine.a, 0));
    TG_TRY(find_last(ctx, &p, index, dim, bad));
    TG_TRY(ops->take(ctx, p.mine.a, p.last.a, index, dim, NULL));
    MAP(eq, p.mine.a, p.place.a, p.mine.a);
    TG_TRY(ops->fill(ctx, p.hits.a, 0));
    TG_TRY(ops->put_add(ctx, p.hits.a, p.mine.a, index, dim, NULL));
    MAP_P(masked_fill, dst, -0.0, 0, false, dst, p.hits.a);
    MAP_P(affine, chosen.a, 1, 1, false, index);
    MAP(mul, chosen.a, chosen.a, p.mine.a);
    MAP_P(affine, chosen.a, 1, -1, false, chosen.a);
    return ops->put_add(ctx, dst, src, chosen.a, dim, NULL);
}
