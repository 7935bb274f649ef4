/* For templates only: products of small tiles that fit the first two cache levels. */
#ifndef TG_MM_H
#define TG_MM_H

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/tile.h"

enum { MM_VEC = TG_VEC_LANES, MM_ROWS = TG_VEC_BYTES == 64 ? 8 : 4, MM_WIDE = 4 };

typedef real vec __attribute__((vector_size(TG_VEC_BYTES), aligned(sizeof(real)), may_alias));

/* A tile of A. Element (i, p) is at[i * rs + p * cs]. */
typedef struct operand {
    const real *at;
    int64_t rs, cs;
} operand;

/* Computes C[rows, cols vectors] (+)= A[rows, k] B[k, cols vectors]. rows and cols are constants after inlining. */
static inline __attribute__((always_inline)) void mm_block(int rows, int cols, int64_t k, operand a, const real *b,
                                                           int64_t ldb, real *c, int64_t ldc, bool add) {
    vec sum[MM_ROWS][MM_WIDE];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++)
            sum[i][j] = add ? *(const vec *)(c + i * ldc + j * MM_VEC) : (vec){0};
    for (int64_t p = 0; p < k; p++) {
        vec x[MM_WIDE];
        for (int j = 0; j < cols; j++)
            x[j] = *(const vec *)(b + p * ldb + j * MM_VEC);
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < cols; j++)
                sum[i][j] += a.at[i * a.rs + p * a.cs] * x[j];
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++)
            *(vec *)(c + i * ldc + j * MM_VEC) = sum[i][j];
}

/* Computes `cols` vectors of columns of C for all m rows. The last rows are computed together too, because the sums of
 * a single row would wait for each other. */
static inline __attribute__((always_inline)) void mm_columns(int cols, int64_t m, int64_t k, operand a, const real *b,
                                                             int64_t ldb, real *c, int64_t ldc, bool add) {
    for (; m >= MM_ROWS; m -= MM_ROWS, a.at += MM_ROWS * a.rs, c += MM_ROWS * ldc)
        mm_block(MM_ROWS, cols, k, a, b, ldb, c, ldc, add);
    if (m >= MM_ROWS / 2) {
        mm_block(MM_ROWS / 2, cols, k, a, b, ldb, c, ldc, add);
        m -= MM_ROWS / 2, a.at += MM_ROWS / 2 * a.rs, c += MM_ROWS / 2 * ldc;
    }
    for (; m >= 2; m -= 2, a.at += 2 * a.rs, c += 2 * ldc)
        mm_block(2, cols, k, a, b, ldb, c, ldc, add);
    if (m > 0)
        mm_block(1, cols, k, a, b, ldb, c, ldc, add);
}

/* Computes C[m,n] (+)= A[m,k] B[k,n]. n is a multiple of MM_VEC. */
static void mm(int64_t m, int64_t n, int64_t k, operand a, const real *b, int64_t ldb, real *c, int64_t ldc, bool add) {
    int64_t j = 0;
    for (; m == 1 && j + MM_WIDE * MM_VEC <= n; j += MM_WIDE * MM_VEC) /* fewer sums would wait for each other */
        mm_block(1, MM_WIDE, k, a, b + j, ldb, c + j, ldc, add);
    for (; j + 2 * MM_VEC <= n; j += 2 * MM_VEC)
        mm_columns(2, m, k, a, b + j, ldb, c + j, ldc, add);
    for (; j < n; j += MM_VEC)
        mm_columns(1, m, k, a, b + j, ldb, c + j, ldc, add);
}

#endif
