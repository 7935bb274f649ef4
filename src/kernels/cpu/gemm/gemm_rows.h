/* Products with few rows, for the GEMM's templates: B is read once, in place, at the speed of memory. */
#ifndef TG_GEMM_ROWS_H
#define TG_GEMM_ROWS_H

#include "kernels/cpu/gemm/gemm_finish.h"

/* B is asked for this many bytes, or rows, ahead. */
enum { DOT_AHEAD = 1024, AXPY_STEP = 8 };

/* sum[i][j] = x row i times B column j, for mr rows and nc columns: their dot products run side by side. */
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
        for (int j = 0; j < nc; j++) sum[i * NR + j] = sum_lanes(s[i][j]);
}

/* As many columns at a time as the register file has sums for. */
TG_INLINE void dot_rows(const real *x, int64_t ldx, const void *b, int64_t cs, int64_t k, real *sum, int64_t cols,
                        int mr, tg_dtype d) {
    int nc = MR * NV / mr > 4 ? 4 : MR * NV / mr;
    int64_t j = 0;
    for (; j + nc <= cols; j += nc) dot_block(x, ldx, at(b, j * cs, d), cs, k, sum + j, mr, nc, d);
    for (; j < cols; j++) dot_block(x, ldx, at(b, j * cs, d), cs, k, sum + j, mr, 1, d);
}

TG_INLINE void dot_any(const tg_gemm_item *t, const real *x, int64_t ldx, int64_t j, int64_t cols, tg_dtype d) {
    real sum[TG_GEMM_ROWS * NR];
    const void *b = at(t->b.data, j * t->b.cs, d);
    for (int64_t i = 0; i < t->m;) {
        const real *row = x + i * ldx;
        real *s = sum + i * NR;
        if (t->m - i >= 8) dot_rows(row, ldx, b, t->b.cs, t->k, s, cols, 8, d), i += 8;
        else if (t->m - i >= 4) dot_rows(row, ldx, b, t->b.cs, t->k, s, cols, 4, d), i += 4;
        else if (t->m - i >= 2) dot_rows(row, ldx, b, t->b.cs, t->k, s, cols, 2, d), i += 2;
        else dot_rows(row, ldx, b, t->b.cs, t->k, s, cols, 1, d), i += 1;
    }
    for (int64_t i = 0; cols < NR && i < t->m; i++) /* finish goes by whole lanes */
        memset(sum + i * NR + cols, 0, (size_t)(NR - cols) * sizeof(real));
    finish(&t->out, 0, j, t->m, cols, sum, NR);
}

/* `rows` rows of B, n <= LANES columns of them: added to m rows of sums. */
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

/* A few rows of B at a time pass over a strip of sums that stays in the nearest cache. */
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
