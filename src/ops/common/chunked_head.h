/* Losses of logits x w^T that are made in chunks of rows: x [.., h] is input 0, w [v, h] input 1, the target input 2.
 * Params are a tg_loss_params, which says of how many columns of w the logits are. */
#ifndef TG_LOSS_HEAD_H
#define TG_LOSS_HEAD_H

#include "ops/common/row_loss.h"

/* tg_loss_infer of those logits. It keeps the last chunk's: backward begins with them, and would need their memory at
 * once anyway. */
tg_status tg_head_infer(tg_call *c);
/* tg_loss_forward of all rows. */
tg_status tg_head_forward(tg_call *c, const tg_tensor *loss);
/* The gradients of x and w from those of the rows. */
tg_status tg_head_backward(tg_call *c, const tg_tensor *row_grads);
int64_t tg_head_flops(const tg_node *n);

#endif
