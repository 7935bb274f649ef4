/* Helpers for the ops of neural-network layers and losses. */
#ifndef TG_NETWORK_H
#define TG_NETWORK_H

#include "ops/common/op.h"

/* Return an array for a device slot, which treats an array with data NULL as absent. */
tg_array tg_op_gin(const tg_call *c, int i);  /* of the gradient of input i; absent if no gradient is needed */
tg_array tg_op_absent_or(const tg_tensor *x); /* of x; absent if x is NULL */

/* Replaces *x by a temporary row-major copy, unless *x is already row-major. */
tg_status tg_op_dense(tg_call *c, tg_tensor **x);

/* Copies the caller's options struct `from`, whose first field is its size, to `to`, which has `size` bytes. A caller
 * that was compiled with an older header has a shorter struct; the remaining fields of `to` are set to 0. If `from` is
 * NULL, all options are 0. The copy keeps the caller's size, so that infer can check it (tg_size_check). */
void tg_op_options(void *to, size_t size, const void *from);

#endif
