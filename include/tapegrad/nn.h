/* Modules: named parameters and children, the state dict, and basic layers. Include it to build models; gpt.h and
 * tensor_parallel.h include it.
 *
 * A module owns its parameters and its children, which are modules too. Running its forward (tg_module_forward, or a
 * function for one kind of module such as tg_gpt_loss) records ops on the given tape. Random initial values are drawn
 * when the module is created, for each parameter from its own position in the context's random stream. Initial values
 * therefore depend only on the seed and on the order in which parameters are created. Parameters have the context's
 * default dtype.
 *
 * I and R are the placements TG_I (invariant) and TG_R (replicated) of placement.h. On error a function that returns a
 * module returns an inert one: it is not NULL, and calls on it do nothing (tapegrad.h). */
#ifndef TAPEGRAD_NN_H
#define TAPEGRAD_NN_H

#include <tapegrad/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Modules ---- */

/* The functions of one kind of module. The table must outlive the modules that are made with it. */
typedef struct tg_module_ops {
    size_t size;      /* sizeof(tg_module_ops) */
    const char *kind; /* name of the kind */
    tg_tensor *(*forward)(tg_module *m, tg_tape *t, tg_tensor *x); /* may be NULL if the module only holds children */
    void (*free)(void *state);                                     /* releases state; may be NULL */
} tg_module_ops;

/* Creates a module. ops->free(state) is called when the module is freed, unless state is NULL. On error tg_module_new
 * calls it at once and returns an inert module. If ops is NULL or ops->size is wrong, ops->free is not called, and the
 * caller must release state. */
TG_API tg_module *tg_module_new(tg_ctx *ctx, const tg_module_ops *ops, void *state);
/* Frees the module, its children and its parameters. If m is the child of another module, m is removed from its parent.
 * A parent whose forward needs that child fails with TG_ERR_STATE in forward until a new child is added under the same
 * name. For example, the forward of a GPT (gpt.h) then calls the new child. */
TG_API void tg_module_free(tg_module *m);
TG_API tg_ctx *tg_module_ctx(const tg_module *m);
TG_API void *tg_module_state(const tg_module *m);
TG_API const char *tg_module_kind(const tg_module *m);
/* Adds a parameter, which m then owns: it is dropped when the module is freed, and calling tg_drop on it before does
 * nothing. A name is not empty and contains no dots (TG_ERR_ARGUMENT), and is unique in its module (TG_ERR_STATE). If
 * one tensor is added under several names, the names are tied: the state dict lists the tensor once, under the first
 * name. */
TG_API tg_status tg_module_add_param(tg_module *m, const char *name, tg_tensor *param);
/* Adds a child, which m then owns. Fails with TG_ERR_STATE if child is already in a module, or if child is m or
 * contains m. On any other error frees child at once. */
TG_API tg_status tg_module_add_child(tg_module *m, const char *name, tg_module *child);
TG_API tg_module *tg_module_child(const tg_module *m, const char *name); /* NULL if m has no such child */
/* Runs the forward of m on x, in a scope named after m's kind, and returns its result. The kind determines the shapes.
 * Fails with TG_ERR_UNSUPPORTED if the kind has no forward. The tape owns the result. On error returns an inert
 * tensor. */
TG_API tg_tensor *tg_module_forward(tg_module *m, tg_tape *t, tg_tensor *x);

/* The state dict: all parameters of m and of the modules in it, with paths such as "h.0.attn.c_attn.weight".
 * Parameters and children come in the order in which they were added to their module, and all parameters of a child
 * come in the child's place.
 *
 * tg_module_param returns parameter i, and sets *path unless path is NULL. *path points to a buffer of m. It is valid
 * until the next call for m that sets a path, or until m is freed. An index out of range fails with TG_ERR_ARGUMENT and
 * returns an inert tensor. */
TG_API int tg_module_param_count(const tg_module *m);
TG_API tg_tensor *tg_module_param(const tg_module *m, int i, const char **path);
/* Fills out[] with the first n parameters, and returns the number of all parameters. out may be NULL. */
TG_API int tg_module_params(const tg_module *m, tg_tensor **out, int n);
TG_API tg_tensor *tg_module_find(const tg_module *m, const char *path); /* NULL if m has no such parameter */
TG_API int64_t tg_module_numel(const tg_module *m);                     /* number of elements of all parameters */
/* Places the parameters of m on the axes of p, for data-parallel and sequence-parallel training. A parameter becomes R
 * on dp and cp, so that its gradient is summed over them. On tp it becomes R if p is sequence parallel, and stays I
 * otherwise. On an axis on which a parameter was already placed (tg_place), it keeps that placement. A parameter that
 * was placed on any axis of the expert grid is not changed at all. */
TG_API tg_status tg_module_replicate(tg_module *m, const tg_parallel *p);

/* ---- Layers ---- */

/* Every rank holds these layers as a whole. tensor_parallel.h has layers that are sharded over ranks. It also has
 * deferred weight gradients (tg_wgrads), which do not need tensor parallelism. The parameters are I until tg_place or
 * tg_module_replicate places them. The input x of a layer's forward may have any placement that the layer's op
 * (tg_linear for tg_nn_linear, and so on) accepts with these parameters.
 *
 * The weights of linear and embedding layers are drawn from a normal distribution with mean 0 and standard deviation
 * std >= 0. Biases start as 0. A size below 1 fails with TG_ERR_ARGUMENT. On error the functions return an inert
 * module. */

/* Creates a linear layer. It computes x @ weight^T + bias, the product with the transposed weight: x [.., in] gives
 * [.., out]. weight is [out, in]. The layer has a bias [out] only if the argument bias is true. */
TG_API tg_module *tg_nn_linear(tg_ctx *ctx, int64_t in, int64_t out, bool bias, double std);
/* Creates an embedding. It looks up rows of weight [vocab, hidden]: ids [..], int64 or int32, give [.., hidden]. An id
 * outside [0, vocab) fails with TG_ERR_DATA. */
TG_API tg_module *tg_nn_embedding(tg_ctx *ctx, int64_t vocab, int64_t hidden, double std);
/* Create a norm over the last dim of x [.., hidden]; the result has the shape of x. weight [hidden] starts as 1. The
 * layer norm also has bias [hidden], which starts as 0. eps must be finite and 0 or more (TG_ERR_ARGUMENT). */
TG_API tg_module *tg_nn_layer_norm(tg_ctx *ctx, int64_t hidden, double eps);
TG_API tg_module *tg_nn_rms_norm(tg_ctx *ctx, int64_t hidden, double eps);

#ifdef __cplusplus
}
#endif

#endif
