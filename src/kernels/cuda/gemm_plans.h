/* Plans of products: how cuBLASLt computes them. They are kept, because programs repeat products. */
#ifndef TG_CUDA_PLANS_H
#define TG_CUDA_PLANS_H

#include <cublasLt.h>

#include "kernels/cuda/cuda.h"

/* Opens and closes cuBLASLt's handle and the table of plans. */
tg_status tg_cuda_plans_open(tg_cuda *c);
void tg_cuda_plans_close(tg_cuda *c);

/* A product of column-major matrices, D[m,n] = epilogue(alpha op(A) op(B) + beta D), with everything that its plan
 * depends on. Products are compared as bytes: set the memory to zero first, then each field. */
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

/* Finds the plan of a product, or makes it. *plan is NULL if cuBLASLt has no algorithm for it; otherwise it is valid
 * until the next call of this function. */
tg_status tg_cuda_plan_of(tg_ctx *ctx, const tg_cuda_product *p, tg_cuda_plan **plan);

typedef struct tg_cuda_operands {
    const void *a, *b, *bias; /* bias, aux: ignored unless the epilogue uses them */
    void *d, *aux;
    double alpha, beta;
} tg_cuda_operands;
/* Queues the product. *refused tells whether cuBLASLt has rejected the algorithm that its heuristic proposed. In that
 * case nothing was queued, and from then on tg_cuda_plan_of finds no plan for the product. */
tg_status tg_cuda_plan_run(tg_ctx *ctx, tg_cuda_plan *plan, const tg_cuda_operands *o, bool *refused);

#endif
