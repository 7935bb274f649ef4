/* Helpers for the ops of neural-network layers and losses. */
#ifndef TG_NN_OP_H
#define TG_NN_OP_H

#include "base/options.h"
#include "ops/common/op.h"

/* Return an array for a device slot, which treats an array with data NULL as absent. */
tg_array tg_op_gin(const tg_call *c, int i);  /* of the gradient of input i; absent if no gradient is needed */
tg_array tg_op_absent_or(const tg_tensor *x); /* of x; absent if x is NULL */

/* Replaces *x by a temporary row-major copy, unless *x is already row-major. */
tg_status tg_op_dense(tg_call *c, tg_tensor **x);

/* Copies the caller's struct of options `from` to `to`, with defaults in place of what it does not have
 * (tg_options_complete). The copy keeps the caller's size, so that infer can check it (tg_size_check). */
void tg_op_options(void *to, const tg_struct *s, const void *from);

#endif
