/* Reductions: what the driver (reduce.cu) passes to the templates (reduce_kernels.h), which are compiled once for each
 * compute type (reduce_f32.cu, reduce_f64.cu, reduce_i64.cu).
 *
 * The order of a reduction depends on shapes, strides and dtypes alone. Elements are read in quads (vector.h). If many
 * outputs are adjacent in memory, a block reduces columns: each row of its threads adds up its own rows of elements,
 * and then the results of the rows of threads are added. Otherwise one or more threads, which are called lanes, share
 * the elements of an output. A lane adds up its own quads element by element, and then the elements of the resulting
 * quad. Then the results of each warp's lanes are added pairwise, and the results of several warps one after another.
 * Long reductions are cut into parts. The results of the parts are then reduced like elements. */
#ifndef TG_CUDA_REDUCE_H
#define TG_CUDA_REDUCE_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/vector.h"
#include "kernels/cuda/walk.h"

namespace tg {

enum { REDUCE_THREADS = 256, REDUCE_LANES = 32, REDUCE_ROWS = REDUCE_THREADS / REDUCE_LANES };

enum ReducePath {
    REDUCE_ROW,    /* `lanes` threads for each output */
    REDUCE_COLUMN, /* one block for REDUCE_LANES quads of adjacent outputs */
    REDUCE_ARG     /* like REDUCE_ROW, but finds the positions of extrema, and reads single elements */
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
    int64_t width, in_col, out_col; /* REDUCE_COLUMN: the last dim of the outputs, and the strides along it */
    Walk<1> reduced;
    int64_t count, step; /* number of reduced elements of an output; their stride, if they are one dim */
    bool single, whole;  /* the reduced elements are one dim; quads are contiguous and aligned to their own size */
    int64_t outputs;
    int lanes;                                /* REDUCE_ROW, REDUCE_ARG: threads of an output */
    int64_t parts, part_len, part_step;       /* parts of an output; their length; the stride of their results */
    Divider by_parts, by_across;              /* by_across: number of blocks across the width (REDUCE_COLUMN) */
    /* REDUCE_ARG with several parts. In the pass over the parts, extremes receives the extrema themselves. In the pass
     * over the results of the parts, positions has the positions of these extrema. Otherwise both are NULL. */
    const int64_t *positions;
    char *extremes;
};

void reduce_f32(const ReduceJob &job, cudaStream_t stream);
void reduce_f64(const ReduceJob &job, cudaStream_t stream);
void reduce_i64(const ReduceJob &job, cudaStream_t stream);

} // namespace tg

#endif
