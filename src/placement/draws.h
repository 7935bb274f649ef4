/* Random draws of placed tensors: which draws of a stream each rank's part takes. */
#ifndef TG_DRAWS_H
#define TG_DRAWS_H

#include <tapegrad/op.h>

#include "placement/placing.h"

/* Takes the draws of a tensor of this local shape, as tg_call_draws describes. If at is NULL, the tensor is not
 * placed, and draws from the current stream. On error *out must not be used. */
tg_status tg_draws_take(tg_call *c, int ndim, const int64_t *shape, const tg_placement *at, tg_draws *out);
/* The numbers that tg_draws_take_rows takes: it does not know how many rows the global tensor has. */
#define TG_DRAW_ROWS ((int64_t)1 << 40)
/* Takes the draws of x if row i of x draws as row rows[i] of a global tensor, whatever the placement of dim 0. Sets all
 * of *out but out->rows, and sets *width to the number of elements of a row of the global tensor. */
tg_status tg_draws_take_rows(tg_call *c, const tg_tensor *x, tg_draws *out, int64_t *width);
/* Returns, as bits, the axes on which tg_rng_seed_parallel gave the current random stream another seed on each rank.
 * Returns 0 for a stream that the caller created, because it may have one seed on all ranks. */
uint32_t tg_draws_axes(const tg_ctx *ctx);
/* Fills x with draws, by its placement. The shards of all ranks, joined, equal the tensor that one rank draws. With
 * TG_RNG_MEGATRON each shard is drawn as a tensor of its own from the stream of its rank. `expert` says that x is
 * an expert's, even if it varies over tp only. */
tg_status tg_fill_random_placed(tg_tensor *x, tg_random kind, double a, double b, bool expert);
/* Gives back the last draws of a fill of x, so that the next fill takes them again. `local` is the number of elements
 * of this rank, and `global` that of all ranks. x must not be an expert's. */
tg_status tg_draws_give_back(const tg_tensor *x, int64_t local, int64_t global);

#endif
