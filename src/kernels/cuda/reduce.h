/* Reductions: what the driver (reduce.cu) passes to the templates (reduce_kernels.h), which are compiled once for each
 * compute type (reduce_f32.cu, reduce_f64.cu, reduce_i64.cu).
 *
 * The order of a reduction depends on shapes and dtypes alone. Elements are read in quads; every lane of a row adds
 * its own quads, then the elements of the sum, then the lanes are added pairwise. Along columns, every row of
 * threads of a block adds its own rows, then these are added. Long reductions are cut into parts, whose results are
 * reduced in order. */
#ifndef TG_CUDA_REDUCE_H
#define TG_CUDA_REDUCE_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/vector.h"
#include "kernels/cuda/walk.h"

namespace tg {

enum { REDUCE_THREADS = 256, REDUCE_LANES = 32, REDUCE_ROWS = REDUCE_THREADS / REDUCE_LANES };

enum ReducePath {
    REDUCE_ROW,    /* a row of `lanes` threads for each output */
    REDUCE_COLUMN, /* a block for REDUCE_LANES quads of adjacent outputs */
    REDUCE_ARG     /* as REDUCE_ROW, for positions */
};

struct ReduceJob {
    tg_reduction kind;
    ReducePath path;
    double scale;
    bool add;
    char *in, *out;
    int in_dtype, in_size, out_dtype;
    /* The outputs, with the strides of in and out; REDUCE_COLUMN leaves out the last dim, which it handles itself. */
    Walk<2> kept;
    int64_t width, in_col, out_col;
    Walk<1> reduced;
    int64_t count, step; /* of the reduced elements; the stride, if they are one dim */
    bool single, whole;  /* they are one dim; quads are aligned to their own size */
    int64_t outputs;
    int lanes;                                /* of a row */
    int64_t parts, part_len, part_step;       /* part_step: from one part's results to the next's */
    Divider by_parts, by_across;              /* REDUCE_COLUMN: blocks across the width */
    const int64_t *positions;                 /* REDUCE_ARG over parts: the positions of their extrema */
    char *extremes;                           /* REDUCE_ARG into parts: the extrema themselves, next to out */
};

void reduce_f32(const ReduceJob &job, cudaStream_t stream);
void reduce_f64(const ReduceJob &job, cudaStream_t stream);
void reduce_i64(const ReduceJob &job, cudaStream_t stream);

} // namespace tg

#endif
