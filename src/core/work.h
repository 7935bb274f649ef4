/* Works: one operation in flight that fills a storage. */
#ifndef TG_WORK_H
#define TG_WORK_H

#include "core/core.h"

struct tg_work {
    tg_ctx *ctx;
    const tg_work_ops *ops;
    void *self;
};

/* s will be filled by w, which s owns from now on. */
tg_status tg_work_fills(tg_work *w, tg_storage *s);
/* The storage that w fills is going: waits for it, ignoring its result, and frees it. */
void tg_work_abandon(tg_work *w);

#endif
