/* Triangular systems in place, which solving and factorising share. */
#ifndef TG_SOLVE_H
#define TG_SOLVE_H

#include "ops/common/op.h"

/* count matrices [n, n], of which one triangle is read. */
typedef struct tg_triangles {
    tg_matrix a; /* bs[1]: from one to the next */
    int64_t count, n;
    bool upper, unit;
} tg_triangles;

/* x as matrices [count, rows, cols], dense and in the dtype that sums run in: a temporary. */
tg_status tg_solve_copy(tg_call *c, const tg_tensor *x, tg_tensor **copy);
tg_matrix tg_solve_matrix(const tg_tensor *x); /* of [.., rows, cols], dense */
tg_matrix tg_solve_from(tg_matrix m, int64_t row, int64_t col); /* the part that begins there */
tg_triangles tg_solve_triangles(const tg_tensor *x, bool upper, bool unit);
tg_triangles tg_solve_transposed(tg_triangles a);
/* b [n, k] := a^-1 b. */
tg_status tg_solve_run(tg_call *c, const tg_triangles *a, tg_matrix b, int64_t k);
/* c += alpha a b of count matrices; beta 0: :=. */
tg_status tg_solve_multiply(tg_call *c, int64_t count, int64_t m, int64_t n, int64_t k, tg_matrix to, tg_matrix a,
                            tg_matrix b, double alpha, double beta);
/* *mask [n, n]: 1 in a triangle, `diagonal` on the diagonal, 0 elsewhere. */
tg_status tg_solve_mask(tg_call *c, tg_dtype dtype, int64_t n, bool upper, double diagonal, tg_tensor **mask);
/* The square matrices of input i, with its leading dims free. */
tg_status tg_solve_infer(tg_call *c, int i);
/* Recorded on the tape: x with its last dims swapped. */
tg_tensor *tg_solve_flipped(tg_tape *t, tg_tensor *x);

#endif
