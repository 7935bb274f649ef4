/* Statistics of a tensor's values: their range, and how many are NaN, infinite or zero. */
#ifndef TG_TENSOR_STATS_H
#define TG_TENSOR_STATS_H

#include "core/context.h"

typedef struct tg_range {
    double lo, hi;          /* range of the finite values; lo > hi if there are none */
    int64_t nan, inf, zero; /* counts */
} tg_range;

/* Copies all values of x to the host and computes their range. The bytes of x must be present. */
tg_status tg_range_measure(const tg_tensor *x, tg_range *r);
/* Sets *kinds to the sum of TG_FIND_NAN if x has a NaN, and TG_FIND_INF if x has an infinity. Makes two reductions on
 * the device, and copies all of x to the host only if x has a NaN. */
tg_status tg_kinds_in(const tg_tensor *x, int *kinds);

#endif
