/* Cumulative sums and products: what the driver (scan.c) passes to the templates (scan_tmpl.c).
 *
 * A row is scanned element by element, floats in float64, so its bits depend on nothing else. Adjacent rows are
 * scanned together, one element of each at a time. */
#ifndef TG_SCAN_H
#define TG_SCAN_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/rows.h"

enum { TG_SCAN_RUN = 512, TG_SCAN_LANES = 128 };

typedef struct tg_scan_job {
    tg_rows x, y;
    bool prod, back, add;
    int64_t per_unit;       /* rows */
    int64_t lanes, x_lane, y_lane; /* rows in a block that lie a step apart; the steps */
    int64_t bands;          /* of a block: up to TG_SCAN_LANES rows each */
} tg_scan_job;

typedef struct tg_scan_kernels {
    tg_range_fn rows;  /* a unit is per_unit rows */
    tg_range_fn bands; /* a unit is a band */
} tg_scan_kernels;

#endif
