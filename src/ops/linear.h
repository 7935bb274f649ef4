/* The three products of a linear layer, x [.., in], w [out, in], y [.., out]: any leading dims, any strides. */
#ifndef TG_LINEAR_H
#define TG_LINEAR_H

#include "core/context.h"

#include <tapegrad/op.h>

/* Checks the dims and sizes of inputs x, of `least` dims or more, w and b, which may be absent. */
tg_status tg_linear_shapes(tg_call *c, int least);
/* y = act(x w^T + b); b [out], contiguous, or NULL. pre, where not NULL, receives the value before the activation. */
tg_status tg_linear_rows(const tg_tensor *x, const tg_tensor *w, const tg_tensor *b, tg_activation act,
                         const tg_tensor *y, const tg_tensor *pre);
/* gx (+)= gy w */
tg_status tg_linear_dgrad(const tg_tensor *gy, const tg_tensor *w, const tg_tensor *gx, bool add);
/* gw (+)= gy^T x, summed over all leading dims */
tg_status tg_linear_wgrad(const tg_tensor *gy, const tg_tensor *x, const tg_tensor *gw, bool add);

#endif
