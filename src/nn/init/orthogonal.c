/* Random orthogonal matrices, in float64 on the host: the factor Q of the QR decomposition of a matrix of normal
 * numbers. Gram-Schmidt gives R a positive diagonal, and with such an R the matrix Q is Haar-distributed (Mezzadri,
 * Notices of the AMS 54(5), 2007). Each vector is projected twice, which leaves it orthogonal to rounding (Giraud,
 * Langou and Rozloznik, 2005). */
#include <math.h>

#include "base/memory/host_memory.h"
#include "nn/init/init.h"
#include "placement/draws.h"

/* Returns the dot product of two vectors of n elements. It is computed as eight partial sums, so that the compiler can
 * vectorize the loop. */
static double dot(const double *a, const double *b, int64_t n) {
    double sum[8] = {0}, all = 0;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++) sum[k] += a[i + k] * b[i + k];
    for (; i < n; i++) all += a[i] * b[i];
    for (int k = 0; k < 8; k++) all += sum[k];
    return all;
}

/* Subtracts from v its projections on n orthonormal vectors of the same length. */
static void project(double *v, const double *basis, int64_t n, int64_t length) {
    for (int64_t j = 0; j < n; j++) {
        const double *q = basis + j * length;
        double along = dot(v, q, length);
        for (int64_t i = 0; i < length; i++) v[i] -= along * q[i];
    }
}

static void orthonormalize(double *v, int64_t vectors, int64_t length) {
    for (int64_t j = 0; j < vectors; j++) {
        double *next = v + j * length;
        for (int twice = 0; twice < 2; twice++) project(next, v, j, length);
        double norm = sqrt(dot(next, next, length));
        for (int64_t i = 0; i < length; i++) next[i] /= norm;
    }
}

tg_status tg_orthogonal_draw(tg_orthogonal_matrix *m, tg_ctx *ctx, const tg_shape *shape, double gain) {
    int64_t rows = shape->dim[0], columns = 1;
    for (int d = 1; d < shape->ndim; d++) columns *= shape->dim[d];
    int64_t numel = rows * columns;
    bool tall = rows > columns;
    *m = (tg_orthogonal_matrix){ctx, NULL, tall ? columns : rows, tall ? rows : columns, columns, gain};
    tg_tensor *u = tg_temp_empty(ctx, TG_F64, 1, &numel, TG_MEM_TEMPORARY);
    if (!u) return ctx->run.status;
    tg_status s = tg_fill_random_placed(u, TG_RANDOM_NORMAL, 0, 1, false);
    if (s == TG_OK && numel && !ctx->meta) m->v = tg_host_alloc(ctx, (size_t)numel * sizeof *m->v);
    if (m->v) s = tg_read_f64(u, m->v, numel);
    tg_temp_free(u);
    if (m->v && s == TG_OK) orthonormalize(m->v, m->vectors, m->length);
    return s == TG_OK ? ctx->run.status : s;
}

void tg_orthogonal_fill(void *user, int64_t first, int64_t n, double *out) {
    const tg_orthogonal_matrix *m = user;
    for (int64_t i = 0; i < n; i++) {
        int64_t row = (first + i) / m->columns, column = (first + i) % m->columns;
        bool tall = m->length > m->columns;
        out[i] = m->gain * m->v[tall ? column * m->length + row : row * m->length + column];
    }
}

void tg_orthogonal_free(tg_orthogonal_matrix *m) {
    tg_host_free(m->ctx, m->v, (size_t)(m->vectors * m->length) * sizeof *m->v);
}
