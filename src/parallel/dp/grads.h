/* Gradients over ranks: data-parallel buckets, what tg_grads_finalize sums, and norms over a grid. */
#ifndef TG_GRADS_H
#define TG_GRADS_H

#include "parallel/parallel.h"

/* The axes over which gradients of data-parallel ranks are summed. */
enum { TG_DATA_AXES = 1u << TG_DP | 1u << TG_CP };

/* Of all buckets: starts what no backward has started, waits for all, and notes which parameters have a gradient on
 * some rank. */
tg_status tg_buckets_finish(const tg_parallel *p);
/* TG_ERR_STATE where a gradient that this would sum is of none of params: it would stay one rank's share in name. */
tg_status tg_buckets_check_all(const tg_parallel *p, tg_tensor *const *params, int n);
/* After a failed step, over the groups that p has now: sums that ran are lost, and all gradients in buckets with them.
 */
tg_status tg_buckets_recover(tg_parallel *p);
void tg_buckets_orphan(tg_parallel *p); /* p ends: its buckets only hold gradients from now on */
/* Before the host reads whether some rank has a gradient: a step that is being captured cannot. */
tg_status tg_grads_may_read(tg_ctx *ctx);
/* The axes over which some bucket sums x's gradient; 0: none does. */
uint32_t tg_buckets_axes(const tg_parallel *p, const tg_tensor *x);
/* Writes 0 where x has no gradient on this rank, so that it can be summed. NULL after recording the error. */
tg_tensor *tg_gradient_or_zero(tg_tensor *x);

/* sums [n], of parameters that are sharded over the axes of mask[i], becomes the sum over those axes, on the device.
 * Collective: every rank gives the same masks. */
tg_status tg_grid_sum(tg_ctx *ctx, const uint32_t *mask, tg_tensor *sums, int n);
/* x [1] becomes its sum over all ranks of the grid, on the device. Collective over them. */
tg_status tg_grid_sum_world(tg_ctx *ctx, tg_tensor *x);

#endif
