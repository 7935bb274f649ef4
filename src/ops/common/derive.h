/* Helpers for the vjp slots of op blocks, which express derivatives as ops of the tape. */
#ifndef TG_DERIVE_H
#define TG_DERIVE_H

#include <tapegrad/ops.h>

#include "ops/derivatives/grad_graph.h"

/* Defines the vjp of an op with one input and one output from an expression in t, n and the tensors g, x and y. */
#define TG_VJP(name, recorded)                                                                           \
    static tg_status name(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {       \
        tg_tensor *g = gout[0], *x = tg_node_in(n)[0], *y = tg_node_out(n)[0];                           \
        (void)t, (void)g, (void)x, (void)y;                                                              \
        gin[0] = (recorded);                                                                             \
        return TG_OK;                                                                                    \
    }

/* Defines both slots of an op from the function that composes it of other ops (tg_compose_fn). */
#define TG_COMPOSED(name)                                                                                       \
    static tg_status name##_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {        \
        (void)gin;                                                                                              \
        return tg_vjp_composed(t, n, gout, name##_compose);                                                     \
    }                                                                                                           \
    static tg_status name##_jvp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout) {        \
        (void)din;                                                                                              \
        return tg_jvp_composed(t, n, dout, name##_compose);                                                     \
    }

/* 1 - x. */
static inline tg_tensor *tg_one_minus(tg_tape *t, tg_tensor *x) { return tg_add_scalar(t, tg_neg(t, x), 1); }
/* Zeros as a gradient of x. */
static inline tg_tensor *tg_zeros_like(tg_tape *t, const tg_tensor *x) { return tg_full_like(t, x, 0); }

/* Masks: x compared with a number. */
static inline tg_tensor *tg_number_like(tg_tape *t, const tg_tensor *x, double v) {
    return tg_full(t, (tg_dtype)x->dtype, TG_SHAPE(), v);
}
static inline tg_tensor *tg_below(tg_tape *t, tg_tensor *x, double v) { return tg_lt(t, x, tg_number_like(t, x, v)); }
static inline tg_tensor *tg_above(tg_tape *t, tg_tensor *x, double v) { return tg_gt(t, x, tg_number_like(t, x, v)); }
static inline tg_tensor *tg_equals(tg_tape *t, tg_tensor *x, double v) { return tg_eq(t, x, tg_number_like(t, x, v)); }

/* x^p for x >= 0, with slope 0 at 0. */
tg_tensor *tg_power_or_0(tg_tape *t, tg_tensor *x, double p);
static inline tg_tensor *tg_root_or_0(tg_tape *t, tg_tensor *x) { return tg_power_or_0(t, x, 0.5); }

/* Converts 16-bit tensors to float32, in which sums run. */
static inline tg_tensor *tg_wide(tg_tape *t, tg_tensor *x) {
    tg_dtype dtype = tg_accumulate_dtype((tg_dtype)x->dtype);
    return dtype == x->dtype ? x : tg_cast(t, x, dtype);
}

/* Input i as it was when the node was recorded, if the op overwrote it and saved a copy in its private buffer k. */
tg_tensor *tg_node_kept_input(tg_tape *t, const tg_node *n, int i, int k);

/* Layer norm or RMS norm of x, composed of primitive ops; w and b may be NULL. */
tg_tensor *tg_norm_compose(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, double eps, bool rms);
/* Dropout with the draws of another call (dropout.c). */
tg_tensor *tg_dropout_again(tg_tape *t, tg_tensor *x, double p, const tg_draws *draws);

/* The slopes of activations. */
tg_tensor *tg_silu_slope(tg_tape *t, tg_tensor *x);
tg_tensor *tg_gelu_slope(tg_tape *t, tg_tensor *x);
tg_tensor *tg_gelu_tanh_slope(tg_tape *t, tg_tensor *x);

/* Spreads x [.., n, ..] along dim among zeros: from `start` on, `step` apart, `size` elements in all. */
tg_tensor *tg_spread(tg_tape *t, tg_tensor *x, int dim, int64_t start, int64_t step, int64_t size);

#endif
