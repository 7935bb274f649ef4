/* Data parallelism: sums of gradients over ranks, in buckets, and data for all ranks. */
#ifndef TAPEGRAD_DATA_PARALLEL_H
#define TAPEGRAD_DATA_PARALLEL_H

#include <tapegrad/parallel.h>
#include <tapegrad/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tg_finalize_opts {
    size_t size;
    /* Scalar: the number of tokens whose loss this rank has computed in its micro-batches. Gradients are divided by its
     * sum over dp, cp and pp, but by 1 if that is less. A stage that computes no loss gives NULL or 0; if all stages
     * give NULL, gradients are not divided. Fails with TG_ERR_PLACEMENT if a declaration or an op has placed it as the
     * same on the ranks of dp or cp (I, R), as a count that was summed before is, or if it is P on another axis. */
    tg_tensor *tokens;
} tg_finalize_opts;

#define TG_FINALIZE(...) (&(tg_finalize_opts){.size = sizeof(tg_finalize_opts), __VA_ARGS__})

/* Once after the last backward of a step: waits for bucket works, sums what is still PARTIAL over the axes where its
 * parameter is R, coalesced by axis set. Before it, norm, clip, step and reading a PARTIAL gradient as a number are
 * TG_ERR_STATE; so is a second call before the gradients are zeroed. Collective over those axes and, if
 * there are stages, over dp, cp and pp. A rank that had no micro-batch calls it too (its tokens are 0), and gets what
 * the others have summed. A parameter given twice is
 * TG_ERR_ARGUMENT; one that is in buckets and not given TG_ERR_STATE, unless it is frozen. opts may be NULL. */
TG_API tg_status tg_grads_finalize(const tg_parallel *p, tg_tensor *const *params, int n, const tg_finalize_opts *opts);

/* Data-parallel buckets: the main gradients of params in flat buffers, by dtype, in reverse order, cut where a bucket
 * has `elements` (0: max(40e6, 1e6 dp); TG_NONE: one). A bucket's sum over dp starts when its last gradient of a
 * backward is ready; tg_grads_finalize waits for it. Of several tg_buckets the newest's start first, each object's
 * when all of the newer ones have: every rank makes them in the same order, and none within a step (TG_ERR_STATE once
 * its sums have begun). */
TG_API tg_buckets *tg_buckets_new(const tg_parallel *p, tg_tensor *const *params, int n, int64_t elements);
TG_API void tg_buckets_free(tg_buckets *b);
/* Returns what was set before. Off (on is the default): backward only accumulates, for all but the last micro-batch. */
TG_API bool tg_buckets_set_reduce(tg_buckets *b, bool on);

#ifdef __cplusplus
}
#endif

#endif
