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

/* Create averages of n >= 1 different parameters (TG_ERR_ARGUMENT). Each must be a contiguous leaf of the context that
 * requires a gradient (TG_ERR_STATE), and must outlive the averages. An average has the dtype of its parameter, or
 * float32 if the parameter has 16 bits. On an error the functions return an inert object (tapegrad.h).
 *
 * The first update copies the parameters to the averages. Each later update of an EMA replaces an average by decay *
 * average + (1 - decay) * parameter, with decay in [0, 1) (TG_ERR_ARGUMENT). After k updates with tg_swa_new, an
 * average is the mean of the k values that its parameter had. */
TG_API tg_average *tg_ema_new(tg_ctx *ctx, tg_tensor *const *params, int n, double decay);
TG_API tg_average *tg_swa_new(tg_ctx *ctx, tg_tensor *const *params, int n);
/* Frees the averages. If they are applied, the parameters keep the averaged values. */
TG_API void tg_average_free(tg_average *a);

/* Adds the current values of the parameters to the averages. Queues work on the device, allocates nothing, and may be a
 * part of a captured step (capture.h). An update after a step that was skipped (optim.h) adds the unchanged parameters
 * once more. Fails with TG_ERR_STATE while the averages are applied. */
TG_API tg_status tg_average_update(tg_average *a);
/* Applies the averages: writes them into the parameters, rounded to their dtypes, and keeps copies of the parameters,
 * for which it allocates memory. Fails with TG_ERR_STATE if the averages are applied already, or if there was no
 * update, and with TG_ERR_UNSUPPORTED in a captured step. If the device fails, the parameters get their own values
 * back. If that fails too, the averages count as applied, and tg_average_restore writes the copies after
 * tg_ctx_clear. */
TG_API tg_status tg_average_apply(tg_average *a);
/* Writes the copies back to the parameters, with the same bits, and releases the copies. An optimizer then continues as
 * if the averages had not been applied. Fails with TG_ERR_STATE, and changes nothing, if the averages are not applied,
 * or if a parameter was written after tg_average_apply, for example by a step. If the device fails, the copies are
 * kept, and the call can be made again after tg_ctx_clear. */
TG_API tg_status tg_average_restore(tg_average *a);
/* Makes the values that the parameters have now permanent, by releasing the copies of tg_average_apply. Fails with
 * TG_ERR_STATE if the averages are not applied. */
TG_API tg_status tg_average_commit(tg_average *a);

/* Returns the number of updates; 0 on an error. Waits for the device. Fails with TG_ERR_UNSUPPORTED in a captured step,
 * and with TG_ERR_DATA if a number that is no count was written to the state tensor of the updates. */
TG_API int64_t tg_average_updates(const tg_average *a);
/* Return the number of state tensors, and state tensor i with its name: "<param>.average" for each parameter, and last
 * "updates", the number of updates as one float64. The tensors belong to the averages; tg_drop has no effect on them.
 * name may be NULL. The text of *name is valid until the next call of tg_average_state. An index out of range fails
 * with TG_ERR_ARGUMENT. To restore a state, write into the tensors (tg_write, tg_safetensors_read).
 * tg_shards_add_average (checkpoint.h) adds the tensors to the state of all ranks. */
TG_API int tg_average_state_count(const tg_average *a);
TG_API tg_tensor *tg_average_state(tg_average *a, int i, const char **name);

#ifdef __cplusplus
}
#endif

#endif
