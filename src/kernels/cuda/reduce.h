/* Reductions: what the driver (reduce.cu) hands to the templates (reduce_kernels.h), which are compiled once for each
 * compute type (reduce_f32.cu, reduce_f64.cu, reduce_i64.cu).
 *
 * The order of a reduction follows from shapes and dtypes alone. What is reduced is taken in quads; every lane of a row
 * adds up its own quads, then the elements of the sum, then the lanes pairwise. Down columns, every row of threads of a
 * block adds up its own rows, then these. Long reductions are cut into parts, whose results are reduced in their order.
 */
#ifndef TG_CUDA_REDUCE_H
#define TG_CUDA_REDUCE_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/vector.h"
#include "kernels/cuda/walk.h"

namespace tg {

enum { REDUCE_THREADS = 256, REDUCE_LANES = 32, REDUCE_ROWS = REDUCE_THREADS / REDUCE_LANES };

enum ReducePath {
    REDUCE_ROW,    /* a row of `lanes` threads for each output */
    REDUCE_COLUMN, /* a block for REDUCE_LANES quads of outputs that lie side by side */
    REDUCE_ARG     /* as REDUCE_ROW, for positions */
};

struct ReduceJob {
    tg_reduction kind;
    ReducePath path;
    double scale;
    bool add;
    char *in, *out;
    int in_dtype, in_size, out_dtype;
    /* The outputs, with the strides of in and out; of REDUCE_COLUMN without the last dim, which has its own. */
    Walk<2> kept;
    int64_t width, in_col, out_col;
    Walk<1> reduced;
    int64_t count, step; /* of what is reduced; the stride, where it is one dim */
    bool single, whole;  /* it is one dim; quads lie on their own boundaries */
    int64_t outputs;
    int lanes;                                /* of a row */
    int64_t parts, part_len, part_step;       /* part_step: from one part's results to the next's */
    Divider by_parts, by_across;              /* REDUCE_COLUMN: blocks across the width */
    const int64_t *positions;                 /* REDUCE_ARG of parts: where their extremes lie */
    char *extremes;                           /* REDUCE_ARG into parts: the extremes themselves, beside out */
};

void reduce_f32(const ReduceJob &job, cudaStream_t stream);
void reduce_f64(const ReduceJob &job, cudaStream_t stream);
void reduce_i64(const ReduceJob &job, cudaStream_t stream);

} // namespace tg

#endif
