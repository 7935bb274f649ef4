/* Optimizers and schedules. */
#include <tapegrad/optim.h>
#include <tapegrad/backward.h>
#include <tapegrad/ops.h>

#include "misuse/misuse.h"

/* Checks an inert optimizer: every call on it does nothing, and it may be freed. */
static bool no_optimizer(tg_optim *o) {
    bool good = o && tg_optim_state_count(o) == 0 && tg_optim_step(o) != TG_OK && tg_optim_zero_grad(o) != TG_OK;
    tg_optim_free(o);
    return good;
}

#define NONE(symbol, code, says, call) GIVES(symbol, code, says, no_optimizer(call))

/* ---- Creation ---- */

#define PARAMETERS(symbol, opts)                                                                                       \
    do {                                                                                                               \
        tg_tensor *twice[] = {b->w, b->w}, *none = NULL;                                                               \
        QUIET(symbol, no_optimizer(symbol(NULL, &b->w, 1, opts)));                                                     \
        NONE(symbol, ARGUMENT, "expected an array of 1 or more", symbol(b->ctx, NULL, 1, opts));                       \
        NONE(symbol, ARGUMENT, "n is 0", symbol(b->ctx, &b->w, 0, opts));                                              \
        NONE(symbol, ARGUMENT, "n is -1", symbol(b->ctx, &b->w, -1, opts));                                            \
        NONE(symbol, ARGUMENT, "the tensor is NULL", symbol(b->ctx, &none, 1, opts));                                  \
        NONE(symbol, ARGUMENT, "parameter 1, w f32[2, 3], is given twice", symbol(b->ctx, twice, 2, opts));            \
        NONE(symbol, STATE, "must be a leaf of the context", symbol(b->ctx, &b->x, 1, opts));                          \
        NONE(symbol, STATE, "must be a leaf of the context", symbol(b->ctx, &b->r, 1, opts));                          \
        NONE(symbol, HANDLE, "another context", symbol(b->ctx, &b->foreign, 1, opts));                                 \
        EACH_DEAD(x) NONE(symbol, HANDLE, "the tensor", symbol(b->ctx, &x, 1, opts));                                  \
    } while (0)

#define OPTIONS(symbol, make, code, says, ...) NONE(symbol, code, says, symbol(b->ctx, &b->w, 1, make(__VA_ARGS__)))
#define ADAM(code, says, ...)                            \
    OPTIONS(tg_adam_new, TG_ADAMW, code, says, __VA_ARGS__); \
    OPTIONS(tg_adamw_new, TG_ADAMW, code, says, __VA_ARGS__)
#define SGD(code, says, ...) OPTIONS(tg_sgd_new, TG_SGD, code, says, __VA_ARGS__)

static void making(misuse_world *b) {
    tg_sgd_opts sgd0 = {0}, sgd_later = {.size = sizeof sgd_later + 8, .lr = 1};
    tg_adamw_opts adam0 = {0}, adam_later = {.size = sizeof adam_later + 8};
    PARAMETERS(tg_sgd_new, TG_SGD(.lr = 0.1));
    PARAMETERS(tg_adam_new, NULL);
    PARAMETERS(tg_adamw_new, NULL);
    PARAMETERS(tg_rmsprop_new, NULL);
    PARAMETERS(tg_adagrad_new, NULL);
    PARAMETERS(tg_lion_new, NULL);
    PARAMETERS(tg_muon_new, NULL);
    NONE(tg_sgd_new, ARGUMENT, "lr must be given", tg_sgd_new(b->ctx, &b->w, 1, NULL));
    NONE(tg_sgd_new, ARGUMENT, "size is 0", tg_sgd_new(b->ctx, &b->w, 1, &sgd0));
    NONE(tg_sgd_new, ARGUMENT, "this library knows", tg_sgd_new(b->ctx, &b->w, 1, &sgd_later));
    NONE(tg_adam_new, ARGUMENT, "size is 0", tg_adam_new(b->ctx, &b->w, 1, &adam0));
    NONE(tg_adamw_new, ARGUMENT, "size is 0", tg_adamw_new(b->ctx, &b->w, 1, &adam0));
    NONE(tg_adamw_new, ARGUMENT, "this library knows", tg_adamw_new(b->ctx, &b->w, 1, &adam_later));
    SGD(ARGUMENT, "lr is nan", .lr = NAN);
    SGD(ARGUMENT, "lr is inf", .lr = INFINITY);
    SGD(ARGUMENT, "lr is -1", .lr = -1);
    SGD(ARGUMENT, "momentum is 1", .lr = 1, .momentum = 1);
    SGD(ARGUMENT, "momentum is nan", .lr = 1, .momentum = NAN);
    SGD(ARGUMENT, "dampening 2", .lr = 1, .dampening = 2);
    SGD(ARGUMENT, "but momentum is 0", .lr = 1, .dampening = 0.5);
    SGD(ARGUMENT, "weight_decay -1", .lr = 1, .weight_decay = -1);
    SGD(ARGUMENT, "weight_decay inf", .lr = 1, .weight_decay = INFINITY);
    SGD(ARGUMENT, "weight_decay nan", .lr = 1, .weight_decay = NAN);
    SGD(ARGUMENT, "for nesterov momentum above 0", .lr = 1, .nesterov = true);
    ADAM(ARGUMENT, "lr is nan", .lr = NAN);
    ADAM(ARGUMENT, "lr is -2", .lr = -2);
    ADAM(ARGUMENT, "beta1 is 1", .beta1 = 1);
    ADAM(ARGUMENT, "betas in [0, 1)", .beta1 = NAN);
    ADAM(ARGUMENT, "betas in [0, 1)", .beta2 = -0.5);
    ADAM(ARGUMENT, "betas in [0, 1)", .beta2 = NAN);
    ADAM(ARGUMENT, "eps nan", .eps = NAN);
    ADAM(ARGUMENT, "eps inf", .eps = INFINITY);
    ADAM(ARGUMENT, "eps -3", .eps = -3);
    ADAM(ARGUMENT, "weight_decay nan", .weight_decay = NAN);
    ADAM(ARGUMENT, "weight_decay inf", .weight_decay = INFINITY);
    ADAM(ARGUMENT, "weight_decay -3", .weight_decay = -3);
}

#define RMSPROP(says, ...) OPTIONS(tg_rmsprop_new, TG_RMSPROP, ARGUMENT, says, __VA_ARGS__)
#define ADAGRAD(says, ...) OPTIONS(tg_adagrad_new, TG_ADAGRAD, ARGUMENT, says, __VA_ARGS__)
#define LION(says, ...) OPTIONS(tg_lion_new, TG_LION, ARGUMENT, says, __VA_ARGS__)
#define MUON(says, ...) OPTIONS(tg_muon_new, TG_MUON, ARGUMENT, says, __VA_ARGS__)

static void making_others(misuse_world *b) {
    tg_rmsprop_opts rmsprop0 = {0};
    tg_adagrad_opts adagrad0 = {0};
    tg_lion_opts lion0 = {0};
    tg_muon_opts muon0 = {0};
    tg_adamw_opts adamw0 = {0};
    NONE(tg_rmsprop_new, ARGUMENT, "size is 0", tg_rmsprop_new(b->ctx, &b->w, 1, &rmsprop0));
    NONE(tg_adagrad_new, ARGUMENT, "size is 0", tg_adagrad_new(b->ctx, &b->w, 1, &adagrad0));
    NONE(tg_lion_new, ARGUMENT, "size is 0", tg_lion_new(b->ctx, &b->w, 1, &lion0));
    NONE(tg_muon_new, ARGUMENT, "size is 0", tg_muon_new(b->ctx, &b->w, 1, &muon0));
    RMSPROP("lr is nan", .lr = NAN);
    RMSPROP("eps -1", .eps = -1);
    RMSPROP("weight_decay inf", .weight_decay = INFINITY);
    RMSPROP("alpha is 1", .alpha = 1);
    RMSPROP("alpha is nan", .alpha = NAN);
    RMSPROP("momentum 1, expected numbers in [0, 1)", .momentum = 1);
    RMSPROP("momentum -0.5", .momentum = -0.5);
    ADAGRAD("lr is -1", .lr = -1);
    ADAGRAD("eps nan", .eps = NAN);
    ADAGRAD("initial is -1", .initial = -1);
    ADAGRAD("initial is inf", .initial = INFINITY);
    LION("lr is inf", .lr = INFINITY);
    LION("beta1 is 1", .beta1 = 1);
    LION("beta2 -1", .beta2 = -1);
    LION("weight_decay -2", .weight_decay = -2);
    MUON("lr is 0, expected a finite number above 0", .lr = 0);
    MUON("lr is nan", .lr = NAN);
    MUON("momentum is 1", .momentum = 1);
    MUON("weight_decay -1", .weight_decay = -1);
    MUON("weight_decay inf", .weight_decay = INFINITY);
    MUON("eps 0", .eps = 0);
    MUON("iterations 0", .iterations = 0);
    MUON("scale is 7", .scale = (tg_muon_scale)7);
    MUON("n_others is 1", .n_others = 1);
    MUON("n_others is -1", .n_others = -1);
    MUON("others[0] is not among the 1 parameters", .others = &b->x, .n_others = 1);
    MUON(".adamw: beta1 is 2", .adamw = TG_ADAMW(.beta1 = 2));
    MUON("size is 0", .adamw = &adamw0);
}

/* ---- Calls on a valid optimizer ---- */

/* A dropped parameter: nothing reads it, and no other parameter is stepped. */
static bool without_its_parameter(misuse_world *b) {
    tg_tensor *p[] = {tg_param_new(b->ctx, "p", TG_DTYPE_DEFAULT, TG_SHAPE(2), 0),
                      tg_param_new(b->ctx, "q", TG_DTYPE_DEFAULT, TG_SHAPE(2), 0)};
    tg_optim *o = tg_adamw_new(b->ctx, p, 2, NULL);
    tg_tape *t = tg_tape_new(b->ctx);
    double before[2], after[2];
    tg_backward(t, tg_sum(t, tg_exp(t, p[0]), TG_ALL_DIMS, false));
    tg_tape_free(t);
    tg_read_f64(p[0], before, 2);
    tg_drop(p[1]);
    bool good = tg_optim_step(o) == TG_ERR_HANDLE && strstr(tg_ctx_message(b->ctx), "parameter 1 was dropped");
    tg_ctx_clear(b->ctx);
    good = good && isnan(tg_optim_clip(o, 1)) && tg_ctx_status(b->ctx) == TG_ERR_HANDLE;
    tg_ctx_clear(b->ctx);
    good = good && tg_optim_no_decay_1d(o) == TG_ERR_HANDLE;
    tg_ctx_clear(b->ctx);
    good = good && tg_optim_assign(o, 0, &p[1], 1) == TG_ERR_HANDLE;
    tg_ctx_clear(b->ctx);
    tg_read_f64(p[0], after, 2);
    good = good && tg_optim_zero_grad(o) == TG_OK && memcmp(before, after, sizeof before) == 0;
    tg_optim_free(o);
    tg_drop(p[0]);
    return good;
}

/* Its state belongs to the optimizer; the caller cannot drop or discard it. */
static bool keeps_its_state(misuse_world *b) {
    tg_tensor *p = tg_param_new(b->ctx, "p", TG_DTYPE_DEFAULT, TG_SHAPE(2), 0);
    tg_optim *o = tg_adamw_new(b->ctx, &p, 1, NULL);
    tg_tensor *m = tg_optim_state(o, 0, NULL);
    tg_drop(m);
    bool good = tg_is_alive(m) && tg_discard(m) == TG_ERR_STATE;
    tg_ctx_clear(b->ctx);
    tg_tape *t = tg_tape_new(b->ctx);
    tg_backward(t, tg_sum(t, tg_exp(t, p), TG_ALL_DIMS, false));
    tg_tape_free(t);
    tg_discard(tg_grad_of(p));
    good = good && tg_optim_step(o) == TG_ERR_DISCARDED;
    tg_ctx_clear(b->ctx);
    tg_optim_free(o);
    good = good && !tg_is_alive(m);
    tg_drop(p);
    return good;
}

#define GROUP(o, code, says, ...)                                                                                      \
    GIVES(tg_optim_add_group, code, says, tg_optim_add_group(o, TG_GROUP(__VA_ARGS__)) < 0)

static void groups(misuse_world *b) {
    tg_tensor *p = tg_param_new(b->ctx, "p", TG_DTYPE_DEFAULT, TG_SHAPE(2), 1),
              *other = tg_param_new(b->ctx, "other", TG_DTYPE_DEFAULT, TG_SHAPE(2), 1), *none = NULL;
    tg_optim *o = tg_adamw_new(b->ctx, &p, 1, NULL), *full = tg_adamw_new(b->ctx, &p, 1, NULL);
    tg_optim *sgd = tg_sgd_new(b->ctx, &p, 1, TG_SGD(.lr = 1));
    tg_group_opts opts0 = {0}, later = {.size = sizeof later + 8};
    tg_schedule schedule0 = {0};
    while (tg_optim_add_group(full, NULL) >= 0) continue;
    tg_ctx_clear(b->ctx);
    QUIET(tg_optim_free, (tg_optim_free(NULL), true));
    QUIET(tg_optim_add_group, tg_optim_add_group(NULL, NULL) < 0);
    GIVES(tg_optim_add_group, ARGUMENT, "size is 0", tg_optim_add_group(o, &opts0) < 0);
    GIVES(tg_optim_add_group, ARGUMENT, "this library knows", tg_optim_add_group(o, &later) < 0);
    GROUP(o, ARGUMENT, "lr_scale is -2", .lr_scale = -2);
    GROUP(o, ARGUMENT, "lr_scale is nan", .lr_scale = NAN);
    GROUP(o, ARGUMENT, "lr_scale is inf", .lr_scale = INFINITY);
    GROUP(o, ARGUMENT, "weight_decay -2", .weight_decay = -2);
    GROUP(o, ARGUMENT, "weight_decay nan", .weight_decay = NAN);
    GROUP(o, ARGUMENT, "weight_decay inf", .weight_decay = INFINITY);
    GROUP(o, ARGUMENT, "beta1 is 1", .beta1 = 1);
    GROUP(o, ARGUMENT, "betas in [0, 1)", .beta2 = NAN);
    GROUP(o, ARGUMENT, "eps inf", .eps = INFINITY);
    GROUP(o, ARGUMENT, "size is 0", .schedule = &schedule0);
    GROUP(o, ARGUMENT, "tg_schedule_lr returns NaN", .schedule = TG_SCHEDULE(.lr = -1));
    GROUP(sgd, ARGUMENT, "sgd has none", .beta1 = 0.5);
    GROUP(sgd, ARGUMENT, "sgd has none", .eps = 0);
    GROUP(full, ARGUMENT, "at most 32 groups", .lr_scale = 1);
    FAILS(tg_optim_no_decay_1d, ARGUMENT, "at most 32 groups", tg_optim_no_decay_1d(full));
    QUIET(tg_optim_no_decay_1d, tg_optim_no_decay_1d(NULL) == TG_ERR_ARGUMENT);
    QUIET(tg_optim_assign, tg_optim_assign(NULL, 0, &p, 1) == TG_ERR_ARGUMENT);
    FAILS(tg_optim_assign, ARGUMENT, "group is -1", tg_optim_assign(o, -1, &p, 1));
    FAILS(tg_optim_assign, ARGUMENT, "group is 1 of 1", tg_optim_assign(o, 1, &p, 1));
    FAILS(tg_optim_assign, ARGUMENT, "n is -1", tg_optim_assign(o, 0, &p, -1));
    FAILS(tg_optim_assign, ARGUMENT, "n is 1", tg_optim_assign(o, 0, NULL, 1));
    FAILS(tg_optim_assign, ARGUMENT, "the tensor is NULL", tg_optim_assign(o, 0, &none, 1));
    FAILS(tg_optim_assign, ARGUMENT, "parameter 0 does not belong", tg_optim_assign(o, 0, &other, 1));
    DEAD_STATUS(tg_optim_assign, tg_optim_assign(o, 0, &x, 1));
    tg_optim_free(o);
    tg_optim_free(full);
    tg_optim_free(sgd);
    tg_drop(p);
    tg_drop(other);
}

static void steps(misuse_world *b) {
    tg_tensor *p = tg_param_new(b->ctx, "p", TG_DTYPE_DEFAULT, TG_SHAPE(2), 1);
    tg_optim *o = tg_adamw_new(b->ctx, &p, 1, TG_ADAMW(.lr = 0.5));
    QUIET(tg_optim_step, tg_optim_step(NULL) == TG_ERR_ARGUMENT);
    QUIET(tg_optim_step, without_its_parameter(b));
    QUIET(tg_optim_zero_grad, tg_optim_zero_grad(NULL) == TG_ERR_ARGUMENT);
    QUIET(tg_optim_set_lr, tg_optim_set_lr(NULL, 1) == TG_ERR_ARGUMENT);
    FAILS(tg_optim_set_lr, ARGUMENT, "lr is nan", tg_optim_set_lr(o, NAN));
    FAILS(tg_optim_set_lr, ARGUMENT, "lr is -1", tg_optim_set_lr(o, -1));
    FAILS(tg_optim_set_lr, ARGUMENT, "lr is inf", tg_optim_set_lr(o, INFINITY));
    QUIET(tg_optim_set_lr_of, tg_optim_set_lr_of(NULL, 0, 1) == TG_ERR_ARGUMENT);
    FAILS(tg_optim_set_lr_of, ARGUMENT, "lr is nan", tg_optim_set_lr_of(o, 0, NAN));
    FAILS(tg_optim_set_lr_of, ARGUMENT, "group is -1, expected 0 to 0", tg_optim_set_lr_of(o, -1, 1));
    FAILS(tg_optim_set_lr_of, ARGUMENT, "group is 1, expected 0 to 0", tg_optim_set_lr_of(o, 1, 1));
    int scheduled = tg_optim_add_group(o, TG_GROUP(.schedule = TG_SCHEDULE(.lr = 1)));
    FAILS(tg_optim_set_lr_of, STATE, "has a schedule", tg_optim_set_lr_of(o, scheduled, 1));
    QUIET(tg_optim_lr, isnan(tg_optim_lr(NULL)) && tg_optim_lr(o) == 0.5);
    QUIET(tg_optim_steps, tg_optim_steps(NULL) == 0 && tg_optim_steps(o) == 0);
    QUIET(tg_optim_clip, isnan(tg_optim_clip(NULL, 1)));
    GIVES(tg_optim_clip, ARGUMENT, "max_norm is -1, expected 0 (no clipping) or more", isnan(tg_optim_clip(o, -1)));
    GIVES(tg_optim_clip, ARGUMENT, "max_norm is nan, expected 0 (no clipping) or more", isnan(tg_optim_clip(o, NAN)));
    QUIET(tg_optim_set_steps, tg_optim_set_steps(NULL, 1) == TG_ERR_ARGUMENT);
    FAILS(tg_optim_set_steps, ARGUMENT, "steps is -1, expected 0 to 2^53", tg_optim_set_steps(o, -1));
    FAILS(tg_optim_set_steps, ARGUMENT, "expected 0 to 2^53", tg_optim_set_steps(o, INT64_MAX));
    QUIET(tg_optim_state_count, tg_optim_state_count(NULL) == 0 && tg_optim_state_count(o) == 2);
    QUIET(tg_optim_state, misuse_inert(tg_optim_state(NULL, 0, NULL)));
    QUIET(tg_optim_state, keeps_its_state(b));
    INERT(tg_optim_state, ARGUMENT, "index -1 is out of range", tg_optim_state(o, -1, NULL));
    INERT(tg_optim_state, ARGUMENT, "index 2 is out of range", tg_optim_state(o, 2, NULL));
    tg_optim_free(o);
    tg_drop(p);
}

/* ---- Clipping on the device, the scale of the loss ---- */

#define SCALE(says, ...) FAILS(tg_optim_set_scale, ARGUMENT, says, tg_optim_set_scale(o, TG_LOSS_SCALE(__VA_ARGS__)))

static bool no_scale(const tg_optim *o) { return isnan(tg_optim_scale(o)) && isnan(tg_optim_norm(o)); }

static void scales(misuse_world *b) {
    tg_tensor *p = tg_param_new(b->ctx, "p", TG_DTYPE_DEFAULT, TG_SHAPE(2), 1);
    tg_optim *o = tg_adamw_new(b->ctx, &p, 1, NULL);
    tg_loss_scale unset = {.initial = 2}, later = {.size = sizeof later + 8};
    QUIET(tg_optim_set_clip, tg_optim_set_clip(NULL, 1) == TG_ERR_ARGUMENT);
    FAILS(tg_optim_set_clip, ARGUMENT, "max_norm is -1, expected 0 (no clipping) or more", tg_optim_set_clip(o, -1));
    FAILS(tg_optim_set_clip, ARGUMENT, "max_norm is nan, expected 0 (no clipping) or more", tg_optim_set_clip(o, NAN));
    QUIET(tg_optim_norm, isnan(tg_optim_norm(NULL)) && isnan(tg_optim_norm(o)));
    QUIET(tg_optim_scale, no_scale(NULL) && tg_optim_scale(o) == 1);
    QUIET(tg_optim_set_scale, tg_optim_set_scale(NULL, NULL) == TG_ERR_ARGUMENT);
    FAILS(tg_optim_set_scale, ARGUMENT, "size is 0", tg_optim_set_scale(o, &unset));
    FAILS(tg_optim_set_scale, ARGUMENT, "this library knows", tg_optim_set_scale(o, &later));
    SCALE("initial -1", .initial = -1);
    SCALE("initial nan", .initial = NAN);
    SCALE("initial inf", .initial = INFINITY);
    SCALE("growth 1", .growth = 1);
    SCALE("growth inf", .growth = INFINITY);
    SCALE("growth nan", .growth = NAN);
    SCALE("backoff 1", .backoff = 1);
    SCALE("backoff -0.5", .backoff = -0.5);
    SCALE("backoff nan", .backoff = NAN);
    SCALE("initial 0", .initial = 0);
    SCALE("growth 0", .growth = 0);
    SCALE("backoff 0", .backoff = 0);
    SCALE("min 0", .min = 0);
    SCALE("interval 0", .interval = 0);
    SCALE("hysteresis 0", .hysteresis = 0);
    SCALE("min 8", .initial = 4, .min = 8);
    SCALE("min -1", .min = -1);
    SCALE("min nan", .min = NAN);
    SCALE("interval -3", .interval = -3);
    SCALE("hysteresis -1", .hysteresis = -1);
    SCALE("fixed is set", .fixed = true, .growth = 3);
    SCALE("fixed is set", .fixed = true, .backoff = 0.25);
    SCALE("fixed is set", .fixed = true, .min = 2);
    SCALE("fixed is set", .fixed = true, .interval = 100);
    SCALE("fixed is set", .fixed = true, .hysteresis = 1);
    QUIET(tg_optim_scale, tg_optim_scale(o) == 1); /* the refused calls have changed nothing */
    tg_optim_set_scale(o, TG_LOSS_SCALE());
    INERT(tg_scale_loss, ARGUMENT, "the optimizer is NULL", tg_scale_loss(b->t, b->x, NULL));
    OP(tg_scale_loss, tg_scale_loss(t, x, o));
    tg_optim_free(o);
    tg_drop(p);
}

/* ---- Schedules ---- */

static bool invalid(tg_schedule s, int64_t step) { return isnan(tg_schedule_lr(&s, step)); }

#define SCHEDULE(...) QUIET(tg_schedule_lr, invalid(TG_SCHEDULE_OF(.lr = 1, .steps = 10, __VA_ARGS__), 3))
#define TG_SCHEDULE_OF(...) ((tg_schedule){.size = sizeof(tg_schedule), __VA_ARGS__})

static void schedules(misuse_world *b) {
    tg_schedule unset = {.lr = 1, .steps = 10}, later = {.size = sizeof later + 8, .lr = 1, .steps = 10};
    QUIET(tg_schedule_lr, isnan(tg_schedule_lr(NULL, 1)));
    QUIET(tg_schedule_lr, invalid(unset, 1) && invalid(later, 1));
    QUIET(tg_schedule_lr, invalid(TG_SCHEDULE_OF(.lr = 1, .steps = 10), -1));
    QUIET(tg_schedule_lr, invalid(TG_SCHEDULE_OF(.lr = NAN, .steps = 10), 1));
    QUIET(tg_schedule_lr, invalid(TG_SCHEDULE_OF(.lr = INFINITY, .steps = 10), 1));
    QUIET(tg_schedule_lr, invalid(TG_SCHEDULE_OF(.lr = -1, .steps = 10), 1));
    QUIET(tg_schedule_lr, invalid(TG_SCHEDULE_OF(.lr = 1, .steps = -1), 1));
    SCHEDULE(.min_lr = 2);
    SCHEDULE(.min_lr = NAN);
    SCHEDULE(.min_lr = -1);
    SCHEDULE(.start_lr = -1);
    SCHEDULE(.start_lr = NAN);
    SCHEDULE(.start_lr = INFINITY, .warmup = 5);
    SCHEDULE(.warmup = -1);
    SCHEDULE(.warmup = 11);
    SCHEDULE(.decay = (tg_decay)9);
    SCHEDULE(.decay = (tg_decay)-1);
    SCHEDULE(.decay = TG_DECAY_WSD, .wsd = (tg_wsd)7, .wsd_steps = 9);
    SCHEDULE(.decay = TG_DECAY_WSD, .wsd_steps = 11);
    SCHEDULE(.decay = TG_DECAY_WSD, .wsd_steps = -1);
    SCHEDULE(.decay = TG_DECAY_COSINE, .wsd_steps = 5);
    SCHEDULE(.decay = TG_DECAY_LINEAR, .wsd = TG_WSD_COSINE);
}

void misuse_optim(misuse_world *b) {
    making(b);
    making_others(b);
    groups(b);
    steps(b);
    scales(b);
    schedules(b);
}
