/* An optimizer's step on a device: the arguments of the slots prepare and adamw. device.h includes this header, for
 * those who write a device.
 *
 * The numbers that change from step to step are on the device, in float64: the optimizer's state, and the scalars of
 * each group of parameters. The host writes the state between steps (tg_optim_set_lr and others). prepare computes the
 * scalars from the state, and the state after the step. The host decides nothing within a step, so a step can be
 * captured and replayed.
 */
#ifndef TAPEGRAD_STEP_H
#define TAPEGRAD_STEP_H

#include <tapegrad/device.h>
#include <tapegrad/schedule.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Limits: the groups of an optimizer, and the sums of squares that one step adds up. */
enum { TG_STEP_GROUPS = 32, TG_STEP_SUMS = 16 };

/* The state of an optimizer: the index of each number. */
typedef enum tg_step_state {
    TG_STEP_COUNT,      /* Steps taken. A skipped step does not count. */
    TG_STEP_MAX_NORM,   /* The norm above which gradients are clipped. 0: they are not. */
    TG_STEP_NORM,       /* Norm of the last step's gradients, without the loss scale. NaN: it was not measured. */
    TG_STEP_SKIPPED,    /* 1 if the last step was skipped. */
    TG_STEP_SCALE,      /* The loss scale, by which gradients are divided. 1: the loss is not scaled. */
    TG_STEP_CLEAN,      /* Steps without overflow since the last overflow, or since the scale grew. */
    TG_STEP_HYSTERESIS, /* Overflows until the scale falls. 0 or less: it falls with each. */
    TG_STEP_LR,         /* Learning rate of group 0; those of the other groups follow. */
    TG_STEP_STATE = TG_STEP_LR + TG_STEP_GROUPS /* how many numbers these are */
} tg_step_state;

/* The scalars of a group: what one step needs of it. */
typedef enum tg_step_scalar {
    TG_SCALAR_LR,          /* learning rate of this step */
    TG_SCALAR_COEFFICIENT, /* factor of the gradients: clips them and divides by the loss scale */
    TG_SCALAR_UNBIAS1,     /* 1 - beta1^t */
    TG_SCALAR_UNBIAS2,     /* 1 - beta2^t */
    TG_SCALAR_SKIP,        /* not 0: the step changes nothing */
    TG_SCALAR_FIRST,       /* 1 in the first step */
    TG_STEP_SCALARS         /* how many numbers these are */
} tg_step_scalar;

/* The preparation of one step. It computes the scalars of each group, and the state after the step.
 * - Norm: with n_sums > 0 it is the root of their sum, divided by the loss scale. A step whose norm is not finite is
 *   skipped. max_norm, unless it is NaN, replaces the state's limit in this step.
 * - Rate: that of the group's schedule, evaluated at the number of this step; or the state's, for a group without one.
 *   It is multiplied by lr_scale.
 * - dynamic: the loss scale follows what the step found (Megatron-Core's rule). An overflow sets clean to 0 and takes
 *   one from hysteresis; if that leaves 0 or less, the scale becomes max(scale backoff, min). After `interval` clean
 *   steps in a row the scale is multiplied by growth, and hysteresis is restored.
 * - Data errors: a device that knows of an error in the step's data (slot poll) skips the step; so it does if *fault is
 *   not 0, which means that another rank has found one. Neither counts as an overflow. */
struct tg_prepare_args {
    const double *sums;  /* [n_sums], on the device: sums of squares that together are those of all gradients */
    const double *fault; /* [1], on the device: what slot fault_sum left, summed over all ranks; NULL: no other rank */
    int n_sums, n_groups;
    double *state; /* [TG_STEP_STATE], on the device */
    double *scalars; /* [n_groups, TG_STEP_SCALARS], on the device */
    double lr_scale[TG_STEP_GROUPS], beta1[TG_STEP_GROUPS], beta2[TG_STEP_GROUPS];
    tg_schedule schedule[TG_STEP_GROUPS]; /* size 0: the group has none */
    double max_norm;
    bool dynamic;
    double growth, backoff, min, interval, hysteresis;
};

/* One AdamW step (Loshchilov and Hutter, arXiv 1711.05101) of one parameter. The arrays are contiguous and have the
 * same number of elements. master is the float32 (float64) copy that is stepped; if its data is NULL, the parameter
 * itself is stepped. */
struct tg_adamw_args {
    tg_array param, grad, m, v, master;
    double beta1, beta2, eps, weight_decay;
    bool decoupled; /* AdamW; false: Adam with the decay added to the gradient */
    const double *step; /* [TG_STEP_SCALARS], on the device: the scalars of the parameter's group */
};

#ifdef __cplusplus
}
#endif

#endif
