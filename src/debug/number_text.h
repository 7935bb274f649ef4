/* Numbers as text, as NumPy writes the elements of an array (numpy/_core/arrayprint.py). */
#ifndef TG_NUMBER_TEXT_H
#define TG_NUMBER_TEXT_H

#include <tapegrad/types.h>

/* How the elements of one array are written, so that they stand in columns. */
typedef struct tg_number_format {
    tg_dtype dtype;
    int precision;    /* digits after the decimal point: at most, or exactly if scientific */
    bool scientific;
    int left, right;  /* width before and after the decimal point; of integers and bools, left is the whole width */
    int exponent;     /* number of digits of the exponent */
} tg_number_format;

enum { TG_NUMBER_TEXT = 400 }; /* enough for any number: a float64 has at most 309 digits before the decimal point */

/* Chooses the format for n elements. */
tg_number_format tg_number_format_for(tg_dtype dtype, const void *elements, int64_t n, int precision);
/* Writes element i of an array. */
void tg_number_text(const tg_number_format *f, const void *elements, int64_t i, char out[TG_NUMBER_TEXT]);
/* Writes element 0 as NumPy writes a scalar: with as many digits as identify it. */
void tg_scalar_text(tg_dtype dtype, const void *elements, char out[TG_NUMBER_TEXT]);

#endif
