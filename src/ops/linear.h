/* The three products of a linear layer: y (tg_linear_rows), the gradient of x (tg_linear_dgrad) and the gradient of w
 * (tg_linear_wgrad). x is [.., in], w is [out, in], and y is [.., out], with any leading dims and any strides. */
#ifndef TG_LINEAR_H
#define TG_LINEAR_H

#include "core/context.h"

#include <tapegrad/op.h>

/* Checks the shapes of the inputs x, w and b. x must have `least` or more dims. b may be absent, or be no input. */
tg_status tg_linear_shapes(tg_call *c, int least);
/* y = act(x w^T + b). b [out] is contiguous, or NULL. pre, if not NULL, receives the value before the activation. */
tg_status tg_linear_rows(const tg_tensor *x, const tg_tensor *w, const tg_tensor *b, tg_activation act,
                         const tg_tensor *y, const tg_tensor *pre);
/* gx = gy w, or gx += gy w if add is true. */
tg_status tg_linear_dgrad(const tg_tensor *gy, const tg_tensor *w, const tg_tensor *gx, bool add);
/* gw = gy^T x, or gw += gy^T x if add is true, summed over all leading dims. gy may have fewer columns than gw has
 * rows. The other rows of w were not used then, and their gradient is 0. */
tg_status tg_linear_wgrad(const tg_tensor *gy, const tg_tensor *x, const tg_tensor *gw, bool add);

#endif
