/* The tensors of an optimizer on the device (step.h), and the numbers in them that a program sets and reads: learning
 * rates and the count of steps. The host reads a number back only if the caller asks for it. */
#include <math.h>

#include "base/memory/host_memory.h"
#include "optim/optim.h"

/* Creates a tensor of n doubles; NULL after an error. */
static tg_tensor *doubles(tg_ctx *ctx, int64_t n) {
    return tg_ok(ctx) ? tg_owned_empty(ctx, TG_F64, 1, &n, TG_MEM_OPTIMIZER) : NULL;
}

/* Creates a view of n numbers of the state, from index `first` on; NULL after an error. */
static tg_tensor *part_of_state(tg_optim *o, int first, int ndim, int64_t n) {
    if (!o->state) return NULL;
    return tg_owned_new(o->ctx, TG_F64, ndim, &n, NULL, tg_storage_ref(o->state->storage), first);
}

tg_status tg_optim_put(tg_optim *o, int first, const double *v, int n) {
    if (o->ctx->meta) return TG_OK;
    TG_TRY(tg_storage_may_change(o->state));
    double *at = (double *)tg_data(o->state) + first;
    return o->ctx->run.ops->copy(o->ctx, at, v, (size_t)n * sizeof *v, TG_COPY_FROM_HOST);
}

bool tg_optim_read(const tg_optim *o, double s[TG_STEP_STATE], const char *who, const void *site) {
    static const double initial[TG_STEP_STATE] = {[TG_STEP_NORM] = NAN, [TG_STEP_SCALE] = 1};
    memcpy(s, initial, sizeof initial);
    if (!o || !o->state) return false;
    if (o->ctx->meta) return true;
    if (tg_recording_refuse(o->ctx, who, TG_RECORDING_READ, site) == TG_OK &&
        tg_storage_need(o->state->storage, o->state) == TG_OK &&
        o->ctx->run.ops->copy(o->ctx, s, tg_data(o->state), sizeof initial, TG_COPY_TO_HOST) == TG_OK)
        return true;
    memcpy(s, initial, sizeof initial);
    return false;
}

tg_status tg_optim_device_open(tg_optim *o) {
    tg_ctx *ctx = o->ctx;
    const double begin[TG_STEP_STATE] = {[TG_STEP_NORM] = NAN, [TG_STEP_SCALE] = 1};
    const int64_t scalars = TG_STEP_GROUPS * TG_STEP_SCALARS + 1;
    o->list = tg_host_alloc(ctx, (size_t)o->n * sizeof *o->list);
    o->squares = doubles(ctx, o->n);
    o->sums = doubles(ctx, TG_STEP_SUMS);
    o->fault = doubles(ctx, 1); /* on every device, so that device meta counts the same bytes */
    o->state = doubles(ctx, TG_STEP_STATE);
    o->scalars = doubles(ctx, scalars);
    if (tg_ok(ctx)) o->scalars32 = tg_owned_empty(ctx, TG_F32, 1, &scalars, TG_MEM_OPTIMIZER);
    if (tg_ok(ctx)) o->scale32 = tg_owned_empty(ctx, TG_F32, 0, NULL, TG_MEM_OPTIMIZER);
    o->scale_view = part_of_state(o, TG_STEP_SCALE, 0, 1);
    o->scale_state = part_of_state(o, TG_STEP_SCALE, 1, 3);
    if (o->scale_state) o->scale_state->ext->owners = 1;
    TG_TRY(ctx->run.status);
    return tg_optim_put(o, 0, begin, TG_STEP_STATE);
}

void tg_optim_device_close(tg_optim *o) {
    tg_optim_drop_state(o->scale_state);
    tg_tensor *const all[] = {o->scale_view, o->scale32, o->scalars32, o->scalars,
                              o->state,      o->fault,   o->sums,      o->squares};
    for (int i = 0; i < TG_LEN(all); i++)
        if (all[i]) tg_drop(all[i]);
    tg_host_free(o->ctx, o->list, (size_t)o->n * sizeof *o->list);
}

/* ---- Learning rate and steps ---- */

tg_status tg_optim_set_lr(tg_optim *o, double lr) {
    TG_TRY(tg_optim_check(o));
    if (!tg_optim_rate(o->ctx, lr, "tg_optim_set_lr")) return o->ctx->run.status;
    double rate[TG_STEP_GROUPS];
    for (int g = 0; g < o->n_groups; g++) rate[g] = lr;
    TG_TRY(tg_optim_put(o, TG_STEP_LR, rate, o->n_groups));
    for (int g = 0; g < o->n_groups; g++) o->group[g].lr = lr;
    o->lr = lr;
    return TG_OK;
}

tg_status tg_optim_send_rate(tg_optim *o, int group) {
    return tg_optim_put(o, TG_STEP_LR + group, &o->group[group].lr, 1);
}

tg_status tg_optim_set_lr_of(tg_optim *o, int group, double lr) {
    TG_TRY(tg_optim_check(o));
    if (group < 0 || group >= o->n_groups)
        return tg_fail(o->ctx, TG_ERR_ARGUMENT, "tg_optim_set_lr_of: group is %d, expected 0 to %d", group,
                       o->n_groups - 1);
    if (!tg_optim_rate(o->ctx, lr, "tg_optim_set_lr_of")) return o->ctx->run.status;
    if (o->group[group].schedule.size)
        return tg_fail(o->ctx, TG_ERR_STATE,
                       "tg_optim_set_lr_of: group %d has a schedule, which sets its rate; add a group without one",
                       group);
    TG_TRY(tg_optim_put(o, TG_STEP_LR + group, &lr, 1));
    o->group[group].lr = lr;
    return TG_OK;
}

double tg_optim_lr(const tg_optim *o) { return o ? o->lr : NAN; }

tg_status tg_optim_set_steps(tg_optim *o, int64_t steps) {
    TG_TRY(tg_optim_check(o));
    if (steps < 0 || steps > (int64_t)1 << 53) /* the device counts in float64 */
        return tg_fail(o->ctx, TG_ERR_ARGUMENT, "tg_optim_set_steps: steps is %lld, expected 0 to 2^53",
                       (long long)steps);
    return tg_optim_put(o, TG_STEP_COUNT, &(const double){(double)steps}, 1);
}

int64_t tg_optim_steps(const tg_optim *o) {
    double s[TG_STEP_STATE];
    tg_optim_read(o, s, "tg_optim_steps", TG_SITE);
    return (int64_t)s[TG_STEP_COUNT];
}
