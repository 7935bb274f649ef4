/* Matrix products with any number of batch dims, for matmul, linear, convolutions and their gradients. */
#ifndef TG_PRODUCT_H
#define TG_PRODUCT_H

#include "ops/common/op.h"

/* One batch dim: `count` products. From one product to the next, the operands A, B and C of tg_gemm advance by a, b and
 * c elements. If a or b is 0, that operand is broadcast. If c is 0, the products are added to each other; there must
 * then be no bias and no activation. */
typedef struct tg_batch_dim {
    int64_t count, a, b, c;
} tg_batch_dim;

typedef struct tg_product {
    tg_gemm g; /* one product; tg_product_run sets the batch fields */
    int n;     /* number of batch dims */
    tg_batch_dim dim[TG_MAX_DIMS]; /* innermost first */
} tg_product;

/* Runs p with as few gemm calls as the strides allow. Merges batch dims into m, n or k or with each other, or makes
 * them the batch of gemm, and loops over the others in order. p->g.pre, if given, has the layout of C. Changes *p. */
tg_status tg_product_run(tg_ctx *ctx, tg_product *p);

/* Return a matrix: the last two dims of x, and m transposed by exchanging its strides. */
tg_matrix tg_matrix_of(const tg_tensor *x);
tg_matrix tg_matrix_transposed(tg_matrix m);

#endif
