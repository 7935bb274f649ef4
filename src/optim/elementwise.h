/* Helpers of the methods whose step treats each element of a parameter by itself, by calls of the slot `apply`. */
#ifndef TG_OPTIM_ELEMENTWISE_H
#define TG_OPTIM_ELEMENTWISE_H

#include "kernels/scalar.h"
#include "optim/optim.h"

/* The step of one parameter, as arrays of the parameter's shape. param is the master, if there is one. gradient is the
 * gradient times TG_SCALAR_COEFFICIENT. It and `other` are work memory, which the step may overwrite. scalar[] has the
 * numbers of step.h, each repeated in the parameter's shape with strides of 0. */
typedef struct tg_optim_arrays {
    tg_ctx *ctx;
    const tg_optim_group_t *group;
    tg_array param, gradient, other, state[TG_OPTIM_STATES], scalar[TG_STEP_SCALARS];
    tg_array rest; /* the work memory after `other`, of a method that has more than tg_optim_each_work */
} tg_optim_arrays;

typedef tg_status (*tg_optim_item_fn)(const tg_optim *o, const tg_optim_arrays *a);

/* Calls fn for each parameter that `method` steps and that has a gradient. If the parameter has a master, fn steps the
 * master, and the parameter then becomes the rounded master. Where TG_SCALAR_SKIP is not 0, fn must change neither the
 * parameter nor its state; the gradient may be NaN there. */
tg_status tg_optim_each(tg_optim *o, const tg_optim_method *method, tg_optim_item_fn fn);
/* Returns the bytes of work memory that tg_optim_each needs for p: those of `gradient` and `other`. */
size_t tg_optim_each_work(const tg_tensor *p);

/* Returns the bytes of n elements of work memory, rounded up to whole cache lines. */
size_t tg_optim_work_bytes(tg_dtype dtype, int64_t n);

/* Computes out = formula(in...) for `n` inputs, with the formula's parameters p and q. */
tg_status tg_optim_map(tg_ctx *ctx, tg_formula f, tg_array out, const tg_array *in, int n, double p, double q);
/* Calls tg_optim_map, and returns its status from the calling function on an error. Uses the variable ctx. */
#define TG_OPTIM_MAP(f, out, p, q, ...)                                                                                \
    TG_TRY(tg_optim_map(ctx, TG_FN_##f, (out), (const tg_array[]){__VA_ARGS__},                                        \
                        (int)(sizeof((const tg_array[]){__VA_ARGS__}) / sizeof(tg_array)), (p), (q)))

/* Adds weight_decay * param to the gradient (L2). */
tg_status tg_optim_decay(const tg_optim_arrays *a);
/* Subtracts the learning rate times `step` from the parameter. Overwrites a->gradient, which `step` may be. */
tg_status tg_optim_move(const tg_optim_arrays *a, tg_array step);

#endif
