/* The pthread pool of one context. The calling thread takes part in the work. Workers spin for half a millisecond after
 * their work, then wait on a condition variable; in a pool with more threads than cores they wait at once. In a forked
 * child the work runs serially. */
#ifndef TG_POOL_H
#define TG_POOL_H

#include <tapegrad/types.h>

typedef struct tg_pool tg_pool;

/* Makes a pool whose memory comes from ctx. `threads`, at least 1, includes the caller's thread. who: the public
 * function, for errors. Returns NULL after recording the error. */
tg_pool *tg_pool_new(tg_ctx *ctx, int threads, const char *who);
void tg_pool_free(tg_ctx *ctx, tg_pool *p); /* joins the workers; p may be NULL */
/* Runs body over 0 .. n - 1. It is a tg_parallel_for_fn whose user is the pool. Each thread takes one contiguous part;
 * the sizes of the parts differ by at most one. */
void tg_pool_run(void *user, int64_t n, tg_range_fn body, void *arg);

#endif
