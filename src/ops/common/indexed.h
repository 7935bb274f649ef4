/* What the ops share that read, add or write at positions given by a tensor of indices. */
#ifndef TG_INDEXED_H
#define TG_INDEXED_H

#include "ops/common/op.h"

/* The params of ops that index one dim of input 0. */
typedef struct tg_index_params {
    int dim;
} tg_index_params;

extern const tg_field tg_index_fields[1];

/* Samples of indices that need more than TG_S_INDEX can express. */
#define TG_S_INDEX_I32(n_, ...) \
    {.shape = TG_S_SHAPE(__VA_ARGS__), .kind = TG_SAMPLE_INDEX, .hi = (n_), .dtype = TG_I32}
#define TG_S_INDEX_IN(lo_, hi_, ...) \
    {.shape = TG_S_SHAPE(__VA_ARGS__), .kind = TG_SAMPLE_INDEX, .lo = (lo_), .hi = (hi_)}
#define TG_S_INDEX_AS(layout_, n_, ...) \
    {.shape = TG_S_SHAPE(__VA_ARGS__), .kind = TG_SAMPLE_INDEX, .hi = (n_), .layout = (layout_)}

/* Returns the index at a position, counted in row-major order. The host must be able to read the bytes. */
int64_t tg_index_at(tg_array index, int64_t position);
/* Fails with TG_ERR_DATA if bad is not 0. bad is the number that a device slot stored through its argument `bad`: 1 +
 * the position in `index` of the first one that is out of range for a dim of this size. The message quotes the index if
 * the host can read it, and otherwise only its position. */
tg_status tg_op_bad_index(tg_call *c, int64_t bad, tg_array index, int64_t size);
/* Call the device's slot take or put_add, and report an index that is out of range. */
tg_status tg_op_take(tg_call *c, tg_array out, tg_array src, tg_array index, int dim);
tg_status tg_op_put_add(tg_call *c, tg_array dst, tg_array src, tg_array index, int dim);
/* Compares a count on the device, an int64 array of one element, with a limit. If the formula `differ` of the two is
 * not 0 and the host can read the count, sets *held to it. Otherwise sets *held to -1. If the host cannot read the
 * count, the device reports the difference as an error in data.
 *
 * Slot take makes the comparison: it reads an array of one element at the index that `differ` gives. 0 is valid; 1 is
 * out of range, which the slot reports as an error in data. */
tg_status tg_op_compare_count(tg_call *c, tg_array counted, tg_formula differ, int64_t limit, int64_t *held);
/* Sets `stays` (int64, of the index's shape) to 1 for each element that is still there after a put at the index, and to
 * 0 for each that a later one has overwritten. To find them, writes `numbers`, which differ along dim, to the same
 * places of `last`, and reads them back: an element that does not get its own number back was overwritten. `last` is
 * memory of int64 of the shape that was written to. */
tg_status tg_op_find_last(tg_call *c, tg_array stays, tg_array last, tg_array numbers, tg_array index, int dim);
/* Checks that the index has as many dims as input 0, and is no larger than it in each dim other than `dim`. */
tg_status tg_index_inside(tg_call *c, const tg_tensor *index, int dim);
/* States that each dim other than `dim` may be sharded (tg_call_role), if input 1, the index, has the same size there
 * as input 0. Along `dim` the op may reach any element of input 0. */
tg_status tg_index_free(tg_call *c, int dim);
/* Returns the gradient of input 0 of a node that has read it: zeros with g added at the index. */
tg_tensor *tg_index_put_gradient(tg_tape *t, const tg_node *n, tg_tensor *g, tg_tensor *index);

#endif
