/* What op blocks share. An op file reads from top to bottom: comment, infer, forward, backward, samples, the const
 * tg_op, the public function. The recorder has checked that every input is alive and present, and belongs to this
 * context and device; the executor has done the same for everything that an op saved. Absent optional inputs are
 * NULL. */
#ifndef TG_OP_H
#define TG_OP_H

#include "placement/rule.h"
#include "core/context.h"
#include "kernels/scalar.h"
#include "autograd/apply.h"

/* Records an op: TG_RECORD(t, tg_op_add, NULL, a, b). params may be NULL. */
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
/* Output 0 has the shape to which all inputs broadcast, and dtype. dtype 0: the one dtype that inputs `first` and
 * later share. */
tg_status tg_infer_broadcast(tg_call *c, int first, tg_dtype dtype);
tg_status tg_need_float(tg_call *c, int i);
tg_status tg_need_number(tg_call *c, int i);         /* float or integer, not bool */
tg_status tg_need_bool(tg_call *c, int i);
tg_status tg_need_index(tg_call *c, int i);          /* int64 or int32 */
tg_status tg_need_same_dtype(tg_call *c, int i, int j);
/* Makes *dim of input i non-negative, or fails. */
tg_status tg_need_dim(tg_call *c, int i, int *dim);
tg_status tg_need_axis(tg_call *c, int ndim, int *dim); /* the same for a shape that no input has */
/* Converts dims of input i to a bit mask. Fails for repeated dims and dims out of range. dims.n < 0 means all. */
tg_status tg_need_dims(tg_call *c, int i, tg_dims dims, uint32_t *mask);
/* Checks a dtype in which tensors can be made; TG_DTYPE_DEFAULT in *dtype becomes the context's. */
tg_status tg_need_made(tg_call *c, tg_dtype *dtype);
/* Checks that an element of dtype can represent value; a float can represent any. */
tg_status tg_need_value(tg_call *c, tg_dtype dtype, double value, const char *what);

/* ---- Arrays (array_views.c) ---- */

/* Memory for the layout of an array that is not a tensor's own. */
typedef struct tg_extent {
    int64_t shape[TG_MAX_DIMS], stride[TG_MAX_DIMS];
} tg_extent;

/* The elements of a from `offset` on, in another layout. */
tg_array tg_array_at(tg_array a, int64_t offset, int ndim, const int64_t *shape, const int64_t *stride);
/* a broadcast to a shape; stride has space for ndim. */
tg_array tg_array_expand(tg_array a, int ndim, const int64_t *shape, int64_t *stride);
/* a with its dims in another order; shape and stride have space for a.ndim. */
tg_array tg_array_permute(tg_array a, const int *order, int64_t *shape, int64_t *stride);
/* a with dim moved to the end. */
tg_array tg_array_last(tg_array a, int dim, tg_extent *e);
/* n elements of dim from `start` on, `step` apart. */
tg_array tg_array_slice(tg_array a, int dim, int64_t start, int64_t n, int64_t step, tg_extent *e);
/* The leading corner of a that has this shape, except for one dim, which stays whole. */
tg_array tg_array_narrow(tg_array a, const int64_t *shape, int but, tg_extent *e);
/* The result of reducing the dims of mask among ndim dims, with those dims restored: size 1, stride 0. */
tg_array tg_array_keep(tg_array a, int ndim, uint32_t mask, tg_extent *e);
/* Views a in another shape with as many elements. Returns false if its strides do not allow that. stride has space
 * for n. */
bool tg_array_reshape(tg_array *a, int n, const int64_t *shape, int64_t *stride);
bool tg_reshape_strides(int ndim, const int64_t *shape, const int64_t *stride, int n, const int64_t *want,
                        int64_t *out);

/* out (+)= formula(in...), with the inputs broadcast to out. */
tg_status tg_op_map(tg_call *c, tg_formula f, const tg_tensor *out, const tg_tensor *const *in, int n_in, double p,
                    double q, bool add);
/* The gradient of input i (+)= formula(in...), computed in output 0's shape and summed where input i was broadcast. */
tg_status tg_op_map_grad(tg_call *c, int i, tg_formula f, const tg_tensor *const *in, int n_in, double p, double q);
/* The gradient of input i (+)= scale * g, summed to its shape. Passes g on without a copy if nothing remains to be
 * done. */
tg_status tg_op_sum_to(tg_call *c, int i, tg_tensor *g, double scale);
/* tg_call_pass of tg_call_view_of. */
tg_status tg_op_pass_view(tg_call *c, int i, tg_tensor *g, int64_t offset, int ndim, const int64_t *shape,
                          const int64_t *stride);
tg_status tg_op_copy(tg_call *c, tg_array to, tg_array from, bool add); /* of one shape; converts */
tg_status tg_op_zero(tg_call *c, int i); /* input i's gradient (+)= 0: fills it if it is to be written */
/* The slots scan and put, or their compositions. */
tg_status tg_op_scan(tg_call *c, tg_reduction kind, tg_array y, tg_array x, bool back, bool add);
tg_status tg_op_put(tg_call *c, tg_array dst, tg_array src, tg_array index, int dim, int64_t *bad);
#define TG_T1(a) ((const tg_tensor *const[]){(a)})
#define TG_T2(a, b) ((const tg_tensor *const[]){(a), (b)})
#define TG_T3(a, b, c) ((const tg_tensor *const[]){(a), (b), (c)})

/* The device's error word for data: pass its address to slots that check data, then call this function
 * (TG_ERR_DATA). */
tg_status tg_op_bad(tg_call *c, int64_t bad, const char *what);
/* The same for indices into a dim of `size`; names the index if the host can read it. */
tg_status tg_op_bad_index(tg_call *c, int64_t bad, tg_array index, int64_t size);

#endif
