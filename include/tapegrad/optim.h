/* Optimizers, clipping, and the scale of the loss for float16. Include it in a training program; schedule.h has the
 * learning-rate schedules.
 *
 * An optimizer holds a list of parameters in groups. It takes all its memory (moments, master weights) when it is
 * created. A step changes nothing after an error, which includes errors in data, and if it measures a norm that is not
 * finite. Such a skipped step does not count.
 *
 * The numbers that change from step to step are on the device: a step reads nothing back and sends nothing there.
 * Functions that set a number send it. Functions that return the count of steps, the norm or the scale wait for the
 * device. */
#ifndef TAPEGRAD_OPTIM_H
#define TAPEGRAD_OPTIM_H

#include <tapegrad/schedule.h>
#include <tapegrad/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tg_sgd_opts {
    size_t size;
    double lr; /* learning rate; 0: parameters do not change until tg_optim_set_lr */
    double momentum, dampening, weight_decay; /* in [0, 1), in [0, 1], 0 or more; weight_decay is added to gradients */
    bool nesterov; /* needs momentum > 0 and dampening 0. dampening needs momentum > 0 too. */
} tg_sgd_opts;

typedef struct tg_adamw_opts {
    size_t size;
    double lr;           /* 0: 1e-3; TG_NONE: 0 */
    double beta1, beta2; /* 0: 0.9, 0.999; TG_NONE: 0 */
    double eps;          /* 0: 1e-8; TG_NONE: 0 */
    double weight_decay; /* 0: 0.01 for AdamW, none for Adam; TG_NONE: none */
} tg_adamw_opts;

#define TG_SGD(...) (&(tg_sgd_opts){.size = sizeof(tg_sgd_opts), __VA_ARGS__})
#define TG_ADAMW(...) (&(tg_adamw_opts){.size = sizeof(tg_adamw_opts), __VA_ARGS__})

/* Create an optimizer: SGD with momentum (Sutskever et al., ICML 2013), Adam (Kingma and Ba, arXiv 1412.6980) or AdamW
 * (Loshchilov and Hutter, arXiv 1711.05101). params are n >= 1 different contiguous leaves of the context that require
 * a gradient and outlive the optimizer. 16-bit parameters get float32 master weights. opts may be NULL for Adam and
 * AdamW only. On error returns an inert optimizer, on which every call does nothing. */
TG_API tg_optim *tg_sgd_new(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_sgd_opts *opts);
TG_API tg_optim *tg_adam_new(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_adamw_opts *opts); /* decay is L2 */
TG_API tg_optim *tg_adamw_new(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_adamw_opts *opts);
TG_API void tg_optim_free(tg_optim *o);

/* A group of parameters that are stepped with the same numbers. */
typedef struct tg_group_opts {
    size_t size;
    double lr_scale;             /* Multiplies the learning rate. 0: 1; TG_NONE: 0. */
    double weight_decay;         /* 0: that of group 0; TG_NONE: none */
    double beta1, beta2, eps;    /* 0: those of group 0; TG_NONE: 0. SGD has none: TG_ERR_ARGUMENT. */
    const tg_schedule *schedule; /* The group's learning rate by step; copied. NULL: the rate that is set. */
} tg_group_opts;

#define TG_GROUP(...) (&(tg_group_opts){.size = sizeof(tg_group_opts), __VA_ARGS__})

/* Adds a group and returns its number, or a negative number on error. opts may be NULL. An optimizer starts with group
 * 0, which holds every parameter and has the options that the optimizer was made with; it may have up to 32 groups
 * (TG_STEP_GROUPS). A group with a schedule takes its rate of each step from it, on the device: a skipped step does not
 * count, and captured steps follow it. */
TG_API int tg_optim_add_group(tg_optim *o, const tg_group_opts *opts);
/* Moves n of the optimizer's parameters into a group. On error none is moved. */
TG_API tg_status tg_optim_assign(tg_optim *o, int group, tg_tensor *const *params, int n);
/* Removes weight decay from biases and other parameters with ndim < 2: moves them from each group with a decay to a
 * new copy of that group without one. */
TG_API tg_status tg_optim_no_decay_1d(tg_optim *o);

/* Steps every parameter that has a gradient; the others stay. Adam's bias correction counts the steps of the optimizer,
 * not those of a parameter. SGD's dampening does not apply in the optimizer's first step.
 *
 * With ranks (tg_parallel_new) a step that measures the norm (tg_optim_set_clip, tg_optim_set_scale) is collective
 * over the axes that shard parameters and over pp. The norm is that of the whole model, and all stages clip or skip
 * alike. On a device that finds errors in data late (CUDA) every step is collective over all ranks: if one rank
 * finds such an error, for example an id outside the vocabulary, all ranks skip the step. */
TG_API tg_status tg_optim_step(tg_optim *o);
/* Clears the gradients of all parameters, like tg_zero_grad. A tg_optim_clip that no step has used yet is dropped. */
TG_API tg_status tg_optim_zero_grad(tg_optim *o);
/* Sets the learning rate of every group that has no schedule, and of groups to come. Each group multiplies it by its
 * lr_scale. */
TG_API tg_status tg_optim_set_lr(tg_optim *o, double lr);
/* Sets the learning rate of one group, until the next call of tg_optim_set_lr. The group multiplies it by its lr_scale.
 * TG_ERR_STATE for a group that has a schedule. */
TG_API tg_status tg_optim_set_lr_of(tg_optim *o, int group, double lr);
TG_API double tg_optim_lr(const tg_optim *o); /* Returns the number that tg_optim_set_lr set last; NaN if o is NULL. */
/* Returns the number of steps taken, without skipped ones. Waits for the device. 0 on error. */
TG_API int64_t tg_optim_steps(const tg_optim *o);

/* Clips gradients from now on: each step measures the L2 norm of all gradients, and scales them by max_norm / (norm
 * + 1e-6) if that is below 1 (Pascanu et al., ICML 2013). It rewrites no gradient. INFINITY: only measures the norm.
 * 0, the default: neither. */
TG_API tg_status tg_optim_set_clip(tg_optim *o, double max_norm);
/* Returns the norm that the last step measured, without the scale of the loss. Waits for the device. NaN before the
 * first step, after a step that measured none, and on error. */
TG_API double tg_optim_norm(const tg_optim *o);
/* Measures and returns the norm now; waits for the device. The next step clips to max_norm, whatever
 * tg_optim_set_clip has set; 0: it does not clip. NaN on error. Collective like a step that measures. */
TG_API double tg_optim_clip(tg_optim *o, double max_norm);

/* ---- The scale of the loss: in float16, small gradients of an unscaled loss would be 0 ---- */

typedef struct tg_loss_scale {
    size_t size;
    double initial; /* 0: 2^32, Megatron-Core's default */
    bool fixed;     /* the scale never changes; leave the options below 0 */
    double growth, backoff, min; /* 0: 2, 0.5, 1. growth > 1, backoff < 1, min <= initial */
    int64_t interval, hysteresis; /* in steps and in overflows. 0: 1000, 2 */
} tg_loss_scale;

#define TG_LOSS_SCALE(...) (&(tg_loss_scale){.size = sizeof(tg_loss_scale), __VA_ARGS__})

/* Dynamic loss scaling (Megatron-Core's DynamicGradScaler). From now on run backward from tg_scale_loss(t, loss, o)
 * instead of from loss. A step divides gradients by the scale, without rewriting them. It is skipped if the norm is not
 * finite, which counts as an overflow.
 *
 * Unless it is fixed, the scale changes: after `hysteresis` overflows, and with each further one, it becomes
 * max(scale backoff, min). After `interval` steps in a row without an overflow it is multiplied by growth, and
 * `hysteresis` overflows are allowed again. A second call starts over. scale NULL, the default: gradients are those
 * of the loss itself. */
TG_API tg_status tg_optim_set_scale(tg_optim *o, const tg_loss_scale *scale);
/* Returns the present scale; 1 if none is set, NaN on error. Waits for the device. */
TG_API double tg_optim_scale(const tg_optim *o);
/* Returns loss times the present scale of o, computed on the device, in float32 if loss has 16 bits; loss itself if
 * o has no scale. Run its backward before the next step of o: after it backward fails with TG_ERR_VERSION. */
TG_API tg_tensor *tg_scale_loss(tg_tape *t, tg_tensor *loss, tg_optim *o);

/* The state, for checkpoints: tensors by name, and the count of steps. The names are "<param>.m" and "<param>.v" (Adam)
 * or "<param>.momentum" and "<param>.direction" (SGD), then "<param>.master" for 16-bit parameters. <param> is the name
 * of the parameter's tensor, which parameters of different modules may share. Parameters have their given order. The
 * last state is "loss_scale", three numbers, if the scale of the loss can change. The tensors belong to the optimizer:
 * tg_drop has no effect on them. The text of *name lives until the next call. An index out of range fails with
 * TG_ERR_ARGUMENT.
 *
 * To restore, write into the tensors (tg_write, tg_safetensors_read). If both a master weight and its parameter
 * were written, the master weight counts. tg_optim_set_steps restores the count.
 */
TG_API int tg_optim_state_count(const tg_optim *o);
TG_API tg_tensor *tg_optim_state(tg_optim *o, int i, const char **name);
TG_API tg_status tg_optim_set_steps(tg_optim *o, int64_t steps);

#ifdef __cplusplus
}
#endif

#endif
