/* Derivatives in addition to tg_grad (backward.h): forward mode, products with the Hessian, and building blocks for the
 * slots vjp and jvp of an op. Derivatives are computed by recording ops, so in grad mode they can be differentiated
 * again. */
#ifndef TAPEGRAD_DERIVATIVES_H
#define TAPEGRAD_DERIVATIVES_H

#include <tapegrad/op.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Computes dout = J * din, where J is the Jacobian of outs with respect to inputs (forward mode). Goes through the
 * recorded nodes from inputs to outs, in the order in which they were recorded. n_outs and n_in are 1 or more. The
 * inputs must be different tensors and require a gradient.
 *
 * The tangent din[i] has the shape, dtype and placement of inputs[i]; din[i] NULL means zero. dout[i] has the shape,
 * dtype and placement of outs[i], and belongs to the tape; it is 0 if outs[i] does not depend on the inputs. In the
 * placements of tangents, INVARIANT and REPLICATED count as the same. On an error each dout[i] is an inert tensor
 * (tapegrad.h).
 *
 * Fails with
 * - TG_ERR_ARGUMENT if n_outs or n_in is below 1, if an array is NULL, or if two inputs are the same tensor;
 * - TG_ERR_HANDLE if an output or an input is a result of another tape;
 * - TG_ERR_SHAPE if a tangent has another shape or dtype, and TG_ERR_PLACEMENT if it has another placement;
 * - TG_ERR_STATE if an input requires no gradient, while a backward or a tg_jvp of t runs, or if an earlier backward
 *   has released what the nodes saved;
 * - TG_ERR_VERSION if what the nodes saved was overwritten;
 * - TG_ERR_UNSUPPORTED if an op has no jvp, or if a function that tg_recompute runs for the first time makes the call,
 *   because that run records no nodes. */
TG_API tg_status tg_jvp(tg_tape *t, tg_tensor *const *outs, int n_outs, tg_tensor *const *inputs, int n_in,
                        tg_tensor *const *din, tg_tensor **dout);
/* Computes products with the Hessian of root, which has one element:
 *
 *     hv[i] = sum over j of (d2 root / d inputs[i] d inputs[j]) * v[j]
 *
 * v[j] has the shape, dtype and placement of inputs[j]; v[j] NULL means zero. hv[i] has the shape and dtype of
 * inputs[i] and the placement of a gradient of it, and belongs to the tape; it is 0 if root does not depend on
 * inputs[i]. n is 1 or more. Takes one backward and one forward pass (Pearlmutter, Fast Exact Multiplication by the
 * Hessian, 1994), and keeps what the nodes saved.
 *
 * The call may be made in no-grad mode, but root must have been recorded in grad mode. Fails with the errors of tg_grad
 * and tg_jvp, for example with TG_ERR_STATE if root was recorded in no-grad mode. On an error each hv[i] is an inert
 * tensor. */
TG_API tg_status tg_hvp(tg_tape *t, tg_tensor *root, tg_tensor *const *inputs, int n, tg_tensor *const *v,
                        tg_tensor **hv);

/* ---- For the slots vjp and jvp of an op (tg_op) ----
 *
 * Both slots compute by recording ops. vjp computes gin[], the gradients of the inputs, from gout[], the gradients of
 * the outputs. jvp computes dout[], the tangents of the outputs, from din[], the tangents of the inputs. In all four
 * arrays NULL means zero. A slot may read the values of these arrays' tensors and of those that the op saves (saves_in,
 * saves_out). Of the node's other tensors it may read only shape, dtype and placement. If a slot is NULL, derivatives
 * that need it fail with TG_ERR_UNSUPPORTED. */

/* Returns whether input i needs a gradient; false if i is out of range. */
TG_API bool tg_node_needs_grad(const tg_node *n, int i);
/* Returns the sum of x over the dims in which the shape of `like` was broadcast to the shape of x. The result has the
 * shape of `like`; it is x itself if the two shapes are equal. A vjp uses it for the gradient of an input that the op
 * has broadcast. Fails with TG_ERR_SHAPE if the shape of `like` does not broadcast to that of x, and with
 * TG_ERR_ARGUMENT if `like` is NULL or of another context. On an error returns an inert tensor. */
TG_API tg_tensor *tg_sum_to(tg_tape *t, tg_tensor *x, const tg_tensor *like);
/* A function that computes the outputs of node n again by recording other ops on its inputs, and stores them in out[].
 * It may read the values of an input only if the op saves that input. out[i] is NULL at first. If it stays NULL, no
 * derivative passes through output i: its gradient has no effect, and its tangent is zero. */
typedef tg_status (*tg_compose_fn)(tg_tape *t, const tg_node *n, tg_tensor **out);
/* Implement the slots vjp and jvp of an op whose outputs f can compute by other ops. They call f, and differentiate the
 * ops that f records. tg_vjp_composed passes the gradients of the inputs on itself, so the slot leaves gin[] as it is.
 * tg_jvp_composed finds the tangents of the inputs itself, so it does not take din[]. Outside of these slots they fail
 * with TG_ERR_STATE. */
TG_API tg_status tg_vjp_composed(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_compose_fn f);
TG_API tg_status tg_jvp_composed(tg_tape *t, const tg_node *n, tg_tensor **dout, tg_compose_fn f);
/* Implement the slot jvp:
 * - tg_jvp_linear is for an op that is linear in all its float inputs together, without a constant term.
 * - tg_jvp_multilinear is for an op that is linear in each input that can have a tangent, while the others are fixed.
 * - tg_jvp_pointwise is for an op that works element by element, and that has one output and no float input but input
 *   0. It calls the op's vjp.
 * - tg_jvp_by_vjp is for an op whose vjp records only ops that have a vjp themselves. It differentiates the vjp with
 *   respect to gout.
 *
 * tg_jvp_linear and tg_jvp_multilinear record the op again by tg_apply, with NULL as its state. So they are only for
 * ops whose calls have no state. */
TG_API tg_status tg_jvp_linear(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout);
TG_API tg_status tg_jvp_multilinear(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout);
TG_API tg_status tg_jvp_pointwise(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout);
TG_API tg_status tg_jvp_by_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout);

#ifdef __cplusplus
}
#endif

#endif
