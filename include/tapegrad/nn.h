/* Modules: named parameters and children, and the layers of a GPT.
 *
 * A module owns its parameters and children. Its forward (tg_module_forward, or a function of its kind such as
 * tg_gpt_loss) is recorded on the tape that it is given. Parameters are drawn when the module is made, each from its
 * own position of the context's random stream, so that initialisation depends on the seed and the order of making
 * alone. Dtype: the context's default.
 */
#ifndef TAPEGRAD_NN_H
#define TAPEGRAD_NN_H

#include <tapegrad/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Modules ---- */

/* forward runs it (may be NULL for containers); free ends state. Inert (every call does nothing) on error. */
typedef struct tg_module_ops {
    size_t size;
    const char *kind;
    tg_tensor *(*forward)(tg_module *m, tg_tape *t, tg_tensor *x);
    void (*free)(void *state);
} tg_module_ops;

/* state is ended by the table's free, on an error at once (but for a table that is NULL or of another size). */
TG_API tg_module *tg_module_new(tg_ctx *ctx, const tg_module_ops *ops, void *state);
/* With its children and parameters. A child leaves its parent, whose forward is TG_ERR_STATE where it needs it. */
TG_API void tg_module_free(tg_module *m);
TG_API tg_ctx *tg_module_ctx(const tg_module *m);
TG_API void *tg_module_state(const tg_module *m);
TG_API const char *tg_module_kind(const tg_module *m);
/* The parameter is dropped with the module, and tg_drop leaves it alone until then; adding one tensor under two names
 * ties them: it is listed once. Names are unique in a module and without dots. */
TG_API tg_status tg_module_add_param(tg_module *m, const char *name, tg_tensor *param);
/* m frees the child from now on; on an error it is freed at once, unless it is in a module already (a module has one
 * parent at most, and is never inside itself: TG_ERR_STATE). */
TG_API tg_status tg_module_add_child(tg_module *m, const char *name, tg_module *child);
TG_API tg_module *tg_module_child(const tg_module *m, const char *name); /* NULL: none */
TG_API tg_tensor *tg_module_forward(tg_module *m, tg_tape *t, tg_tensor *x); /* in a scope named after its kind */

/* The state dict: parameters by path ("h.0.attn.c_attn.weight"), depth first in the order of adding. */
TG_API int tg_module_param_count(const tg_module *m);
TG_API tg_tensor *tg_module_param(const tg_module *m, int i, const char **path); /* path may be NULL */
/* Fills out[] with the first n of them; returns how many there are. */
TG_API int tg_module_params(const tg_module *m, tg_tensor **out, int n);
TG_API tg_tensor *tg_module_find(const tg_module *m, const char *path);         /* NULL: none */
TG_API int64_t tg_module_numel(const tg_module *m);
/* Places every parameter, but those on the experts' axes, on the axes of p on which it was not placed yet: R on dp and
 * cp, so that its gradient is summed over them; on tp R under sequence parallelism, else I. What data- and
 * sequence-parallel training needs. */
TG_API tg_status tg_module_replicate(tg_module *m, const tg_parallel *p);

/* ---- Layers ---- */

/* Whole on every rank: parameters are I until tg_place or tg_module_replicate says otherwise, and x is what the op of
 * the same name accepts beside them; layers over shards are in mappings.h. Weights are drawn from a normal distribution
 * of deviation std >= 0, biases are 0. A size below 1 is TG_ERR_ARGUMENT, and the module inert. */

/* x [.., in] -> x weight^T + bias [.., out]; weight [out, in], bias [out] where it is asked for */
TG_API tg_module *tg_nn_linear(tg_ctx *ctx, int64_t in, int64_t out, bool bias, double std);
/* ids [..] int64 or int32 -> [.., hidden], rows of weight [vocab, hidden]; an id outside [0, vocab) is TG_ERR_DATA */
TG_API tg_module *tg_nn_embedding(tg_ctx *ctx, int64_t vocab, int64_t hidden, double std);
/* x [.., hidden] -> the same shape, over the last dim; weight [hidden] begins as 1, bias [hidden] (of layer_norm) as 0.
 * eps >= 0 */
TG_API tg_module *tg_nn_layer_norm(tg_ctx *ctx, int64_t hidden, double eps);
TG_API tg_module *tg_nn_rms_norm(tg_ctx *ctx, int64_t hidden, double eps);

#ifdef __cplusplus
}
#endif

#endif
