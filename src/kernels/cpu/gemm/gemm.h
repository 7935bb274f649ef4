/* The internals of the CPU's matrix product: a table of kernels for each instruction set and compute type, and two
 * algorithms, between which gemm.c chooses. blocked.c copies the operands into packed panels and multiplies these.
 * few_rows.c serves products with few rows, and reads the large operand in place.
 *
 * The order in which the products of an element are added depends on m, n, k, strides and dtypes alone, so neither
 * threads nor the values of other elements change its bits. */
#ifndef TG_CPU_GEMM_H
#define TG_CPU_GEMM_H

#include "kernels/cpu/cpu.h"

tg_status tg_cpu_gemm(tg_ctx *ctx, const tg_gemm *g);

/* Where the sums of a product are stored, and how they are transformed on the way. */
typedef struct tg_gemm_out {
    tg_matrix c, pre; /* batch strides are already applied: data points at this product of the batch */
    double alpha, beta;
    const void *bias;
    tg_dtype bias_dtype;
    bool bias_by_row; /* the product was transposed: the bias varies along rows */
    tg_activation act;
} tg_gemm_out;

/* One product of a batch: C[m,n] = out(A[m,k] B[k,n]). */
typedef struct tg_gemm_item {
    int64_t m, n, k;
    tg_matrix a, b;
    tg_gemm_out out;
} tg_gemm_item;

/* A tile is a block of mr x nr sums, in the compute type. A unit is one element of the compute type, or several bf16
 * neighbors in k: a pair, or as many as an instruction of AMX adds up. A panel is the packed copy of mr rows of A, or
 * of nr columns of B. For every step of k it holds one unit of each of these rows or columns, adjacent in memory; their
 * number is the panel's width. */
typedef struct tg_gemm_kernels {
    int mr, nr;
    int dot_cols;   /* greatest number of columns of one call of dot */
    int pair;       /* elements of k in a unit */
    int unit_size;  /* bytes of a unit */
    int sum_size;   /* bytes of a sum */
    int near_bytes; /* bytes of A panels that stay in the second-level cache while B is read; 0: one panel */
    /* Pack one panel. Element (p, q) is src[p ps + q ks], where p counts rows of A or columns of B, up to the width,
     * and q < nk counts along k. np elements exist along p, possibly more than the width. Missing elements, and those
     * that complete the last unit, become zero. */
    void (*pack_a)(void *dst, const void *src, int64_t ps, int64_t ks, int64_t np, int64_t nk, tg_dtype dtype);
    void (*pack_b)(void *dst, const void *src, int64_t ps, int64_t ks, int64_t np, int64_t nk, tg_dtype dtype);
    /* Computes sum[mr][nr] (+)= the product of two panels over `units` steps. Only the first `cols` columns are
     * needed. */
    void (*tile)(void *sum, const void *a, const void *b, int64_t units, int64_t cols, bool add);
    /* Does the same for a whole tile and its last steps of k, and stores the result directly in the output, from
     * element (i, j) on. Starts from sum[mr][nr], or from 0 if sum is NULL. C has the compute type. Its rows are
     * contiguous, and so is the bias. There is neither an activation nor a saved pre-activation. */
    void (*tile_out)(const tg_gemm_out *o, int64_t i, int64_t j, const void *sum, const void *a, const void *b,
                     int64_t units);
    /* Stores rows x cols elements of the output, from element (i, j) on, from sums whose rows are ld elements apart.
     * Reads whole vectors of sums, so it may read beyond the columns of a row. */
    void (*finish)(const tg_gemm_out *o, int64_t i, int64_t j, int64_t rows, int64_t cols, const void *sum,
                   int64_t ld);
    /* Compute columns [j, j + cols) of a product with few rows, and read B in place. x is A in the compute type,
     * contiguous along k, with rows ldx elements apart. For dot, B is contiguous along k, and cols <= dot_cols. For
     * axpy, B is contiguous along n, and cols <= TG_GEMM_STRIP. */
    void (*dot)(const tg_gemm_item *t, const void *x, int64_t ldx, int64_t j, int64_t cols);
    void (*axpy)(const tg_gemm_item *t, const void *x, int64_t ldx, int64_t j, int64_t cols);
    /* Does what dot does, for A and B of bf16 and any number of columns. x is what gather_pairs has written. If
     * gather_pairs is NULL, x is A itself, which is contiguous along k. dot_pairs may be NULL. */
    void (*dot_pairs)(const tg_gemm_item *t, const void *x, int64_t ldx, int64_t j, int64_t cols);
    /* Copies A to x[m][k], in the compute type. A may have any strides. */
    void (*gather)(const tg_gemm_item *t, void *x);
    /* Copies A of bf16, with any strides, to x, in the form that dot_pairs reads. The copy has at most m elements of
     * the compute type for each step of k, and k is rounded up to a multiple of TG_GEMM_PAIR_STEP. NULL: dot_pairs
     * reads A in place. */
    void (*gather_pairs)(const tg_gemm_item *t, void *x);
} tg_gemm_kernels;

/* TG_GEMM_ROWS is the number of rows up to which few_rows.c is used; with more, packing B is worth its cost.
 * TG_GEMM_STRIP is the greatest number of columns of one call of axpy. TG_GEMM_PAIR_STEP is the number of elements of k
 * that gather_pairs copies together. */
enum { TG_GEMM_ROWS = 12, TG_GEMM_STRIP = 512, TG_GEMM_PAIR_STEP = 32 };

extern const tg_gemm_kernels tg_gemm_kernels_f32_portable, tg_gemm_kernels_f64_portable;
#ifdef __x86_64__
extern const tg_gemm_kernels tg_gemm_kernels_f32_avx2, tg_gemm_kernels_f64_avx2;
extern const tg_gemm_kernels tg_gemm_kernels_f32_avx512, tg_gemm_kernels_f64_avx512;
extern const tg_gemm_kernels tg_gemm_kernels_f32_avx512_bf16, tg_gemm_kernels_f32_amx;
#endif

/* Returns product number `batch` of g, of which there are batch[0] * batch[1]. Its bias varies along columns. */
tg_gemm_item tg_gemm_item_of(const tg_gemm *g, int64_t batch);
/* Compute g. If bias_by_row is true, g was transposed, so its bias varies along rows. */
tg_status tg_gemm_blocked(tg_ctx *ctx, const tg_gemm_kernels *kn, const tg_gemm *g, bool bias_by_row);
tg_status tg_gemm_few_rows(tg_ctx *ctx, const tg_gemm_kernels *kn, const tg_gemm *g, bool bias_by_row);

#endif
