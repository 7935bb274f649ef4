/* The values of a tensor as text. tapegrad.h includes this header. */
#ifndef TAPEGRAD_PRINT_H
#define TAPEGRAD_PRINT_H

#include <tapegrad/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Options of tg_print. TG_PRINT makes them; types.h explains `size` and such macros. */
typedef struct tg_print_opts {
    size_t size;
    int precision;     /* greatest number of digits after the decimal point, 0 or more; 8 by default */
    int64_t threshold; /* tensors with more elements than this are summarized, 0 or more; 1000 by default */
    /* Number of elements that a summary shows at each end of a dim, 1 or more; 3 by default. A dim of at most twice as
     * many elements is shown whole. */
    int edge;
    int width;         /* greatest length of a line of two or more numbers, 1 or more; 75 by default */
    bool values_only;  /* true: leave out what follows the values: the name, the dtype and the shape */
} tg_print_opts;

#define TG_PRINT_DEFAULTS .size = sizeof(tg_print_opts), .precision = 8, .threshold = 1000, .edge = 3, .width = 75
#define TG_PRINT(...) (&(tg_print_opts){TG_PRINT_DEFAULTS, __VA_ARGS__})

/* Writes the values of x as NumPy prints an array: nested in brackets and in columns. A float has as few digits as
 * distinguish it from the other numbers of its dtype, and is rounded if they are more than `precision` allows; a scalar
 * is not rounded. The name, the dtype and the shape follow as tg_describe writes them, on a line of their own unless x
 * is a scalar.
 *
 * Only the finite nonzero floats that are shown decide the notation, by their magnitudes. It is scientific if the
 * largest is at least 1e8, the smallest is below 1e-4, or the largest is more than 1000 times the smallest. For a
 * scalar, the bounds are 1e-4 and, in place of 1e8, 1e16 for float64, 1e6 for float32 and 1e3 for other floats.
 *
 * Writes at most n bytes, the final 0 included, and returns the length of the whole text without that 0. If buf is NULL
 * or n is 0, it writes nothing. Waits for the values. Copies only the elements that are shown. opts may be NULL.
 *
 * On an error writes an empty text and returns 0. Fails with TG_ERR_ARGUMENT if an option is out of range. If x has
 * elements, fails as tg_read does, for example with TG_ERR_DEVICE on device "meta". If x is NULL, no error is
 * recorded. */
TG_API size_t tg_print(tg_tensor *x, char *buf, size_t n, const tg_print_opts *opts);

#ifdef __cplusplus
}
#endif

#endif
