/* The CPU's fill and iota slots. */
#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "kernels/cpu/map.h"
#include "kernels/cpu/required.h"
#include "kernels/elements.h"
#include "kernels/scalar.h"

/* PARALLEL_FROM is the least number of elements for which several threads are used. UNIT and BUFFER are the numbers of
 * elements of a unit of parallel work and of a buffer. */
enum { PARALLEL_FROM = 65536, UNIT = 16384, BUFFER = 512 };

/* Views `value` as a broadcast float64 array, and copies it with slot apply. Clears small contiguous arrays directly if
 * the value is 0. */
tg_status tg_cpu_fill(tg_ctx *ctx, tg_array out, double value) {
    static const int64_t no_stride[TG_MAX_DIMS] = {0};
    if (out.contiguous && value == 0 && !signbit(value) && out.numel < PARALLEL_FROM) {
        if (out.numel) memset(out.data, 0, (size_t)out.numel * tg_dtype_size(out.dtype));
        return TG_OK;
    }
    tg_array in = {&value, out.shape, no_stride, out.numel, out.ndim, TG_F64, false};
    return tg_cpu_map(ctx, TG_FN_id, out, &in, 1, NULL, false);
}

typedef struct iota_job {
    const tg_map_kernels *kernels;
    tg_array out;
    double start, step;
    bool exact; /* start and step are integers of 64 bits, the dtype is not a float: computes in int64, which wraps */
} iota_job;

/* Writes elements [i, i + n) to buf: as int64 if job->exact, otherwise as double. */
static void count_up(const iota_job *job, int64_t i, int64_t n, void *buf) {
    int64_t *whole = buf;
    double *real = buf;
    for (int64_t j = 0; j < n; j++) {
        if (job->exact)
            whole[j] = (int64_t)((uint64_t)(int64_t)job->start + (uint64_t)(i + j) * (uint64_t)(int64_t)job->step);
        else
            real[j] = job->start + (double)(i + j) * job->step;
    }
}

/* Writes units [begin, end) of UNIT elements each. */
static void iota_units(void *arg, int64_t begin, int64_t end) {
    const iota_job *job = arg;
    const tg_array *x = &job->out;
    int64_t inner = x->ndim ? x->shape[x->ndim - 1] : 1, step = x->ndim ? x->stride[x->ndim - 1] : 1, n;
    int64_t last = end * UNIT < x->numel ? end * UNIT : x->numel;
    for (int64_t i = begin * UNIT; i < last; i += n) {
        int64_t at = 0, rest = i, left = inner - i % inner;
        int64_t buf[BUFFER];
        for (int d = x->ndim - 1; d >= 0; d--) {
            at += rest % x->shape[d] * x->stride[d];
            rest /= x->shape[d];
        }
        n = last - i < left ? last - i : left;
        n = n < BUFFER ? n : BUFFER;
        count_up(job, i, n, buf);
        job->kernels->store((char *)x->data + at * (int64_t)tg_dtype_size(x->dtype), x->dtype, step, n, buf);
    }
}

tg_status tg_cpu_iota(tg_ctx *ctx, tg_array out, double start, double step) {
    bool exact = !tg_is_float(out.dtype) && start == floor(start) && step == floor(step) && start >= -0x1p63 &&
                 start < 0x1p64 && fabs(step) < 0x1p63;
    iota_job job = {tg_map_kernels_of(ctx, exact ? TG_I64 : TG_F64), out, start, step, exact};
    if (exact) job.start = tg_u64_param(start);
    int64_t units = (out.numel + UNIT - 1) / UNIT;
    if (out.numel >= PARALLEL_FROM)
        tg_parallel_run(ctx, units, iota_units, &job);
    else
        iota_units(&job, 0, units);
    return TG_OK;
}
