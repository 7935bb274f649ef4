/* Works (tapegrad/work.h): operations in flight that fill a storage, read one, or both. */
#ifndef TG_WORK_H
#define TG_WORK_H

#include "core/context.h"

#include <tapegrad/work.h>

struct tg_work {
    tg_ctx *ctx;
    const tg_work_ops *ops; /* NULL if ended and on the context's free list */
    void *self;
    tg_storage *fills; /* the storage that it fills, which owns it; NULL if the code that started the work owns it */
    tg_block *reads;   /* the block that it reads and holds, or NULL */
    tg_storage *holds; /* if it reads the caller's bytes, their storage, to which it has a reference; else NULL */
    const tg_graph *graph; /* the step that was being recorded when it began, or NULL */
    tg_work *next, *prev;    /* in the context's list of works with a block in `reads`; next also links free works */
    tg_work *after, *before; /* in the context's list of all works */
    bool ordered;            /* the device's later work runs after it (tg_work_order, tg_work_over) */
};

/* Notes that w reads src's bytes. They stay allocated until w ends or stops reading, whatever happens to src. Does
 * nothing if w reads something already. */
void tg_work_reads(tg_work *w, tg_storage *src);
/* Fails if the bytes are read-only. `who` is the call that would write them. */
tg_status tg_storage_check_write(const tg_storage *s, const char *who);
/* Notes that w no longer reads, and ends its hold on the memory. */
void tg_work_stop_reading(tg_work *w);
/* Waits until no work reads the block. */
tg_status tg_works_wait_readers(tg_ctx *ctx, const tg_block *b);
/* Notes that w will fill s. From now on s is in flight and owns w. On an error w is abandoned. */
tg_status tg_work_fills(tg_work *w, tg_storage *s);
/* Aborts w, or waits for it if it cannot be aborted, and ends it. Called when the storage that w fills is released. */
void tg_work_abandon(tg_work *w);
/* Orders all later work of the device after w, and ends w's hold on what it reads. Does nothing if it has done so
 * before. w must have an `order` function. */
tg_status tg_work_order(tg_work *w);
/* Notes that the operation of w has ended and that its result has been reported. From now on only a wait for w itself
 * asks for the result. w must fill no storage; its owner ends it later. */
void tg_work_over(tg_work *w);
/* Calls tg_work_order for all works that only read and have an `order` function. Memory that they hold, and that has
 * been released, becomes available. */
tg_status tg_works_order_readers(tg_ctx *ctx);
void tg_work_end(tg_work *w); /* frees w without waiting: the caller knows that the operation has ended */
/* Waits for w and ends it, as tg_work_wait does for a work that no storage owns. */
tg_status tg_work_finish(tg_work *w);
/* Reserves memory for n more works, so that starting them does not allocate. */
tg_status tg_works_reserve(tg_ctx *ctx, int n);
void tg_works_free(tg_ctx *ctx);
/* Waits for every work that fills a storage, and ends it. For every other work, orders the device's later work after
 * it, or waits for it if it has no `order` function; its owner ends it later. Leaves out works for which `but` returns
 * true. `but` may be NULL. */
tg_status tg_works_settle(tg_ctx *ctx, bool (*but)(const void *arg, const tg_work *w), const void *arg);

#endif
