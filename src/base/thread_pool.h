/* A small pthread pool of one context. The calling thread takes part; workers stay awake for some milliseconds after
 * their work, then wait on a condition variable. A forked child runs serially. */
#ifndef TG_POOL_H
#define TG_POOL_H

#include <tapegrad/types.h>

typedef struct tg_pool tg_pool;

/* threads >= 1, the caller's included; memory from ctx. NULL after recording the error. */
tg_pool *tg_pool_new(tg_ctx *ctx, int threads);
void tg_pool_free(tg_ctx *ctx, tg_pool *p); /* joins */
/* A tg_parallel_for_fn: user is the pool. Static chunks: thread i of n takes the i-th part. */
void tg_pool_run(void *user, int64_t n, tg_range_fn body, void *arg);

#endif
