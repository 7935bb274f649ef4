/* The CPU's scan slot: chooses between scanning rows one at a time and scanning adjacent rows together. */
#include "kernels/cpu/scan.h"

#include "base/dtype.h"
#include "kernels/cpu/required.h"

/* PARALLEL_FROM is the least number of elements for which several threads are used. UNIT is the number of elements of a
 * unit of parallel work. */
enum { PARALLEL_FROM = 65536, UNIT = 16384 };

TG_CPU_COPIES(tg_scan_kernels, scan_kernels, f32)
TG_CPU_COPIES(tg_scan_kernels, scan_kernels, f64)
TG_CPU_COPIES(tg_scan_kernels, scan_kernels, i64)

/* Returns the kernels of the compute type: int64 if both arrays are integers, float64 if one of them is float64 or
 * integers, otherwise float32. float32 would round integers before they are added. */
static const tg_scan_kernels *kernels_of(const tg_ctx *ctx, const tg_array *x, const tg_array *y) {
    static const tg_scan_kernels *const f32[] = TG_CPU_TABLE(scan_kernels, f32);
    static const tg_scan_kernels *const f64[] = TG_CPU_TABLE(scan_kernels, f64);
    static const tg_scan_kernels *const i64[] = TG_CPU_TABLE(scan_kernels, i64);
    tg_cpu_level_t level = tg_cpu_level(ctx);
    bool whole_x = !tg_is_float((tg_dtype)x->dtype), whole_y = !tg_is_float((tg_dtype)y->dtype);
    if (whole_x && whole_y) return i64[level];
    return whole_x || whole_y || x->dtype == TG_F64 || y->dtype == TG_F64 ? f64[level] : f32[level];
}

/* Returns the absolute value of a step. */
static int64_t distance(int64_t step) { return step < 0 ? -step : step; }

/* Finds the blocks: groups of rows that lie a constant step apart in x, and also in y. In each array tg_rows_of has
 * merged one or more of the innermost leading dims into one, of size shape[0]. It may have merged fewer dims in one
 * array than in the other. So the smaller shape[0] divides the greater, and is the number of rows of a block. */
static void find_blocks(tg_scan_job *job) {
    job->adjacent = job->x.shape[0] < job->y.shape[0] ? job->x.shape[0] : job->y.shape[0];
    job->x_row = job->x.step[0];
    job->y_row = job->y.step[0];
    job->bands = (job->adjacent + TG_SCAN_BAND - 1) / TG_SCAN_BAND;
}

/* Returns whether adjacent rows of y are closer together in memory than adjacent elements of a row, and those of x at
 * least not farther apart. */
static bool rows_are_closer(const tg_scan_job *job) {
    return job->adjacent > 1 && distance(job->y_row) < distance(job->y.stride) &&
           distance(job->x_row) <= distance(job->x.stride);
}

tg_status tg_cpu_scan(tg_ctx *ctx, tg_reduction kind, tg_array y, tg_array x, bool back, bool add) {
    tg_scan_job job = {
        .x = tg_rows_of(&x, 1), .y = tg_rows_of(&y, 1), .prod = kind == TG_PROD, .back = back, .add = add};
    const tg_scan_kernels *k = kernels_of(ctx, &x, &y);
    if (x.numel == 0) return TG_OK;
    find_blocks(&job);
    bool across = rows_are_closer(&job);
    job.per_unit = job.x.n < UNIT ? UNIT / job.x.n : 1;
    int64_t units = across ? job.x.count / job.adjacent * job.bands : (job.x.count + job.per_unit - 1) / job.per_unit;
    if (x.numel >= PARALLEL_FROM)
        tg_parallel_run(ctx, units, across ? k->bands : k->rows, &job);
    else
        (across ? k->bands : k->rows)(&job, 0, units);
    return TG_OK;
}
