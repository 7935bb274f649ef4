/* Arrays with other layouts, and the steps that forward and backward functions are built from: maps, sums, copies; see
 * op.h. */
#include "ops/common/op.h"
#include "kernels/composed.h"

static tg_array with_layout(tg_array a, int ndim, const int64_t *shape, const int64_t *stride) {
    a.ndim = (uint8_t)ndim;
    a.shape = shape;
    a.stride = stride;
    a.numel = 1;
    for (int d = 0; d < ndim; d++) a.numel *= shape[d];
    a.contiguous = tg_is_row_major(ndim, shape, stride);
    return a;
}

static void *element(tg_array a, int64_t offset) {
    return a.data ? (char *)a.data + offset * (int64_t)tg_dtype_size((tg_dtype)a.dtype) : NULL;
}

tg_array tg_array_at(tg_array a, int64_t offset, int ndim, const int64_t *shape, const int64_t *stride) {
    a.data = element(a, offset);
    return with_layout(a, ndim, shape, stride);
}

tg_array tg_array_expand(tg_array a, int ndim, const int64_t *shape, int64_t *stride) {
    int front = ndim - a.ndim;
    for (int d = 0; d < ndim; d++)
        stride[d] = d < front || (a.shape[d - front] == 1 && shape[d] != 1) ? 0 : a.stride[d - front];
    return with_layout(a, ndim, shape, stride);
}

tg_array tg_array_permute(tg_array a, const int *order, int64_t *shape, int64_t *stride) {
    for (int d = 0; d < a.ndim; d++) {
        shape[d] = a.shape[order[d]];
        stride[d] = a.stride[order[d]];
    }
    return with_layout(a, a.ndim, shape, stride);
}

tg_array tg_array_last(tg_array a, int dim, tg_extent *e) {
    int order[TG_MAX_DIMS], last = a.ndim - 1;
    if (dim == last) return a;
    for (int d = 0; d < last; d++) order[d] = d < dim ? d : d + 1;
    order[last] = dim;
    return tg_array_permute(a, order, e->shape, e->stride);
}

tg_array tg_array_slice(tg_array a, int dim, int64_t start, int64_t n, int64_t step, tg_extent *e) {
    memcpy(e->shape, a.shape, a.ndim * sizeof *a.shape);
    memcpy(e->stride, a.stride, a.ndim * sizeof *a.stride);
    e->shape[dim] = n;
    e->stride[dim] *= step;
    a.data = element(a, start * a.stride[dim]);
    return with_layout(a, a.ndim, e->shape, e->stride);
}

tg_array tg_array_narrow(tg_array a, const int64_t *shape, int but, tg_extent *e) {
    int64_t kept = a.shape[but];
    memcpy(e->shape, shape, a.ndim * sizeof *shape);
    e->shape[but] = kept;
    return with_layout(a, a.ndim, e->shape, a.stride);
}

tg_array tg_array_keep(tg_array a, int ndim, uint32_t mask, tg_extent *e) {
    for (int d = 0, from = 0; d < ndim; d++) {
        bool reduced = mask >> d & 1;
        /* The array `a` either lacks the reduced dims or has them with size 1. */
        if (reduced && a.ndim == ndim) from++;
        e->shape[d] = reduced ? 1 : a.shape[from];
        e->stride[d] = reduced ? 0 : a.stride[from++];
    }
    return with_layout(a, ndim, e->shape, e->stride);
}

bool tg_reshape_strides(int ndim, const int64_t *shape, const int64_t *stride, int n, const int64_t *want,
                        int64_t *out) {
    int64_t old[TG_MAX_DIMS], step_of[TG_MAX_DIMS], numel = 1;
    int m = 0, w = n - 1;
    for (int d = 0; d < ndim; d++) {
        numel *= shape[d];
        if (shape[d] == 1) continue;
        old[m] = shape[d];
        step_of[m++] = stride[d];
    }
    if (numel == 0) return tg_row_major(n, want, out) == 0;
    /* Neighboring dims without a gap in memory between them form a chunk. The new dims must fill each chunk exactly. */
    for (int d = m - 1; d >= 0; d--) {
        int64_t chunk = old[d], step = step_of[d], size = 1;
        while (d > 0 && step_of[d - 1] == step * chunk) chunk *= old[--d];
        for (; w >= 0 && size < chunk; w--) {
            out[w] = step * size;
            size *= want[w];
        }
        if (size != chunk) return false;
    }
    for (; w >= 0; w--) out[w] = 1;
    return true;
}

bool tg_array_reshape(tg_array *a, int n, const int64_t *shape, int64_t *stride) {
    if (!tg_reshape_strides(a->ndim, a->shape, a->stride, n, shape, stride)) return false;
    *a = with_layout(*a, n, shape, stride);
    return true;
}

/* Does what tg_array_of does, but writes the fields to *a one by one. If a struct is copied as a whole right after its
 * fields were written, the processor must wait for those small writes. */
static inline void array_at(tg_array *a, const tg_tensor *x) {
    a->data = tg_data(x);
    a->shape = x->shape;
    a->stride = x->stride;
    a->numel = x->numel;
    a->ndim = x->ndim;
    a->dtype = x->dtype;
    a->contiguous = (x->flags & TG_F_CONTIGUOUS) != 0;
}

/* The greatest number of inputs of a formula. */
enum { MAP_INPUTS = 4 };

tg_status tg_op_map(tg_call *c, tg_formula f, const tg_tensor *out, const tg_tensor *const *in, int n_in, double p,
                    double q, bool add) {
    tg_array y, a[MAP_INPUTS];
    int64_t stride[MAP_INPUTS][TG_MAX_DIMS];
    array_at(&y, out);
    for (int i = 0; i < n_in; i++) {
        array_at(&a[i], in[i]);
        if (!tg_same_shape(in[i], out)) a[i] = tg_array_expand(a[i], out->ndim, out->shape, stride[i]);
    }
    return c->ctx->run.ops->apply(c->ctx, f, y, a, n_in, (const double[2]){p, q}, add);
}

/* The gradient of input i (+)= scale * (g, summed over the dims in which input i was broadcast). */
static tg_status sum_into(tg_call *c, int i, const tg_tensor *g, double scale) {
    int64_t stride[TG_MAX_DIMS];
    tg_extent e;
    const tg_tensor *x = tg_call_gin(c, i);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    int front = g->ndim - x->ndim;
    for (int d = 0; d < g->ndim; d++) e.shape[d] = d < front ? 1 : x->shape[d - front];
    tg_array to = tg_array_expand(tg_array_of(x), g->ndim, e.shape, stride);
    return tg_ctx_ops(c->ctx)->reduce(c->ctx, TG_SUM, to, tg_array_of(g), scale, tg_adds(c, i));
}

tg_status tg_op_map_grad(tg_call *c, int i, tg_formula f, const tg_tensor *const *in, int n_in, double p, double q) {
    if (c->gin_mode[i] == TG_GRAD_NONE) return TG_OK;
    const tg_tensor *x = tg_call_gin(c, i), *y = c->out[0];
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    if (tg_same_shape(x, y)) return tg_op_map(c, f, x, in, n_in, p, q, tg_adds(c, i));
    tg_tensor *whole = tg_call_temp(c, tg_accumulate_dtype((tg_dtype)x->dtype), y->ndim, y->shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_op_map(c, f, whole, in, n_in, p, q, false));
    return sum_into(c, i, whole, 1);
}

tg_status tg_op_sum_to(tg_call *c, int i, tg_tensor *g, double scale) {
    if (c->gin_mode[i] == TG_GRAD_NONE) return TG_OK;
    if (!tg_same_shape(c->input[i], g)) return sum_into(c, i, g, scale);
    if (scale == 1 && g->dtype == c->input[i]->dtype) return tg_call_pass(c, i, g);
    const tg_tensor *x = tg_call_gin(c, i);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    if (scale == 1) return tg_op_copy(c, tg_array_of(x), tg_array_of(g), tg_adds(c, i));
    return tg_op_map(c, TG_FN_affine, x, TG_T1(g), 1, scale, 0, tg_adds(c, i));
}

tg_status tg_op_pass_view(tg_call *c, int i, tg_tensor *g, int64_t offset, int ndim, const int64_t *shape,
                          const int64_t *stride) {
    if (c->gin_mode[i] == TG_GRAD_NONE) return TG_OK;
    tg_tensor *view = tg_call_view_of(c, g, offset, ndim, shape, stride);
    return tg_ok(c->ctx) ? tg_call_pass(c, i, view) : c->ctx->run.status;
}

tg_status tg_op_copy(tg_call *c, tg_array to, tg_array from, bool add) {
    return tg_ctx_ops(c->ctx)->apply(c->ctx, TG_FN_id, to, &from, 1, (const double[2]){0}, add);
}

tg_status tg_op_scan(tg_call *c, tg_reduction kind, tg_array y, tg_array x, bool back, bool add) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    return (ops->scan ? ops->scan : tg_composed_scan)(c->ctx, kind, y, x, back, add);
}

tg_status tg_op_put(tg_call *c, tg_array dst, tg_array src, tg_array index, int dim, int64_t *bad) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    return (ops->put ? ops->put : tg_composed_put)(c->ctx, dst, src, index, dim, bad);
}

tg_status tg_op_zero(tg_call *c, int i) {
    if (c->gin_mode[i] != TG_GRAD_WRITE) return TG_OK;
    const tg_tensor *x = tg_call_gin(c, i);
    return tg_ok(c->ctx) ? tg_ctx_ops(c->ctx)->fill(c->ctx, tg_array_of(x), 0) : c->ctx->run.status;
}

tg_status tg_op_bad(tg_call *c, int64_t bad, const char *what) {
    if (TG_LIKELY(bad == 0)) return TG_OK;
    return tg_call_fail(c, TG_ERR_DATA, "element %lld of %s is out of range", (long long)bad - 1, what);
}
