/* The three products of a linear layer: y (rows), the gradient of x (dgrad) and the gradient of w (wgrad). x [.., in],
 * w [out, in] and y [.., out] may have any leading dims and any strides. */
#ifndef TG_LINEAR_H
#define TG_LINEAR_H

#include "core/context.h"

#include <tapegrad/op.h>

/* Checks the shapes of the inputs x, w and b. x must have `least` or more dims; b may be absent. */
tg_status tg_linear_shapes(tg_call *c, int least);
/* y = act(x w^T + b). b [out] is contiguous, or NULL. pre, if not NULL, receives the value before the activation. */
tg_status tg_linear_rows(const tg_tensor *x, const tg_tensor *w, const tg_tensor *b, tg_activation act,
                         const tg_tensor *y, const tg_tensor *pre);
/* gx = gy w, or gx += gy w with `add` */
tg_status tg_linear_dgrad(const tg_tensor *gy, const tg_tensor *w, const tg_tensor *gx, bool add);
/* gw = gy^T x, or gw += gy^T x with `add`, summed over all leading dims. gy may have fewer columns than w has rows: the
 * further rows of w were not used, and their gradient is 0. */
tg_status tg_linear_wgrad(const tg_tensor *gy, const tg_tensor *x, const tg_tensor *gw, bool add);

#endif
