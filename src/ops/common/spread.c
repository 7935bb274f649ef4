/* Part of the derivative of slices: puts elements back where a slice took them from; see derive.h. */
#include "ops/common/derive.h"
#include "ops/common/op.h"

/* Inserts step - 1 zeros after each element along dim, by padding an extra dim. The dims before dim are merged into
 * one, and so are the dims after it, because x may already have as many dims as a tensor can have. */
static tg_tensor *insert_zeros(tg_tape *t, tg_tensor *x, int dim, int64_t step) {
    tg_shape shape = tg_shape_of(x), merged = TG_SHAPE(1, shape.dim[dim], 1, 1);
    for (int d = 0; d < dim; d++) merged.dim[0] *= shape.dim[d];
    for (int d = dim + 1; d < x->ndim; d++) merged.dim[3] *= shape.dim[d];
    shape.dim[dim] *= step;
    return tg_reshape(t, tg_pad(t, tg_reshape(t, x, merged), 2, 0, step - 1, 0), shape);
}

tg_tensor *tg_spread(tg_tape *t, tg_tensor *x, int dim, int64_t start, int64_t step, int64_t size) {
    if (!tg_is_alive(x)) return x;
    int64_t span = x->shape[dim] * step;
    if (step > 1) x = insert_zeros(t, x, dim, step);
    if (start + span > size) x = tg_slice(t, x, dim, 0, size - start, 1), span = size - start;
    return start || span < size ? tg_pad(t, x, dim, start, size - start - span, 0) : x;
}
