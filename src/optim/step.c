/* The step that all methods share: the norm, clipping, the scale of the loss, and the numbers on the device
 * (step.h). The host reads a number back only if the caller asks for it. */
#include <math.h>

#include <tapegrad/ops.h>

#include "autograd/gradients.h"
#include "tape/tape.h"
#include "base/host_memory.h"
#include "core/capture.h"
#include "kernels/composed.h"
#include "kernels/scalar.h"
#include "optim/optim.h"
#include "placement/placing.h"

/* ---- The tensors on the device ---- */

static tg_tensor *doubles(tg_ctx *ctx, int64_t n) {
    return tg_ok(ctx) ? tg_owned_empty(ctx, TG_F64, 1, &n, TG_MEM_OPTIMIZER) : NULL;
}

/* Returns n numbers of the state, from index `first` on, as a tensor. */
static tg_tensor *part_of_state(tg_optim *o, int first, int ndim, int64_t n) {
    if (!o->state) return NULL;
    return tg_owned_new(o->ctx, TG_F64, ndim, &n, NULL, tg_storage_ref(o->state->storage), first);
}

/* Sends n numbers of the state to the device. */
static tg_status put(tg_optim *o, int first, const double *v, int n) {
    if (o->ctx->meta) return TG_OK;
    TG_TRY(tg_storage_may_change(o->state));
    double *at = (double *)tg_data(o->state) + first;
    return o->ctx->run.ops->copy(o->ctx, at, v, (size_t)n * sizeof *v, TG_COPY_FROM_HOST);
}

/* Reads the state, also after an error. Returns false if it could not be read; s is then that of an optimizer
 * without steps. */
static bool read_state(const tg_optim *o, double s[TG_STEP_STATE]) {
    static const double before[TG_STEP_STATE] = {[TG_STEP_NORM] = NAN, [TG_STEP_SCALE] = 1};
    memcpy(s, before, sizeof before);
    if (!o || !o->state) return false;
    if (o->ctx->meta) return true;
    if (tg_storage_need(o->state->storage, o->state) == TG_OK &&
        o->ctx->run.ops->copy(o->ctx, s, tg_data(o->state), sizeof before, TG_COPY_TO_HOST) == TG_OK)
        return true;
    memcpy(s, before, sizeof before);
    return false;
}

tg_status tg_optim_device_open(tg_optim *o) {
    tg_ctx *ctx = o->ctx;
    const double begin[TG_STEP_STATE] = {[TG_STEP_NORM] = NAN, [TG_STEP_SCALE] = 1};
    const int64_t scalars = TG_STEP_GROUPS * TG_STEP_SCALARS;
    o->list = tg_host_alloc(ctx, (size_t)o->n * sizeof *o->list);
    o->squares = doubles(ctx, o->n);
    o->sums = doubles(ctx, TG_STEP_SUMS);
    if (ctx->run.ops->fault_sum) o->fault = doubles(ctx, 1);
    o->state = doubles(ctx, TG_STEP_STATE);
    o->scalars = doubles(ctx, scalars);
    if (tg_ok(ctx)) o->scalars32 = tg_owned_empty(ctx, TG_F32, 1, &scalars, TG_MEM_OPTIMIZER);
    if (tg_ok(ctx)) o->scale32 = tg_owned_empty(ctx, TG_F32, 0, NULL, TG_MEM_OPTIMIZER);
    o->scale_view = part_of_state(o, TG_STEP_SCALE, 0, 1);
    o->scale_state = part_of_state(o, TG_STEP_SCALE, 1, 3);
    if (o->scale_state) o->scale_state->ext->owners = 1;
    TG_TRY(ctx->run.status);
    return put(o, 0, begin, TG_STEP_STATE);
}

void tg_optim_device_close(tg_optim *o) {
    tg_optim_drop_state(o->scale_state);
    tg_tensor *const all[] = {o->scale_view, o->scale32, o->scalars32, o->scalars,
                              o->state,      o->fault,   o->sums,      o->squares};
    for (int i = 0; i < TG_LEN(all); i++)
        if (all[i]) tg_drop(all[i]);
    tg_host_free(o->ctx, o->list, (size_t)o->n * sizeof *o->list);
}

/* ---- The norm ---- */

/* The places of the sums of squares in o->squares: gradients that are sharded over the same axes are adjacent. */
typedef struct square_sets {
    uint32_t mask[TG_STEP_SUMS];
    int64_t count[TG_STEP_SUMS], first[TG_STEP_SUMS];
    int n;
} square_sets;

/* Returns the set of an item, and creates it if needed; -1: there are too many. */
static int set_of(square_sets *s, const tg_optim_item *it) {
    uint32_t mask = it->param->place ? it->param->place->varying : 0;
    int i = 0;
    while (i < s->n && s->mask[i] != mask) i++;
    if (i == TG_STEP_SUMS) return -1;
    if (i == s->n) s->mask[s->n++] = mask;
    return i;
}

static tg_status find_sets(tg_optim *o, square_sets *s) {
    for (int i = 0; i < o->n; i++) {
        int k = set_of(s, &o->item[i]);
        if (k < 0)
            return tg_fail(o->ctx, TG_ERR_UNSUPPORTED,
                           "the gradient norm: parameters are sharded over more than %d different sets of axes",
                           TG_STEP_SUMS);
        s->count[k]++;
    }
    for (int k = 1; k < s->n; k++) s->first[k] = s->first[k - 1] + s->count[k - 1];
    return TG_OK;
}

/* Returns n elements, from `first` on, of a 1-D float64 tensor. */
static tg_array slice(const tg_tensor *x, int64_t first, const int64_t *n) {
    static const int64_t dense = 1;
    tg_array a = tg_array_of(x);
    a.data = a.data ? (double *)a.data + first : NULL;
    a.shape = n, a.stride = &dense, a.numel = *n;
    return a;
}

/* Writes the sum of squares of one gradient to an element of o->squares. */
static tg_status square_one(tg_optim *o, const tg_tensor *g, int64_t at) {
    int64_t one[TG_MAX_DIMS];
    for (int d = 0; d < TG_MAX_DIMS; d++) one[d] = 1;
    tg_array sum = slice(o->squares, at, one);
    sum.stride = one, sum.ndim = g->ndim;
    return o->ctx->run.ops->reduce(o->ctx, TG_SUMSQ, sum, tg_array_of(g), 1, false);
}

/* Adds the sums of this stage to one number, and sums that over all stages, because other stages may have other
 * sets. */
static tg_status sum_stages(tg_optim *o) {
    static const int64_t one = 1;
    const tg_device_ops *ops = o->ctx->run.ops;
    const uint32_t stages = 1u << TG_PP;
    int64_t n = o->n_sums;
    tg_array first = slice(o->sums, 0, &one), sum = slice(o->squares, 0, &one);
    TG_TRY(ops->reduce(o->ctx, TG_SUM, sum, slice(o->sums, 0, &n), 1, false));
    TG_TRY(ops->map(o->ctx, TG_FN_id, first, &sum, 1, (const double[2]){0}, false));
    o->n_sums = 1;
    return tg_grid_sum(o->ctx, &stages, o->sums, 1);
}

/* Computes the sums of squares over all parameters, each counted once. Shards are summed over the axes that shard
 * them; a parameter that is the same on every rank of an axis counts once there. */
static tg_status measure(tg_optim *o) {
    static const int64_t one = 1;
    tg_ctx *ctx = o->ctx;
    square_sets s = {.n = 0};
    int64_t done[TG_STEP_SUMS] = {0};
    TG_TRY(find_sets(o, &s));
    TG_TRY(ctx->run.ops->fill(ctx, tg_array_of(o->squares), 0));
    for (int i = 0; i < o->n; i++) {
        const tg_tensor *g = tg_optim_gradient(&o->item[i]);
        int k = set_of(&s, &o->item[i]);
        if (g) TG_TRY(square_one(o, g, s.first[k] + done[k]));
        done[k]++;
    }
    for (int k = 0; k < s.n; k++)
        TG_TRY(ctx->run.ops->reduce(ctx, TG_SUM, slice(o->sums, k, &one), slice(o->squares, s.first[k], &s.count[k]), 1,
                                false));
    if (tg_grid_axes(ctx)) TG_TRY(tg_grid_sum(ctx, s.mask, o->sums, s.n));
    o->n_sums = s.n;
    return tg_grid_of(ctx)->size[TG_PP] > 1 ? sum_stages(o) : TG_OK;
}

/* ---- Errors in data that another rank found ---- */

/* Whether other ranks may know of an error in data that this rank's device does not know of. A device without
 * fault_sum reports such errors at once, and its rank takes no step. */
static bool shares_faults(const tg_optim *o) { return o->fault && tg_grid_has_peers(o->ctx); }

/* Leaves 0 in o->fault if no rank found an error in the step's data. */
static tg_status share_faults(tg_optim *o) {
    TG_TRY(o->ctx->run.ops->fill(o->ctx, tg_array_of(o->fault), 0));
    TG_TRY(o->ctx->run.ops->fault_sum(o->ctx, tg_data(o->fault)));
    return tg_grid_sum_world(o->ctx, o->fault);
}

/* ---- The step ---- */

tg_tensor *tg_optim_gradient(const tg_optim_item *it) {
    return it->param->numel ? tg_gradient_of(it->param) : NULL;
}

static void note_versions(tg_optim_item *it) {
    it->version = it->param->storage->version;
    it->master_version = it->master ? it->master->storage->version : 0;
}

/* Waits for collectives that use what the step may write: the parameter, its master and its states. */
static tg_status settle(const tg_optim *o, const tg_optim_item *it) {
    if (!it->master && !tg_optim_gradient(it)) return TG_OK;
    TG_TRY(tg_storage_may_change(it->param));
    if (it->master) TG_TRY(tg_storage_may_change(it->master));
    for (int i = 0; i < o->method->n_states; i++) TG_TRY(tg_storage_may_change(it->state[i]));
    return TG_OK;
}

/* Makes a parameter and its master equal if one of them was written since the last step. A master that was written,
 * for example from a checkpoint, decides; otherwise the parameter does. */
static tg_status agree_with_master(tg_optim_item *it) {
    if (!it->master) return TG_OK;
    if (it->master_version != it->master->storage->version) {
        TG_TRY(tg_gradient_put(it->param, it->master, false));
        tg_storage_wrote(it->param->storage, "tg_optim_step", TG_SITE);
    } else if (it->version != it->param->storage->version) {
        TG_TRY(tg_gradient_put(it->master, it->param, false));
    }
    note_versions(it);
    return TG_OK;
}

/* Fails if a parameter was dropped, or if a gradient is discarded, not whole, or still deferred. */
static tg_status check_gradients(tg_optim *o, const char *who) {
    TG_TRY(tg_optim_check_items(o, who));
    for (int i = 0; i < o->n; i++) {
        tg_tensor *g = tg_gradient_of(o->item[i].param);
        TG_TRY(tg_gradient_need_drained(o->item[i].param, who));
        if (!g) continue;
        TG_TRY(tg_gradient_need_whole(o->item[i].param, who));
        TG_TRY(tg_storage_need(g->storage, g));
    }
    return TG_OK;
}

/* Whether the next step needs sums of squares that were not computed yet. */
static bool measures(const tg_optim *o) { return (o->max_norm > 0 || o->scale.size) && !o->summed; }

static tg_status prepare(tg_optim *o, bool normed) {
    const tg_device_ops *ops = o->ctx->run.ops;
    TG_TRY(tg_storage_may_change(o->state));
    tg_prepare_args a = {.sums = tg_data(o->sums),
                         .fault = shares_faults(o) ? tg_data(o->fault) : NULL,
                         .n_sums = normed ? o->n_sums : 0,
                         .n_groups = o->n_groups,
                         .state = tg_data(o->state),
                         .scalars = tg_data(o->scalars),
                         .max_norm = o->summed ? o->next_norm : NAN,
                         .dynamic = tg_optim_scale_moves(o),
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
    tg_storage_wrote(o->state->storage, "tg_optim_step", TG_SITE);
    return TG_OK;
}

/* Updates the scale in float32 if the state was written since; and always while a step is captured, because it may
 * be written before a replay. Backward from a loss scaled by the previous value then fails with TG_ERR_VERSION. */
static tg_status refresh_scale(tg_optim *o, const char *by, const void *site) {
    uint32_t version = o->state->storage->version;
    if (!o->scale.size || (o->scale_version == version && !o->ctx->capture)) return TG_OK;
    TG_TRY(tg_storage_need(o->state->storage, o->state));
    tg_array scale = tg_array_of(o->scale_view);
    TG_TRY(o->ctx->run.ops->map(o->ctx, TG_FN_id, tg_array_of(o->scale32), &scale, 1, (const double[2]){0}, false));
    tg_storage_wrote(o->scale32->storage, by, site);
    o->scale_version = version;
    return TG_OK;
}

/* The device decides whether to skip the step; on the host every step counts as a write of its parameters. */
static tg_status step(tg_optim *o) {
    TG_TRY(tg_optim_check(o));
    TG_TRY(check_gradients(o, "tg_optim_step"));
    for (int i = 0; i < o->n; i++) TG_TRY(settle(o, &o->item[i]));
    for (int i = 0; i < o->n; i++) TG_TRY(agree_with_master(&o->item[i]));
    bool normed = o->summed || measures(o);
    if (measures(o)) TG_TRY(measure(o));
    if (shares_faults(o)) TG_TRY(share_faults(o));
    TG_TRY(prepare(o, normed));
    TG_TRY(refresh_scale(o, "tg_optim_step", TG_SITE));
    o->summed = false;
    TG_TRY(o->method->step(o));
    for (int i = 0; i < o->n; i++) {
        if (!tg_optim_gradient(&o->item[i])) continue;
        tg_storage_wrote(o->item[i].param->storage, "tg_optim_step", TG_SITE);
        note_versions(&o->item[i]);
    }
    return TG_OK;
}

tg_status tg_optim_step(tg_optim *o) {
    if (!o) return TG_ERR_ARGUMENT;
    bool meets = tg_grid_has_peers(o->ctx) && (measures(o) || shares_faults(o));
    tg_status s = step(o);
    if (s != TG_OK && meets) tg_ctx_skip(o->ctx);
    return s;
}

tg_status tg_optim_zero_grad(tg_optim *o) {
    if (!o) return TG_ERR_ARGUMENT;
    for (int i = 0; i < o->n; i++)
        if (o->item[i].param->serial == o->item[i].ref.serial) tg_gradient_forget(o->item[i].param);
    if (o->summed) o->summed = false; /* the sums were of those gradients */
    return o->ctx->run.status;
}

/* ---- Clipping ---- */

static tg_status clip(tg_optim *o, double max_norm, double *norm, const void *site) {
    double sums[TG_STEP_SUMS] = {0}, state[TG_STEP_STATE], total = 0;
    TG_TRY(tg_optim_check(o));
    TG_TRY(tg_recording_refuse(o->ctx, "tg_optim_clip", TG_RECORDING_READ, site));
    TG_TRY(check_gradients(o, "tg_optim_clip"));
    if (!(max_norm >= 0))
        return tg_fail(o->ctx, TG_ERR_ARGUMENT, "tg_optim_clip: max_norm is %g, expected 0 (no clipping) or more",
                       max_norm);
    TG_TRY(measure(o));
    if (!o->ctx->meta)
        TG_TRY(
            o->ctx->run.ops->copy(o->ctx, sums, tg_data(o->sums), (size_t)o->n_sums * sizeof *sums, TG_COPY_TO_HOST));
    if (!read_state(o, state)) return o->ctx->run.status;
    for (int i = 0; i < o->n_sums; i++) total += sums[i];
    *norm = sqrt(total) / state[TG_STEP_SCALE];
    o->summed = true;
    o->next_norm = max_norm;
    return TG_OK;
}

double tg_optim_clip(tg_optim *o, double max_norm) {
    double norm = NAN;
    if (clip(o, max_norm, &norm, TG_SITE) != TG_OK && o && tg_grid_has_peers(o->ctx)) tg_ctx_skip(o->ctx);
    return norm;
}

tg_status tg_optim_set_clip(tg_optim *o, double max_norm) {
    TG_TRY(tg_optim_check(o));
    if (!(max_norm >= 0))
        return tg_fail(o->ctx, TG_ERR_ARGUMENT, "tg_optim_set_clip: max_norm is %g, expected 0 (no clipping) or more",
                       max_norm);
    TG_TRY(put(o, TG_STEP_MAX_NORM, &max_norm, 1));
    o->max_norm = max_norm;
    return TG_OK;
}

double tg_optim_norm(const tg_optim *o) {
    double s[TG_STEP_STATE];
    return read_state(o, s) ? s[TG_STEP_NORM] : NAN;
}

/* ---- The scale of the loss ---- */

static tg_status scale_opts(tg_ctx *ctx, const tg_loss_scale *given, tg_loss_scale *s) {
    TG_TRY(tg_options(ctx, s, sizeof *s, given, "tg_optim_set_scale: the options"));
    if (s->fixed && (s->growth != 0 || s->backoff != 0 || s->min != 0 || s->interval != 0 || s->hysteresis != 0))
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_optim_set_scale: fixed is set, but growth %g, backoff %g, min %g, interval %lld and "
                       "hysteresis %lld are of a scale that moves; leave them 0",
                       s->growth, s->backoff, s->min, (long long)s->interval, (long long)s->hysteresis);
    if (s->initial == 0) s->initial = 0x1p32;
    if (s->growth == 0) s->growth = 2;
    if (s->backoff == 0) s->backoff = 0.5;
    if (s->min == 0) s->min = 1;
    if (s->interval == 0) s->interval = 1000;
    if (s->hysteresis == 0) s->hysteresis = 2;
    if (s->initial > 0 && isfinite(s->initial) && s->growth > 1 && isfinite(s->growth) && s->backoff > 0 &&
        s->backoff < 1 && s->min > 0 && (s->fixed || s->min <= s->initial) && s->interval > 0 && s->hysteresis > 0)
        return TG_OK;
    return tg_fail(ctx, TG_ERR_ARGUMENT,
                   "tg_optim_set_scale: initial %g, growth %g, backoff %g, min %g, interval %lld, hysteresis %lld; "
                   "expected finite numbers above 0, growth above 1, backoff below it, and min at most initial",
                   s->initial, s->growth, s->backoff, s->min, (long long)s->interval, (long long)s->hysteresis);
}

tg_status tg_optim_set_scale(tg_optim *o, const tg_loss_scale *given) {
    tg_loss_scale s = {.initial = 1};
    TG_TRY(tg_optim_check(o));
    if (given) TG_TRY(scale_opts(o->ctx, given, &s));
    const double begin[3] = {s.initial, 0, (double)s.hysteresis};
    TG_TRY(put(o, TG_STEP_SCALE, begin, 3));
    tg_storage_wrote(o->state->storage, "tg_optim_set_scale", TG_SITE);
    o->scale = s;
    o->scale.size = given ? sizeof s : 0;
    TG_TRY(refresh_scale(o, "tg_optim_set_scale", TG_SITE));
    return TG_OK;
}

double tg_optim_scale(const tg_optim *o) {
    double s[TG_STEP_STATE];
    return read_state(o, s) ? s[TG_STEP_SCALE] : NAN;
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
    if (refresh_scale(o, "tg_scale_loss", TG_SITE) != TG_OK) return tg_inert(ctx);
    if (loss->dtype == TG_BF16 || loss->dtype == TG_F16) loss = tg_cast(t, loss, TG_F32);
    return tg_mul(t, loss, loss->dtype == TG_F64 ? o->scale_view : o->scale32);
}

/* ---- Learning rate and steps ---- */

tg_status tg_optim_set_lr(tg_optim *o, double lr) {
    TG_TRY(tg_optim_check(o));
    if (!tg_optim_rate(o->ctx, lr, "tg_optim_set_lr")) return o->ctx->run.status;
    double rate[TG_STEP_GROUPS];
    for (int g = 0; g < o->n_groups; g++) rate[g] = lr;
    TG_TRY(put(o, TG_STEP_LR, rate, o->n_groups));
    for (int g = 0; g < o->n_groups; g++) o->group[g].lr = lr;
    o->lr = lr;
    return TG_OK;
}

tg_status tg_optim_send_rate(tg_optim *o, int group) { return put(o, TG_STEP_LR + group, &o->group[group].lr, 1); }

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
    TG_TRY(put(o, TG_STEP_LR + group, &lr, 1));
    o->group[group].lr = lr;
    return TG_OK;
}

double tg_optim_lr(const tg_optim *o) { return o ? o->lr : NAN; }

tg_status tg_optim_set_steps(tg_optim *o, int64_t steps) {
    TG_TRY(tg_optim_check(o));
    if (steps < 0)
        return tg_fail(o->ctx, TG_ERR_ARGUMENT, "tg_optim_set_steps: steps is %lld, expected 0 or more",
                       (long long)steps);
    return put(o, TG_STEP_COUNT, &(const double){(double)steps}, 1);
}

int64_t tg_optim_steps(const tg_optim *o) {
    double s[TG_STEP_STATE];
    read_state(o, s);
    return (int64_t)s[TG_STEP_COUNT];
}
