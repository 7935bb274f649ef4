/* The methods: SGD with momentum (Sutskever et al., ICML 2013), Adam (Kingma and Ba, arXiv 1412.6980) and AdamW
 * (Loshchilov and Hutter, arXiv 1711.05101). */
#include "autograd/gradients.h"
#include "kernels/composed.h"
#include "kernels/scalar.h"
#include "optim/optim.h"

/* ---- SGD ---- */

static tg_status map(tg_ctx *ctx, tg_formula f, tg_array out, const tg_array *in, int n, double p, double q) {
    return ctx->run.ops->map(ctx, f, out, in, n, (const double[2]){p, q}, false);
}
#define MAP(f, out, p, q, ...)                                                               \
    TG_TRY(map(ctx, TG_FN_##f, (out), (const tg_array[]){__VA_ARGS__},                        \
               (int)(sizeof((const tg_array[]){__VA_ARGS__}) / sizeof(tg_array)), (p), (q)))

/* Steps one parameter. The states are {momentum, direction}. direction is scratch memory; it is kept as a state so that
 * a step allocates nothing. Momentum and parameter are written by sum_unless, which changes nothing if the step is
 * skipped. */
static tg_status sgd_item(tg_optim *o, tg_optim_item *it, const tg_tensor *grad) {
    tg_ctx *ctx = o->ctx;
    const tg_tensor *scalars = it->state[1]->dtype == TG_F64 ? o->scalars : o->scalars32;
    tg_array p = tg_array_of(it->master ? it->master : it->param), m = tg_array_of(it->state[0]);
    tg_array d = tg_array_of(it->state[1]), scalar[TG_STEP_SCALARS];
    double decay = o->group[it->group].weight_decay, mu = o->sgd.momentum;
    for (int i = 0; i < TG_STEP_SCALARS; i++) scalar[i] = tg_array_spread(scalars, it->group * TG_STEP_SCALARS + i, &d);
    MAP(mul, d, 0, 0, tg_array_of(grad), scalar[TG_SCALAR_COEFFICIENT]);
    if (decay > 0) MAP(linear_sum, d, 1, decay, d, p);
    if (mu > 0) {
        if (o->sgd.dampening > 0) MAP(mul, d, 0, 0, d, scalar[TG_SCALAR_FIRST]);
        MAP(sum_unless, m, mu, 1, scalar[TG_SCALAR_SKIP], m, d);
        if (o->sgd.nesterov) MAP(linear_sum, d, 1, mu, d, m);
    }
    MAP(mul, d, 0, 0, mu > 0 && !o->sgd.nesterov ? m : d, scalar[TG_SCALAR_LR]);
    MAP(sum_unless, p, 1, -1, scalar[TG_SCALAR_SKIP], p, d);
    return it->master ? tg_gradient_put(it->param, it->master, false) : TG_OK;
}

/* Completes the scalars for SGD. In all groups TG_SCALAR_FIRST, which is 1 in the first step and else 0, becomes the
 * factor of the direction in the momentum: 1 in the first step and else 1 - dampening. Then copies all scalars to
 * scalars32, for parameters that are stepped in float32. */
static tg_status sgd_scalars(tg_optim *o) {
    tg_ctx *ctx = o->ctx;
    const int64_t groups = o->n_groups, all = groups * TG_STEP_SCALARS, stride = TG_STEP_SCALARS;
    tg_array scalars = tg_array_of(o->scalars), narrow = tg_array_of(o->scalars32);
    scalars.shape = narrow.shape = &all;
    scalars.numel = narrow.numel = all;
    tg_array first = tg_array_spread(o->scalars, TG_SCALAR_FIRST, &scalars);
    first.shape = &groups, first.stride = &stride, first.numel = groups;
    if (o->sgd.dampening > 0) MAP(affine, first, o->sgd.dampening, 1 - o->sgd.dampening, first);
    MAP(id, narrow, 0, 0, scalars);
    return TG_OK;
}

static tg_status sgd_step(tg_optim *o) {
    TG_TRY(sgd_scalars(o));
    for (int i = 0; i < o->n; i++) {
        const tg_tensor *g = tg_optim_gradient(&o->item[i]);
        if (g) TG_TRY(sgd_item(o, &o->item[i], g));
    }
    return TG_OK;
}

const tg_optim_method tg_sgd_method = {
    .name = "sgd", .n_states = 2, .state_name = {"momentum", "direction"}, .step = sgd_step};

/* ---- Adam ---- */

static tg_adamw_args adam_args(const tg_optim *o, const tg_optim_item *it, const tg_tensor *grad) {
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
                           .step = tg_array_spread(o->scalars, it->group * TG_STEP_SCALARS, &(tg_array){0}).data};
}

static tg_status adam_step(tg_optim *o) {
    const tg_device_ops *ops = o->ctx->run.ops;
    int n = 0;
    for (int i = 0; i < o->n; i++) {
        const tg_tensor *g = tg_optim_gradient(&o->item[i]);
        if (g) o->list[n++] = adam_args(o, &o->item[i], g);
    }
    return n ? (ops->adamw ? ops->adamw : tg_composed_adamw)(o->ctx, o->list, n) : TG_OK;
}

const tg_optim_method tg_adam_method = {.name = "adam", .n_states = 2, .state_name = {"m", "v"}, .step = adam_step};
