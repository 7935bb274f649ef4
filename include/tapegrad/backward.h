/* Backward: the gradients of what a tape has recorded, and hooks on them. tapegrad.h includes this header. */
#ifndef TAPEGRAD_BACKWARD_H
#define TAPEGRAD_BACKWARD_H

#include <tapegrad/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Backward ---- */

/* Options of tg_backward_with. */
typedef struct tg_backward_opts {
    size_t size;
    /* One seed for each root: the gradient with which backward starts at that root. A seed has the shape and dtype of
     * its root. If seeds or an entry of it is NULL, the root must have one element, and gets the default seed. That is
     * 1, divided by the number of ranks of each axis on which the root is REPLICATED (placement.h). */
    tg_tensor *const *seeds;
    /* The n_inputs tensors to whose gradients backward adds. Each must be a leaf that requires a gradient
     * (TG_ERR_STATE). NULL, the default, means every such leaf. */
    tg_tensor *const *inputs;
    int n_inputs;
    bool retain; /* keep the saved tensors, so that backward can run again; false by default */
} tg_backward_opts;

#define TG_BACKWARD_DEFAULTS .size = sizeof(tg_backward_opts)
#define TG_BACKWARD(...) (&(tg_backward_opts){TG_BACKWARD_DEFAULTS, __VA_ARGS__})

/* Add d root / d leaf to the gradient of every leaf that requires one and on which the root depends (reverse mode;
 * Griewank and Walther, Evaluating Derivatives). tg_backward takes one root, which must have one element, and uses the
 * default seed (tg_backward_opts). tg_backward_with takes n >= 1 roots and multiplies each by its seed. opts may be
 * NULL. Nodes run in the reverse of the order in which they were recorded. The hooks of a leaf run after the last node
 * has added to the gradient of that leaf.
 *
 * Unless retain is set, backward releases the bytes of the tape's tensors that were saved by the nodes that it runs,
 * except those that were kept (tg_keep). Some ops, such as tg_sqrt, save their own result, which is then released too.
 * To use such a result after backward, call tg_keep on it or read its values (tg_read) before backward, or set retain.
 *
 * Both functions fail with
 * - TG_ERR_SHAPE if a root without a seed does not have one element, or if a seed has another shape or dtype than its
 *   root;
 * - TG_ERR_STATE if a root depends on nothing that requires a gradient, if an earlier backward has released what a node
 *   saved, if tg_grads_finalize has summed the gradient of a leaf that was not zeroed since (tg_zero_grad), or if a
 *   backward or a tg_jvp of the tape is running;
 * - TG_ERR_HANDLE if a root or one of the inputs belongs to another tape;
 * - TG_ERR_PLACEMENT if the placement of a seed is none that a gradient of its root may have (placement.h);
 * - TG_ERR_VERSION if a saved tensor was overwritten;
 * - TG_ERR_UNSUPPORTED if an op has a vjp but no backward (op.h);
 * - TG_ERR_CALLBACK if a hook returns an error and the context has none.
 *
 * On an error some leaves may already have their gradients; clear all gradients before the next backward. */
TG_API tg_status tg_backward(tg_tape *t, tg_tensor *root);
TG_API tg_status tg_backward_with(tg_tape *t, tg_tensor *const *roots, int n, const tg_backward_opts *opts);

/* Options of tg_grad. seeds and retain are as in tg_backward_opts. Every option is NULL or false by default. */
typedef struct tg_grad_opts {
    size_t size;
    tg_tensor *const *seeds;
    bool retain;
    /* Record how the gradients are computed, so that they can be differentiated again. The saved tensors are then kept,
     * as if retain were set. Every op between the roots and the inputs must have a vjp (op.h; TG_ERR_UNSUPPORTED). */
    bool create_graph;
    bool allow_unused; /* true: an input on which no root depends gets zeros; false: it fails with TG_ERR_STATE */
} tg_grad_opts;

#define TG_GRAD_DEFAULTS .size = sizeof(tg_grad_opts)
#define TG_GRAD(...) (&(tg_grad_opts){TG_GRAD_DEFAULTS, __VA_ARGS__})

/* Sets grads[i] to d (sum of roots, each times its seed) / d inputs[i]. Does not change the accumulated gradient of any
 * leaf. n_roots and n_inputs are 1 or more. opts may be NULL.
 *
 * An input may be a leaf or the result of an op, and must require a gradient (TG_ERR_STATE). grads[i] is a tensor of
 * the tape with the dtype of inputs[i]. If the same input is given twice, both entries of grads are the same tensor. On
 * an error every grads[i] is an inert tensor (tapegrad.h). The other errors are those of tg_backward. */
TG_API tg_status tg_grad(tg_tape *t, tg_tensor *const *roots, int n_roots, tg_tensor *const *inputs, int n_inputs,
                         tg_tensor **grads, const tg_grad_opts *opts);

/* Returns whether x has an accumulated gradient; false if x is NULL or not alive. */
TG_API bool tg_has_grad(const tg_tensor *x);
/* Returns the accumulated gradient of leaf x. It has the shape of x, and is float64 if x is, else float32. The result
 * is not a copy: later backwards change its values. If x has a main gradient (tg_set_main_grad), the result is this
 * buffer. Otherwise the result belongs to x and ends with x, and tg_drop has no effect on it. Fails with TG_ERR_STATE,
 * and returns an inert tensor, if x has no gradient. A parameter whose gradient is divided over ranks has none; the
 * leaf that has its range of elements does (tg_flat_leaves in flat.h). */
TG_API tg_tensor *tg_grad_of(tg_tensor *x);
/* Returns a copy of the gradient of leaf x on this rank; tg_drop frees the copy.
 *
 * This is for a leaf that is REPLICATED on an axis (placement.h). Before tg_grads_finalize the gradient of such a leaf
 * is only this rank's share of a sum over the axis, and reading or keeping (tg_keep) the result of tg_grad_of fails
 * with TG_ERR_STATE. The copy is PARTIAL on that axis, and can be read and used like any other tensor. If x is
 * REPLICATED on no axis, the copy has the whole gradient. Fails with TG_ERR_STATE, and returns an inert tensor, if x
 * has no gradient, if the gradient still lacks products that tg_wgrads defers (tensor_parallel.h), or if
 * tg_grads_finalize has summed the shares already. */
TG_API tg_tensor *tg_grad_share(tg_tensor *x);
/* Clears the gradient of leaf x: x then has no gradient. The memory of the gradient is kept, and the next backward
 * overwrites it. */
TG_API tg_status tg_zero_grad(tg_tensor *x);
/* Makes buf the main gradient of leaf x, the memory in which the gradient of x is accumulated. buf can be a view of a
 * larger buffer. If buf is NULL, the library uses a buffer of its own again. After the call x has no gradient, and the
 * next backward overwrites the buffer.
 *
 * buf must have the shape of x (TG_ERR_SHAPE), and must be float64 if x is, else float32 (TG_ERR_DTYPE). It must be
 * contiguous, belong to the context and not to a tape, and not share bytes with x (TG_ERR_STATE). buf must stay alive
 * as long as x uses it (TG_ERR_HANDLE in backward). */
TG_API tg_status tg_set_main_grad(tg_tensor *x, tg_tensor *buf);

/* Add a hook, which backward calls as fn(user, t, x, &grad). Both functions return the id of the hook; 0 on an error. x
 * must require a gradient (TG_ERR_STATE). The hook ends when it is removed, or with x: at the reset of its tape, or at
 * tg_drop. user must stay valid until then.
 *
 * - tg_on_grad: x may be any tensor. Backward calls fn when the gradient of x in this backward is complete. fn may
 *   replace the gradient by setting *grad to another tensor of the same shape and dtype (TG_ERR_SHAPE), which backward
 *   copies. Its placement must be one that a gradient of x may have (TG_ERR_PLACEMENT).
 * - tg_on_accumulated: x must be a leaf (TG_ERR_STATE). Backward calls fn after it has added the gradient of x to the
 *   accumulated one. *grad is the accumulated gradient. fn cannot replace it. tg_grad does not call fn.
 *
 * fn may read *grad, which is borrowed until fn returns. fn may record ops on t. These ops are in no-grad mode, except
 * in a tg_grad with create_graph. If fn returns an error and the context has none, backward fails with TG_ERR_CALLBACK.
 *
 * Hooks of one tensor run in the order in which they were added. A hook may add a hook to x, which then runs after the
 * others in the same backward. A hook may remove hooks; a removed hook does not run any more. */
TG_API uint64_t tg_on_grad(tg_tensor *x, tg_hook_fn fn, void *user);
TG_API uint64_t tg_on_accumulated(tg_tensor *x, tg_hook_fn fn, void *user);
/* Removes the hook of x with this id. Fails with TG_ERR_ARGUMENT if x has no such hook. */
TG_API tg_status tg_remove_hook(tg_tensor *x, uint64_t id);

#ifdef __cplusplus
}
#endif

#endif
