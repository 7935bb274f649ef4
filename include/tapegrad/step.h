/* An optimizer's step on a device: the arguments of the device slots prepare and adamw. Only programs that define a
 * device need this header; device.h includes it.
 *
 * The numbers that change from step to step are in device memory, as float64. They are the optimizer's state, and the
 * scalars of each group of parameters. The host writes some numbers of the state between steps (tg_optim_set_lr). In
 * each step, slot `prepare` computes the scalars from the state, and updates the state. Then slot `adamw` updates the
 * parameters that Adam and AdamW step; other methods use the slots of ops, such as `apply`. The host decides nothing
 * within a step, so a step can be captured and replayed (capture.h).
 */
#ifndef TAPEGRAD_STEP_H
#define TAPEGRAD_STEP_H

#include <tapegrad/device.h>
#include <tapegrad/schedule.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The greatest number of groups of an optimizer, and the greatest number of sums of squares from which a step computes
 * the norm of its gradients. */
enum { TG_STEP_GROUPS = 32, TG_STEP_SUMS = 16 };

/* The index of each number in the state of an optimizer. */
typedef enum tg_step_state {
    TG_STEP_COUNT,      /* Number of steps, without skipped steps. */
    TG_STEP_MAX_NORM,   /* The norm to which gradients are clipped. 0 means no clipping. */
    TG_STEP_NORM,       /* Norm of the last step's gradients, divided by the loss scale. NaN if it was not measured. */
    TG_STEP_SKIPPED,    /* 1 if the last step was skipped, else 0. */
    TG_STEP_SCALE,      /* The loss scale, by which gradients are divided. 1 if the loss is not scaled. */
    TG_STEP_CLEAN,      /* Number of steps without overflow since the last overflow, or since it reached `interval`. */
    TG_STEP_HYSTERESIS, /* Number of overflows until the scale falls. At 0 or less every overflow lowers the scale. */
    TG_STEP_LR,         /* Learning rate that is set for group 0. The rates of the other groups follow in order. */
    TG_STEP_STATE = TG_STEP_LR + TG_STEP_GROUPS /* the number of numbers in the state */
} tg_step_state;

/* The index of each number in the scalars of a group: the numbers that one step needs for that group. t is the number
 * of the step: TG_STEP_COUNT before the step, plus 1. */
typedef enum tg_step_scalar {
    TG_SCALAR_LR,          /* learning rate of this step */
    TG_SCALAR_COEFFICIENT, /* factor of the gradients: the factor of clipping, divided by the loss scale */
    TG_SCALAR_UNBIAS1,     /* 1 - beta1^t */
    TG_SCALAR_UNBIAS2,     /* 1 - beta2^t */
    TG_SCALAR_SKIP,        /* 0, or another number if the step must change no parameter and no moment */
    TG_SCALAR_FIRST,       /* 1 in the first step, else 0 */
    TG_STEP_SCALARS        /* the number of scalars of a group */
} tg_step_scalar;

/* Arguments of slot prepare, which computes the scalars of each group and updates the state.
 * - Norm: if n_sums > 0, the norm is the square root of the sum of sums[], divided by the loss scale before the step.
 *   If the norm is not finite, the step is skipped; this is an overflow. If n_sums is 0, TG_STEP_NORM becomes NaN.
 * - Clipping: the limit is max_norm, or TG_STEP_MAX_NORM of the state if max_norm is NaN. If n_sums and the limit are
 *   above 0, the factor of clipping is min(1, limit / (norm + 1e-6)); otherwise it is 1.
 * - Learning rate: the group's schedule gives it for the number of this step. A group without a schedule has the rate
 *   in the state. Both are multiplied by lr_scale.
 * - Loss scale: if `dynamic` is set and n_sums > 0, the scale changes by Megatron-Core's rule. An overflow sets
 *   TG_STEP_CLEAN to 0 and subtracts 1 from TG_STEP_HYSTERESIS; if TG_STEP_HYSTERESIS is then 0 or less, the scale
 *   becomes max(scale * backoff, min). After `interval` steps in a row without overflow, the scale is multiplied by
 *   growth (unless the result would be infinite), TG_STEP_CLEAN becomes 0, and TG_STEP_HYSTERESIS becomes `hysteresis`
 *   again.
 * - Errors in data: the step is skipped if the device knows of an error in the step's data (slot poll), or if fault is
 *   not NULL and *fault is not 0, which means that some rank has found such an error. In both cases the loss scale and
 *   its two counters do not change.
 * - A step that is not skipped adds 1 to TG_STEP_COUNT. */
struct tg_prepare_args {
    const double *sums;  /* [n_sums], on the device: they add up to the sum of squares of the gradients */
    /* [1], on the device: the result of slot fault_sum, summed over all ranks. NULL if there is only one rank, or if
     * the device has no fault_sum. */
    const double *fault;
    int n_sums, n_groups;
    double *state;   /* [TG_STEP_STATE], on the device */
    double *scalars; /* [n_groups, TG_STEP_SCALARS], on the device */
    double lr_scale[TG_STEP_GROUPS], beta1[TG_STEP_GROUPS], beta2[TG_STEP_GROUPS]; /* by group */
    tg_schedule schedule[TG_STEP_GROUPS]; /* by group; schedule[i].size 0: group i has no schedule */
    double max_norm; /* 0: no clipping; NaN: the state has the limit */
    bool dynamic;    /* the loss scale changes by the rule above */
    double growth, backoff, min, interval, hysteresis; /* constants of that rule */
};

/* Arguments of slot adamw for one parameter: one step of AdamW (Loshchilov and Hutter, arXiv 1711.05101). The arrays
 * are contiguous and have the same number of elements. master is the float32 copy of a 16-bit parameter. The step
 * changes master, and then copies it, rounded, to param. If master.data is NULL, there is no copy, and the step changes
 * param itself. grad, m and v are float64 if param is, else float32. */
struct tg_adamw_args {
    tg_array param, grad, m, v, master;
    double beta1, beta2, eps, weight_decay; /* eps is added to the square root */
    bool decoupled; /* true: AdamW; false: Adam, which adds weight_decay * parameter to the gradient */
    const double *step; /* [TG_STEP_SCALARS], on the device: the scalars of the parameter's group */
    /* [1], on the device. If *used is 0, no rank has used the parameter; param, master, m and v then keep their values,
     * as in a step that is skipped. NULL if some rank is known to have used it. */
    const float *used;
};

#ifdef __cplusplus
}
#endif

#endif
