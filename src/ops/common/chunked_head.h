/* Losses of logits x w^T that are computed in chunks of rows: x [.., h] is input 0, w [v, h] input 1 and the target
 * input 2. The params are a tg_row_loss_params, which says how many columns the logits have. */
#ifndef TG_CHUNKED_HEAD_H
#define TG_CHUNKED_HEAD_H

#include "ops/common/row_loss.h"

/* tg_row_loss_infer for such logits. The last chunk is saved: backward starts with it and would allocate as much
 * anyway. */
tg_status tg_chunked_head_infer(tg_call *c);
/* tg_row_loss_forward for all rows. */
tg_status tg_chunked_head_forward(tg_call *c, const tg_tensor *loss);
/* Computes the gradients of x and w from those of the rows. */
tg_status tg_chunked_head_backward(tg_call *c, const tg_tensor *row_grads);
int64_t tg_chunked_head_flops(const tg_node *n);

#endif
