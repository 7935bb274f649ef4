/* Optimizers: creation and release, and the checks of parameters and gradients. */
#include <math.h>

#include "autograd/gradients.h"
#include "base/memory/host_memory.h"
#include "base/options.h"
#include "optim/optim.h"

/* The optimizer that a failed creation returns; every call on it does nothing. */
static const tg_optim inert = {.ctx = (tg_ctx *)&tg_dead_ctx};

tg_status tg_optim_check(const tg_optim *o) {
    if (!o) return TG_ERR_ARGUMENT;
    return o->ctx->run.status;
}

/* ---- Creation ---- */

tg_status tg_optim_check_params(tg_ctx *ctx, tg_tensor *const *params, int n, const char *who) {
    if (n <= 0 || !params)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: n is %d and params is %p, expected an array of 1 or more parameters",
                       who, n, (const void *)params);
    for (int i = 0; i < n; i++) {
        TG_TRY(tg_check(ctx, params[i], who));
        char what[160];
        tg_describe(params[i], what, sizeof what);
        if (params[i]->tape || !(params[i]->flags & TG_F_REQUIRES_GRAD))
            return tg_fail(ctx, TG_ERR_STATE,
                           "%s: parameter %d, %s, must be a leaf of the context that needs a gradient", who, i, what);
        if (!(params[i]->flags & TG_F_CONTIGUOUS))
            return tg_fail(ctx, TG_ERR_STATE, "%s: parameter %d, %s, must be contiguous", who, i, what);
        for (int j = 0; j < i; j++)
            if (params[j] == params[i])
                return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: parameter %d, %s, is given twice", who, i, what);
    }
    return TG_OK;
}

/* Creates a tensor of zeros in the shape of parameter p. tg_drop has no effect on it; tg_optim_drop_state frees it. */
static tg_tensor *state_tensor(tg_tensor *p, tg_dtype dtype) {
    tg_ctx *ctx = p->ctx;
    tg_tensor *s = tg_owned_empty(ctx, dtype, p->ndim, p->shape, TG_MEM_OPTIMIZER);
    if (!s) return NULL;
    s->ext->owners = 1;
    ctx->run.ops->fill(ctx, tg_array_of(s), 0);
    return s;
}

/* Creates the state of parameter p, and the master weights if p has 16 bits. */
static tg_status begin_item(tg_optim *o, tg_optim_item *it, tg_tensor *p) {
    tg_dtype wide = tg_accumulate_dtype(p->dtype);
    const tg_optim_method *main = o->method, *other = main->other ? main->other(o, p) : NULL;
    *it = (tg_optim_item){.method = other ? other : main, .param = p, .ref = tg_ref_of(p), .group = other ? 1 : 0};
    tg_optim_hold(p);
    for (int i = 0; i < TG_OPTIM_STATES; i++) {
        if (!it->method->state_name[i] || (it->method->keeps && !it->method->keeps(o, i))) continue;
        if (!(it->state[i] = state_tensor(p, wide))) return o->ctx->run.status;
    }
    if (wide != p->dtype) {
        it->master = state_tensor(p, wide);
        if (!it->master) return o->ctx->run.status;
        TG_TRY(tg_storage_need(p->storage, p));
        TG_TRY(tg_gradient_put(it->master, p, false));
    }
    it->version = it->param->storage->version;
    it->master_version = it->master ? it->master->storage->version : 0;
    return TG_OK;
}

/* Creates work memory for the parameter whose step needs most. */
static tg_status begin_work(tg_optim *o) {
    int64_t most = 0;
    for (int i = 0; i < o->n; i++) {
        const tg_optim_item *it = &o->item[i];
        int64_t bytes = it->method->work ? (int64_t)it->method->work(it->param) : 0;
        if (bytes > most) most = bytes;
    }
    if (most && !(o->work = tg_owned_empty(o->ctx, TG_U8, 1, &most, TG_MEM_OPTIMIZER))) return o->ctx->run.status;
    return TG_OK;
}

static tg_status begin(tg_optim *o, tg_tensor *const *params) {
    TG_TRY(tg_optim_device_open(o));
    for (int i = 0; i < o->n; i++) TG_TRY(begin_item(o, &o->item[i], params[i]));
    TG_TRY(begin_work(o));
    return tg_optim_set_lr(o, o->lr);
}

tg_status tg_optim_check_undivided(tg_ctx *ctx, tg_tensor *const *params, int n, const char *who) {
    char what[160];
    for (int i = 0; i < n; i++) {
        if (!params[i]->ext || !params[i]->ext->range) continue;
        tg_describe(params[i], what, sizeof what);
        return tg_fail(ctx, TG_ERR_STATE,
                       "%s: parameter %d, %s, is divided over ranks by tg_flat_new; give the optimizer the leaves that "
                       "tg_flat_leaves returns",
                       who, i, what);
    }
    return TG_OK;
}

tg_optim *tg_optim_make(tg_ctx *ctx, const tg_optim *like, tg_tensor *const *params, int n, const char *who) {
    if (!tg_ok(ctx) || !tg_optim_rate(ctx, like->lr, who) || tg_optim_check_params(ctx, params, n, who) != TG_OK ||
        tg_optim_check_undivided(ctx, params, n, who) != TG_OK)
        return (tg_optim *)&inert;
    size_t bytes = sizeof(tg_optim) + (size_t)n * sizeof(tg_optim_item);
    tg_optim *o = tg_host_alloc(ctx, bytes);
    if (!o) return (tg_optim *)&inert;
    *o = *like;
    o->ctx = ctx, o->n = n, o->bytes = bytes;
    for (int g = 0; g < o->n_groups; g++) o->group[g].lr = o->lr;
    if (begin(o, params) == TG_OK) return o;
    tg_optim_free(o);
    return (tg_optim *)&inert;
}

bool tg_optim_rate(tg_ctx *ctx, double lr, const char *who) {
    if (lr >= 0 && !isinf(lr)) return true;
    if (tg_ok(ctx)) tg_fail(ctx, TG_ERR_ARGUMENT, "%s: lr is %g, expected a finite number, 0 or more", who, lr);
    return false;
}

tg_status tg_optim_check_numbers(tg_ctx *ctx, const tg_optim_group_t *g, const char *who) {
    if (g->beta1 >= 0 && g->beta1 < 1 && g->beta2 >= 0 && g->beta2 < 1 && g->eps >= 0 && g->weight_decay >= 0 &&
        isfinite(g->eps + g->weight_decay))
        return TG_OK;
    return tg_fail(ctx, TG_ERR_ARGUMENT,
                   "%s: beta1 is %g, beta2 %g, eps %g and weight_decay %g; expected betas in [0, 1), the others "
                   "finite, 0 or more",
                   who, g->beta1, g->beta2, g->eps, g->weight_decay);
}

void tg_optim_drop_state(tg_tensor *s) {
    if (!s) return;
    s->ext->owners = 0;
    tg_drop(s);
}

void tg_optim_hold(tg_tensor *param) { param->ext->held++; }

void tg_optim_let_go(tg_ctx *ctx, tg_ref ref) {
    if (ref.tensor && tg_ref_get(ctx, ref) == ref.tensor) ref.tensor->ext->held--;
}

void tg_optim_free(tg_optim *o) {
    if (!o || o == &inert) return;
    for (int i = 0; i < o->n; i++) {
        tg_optim_let_go(o->ctx, o->item[i].ref);
        for (int j = 0; j < TG_OPTIM_STATES; j++) tg_optim_drop_state(o->item[i].state[j]);
        tg_optim_drop_state(o->item[i].master);
    }
    if (o->work) tg_drop(o->work);
    tg_optim_device_close(o);
    tg_host_strfree(o->ctx, o->name);
    tg_host_free(o->ctx, o, o->bytes);
}

/* ---- Parameters and their gradients ---- */

tg_status tg_optim_check_alive(tg_ctx *ctx, tg_ref ref, int i, const char *owner, const char *who) {
    if (tg_ref_get(ctx, ref) == ref.tensor) return TG_OK;
    return tg_fail(ctx, TG_ERR_HANDLE, "%s: parameter %d was dropped; parameters must outlive the %s", who, i, owner);
}

tg_status tg_optim_check_items(tg_optim *o, const char *who) {
    for (int i = 0; i < o->n; i++) TG_TRY(tg_optim_check_alive(o->ctx, o->item[i].ref, i, "optimizer", who));
    return TG_OK;
}

tg_tensor *tg_optim_gradient(const tg_optim_item *it) {
    return it->param->numel ? tg_gradient_of(it->param) : NULL;
}

/* Fails if a parameter whose range the optimizer steps has a gradient that tg_grads_finalize has not divided. */
static tg_status check_divided(const tg_tensor *whole, const char *who) {
    char what[160];
    if (!whole->ext->has_grad || whole->ext->divided) return TG_OK;
    tg_describe(whole, what, sizeof what);
    return tg_fail(whole->ctx, TG_ERR_STATE,
                   "%s: the gradient of %s is not divided over the ranks of its tg_flat yet; call tg_grads_finalize "
                   "after the last backward",
                   who, what);
}

tg_status tg_optim_check_gradients(tg_optim *o, const char *who) {
    TG_TRY(tg_optim_check_items(o, who));
    for (int i = 0; i < o->n; i++) {
        const tg_tensor *param = o->item[i].param, *whole = tg_range_whole(param);
        tg_tensor *g = tg_gradient_of(param);
        TG_TRY(tg_gradient_need_drained(whole, who));
        if (whole != param) TG_TRY(check_divided(whole, who));
        if (!g) continue;
        TG_TRY(tg_gradient_need_whole(param, who));
        TG_TRY(tg_storage_need(g->storage, g));
    }
    return TG_OK;
}
