/* Named scratch buffers (tg_lease): blocks of memory that the context keeps from one lease to the next. */
#ifndef TG_BUFFER_H
#define TG_BUFFER_H

#include "core/context.h"

typedef struct tg_buffer {
    struct tg_buffer *next; /* next in the context's list */
    char *name;
    tg_dtype dtype;
    int instance; /* number of buffers of this name and dtype, all of them leased, that existed when it was made */
    tg_block *block;
    int open;   /* number of storages that lie in the block now */
    bool dirty; /* in check mode it must be poisoned before it is used again, because a work still read it */
    bool ended; /* tg_buffer_end was called, because a symmetric buffer (comm/symmetric.h) that used it was freed */
    /* The lease that holds the buffer: its handle, and the op or call that took the lease. */
    const tg_tensor *holder;
    uint64_t serial;
    const char *op; /* the op that took the lease; NULL if the call at `site` took it */
    const void *site;
    struct tg_scope *scope;
    uint64_t epoch; /* epoch of the tape (tape/tape.h) that took the lease; the scope exists while the epoch lasts */
} tg_buffer;

/* Makes a buffer, which the context owns. Its block is allocated by tg_buffer_reserve. Returns NULL after recording the
 * error. */
tg_buffer *tg_buffer_new(tg_ctx *ctx, const char *name, tg_dtype dtype, int instance);
/* Waits for works that still read the block, and ensures that it has at least this size. No storage may be open in
 * it. */
tg_status tg_buffer_reserve(tg_ctx *ctx, tg_buffer *b, size_t bytes);
/* Makes a storage on a part of the block. Several may be open at a time. When the bytes of one are released,
 * tg_buffer_close is called. Returns NULL after recording the error. */
tg_storage *tg_buffer_open(tg_ctx *ctx, tg_buffer *b, size_t offset, size_t bytes);
void tg_buffer_close(const tg_storage *s);
void tg_buffer_end(tg_ctx *ctx, tg_buffer *b); /* releases its block once no storage is open in it */
void tg_buffers_free(tg_ctx *ctx);
/* Appends one line per buffer that has not ended to the memory report. */
void tg_buffers_text(const tg_ctx *ctx, char *buf, size_t n, size_t *at);

#endif
