/* Helpers for the ops of neural-network layers and losses. */
#ifndef TG_NETWORK_H
#define TG_NETWORK_H

#include "ops/common/op.h"

/* Return an array for a device slot, which treats an array with data NULL as absent. */
tg_array tg_op_gin(const tg_call *c, int i);  /* of the gradient of input i; absent: none is needed */
tg_array tg_op_absent_or(const tg_tensor *x); /* of an optional tensor; absent: x is NULL */

/* Replaces *x by a temporary row-major copy, unless it is row-major already. */
tg_status tg_op_dense(tg_call *c, tg_tensor **x);

/* Copies the caller's options struct `from`, whose first field is its size, to `to` of `size` bytes. If the caller's
 * header is older, its struct is shorter, and the rest is set to 0. `from` NULL: all options are 0. Keeps the caller's
 * size in the copy, so that infer can check it (tg_size_check). */
void tg_op_options(void *to, size_t size, const void *from);

#endif
