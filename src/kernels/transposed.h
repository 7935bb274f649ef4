/* The transposed product (tg_gemm), for devices that compute C by its transpose if that is faster. */
#ifndef TG_TRANSPOSED_H
#define TG_TRANSPOSED_H

#include <tapegrad/device.h>

static inline tg_matrix tg_transposed_matrix(tg_matrix x) {
    int64_t rs = x.rs;
    x.rs = x.cs;
    x.cs = rs;
    return x;
}

/* Returns the product whose result is the transpose of C: the transpose of B times the transpose of A. It writes to the
 * memory of C. If g has a bias, each of its elements belongs to a row of the transposed product. tg_gemm cannot express
 * that, so the caller must add the bias along rows. */
static inline tg_gemm tg_transposed_product(const tg_gemm *g) {
    tg_gemm t = *g;
    t.m = g->n, t.n = g->m;
    t.a = tg_transposed_matrix(g->b), t.b = tg_transposed_matrix(g->a);
    t.c = tg_transposed_matrix(g->c), t.pre = tg_transposed_matrix(g->pre);
    return t;
}

#endif
