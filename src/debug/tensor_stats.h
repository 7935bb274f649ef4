/* What a tensor holds: the range of its numbers, and how many are NaN or infinite. */
#ifndef TG_TENSOR_STATS_H
#define TG_TENSOR_STATS_H

#include "core/context.h"

typedef struct tg_range {
    double lo, hi;          /* of the numbers; lo > hi: there are none */
    int64_t nan, inf, zero; /* how many */
} tg_range;

/* Reads all of x, whose bytes must be there. */
tg_status tg_range_of(const tg_tensor *x, tg_range *r);
/* Finds which of the kinds of tg_tape_find_nan x has, by two reductions on the device. */
tg_status tg_kinds_in(const tg_tensor *x, int *kinds);

#endif
