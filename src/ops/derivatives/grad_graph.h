/* Derivatives that are recorded as ops of the tape, so that they can be differentiated again. Declares what reverse
 * mode (tg_grad with create_graph) and forward mode (tg_jvp) share. */
#ifndef TG_GRAD_GRAPH_H
#define TG_GRAD_GRAPH_H

#include "placement/placing.h"

#include <tapegrad/derivatives.h>

#include "autograd/backward.h"

/* The functions of a reverse pass that records its derivatives. Its targets receive tensors of the tape. */
extern const tg_pass_ops tg_grad_graph;

/* Checks that inputs belong to this tape or to none, and need a gradient. `who` is the public function, for
 * messages. */
tg_status tg_check_inputs(tg_tape *t, tg_tensor *const *inputs, int n, const char *who);

/* Returns the shape of a node's tensor. Unlike tg_shape_of, it also works after an in-place op has superseded the
 * tensor. */
static inline tg_shape tg_shape_kept(const tg_tensor *x) { return tg_shape_make(x->ndim, x->shape); }

/* Return new tensors of x's dtype and shape. tg_full_like: filled with `value`, with the placement of x's gradient.
 * tg_zero_tangent: zeros with the placement of x. */
tg_tensor *tg_full_like(tg_tape *t, const tg_tensor *x, double value);
tg_tensor *tg_zero_tangent(tg_tape *t, const tg_tensor *x);
/* Returns g, which the caller gave as a seed, a tangent or a hook's result, as a tensor of the tape: g itself, or a
 * copy if g belongs to the context, because the caller may write to such a tensor later. */
tg_tensor *tg_grad_graph_own(tg_tape *t, tg_tensor *g);
/* Adds g into a slot of tape tensors. */
tg_status tg_grad_graph_add(tg_tape *t, tg_slot *s, tg_tensor *g);
/* If s is an error of n's derivative, records it unless the context already has an error, and adds the op and its call
 * site to the message. Returns the context's status, or TG_OK if s is TG_OK. */
tg_status tg_grad_graph_explain(const tg_node *n, tg_status s);
/* Replaces *g by a view with placement `to`, where needed (docs/placements.md). The placement that follows from the ops
 * that computed *g may say less than `to` about the bytes, or be REPLICATED where `to` is INVARIANT; with both, all
 * ranks have the same bytes. `what` names g in messages.
 *
 * A tensor that needs a gradient cannot change between INVARIANT and a placement whose bytes differ between the ranks
 * (TG_ERR_PLACEMENT): its gradient would then have to be added over the ranks. On an axis where it would change between
 * INVARIANT and REPLICATED, it keeps its placement. */
tg_status tg_grad_graph_place(tg_tape *t, const tg_node *n, tg_tensor **g, const tg_placements *to, const char *what);
/* Returns a new handle on g with the same placement. */
tg_tensor *tg_grad_graph_view(tg_tape *t, tg_tensor *g);
/* Checks that g is alive and has the shape and dtype of x, so that it can be a derivative of x. The message calls g
 * tensor i of n's `slot`, which is "vjp", "jvp" or "composition". */
tg_status tg_grad_graph_check(const tg_node *n, const tg_tensor *x, const tg_tensor *g, const char *slot, int i);

/* Makes the inputs of n require gradients exactly as they did when n was recorded, whatever tg_set_requires_grad has
 * changed since. Returns which flags it changed, in the tape's memory, or NULL after recording the error. */
bool *tg_needs_then(tg_tape *t, const tg_node *n);
/* Restores the flags that tg_needs_then changed. */
void tg_needs_now(const tg_node *n, bool *changed);
/* Calls f for n, while n's inputs require gradients as they did when n was recorded. */
tg_status tg_compose(tg_tape *t, const tg_node *n, tg_compose_fn f, tg_tensor **out);

#endif
