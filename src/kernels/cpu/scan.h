/* Cumulative sums and products: what the driver (scan.c) passes to the templates (scan_tmpl.c).
 *
 * A row is scanned element by element, and the running value of floats is a float64. So the bits of a row depend on
 * that row alone. Rows that lie next to each other in memory are scanned together in bands, one element of
 * each row at a time. */
#ifndef TG_SCAN_H
#define TG_SCAN_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/rows.h"

enum {
    TG_SCAN_RUN = 512,  /* elements of a row that are converted at a time */
    TG_SCAN_BAND = 128, /* greatest number of rows of a band */
};

typedef struct tg_scan_job {
    tg_rows x, y;
    bool prod, back, add;
    int64_t per_unit;     /* number of rows of a unit, if rows are scanned one at a time */
    int64_t adjacent;     /* number of rows of a block; they are a constant step apart in x, and also in y */
    int64_t x_row, y_row; /* that step in x and in y, in elements */
    int64_t bands;        /* number of bands of a block */
} tg_scan_job;

typedef struct tg_scan_kernels {
    tg_range_fn rows;  /* a unit is per_unit rows */
    tg_range_fn bands; /* a unit is a band */
} tg_scan_kernels;

#endif
