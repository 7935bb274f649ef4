/* Works: one operation in flight that fills a storage. */
#ifndef TG_WORK_H
#define TG_WORK_H

#include "core/context.h"

#include <tapegrad/work.h>

struct tg_work {
    tg_ctx *ctx;
    const tg_work_ops *ops; /* NULL: ended, and on the context's free list */
    void *self;
    tg_storage *fills; /* that owns it; NULL: the one who started it does */
    tg_block *reads;   /* held until it ends; or, where the bytes are the caller's: */
    tg_storage *holds;
    tg_work *next, *prev; /* of the context's readers, or the next free one */
    tg_work *after, *before; /* of all */
};

/* w reads src's bytes, which stay until it ends, whatever becomes of src. */
void tg_work_reads(tg_work *w, tg_storage *src);
/* w reads no longer: it has ended. */
void tg_work_read(tg_work *w);
/* Waits for every work that reads the block. */
tg_status tg_works_wait_readers(tg_ctx *ctx, const tg_block *b);
/* s will be filled by w, which s owns from now on. */
tg_status tg_work_fills(tg_work *w, tg_storage *s);
/* The storage that w fills is going: waits for it, ignoring its result, and frees it. */
void tg_work_abandon(tg_work *w);
/* What the device is given from now on comes behind w, which reads no longer. For works with an order. */
tg_status tg_work_order(tg_work *w);
/* Orders all such works that read: the memory that they hold, and that was given back, can be had again. */
tg_status tg_works_order_readers(tg_ctx *ctx);
void tg_work_end(tg_work *w); /* without waiting for it: it is its maker's, who knows */
/* Waits for w and ends it: what tg_work_wait does once w belongs to nobody. */
tg_status tg_work_finish(tg_work *w);
/* Makes room for n more works, so that none allocates. */
tg_status tg_works_reserve(tg_ctx *ctx, int n);
void tg_works_free(tg_ctx *ctx);
/* Waits for all works, which stay whose they are; but for those that `but` (NULL: none) says are nobody's here. */
tg_status tg_works_settle(tg_ctx *ctx, bool (*but)(const void *arg, const tg_work *w), const void *arg);

#endif
