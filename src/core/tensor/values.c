/* Reads and writes of a tensor's values by the host. They wait for any work that fills the tensor. */
#include <math.h>
#include <tapegrad/work.h>

#include "core/capture/capture.h"
#include "core/memory/copies.h"
#include "core/memory/mapping.h"
#include "core/work.h"
#include "kernels/scalar.h"

/* Makes the checks that the public functions of this file share, and makes the bytes present. */
static tg_status begin_access(tg_tensor *x, const char *who, bool read, const void *site) {
    if (!x) return TG_ERR_ARGUMENT;
    tg_ctx *ctx = x->ctx;
    if (!tg_ok(ctx)) return tg_ctx_status(ctx);
    TG_TRY(tg_check(ctx, x, who));
    TG_TRY(tg_recording_refuse(ctx, who, read ? TG_RECORDING_READ : TG_RECORDING_WRITE, site));
    if (ctx->meta) return tg_fail(ctx, TG_ERR_DEVICE, "%s: a tensor of device \"meta\" has no values", who);
    if (read) TG_TRY(tg_mappings_check(ctx));
    return tg_storage_need(x->storage, x);
}

tg_status tg_refuse_partial(const tg_tensor *x, const char *who) {
    if (TG_LIKELY(!(x->flags & TG_F_PARTIAL))) return TG_OK;
    return tg_fail(x->ctx, TG_ERR_STATE,
                   "%s: this gradient is one rank's share of a sum; call tg_grads_finalize first, or read the share "
                   "(tg_grad_share)",
                   who);
}

/* Converts between x and a row-major host buffer, on a device that reads and writes the memory of the host. */
static tg_status convert(tg_tensor *x, tg_dtype dtype, void *host, bool read) {
    tg_ctx *ctx = x->ctx;
    int64_t stride[TG_MAX_DIMS];
    const double none[2] = {0, 0};
    tg_row_major(x->ndim, x->shape, stride);
    tg_array outer = tg_array_of(x), inner = outer;
    inner.data = host;
    inner.dtype = (uint8_t)dtype;
    inner.stride = stride;
    inner.contiguous = true;
    TG_TRY(ctx->run.ops->apply(ctx, TG_FN_id, read ? inner : outer, read ? &outer : &inner, 1, none, false));
    return ctx->run.ops->sync(ctx);
}

/* Copies between x and a row-major host buffer of this dtype, through a row-major staging tensor if needed. */
static tg_status transfer(tg_tensor *x, tg_dtype dtype, void *host, bool read) {
    tg_ctx *ctx = x->ctx;
    size_t bytes = (size_t)x->numel * tg_dtype_size(dtype);
    if (!bytes) return TG_OK;
    tg_copy_kind kind = read ? TG_COPY_TO_HOST : TG_COPY_FROM_HOST;
    if (dtype == x->dtype && x->flags & TG_F_CONTIGUOUS)
        return ctx->run.ops->copy(ctx, read ? host : tg_data(x), read ? tg_data(x) : host, bytes, kind);
    if (ctx->host) return convert(x, dtype, host, read);
    const double none[2] = {0, 0};
    tg_tensor *stage = tg_temp_empty(ctx, dtype, x->ndim, x->shape, TG_MEM_TEMPORARY);
    if (!stage) return ctx->run.status;
    tg_array outer = tg_array_of(x), inner = tg_array_of(stage);
    tg_status s = read ? ctx->run.ops->apply(ctx, TG_FN_id, inner, &outer, 1, none, false)
                       : ctx->run.ops->copy(ctx, inner.data, host, bytes, kind);
    if (s == TG_OK)
        s = read ? ctx->run.ops->copy(ctx, host, inner.data, bytes, kind)
                 : ctx->run.ops->apply(ctx, TG_FN_id, outer, &inner, 1, none, false);
    tg_temp_free(stage);
    return s;
}

double tg_item(tg_tensor *x) {
    if (begin_access(x, "tg_item", true, TG_SITE) != TG_OK || tg_refuse_partial(x, "tg_item") != TG_OK) return NAN;
    if (x->numel != 1) {
        char what[160];
        tg_describe(x, what, sizeof what);
        tg_fail(x->ctx, TG_ERR_SHAPE, "tg_item: the tensor is %s, expected one element", what);
        return NAN;
    }
    double v;
    return transfer(x, TG_F64, &v, true) == TG_OK ? v : NAN;
}

/* Begins an access to all bytes of x, for which the caller gave a buffer p of this many bytes. */
static tg_status begin_bytes(tg_tensor *x, const void *p, size_t bytes, const char *who, bool read, const void *site) {
    TG_TRY(begin_access(x, who, read, site));
    size_t expected = (size_t)x->numel * tg_dtype_size(x->dtype);
    if (bytes != expected)
        return tg_fail(x->ctx, TG_ERR_ARGUMENT, "%s: %zu bytes given, the tensor has %zu", who, bytes, expected);
    if (!p && bytes) return tg_fail(x->ctx, TG_ERR_ARGUMENT, "%s: the buffer is NULL", who);
    return TG_OK;
}

tg_status tg_read(tg_tensor *x, void *dst, size_t bytes) {
    TG_TRY(begin_bytes(x, dst, bytes, "tg_read", true, TG_SITE));
    TG_TRY(tg_refuse_partial(x, "tg_read"));
    return transfer(x, x->dtype, dst, true);
}

tg_status tg_refuse_shared_elements(const tg_tensor *x, const char *who) {
    for (int i = 0; i < x->ndim; i++)
        if (x->stride[i] == 0 && x->shape[i] > 1)
            return tg_fail(x->ctx, TG_ERR_STATE,
                           "%s: dim %d is expanded, so its elements share memory; write to a copy", who, i);
    if (tg_shares_elements(x))
        return tg_fail(x->ctx, TG_ERR_STATE,
                       "%s: the tensor's strides overlap, so its elements share memory; write to a copy", who);
    return TG_OK;
}

static tg_status begin_write(tg_tensor *x, const char *who, const void *site) {
    TG_TRY(tg_refuse_shared_elements(x, who));
    TG_TRY(tg_storage_check_write(x->storage, who));
    TG_TRY(tg_storage_await_readers(x->storage));
    tg_storage_wrote(x->storage, who, site);
    tg_tensor_given(x);
    return TG_OK;
}

tg_status tg_write(tg_tensor *x, const void *src, size_t bytes) {
    TG_TRY(begin_bytes(x, src, bytes, "tg_write", false, TG_SITE));
    TG_TRY(begin_write(x, "tg_write", TG_SITE));
    return transfer(x, x->dtype, (void *)src, false);
}

/* Begins an access to all elements of x, for which the caller gave a buffer p of n elements. */
static tg_status begin_elements(tg_tensor *x, const void *p, int64_t n, const char *who, bool read, const void *site) {
    TG_TRY(begin_access(x, who, read, site));
    if (n != x->numel)
        return tg_fail(x->ctx, TG_ERR_ARGUMENT, "%s: %s given, the tensor has %lld", who, tg_count(n, "element").text,
                       (long long)x->numel);
    if (!p && n) return tg_fail(x->ctx, TG_ERR_ARGUMENT, "%s: the buffer is NULL", who);
    return TG_OK;
}

tg_status tg_read_f64(tg_tensor *x, double *dst, int64_t n) {
    TG_TRY(begin_elements(x, dst, n, "tg_read_f64", true, TG_SITE));
    TG_TRY(tg_refuse_partial(x, "tg_read_f64"));
    return transfer(x, TG_F64, dst, true);
}

tg_status tg_write_f64(tg_tensor *x, const double *src, int64_t n) {
    TG_TRY(begin_elements(x, src, n, "tg_write_f64", false, TG_SITE));
    TG_TRY(begin_write(x, "tg_write_f64", TG_SITE));
    return transfer(x, TG_F64, (void *)src, false);
}

/* ---- Copies that run in parallel with the device's work ---- */

tg_status tg_upload(tg_tensor *x, const void *src, size_t bytes) {
    TG_TRY(begin_bytes(x, src, bytes, "tg_upload", false, TG_SITE));
    TG_TRY(begin_write(x, "tg_upload", TG_SITE));
    return x->flags & TG_F_CONTIGUOUS ? tg_copies_upload(x, src, bytes) : transfer(x, x->dtype, (void *)src, false);
}

/* Starts a copy of x to dst, through a row-major tensor of the wanted dtype unless x already is one. */
static tg_work *download(tg_tensor *x, tg_dtype dtype, void *dst) {
    tg_ctx *ctx = x->ctx;
    size_t bytes = (size_t)x->numel * tg_dtype_size(dtype);
    if (!bytes || (dtype == x->dtype && x->flags & TG_F_CONTIGUOUS)) return tg_copies_download(x, dst, bytes, false);
    const double none[2] = {0, 0};
    tg_tensor *stage = tg_temp_empty(ctx, dtype, x->ndim, x->shape, TG_MEM_TEMPORARY);
    if (!stage) return NULL;
    tg_array outer = tg_array_of(x);
    tg_status s = ctx->run.ops->apply(ctx, TG_FN_id, tg_array_of(stage), &outer, 1, none, false);
    tg_work *w = s == TG_OK ? tg_copies_download(stage, dst, bytes, true) : NULL;
    tg_temp_free(stage); /* the work still holds the bytes of stage */
    return w;
}

tg_work *tg_download(tg_tensor *x, void *dst, size_t bytes) {
    if (begin_bytes(x, dst, bytes, "tg_download", true, TG_SITE) != TG_OK ||
        tg_refuse_partial(x, "tg_download") != TG_OK)
        return NULL;
    return download(x, x->dtype, dst);
}

tg_work *tg_download_f64(tg_tensor *x, double *dst, int64_t n) {
    if (begin_elements(x, dst, n, "tg_download_f64", true, TG_SITE) != TG_OK ||
        tg_refuse_partial(x, "tg_download_f64") != TG_OK)
        return NULL;
    return download(x, TG_F64, dst);
}

void *tg_host_data(tg_tensor *x) {
    if (begin_access(x, "tg_host_data", true, TG_SITE) != TG_OK || tg_refuse_partial(x, "tg_host_data") != TG_OK)
        return NULL;
    if (x->ctx->host) return tg_data(x);
    tg_fail(x->ctx, TG_ERR_DEVICE, "tg_host_data: the bytes are on device \"%s\"; use tg_read", x->ctx->run.ops->name);
    return NULL;
}
