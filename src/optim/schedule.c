/* Learning-rate schedules on the host: warm-up, then one of Megatron-Core's decays. kernels/schedule.h has the
 * formulas. */
#include <math.h>

#include "base/options.h"
#include "kernels/schedule.h"
#include "optim/optim.h"

bool tg_schedule_ok(const tg_schedule *s) {
    return s->lr >= 0 && isfinite(s->lr + s->start_lr) && s->decay <= TG_DECAY_WSD &&
           s->wsd <= TG_WSD_MINUS_SQRT && s->min_lr >= 0 && s->min_lr <= s->lr && s->start_lr >= 0 && s->warmup >= 0 &&
           s->steps >= s->warmup && s->wsd_steps >= 0 && s->wsd_steps <= s->steps &&
           (s->decay == TG_DECAY_WSD || (s->wsd_steps == 0 && s->wsd == TG_WSD_LINEAR));
}

double tg_schedule_lr(const tg_schedule *s, int64_t step) {
    tg_schedule whole;
    if (!s || s->size < sizeof s->size || s->size > sizeof *s || step < 0) return NAN;
    tg_options_complete(&whole, &tg_schedule_struct, s);
    return tg_schedule_ok(&whole) ? tg_schedule_at(&whole, (double)step) : NAN;
}
