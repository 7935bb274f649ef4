/* The part of a step that all methods share. It queues its work on the device and reads nothing back. */
#include <math.h>

#include "autograd/gradients.h"
#include "core/memory/mapping.h"
#include "core/tensor/rehome.h"
#include "kernels/composed.h"
#include "kernels/scalar.h"
#include "optim/optim.h"
#include "placement/placing.h"

/* ---- Errors in data that another rank found ---- */

/* Returns whether another rank may have found an error in its data of which this rank does not know. A device without
 * fault_sum reports such errors at once, so a rank that found one does not reach the step. */
static bool shares_faults(const tg_optim *o) { return o->ctx->run.ops->fault_sum && o->ctx->run.has_peers; }

/* Sets o->fault to 0 if no rank found an error in the step's data, else to another value. */
static tg_status share_faults(tg_optim *o) {
    TG_TRY(o->ctx->run.ops->fill(o->ctx, tg_array_of(o->fault), 0));
    TG_TRY(o->ctx->run.ops->fault_sum(o->ctx, tg_data(o->fault)));
    return tg_grid_sum_world(o->ctx, o->fault);
}

/* ---- The step ---- */

/* Remembers the versions of the parameter's and the master's bytes, to detect later writes. */
static void note_versions(tg_optim_item *it) {
    it->version = it->param->storage->version;
    it->master_version = it->master ? it->master->storage->version : 0;
}

/* Waits for works, such as collectives and copies, that use what the step may write: the parameter, its master and its
 * states. Fails if one of them cannot be written. */
static tg_status settle(const tg_optim_item *it) {
    if (!it->master && !tg_gradient_of(it->param)) return TG_OK;
    TG_TRY(tg_storage_may_change(it->param));
    TG_TRY(tg_range_may_change(it->param, "tg_optim_step"));
    if (it->master) TG_TRY(tg_storage_may_change(it->master));
    for (int i = 0; i < TG_OPTIM_STATES; i++)
        if (it->state[i]) TG_TRY(tg_storage_may_change(it->state[i]));
    return TG_OK;
}

/* Copies a parameter that was written to its master, but keeps those elements of the master that round to the
 * parameter's: after a parameter got its old values again (tg_average_restore), the master has the bits that it had. */
static tg_status read_param(const tg_optim_item *it) {
    static const double none[2] = {0, 0};
    tg_ctx *ctx = it->param->ctx;
    tg_tensor *rounded = tg_temp_empty(ctx, it->param->dtype, it->param->ndim, it->param->shape, TG_MEM_TEMPORARY);
    if (!rounded) return ctx->run.status;
    tg_array master = tg_array_of(it->master), param = tg_array_of(it->param), same = tg_array_of(rounded);
    tg_status s = ctx->run.ops->apply(ctx, TG_FN_id, same, &master, 1, none, false);
    const tg_array both[] = {same, param}, choice[] = {same, master, param};
    if (s == TG_OK) s = ctx->run.ops->apply(ctx, TG_FN_eq, same, both, 2, none, false);
    if (s == TG_OK) s = ctx->run.ops->apply(ctx, TG_FN_where, master, choice, 3, none, false);
    tg_temp_free(rounded);
    return s;
}

/* Notes that a parameter was written. A storage of which only a range was written awaits the ranges of the other ranks
 * now. */
static tg_status wrote(const tg_optim_item *it, const void *site) {
    tg_storage_wrote(it->param->storage, "tg_optim_step", site);
    return tg_range_wrote(it->param, "tg_optim_step", site);
}

/* Makes a parameter and its master agree if one of them was written since the last step. If the master was written, for
 * example by loading a checkpoint, copies it to the parameter. Else copies the parameter to the master (read_param). */
static tg_status agree_with_master(tg_optim_item *it, const void *site) {
    if (!it->master) return TG_OK;
    if (it->master_version != it->master->storage->version) {
        TG_TRY(tg_gradient_put(it->param, it->master, false));
        TG_TRY(wrote(it, site));
    } else if (it->version != it->param->storage->version) {
        TG_TRY(tg_storage_need(it->param->storage, it->param));
        TG_TRY(read_param(it));
    }
    note_versions(it);
    return TG_OK;
}

/* Returns whether the next step needs sums of squares that were not computed yet. */
static bool measures(const tg_optim *o) { return (o->max_norm > 0 || o->scale.size) && !o->summed; }

/* Computes the scalars of the step and the next state on the device. normed: o->sums has the sums of squares. */
static tg_status prepare(tg_optim *o, bool normed, const void *site) {
    const tg_device_ops *ops = o->ctx->run.ops;
    TG_TRY(tg_storage_may_change(o->state));
    tg_prepare_args a = {.sums = tg_data(o->sums),
                         .fault = shares_faults(o) ? tg_data(o->fault) : NULL,
                         .n_sums = normed ? o->n_sums : 0,
                         .n_groups = o->n_groups,
                         .state = tg_data(o->state),
                         .scalars = tg_data(o->scalars),
                         .max_norm = o->summed ? o->next_norm : NAN,
                         .dynamic = tg_optim_is_scale_dynamic(o),
                         .growth = o->scale.growth,
                         .backoff = o->scale.backoff,
                         .min = o->scale.min,
                         .interval = (double)o->scale.interval,
                         .hysteresis = (double)o->scale.hysteresis};
    for (int i = 0; i < o->n_groups; i++) {
        const tg_optim_group_t *g = &o->group[i];
        a.lr_scale[i] = g->lr_scale, a.beta1[i] = g->beta1, a.beta2[i] = g->beta2, a.schedule[i] = g->schedule;
    }
    TG_TRY((ops->prepare ? ops->prepare : tg_composed_prepare)(o->ctx, &a));
    tg_storage_wrote(o->state->storage, "tg_optim_step", site);
    return TG_OK;
}

/* Notes that the parameters were written. Ranges of several parameters may share a storage, so its version is noted
 * after all of them. */
static tg_status note_writes(tg_optim *o, const void *site) {
    for (int i = 0; i < o->n; i++)
        if (tg_gradient_of(o->item[i].param)) TG_TRY(wrote(&o->item[i], site));
    for (int i = 0; i < o->n; i++)
        if (tg_gradient_of(o->item[i].param)) note_versions(&o->item[i]);
    return TG_OK;
}

/* Takes a step. Only the device knows whether the step is skipped, so on the host every step counts as a write of its
 * parameters. */
static tg_status step(tg_optim *o, const void *site) {
    TG_TRY(tg_optim_check(o));
    TG_TRY(tg_optim_check_gradients(o, "tg_optim_step"));
    for (int i = 0; i < o->n; i++) TG_TRY(settle(&o->item[i]));
    for (int i = 0; i < o->n; i++) TG_TRY(agree_with_master(&o->item[i], site));
    bool normed = o->summed || measures(o);
    if (measures(o)) TG_TRY(tg_optim_measure(o, "tg_optim_step"));
    if (shares_faults(o)) TG_TRY(share_faults(o));
    TG_TRY(prepare(o, normed, site));
    TG_TRY(tg_optim_refresh_scale(o, "tg_optim_step", site));
    o->summed = false;
    TG_TRY(o->method->step(o));
    return note_writes(o, site);
}

/* Fails while a step is captured if the optimizer would use sums that tg_optim_clip has computed before: replays would
 * clip by that norm again, and not by the norm of their own gradients. */
static tg_status check_recording(const tg_optim *o, const void *site) {
    if (!o->summed) return TG_OK;
    return tg_recording_refuse(o->ctx, "tg_optim_step",
                               "uses the norm that tg_optim_clip measured before it, which a replay would not measure "
                               "again (tg_optim_set_clip does)",
                               site);
}

tg_status tg_optim_step(tg_optim *o) {
    if (!o) return TG_ERR_ARGUMENT;
    bool collective = o->ctx->run.has_peers && (measures(o) || shares_faults(o));
    tg_status s = tg_mappings_check(o->ctx);
    if (s == TG_OK) s = check_recording(o, TG_SITE);
    if (s == TG_OK) s = step(o, TG_SITE);
    if (s != TG_OK && collective) tg_ctx_skip(o->ctx);
    return s;
}

tg_status tg_optim_zero_grad(tg_optim *o) {
    if (!o) return TG_ERR_ARGUMENT;
    for (int i = 0; i < o->n; i++)
        if (o->item[i].param->serial == o->item[i].ref.serial) tg_gradient_forget(o->item[i].param);
    if (o->summed) o->summed = false; /* the sums were of those gradients; the inert optimizer cannot be written */
    return o->ctx->run.status;
}
