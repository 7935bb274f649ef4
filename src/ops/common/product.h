/* Matrix products with any number of batch dims, for matmul, linear, convolutions and their gradients. */
#ifndef TG_PRODUCT_H
#define TG_PRODUCT_H

#include "ops/common/op.h"

/* One batch dim: `count` products, between which the operands a, b and c advance by these steps, in elements. A step of
 * 0 in a or b broadcasts that operand. A step of 0 in c adds the products; such a dim excludes a bias and an
 * activation. */
typedef struct tg_batch_dim {
    int64_t count, a, b, c;
} tg_batch_dim;

typedef struct tg_product {
    tg_gemm g; /* one product; tg_product_run sets the batch fields */
    int n;     /* number of batch dims */
    tg_batch_dim dim[TG_MAX_DIMS]; /* innermost first */
} tg_product;

/* Runs p with as few gemm calls as the strides allow. Batch dims are merged into m, n or k or with each other, or
 * become the batch of gemm; the rest are looped over in order. p->g.pre, if given, has c's layout. Changes *p. */
tg_status tg_product_run(tg_ctx *ctx, tg_product *p);

/* Describes the last two dims of x as a matrix; transposes a matrix by exchanging its strides. */
tg_matrix tg_matrix_of(const tg_tensor *x);
tg_matrix tg_matrix_transposed(tg_matrix m);

#endif
