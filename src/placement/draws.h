/* Random draws of placed tensors: which draws of a stream each rank's part takes. */
#ifndef TG_DRAWS_H
#define TG_DRAWS_H

#include <tapegrad/op.h>

#include "placement/placing.h"

/* Takes the draws of a tensor of this local shape, as tg_call_draws describes. If at is NULL, the tensor is not
 * placed, and draws from the current stream. On error *out must not be used. */
tg_status tg_draws_take(tg_call *c, int ndim, const int64_t *shape, const tg_placement *at, tg_draws *out);
/* How many numbers tg_draws_take_rows takes. The number is fixed, because the function does not know how many rows the
 * global tensor has. */
#define TG_DRAW_ROWS ((int64_t)1 << 40)
/* Takes the draws of x for an op in which row i of x draws like row out->rows[i] of a global tensor, whatever the
 * placement of dim 0. Sets *width to the number of elements of a row of the global tensor. Sets all of *out but rows,
 * which the caller sets after the call. */
tg_status tg_draws_take_rows(tg_call *c, const tg_tensor *x, tg_draws *out, int64_t *width);
/* The streams of ranks, from which ops may draw while the default stream is the current one, and their counters. */
typedef struct tg_rank_streams {
    tg_rng *stream[2]; /* NULL for one that does not exist */
    uint64_t counter[2];
} tg_rank_streams;

/* Notes the counters, so that a call that has drawn and then fails can restore them. */
tg_rank_streams tg_rank_streams_note(tg_ctx *ctx);
void tg_rank_streams_restore(const tg_rank_streams *noted);
/* Returns, as bits, the axes on which the seed that tg_rng_seed_parallel gave the current random stream may differ
 * between ranks. Returns 0 for a stream that the caller created, because it may have one seed on all ranks. */
uint32_t tg_draws_axes(const tg_ctx *ctx);
/* Fills x with draws, by its placement. The shards of all ranks, joined, equal the tensor that one rank draws. With
 * TG_RNG_MEGATRON each shard is drawn as a tensor of its own: over tp, etp or ep from the stream of its rank, over
 * other axes alone from the default stream, and from the selected stream if there is one. `expert` says that x belongs
 * to an expert, which its placement does not show if x varies over tp only. */
tg_status tg_fill_random_placed(tg_tensor *x, tg_random kind, double a, double b, bool expert);
/* Gives back the last draws that tg_fill_random_placed has taken for x, so that the next fill takes them again. These
 * are the draws of the last `local` elements that this rank has, or of the last `global` elements that all ranks have.
 * x must not belong to an expert. */
tg_status tg_draws_give_back(const tg_tensor *x, int64_t local, int64_t global);

#endif
