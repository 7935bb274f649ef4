/* Products as cuBLASLt wants them described, kept by shape. */
#ifndef TG_CUDA_PLANS_H
#define TG_CUDA_PLANS_H

#include <cublasLt.h>

#include "kernels/cuda/cuda.h"

/* As tg_cuda_check, of cuBLAS. */
tg_status tg_cuda_blas_check(tg_ctx *ctx, cublasStatus_t s, const char *call);

tg_status tg_cuda_plans_open(tg_cuda *c);
void tg_cuda_plans_close(tg_cuda *c);

/* A product of column-major matrices, D[m,n] = epilogue(alpha op(A) op(B) + beta D): all that a plan depends on.
 * Written field by field into zeroed memory, for products are compared as bytes. */
typedef struct tg_cuda_product {
    int64_t m, n, k, batch;
    int64_t lda, ldb, ldd, ld_aux;
    int64_t step_a, step_b, step_d, step_aux; /* between the matrices of a batch */
    tg_dtype in, out;                         /* of A and B; of D, bias and aux */
    cublasOperation_t op_a, op_b;
    cublasLtEpilogue_t epilogue;
    uint32_t align_a, align_b, align_d; /* bytes, of every matrix of a batch */
} tg_cuda_product;

typedef struct tg_cuda_plan tg_cuda_plan;

enum { TG_CUDA_EPILOGUE_ALIGN = 16 }; /* bytes, of bias and aux */

/* The plan of a product, made when it is first asked for; *plan NULL where cuBLASLt has no algorithm for it. Good until
 * the next call. */
tg_status tg_cuda_plan_of(tg_ctx *ctx, const tg_cuda_product *p, tg_cuda_plan **plan);

typedef struct tg_cuda_operands {
    const void *a, *b, *bias; /* bias, aux: where the epilogue has them */
    void *d, *aux;
    double alpha, beta;
} tg_cuda_operands;
/* refused: cuBLASLt will not have it after all, whatever its heuristic has said; there is no plan of it from now on. */
tg_status tg_cuda_plan_run(tg_ctx *ctx, tg_cuda_plan *plan, const tg_cuda_operands *o, bool *refused);

#endif
