/* Learning-rate schedules: they give the learning rate of each step, as Megatron-Core's OptimizerParamScheduler does.
 * An optimizer takes one schedule per group of parameters (optim.h). optim.h includes this header. */
#ifndef TAPEGRAD_SCHEDULE_H
#define TAPEGRAD_SCHEDULE_H

#include <tapegrad/tapegrad.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The rate after the warm-up. Each value has the formula of the rate next to it, in which `step` is the number of the
 * step, and x runs from 0 at the end of the warm-up to 1 at step `steps`. The other names are fields of tg_schedule.
 * After step `steps` the rate is min_lr, except with TG_DECAY_CONSTANT. */
typedef enum tg_decay {
    TG_DECAY_CONSTANT,     /* lr */
    TG_DECAY_LINEAR,       /* min_lr + (1 - x) * (lr - min_lr) */
    TG_DECAY_COSINE,       /* min_lr + (cos(pi * x) + 1) / 2 * (lr - min_lr) */
    TG_DECAY_INVERSE_SQRT, /* max(min_lr, lr * sqrt(max(warmup, 1)) / sqrt(step)) */
    /* Warm-up, stable, decay: the rate is lr until step steps - wsd_steps, and then falls to min_lr (see tg_wsd). */
    TG_DECAY_WSD,
} tg_decay;

/* The final decay of TG_DECAY_WSD. Here x runs from 0 to 1 over the last wsd_steps steps, and the rate is
 * min_lr + f * (lr - min_lr), with f given next to each value. */
typedef enum tg_wsd {
    TG_WSD_LINEAR,      /* 1 - x */
    TG_WSD_COSINE,      /* (cos(pi * x) + 1) / 2 */
    TG_WSD_EXPONENTIAL, /* 2 * 0.5^x - 1 */
    TG_WSD_MINUS_SQRT   /* 1 - sqrt(x) */
} tg_wsd;

typedef struct tg_schedule {
    size_t size;
    /* In the warm-up the rate goes linearly from start_lr at step 0 to lr at step `warmup`. min_lr is the rate after
     * the last step of the decay. 0 <= min_lr <= lr, and start_lr >= 0. */
    double lr, min_lr, start_lr;
    /* 0 <= warmup <= steps. The decay ends at step `steps`. Steps are counted from 0, so `steps` includes the
     * warm-up. */
    int64_t warmup, steps;
    tg_decay decay;
    tg_wsd wsd; /* shape of the final decay of TG_DECAY_WSD; with any other decay leave it 0 (TG_WSD_LINEAR) */
    /* Length in steps of the final decay of TG_DECAY_WSD, 0 <= wsd_steps <= steps. Must be 0 with any other decay. */
    int64_t wsd_steps;
} tg_schedule;

#define TG_SCHEDULE_DEFAULTS .size = sizeof(tg_schedule)
#define TG_SCHEDULE(...) (&(tg_schedule){TG_SCHEDULE_DEFAULTS, __VA_ARGS__})

/* Returns the learning rate of step number `step`; an optimizer's first step is number 1. Returns NaN if s is NULL or
 * invalid, or if step is negative. */
TG_API double tg_schedule_lr(const tg_schedule *s, int64_t step);

#ifdef __cplusplus
}
#endif

#endif
