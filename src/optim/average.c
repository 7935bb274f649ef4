/* Averages of parameters: updates on the device, and evaluation with the averages in place of the parameters. */
#include "optim/average.h"

#include <math.h>

#include "autograd/gradients.h"
#include "base/memory/host_memory.h"
#include "core/tensor/rehome.h"
#include "kernels/scalar.h"
#include "optim/optim.h"

/* The object that a failed creation returns. */
static const tg_average inert = {.ctx = (tg_ctx *)&tg_dead_ctx};

static tg_status enter(const tg_average *a) { return a ? a->ctx->run.status : TG_ERR_ARGUMENT; }

static tg_status check_items(const tg_average *a, const char *who) {
    for (int i = 0; i < a->n; i++) TG_TRY(tg_optim_check_alive(a->ctx, a->item[i].ref, i, "averages", who));
    return TG_OK;
}

/* ---- Creation ---- */

/* Creates a tensor of zeros that tg_drop does not release. As a buffer it keeps its placement after a write, so it
 * counts as equal on all ranks. */
static tg_tensor *state_tensor(tg_ctx *ctx, tg_dtype dtype, int ndim, const int64_t *shape) {
    tg_tensor *x = tg_ok(ctx) ? tg_owned_empty(ctx, dtype, ndim, shape, TG_MEM_OPTIMIZER) : NULL;
    if (!x) return NULL;
    x->ext->owners = 1;
    x->ext->buffer = true;
    ctx->run.ops->fill(ctx, tg_array_of(x), 0);
    return x;
}

static tg_status open(tg_average *a, tg_tensor *const *params) {
    static const int64_t one = 1;
    tg_ctx *ctx = a->ctx;
    for (int i = 0; i < a->n && tg_ok(ctx); i++) {
        tg_tensor *p = params[i];
        a->item[i] = (tg_average_item){.param = p, .ref = tg_ref_of(p)};
        a->item[i].average = state_tensor(ctx, tg_accumulate_dtype((tg_dtype)p->dtype), p->ndim, p->shape);
    }
    a->updates = state_tensor(ctx, TG_F64, 1, &one);
    a->weight = state_tensor(ctx, TG_F64, 1, &one);
    a->weight32 = state_tensor(ctx, TG_F32, 1, &one);
    return ctx->run.status;
}

static tg_average *make(tg_ctx *ctx, tg_tensor *const *params, int n, bool mean, double decay, const char *who) {
    if (!tg_ok(ctx) || tg_optim_check_params(ctx, params, n, who) != TG_OK) return (tg_average *)&inert;
    size_t bytes = sizeof(tg_average) + (size_t)n * sizeof(tg_average_item);
    tg_average *a = tg_host_alloc(ctx, bytes);
    if (!a) return (tg_average *)&inert;
    *a = (tg_average){.ctx = ctx, .mean = mean, .decay = decay, .n = n, .bytes = bytes};
    if (open(a, params) == TG_OK) return a;
    tg_average_free(a);
    return (tg_average *)&inert;
}

tg_average *tg_ema_new(tg_ctx *ctx, tg_tensor *const *params, int n, double decay) {
    if (tg_ok(ctx) && !(decay >= 0 && decay < 1))
        tg_fail(ctx, TG_ERR_ARGUMENT, "tg_ema_new: decay is %g, expected a number in [0, 1)", decay);
    return make(ctx, params, n, false, decay, "tg_ema_new");
}

tg_average *tg_swa_new(tg_ctx *ctx, tg_tensor *const *params, int n) {
    return make(ctx, params, n, true, 0, "tg_swa_new");
}

/* Drops the copies of the parameters that tg_average_apply has made. */
static void drop_own(tg_average *a) {
    for (int i = 0; i < a->n; i++) {
        if (a->item[i].own) tg_drop(a->item[i].own);
        a->item[i].own = NULL;
    }
    a->applied = false;
}

void tg_average_free(tg_average *a) {
    if (!a || a == &inert) return;
    drop_own(a);
    for (int i = 0; i < a->n; i++) tg_optim_drop_state(a->item[i].average);
    tg_optim_drop_state(a->updates);
    tg_optim_drop_state(a->weight);
    tg_optim_drop_state(a->weight32);
    tg_host_strfree(a->ctx, a->name);
    tg_host_free(a->ctx, a, a->bytes);
}

/* ---- Updates ---- */

static tg_status map(const tg_average *a, tg_formula f, const tg_tensor *out, const tg_tensor *in, double p, double q) {
    const tg_array x = tg_array_of(in);
    return a->ctx->run.ops->apply(a->ctx, f, tg_array_of(out), &x, 1, (const double[2]){p, q}, false);
}

/* Computes the weight of the parameters in this update, and counts it. The weight is 1 in the first update; later it is
 * 1 - decay of an EMA, and 1 / (number of the update) of a mean. */
static tg_status count(const tg_average *a) {
    if (a->mean) {
        TG_TRY(map(a, TG_FN_affine, a->weight, a->updates, 1, 1));
        TG_TRY(map(a, TG_FN_reciprocal, a->weight, a->weight, 0, 0));
    } else {
        TG_TRY(map(a, TG_FN_clamp, a->weight, a->updates, 0, 1));
        TG_TRY(map(a, TG_FN_affine, a->weight, a->weight, -a->decay, 1));
    }
    TG_TRY(map(a, TG_FN_id, a->weight32, a->weight, 0, 0));
    return map(a, TG_FN_affine, a->updates, a->updates, 1, 1);
}

static tg_status update(const tg_average *a, const tg_average_item *it, const void *site) {
    const tg_tensor *weight = it->average->dtype == TG_F64 ? a->weight : a->weight32;
    TG_TRY(tg_storage_need(it->param->storage, it->param));
    tg_array average = tg_array_of(it->average);
    const tg_array in[] = {average, tg_array_of(it->param), tg_array_spread(weight, 0, &average)};
    TG_TRY(a->ctx->run.ops->apply(a->ctx, TG_FN_lerp, average, in, 3, (const double[2]){0, 0}, false));
    tg_storage_wrote(it->average->storage, "tg_average_update", site);
    return TG_OK;
}

/* Waits for copies that use what an update writes. */
static tg_status settle(const tg_average *a) {
    for (int i = 0; i < a->n; i++) TG_TRY(tg_storage_may_change(a->item[i].average));
    return tg_storage_may_change(a->updates);
}

tg_status tg_average_update(tg_average *a) {
    TG_TRY(enter(a));
    TG_TRY(check_items(a, "tg_average_update"));
    if (a->applied)
        return tg_fail(a->ctx, TG_ERR_STATE,
                       "tg_average_update: the parameters are the averages; call tg_average_restore first");
    TG_TRY(settle(a));
    TG_TRY(count(a));
    for (int i = 0; i < a->n; i++) TG_TRY(update(a, &a->item[i], TG_SITE));
    tg_storage_wrote(a->updates->storage, "tg_average_update", TG_SITE);
    return TG_OK;
}

/* Returns the number of updates; 0 on an error, and on device meta, which has no numbers. */
static int64_t read_updates(const tg_average *a, const char *who, const void *site) {
    double n = 0;
    if (tg_recording_refuse(a->ctx, who, TG_RECORDING_READ, site) != TG_OK || a->ctx->meta) return 0;
    if (tg_storage_need(a->updates->storage, a->updates) != TG_OK) return 0;
    if (a->ctx->run.ops->copy(a->ctx, &n, tg_data(a->updates), sizeof n, TG_COPY_TO_HOST) != TG_OK) return 0;
    if (n >= 0 && n <= 0x1p53 && n == rint(n)) return (int64_t)n;
    tg_fail(a->ctx, TG_ERR_DATA,
            "%s: the state tensor \"%s\" is %g, expected a whole number from 0 to 2^53; write the number of updates "
            "to it",
            who, TG_AVERAGE_UPDATES_NAME, n);
    return 0;
}

int64_t tg_average_updates(const tg_average *a) {
    return enter(a) == TG_OK ? read_updates(a, "tg_average_updates", TG_SITE) : 0;
}

/* ---- Evaluation with the averages ---- */

/* Creates the copies of all parameters, before anything is changed. */
static tg_status keep_own(tg_average *a) {
    for (int i = 0; i < a->n; i++) {
        tg_average_item *it = &a->item[i];
        TG_TRY(tg_storage_need(it->param->storage, it->param));
        it->own =
            tg_owned_empty(a->ctx, (tg_dtype)it->param->dtype, it->param->ndim, it->param->shape, TG_MEM_OPTIMIZER);
        if (!it->own) return a->ctx->run.status;
        TG_TRY(tg_gradient_put(it->own, it->param, false));
    }
    return TG_OK;
}

/* Fails if a parameter must not be written now. */
static tg_status check_writable(const tg_average *a, const char *who) {
    for (int i = 0; i < a->n; i++) {
        TG_TRY(tg_storage_may_change(a->item[i].param));
        TG_TRY(tg_range_may_change(a->item[i].param, who));
    }
    return TG_OK;
}

/* Writes the averages, or the copies if `own`, to the parameters. Also after an error, which may leave some parameters
 * written, tg_average_restore can write the copies. */
static tg_status put(tg_average *a, bool own, const char *who, const void *site) {
    tg_status s = TG_OK;
    for (int i = 0; i < a->n && s == TG_OK; i++) {
        tg_average_item *it = &a->item[i];
        tg_storage_wrote(it->param->storage, who, site); /* a write that fails may have written some elements */
        s = tg_range_wrote(it->param, who, site);
        if (s == TG_OK) s = tg_gradient_put(it->param, own ? it->own : it->average, false);
    }
    for (int i = 0; i < a->n; i++) a->item[i].version = a->item[i].param->storage->version; /* they may share one */
    return s;
}

tg_status tg_average_apply(tg_average *a) {
    TG_TRY(enter(a));
    TG_TRY(check_items(a, "tg_average_apply"));
    int64_t updates = read_updates(a, "tg_average_apply", TG_SITE);
    TG_TRY(a->ctx->run.status);
    if (a->applied)
        return tg_fail(a->ctx, TG_ERR_STATE,
                       "tg_average_apply: the averages are applied already; call "
                       "tg_average_restore first");
    if (updates == 0 && !a->ctx->meta)
        return tg_fail(a->ctx, TG_ERR_STATE,
                       "tg_average_apply: there was no tg_average_update, so there are no averages");
    tg_status s = check_writable(a, "tg_average_apply");
    if (s == TG_OK) s = keep_own(a);
    if (s != TG_OK) return drop_own(a), s;
    a->applied = true;
    s = put(a, false, "tg_average_apply", TG_SITE);
    if (s != TG_OK && put(a, true, "tg_average_apply", TG_SITE) == TG_OK) drop_own(a);
    return s;
}

static tg_status need_applied(const tg_average *a, const char *who) {
    TG_TRY(enter(a));
    TG_TRY(check_items(a, who));
    if (a->applied) return TG_OK;
    return tg_fail(a->ctx, TG_ERR_STATE, "%s: the averages are not applied; call tg_average_apply first", who);
}

tg_status tg_average_restore(tg_average *a) {
    TG_TRY(need_applied(a, "tg_average_restore"));
    for (int i = 0; i < a->n; i++) {
        char what[160];
        if (a->item[i].version == a->item[i].param->storage->version) continue;
        tg_describe(a->item[i].param, what, sizeof what);
        return tg_fail(a->ctx, TG_ERR_STATE,
                       "tg_average_restore: parameter %d, %s, was written after tg_average_apply; call "
                       "tg_average_commit to keep what it has now",
                       i, what);
    }
    TG_TRY(check_writable(a, "tg_average_restore"));
    TG_TRY(put(a, true, "tg_average_restore", TG_SITE));
    drop_own(a);
    return TG_OK;
}

tg_status tg_average_commit(tg_average *a) {
    TG_TRY(need_applied(a, "tg_average_commit"));
    drop_own(a);
    return TG_OK;
}

/* ---- State ---- */

int tg_average_state_count(const tg_average *a) { return a && a->n ? a->n + 1 : 0; }

tg_tensor *tg_average_state(tg_average *a, int i, const char **name) {
    if (!a) return tg_inert(&tg_dead_ctx);
    if (i < 0 || i >= tg_average_state_count(a)) {
        tg_fail(a->ctx, TG_ERR_ARGUMENT, "tg_average_state: index %d is out of range; there are %d state tensors", i,
                tg_average_state_count(a));
        return tg_inert(a->ctx);
    }
    if (i == a->n) {
        if (name) *name = TG_AVERAGE_UPDATES_NAME;
        return a->updates;
    }
    const char *text = tg_host_strset(a->ctx, &a->name, "%s.average", tg_name(a->item[i].param));
    if (name) *name = text ? text : "";
    return text ? a->item[i].average : tg_inert(a->ctx);
}
