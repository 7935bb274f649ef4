/* A small pthread pool of one context. The calling thread takes part in the work. Workers stay awake for some
 * milliseconds after their work, then wait on a condition variable. In a forked child the work runs serially. */
#ifndef TG_POOL_H
#define TG_POOL_H

#include <tapegrad/types.h>

typedef struct tg_pool tg_pool;

/* `threads`, at least 1, includes the caller's thread. The memory comes from ctx. Returns NULL after recording the
 * error. */
tg_pool *tg_pool_new(tg_ctx *ctx, int threads);
void tg_pool_free(tg_ctx *ctx, tg_pool *p); /* joins the workers */
/* A tg_parallel_for_fn: user is the pool. Thread i of n takes the i-th of n equal chunks. */
void tg_pool_run(void *user, int64_t n, tg_range_fn body, void *arg);

#endif
