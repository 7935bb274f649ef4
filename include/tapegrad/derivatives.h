/* Derivatives in addition to tg_grad (backward.h): forward mode, products with the Hessian, and building blocks for the
 * slots vjp and jvp of an op. All of them record ops, so in grad mode their results can be differentiated again. */
#ifndef TAPEGRAD_DERIVATIVES_H
#define TAPEGRAD_DERIVATIVES_H

#include <tapegrad/op.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Computes dout = J * din, where J is the Jacobian of outs with respect to inputs (forward mode). Goes through the
 * recorded nodes from inputs to outs, in the order in which they were recorded. n_outs and n_in are 1 or more
 * (TG_ERR_ARGUMENT). The inputs must require a gradient (TG_ERR_STATE) and be different tensors (TG_ERR_ARGUMENT).
 *
 * The tangent din[i] has the shape and dtype (TG_ERR_SHAPE) and the placement (TG_ERR_PLACEMENT) of inputs[i]; din[i]
 * NULL means zero. dout[i] has the shape, dtype and placement of outs[i], and belongs to the tape; it is 0 if outs[i]
 * does not depend on the inputs. On an error each dout[i] is an inert tensor (tapegrad.h).
 *
 * Also fails with
 * - TG_ERR_STATE while a backward of t runs, or if an earlier backward has released what the nodes saved;
 * - TG_ERR_VERSION if what the nodes saved was overwritten;
 * - TG_ERR_UNSUPPORTED if an op has no jvp, or in the first run of a recomputed function. */
TG_API tg_status tg_jvp(tg_tape *t, tg_tensor *const *outs, int n_outs, tg_tensor *const *inputs, int n_in,
                        tg_tensor *const *din, tg_tensor **dout);
/* Computes products with the Hessian of root, which has one element (TG_ERR_SHAPE): hv[i] is the sum over j of
 * (d2 root / d inputs[i] d inputs[j]) * v[j]. v[j] and hv[j] have the shape and dtype of inputs[j]. v[j] NULL means
 * zero. hv[j] is 0 if root does not depend on inputs[j]. n is 1 or more. Takes one backward and one forward pass
 * (Pearlmutter, Fast Exact Multiplication by the Hessian, 1994). The call may be made in no-grad mode, but root must
 * have been recorded. Also fails with the errors of tg_grad and tg_jvp. On an error each hv[i] is an inert tensor. */
TG_API tg_status tg_hvp(tg_tape *t, tg_tensor *root, tg_tensor *const *inputs, int n, tg_tensor *const *v,
                        tg_tensor **hv);

/* ---- For the slots vjp and jvp of an op (tg_op) ----
 *
 * Both slots compute by recording ops. vjp computes gin[], the gradients of the inputs, from gout[], the gradients of
 * the outputs. jvp computes dout[], the tangents of the outputs, from din[], the tangents of the inputs. In all four
 * arrays NULL means zero. A slot may read the values of the tensors that the op saves. Of the node's other tensors it
 * may read only the shapes. If a slot is NULL, derivatives that need it fail with TG_ERR_UNSUPPORTED. */

/* Returns whether input i needs a gradient; false if i is out of range. */
TG_API bool tg_node_needs_grad(const tg_node *n, int i);
/* Returns the sum of x over the dims in which the shape of `like` was broadcast to the shape of x. The result has the
 * shape of `like`; it is x itself if the two shapes are equal. This is the derivative of the broadcasting. Fails with
 * TG_ERR_SHAPE if the shape of `like` does not broadcast to that of x. */
TG_API tg_tensor *tg_sum_to(tg_tape *t, tg_tensor *x, const tg_tensor *like);
/* A function that computes the outputs of node n again by recording other ops on its inputs, and stores them in out[].
 * An output whose out[i] the function leaves NULL is not differentiable. */
typedef tg_status (*tg_compose_fn)(tg_tape *t, const tg_node *n, tg_tensor **out);
/* Bodies of the slots vjp and jvp of an op whose outputs f computes by other ops. They call f, and differentiate those
 * ops. tg_vjp_composed adds the gradients of the inputs itself, so the slot leaves gin[] as it is. tg_jvp_composed
 * finds the tangents of the inputs itself, so it does not take din[]. Outside of these slots they fail with
 * TG_ERR_STATE. */
TG_API tg_status tg_vjp_composed(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_compose_fn f);
TG_API tg_status tg_jvp_composed(tg_tape *t, const tg_node *n, tg_tensor **dout, tg_compose_fn f);
/* Bodies of jvp slots:
 * - tg_jvp_linear is for an op that is linear in all its float inputs together, without a constant term.
 * - tg_jvp_multilinear is for an op that is linear in each input that can have a tangent, while the others are fixed.
 * - tg_jvp_pointwise is for an op that works element by element, and whose only float input is input 0. It calls the
 *   op's vjp.
 * - tg_jvp_by_vjp is for any op with a vjp. It differentiates the vjp with respect to gout.
 *
 * tg_jvp_linear and tg_jvp_multilinear record the op again, without its state (tg_apply), so they are only for ops that
 * have none. */
TG_API tg_status tg_jvp_linear(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout);
TG_API tg_status tg_jvp_multilinear(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout);
TG_API tg_status tg_jvp_pointwise(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout);
TG_API tg_status tg_jvp_by_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout);

#ifdef __cplusplus
}
#endif

#endif
