/* Learning-rate schedules: the rate of each step, in Megatron-Core's shapes. */
#ifndef TAPEGRAD_SCHEDULE_H
#define TAPEGRAD_SCHEDULE_H

#include <tapegrad/tapegrad.h>

#ifdef __cplusplus
extern "C" {
#endif

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
    double lr, min_lr, start_lr; /* start_lr: rate at step 0 of the warm-up. 0 <= min_lr <= lr. */
    int64_t warmup, steps;       /* in steps; the decay ends at step `steps`, which counts the warm-up too */
    tg_decay decay;
    tg_wsd wsd;
    int64_t wsd_steps; /* 0 to steps */
} tg_schedule;

#define TG_SCHEDULE(...) (&(tg_schedule){.size = sizeof(tg_schedule), __VA_ARGS__})

/* Returns the learning rate of update number `step`, which is 1 for the first. NaN for an invalid schedule, NULL
 * included, and for a negative step. */
TG_API double tg_schedule_lr(const tg_schedule *s, int64_t step);

#ifdef __cplusplus
}
#endif

#endif
