/* Optimisers, learning-rate schedules, clipping, the scale of the loss in float16.
 *
 * An optimiser holds a list of parameters in groups. It takes all its memory (moments, master weights) when it is made,
 * before its first write. A step after an error, data errors among them, changes nothing, and neither does one that
 * measured a norm that is not finite; one that is skipped so does not count.
 *
 * What changes from step to step lies on the device: a step reads nothing back, and sends nothing there. The functions
 * that set something send it, those that return a number of it wait for the device.
 */
#ifndef TAPEGRAD_OPTIM_H
#define TAPEGRAD_OPTIM_H

#include <tapegrad/schedule.h>
#include <tapegrad/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tg_sgd_opts {
    size_t size;
    double lr; /* 0: nothing moves before tg_optim_set_lr */
    double momentum, dampening, weight_decay; /* dampening needs momentum */
    bool nesterov;
} tg_sgd_opts;

typedef struct tg_adamw_opts {
    size_t size;
    double lr;           /* 0: 1e-3; TG_NONE: 0 */
    double beta1, beta2; /* 0: 0.9, 0.999; TG_NONE: 0 */
    double eps;          /* 0: 1e-8 */
    double weight_decay; /* 0: 0.01 for AdamW, none for Adam; TG_NONE: none */
} tg_adamw_opts;

#define TG_SGD(...) (&(tg_sgd_opts){.size = sizeof(tg_sgd_opts), __VA_ARGS__})
#define TG_ADAMW(...) (&(tg_adamw_opts){.size = sizeof(tg_adamw_opts), __VA_ARGS__})

/* params are context-owned leaves that must outlive the optimiser. 16-bit ones get float32 master weights. An inert
 * optimiser (every call does nothing) on error. */
TG_API tg_optim *tg_sgd_new(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_sgd_opts *opts);
TG_API tg_optim *tg_adam_new(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_adamw_opts *opts); /* L2 decay */
TG_API tg_optim *tg_adamw_new(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_adamw_opts *opts);
TG_API void tg_optim_free(tg_optim *o);

/* A group of parameters, which are stepped with the same numbers. */
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
/* Moves n of the optimizer's parameters into a group. */
TG_API tg_status tg_optim_assign(tg_optim *o, int group, tg_tensor *const *params, int n);
/* No weight decay on biases and other 1-D parameters: moves those with ndim < 2, of each group that has a decay, to a
 * twin of it without. */
TG_API tg_status tg_optim_no_decay_1d(tg_optim *o);

/* Parameters without a gradient stay. Adam's bias correction counts the optimiser's steps, not a parameter's, and SGD's
 * dampening spares its first step, not a parameter's first gradient.
 *
 * With ranks (tg_parallel_new) a step that measures the norm (tg_optim_set_clip, tg_optim_set_scale) is collective over
 * the axes that shard parameters and over pp: the norm is that of the whole model, and all stages clip or skip alike.
 * On a device that finds errors in data late (CUDA) every step is collective over all ranks: if one rank finds such an
 * error, for example an id outside the vocabulary, all ranks skip the step. */
TG_API tg_status tg_optim_step(tg_optim *o);
TG_API tg_status tg_optim_zero_grad(tg_optim *o); /* frees nothing; forgets a clip that no step has used */
/* Sets the learning rate of every group that has no schedule, and of groups to come. Each group multiplies it by its
 * lr_scale. */
TG_API tg_status tg_optim_set_lr(tg_optim *o, double lr);
/* Sets the learning rate of one group, until the next call of tg_optim_set_lr. The group multiplies it by its lr_scale.
 * TG_ERR_STATE for a group that has a schedule. */
TG_API tg_status tg_optim_set_lr_of(tg_optim *o, int group, double lr);
TG_API double tg_optim_lr(const tg_optim *o); /* as tg_optim_set_lr set it last */
TG_API int64_t tg_optim_steps(const tg_optim *o); /* reads it; 0 on error */

/* From now on each step measures the L2 norm of all gradients, and scales them by max_norm / (norm + 1e-6) where that
 * is below 1 (Pascanu et al., ICML 2013); nothing is rewritten. INFINITY: only the norm. 0, as at first: neither. */
TG_API tg_status tg_optim_set_clip(tg_optim *o, double max_norm);
/* What the last step measured, without the scale of the loss: reads it. NaN before, where it measured nothing, and on
 * error. */
TG_API double tg_optim_norm(const tg_optim *o);
/* The norm now: reads it. The next step clips to max_norm, whatever was set; 0: not. NaN on error. Collective as a step
 * that measures. */
TG_API double tg_optim_clip(tg_optim *o, double max_norm);

/* ---- The scale of the loss: float16's gradients would vanish without ---- */

typedef struct tg_loss_scale {
    size_t size;
    double initial; /* 0: 2^32, Megatron-Core's */
    bool fixed;     /* it stays what it is; leave the following options 0 */
    double growth, backoff, min; /* 0: 2, 0.5, 1 */
    int64_t interval, hysteresis; /* 0: 1000, 2 */
} tg_loss_scale;

#define TG_LOSS_SCALE(...) (&(tg_loss_scale){.size = sizeof(tg_loss_scale), __VA_ARGS__})

/* From now on gradients are those of tg_scale_loss(t, loss, o), whose backward runs instead of loss's. A step divides
 * by the scale, rewriting nothing, and is skipped where the norm is not finite: an overflow. Unless it is fixed the
 * scale follows (Megatron-Core's DynamicGradScaler): `hysteresis` overflows, and from then on each, make it
 * max(scale backoff, min); `interval` steps in a row without one make it scale growth and allow as many overflows
 * again. Begins anew where it was set before; scale NULL: gradients are the loss's own, as at first. */
TG_API tg_status tg_optim_set_scale(tg_optim *o, const tg_loss_scale *scale);
TG_API double tg_optim_scale(const tg_optim *o); /* reads it; 1 without, NaN on error */
/* loss times o's scale of the moment, on the device; in float32 where loss has 16 bits. Its backward comes before the
 * next step of o. */
TG_API tg_tensor *tg_scale_loss(tg_tape *t, tg_tensor *loss, tg_optim *o);

/* State: tensors by name ("<param>.m", ".v", ".master", ".momentum"), which are the optimiser's: tg_drop leaves them
 * alone; and the count of steps. A parameter's states follow each other, parameters in the order given; <param> is its
 * tensor's name, which parameters of modules may share. Last comes "loss_scale", three numbers, where the scale of the
 * loss moves. The name's text lives until the next call. To restore, write into them (tg_write, tg_safetensors_read): a
 * master that was written is the truth, whatever was written into its parameter. */
TG_API int tg_optim_state_count(const tg_optim *o);
TG_API tg_tensor *tg_optim_state(tg_optim *o, int i, const char **name);
TG_API tg_status tg_optim_set_steps(tg_optim *o, int64_t steps);

#ifdef __cplusplus
}
#endif

#endif
