/* Cumulative sums and products of rows, one row at a time or several adjacent rows together. */
#include "kernels/cpu/scan.h"
#include "kernels/cpu/span.h"

/* The running value of a row. */
typedef double run_f32;
typedef double run_f64;
typedef int64_t run_i64;
typedef SPAN_CAT(run_, TG_T) run;

/* Stores the n elements of t in y, from `at` on, or adds them there. Overwrites t. */
static void put(const tg_scan_job *job, char *at, int64_t stride, int64_t n, T *t) {
    T old[TG_SCAN_RUN];
    if (job->add) {
        span_load(old, at, job->y.dtype, stride, n);
        for (int64_t i = 0; i < n; i++) t[i] += old[i];
    }
    span_store(at, job->y.dtype, stride, n, t);
}

/* Scans n elements in place, from the running value so_far. Returns the last value. */
static run scan_run(T *t, int64_t n, run so_far, bool prod, bool back) {
    int64_t i = back ? n - 1 : 0, step = back ? -1 : 1;
    if (prod)
        for (int64_t k = 0; k < n; k++, i += step) t[i] = (T)(so_far *= t[i]);
    else
        for (int64_t k = 0; k < n; k++, i += step) t[i] = (T)(so_far += t[i]);
    return so_far;
}

static void scan_row(const tg_scan_job *job, int64_t r) {
    int64_t size = job->x.n;
    T t[TG_SCAN_RUN];
    run so_far = job->prod;
    for (int64_t done = 0, n; done < size; done += n) {
        n = size - done < TG_SCAN_RUN ? size - done : TG_SCAN_RUN;
        int64_t j = job->back ? size - done - n : done;
        span_load(t, tg_row_at(&job->x, r, j), job->x.dtype, job->x.stride, n);
        so_far = scan_run(t, n, so_far, job->prod, job->back);
        put(job, tg_row_at(&job->y, r, j), job->y.stride, n, t);
    }
}

static void scan_rows(void *arg, int64_t begin, int64_t end) {
    const tg_scan_job *job = arg;
    int64_t last = end * job->per_unit < job->x.count ? end * job->per_unit : job->x.count;
    for (int64_t r = begin * job->per_unit; r < last; r++) scan_row(job, r);
}

/* Scans the n rows from row r on, one element of each at a time. */
static void scan_band(const tg_scan_job *job, int64_t r, int64_t n) {
    const char *x = tg_row_at(&job->x, r, 0);
    char *y = tg_row_at(&job->y, r, 0);
    int64_t x_step = job->x.stride * job->x.size, y_step = job->y.stride * job->y.size;
    run so_far[TG_SCAN_BAND];
    T t[TG_SCAN_BAND];
    for (int64_t i = 0; i < n; i++) so_far[i] = job->prod;
    for (int64_t k = 0; k < job->x.n; k++) {
        int64_t j = job->back ? job->x.n - 1 - k : k;
        span_load(t, x + j * x_step, job->x.dtype, job->x_row, n);
        if (job->prod)
            for (int64_t i = 0; i < n; i++) t[i] = (T)(so_far[i] *= t[i]);
        else
            for (int64_t i = 0; i < n; i++) t[i] = (T)(so_far[i] += t[i]);
        put(job, y + j * y_step, job->y_row, n, t);
    }
}

static void scan_bands(void *arg, int64_t begin, int64_t end) {
    const tg_scan_job *job = arg;
    for (int64_t b = begin; b < end; b++) {
        int64_t first = b % job->bands * TG_SCAN_BAND, left = job->adjacent - first;
        scan_band(job, b / job->bands * job->adjacent + first, left < TG_SCAN_BAND ? left : TG_SCAN_BAND);
    }
}

const tg_scan_kernels TG_K(scan_kernels) = {.rows = scan_rows, .bands = scan_bands};
