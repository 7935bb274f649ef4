/* Cumulative sums and products, and writes at indices, composed of required slots. */
#include "kernels/composed_parts.h"
#include "kernels/elements.h"

/* Returns the dtype in which a scan runs: float64 or int64. */
static tg_dtype scan_dtype(const tg_array *x, const tg_array *y) {
    return tg_is_float((tg_dtype)x->dtype) || tg_is_float((tg_dtype)y->dtype) ? TG_F64 : TG_I64;
}

/* ---- Scan ---- */

/* Makes v the n elements start, start + step, ... of each row of x. */
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

/* Combines in place each of the elements `to`, `to` + step, ... of each row of x with the element `by` positions before
 * it. With `back`, positions are counted from the end of the row. */
static tg_status combine_at(tg_ctx *ctx, tg_reduction kind, tg_array x, int64_t to, int64_t by, int64_t step,
                            bool back) {
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

/* Scans rows of n elements in 2 n operations and 2 log2(n) maps (Brent and Kung, A Regular Layout for Parallel Adders,
 * 1982). The first loop combines blocks of 2, 4, 8, ... elements, and stores the result of a block in its last element.
 * The second loop completes the other elements. */
static tg_status scan(tg_ctx *ctx, arena *w, tg_reduction kind, tg_array y, tg_array x, bool back, bool add) {
    tg_dtype d = scan_dtype(&x, &y);
    int64_t by = 1;
    view v;
    if (!x.numel) return TG_OK;
    TG_TRY(arena_open(ctx, w, COMPOSED_ROWS, arena_bytes(x.numel, d)));
    view_dense(&v, arena_take(w, x.numel, d), d, x.ndim, x.shape);
    MAP(id, v.a, x);
    for (; by < x.shape[x.ndim - 1]; by *= 2) TG_TRY(combine_at(ctx, kind, v.a, 2 * by - 1, by, 2 * by, back));
    for (; by >= 1; by /= 2) TG_TRY(combine_at(ctx, kind, v.a, 3 * by - 1, by, 2 * by, back));
    MAP_P(id, y, 0, 0, add, v.a);
    return TG_OK;
}

tg_status tg_composed_scan(tg_ctx *ctx, tg_reduction kind, tg_array y, tg_array x, bool back, bool add) {
    arena w = {0};
    return arena_close(ctx, &w, scan(ctx, &w, kind, y, x, back, add));
}

/* ---- Put ---- */

typedef struct put_parts {
    view position; /* for each element of src: its position along dim */
    view last;     /* for each element of dst: the greatest position of what is written to it; 0 if nothing is */
    view written;  /* for each element of dst: a temporary */
    view temp;     /* for each element of src: a temporary */
} put_parts;

/* Computes p->last bit by bit, from the highest bit. For an element of dst, let v be the bits found so far, with the
 * next bit set. If an element of src whose position is v or more is written to it, the next bit is 1, otherwise 0. */
static tg_status find_last(tg_ctx *ctx, put_parts *p, tg_array index, int dim, int64_t *bad) {
    const tg_device_ops *ops = tg_ctx_ops(ctx);
    int64_t bit = 1;
    while (2 * bit < index.shape[dim]) bit *= 2;
    TG_TRY(ops->fill(ctx, p->last.a, 0));
    TG_TRY(ops->take(ctx, p->temp.a, p->last.a, index, dim, bad)); /* only to report indices out of range */
    for (; bit >= 1; bit /= 2) {
        TG_TRY(ops->take(ctx, p->temp.a, p->last.a, index, dim, NULL));
        MAP_P(affine, p->temp.a, 1, (double)bit, false, p->temp.a);
        MAP(ge, p->temp.a, p->position.a, p->temp.a);
        TG_TRY(ops->fill(ctx, p->written.a, 0));
        TG_TRY(ops->put_add(ctx, p->written.a, p->temp.a, index, dim, NULL));
        MAP_P(clamp, p->written.a, 0, 1, false, p->written.a);
        MAP_P(affine, p->last.a, (double)bit, 0, true, p->written.a);
    }
    return TG_OK;
}

/* Writes by slot put_add to elements of dst in which it has stored -0; a number that is added to -0 stays unchanged. If
 * several writes go to one element, all except the last get the index -1, which put_add skips. If src has another dtype
 * than dst, it is converted before, because put_add would round integers to its own type before it rounds to that of
 * dst. put_add does not take float8, so elements of float8 are moved as bytes. */
static tg_status put(tg_ctx *ctx, arena *w, tg_array dst, tg_array src, tg_array index, int dim, int64_t *bad) {
    const tg_device_ops *ops = tg_ctx_ops(ctx);
    int64_t along[TG_MAX_DIMS];
    view numbers, chosen, converted;
    put_parts p;
    if (!src.numel) return TG_OK;
    bool converts = src.dtype != dst.dtype;
    for (int d = 0; d < src.ndim; d++) along[d] = d == dim ? src.shape[d] : 1;
    TG_TRY(arena_open(ctx, w, COMPOSED_ROWS,
                      arena_bytes(along[dim], TG_I64) + 2 * arena_bytes(dst.numel, TG_I64) +
                          2 * arena_bytes(src.numel, TG_I64) +
                          (converts ? arena_bytes(src.numel, (tg_dtype)dst.dtype) : 0)));
    if (converts) {
        void *memory = arena_take(w, src.numel, (tg_dtype)dst.dtype);
        view_dense(&converted, memory, (tg_dtype)dst.dtype, src.ndim, src.shape);
        MAP(id, converted.a, src);
        src = converted.a;
    }
    tg_move_as_bytes(&dst, &src);
    view_dense(&numbers, arena_take(w, along[dim], TG_I64), TG_I64, src.ndim, along);
    view_dense(&p.last, arena_take(w, dst.numel, TG_I64), TG_I64, dst.ndim, dst.shape);
    view_dense(&p.written, arena_take(w, dst.numel, TG_I64), TG_I64, dst.ndim, dst.shape);
    view_dense(&p.temp, arena_take(w, src.numel, TG_I64), TG_I64, src.ndim, src.shape);
    view_dense(&chosen, arena_take(w, src.numel, TG_I64), TG_I64, src.ndim, src.shape);
    view_expand(&p.position, &numbers.a, src.ndim, src.shape);
    TG_TRY(ops->iota(ctx, numbers.a, 0, 1));
    TG_TRY(ops->fill(ctx, p.temp.a, 0));
    TG_TRY(find_last(ctx, &p, index, dim, bad));
    TG_TRY(ops->take(ctx, p.temp.a, p.last.a, index, dim, NULL));
    MAP(eq, p.temp.a, p.position.a, p.temp.a);
    TG_TRY(ops->fill(ctx, p.written.a, 0));
    TG_TRY(ops->put_add(ctx, p.written.a, p.temp.a, index, dim, NULL));
    MAP_P(masked_fill, dst, -0.0, 0, false, dst, p.written.a);
    MAP_P(affine, chosen.a, 1, 1, false, index);
    MAP(mul, chosen.a, chosen.a, p.temp.a);
    MAP_P(affine, chosen.a, 1, -1, false, chosen.a);
    return ops->put_add(ctx, dst, src, chosen.a, dim, NULL);
}

tg_status tg_composed_put(tg_ctx *ctx, tg_array dst, tg_array src, tg_array index, int dim, int64_t *bad) {
    arena w = {0};
    return arena_close(ctx, &w, put(ctx, &w, dst, src, index, dim, bad));
}
