/* Medians of measurements. */
#include "median.h"

#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b) {
    double d = *(const double *)a - *(const double *)b;
    return d > 0 ? 1 : d < 0 ? -1 : 0;
}

double median(const double *v, int n) {
    double sorted[MEDIAN_MOST];
    memcpy(sorted, v, (size_t)n * sizeof *v);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    return sorted[n / 2];
}
