/* What the blocks of networks and losses share. */
#ifndef TG_NETWORK_H
#define TG_NETWORK_H

#include "ops/common/op.h"

/* Input i's gradient for a slot that leaves out an array whose data is NULL. */
tg_array tg_op_gin(const tg_call *c, int i);
tg_array tg_op_absent_or(const tg_tensor *x); /* of an optional tensor */

/* *x made row-major: itself, or a temporary copy. */
tg_status tg_op_dense(tg_call *c, tg_tensor **x);

/* a b of counts that are not negative: INT64_MAX, an odd number, where that does not fit. */
static inline int64_t tg_flops(int64_t a, int64_t b) { return __builtin_mul_overflow(a, b, &a) ? INT64_MAX : a; }

/* A copy of an options struct that the caller's header may have shorter; zeros where from is NULL. A struct whose size
 * was never set is told by to's own size: 0. */
void tg_op_options(void *to, size_t size, const void *from);

#endif
