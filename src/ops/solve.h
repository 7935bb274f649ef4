/* Solves triangular systems in place, for tg_triangular_solve and tg_cholesky. */
#ifndef TG_SOLVE_H
#define TG_SOLVE_H

#include "ops/common/op.h"

/* `count` matrices [n, n]. Only one triangle of each is read: the upper one if upper is true. If unit is true, the
 * diagonal is not read, and counts as ones. */
typedef struct tg_triangles {
    tg_matrix a; /* bs[1] is the step from one matrix to the next */
    int64_t count, n;
    bool upper, unit;
} tg_triangles;

/* Makes a temporary copy of x [.., rows, cols], dense and in the accumulation dtype. */
tg_status tg_solve_copy(tg_call *c, const tg_tensor *x, tg_tensor **copy);
/* Return x [.., rows, cols], which is dense, as matrices. */
tg_matrix tg_solve_matrix(const tg_tensor *x);
tg_triangles tg_solve_triangles(const tg_tensor *x, bool upper, bool unit);
/* Returns the transposes of the matrices of a. */
tg_triangles tg_solve_transposed(tg_triangles a);
/* Returns the part of m from this row and column on. */
tg_matrix tg_solve_from(tg_matrix m, int64_t row, int64_t col);
/* Replaces b [count, n, k] by a^-1 b. */
tg_status tg_solve_run(tg_call *c, const tg_triangles *a, tg_matrix b, int64_t k);
/* to = alpha a b + beta to, for `count` matrices a [m, k], b [k, n] and to [m, n]. If beta is 0, `to` is not read. */
tg_status tg_solve_multiply(tg_call *c, int64_t count, int64_t m, int64_t n, int64_t k, tg_matrix to, tg_matrix a,
                            tg_matrix b, double alpha, double beta);
/* Makes *mask [n, n]: 1 above the diagonal (below it if upper is false), `diagonal` on it, and 0 elsewhere. */
tg_status tg_solve_mask(tg_call *c, tg_dtype dtype, int64_t n, bool upper, double diagonal, tg_tensor **mask);
/* Checks that input i is [.., n, n] floats, and states that its leading dims may be sharded. */
tg_status tg_solve_infer(tg_call *c, int i);
/* Records x with its last two dims swapped. */
tg_tensor *tg_solve_flipped(tg_tape *t, tg_tensor *x);

#endif
