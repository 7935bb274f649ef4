/* Shapes and strides: sizes, text, checks, and whether elements of a layout share an address. */
#include "base/text.h"
#include "core/context.h"

int64_t tg_row_major(int ndim, const int64_t *shape, int64_t *stride) {
    int64_t numel = 1, step = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        if (stride) stride[i] = step;
        if (__builtin_mul_overflow(step, shape[i] > 1 ? shape[i] : 1, &step)) return -1;
        numel = shape[i] == 0 || numel == 0 ? 0 : step;
    }
    return numel;
}

/* Looks for two indices with the same address. Returns whether there are steps k[d] from -most[d] to most[d] along the
 * n dims such that `distance` plus the sum of k[d] * stride[d] is 0: two indices that differ by k have the same
 * address. At least one step must not be 0, unless `moved` says that the caller has already taken such a step.
 *
 * Strides ascend. The last dim is tried first, with only those values of its k whose distance the other dims can make
 * up for. In an ordinary matrix that is the value 0 alone. Because k and -k are equivalent, the first k[d] that is not
 * 0 need only be positive. */
static bool reaches_zero(int n, const int64_t *most, const int64_t *stride, int64_t distance, bool moved) {
    int64_t rest = 0;
    if (!n--) return moved && distance == 0;
    for (int d = 0; d < n; d++) rest += most[d] * stride[d];
    int64_t k = distance < -rest ? (-rest - distance + stride[n] - 1) / stride[n] : -((rest + distance) / stride[n]);
    if (k < -most[n]) k = -most[n];
    if (!moved && k < 0) k = 0;
    for (; k <= most[n] && distance + k * stride[n] <= rest; k++)
        if (reaches_zero(n, most, stride, distance + k * stride[n], moved || k)) return true;
    return false;
}

bool tg_shares_elements(const tg_tensor *x) {
    int64_t most[TG_MAX_DIMS], stride[TG_MAX_DIMS];
    int n = 0;
    if (x->flags & TG_F_CONTIGUOUS || x->numel == 0) return false;
    for (int d = 0, at; d < x->ndim; d++) {
        int64_t step = x->stride[d] < 0 ? -x->stride[d] : x->stride[d]; /* a reversed dim has the same addresses */
        if (x->shape[d] == 1) continue;
        if (step == 0) return true;
        for (at = n++; at > 0 && stride[at - 1] > step; at--) {
            stride[at] = stride[at - 1];
            most[at] = most[at - 1];
        }
        stride[at] = step;
        most[at] = x->shape[d] - 1;
    }
    return reaches_zero(n, most, stride, 0, false);
}

bool tg_is_row_major(int ndim, const int64_t *shape, const int64_t *stride) {
    int64_t step = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        if (shape[i] == 0) return true;
        if (shape[i] != 1 && stride[i] != step) return false;
        step *= shape[i];
    }
    return true;
}

tg_shape tg_shape_make(size_t n, const int64_t *dims) {
    tg_shape s = {.ndim = n <= TG_MAX_DIMS && (dims || !n) ? (int64_t)n : TG_MAX_DIMS + 1};
    for (size_t i = 0; dims && i < n && i < TG_MAX_DIMS; i++) s.dim[i] = dims[i];
    return s;
}

tg_dims tg_dims_make(size_t n, const int64_t *dims) {
    tg_dims d = {.n = n <= TG_MAX_DIMS && (dims || !n) ? (int)n : TG_MAX_DIMS + 1};
    for (size_t i = 0; dims && i < n && i < TG_MAX_DIMS; i++)
        d.dim[i] = dims[i] < INT32_MIN ? INT32_MIN : dims[i] > INT32_MAX ? INT32_MAX : (int)dims[i];
    return d;
}

size_t tg_shape_text(int ndim, const int64_t *shape, char *buf, size_t n) {
    size_t at = 0;
    tg_text(buf, n, &at, "[");
    for (int i = 0; i < ndim; i++) tg_text(buf, n, &at, "%s%lld", i ? ", " : "", (long long)shape[i]);
    tg_text(buf, n, &at, "]");
    return at;
}

tg_status tg_shape_check(tg_ctx *ctx, const tg_shape *s, tg_dtype dtype, const char *what) {
    if (s->ndim < 0 || s->ndim > TG_MAX_DIMS)
        return tg_fail(ctx, TG_ERR_SHAPE, "%s: %s, expected 0 to %d", what, tg_count(s->ndim, "dim").text, TG_MAX_DIMS);
    for (int i = 0; i < s->ndim; i++)
        if (s->dim[i] < 0)
            return tg_fail(ctx, TG_ERR_SHAPE, "%s: dim %d is %lld, expected 0 or more", what, i, (long long)s->dim[i]);
    if (!tg_is_stored(dtype))
        return tg_fail(ctx, TG_ERR_DTYPE,
                       "%s: dtype %s (%d), expected one of f32 f64 bf16 f16 i64 i32 u8 i8 i16 u16 u32 u64 bool f8e4m3 "
                       "f8e5m2 f8e8m0",
                       what, tg_dtype_name(dtype), (int)dtype);
    int64_t numel = tg_row_major((int)s->ndim, s->dim, NULL), bytes;
    if (numel < 0 || __builtin_mul_overflow(numel, (int64_t)tg_dtype_size(dtype), &bytes))
        return tg_fail(ctx, TG_ERR_SHAPE, "%s: the number of bytes overflows 63 bits", what);
    return TG_OK;
}
