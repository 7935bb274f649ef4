/* The values of a tensor as text. tapegrad.h includes this header. */
#ifndef TAPEGRAD_PRINT_H
#define TAPEGRAD_PRINT_H

#include <tapegrad/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tg_print_opts {
    size_t size;
    int precision;     /* greatest number of digits after the decimal point, 0 or more; 8 by default */
    int64_t threshold; /* tensors with more elements are summarized, 0 or more; 1000 by default */
    int edge;          /* number of elements that a summary shows at each end of a dim, 1 or more; 3 by default */
    int width;         /* greatest number of characters of a line, 1 or more; 75 by default */
    bool values_only;  /* leave out the dtype and the shape after the values */
} tg_print_opts;

#define TG_PRINT_DEFAULTS .size = sizeof(tg_print_opts), .precision = 8, .threshold = 1000, .edge = 3, .width = 75
#define TG_PRINT(...) (&(tg_print_opts){TG_PRINT_DEFAULTS, __VA_ARGS__})

/* Writes the values of x as NumPy prints an array: nested in brackets, in columns, with as few digits as identify each
 * number, and in scientific notation if the largest magnitude is at least 1e8, the smallest that is not 0 is below
 * 1e-4, or their quotient is above 1000. After them stand the dtype and the shape, on a line of their own unless x is a
 * scalar. Waits for the values. Copies only the elements that are shown. buf, n and the result are as in snprintf; see
 * tg_memory_report. opts may be NULL. On an error, such as a tensor of device "meta" (TG_ERR_DEVICE) or a negative
 * option (TG_ERR_ARGUMENT), returns 0 and writes an empty text. */
TG_API size_t tg_print(tg_tensor *x, char *buf, size_t n, const tg_print_opts *opts);

#ifdef __cplusplus
}
#endif

#endif
