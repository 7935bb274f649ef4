/* Facts about dtypes that hot paths need without a call. Names and bits, which are public, are in dtype.c. */
#ifndef TG_DTYPE_H
#define TG_DTYPE_H

#include <float.h>
#include <tapegrad/types.h>

/* Returns the bytes of one element; 0 for TG_DTYPE_DEFAULT and for the 4-bit format, which no tensor has. */
static inline size_t tg_dtype_size(tg_dtype d) {
#define TG_X(NAME, name, bits, kind) (bits) / 8,
    static const uint8_t size[TG_DTYPE_COUNT] = {0, TG_DTYPE_LIST(TG_X)};
#undef TG_X
    return size[d];
}
static inline bool tg_is_float(tg_dtype d) { return d >= TG_F32 && d <= TG_F16; }
/* Returns whether d is a float or an integer dtype. */
static inline bool tg_is_number(tg_dtype d) { return d >= TG_F32 && d <= TG_U64; }
/* Returns whether d is an integer dtype with a sign. */
static inline bool tg_is_signed(tg_dtype d) { return d == TG_I64 || d == TG_I32 || d == TG_I16 || d == TG_I8; }
/* Returns whether ops compute with d: a number or bool. */
static inline bool tg_is_computed(tg_dtype d) { return d >= TG_F32 && d <= TG_BOOL; }
/* Returns whether tensors can have dtype d: whether ops compute with it, or it is an 8-bit format of kind q. */
static inline bool tg_is_stored(tg_dtype d) { return d >= TG_F32 && d <= TG_F8E8M0; }
/* Returns whether d, a dtype that tensors can have, is a float or one of the 8-bit formats of kind q. */
static inline bool tg_is_real(tg_dtype d) { return d <= TG_F16 || d > TG_BOOL; }
/* Returns the dtype in which sums of elements of d are computed. */
static inline tg_dtype tg_accumulate_dtype(tg_dtype d) { return d == TG_F64 ? TG_F64 : tg_is_float(d) ? TG_F32 : d; }
/* Returns the greatest finite number of the dtype in which sums of float dtype d are computed. */
static inline double tg_greatest(tg_dtype d) { return d == TG_F64 ? DBL_MAX : (double)FLT_MAX; }
/* Returns the dtype of a sum or product of elements of d: that of d for floats and uint64, and int64 for the other
 * integers and bool. */
static inline tg_dtype tg_total_dtype(tg_dtype d) { return tg_is_float(d) || d == TG_U64 ? d : TG_I64; }

#endif
