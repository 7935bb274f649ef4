/* Data parallelism (Li et al., PyTorch Distributed, VLDB 2020): sums of gradients over ranks, in buckets that
 * overlap backward, and tg_grads_finalize, which ends the sums of a step. Include it in a training program with
 * several ranks.
 *
 * I, R, P and V are TG_I, TG_R, TG_P and TG_V of placement.h. */
#ifndef TAPEGRAD_DATA_PARALLEL_H
#define TAPEGRAD_DATA_PARALLEL_H

#include <tapegrad/parallel.h>
#include <tapegrad/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tg_finalize_opts {
    size_t size;
    /* A tensor of one element: the number of tokens whose loss this rank has computed in its micro-batches.
     * Gradients are divided by max(sum, 1), where sum is over dp, cp and pp. A stage that computes no loss gives
     * NULL or 0. If all stages give NULL, gradients are not divided. Fails with TG_ERR_PLACEMENT if the tensor is
     * declared or computed as the same on the ranks of dp or cp (I, R), as a count that is already summed is, or if
     * it is P on another axis. */
    tg_tensor *tokens;
} tg_finalize_opts;

#define TG_FINALIZE(...) (&(tg_finalize_opts){.size = sizeof(tg_finalize_opts), __VA_ARGS__})

/* Makes the gradients of params whole. Call it once, after the last backward of a step. It waits for the sums of
 * buckets, and sums what is still PARTIAL over the axes where its parameter is R, in one collective for each set of
 * axes. opts may be NULL.
 *
 * Before it, reading a PARTIAL gradient as a number, its norm, clipping and a step fail with TG_ERR_STATE. So does a
 * second call before gradients are zeroed. Collective over those axes and, if there are pipeline stages, over dp, cp
 * and pp. A rank that had no micro-batch calls it too, with 0 tokens, and gets the sums of the others. A parameter
 * that is given twice fails with TG_ERR_ARGUMENT. A parameter that is in buckets but not given fails with
 * TG_ERR_STATE, unless it is frozen and has no gradient. */
TG_API tg_status tg_grads_finalize(const tg_parallel *p, tg_tensor *const *params, int n, const tg_finalize_opts *opts);

/* Data-parallel buckets: the main gradients of params lie in flat buffers, one after the other in reverse order. A new
 * buffer begins when one has `elements` elements (0: max(40e6, 1e6 dp); TG_NONE: no limit), and where the dtype
 * changes. The sum of a bucket over dp and cp starts in backward, when its last gradient is ready and all earlier
 * buckets have started. tg_grads_finalize waits for it. A parameter must be R on dp (and cp) (TG_ERR_PLACEMENT), and
 * can be in one tg_buckets only.
 *
 * If there are several tg_buckets, the sums of the newest start first, and those of each object start after all sums
 * of newer objects have started. So every rank must make them in the same order, and not within a step (TG_ERR_STATE
 * once its sums have started). Returns NULL on error. tg_buckets_free also discards the gradients in the buckets. */
TG_API tg_buckets *tg_buckets_new(const tg_parallel *p, tg_tensor *const *params, int n, int64_t elements);
TG_API void tg_buckets_free(tg_buckets *b);
/* Turns sums in backward on or off, and returns the previous setting. On is the default. Turn it off for all
 * micro-batches but the last, so that backward only accumulates. */
TG_API bool tg_buckets_set_reduce(tg_buckets *b, bool on);

#ifdef __cplusplus
}
#endif

#endif
