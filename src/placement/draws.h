/* Which draws a tensor takes, by its place among the ranks. */
#ifndef TG_DRAWS_H
#define TG_DRAWS_H

#include "placement/placing.h"

/* Takes the draws of a tensor of this local shape from the current stream, as tg_call_draws says. at NULL: placed on no
 * axis. On an error *out is zero. */
tg_status tg_draws_take(tg_ctx *ctx, int ndim, const int64_t *shape, const tg_placement *at, tg_draws *out);
/* Fills x by its placement: shards put together are what one rank draws, but under TG_RNG_MEGATRON each from its rank's
 * stream. expert: x is an expert's, also where it lies on the dense grid. */
tg_status tg_fill_random_placed(tg_tensor *x, tg_random kind, double a, double b, bool expert);
/* The last draws of a fill of x, no expert's, are free again: so many of this rank's elements, and of all ranks'. */
tg_status tg_draws_give_back(const tg_tensor *x, int64_t local, int64_t global);

#endif
