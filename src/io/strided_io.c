/* Splits a tensor with any strides into row-major pieces, so that reading and writing a file needs only a small
 * buffer. */
#include "io/safetensors.h"

enum { PIECE = TG_IO_CHUNK / 8 };

void tg_pieces_begin(tg_pieces *p, tg_tensor *x) {
    *p = (tg_pieces){.x = x, .ndim = x->ndim, .inner = 1};
    if (x->numel == 0) return;
    memcpy(p->shape, x->shape, (size_t)x->ndim * sizeof *p->shape);
    memcpy(p->stride, x->stride, (size_t)x->ndim * sizeof *p->stride);
    if (p->ndim == 0) { /* a scalar is treated as a list of one element */
        p->ndim = 1;
        p->shape[0] = p->stride[0] = 1;
    }
    p->split = p->ndim - 1;
    while (p->split > 0 && p->shape[p->split] <= PIECE / p->inner) p->inner *= p->shape[p->split--];
    p->rows = PIECE / p->inner;
}

tg_tensor *tg_pieces_next(tg_pieces *p) {
    tg_tensor *x = p->x;
    if (p->next >= x->numel) return NULL;
    int64_t row = p->next / p->inner, offset = x->offset, first = row % p->shape[p->split];
    int64_t rows = p->shape[p->split] - first < p->rows ? p->shape[p->split] - first : p->rows;
    for (int i = p->split; i >= 0; i--) {
        offset += row % p->shape[i] * p->stride[i];
        row /= p->shape[i];
    }
    int64_t shape[TG_MAX_DIMS];
    int ndim = p->ndim - p->split;
    memcpy(shape, p->shape + p->split, (size_t)ndim * sizeof *shape);
    shape[0] = rows;
    p->next += rows * p->inner;
    return tg_temp_new(x->ctx, x->dtype, ndim, shape, p->stride + p->split, tg_storage_ref(x->storage), offset);
}
