/* Metrics: means over a stream of batches, such as a loss, a perplexity or an accuracy. They are summed on the device,
 * so that a batch does not make the host wait, and over ranks once, at the end.
 *
 *     tg_metric *hits = tg_metric_new(ctx);
 *     for (int64_t i = 0; i < tg_loader_batches(l); i++) {
 *         tg_loader_next(l, x);
 *         tg_metric_add_hits(hits, t, model(t, x[0]), x[1], 1, -100);
 *         tg_tape_reset(t);
 *     }
 *     tg_metric_reduce(hits, tg_parallel_comm(p, TG_DP));
 *     printf("accuracy %.4f\n", tg_metric_mean(hits)); */
#ifndef TAPEGRAD_METRICS_H
#define TAPEGRAD_METRICS_H

#include <tapegrad/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A sum in float64 and the number of values in it, an int64. */
typedef struct tg_metric tg_metric;

/* Creates a metric without values. On an error returns an inert object, on which calls do nothing. */
TG_API tg_metric *tg_metric_new(tg_ctx *ctx);
TG_API void tg_metric_free(tg_metric *m);
TG_API tg_status tg_metric_reset(tg_metric *m); /* Removes all values. */

/* Adds the elements of x, which has numbers or bools, each as `weight` >= 1 values, fewer than 2^63 in all. So the mean
 * loss of a batch of n samples, a scalar, is added with weight n. x must not be PARTIAL over ranks (TG_ERR_PLACEMENT).
 */
TG_API tg_status tg_metric_add(tg_metric *m, tg_tensor *x, int64_t weight);
/* Adds one value for each target: 1 if it is among the k classes of the greatest logits, and else 0. Of equal logits,
 * that of the lower class counts as greater; if the target's logit is NaN, the value is 0. logits is [..., classes],
 * floats, and targets is [...], int64; k is from 1 to the number of classes. A target that is ignore_index adds no
 * value. Any other target must be in [0, classes) (TG_ERR_DATA). Records ops on t in no-grad mode; they stay there
 * until the tape is reset. */
TG_API tg_status tg_metric_add_hits(tg_metric *m, tg_tape *t, tg_tensor *logits, tg_tensor *targets, int k,
                                    int64_t ignore_index);
/* Replaces sum and number by their sums over the ranks of c. Collective. Call it once, after the last value: a second
 * call would count every rank's values again. Does nothing if c is NULL. */
TG_API tg_status tg_metric_reduce(tg_metric *m, tg_comm *c);

/* Return the number of values; their sum; their mean, NaN if there are none; and the exponential of the mean, which is
 * the perplexity if the values are the losses of tokens. Wait for the device. Return 0, or NaN, on an error. */
TG_API int64_t tg_metric_count(const tg_metric *m);
TG_API double tg_metric_sum(const tg_metric *m);
TG_API double tg_metric_mean(const tg_metric *m);
TG_API double tg_metric_perplexity(const tg_metric *m);

#ifdef __cplusplus
}
#endif

#endif
