/* What comm.c and its reference comm_mpi.c measure alike. */
#ifndef TAPEGRAD_BENCH_COMM_SIZES_H
#define TAPEGRAD_BENCH_COMM_SIZES_H

#include <stdint.h>

/* The bytes of an all-reduce on each rank. */
static const int64_t sizes[] = {64 << 10, 256 << 10, 1 << 20, 4 << 20, 64 << 20};
enum { SIZES = sizeof sizes / sizeof *sizes, MAX_CALLS = 400 };

/* Returns of how many calls the median is taken. */
static inline int calls_of(int64_t bytes) { return bytes > 8 << 20 ? 9 : bytes > 512 << 10 ? 60 : MAX_CALLS; }

#endif
