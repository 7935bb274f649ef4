/* Learning-rate schedules on the host: warm-up, then one of Megatron-Core's decays. kernels/schedule.h has the
 * formulas. */
#include <math.h>

#include "kernels/schedule.h"
#include "optim/optim.h"

bool tg_schedule_ok(const tg_schedule *s) {
    return s && s->size == sizeof *s && s->lr >= 0 && isfinite(s->lr + s->start_lr) && s->decay <= TG_DECAY_WSD &&
           s->wsd <= TG_WSD_MINUS_SQRT && s->min_lr >= 0 && s->min_lr <= s->lr && s->start_lr >= 0 && s->warmup >= 0 &&
           s->steps >= s->warmup && s->wsd_steps >= 0 && s->wsd_steps <= s->steps &&
           (s->decay == TG_DECAY_WSD || (s->wsd_steps == 0 && s->wsd == TG_WSD_LINEAR));
}

double tg_schedule_lr(const tg_schedule *s, int64_t step) {
    return tg_schedule_ok(s) && step >= 0 ? tg_schedule_at(s, (double)step) : NAN;
}
