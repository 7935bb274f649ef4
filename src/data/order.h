/* The order of samples in an epoch. */
#ifndef TG_DATA_ORDER_H
#define TG_DATA_ORDER_H

#include <stdint.h>

/* Returns the sample at position i of an epoch: for i from 0 to n - 1 each number from 0 to n - 1 once. n is from 1 to
 * 2^62. The result depends on the arguments alone, and takes constant time and no memory. */
int64_t tg_order_at(uint64_t seed, int64_t epoch, int64_t n, int64_t i);

#endif
