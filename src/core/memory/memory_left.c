/* How much memory a context can still obtain. */
#include <tapegrad/memory.h>

#include "base/memory/device_memory.h"
#include "base/device_plugin.h"
#include "base/plugin.h"
#include "base/memory/system_memory.h"
#include "core/context.h"

/* Returns what the plugin that provides the device says; TG_NONE if no plugin provides it, and after an error. */
static int64_t left_of_plugin(tg_ctx *ctx) {
    const char *name = ctx->run.ops->name;
    if (strcmp(name, "cuda") != 0 || !tg_plugin_is_here(name)) return TG_NONE;
    const tg_device_plugin *p = tg_plugin_table(ctx, name, TG_ERR_DEVICE, "tg_memory_left: device \"cuda\"");
    return p && p->ops == ctx->run.ops ? p->memory_left(ctx) : TG_NONE;
}

int64_t tg_memory_left(tg_ctx *ctx) {
    if (!tg_ok(ctx)) return 0;
    int64_t left = ctx->host ? tg_system_memory("") : left_of_plugin(ctx);
    if (ctx->run.status != TG_OK) return 0;
    size_t limit = tg_memory_available(ctx);
    if (limit == SIZE_MAX) return left;
    return left == TG_NONE || limit < (size_t)left ? (int64_t)limit : left;
}
