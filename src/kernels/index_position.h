/* Where an index that is out of range stands in the caller's tensor of indices. */
#ifndef TG_INDEX_POSITION_H
#define TG_INDEX_POSITION_H

#include <tapegrad/device.h>

/* Returns how many neighbors in row-major order are one index in memory: the product of the sizes of the last dims, as
 * long as their stride is 0 or their size 1. An embedding, for example, repeats each id for all elements of its row.
 * Leading dims may repeat indices too, but the first index that is out of range has position 0 in these. So its
 * position divided by the number returned is its position among the indices. */
static inline int64_t tg_index_repeats(const tg_array *index) {
    int64_t n = 1;
    for (int d = index->ndim - 1; d >= 0 && (index->stride[d] == 0 || index->shape[d] == 1); d--) n *= index->shape[d];
    return n;
}

#endif
