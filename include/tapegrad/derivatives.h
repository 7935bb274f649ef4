/* Derivatives in addition to tg_grad: forward mode, products with the Hessian, and building blocks for the vjp and jvp
 * slots of an op.
 *
 * All of them record ops, so their results can be differentiated again.
 */
#ifndef TAPEGRAD_DERIVATIVES_H
#define TAPEGRAD_DERIVATIVES_H

#include <tapegrad/op.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Computes dout = J din, where J is the Jacobian of outs with respect to inputs (forward mode): passes through the
 * recorded nodes between them in forward order. The inputs must require a gradient and be different tensors. The
 * tangent din[i] has the shape, dtype and placement of inputs[i] (NULL: zero); dout[i] has those of outs[i] and belongs
 * to the tape.
 *
 * TG_ERR_STATE: a backward has freed what the nodes saved. TG_ERR_UNSUPPORTED: an op has no jvp. On error dout[] are
 * inert tensors. */
TG_API tg_status tg_jvp(tg_tape *t, tg_tensor *const *outs, int n_outs, tg_tensor *const *inputs, int n_in,
                        tg_tensor *const *din, tg_tensor **dout);
/* Computes products with the Hessian of the scalar root: hv[i] = sum over j of (d2 root / d inputs[i] d inputs[j])
 * v[j]. This takes one backward and one forward pass (Pearlmutter, Fast Exact Multiplication by the Hessian, 1994),
 * and works in no-grad mode too. v[j] and hv[j] have the shape and dtype of inputs[j]; v[j] may be NULL: zero. */
TG_API tg_status tg_hvp(tg_tape *t, tg_tensor *root, tg_tensor *const *inputs, int n, tg_tensor *const *v,
                        tg_tensor **hv);

/* ---- For the slots vjp and jvp of an op (extend.h) ----
 *
 * The vjp slot computes gin[] from gout[], and the jvp slot dout[] from din[], by recording ops. NULL as an element
 * stands for no gradient or a tangent of zero, in arguments and results. A slot may read only the shapes of the node's
 * tensors and what the op saves. If an op's slot is NULL, derivatives that need it fail with TG_ERR_UNSUPPORTED. */

TG_API bool tg_node_needs_grad(const tg_node *n, int i); /* whether input i needs one; out of range: false */
/* Sums x over the dims in which broadcasting has expanded the shape of `like`: the derivative of that broadcasting. */
TG_API tg_tensor *tg_sum_to(tg_tape *t, tg_tensor *x, const tg_tensor *like);
/* A function that recomputes the node's outputs out[] from its inputs by recording other ops. An out[i] that it leaves
 * NULL is not differentiable. tg_vjp_composed and tg_jvp_composed are bodies of both slots that use it. */
typedef tg_status (*tg_compose_fn)(tg_tape *t, const tg_node *n, tg_tensor **out);
TG_API tg_status tg_vjp_composed(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_compose_fn f);
TG_API tg_status tg_jvp_composed(tg_tape *t, const tg_node *n, tg_tensor **dout, tg_compose_fn f);
/* Bodies of jvp slots.
 * - tg_jvp_linear: for an op that is linear in all float inputs together, without a constant term.
 * - tg_jvp_multilinear: for an op that is linear in each input that has a tangent.
 * - tg_jvp_pointwise: for an op of one input that works element by element; its vjp is its jvp.
 * - tg_jvp_by_vjp: for any op with a vjp: differentiates the vjp with respect to the cotangent.
 * The first two record the op again, so the op must keep no state. */
TG_API tg_status tg_jvp_linear(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout);
TG_API tg_status tg_jvp_multilinear(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout);
TG_API tg_status tg_jvp_pointwise(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout);
TG_API tg_status tg_jvp_by_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout);

#ifdef __cplusplus
}
#endif

#endif
