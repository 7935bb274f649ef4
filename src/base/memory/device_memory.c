/* Takes blocks of the device's memory within the caller's limit, and records the out-of-memory error, which lists what
 * holds the memory. */
#include "base/memory/device_memory.h"

#include <stdio.h>

#include "base/memory/host_memory.h"
#include "base/runtime.h"

size_t tg_memory_available(const tg_ctx *ctx) {
    const tg_runtime *r = tg_runtime_of(ctx);
    if (TG_LIKELY(r->memory_limit == 0)) return SIZE_MAX;
    tg_memory_info m = TG_MEMORY_INFO();
    if (r->heap) tg_heap_stats(r->heap, &m); /* no heap exists while a device is being opened */
    int64_t held = m.live + tg_workspace_bytes(ctx);
    return held < r->memory_limit ? (size_t)(r->memory_limit - held) : 0;
}

tg_status tg_memory_fail(tg_ctx *ctx, size_t bytes, const char *what) {
    const tg_runtime *r = tg_runtime_of(ctx);
    tg_memory_info m = TG_MEMORY_INFO();
    if (r->heap) tg_heap_stats(r->heap, &m);
    char limit[64] = "";
    if (r->memory_limit > 0)
        snprintf(limit, sizeof limit, ", the limit is %lld", (long long)r->memory_limit);
    return tg_fail(ctx, TG_ERR_MEMORY,
                   "out of memory on device \"%s\": %zu bytes%s were asked for%s; workspaces have %lld, live tensors "
                   "%lld (parameters %lld, gradients %lld, optimizer %lld, saved activations %lld, temporaries %lld, "
                   "named buffers %lld, captured steps %lld, kernels %lld)",
                   r->ops->name, bytes, what, limit, (long long)tg_workspace_bytes(ctx), (long long)m.live,
                   (long long)m.by_category[0], (long long)m.by_category[1], (long long)m.by_category[2],
                   (long long)m.by_category[3], (long long)m.by_category[4], (long long)m.by_category[5],
                   (long long)m.by_category[6], (long long)m.by_category[7]);
}

tg_block *tg_take_block(tg_ctx *ctx, size_t bytes, tg_category category) {
    return bytes <= tg_memory_available(ctx) ? tg_heap_alloc(tg_runtime_of(ctx)->heap, bytes, category) : NULL;
}
