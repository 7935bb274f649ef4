/* A zero in the options of optimizers, data loaders and tokenizers. */
#include <math.h>

#include <tapegrad/data.h>
#include <tapegrad/lbfgs.h>
#include <tapegrad/optim.h>
#include <tapegrad/tokenizer.h>

#include "optim/optim.h"
#include "option_zeros.h"

/* Makes one step of a method with these options for a matrix of a single 1 that has this gradient. Returns what the
 * matrix then has; NaN after an error. */
typedef tg_optim *(*new_fn)(tg_ctx *c, tg_tensor *const *params, int n, const void *o);
static double stepped(new_fn make, const void *o, double gradient) {
    double ones[1] = {1}, v = NAN;
    tg_tensor *w = of(TG_SHAPE(1, 1), ones);
    tg_set_requires_grad(w, true);
    tg_optim *optim = make(ctx, &w, 1, o);
    tg_backward(t, tg_scale(t, tg_sum(t, w, TG_ALL_DIMS, false), gradient));
    tg_optim_step(optim);
    tg_read_f64(w, &v, 1);
    tg_optim_free(optim);
    tg_drop(w);
    return v;
}
static tg_optim *rmsprop(tg_ctx *c, tg_tensor *const *p, int n, const void *o) { return tg_rmsprop_new(c, p, n, o); }
static tg_optim *adagrad(tg_ctx *c, tg_tensor *const *p, int n, const void *o) { return tg_adagrad_new(c, p, n, o); }
static tg_optim *lion(tg_ctx *c, tg_tensor *const *p, int n, const void *o) { return tg_lion_new(c, p, n, o); }
static tg_optim *muon(tg_ctx *c, tg_tensor *const *p, int n, const void *o) { return tg_muon_new(c, p, n, o); }

static bool is(double x, double want) { return fabs(x - want) < 1e-12; }
static bool rmsprop_stands_still(const void *o) { return is(stepped(rmsprop, o, 2), 1); }
static bool rmsprop_keeps_nothing(const void *o) { return is(stepped(rmsprop, o, 2), 1 - 0.01 * 2 / (2 + 1e-8)); }
static bool rmsprop_has_no_eps(const void *o) { return is(stepped(rmsprop, o, 1e-9), 1 - 0.01 * 10); }
static bool adagrad_stands_still(const void *o) { return is(stepped(adagrad, o, 2), 1); }
static bool adagrad_has_no_eps(const void *o) { return is(stepped(adagrad, o, 1e-11), 1 - 0.01); }
static bool lion_stands_still(const void *o) { return is(stepped(lion, o, 2), 1); }
static bool lion_has_no_mean(const void *o) { return is(stepped(lion, o, -2), 1 + 1e-4); }
static bool muon_refuses(const void *o) { return stepped(muon, o, 2), false; }

/* Returns what the first element of Lion's mean is after a gradient of 2. */
static bool lion_forgets(const void *o) {
    double v = NAN;
    tg_tensor *w = tg_param_new(ctx, "w", TG_F64, TG_SHAPE(), 1);
    tg_optim *optim = tg_lion_new(ctx, &w, 1, o);
    tg_backward(t, tg_scale(t, w, 2));
    tg_optim_step(optim);
    tg_read_f64(tg_optim_state(optim, 0, NULL), &v, 1);
    tg_optim_free(optim);
    tg_drop(w);
    return v == 2;
}

/* Muon without momentum forgets the first gradient. */
static bool muon_has_no_momentum(const void *o) {
    double v = NAN;
    tg_tensor *w = tg_param_new(ctx, "w", TG_F64, TG_SHAPE(1, 1), 1);
    tg_optim *optim = tg_muon_new(ctx, &w, 1, o);
    for (int i = 1; i < 3; i++) {
        tg_backward(t, tg_scale(t, tg_sum(t, w, TG_ALL_DIMS, false), i));
        tg_optim_step(optim);
        tg_optim_zero_grad(optim);
    }
    tg_read_f64(tg_optim_state(optim, 0, NULL), &v, 1);
    tg_optim_free(optim);
    tg_drop(w);
    return v == 2;
}

static bool lbfgs(const void *o) {
    tg_tensor *w = tg_param_new(ctx, "w", TG_F64, TG_SHAPE(2), 1);
    tg_lbfgs *l = tg_lbfgs_new(ctx, &w, 1, o);
    tg_lbfgs_free(l);
    tg_drop(w);
    return tg_ctx_status(ctx) == TG_OK;
}

/* Without plugin "text" nothing is trained, but the options are checked. */
static bool training(const void *o) {
    tg_bpe *b = tg_bpe_new(ctx, o);
    bool good = b || tg_ctx_status(ctx) == TG_ERR_UNSUPPORTED;
    tg_bpe_free(b);
    return good;
}

static bool loader(const void *o) {
    static const float values[4];
    const tg_data_part part = {TG_F32, {0}, values};
    tg_loader_opts opts = *(const tg_loader_opts *)o;
    tg_tensor *x;
    opts.batch = 2;
    tg_loader *l = tg_loader_new_arrays(ctx, &part, 1, 4, &opts);
    bool good = tg_loader_next(l, &x) == TG_OK;
    tg_loader_free(l);
    return good;
}

/* Copies a group of an AdamW with the options `adam`, after another group was added with the options `group`. */
static tg_optim_group_t group_of(const tg_adamw_opts *adam, const tg_group_opts *group) {
    tg_optim_group_t g = {.lr = -1};
    tg_tensor *w = tg_param_new(ctx, "w", TG_F64, TG_SHAPE(2), 1);
    tg_optim *o = tg_adamw_new(ctx, &w, 1, adam);
    int i = group ? tg_optim_add_group(o, group) : 0;
    if (tg_ctx_status(ctx) == TG_OK) g = o->group[i];
    if (tg_ctx_status(ctx) == TG_OK) g.lr = tg_optim_lr(o);
    tg_optim_free(o);
    tg_drop(w);
    return g;
}
#define ADAM_HAS_NO(field)                                                                                             \
    static bool adam_has_no_##field(const void *o) { return group_of(o, NULL).field == 0; }
#define GROUP_HAS_NO(field)                                                                                            \
    static bool group_has_no_##field(const void *o) { return group_of(TG_ADAMW(.weight_decay = 0.5), o).field == 0; }
ADAM_HAS_NO(lr)
ADAM_HAS_NO(beta1)
ADAM_HAS_NO(beta2)
ADAM_HAS_NO(eps)
ADAM_HAS_NO(weight_decay)
GROUP_HAS_NO(lr_scale)
GROUP_HAS_NO(beta1)
GROUP_HAS_NO(beta2)
GROUP_HAS_NO(eps)
GROUP_HAS_NO(weight_decay)

static bool loss_scale(const void *o) {
    tg_tensor *w = tg_param_new(ctx, "w", TG_F64, TG_SHAPE(2), 1);
    tg_optim *adam = tg_adamw_new(ctx, &w, 1, NULL);
    tg_optim_set_scale(adam, o);
    tg_optim_free(adam);
    tg_drop(w);
    return false;
}

const tg_zero_probe tg_zeros_optim[] = {
    {"tg_adamw_opts", "lr", adam_has_no_lr, NULL},
    {"tg_adamw_opts", "beta1", adam_has_no_beta1, NULL},
    {"tg_adamw_opts", "beta2", adam_has_no_beta2, NULL},
    {"tg_adamw_opts", "eps", adam_has_no_eps, NULL},
    {"tg_adamw_opts", "weight_decay", adam_has_no_weight_decay, NULL},
    {"tg_rmsprop_opts", "lr", rmsprop_stands_still, NULL},
    {"tg_rmsprop_opts", "alpha", rmsprop_keeps_nothing, NULL},
    {"tg_rmsprop_opts", "eps", rmsprop_has_no_eps, NULL},
    {"tg_adagrad_opts", "lr", adagrad_stands_still, NULL},
    {"tg_adagrad_opts", "eps", adagrad_has_no_eps, NULL},
    {"tg_lion_opts", "lr", lion_stands_still, NULL},
    {"tg_lion_opts", "beta1", lion_has_no_mean, NULL},
    {"tg_lion_opts", "beta2", lion_forgets, NULL},
    {"tg_muon_opts", "lr", muon_refuses, "lr is 0, expected a finite number above 0"},
    {"tg_muon_opts", "momentum", muon_has_no_momentum, NULL},
    {"tg_muon_opts", "iterations", muon_refuses, "iterations 0"},
    {"tg_muon_opts", "eps", muon_refuses, "eps 0"},
    {"tg_lbfgs_opts", "lr", lbfgs, "lr is 0"},
    {"tg_lbfgs_opts", "iterations", lbfgs, "iterations 0"},
    {"tg_lbfgs_opts", "evaluations", lbfgs, "evaluations 0"},
    {"tg_lbfgs_opts", "history", lbfgs, "history 0"},
    {"tg_lbfgs_opts", "gradient_tolerance", lbfgs, NULL},
    {"tg_lbfgs_opts", "change_tolerance", lbfgs, NULL},
    {"tg_bpe_opts", "vocab", training, "vocab is 0, expected 257"},
    {"tg_bpe_opts", "min_frequency", training, NULL},
    {"tg_bpe_opts", "max_length", training, "max_length is 0, expected 2 or more, or TG_NONE"},
    {"tg_loader_opts", "prefetch", loader, NULL},
    {"tg_loader_opts", "ranks", loader, "ranks 0"},
    {"tg_group_opts", "lr_scale", group_has_no_lr_scale, NULL},
    {"tg_group_opts", "weight_decay", group_has_no_weight_decay, NULL},
    {"tg_group_opts", "beta1", group_has_no_beta1, NULL},
    {"tg_group_opts", "beta2", group_has_no_beta2, NULL},
    {"tg_group_opts", "eps", group_has_no_eps, NULL},
    {"tg_loss_scale", "initial", loss_scale, "initial 0"},
    {"tg_loss_scale", "growth", loss_scale, "growth 0"},
    {"tg_loss_scale", "backoff", loss_scale, "backoff 0"},
    {"tg_loss_scale", "min", loss_scale, "min 0"},
    {"tg_loss_scale", "interval", loss_scale, "interval 0"},
    {"tg_loss_scale", "hysteresis", loss_scale, "hysteresis 0"},
    {NULL},
};
