/* Learning-rate schedules: warm-up, then one of Megatron-Core's decays. */
#include <math.h>

#include "optim/optim.h"

static bool valid(const tg_schedule *s) {
    return s && s->size == sizeof *s && s->lr >= 0 && isfinite(s->lr + s->start_lr) && s->decay <= TG_DECAY_WSD &&
           s->wsd <= TG_WSD_MINUS_SQRT && s->min_lr >= 0 && s->min_lr <= s->lr && s->start_lr >= 0 && s->warmup >= 0 &&
           s->steps >= s->warmup && s->wsd_steps >= 0 && s->wsd_steps <= s->steps;
}

/* The share of lr - min_lr that is left when x of the WSD's last part has gone. */
static double wsd_left(tg_wsd kind, double x) {
    switch (kind) {
    case TG_WSD_LINEAR: return 1 - x;
    case TG_WSD_COSINE: return 0.5 * (cos(acos(-1.0) * x) + 1);
    case TG_WSD_EXPONENTIAL: return 2 * pow(0.5, x) - 1;
    case TG_WSD_MINUS_SQRT: return 1 - sqrt(x);
    }
    return NAN;
}

static double decayed(const tg_schedule *s, double step) {
    double x = s->steps > s->warmup ? (step - (double)s->warmup) / (double)(s->steps - s->warmup) : 1, left = NAN;
    switch (s->decay) {
    case TG_DECAY_CONSTANT: return s->lr;
    case TG_DECAY_LINEAR: left = 1 - x; break;
    case TG_DECAY_COSINE: left = 0.5 * (cos(acos(-1.0) * x) + 1); break;
    case TG_DECAY_INVERSE_SQRT: return fmax(s->min_lr, s->lr * sqrt(fmax((double)s->warmup, 1)) / sqrt(fmax(step, 1)));
    case TG_DECAY_WSD: {
        double begin = (double)(s->steps - s->wsd_steps);
        left = step <= begin ? 1 : wsd_left(s->wsd, (step - begin) / (double)s->wsd_steps);
        break;
    }
    }
    return s->min_lr + left * (s->lr - s->min_lr);
}

double tg_schedule_lr(const tg_schedule *s, int64_t step) {
    if (!valid(s) || step < 0) return NAN;
    if (s->warmup > 0 && step <= s->warmup)
        return s->start_lr + (s->lr - s->start_lr) * (double)step / (double)s->warmup;
    if (step > s->steps && s->decay != TG_DECAY_CONSTANT) return s->min_lr;
    return decayed(s, (double)step);
}
