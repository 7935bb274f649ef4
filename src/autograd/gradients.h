/* Gradients: how contributions are summed, and where a leaf keeps its gradient. */
#ifndef TG_GRADIENTS_H
#define TG_GRADIENTS_H

#include "tape/node.h"

/* Adds g into a slot. Takes over g. */
tg_status tg_slot_add(tg_slot *s, tg_tensor *g);
/* Waits for contributions that are in flight and sums them in the order of arrival. */
tg_status tg_slot_finish(tg_slot *s);
/* Frees what the slot holds, and empties it. */
void tg_slot_drop(tg_slot *s);
/* Both return a temporary with the values of g, a tensor of the caller, or NULL after recording the error.
 * tg_gradient_share uses the bytes of g, or copies them if a tape may release them or a backward may add to them.
 * tg_gradient_copy always copies. */
tg_tensor *tg_gradient_share(const tg_tensor *g);
tg_tensor *tg_gradient_copy(const tg_tensor *g);
/* Replaces *g by a copy if a seed or another gradient uses the same bytes. */
tg_status tg_gradient_own(tg_tensor **g);
/* Sets dst to src, or adds src to dst if `add`. Converts between dtypes. */
tg_status tg_gradient_put(tg_tensor *dst, const tg_tensor *src, bool add);
/* Returns the buffer in which x's gradient accumulates. NULL after recording the error. */
tg_tensor *tg_gradient_buffer(tg_tensor *x);
tg_tensor *tg_gradient_of(const tg_tensor *x); /* NULL if x has no gradient */
/* Called when a backward has contributed to the gradient of leaf x. On the axes of the grid where x is REPLICATED
 * (docs/placements.md), the gradient is now PARTIAL: this rank's share of a sum. */
void tg_gradient_reached(tg_tensor *x);
/* Called when the gradient of leaf x has been summed over the axes where x is REPLICATED. */
void tg_gradient_summed(tg_tensor *x);
/* Called when the gradient of parameter x has been reduce-scattered: its range (tg_ext.range) has the gradient now. */
void tg_gradient_divide(tg_tensor *x);
/* Called when the gradient that parameter x has accumulated so far has been reduce-scattered and added to that of its
 * range. x then has no gradient, until the next backward gives it one. */
void tg_gradient_move(tg_tensor *x);
/* Returns the leaf that has the gradient of x: x, or its range after tg_gradient_divide. */
tg_tensor *tg_gradient_leaf(tg_tensor *x);
/* Called when this rank has contributed nothing to the gradient of x, and its value is 0 unless other ranks have
 * contributed. `ranks` is an element on the device that is above 0 if some have. */
tg_status tg_gradient_unsure(tg_tensor *x, tg_array ranks);
/* Returns the address of a float32 on the device: 0 if no rank has contributed to the gradient of x, and 1 otherwise.
 * Returns NULL if the host knows whether one has (tg_ext.unsure). x may be a range. */
const float *tg_gradient_used(const tg_tensor *x);
/* Marks the gradient as empty, and those of the range or whole parameter of x: the next contribution overwrites it. */
void tg_gradient_forget(tg_tensor *x);
/* Fails with TG_ERR_STATE if a product that belongs to x's gradient has not been added yet (tg_wgrads). */
tg_status tg_gradient_need_drained(const tg_tensor *x, const char *who);
/* Fails with TG_ERR_STATE if x's gradient is PARTIAL. For callers that need the complete value. */
tg_status tg_gradient_need_whole(const tg_tensor *x, const char *who);
/* Returns a temporary handle on the bytes of g that has no placement, even if g is one rank's share of a sum. NULL
 * after recording the error. */
tg_tensor *tg_gradient_alias(const tg_tensor *g);
/* Gives x's gradient the placement that follows from that of x. */
void tg_gradient_place(tg_tensor *x);

#endif
