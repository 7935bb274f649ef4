/* Modules: named parameters and children, the state dict, and basic layers. Include it to build models; gpt.h and
 * tensor_parallel.h include it.
 *
 * A module owns its parameters and children. Its forward (tg_module_forward, or a function of its kind such as
 * tg_gpt_loss) records on the given tape. Each parameter is drawn when the module is created, from its own position
 * in the context's random stream, so initialization depends only on the seed and the order of creation. Parameters
 * have the context's default dtype.
 *
 * I and R are TG_I and TG_R of placement.h. */
#ifndef TAPEGRAD_NN_H
#define TAPEGRAD_NN_H

#include <tapegrad/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Modules ---- */

/* Table of a module kind, which must outlive its modules. kind is the name of the kind. forward may be NULL for
 * containers. free releases state and may be NULL. */
typedef struct tg_module_ops {
    size_t size;
    const char *kind;
    tg_tensor *(*forward)(tg_module *m, tg_tape *t, tg_tensor *x);
    void (*free)(void *state);
} tg_module_ops;

/* Creates a module. The table's free releases state: with the module, or at once on an error (but not if the table
 * is NULL or has another size). Returns an inert module on error; every call on it does nothing. */
TG_API tg_module *tg_module_new(tg_ctx *ctx, const tg_module_ops *ops, void *state);
/* Frees the module, its children and its parameters. A child that is freed alone is removed from its parent; if the
 * parent's forward needs that child, it then fails with TG_ERR_STATE. A child added under the same name replaces it,
 * and a GPT calls the replacement in its place. */
TG_API void tg_module_free(tg_module *m);
TG_API tg_ctx *tg_module_ctx(const tg_module *m);
TG_API void *tg_module_state(const tg_module *m);
TG_API const char *tg_module_kind(const tg_module *m);
/* Adds a parameter. It is dropped with the module; tg_drop has no effect on it until then. Adding one tensor under
 * two names ties them: the state dict lists it once. Names are unique in a module and contain no dots. */
TG_API tg_status tg_module_add_param(tg_module *m, const char *name, tg_tensor *param);
/* Adds a child, which m then owns. On an error the child is freed at once, unless it is already in a module. A
 * module has at most one parent and is never inside itself (TG_ERR_STATE). */
TG_API tg_status tg_module_add_child(tg_module *m, const char *name, tg_module *child);
TG_API tg_module *tg_module_child(const tg_module *m, const char *name); /* NULL: none */
/* Runs the module's forward on x, in a scope named after its kind. The shapes are those of its kind. A kind without a
 * forward fails with TG_ERR_UNSUPPORTED. The tape owns the result; inert on error. */
TG_API tg_tensor *tg_module_forward(tg_module *m, tg_tape *t, tg_tensor *x);

/* The state dict: parameters by path ("h.0.attn.c_attn.weight"), depth first in the order of adding. tg_module_param
 * returns parameter i. Its *path (path may be NULL) is a buffer of m: it is valid until the next call for m that
 * asks for a path, or until m is freed. An index out of range fails with TG_ERR_ARGUMENT. */
TG_API int tg_module_param_count(const tg_module *m);
TG_API tg_tensor *tg_module_param(const tg_module *m, int i, const char **path); /* inert on error */
/* Fills out[] with the first n parameters and returns how many there are. out may be NULL. */
TG_API int tg_module_params(const tg_module *m, tg_tensor **out, int n);
TG_API tg_tensor *tg_module_find(const tg_module *m, const char *path);         /* NULL: none */
TG_API int64_t tg_module_numel(const tg_module *m); /* number of elements of all parameters */
/* Places every parameter on each axis of p on which it has no placement yet, except parameters on the experts' axes:
 * R on dp and cp, so that its gradient is summed over them; on tp R under sequence parallelism, else I.
 * Data-parallel and sequence-parallel training need this. */
TG_API tg_status tg_module_replicate(tg_module *m, const tg_parallel *p);

/* ---- Layers ---- */

/* These layers are whole on every rank: parameters are I until tg_place or tg_module_replicate places them, and x
 * may have any placement that the op of the same name accepts with them. tensor_parallel.h has the sharded layers.
 * It also has weight gradients that are computed later (tg_wgrads), which need no tensor parallelism. Weights are
 * drawn from a normal distribution with standard deviation std >= 0; biases are 0. A size below 1 fails with
 * TG_ERR_ARGUMENT and returns an inert module. */

/* Returns a linear layer: x [.., in] -> x weight^T + bias [.., out]; weight [out, in], and bias [out] if `bias` is
 * true. */
TG_API tg_module *tg_nn_linear(tg_ctx *ctx, int64_t in, int64_t out, bool bias, double std);
/* Returns an embedding: ids [..] int64 or int32 -> [.., hidden], rows of weight [vocab, hidden]. An id outside [0,
 * vocab) fails with TG_ERR_DATA. */
TG_API tg_module *tg_nn_embedding(tg_ctx *ctx, int64_t vocab, int64_t hidden, double std);
/* Returns a norm over the last dim: x [.., hidden] -> the same shape. weight [hidden] starts as 1, and bias [hidden]
 * (layer norm only) as 0. eps >= 0. */
TG_API tg_module *tg_nn_layer_norm(tg_ctx *ctx, int64_t hidden, double eps);
TG_API tg_module *tg_nn_rms_norm(tg_ctx *ctx, int64_t hidden, double eps);

#ifdef __cplusplus
}
#endif

#endif
