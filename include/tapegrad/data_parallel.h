/* Data parallelism (Li et al., PyTorch Distributed, VLDB 2020). Gradients are summed over ranks in buckets, while
 * backward runs. tg_grads_finalize completes them at the end of a step. Include this header in a training program with
 * several ranks.
 *
 * I, R, P and V are TG_I, TG_R, TG_P and TG_V of placement.h. dp, cp, pp are the axes TG_DP, TG_CP, TG_PP. */
#ifndef TAPEGRAD_DATA_PARALLEL_H
#define TAPEGRAD_DATA_PARALLEL_H

#include <tapegrad/parallel.h>
#include <tapegrad/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Options of tg_grads_finalize. */
typedef struct tg_finalize_opts {
    size_t size;
    /* A tensor of one element: the number of tokens for which this rank has computed a loss in this step. Gradients are
     * divided by max(sum, 1), where sum is the total of these numbers over dp, cp and pp. A pipeline stage that
     * computes no loss passes NULL, or a tensor that holds 0. If tokens is NULL on all ranks, gradients are not
     * divided.
     *
     * The call fails with TG_ERR_PLACEMENT if the tensor is I or R on dp or cp, because the sum would then count the
     * same tokens once for each rank. It also fails so if the tensor is P on another axis. */
    tg_tensor *tokens;
} tg_finalize_opts;

#define TG_FINALIZE_DEFAULTS .size = sizeof(tg_finalize_opts)
#define TG_FINALIZE(...) (&(tg_finalize_opts){TG_FINALIZE_DEFAULTS, __VA_ARGS__})

/* Makes the gradients of params whole. Call it once in a step, after the last backward. It waits for the sums of the
 * buckets. Then it sums each gradient that is still P, over the axes on which its parameter is R. opts may be NULL.
 *
 * Before this call, a gradient that is P cannot be read, measured (its norm), clipped or used in a step of an optimizer
 * (TG_ERR_STATE). A second call also fails with TG_ERR_STATE, unless the gradients were zeroed in between.
 *
 * The call is collective over the axes on which params are R and, if there are pipeline stages, over dp, cp and pp. A
 * rank that had no micro-batch makes the call too, with 0 tokens, and gets the sums of the others.
 *
 * A parameter that is given twice fails with TG_ERR_ARGUMENT. A parameter that is in buckets but not in params fails
 * with TG_ERR_STATE, unless it requires no gradient and has none. */
TG_API tg_status tg_grads_finalize(const tg_parallel *p, tg_tensor *const *params, int n, const tg_finalize_opts *opts);

/* Creates buckets for the main gradients of params. A bucket is a flat buffer with the gradients of several parameters,
 * one after another. The parameters come in the reverse of their order in params. A new bucket begins when the last one
 * has `elements` elements or more, and where the dtype changes. elements 0 means max(40e6, 1e6 * ranks), where ranks is
 * the number of ranks of dp and cp together. TG_NONE means no limit. Returns NULL on an error.
 *
 * Each bucket is summed over dp and cp. Its sum starts in backward, when its last gradient is ready and the sums of all
 * earlier buckets have started. tg_grads_finalize waits for it. A parameter must be R on dp and cp (TG_ERR_PLACEMENT),
 * and must not be in other tg_buckets (TG_ERR_STATE).
 *
 * If a program has several tg_buckets, the sums of the newest one start first, and the sums of an older one after all
 * sums of the newer ones. So every rank must create them in the same order. Creation fails with TG_ERR_STATE if sums of
 * this step have started; create buckets between steps. */
TG_API tg_buckets *tg_buckets_new(const tg_parallel *p, tg_tensor *const *params, int n, int64_t elements);
/* Frees the buckets, and discards the gradients in them. */
TG_API void tg_buckets_free(tg_buckets *b);
/* Turns the sums in backward on (the default) or off, and returns the previous setting. While they are off, backward
 * only accumulates gradients. Turn them off for all micro-batches of a step except the last. */
TG_API bool tg_buckets_set_reduce(tg_buckets *b, bool on);

#ifdef __cplusplus
}
#endif

#endif
