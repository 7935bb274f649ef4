/* An optimiser's step on a device: what the slots prepare and adamw get (device.h).
 *
 * What changes from step to step lies on the device, in float64: the optimiser's state, and the word of each group. The
 * host writes the state between steps (tg_optim_set_lr and the like); prepare makes of it the words, and the state
 * after the step. So a step decides nothing on the host, and can be captured and replayed.
 */
#ifndef TAPEGRAD_STEP_H
#define TAPEGRAD_STEP_H

#include <tapegrad/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The state of an optimiser. */
typedef enum tg_step_state {
    TG_STEP_COUNT,      /* steps taken; one that is skipped does not count */
    TG_STEP_LR,         /* learning rate */
    TG_STEP_MAX_NORM,   /* the norm above which gradients are clipped; 0: they are not */
    TG_STEP_NORM,       /* of the last step's gradients, without the loss scale; NaN: it was not measured */
    TG_STEP_SKIPPED,    /* the last step: 1 where it was skipped */
    TG_STEP_SCALE,      /* of the loss, by which gradients are divided; 1: it is not scaled */
    TG_STEP_CLEAN,      /* steps without overflow since the last one with it, or since the scale grew */
    TG_STEP_HYSTERESIS, /* overflows, from here, until the scale falls; 0 or less: with each */
    TG_STEP_STATE       /* how many words these are */
} tg_step_state;

/* The word of a group. */
typedef enum tg_step_word {
    TG_WORD_LR,
    TG_WORD_COEFFICIENT, /* that gradients are multiplied with: clips them, and takes the loss scale out */
    TG_WORD_UNBIAS1,     /* 1 - beta1^t */
    TG_WORD_UNBIAS2,     /* 1 - beta2^t */
    TG_WORD_SKIP,        /* not 0: the step changes nothing */
    TG_WORD_FIRST,       /* 1 in the first step */
    TG_STEP_WORD         /* how many numbers these are */
} tg_step_word;

enum { TG_STEP_GROUPS = 8, TG_STEP_SUMS = 16 };

/* One step's preparation. With n_sums the norm is the root of their sum, divided by the scale; a step whose norm is not
 * finite is skipped. max_norm, where it is not NaN, is this step's limit in place of the state's. dynamic: the scale
 * follows what the step found (Megatron-Core's rule): an overflow sets clean to 0 and takes one from hysteresis, and
 * where that leaves 0 or less the scale becomes max(scale backoff, min); `interval` clean steps in a row make it
 * scale growth, and hysteresis what it was. A device that knows of an error in the step's data (poll) skips the step
 * besides, and leaves the scale alone. */
struct tg_prepare_args {
    const double *sums; /* [n_sums], on the device: sums of squares that together are those of all gradients */
    int n_sums, n_groups;
    double *state; /* [TG_STEP_STATE], on the device */
    double *words; /* [n_groups, TG_STEP_WORD], on the device */
    double lr_scale[TG_STEP_GROUPS];
    double beta1, beta2, max_norm;
    bool dynamic;
    double growth, backoff, min, interval, hysteresis;
};

/* One AdamW step (Loshchilov and Hutter, arXiv 1711.05101) of one parameter; arrays contiguous, of one numel.
 * master is the float32 (float64) copy that is stepped; data NULL: the parameter itself. step is the group's word. */
struct tg_adamw_args {
    tg_array param, grad, m, v, master;
    double beta1, beta2, eps, weight_decay;
    bool decoupled; /* AdamW; false: Adam with the decay added to the gradient */
    const double *step; /* on the device */
};

#ifdef __cplusplus
}
#endif

#endif
