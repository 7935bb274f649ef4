/* A linear layer followed by a loss of each row of its logits x w^T. The logits are computed in chunks of rows, so that
 * they are never stored as a whole. x [.., h] is input 0, w [v, h] input 1 and the target input 2. The params are a
 * tg_row_loss_params, whose `columns` is the number of columns of the logits. */
#ifndef TG_CHUNKED_HEAD_H
#define TG_CHUNKED_HEAD_H

#include "ops/common/row_loss.h"

/* Checks x and w, does what tg_row_loss_infer does and, if a gradient is needed, declares a buffer that saves the last
 * chunk of logits. Backward starts with that chunk, and would need a buffer of its size anyway. */
tg_status tg_chunked_head_infer(tg_call *c);
/* Computes the logits and calls tg_row_loss_forward, chunk by chunk. */
tg_status tg_chunked_head_forward(tg_call *c, const tg_tensor *loss);
/* Computes the gradients of x and w from the gradients of the rows' losses (tg_row_loss_gradients). */
tg_status tg_chunked_head_backward(tg_call *c, const tg_tensor *row_grads);
/* Returns the cost of the product x w^T. */
int64_t tg_chunked_head_flops(const tg_node *n);

#endif
