/* Named buffers: blocks that stay with the context between the leases of them. */
#ifndef TG_BUFFER_H
#define TG_BUFFER_H

#include "core/context.h"

typedef struct tg_buffer {
    struct tg_buffer *next; /* of the context's list */
    char *name;
    tg_dtype dtype;
    int instance; /* 0, or counted up: others of its name and dtype were held at the time */
    tg_block *block;
    int open;   /* storages that lie in the block now */
    bool dirty; /* check mode: to be poisoned before it is used again */
    bool ended; /* of a symmetric buffer that was freed */
    /* The lease that holds it: its handle, and who asked for it. */
    const tg_tensor *holder;
    uint64_t serial;
    const char *op; /* NULL: no op, but the caller at site */
    const void *site;
    struct tg_scope *scope;
} tg_buffer;

/* NULL after recording the error. The context keeps it. */
tg_buffer *tg_buffer_new(tg_ctx *ctx, const char *name, tg_dtype dtype, int instance);
/* Makes the block at least so large, after the works that still read it. Nothing may be open in it. */
tg_status tg_buffer_reserve(tg_ctx *ctx, tg_buffer *b, size_t bytes);
/* A storage on a part of the block; its bytes come back here when they are given back. NULL after recording the error.
 */
tg_storage *tg_buffer_open(tg_ctx *ctx, tg_buffer *b, size_t offset, size_t bytes);
void tg_buffer_close(tg_ctx *ctx, tg_buffer *b);
void tg_buffer_end(tg_ctx *ctx, tg_buffer *b); /* gives its block back, once nothing is open in it */
void tg_buffers_free(tg_ctx *ctx);
/* One line for each. */
void tg_buffers_text(const tg_ctx *ctx, char *buf, size_t n, size_t *at);

#endif
