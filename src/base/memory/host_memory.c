/* Host memory of a context: memory for the library's own objects, and the workspaces of kernels. */
#include "base/memory/host_memory.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/memory/device_memory.h"
#include "base/runtime.h"

/* Returns how many bytes the allocator provides for a request. They are at least one, because an allocator may return
 * NULL for 0 bytes, which would look like a failure. */
static size_t provided(size_t bytes) { return bytes ? bytes : 1; }

void *tg_host_alloc(tg_ctx *ctx, size_t bytes) {
    tg_runtime *r = tg_runtime_of(ctx);
    const tg_allocator *a = &r->allocator;
    void *p = bytes < PTRDIFF_MAX ? a->alloc(a->user, provided(bytes), _Alignof(max_align_t)) : NULL;
    r->host_allocations++;
    if (!p) {
        tg_fail(ctx, TG_ERR_MEMORY, "out of memory: %zu bytes for the library's own objects", bytes);
        return NULL;
    }
    return memset(p, 0, bytes);
}

void tg_host_free(tg_ctx *ctx, void *p, size_t bytes) {
    const tg_allocator *a = &tg_runtime_of(ctx)->allocator;
    if (p) a->free(a->user, p, provided(bytes));
}

bool tg_host_grow(tg_ctx *ctx, void **items, int n, int *capacity, size_t size) {
    if (n < *capacity) return true;
    if (n == INT_MAX) {
        tg_fail(ctx, TG_ERR_MEMORY, "out of memory: one of the library's lists has %d elements, the most", INT_MAX);
        return false;
    }
    int more = !*capacity ? 64 : *capacity < INT_MAX / 2 ? 2 * *capacity : INT_MAX;
    void *all = tg_host_alloc(ctx, (size_t)more * size);
    if (!all) return false;
    if (n) memcpy(all, *items, (size_t)n * size);
    tg_host_free(ctx, *items, (size_t)*capacity * size);
    *items = all;
    *capacity = more;
    return true;
}

char *tg_host_strdup(tg_ctx *ctx, const char *s) {
    size_t n = strlen(s) + 1;
    char *copy = tg_host_alloc(ctx, n);
    return copy ? memcpy(copy, s, n) : NULL;
}

void tg_host_strfree(tg_ctx *ctx, char *s) {
    if (s) tg_host_free(ctx, s, strlen(s) + 1);
}

const char *tg_host_strset(tg_ctx *ctx, char **s, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    size_t n = (size_t)vsnprintf(NULL, 0, format, args) + 1;
    char *text = tg_host_alloc(ctx, n);
    if (text) vsnprintf(text, n, format, again);
    va_end(again);
    va_end(args);
    if (!text) return NULL;
    tg_host_strfree(ctx, *s);
    return *s = text;
}

int64_t tg_workspace_bytes(const tg_ctx *ctx) {
    const tg_runtime *r = tg_runtime_of(ctx);
    int64_t bytes = 0;
    for (int i = 0; i < TG_WORKSPACES; i++) bytes += (int64_t)r->workspace[i].bytes;
    return bytes;
}

void *tg_workspace(tg_ctx *ctx, int block, size_t bytes) {
    if (!ctx || tg_runtime_of(ctx)->dead) return NULL;
    tg_runtime *r = tg_runtime_of(ctx);
    if (block < 0 || block >= TG_WORKSPACES) {
        tg_fail(ctx, TG_ERR_ARGUMENT, "tg_workspace: block %d, expected 0 to %d", block, TG_WORKSPACES - 1);
        return NULL;
    }
    if (r->workspace[block].bytes >= bytes && r->workspace[block].p) return r->workspace[block].p;
    const tg_allocator *a = &r->allocator;
    /* A workspace gets 1/8 more than requested, so that slowly growing requests do not reallocate it each time. */
    size_t want = bytes < 4096 ? 4096 : bytes < PTRDIFF_MAX / 2 ? bytes + bytes / 8 : bytes;
    tg_host_free(ctx, r->workspace[block].p, r->workspace[block].bytes);
    r->workspace[block].p = NULL;
    r->workspace[block].bytes = 0;
    size_t available = tg_memory_available(ctx);
    if (want > available) want = bytes;
    bool fits = want <= available && want < PTRDIFF_MAX;
    void *p = fits ? a->alloc(a->user, want, want >= (size_t)2 << 20 ? (size_t)2 << 20 : 4096) : NULL;
    r->host_allocations++;
    if (!p) {
        tg_memory_fail(ctx, want, " of workspace");
        return NULL;
    }
    r->workspace[block].p = p;
    r->workspace[block].bytes = want;
    return p;
}
