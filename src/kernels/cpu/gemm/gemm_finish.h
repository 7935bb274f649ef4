/* For the GEMM's templates: turns sums into output elements (scales, adds C and bias, activates, rounds and stores). */
#ifndef TG_GEMM_FINISH_H
#define TG_GEMM_FINISH_H

#include "kernels/cpu/gemm/gemm_vec.h"

#include <tapegrad/device.h>

#include "kernels/vmath.h"

#define T real
#define TG_M_(f, t) tg_##f##_##t
#define TG_M__(f, t) TG_M_(f, t)
#define TG_M(f) TG_M__(f, TG_T)
#include "kernels/scalar.h"

/* The formulas are scalar; a loop over the lanes lets the compiler vectorize them again. */
static vec activate(vec v, tg_activation act) {
    real x[LANES];
    put(x, v);
    switch (act) {
    case TG_ACT_NONE: break;
    case TG_ACT_RELU:
        for (int i = 0; i < LANES; i++) x[i] = x[i] < 0 ? 0 : x[i];
        break;
    case TG_ACT_GELU_TANH:
        for (int i = 0; i < LANES; i++) x[i] = tg_gelu_tanh_of(x[i]);
        break;
    case TG_ACT_GELU:
        for (int i = 0; i < LANES; i++) x[i] = tg_gelu_of(x[i]);
        break;
    case TG_ACT_SILU:
        for (int i = 0; i < LANES; i++) x[i] *= TG_M(sigmoid)(x[i]);
        break;
    }
    return get(x);
}

/* Stores n <= LANES elements of row i of C from column j on, computed from the sums v. d is the dtype of C. `unit`
 * tells whether C is contiguous along the row. */
TG_INLINE void finish_lanes(const tg_gemm_out *o, int64_t i, int64_t j, int64_t n, vec v, tg_dtype d, bool unit) {
    int64_t cs = unit ? 1 : o->c.cs;
    char *c = (char *)o->c.data + (i * o->c.rs + j * cs) * dtype_bytes(d);
    v *= (real)o->alpha;
    if (o->beta != 0) v += (real)o->beta * load_n(c, cs, n, d);
    if (o->bias) {
        const void *b = at(o->bias, o->bias_by_row ? i : j, o->bias_dtype);
        v += load_n(b, o->bias_by_row ? 0 : 1, n, o->bias_dtype);
    }
    if (o->pre.data) {
        const tg_matrix *p = &o->pre;
        store_n((char *)p->data + (i * p->rs + j * p->cs) * dtype_bytes(p->dtype), p->cs, n, v, p->dtype);
    }
    if (o->act != TG_ACT_NONE) v = activate(v, o->act);
    store_n(c, cs, n, v, d);
}

TG_INLINE void finish_rows(const tg_gemm_out *o, int64_t i, int64_t j, int64_t rows, int64_t cols, const real *sum,
                           int64_t ld, tg_dtype d, bool unit) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c += LANES)
            finish_lanes(o, i + r, j + c, min_of(LANES, cols - c), get(sum + r * ld + c), d, unit);
}

static void finish(const tg_gemm_out *o, int64_t i, int64_t j, int64_t rows, int64_t cols, const void *sum,
                   int64_t ld) {
    const tg_dtype own = TG_F64_HERE ? TG_F64 : TG_F32;
    bool unit = o->c.cs == 1;
    if (o->c.dtype == own && unit) {
        finish_rows(o, i, j, rows, cols, sum, ld, own, true);
    } else if (o->c.dtype == TG_BF16 && unit) {
        finish_rows(o, i, j, rows, cols, sum, ld, TG_BF16, true);
    } else {
        finish_rows(o, i, j, rows, cols, sum, ld, o->c.dtype, false);
    }
}

#endif
