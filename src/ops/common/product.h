/* Matrix products over batch dims, as matmul, linear and their gradients need them. */
#ifndef TG_PRODUCT_H
#define TG_PRODUCT_H

#include "ops/common/op.h"

/* g describes one product (its batch fields are unused). Every batch dim advances the operands by these steps, in
 * elements. A step of 0 in a or b broadcasts; a step of 0 in c sums, and is then used without bias and activation. */
typedef struct tg_batch_dim {
    int64_t count, a, b, c;
} tg_batch_dim;

typedef struct tg_product {
    tg_gemm g;
    int n;
    tg_batch_dim dim[TG_MAX_DIMS]; /* innermost first */
} tg_product;

/* Runs p with as few gemm calls as its strides allow: dims merge into m, n or k, or with each other, or become the
 * batch of gemm; the rest is looped over in order. pre, if given, has c's layout. */
tg_status tg_product_run(tg_ctx *ctx, tg_product *p);

/* The last two dims of x as a matrix; transposition exchanges its strides. */
tg_matrix tg_matrix_of(const tg_tensor *x);
tg_matrix tg_matrix_transposed(tg_matrix m);

#endif
