/* Tensors on memory that the library does not own: the program's (tg_wrap), or that of another library (dlpack.h). */
#include "core/context.h"

/* Sets *bytes to the size of the memory that the strides reach, and *first to the position of element [0, 0, ..] in it,
 * which is not 0 if strides are negative. */
static tg_status wrapped_bytes(tg_ctx *ctx, const tg_shape *shape, const int64_t *stride, tg_dtype dtype, size_t *bytes,
                               int64_t *first, const char *who) {
    int64_t low = 0, high = 0, step;
    bool empty = false;
    for (int i = 0; i < shape->ndim; i++) {
        empty |= shape->dim[i] == 0;
        if (shape->dim[i] < 2) continue;
        int64_t *end = stride[i] < 0 ? &low : &high;
        if (__builtin_mul_overflow(shape->dim[i] - 1, stride[i], &step) || __builtin_add_overflow(*end, step, end) ||
            high > INT64_MAX / 32 || low < -(INT64_MAX / 32))
            return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: the strides span more bytes than 63 bits can count", who);
    }
    *bytes = empty ? 0 : (size_t)(high - low + 1) * tg_dtype_size(dtype);
    *first = empty ? 0 : -low;
    return TG_OK;
}

tg_tensor *tg_owned_on(tg_ctx *ctx, tg_dtype dtype, const tg_shape *shape, const int64_t *strides, void *data,
                       void (*release)(void *), void *user, const char *who) {
    int64_t row_major[TG_MAX_DIMS], first = 0;
    size_t bytes = 0;
    if (!dtype) dtype = ctx->dtype;
    if (tg_shape_check(ctx, shape, dtype, who) != TG_OK) return NULL;
    tg_row_major((int)shape->ndim, shape->dim, row_major);
    if (wrapped_bytes(ctx, shape, strides ? strides : row_major, dtype, &bytes, &first, who) != TG_OK) return NULL;
    if ((!data && bytes) || (uintptr_t)data % tg_dtype_size(dtype)) {
        tg_fail(ctx, TG_ERR_ARGUMENT, "%s: data is %p, expected memory aligned to %zu bytes", who, data,
                tg_dtype_size(dtype));
        return NULL;
    }
    /* A tensor without elements may have any address but NULL, because kernels treat an array at NULL as absent. */
    char *lowest = data ? (char *)data - (size_t)first * tg_dtype_size(dtype) : (char *)ctx;
    tg_storage *s = tg_storage_wrap(ctx, lowest, bytes, release, user);
    if (!s) return NULL;
    /* If tg_owned_new fails, it drops its reference to s. The reference taken here keeps s alive until
     * s->extra->release has been set to NULL: the caller calls release after a failure, and release must be called only
     * once. */
    tg_storage_ref(s);
    tg_tensor *x = tg_owned_new(ctx, dtype, (int)shape->ndim, shape->dim, strides, s, first);
    if (x) x->flags |= TG_F_GIVEN;
    if (!x && s->extra) s->extra->release = NULL;
    tg_storage_unref(s);
    return x;
}

static tg_status check_host(tg_ctx *ctx) {
    if (ctx->host && !ctx->meta) return TG_OK;
    return tg_fail(ctx, TG_ERR_DEVICE, "tg_wrap: device \"%s\" cannot use the caller's host memory",
                   ctx->run.ops->name);
}

tg_tensor *tg_wrap(tg_ctx *ctx, tg_dtype dtype, tg_shape shape, const int64_t *strides, void *data,
                   void (*release)(void *), void *user) {
    tg_tensor *x = NULL;
    if (tg_ok(ctx) && check_host(ctx) == TG_OK)
        x = tg_owned_on(ctx, dtype, &shape, strides, data, release, user, "tg_wrap");
    if (!x && release) release(user);
    return x ? x : tg_inert(ctx ? ctx : &tg_dead_ctx);
}
