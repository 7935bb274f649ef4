/* The device's memory within the limit that the caller has set (tg_config.memory). The heap itself is in heap.h. */
#ifndef TG_DEVICE_MEMORY_H
#define TG_DEVICE_MEMORY_H

#include "base/memory/heap.h"
#include "base/private_api.h"

/* Returns how many bytes the limit leaves after the live blocks and the workspaces; SIZE_MAX if there is no limit. */
size_t tg_memory_available(const tg_ctx *ctx);
/* Records TG_ERR_MEMORY for a request of this many bytes and lists what holds the memory. `what` follows the word
 * "bytes" in the message; it may be "". */
TG_PRIVATE_API tg_status tg_memory_fail(tg_ctx *ctx, size_t bytes, const char *what);
/* Takes a block from the context's heap. Returns NULL, without recording an error, if the heap is out of memory or
 * the block would exceed the limit. */
TG_PRIVATE_API tg_block *tg_take_block(tg_ctx *ctx, size_t bytes, tg_category category);

#endif
