/* Derivatives as ops of the tape: what reverse mode (tg_grad's create_graph) and forward mode (tg_jvp) share. */
#ifndef TG_TAPED_H
#define TG_TAPED_H

#include "placement/placing.h"

#include <tapegrad/derivatives.h>

#include "autograd/backward.h"

/* Makes a pass record its derivatives: its targets receive tensors of the tape. */
extern const tg_pass_ops tg_grad_graph;

/* Checks that inputs are of this tape or none, and need a gradient. */
tg_status tg_check_inputs(tg_tape *t, tg_tensor *const *inputs, int n, const char *who);

/* The shape of a node's tensor, which it keeps when an op in place has superseded it. */
static inline tg_shape tg_shape_kept(const tg_tensor *x) { return tg_shape_make(x->ndim, x->shape); }

/* Zeros, or another number, as a gradient of x; and as a tangent, which lies over the ranks as x does. */
tg_tensor *tg_full_like(tg_tape *t, const tg_tensor *x, double value);
tg_tensor *tg_zero_tangent(tg_tape *t, const tg_tensor *x);
/* The caller's g, a seed or tangent or a hook's result, as one that the caller does not write. */
tg_tensor *tg_taped_own(tg_tape *t, tg_tensor *g);
/* Sums g into a slot of tape tensors. */
tg_status tg_taped_add(tg_tape *t, tg_slot *s, tg_tensor *g);
/* Whoever reads an error from the derivative of a node learns which it was. */
tg_status tg_taped_note(const tg_node *n, tg_status s);
/* A view of *g that lies over the ranks as `to` says, by an op whose derivatives are as free: what a derivative is made
 * of may have led the rule to less, or to another name of the same bytes. Where it is I and needs a gradient it stays I
 * or is refused: the ranks' gradients of it would have to be added up. */
tg_status tg_taped_place(tg_tape *t, const tg_node *n, tg_tensor **g, const tg_placements *to, const char *what);
/* Another handle on g, which lies as it does. */
tg_tensor *tg_taped_view(tg_tape *t, tg_tensor *g);
/* g is a derivative of x: of its shape and dtype. */
tg_status tg_taped_fits(const tg_node *n, const tg_tensor *x, const tg_tensor *g, const char *slot, int i);

/* What needed a gradient when n was recorded needs it once more, and nothing else of its inputs does, whatever
 * tg_set_requires_grad has said since; until tg_needs_now. Returns which flags were others, in the tape's memory; NULL
 * after recording the error. */
bool *tg_needs_then(tg_tape *t, const tg_node *n);
void tg_needs_now(const tg_node *n, bool *changed);
/* Calls f for n, whose inputs need gradients as they did then. */
tg_status tg_compose(tg_tape *t, const tg_node *n, tg_compose_fn f, tg_tensor **out);

#endif
