/* Statistics of a tensor's values: their range, and how many are NaN, infinite or zero. */
#ifndef TG_TENSOR_STATS_H
#define TG_TENSOR_STATS_H

#include "core/context.h"

typedef struct tg_range {
    double lo, hi;          /* range of the numbers; lo > hi: there are none */
    int64_t nan, inf, zero; /* counts */
} tg_range;

/* Reads all of x, whose bytes must be present. */
tg_status tg_range_of(const tg_tensor *x, tg_range *r);
/* Finds which of the kinds of tg_tape_find_nan occur in x, by two reductions on the device. */
tg_status tg_kinds_in(const tg_tensor *x, int *kinds);

#endif
