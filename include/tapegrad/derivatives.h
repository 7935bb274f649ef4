/* Derivatives beside tg_grad: forward mode and products with the Hessian; and what the vjp and jvp slots of an op are
 * made of.
 *
 * All of them record ops, so that their results can be differentiated again.
 */
#ifndef TAPEGRAD_DERIVATIVES_H
#define TAPEGRAD_DERIVATIVES_H

#include <tapegrad/op.h>

#ifdef __cplusplus
extern "C" {
#endif

/* dout = J din, forward over the recorded nodes between inputs, which need a gradient, and outs. din[i] has inputs[i]'s
 * shape and dtype (NULL: zero); dout[i] has outs[i]'s, and is a tensor of the tape. Recorded on t, so it can be
 * differentiated again. What the nodes saved must be there: TG_ERR_STATE after a backward that consumed it. An op
 * without a forward derivative is TG_ERR_UNSUPPORTED. On an error dout[] are inert. */
TG_API tg_status tg_jvp(tg_tape *t, tg_tensor *const *outs, int n_outs, tg_tensor *const *inputs, int n_in,
                        tg_tensor *const *din, tg_tensor **dout);
/* hv[i] = sum over j of (d2 root / d inputs[i] d inputs[j]) v[j]: one backward and one forward pass (Pearlmutter, Fast
 * Exact Multiplication by the Hessian, 1994), with the tape in no-grad mode too. root: a scalar; v[j] NULL: zero. */
TG_API tg_status tg_hvp(tg_tape *t, tg_tensor *root, tg_tensor *const *inputs, int n, tg_tensor *const *v,
                        tg_tensor **hv);

/* ---- For the slots vjp and jvp of an op (extend.h) ----
 *
 * They give gin[] for gout[], and dout[] for din[], by recording ops. Given are NULL where no gradient came, or the
 * tangent is zero; so are results. A slot that is NULL makes such a request TG_ERR_UNSUPPORTED. Of its node it reads
 * what the op saves, and shapes. */

TG_API bool tg_node_needs_grad(const tg_node *n, int i); /* input i needs a gradient; false for NULL and out of range */
/* x summed over the dims in which broadcasting had stretched the shape of `like`: the derivative of that. */
TG_API tg_tensor *tg_sum_to(tg_tape *t, tg_tensor *x, const tg_tensor *like);
/* Records, from the node's inputs, ops whose results out[] are what the node's outputs are (NULL: not differentiable).
 * The one function serves both slots, in which these are the one line. */
typedef tg_status (*tg_compose_fn)(tg_tape *t, const tg_node *n, tg_tensor **out);
TG_API tg_status tg_vjp_composed(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_compose_fn f);
TG_API tg_status tg_jvp_composed(tg_tape *t, const tg_node *n, tg_tensor **dout, tg_compose_fn f);
/* The jvp slot of an op that is linear in all float inputs jointly, with no constant term; in each of them; that has
 * one input and works element by element (its vjp is its jvp); and of any op with a vjp that records ops, by
 * differentiating that with respect to its cotangent. The first two record the op again: it keeps no state. */
TG_API tg_status tg_jvp_linear(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout);
TG_API tg_status tg_jvp_multilinear(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout);
TG_API tg_status tg_jvp_pointwise(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout);
TG_API tg_status tg_jvp_by_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout);

#ifdef __cplusplus
}
#endif

#endif
