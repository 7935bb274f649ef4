/* The arithmetic of slot prepare (tg_prepare_args), the same on every device. C, C++ and CUDA include this file. */
#ifndef TG_PREPARE_H
#define TG_PREPARE_H

#include <math.h>

#include <tapegrad/step.h>

#include "kernels/schedule.h"

#ifdef __CUDACC__
#define TG_PREPARE_FN static __host__ __device__ inline
#else
#define TG_PREPARE_FN static inline
#endif

/* Updates the dynamic loss scale after a step, by the rule in tg_prepare_args. `overflow` tells whether the gradients
 * of the step overflowed. */
TG_PREPARE_FN void tg_prepare_scale(const tg_prepare_args *a, bool overflow) {
    double *s = a->state, grown = s[TG_STEP_SCALE] * a->growth, less = s[TG_STEP_SCALE] * a->backoff;
    if (overflow) {
        s[TG_STEP_CLEAN] = 0;
        s[TG_STEP_HYSTERESIS] -= 1;
        if (s[TG_STEP_HYSTERESIS] <= 0) s[TG_STEP_SCALE] = less > a->min ? less : a->min;
        return;
    }
    s[TG_STEP_CLEAN] += 1;
    if (s[TG_STEP_CLEAN] < a->interval) return;
    s[TG_STEP_CLEAN] = 0;
    s[TG_STEP_HYSTERESIS] = a->hysteresis;
    if (grown - grown == 0) s[TG_STEP_SCALE] = grown; /* an infinite scale could never fall again */
}

/* Returns the learning rate of step number t for group g. */
TG_PREPARE_FN double tg_prepare_rate(const tg_prepare_args *a, int g, double t) {
    const tg_schedule *s = &a->schedule[g];
    return (s->size ? tg_schedule_at(s, t) : a->state[TG_STEP_LR + g]) * a->lr_scale[g];
}

/* Computes the scalars of every group and the state after the step. If `found` is true, this device knows of an error
 * in the step's data, and the step is skipped. */
TG_PREPARE_FN void tg_prepare_step(const tg_prepare_args *a, bool found) {
    double *s = a->state, scale = s[TG_STEP_SCALE], sum = 0, norm = NAN, clip = 1, t = s[TG_STEP_COUNT] + 1;
    double limit = a->max_norm == a->max_norm ? a->max_norm : s[TG_STEP_MAX_NORM];
    for (int i = 0; i < a->n_sums; i++) sum += a->sums[i];
    if (a->n_sums) norm = sqrt(sum) / scale;
    bool bad = found || (a->fault && *a->fault != 0), overflow = a->n_sums && !(norm - norm == 0);
    bool skip = overflow || bad;
    if (a->n_sums && !overflow && limit > 0 && limit < norm + 1e-6) clip = limit / (norm + 1e-6);
    for (int g = 0; g < a->n_groups; g++) {
        double *w = a->scalars + g * TG_STEP_SCALARS;
        w[TG_SCALAR_LR] = tg_prepare_rate(a, g, t);
        w[TG_SCALAR_COEFFICIENT] = clip / scale;
        w[TG_SCALAR_UNBIAS1] = 1 - pow(a->beta1[g], t);
        w[TG_SCALAR_UNBIAS2] = 1 - pow(a->beta2[g], t);
        w[TG_SCALAR_SKIP] = skip ? 1 : 0;
        w[TG_SCALAR_FIRST] = t == 1 ? 1 : 0;
    }
    if (a->dynamic && a->n_sums && !bad) tg_prepare_scale(a, overflow);
    if (!skip) s[TG_STEP_COUNT] = t;
    s[TG_STEP_NORM] = norm;
    s[TG_STEP_SKIPPED] = skip ? 1 : 0;
}

#endif
