/* tg_module_save: writes a module's state dict to one safetensors file. */
#include <tapegrad/checkpoint.h>

#include "base/memory/host_memory.h"
#include "io/safetensors.h"
#include "nn/module.h"
#include "placement/shard_index.h"

static const char *const who = "tg_module_save";

/* Fails unless this rank has the whole of x. */
static tg_status check_whole(const tg_tensor *x, const char *path) {
    tg_axis axes[TG_MAX_AXES];
    if (tg_shard_is_located(x) && tg_shard_axes(x, axes) == 0) return TG_OK;
    return tg_fail(x->ctx, TG_ERR_PLACEMENT,
                   "%s: \"%s\" is only this rank's part of a tensor; save the parts of all ranks with tg_shards_save",
                   who, path);
}

/* Lists n tensors from list[0] on, with copies of their paths. */
static tg_status list_tensors(tg_module *m, tg_state_list which, int n, tg_named_tensor *list) {
    for (int i = 0; i < n; i++) {
        const char *path;
        tg_tensor *x = tg_state_at(m, which, i, &path, who);
        if (!tg_ok(m->ctx)) return m->ctx->run.status;
        TG_TRY(check_whole(x, path));
        list[i] = (tg_named_tensor){tg_host_strdup(m->ctx, path), x};
        if (!list[i].name) return m->ctx->run.status;
    }
    return TG_OK;
}

tg_status tg_module_save(tg_module *m, const char *file) {
    if (!tg_module_ok(m)) return m ? m->ctx->run.status : TG_ERR_ARGUMENT;
    if (!file) return tg_fail(m->ctx, TG_ERR_ARGUMENT, "%s: file is NULL", who);
    tg_ctx *ctx = m->ctx;
    int params = tg_state_count(m, TG_STATE_PARAMS), buffers = tg_state_count(m, TG_STATE_SAVED_BUFFERS);
    size_t bytes = (size_t)(params + buffers) * sizeof(tg_named_tensor) + 1;
    tg_named_tensor *list = tg_host_alloc(ctx, bytes);
    if (!list) return ctx->run.status;
    tg_status s = list_tensors(m, TG_STATE_PARAMS, params, list);
    if (s == TG_OK) s = list_tensors(m, TG_STATE_SAVED_BUFFERS, buffers, list + params);
    if (s == TG_OK) s = tg_safetensors_save(ctx, file, list, params + buffers, &(tg_metadata){"format", "pt"}, 1);
    for (int i = 0; i < params + buffers; i++) tg_host_strfree(ctx, (char *)list[i].name);
    tg_host_free(ctx, list, bytes);
    return s;
}
