/* Medians of measurements. */
#ifndef TAPEGRAD_BENCH_MEDIAN_H
#define TAPEGRAD_BENCH_MEDIAN_H

enum { MEDIAN_MOST = 512 };

/* Returns the median of n numbers, at most MEDIAN_MOST. */
double median(const double *v, int n);

#endif
