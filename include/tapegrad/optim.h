/* Optimizers, gradient clipping, and loss scaling for float16. Include it in a training program. schedule.h has the
 * learning-rate schedules.
 *
 * An optimizer holds a list of parameters in groups. It allocates its state (moments, master weights) when it is
 * created.
 *
 * A step is skipped if there was an error in its data, such as an id outside the vocabulary. It is also skipped if the
 * norm of its gradients was measured (tg_optim_set_clip, tg_optim_clip, tg_optim_set_scale) and is not finite. A
 * skipped step changes no parameter and no moment, and does not count as a step.
 *
 * The numbers that change from step to step are in device memory. A step copies nothing between host and device, except
 * on a device without slot prepare (device.h) and for sums over ranks that pass through host memory. Functions that set
 * such a number copy it to the device. Functions that return the count of steps, the norm or the scale wait for the
 * device. */
#ifndef TAPEGRAD_OPTIM_H
#define TAPEGRAD_OPTIM_H

#include <tapegrad/schedule.h>
#include <tapegrad/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Options of SGD. Every number is 0 by default, also lr: the parameters then keep their values until tg_optim_set_lr
 * sets another rate. */
typedef struct tg_sgd_opts {
    size_t size;
    double lr; /* learning rate, 0 or more */
    /* momentum is in [0, 1). dampening is in [0, 1], and must be 0 if momentum is 0. weight_decay is 0 or more;
     * weight_decay * parameter is added to the gradient. */
    double momentum, dampening, weight_decay;
    bool nesterov; /* Nesterov momentum, which needs momentum > 0 and dampening 0; false by default */
} tg_sgd_opts;

/* Options of Adam and AdamW. */
typedef struct tg_adamw_opts {
    size_t size;
    double lr;           /* learning rate, 0 or more; 1e-3 by default */
    double beta1, beta2; /* in [0, 1); 0.9 and 0.999 by default */
    double eps;          /* 0 or more; 1e-8 by default */
    double weight_decay; /* 0 or more; TG_AUTO, the default, means 0.01 for AdamW, and 0 for Adam */
} tg_adamw_opts;

/* Options of RMSprop. */
typedef struct tg_rmsprop_opts {
    size_t size;
    double lr;           /* learning rate, 0 or more; 1e-2 by default */
    double alpha;        /* in [0, 1): how much of the mean square each step keeps; 0.99 by default */
    double eps;          /* 0 or more: added to the root of the mean square; 1e-8 by default */
    double momentum;     /* in [0, 1); 0 by default */
    double weight_decay; /* 0 or more: weight_decay * parameter is added to the gradient; 0 by default */
    /* If true, RMSprop divides by the standard deviation of the gradients instead of the root of their mean square.
     * False by default. */
    bool centered;
} tg_rmsprop_opts;

/* Options of Adagrad. There is no option that lowers the learning rate with the steps; a group with a schedule does so
 * (tg_optim_add_group). */
typedef struct tg_adagrad_opts {
    size_t size;
    double lr;           /* learning rate, 0 or more; 1e-2 by default */
    double initial;      /* 0 or more: initial value of the sums of squares; 0 by default */
    double eps;          /* 0 or more: added to the root of the sums; 1e-10 by default */
    double weight_decay; /* 0 or more: weight_decay * parameter is added to the gradient; 0 by default */
} tg_adagrad_opts;

/* Options of Lion. */
typedef struct tg_lion_opts {
    size_t size;
    double lr;           /* learning rate, 0 or more; 1e-4 by default */
    double beta1, beta2; /* in [0, 1); 0.9 and 0.99 by default */
    double weight_decay; /* 0 or more: lr * weight_decay * parameter is subtracted; 0 by default */
} tg_lion_opts;

/* The factor by which Muon multiplies the step of a matrix [m, n].
 * - TG_MUON_ROWS: sqrt(max(1, m / n)) (Jordan et al.).
 * - TG_MUON_RMS: 0.2 sqrt(max(m, n)). The root mean square of a step is then about that of AdamW (Liu et al., arXiv
 *   2502.16982). */
typedef enum tg_muon_scale { TG_MUON_ROWS, TG_MUON_RMS } tg_muon_scale;

/* Options of Muon. */
typedef struct tg_muon_opts {
    size_t size;
    double lr;           /* learning rate of matrices, above 0; 0.02 by default */
    double momentum;     /* in [0, 1); 0.95 by default */
    bool nesterov;       /* true by default */
    double weight_decay; /* of matrices, 0 or more: lr * weight_decay * parameter is subtracted; 0 by default */
    int iterations;      /* number of Newton-Schulz iterations, 1 or more; 5 by default */
    double eps;          /* above 0: a matrix is divided by its norm, or by eps if that is greater; 1e-7 by default */
    tg_muon_scale scale; /* TG_MUON_ROWS by default */
    /* Those of the parameters that AdamW steps although they are matrices, such as embeddings and the output matrix.
     * Each must be one of the optimizer's parameters (TG_ERR_ARGUMENT). The array is not needed after the optimizer was
     * created. NULL and 0 by default. */
    tg_tensor *const *others;
    int n_others;
    const tg_adamw_opts *adamw; /* of AdamW, which steps the parameters that Muon does not; NULL: its defaults */
} tg_muon_opts;

#define TG_SGD_DEFAULTS .size = sizeof(tg_sgd_opts)
#define TG_SGD(...) (&(tg_sgd_opts){TG_SGD_DEFAULTS, __VA_ARGS__})
#define TG_ADAMW_DEFAULTS                                                                                         \
    .size = sizeof(tg_adamw_opts), .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = TG_AUTO
#define TG_ADAMW(...) (&(tg_adamw_opts){TG_ADAMW_DEFAULTS, __VA_ARGS__})
#define TG_RMSPROP_DEFAULTS .size = sizeof(tg_rmsprop_opts), .lr = 1e-2, .alpha = 0.99, .eps = 1e-8
#define TG_RMSPROP(...) (&(tg_rmsprop_opts){TG_RMSPROP_DEFAULTS, __VA_ARGS__})
#define TG_ADAGRAD_DEFAULTS .size = sizeof(tg_adagrad_opts), .lr = 1e-2, .eps = 1e-10
#define TG_ADAGRAD(...) (&(tg_adagrad_opts){TG_ADAGRAD_DEFAULTS, __VA_ARGS__})
#define TG_LION_DEFAULTS .size = sizeof(tg_lion_opts), .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.99
#define TG_LION(...) (&(tg_lion_opts){TG_LION_DEFAULTS, __VA_ARGS__})
#define TG_MUON_DEFAULTS                                                                              \
    .size = sizeof(tg_muon_opts), .lr = 0.02, .momentum = 0.95, .nesterov = true, .iterations = 5, .eps = 1e-7
#define TG_MUON(...) (&(tg_muon_opts){TG_MUON_DEFAULTS, __VA_ARGS__})

/* Create an optimizer: SGD with momentum (Sutskever et al., ICML 2013), Adam (Kingma and Ba, arXiv 1412.6980), AdamW
 * (Loshchilov and Hutter, arXiv 1711.05101), RMSprop (Tieleman and Hinton, 2012), Adagrad (Duchi, Hazan and Singer,
 * JMLR 12, 2011), Lion (Chen et al., arXiv 2302.06675) or Muon (Jordan et al., 2024). lbfgs.h has L-BFGS. params has n
 * tensors, at least one and all different (TG_ERR_ARGUMENT). Each must be a contiguous leaf of the context that
 * requires a gradient (TG_ERR_STATE), and must outlive the optimizer. 16-bit parameters get float32 master weights.
 * opts may be NULL, except for SGD (TG_ERR_ARGUMENT). An option that is out of its range, infinite or NaN fails with
 * TG_ERR_ARGUMENT. On error the functions return an inert optimizer (tapegrad.h). */
TG_API tg_optim *tg_sgd_new(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_sgd_opts *opts);
/* Adam adds weight_decay * parameter to the gradient (L2). AdamW instead subtracts lr * weight_decay * parameter from
 * the parameter. */
TG_API tg_optim *tg_adam_new(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_adamw_opts *opts);
TG_API tg_optim *tg_adamw_new(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_adamw_opts *opts);
TG_API tg_optim *tg_rmsprop_new(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_rmsprop_opts *opts);
TG_API tg_optim *tg_adagrad_new(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_adagrad_opts *opts);
TG_API tg_optim *tg_lion_new(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_lion_opts *opts);
/* Muon steps parameters of exactly 2 dims, and computes in float32 (float64 for float64 parameters). AdamW steps the
 * parameters with another number of dims, and those in .others. At first, group 0 has Muon's parameters and group 1 has
 * AdamW's. tg_optim_assign may move a parameter to another group, but the method that steps the parameter stays the
 * same. The learning rate of the optimizer is Muon's. The lr_scale of group 1 is AdamW's rate / Muon's rate, so
 * tg_optim_set_lr changes both rates in proportion. Set lr_scale also in other groups for AdamW's parameters. If a rank
 * has only a part of a matrix that Muon would step, the call fails with TG_ERR_PLACEMENT; list such a matrix in
 * .others. */
TG_API tg_optim *tg_muon_new(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_muon_opts *opts);
TG_API void tg_optim_free(tg_optim *o);

/* Options of a group: the parameters of one group are stepped with the same numbers. */
typedef struct tg_group_opts {
    size_t size;
    double lr_scale;     /* factor of the learning rate, also of a schedule's; 0 or more; 1 by default */
    double weight_decay; /* 0 or more; TG_AUTO, the default, means the weight decay of group 0 */
    /* In the ranges of tg_adamw_opts. TG_AUTO, the default, means the value of group 0. A number that the method does
     * not have must be TG_AUTO (TG_ERR_ARGUMENT): SGD has none of the three, Lion has no eps, and RMSprop and Adagrad
     * have no betas. If the optimizer is Muon, the numbers are for the parameters that AdamW steps. */
    double beta1, beta2, eps;
    /* Gives the learning rate of each step; copied. NULL, the default, means the rate that tg_optim_set_lr or
     * tg_optim_set_lr_of has set. */
    const tg_schedule *schedule;
} tg_group_opts;

#define TG_GROUP_DEFAULTS                                                                                      \
    .size = sizeof(tg_group_opts), .lr_scale = 1, .weight_decay = TG_AUTO, .beta1 = TG_AUTO, .beta2 = TG_AUTO, \
    .eps = TG_AUTO
#define TG_GROUP(...) (&(tg_group_opts){TG_GROUP_DEFAULTS, __VA_ARGS__})

/* Adds a group, which has no parameters yet, and returns its number, or a negative number on error. opts may be NULL.
 * An option out of its range and an invalid schedule fail with TG_ERR_ARGUMENT. An optimizer starts with group 0, which
 * has every parameter and the options with which the optimizer was created. Muon starts with two groups (tg_muon_new).
 * An optimizer has at most 32 groups (TG_ERR_ARGUMENT). If a group has a schedule, the device evaluates the schedule in
 * each step. The schedule therefore counts no skipped steps, and captured steps (capture.h) follow it too. */
TG_API int tg_optim_add_group(tg_optim *o, const tg_group_opts *opts);
/* Moves n >= 0 parameters of the optimizer into a group. On error moves none. Fails with TG_ERR_ARGUMENT if there is no
 * such group, or if a tensor is no parameter of the optimizer. */
TG_API tg_status tg_optim_assign(tg_optim *o, int group, tg_tensor *const *params, int n);
/* Moves the parameters whose names (tg_set_name) a pattern matches into a group. Patterns are those of tg_module_train
 * (nn.h), so names should be paths, such as "h.0.attn.weight". Returns the number of parameters that match, or a
 * negative number on an error; then none is moved. Fails with TG_ERR_ARGUMENT if a pattern matches no name, if patterns
 * is NULL or "", or if there is no such group. */
TG_API int tg_optim_assign_named(tg_optim *o, int group, const char *patterns);
/* Removes the weight decay of parameters with fewer than 2 dims, such as biases. For each group that has a weight decay
 * and such parameters, adds a copy of the group without the weight decay, and moves these parameters into the copy.
 * Fails with TG_ERR_ARGUMENT, and changes nothing, if the optimizer would have more than 32 groups. */
TG_API tg_status tg_optim_no_decay_1d(tg_optim *o);

/* Steps every parameter that has a gradient, and leaves the other parameters unchanged. A call counts as a step even if
 * no parameter has a gradient. Adam's bias correction counts the steps of the optimizer, not the steps of one
 * parameter. SGD's dampening does not apply in the optimizer's first step. Fails with TG_ERR_HANDLE if a parameter was
 * dropped, and with TG_ERR_STATE if a gradient is still one rank's share of a sum (tg_grads_finalize) or lacks deferred
 * products (tg_wgrads_drain).
 *
 * On a grid of ranks (tg_parallel_new) a step that measures the norm is collective over the axes that shard parameters,
 * and over the pipeline axis (pp). The norm is that of the whole model, so all ranks clip alike, and all skip the step
 * or none does. A device such as CUDA finds errors in data late. On such a device every step is collective over all
 * ranks: if one rank finds an error in data, all ranks skip the step. */
TG_API tg_status tg_optim_step(tg_optim *o);
/* Clears the gradients of all parameters, like tg_zero_grad. Also cancels a tg_optim_clip that no step has used yet. */
TG_API tg_status tg_optim_zero_grad(tg_optim *o);
/* Sets the learning rate, 0 or more, of every group that has no schedule, and of groups that are added later. Each
 * group multiplies this rate by its lr_scale. */
TG_API tg_status tg_optim_set_lr(tg_optim *o, double lr);
/* Sets the learning rate of one group, until the next call of tg_optim_set_lr. The group multiplies this rate by its
 * lr_scale. Fails with TG_ERR_ARGUMENT if there is no such group, and with TG_ERR_STATE if the group has a schedule. */
TG_API tg_status tg_optim_set_lr_of(tg_optim *o, int group, double lr);
/* Returns the rate that the last tg_optim_set_lr, or the creation of the optimizer, set. Returns NaN if o is NULL, and
 * 0 if o is inert. */
TG_API double tg_optim_lr(const tg_optim *o);
/* Returns the number of steps, without skipped steps; 0 if it cannot be read. Waits for the device. */
TG_API int64_t tg_optim_steps(const tg_optim *o);

/* Sets the norm to which later steps clip, 0 or more. Each step then measures the L2 norm of all gradients together,
 * divided by the loss scale. If f = max_norm / (norm + 1e-6) is below 1, the step uses f * gradient in place of each
 * gradient (Pascanu et al., ICML 2013). The gradients in memory do not change. max_norm INFINITY means that steps
 * measure the norm but do not clip. max_norm 0, the default, means that steps do not clip; they then measure the norm
 * only for loss scaling. Replays of a captured step (capture.h) take a later max_norm only if the step measured the
 * norm when it was recorded. */
TG_API tg_status tg_optim_set_clip(tg_optim *o, double max_norm);
/* Returns the norm that the last step measured, or that tg_optim_clip measured for it. Waits for the device. Returns
 * NaN before the first step, after a step that did not measure the norm, and if the norm cannot be read. */
TG_API double tg_optim_norm(const tg_optim *o);
/* Measures the norm of the gradients divided by the loss scale now, and returns it. Waits for the device. The next
 * step, and no later one, uses this norm, and clips to max_norm (0 or more) instead of the norm of tg_optim_set_clip;
 * max_norm 0 means that it does not clip. In a captured step (capture.h) this call fails with TG_ERR_UNSUPPORTED, and
 * so does a tg_optim_step that would use the norm. Returns NaN on error. Collective over the same ranks as a step that
 * measures the norm. */
TG_API double tg_optim_clip(tg_optim *o, double max_norm);

/* ---- Loss scaling ---- */

/* Options of loss scaling. Without loss scaling, small gradients would become 0 in float16. */
typedef struct tg_loss_scale {
    size_t size;
    double initial; /* first scale, above 0; 2^32 by default, as in Megatron-Core */
    bool fixed;     /* the scale never changes; the options below must then keep their defaults (TG_ERR_ARGUMENT) */
    /* How the scale changes (tg_optim_set_scale). growth is above 1; 2 by default. backoff is in (0, 1); 0.5 by
     * default. min is the least scale; it is above 0 and, unless `fixed` is set, at most initial; 1 by default. */
    double growth, backoff, min;
    /* When the scale changes. interval is a number of steps, 1 or more; 1000 by default. hysteresis is a number of
     * overflows, 1 or more; 2 by default. */
    int64_t interval, hysteresis;
} tg_loss_scale;

#define TG_LOSS_SCALE_DEFAULTS                                                                                      \
    .size = sizeof(tg_loss_scale), .initial = 4294967296., .growth = 2, .backoff = 0.5, .min = 1, .interval = 1000, \
    .hysteresis = 2
#define TG_LOSS_SCALE(...) (&(tg_loss_scale){TG_LOSS_SCALE_DEFAULTS, __VA_ARGS__})

/* Turns on loss scaling (Megatron-Core's DynamicGradScaler). Afterwards call backward on tg_scale_loss(t, loss, o)
 * instead of loss. A step divides gradients by the scale as it reads them; the gradients in memory do not change. Each
 * step then measures the norm of the gradients. If the norm is not finite, the step is skipped; this is an overflow.
 *
 * Unless `fixed` is set, the scale changes. After `hysteresis` overflows, and after each further one, the scale becomes
 * max(scale * backoff, min). After `interval` steps in a row without an overflow, the scale is multiplied by growth
 * (unless the result would be infinite), and the overflows are counted from 0 again. Another call of tg_optim_set_scale
 * starts over with `initial`. scale NULL turns loss scaling off; it is off at first. The struct at scale is copied. A
 * number out of its range fails with TG_ERR_ARGUMENT. */
TG_API tg_status tg_optim_set_scale(tg_optim *o, const tg_loss_scale *scale);
/* Returns the current scale; 1 if loss scaling is off, and NaN if the scale cannot be read. Waits for the device. */
TG_API double tg_optim_scale(const tg_optim *o);
/* Returns loss times the current scale of o, or loss itself if loss scaling is off. The product is computed on the
 * device, and is float32 if loss has 16 bits. Call backward on the result before the next step of o. After that step,
 * or after tg_optim_set_scale, backward from the result fails with TG_ERR_VERSION. */
TG_API tg_tensor *tg_scale_loss(tg_tape *t, tg_tensor *loss, tg_optim *o);

/* Return the number of state tensors, and state tensor i with its name. A checkpoint saves these tensors and the count
 * of steps (tg_optim_steps, tg_optim_set_steps). For each parameter, in the order in which parameters were given, the
 * tensors are
 * - with Adam and AdamW "<param>.m" and "<param>.v", also for parameters of Muon that AdamW steps;
 * - with SGD "<param>.momentum" if it has momentum;
 * - with RMSprop "<param>.square", "<param>.mean" if it is centered, and "<param>.momentum" if it has momentum;
 * - with Adagrad "<param>.sum", with Lion "<param>.m", and with Muon "<param>.momentum";
 * - "<param>.master" if the parameter has 16 bits.
 *
 * <param> is the name of the parameter's tensor. Parameters of different modules may have the same name. If loss
 * scaling is on and not `fixed`, the last tensor is "loss_scale", which has three float64 numbers. The other tensors
 * have the shape of the parameter, and are float64 if it is, else float32.
 *
 * The tensors belong to the optimizer; tg_drop has no effect on them. name may be NULL. The text of *name is valid
 * until the next call of tg_optim_state for o. An index out of range fails with TG_ERR_ARGUMENT, and leaves *name
 * unchanged.
 *
 * To restore a state, write into the tensors (tg_write, tg_safetensors_read), and call tg_optim_set_steps. If a master
 * weight was written, the next step copies it to the parameter. If only the parameter was written, the next step
 * compares the parameter with the rounded master weight. Where they differ, the master weight gets the value of the
 * parameter.
 */
TG_API int tg_optim_state_count(const tg_optim *o);
TG_API tg_tensor *tg_optim_state(tg_optim *o, int i, const char **name);
/* Sets the count of steps, 0 to 2^53 (TG_ERR_ARGUMENT). */
TG_API tg_status tg_optim_set_steps(tg_optim *o, int64_t steps);

#ifdef __cplusplus
}
#endif

#endif
