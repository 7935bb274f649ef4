/* Learning-rate schedules: functions that give the learning rate of each step, those of Megatron-Core's
 * OptimizerParamScheduler. An optimizer takes one per group of parameters (optim.h). */
#ifndef TAPEGRAD_SCHEDULE_H
#define TAPEGRAD_SCHEDULE_H

#include <tapegrad/tapegrad.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The rate after the warm-up. x runs from 0 at the end of the warm-up to 1 at step `steps`; after that the rate is
 * min_lr, except with CONSTANT. */
typedef enum tg_decay {
    TG_DECAY_CONSTANT,     /* lr */
    TG_DECAY_LINEAR,       /* min_lr + (1 - x) (lr - min_lr) */
    TG_DECAY_COSINE,       /* min_lr + (cos(pi x) + 1) / 2 (lr - min_lr) */
    TG_DECAY_INVERSE_SQRT, /* lr * sqrt(warmup) / sqrt(step), at least min_lr; warmup 0 counts as 1 */
    TG_DECAY_WSD,          /* warm-up, then lr, then a decay to min_lr over the last wsd_steps */
} tg_decay;

/* The part of lr - min_lr that is left when the decay of TG_DECAY_WSD has run for a fraction x of wsd_steps. */
typedef enum tg_wsd {
    TG_WSD_LINEAR,      /* 1 - x */
    TG_WSD_COSINE,      /* (cos(pi x) + 1) / 2 */
    TG_WSD_EXPONENTIAL, /* 2 * 0.5^x - 1 */
    TG_WSD_MINUS_SQRT   /* 1 - sqrt(x) */
} tg_wsd;

typedef struct tg_schedule {
    size_t size;
    /* The rate rises linearly from start_lr at step 0 to lr at step `warmup`. 0 <= min_lr <= lr; start_lr >= 0. */
    double lr, min_lr, start_lr;
    int64_t warmup, steps; /* 0 <= warmup <= steps. The decay ends at step `steps`, which counts the warm-up too. */
    tg_decay decay;
    tg_wsd wsd;        /* form of the decay of TG_DECAY_WSD; 0 with the others */
    int64_t wsd_steps; /* length of the decay of TG_DECAY_WSD, 0 to steps; 0 with the others */
} tg_schedule;

#define TG_SCHEDULE(...) (&(tg_schedule){.size = sizeof(tg_schedule), __VA_ARGS__})

/* Returns the learning rate of update number `step`; the first update is number 1. Returns NaN if the schedule is
 * invalid or NULL, and if step is negative. */
TG_API double tg_schedule_lr(const tg_schedule *s, int64_t step);

#ifdef __cplusplus
}
#endif

#endif
