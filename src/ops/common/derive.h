/* Helpers for the vjp and jvp slots of ops, which compute derivatives by recording ops on the tape. */
#ifndef TG_DERIVE_H
#define TG_DERIVE_H

#include <tapegrad/ops.h>

#include "ops/derivatives/grad_graph.h"

/* Defines the vjp of an op with one output that gives a gradient to input 0 only. `recorded` is an expression for that
 * gradient; it may use t, n and the tensors g (gradient of the output), x (input 0) and y (output). */
#define TG_VJP(name, recorded)                                                                           \
    static tg_status name(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {       \
        tg_tensor *g = gout[0], *x = tg_node_in(n)[0], *y = tg_node_out(n)[0];                           \
        (void)t, (void)g, (void)x, (void)y;                                                              \
        gin[0] = (recorded);                                                                             \
        return TG_OK;                                                                                    \
    }

/* Defines the vjp and jvp of an op from name##_compose, which recomputes the op by recording others (tg_compose_fn). */
#define TG_COMPOSED(name)                                                                                       \
    static tg_status name##_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {        \
        (void)gin;                                                                                              \
        return tg_vjp_composed(t, n, gout, name##_compose);                                                     \
    }                                                                                                           \
    static tg_status name##_jvp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout) {        \
        (void)din;                                                                                              \
        return tg_jvp_composed(t, n, dout, name##_compose);                                                     \
    }

/* Returns 1 - x. */
static inline tg_tensor *tg_one_minus(tg_tape *t, tg_tensor *x) { return tg_add_scalar(t, tg_neg(t, x), 1); }
/* Returns zeros with the dtype, shape and placement of x's gradient. */
static inline tg_tensor *tg_zeros_like(tg_tape *t, const tg_tensor *x) { return tg_full_like(t, x, 0); }

/* Returns v as a scalar of x's dtype. */
static inline tg_tensor *tg_number_like(tg_tape *t, const tg_tensor *x, double v) {
    return tg_full(t, (tg_dtype)x->dtype, TG_SHAPE(), v);
}
/* Return bool masks: where x < v, where x > v, and where x == v. */
static inline tg_tensor *tg_below(tg_tape *t, tg_tensor *x, double v) { return tg_lt(t, x, tg_number_like(t, x, v)); }
static inline tg_tensor *tg_above(tg_tape *t, tg_tensor *x, double v) { return tg_gt(t, x, tg_number_like(t, x, v)); }
static inline tg_tensor *tg_equals(tg_tape *t, tg_tensor *x, double v) { return tg_eq(t, x, tg_number_like(t, x, v)); }

/* Returns x^p for x >= 0. At 0 the result and its derivative are 0. */
tg_tensor *tg_power_or_0(tg_tape *t, tg_tensor *x, double p);
static inline tg_tensor *tg_root_or_0(tg_tape *t, tg_tensor *x) { return tg_power_or_0(t, x, 0.5); }

/* Converts a 16-bit float tensor to float32, the dtype in which its elements are summed. Returns others as they are. */
static inline tg_tensor *tg_wide(tg_tape *t, tg_tensor *x) {
    tg_dtype dtype = tg_accumulate_dtype((tg_dtype)x->dtype);
    return dtype == x->dtype ? x : tg_cast(t, x, dtype);
}

/* Converts x, which was computed from tg_wide tensors, to the dtype of g. Returns x if it has it. */
static inline tg_tensor *tg_narrow_like(tg_tape *t, tg_tensor *x, const tg_tensor *g) {
    return x->dtype == g->dtype ? x : tg_cast(t, x, (tg_dtype)g->dtype);
}

/* The derivatives of an op whose results are constant between steps: all gradients are 0, and so is the tangent. */
tg_status tg_steps_backward(tg_call *c);
tg_status tg_steps_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin);
tg_status tg_steps_jvp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout);

/* Returns saved buffer k of a node as a tensor of the tape, with this placement. */
tg_tensor *tg_node_kept_tensor(tg_tape *t, const tg_node *n, int k, const tg_placements *place);
/* Returns input i as it was before an in-place op overwrote it. The op has saved a copy in its private buffer k. */
tg_tensor *tg_node_kept_input(tg_tape *t, const tg_node *n, int i, int k);

/* Returns the layer norm of x, or the RMS norm if rms is true, composed of primitive ops. w and b may be NULL. */
tg_tensor *tg_norm_compose(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, double eps, bool rms);
/* Records dropout with the draws of an earlier call, so that it drops the same elements (dropout.c). */
tg_tensor *tg_dropout_again(tg_tape *t, tg_tensor *x, double p, const tg_draws *draws);

/* Return the derivatives of activations at x. */
tg_tensor *tg_silu_slope(tg_tape *t, tg_tensor *x);
tg_tensor *tg_gelu_slope(tg_tape *t, tg_tensor *x);
tg_tensor *tg_gelu_tanh_slope(tg_tape *t, tg_tensor *x);

/* Copies x into a tensor of zeros that has the shape of x, except that its size along dim is `size`. The element at i
 * along dim goes to start + i * step. */
tg_tensor *tg_spread(tg_tape *t, tg_tensor *x, int dim, int64_t start, int64_t step, int64_t size);

#endif
