/* Adagrad (Duchi, Hazan and Singer, JMLR 12, 2011). */
#include <math.h>

#include "base/options.h"
#include "optim/elementwise.h"

static tg_status step_one(const tg_optim *o, const tg_optim_arrays *a) {
    (void)o;
    tg_ctx *ctx = a->ctx;
    tg_array g = a->gradient, sum = a->state[0];
    TG_TRY(tg_optim_decay(a));
    TG_OPTIM_MAP(square_sum, a->other, 1, 1, sum, g);
    TG_OPTIM_MAP(where, sum, 0, 0, a->scalar[TG_SCALAR_SKIP], sum, a->other);
    TG_OPTIM_MAP(sqrt, a->other, 0, 0, sum);
    TG_OPTIM_MAP(affine, a->other, 1, a->group->eps, a->other);
    TG_OPTIM_MAP(div, g, 0, 0, g, a->other);
    return tg_optim_move(a, g);
}

static tg_status step(tg_optim *o) { return tg_optim_each(o, &tg_adagrad_method, step_one); }

const tg_optim_method tg_adagrad_method = {
    .name = "adagrad", .eps = true, .state_name = {"sum"}, .work = tg_optim_each_work, .step = step};

tg_optim *tg_adagrad_new(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_adagrad_opts *given) {
    const char *who = "tg_adagrad_new";
    tg_optim o = {.method = &tg_adagrad_method, .n_groups = 1};
    const tg_adagrad_opts *g = &o.adagrad;
    tg_options(ctx, &o.adagrad, &tg_adagrad_opts_struct, given, "tg_adagrad_new: the options");
    o.lr = g->lr;
    o.group[0] = (tg_optim_group_t){.lr_scale = 1, .weight_decay = g->weight_decay, .eps = g->eps};
    if (tg_ok(ctx) && tg_optim_rate(ctx, o.lr, who)) tg_optim_check_numbers(ctx, &o.group[0], who);
    if (tg_ok(ctx) && !(g->initial >= 0 && isfinite(g->initial)))
        tg_fail(ctx, TG_ERR_ARGUMENT, "%s: initial is %g, expected a finite number, 0 or more", who, g->initial);
    tg_optim *made = tg_optim_make(ctx, &o, params, n, who);
    for (int i = 0; tg_ok(ctx) && i < made->n; i++)
        ctx->run.ops->fill(ctx, tg_array_of(made->item[i].state[0]), g->initial);
    return made;
}
