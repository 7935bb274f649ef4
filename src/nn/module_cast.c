/* Casts modules: the floating-point parameters and buffers of a module, except those that are to keep their dtype, get
 * another dtype under the same handles. If one of them cannot be cast, none is. */
#include "base/memory/host_memory.h"
#include "base/recording.h"
#include "core/tensor/retype.h"
#include "nn/module.h"

/* A tensor that is cast, and its values in the new dtype. */
typedef struct cast {
    tg_tensor *x;
    tg_storage *converted;
} cast;

static tg_tensor *state_at(const tg_module *m, int i, int params, const char **path) {
    bool param = i < params;
    return tg_state_at(m, param ? TG_STATE_PARAMS : TG_STATE_BUFFERS, param ? i : i - params, path, "tg_module_cast");
}

/* Lists in c[] the tensors that are to be cast, and returns their number, or -1 after recording the error. */
static int list(const tg_module *m, tg_dtype dtype, cast *c, int params, int all) {
    int n = 0;
    for (int i = 0; i < all; i++) {
        const char *path;
        tg_tensor *x = state_at(m, i, params, &path);
        if (!tg_ok(m->ctx)) return -1; /* no memory for the path */
        if (!tg_is_float((tg_dtype)x->dtype) || x->dtype == dtype || x->ext->keeps_dtype) continue;
        if (tg_retype_check(x, path, "tg_module_cast") != TG_OK) return -1;
        c[n++].x = x;
    }
    return n;
}

static tg_status cast_all(cast *c, int n, tg_dtype dtype) {
    tg_status s = TG_OK;
    for (int i = 0; i < n && s == TG_OK; i++)
        if (!(c[i].converted = tg_retype_convert(c[i].x, dtype))) s = c[i].x->ctx->run.status;
    for (int i = 0; i < n; i++) {
        if (s == TG_OK)
            tg_retype(c[i].x, dtype, c[i].converted);
        else if (c[i].converted)
            tg_storage_unref(c[i].converted);
    }
    return s;
}

tg_status tg_module_cast(tg_module *m, tg_dtype dtype) {
    if (!tg_module_ok(m)) return m ? m->ctx->run.status : TG_ERR_ARGUMENT;
    tg_ctx *ctx = m->ctx;
    if (!tg_is_float(dtype))
        return tg_fail(ctx, TG_ERR_DTYPE, "tg_module_cast: dtype is %s, expected a floating-point dtype",
                       tg_dtype_name(dtype));
    TG_TRY(tg_recording_refuse(ctx, "tg_module_cast", TG_RECORDING_MOVE, TG_SITE));
    int params = tg_state_count(m, TG_STATE_PARAMS), all = params + tg_state_count(m, TG_STATE_BUFFERS);
    size_t bytes = (size_t)all * sizeof(cast) + 1;
    cast *c = tg_host_alloc(ctx, bytes);
    int n = c ? list(m, dtype, c, params, all) : -1;
    tg_status s = n < 0 ? ctx->run.status : cast_all(c, n, dtype);
    tg_host_free(ctx, c, bytes);
    return s;
}

tg_status tg_module_keep_f32(tg_module *m, const char *path) {
    if (!tg_module_ok(m)) return m ? m->ctx->run.status : TG_ERR_ARGUMENT;
    tg_tensor *x = tg_module_find(m, path);
    if (!x)
        return tg_fail(m->ctx, TG_ERR_ARGUMENT, "tg_module_keep_f32: the \"%s\" has no parameter or buffer \"%s\"",
                       m->ops->kind, path ? path : "(NULL)");
    x->ext->keeps_dtype = true;
    return TG_OK;
}
