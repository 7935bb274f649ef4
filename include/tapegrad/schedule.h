/* Learning-rate schedules: functions that give the learning rate of each step, with the shapes of Megatron-Core. An
 * optimizer takes one per group of parameters (optim.h). */
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
    TG_DECAY_INVERSE_SQRT, /* lr * sqrt(warmup) / sqrt(step) */
    TG_DECAY_WSD,          /* warm-up, then constant, then a decay over the last wsd_steps */
} tg_decay;

typedef enum tg_wsd { TG_WSD_LINEAR, TG_WSD_COSINE, TG_WSD_EXPONENTIAL, TG_WSD_MINUS_SQRT } tg_wsd;

typedef struct tg_schedule {
    size_t size;
    double lr, min_lr, start_lr; /* start_lr: rate at step 0 of the warm-up. 0 <= min_lr <= lr. */
    int64_t warmup, steps;       /* in steps. The decay ends at step `steps`, which counts the warm-up too. */
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
