/* Gradients: how contributions are summed, and where a leaf keeps its own. */
#ifndef TG_GRADIENTS_H
#define TG_GRADIENTS_H

#include "tape/node.h"

/* Sums g, which it takes over, into a slot. */
tg_status tg_slot_add(tg_slot *s, tg_tensor *g);
/* Waits for what is in flight and sums it, in the order of arrival. */
tg_status tg_slot_finish(tg_slot *s);
void tg_slot_drop(tg_slot *s);
/* The caller's g as a gradient: its bytes, or a copy where a tape may take those away, or a backward add to them; and
 * always a copy. NULL after an error. */
tg_tensor *tg_gradient_share(const tg_tensor *g);
tg_tensor *tg_gradient_copy(const tg_tensor *g);
/* Bytes of its own in place of those that a seed or another gradient has as well. */
tg_status tg_gradient_own(tg_tensor **g);
/* dst (+)= src, converting. */
tg_status tg_gradient_put(tg_tensor *dst, const tg_tensor *src, bool add);
/* The buffer in which x's gradient is accumulated. NULL after recording the error. */
tg_tensor *tg_gradient_buffer(tg_tensor *x);
tg_tensor *tg_gradient_of(const tg_tensor *x); /* NULL: it has none */
/* A backward has contributed to the gradient of leaf x, which is partial where x is R. */
void tg_gradient_reached(tg_tensor *x);
/* The gradient of leaf x has been summed over the axes where x is R. */
void tg_gradient_summed(tg_tensor *x);
/* Nothing is there: the next contribution overwrites. */
void tg_gradient_forget(tg_tensor *x);
/* TG_ERR_STATE where a product that belongs to x's gradient waits (tg_wgrads). */
tg_status tg_gradient_need_drained(const tg_tensor *x, const char *who);
/* TG_ERR_STATE where x's gradient is partial: for whoever would take it as a number. */
tg_status tg_gradient_need_whole(const tg_tensor *x, const char *who);
/* A handle of its own on the bytes of g, whatever g is a share of: a temporary. NULL after recording the error. */
tg_tensor *tg_gradient_alias(const tg_tensor *g);
/* Gives x's gradient the placement that follows from x's. */
void tg_gradient_place(tg_tensor *x);

#endif
