/* Host memory for the library's own objects. It comes from the context's allocator, and each allocation is counted
 * (tg_runtime.host_allocations).
 *
 * Scratch memory of kernels is tg_workspace (tapegrad/device.h), which is implemented here as well.
 */
#ifndef TG_HOST_MEMORY_H
#define TG_HOST_MEMORY_H

#include <tapegrad/types.h>

#include "base/private_api.h"

/* Returns zeroed memory, also for 0 bytes, or NULL after recording TG_ERR_MEMORY. */
TG_PRIVATE_API void *tg_host_alloc(tg_ctx *ctx, size_t bytes);
/* `bytes` is the size that was allocated; p may be NULL. */
TG_PRIVATE_API void tg_host_free(tg_ctx *ctx, void *p, size_t bytes);
/* Ensures that the array *items, which holds n elements of `size` bytes, has space for one more. *capacity is its size
 * in elements; 0: *items is NULL. Returns false after recording the error; then nothing has changed. */
TG_PRIVATE_API bool tg_host_grow(tg_ctx *ctx, void **items, int n, int *capacity, size_t size);
char *tg_host_strdup(tg_ctx *ctx, const char *s); /* NULL after recording the error */
void tg_host_strfree(tg_ctx *ctx, char *s);
/* Replaces *s, a string of tg_host_strdup or of this function, or NULL, by formatted text, and returns it. Returns NULL
 * after recording the error; then *s is as before. */
const char *tg_host_strset(tg_ctx *ctx, char **s, const char *format, ...) TG_PRINTF(3, 4);
int64_t tg_workspace_bytes(const tg_ctx *ctx); /* the bytes in all blocks of tg_workspace together */

#endif
