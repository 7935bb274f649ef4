/* Helpers for the infer functions of ops: checks of dtypes and dims, and output shapes; see op.h. */
#include "ops/common/op.h"

#include <math.h>

static tg_dtype dtype_of(const tg_call *c, int i) { return (tg_dtype)c->input[i]->dtype; }

tg_status tg_need_float(tg_call *c, int i) {
    tg_dtype d = dtype_of(c, i);
    if (TG_LIKELY(tg_is_float(d))) return TG_OK;
    return tg_call_fail(c, TG_ERR_DTYPE, "input %d is %s; it must be f32, f64, bf16 or f16", i, tg_dtype_name(d));
}

tg_status tg_need_number(tg_call *c, int i) {
    tg_dtype d = dtype_of(c, i);
    if (TG_LIKELY(tg_is_number(d))) return TG_OK;
    return tg_call_fail(c, TG_ERR_DTYPE, "input %d is %s; it must have a float or an integer dtype", i,
                        tg_dtype_name(d));
}

tg_status tg_need_index(tg_call *c, int i) {
    tg_dtype d = dtype_of(c, i);
    if (TG_LIKELY(d == TG_I64 || d == TG_I32)) return TG_OK;
    return tg_call_fail(c, TG_ERR_DTYPE, "input %d holds indices but is %s; it must be i64 or i32 (tg_cast "
                        "converts)", i, tg_dtype_name(d));
}

tg_status tg_need_bool(tg_call *c, int i) {
    tg_dtype d = dtype_of(c, i);
    if (TG_LIKELY(d == TG_BOOL)) return TG_OK;
    return tg_call_fail(c, TG_ERR_DTYPE, "input %d is a mask but is %s; it must be bool", i, tg_dtype_name(d));
}

tg_status tg_need_same_dtype(tg_call *c, int i, int j) {
    if (TG_LIKELY(dtype_of(c, i) == dtype_of(c, j))) return TG_OK;
    return tg_call_fail(c, TG_ERR_DTYPE, "input %d is %s and input %d is %s; they must have one dtype (tg_cast "
                        "converts)", i, tg_dtype_name(dtype_of(c, i)), j, tg_dtype_name(dtype_of(c, j)));
}

tg_status tg_need_made(tg_call *c, tg_dtype *dtype) {
    if (*dtype == TG_DTYPE_DEFAULT) *dtype = c->ctx->dtype;
    if (tg_is_computed(*dtype)) return TG_OK;
    return tg_call_fail(c, TG_ERR_DTYPE, "tensors of dtype %s cannot be made", tg_dtype_name(*dtype));
}

tg_status tg_need_axis(tg_call *c, int ndim, int *dim) {
    int d = *dim < 0 ? *dim + ndim : *dim;
    if (TG_LIKELY(d >= 0 && d < ndim)) {
        *dim = d;
        return TG_OK;
    }
    if (ndim == 0) return tg_call_fail(c, TG_ERR_SHAPE, "dim is %d, but the tensor is a scalar and has no dims", *dim);
    return tg_call_fail(c, TG_ERR_SHAPE, "dim %d is out of range; it must be from %d to %d", *dim, -ndim, ndim - 1);
}

tg_status tg_need_dim(tg_call *c, int i, int *dim) { return tg_need_axis(c, c->input[i]->ndim, dim); }

tg_status tg_need_dims(tg_call *c, int i, tg_dims dims, uint32_t *mask) {
    int ndim = c->input[i]->ndim;
    if (dims.n > TG_MAX_DIMS) return tg_call_fail(c, TG_ERR_SHAPE, "dims lists more than %d dims, the most that a "
                                                  "tensor has", TG_MAX_DIMS);
    *mask = dims.n < 0 ? (1u << ndim) - 1 : 0;
    for (int k = 0; k < dims.n; k++) {
        int d = dims.dim[k];
        TG_TRY(tg_need_axis(c, ndim, &d));
        if (*mask >> d & 1) return tg_call_fail(c, TG_ERR_SHAPE, "dim %d is listed twice in dims", d);
        *mask |= 1u << d;
    }
    return TG_OK;
}

/* Computes the range of an integer dtype or bool. Both bounds are doubles, so the upper bound of int64 is the greatest
 * double below 2^63, and that of uint64 the greatest below 2^64. */
static void integer_range(tg_dtype d, double *lo, double *hi) {
    bool is_signed = tg_is_signed(d);
    int bits = d == TG_BOOL ? 1 : tg_dtype_bits(d) - is_signed;
    *lo = is_signed ? -ldexp(1, bits) : 0;
    *hi = bits > 53 ? ldexp(1 - 0x1p-53, bits) : ldexp(1, bits) - 1;
}

tg_status tg_need_value(tg_call *c, tg_dtype dtype, double value, const char *what) {
    double lo, hi;
    if (tg_is_float(dtype)) return TG_OK;
    integer_range(dtype, &lo, &hi);
    if (TG_LIKELY(value >= lo && value <= hi && value == floor(value))) return TG_OK;
    return tg_call_fail(c, TG_ERR_ARGUMENT, "%s is %g; it must be an integer from %g to %g for dtype %s", what, value,
                        lo, hi, tg_dtype_name(dtype));
}

tg_status tg_infer_same(tg_call *c) {
    const tg_tensor *x = c->input[0];
    return tg_call_out(c, 0, (tg_dtype)x->dtype, x->ndim, x->shape);
}

tg_status tg_infer_float(tg_call *c) {
    TG_TRY(tg_need_float(c, 0));
    return tg_infer_same(c);
}

/* Replaces shape, which has *ndim dims, by the shape to which it and the shape of x broadcast. */
static tg_status broadcast_with(tg_call *c, const tg_tensor *x, int *ndim, int64_t *shape) {
    while (*ndim < x->ndim) {
        memmove(shape + 1, shape, (size_t)*ndim * sizeof *shape);
        shape[0] = 1;
        ++*ndim;
    }
    for (int d = 0; d < x->ndim; d++) {
        int64_t *s = &shape[*ndim - x->ndim + d], n = x->shape[d];
        if (*s == 1) *s = n;
        if (TG_UNLIKELY(*s != n && n != 1))
            return tg_call_fail(c, TG_ERR_SHAPE, "sizes %lld and %lld of dim %d do not broadcast; they must be equal, "
                                "or one of them 1", (long long)*s, (long long)n, d - x->ndim);
    }
    return TG_OK;
}

static bool same_shapes(const tg_call *c) {
    for (int i = 1; i < c->n_in; i++)
        if (!tg_same_shape(c->input[0], c->input[i])) return false;
    return true;
}

tg_status tg_infer_broadcast(tg_call *c, int first, tg_dtype dtype) {
    int ndim = 0;
    int64_t shape[TG_MAX_DIMS] = {0};
    for (int i = first + 1; i < c->n_in; i++) TG_TRY(tg_need_same_dtype(c, first, i));
    if (!dtype) dtype = dtype_of(c, first);
    if (TG_LIKELY(same_shapes(c))) return tg_call_out(c, 0, dtype, c->input[0]->ndim, c->input[0]->shape);
    for (int i = 0; i < c->n_in; i++) TG_TRY(broadcast_with(c, c->input[i], &ndim, shape));
    return tg_call_out(c, 0, dtype, ndim, shape);
}
