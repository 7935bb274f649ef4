/* Statistics of a tensor's values: their range, and how many are NaN, infinite or zero. */
#ifndef TG_TENSOR_STATS_H
#define TG_TENSOR_STATS_H

#include "core/context.h"

typedef struct tg_range {
    double lo, hi;          /* range of the finite values; lo > hi if there are none */
    int64_t nan, inf, zero; /* counts */
} tg_range;

/* Computes the range of all values of x, which it reads to the host. The bytes of x must be present. */
tg_status tg_range_of(const tg_tensor *x, tg_range *r);
/* Sets *kinds to those of TG_FIND_NAN and TG_FIND_INF that occur in x. Makes two reductions on the device, and reads
 * all of x only if it has a NaN. */
tg_status tg_kinds_in(const tg_tensor *x, int *kinds);

#endif
