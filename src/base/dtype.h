/* Facts about dtypes that hot paths need without a call. Names and bits, which are public, are in dtype.c. */
#ifndef TG_DTYPE_H
#define TG_DTYPE_H

#include <tapegrad/types.h>

/* Returns the bytes of one element; 0 for TG_DTYPE_DEFAULT and for the 4-bit format, which no op takes. */
static inline size_t tg_dtype_size(tg_dtype d) {
    static const uint8_t size[TG_DTYPE_COUNT] = {0, 4, 8, 2, 2, 8, 4, 1, 1, 1, 1, 1, 0};
    return size[d];
}
static inline bool tg_is_float(tg_dtype d) { return d >= TG_F32 && d <= TG_F16; }
/* Returns the dtype in which sums of elements of d are computed. */
static inline tg_dtype tg_accumulate_dtype(tg_dtype d) { return d == TG_F64 ? TG_F64 : tg_is_float(d) ? TG_F32 : d; }

#endif
