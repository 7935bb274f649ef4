/* The methods: SGD with momentum (Sutskever et al., ICML 2013), Adam (Kingma and Ba, arXiv 1412.6980) and AdamW
 * (Loshchilov and Hutter, arXiv 1711.05101). */
#include "autograd/backward.h"
#include "kernels/composed.h"
#include "kernels/scalar.h"
#include "optim/optim.h"

/* out = p a + q b, where out may be a or b. */
static tg_status blend(tg_tensor *out, double p, const tg_tensor *a, double q, const tg_tensor *b) {
    const double pq[2] = {p, q};
    const tg_array in[2] = {tg_array_of(a), tg_array_of(b)};
    return out->ctx->ops->map(out->ctx, TG_FN_linear_sum, tg_array_of(out), in, 2, pq, false);
}

/* The state is {momentum, direction}: direction is scratch that the step needs anyway, so that nothing is allocated in
 * it. */
static tg_status sgd_step(tg_optim *o, tg_optim_item *it, tg_tensor *grad) {
    tg_tensor *p = it->master ? it->master : it->param, *m = it->state[0], *d = it->state[1];
    double decay = o->group[it->group].weight_decay, mu = o->sgd.momentum;
    double lr = o->lr * o->group[it->group].lr_scale;
    TG_TRY(blend(d, o->clip, grad, decay, p));
    if (mu > 0) {
        TG_TRY(blend(m, o->steps ? mu : 0, m, o->steps ? 1 - o->sgd.dampening : 1, d));
        TG_TRY(o->sgd.nesterov ? blend(d, 1, d, mu, m) : blend(d, 0, d, 1, m));
    }
    TG_TRY(blend(p, 1, p, -lr, d));
    return it->master ? tg_gradient_put(it->param, it->master, false) : TG_OK;
}

const tg_optim_method tg_sgd_method = {
    .name = "sgd", .n_states = 2, .state_name = {"momentum", "direction"}, .step = sgd_step};

static tg_status adam_step(tg_optim *o, tg_optim_item *it, tg_tensor *grad) {
    const tg_device_ops *ops = o->ctx->ops;
    tg_adamw_args a = {.param = tg_array_of(it->param),
                       .grad = tg_array_of(grad),
                       .m = tg_array_of(it->state[0]),
                       .v = tg_array_of(it->state[1]),
                       .master = tg_array_of(it->master),
                       .beta1 = o->adam.beta1,
                       .beta2 = o->adam.beta2,
                       .eps = o->adam.eps,
                       .weight_decay = o->group[it->group].weight_decay,
                       .decoupled = o->decoupled,
                       .step = tg_data(o->group[it->group].word)};
    return (ops->adamw ? ops->adamw : tg_composed_adamw)(o->ctx, &a);
}

const tg_optim_method tg_adam_method = {.name = "adam", .n_states = 2, .state_name = {"m", "v"}, .step = adam_step};
