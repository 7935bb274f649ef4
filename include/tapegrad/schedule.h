/* Learning-rate schedules: they give the learning rate of each step, as Megatron-Core's OptimizerParamScheduler does.
 * An optimizer takes one schedule per group of parameters (optim.h). optim.h includes this header. */
#ifndef TAPEGRAD_SCHEDULE_H
#define TAPEGRAD_SCHEDULE_H

#include <tapegrad/tapegrad.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The rate after the warm-up, as a formula of x and the fields of tg_schedule. x runs from 0 at the end of the warm-up
 * to 1 at step `steps`. After step `steps` the rate is min_lr, except with TG_DECAY_CONSTANT. */
typedef enum tg_decay {
    TG_DECAY_CONSTANT,     /* lr */
    TG_DECAY_LINEAR,       /* min_lr + (1 - x) * (lr - min_lr) */
    TG_DECAY_COSINE,       /* min_lr + (cos(pi * x) + 1) / 2 * (lr - min_lr) */
    TG_DECAY_INVERSE_SQRT, /* max(min_lr, lr * sqrt(max(warmup, 1)) / sqrt(step)) */
    TG_DECAY_WSD,          /* lr, and over the last wsd_steps steps a decay from lr to min_lr (see tg_wsd) */
} tg_decay;

/* The decay of TG_DECAY_WSD: the rate is min_lr + f * (lr - min_lr) after a fraction x of wsd_steps. The comments give
 * f. */
typedef enum tg_wsd {
    TG_WSD_LINEAR,      /* 1 - x */
    TG_WSD_COSINE,      /* (cos(pi * x) + 1) / 2 */
    TG_WSD_EXPONENTIAL, /* 2 * 0.5^x - 1 */
    TG_WSD_MINUS_SQRT   /* 1 - sqrt(x) */
} tg_wsd;

typedef struct tg_schedule {
    size_t size;
    /* In the warm-up the rate goes linearly from start_lr at step 0 to lr at step `warmup`. 0 <= min_lr <= lr, and
     * start_lr >= 0. */
    double lr, min_lr, start_lr;
    int64_t warmup, steps; /* 0 <= warmup <= steps. The decay ends at step `steps`, counted from the start. */
    tg_decay decay;
    tg_wsd wsd;        /* form of the decay of TG_DECAY_WSD; must be 0 with any other decay */
    int64_t wsd_steps; /* steps of the decay of TG_DECAY_WSD, 0 to steps; must be 0 with any other decay */
} tg_schedule;

#define TG_SCHEDULE(...) (&(tg_schedule){.size = sizeof(tg_schedule), __VA_ARGS__})

/* Returns the learning rate of step number `step`; an optimizer's first step is number 1. Returns NaN if s is NULL or
 * invalid, or if step is negative. */
TG_API double tg_schedule_lr(const tg_schedule *s, int64_t step);

#ifdef __cplusplus
}
#endif

#endif
