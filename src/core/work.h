/* Works: operations in flight that fill a storage. */
#ifndef TG_WORK_H
#define TG_WORK_H

#include "core/context.h"

#include <tapegrad/work.h>

struct tg_work {
    tg_ctx *ctx;
    const tg_work_ops *ops; /* NULL: ended, and on the context's free list */
    void *self;
    tg_storage *fills; /* the storage that owns it; NULL: the code that started it does */
    tg_block *reads;   /* block held until it ends; if the bytes are the caller's, the storage is held instead: */
    tg_storage *holds;
    tg_work *next, *prev; /* in the context's readers; next also links free works */
    tg_work *after, *before; /* in the context's list of all works */
};

/* Notes that w reads src's bytes. They stay until w ends, whatever happens to src. */
void tg_work_reads(tg_work *w, tg_storage *src);
/* Notes that w has ended, and so no longer reads. */
void tg_work_read(tg_work *w);
/* Waits for every work that reads the block. */
tg_status tg_works_wait_readers(tg_ctx *ctx, const tg_block *b);
/* Notes that w will fill s. s owns w from now on. */
tg_status tg_work_fills(tg_work *w, tg_storage *s);
/* Called when the storage that w fills is released: waits for w, ignoring its result, and frees it. */
void tg_work_abandon(tg_work *w);
/* Orders all later work of the device after w, so w no longer holds what it reads. Only for works with an `order`
 * function. */
tg_status tg_work_order(tg_work *w);
/* Orders all such works that read, so that memory that they hold and that was released becomes available. */
tg_status tg_works_order_readers(tg_ctx *ctx);
void tg_work_end(tg_work *w); /* does not wait: its maker knows that it has ended */
/* Waits for w and ends it, as tg_work_wait does for a work that no storage owns. */
tg_status tg_work_finish(tg_work *w);
/* Reserves memory for n more works, so that starting them does not allocate. */
tg_status tg_works_reserve(tg_ctx *ctx, int n);
void tg_works_free(tg_ctx *ctx);
/* Waits for all works, without changing their owners, except those for which `but` (NULL: none) returns true. */
tg_status tg_works_settle(tg_ctx *ctx, bool (*but)(const void *arg, const tg_work *w), const void *arg);

#endif
