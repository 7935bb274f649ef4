/* Sums of gradients over ranks: the functions that tg_flat and tg_grads_finalize share. */
#ifndef TG_GRADS_H
#define TG_GRADS_H

#include "parallel/parallel.h"
#include "placement/rule.h"

/* The axes whose ranks have the same dense parameters and other data, so that their gradients are summed. */
enum { TG_DATA_AXES = 1u << TG_DP | 1u << TG_CP };

/* Starts those sums of tg_flat buckets that backward has not started, waits for all sums, and finds out which gradients
 * some rank has contributed to. */
tg_status tg_flats_finish(const tg_parallel *p);
/* Fails with TG_ERR_STATE if tg_flats_finish would sum the gradient of a parameter that is not among params, because
 * that gradient would not be marked as summed. Frozen parameters without a gradient may be missing. */
tg_status tg_flats_check_all(const tg_parallel *p, tg_tensor *const *params, int n);
/* Returns the set of axes with several ranks over which a tg_flat sums x's gradient; 0 if there are none, or if x is in
 * no tg_flat. */
uint32_t tg_flat_axes(const tg_tensor *x);
/* Returns x's gradient buffer, for a sum over ranks. If x has no gradient on this rank, fills the buffer with 0 first.
 * Returns NULL after recording the error. */
tg_tensor *tg_gradient_or_zero(tg_tensor *x);

/* Starts the sums of the gradients of the shared parameters (tg_share) among params. Collective over the groups that
 * share them. The caller waits for the sums. */
tg_status tg_grads_sum_shares(tg_tensor *const *params, int n);

/* Holds all tg_flat of p, or releases them. While they are held, backward starts no sums, as if tg_flat_set_reduce had
 * switched them all off. A pipeline releases them for the last B and the last W of each chunk (tg_pipe_act). */
void tg_flats_hold(const tg_parallel *p, bool held);

/* In check mode (tg_config.check), compares the parameters whose placements say that they are equal on all
 * data-parallel ranks (dp and edp), by a hash of their bytes. Collective over these ranks. Does nothing if check mode
 * is off. */
tg_status tg_grads_compare_params(const tg_parallel *p, tg_tensor *const *params, int n);

#endif
