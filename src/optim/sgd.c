/* SGD with momentum (Sutskever et al., ICML 2013). */
#include <math.h>

#include "base/options.h"
#include "optim/elementwise.h"

static tg_status step_one(const tg_optim *o, const tg_optim_arrays *a) {
    tg_ctx *ctx = a->ctx;
    tg_array g = a->gradient, m = a->state[0];
    double mu = o->sgd.momentum;
    TG_TRY(tg_optim_decay(a));
    if (mu == 0) return tg_optim_move(a, g);
    if (o->sgd.dampening > 0) TG_OPTIM_MAP(mul, g, 0, 0, g, a->scalar[TG_SCALAR_FIRST]);
    TG_OPTIM_MAP(sum_unless, m, mu, 1, a->scalar[TG_SCALAR_SKIP], m, g);
    if (!o->sgd.nesterov) return tg_optim_move(a, m);
    TG_OPTIM_MAP(linear_sum, g, 1, mu, g, m);
    return tg_optim_move(a, g);
}

/* In all groups turns TG_SCALAR_FIRST, which is 1 in the first step and else 0, into the factor of the gradient in the
 * momentum: 1 in the first step and else 1 - dampening. */
static tg_status dampen(tg_optim *o) {
    tg_ctx *ctx = o->ctx;
    const int64_t groups = o->n_groups, stride = TG_STEP_SCALARS;
    tg_array scalars = tg_array_of(o->scalars), first = tg_array_spread(o->scalars, TG_SCALAR_FIRST, &scalars);
    first.shape = &groups, first.stride = &stride, first.numel = groups;
    TG_OPTIM_MAP(affine, first, o->sgd.dampening, 1 - o->sgd.dampening, first);
    return TG_OK;
}

static tg_status step(tg_optim *o) {
    if (o->sgd.dampening > 0) TG_TRY(dampen(o));
    return tg_optim_each(o, &tg_sgd_method, step_one);
}

static bool keeps(const tg_optim *o, int k) { return k == 0 && o->sgd.momentum > 0; }

const tg_optim_method tg_sgd_method = {
    .name = "sgd", .state_name = {"momentum"}, .keeps = keeps, .work = tg_optim_each_work, .step = step};

static tg_status check(tg_ctx *ctx, const tg_sgd_opts *o) {
    if (!(o->momentum >= 0 && o->momentum < 1 && o->weight_decay >= 0 && isfinite(o->weight_decay) &&
          o->dampening >= 0 && o->dampening <= 1 && (!o->nesterov || (o->momentum > 0 && o->dampening == 0))))
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_sgd_new: momentum is %g, dampening %g and weight_decay %g%s; expected momentum in [0, 1), "
                       "dampening in [0, 1], weight_decay finite, 0 or more, and for nesterov momentum above 0 and "
                       "dampening 0",
                       o->momentum, o->dampening, o->weight_decay, o->nesterov ? ", nesterov" : "");
    if (o->dampening > 0 && o->momentum == 0)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_sgd_new: dampening is %g, but momentum is 0, without which it does nothing", o->dampening);
    return TG_OK;
}

tg_optim *tg_sgd_new(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_sgd_opts *given) {
    tg_optim o = {.method = &tg_sgd_method, .n_groups = 1};
    tg_options(ctx, &o.sgd, &tg_sgd_opts_struct, given, "tg_sgd_new: the options");
    if (tg_ok(ctx) && !given) tg_fail(ctx, TG_ERR_ARGUMENT, "tg_sgd_new: the options are NULL; lr must be given");
    o.lr = o.sgd.lr;
    o.group[0] = (tg_optim_group_t){.lr_scale = 1, .weight_decay = o.sgd.weight_decay};
    if (tg_ok(ctx) && tg_optim_rate(ctx, o.lr, "tg_sgd_new")) check(ctx, &o.sgd);
    return tg_optim_make(ctx, &o, params, n, "tg_sgd_new");
}
