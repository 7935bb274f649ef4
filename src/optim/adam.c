/* Adam (Kingma and Ba, arXiv 1412.6980) and AdamW (Loshchilov and Hutter, arXiv 1711.05101). */
#include "autograd/gradients.h"
#include "base/options.h"
#include "kernels/composed.h"
#include "optim/optim.h"

static tg_adamw_args args_of(const tg_optim *o, const tg_optim_item *it, const tg_tensor *grad) {
    const tg_optim_group_t *group = &o->group[it->group];
    return (tg_adamw_args){.param = tg_array_of(it->param),
                           .grad = tg_array_of(grad),
                           .m = tg_array_of(it->state[0]),
                           .v = tg_array_of(it->state[1]),
                           .master = tg_array_of(it->master),
                           .beta1 = group->beta1,
                           .beta2 = group->beta2,
                           .eps = group->eps,
                           .weight_decay = group->weight_decay,
                           .decoupled = o->decoupled,
                           .step = tg_array_spread(o->scalars, it->group * TG_STEP_SCALARS, &(tg_array){0}).data,
                           .used = tg_gradient_used(it->param)};
}

static tg_status step(tg_optim *o) {
    const tg_device_ops *ops = o->ctx->run.ops;
    int n = 0;
    for (int i = 0; i < o->n; i++) {
        const tg_tensor *g = o->item[i].method == &tg_adam_method ? tg_optim_gradient(&o->item[i]) : NULL;
        if (g) o->list[n++] = args_of(o, &o->item[i], g);
    }
    return n ? (ops->adamw ? ops->adamw : tg_composed_adamw)(o->ctx, o->list, n) : TG_OK;
}

const tg_optim_method tg_adam_method = {
    .name = "adam", .betas = true, .eps = true, .state_name = {"m", "v"}, .step = step};

tg_optim_group_t tg_adam_group(const tg_adamw_opts *o, bool decoupled) {
    double usual = decoupled ? 0.01 : 0;
    return (tg_optim_group_t){.lr_scale = 1,
                              .beta1 = o->beta1,
                              .beta2 = o->beta2,
                              .eps = o->eps,
                              .weight_decay = o->weight_decay == TG_AUTO ? usual : o->weight_decay};
}

static tg_optim *make(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_adamw_opts *given, bool decoupled,
                      const char *who) {
    tg_optim o = {.method = &tg_adam_method, .n_groups = 1, .decoupled = decoupled};
    tg_adamw_opts opts;
    tg_options(ctx, &opts, &tg_adamw_opts_struct, given, who);
    o.lr = opts.lr;
    o.group[0] = tg_adam_group(&opts, decoupled);
    if (tg_ok(ctx) && tg_optim_rate(ctx, o.lr, who)) tg_optim_check_numbers(ctx, &o.group[0], who);
    return tg_optim_make(ctx, &o, params, n, who);
}

tg_optim *tg_adamw_new(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_adamw_opts *opts) {
    return make(ctx, params, n, opts, true, "tg_adamw_new");
}

tg_optim *tg_adam_new(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_adamw_opts *opts) {
    return make(ctx, params, n, opts, false, "tg_adam_new");
}
