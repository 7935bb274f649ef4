/* RMSprop (Tieleman and Hinton, Coursera lecture 6.5, 2012), centered as in Graves, arXiv 1308.0850. */
#include <math.h>

#include "base/options.h"
#include "optim/elementwise.h"

enum { SQUARE, MEAN, MOMENTUM };

/* Computes `other`: the square root of the mean square of the gradients, or of their variance if centered, plus eps. A
 * variance that rounding makes negative counts as 0. */
static tg_status deviation(const tg_optim *o, const tg_optim_arrays *a) {
    tg_ctx *ctx = a->ctx;
    tg_array g = a->gradient, v = a->state[SQUARE], mean = a->state[MEAN], skip = a->scalar[TG_SCALAR_SKIP];
    double alpha = o->rmsprop.alpha;
    TG_OPTIM_MAP(square_sum, a->other, alpha, 1 - alpha, v, g);
    TG_OPTIM_MAP(where, v, 0, 0, skip, v, a->other);
    if (o->rmsprop.centered) {
        TG_OPTIM_MAP(sum_unless, mean, alpha, 1 - alpha, skip, mean, g);
        TG_OPTIM_MAP(square_sum, a->other, 1, -1, v, mean);
        TG_OPTIM_MAP(relu, a->other, 0, 0, a->other);
    }
    TG_OPTIM_MAP(sqrt, a->other, 0, 0, o->rmsprop.centered ? a->other : v);
    TG_OPTIM_MAP(affine, a->other, 1, a->group->eps, a->other);
    return TG_OK;
}

static tg_status step_one(const tg_optim *o, const tg_optim_arrays *a) {
    tg_ctx *ctx = a->ctx;
    tg_array g = a->gradient, m = a->state[MOMENTUM];
    TG_TRY(tg_optim_decay(a));
    TG_TRY(deviation(o, a));
    TG_OPTIM_MAP(div, g, 0, 0, g, a->other);
    if (o->rmsprop.momentum == 0) return tg_optim_move(a, g);
    TG_OPTIM_MAP(sum_unless, m, o->rmsprop.momentum, 1, a->scalar[TG_SCALAR_SKIP], m, g);
    return tg_optim_move(a, m);
}

static tg_status step(tg_optim *o) { return tg_optim_each(o, &tg_rmsprop_method, step_one); }

static bool keeps(const tg_optim *o, int k) {
    return k == SQUARE || (k == MEAN ? o->rmsprop.centered : o->rmsprop.momentum > 0);
}

const tg_optim_method tg_rmsprop_method = {.name = "rmsprop",
                                           .eps = true,
                                           .state_name = {"square", "mean", "momentum"},
                                           .keeps = keeps,
                                           .work = tg_optim_each_work,
                                           .step = step};

tg_optim *tg_rmsprop_new(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_rmsprop_opts *given) {
    const char *who = "tg_rmsprop_new";
    tg_optim o = {.method = &tg_rmsprop_method, .n_groups = 1};
    const tg_rmsprop_opts *r = &o.rmsprop;
    tg_options(ctx, &o.rmsprop, &tg_rmsprop_opts_struct, given, "tg_rmsprop_new: the options");
    o.lr = r->lr;
    o.group[0] = (tg_optim_group_t){.lr_scale = 1, .weight_decay = r->weight_decay, .eps = r->eps};
    if (tg_ok(ctx) && tg_optim_rate(ctx, o.lr, who)) tg_optim_check_numbers(ctx, &o.group[0], who);
    if (tg_ok(ctx) && !(r->alpha >= 0 && r->alpha < 1 && r->momentum >= 0 && r->momentum < 1))
        tg_fail(ctx, TG_ERR_ARGUMENT, "%s: alpha is %g and momentum %g, expected numbers in [0, 1)", who, r->alpha,
                r->momentum);
    return tg_optim_make(ctx, &o, params, n, who);
}
