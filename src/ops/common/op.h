/* Helpers for the functions of ops. The part of a file that implements one op (its block) has this order: comment,
 * infer, forward, backward, samples, the const tg_op, the public function.
 *
 * Before infer runs, tg_apply has checked that every required input is present, is alive, and belongs to this context
 * and device. Before backward runs, the pass has checked the same for everything that the op saved. An optional input
 * that the caller left out is NULL. */
#ifndef TG_OP_H
#define TG_OP_H

#include "placement/rule.h"
#include "core/context.h"
#include "kernels/scalar.h"
#include "autograd/apply.h"

/* Records an op with one output, and returns the output. params is NULL if the op has none. Example:
 * TG_RECORD(t, tg_op_add, NULL, a, b). */
#define TG_RECORD(t, op, params, ...)                                                                \
    tg_record((t), &(op), (params), (tg_tensor *const[]){__VA_ARGS__},                               \
              (int)(sizeof((tg_tensor *const[]){__VA_ARGS__}) / sizeof(tg_tensor *)), TG_SITE)

/* Returns whether input i needs a gradient. If i is 31 or more: whether any input from 31 on needs one. */
static inline bool tg_needs(const tg_call *c, int i) { return c->needs >> (i < 31 ? i : 31) & 1; }
/* Returns whether backward must add to the gradient of input i instead of writing it. */
static inline bool tg_adds(const tg_call *c, int i) { return c->gin_mode[i] == TG_GRAD_ADD; }

/* Returns the product of two counts of 0 or more, or INT64_MAX if it overflows. */
static inline int64_t tg_flops(int64_t a, int64_t b) { return __builtin_mul_overflow(a, b, &a) ? INT64_MAX : a; }

/* Samples of masks that are true at a known number of elements: those whose position modulo hi is lo or more. */
#define TG_S_HOLDS(lo_, hi_, ...) {.shape = TG_S_SHAPE(__VA_ARGS__), .kind = TG_SAMPLE_BOOL, .lo = (lo_), .hi = (hi_)}

/* ---- infer (infer.c) ----
 *
 * tg_infer_* declare output 0. tg_need_* check inputs or arguments, and record an error if they are invalid. */

tg_status tg_infer_same(tg_call *c);       /* with the dtype and shape of input 0 */
tg_status tg_infer_float(tg_call *c);      /* the same; input 0 must have a float dtype */
/* Declares output 0 with this dtype and the shape to which all inputs broadcast. The inputs from `first` on must have
 * the same dtype; if `dtype` is 0, the output has their dtype. */
tg_status tg_infer_broadcast(tg_call *c, int first, tg_dtype dtype);
tg_status tg_need_float(tg_call *c, int i);
tg_status tg_need_number(tg_call *c, int i);         /* float or integer, not bool */
tg_status tg_need_bool(tg_call *c, int i);
tg_status tg_need_index(tg_call *c, int i);          /* int64 or int32 */
tg_status tg_need_same_dtype(tg_call *c, int i, int j);
/* Checks that *dim is a dim of input i. Replaces a negative *dim, which counts from the end, by the dim that it
 * means. */
tg_status tg_need_dim(tg_call *c, int i, int *dim);
tg_status tg_need_axis(tg_call *c, int ndim, int *dim); /* the same for a shape of ndim dims */
/* Converts dims of input i to a bit mask. Fails for repeated dims and dims out of range. dims.n < 0 means all. */
tg_status tg_need_dims(tg_call *c, int i, tg_dims dims, uint32_t *mask);
/* Checks that tensors of this dtype can be created. Replaces TG_DTYPE_DEFAULT by the context's default dtype. */
tg_status tg_need_made(tg_call *c, tg_dtype *dtype);
/* Checks that an element of dtype can represent value; a float dtype accepts every value. Messages call it `what`. */
tg_status tg_need_value(tg_call *c, tg_dtype dtype, double value, const char *what);

/* ---- Arrays (array_views.c) ----
 *
 * The functions tg_array_*, except tg_array_reshape, return an array that shares the bytes of the argument `a` and has
 * another layout. That layout lies in memory that the caller gives (stride, shape, or e), and may use the memory of
 * a's layout too. Both must outlive the array. */

/* Memory for the layout of an array. */
typedef struct tg_extent {
    int64_t shape[TG_MAX_DIMS], stride[TG_MAX_DIMS];
} tg_extent;

/* Returns an array that begins `offset` elements after the first element of a, with this layout. */
tg_array tg_array_at(tg_array a, int64_t offset, int ndim, const int64_t *shape, const int64_t *stride);
/* Broadcasts a to a shape. stride has space for ndim. */
tg_array tg_array_expand(tg_array a, int ndim, const int64_t *shape, int64_t *stride);
/* Permutes the dims: dim d of the result is dim order[d] of a. shape and stride have space for a.ndim. */
tg_array tg_array_permute(tg_array a, const int *order, int64_t *shape, int64_t *stride);
/* Moves dim to the end. */
tg_array tg_array_last(tg_array a, int dim, tg_extent *e);
/* Selects n elements along dim: the first is `start`, the others follow `step` apart. */
tg_array tg_array_slice(tg_array a, int dim, int64_t start, int64_t n, int64_t step, tg_extent *e);
/* Selects the elements of a with indices below `shape` in every dim, except in dim `but`, which stays whole. */
tg_array tg_array_narrow(tg_array a, const int64_t *shape, int but, tg_extent *e);
/* Restores the reduced dims in a, the result of a reduction over the dims in mask. In the array that is returned, they
 * have size 1 and stride 0. ndim is the number of dims before the reduction. */
tg_array tg_array_keep(tg_array a, int ndim, uint32_t mask, tg_extent *e);
/* Gives *a another shape with n dims and as many elements. Returns false, and leaves *a as it is, if its strides do not
 * allow that. stride has space for n. */
bool tg_array_reshape(tg_array *a, int n, const int64_t *shape, int64_t *stride);
/* Computes out [n], the strides with which the new shape want [n] addresses the same elements in the same order as
 * shape and stride [ndim] do. Returns false if there are no such strides. */
bool tg_reshape_strides(int ndim, const int64_t *shape, const int64_t *stride, int n, const int64_t *want,
                        int64_t *out);

/* In the following comments, (+)= means adding if `add` is true, and overwriting otherwise. For a gradient, gin_mode
 * decides.
 *
 * out (+)= formula(in...), where the inputs broadcast to the shape of out, and p and q are the formula's parameters.
 * kernels/scalar.h lists the formulas. Ops often mask by TG_FN_where_da, which is in[1] where in[0] is not 0, and 0
 * elsewhere. TG_FN_where_db is in[1] where in[0] is 0, and 0 elsewhere. */
tg_status tg_op_map(tg_call *c, tg_formula f, const tg_tensor *out, const tg_tensor *const *in, int n_in, double p,
                    double q, bool add);
/* The gradient of input i (+)= formula(in...), computed in output 0's shape and summed where input i was broadcast. */
tg_status tg_op_map_grad(tg_call *c, int i, tg_formula f, const tg_tensor *const *in, int n_in, double p, double q);
/* The gradient of input i (+)= scale * g, summed to the shape of input i and converted to its dtype. If the shapes and
 * the dtypes are equal and scale is 1, calls tg_call_pass, which copies g only if the gradient has memory already. */
tg_status tg_op_sum_to(tg_call *c, int i, tg_tensor *g, double scale);
/* Makes a view of g the gradient of input i (tg_call_view_of, tg_call_pass). */
tg_status tg_op_pass_view(tg_call *c, int i, tg_tensor *g, int64_t offset, int ndim, const int64_t *shape,
                          const int64_t *stride);
/* to (+)= from, which has the same shape. Converts between dtypes. */
tg_status tg_op_copy(tg_call *c, tg_array to, tg_array from, bool add);
/* Fills the gradient of input i with 0 if backward must write it. Does nothing if backward must add to it, or if it is
 * not needed. */
tg_status tg_op_zero(tg_call *c, int i);
/* Call the device's slot scan or put, or the composition that replaces a missing slot. */
tg_status tg_op_scan(tg_call *c, tg_reduction kind, tg_array y, tg_array x, bool back, bool add);
tg_status tg_op_put(tg_call *c, tg_array dst, tg_array src, tg_array index, int dim, int64_t *bad);
/* Lists of tensors for tg_op_map and tg_op_map_grad. */
#define TG_T1(a) ((const tg_tensor *const[]){(a)})
#define TG_T2(a, b) ((const tg_tensor *const[]){(a), (b)})
#define TG_T3(a, b, c) ((const tg_tensor *const[]){(a), (b), (c)})

/* Fails with TG_ERR_DATA if bad is not 0. bad is the number that a device slot stored through its argument `bad`: 1 +
 * the position of the first invalid element. `what` names the array of that element. */
tg_status tg_op_bad(tg_call *c, int64_t bad, const char *what);

#endif
