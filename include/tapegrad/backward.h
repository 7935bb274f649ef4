/* Backward: the gradients of what a tape has recorded, and hooks on them. tapegrad.h includes this header. */
#ifndef TAPEGRAD_BACKWARD_H
#define TAPEGRAD_BACKWARD_H

#include <tapegrad/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Backward ---- */

typedef struct tg_backward_opts {
    size_t size;
    /* a gradient per root, of its shape and dtype; NULL, or a NULL entry: 1 (the root must have one element) */
    tg_tensor *const *seeds;
    tg_tensor *const *inputs; /* accumulate into these leaves only; NULL: into every leaf */
    int n_inputs;
    bool retain; /* keep the saved tensors, so that backward can run again */
} tg_backward_opts;

#define TG_BACKWARD(...) (&(tg_backward_opts){.size = sizeof(tg_backward_opts), __VA_ARGS__})

/* Adds d root / d leaf to the gradient of every leaf that requires one (reverse mode; Griewank and Walther, Evaluating
 * Derivatives). Nodes run in the reverse of the order in which they were recorded. The hooks of a leaf run after the
 * last node has added to its gradient. Backward releases what the nodes saved, unless retain is set. An op may have
 * saved its own result, as tg_sqrt does; that result is then released too. Read it or tg_keep it before backward, or
 * set retain. opts may be NULL. tg_backward takes one root with one element, whose seed is 1.
 *
 * TG_ERR_SHAPE: a root without a seed does not have one element, or a seed has another shape or dtype than its root.
 * TG_ERR_STATE: a root depends on nothing that requires a gradient, or an earlier backward has released what a node
 * saved. TG_ERR_VERSION: a saved tensor was overwritten. TG_ERR_UNSUPPORTED: an op has no backward. */
TG_API tg_status tg_backward(tg_tape *t, tg_tensor *root);
TG_API tg_status tg_backward_with(tg_tape *t, tg_tensor *const *roots, int n, const tg_backward_opts *opts);

/* Options of tg_grad; seeds and retain are those of tg_backward_opts. */
typedef struct tg_grad_opts {
    size_t size;
    tg_tensor *const *seeds;
    bool retain;
    bool create_graph; /* record how the gradients are computed, for second derivatives */
    bool allow_unused; /* an input on which no root depends gets zeros; false: it fails with TG_ERR_STATE */
} tg_grad_opts;

#define TG_GRAD(...) (&(tg_grad_opts){.size = sizeof(tg_grad_opts), __VA_ARGS__})

/* Sets grads[i] = d (sum of roots) / d inputs[i]. The results are tensors of the tape in the inputs' dtypes; no leaf's
 * gradient changes. Inputs may be leaves or results, and must require a gradient (TG_ERR_STATE). opts may be NULL; the
 * other errors are those of tg_backward. If the same input is given twice, both entries are the same
 * gradient. On an error all of grads[] are inert. */
TG_API tg_status tg_grad(tg_tape *t, tg_tensor *const *roots, int n_roots, tg_tensor *const *inputs, int n_inputs,
                         tg_tensor **grads, const tg_grad_opts *opts);

/* Returns whether x has a gradient. */
TG_API bool tg_has_grad(const tg_tensor *x);
/* Returns the accumulated gradient of a leaf, borrowed. Fails with TG_ERR_STATE if there is none. */
TG_API tg_tensor *tg_grad_of(tg_tensor *x);
/* Returns a copy of this rank's share of the gradient of a leaf; tg_drop frees it. The gradient of a tensor that is
 * REPLICATED on an axis is a share of a sum until tg_grads_finalize, and until then reading tg_grad_of is refused. The
 * copy is PARTIAL there, and can be read and used like any other tensor. If the gradient is not a share, the copy is of
 * the whole gradient. Fails with TG_ERR_STATE if there is no gradient, or if it has been summed. */
TG_API tg_tensor *tg_grad_share(tg_tensor *x);
/* Clears the gradient of a leaf: x then has none, and the next contribution overwrites the memory, which is kept. */
TG_API tg_status tg_zero_grad(tg_tensor *x);
/* Makes buf the main gradient of leaf x: the memory in which its gradient is accumulated, for example a view of a flat
 * buffer. buf has the shape of x and is contiguous; its dtype is float32, or the dtype of x if that is wider. It must
 * be owned by the context, must not share bytes with x, and must outlive its use. NULL: the library's own buffer again.
 * x loses its present gradient. */
TG_API tg_status tg_set_main_grad(tg_tensor *x, tg_tensor *buf);

/* Adds a hook fn(user, t, x, &grad) and returns its id; 0 on an error. x must require a gradient (TG_ERR_STATE).
 * tg_on_grad: on any tensor; fn is called when the gradient of x is complete. tg_on_accumulated: on a leaf; fn is
 * called after this backward's gradient has been added, and *grad is the accumulated gradient, which it cannot replace.
 *
 * fn may read *grad, which is borrowed, and may record ops on t; they run in no-grad mode, except in a backward pass
 * with create_graph. It may replace *grad by a tensor of the same shape and dtype, which is copied. If fn fails,
 * backward ends with TG_ERR_CALLBACK. Hooks run in the order in which they were added. A hook may add hooks, which run
 * from the next backward on, and remove hooks, which then do not run any more.
 */
TG_API uint64_t tg_on_grad(tg_tensor *x, tg_hook_fn fn, void *user);
TG_API uint64_t tg_on_accumulated(tg_tensor *x, tg_hook_fn fn, void *user);
/* Removes the hook with this id. Fails with TG_ERR_ARGUMENT if x has no such hook. */
TG_API tg_status tg_remove_hook(tg_tensor *x, uint64_t id);

#ifdef __cplusplus
}
#endif

#endif
