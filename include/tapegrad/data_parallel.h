/* Gradients over ranks: tg_grads_finalize completes them at the end of a step. Include this header in a training
 * program with several ranks. With flat.h gradients are summed in buckets while backward still runs.
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
    /* A tensor of one element (TG_ERR_SHAPE): the number of tokens for which this rank has computed a loss in this
     * step. Gradients are divided by max(sum, 1), where sum is the total of these numbers over dp, cp and pp. NULL, the
     * default, on all ranks means that gradients are not divided. A pipeline stage that computes no loss passes NULL,
     * or a tensor that holds 0. Apart from such stages, either all ranks pass a tensor or none does.
     *
     * A leaf need not be placed (tg_place): on an axis without a declared placement it counts as this rank's own
     * number. Apart from that, the tensor must not be I or R on dp or cp (TG_ERR_PLACEMENT), because the sum would
     * count the same tokens once for each rank. It must not be P on other axes than dp and cp either
     * (TG_ERR_PLACEMENT). */
    tg_tensor *tokens;
} tg_finalize_opts;

#define TG_FINALIZE_DEFAULTS .size = sizeof(tg_finalize_opts)
#define TG_FINALIZE(...) (&(tg_finalize_opts){TG_FINALIZE_DEFAULTS, __VA_ARGS__})

/* Completes the gradients of the n parameters params[]. Call it once in a step, after the last backward. It starts the
 * sums of buckets (tg_flat) that backward has not started, and waits for all of them. Then it sums each gradient that
 * is still P, over the axes on which its parameter is R, and the gradients of shared parameters (tg_share). Last, it
 * divides by the number of tokens. n may be 0. opts may be NULL.
 *
 * Before this call, a gradient that is P cannot be read, measured (its norm), clipped or used in a step of an optimizer
 * (TG_ERR_STATE). After the call, zero the gradients before the next backward: until then a backward that would add to
 * a summed gradient, and a second call, fail with TG_ERR_STATE.
 *
 * The call is collective over the axes on which params are R, over the groups that share a parameter and, if there are
 * tokens or pipeline stages, over dp, cp and pp. All ranks of such an axis pass the parameters in the same order. A
 * rank that had no micro-batch makes the call too, with 0 tokens, and gets the sums of the others.
 *
 * A parameter that no rank has used has no gradient afterward, unless it is shared (tg_share). Whether other ranks have
 * used a parameter that this rank has not used is known on the device only. For such a parameter tg_has_grad and
 * tg_grad_of wait for the device; a step of an optimizer does not.
 *
 * Fails with TG_ERR_ARGUMENT if p is NULL, if n is negative, or if a parameter is given twice. Fails with TG_ERR_STATE
 * if a tensor of params is not a leaf that needs a gradient, if its gradient waits in a tg_wgrads (tensor_parallel.h),
 * or if a parameter is in a tg_flat but not in params, unless that parameter requires no gradient and has none. */
TG_API tg_status tg_grads_finalize(const tg_parallel *p, tg_tensor *const *params, int n, const tg_finalize_opts *opts);

#ifdef __cplusplus
}
#endif

#endif
