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

#include <tapegrad/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tg_sgd_opts {
    size_t size;
    double lr; /* 0: nothing moves before tg_optim_set_lr */
    double momentum, dampening, weight_decay;
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

/* Every parameter starts in group 0, which has the options given. A new group (its number; < 0 on error) scales the
 * learning rate and has its own weight decay (TG_NONE: none). */
TG_API int tg_optim_group(tg_optim *o, double lr_scale, double weight_decay);
TG_API tg_status tg_optim_assign(tg_optim *o, int group, tg_tensor *const *params, int n);
/* No weight decay on biases and other 1-D parameters: moves those with ndim < 2, of each group that has a decay, to a
 * twin of it without. */
TG_API tg_status tg_optim_no_decay_1d(tg_optim *o);

/* Parameters without a gradient stay. Adam's bias correction counts the optimiser's steps, not a parameter's, and SGD's
 * dampening spares its first step, not a parameter's first gradient. A step that measures the norm (tg_optim_set_clip,
 * tg_optim_set_scale) is collective over the axes that shard parameters. */
TG_API tg_status tg_optim_step(tg_optim *o);
TG_API tg_status tg_optim_zero_grad(tg_optim *o); /* frees nothing; forgets a clip that no step has used */
TG_API tg_status tg_optim_set_lr(tg_optim *o, double lr);
TG_API double tg_optim_lr(const tg_optim *o); /* as set last */
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
    bool fixed;     /* it stays what it is */
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

/* ---- Schedules: the learning rate of a step (Megatron-Core's shapes) ---- */

typedef enum tg_decay {
    TG_DECAY_CONSTANT,
    TG_DECAY_LINEAR,
    TG_DECAY_COSINE,
    TG_DECAY_INVERSE_SQRT, /* lr sqrt(warmup) / sqrt(step) */
    TG_DECAY_WSD,          /* warm-up, stable, then decay over the last wsd_steps */
} tg_decay;

typedef enum tg_wsd { TG_WSD_LINEAR, TG_WSD_COSINE, TG_WSD_EXPONENTIAL, TG_WSD_MINUS_SQRT } tg_wsd;

typedef struct tg_schedule {
    size_t size;
    double lr, min_lr, start_lr; /* start_lr: at step 0 of the warm-up */
    int64_t warmup, steps;       /* steps: at which the decay ends, warm-up included */
    tg_decay decay;
    tg_wsd wsd;
    int64_t wsd_steps;
} tg_schedule;

#define TG_SCHEDULE(...) (&(tg_schedule){.size = sizeof(tg_schedule), __VA_ARGS__})
/* The rate of update number step, from 1 for the first. NaN for an invalid schedule. */
TG_API double tg_schedule_lr(const tg_schedule *s, int64_t step);

#ifdef __cplusplus
}
#endif

#endif
