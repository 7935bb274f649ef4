/* Backward: gradients of what a tape has recorded, hooks, and how saved tensors are kept meanwhile. */
#ifndef TAPEGRAD_BACKWARD_H
#define TAPEGRAD_BACKWARD_H

#include <tapegrad/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Backward ---- */

typedef struct tg_backward_opts {
    size_t size;
    tg_tensor *const *seeds;  /* one cotangent per root, NULL entries: ones (a scalar root) */
    tg_tensor *const *inputs; /* gradients of these leaves only; NULL: of every leaf */
    int n_inputs;
    bool retain; /* keep what backward needs, so that it can run again */
} tg_backward_opts;

#define TG_BACKWARD(...) (&(tg_backward_opts){.size = sizeof(tg_backward_opts), __VA_ARGS__})

/* Adds d root / d leaf into the gradient of every leaf that needs one. Nodes run in the reverse of the recorded
 * order; a leaf's hooks run after its last contribution. Consumes what the nodes saved, unless told to retain: results
 * that an op saved (a hidden state, a loss by tg_sqrt ..) go with it, so read or tg_keep them before, or retain. */
TG_API tg_status tg_backward(tg_tape *t, tg_tensor *root); /* a scalar, seeded 1 */
TG_API tg_status tg_backward_with(tg_tape *t, tg_tensor *const *roots, int n, const tg_backward_opts *opts);

typedef struct tg_grad_opts {
    size_t size;
    tg_tensor *const *seeds;
    bool retain;
    bool create_graph; /* record the gradients' own computation, for second derivatives */
    bool allow_unused; /* an input that no root depends on gives zeros instead of an error */
} tg_grad_opts;

#define TG_GRAD(...) (&(tg_grad_opts){.size = sizeof(tg_grad_opts), __VA_ARGS__})

/* grads[i] = d (sum of roots) / d inputs[i], tensors of the tape in the inputs' dtypes. Accumulates nowhere. Inputs
 * may be leaves or results; one given twice has one gradient, twice. On an error grads[] are inert. */
TG_API tg_status tg_grad(tg_tape *t, tg_tensor *const *roots, int n_roots, tg_tensor *const *inputs, int n_inputs,
                         tg_tensor **grads, const tg_grad_opts *opts);

TG_API bool tg_has_grad(const tg_tensor *x);
TG_API tg_tensor *tg_grad_of(tg_tensor *x); /* the leaf's accumulated gradient, borrowed; an error where none is */
TG_API tg_status tg_zero_grad(tg_tensor *x); /* the next contribution overwrites; nothing is freed */
/* Accumulate into buf (same shape; float32, or x's dtype where wider), a view of a flat buffer say; NULL: the
 * library's own again. buf must outlive its use here. */
TG_API tg_status tg_set_main_grad(tg_tensor *x, tg_tensor *buf);

/* Hooks. fn may read *grad, which is lent, record no-grad ops on t and put their result into *grad (same shape and
 * dtype; copied), and may fail, which ends the backward. on_grad: of any tensor, when its gradient is complete.
 * on_accumulated: of a leaf, after this backward's has been added (*grad is the accumulated one and stays). They run in
 * the order of adding; a hook may add (for the next backward) and remove hooks: what it removes no longer runs. */
TG_API uint64_t tg_on_grad(tg_tensor *x, tg_hook_fn fn, void *user); /* an id; 0 on error */
TG_API uint64_t tg_on_accumulated(tg_tensor *x, tg_hook_fn fn, void *user);
TG_API tg_status tg_remove_hook(tg_tensor *x, uint64_t id);

#ifdef __cplusplus
}
#endif

#endif
