/* Metrics: means over a stream of batches, such as a loss, a perplexity or an accuracy. The values of a batch are added
 * on the device, so the host does not wait. The sums of the ranks are added once, at the end.
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
TG_API void tg_metric_free(tg_metric *m); /* m may be NULL */
TG_API tg_status tg_metric_reset(tg_metric *m); /* Removes all values. */

/* Adds each element of x as `weight` values. So the mean loss of a batch of n samples, a scalar, is added with weight
 * n. x has numbers or bools. weight is 1 or more, and weight times the number of elements is less than 2^63
 * (TG_ERR_ARGUMENT). x must not be P on any axis (placement.h; TG_ERR_PLACEMENT). */
TG_API tg_status tg_metric_add(tg_metric *m, tg_tensor *x, int64_t weight);
/* Adds one value for each target: 1 if it is among the k classes of the greatest logits, and else 0. Of equal logits,
 * that of the lower class counts as greater. If the target's logit is NaN, the value is 0; any other NaN counts as
 * greater than a number. A target that is ignore_index adds no value. Any other target must be in [0, classes)
 * (TG_ERR_DATA).
 *
 * logits is [.., classes] and has floats, and targets is [..] (TG_ERR_SHAPE), int64 (TG_ERR_DTYPE). Neither may be P on
 * an axis (TG_ERR_PLACEMENT). k is from 1 to `classes` (TG_ERR_ARGUMENT). t, logits and targets belong to the context
 * of m (TG_ERR_HANDLE). Records ops on t in no-grad mode; their tensors live until the tape is reset. */
TG_API tg_status tg_metric_add_hits(tg_metric *m, tg_tape *t, tg_tensor *logits, tg_tensor *targets, int k,
                                    int64_t ignore_index);
/* Replaces the sum and the number of values by their sums over the ranks of c. Every rank of c must call it. Call it
 * once, after the last value: a second call would count every rank's values again. Does nothing if c is NULL. */
TG_API tg_status tg_metric_reduce(tg_metric *m, tg_comm *c);

/* These functions wait for the device, and fail as tg_read does, for example with TG_ERR_DEVICE on device "meta". On an
 * error tg_metric_count returns 0, and the others return NaN. */
TG_API int64_t tg_metric_count(const tg_metric *m); /* Returns the number of values. */
TG_API double tg_metric_sum(const tg_metric *m);    /* Returns the sum of the values; 0 if there are none. */
TG_API double tg_metric_mean(const tg_metric *m);   /* Returns the mean of the values; NaN if there are none. */
/* Returns e^mean, which is the perplexity if the values are the losses of tokens; NaN if there are none. */
TG_API double tg_metric_perplexity(const tg_metric *m);

#ifdef __cplusplus
}
#endif

#endif
