/* Helpers for the ops that reduce over a set of dims. Internally the reduced dims stay, with size 1, so that results
 * broadcast against the input. */
#ifndef TG_REDUCE_H
#define TG_REDUCE_H

#include "ops/common/op.h"

typedef struct tg_reduce_params {
    tg_dims dims;
    bool keepdim;
    int correction; /* of var and std: the argument of tg_var */
    double p;       /* of norm: the argument of tg_norm */
    uint32_t mask;  /* bit mask of the reduced dims; set by infer */
} tg_reduce_params;

static inline const tg_reduce_params *tg_reduce_params_of(const tg_call *c) { return c->params; }

/* Resolves the dims and declares the result with this dtype. tg_reduce_float_infer requires a float x and gives the
 * result x's dtype. */
tg_status tg_reduce_infer(tg_call *c, tg_dtype dtype);
tg_status tg_reduce_float_infer(tg_call *c);
/* Fails with TG_ERR_SHAPE if an element of the result would be reduced from no elements. `what` names the result. */
tg_status tg_reduce_need_some(tg_call *c, const char *what);

/* Writes the shape of the result: x's without the dims of mask, or with size 1 there if keepdim. Returns its ndim. */
int tg_reduce_shape(const tg_tensor *x, uint32_t mask, bool keepdim, int64_t *shape);
/* Returns how many elements of x are reduced to one element of the result. */
int64_t tg_reduce_group(const tg_call *c, const tg_tensor *x);
/* out = scale * the reduction of x. */
tg_status tg_reduce_run(tg_call *c, tg_reduction kind, const tg_tensor *out, const tg_tensor *x, double scale);
/* Returns a view of r, the result or its gradient, with the reduced dims restored. ndim is the number of dims of x. */
tg_tensor *tg_reduce_kept(tg_call *c, tg_tensor *r, int ndim);
/* Return temporaries. tg_reduce_whole: of x's shape, in the accumulation dtype. tg_reduce_small: of the result's shape
 * with the reduced dims kept, in the accumulation dtype. tg_reduce_small_f64: the same in float64. */
tg_tensor *tg_reduce_whole(tg_call *c, const tg_tensor *x);
tg_tensor *tg_reduce_small(tg_call *c, const tg_tensor *x);
tg_tensor *tg_reduce_small_f64(tg_call *c, const tg_tensor *x);

/* The counterparts of tg_reduce_kept and tg_reduce_group for vjp and jvp: they record ops and read the node. */
tg_tensor *tg_reduce_kept_recorded(tg_tape *t, const tg_node *n, tg_tensor *r);
int64_t tg_reduce_node_group(const tg_node *n);

/* Returns the cost of a reduction: the number of elements that it reads. */
int64_t tg_reduce_flops(const tg_node *n);

/* The arguments of a reduction: the members dims, whose default is all dims, and keepdim of the params. */
extern const tg_field tg_reduce_fields[2];
#define TG_REDUCE_ARGS .inputs = "x", .fields = tg_reduce_fields, .n_fields = 2, .preset = TG_ALL

/* Defines the public function of a reduction. */
#define TG_REDUCTION(name)                                                                                \
    tg_tensor *tg_##name(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim) {                          \
        return TG_RECORD(t, tg_op_##name, (&(const tg_reduce_params){.dims = dims, .keepdim = keepdim}), x); \
    }

/* ---- Samples. The arguments of TG_OVER and TG_KEEP are the dims to reduce. ---- */

#define TG_LIST(...) {.n = sizeof((int[]){__VA_ARGS__}) / sizeof(int), .dim = {__VA_ARGS__}}
#define TG_OVER(...) &(const tg_reduce_params){.dims = TG_LIST(__VA_ARGS__)}
#define TG_KEEP(...) &(const tg_reduce_params){.dims = TG_LIST(__VA_ARGS__), .keepdim = true}
#define TG_ALL &(const tg_reduce_params){.dims = {.n = -1}}

#define TG_REDUCE_REFUSED                                                                                         \
    {.note = "no such dim", .params = TG_OVER(2), .n_in = 1, .input = {TG_S(3, 5)}, .refused = TG_ERR_SHAPE},     \
    {.note = "a dim twice", .params = TG_OVER(0, -2), .n_in = 1, .input = {TG_S(3, 5)}, .refused = TG_ERR_SHAPE}
#define TG_REDUCE_SAMPLES                                                                                        \
    {.note = "all", .params = TG_ALL, .n_in = 1, .input = {TG_S(3, 5)}},                                         \
    {.note = "last", .params = TG_OVER(-1), .n_in = 1, .input = {TG_S(3, 5)}},                                   \
    {.note = "first, kept", .params = TG_KEEP(0), .n_in = 1, .input = {TG_S(4, 3)}},                             \
    {.note = "middle", .params = TG_OVER(1), .n_in = 1, .input = {TG_S(2, 3, 4)}},                               \
    {.note = "outer two, kept", .params = TG_KEEP(0, 2), .n_in = 1, .input = {TG_S(2, 3, 4)}},                   \
    {.note = "transposed", .params = TG_OVER(0), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 5)}},     \
    {.note = "strided", .params = TG_OVER(1), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 5)}},           \
    {.note = "expanded, across", .params = TG_OVER(1), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 5)}}, \
    {.note = "no result", .params = TG_OVER(1), .n_in = 1, .input = {TG_S(0, 3)}},                               \
    TG_REDUCE_REFUSED,                                                                                           \
    {.note = "big", .params = TG_OVER(-1), .n_in = 1, .input = {TG_S(1024, 1024)}, .bench = true}
/* Samples in which every element of the result is reduced from one element. tg_var does not use them, because a single
 * element has no unbiased variance. */
#define TG_SMALL_SAMPLES                                                                            \
    {.note = "size 1", .params = TG_OVER(0), .n_in = 1, .input = {TG_S(1)}},                        \
    {.note = "scalar", .params = TG_ALL, .n_in = 1, .input = {TG_S_SCALAR}},                        \
    {.note = "no dims: as it is", .params = &(const tg_reduce_params){.keepdim = false}, .n_in = 1, \
     .input = {TG_S(3, 2)}}

#endif
