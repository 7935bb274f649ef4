/* Initial values of parameters, for layers that take a tg_init. */
#ifndef TG_INIT_H
#define TG_INIT_H

#include "nn/module.h"

/* ---- init_check.c. Messages begin with `who`. ---- */

/* Copies the caller's init to *o and checks it for a parameter of this dtype. */
tg_status tg_init_read(tg_ctx *ctx, tg_dtype dtype, const tg_init *given, tg_init *o, const char *who);
bool tg_init_draws(const tg_init *o); /* whether the kind takes random numbers */
/* Returns whether, with TG_RNG_MEGATRON, each rank draws the numbers of its own part only. TG_INIT_ORTHOGONAL is no
 * such kind: every rank draws the whole matrix, and takes its part. */
bool tg_init_draws_part(const tg_init *o);
/* Fails if the kind, the fan or a number of o is out of range, if o has a fan or a `fill` that its kind does not use,
 * or if o lacks the `fill` that TG_INIT_CALL needs. */
tg_status tg_init_check_numbers(tg_ctx *ctx, tg_dtype dtype, const tg_init *o, const char *who);
/* Fails unless x has the number of dims that the kind and the fan need. */
tg_status tg_init_check_dims(const tg_tensor *x, const tg_init *o, const char *who);
/* Fails unless x is a leaf that can be filled, whose placement tells the positions if the kind needs them. */
tg_status tg_init_check_leaf(const tg_tensor *x, const tg_init *o, const char *who);

/* ---- init.c ---- */

/* Fills x, a contiguous floating-point tensor of the context, as o says. tg_init_read has checked o, unless o is the
 * library's own. */
tg_status tg_init_fill(tg_tensor *x, const tg_init *o, const char *who, const void *site);

/* ---- orthogonal.c ---- */

/* A matrix with orthonormal columns, or rows if it has more columns than rows, times a gain. */
typedef struct tg_orthogonal_matrix {
    tg_ctx *ctx;
    double *v; /* `vectors` orthonormal vectors of `length` elements each; NULL if there are none, and on device meta */
    int64_t vectors, length, columns; /* columns: of the matrix */
    double gain;
} tg_orthogonal_matrix;

/* Draws such a matrix for a tensor of this shape, from the current random stream of the context. On device meta, which
 * has no values, only the stream advances. The caller frees m, after an error too. */
tg_status tg_orthogonal_draw(tg_orthogonal_matrix *m, tg_ctx *ctx, const tg_shape *shape, double gain);
void tg_orthogonal_fill(void *m, int64_t first, int64_t n, double *out); /* `fill` of a tg_init */
void tg_orthogonal_free(tg_orthogonal_matrix *m);

#endif
