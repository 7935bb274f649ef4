/* Averages of parameters over the steps of training, which often generalize better than the last parameters: the
 * exponential moving average (EMA; Polyak and Juditsky, SIAM J. Control Optim. 30, 1992), and the plain mean of
 * stochastic weight averaging (SWA; Izmailov et al., arXiv 1803.05407).
 *
 *     tg_average *ema = tg_ema_new(ctx, params, n, 0.999);
 *     for (...) {
 *         ...
 *         tg_optim_step(o);
 *         tg_average_update(ema);          // after each step, or every few
 *     }
 *     tg_average_apply(ema);               // the parameters have the values of the averages
 *     evaluate(model);
 *     tg_average_restore(ema);             // the parameters have their own values again
 */
#ifndef TAPEGRAD_AVERAGE_H
#define TAPEGRAD_AVERAGE_H

#include <tapegrad/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tg_average tg_average;

/* Create averages of n different parameters, which must outlive the averages. An average has the dtype of its
 * parameter, or float32 if the parameter has 16 bits.
 *
 * The first update copies the parameters to the averages. Each later update of tg_ema_new's averages replaces an
 * average by decay * average + (1 - decay) * parameter. An average of tg_swa_new is the mean of the values that its
 * parameter had in the updates.
 *
 * Fail with TG_ERR_ARGUMENT if n is below 1, if a parameter is given twice, or if decay is not in [0, 1), and with
 * TG_ERR_STATE if a parameter is not contiguous, or not a leaf of the context that requires a gradient. On an error the
 * functions return an inert object (tapegrad.h). */
TG_API tg_average *tg_ema_new(tg_ctx *ctx, tg_tensor *const *params, int n, double decay);
TG_API tg_average *tg_swa_new(tg_ctx *ctx, tg_tensor *const *params, int n);
/* Frees the averages. If they are applied, the parameters keep the averaged values. */
TG_API void tg_average_free(tg_average *a);

/* Adds the current values of the parameters to the averages. Queues work on the device, allocates nothing, and may be a
 * part of a captured step (capture.h). An update after a step that was skipped (optim.h) adds the unchanged parameters
 * once more. Fails with TG_ERR_STATE while the averages are applied. */
TG_API tg_status tg_average_update(tg_average *a);
/* Applies the averages: copies the parameters to memory that it allocates, and writes the averages into the parameters,
 * rounded to their dtypes. Waits for the device, to read the number of updates.
 *
 * Fails with
 * - TG_ERR_STATE if the averages are applied already, if a parameter is read-only (tg_set_read_only), or if the number
 *   of updates is 0 (except on device "meta");
 * - TG_ERR_UNSUPPORTED in a captured step;
 * - TG_ERR_DATA as tg_average_updates does.
 *
 * If the device fails during the write, the call writes the copies back, and the averages are not applied. If the
 * device fails then too, the averages count as applied; call tg_ctx_clear and then tg_average_restore, which writes the
 * copies back. */
TG_API tg_status tg_average_apply(tg_average *a);
/* Writes the copies back to the parameters, with the same bits, and releases the copies. An optimizer then continues as
 * if the averages had not been applied. Fails with TG_ERR_STATE, and changes nothing, if the averages are not applied,
 * or if a parameter was written after tg_average_apply, for example by a step. If the device fails, the copies are
 * kept, and the call can be made again after tg_ctx_clear. */
TG_API tg_status tg_average_restore(tg_average *a);
/* Releases the copies of tg_average_apply. The parameters keep the values that they have now, and the averages no
 * longer count as applied. Fails with TG_ERR_STATE if the averages are not applied. */
TG_API tg_status tg_average_commit(tg_average *a);

/* Returns the number of updates, those of a restored state included; 0 on an error and on device "meta". Waits for the
 * device. Fails with TG_ERR_UNSUPPORTED in a captured step, and with TG_ERR_DATA if the program has written something
 * other than a whole number from 0 to 2^53 to the state tensor "updates". */
TG_API int64_t tg_average_updates(const tg_average *a);
/* Return the number of state tensors, and state tensor i with its name. Each parameter has one, in the order of params,
 * with the name "<name>.average", where <name> is that of the parameter (tg_name), or empty if it has none. The last
 * one, "updates", is the number of updates as one float64. The tensors belong to the averages; tg_drop has no effect on
 * them.
 *
 * name may be NULL. The text of *name is valid until the next call of tg_average_state. An index out of range fails
 * with TG_ERR_ARGUMENT and returns an inert tensor. To restore a state, write into the tensors (tg_write,
 * tg_safetensors_read). A program with several ranks saves and loads them with tg_shards_add_average (checkpoint.h)
 * instead. */
TG_API int tg_average_state_count(const tg_average *a);
TG_API tg_tensor *tg_average_state(tg_average *a, int i, const char **name);

#ifdef __cplusplus
}
#endif

#endif
