/* Products with few rows, for the GEMM's templates: B is read once, in place, at the speed of memory. */
#ifndef TG_GEMM_ROWS_H
#define TG_GEMM_ROWS_H

#include "kernels/cpu/gemm/gemm_finish.h"

/* dot prefetches B DOT_AHEAD bytes ahead. axpy adds AXPY_STEP rows of B at a time, and prefetches the next ones. */
enum { DOT_AHEAD = 1024, AXPY_STEP = 8 };

/* DOT_ROWS is the number of rows whose dot products are computed together, with as many columns as the registers hold
 * sums for. DOT_COLS is the greatest number of columns of a call. */
enum { DOT_ROWS = MR * NV < 24 ? 4 : 8, DOT_COLS = 3 * LANES };

/* Returns how far ahead a kernel that reads columns one after the other prefetches, in 16-bit numbers: about a page of
 * memory. If columns, which have k numbers and are cs apart, are shorter than that, the prefetched number has the same
 * place in a later column. */
TG_INLINE int64_t column_ahead(int64_t cs, int64_t k) {
    enum { AHEAD = 2048 };
    if (k < 1) return 0;
    return k < AHEAD ? (AHEAD + k - 1) / k * cs : AHEAD;
}

/* Computes sum[i][j] = row i of x times column j of B for mr rows and nc columns, all dot products together. */
TG_INLINE void dot_block(const real *x, int64_t ldx, const void *b, int64_t cs, int64_t k, real *sum, int mr, int nc,
                         tg_dtype d) {
    const int64_t ahead = DOT_AHEAD / dtype_bytes(d);
    vec s[8][4];
    for (int i = 0; i < mr; i++)
        for (int j = 0; j < nc; j++) s[i][j] = (vec){0};
    int64_t q = 0;
    for (; q + LANES <= k; q += LANES) {
        int64_t next = q + ahead < k ? q + ahead : q + ahead - k + nc * cs;
        vec w[4];
        for (int j = 0; j < nc; j++) {
            w[j] = load(at(b, j * cs + q, d), d);
            __builtin_prefetch(at(b, j * cs + next, d));
        }
        for (int i = 0; i < mr; i++) {
            vec v = get(x + i * ldx + q);
            for (int j = 0; j < nc; j++) s[i][j] += v * w[j];
        }
    }
    if (q < k)
        for (int i = 0; i < mr; i++) {
            vec v = {0};
            memcpy(&v, x + i * ldx + q, (size_t)(k - q) * sizeof(real));
            for (int j = 0; j < nc; j++) s[i][j] += v * load_some(at(b, j * cs + q, d), 1, k - q, d);
        }
    for (int i = 0; i < mr; i++)
        for (int j = 0; j < nc; j++) sum[i * DOT_COLS + j] = sum_lanes(s[i][j]);
}

/* Computes nc columns for all m rows. The first rows bring the columns of B into the caches. */
TG_INLINE void dot_columns(const real *x, int64_t ldx, int64_t m, const void *b, int64_t cs, int64_t k, real *sum,
                           int nc, tg_dtype d) {
    int64_t i = 0;
    if (DOT_ROWS == 8)
        for (; i + 8 <= m; i += 8) dot_block(x + i * ldx, ldx, b, cs, k, sum + i * DOT_COLS, 8, nc, d);
    for (; i + 4 <= m; i += 4) dot_block(x + i * ldx, ldx, b, cs, k, sum + i * DOT_COLS, 4, nc, d);
    for (; i + 2 <= m; i += 2) dot_block(x + i * ldx, ldx, b, cs, k, sum + i * DOT_COLS, 2, nc, d);
    if (i < m) dot_block(x + i * ldx, ldx, b, cs, k, sum + i * DOT_COLS, 1, nc, d);
}

TG_INLINE void dot_any(const tg_gemm_item *t, const real *x, int64_t ldx, int64_t j, int64_t cols, tg_dtype d) {
    enum { FEW = 4, MANY = MR * NV / DOT_ROWS }; /* columns at a time, for fewer than DOT_ROWS rows and otherwise */
    real sum[TG_GEMM_ROWS * DOT_COLS] = {0};      /* zeros, because finish reads whole vectors */
    const void *b = at(t->b.data, j * t->b.cs, d);
    int64_t cs = t->b.cs, c = 0;
    if (t->m < DOT_ROWS)
        for (; c + FEW <= cols; c += FEW) dot_columns(x, ldx, t->m, at(b, c * cs, d), cs, t->k, sum + c, FEW, d);
    for (; c + MANY <= cols; c += MANY) dot_columns(x, ldx, t->m, at(b, c * cs, d), cs, t->k, sum + c, MANY, d);
    for (; c < cols; c++) dot_columns(x, ldx, t->m, at(b, c * cs, d), cs, t->k, sum + c, 1, d);
    finish(&t->out, 0, j, t->m, cols, sum, DOT_COLS);
}

/* Adds the product of x and `rows` rows of B to m rows of sums, in n <= LANES columns. */
TG_INLINE void axpy_lanes(real *sum, int64_t m, const real *x, int64_t ldx, const void *b, int64_t rs, int rows,
                          int64_t n, tg_dtype d) {
    vec w[AXPY_STEP];
    for (int r = 0; r < rows; r++) {
        w[r] = load_n(at(b, r * rs, d), 1, n, d);
        __builtin_prefetch(at(b, (r + rows) * rs, d));
    }
    for (int64_t i = 0; i < m; i++) {
        vec s = get(sum + i * TG_GEMM_STRIP);
        for (int r = 0; r < rows; r++) s += x[i * ldx + r] * w[r];
        put(sum + i * TG_GEMM_STRIP, s);
    }
}

TG_INLINE void axpy_rows(real *sum, int64_t m, const real *x, int64_t ldx, const void *b, int64_t rs, int rows,
                         int64_t cols, tg_dtype d) {
    int64_t c = 0;
    for (; c + LANES <= cols; c += LANES) axpy_lanes(sum + c, m, x, ldx, at(b, c, d), rs, rows, LANES, d);
    if (c < cols) axpy_lanes(sum + c, m, x, ldx, at(b, c, d), rs, rows, cols - c, d);
}

/* Adds products with a few rows of B at a time to a strip of sums, which stays in the first-level cache. */
TG_INLINE void axpy_any(const tg_gemm_item *t, const real *x, int64_t ldx, int64_t j, int64_t cols, tg_dtype d) {
    real sum[TG_GEMM_ROWS * TG_GEMM_STRIP];
    int64_t rs = t->b.rs, q = 0;
    memset(sum, 0, (size_t)(t->m * TG_GEMM_STRIP) * sizeof(real));
    for (; q + AXPY_STEP <= t->k; q += AXPY_STEP)
        axpy_rows(sum, t->m, x + q, ldx, at(t->b.data, q * rs + j, d), rs, AXPY_STEP, cols, d);
    for (; q < t->k; q++) axpy_rows(sum, t->m, x + q, ldx, at(t->b.data, q * rs + j, d), rs, 1, cols, d);
    finish(&t->out, 0, j, t->m, cols, sum, TG_GEMM_STRIP);
}

#if TG_F64_HERE
#define TG_BY_DTYPE(call, d) call(t, x, ldx, j, cols, TG_F64)
#else
#define TG_BY_DTYPE(call, d)                                            \
    switch (d) {                                                        \
    case TG_F32: call(t, x, ldx, j, cols, TG_F32); break;               \
    case TG_BF16: call(t, x, ldx, j, cols, TG_BF16); break;             \
    default: call(t, x, ldx, j, cols, TG_F16); break;                   \
    }
#endif

static void dot(const tg_gemm_item *t, const void *x, int64_t ldx, int64_t j, int64_t cols) {
    TG_BY_DTYPE(dot_any, t->b.dtype);
}

static void axpy(const tg_gemm_item *t, const void *x, int64_t ldx, int64_t j, int64_t cols) {
    TG_BY_DTYPE(axpy_any, t->b.dtype);
}

static void gather(const tg_gemm_item *t, void *x) {
    for (int64_t i = 0; i < t->m; i++)
        for (int64_t q = 0; q < t->k; q += LANES) {
            int64_t n = min_of(LANES, t->k - q);
            vec v = load_n(at(t->a.data, i * t->a.rs + q * t->a.cs, t->a.dtype), t->a.cs, n, t->a.dtype);
            memcpy((real *)x + i * t->k + q, &v, (size_t)n * sizeof(real));
        }
}

#endif
