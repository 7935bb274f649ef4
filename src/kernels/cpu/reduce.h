/* Reductions: what the driver (reduce.c) passes to the templates (reduce_tmpl.c).
 *
 * The order of a reduction depends on shapes, strides and dtypes alone. A reduction along rows computes one output at a
 * time: it combines runs of TG_REDUCE_RUN elements in the lanes of a few vectors, and then the results of the runs
 * pairwise. A reduction along columns computes many neighboring outputs together: it combines blocks of
 * TG_REDUCE_BLOCK rows element by element, then blocks of blocks. So rounding errors of sums grow with the logarithm of
 * the count. Long reductions are divided into parts, and the same code reduces the results of the parts. */
#ifndef TG_REDUCE_H
#define TG_REDUCE_H

#include "kernels/cpu/cpu.h"

enum { TG_REDUCE_RUN = 512, TG_REDUCE_BLOCK = 32, TG_REDUCE_LEVELS = 6 };

/* Some dims of the input: either the kept ones or the reduced ones. */
typedef struct tg_reduce_dims {
    int n;
    int64_t count;                                                 /* product of shape */
    int64_t shape[TG_MAX_DIMS], in[TG_MAX_DIMS], out[TG_MAX_DIMS]; /* in, out: strides in elements */
} tg_reduce_dims;

/* One pass of a reduction. A tile is the work of one call: a group of outputs and one part of their elements. */
typedef struct tg_reduce_plan {
    tg_reduction kind;
    double scale;
    bool add;
    const char *in;
    char *out;
    tg_dtype in_dtype, out_dtype;
    int64_t in_size, out_size;
    tg_reduce_dims kept, reduced;
    int64_t parts, part_len; /* number of parts for each output, and of reduced elements in a part */
    int64_t part_step;       /* from one part's results to the next's, in elements of out */
    int64_t tiles, per_unit; /* number of tiles, in all and in one unit of parallel work */
} tg_reduce_plan;

typedef struct tg_reduce_kernels {
    tg_range_fn rows; /* a tile has one output */
    tg_range_fn cols; /* a tile has up to TG_REDUCE_RUN outputs, neighbors along the last kept dim */
    tg_range_fn arg;  /* argmax and argmin; a tile has one output */
} tg_reduce_kernels;

#endif
