/* Derivatives as ops of the tape: the functions that reverse mode (tg_grad with create_graph) and forward mode
 * (tg_jvp) share. */
#ifndef TG_GRAD_GRAPH_H
#define TG_GRAD_GRAPH_H

#include "placement/placing.h"

#include <tapegrad/derivatives.h>

#include "autograd/backward.h"

/* The functions of a pass that records its derivatives: its targets receive tensors of the tape. */
extern const tg_pass_ops tg_grad_graph;

/* Checks that inputs belong to this tape or to none, and need a gradient. */
tg_status tg_check_inputs(tg_tape *t, tg_tensor *const *inputs, int n, const char *who);

/* Returns the shape of a node's tensor, which stays valid after an in-place op has superseded the tensor. */
static inline tg_shape tg_shape_kept(const tg_tensor *x) { return tg_shape_make(x->ndim, x->shape); }

/* tg_full_like returns a gradient of x that is filled with one value. tg_zero_tangent returns a zero tangent, which
 * has the placement of x. */
tg_tensor *tg_full_like(tg_tape *t, const tg_tensor *x, double value);
tg_tensor *tg_zero_tangent(tg_tape *t, const tg_tensor *x);
/* Returns the caller's g (a seed, a tangent or a hook's result) as a tensor that the caller will not write. */
tg_tensor *tg_grad_graph_own(tg_tape *t, tg_tensor *g);
/* Adds g into a slot of tape tensors. */
tg_status tg_grad_graph_add(tg_tape *t, tg_slot *s, tg_tensor *g);
/* Appends to an error of a node's derivative which node it was. */
tg_status tg_grad_graph_explain(const tg_node *n, tg_status s);
/* Replaces *g by a view with placement `to`, made by an op whose own derivatives are placed as freely. The ops of a
 * derivative may have led the placement rule to a weaker placement, or to another name for the same bytes. An
 * INVARIANT tensor that needs a gradient stays INVARIANT or is refused: otherwise the gradients of the ranks would
 * have to be added. */
tg_status tg_grad_graph_place(tg_tape *t, const tg_node *n, tg_tensor **g, const tg_placements *to, const char *what);
/* Returns another handle on g with the same placement. */
tg_tensor *tg_grad_graph_view(tg_tape *t, tg_tensor *g);
/* Checks that g has the shape and dtype of x, so that it can be its derivative. */
tg_status tg_grad_graph_check(const tg_node *n, const tg_tensor *x, const tg_tensor *g, const char *slot, int i);

/* Makes the inputs of n require gradients exactly as they did when n was recorded, regardless of later calls of
 * tg_set_requires_grad, until tg_needs_now. Returns which flags it changed, in the tape's memory, or NULL after
 * recording the error. */
bool *tg_needs_then(tg_tape *t, const tg_node *n);
void tg_needs_now(const tg_node *n, bool *changed);
/* Calls f for n, while the inputs need gradients as they did when n was recorded. */
tg_status tg_compose(tg_tape *t, const tg_node *n, tg_compose_fn f, tg_tensor **out);

#endif
