/* The scale of the loss: its options, its value in float32, and tg_scale_loss. The step on the device changes the scale
 * (kernels/prepare.h). */
#include <math.h>

#include <tapegrad/ops.h>

#include "base/options.h"
#include "core/capture/capture.h"
#include "kernels/scalar.h"
#include "optim/optim.h"
#include "tape/tape.h"

tg_status tg_optim_refresh_scale(tg_optim *o, const char *by, const void *site) {
    uint32_t version = o->state->storage->version;
    if (!o->scale.size || (o->scale_version == version && !o->ctx->capture)) return TG_OK;
    TG_TRY(tg_storage_need(o->state->storage, o->state));
    tg_array scale = tg_array_of(o->scale_view);
    TG_TRY(o->ctx->run.ops->apply(o->ctx, TG_FN_id, tg_array_of(o->scale32), &scale, 1, (const double[2]){0}, false));
    tg_storage_wrote(o->scale32->storage, by, site);
    o->scale_version = version;
    return TG_OK;
}

/* Returns whether the options that say how a scale changes have their defaults. */
static bool changes_as_usual(const tg_loss_scale *s) {
    const tg_loss_scale usual = {TG_LOSS_SCALE_DEFAULTS};
    return s->growth == usual.growth && s->backoff == usual.backoff && s->min == usual.min &&
           s->interval == usual.interval && s->hysteresis == usual.hysteresis;
}

/* Copies the given options to *s and checks them. */
static tg_status scale_opts(tg_ctx *ctx, const tg_loss_scale *given, tg_loss_scale *s) {
    TG_TRY(tg_options(ctx, s, &tg_loss_scale_struct, given, "tg_optim_set_scale: the options"));
    if (s->fixed && !changes_as_usual(s))
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_optim_set_scale: fixed is set, but growth %g, backoff %g, min %g, interval %lld and "
                       "hysteresis %lld apply only to a scale that changes; leave them at their defaults",
                       s->growth, s->backoff, s->min, (long long)s->interval, (long long)s->hysteresis);
    if (s->initial > 0 && isfinite(s->initial) && s->growth > 1 && isfinite(s->growth) && s->backoff > 0 &&
        s->backoff < 1 && s->min > 0 && (s->fixed || s->min <= s->initial) && s->interval > 0 && s->hysteresis > 0)
        return TG_OK;
    return tg_fail(ctx, TG_ERR_ARGUMENT,
                   "tg_optim_set_scale: initial %g, growth %g, backoff %g, min %g, interval %lld, hysteresis %lld; "
                   "expected finite numbers above 0, growth above 1, backoff below 1, and min at most initial",
                   s->initial, s->growth, s->backoff, s->min, (long long)s->interval, (long long)s->hysteresis);
}

tg_status tg_optim_set_scale(tg_optim *o, const tg_loss_scale *given) {
    tg_loss_scale s = {.initial = 1};
    TG_TRY(tg_optim_check(o));
    if (given) TG_TRY(scale_opts(o->ctx, given, &s));
    const double begin[3] = {s.initial, 0, (double)s.hysteresis};
    TG_TRY(tg_optim_put(o, TG_STEP_SCALE, begin, 3));
    tg_storage_wrote(o->state->storage, "tg_optim_set_scale", TG_SITE);
    o->scale = s;
    o->scale.size = sizeof s;
    tg_status copied = tg_optim_refresh_scale(o, "tg_optim_set_scale", TG_SITE); /* also if given is NULL */
    if (!given) o->scale.size = 0;
    return copied;
}

double tg_optim_scale(const tg_optim *o) {
    double s[TG_STEP_STATE];
    return tg_optim_read(o, s, "tg_optim_scale", TG_SITE) ? s[TG_STEP_SCALE] : NAN;
}

tg_tensor *tg_scale_loss(tg_tape *t, tg_tensor *loss, tg_optim *o) {
    if (tg_tape_check_with(t, &loss, 1, "tg_scale_loss") != TG_OK || tg_check(t->ctx, loss, "tg_scale_loss") != TG_OK)
        return tg_tape_inert(t, &loss, 1);
    tg_ctx *ctx = t->ctx;
    if (!o || o->ctx != ctx) {
        tg_fail(ctx, o ? TG_ERR_HANDLE : TG_ERR_ARGUMENT, "tg_scale_loss: the optimizer is %s",
                o ? "of another context" : "NULL");
        return tg_inert(ctx);
    }
    if (!o->scale.size) return loss;
    if (tg_optim_refresh_scale(o, "tg_scale_loss", TG_SITE) != TG_OK) return tg_inert(ctx);
    if (loss->dtype == TG_BF16 || loss->dtype == TG_F16) loss = tg_cast(t, loss, TG_F32);
    return tg_mul(t, loss, loss->dtype == TG_F64 ? o->scale_view : o->scale32);
}
