/* Optimizers: creation, groups of parameters, and the tensors of the state. */
#include <math.h>
#include <stdio.h>

#include "autograd/gradients.h"
#include "base/host_memory.h"
#include "base/options.h"
#include "optim/optim.h"

/* The optimizer that a failed creation returns; every call on it does nothing. */
static const tg_optim inert = {.ctx = (tg_ctx *)&tg_dead_ctx};

tg_status tg_optim_check(const tg_optim *o) {
    if (!o) return TG_ERR_ARGUMENT;
    return o->ctx->run.status;
}

/* ---- Creation ---- */

static tg_status check_params(tg_ctx *ctx, tg_tensor *const *params, int n, const char *who) {
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
    *it = (tg_optim_item){.param = p, .ref = tg_ref_of(p)};
    p->ext->held++;
    for (int i = 0; i < o->method->n_states; i++)
        if (!(it->state[i] = state_tensor(p, wide))) return o->ctx->run.status;
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

static tg_optim *make(tg_ctx *ctx, const tg_optim_method *method, tg_tensor *const *params, int n, const char *who) {
    if (!tg_ok(ctx) || check_params(ctx, params, n, who) != TG_OK) return NULL;
    size_t bytes = sizeof(tg_optim) + (size_t)n * sizeof(tg_optim_item);
    tg_optim *o = tg_host_alloc(ctx, bytes);
    if (!o) return NULL;
    *o = (tg_optim){.ctx = ctx, .method = method, .n = n, .n_groups = 1, .bytes = bytes};
    o->group[0].lr_scale = 1;
    tg_status s = tg_optim_device_open(o);
    for (int i = 0; i < n && s == TG_OK; i++) s = begin_item(o, &o->item[i], params[i]);
    if (s == TG_OK) return o;
    tg_optim_free(o);
    return NULL;
}

bool tg_optim_rate(tg_ctx *ctx, double lr, const char *who) {
    if (lr >= 0 && !isinf(lr)) return true;
    if (tg_ok(ctx)) tg_fail(ctx, TG_ERR_ARGUMENT, "%s: lr is %g, expected a finite number, 0 or more", who, lr);
    return false;
}

tg_optim *tg_sgd_new(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_sgd_opts *given) {
    tg_sgd_opts opts;
    tg_options(ctx, &opts, &tg_sgd_opts_struct, given, "tg_sgd_new: the options");
    if (tg_ok(ctx) && !given) tg_fail(ctx, TG_ERR_ARGUMENT, "tg_sgd_new: the options are NULL; lr must be given");
    if (!tg_ok(ctx) || !tg_optim_rate(ctx, opts.lr, "tg_sgd_new")) return (tg_optim *)&inert;
    if (tg_ok(ctx) &&
        !(opts.momentum >= 0 && opts.momentum < 1 && opts.weight_decay >= 0 && isfinite(opts.weight_decay) &&
          opts.dampening >= 0 && opts.dampening <= 1 && (!opts.nesterov || (opts.momentum > 0 && opts.dampening == 0))))
        tg_fail(ctx, TG_ERR_ARGUMENT,
                "tg_sgd_new: momentum is %g, dampening %g and weight_decay %g%s; expected momentum in [0, 1), "
                "dampening in [0, 1], weight_decay 0 or more, and for nesterov momentum above 0 and dampening 0",
                opts.momentum, opts.dampening, opts.weight_decay, opts.nesterov ? ", nesterov" : "");
    if (tg_ok(ctx) && opts.dampening > 0 && opts.momentum == 0)
        tg_fail(ctx, TG_ERR_ARGUMENT, "tg_sgd_new: dampening is %g, but momentum is 0, without which it does nothing",
                opts.dampening);
    tg_optim *o = make(ctx, &tg_sgd_method, params, n, "tg_sgd_new");
    if (!o) return (tg_optim *)&inert;
    o->sgd = opts;
    o->group[0].weight_decay = opts.weight_decay;
    tg_optim_set_lr(o, opts.lr);
    return o;
}

static tg_optim *adam_new(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_adamw_opts *given, bool decoupled,
                          const char *who) {
    tg_adamw_opts opts;
    tg_options(ctx, &opts, &tg_adamw_opts_struct, given, who);
    if (opts.weight_decay == TG_AUTO) opts.weight_decay = decoupled ? 0.01 : 0;
    if (!tg_ok(ctx) || !tg_optim_rate(ctx, opts.lr, who)) return (tg_optim *)&inert;
    if (tg_ok(ctx) && !(opts.beta1 >= 0 && opts.beta1 < 1 && opts.beta2 >= 0 && opts.beta2 < 1 && opts.eps >= 0 &&
                        opts.weight_decay >= 0 && isfinite(opts.eps + opts.weight_decay)))
        tg_fail(ctx, TG_ERR_ARGUMENT,
                "%s: beta1 is %g, beta2 %g, eps %g and weight_decay %g; expected betas in [0, 1), the others finite, 0 "
                "or more",
                who, opts.beta1, opts.beta2, opts.eps, opts.weight_decay);
    tg_optim *o = make(ctx, &tg_adam_method, params, n, who);
    if (!o) return (tg_optim *)&inert;
    o->decoupled = decoupled;
    o->group[0].weight_decay = opts.weight_decay;
    o->group[0].beta1 = opts.beta1;
    o->group[0].beta2 = opts.beta2;
    o->group[0].eps = opts.eps;
    tg_optim_set_lr(o, opts.lr);
    return o;
}

tg_optim *tg_adamw_new(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_adamw_opts *opts) {
    return adam_new(ctx, params, n, opts, true, "tg_adamw_new");
}

tg_optim *tg_adam_new(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_adamw_opts *opts) {
    return adam_new(ctx, params, n, opts, false, "tg_adam_new");
}

void tg_optim_drop_state(tg_tensor *s) {
    if (!s) return;
    s->ext->owners = 0;
    tg_drop(s);
}

/* Subtracts 1 from the number of optimizers that update a parameter (tg_ext.held), unless the parameter was dropped. */
static void let_go(const tg_optim *o, const tg_optim_item *it) {
    if (it->param && tg_ref_get(o->ctx, it->ref) == it->param) it->param->ext->held--;
}

void tg_optim_free(tg_optim *o) {
    if (!o || o == &inert) return;
    for (int i = 0; i < o->n; i++) {
        let_go(o, &o->item[i]);
        for (int j = 0; j < TG_OPTIM_STATES; j++) tg_optim_drop_state(o->item[i].state[j]);
        tg_optim_drop_state(o->item[i].master);
    }
    tg_optim_device_close(o);
    tg_host_free(o->ctx, o, o->bytes);
}

/* ---- Parameters and their gradients ---- */

tg_status tg_optim_check_items(tg_optim *o, const char *who) {
    for (int i = 0; i < o->n; i++)
        if (tg_ref_get(o->ctx, o->item[i].ref) != o->item[i].param)
            return tg_fail(o->ctx, TG_ERR_HANDLE, "%s: parameter %d was dropped; parameters must outlive the optimizer",
                           who, i);
    return TG_OK;
}

tg_tensor *tg_optim_gradient(const tg_optim_item *it) {
    return it->param->numel ? tg_gradient_of(it->param) : NULL;
}

tg_status tg_optim_check_gradients(tg_optim *o, const char *who) {
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

/* ---- Groups ---- */

/* Returns an option of a group: `usual` if it is TG_AUTO. */
static double given_or(double given, double usual) { return given == TG_AUTO ? usual : given; }

/* Adds a group and sends its learning rate to the device. Returns the group's number, or -1 on an error. */
static int add_group(tg_optim *o, const tg_optim_group_t *g, const char *who) {
    if (o->n_groups == TG_LEN(o->group)) {
        tg_fail(o->ctx, TG_ERR_ARGUMENT, "%s: the optimizer has %d groups already; expected at most %d groups", who,
                o->n_groups, TG_LEN(o->group));
        return -1;
    }
    o->group[o->n_groups] = *g;
    return tg_optim_send_rate(o, o->n_groups) == TG_OK ? o->n_groups++ : -1;
}

static tg_status check_group(const tg_optim *o, const tg_group_opts *given, const tg_optim_group_t *g) {
    tg_ctx *ctx = o->ctx;
    if (!(g->lr_scale >= 0 && g->weight_decay >= 0) || isinf(g->lr_scale + g->weight_decay))
        return tg_fail(
            ctx, TG_ERR_ARGUMENT,
            "tg_optim_add_group: lr_scale is %g and weight_decay %g, expected finite numbers, 0 or more",
            g->lr_scale, g->weight_decay);
    if (o->method != &tg_adam_method && (given->beta1 != TG_AUTO || given->beta2 != TG_AUTO || given->eps != TG_AUTO))
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_optim_add_group: beta1 is %g, beta2 %g and eps %g, but %s has none of them; leave them "
                       "TG_AUTO",
                       given->beta1, given->beta2, given->eps, o->method->name);
    if (!(g->beta1 >= 0 && g->beta1 < 1 && g->beta2 >= 0 && g->beta2 < 1 && g->eps >= 0 && isfinite(g->eps)))
        return tg_fail(
            ctx, TG_ERR_ARGUMENT,
            "tg_optim_add_group: beta1 is %g, beta2 %g and eps %g, expected betas in [0, 1), and eps finite, 0 or more",
            g->beta1, g->beta2, g->eps);
    if (g->schedule.size && !tg_schedule_ok(&g->schedule))
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_optim_add_group: the schedule (lr %g, min_lr %g, %lld steps) is invalid, so tg_schedule_lr "
                       "returns NaN; see schedule.h for the ranges",
                       g->schedule.lr, g->schedule.min_lr, (long long)g->schedule.steps);
    return TG_OK;
}

int tg_optim_add_group(tg_optim *o, const tg_group_opts *given) {
    tg_group_opts opts;
    if (tg_optim_check(o) != TG_OK) return -1;
    if (tg_options(o->ctx, &opts, &tg_group_opts_struct, given, "tg_optim_add_group: the options") != TG_OK) return -1;
    const tg_optim_group_t *first = &o->group[0];
    tg_optim_group_t g = {.lr_scale = opts.lr_scale,
                          .weight_decay = given_or(opts.weight_decay, first->weight_decay),
                          .beta1 = given_or(opts.beta1, first->beta1),
                          .beta2 = given_or(opts.beta2, first->beta2),
                          .eps = given_or(opts.eps, first->eps),
                          .lr = o->lr};
    if (opts.schedule &&
        tg_options(o->ctx, &g.schedule, &tg_schedule_struct, opts.schedule, "tg_optim_add_group: the schedule"))
        return -1;
    return check_group(o, &opts, &g) == TG_OK ? add_group(o, &g, "tg_optim_add_group") : -1;
}

tg_status tg_optim_assign(tg_optim *o, int group, tg_tensor *const *params, int n) {
    TG_TRY(tg_optim_check(o));
    if (group < 0 || group >= o->n_groups || n < 0 || (n && !params))
        return tg_fail(o->ctx, TG_ERR_ARGUMENT,
                       "tg_optim_assign: group is %d of %d groups and n is %d, expected a group that exists and an "
                       "array of n parameters, 0 or more",
                       group, o->n_groups, n);
    for (int pass = 0; pass < 2; pass++) /* the first pass only checks that all are found, the second moves them */
        for (int i = 0; i < n; i++) {
            int j = 0;
            TG_TRY(tg_check(o->ctx, params[i], "tg_optim_assign"));
            while (j < o->n && o->item[j].param != params[i]) j++;
            if (j == o->n)
                return tg_fail(o->ctx, TG_ERR_ARGUMENT,
                               "tg_optim_assign: parameter %d does not belong to this optimizer", i);
            if (pass) o->item[j].group = group;
        }
    return TG_OK;
}

/* Returns whether the group has a parameter with fewer than two dims. */
static bool holds_vectors(const tg_optim *o, int group) {
    for (int i = 0; i < o->n; i++)
        if (o->item[i].group == group && o->item[i].param->ndim < 2) return true;
    return false;
}

tg_status tg_optim_no_decay_1d(tg_optim *o) {
    TG_TRY(tg_optim_check(o));
    TG_TRY(tg_optim_check_items(o, "tg_optim_no_decay_1d"));
    for (int g = 0, groups = o->n_groups; g < groups; g++) {
        if (o->group[g].weight_decay == 0 || !holds_vectors(o, g)) continue;
        tg_optim_group_t without = o->group[g];
        without.weight_decay = 0;
        int copy = add_group(o, &without, "tg_optim_no_decay_1d");
        if (copy < 0) return tg_optim_check(o);
        for (int i = 0; i < o->n; i++)
            if (o->item[i].group == g && o->item[i].param->ndim < 2) o->item[i].group = copy;
    }
    return TG_OK;
}

/* ---- State ---- */

/* Returns the number of states of a parameter: those of the method, then the master. */
static int states_of(const tg_optim *o, const tg_optim_item *it) { return o->method->n_states + (it->master ? 1 : 0); }

int tg_optim_state_count(const tg_optim *o) {
    int n = 0;
    for (int i = 0; o && i < o->n; i++) n += states_of(o, &o->item[i]);
    return n + (o && tg_optim_is_scale_dynamic(o));
}

tg_tensor *tg_optim_state(tg_optim *o, int i, const char **name) {
    if (!o) return tg_inert(&tg_dead_ctx);
    int left = i;
    for (int j = 0; j < o->n && i >= 0; j++) {
        const tg_optim_item *it = &o->item[j];
        int k = states_of(o, it);
        if (left >= k) {
            left -= k;
            continue;
        }
        bool master = left == o->method->n_states;
        snprintf(o->name, sizeof o->name, "%s.%s", tg_name(it->param), master ? "master" : o->method->state_name[left]);
        if (name) *name = o->name;
        return master ? it->master : it->state[left];
    }
    if (left == 0 && i >= 0 && tg_optim_is_scale_dynamic(o)) {
        if (name) *name = TG_OPTIM_SCALE_NAME;
        return o->scale_state;
    }
    tg_fail(o->ctx, TG_ERR_ARGUMENT, "tg_optim_state: index %d is out of range; the optimizer has %d state tensors", i,
            tg_optim_state_count(o));
    return tg_inert(o->ctx);
}
