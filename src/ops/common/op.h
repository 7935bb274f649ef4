/* What op blocks share. An op file reads top to bottom: comment, infer, forward, backward, samples, the const tg_op,
 * the public function. The recorder has made sure that every input is alive, of this context and device, and present;
 * the executor that everything an op saved is. Absent optional inputs are NULL.
 */
#ifndef TG_OP_H
#define TG_OP_H

#include "placement/rule.h"
#include "tape/tape.h"
#include "core/context.h"
#include "kernels/scalar.h"

/* The recorder's one line: TG_RECORD(t, tg_op_add, NULL, a, b). params may be NULL. */
#define TG_RECORD(t, op, params, ...)                                                                \
    tg_record((t), &(op), (params), (tg_tensor *const[]){__VA_ARGS__},                               \
              (int)(sizeof((tg_tensor *const[]){__VA_ARGS__}) / sizeof(tg_tensor *)), TG_SITE)

static inline bool tg_needs(const tg_call *c, int i) { return c->needs >> (i < 31 ? i : 31) & 1; }
static inline bool tg_adds(const tg_call *c, int i) { return c->gin_mode[i] == TG_GRAD_ADD; }

static inline bool tg_same_shape(const tg_tensor *a, const tg_tensor *b) {
    if (a->ndim != b->ndim) return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->shape[d] != b->shape[d]) return false;
    return true;
}

/* ---- infer (infer.c) ---- */

tg_status tg_infer_same(tg_call *c);       /* output 0 is like input 0 */
tg_status tg_infer_float(tg_call *c);      /* the same, and input 0 must be a float */
/* Output 0 has the shape that all inputs broadcast to, and dtype; 0: the one dtype that inputs first.. must have. */
tg_status tg_infer_broadcast(tg_call *c, int first, tg_dtype dtype);
tg_status tg_need_float(tg_call *c, int i);
tg_status tg_need_number(tg_call *c, int i);         /* float or integer, not bool */
tg_status tg_need_bool(tg_call *c, int i);
tg_status tg_need_index(tg_call *c, int i);          /* int64 or int32 */
tg_status tg_need_same_dtype(tg_call *c, int i, int j);
/* *dim made non-negative for input i, or refused. */
tg_status tg_need_dim(tg_call *c, int i, int *dim);
tg_status tg_need_axis(tg_call *c, int ndim, int *dim); /* the same, of a shape that no input has */
/* dims as a bit mask for input i; repeated or out-of-range ones are refused. All where dims.n < 0. */
tg_status tg_need_dims(tg_call *c, int i, tg_dims dims, uint32_t *mask);
/* A dtype that tensors are made in; *dtype TG_DTYPE_DEFAULT becomes the context's. */
tg_status tg_need_made(tg_call *c, tg_dtype *dtype);
/* An element of dtype can hold value; any value where dtype is a float. */
tg_status tg_need_value(tg_call *c, tg_dtype dtype, double value, const char *what);

/* ---- arrays (arrays.c) ---- */

/* Room for the layout of an array that is not a tensor's own. */
typedef struct tg_extent {
    int64_t shape[TG_MAX_DIMS], stride[TG_MAX_DIMS];
} tg_extent;

/* a's elements from `offset` on, in another layout. */
tg_array tg_array_at(tg_array a, int64_t offset, int ndim, const int64_t *shape, const int64_t *stride);
/* a stretched to a shape that it broadcasts to; stride has room for ndim. */
tg_array tg_array_expand(tg_array a, int ndim, const int64_t *shape, int64_t *stride);
/* a with its dims in another order; shape and stride have room for a.ndim. */
tg_array tg_array_permute(tg_array a, const int *order, int64_t *shape, int64_t *stride);
/* a with dim in the last place. */
tg_array tg_array_last(tg_array a, int dim, tg_extent *e);
/* n elements of dim from start on, step apart. */
tg_array tg_array_slice(tg_array a, int dim, int64_t start, int64_t n, int64_t step, tg_extent *e);
/* The leading corner of a that has shape, but for one dim, which stays whole. */
tg_array tg_array_narrow(tg_array a, const int64_t *shape, int but, tg_extent *e);
/* The result of reducing ndim dims, of which mask went, with those dims back: size 1, stride 0. */
tg_array tg_array_keep(tg_array a, int ndim, uint32_t mask, tg_extent *e);
/* a in another shape of as many elements, or false where its strides do not allow that; stride has room for n. */
bool tg_array_reshape(tg_array *a, int n, const int64_t *shape, int64_t *stride);
bool tg_reshape_strides(int ndim, const int64_t *shape, const int64_t *stride, int n, const int64_t *want,
                        int64_t *out);

/* out (+)= formula(in...), inputs broadcast to out. */
tg_status tg_op_map(tg_call *c, tg_formula f, const tg_tensor *out, const tg_tensor *const *in, int n_in, double p,
                    double q, bool add);
/* Input i's gradient (+)= formula(in...), computed in output 0's shape and summed where input i was stretched. */
tg_status tg_op_map_grad(tg_call *c, int i, tg_formula f, const tg_tensor *const *in, int n_in, double p, double q);
/* Input i's gradient (+)= scale * g summed to its shape; passes g on without a copy where nothing is left to do. */
tg_status tg_op_sum_to(tg_call *c, int i, tg_tensor *g, double scale);
/* tg_call_pass of tg_call_view_of. */
tg_status tg_op_pass_view(tg_call *c, int i, tg_tensor *g, int64_t offset, int ndim, const int64_t *shape,
                          const int64_t *stride);
tg_status tg_op_copy(tg_call *c, tg_array to, tg_array from, bool add); /* of one shape; converts */
tg_status tg_op_zero(tg_call *c, int i); /* input i's gradient (+)= 0: fills what is to be written */
/* The slots scan and put, or what they are composed of. */
tg_status tg_op_scan(tg_call *c, tg_reduction kind, tg_array y, tg_array x, bool back, bool add);
tg_status tg_op_put(tg_call *c, tg_array dst, tg_array src, tg_array index, int dim, int64_t *bad);
#define TG_T1(a) ((const tg_tensor *const[]){(a)})
#define TG_T2(a, b) ((const tg_tensor *const[]){(a), (b)})
#define TG_T3(a, b, c) ((const tg_tensor *const[]){(a), (b), (c)})

/* The device's word for data errors: pass its address to slots that check data, then call this (TG_ERR_DATA). */
tg_status tg_op_bad(tg_call *c, int64_t bad, const char *what);
/* The same of indices into a dim of `size`: names the index where the host can read it. */
tg_status tg_op_bad_index(tg_call *c, int64_t bad, tg_array index, int64_t size);

#endif
