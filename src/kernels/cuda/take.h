/* What take, put and put_add share: how elements of an array are found by an index along one dim.
 *
 * Array a has the index's shape: it is the output of take, and the source of put and put_add. Array b is indexed.
 * Trailing dims after the indexed one along which the index is constant, and which merge into one dim in a and also in
 * b, form a run. A position is the number of a run. */
#ifndef TG_CUDA_TAKE_H
#define TG_CUDA_TAKE_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/vector.h"
#include "kernels/cuda/walk.h"

namespace tg {

enum { TAKE_THREADS = 256 };
/* The arrays of a walk. TAKE_GROUP and TAKE_POSITION give the numbers of a group and a position instead of offsets. */
enum { TAKE_A, TAKE_INDEX, TAKE_B, TAKE_GROUP, TAKE_POSITION, TAKE_ARRAYS };

struct TakeSide {
    char *data;
    int dtype, size;
    int64_t step; /* from one element of a run to the next */
    bool whole;   /* quads are contiguous and aligned to their own size */
};

struct TakeJob {
    int compute; /* TG_F32, TG_F64 or TG_I64 */
    TakeSide a, b;
    const char *index;
    bool narrow; /* the index is int32, not int64 */
    /* The dims of a position. Along the indexed dim b's stride is 0. Positions that differ only in the indexed dim
     * form a group. */
    Walk<TAKE_ARRAYS> walk;
    int64_t positions, run;
    int64_t extent, b_stride; /* b's size and stride along the indexed dim */
    /* `others` is the walk without the indexed dim, and `groups` the number of its positions. `along` is the size of
     * the indexed dim in a, and `stride` has its strides. */
    Walk<TAKE_ARRAYS> others;
    int64_t along, stride[TAKE_ARRAYS], groups;
    tg_cuda_fault fault;
};

/* Calls f<T>(arguments...) for the compute type T. */
#define TG_TAKE_TYPES(f, compute, ...)                \
    ((compute) == TG_F32   ? f<float>(__VA_ARGS__)    \
     : (compute) == TG_F64 ? f<double>(__VA_ARGS__)   \
                           : f<int64_t>(__VA_ARGS__))

__device__ inline int64_t index_at(const TakeJob &job, int64_t at) {
    return job.narrow ? ((const int32_t *)job.index)[at] : ((const int64_t *)job.index)[at];
}

__device__ inline bool in_range(const TakeJob &job, int64_t i) { return i >= 0 && i < job.extent; }

/* Writes to the error word that the index at this position is out of range, unless the caller wants no errors. */
__device__ inline void report(const TakeJob &job, int64_t position) {
    if (!job.fault.word) return;
    const unsigned long long most = (1ull << 40) - 1, at = (unsigned long long)position;
    atomicMin(job.fault.word, job.fault.call << 40 | (at < most ? at : most));
}

/* The slots: take reads from array b; put writes to it, and put_add adds to it. */
enum TakeUse { TAKE_READS, TAKE_WRITES, TAKE_ADDS };

/* Returns the job of a call. If `reports` is true, kernels report an index out of range as an error of the slot. */
TakeJob take_job(tg_ctx *ctx, tg_array a, tg_array b, const tg_array &index, int dim, TakeUse use, bool reports);

} // namespace tg

#endif
