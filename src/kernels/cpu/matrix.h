/* For templates only: the [rows, columns] matrices of one head, and their blocks in the compute type. */
#ifndef TG_HEAD_MATRIX_H
#define TG_HEAD_MATRIX_H

#include "kernels/cpu/attention.h"
#include "kernels/cpu/mm.h"

/* A matrix of any dtype and strides. Element (i, j) is at data + (i * rs + j * cs) * size. */
typedef struct matrix {
    char *data;
    int64_t cols, rs, cs, size;
    tg_dtype dtype;
} matrix;

/* Returns the matrix of head (b, h) of an array [batch, heads, rows, columns]. */
static inline matrix matrix_of(const tg_array *a, int64_t b, int64_t h) {
    int64_t size = tg_dtype_bits((tg_dtype)a->dtype) / 8;
    return (matrix){
        .data = (char *)a->data + (b * a->stride[0] + h * a->stride[1]) * size,
        .cols = a->shape[3],
        .rs = a->stride[2],
        .cs = a->stride[3],
        .size = size,
        .dtype = (tg_dtype)a->dtype,
    };
}

static inline char *matrix_row(const matrix *x, int64_t i) {
    return x->data + i * x->rs * x->size;
}

/* Returns whether the rows of x are contiguous and of the compute type. */
static inline bool matrix_direct(const matrix *x) {
    return x->dtype == TILE_DTYPE && (x->cs == 1 || x->cols == 1);
}

/* Rows of the compute type, ld elements apart. */
typedef struct block {
    const real *at;
    int64_t ld;
} block;

/* Returns rows [i, i + n) of x. They stay in place if they are contiguous, have the compute type, and have a
 * multiple of TG_LANES columns. Otherwise they are converted into buf and padded with zeros to such a multiple. */
static inline block block_rows(const matrix *x, int64_t i, int64_t n, real *buf) {
    int64_t ld = tg_lanes(x->cols);
    if (matrix_direct(x) && ld == x->cols)
        return (block){(const real *)matrix_row(x, i), x->rs};
    for (int64_t r = 0; r < n; r++) {
        tile_load(buf + r * ld, matrix_row(x, i + r), x->dtype, x->cs, x->cols);
        for (int64_t j = x->cols; j < ld; j++)
            buf[r * ld + j] = 0;
    }
    return (block){buf, ld};
}

/* Prefetches rows [i, i + n) of x if they are contiguous. */
static inline void fetch_rows(const matrix *x, int64_t i, int64_t n) {
    enum { LINE = 64 };
    for (int64_t r = i; r < i + n && x->cs == 1; r++)
        for (int64_t at = 0; at < x->cols * x->size; at += LINE)
            __builtin_prefetch(matrix_row(x, r) + at);
}

/* Writes t[j, r] = scale * rows[r, j] for the n rows, and zeros for r from n to lanes - 1. */
static inline void block_transpose(block rows, int64_t n, int64_t cols, int64_t lanes, real scale, real *t) {
    for (int64_t j = 0; j < cols; j++) {
        for (int64_t r = 0; r < n; r++)
            t[j * lanes + r] = rows.at[r * rows.ld + j] * scale;
        for (int64_t r = n; r < lanes; r++)
            t[j * lanes + r] = 0;
    }
}

/* Stores a row of results in row i of y, or adds it. */
static inline void matrix_put(const matrix *y, int64_t i, const real *row, bool add) {
    if (!add) {
        tile_store(matrix_row(y, i), y->dtype, y->cs, y->cols, row);
        return;
    }
    for (int64_t j = 0; j < y->cols; j += TILE)
        tile_add(matrix_row(y, i) + j * y->cs * y->size, y->dtype, y->cs, tile_len(y->cols, j), row + j);
}

static inline void fill(real *t, int64_t n, real v) {
    for (int64_t i = 0; i < n; i++)
        t[i] = v;
}

/* Returns the next n elements of scratch and moves *scratch past them. */
static inline real *carve(real **scratch, int64_t n) {
    real *t = *scratch;
    *scratch += n;
    return t;
}

#endif
