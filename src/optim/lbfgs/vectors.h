/* The vectors of L-BFGS. Each has an element for every element of a list of parameters, parameter after parameter. */
#ifndef TG_OPTIM_VECTORS_H
#define TG_OPTIM_VECTORS_H

#include "core/context.h"

typedef struct tg_vectors_item {
    tg_tensor *param;
    tg_ref ref;    /* detects that the parameter was dropped */
    int64_t first; /* index of its first element in the vectors */
} tg_vectors_item;

/* A number of vectors of one length. Callers name vectors by their numbers, from 0. The functions that return a number
 * wait for the device. */
typedef struct tg_vectors {
    tg_ctx *ctx;
    tg_tensor *vectors; /* [number of vectors + 1, length]; the last one is work memory */
    tg_tensor *number;  /* [1], float64: the result of a reduction */
    tg_vectors_item *item;
    int n, spare; /* number of parameters; number of the vector that is work memory */
    int64_t length;
} tg_vectors;

/* Creates `vectors` vectors for n parameters, in float64 if one of these is float64, and else in float32. */
tg_status tg_vectors_open(tg_vectors *v, tg_ctx *ctx, tg_tensor *const *params, int n, int vectors);
void tg_vectors_close(tg_vectors *v);
tg_status tg_vectors_check(const tg_vectors *v, const char *who); /* fails if a parameter was dropped */

tg_status tg_vectors_from_params(const tg_vectors *v, int to);
/* Copies the gradients. Parameters without a gradient count as having one of zeros. */
tg_status tg_vectors_from_gradients(const tg_vectors *v, int to, const char *who);
/* Copies a vector to the parameters, except to those that were dropped. */
tg_status tg_vectors_to_params(const tg_vectors *v, int from, const char *who);
tg_status tg_vectors_sum(const tg_vectors *v, int to, double p, int a, double q, int b); /* to = p a + q b */
tg_status tg_vectors_dot(const tg_vectors *v, int a, int b, double *result);
/* Computes the sum and the greatest of the magnitudes of the elements of vector a. */
tg_status tg_vectors_norms(const tg_vectors *v, int a, double *sum, double *most);

#endif
