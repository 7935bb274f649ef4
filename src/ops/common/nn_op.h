/* What op blocks of neural-network layers and losses share. */
#ifndef TG_NETWORK_H
#define TG_NETWORK_H

#include "ops/common/op.h"

/* The array of input i's gradient for a slot that skips an array whose data is NULL. */
tg_array tg_op_gin(const tg_call *c, int i);
tg_array tg_op_absent_or(const tg_tensor *x); /* for an optional tensor */

/* Makes *x row-major: itself, or a temporary copy. */
tg_status tg_op_dense(tg_call *c, tg_tensor **x);

/* The product a b of counts of 0 or more; INT64_MAX, an odd number, if it overflows. */
static inline int64_t tg_flops(int64_t a, int64_t b) { return __builtin_mul_overflow(a, b, &a) ? INT64_MAX : a; }

/* A copy of an options struct, which may be shorter if the caller's header is older; zeros if `from` is NULL. A
 * struct whose size was never set gets size 0, which is reported. */
void tg_op_options(void *to, size_t size, const void *from);

#endif
