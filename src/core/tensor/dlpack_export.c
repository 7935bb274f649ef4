/* Exports tensors by DLPack: the dtypes and devices in its terms, and structs whose deleter may run on any thread. */
#include "core/tensor/dlpack.h"

#include "base/memory/host_memory.h"
#include "core/tensor/handles.h"
#include "core/memory/mapping.h"

tg_dl_dtype tg_dl_dtype_of(tg_dtype d) {
    static const tg_dl_dtype of[] = {
        [TG_F32] = {TG_DL_FLOAT, 32, 1},   [TG_F64] = {TG_DL_FLOAT, 64, 1}, [TG_F16] = {TG_DL_FLOAT, 16, 1},
        [TG_BF16] = {TG_DL_BFLOAT, 16, 1}, [TG_I64] = {TG_DL_INT, 64, 1},   [TG_I32] = {TG_DL_INT, 32, 1},
        [TG_U8] = {TG_DL_UINT, 8, 1},      [TG_I8] = {TG_DL_INT, 8, 1},     [TG_I16] = {TG_DL_INT, 16, 1},
        [TG_U16] = {TG_DL_UINT, 16, 1},    [TG_U32] = {TG_DL_UINT, 32, 1},  [TG_U64] = {TG_DL_UINT, 64, 1},
        [TG_BOOL] = {TG_DL_BOOL, 8, 1},    [TG_F8E4M3] = {TG_DL_E4M3, 8, 1}, [TG_F8E5M2] = {TG_DL_E5M2, 8, 1},
        [TG_F8E8M0] = {TG_DL_E8M0, 8, 1},
    };
    return (int)d < TG_LEN(of) ? of[d] : (tg_dl_dtype){0};
}

tg_status tg_dl_device_of(tg_ctx *ctx, tg_dl_device *d, const char *who) {
    bool cuda = strcmp(ctx->run.ops->name, "cuda") == 0;
    if (ctx->meta || !(ctx->host || cuda))
        return tg_fail(ctx, TG_ERR_DEVICE, "%s: DLPack has no device \"%s\"; expected a context of \"cpu\" or \"cuda\"",
                       who, ctx->run.ops->name);
    *d = ctx->host ? (tg_dl_device){TG_DL_CPU, 0} : (tg_dl_device){TG_DL_CUDA, ctx->run.device_index};
    return TG_OK;
}

/* ---- The end of an export ---- */

void tg_export_end(tg_export *e) {
    tg_storage *s = e->storage;
    tg_host_free(s->ctx, e, sizeof *e);
    s->extra->exports--;
    tg_storage_unpin(s->extra, 1);
}

static void leave(tg_export *e) {
    tg_ctx *ctx = e->storage->ctx; /* read first: the context's thread may end e as soon as it is in the list */
    tg_later_ask(ctx, &e->later);
    tg_ctx_leave(ctx);
}

static void delete_unversioned(tg_dl_unversioned *m) {
    if (m) leave(m->manager_ctx);
}

static void delete_versioned(tg_dl_versioned *m) {
    if (m) leave(m->manager_ctx);
}

/* ---- Export ---- */

static tg_status refuse_grad(const tg_tensor *x, const char *who) {
    char what[160];
    if (!(x->flags & TG_F_REQUIRES_GRAD)) return TG_OK;
    tg_describe(x, what, sizeof what);
    return tg_fail(x->ctx, TG_ERR_STATE,
                   "%s: %s requires a gradient, and no gradient would flow through the exported tensor; export what "
                   "tg_detach or tg_keep returns for it",
                   who, what);
}

/* Checks that the bytes of x may be exported, and waits until they are complete, also on the device. */
static tg_status give(tg_tensor *x, tg_dl_device *device, const char *who, const void *site) {
    tg_ctx *ctx = x->ctx;
    TG_TRY(tg_check(ctx, x, who));
    TG_TRY(tg_recording_refuse(ctx, who, TG_RECORDING_PIN, site));
    TG_TRY(tg_dl_device_of(ctx, device, who));
    TG_TRY(refuse_grad(x, who));
    TG_TRY(tg_refuse_partial(x, who));
    TG_TRY(tg_mappings_check(ctx));
    TG_TRY(tg_storage_need(x->storage, x));
    return ctx->host ? TG_OK : ctx->run.ops->sync(ctx);
}

/* Makes the export of x, and fills in its tensor in DLPack's terms. Returns NULL after recording the error. */
static tg_export *export_new(tg_tensor *x, const tg_dl_device *device, tg_dl_tensor *out) {
    tg_ctx *ctx = x->ctx;
    tg_export *e = tg_host_alloc(ctx, sizeof *e);
    if (!e || tg_storage_pin(x->storage) != TG_OK) {
        tg_host_free(ctx, e, sizeof *e);
        return NULL;
    }
    atomic_fetch_add_explicit(&ctx->users, 1, memory_order_relaxed);
    e->later.kind = TG_LATER_EXPORT;
    e->storage = x->storage;
    e->storage->extra->exports++;
    memcpy(e->shape, x->shape, x->ndim * sizeof *e->shape);
    memcpy(e->stride, x->stride, x->ndim * sizeof *e->stride);
    *out = (tg_dl_tensor){.data = x->numel ? tg_data(x) : NULL,
                          .device = *device,
                          .ndim = x->ndim,
                          .dtype = tg_dl_dtype_of(x->dtype),
                          .shape = e->shape,
                          .strides = e->stride};
    return e;
}

/* Returns whether x belongs to a context without an error, after doing what other threads have asked of it. So a loop
 * that only exports frees what it has exported. */
static bool enter(const tg_tensor *x) {
    if (!x || !tg_ok(x->ctx)) return false;
    tg_later_settle(x->ctx);
    return true;
}

struct DLManagedTensorVersioned *tg_dlpack_export(tg_tensor *x) {
    static const char who[] = "tg_dlpack_export";
    tg_dl_device device;
    tg_dl_tensor tensor;
    if (!enter(x) || give(x, &device, who, TG_SITE) != TG_OK) return NULL;
    tg_export *e = export_new(x, &device, &tensor);
    if (!e) return NULL;
    e->as.versioned = (tg_dl_versioned){.version = {TG_DL_MAJOR, TG_DL_MINOR},
                                        .manager_ctx = e,
                                        .deleter = delete_versioned,
                                        .flags = x->storage->extra->read_only ? TG_DL_READ_ONLY : 0,
                                        .dl_tensor = tensor};
    return (struct DLManagedTensorVersioned *)&e->as.versioned;
}

static tg_status refuse_read_only(const tg_tensor *x, const char *who) {
    if (!x->storage->extra || !x->storage->extra->read_only) return TG_OK;
    return tg_fail(x->ctx, TG_ERR_STATE,
                   "%s: the tensor's memory is read-only, which DLManagedTensor cannot say; use tg_dlpack_export", who);
}

struct DLManagedTensor *tg_dlpack_export_unversioned(tg_tensor *x) {
    static const char who[] = "tg_dlpack_export_unversioned";
    tg_dl_device device;
    tg_dl_tensor tensor;
    if (!enter(x) || give(x, &device, who, TG_SITE) != TG_OK || refuse_read_only(x, who) != TG_OK) return NULL;
    tg_export *e = export_new(x, &device, &tensor);
    if (!e) return NULL;
    e->as.unversioned = (tg_dl_unversioned){.dl_tensor = tensor, .manager_ctx = e, .deleter = delete_unversioned};
    return (struct DLManagedTensor *)&e->as.unversioned;
}
