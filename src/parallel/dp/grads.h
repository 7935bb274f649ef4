/* Gradients over ranks: data-parallel buckets, and what tg_grads_finalize sums. */
#ifndef TG_GRADS_H
#define TG_GRADS_H

#include "parallel/parallel.h"
#include "placement/rule.h"

/* The axes over which gradients of data-parallel ranks are summed. */
enum { TG_DATA_AXES = 1u << TG_DP | 1u << TG_CP };

/* Of all buckets: starts what no backward has started, waits for all, and notes which parameters have a gradient on
 * some rank. */
tg_status tg_buckets_finish(const tg_parallel *p);
/* TG_ERR_STATE where a gradient that this would sum is of none of params: it would stay one rank's share in name. */
tg_status tg_buckets_check_all(const tg_parallel *p, tg_tensor *const *params, int n);
/* Before the host reads whether some rank has a gradient: a step that is being captured cannot. */
tg_status tg_grads_may_read(tg_ctx *ctx);
/* The axes over which some bucket sums x's gradient; 0: none does. */
uint32_t tg_buckets_axes(const tg_parallel *p, const tg_tensor *x);
/* Writes 0 where x has no gradient on this rank, so that it can be summed. NULL after recording the error. */
tg_tensor *tg_gradient_or_zero(tg_tensor *x);

/* Check mode, in tg_grads_finalize: parameters that claim to be the same on data-parallel ranks are compared by a hash
 * of their bytes. Collective over those ranks. */
tg_status tg_grads_compare_params(const tg_parallel *p, tg_tensor *const *params, int n);

#endif
