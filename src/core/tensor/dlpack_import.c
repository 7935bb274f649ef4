/* Imports tensors by DLPack: memory of another library, which is given back by the deleter when nothing needs it. */
#include "core/tensor/dlpack.h"

#include "base/memory/host_memory.h"
#include "base/text.h"

/* What is imported: one of the two is not NULL. */
typedef struct managed {
    tg_ctx *ctx;
    tg_dl_unversioned *unversioned;
    tg_dl_versioned *versioned;
} managed;

/* ---- The end of an import ---- */

/* Calls the deleter of the other library, if there is one. */
static void give_back(const managed *m) {
    if (m->unversioned && m->unversioned->deleter) m->unversioned->deleter(m->unversioned);
    if (m->versioned && m->versioned->deleter) m->versioned->deleter(m->versioned);
}

/* Called when the storage ends. Queued work of the device may still use the memory. */
static void release(void *user) {
    managed *m = user;
    tg_ctx *ctx = m->ctx;
    if (!ctx->host) ctx->run.ops->sync(ctx);
    give_back(m);
    tg_host_free(ctx, m, sizeof *m);
}

/* ---- Checks ---- */

/* Writes the name of a dtype, as "int16", "float8_e4m3fn" or "float32x4". */
static void name_dtype(tg_dl_dtype d, char *buf, size_t n) {
    static const char *const name[] = {
        "int", "uint", "float", "opaque", "bfloat", "complex", "bool", "float8_e3m4", "float8_e4m3",
        "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
        "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"};
    size_t at = 0;
    if (d.code < TG_LEN(name))
        tg_text(buf, n, &at, "%s", name[d.code]);
    else
        tg_text(buf, n, &at, "of code %d with bits ", d.code);
    if (d.code <= TG_DL_BOOL || d.code >= TG_LEN(name)) tg_text(buf, n, &at, "%d", d.bits);
    if (d.lanes != 1) tg_text(buf, n, &at, "x%d", d.lanes);
}

/* Returns our dtype for that of DLPack, or TG_DTYPE_DEFAULT after recording the error. */
static tg_dtype dtype_from(tg_ctx *ctx, tg_dl_dtype d, const char *who) {
    char name[64];
    for (int i = TG_DTYPE_DEFAULT + 1; i < TG_DTYPE_COUNT; i++) {
        tg_dl_dtype of = tg_dl_dtype_of((tg_dtype)i);
        if (of.bits && of.code == d.code && of.bits == d.bits && d.lanes == 1) return (tg_dtype)i;
    }
    name_dtype(d, name, sizeof name);
    tg_fail(ctx, TG_ERR_DTYPE,
            "%s: dtype %s, expected float32, float64, bfloat16, float16, an integer of 8 to 64 bits, bool, "
            "float8_e4m3fn, float8_e5m2 or float8_e8m0fnu; convert it first",
            who, name);
    return TG_DTYPE_DEFAULT;
}

/* Host memory that a GPU can access as well is memory of the CPU; managed memory is memory of the GPU. */
static tg_status check_device(tg_ctx *ctx, tg_dl_device given, const char *who) {
    tg_dl_device own;
    TG_TRY(tg_dl_device_of(ctx, &own, who));
    if (given.device_type == TG_DL_CUDA_HOST) given = (tg_dl_device){TG_DL_CPU, 0};
    if (given.device_type == TG_DL_CUDA_MANAGED) given.device_type = TG_DL_CUDA;
    if (given.device_type == own.device_type && (given.device_type == TG_DL_CPU || given.device_id == own.device_id))
        return TG_OK;
    return tg_fail(ctx, TG_ERR_DEVICE,
                   "%s: the memory is on device type %d, number %d of DLPack, but the context is on type %d, number %d "
                   "(1 is the CPU, 2 CUDA); copy the tensor to the context's device first",
                   who, (int)given.device_type, (int)given.device_id, (int)own.device_type, (int)own.device_id);
}

static tg_status check_dims(tg_ctx *ctx, const tg_dl_tensor *d, tg_shape *shape, const char *who) {
    if (d->ndim < 0 || d->ndim > TG_MAX_DIMS)
        return tg_fail(ctx, TG_ERR_SHAPE, "%s: %s, expected 0 to %d", who, tg_count(d->ndim, "dim").text, TG_MAX_DIMS);
    if (d->ndim && !d->shape) return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: the shape is NULL", who);
    *shape = tg_shape_make((size_t)d->ndim, d->shape);
    return TG_OK;
}

/* ---- Import ---- */

/* Makes a tensor on the memory of d, which is part of m. Returns NULL after recording the error. */
static tg_tensor *import_on(tg_ctx *ctx, const tg_dl_tensor *d, managed m, const char *who) {
    tg_shape shape;
    tg_dtype dtype = dtype_from(ctx, d->dtype, who);
    if (!dtype || check_device(ctx, d->device, who) != TG_OK || check_dims(ctx, d, &shape, who) != TG_OK) return NULL;
    managed *kept = tg_host_alloc(ctx, sizeof *kept);
    if (!kept) return NULL;
    *kept = m;
    char *data = d->data ? (char *)d->data + d->byte_offset : NULL;
    tg_tensor *x = tg_owned_on(ctx, dtype, &shape, d->strides, data, release, kept, who);
    if (!x) tg_host_free(ctx, kept, sizeof *kept);
    return x;
}

/* Returns whether m can be imported, after doing what other threads have asked of the context. */
static bool enter(tg_ctx *ctx, const void *m, const char *who) {
    if (!tg_ok(ctx)) return false;
    tg_later_settle(ctx);
    if (!m) tg_fail(ctx, TG_ERR_ARGUMENT, "%s: the struct is NULL", who);
    return m;
}

/* Ends an import: returns x, or gives the memory back and returns the inert tensor. */
static tg_tensor *finish(tg_ctx *ctx, tg_tensor *x, const managed *m) {
    if (x) return x;
    give_back(m);
    return tg_inert(ctx ? ctx : &tg_dead_ctx);
}

tg_tensor *tg_dlpack_import_unversioned(tg_ctx *ctx, struct DLManagedTensor *m) {
    static const char who[] = "tg_dlpack_import_unversioned";
    managed of = {.ctx = ctx, .unversioned = (tg_dl_unversioned *)m};
    tg_tensor *x = enter(ctx, m, who) ? import_on(ctx, &of.unversioned->dl_tensor, of, who) : NULL;
    return finish(ctx, x, &of);
}

static tg_tensor *import_versioned(tg_ctx *ctx, const managed *m, const char *who) {
    const tg_dl_versioned *v = m->versioned;
    if (v->version.major != TG_DL_MAJOR) {
        tg_fail(ctx, TG_ERR_UNSUPPORTED, "%s: version %u.%u of DLPack, expected %d.x", who, v->version.major,
                v->version.minor, TG_DL_MAJOR);
        return NULL;
    }
    tg_tensor *x = import_on(ctx, &v->dl_tensor, *m, who);
    if (x) x->storage->extra->read_only = v->flags & TG_DL_READ_ONLY;
    return x;
}

tg_tensor *tg_dlpack_import(tg_ctx *ctx, struct DLManagedTensorVersioned *m) {
    static const char who[] = "tg_dlpack_import";
    managed of = {.ctx = ctx, .versioned = (tg_dl_versioned *)m};
    return finish(ctx, enter(ctx, m, who) ? import_versioned(ctx, &of, who) : NULL, &of);
}
