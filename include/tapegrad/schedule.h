/* Learning-rate schedules. A schedule gives the learning rate of each step, as Megatron-Core's OptimizerParamScheduler
 * does. Each group of parameters of an optimizer may have a schedule (optim.h). optim.h includes this header. */
#ifndef TAPEGRAD_SCHEDULE_H
#define TAPEGRAD_SCHEDULE_H

#include <tapegrad/tapegrad.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How the rate falls after step `warmup`. The formula of the rate stands next to each value. `step` is the number of
 * the step, and x runs from 0 at step `warmup` to 1 at step `steps`; x is 1 if both are equal. The other names are
 * fields of tg_schedule. After step `steps` the rate is min_lr, except with TG_DECAY_CONSTANT. */
typedef enum tg_decay {
    TG_DECAY_CONSTANT,     /* lr */
    TG_DECAY_LINEAR,       /* min_lr + (1 - x) * (lr - min_lr) */
    TG_DECAY_COSINE,       /* min_lr + (cos(pi * x) + 1) / 2 * (lr - min_lr) */
    TG_DECAY_INVERSE_SQRT, /* max(min_lr, lr * sqrt(max(warmup, 1)) / sqrt(max(step, 1))) */
    /* Warm-up, stable, decay: the rate is lr until step number (steps - wsd_steps), and then falls to min_lr (see
     * tg_wsd). If that step lies within the warm-up, the rate jumps down after step `warmup`, to the value that the
     * fall has then reached. */
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

/* The default of every field except size is 0. */
typedef struct tg_schedule {
    size_t size;
    /* In the warm-up the rate goes linearly from start_lr at step 0 to lr at step `warmup`; if warmup is 0, start_lr is
     * not used. TG_DECAY_CONSTANT does not use min_lr. All are finite; 0 <= min_lr <= lr, and start_lr >= 0. */
    double lr, min_lr, start_lr;
    /* The warm-up ends at step `warmup`, and the decay at step `steps`; 0 <= warmup <= steps with every decay. */
    int64_t warmup, steps;
    tg_decay decay;
    tg_wsd wsd; /* shape of the final decay of TG_DECAY_WSD; must be 0 (TG_WSD_LINEAR) with any other decay */
    /* Length in steps of the final decay of TG_DECAY_WSD, 0 <= wsd_steps <= steps. Must be 0 with any other decay. */
    int64_t wsd_steps;
} tg_schedule;

#define TG_SCHEDULE_DEFAULTS .size = sizeof(tg_schedule)
#define TG_SCHEDULE(...) (&(tg_schedule){TG_SCHEDULE_DEFAULTS, __VA_ARGS__})

/* Returns the learning rate of step number `step`; an optimizer's first step is number 1. Returns NaN if s is NULL, if
 * a field is out of its range or size is invalid, or if step is negative. */
TG_API double tg_schedule_lr(const tg_schedule *s, int64_t step);

#ifdef __cplusplus
}
#endif

#endif
