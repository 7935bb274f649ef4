/* The arithmetic of learning-rate schedules (tapegrad/schedule.h). The device slot prepare (tapegrad/step.h) evaluates
 * them on the device, and tg_schedule_lr on the host. C, C++ and CUDA include this file. */
#ifndef TG_SCHEDULE_ARITHMETIC_H
#define TG_SCHEDULE_ARITHMETIC_H

#include <math.h>

#include <tapegrad/schedule.h>

#ifdef __CUDACC__
#define TG_SCHEDULE_FN static __host__ __device__ inline
#else
#define TG_SCHEDULE_FN static inline
#endif

/* Returns the part of lr - min_lr that is left after the fraction x, in [0, 1], of the decay of a WSD schedule
 * (warmup-stable-decay). */
TG_SCHEDULE_FN double tg_wsd_left(tg_wsd kind, double x) {
    switch (kind) {
    case TG_WSD_LINEAR: return 1 - x;
    case TG_WSD_COSINE: return 0.5 * (cos(acos(-1.0) * x) + 1);
    case TG_WSD_EXPONENTIAL: return 2 * pow(0.5, x) - 1;
    case TG_WSD_MINUS_SQRT: return 1 - sqrt(x);
    }
    return NAN;
}

/* Returns the learning rate of a step after the warm-up, by the rule s->decay. */
TG_SCHEDULE_FN double tg_schedule_decayed(const tg_schedule *s, double step) {
    double x = s->steps > s->warmup ? (step - (double)s->warmup) / (double)(s->steps - s->warmup) : 1, left = NAN;
    switch (s->decay) {
    case TG_DECAY_CONSTANT: return s->lr;
    case TG_DECAY_LINEAR: left = 1 - x; break;
    case TG_DECAY_COSINE: left = 0.5 * (cos(acos(-1.0) * x) + 1); break;
    case TG_DECAY_INVERSE_SQRT: return fmax(s->min_lr, s->lr * sqrt(fmax((double)s->warmup, 1)) / sqrt(fmax(step, 1)));
    case TG_DECAY_WSD: {
        double begin = (double)(s->steps - s->wsd_steps);
        left = step <= begin ? 1 : tg_wsd_left(s->wsd, (step - begin) / (double)s->wsd_steps);
        break;
    }
    }
    return s->min_lr + left * (s->lr - s->min_lr);
}

/* Returns the learning rate of a step >= 0. s must be valid, and the step a whole number below 2^53. */
TG_SCHEDULE_FN double tg_schedule_at(const tg_schedule *s, double step) {
    if (s->warmup > 0 && step <= (double)s->warmup)
        return s->start_lr + (s->lr - s->start_lr) * step / (double)s->warmup;
    if (step > (double)s->steps && s->decay != TG_DECAY_CONSTANT) return s->min_lr;
    return tg_schedule_decayed(s, step);
}

#endif
