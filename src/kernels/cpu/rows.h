/* An array viewed as rows. A row is the last dim, a single element, or the whole of a contiguous array. The leading
 * dims are merged where their strides allow it. */
#ifndef TG_ROWS_H
#define TG_ROWS_H

#include <tapegrad/device.h>

typedef struct tg_rows {
    char *data;           /* NULL for an absent array */
    int64_t count;        /* number of rows */
    int64_t n, stride;    /* elements of a row and the step between them */
    tg_dtype dtype;
    int64_t size;         /* bytes of an element */
    int ndim;             /* leading dims after merging, at least 1 */
    int64_t shape[TG_MAX_DIMS], step[TG_MAX_DIMS]; /* of the leading dims, innermost first */
} tg_rows;

/* Returns the rows of a. If inner is 1, a row is the last dim. If inner is 0, a row is one element; this is for arrays
 * that hold one value per row of another array. */
tg_rows tg_rows_of(const tg_array *a, int inner);
/* Returns a contiguous array as one long row. */
tg_rows tg_flat_of(const tg_array *a);

/* Returns the address of element j of row r. */
static inline char *tg_row_at(const tg_rows *x, int64_t r, int64_t j) {
    int64_t at = j * x->stride;
    int last = x->ndim - 1;
    for (int d = 0; d < last; d++) {
        at += r % x->shape[d] * x->step[d];
        r /= x->shape[d];
    }
    return x->data + (at + r * x->step[last]) * x->size;
}

#endif
