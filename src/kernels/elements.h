/* How kernels treat elements of dtypes for which they have no type of their own: uint64 and float8.
 *
 * Kernels of int64 load the bits of a uint64, so sums, products and tests of equality are right modulo 2^64. Where the
 * order of numbers matters, the top bit is flipped when elements are loaded and when they are stored: the numbers are
 * then in the order of int64. The kernels' dtype TG_U64_RANK stands for such elements. TG_U64_ODD stands for elements
 * of uint64 that are converted to a 16-bit or 8-bit float, and are loaded as float64 by tg_u64_odd (convert.h). No
 * tensor has one of these two dtypes.
 *
 * An element of float8 is converted to and from floats. Where elements only move, they are moved as bytes, so that a
 * NaN keeps its bits. */
#ifndef TG_ELEMENTS_H
#define TG_ELEMENTS_H

#include <tapegrad/device.h>

enum { TG_U64_RANK = TG_DTYPE_COUNT, TG_U64_ODD };

/* Returns the kernels' dtype of an operand whose elements are compared: TG_U64_RANK for uint64, otherwise `dtype`. */
static inline int tg_rank_dtype(int dtype) { return dtype == TG_U64 ? (int)TG_U64_RANK : dtype; }

/* Returns whether a reduction compares elements. */
static inline bool tg_ranks_elements(tg_reduction kind) {
    return kind == TG_MAX || kind == TG_MIN || kind == TG_ARGMAX || kind == TG_ARGMIN;
}

/* Returns a number whose bits as int64 are those of the parameter v as uint64. */
static inline double tg_u64_param(double v) { return v >= 0x1p63 ? v - 0x1p64 : v; }

/* Makes x and y arrays of bytes if both have the same dtype of float8. */
static inline void tg_move_as_bytes(tg_array *x, tg_array *y) {
    if (x->dtype == y->dtype && x->dtype > TG_BOOL) x->dtype = y->dtype = TG_U8;
}

#endif
