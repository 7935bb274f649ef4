/* Lion (Chen et al., "Symbolic discovery of optimization algorithms", arXiv 2302.06675). */
#include "base/options.h"
#include "optim/elementwise.h"

static tg_status step_one(const tg_optim *o, const tg_optim_arrays *a) {
    (void)o;
    tg_ctx *ctx = a->ctx;
    tg_array step = a->other, m = a->state[0];
    const tg_optim_group_t *k = a->group;
    TG_OPTIM_MAP(linear_sum, step, k->beta1, 1 - k->beta1, m, a->gradient);
    TG_OPTIM_MAP(sign, step, 0, 0, step);
    if (k->weight_decay > 0) TG_OPTIM_MAP(linear_sum, step, 1, k->weight_decay, step, a->param);
    TG_OPTIM_MAP(sum_unless, m, k->beta2, 1 - k->beta2, a->scalar[TG_SCALAR_SKIP], m, a->gradient);
    return tg_optim_move(a, step);
}

static tg_status step(tg_optim *o) { return tg_optim_each(o, &tg_lion_method, step_one); }

const tg_optim_method tg_lion_method = {
    .name = "lion", .betas = true, .state_name = {"m"}, .work = tg_optim_each_work, .step = step};

tg_optim *tg_lion_new(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_lion_opts *given) {
    const char *who = "tg_lion_new";
    tg_optim o = {.method = &tg_lion_method, .n_groups = 1};
    tg_lion_opts opts;
    tg_options(ctx, &opts, &tg_lion_opts_struct, given, "tg_lion_new: the options");
    o.lr = opts.lr;
    o.group[0] =
        (tg_optim_group_t){.lr_scale = 1, .weight_decay = opts.weight_decay, .beta1 = opts.beta1, .beta2 = opts.beta2};
    if (tg_ok(ctx) && tg_optim_rate(ctx, o.lr, who)) tg_optim_check_numbers(ctx, &o.group[0], who);
    return tg_optim_make(ctx, &o, params, n, who);
}
